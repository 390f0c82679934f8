// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

// Umem is memory outside the Go heap that is registered with the device, for
// queues, doorbell records and memory keys. It stays mapped until it is closed,
// also after the device was.
type Umem struct {
	d      *Device
	mem    *usermem.Region
	handle uint32
	id     uint32
	closed atomic.Bool
}

// Umem maps n zeroed bytes, rounded up to whole pages, and registers them in
// pages of 4 KiB, so that a queue may begin at any of them. Linux before 5.13
// cannot be told the page size; 5.11 and 5.12 take 4 KiB, older ones larger
// pages where the memory happens to be contiguous. Remote atomics need no right
// of their own here (devx_umem_get in the driver refuses it).
func (d *Device) Umem(n int, access mlx5.Access) (*Umem, error) {
	mem, err := usermem.Alloc(n)
	if err != nil {
		return nil, fmt.Errorf("devx: %s: %w", d.info.Name, err)
	}
	u := &Umem{d: d, mem: mem}
	flags := uint64(abi.IB_UVERBS_ACCESS_LOCAL_WRITE)
	if access&mlx5.RemoteWrite != 0 {
		flags |= abi.IB_UVERBS_ACCESS_REMOTE_WRITE
	}
	if access&mlx5.RemoteRead != 0 {
		flags |= abi.IB_UVERBS_ACCESS_REMOTE_READ
	}
	err = d.with(func(s *Submitter) error {
		s.begin(abi.MLX5_IB_OBJECT_DEVX_UMEM, abi.MLX5_IB_METHOD_DEVX_UMEM_REG)
		h := s.handle(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE, 0)
		s.value(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR, 8, mem.Addr())
		s.value(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_LEN, 8, uint64(len(mem.Bytes())))
		s.value(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS, 4, flags)
		s.value(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP, 8, queuePage).SetFlags(0) // not mandatory
		id := s.result(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, 4)
		errno, err := s.call()
		u.handle, u.id = uint32(h.Data()), binary.LittleEndian.Uint32(id)
		return d.callError(errno, err, "register %d bytes of user memory (limit: ulimit -l)", n)
	})
	if err != nil {
		return nil, errors.Join(err, mem.Free())
	}
	return u, nil
}

// ID returns the number by which commands name the memory.
func (u *Umem) ID() uint32 { return u.id }

// Bytes returns the memory. It must not be used after Close.
func (u *Umem) Bytes() []byte { return u.mem.Bytes() }

// Addr returns the address of the first byte.
func (u *Umem) Addr() uint64 { return u.mem.Addr() }

// Close takes the registration back and unmaps the memory. While a queue or key
// uses it, the kernel answers EINVAL, and the memory stays. A second call does
// nothing.
func (u *Umem) Close() error {
	if u.closed.Swap(true) {
		return nil
	}
	err := u.d.destroy(abi.MLX5_IB_OBJECT_DEVX_UMEM, abi.MLX5_IB_METHOD_DEVX_UMEM_DEREG, abi.MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE, u.handle,
		"deregister user memory %d", u.id)
	if err != nil {
		u.closed.Store(false)
		return err
	}
	return u.mem.Free()
}

// arena carves whole pages out of user memory, so that a million queue pairs do
// not need as many registrations. A queue's offset into its umem is a multiple
// of the page size that it names; the doorbell record may follow anywhere.
type arena struct {
	mu      sync.Mutex
	chunks  []*Umem
	used    int           // bytes of the last chunk
	free    map[int][]ref // by size
	growing bool          // somebody registers another chunk
	single  []*Umem       // that those registered who came meanwhile
}

type ref struct {
	umem *Umem
	at   int
}

const (
	queuePage  = 4096
	arenaFirst = 32 << 10 // the chunks double up to
	arenaChunk = 4 << 20
	dbrSize    = 64 // a doorbell record and the rest of its cache line
)

// carve returns n bytes, rounded up to pages. The lock is not held while memory is
// registered: that is a command, and others have commands to send meanwhile. They
// do not wait for it, but register what they need themselves.
func (a *arena) carve(d *Device, n int) (ref, error) {
	n = roundUp(n)
	a.mu.Lock()
	if l := a.free[n]; len(l) > 0 {
		r := l[len(l)-1]
		a.free[n] = l[:len(l)-1]
		a.mu.Unlock()
		clear(r.umem.Bytes()[r.at : r.at+n])
		return r, nil
	}
	if i := len(a.chunks) - 1; i >= 0 && a.used+n <= len(a.chunks[i].Bytes()) {
		r := ref{a.chunks[i], a.used}
		a.used += n
		a.mu.Unlock()
		return r, nil
	}
	size, single := n, a.growing
	if !single {
		a.growing = true
		size = max(n, arenaChunk)
		if i := len(a.chunks); i < 16 {
			size = max(n, min(arenaChunk, arenaFirst<<i))
		}
	}
	a.mu.Unlock()
	u, err := d.Umem(size, 0)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !single {
		a.growing = false
	}
	switch {
	case err != nil:
		return ref{}, err
	case single:
		a.single = append(a.single, u)
	default:
		a.chunks, a.used = append(a.chunks, u), n
	}
	return ref{u, 0}, nil
}

