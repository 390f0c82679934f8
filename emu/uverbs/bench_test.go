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

// place is where a benchmark's ends are: of one device, or of two with an ideal
// wire. On a virtual clock the figure is what the device costs: the program waits
// for the clock, not for the scheduler.
type place struct {
	name           string
	virtual, wired bool
}

var places = []place{{"loopback", true, false}, {"wire", true, true}, {"real/loopback", false, false}}

func (p place) pair(b *testing.B, bytes int) (x, y *end) {
	clock := "clock=real"
	if p.virtual {
		clock = "clock=virtual:" + b.Name()
	}
	n := newNode(b, bytes, clock)
	m := n
	if p.wired {
		m = newNode(b, bytes, clock, "addr=2")
		wireOf(b, n, m, wire.Params{}, wire.Params{}, 1)
	}
	n.d.Busy(1)
	b.Cleanup(func() { n.d.Busy(-1) })
	x, y = n.end(mlx5.STRC), m.end(mlx5.STRC)
	connect(x, y, link{mlx5.MTU4096, 18, 7})
	return x, y
}

// RDMA WRITEs of an RC queue pair, path MTU 4096 bytes. Place: emu.
func BenchmarkWrite(b *testing.B) {
	for _, p := range places {
		for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", p.name, size>>10), func(b *testing.B) {
				x, y := p.pair(b, 2*size)
				b.SetBytes(int64(size))
				pump(b, x, mlx5.SendWQE{Op: mlx5.WQEWrite, RemoteAddr: y.mem.Addr() + uint64(size), RKey: y.key.Key(), Data: []mlx5.SGE{x.sge(0, size)}}, 16)
			})
		}
	}
}

// Messages of 8 bytes, 64 under way. Place: emu.
func BenchmarkMessages(b *testing.B) {
	for _, p := range places {
		b.Run(p.name+"/WRITE", func(b *testing.B) {
			x, y := p.pair(b, 4096)
			pump(b, x, mlx5.SendWQE{Op: mlx5.WQEWrite, RemoteAddr: y.mem.Addr(), RKey: y.key.Key(), Inline: make([]byte, 8)}, 64)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
		b.Run(p.name+"/READ", func(b *testing.B) {
			x, y := p.pair(b, 4096)
			pump(b, x, mlx5.SendWQE{Op: mlx5.WQERead, RemoteAddr: y.mem.Addr(), RKey: y.key.Key(), Data: []mlx5.SGE{x.sge(64, 8)}}, 64)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// From the doorbell to the completion of one WRITE of 8 bytes. Place: emu.
func BenchmarkLatency(b *testing.B) {
	x, y := places[2].pair(b, 4096)
	pump(b, x, mlx5.SendWQE{Op: mlx5.WQEWrite, RemoteAddr: y.mem.Addr(), RKey: y.key.Key(), Inline: make([]byte, 8)}, 1)
}
