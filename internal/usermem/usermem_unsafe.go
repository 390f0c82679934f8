// SPDX-License-Identifier: BSD-2-Clause

package usermem

import "unsafe"

// addressOf returns the address of mapped memory. It stays valid without a
// live pointer because the collector neither moves nor frees mappings; the
// Region that holds b is the only one to unmap it.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
