// SPDX-License-Identifier: BSD-2-Clause

package wire

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// engine moves the frames of one link or switch: events in the order of their
// time, under one lock, and one goroutine that sleeps until the next and hands
// frames to receivers.
type engine struct {
	mu       sync.Mutex
	clock    Clock
	alarm    Alarm
	seed     uint64
	dirs     []*direction
	priority func(frame []byte) int

	events events
	seq    uint64
	due    fifo // what has arrived and waits for its receiver
	free   *frame

	armed   time.Duration // what the alarm is set to
	awake   bool          // the goroutine looks by itself
	calling bool          // a receiver is running
	done    sync.Cond     // it is not any more
	closed  bool
}

func newEngine(clock Clock, seed uint64) (*engine, error) {
	alarm, err := clock.NewAlarm()
	if err != nil {
		return nil, err
	}
	e := &engine{clock: clock, alarm: alarm, seed: seed, priority: Priority, armed: never}
	e.done.L = &e.mu
	return e, nil
}

// add makes a direction. Each draws from a sequence of its own, so that what
// happens in one changes nothing in another.
func (e *engine) add(p Params) *direction {
	d := &direction{e: e, params: p, rng: rand.New(rand.NewPCG(e.seed, uint64(len(e.dirs))))}
	e.dirs = append(e.dirs, d)
	return d
}

// frame is one on its way.
type frame struct {
	next  *frame
	data  []byte
	dir   *direction
	prio  uint8      // control: MAC control
	room  bool       // no frame: the port wants to hear that there is room
	debit *debit     // what it occupies in a switch
	pause *direction // a PFC frame, to be filled in when it leaves: whose sender is meant
}

// fifo is a list of frames.
type fifo struct{ first, last *frame }

func (q *fifo) push(f *frame) {
	f.next = nil
	if q.first == nil {
		q.first = f
	} else {
		q.last.next = f
	}
	q.last = f
}

func (q *fifo) pop() *frame {
	f := q.first
	if f != nil {
		q.first, f.next = f.next, nil
	}
	return f
}

func (e *engine) newFrame() *frame {
	f := e.free
	if f == nil {
		return &frame{}
	}
	e.free, f.next = f.next, nil
	return f
}

func (e *engine) recycle(f *frame) {
	*f = frame{next: e.free}
	e.free = f
}

type eventKind uint8

const (
	eventReady   eventKind = iota // the transmitter has sent a frame
	eventArrive                   // a frame has arrived
	eventResume                   // a pause is over
	eventRefresh                  // a pause that was asked for is half over
)

type event struct {
	at   time.Duration
	seq  uint64
	kind eventKind
	dir  *direction
	f    *frame
}

func (a *event) before(b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// events is a binary heap. That of container/heap allocates for each event.
type events []event

func (h *events) push(e event) {
	s := append(*h, e)
	i := len(s) - 1
	for parent := (i - 1) / 2; i > 0 && e.before(&s[parent]); parent = (i - 1) / 2 {
		s[i] = s[parent]
		i = parent
	}
	s[i] = e
	*h = s
}

func (h *events) pop() event {
	s := *h
	first, last := s[0], s[len(s)-1]
	s[len(s)-1] = event{}
	s = s[:len(s)-1]
	*h = s
	if len(s) == 0 {
		return first
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(s) {
			break
		}
		if child+1 < len(s) && s[child+1].before(&s[child]) {
			child++
		}
		if !s[child].before(&last) {
			break
		}
		s[i] = s[child]
		i = child
	}
	s[i] = last
	return first
}

func (e *engine) at(t time.Duration, kind eventKind, d *direction, f *frame) {
	e.events.push(event{t, e.seq, kind, d, f})
	e.seq++
}

// advance does what is due until now, at its time: whoever calls, and however
// late, it comes to the same.
func (e *engine) advance(now time.Duration) {
	for len(e.events) > 0 && e.events[0].at <= now {
		ev := e.events.pop()
		switch d := ev.dir; ev.kind {
		case eventReady:
			d.sending = false
			d.start(ev.at)
		case eventArrive:
			d.arrive(ev.f, ev.at)
		case eventResume:
			d.resume(ev.at)
		case eventRefresh:
			d.refresh(ev.at)
		}
	}
}

// enter takes the lock and brings the wire up to date.
func (e *engine) enter() (now time.Duration) {
	e.mu.Lock()
	now = e.clock.Now()
	e.advance(now)
	return now
}

// leave sees to it that the goroutine wakes for what is next.
func (e *engine) leave() {
	e.arm()
	e.mu.Unlock()
}

func (e *engine) arm() {
	if e.closed {
		return
	}
	next := never
	if len(e.events) > 0 {
		next = e.events[0].at
	}
	if e.due.first != nil {
		next = 0
	}
	if !e.awake && next < e.armed {
		e.armed = next
		e.alarm.Set(next)
	}
}

func (e *engine) run() {
	defer e.alarm.Close()
	for {
		e.alarm.Wait()
		e.mu.Lock()
		e.armed, e.awake = never, true
		for !e.closed {
			e.advance(e.clock.Now())
			f := e.due.pop()
			if f == nil {
				break
			}
			e.hand(f)
		}
		if e.closed {
			e.mu.Unlock()
			return
		}
		e.awake = false
		e.leave()
	}
}

// hand gives a frame to its receiver, without the lock.
func (e *engine) hand(f *frame) {
	d, prio, data, room := f.dir, f.prio, f.data, f.room
	port := d.far
	if room {
		port = d.near
	}
	receive, roomFor := port.receive, port.roomFor
	if !room {
		d.held -= wireSize(len(data))
		d.stats.Flying--
		d.stats.Delivered++
		d.stats.DeliveredBytes += uint64(len(data))
	}
	e.recycle(f)
	e.calling = true
	e.mu.Unlock()
	switch {
	case !room:
		receive(data) // not nil: Connect drops what is due when it disconnects
	case roomFor != nil:
		roomFor(int(prio))
	}
	e.mu.Lock()
	e.calling = false
	e.done.Broadcast()
}

// close drops what is on its way and ends the goroutine, which on a virtual
// clock takes until its caller waits.
func (e *engine) close() {
	now := e.enter()
	defer e.mu.Unlock()
	if !e.closed {
		e.closed = true
		for _, d := range e.dirs {
			d.clear(now)
		}
		for _, ev := range e.events {
			if ev.kind == eventArrive {
				ev.dir.stats.Flying--
				ev.dir.drop(ev.f, WireClosed, now)
			}
		}
		e.events = nil
		for f := e.due.pop(); f != nil; f = e.due.pop() {
			if !f.room {
				f.dir.stats.Flying--
				f.dir.drop(f, WireClosed, now)
			}
		}
		if !e.awake {
			e.alarm.Set(0)
		}
	}
	for e.calling {
		e.done.Wait()
	}
}

func (e *engine) setPriority(f func(frame []byte) int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f == nil {
		f = Priority
	}
	e.priority = f
}

func validate(ps ...Params) error {
	for _, p := range ps {
		if err := p.Validate(); err != nil {
			return fmt.Errorf("wire: %w", err)
		}
	}
	return nil
}
