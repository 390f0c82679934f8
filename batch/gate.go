// SPDX-License-Identifier: BSD-2-Clause

package batch

import "sync/atomic"

// gate counts the calls under way and, once shut, lets no more through. Count
// and lock are one word, so that the number that shut returns is exact.
type gate struct{ v atomic.Int64 }

// reason is why a gate was shut, a bit above the count.
type reason int64

const (
	byContext reason = 1 << (32 + iota)
	byFailure        // with StopOnError
	byKernel         // which sends no more
	byClose
)

const gateCount = 1<<32 - 1

func (g *gate) reset() { g.v.Store(0) }

// enter returns how many calls are under way with this one; 0 means that the
// gate is shut.
func (g *gate) enter() int {
	for {
		v := g.v.Load()
		if v > gateCount {
			return 0
		}
		if g.v.CompareAndSwap(v, v+1) {
			return int(v) + 1
		}
	}
}

func (g *gate) leave() { g.v.Add(-1) }

// shut returns how many calls are under way. The first reason stays.
func (g *gate) shut(why reason) int {
	for {
		v := g.v.Load()
		if v > gateCount || g.v.CompareAndSwap(v, v|int64(why)) {
			return int(v & gateCount)
		}
	}
}

// why returns the reason, or 0 while the gate is open.
func (g *gate) why() reason { return reason(g.v.Load() &^ gateCount) }
