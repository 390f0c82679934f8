// SPDX-License-Identifier: BSD-2-Clause

// Package usermem hands out page-aligned memory outside the Go heap and
// translates its addresses back.
//
// An ioctl of the uverbs file carries pointers as 64-bit integers, which the
// garbage collector does not see, so whatever they point to must neither move
// nor be freed: memory mapped by this package. The emulated uverbs file plays
// the kernel's copy_from_user and copy_to_user; Resolve is its page table, and
// an address that is not in it is a fault, never a crash.
package usermem

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Region is mapped memory, from Alloc until Free.
type Region struct {
	b    []byte
	addr uint64
}

var (
	mu   sync.Mutex
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

// Free unmaps the region. Its bytes must not be used afterwards; a second call
// does nothing.
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
	return unix.Munmap(r.b)
}

// Bytes returns the memory.
func (r *Region) Bytes() []byte { return r.b }

// Addr returns the address of the first byte.
func (r *Region) Addr() uint64 { return r.addr }

// Resolve returns the n bytes at addr, or false if they do not lie within one
// live region. It allocates nothing.
func Resolve(addr uint64, n int) ([]byte, bool) {
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
		return nil, false
	}
	r := rs[lo-1]
	if off := addr - r.addr; off <= uint64(len(r.b)) && uint64(n) <= uint64(len(r.b))-off {
		return r.b[off : off+uint64(n) : off+uint64(n)], true
	}
	return nil, false
}

// Live returns the number of regions that have not been freed.
func Live() int { return len(regions()) }

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
