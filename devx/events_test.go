// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"context"
	"encoding/binary"
	"errors"
	"iter"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/emu/fw"
	"devxlab.example/internal/testdev"
	"devxlab.example/mlx5"
)

func eventChannel(t *testing.T, d *devx.Device) *devx.EventChannel {
	t.Helper()
	c, err := d.EventChannel()
	must(t, err)
	return c
}

// puller reads a channel one message at a time.
type puller[T any] struct {
	next func() (T, error, bool)
	stop func()
}

func pull[T any](t *testing.T, seq iter.Seq2[T, error]) puller[T] {
	next, stop := iter.Pull2(seq)
	t.Cleanup(stop)
	return puller[T]{next, stop}
}

func (p puller[T]) want(t *testing.T) T {
	t.Helper()
	v, err, ok := p.next()
	if err != nil || !ok {
		t.Fatalf("no message: %v, %v", err, ok)
	}
	return v
}

// ends expects the error that ends the messages.
func (p puller[T]) ends(t *testing.T, is error) {
	t.Helper()
	v, err, ok := p.next()
	if !ok || !errors.Is(err, is) {
		t.Fatalf("%v, %v, %v; want %v", v, err, ok, is)
	}
	if v, err, ok := p.next(); ok {
		t.Fatalf("%v, %v after the end", v, err)
	}
}

func TestEvents(t *testing.T) {
	d := open(t, name(t))
	hca := emulated(t, d).HCA()
	q, other := newQP(t, d, mlx5.STRC), newQP(t, d, mlx5.STRC)
	cq, err := d.CQ(4)
	must(t, err)
	a, b, port := eventChannel(t, d), eventChannel(t, d), eventChannel(t, d)
	must(t, a.Subscribe(0x1122334455667788, q, mlx5.EventCommEst, mlx5.EventWQCatasError))
	must(t, a.Subscribe(2, cq, mlx5.EventCQError, mlx5.EventComp))
	must(t, b.Subscribe(3, q, mlx5.EventCommEst))
	must(t, b.Subscribe(4, other, mlx5.EventCommEst))
	must(t, b.Subscribe(5, q, mlx5.EventCommEst)) // a second subscription is a second event
	must(t, port.Subscribe(6, nil, mlx5.EventPortChange))

	for _, e := range []fw.Event{
		{Type: mlx5.EventCommEst, Object: q.Number()},
		{Type: mlx5.EventSQDrained, Object: q.Number()}, // nobody subscribed
		{Type: mlx5.EventCommEst, Object: 0xffff},       // nobody's
		{Type: mlx5.EventCQError, Object: cq.Number()},
		{Type: mlx5.EventComp, Object: q.Number()}, // a queue pair's number is no CQ's
		{Type: mlx5.EventComp, Object: cq.Number()},
		{Type: mlx5.EventWQCatasError, Object: q.Number()},
		{Type: mlx5.EventCommEst, Object: other.Number()},
		{Type: mlx5.EventPortChange},
	} {
		hca.Raise(e)
	}
	type seen struct {
		cookie uint64
		typ    mlx5.EventType
		number uint32
	}
	check := func(c *devx.EventChannel, number int, want ...seen) {
		t.Helper()
		p := pull(t, c.Events(context.Background()))
		for _, w := range want {
			e := p.want(t)
			if len(e.EQE) != 64 || mlx5.EventType(e.EQE[1]) != e.Type {
				t.Fatalf("entry %x", e.EQE)
			}
			at := number
			if e.Type == mlx5.EventCQError {
				at = 32
			}
			if got := (seen{e.Cookie, e.Type, binary.BigEndian.Uint32(e.EQE[at:])}); got != w {
				t.Errorf("%+v, want %+v", got, w)
			}
		}
		p.stop()
	}
	qn, cn := q.Number(), cq.Number()
	check(a, 56, seen{0x1122334455667788, mlx5.EventCommEst, qn}, seen{2, mlx5.EventCQError, cn}, seen{2, mlx5.EventComp, cn},
		seen{0x1122334455667788, mlx5.EventWQCatasError, qn})
	check(b, 56, seen{3, mlx5.EventCommEst, qn}, seen{5, mlx5.EventCommEst, qn}, seen{4, mlx5.EventCommEst, other.Number()})
	check(port, 40, seen{6, mlx5.EventPortChange, 1 << 28})

	// A closed object's number may become another's: its subscriptions end.
	must(t, q.Close())
	hca.Raise(fw.Event{Type: mlx5.EventCommEst, Object: qn})
	hca.Raise(fw.Event{Type: mlx5.EventCommEst, Object: other.Number()})
	check(b, 56, seen{4, mlx5.EventCommEst, other.Number()})
	// A closed channel's go with it, and leave those of others alone.
	must(t, b.Close())
	must(t, b.Close())
	must(t, a.Subscribe(7, other, mlx5.EventCommEst))
	hca.Raise(fw.Event{Type: mlx5.EventCommEst, Object: other.Number()})
	check(a, 56, seen{7, mlx5.EventCommEst, other.Number()})
}

