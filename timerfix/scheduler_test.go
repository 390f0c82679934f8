// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

const ms = time.Millisecond

func (r *rig) expect(what string, marks ...int) {
	r.t.Helper()
	if got := r.marks(); !slices.Equal(got, marks) {
		r.t.Errorf("%s: sent %v, not %v", what, got, marks)
	}
}

func TestNeverEarly(t *testing.T) {
	r := newRig(t, 1, Options{})
	r.in(ms, 0, 1)
	r.timer.advance(ms - 1)
	r.expect("a nanosecond before")
	r.timer.advance(1)
	r.expect("when due", 1)
}

func TestPastIsNow(t *testing.T) {
	r := newRig(t, 1, Options{})
	r.in(-time.Hour, 0, 1)
	if _, err := Defer(r.Scheduler, r.qps[0], marked(2), -1); err != nil {
		t.Fatal(err)
	}
	r.timer.advance(0)
	got := r.marks()
	slices.Sort(got) // which of them first depends on when the scheduler looks
	if !slices.Equal(got, []int{1, 2}) {
		t.Error(got)
	}
}

// Due times order, equal ones keep the order of Defer. Within a group those of
// one queue pair follow each other.
func TestOrder(t *testing.T) {
	r := newRig(t, 3, Options{})
	r.in(2*ms, 0, 1)
	r.in(1*ms, 1, 2)
	r.in(2*ms, 2, 3)
	r.in(1*ms, 1, 4)
	r.in(2*ms, 0, 5)
	r.timer.advance(3 * ms)
	r.expect("all at once", 2, 4, 1, 5, 3)
}

// What is due together is one batch, in groups.
func TestCoalesces(t *testing.T) {
	const n = 100
	r := newRig(t, n, Options{})
	for i := range n {
		r.in(ms, i, i)
	}
	r.timer.idle()
	arms, reads := r.timer.seen()
	r.timer.advance(ms)
	if n := len(r.marks()); n != 100 {
		t.Errorf("%d sent", n)
	}
	armsNow, readsNow := r.timer.seen()
	if n := armsNow - arms; n != 1 { // that nothing more is due
		t.Errorf("the timer was set %d times", n)
	}
	// Once for each call, and once for each of the four groups and the end.
	if got := readsNow - reads; got != n+5 {
		t.Errorf("the time was read %d times, for %d groups", got, got-n-1)
	}
}

// The timer is only set if what is deferred is due before everything else.
func TestArmsOnlyForTheFirst(t *testing.T) {
	r := newRig(t, 1, Options{})
	r.timer.idle()
	before, _ := r.timer.seen()
	for i := range 1000 {
		r.in(ms+time.Duration(i), 0, i)
	}
	if n, _ := r.timer.seen(); n-before != 1 {
		t.Errorf("the timer was set %d times", n-before)
	}
	r.in(ms-1, 0, 1000)
	if n, _ := r.timer.seen(); n-before != 2 {
		t.Errorf("for an earlier one it was set %d times", n-before)
	}
}

func TestCancel(t *testing.T) {
	r := newRig(t, 2, Options{})
	a, b, c := r.in(ms, 0, 1), r.in(ms, 1, 2), r.in(2*ms, 0, 3)
	if !r.Cancel(a) {
		t.Error("a pending one was not cancelled")
	}
	if r.Cancel(a) {
		t.Error("cancelled twice")
	}
	r.timer.advance(ms)
	r.expect("the others", 2)
	if r.Cancel(b) {
		t.Error("cancelled after it was sent")
	}
	if !r.Cancel(c) || r.Cancel(Ticket{}) {
		t.Error("the last one, or none at all")
	}
	// The record of a is somebody else's now: its ticket must not reach it.
	d := r.in(ms, 0, 4)
	if r.Cancel(a) || r.Cancel(c) {
		t.Error("an old ticket cancelled another's transition")
	}
	r.timer.advance(5 * ms)
	r.expect("after all", 4)
	want := Counts{Deferred: 4, Done: 2, Cancelled: 2}
	if got := r.Counts(); got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
	if _, err := r.Wait(over(), d); err != nil {
		t.Error(err)
	}
}

