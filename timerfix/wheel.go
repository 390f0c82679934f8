// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import "math/bits"

// wheel has the pending transitions by due time: a hierarchical timing wheel.
// Level l has 64 slots, each 64^l nanoseconds long; a transition is on the
// lowest level on which it does not share a slot with base. Slots of level 0 so
// have one instant each, and nothing is ever compared or rounded. To defer and
// to cancel costs the same however many are pending: a slot is a doubly linked
// list through the heads of the slab. A transition moves to lower levels, at most
// ten times, as time comes near it.
//
// A heap was slower: whoever is cancelled must be searched in it, or stay in it
// as a corpse until it is built anew.
type wheel struct {
	slab  *slab
	base  Instant // of which no pending transition is before
	level uint16  // which levels have any
	slots [levels]uint64
	lists [levels][64]list
}

const (
	bitsPerLevel = 6
	levels       = 11 // 63 bits
	none         = ^uint32(0)
)

// list is a slot: its first and its last transition, if the slot's bit is set.
type list struct{ first, last uint32 }

// place returns the slot of a due time. What is past belongs to base.
func (w *wheel) place(due Instant) (level, slot int) {
	due = max(due, w.base)
	if differs := uint64(due ^ w.base); differs != 0 {
		level = (bits.Len64(differs) - 1) / bitsPerLevel
	}
	return level, int(due >> (bitsPerLevel * level) & 63)
}

// push adds a transition, behind those that are in its slot.
func (w *wheel) push(idx uint32) {
	h := w.slab.head(idx)
	level, slot := w.place(h.due)
	l := &w.lists[level][slot]
	h.next = none
	if w.slots[level]&(1<<slot) == 0 {
		w.slots[level] |= 1 << slot
		w.level |= 1 << level
		h.prev, l.first = none, idx
	} else {
		h.prev = l.last
		w.slab.head(l.last).next = idx
	}
	l.last = idx
}

// remove takes a transition out.
func (w *wheel) remove(idx uint32) {
	h := w.slab.head(idx)
	if h.prev != none && h.next != none { // in the middle: no matter of which slot
		w.slab.head(h.prev).next, w.slab.head(h.next).prev = h.next, h.prev
		return
	}
	level, slot := w.place(h.due)
	l := &w.lists[level][slot]
	switch {
	case h.prev == h.next: // the only one
		w.empty(level, slot)
	case h.prev == none:
		l.first = h.next
		w.slab.head(h.next).prev = none
	default:
		l.last = h.prev
		w.slab.head(h.prev).next = none
	}
}

func (w *wheel) empty(level, slot int) {
	if w.slots[level] &^= 1 << slot; w.slots[level] == 0 {
		w.level &^= 1 << level
	}
}

// first returns the slot with what is due first, and when it begins.
func (w *wheel) first() (level, slot int, begins Instant) {
	level = bits.TrailingZeros16(w.level)
	slot = bits.TrailingZeros64(w.slots[level])
	shift := bitsPerLevel * level
	begins = w.base>>shift&^63 | Instant(slot)
	return level, slot, begins << shift
}

// due returns the transition that is due first, if it is due now.
func (w *wheel) due(now Instant) (idx uint32, ok bool) {
	for w.level != 0 {
		level, slot, begins := w.first()
		if begins > now {
			return 0, false
		}
		idx := w.lists[level][slot].first
		if level == 0 {
			return idx, true
		}
		// Nothing is on a level below: what is in the slot moves there, in its
		// order, so that those of one instant keep theirs.
		w.empty(level, slot)
		w.base = begins
		for idx != none {
			next := w.slab.head(idx).next
			w.push(idx)
			idx = next
		}
	}
	return 0, false
}

// scan is how many transitions of a slot next looks at.
const scan = 32

// next returns when to look for what is due: the first due time, or if too many
// share a slot, the beginning of that.
func (w *wheel) next() Instant {
	if w.level == 0 {
		return Never
	}
	level, slot, begins := w.first()
	if level == 0 {
		return begins
	}
	at := Never
	idx := w.lists[level][slot].first
	for range scan {
		h := w.slab.head(idx)
		at = min(at, h.due)
		if idx = h.next; idx == none {
			return at
		}
	}
	return begins
}