func TestSubscribeErrors(t *testing.T) {
	d := open(t, name(t))
	q := newQP(t, d, mlx5.STRC)
	c := eventChannel(t, d)
	contains(t, c.Subscribe(0, q), "0 event types: 1 to 16")
	contains(t, c.Subscribe(0, q, make([]mlx5.EventType, 17)...), "17 event types")
	must(t, c.Subscribe(0, q, slices.Repeat([]mlx5.EventType{mlx5.EventCommEst}, 16)...))
	for _, err := range []error{
		c.Subscribe(0, q, mlx5.EventPortChange), c.Subscribe(0, nil, mlx5.EventCommEst), c.Subscribe(0, q, mlx5.EventCommEst, 0x1000),
	} {
		if !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	}
	must(t, c.Close())
	err := c.Subscribe(0, q, mlx5.EventCommEst)
	contains(t, err, "event channel: closed")
	if !errors.Is(err, devx.ErrClosed) {
		t.Error(err)
	}
}

func TestEventsEnd(t *testing.T) {
	n := name(t)
	d := open(t, n)
	q := newQP(t, d, mlx5.STRC)
	hca := emulated(t, d).HCA()
	c := eventChannel(t, d)
	must(t, c.Subscribe(1, q, mlx5.EventCommEst))
	raise := func() { hca.Raise(fw.Event{Type: mlx5.EventCommEst, Object: q.Number()}) }

	// By its context, as often as one likes, and nothing is lost in between.
	for range 300 {
		ctx, cancel := context.WithCancel(context.Background())
		p := pull(t, c.Events(ctx))
		raise()
		p.want(t)
		go cancel()
		p.ends(t, context.Canceled)
	}
	// By a break, with a context that ends at the same time.
	for range 300 {
		ctx, cancel := context.WithCancel(context.Background())
		raise()
		for e, err := range c.Events(ctx) {
			if err != nil || e.Cookie != 1 {
				t.Fatalf("%+v, %v", e, err)
			}
			cancel()
			break
		}
		cancel()
	}
	// By the channel.
	p := pull(t, c.Events(context.Background()))
	raise()
	p.want(t)
	go func() { _ = c.Close() }()
	p.ends(t, devx.ErrClosed)
	pull(t, c.Events(context.Background())).ends(t, devx.ErrClosed)

	// By the device.
	c = eventChannel(t, d)
	qc, err := d.QueryChannel()
	must(t, err)
	p = pull(t, c.Events(context.Background()))
	answers := pull(t, qc.Answers(context.Background()))
	go func() { _ = d.Close() }()
	p.ends(t, devx.ErrClosed)
	answers.ends(t, devx.ErrClosed)

	// By the end of the device.
	d = open(t, n)
	c = eventChannel(t, d)
	qc, err = d.QueryChannel()
	must(t, err)
	p, answers = pull(t, c.Events(context.Background())), pull(t, qc.Answers(context.Background()))
	go emulated(t, d).Unplug()
	p.ends(t, devx.ErrDeviceGone)
	answers.ends(t, devx.ErrDeviceGone)
	if _, err := d.EventChannel(); !errors.Is(err, devx.ErrDeviceGone) {
		t.Error(err)
	}
	if err := c.Subscribe(1, nil, mlx5.EventPortChange); !errors.Is(err, devx.ErrDeviceGone) {
		t.Error(err)
	}
}

// A channel that was closed holds nothing, though its device stays open.
func TestChannelsDoNotPileUp(t *testing.T) {
	d := open(t, name(t))
	q := newQP(t, d, mlx5.STRC)
	count := func() int {
		e, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(e)
	}
	before := count()
	for range 200 {
		c := eventChannel(t, d)
		must(t, c.Subscribe(1, q, mlx5.EventCommEst))
		must(t, c.Close())
		qc, err := d.QueryChannel()
		must(t, err)
		must(t, qc.Close())
	}
	wait(t, "the emulated kernel's ends to close", func() bool { return count() <= before })
}

