// SPDX-License-Identifier: BSD-2-Clause

package batch

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// The number that shut returns is that of the calls that end after it; nobody
// enters any more, and the first reason stays.
func TestGate(t *testing.T) {
	for range 500 {
		var g gate
		var during, after atomic.Int64
		var shut atomic.Bool
		var wg sync.WaitGroup
		release := make(chan struct{})
		for range 8 {
			wg.Go(func() {
				if !shut.Load() && g.enter() > 0 {
					during.Add(1)
					<-release
					g.leave()
				}
			})
		}
		for during.Load() == 0 {
			runtime.Gosched()
		}
		n := g.shut(byFailure)
		shut.Store(true)
		for range 4 {
			wg.Go(func() {
				if g.enter() > 0 {
					after.Add(1)
				}
			})
		}
		if again := g.shut(byContext); again != n {
			t.Fatalf("%d, then %d under way", n, again)
		}
		close(release)
		wg.Wait()
		if int(during.Load()) != n || after.Load() != 0 || g.why() != byFailure {
			t.Fatalf("shut returned %d; %d entered before and %d after it; reason %d", n, during.Load(), after.Load(), g.why())
		}
		if g.reset(); g.enter() != 1 || g.enter() != 2 || g.why() != 0 {
			t.Fatal("after reset")
		}
	}
}
