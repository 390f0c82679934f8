// SPDX-License-Identifier: BSD-2-Clause

// Package usermem hands out page-aligned memory outside the Go heap and
// translates its addresses back.
//
// An ioctl of the uverbs file carries pointers as 64-bit integers, which the
// garbage collector does not see, so whatever they point to must neither move
// nor be freed: memory mapped by this package. The emulated uverbs file plays
// the kernel's copy_from_user and copy_to_user; Resolve is its page table, and
// an address that is not in it is a fault, never a crash. Memory that a device may
// access by itself is pinned, as the kernel pins pages: it stays until it is
// unpinned, even if the program frees it.
package usermem

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Region is mapped memory, from Alloc until Free and until it is not pinned.
type Region struct {
	b     []byte
	addr  uint64
	pins  int // under mu, as the next
	freed bool
}

var (
	mu   sync.Mutex
	kept int                       // regions that were freed and are pinned
	live atomic.Pointer[[]*Region] // sorted by address; replaced, never changed
)

// Alloc maps n zeroed bytes, rounded up to whole pages.
func Alloc(n int) (*Region, error) {
	if n <= 0 {
		return nil, fmt.Errorf("usermem: size %d", n)
	}
	page := unix.Getpagesize()
	b, err := unix.Mmap(-1, 0, (n+page-1)&^(page-1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", n, err)
	}
	r := &Region{b: b, addr: addressOf(b)}
	mu.Lock()
	defer mu.Unlock()
	old := regions()
	at, _ := slices.BinarySearchFunc(old, r.addr, byAddr)
	next := slices.Insert(slices.Clone(old), at, r)
	live.Store(&next)
	return r, nil
}

// Free unmaps the region, now or when it is pinned no more. Its bytes must not be
// used afterwards; a second call does nothing.
func (r *Region) Free() error {
	mu.Lock()
	defer mu.Unlock()
	old := regions()
	at, ok := slices.BinarySearchFunc(old, r.addr, byAddr)
	if !ok || old[at] != r {
		return nil
	}
	next := slices.Delete(slices.Clone(old), at, at+1)
	live.Store(&next)
	if r.freed = true; r.pins > 0 {
		kept++
		return nil
	}
	return unix.Munmap(r.b)
}

// Pin keeps the region in which the n bytes at addr lie mapped until Unpin. It
// returns false if they do not lie within one live region.
func Pin(addr uint64, n int) (*Region, bool) {
	mu.Lock()
	defer mu.Unlock()
	r := find(addr, n)
	if r == nil {
		return nil, false
	}
	r.pins++
	return r, true
}

// Unpin takes a Pin back.
func (r *Region) Unpin() error {
	mu.Lock()
	defer mu.Unlock()
	if r.pins--; r.pins > 0 || !r.freed {
		return nil
	}
	kept--
	return unix.Munmap(r.b)
}

// Bytes returns the memory.
func (r *Region) Bytes() []byte { return r.b }

// Addr returns the address of the first byte.
func (r *Region) Addr() uint64 { return r.addr }

// Resolve returns the n bytes at addr, or false if they do not lie within one
// live region. It allocates nothing.
func Resolve(addr uint64, n int) ([]byte, bool) {
	r := find(addr, n)
	if r == nil {
		return nil, false
	}
	off := addr - r.addr
	return r.b[off : off+uint64(n) : off+uint64(n)], true
}

// find returns the live region in which n bytes at addr lie, or nil.
func find(addr uint64, n int) *Region {
	rs := regions()
	lo, hi := 0, len(rs)
	for lo < hi {
		if m := int(uint(lo+hi) / 2); rs[m].addr > addr {
			hi = m
		} else {
			lo = m + 1
		}
	}
	if lo == 0 || n < 0 {
		return nil
	}
	r := rs[lo-1]
	if off := addr - r.addr; off > uint64(len(r.b)) || uint64(n) > uint64(len(r.b))-off {
		return nil
	}
	return r
}

// Live returns the number of regions that are mapped.
func Live() int {
	mu.Lock()
	defer mu.Unlock()
	return len(regions()) + kept
}

func regions() []*Region {
	if p := live.Load(); p != nil {
		return *p
	}
	return nil
}

func byAddr(r *Region, addr uint64) int {
	switch {
	case r.addr < addr:
		return -1
	case r.addr > addr:
		return 1
	}
	return 0
}
