// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/batch"
)

// later makes it seem as if so many transitions had been deferred meanwhile.
func (r *rig) later(n uint64) {
	r.Scheduler.mu.Lock()
	defer r.Scheduler.mu.Unlock()
	r.seq += n
}

// What is pending while billions of others come and go is still waited for, and
// still held back.
func TestAge(t *testing.T) {
	for _, age := range []uint64{1<<31 + 5, 1<<32 + 5, 1 << 40} {
		r := newRig(t, 1, Options{})
		x, err := Defer(r.Scheduler, r.qps[0], marked(1), Never)
		if err != nil {
			t.Fatal(err)
		}
		r.later(age)
		done := make(chan error, 1)
		go func() { done <- r.Drain(context.Background()) }()
		draining(r, 1)
		if !r.Cancel(x) {
			t.Fatal("it was not pending")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}

		r.errno = func(mark int) unix.Errno {
			if mark == 3 {
				return unix.ETIMEDOUT
			}
			return 0
		}
		old := r.in(time.Hour, 0, 2)
		r.later(age)
		r.in(ms, 0, 3)
		r.timer.advance(ms)
		r.later(age)
		young := r.in(time.Hour, 0, 4)
		r.timer.advance(2 * time.Hour)
		for ticket, want := range map[Ticket]batch.Outcome{old: batch.NotSent, young: batch.Done} {
			if res, err := r.Wait(over(), ticket); err != nil || res.Outcome != want {
				t.Errorf("%d later: %v, %v", age, res, err)
			}
		}
	}
}

// Queue pairs whose answer was lost are remembered only while something of
// theirs is pending.
func TestLostIsForgotten(t *testing.T) {
	r := newRig(t, 1, Options{OnEnd: func(Ticket, batch.Result) {}})
	r.errno = func(int) unix.Errno { return unix.ETIMEDOUT }
	held, err := Defer(r.Scheduler, r.qps[0], marked(0), Never)
	if err != nil {
		t.Fatal(err)
	}
	r.in(ms, 0, 1)
	for i := range 1000 {
		q := newQPs(t, r.qps[0].Device(), 1)[0]
		if _, err := Defer(r.Scheduler, q, marked(i), r.timer.Now()); err != nil {
			t.Fatal(err)
		}
		r.timer.advance(ms)
	}
	if n := len(r.lost); n > 2*lostLeast+2 {
		t.Errorf("%d queue pairs are remembered", n)
	}
	if _, there := r.lost[r.qps[0]]; !there {
		t.Error("the one that has something pending is not")
	}
	r.Cancel(held)
	if len(r.lost) > 0 {
		t.Error("nothing is pending, and some are remembered")
	}
	// The last one may also end by being held back.
	r.in(ms, 0, 1)
	r.in(2*ms, 0, 2)
	r.timer.advance(ms)
	r.timer.advance(ms)
	if c := r.Counts(); c.Pending != 0 || c.NotSent != 1 || len(r.lost) > 0 {
		t.Errorf("%+v, %d remembered", c, len(r.lost))
	}
}

// Each of a group has its own lateness, whatever the timer.
func TestLatenessWithinAGroup(t *testing.T) {
	r := newRig(t, 3, Options{})
	r.errno = func(int) unix.Errno { r.timer.move(ms); return 0 } // a command takes 1 ms
	for i := range 3 {
		r.in(ms, i, i)
	}
	r.timer.advance(ms)
	h := r.Lateness()
	if got := []int64{h.Min(), h.ValueAtQuantile(50), h.Max()}; got[0] != 0 || got[1]/1e6 != 1 || (got[2]+5000)/1e6 != 2 {
		t.Errorf("late by %v", got)
	}
}

// Never early and not long after, on the real timer, by another clock than the
// package's.
func TestRealTimer(t *testing.T) {
	var dues [300]atomic.Int64
	var early, seen atomic.Int32
	d := openStub(t, func(cmd []byte) unix.Errno {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return unix.EIO
		}
		seen.Add(1)
		if now.Nano() < dues[markOf(cmd)].Load() {
			early.Add(1)
		}
		return 0
	})
	s, err := New(d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	q := newQPs(t, d, 1)[0]
	for i := range dues {
		due := s.Now().Add(time.Duration(i%7) * 30 * time.Microsecond)
		dues[i].Store(int64(due))
		x, err := Defer(s, q, marked(i), due)
		if err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			continue // several at a time
		}
		if res, err := s.Wait(context.Background(), x); err != nil || res.Outcome != batch.Done {
			t.Fatalf("%v, %v", res, err)
		}
	}
	if err := s.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	if e, n := early.Load(), seen.Load(); e > 0 || n != int32(len(dues)) {
		t.Errorf("%d early of %d", e, n)
	}
	// An hour would be a wrong clock; how late it is, is for an experiment.
	if h := s.Lateness(); h.TotalCount() != int64(len(dues)) || h.Max() <= 0 || h.Max() > int64(10*time.Minute) {
		t.Errorf("%d, the latest by %v", h.TotalCount(), time.Duration(h.Max()))
	}
	// A re-armed timer, and one that is stopped while it waits.
	if _, err := Defer(s, q, marked(0), s.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	x, err := Defer(s, q, marked(0), s.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Wait(context.Background(), x); err != nil {
		t.Error(err)
	}
	if unsent := stop(t, s); len(unsent) != 1 {
		t.Errorf("%d not sent", len(unsent))
	}
}

// The clock reads what the kernel's does, and is never ahead of it.
func TestClock(t *testing.T) {
	for range 20 {
		c := newClock()
		for range 100 {
			own := c.Now()
			var ts unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
				t.Fatal(err)
			}
			if kernel := Instant(ts.Nano()); own > kernel || kernel.Sub(own) > time.Minute {
				t.Fatalf("it reads %d before the kernel reads %d", own, kernel)
			}
		}
	}
}

