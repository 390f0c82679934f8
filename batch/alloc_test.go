// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/internal/race"
	"devxlab.example/internal/testdev"
	"devxlab.example/mlx5"
)

// In the steady state, Add, Run and Reset allocate nothing, whether the context
// can end or not.
func TestAllocatesNothing(t *testing.T) {
	devices := map[string]*devx.Device{"stub": openStub(t, nil), "patched": patched(t, succeed)}
	if !race.Enabled { // with it, the pool of the emulated kernel's buffers drops some at random
		devices["real"] = open(t)
	}
	rounds := 100
	if testdev.Kernel() != "" {
		rounds = 20
		startThreads(2 * 31) // the runtime allocates one for each call that blocks, once
	}
	cancellable, cancel := context.WithCancel(context.Background())
	defer cancel()
	for name, d := range devices {
		qps := make([]*devx.QP, 70)
		for i := range qps {
			qps[i] = newQP(t, d, mlx5.STUD)
			if err := devx.Modify(qps[i], toInit()); err != nil {
				t.Fatal(err)
			}
		}
		strategies := []batch.Strategy{batch.Serial(), batch.Parallel(1), batch.Parallel(31)}
		if d.HasModifyBatch() == nil {
			strategies = append(strategies, batch.Kernel())
		}
		for _, s := range strategies {
			for _, ctx := range []context.Context{context.Background(), cancellable} {
				b := newBatch(t, d, batch.Options{Strategy: s})
				round := func() {
					for i := range 100 { // in chains, and over groups
						if err := batch.Add(b, qps[i%len(qps)], mlx5.INIT2INIT{QKey: mlx5.Set(i)}, uint64(i)); err != nil {
							t.Fatal(err)
						}
					}
					if err := b.Run(ctx); err != nil {
						t.Fatal(err)
					}
					b.Reset()
				}
				for range 20 {
					round()
				}
				if n := testing.AllocsPerRun(rounds, round); n != 0 {
					t.Errorf("%s, %s, %v: %v allocations for 100 transitions", name, s.Name(), ctx, n)
				}
			}
		}
	}
}

// startThreads makes the runtime have n threads.
func startThreads(n int) {
	var all, end sync.WaitGroup
	all.Add(n)
	for range n {
		end.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait()
		})
	}
	end.Wait()
}
