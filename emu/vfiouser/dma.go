// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"cmp"
	"math"
	"runtime/debug"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"devxlab.example/internal/dma"
)

// pageSize is the granularity of mappings (capability pgsizes).
const pageSize = 4096

// maxRegions is the most mappings that a client may have, and maxMapped the most
// bytes in them: address space is our own process's. QEMU makes a dozen.
const (
	maxRegions = 4096
	maxMapped  = 1 << 42
)

// memory is what a client lets the function access.
//
// Accesses hold mu for reading while they copy, so that an unmapping waits for
// those under way.
type memory struct {
	mu      sync.RWMutex
	regions []region // by address
	mapped  uint64   // bytes in them
}

type region struct {
	addr, last  uint64 // of its first and last byte
	mem         []byte // nil without a file
	read, write bool
}

// find returns the place of the first region that ends at addr or after.
func (m *memory) find(addr uint64) int {
	i, _ := slices.BinarySearchFunc(m.regions, addr, func(r region, addr uint64) int { return cmp.Compare(r.last, addr) })
	return i
}

// ReadDMA is Host's.
func (m *memory) ReadDMA(addr uint64, b []byte) error { return m.access(addr, b, false) }

// WriteDMA is Host's.
func (m *memory) WriteDMA(addr uint64, b []byte) error { return m.access(addr, b, true) }

// access copies b to or from guest memory: from one region or from several that
// follow each other, as QEMU divides RAM around its ROMs.
func (m *memory) access(addr uint64, b []byte, write bool) error {
	if len(b) == 0 {
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	fail := func(at uint64, err error) error { return &DMAError{write, addr, len(b), at, err} }

	first := m.find(addr)
	end, at := first, addr
	for left := uint64(len(b)); left > 0; end++ {
		if end == len(m.regions) || at < m.regions[end].addr {
			return fail(at, ErrUnmapped)
		}
		switch r := &m.regions[end]; {
		case write && !r.write || !write && !r.read:
			return fail(at, ErrPermission)
		case r.mem == nil:
			return fail(at, ErrNoFile)
		default:
			n := min(left, r.last-at+1)
			left -= n
			at += n // 0 after the last address, which no region follows
		}
	}
	at = addr
	for i := first; i < end; i++ {
		r := &m.regions[i]
		mem := r.mem[at-r.addr:]
		n := min(len(b), len(mem))
		if !transfer(mem[:n], b[:n], write) {
			return fail(at, ErrFault)
		}
		b, at = b[n:], at+uint64(n)
	}
	return nil
}

// transfer copies between shared memory and b, and reports whether it could. The
// client may have truncated the file: an access is then SIGBUS, which the runtime
// makes a panic of.
func transfer(mem, b []byte, write bool) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // a memory fault
			ok = false
		default:
			panic(p)
		}
	}()
	if write {
		dma.Store(mem, b)
	} else {
		dma.Load(b, mem)
	}
	return true
}

