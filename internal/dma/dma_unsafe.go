// SPDX-License-Identifier: BSD-2-Clause

package dma

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// load and store copy between shared memory and b, which are as long as each
// other: 4 and 8 bytes that are aligned in one access.
//
// unsafe.Pointer: each use points to the first byte of a slice that has as many
// bytes as the integer and is aligned for it (aligned). The memory is mapped, not
// Go's; whoever calls keeps it mapped.

func load(b, mem []byte) {
	switch {
	case len(mem) == 8 && aligned(mem):
		binary.NativeEndian.PutUint64(b, atomic.LoadUint64((*uint64)(unsafe.Pointer(&mem[0]))))
	case len(mem) == 4 && aligned(mem):
		binary.NativeEndian.PutUint32(b, atomic.LoadUint32((*uint32)(unsafe.Pointer(&mem[0]))))
	default:
		copy(b, mem)
	}
}

func store(mem, b []byte) {
	switch {
	case len(mem) == 8 && aligned(mem):
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&mem[0])), binary.NativeEndian.Uint64(b))
	case len(mem) == 4 && aligned(mem):
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&mem[0])), binary.NativeEndian.Uint32(b))
	default:
		copy(mem, b)
	}
}

// aligned reports whether mem starts at a multiple of its length, 4 or 8.
func aligned(mem []byte) bool {
	return uintptr(unsafe.Pointer(&mem[0]))%uintptr(len(mem)) == 0
}
