// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"container/heap"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is what the emulated device's commands take their time on.
type Clock interface {
	// Now returns the time since the clock was made.
	Now() time.Duration
	// SleepUntil returns when Now is at least t.
	SleepUntil(t time.Duration)
	// Busy tells the clock that n more goroutines (fewer if n is negative) are
	// about to issue commands, or are issuing them.
	Busy(n int)
}

// RealClock is CLOCK_MONOTONIC. SleepUntil blocks the OS thread, as a command
// blocks its caller in the kernel.
type RealClock struct{ start int64 }

// NewRealClock returns a real clock that starts at 0.
func NewRealClock() *RealClock { return &RealClock{start: monotonic()} }

func monotonic() int64 {
	var ts unix.Timespec
	// Cannot fail: CLOCK_MONOTONIC exists on every Linux.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

// Now returns the time since NewRealClock.
func (c *RealClock) Now() time.Duration { return time.Duration(monotonic() - c.start) }

// SleepUntil blocks the calling OS thread. time.Sleep would round up to a
// millisecond.
func (c *RealClock) SleepUntil(t time.Duration) {
	ts := unix.NsecToTimespec(c.start + int64(t))
	for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil) == unix.EINTR {
	}
}

// Busy does nothing: real time passes by itself.
func (c *RealClock) Busy(int) {}

// VirtualClock is a discrete-event clock. It stands still while a goroutine
// that it was told of is running, and jumps to the next event when all of them
// sleep. Sleepers that are due at the same instant wake one after the other,
// in the order in which they fell asleep, so that a run is repeatable.
//
// Time is exact if every goroutine that issues commands is announced with
// Busy before it starts, and taken back when it has nothing left to issue. A
// sleeper that nobody announced is taken for one that was: alone it wakes at
// once, with the clock at its instant; among others it may wake while one of
// them is still awake, for whom the clock then runs ahead. None stays asleep.
type VirtualClock struct {
	mu       sync.Mutex
	now      time.Duration
	busy     int
	sleepers sleepers
	seq      uint64

	background timerQueue
}

type sleeper struct {
	at   time.Duration
	seq  uint64
	wake chan struct{}

	alarm *Alarm // whose it is, or nil
}

type sleepers []sleeper

func (s sleepers) Len() int { return len(s) }
func (s sleepers) Less(i, j int) bool {
	return s[i].at < s[j].at || s[i].at == s[j].at && s[i].seq < s[j].seq
}
func (s sleepers) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *sleepers) Push(x any)   { *s = append(*s, x.(sleeper)) }
func (s *sleepers) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

// Now returns the virtual time.
func (c *VirtualClock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Busy announces goroutines, or takes them back. It panics if more are taken
// back than were announced, as sync.WaitGroup does. One that was announced and
// neither sleeps nor is taken back holds the clock, and with it every sleeper,
// until somebody takes it back.
func (c *VirtualClock) Busy(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy+n < 0 {
		panic("fw: VirtualClock.Busy: more goroutines taken back than announced")
	}
	c.busy += n
	c.advance()
}

// SleepUntil blocks the goroutine until the clock has reached t.
func (c *VirtualClock) SleepUntil(t time.Duration) {
	c.mu.Lock()
	if t <= c.now {
		c.mu.Unlock()
		return
	}
	wake := make(chan struct{})
	heap.Push(&c.sleepers, sleeper{t, c.seq, wake, nil})
	c.seq++
	c.advance()
	c.mu.Unlock()
	<-wake
}

// advance wakes the next sleeper if nobody who was announced is running: it
// runs then, and the rest follow when it sleeps or is done.
func (c *VirtualClock) advance() {
	for len(c.sleepers) > 0 && len(c.sleepers) >= c.busy {
		if len(c.background) > 0 && c.background[0].at <= c.sleepers[0].at {
			x := heap.Pop(&c.background).(*timer)
			c.now = max(c.now, x.at)
			c.busy++
			go func() {
				x.ring()
				c.Busy(-1)
			}()
			continue
		}
		next := heap.Pop(&c.sleepers).(sleeper)
		c.now = next.at // never earlier: none is let in that is past
		if a := next.alarm; a != nil {
			a.waiting, a.set = false, false
		}
		close(next.wake)
	}
}

// setBackground has a timer ring at an instant, or after it, if the clock comes
// that far: alone it makes no time pass. Whoever looks again and again would
// otherwise keep the clock from ever coming to rest.
func (c *VirtualClock) setBackground(x *timer, at time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.pos != 0 {
		heap.Remove(&c.background, x.pos-1)
	}
	x.at, x.seq = at, c.seq
	c.seq++
	heap.Push(&c.background, x)
}

func (c *VirtualClock) stopBackground(x *timer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.pos != 0 {
		heap.Remove(&c.background, x.pos-1)
	}
}

// Alarm is an alarm of a virtual clock, for one goroutine that waits for it and
// any that set it. Its owner is announced to the clock from NewAlarm to Close,
// except while it waits for an alarm that is not set.
type Alarm struct {
	c       *VirtualClock
	at      time.Duration
	set     bool
	waiting bool
	wake    chan struct{}
}

// NewAlarm returns an alarm that is not set.
func (c *VirtualClock) NewAlarm() *Alarm {
	c.Busy(1)
	return &Alarm{c: c}
}

// Set sets the alarm to t, in the place of an earlier setting. One that is past
// rings at once.
func (a *Alarm) Set(t time.Duration) { a.change(t, true) }

// Unset takes the setting back.
func (a *Alarm) Unset() { a.change(0, false) }

func (a *Alarm) change(t time.Duration, set bool) {
	c := a.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.waiting {
		a.leave()
	}
	a.at, a.set = t, set
	if a.waiting {
		a.enter()
	}
	c.advance()
}

// enter makes the waiting owner a sleeper, or none that counts.
func (a *Alarm) enter() {
	if !a.set {
		a.c.busy--
		return
	}
	heap.Push(&a.c.sleepers, sleeper{max(a.at, a.c.now), a.c.seq, a.wake, a})
	a.c.seq++
}

// leave undoes enter.
func (a *Alarm) leave() {
	if !a.set {
		a.c.busy++
		return
	}
	for i := range a.c.sleepers {
		if a.c.sleepers[i].alarm == a {
			heap.Remove(&a.c.sleepers, i)
			return
		}
	}
}

// Wait returns when the alarm has rung, and unsets it. It is for the owner.
func (a *Alarm) Wait() {
	c := a.c
	c.mu.Lock()
	if a.set && a.at <= c.now {
		a.set = false
		c.mu.Unlock()
		return
	}
	a.waiting, a.wake = true, make(chan struct{})
	wake := a.wake
	a.enter()
	c.advance()
	c.mu.Unlock()
	<-wake
}

// Close takes the owner's announcement back; nobody waits any more.
func (a *Alarm) Close() { a.c.Busy(-1) }