// dmaMap is VFIO_USER_DMA_MAP.
func (s *session) dmaMap(payload []byte) error {
	d := decode[dmaMap](payload)
	last := d.Addr + (d.Length - 1)
	switch {
	case d.Argsz != dmaMapSize:
		return refuse(unix.EINVAL, "argsz %d instead of %d", d.Argsz, dmaMapSize)
	case d.Flags == 0 || d.Flags&^(dmaMapRead|dmaMapWrite) != 0:
		return refuse(unix.EINVAL, "flags %#x", d.Flags)
	case d.Length == 0 || last < d.Addr:
		return refuse(unix.EINVAL, "%#x bytes at %#x", d.Length, d.Addr)
	case (d.Addr|d.Length|d.Offset)%pageSize != 0:
		return refuse(unix.EINVAL, "%#x bytes at %#x, offset %#x: not multiples of %d", d.Length, d.Addr, d.Offset, pageSize)
	case d.Offset > math.MaxInt64 || d.Length > math.MaxInt64-d.Offset:
		return refuse(unix.EINVAL, "%#x bytes at offset %#x", d.Length, d.Offset)
	case len(s.fds) == 0 && d.Offset != 0:
		return refuse(unix.EINVAL, "offset %#x of no file", d.Offset)
	}
	// Only this goroutine changes the regions, so it may look without the lock.
	m := &s.host.memory
	i := m.find(d.Addr)
	switch {
	case i < len(m.regions) && m.regions[i].addr <= last:
		return refuse(unix.EEXIST, "%#x to %#x: there is a mapping from %#x to %#x", d.Addr, last, m.regions[i].addr, m.regions[i].last)
	case len(m.regions) >= maxRegions:
		return refuse(unix.ENOSPC, "%d mappings are there already", len(m.regions))
	}
	r := region{addr: d.Addr, last: last, read: d.Flags&dmaMapRead != 0, write: d.Flags&dmaMapWrite != 0}
	if len(s.fds) > 0 {
		if d.Length > maxMapped-m.mapped {
			return refuse(unix.ENOMEM, "%#x bytes more than the %#x that are mapped", d.Length, m.mapped)
		}
		mem, err := mapFile(s.fds[0], int64(d.Offset), int64(d.Length), r.read, r.write)
		if err != nil {
			return err
		}
		r.mem = mem
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.regions = slices.Insert(m.regions, i, r)
	m.mapped += uint64(len(r.mem))
	return nil
}

// mapFile maps a part of a file of guest memory. The descriptor stays the
// caller's to close.
func mapFile(fd int, off, size int64, read, write bool) ([]byte, error) {
	// Only files of these two file systems have seals (memfd_fcntl in mm/memfd.c),
	// and asking for them does not ask the file system, which might not answer.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil {
		return nil, refuse(unix.EINVAL, "guest memory must be a memfd, or a file in tmpfs or hugetlbfs: F_GET_SEALS: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, refuse(unix.EINVAL, "fstat: %v", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size < off+size {
		return nil, refuse(unix.EINVAL, "no %#x bytes at offset %#x of a file of mode %#o with %#x bytes", size, off, st.Mode, st.Size)
	}
	prot := 0
	if read {
		prot |= unix.PROT_READ
	}
	if write {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(fd, off, int(size), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		errno, ok := err.(unix.Errno)
		if !ok {
			errno = unix.EINVAL
		}
		return nil, refuse(errno, "mmap of %#x bytes at offset %#x", size, off)
	}
	return mem, nil
}

// dmaUnmap is VFIO_USER_DMA_UNMAP: of one mapping, or of all.
func (s *session) dmaUnmap(payload []byte) error {
	d := decode[dmaUnmap](payload)
	if err := tooSmall(d.Argsz, dmaUnmapSize); err != nil {
		return err
	}
	m := &s.host.memory
	switch d.Flags {
	case dmaUnmapAll:
		if d.Addr|d.Length != 0 {
			return refuse(unix.EINVAL, "all mappings, at %#x with %#x bytes", d.Addr, d.Length)
		}
		m.unmapAll()
	case 0:
		i := m.find(d.Addr)
		if i == len(m.regions) || m.regions[i].addr != d.Addr || m.regions[i].last-d.Addr != d.Length-1 {
			return refuse(unix.ENOENT, "there is no mapping of %#x bytes at %#x", d.Length, d.Addr)
		}
		m.unmap(i, i+1)
	default:
		return refuse(unix.EINVAL, "flags %#x", d.Flags)
	}
	s.add(d)
	return nil
}

// unmap removes regions i to j. It waits for accesses under way.
func (m *memory) unmap(i, j int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.regions[i:j] {
		if mem := m.regions[i+k].mem; mem != nil {
			_ = unix.Munmap(mem) // fails for what is not mapped only
			m.mapped -= uint64(len(mem))
		}
	}
	m.regions = slices.Delete(m.regions, i, j)
}

func (m *memory) unmapAll() { m.unmap(0, len(m.regions)) }
