// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// storeBig stores a word for the device, after everything that was stored before.
//
// unsafe.Pointer: b begins at a multiple of 4 in mapped memory, which the collector
// neither moves nor frees, and has 4 bytes.
func storeBig(b []byte, v uint32) {
	var wire [4]byte
	binary.BigEndian.PutUint32(wire[:], v)
	_ = b[3]
	atomic.StoreUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(b))), binary.NativeEndian.Uint32(wire[:]))
}

// loadWord looks at a word that the device writes last: what is read afterwards
// is at least as new. The same holds for b.
func loadWord(b []byte) uint32 {
	_ = b[3]
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(b))))
}
