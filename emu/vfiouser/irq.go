// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// vectors is the client's side of MSI-X.
type vectors []vector

type vector struct {
	mu      sync.Mutex
	fd      int // an eventfd, or -1
	masked  bool
	pending bool // it was to be signalled while masked
}

func newVectors(n int) vectors {
	vs := make(vectors, n)
	for i := range vs {
		vs[i].fd = -1
	}
	return vs
}

// Interrupt is Host's.
func (vs vectors) Interrupt(n int) {
	if n < 0 || n >= len(vs) {
		return
	}
	v := &vs[n]
	v.mu.Lock()
	defer v.mu.Unlock()
	v.signal()
}

var one = binary.NativeEndian.AppendUint64(nil, 1)

func (v *vector) signal() {
	switch {
	case v.fd < 0:
	case v.masked:
		v.pending = true
	default:
		_, _ = unix.Write(v.fd, one) // EAGAIN: it was signalled 2^64-2 times, and nobody has looked
	}
}

// set gives the vector an eventfd, or takes it away with -1, and closes the old
// one.
func (v *vector) set(fd int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fd >= 0 {
		_ = unix.Close(v.fd)
	}
	v.fd = fd
}

func (v *vector) act(action uint32) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch action {
	case irqTrigger:
		v.signal()
	case irqMask:
		v.masked = true
	case irqUnmask:
		v.masked = false
		if v.pending {
			v.pending = false
			v.signal()
		}
	}
}

// disable takes all eventfds away.
func (vs vectors) disable() {
	for i := range vs {
		v := &vs[i]
		v.set(-1)
		v.mu.Lock()
		v.masked, v.pending = false, false
		v.mu.Unlock()
	}
}

// setIRQs is VFIO_USER_DEVICE_SET_IRQS. QEMU sets eventfds for up to 16 vectors
// at a time, takes them away with the same message without descriptors, and ends
// the use of an index with a count of 0. Mask, unmask and triggering by the client
// are for others.
func (s *session) setIRQs(payload []byte) error {
	m, data := decode[irqSet](payload), payload[irqSetSize:]
	n := s.shape.irqs(m.Index)
	kind, action := m.Flags&irqData, m.Flags&irqAction
	want := 0
	if kind == irqDataBool {
		want = int(m.Count)
	}
	switch {
	case m.Flags&^(irqData|irqAction) != 0 || bits.OnesCount32(kind) != 1 || bits.OnesCount32(action) != 1:
		return refuse(unix.EINVAL, "flags %#x: not one kind of data and one action", m.Flags)
	case m.Index >= numIRQs:
		return refuse(unix.EINVAL, "interrupt index %d of %d", m.Index, numIRQs)
	case m.Start > n || m.Count > n-m.Start:
		return refuse(unix.EINVAL, "%d interrupts from %d: index %d has %d", m.Count, m.Start, m.Index, n)
	case m.Count == 0 && (kind != irqDataNone || action != irqTrigger || m.Start != 0):
		return refuse(unix.EINVAL, "no interrupts, with flags %#x, from %d", m.Flags, m.Start)
	case len(data) != want || m.Argsz != uint32(len(payload)):
		return refuse(unix.EINVAL, "%d bytes and argsz %d instead of %d", len(payload), m.Argsz, irqSetSize+want)
	case kind != irqDataEventFD && len(s.fds) > 0:
		return refuse(unix.EINVAL, "%d file descriptors", len(s.fds))
	}
	if m.Count == 0 {
		if m.Index == irqMSIX {
			s.host.disable()
		}
		return nil
	}
	vs := s.host.vectors[m.Start:][:m.Count]
	if kind == irqDataEventFD {
		return s.setEventFDs(vs, action)
	}
	for i := range vs {
		if kind == irqDataNone || data[i] != 0 {
			vs[i].act(action)
		}
	}
	return nil
}

func (s *session) setEventFDs(vs vectors, action uint32) error {
	if action != irqTrigger {
		return refuse(unix.EOPNOTSUPP, "events of masking")
	}
	if len(s.fds) == 0 {
		for i := range vs {
			vs[i].set(-1)
		}
		return nil
	}
	if len(s.fds) != len(vs) {
		return refuse(unix.EINVAL, "%d file descriptors for %d interrupts", len(s.fds), len(vs))
	}
	for _, fd := range s.fds {
		if err := checkEventFD(fd); err != nil {
			return err
		}
	}
	for i, fd := range s.fds {
		vs[i].set(fd)
	}
	s.fds = s.fds[:0]
	return nil
}

// checkEventFD refuses what is not an eventfd, because a write to it might block,
// and makes writes to one not block. QEMU's do not.
func checkEventFD(fd int) error {
	what, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return refuse(unix.EINVAL, "cannot see whether it is an eventfd: %v", err)
	}
	if what != "anon_inode:[eventfd]" {
		return refuse(unix.EINVAL, "%s is not an eventfd", what)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return refuse(unix.EINVAL, "O_NONBLOCK: %v", err)
	}
	return nil
}
