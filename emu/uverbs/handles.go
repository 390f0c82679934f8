// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"devxlab.example/mlx5"
)

// object is what a handle of a file stands for, 24 bytes.
type object struct {
	users        atomic.Int32  // one of the states below, or idle and the calls that use it now
	kind         atomic.Uint32 // object id of the ioctl interface
	op           mlx5.Op       // that made it
	id           uint32
	older, newer uint32 // neighbours in age: a handle + 1; 0: none
}

// States of an object.
const (
	claimed = iota - 1 // a call takes it away
	absent             // the handle stands for nothing
	idle
)

// use counts a call, as uverbs_try_lock_object does for shared access.
func (o *object) use() unix.Errno {
	for {
		switch n := o.users.Load(); n {
		case claimed:
			return unix.EBUSY
		case absent:
			return unix.ENOENT
		default:
			if o.users.CompareAndSwap(n, n+1) {
				return 0
			}
		}
	}
}

func (o *object) unuse() { o.users.Add(-1) }

// handles is the table of a file. Lookups take no lock.
type handles struct {
	chunks atomic.Pointer[[]*[handleChunk]object]
	mu     sync.Mutex
	next   uint32
	free   []uint32
	newest uint32 // handle + 1; 0: there is none
}

const handleChunk = 1024

func (t *handles) at(h uint64) *object {
	chunks := t.chunks.Load()
	if chunks == nil || h/handleChunk >= uint64(len(*chunks)) {
		return nil
	}
	return &(*chunks)[h/handleChunk][h%handleChunk]
}

// add makes a handle for an object.
func (t *handles) add(kind uint16, op mlx5.Op, id uint32) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var h uint32
	if n := len(t.free); n > 0 {
		h, t.free = t.free[n-1], t.free[:n-1]
	} else {
		h = t.next
		t.next++
		var old []*[handleChunk]object
		if p := t.chunks.Load(); p != nil {
			old = *p
		}
		if int(h/handleChunk) >= len(old) {
			grown := append(append(make([]*[handleChunk]object, 0, len(old)+1), old...), new([handleChunk]object))
			t.chunks.Store(&grown)
		}
	}
	o := t.at(uint64(h))
	o.kind.Store(uint32(kind))
	o.op, o.id, o.older, o.newer = op, id, t.newest, 0
	if t.newest != 0 {
		t.at(uint64(t.newest - 1)).newer = h + 1
	}
	t.newest = h + 1
	o.users.Store(idle)
	return uint64(h)
}

// lookup returns the object of a handle if it is of the kind, or of any
// (rdma_lookup_get_uobject).
func (t *handles) lookup(h uint64, kind uint16, any bool) (*object, unix.Errno) {
	if int64(h) < 0 {
		return nil, unix.EINVAL
	}
	o := t.at(h)
	switch {
	case o == nil || o.users.Load() == absent:
		return nil, unix.ENOENT
	case !any && o.kind.Load() != uint32(kind):
		return nil, unix.EINVAL
	}
	return o, 0
}

// claim takes an object that was looked up for its destruction. EBUSY says that
// a call uses it. drop or unclaim follows.
func (o *object) claim(kind uint16) unix.Errno {
	if !o.users.CompareAndSwap(idle, claimed) {
		if o.users.Load() == absent {
			return unix.ENOENT
		}
		return unix.EBUSY
	}
	if o.kind.Load() != uint32(kind) { // destroyed meanwhile, and its handle used again
		o.unclaim()
		return unix.ENOENT
	}
	return 0
}

func (o *object) unclaim() { o.users.Store(idle) }

// drop frees a handle.
func (t *handles) drop(h uint32, o *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.newer != 0 {
		t.at(uint64(o.newer - 1)).older = o.older
	} else {
		t.newest = o.older
	}
	if o.older != 0 {
		t.at(uint64(o.older - 1)).newer = o.newer
	}
	o.users.Store(absent)
	t.free = append(t.free, h)
}
