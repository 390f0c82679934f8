// SPDX-License-Identifier: BSD-2-Clause

// Package dma copies between a device and memory that others read and write at
// the same time without asking: a guest's, or that of the program that the device
// runs in. It keeps the order that drivers of real devices rely on, and no more:
//
//   - 4 and 8 aligned bytes are one access: doorbell records, and what says whose
//     a completion is.
//   - What was written before such an access is seen by whoever sees that, and what
//     is read after one is at least as new: its accesses are atomic ones of package
//     sync/atomic, and the other side's must be too.
//   - The last 8 bytes of a longer write, if they are aligned, come after all
//     others: a program may wait for the last byte of a message.
//   - Writes of one goroutine are seen in their order by whoever looks at two of
//     them with such accesses.
//
// Everything else may be seen in any order, and torn. The race detector knows only
// the Go heap and says nothing of memory that is mapped.
package dma

// wordBytes is the largest access that is one.
const wordBytes = 8

// Load copies mem, shared memory, to b, which is as long.
func Load(b, mem []byte) { load(b, mem) }

// Store copies b to mem, shared memory, which is as long.
func Store(mem, b []byte) {
	if n := len(mem) - wordBytes; n > 0 && aligned(mem[n:]) {
		copy(mem, b[:n])
		mem, b = mem[n:], b[n:]
	}
	store(mem, b)
}
