// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

var errTest = errors.New("the test wants it")

// strategies are the two that come with the package, and how many commands each
// has in flight.
var strategies = []struct {
	batch.Strategy
	depth int
}{{batch.Serial(), 1}, {batch.Parallel(1), 1}, {batch.Parallel(4), 4}}

func TestCancelledBeforeRun(t *testing.T) {
	for _, s := range strategies {
		d, e := emulate(t, virtual)
		b := newBatch(t, d, batch.Options{Strategy: s, OnWait: func(n int) { t.Errorf("%s: OnWait(%d)", s.Name(), n) }})
		addToERR(t, b, newQPs(t, d, 40))
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errTest)
		before := e.HCA().Stats().Commands
		err := b.Run(ctx)
		text(t, err, "batch: 0 failed, 40 not sent (the test wants it), 0 unknown")
		if !errors.Is(err, errTest) || partial(t, err).Waited != 0 {
			t.Errorf("%s: %#v", s.Name(), err)
		}
		if n := e.HCA().Stats().Commands - before; n != 0 {
			t.Errorf("%s: the device got %d commands", s.Name(), n)
		}
		for _, r := range results(b) {
			if r.Outcome != batch.NotSent || !errors.Is(r.Err, batch.ErrNotSent) || !errors.Is(r.Err, errTest) || !r.Sent.IsZero() {
				t.Errorf("%s: %+v", s.Name(), r)
			}
			text(t, r.Err, "batch: not sent: the test wants it")
		}
	}
}

