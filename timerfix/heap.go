// SPDX-License-Identifier: BSD-2-Clause

package timerfix

// item is a deferred transition in the queue: when, and which record.
type item struct {
	due Instant
	seq uint32 // the order in which they were deferred
	idx uint32
}

func (a item) before(b item) bool {
	return a.due < b.due || a.due == b.due && earlier(a.seq, b.seq)
}

// earlier compares sequence numbers, which wrap: right while fewer than 2^31
// are pending.
func earlier(a, b uint32) bool { return int32(a-b) < 0 }

// queue is a heap, by due time. It has four children a node: half as many
// levels as with two, and four items are one cache line.
type queue []item

const fan = 4

// push adds an item. Most deferrals are for the same delay and so are the
// latest yet: they stay where they are put.
func (q *queue) push(x item) {
	*q = append(*q, x)
	q.up(len(*q) - 1)
}

func (q queue) up(at int) {
	x := q[at]
	for at > 0 {
		parent := (at - 1) / fan
		if !x.before(q[parent]) {
			break
		}
		q[at] = q[parent]
		at = parent
	}
	q[at] = x
}

// pop removes the first item.
func (q *queue) pop() item {
	h := *q
	first, last := h[0], len(h)-1
	h[0] = h[last]
	*q = h[:last]
	if last > 1 {
		q.down(0)
	}
	return first
}

func (q queue) down(at int) {
	x := q[at]
	for {
		child := fan*at + 1
		if child >= len(q) {
			break
		}
		least := child
		for c := child + 1; c < min(child+fan, len(q)); c++ {
			if q[c].before(q[least]) {
				least = c
			}
		}
		if !q[least].before(x) {
			break
		}
		q[at] = q[least]
		at = least
	}
	q[at] = x
}

// keep drops the items that keep says no to.
func (q *queue) keep(keep func(item) bool) {
	kept := (*q)[:0]
	for _, x := range *q {
		if keep(x) {
			kept = append(kept, x)
		}
	}
	*q = kept
	for i := (len(kept) - 2) / fan; i >= 0 && len(kept) > 1; i-- {
		q.down(i)
	}
}
