// SPDX-License-Identifier: BSD-2-Clause

package fw

import "sync"

// lru remembers which objects of a table were used last, by their place in it.
// It takes 8 bytes for each place up to the last one that was ever used, in
// chunks as the table's.
type lru struct {
	mu     sync.Mutex
	most   int
	n      int // in the list
	chunks []*[chunkLen]link
}

// link stands in a ring through its head, element 0: the next one is the last
// used, the previous one the first to go. Place i of the table is element i+1.
// Zero is an element outside the ring, or the only one in it.
type link struct{ prev, next uint32 }

func newLRU(most int) *lru { return &lru{most: most} }

func (l *lru) at(i uint32) *link {
	for int(i/chunkLen) >= len(l.chunks) {
		l.chunks = append(l.chunks, new([chunkLen]link))
	}
	return &l.chunks[i/chunkLen][i%chunkLen]
}

func (l *lru) has(i uint32) bool { return *l.at(i) != link{} || l.at(0).next == i }

// use makes the object the last used, and reports whether it was remembered.
func (l *lru) use(place uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, head := place+1, l.at(0)
	was := l.has(i)
	switch {
	case was:
		l.unlink(i)
	case l.n == l.most:
		l.unlink(head.prev)
	}
	*l.at(i) = link{0, head.next}
	l.at(head.next).prev = i
	head.next = i
	l.n++
	return was
}

// drop forgets the object.
func (l *lru) drop(place uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.has(place + 1) {
		l.unlink(place + 1)
	}
}

func (l *lru) unlink(i uint32) {
	e := *l.at(i)
	l.at(e.prev).next, l.at(e.next).prev = e.next, e.prev
	*l.at(i) = link{}
	l.n--
}
