// SPDX-License-Identifier: BSD-2-Clause

package wire

import (
	"math/rand/v2"
	"slices"
	"time"
)

// control is the queue of MAC control frames. It is served first, and never
// paused.
const control = Priorities

// direction is one way of a cable: the queues in front of it, the transmitter,
// the wire. All under the engine's lock.
type direction struct {
	e      *engine
	params Params
	rng    *rand.Rand
	filter Filter
	stats  Stats

	near, far *Port      // whose sending and receiving side it is; nil for that of a switch
	sw        *Switch    // that receives
	index     int        // of the port in it
	peer      *direction // the other way

	queues  [Priorities + 1]fifo
	queued  [Priorities + 1]int // bytes
	waiting int                 // bytes, all of them
	held    int                 // bytes as on the wire, queued or flying

	sending bool
	free    time.Duration // when the transmitter is, ...
	parts   uint64        // ... and this many 1/Rate ns later
	last    time.Duration // when the last frame arrives that was not reordered
	bad     bool          // state of Params.Burst

	pausedFrom, pausedUntil [Priorities]time.Duration
	resumeAt                time.Duration // of the event that looks whether a pause is over; 0: none

	// What a receiving switch holds of this direction's frames.
	debits     [Priorities]int
	xoff       uint8
	asking     bool // a PFC frame waits in the peer's queue
	refreshing bool
}

// send takes a frame that nobody else holds.
func (d *direction) send(data []byte, b *debit, now time.Duration) {
	e := d.e
	f := e.newFrame()
	f.data, f.dir, f.debit = data, d, b
	d.stats.Sent++
	d.stats.SentBytes += uint64(len(data))
	d.held += wireSize(len(data))
	switch reason, ok := d.admit(f); {
	case !ok:
		d.drop(f, reason, now)
	default:
		d.enqueue(f, now)
	}
}

// admit decides whether there is room for a frame, and marks it.
func (d *direction) admit(f *frame) (Reason, bool) {
	if d.e.closed {
		return WireClosed, false
	}
	if len(f.data) < headerSize || len(f.data) > MaxFrame {
		return Malformed, false
	}
	f.prio = control
	if etherType(f.data) != typeMACControl {
		f.prio = uint8(d.e.priority(f.data)) % Priorities
	}
	waiting := d.queued[f.prio]
	if d.held > d.params.flight() {
		return FlightFull, false
	}
	if waiting+len(f.data) > d.params.queue() && !f.debit.lossless() {
		return QueueFull, false
	}
	if d.congested(waiting) && mark(f.data) {
		d.stats.Marked++
	}
	return 0, true
}

// congested draws whether a frame that finds so many bytes waiting is marked.
func (d *direction) congested(waiting int) bool {
	ecn := &d.params.ECN
	switch {
	case ecn.Max == 0 || waiting <= ecn.Min:
		return false
	case waiting > ecn.Max:
		return true
	}
	return d.rng.Float64() < ecn.P*float64(waiting-ecn.Min)/float64(ecn.Max-ecn.Min)
}

func (d *direction) enqueue(f *frame, now time.Duration) {
	d.queues[f.prio].push(f)
	d.queued[f.prio] += len(f.data)
	d.waiting += len(f.data)
	d.stats.Queued++
	d.start(now)
	d.stats.MaxQueuedBytes = max(d.stats.MaxQueuedBytes, d.waiting)
}

// start sends as long as the transmitter is free and somebody may.
func (d *direction) start(now time.Duration) {
	for !d.sending {
		f := d.pick(now)
		if f == nil {
			return
		}
		d.transmit(f, now)
	}
}

// pick takes the next frame: strict priority (IEEE 802.1Q, 8.6.8.1).
func (d *direction) pick(now time.Duration) *frame {
	for prio := control; prio >= 0; prio-- {
		q := &d.queues[prio]
		if q.first == nil || prio != control && d.pausedUntil[prio] > now {
			continue
		}
		f := q.pop()
		d.unqueue(f)
		if f.pause != nil { // made as late as this, so that one says all
			f.pause.fillPFC(f, now)
		}
		return f
	}
	return nil
}

func (d *direction) unqueue(f *frame) {
	before := d.queued[f.prio]
	d.queued[f.prio] -= len(f.data)
	d.waiting -= len(f.data)
	d.stats.Queued--
	if p := d.near; p != nil && p.roomFor != nil && before > p.low && d.queued[f.prio] <= p.low && f.prio != control {
		note := d.e.newFrame()
		note.dir, note.prio, note.room = d, f.prio, true
		d.e.due.push(note)
	}
}

// transmit puts a frame on the wire. What it occupied in a switch is free when
// its first bit leaves.
func (d *direction) transmit(f *frame, now time.Duration) {
	b := f.debit
	f.debit = nil
	end := d.serialize(now, len(f.data))
	if end > now {
		d.sending = true
		d.e.at(end, eventReady, d, nil)
	}
	d.carry(f, now, end)
	b.release(now) // last: it may send a PAUSE, and come back here
}