// What Stop returns is in the order of due times, also if a group was under way.
func TestStopOrder(t *testing.T) {
	told := make(chan int, 1)
	r := newRig(t, 4, Options{Batch: batch.Options{OnWait: func(n int) { told <- n }}})
	begun, finish := make(chan struct{}), make(chan struct{})
	r.errno = func(mark int) unix.Errno {
		if mark == 0 {
			close(begun)
			<-finish
		}
		return 0
	}
	for i := range 3 {
		r.in(ms, i, i)
	}
	r.timer.move(ms)
	<-begun
	r.in(-ms, 3, 9)
	unsent := make(chan []Unsent)
	go func() { unsent <- stop(t, r.Scheduler) }()
	<-told
	close(finish)
	if u := <-unsent; len(u) != 3 || !slices.IsSortedFunc(u, func(a, b Unsent) int { return int(a.Due - b.Due) }) {
		t.Errorf("%+v", u)
	}
}

type badClose struct{ *fake }

var errBadClose = errors.New("close failed")

func (badClose) Close() error { return errBadClose }

// A second Stop says what the first one did, and nobody's list is another's.
func TestStopTwice(t *testing.T) {
	d := openStub(t, nil)
	s, err := New(d, Options{Timer: badClose{newFake()}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Defer(s, newQPs(t, d, 1)[0], marked(1), Never); err != nil {
		t.Fatal(err)
	}
	first, err1 := s.Stop()
	second, err2 := s.Stop()
	if !errors.Is(err1, errBadClose) || !errors.Is(err2, errBadClose) || !slices.Equal(first, second) {
		t.Errorf("%v %v, %v %v", first, err1, second, err2)
	}
	if &first[0] == &second[0] {
		t.Error("both are the same list")
	}
}

// What New refuses, it closes.
func TestNewClosesTheTimer(t *testing.T) {
	d := openStub(t, nil)
	for _, o := range []batch.Options{{Group: 65}, {Group: -1}, {StopOnError: true}, {OnSend: func(uint64) {}}} {
		f := newFake()
		if _, err := New(d, Options{Timer: f, Batch: o}); err == nil || f.closes != 1 {
			t.Errorf("%+v: closed %d times, %v", o, f.closes, err)
		}
	}
}

// A due time before all others is later than anything.
func TestFarPast(t *testing.T) {
	r := newRig(t, 1, Options{})
	if _, err := Defer(r.Scheduler, r.qps[0], marked(1), math.MinInt64); err != nil {
		t.Fatal(err)
	}
	r.timer.advance(0)
	if late := r.Lateness().Max(); late < int64(59*time.Minute) {
		t.Errorf("late by %v", time.Duration(late))
	}
	if d := Instant(1000).Sub(math.MinInt64); d != math.MaxInt64 {
		t.Error(d)
	}
	if d := Instant(math.MinInt64).Sub(1000); d != math.MinInt64 {
		t.Error(d)
	}
}

// A queue pair that is closed and has nothing pending is nobody's.
func TestKeepsNoQP(t *testing.T) {
	r := newRig(t, 1, Options{})
	var gone atomic.Int32
	const n = 32
	func() {
		qps := newQPs(t, r.qps[0].Device(), n)
		for i, q := range qps {
			runtime.AddCleanup(q, func(int) { gone.Add(1) }, i)
			x, err := Defer(r.Scheduler, q, marked(i), r.timer.Now())
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				r.Cancel(x)
			}
			r.timer.advance(1)
			_, _ = r.Wait(over(), x)
		}
		for _, q := range qps {
			if err := q.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	for end := time.Now().Add(20 * time.Second); gone.Load() < n-1 && time.Now().Before(end); {
		runtime.GC()
		runtime.Gosched()
	}
	if got := gone.Load(); got < n-1 { // the last one may still be in a register
		t.Errorf("%d of %d were collected", got, n)
	}
	runtime.KeepAlive(r)
}

// Of two who wait, one gives up: the other is still told.
func TestOneGivesUp(t *testing.T) {
	r := newRig(t, 1, Options{})
	x := r.in(ms, 0, 1)
	ctx, cancel := context.WithCancel(context.Background())
	gaveUp, told := make(chan error), make(chan error)
	go func() {
		_, err := r.Wait(ctx, x)
		gaveUp <- err
	}()
	go func() {
		_, err := r.Wait(context.Background(), x)
		told <- err
	}()
	waiting(r, x, 2)
	cancel()
	if err := <-gaveUp; err != context.Canceled {
		t.Error(err)
	}
	r.timer.advance(ms)
	if err := <-told; err != nil {
		t.Error(err)
	}
}
