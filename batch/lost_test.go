// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// A device that goes away takes its answers with it: what it did is unknown.
func TestUnplugged(t *testing.T) {
	d, e := emulate(t, virtual)
	b := newBatch(t, d, batch.Options{Depth: 4, Group: 8})
	qps := newQPs(t, d, 6)
	for i, q := range []int{0, 1, 2, 3, 0, 4, 1, 4, 5, 0} { // the first group has 8 of them
		add(t, b, qps[q], mlx5.ToERR{}, uint64(i))
	}
	h := hold(context.Background(), t, b, e, 4)
	e.Unplug()
	_, err := h.end()
	// After an entry of a queue pair whose end is unknown, no other is sent.
	if got := outcomes(b); got != "UUUUNUNNUN" {
		t.Error(got)
	}
	for i, r := range results(b) {
		var c *devx.CommandError
		switch r.Outcome {
		case batch.Unknown:
			want := unix.ENXIO
			if i > 3 { // the device was gone before
				want = unix.EIO
			}
			if !errors.Is(r.Err, devx.ErrDeviceGone) || !errors.Is(r.Err, want) || !errors.As(r.Err, &c) || c.QPN != r.QP.Number() || r.Took <= 0 {
				t.Errorf("entry %d: %v", i, r.Err)
			}
		case batch.NotSent:
			text(t, r.Err, "batch: not sent: an earlier transition of its queue pair ended unknown: query the state first")
		}
	}
	first := results(b)[0].Err
	text(t, err, "batch: 0 failed, 4 not sent (an earlier transition of its queue pair ended unknown: query the state first), 6 unknown; first: "+first.Error())
	if p := partial(t, err); p.First != first || p.Failed != 0 || p.NotSent != 4 || p.Unknown != 6 || !errors.Is(err, devx.ErrDeviceGone) {
		t.Errorf("%+v", p)
	}
	if !strings.Contains(err.Error(), "open it again") {
		t.Errorf("no word on what to do next: %v", err)
	}
	b.Reset()
	add(t, b, qps[0], mlx5.ToERR{}, 0)
	if p := partial(t, b.Run(context.Background())); p.Unknown != 1 {
		t.Errorf("after Reset: %+v", p)
	}
}

func TestUnpluggedStopOnError(t *testing.T) {
	d, e := emulate(t, virtual)
	b := newBatch(t, d, batch.Options{Depth: 4, StopOnError: true})
	qps := newQPs(t, d, 9)
	addToERR(t, b, append(qps, qps[0]))
	h := hold(context.Background(), t, b, e, 4)
	e.Unplug()
	sent, err := h.end()
	if got := outcomes(b); got != "UUUUNNNNNN" || sent != 4 {
		t.Error(got, sent)
	}
	text(t, err, "batch: 0 failed, 6 not sent (an earlier transition failed and Options.StopOnError is set), 4 unknown; first: "+results(b)[0].Err.Error())
}

// A command that the driver gave up on may still be executed. A later one of
// the same queue pair could overtake it, so it is not sent, in no group; the
// others go on.
func TestTimeoutHoldsBackItsQueuePair(t *testing.T) {
	for _, s := range strategies {
		d := openStub(t, func(op mlx5.Op, qpn uint32) unix.Errno {
			if op == mlx5.Op2ERR {
				return unix.ETIMEDOUT
			}
			return 0
		})
		qps := newQPs(t, d, 3)
		b := newBatch(t, d, batch.Options{Group: 4, Strategy: s})
		for i, q := range []int{0, 1, 0, 2, 0, 0, 0, 0, 0, 1, 2, 2} {
			if i == 2 {
				add(t, b, qps[q], mlx5.ToERR{}, uint64(i))
			} else {
				add(t, b, qps[q], mlx5.ToRST{}, uint64(i))
			}
		}
		err := b.Run(context.Background())
		if got := outcomes(b); got != "DDUDNNNNNDDD" { // the second group has nothing to send
			t.Errorf("%s: %s", s.Name(), got)
		}
		if !errors.Is(err, unix.ETIMEDOUT) || errors.Is(err, devx.ErrDeviceGone) {
			t.Errorf("%s: %v", s.Name(), err)
		}
		b.Reset() // which forgets it
		add(t, b, qps[0], mlx5.ToRST{}, 0)
		if err := b.Run(context.Background()); err != nil {
			t.Errorf("%s: after Reset: %v", s.Name(), err)
		}
	}
}

// What an errno without an answer means (before Linux 5.18 there is no answer).
func TestOutcomeOfAnErrno(t *testing.T) {
	for errno, want := range map[unix.Errno]string{
		unix.EIO: "U", unix.ENXIO: "U", unix.ENODEV: "U", unix.ETIMEDOUT: "U",
		unix.EINVAL: "F", unix.ENOMEM: "F", unix.EBUSY: "F", unix.ENOENT: "F", unix.EAGAIN: "F",
	} {
		d := openStub(t, func(mlx5.Op, uint32) unix.Errno { return errno })
		b := newBatch(t, d, batch.Options{Depth: 1})
		addToERR(t, b, newQPs(t, d, 1))
		err := b.Run(context.Background())
		if got := outcomes(b); got != want || !errors.Is(err, errno) {
			t.Errorf("%v: %s, %v", errno, got, err)
		}
	}
}

// A command that hangs holds Run but not the other queue pairs, and OnWait
// tells of it.
func TestHungCommand(t *testing.T) {
	for _, s := range strategies {
		hung := make(chan struct{})
		var begun, others atomic.Int32
		d := openStub(t, func(op mlx5.Op, _ uint32) unix.Errno {
			if op != mlx5.Op2ERR {
				others.Add(1)
				return 0
			}
			begun.Add(1)
			<-hung
			return unix.ETIMEDOUT
		})
		ctx, cancel := context.WithCancel(context.Background())
		waiting := make(chan int, 1)
		b := newBatch(t, d, batch.Options{Strategy: s, OnWait: func(n int) { waiting <- n }})
		qps := newQPs(t, d, 3)
		add(t, b, qps[0], mlx5.ToRST{}, 0)
		add(t, b, qps[1], mlx5.ToERR{}, 1)
		add(t, b, qps[1], mlx5.ToRST{}, 2)
		add(t, b, qps[2], mlx5.ToRST{}, 3)
		done := make(chan error)
		go func() { done <- b.Run(ctx) }()
		before, want := int32(1), "DUNN"
		if s.depth > 1 {
			before, want = 2, "DUND"
		}
		until(t, "the hung command alone", func() bool { return begun.Load() == 1 && others.Load() == before && b.UnderWay() == 1 })
		cancel()
		if n := <-waiting; n != 1 {
			t.Errorf("%s: OnWait(%d)", s.Name(), n)
		}
		close(hung)
		err := <-done
		if got := outcomes(b); got != want {
			t.Errorf("%s: %s, not %s", s.Name(), got, want)
		}
		if p := partial(t, err); p.Waited != 1 || p.Unknown != 1 || p.Cause != context.Canceled || !errors.Is(err, unix.ETIMEDOUT) {
			t.Errorf("%s: %+v", s.Name(), p)
		}
		text(t, results(b)[2].Err, "batch: not sent: an earlier transition of its queue pair ended unknown: query the state first")
	}
}
