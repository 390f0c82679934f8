// SPDX-License-Identifier: BSD-2-Clause

package wire

import "time"

// debit is what a frame occupies in a switch, in the account of the direction
// that it came in by, until the last of its copies has left. Nil is nothing.
type debit struct {
	d    *direction
	prio uint8
	size int
	refs int
	next *debit
}

// lossless says whether the frame must not be dropped for a full queue.
func (b *debit) lossless() bool { return b != nil && b.d.params.PFC.Priorities>>b.prio&1 != 0 }

func (b *debit) release(now time.Duration) {
	if b == nil {
		return
	}
	if b.refs--; b.refs > 0 {
		return
	}
	d := b.d
	d.debits[b.prio] -= b.size
	d.sw.freeDebit(b)
	d.review(now)
}

// charge enters a frame with so many copies into the account. It fails if there
// is no headroom left.
func (d *direction) charge(f *frame, copies int, now time.Duration) (*debit, bool) {
	pfc := &d.params.PFC
	n := d.debits[f.prio] + len(f.data)
	if pfc.Priorities>>f.prio&1 != 0 {
		over := n - pfc.xoff()
		if pfc.Headroom > 0 && over > pfc.Headroom {
			return nil, false
		}
		d.stats.MaxHeadroom = max(d.stats.MaxHeadroom, over)
	}
	b := d.sw.newDebit()
	*b = debit{d: d, prio: f.prio, size: len(f.data), refs: copies}
	d.debits[f.prio] = n
	d.review(now)
	return b, true
}

// review compares the account with its thresholds, and tells the sender what
// has changed.
func (d *direction) review(now time.Duration) {
	pfc := &d.params.PFC
	old := d.xoff
	for prio, n := range d.debits {
		bit := uint8(1) << prio
		switch {
		case pfc.Priorities&bit == 0, n <= pfc.xon():
			d.xoff &^= bit
		case n >= pfc.xoff():
			d.xoff |= bit
		}
	}
	if d.xoff != old {
		d.ask(now)
	}
}

// ask queues a PFC frame to the sender; one that waits already will do.
func (d *direction) ask(now time.Duration) {
	if d.asking || d.e.closed {
		return
	}
	d.asking = true
	out, f := d.peer, d.e.newFrame()
	f.data, f.dir, f.prio, f.pause = make([]byte, minFrame), d.peer, control, d
	out.stats.Sent++
	out.stats.SentBytes += uint64(len(f.data))
	out.held += wireSize(len(f.data))
	out.enqueue(f, now)
}

// fillPFC makes the frame that ask has queued, now that it leaves.
func (d *direction) fillPFC(f *frame, now time.Duration) {
	f.pause, d.asking = nil, false
	d.stats.PausesSent++
	putPFC(f.data, d.xoff, d.index)
	if d.xoff != 0 && !d.refreshing {
		d.refreshing = true
		d.e.at(now+d.quanta(maxQuanta/2), eventRefresh, d, nil)
	}
}

// refresh repeats a pause before it ends.
func (d *direction) refresh(now time.Duration) {
	d.refreshing = false
	if d.xoff != 0 {
		d.ask(now)
	}
}

// quanta is how long so many of them are at the direction's rate.
func (d *direction) quanta(n uint16) time.Duration {
	rate := d.params.Rate
	if rate == 0 {
		rate = pfcNominal
	}
	return time.Duration(uint64(n) * quantum * uint64(time.Second) / rate)
}

// pause obeys a PAUSE frame, if this direction does.
func (d *direction) pause(b []byte, now time.Duration) {
	d.settle(now)
	enabled, quanta := readPFC(b)
	for prio, q := range quanta {
		if enabled&d.params.PFC.Priorities>>prio&1 != 0 {
			d.pausedFrom[prio], d.pausedUntil[prio] = now, now+d.quanta(q)
		}
	}
	d.resume(now)
}

// resume sends what may be sent, and comes back when the next pause is over.
func (d *direction) resume(now time.Duration) {
	if d.resumeAt <= now {
		d.resumeAt = 0
	}
	d.start(now)
	next := never
	for _, until := range d.pausedUntil {
		if until > now {
			next = min(next, until)
		}
	}
	if next != never && (d.resumeAt == 0 || next < d.resumeAt) {
		d.resumeAt = next
		d.e.at(next, eventResume, d, nil)
	}
}

// settle adds what of the pauses has passed to the statistics.
func (d *direction) settle(now time.Duration) {
	for prio := range Priorities {
		if until := min(now, d.pausedUntil[prio]); until > d.pausedFrom[prio] {
			d.stats.Paused[prio] += until - d.pausedFrom[prio]
			d.pausedFrom[prio] = until
		}
	}
}
