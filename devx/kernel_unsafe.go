// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
)

// Ioctl blocks the OS thread until the firmware has answered. The conversion
// stands in the call itself, so hdr is kept alive for its length (unsafe.Pointer
// rule 4); hdr is mapped memory, which does not move.
func (f *kernelFile) Ioctl(hdr []byte) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f.fd), abi.RDMA_VERBS_IOCTL, uintptr(unsafe.Pointer(unsafe.SliceData(hdr))))
	return errno
}

// Store64 rings a doorbell. The device reads big endian, the store is of the
// host's order; storeFence keeps it behind earlier stores, and drains a
// write-combining buffer.
func (m *uarMapping) Store64(offset int, v uint64) {
	_ = m.b[offset : offset+8]
	var wire [8]byte
	binary.BigEndian.PutUint64(wire[:], v)
	storeFence()
	// b is a mapping that lives until Unmap; offset was checked above, and is a
	// multiple of 8 in a page.
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&m.b[offset])), binary.NativeEndian.Uint64(wire[:]))
	storeFence()
}

// storeFence orders stores to memory before stores to the device.
//
//go:noescape
func storeFence()
