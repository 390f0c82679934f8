// SPDX-License-Identifier: BSD-2-Clause

package uverbs_test

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"

	"devxlab.example/emu/wire"
	"devxlab.example/internal/dma"
	"devxlab.example/mlx5"
)

// word reads a word that a device may be writing.
func word(b []byte) uint64 {
	var w [8]byte
	dma.Load(w[:], b[:8])
	return binary.LittleEndian.Uint64(w[:])
}

// Who sees what an RDMA WRITE wrote sees all that the WRITEs before it wrote, and
// who sees the last word of a message sees the whole of it, also while the wire
// loses and reorders packets: a program may poll memory.
func TestWriteOrder(t *testing.T) {
	const (
		message = 4096 // four packets
		flagAt  = message
		sources = 16
		source  = 8192 // where a message and its flag are sent from
		least   = 1000 // generations, of which the observer
		seen    = 50   // has seen so many
	)
	a := newNode(t, source+sources*source, "clock=virtual:order")
	b := newNode(t, source, "clock=virtual:order", "addr=2")
	a.d.Busy(1)
	defer a.d.Busy(-1)
	p := wire.Params{Delay: 1000, Loss: 0.01, Reorder: 0.02, ReorderDelay: 5000, Duplicate: 0.01}
	wireOf(t, a, b, p, p, 3)
	x, y := a.end(mlx5.STRC), b.end(mlx5.STRC)
	connect(x, y, link{mlx5.MTU1024, 8, 7})

	var stop atomic.Bool
	var changes atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		mem := b.mem.Bytes()
		last := uint64(0)
		check := func(from string, at int, until int) {
			g := word(mem[at:])
			for i := 0; i < until; i += 8 {
				if got := word(mem[i:]); got < g {
					t.Errorf("%s is of generation %d, the word at %d of %d", from, g, i, got)
					stop.Store(true)
					return
				}
			}
			if g != last {
				last = g
				changes.Add(1)
			}
		}
		for !stop.Load() {
			check("the flag", flagAt, message)
			check("the last word", message-8, message-8)
		}
	})
	for g := uint64(1); !stop.Load() && (g <= least || changes.Load() < seen); g++ {
		at := source + int(g%sources)*source
		for i := 0; i <= flagAt; i += 8 {
			binary.LittleEndian.PutUint64(a.at(at+i, 8), g)
		}
		x.post(
			mlx5.SendWQE{Op: mlx5.WQEWrite, RemoteAddr: b.mem.Addr(), RKey: b.key.Key(), Data: []mlx5.SGE{a.sge(at, message)}},
			mlx5.SendWQE{Op: mlx5.WQEWrite, Signaled: true, RemoteAddr: b.mem.Addr() + flagAt, RKey: b.key.Key(), Data: []mlx5.SGE{a.sge(at+flagAt, 8)}})
		if g >= sources/2 {
			x.completes(mlx5.CQERequest, 0)
		}
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("the observer saw %d changes", changes.Load())
}