func (a *arena) release(r ref, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.free == nil {
		a.free = map[int][]ref{}
	}
	a.free[roundUp(n)] = append(a.free[roundUp(n)], r)
}

func roundUp(n int) int { return (n + queuePage - 1) &^ (queuePage - 1) }

// UAR is a doorbell page.
type UAR struct {
	d      *Device
	page   DoorbellPage
	handle uint32
	id     uint32

	mu     sync.RWMutex // Ring holds it for reading
	closed bool
	queues int // that name the page
}

// UAR allocates a doorbell page, not write-combining, and maps it.
func (d *Device) UAR() (*UAR, error) {
	if !d.enter() { // a page that is mapped is in the list of those that Close unmaps
		return nil, d.closedError()
	}
	defer d.exit()
	u := &UAR{d: d}
	err := d.with(func(s *Submitter) error {
		s.begin(abi.MLX5_IB_OBJECT_UAR, abi.MLX5_IB_METHOD_UAR_OBJ_ALLOC)
		h := s.handle(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, 0)
		s.value(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, 8, abi.MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC)
		offset := s.result(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, 8)
		length := s.result(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, 4)
		page := s.result(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, 4)
		errno, err := s.call()
		if err := d.callError(errno, err, "allocate a UAR"); err != nil {
			return err
		}
		u.handle, u.id = uint32(h.Data()), binary.LittleEndian.Uint32(page)
		u.page, err = d.file.MapUAR(int64(binary.LittleEndian.Uint64(offset)), int(binary.LittleEndian.Uint32(length)))
		if err != nil {
			return errors.Join(fmt.Errorf("devx: %s: %w", d.info.Name, err), u.destroy())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.uars[u] = struct{}{}
	d.mu.Unlock()
	return u, nil
}

// PageID returns the number by which queues name the page.
func (u *UAR) PageID() uint32 { return u.id }

// Ring stores a doorbell: eight bytes, the first two dwords of a work request
// or a CQ arm, at an offset into the page (0x800 for a send queue, 0x20 to arm
// a CQ).
func (u *UAR) Ring(offset int, v uint64) error {
	if offset < 0 || offset > 4096-8 || offset%8 != 0 {
		return fmt.Errorf("devx: doorbell offset %#x: a multiple of 8 below 4096", offset)
	}
	if !u.d.enter() {
		return u.d.closedError()
	}
	defer u.d.exit()
	u.mu.RLock()
	defer u.mu.RUnlock()
	if u.closed {
		return fmt.Errorf("devx: UAR: %w", ErrClosed)
	}
	u.page.Store64(offset, v)
	return nil
}

// Close unmaps and frees the page. While a queue of this context names it, it
// stays, with EBUSY: the kernel would answer 0 and lose a page that the firmware
// does not take back (mlx5_ib_mmap_free in main.c). A second call does nothing.
func (u *UAR) Close() error {
	if !u.d.enter() {
		return nil // unmapped and freed with the device
	}
	defer u.d.exit()
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.closed:
		return nil
	case u.queues > 0:
		return fmt.Errorf("devx: %s: %d queues use UAR page %#x: %w; close them first", u.d.info.Name, u.queues, u.id, unix.EBUSY)
	}
	u.closed = true
	u.d.mu.Lock()
	delete(u.d.uars, u)
	u.d.mu.Unlock()
	return errors.Join(u.page.Unmap(), u.destroy())
}

// unmap is Close as the device's Close needs it.
func (u *UAR) unmap() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	u.closed = true
	return u.page.Unmap()
}

// use counts a queue that names the page; unuse ends it.
func (u *UAR) use() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return fmt.Errorf("devx: UAR: %w", ErrClosed)
	}
	u.queues++
	return nil
}

func (u *UAR) unuse() {
	u.mu.Lock()
	u.queues--
	u.mu.Unlock()
}

func (u *UAR) destroy() error {
	return u.d.destroy(abi.MLX5_IB_OBJECT_UAR, abi.MLX5_IB_METHOD_UAR_OBJ_DESTROY, abi.MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, u.handle, "free a UAR")
}
