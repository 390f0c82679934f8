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
	users atomic.Int32 // calls that use it now; destroying says that one takes it away
	kind  uint16       // object id of the ioctl interface; 0: the handle is free
	op    mlx5.Op      // that made it
	id    uint32
	data  *uarEntry // of a UAR
}

const destroying = -1

// use counts a call, as uverbs_try_lock_object does for shared access.
func (o *object) use() bool {
	for {
		n := o.users.Load()
		if n < 0 {
			return false
		}
		if o.users.CompareAndSwap(n, n+1) {
			return true
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
}

const handleChunk = 1024

func (t *handles) at(h uint64) *object {
	chunks := t.chunks.Load()
	if chunks == nil || h/handleChunk >= uint64(len(*chunks)) {
		return nil
	}
	return &(*chunks)[h/handleChunk][h%handleChunk]
}

// add makes a handle for an object. Nobody sees it before ready.
func (t *handles) add() (uint32, *object) {
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
			fresh := new([handleChunk]object)
			for i := range fresh {
				fresh[i].users.Store(destroying)
			}
			grown := append(append(make([]*[handleChunk]object, 0, len(old)+1), old...), fresh)
			t.chunks.Store(&grown)
		}
	}
	return h, t.at(uint64(h))
}

// ready makes a new handle usable.
func (o *object) ready() { o.users.Store(0) }

// lookup returns the object for shared use; the caller calls unuse.
func (t *handles) lookup(h uint64, kind uint16, any bool) (*object, unix.Errno) {
	o := t.at(h)
	if o == nil || !o.use() {
		return nil, unix.ENOENT
	}
	if !any && o.kind != kind {
		o.unuse()
		return nil, unix.EINVAL
	}
	return o, 0
}

// claim takes an object for its destruction. EBUSY says that a call uses it.
func (t *handles) claim(h uint64, kind uint16) (*object, unix.Errno) {
	o := t.at(h)
	if o == nil {
		return nil, unix.ENOENT
	}
	for {
		switch n := o.users.Load(); {
		case n < 0:
			return nil, unix.ENOENT
		case n > 0:
			return nil, unix.EBUSY
		}
		if o.users.CompareAndSwap(0, destroying) {
			break
		}
	}
	if o.kind != kind {
		o.users.Store(0)
		return nil, unix.EINVAL
	}
	return o, 0
}

// drop frees a handle that was claimed, or never became ready.
func (t *handles) drop(h uint32, o *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o.kind, o.op, o.id, o.data = 0, 0, 0, nil
	t.free = append(t.free, h)
}

// count returns how many handles were ever made.
func (t *handles) count() uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.next
}
