// SPDX-License-Identifier: BSD-2-Clause

package dma

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// mapped returns memory that is not Go's.
func mapped(t *testing.T) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// Every length at every alignment is copied, and nothing beside it.
func TestCopies(t *testing.T) {
	mem := mapped(t)[:64]
	for at := range 16 {
		for n := range 40 {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(1 + i)
			}
			clear(mem)
			Store(mem[at:at+n], b)
			want := make([]byte, 64)
			copy(want[at:], b)
			if !bytes.Equal(mem, want) {
				t.Fatalf("%d bytes at %d: %x", n, at, mem)
			}
			got := make([]byte, n)
			if Load(got, mem[at:at+n]); !bytes.Equal(got, b) {
				t.Fatalf("%d bytes at %d: %x", n, at, got)
			}
		}
	}
}

// Who sees the last word of a write sees all of it, and of the writes before.
func TestOrder(t *testing.T) {
	const words, rounds = 8, 20000
	mem := mapped(t)[:3*8*words]
	word := func(i int) uint64 {
		var b [8]byte
		Load(b[:], mem[8*i:8*i+8])
		return binary.NativeEndian.Uint64(b[:])
	}
	var done atomic.Bool
	go func() {
		defer done.Store(true)
		b := make([]byte, 8*words)
		for round := uint64(1); round <= rounds; round++ {
			for i := range words {
				binary.NativeEndian.PutUint64(b[8*i:], round)
			}
			for at := 0; at < len(mem); at += len(b) {
				Store(mem[at:at+len(b)], b)
			}
			runtime.Gosched()
		}
	}()
	for !done.Load() {
		for area := 2; area >= 0; area-- {
			// Later areas are written later, so what an earlier one has is at least as new.
			last := word(area*words + words - 1)
			for i := range (area + 1) * words {
				if got := word(i); got < last {
					t.Fatalf("word %d is of write %d, and word %d of write %d is there", i, got, area*words+words-1, last)
				}
			}
		}
	}
}
