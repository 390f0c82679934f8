// SPDX-License-Identifier: BSD-2-Clause

package devx

import "unsafe"

// viewOf returns the beginning of b as a T, a struct of package abi. b is a part
// of a submitter's slab: mapped memory, which the collector neither moves nor
// frees; it begins at a multiple of 8, the greatest alignment of these structs,
// and they hold no pointers (unsafe.Pointer rule 1).
func viewOf[T any](b []byte) *T {
	var t T
	_ = b[unsafe.Sizeof(t)-1]
	return (*T)(unsafe.Pointer(unsafe.SliceData(b)))
}