// Most of the queue cancelled: the rest is sent, in order.
func TestCancelMany(t *testing.T) {
	r := newRig(t, 1, Options{})
	var tickets []Ticket
	for i := range 5000 {
		tickets = append(tickets, r.in(ms+time.Duration(i*7919%5000), 0, i))
	}
	var want []int
	for i, x := range tickets {
		if i%10 != 0 {
			r.Cancel(x)
		} else {
			want = append(want, i)
		}
	}
	slices.SortFunc(want, func(a, b int) int { return a*7919%5000 - b*7919%5000 })
	r.timer.advance(time.Second)
	r.expect("what is left", want...)
}

func TestWait(t *testing.T) {
	r := newRig(t, 2, Options{})
	r.errno = func(mark int) unix.Errno {
		if mark == 2 {
			return unix.EINVAL
		}
		return 0
	}
	a, b, c := r.in(ms, 0, 1), r.in(ms, 1, 2), r.in(time.Hour, 0, 3)
	type answer struct {
		res batch.Result
		err error
	}
	answers := make(chan answer)
	for range 2 {
		go func() {
			res, err := r.Wait(context.Background(), a)
			answers <- answer{res, err}
		}()
	}
	waiting(r, a, 2)
	r.timer.advance(ms)
	for range 2 {
		if x := <-answers; x.err != nil || x.res.Outcome != batch.Done || x.res.QP != r.qps[0] || x.res.Op != mlx5.OpRTS2RTS || x.res.Sent.IsZero() {
			t.Errorf("%+v", x)
		}
	}
	if _, err := r.Wait(over(), a); !errors.Is(err, ErrTicket) {
		t.Errorf("taken already: %v", err)
	}
	// It had ended before anybody waited.
	var refused *devx.CommandError
	if res, err := r.Wait(over(), b); err != nil || res.Outcome != batch.Failed || !errors.As(res.Err, &refused) {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := r.Wait(over(), b); !errors.Is(err, ErrTicket) {
		t.Errorf("taken already: %v", err)
	}
	// Who gives up waiting loses nothing.
	why := errors.New("tired")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	if _, err := r.Wait(ctx, c); err != why {
		t.Error(err)
	}
	r.timer.advance(time.Hour)
	if res, err := r.Wait(over(), c); err != nil || res.Outcome != batch.Done {
		t.Errorf("%+v, %v", res, err)
	}
	if len(r.results)+len(r.waiters) > 0 {
		t.Errorf("%d results and %d waiters are left", len(r.results), len(r.waiters))
	}
}

// waiting returns when n wait for a ticket.
func waiting(r *rig, x Ticket, n int) {
	for {
		r.Scheduler.mu.Lock()
		w := r.waiters[x.idx]
		there := w != nil && w.n == n
		r.Scheduler.mu.Unlock()
		if there {
			return
		}
	}
}

func TestWaitForCancelled(t *testing.T) {
	r := newRig(t, 1, Options{})
	a := r.in(ms, 0, 1)
	answer := make(chan batch.Result)
	go func() {
		res, _ := r.Wait(context.Background(), a)
		answer <- res
	}()
	waiting(r, a, 1)
	r.Cancel(a)
	if res := <-answer; res.Outcome != batch.NotSent || !errors.Is(res.Err, ErrCancelled) || !errors.Is(res.Err, batch.ErrNotSent) {
		t.Errorf("%+v", res)
	}
	if _, err := r.Wait(over(), a); !errors.Is(err, ErrTicket) {
		t.Error(err)
	}
}

func TestForget(t *testing.T) {
	r := newRig(t, 1, Options{})
	a := r.in(ms, 0, 1)
	if r.Forget(a) {
		t.Error("forgot what is pending")
	}
	r.timer.advance(ms)
	if !r.Forget(a) || r.Forget(a) {
		t.Error("once, and only once")
	}
	if len(r.results) > 0 {
		t.Error("its result is still there")
	}
}

func TestDrain(t *testing.T) {
	r := newRig(t, 2, Options{})
	if err := r.Drain(over()); err != nil {
		t.Errorf("nothing to wait for: %v", err)
	}
	r.in(ms, 0, 1)
	b := r.in(3*ms, 1, 2)
	if err := r.Drain(over()); err != context.Canceled {
		t.Error(err)
	}
	done := make(chan error)
	go func() { done <- r.Drain(context.Background()) }()
	draining(r, 1)
	r.in(time.Hour, 0, 3) // after Drain: not its business
	r.timer.advance(ms)
	select {
	case <-done:
		t.Error("drained too soon")
	default:
	}
	r.Cancel(b) // the last one
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.expect("drained", 1)
}

func draining(r *rig, n int) {
	for {
		r.Scheduler.mu.Lock()
		there := len(r.drains) == n
		r.Scheduler.mu.Unlock()
		if there {
			return
		}
	}
}

func TestStop(t *testing.T) {
	r := newRig(t, 3, Options{})
	r.in(ms, 0, 1)
	late := r.in(3*ms, 1, 2)
	never, err := Defer(r.Scheduler, r.qps[2], marked(3), Never)
	if err != nil {
		t.Fatal(err)
	}
	r.in(2*ms, 0, 4)
	r.timer.advance(2 * ms)
	now := r.timer.Now()
	unsent := stop(t, r.Scheduler)
	want := []Unsent{{late, r.qps[1], mlx5.OpRTS2RTS, now.Add(ms)}, {never, r.qps[2], mlx5.OpRTS2RTS, Never}}
	if !slices.Equal(unsent, want) {
		t.Errorf("%+v, not %+v", unsent, want)
	}
	r.expect("before", 1, 4)
	for _, x := range []Ticket{late, never} {
		res, err := r.Wait(over(), x)
		if err != nil || res.Outcome != batch.NotSent || !errors.Is(res.Err, ErrStopped) || !errors.Is(res.Err, batch.ErrNotSent) {
			t.Errorf("%+v, %v", res, err)
		}
	}
	if got := stop(t, r.Scheduler); !slices.Equal(got, want) {
		t.Error("a second Stop says something else")
	}
	if _, err := Defer(r.Scheduler, r.qps[0], marked(5), 0); !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
	if r.timer.closes != 1 {
		t.Errorf("the timer was closed %d times", r.timer.closes)
	}
	r.Now() // still there
	if got, want := r.Counts(), (Counts{Deferred: 4, Done: 2, NotSent: 2}); got != want {
		t.Errorf("%+v", got)
	}
}

// Stop in the middle of a group: what is in flight ends, the rest is not sent.
func TestStopInFlight(t *testing.T) {
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
	var tickets []Ticket
	for i := range 4 {
		tickets = append(tickets, r.in(ms, i, i))
	}
	r.timer.move(ms)
	<-begun
	if r.Cancel(tickets[0]) {
		t.Error("cancelled in flight")
	}
	stopped := make(chan []Unsent)
	go func() { stopped <- stop(t, r.Scheduler) }()
	if n := <-told; n != 1 {
		t.Errorf("Stop says that it waits for %d", n)
	}
	if _, err := Defer(r.Scheduler, r.qps[0], marked(9), 0); !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
	close(finish)
	unsent := <-stopped
	if len(unsent) != 3 {
		t.Errorf("%d not sent", len(unsent))
	}
	r.expect("one", 0)
	for i, want := range []batch.Outcome{batch.Done, batch.NotSent, batch.NotSent, batch.NotSent} {
		if res, err := r.Wait(over(), tickets[i]); err != nil || res.Outcome != want {
			t.Errorf("%d: %v, %v", i, res.Outcome, err)
		}
	}
}

func TestOnEnd(t *testing.T) {
	var r *rig
	var got []string
	r = newRig(t, 2, Options{OnEnd: func(x Ticket, res batch.Result) {
		got = append(got, fmt.Sprint(res.Outcome))
		if len(got) == 1 { // it may defer more
			r.in(0, 0, 7)
		}
	}})
	r.errno = func(mark int) unix.Errno {
		if mark == 2 {
			return unix.EINVAL
		}
		return 0
	}
	a := r.in(ms, 0, 1)
	r.in(ms, 1, 2)
	c := r.in(2*ms, 1, 3)
	waited := make(chan batch.Result)
	go func() {
		res, _ := r.Wait(context.Background(), c)
		waited <- res
	}()
	waiting(r, c, 1)
	r.timer.advance(ms)
	if _, err := r.Wait(over(), a); !errors.Is(err, ErrTicket) {
		t.Errorf("reported, and still kept: %v", err)
	}
	r.timer.advance(ms)
	if res := <-waited; res.Outcome != batch.Done {
		t.Errorf("%+v", res)
	}
	r.in(time.Hour, 0, 4)
	stop(t, r.Scheduler)
	if want := []string{"done", "failed", "done", "done", "not sent"}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}

// Drain returns after the last OnEnd has.
func TestDrainAfterOnEnd(t *testing.T) {
	reported := 0
	r := newRig(t, 1, Options{OnEnd: func(Ticket, batch.Result) { reported++ }})
	for i := range 100 {
		r.in(ms, 0, i)
	}
	done := make(chan int)
	go func() {
		_ = r.Drain(context.Background())
		done <- reported
	}()
	draining(r, 1)
	r.timer.advance(ms)
	if n := <-done; n != 100 {
		t.Errorf("drained after %d reports", n)
	}
}

// After a transition whose end is unknown, what was deferred before anybody
// could know is held back; what is deferred later is sent.
func TestUnknownHoldsBack(t *testing.T) {
	r := newRig(t, 2, Options{})
	r.errno = func(mark int) unix.Errno {
		if mark == 1 {
			return unix.ETIMEDOUT
		}
		return 0
	}
	a := r.in(ms, 0, 1)
	b := r.in(2*ms, 0, 2)
	c := r.in(2*ms, 1, 3) // another queue pair's
	r.timer.advance(ms)
	d := r.in(2*ms, 0, 4)
	r.timer.advance(10 * ms)
	r.expect("all", 1, 3, 4)
	for i, x := range []struct {
		t    Ticket
		want batch.Outcome
	}{{a, batch.Unknown}, {b, batch.NotSent}, {c, batch.Done}, {d, batch.Done}} {
		res, err := r.Wait(over(), x.t)
		if err != nil || res.Outcome != x.want {
			t.Errorf("%d: %v (%v), %v", i, res.Outcome, res.Err, err)
		}
		if i == 1 && !errors.Is(res.Err, errLost) {
			t.Error(res.Err)
		}
	}
	if len(r.lost) > 0 {
		t.Error("it is still remembered")
	}
}

func TestLateness(t *testing.T) {
	r := newRig(t, 1, Options{})
	for i := range 100 {
		r.in(time.Duration(i)*ms, 0, i)
	}
	r.timer.advance(99 * ms)
	h := r.Lateness()
	if n := h.TotalCount(); n != 100 {
		t.Errorf("%d", n)
	}
	if m := h.Max(); m < int64(98*ms) || m > int64(100*ms) {
		t.Errorf("the latest by %d ns", m)
	}
	h.Reset()
	if r.Lateness().TotalCount() != 100 {
		t.Error("it was no copy")
	}
}

// A timer that fails stops the scheduler: everything pending is told.
func TestTimerFails(t *testing.T) {
	r := &rig{t: t, timer: newFake()}
	d := openStub(t, nil)
	r.qps = newQPs(t, d, 1)
	s, err := New(d, Options{Timer: r.timer})
	if err != nil {
		t.Fatal(err)
	}
	r.Scheduler = s
	a := r.in(ms, 0, 1)
	broken := errors.New("broken")
	r.timer.mu.Lock()
	r.timer.failure = broken
	r.timer.cond.Broadcast()
	r.timer.mu.Unlock()
	res, err := r.Wait(context.Background(), a)
	if err != nil || res.Outcome != batch.NotSent || !errors.Is(res.Err, broken) || !errors.Is(res.Err, ErrStopped) {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := Defer(s, r.qps[0], marked(1), 0); !errors.Is(err, broken) {
		t.Error(err)
	}
	if unsent, err := s.Stop(); len(unsent) != 1 || !errors.Is(err, broken) {
		t.Errorf("%v, %v", unsent, err)
	}
}

func TestMisuse(t *testing.T) {
	r := newRig(t, 1, Options{})
	other := openStub(t, nil)
	var attr *mlx5.AttrError
	if _, err := Defer(r.Scheduler, r.qps[0], mlx5.RTR2RTS{}, 0); !errors.As(err, &attr) || attr.Attr != mlx5.AttrNextSendPSN {
		t.Error(err)
	}
	if _, err := Defer(r.Scheduler, newQPs(t, other, 1)[0], marked(1), 0); !errors.Is(err, devx.ErrForeign) {
		t.Error(err)
	}
	if _, err := Defer(r.Scheduler, nil, marked(1), 0); err == nil {
		t.Error("no queue pair")
	}
	if _, err := Defer(r.Scheduler, r.qps[0], odd(8), 0); err == nil {
		t.Error("a transition of 8 bytes")
	}
	if _, err := New(other, Options{Batch: batch.Options{Group: 65}}); err == nil {
		t.Error("a group of 65")
	}
	another := newRig(t, 1, Options{})
	x := another.in(ms, 0, 1)
	if r.Cancel(x) {
		t.Error("cancelled another scheduler's")
	}
	if _, err := r.Wait(over(), x); !errors.Is(err, ErrTicket) {
		t.Error(err)
	}
	if got := r.Counts(); got != (Counts{}) {
		t.Errorf("%+v", got)
	}
}

// A queue pair that is closed while its transition is pending: not sent.
func TestClosedQP(t *testing.T) {
	r := newRig(t, 2, Options{})
	a, b := r.in(ms, 0, 1), r.in(ms, 1, 2)
	if err := r.qps[0].Close(); err != nil {
		t.Fatal(err)
	}
	r.timer.advance(ms)
	if res, err := r.Wait(over(), a); err != nil || res.Outcome != batch.NotSent || !errors.Is(res.Err, devx.ErrClosed) {
		t.Errorf("%+v, %v", res, err)
	}
	if res, err := r.Wait(over(), b); err != nil || res.Outcome != batch.Done {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestPolicy(t *testing.T) {
	p := Article()
	if p.QPs != 30000 || p.Delay != ms {
		t.Errorf("%+v", p)
	}
	for _, x := range []struct {
		live     int
		due      Instant
		deferred bool
	}{{0, 7, false}, {30000, 7, false}, {30001, 7 + 1e6, true}} {
		if due, deferred := p.Due(x.live, 7); due != x.due || deferred != x.deferred {
			t.Errorf("%d: %d, %v", x.live, due, deferred)
		}
	}
	if due, deferred := (Policy{Delay: -5}).Due(1, 7); due != 7 || !deferred {
		t.Error("a negative delay")
	}
}

func TestInstant(t *testing.T) {
	for _, x := range []struct {
		i    Instant
		d    time.Duration
		want Instant
	}{{5, 7, 12}, {5, -7, -2}, {Never - 1, 5, Never}, {Never, time.Hour, Never}, {-Never, -5, -Never - 1}} {
		if got := x.i.Add(x.d); got != x.want {
			t.Errorf("%d + %d is %d, not %d", x.i, x.d, got, x.want)
		}
	}
	if Instant(9).Sub(2) != 7 {
		t.Error("9 - 2")
	}
}

// odd is a transition of so many bytes, all of them set.
type odd int

func (odd) Op() mlx5.Op { return mlx5.OpRTS2RTS }

func (o odd) Encode(dst []byte, _ uint32, _ mlx5.ServiceType) (int, error) {
	n := min(int(o), len(dst))
	for i := range n {
		dst[i] = byte(i + 1)
	}
	return n, nil
}
