// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"devxlab.example/internal/dma"
	"devxlab.example/internal/usermem"
)

// memory is what of the process's memory the device may access: the regions that
// hold registered user memory. Its addresses are the process's, and a region stays
// mapped for as long as it is here, whatever the program does with it.
//
// The device is given addresses of registered pages only, as by a kernel; this
// is the IOMMU behind that.
type memory struct {
	mu      sync.RWMutex // held for reading by accesses
	regions []*pinned    // by address
	umems   map[uint32]*pinned
	cut     bool
}

type pinned struct {
	*usermem.Region
	umems int // that lie in it
}

var errUnpinned = errors.New("uverbs: no registered memory there")

// pin lets the device access the region of n bytes at addr. settle or drop
// follows.
func (m *memory) pin(addr uint64, n int) (*pinned, unix.Errno) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cut {
		return nil, unix.EIO
	}
	r, mapped := usermem.Pin(addr, n)
	if !mapped {
		return nil, unix.EFAULT
	}
	at, known := m.find(r.Addr())
	if known {
		p := m.regions[at]
		p.umems++
		_ = r.Unpin() // cannot fail: the other pin is left
		return p, 0
	}
	p := &pinned{r, 1}
	m.regions = slices.Insert(m.regions, at, p)
	return p, 0
}

// find returns where the region that begins at addr is, or would be.
func (m *memory) find(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(m.regions, addr, func(p *pinned, addr uint64) int {
		switch {
		case p.Addr() < addr:
			return -1
		case p.Addr() > addr:
			return 1
		}
		return 0
	})
}

// settle makes a pin that of user memory with a number.
func (m *memory) settle(p *pinned, umem uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cut {
		return
	}
	if m.umems == nil {
		m.umems = map[uint32]*pinned{}
	}
	m.umems[umem] = p
}

// take takes the pin of user memory with a number, nil if there is none. The
// device may access it until settle or drop follows, as after pin.
func (m *memory) take(umem uint32) *pinned {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.umems[umem]
	delete(m.umems, umem)
	return p
}

// drop takes a pin back. Accesses to it have ended when it returns.
func (m *memory) drop(p *pinned) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cut {
		return
	}
	if p.umems--; p.umems > 0 {
		return
	}
	if at, ok := m.find(p.Addr()); ok {
		m.regions = slices.Delete(m.regions, at, at+1)
	}
	_ = p.Unpin() // munmap of a mapping that is there does not fail
}

// end takes all memory away, as when the device is pulled out.
func (m *memory) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cut {
		return
	}
	for _, p := range m.regions {
		_ = p.Unpin()
	}
	m.regions, m.umems, m.cut = nil, nil, true
}

// ReadDMA is the device's.
func (m *memory) ReadDMA(addr uint64, b []byte) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	mem, err := m.at(addr, len(b))
	if err == nil {
		dma.Load(b, mem)
	}
	return err
}

// WriteDMA is the device's.
func (m *memory) WriteDMA(addr uint64, b []byte) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	mem, err := m.at(addr, len(b))
	if err == nil {
		dma.Store(mem, b)
	}
	return err
}

// at returns n bytes at an address.
func (m *memory) at(addr uint64, n int) ([]byte, error) {
	i, exact := m.find(addr)
	if !exact {
		i--
	}
	if i >= 0 {
		b := m.regions[i].Bytes()
		if off := addr - m.regions[i].Addr(); off <= uint64(len(b)) && uint64(n) <= uint64(len(b))-off {
			return b[off : off+uint64(n)], nil
		}
	}
	return nil, fmt.Errorf("%w: %d bytes at %#x", errUnpinned, n, addr)
}
