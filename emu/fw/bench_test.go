// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"testing"

	"devxlab.example/mlx5"
)

// populate makes n queue pairs, whose numbers follow each other, and brings
// them to RTS.
func (r *rig) populate(n int) (first uint32) {
	r.t.Helper()
	out := make([]byte, mlx5.CmdOutSize)
	create := r.qp(mlx5.STRC)
	way := []mlx5.RST2INITQPIn{r.modify(mlx5.OpRST2INIT, 0), r.modify(mlx5.OpINIT2RTR, 0), r.modify(mlx5.OpRTR2RTS, 0)}
	for i := range n {
		r.h.Exec(create, out)
		qpn := mlx5.CreateQPOut(out).QPN()
		for _, in := range way {
			in.SetQPN(qpn)
			r.h.Exec(in, out)
			if status, syndrome := mlx5.StatusOf(out); status != mlx5.StatusOK {
				r.t.Fatalf("QP %d: %v: %v, %s", i, mlx5.OpOf(in), status, reason(syndrome))
			}
		}
		if i == 0 {
			first = qpn
		}
	}
	return first
}

func logOf(n int) int { return max(bits.Len(uint(n-1)), 1) }

// bytesPerQP returns what a live queue pair takes of the heap.
func bytesPerQP(t testing.TB, n int) float64 {
	r := newRig(t, Config{LogMaxQP: logOf(n)})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r.populate(n)
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(r)
	return float64(after.HeapAlloc-before.HeapAlloc) / float64(n)
}

func TestMemoryPerQP(t *testing.T) {
	if got := bytesPerQP(t, 100_000); got > 512 {
		t.Errorf("a live QP takes %.0f bytes, more than 512", got)
	}
}

func BenchmarkMemoryPerQP(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(bytesPerQP(b, 1_000_000), "B/QP")
	}
}

// No modification allocates, accepted or refused, nor does a query.
func TestModifyAllocatesNothing(t *testing.T) {
	r := newRig(t, Config{})
	qpn := r.inState(mlx5.STRC, mlx5.StateRTS)
	set := r.made(build(mlx5.OpAllocQCounter, r.uid))
	rts2rts := r.modify(mlx5.OpRTS2RTS, qpn)
	rts2rts.SetOptParamMask(uint32(mlx5.OptParCounterSetID | mlx5.OptParRWE | mlx5.OptParRRE))
	rts2rts.QPC().SetCounterSetID(uint8(set))
	cycle := [][]byte{rts2rts, about(mlx5.Op2ERR, r.uid, qpn), about(mlx5.Op2RST, r.uid, qpn), r.modify(mlx5.OpRST2INIT, qpn),
		r.modify(mlx5.OpINIT2INIT, qpn), r.modify(mlx5.OpINIT2RTR, qpn), r.modify(mlx5.OpRTR2RTS, qpn), about(mlx5.OpQueryQP, r.uid, qpn)}
	out := make([]byte, mlx5.QueryQPOutSize)
	if n := testing.AllocsPerRun(100, func() {
		for _, in := range cycle {
			r.h.Exec(in, out)
			if status, syndrome := mlx5.StatusOf(out); status != mlx5.StatusOK {
				t.Fatalf("%v: %v, %s", mlx5.OpOf(in), status, reason(syndrome))
			}
		}
	}); n != 0 {
		t.Errorf("%d commands allocate %v times", len(cycle), n)
	}
	refused := r.modify(mlx5.OpINIT2RTR, qpn)
	if n := testing.AllocsPerRun(100, func() { r.h.Exec(refused, out) }); n != 0 || out[0] != byte(mlx5.StatusBadQPState) {
		t.Errorf("a refused command allocates %v times; status %#x", n, out[0])
	}
}

// BenchmarkModify is one RTS2RTS on a device with few and with many live queue
// pairs: any of them in random order, or a thousand that were drawn once. More
// live ones cost the machine's caches and address translation more; how much,
// the same accesses without a command show (mem). What is left is the algorithm.
func BenchmarkModify(b *testing.B) {
	for _, live := range []int{1000, 1_000_000} {
		r := newRig(b, Config{LogMaxQP: logOf(live)})
		first := r.populate(live)
		rng := rand.New(rand.NewPCG(1, 2))
		for _, set := range []int{live, 1000} {
			qpns := make([]uint32, 1<<20) // in the order of the run
			drawn := rng.Perm(live)[:set]
			for i := range qpns {
				qpns[i] = first + uint32(drawn[rng.IntN(set)])
			}
			in := r.modify(mlx5.OpRTS2RTS, 0)
			in.SetOptParamMask(uint32(mlx5.OptParRWE | mlx5.OptParRNRTimeout))
			out := make([]byte, mlx5.CmdOutSize)
			b.Run(fmt.Sprintf("live=%d/touched=%d/mem", live, set), func(b *testing.B) {
				i := 0
				for b.Loop() {
					q := r.h.qps.get(qpns[i&(1<<20-1)])
					q.mu.Lock()
					mlx5.QPC(q.qpc[:]).SetMinRNRNak(0)
					i += 1 + int(mlx5.QPC(q.qpc[:]).MinRNRNak()) // so that the next access waits for this one
					q.mu.Unlock()
				}
			})
			b.Run(fmt.Sprintf("live=%d/touched=%d/exec", live, set), func(b *testing.B) {
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					binary.BigEndian.PutUint32(in[8:], qpns[i&(1<<20-1)])
					r.h.Exec(in, out)
					i++
				}
				if out[0] != 0 {
					b.Fatalf("status %#x", out[0])
				}
			})
			if set == 1000 {
				break
			}
		}
	}
}

// BenchmarkModifyParallel is the same from several goroutines, each with a
// queue pair of its own.
func BenchmarkModifyParallel(b *testing.B) {
	r := newRig(b, Config{})
	first := r.populate(64)
	next := make(chan uint32, 64)
	for i := range uint32(64) {
		next <- first + i
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		in, out := r.modify(mlx5.OpRTS2RTS, <-next), make([]byte, mlx5.CmdOutSize)
		for pb.Next() {
			r.h.Exec(in, out)
		}
	})
}
