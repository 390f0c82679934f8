// SPDX-License-Identifier: BSD-2-Clause

package uverbs_test

import (
	"fmt"
	"testing"

	"devxlab.example/emu/wire"
	"devxlab.example/mlx5"
)

// pump posts requests and keeps so many under way, each signaled, until b.N are
// complete.
func pump(b *testing.B, e *end, w mlx5.SendWQE, depth int) {
	b.Helper()
	w.Signaled = true
	b.ResetTimer()
	posted, done := 0, 0
	for done < b.N {
		for posted < b.N && posted-done < depth {
			e.post(w)
			posted++
		}
		if c := e.await(); c.Failed() {
			b.Fatalf("syndrome %#x/%#x", c.Syndrome(), c.VendorSyndrome())
		}
		done++
	}
}

// benchPair returns connected ends: of one device, or of two with an ideal wire.
func benchPair(b *testing.B, bytes int, wired bool) (x, y *end) {
	n := newNode(b, bytes)
	m := n
	if wired {
		m = newNode(b, bytes, "addr=2")
		wireOf(b, n, m, wire.Params{}, wire.Params{}, 1)
	}
	x, y = n.end(mlx5.STRC), m.end(mlx5.STRC)
	connect(x, y, link{mlx5.MTU4096, 18, 7})
	return x, y
}

var places = map[bool]string{false: "loopback", true: "wire"}

// RDMA WRITEs of an RC queue pair, path MTU 4096 bytes. Place: emu.
func BenchmarkWrite(b *testing.B) {
	for _, wired := range []bool{false, true} {
		for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", places[wired], size>>10), func(b *testing.B) {
				x, y := benchPair(b, 2*size, wired)
				b.SetBytes(int64(size))
				pump(b, x, mlx5.SendWQE{Op: mlx5.WQEWrite, RemoteAddr: y.mem.Addr() + uint64(size), RKey: y.key.Key(), Data: []mlx5.SGE{x.sge(0, size)}}, 16)
			})
		}
	}
}

// Messages of 8 bytes, 64 under way. Place: emu.
func BenchmarkMessages(b *testing.B) {
	for _, wired := range []bool{false, true} {
		b.Run(places[wired]+"/WRITE", func(b *testing.B) {
			x, y := benchPair(b, 4096, wired)
			pump(b, x, mlx5.SendWQE{Op: mlx5.WQEWrite, RemoteAddr: y.mem.Addr(), RKey: y.key.Key(), Inline: make([]byte, 8)}, 64)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
		b.Run(places[wired]+"/READ", func(b *testing.B) {
			x, y := benchPair(b, 4096, wired)
			pump(b, x, mlx5.SendWQE{Op: mlx5.WQERead, RemoteAddr: y.mem.Addr(), RKey: y.key.Key(), Data: []mlx5.SGE{x.sge(64, 8)}}, 64)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// From the doorbell to the completion of one WRITE of 8 bytes. Place: emu.
func BenchmarkLatency(b *testing.B) {
	x, y := benchPair(b, 4096, false)
	pump(b, x, mlx5.SendWQE{Op: mlx5.WQEWrite, RemoteAddr: y.mem.Addr(), RKey: y.key.Key(), Inline: make([]byte, 8)}, 1)
}
