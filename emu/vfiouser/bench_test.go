// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"testing"

	"devxlab.example/internal/race"
)

// Accesses of guest memory and interrupts are on the path of each command and
// each completion: they allocate nothing.
func TestHostAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	c := connect(t)
	c.ok(cmdDMAMap, mapping(0, pageSize, 0, readWrite), memfd(t, pageSize))
	c.ok(cmdSetIRQs, irqs(setFDs, 0, 1), eventFD(t))
	b, long := make([]byte, 8), make([]byte, pageSize)
	if n := testing.AllocsPerRun(100, func() {
		_ = c.host.ReadDMA(64, b)
		_ = c.host.WriteDMA(64, b)
		_ = c.host.WriteDMA(0, long)
		c.host.Interrupt(0)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkReadDMA8(b *testing.B) {
	c := connect(b)
	c.ok(cmdDMAMap, mapping(0, pageSize, 0, readWrite), memfd(b, pageSize))
	buf := make([]byte, 8)
	for b.Loop() {
		_ = c.host.ReadDMA(64, buf)
	}
}

func BenchmarkWriteDMA4096(b *testing.B) {
	c := connect(b)
	c.ok(cmdDMAMap, mapping(0, pageSize, 0, readWrite), memfd(b, pageSize))
	buf := make([]byte, pageSize)
	b.SetBytes(pageSize)
	for b.Loop() {
		_ = c.host.WriteDMA(0, buf)
	}
}

// A register read, as the client sees it.
func BenchmarkRegionRead4(b *testing.B) {
	c := connect(b)
	m := message(header{Command: cmdRegionRead}, pack(regionAccess{0, 0, 4}))
	reply := make([]byte, headerSize+regionAccessSize+4)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.c.Write(m); err != nil {
			b.Fatal(err)
		}
		if n, err := c.c.Read(reply); err != nil || n != len(reply) {
			b.Fatal(n, err)
		}
	}
}