// serialize returns when a frame that begins now has been sent, rounded up to a
// nanosecond. What it is rounded by is not lost if the next follows at once.
func (d *direction) serialize(now time.Duration, n int) time.Duration {
	rate := d.params.Rate
	if rate == 0 {
		return now
	}
	if now != roundUp(d.free, d.parts) {
		d.free, d.parts = now, 0
	}
	total := uint64(wireSize(n))*8*uint64(time.Second) + d.parts // below 2^48: MaxFrame
	d.free += time.Duration(total / rate)
	d.parts = total % rate
	return roundUp(d.free, d.parts)
}

func roundUp(t time.Duration, parts uint64) time.Duration {
	if parts > 0 {
		t++
	}
	return t
}

// carry decides what happens to a frame between its ends. MAC control frames
// are spared what is left to chance: their loss would be an error of the
// network's, not of the experiment's.
func (d *direction) carry(f *frame, now, end time.Duration) {
	var v Verdict
	if d.filter != nil {
		v = d.filter(Frame{f.data, now, min(int(f.prio), Priorities-1)})
	}
	if v.Drop {
		d.drop(f, Filtered, now)
		return
	}
	chance := f.prio != control
	if reason, lost := d.lose(chance); lost {
		d.drop(f, reason, now)
		return
	}
	d.tapNear(f, now)
	if chance && d.draw(d.params.Corrupt) || v.Corrupt {
		d.corrupt(f.data)
	}
	arrival := d.arrival(end, max(0, min(v.Delay, MaxDelay)), chance)
	copies := min(max(v.Copies, 0), maxCopies)
	if chance && d.draw(d.params.Duplicate) {
		copies++
	}
	d.fly(f, arrival)
	for range copies {
		c := d.e.newFrame()
		c.data, c.dir, c.prio = slices.Clone(f.data), d, f.prio
		d.held += wireSize(len(c.data))
		d.stats.Duplicated++
		d.fly(c, arrival)
	}
}

func (d *direction) fly(f *frame, arrival time.Duration) {
	d.stats.Flying++
	d.e.at(arrival, eventArrive, d, f)
}

func (d *direction) draw(p float64) bool { return p > 0 && d.rng.Float64() < p }

func (d *direction) lose(chance bool) (Reason, bool) {
	if !chance {
		return 0, false
	}
	if b := &d.params.Burst; b.Begin > 0 {
		change := b.Begin
		if d.bad {
			change = b.End
		}
		d.bad = d.bad != d.draw(change)
		if d.bad && d.draw(b.Loss) {
			return BurstLost, true
		}
	}
	return Lost, d.draw(d.params.Loss)
}

func (d *direction) corrupt(b []byte) {
	if len(b) == headerSize {
		return
	}
	bit := d.rng.IntN((len(b) - headerSize) * 8)
	b[headerSize+bit/8] ^= 1 << (bit % 8)
	d.stats.Corrupted++
}

// arrival draws when a frame arrives that has been sent at end.
func (d *direction) arrival(end, late time.Duration, chance bool) time.Duration {
	if chance && d.draw(d.params.Reorder) {
		late += d.params.ReorderDelay
	}
	at := end + d.params.Delay
	if chance {
		at = end + max(0, d.params.Delay+d.jitter())
	}
	if late > 0 {
		d.stats.Reordered++
		return max(at, d.last) + late
	}
	d.last = max(at, d.last)
	return d.last
}

func (d *direction) jitter() time.Duration {
	j := d.params.Jitter
	if j.Scale == 0 {
		return 0
	}
	var x float64
	switch j.Dist {
	case Uniform:
		x = d.rng.Float64()
	case Normal:
		x = max(-4, min(d.rng.NormFloat64(), 4))
	case Exp:
		x = min(d.rng.ExpFloat64(), 8)
	}
	return time.Duration(x * float64(j.Scale))
}

// arrive is the far end.
func (d *direction) arrive(f *frame, now time.Duration) {
	switch {
	case f.prio == control:
		d.tapFar(f, now)
		d.stats.Control++
		d.landed(f)
		d.peer.pause(f.data, now)
		d.e.recycle(f)
	case d.sw != nil:
		d.sw.forward(d, f, now)
	case d.far.receive == nil:
		d.stats.Flying--
		d.drop(f, NoReceiver, now)
	default:
		d.tapFar(f, now)
		d.e.due.push(f)
	}
}

// landed takes a frame off the wire.
func (d *direction) landed(f *frame) {
	d.stats.Flying--
	d.held -= wireSize(len(f.data))
}

// drop ends a frame that counts neither as queued nor as flying any more.
func (d *direction) drop(f *frame, reason Reason, now time.Duration) {
	d.stats.Dropped[reason]++
	d.held -= wireSize(len(f.data))
	d.tapDrop(f, reason, now)
	f.debit.release(now)
	d.e.recycle(f)
}

// clear drops what waits.
func (d *direction) clear(now time.Duration) {
	for i := range d.queues {
		for f := d.queues[i].pop(); f != nil; f = d.queues[i].pop() {
			d.unqueue(f)
			d.drop(f, WireClosed, now)
		}
	}
}

func (d *direction) set(p Params, now time.Duration) {
	d.settle(now)
	stopped := d.params.PFC.Priorities &^ p.PFC.Priorities
	d.params = p
	d.parts = 0
	for prio := range Priorities {
		if stopped>>prio&1 != 0 {
			d.pausedUntil[prio] = now
		}
	}
	d.review(now)
	d.start(now)
}