func TestDeadline(t *testing.T) {
	d := open(t)
	b := newBatch(t, d, batch.Options{})
	addToERR(t, b, newQPs(t, d, 2))
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	err := b.Run(ctx)
	text(t, err, "batch: 0 failed, 2 not sent (context deadline exceeded), 0 unknown")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// countTo returns a trace that calls f when the k-th transition is done, and
// the number of transitions until now.
func countTo(k int64, f func()) (devx.Option, *atomic.Int64) {
	n := new(atomic.Int64)
	return devx.WithTrace(func(in, _ []byte, _ time.Duration) {
		if op := mlx5.OpOf(in); (op == mlx5.Op2ERR || op == mlx5.OpRTS2RTS) && n.Add(1) == k {
			f()
		}
	}), n
}

// One at a time, the k-th command is the last if it cancels.
func TestCancelAtACommand(t *testing.T) {
	for _, s := range strategies[:2] {
		for _, k := range []int{1, 2, 31, 32, 33, 39, 40} {
			ctx, cancel := context.WithCancel(context.Background())
			trace, sent := countTo(int64(k), cancel)
			d, _ := emulate(t, virtual, trace)
			b := newBatch(t, d, batch.Options{Strategy: s})
			addToERR(t, b, newQPs(t, d, 40))
			err := b.Run(ctx)
			if got, want := outcomes(b), strings.Repeat("D", k)+strings.Repeat("N", 40-k); got != want || int(sent.Load()) != k {
				t.Errorf("%s, %d: %s, %d sent", s.Name(), k, got, sent.Load())
			}
			if k == 40 { // nothing was left to send
				if err != nil {
					t.Errorf("%s: %v", s.Name(), err)
				}
			} else if p := partial(t, err); p.Failed+p.Unknown != 0 || p.NotSent != 40-k || p.Cause != context.Canceled || p.First != nil {
				t.Errorf("%s, %d: %+v", s.Name(), k, p)
			}
		}
	}
}

// A closed queue pair is not why the rest was not sent.
func TestCancelBesideAClosedQP(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	trace, _ := countTo(1, cancel)
	d := open(t, trace)
	qps := newQPs(t, d, 3)
	b := newBatch(t, d, batch.Options{Strategy: batch.Serial()})
	addToERR(t, b, qps)
	if err := qps[0].Close(); err != nil {
		t.Fatal(err)
	}
	if p := partial(t, b.Run(ctx)); p.NotSent != 2 || p.Cause != context.Canceled || p.First != nil {
		t.Errorf("%+v", p)
	}
	if got := outcomes(b); got != "NDN" || !errors.Is(results(b)[0].Err, devx.ErrClosed) || !errors.Is(results(b)[2].Err, context.Canceled) {
		t.Error(got)
	}
}

// Many at a time, whatever the device did is Done and nothing else.
func TestCancelAmongMany(t *testing.T) {
	for k := 1; k <= 64; k += 3 {
		ctx, cancel := context.WithCancel(context.Background())
		trace, sent := countTo(int64(k), cancel)
		d, _ := emulate(t, virtual, trace)
		var waiting atomic.Int64
		b := newBatch(t, d, batch.Options{Group: 16, Depth: 8, OnWait: func(n int) { waiting.Store(int64(n)) }})
		addToERR(t, b, newQPs(t, d, 64))
		err := b.Run(ctx)
		done := strings.Count(outcomes(b), "D")
		if done != int(sent.Load()) || done < k || done > k+7 || (k+15)/16*16 < done {
			t.Errorf("cancelled at %d, the device executed %d, done are %d: %s", k, sent.Load(), done, outcomes(b))
		}
		if done == 64 && err == nil {
			continue
		}
		if p := partial(t, err); p.NotSent != 64-done || p.Failed+p.Unknown != 0 || p.Waited != int(waiting.Load()) || p.Cause != context.Canceled {
			t.Errorf("%+v, %d done, OnWait(%d)", p, done, waiting.Load())
		}
	}
}

// Commands in flight are waited for, counted and reported; nothing follows
// them.
func TestCancelWithCommandsInFlight(t *testing.T) {
	for _, s := range strategies {
		d, e := emulate(t, virtual)
		waiting := make(chan int, 1)
		b := newBatch(t, d, batch.Options{Strategy: s, OnWait: func(n int) { waiting <- n }})
		addToERR(t, b, newQPs(t, d, 10))
		for range 2 { // also when it is used again
			ctx, cancel := context.WithCancelCause(context.Background())
			h := hold(ctx, t, b, e, s.depth)
			cancel(errTest)
			if n := <-waiting; n != s.depth {
				t.Errorf("%s: OnWait(%d), not %d", s.Name(), n, s.depth)
			}
			sent, err := h.end()
			if sent != s.depth {
				t.Errorf("%s: %d commands, not %d", s.Name(), sent, s.depth)
			}
			if got, want := outcomes(b), strings.Repeat("D", s.depth)+strings.Repeat("N", 10-s.depth); got != want {
				t.Errorf("%s: %s, not %s", s.Name(), got, want)
			}
			if p := partial(t, err); p.Waited != s.depth || p.NotSent != 10-s.depth || p.Cause != errTest || p.Failed+p.Unknown != 0 {
				t.Errorf("%s: %+v", s.Name(), p)
			}
			if s.depth == 4 {
				text(t, err, "batch: 0 failed, 6 not sent (the test wants it), 0 unknown; 4 in flight were waited for, since a firmware command cannot be recalled")
			}
			qps := []*devx.QP{}
			for _, r := range results(b) {
				qps = append(qps, r.QP)
			}
			b.Reset()
			addToERR(t, b, qps)
		}
		add(t, b, results(b)[0].QP, refused, 10)
		if p := partial(t, b.Run(context.Background())); *p != (batch.Error{Failed: 1, First: results(b)[10].Err}) {
			t.Errorf("%s: after two cancelled runs: %+v", s.Name(), p)
		}
	}
}

// A context that ends when everything is on its way spoils nothing.
func TestCancelWhenAllAreInFlight(t *testing.T) {
	d, e := emulate(t, virtual)
	waiting := make(chan int, 1)
	b := newBatch(t, d, batch.Options{OnWait: func(n int) { waiting <- n }})
	addToERR(t, b, newQPs(t, d, 5))
	ctx, cancel := context.WithCancel(context.Background())
	h := hold(ctx, t, b, e, 5)
	cancel()
	if n := <-waiting; n != 5 {
		t.Errorf("OnWait(%d)", n)
	}
	if _, err := h.end(); err != nil || outcomes(b) != "DDDDD" {
		t.Error(err, outcomes(b))
	}
}

// Run waits for OnWait.
func TestRunReturnsAfterOnWait(t *testing.T) {
	d, e := emulate(t, virtual)
	called, goOn := make(chan struct{}), make(chan struct{})
	b := newBatch(t, d, batch.Options{OnWait: func(int) { close(called); <-goOn }})
	addToERR(t, b, newQPs(t, d, 2))
	ctx, cancel := context.WithCancel(context.Background())
	h := hold(ctx, t, b, e, 2)
	cancel()
	<-called
	h.release()
	until(t, "both done", func() bool { return e.HCA().Stats().InFlight == 0 })
	for range 1000 {
		select {
		case err := <-h.err:
			t.Fatalf("Run returned before OnWait: %v", err)
		default:
		}
	}
	close(goOn)
	if err := <-h.err; err != nil {
		t.Error(err)
	}
}

func TestStopOnErrorSerial(t *testing.T) {
	for k := range 40 {
		trace, sent := countTo(0, nil)
		d, _ := emulate(t, virtual, trace)
		b := newBatch(t, d, batch.Options{Strategy: batch.Serial(), StopOnError: true})
		for i, q := range newQPs(t, d, 40) {
			if i == k {
				add(t, b, q, refused, uint64(i))
			} else {
				add(t, b, q, mlx5.ToERR{}, uint64(i))
			}
		}
		err := b.Run(context.Background())
		if got, want := outcomes(b), strings.Repeat("D", k)+"F"+strings.Repeat("N", 39-k); got != want || int(sent.Load()) != k+1 {
			t.Errorf("%d: %s, %d sent", k, got, sent.Load())
		}
		p := partial(t, err)
		if p.Failed != 1 || p.NotSent != 39-k || p.First != results(b)[k].Err || (p.Cause == nil) != (k == 39) {
			t.Errorf("%d: %+v", k, p)
		}
		if k == 0 {
			text(t, err, "batch: 1 failed, 39 not sent (an earlier transition failed and Options.StopOnError is set), 0 unknown; first: "+p.First.Error())
			text(t, results(b)[1].Err, "batch: not sent: an earlier transition failed and Options.StopOnError is set")
		}
	}
}

// What is in flight when the first one fails still ends; nothing follows it.
func TestStopOnErrorParallel(t *testing.T) {
	d, e := emulate(t, virtual)
	b := newBatch(t, d, batch.Options{Depth: 4, Group: 8, StopOnError: true})
	qps := newQPs(t, d, 9)
	for i, q := range qps {
		add(t, b, q, refused, uint64(i))
	}
	add(t, b, qps[0], mlx5.ToERR{}, 9) // of the same queue pair as the first
	sent, err := hold(context.Background(), t, b, e, 4).end()
	if outcomes(b) != "FFFFNNNNNN" || sent != 4 {
		t.Errorf("%s, %d sent", outcomes(b), sent)
	}
	if p := partial(t, err); p.Failed != 4 || p.NotSent != 6 || p.Waited != 0 {
		t.Errorf("%+v", p)
	}
}

// A chain stops at its failure only if it was asked to.
func TestStopOnErrorInAChain(t *testing.T) {
	for stop, want := range map[bool]string{true: "DFNN", false: "DFDD"} {
		d := open(t)
		q := newQP(t, d, mlx5.STUD)
		b := newBatch(t, d, batch.Options{StopOnError: stop})
		add(t, b, q, mlx5.ToERR{}, 0)
		add(t, b, q, refused, 1)
		add(t, b, q, mlx5.ToERR{}, 2)
		add(t, b, q, mlx5.ToRST{}, 3)
		partial(t, b.Run(context.Background()))
		if got := outcomes(b); got != want {
			t.Errorf("StopOnError %v: %s, not %s", stop, got, want)
		}
	}
}

// The reason that stopped a batch is the one that is reported, whatever happens
// to the context afterwards.
func TestFirstReasonStays(t *testing.T) {
	begun, hung := make(chan struct{}), make(chan struct{})
	d := openStub(t, func(op mlx5.Op, _ uint32) unix.Errno {
		if op == mlx5.Op2ERR {
			close(begun)
			<-hung
			return 0
		}
		<-begun
		return unix.EINVAL
	})
	waiting := make(chan int, 1)
	b := newBatch(t, d, batch.Options{Depth: 2, StopOnError: true, OnWait: func(n int) { waiting <- n }})
	qps := newQPs(t, d, 4)
	add(t, b, qps[0], mlx5.ToERR{}, 0)
	for i, q := range qps[1:] {
		add(t, b, q, refused, uint64(i+1))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- b.Run(ctx) }()
	until(t, "the stop", func() bool { return b.Shut() && b.UnderWay() == 1 })
	cancel()
	if n := <-waiting; n != 1 {
		t.Errorf("OnWait(%d)", n)
	}
	close(hung)
	err := <-done
	if got := outcomes(b); got != "DFNN" {
		t.Error(got)
	}
	text(t, err, "batch: 1 failed, 2 not sent (an earlier transition failed and Options.StopOnError is set), 0 unknown; "+
		"1 in flight were waited for, since a firmware command cannot be recalled; first: "+results(b)[1].Err.Error())
}

func TestDeviceClosedInMidRun(t *testing.T) {
	d, e := emulate(t, virtual)
	b := newBatch(t, d, batch.Options{Depth: 4, Group: 8})
	addToERR(t, b, newQPs(t, d, 10))
	h := hold(context.Background(), t, b, e, 4)
	closed := make(chan error)
	go func() { closed <- d.Close() }()
	until(t, "the device closed", func() bool { _, err := d.EQN(0); return errors.Is(err, devx.ErrClosed) })
	select {
	case err := <-closed:
		t.Fatalf("the device closed under its commands: %v", err)
	default:
	}
	h.release()
	err := <-h.err
	if got := outcomes(b); got != "DDDDNNNNNN" {
		t.Error(got)
	}
	text(t, err, "batch: 0 failed, 6 not sent (devx: "+d.Name()+": closed), 0 unknown")
	if p := partial(t, err); !errors.Is(p.Cause, devx.ErrClosed) || p.First != nil {
		t.Errorf("%+v", p)
	}
	for _, r := range results(b)[4:] {
		text(t, r.Err, "batch: not sent: devx: "+d.Name()+": closed")
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// Close stops a Run and waits for its commands.
func TestBatchClosedInMidRun(t *testing.T) {
	for _, s := range strategies {
		d, e := emulate(t, virtual)
		b := newBatch(t, d, batch.Options{Strategy: s})
		addToERR(t, b, newQPs(t, d, 40)) // two groups
		h := hold(context.Background(), t, b, e, s.depth)
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		until(t, "the stop", b.Shut)
		if err := b.Close(); err != nil { // a second time, while the first waits
			t.Error(err)
		}
		for range 1000 {
			runtime.Gosched()
		}
		select {
		case err := <-closed:
			t.Fatalf("%s: the batch closed under its commands: %v", s.Name(), err)
		default:
		}
		sent, err := h.end()
		if got, want := outcomes(b), strings.Repeat("D", s.depth)+strings.Repeat("N", 40-s.depth); got != want || sent != s.depth {
			t.Errorf("%s: %s, %d sent", s.Name(), got, sent)
		}
		text(t, err, fmt.Sprintf("batch: 0 failed, %d not sent (batch: closed: make another one with New), 0 unknown", 40-s.depth))
		if !errors.Is(err, devx.ErrClosed) {
			t.Error(err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
}
