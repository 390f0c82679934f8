// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Buckets leave no gap, do not overlap, and are at most 1/64 of their values wide.
func TestBuckets(t *testing.T) {
	next := uint64(0)
	for i := uint16(0); ; i++ {
		from, to := bucketSpan(i)
		if from != next || to < from || from > 0 && float64(to-from) > float64(from)/64 || bucketOf(from) != i || bucketOf(to) != i {
			t.Fatalf("bucket %d: %d to %d, begins at %d, of %d and %d", i, from, to, next, bucketOf(from), bucketOf(to))
		}
		if to == math.MaxUint64 {
			if i >= bucketSum {
				t.Errorf("%d buckets leave no room for the sum", i)
			}
			return
		}
		next = to + 1
	}
}

func histogramOf(values []uint64) (h Histogram) {
	for _, v := range values {
		h.add(Histogram{n: 1, sum: v, buckets: []bucket{{bucketOf(v), 1}}})
	}
	return h
}

func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Uint64Range(0, 1<<40), 1, 50).Draw(t, "values")
		h := histogramOf(values)
		sum := uint64(0)
		for _, v := range values {
			sum += v
		}
		if h.Count() != uint64(len(values)) || h.Mean() != time.Duration(sum/uint64(len(values))) {
			t.Fatalf("%d values with mean %v", h.Count(), h.Mean())
		}
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		at := float64(h.Quantile(q))
		below, up := 0, 0 // values that are certainly below, and above
		for _, v := range values {
			if float64(v) < at*(1-1./64)-1 {
				below++
			}
			if float64(v) > at*(1+1./64)+1 {
				up++
			}
		}
		if n := float64(len(values)); float64(below) > q*n+0.5 || float64(up) > (1-q)*n+0.5 {
			t.Fatalf("quantile %v is %v: %d of %d values are below, %d above", q, at, below, len(values), up)
		}
	})
	if h := (Histogram{}); h.Mean() != 0 || h.Quantile(0.5) != 0 {
		t.Errorf("nothing has mean %v and median %v", h.Mean(), h.Quantile(0.5))
	}
}
