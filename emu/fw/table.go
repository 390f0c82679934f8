// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"sync"
	"sync/atomic"
)

// entry is what every object of the device begins with. Its lock guards the
// whole object; live is written under it.
type entry struct {
	mu   sync.Mutex
	refs int32 // objects that use this one
	cost int32 // of the host's pages, in objects
	uid  uint16
	live atomic.Bool
}

const chunkLen = 256

// reuseAfter is how many indexes lie between a destroyed object and the reuse
// of its index, so that a stale handle finds nothing rather than a stranger.
const reuseAfter = 4096

// table holds the objects of one kind by index. Lookups take no lock; memory
// grows in chunks and its places are used again.
type table[T any] struct {
	chunks      atomic.Pointer[[]*[chunkLen]T]
	mu          sync.Mutex
	first, next uint32 // of the index range; next has never been used
	limit       uint32 // objects alive at once
	free        []uint32
	freeHead    int
	live        int
}

func newTable[T any](first, limit uint32) *table[T] {
	t := &table[T]{first: first, next: first, limit: limit}
	t.chunks.Store(&[]*[chunkLen]T{})
	return t
}

// get returns the place of an index, or nil if it was never in use.
func (t *table[T]) get(id uint32) *T {
	chunks := *t.chunks.Load()
	i := id - t.first
	if id < t.first || int(i/chunkLen) >= len(chunks) {
		return nil
	}
	return &chunks[i/chunkLen][i%chunkLen]
}

// alloc returns an unused index and its place, or false at the limit.
func (t *table[T]) alloc() (uint32, *T, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live >= int(t.limit) {
		return 0, nil, false
	}
	t.live++
	var id uint32
	waiting := len(t.free) - t.freeHead
	if waiting > reuseAfter || waiting > 0 && t.next-t.first >= t.limit {
		id = t.free[t.freeHead]
		t.freeHead++
		if t.freeHead > len(t.free)/2 {
			t.free = append(t.free[:0], t.free[t.freeHead:]...)
			t.freeHead = 0
		}
	} else {
		id = t.next
		t.next++
		if chunks := *t.chunks.Load(); int((id-t.first)/chunkLen) >= len(chunks) {
			grown := append(chunks, new([chunkLen]T)) // beyond what readers of chunks see
			t.chunks.Store(&grown)
		}
	}
	return id, t.get(id), true
}

// release gives an index back.
func (t *table[T]) release(id uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live--
	t.free = append(t.free, id)
}

// count returns the number of live objects.
func (t *table[T]) count() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(t.live)
}

// each calls f with every place that was ever in use.
func (t *table[T]) each(f func(id uint32, p *T)) {
	t.mu.Lock()
	next := t.next
	t.mu.Unlock()
	for id := t.first; id < next; id++ {
		f(id, t.get(id))
	}
}

// wipe calls f with every place that was ever in use, and begins anew.
func (t *table[T]) wipe(f func(*T)) {
	t.each(func(_ uint32, p *T) { f(p) })
	t.mu.Lock()
	t.next, t.free, t.freeHead, t.live = t.first, nil, 0, 0
	t.mu.Unlock()
}

// restrict lowers the number of objects that may be alive at once.
func (t *table[T]) restrict(limit uint32) {
	t.mu.Lock()
	t.limit = limit
	t.mu.Unlock()
}