// Descriptor numbers are used again: a channel must not talk to the one that
// got its number.
func TestSubscribeWhileClosing(t *testing.T) {
	d := open(t, name(t))
	q := newQP(t, d, mlx5.STRC)
	hca := emulated(t, d).HCA()
	for range 200 {
		c := eventChannel(t, d)
		var done sync.WaitGroup
		done.Go(func() {
			for {
				if err := c.Subscribe(0xbad, q, mlx5.EventCommEst); err != nil {
					if !errors.Is(err, devx.ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		})
		must(t, c.Close())
		next := eventChannel(t, d) // has the number, most likely
		done.Wait()
		must(t, next.Subscribe(1, q, mlx5.EventCommEst))
		hca.Raise(fw.Event{Type: mlx5.EventCommEst, Object: q.Number()})
		p := pull(t, next.Events(context.Background()))
		if e := p.want(t); e.Cookie != 1 {
			t.Fatalf("cookie %#x", e.Cookie)
		}
		p.stop()
		must(t, next.Close())
	}
}

// query is QUERY_QP.
func query(q *devx.QP) []byte {
	in := make([]byte, mlx5.QueryQPInSize)
	mlx5.PutHeader(in, mlx5.OpQueryQP, 0)
	mlx5.QueryQPIn(in).SetQPN(q.Number())
	return in
}

// quietRefusals reports whether this kernel survives the refusal of an
// asynchronous command without a warning: in Linux 5.18 to, at least, 6.1
// cmd_status_log of mlx5_core enables interrupts in the interrupt handler.
func quietRefusals(t testing.TB) bool {
	t.Helper()
	major, minor := kernelVersion(t)
	return !firmwareAnswers(t) || major > 6 || major == 6 && minor >= 12
}

func TestQueryChannel(t *testing.T) {
	options := []string{"latency=20us"} // so that answers are late
	if testdev.Kernel() != "" {
		options = nil
	}
	d := open(t, name(t, options...))
	qps := []*devx.QP{newQP(t, d, mlx5.STRC), newQP(t, d, mlx5.STUC), newQP(t, d, mlx5.STUD)}
	c, err := d.QueryChannel()
	must(t, err)
	const n = 600
	sent := make(chan error, 1)
	go func() {
		for i := range n {
			if err := c.Query(uint64(i), qps[i%3], query(qps[i%3]), mlx5.QueryQPOutSize); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	seen := map[uint64]bool{}
	for a, err := range c.Answers(context.Background()) {
		must(t, err)
		if seen[a.ID] || len(a.Out) != mlx5.QueryQPOutSize || a.Out[0] != 0 {
			t.Fatalf("answer %d: %x", a.ID, a.Out[:8])
		}
		if st := mlx5.ServiceType(mlx5.QueryQPOut(a.Out).QPC().St()); st != qps[a.ID%3].Transport() {
			t.Fatalf("answer %d is of a %v queue pair", a.ID, st)
		}
		if seen[a.ID] = true; len(seen) == n {
			break
		}
	}
	must(t, <-sent)
	// A refused query answers, too.
	if testdev.Kernel() != "" && !quietRefusals(t) {
		must(t, c.Close())
		return
	}
	must(t, c.Query(7, qps[0], query(qps[0]), 16))
	for a, err := range c.Answers(context.Background()) {
		must(t, err)
		if status, _ := mlx5.StatusOf(a.Out); a.ID != 7 || len(a.Out) != 16 || status != mlx5.StatusBadOutpLen {
			t.Errorf("%+v", a)
		}
		break
	}
	rst := make([]byte, mlx5.ToRSTQPInSize)
	mlx5.PutHeader(rst, mlx5.Op2RST, 0)
	mlx5.ToRSTQPIn(rst).SetQPN(qps[0].Number())
	if err := c.Query(8, qps[0], rst, 16); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a modify: %v", err)
	}
	must(t, c.Close())
	if err := c.Query(9, qps[0], query(qps[0]), 16); !errors.Is(err, devx.ErrClosed) {
		t.Error(err)
	}
}

// The kernel holds answers of 1 MiB for each channel, read or not, and counts
// one until it was read.
func TestQueryChannelLimit(t *testing.T) {
	for _, out := range []int{mlx5.QueryQPOutSize, 4096, 60000} {
		d := open(t, name(t))
		q := newQP(t, d, mlx5.STRC)
		c, err := d.QueryChannel()
		must(t, err)
		most := 1 << 20 / out
		for i := range most {
			if err := c.Query(uint64(i), q, query(q), out); err != nil {
				t.Fatalf("%d of %d: %v", i, most, err)
			}
		}
		full := func() {
			t.Helper()
			err := c.Query(0, q, query(q), out)
			if !errors.Is(err, unix.EAGAIN) {
				t.Fatalf("%v after %d answers of %d bytes", err, most, out)
			}
			contains(t, err, "asynchronous QUERY_QP", "read some first")
		}
		full()
		p := pull(t, c.Answers(context.Background()))
		p.want(t)
		must(t, c.Query(0, q, query(q), out)) // room for one
		full()
		for range most {
			p.want(t)
		}
		for range most { // and for all
			must(t, c.Query(0, q, query(q), out))
		}
		full()
		p.stop()
		must(t, d.Close()) // with all that unread
	}
}
