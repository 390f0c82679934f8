// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"container/heap"
	"sync"
	"time"
)

// timers calls back at instants of the device's clock. One goroutine waits for
// the next of them; there is none while nothing is set.
type timers struct {
	mu     sync.Mutex
	clock  Clock
	queue  timerQueue
	alarm  alarm // nil: nobody waits
	closed bool
	seq    uint64
}

// timer is one instant, or none. Its owner's ring is called when it has come,
// without any lock held.
type timer struct {
	ring func()
	at   time.Duration
	seq  uint64
	pos  int // in the queue, from 1; 0: not set
}

// background is a timer for what is looked at again and again, for as long as
// there is time: on a virtual clock it makes none pass.
type background struct {
	timer
	real *time.Timer
}

// setBackground sets a timer, in the place of an earlier setting. Its owner's
// lock is held.
func (t *timers) setBackground(b *background, at time.Duration) {
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	v, virtual := t.clock.(*VirtualClock)
	switch d := at - t.clock.Now(); {
	case closed:
	case virtual:
		v.setBackground(&b.timer, at)
	case b.real == nil:
		b.real = time.AfterFunc(d, b.ring)
	default:
		b.real.Reset(d)
	}
}

func (t *timers) stopBackground(b *background) {
	if v, virtual := t.clock.(*VirtualClock); virtual {
		v.stopBackground(&b.timer)
	} else if b.real != nil {
		b.real.Stop()
	}
}

// alarm is what the goroutine waits on: Alarm of a virtual clock, or of the
// runtime's.
type alarm interface {
	Set(time.Duration)
	Wait()
	Close()
}

// realAlarm rings at an instant of any clock that runs by itself.
type realAlarm struct {
	clock Clock
	timer *time.Timer
}

func (a *realAlarm) Set(t time.Duration) { a.timer.Reset(t - a.clock.Now()) }
func (a *realAlarm) Wait()               { <-a.timer.C }
func (a *realAlarm) Close()              { a.timer.Stop() }

func newAlarm(c Clock) alarm {
	if v, virtual := c.(*VirtualClock); virtual {
		return v.NewAlarm()
	}
	return &realAlarm{c, time.NewTimer(time.Hour)}
}

// set sets a timer, in the place of an earlier setting.
func (t *timers) set(x *timer, at time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	x.at, x.seq = at, t.seq
	t.seq++
	if x.pos == 0 {
		heap.Push(&t.queue, x)
	} else {
		heap.Fix(&t.queue, x.pos-1)
	}
	switch {
	case t.alarm == nil:
		t.alarm = newAlarm(t.clock)
		go t.wait(t.alarm)
	case x.pos == 1:
		t.alarm.Set(at)
	}
}

// ensure makes a timer ring at an instant or before: whoever it belongs to looks
// then what it waits for now. Most are never waited for to the end.
func (t *timers) ensure(x *timer, at time.Duration) {
	t.mu.Lock()
	early := x.pos != 0 && x.at <= at
	t.mu.Unlock()
	if !early {
		t.set(x, at)
	}
}

// stop takes a setting back.
func (t *timers) stop(x *timer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.pos != 0 {
		heap.Remove(&t.queue, x.pos-1)
	}
}

// close takes all settings back, for ever.
func (t *timers) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for len(t.queue) > 0 {
		heap.Pop(&t.queue)
	}
	if t.alarm != nil {
		t.alarm.Set(0)
	}
}

func (t *timers) wait(a alarm) {
	defer a.Close()
	for {
		t.mu.Lock()
		if len(t.queue) == 0 {
			t.alarm = nil
			t.mu.Unlock()
			return
		}
		if x := t.queue[0]; x.at <= t.clock.Now() {
			heap.Pop(&t.queue)
			t.mu.Unlock()
			x.ring()
			continue
		}
		a.Set(t.queue[0].at)
		t.mu.Unlock()
		a.Wait()
	}
}

type timerQueue []*timer

func (q timerQueue) Len() int { return len(q) }
func (q timerQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q timerQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].pos, q[j].pos = i+1, j+1
}
func (q *timerQueue) Push(x any) {
	*q = append(*q, x.(*timer))
	x.(*timer).pos = len(*q)
}
func (q *timerQueue) Pop() any {
	last := (*q)[len(*q)-1]
	(*q)[len(*q)-1] = nil
	*q = (*q)[:len(*q)-1]
	last.pos = 0
	return last
}
