// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// Deferring one more and cancelling it, with so many pending. Random: due at any
// time, and another one is cancelled.
func BenchmarkDeferCancel(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		for _, random := range []bool{false, true} {
			b.Run(fmt.Sprintf("pending=%d/random=%v", n, random), func(b *testing.B) {
				r := newRig(b, 1, Options{})
				rng := rand.New(rand.NewPCG(1, 1))
				in := func(i int) time.Duration { return time.Hour + time.Duration(i) }
				if random {
					in = func(int) time.Duration { return time.Hour + time.Duration(rng.Int64N(int64(time.Hour))) }
				}
				tickets := make([]Ticket, n)
				for i := range tickets {
					tickets[i] = r.in(in(i), 0, i)
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					x := r.in(in(n+i), 0, 1)
					if random {
						at := rng.IntN(n)
						x, tickets[at] = tickets[at], x
					}
					if !r.Cancel(x) {
						b.Fatal("it was not pending")
					}
				}
			})
		}
	}
}
