// SPDX-License-Identifier: BSD-2-Clause

package load_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"devxlab.example/cm/load"
)

func histogram(values ...int64) *hdrhistogram.Histogram {
	h := hdrhistogram.New(1, 1<<40, 3)
	for _, v := range values {
		_ = h.RecordValue(v)
	}
	return h
}

// Of the numbers from 1 to n, an order statistic is its own rank: those of the
// median's interval are in every table of the sign test.
func TestRanksOfTheMedian(t *testing.T) {
	for n, want := range map[int64][2]int64{20: {6, 15}, 25: {8, 18}, 50: {18, 33}, 100: {40, 61}} {
		var values []int64
		for v := range n {
			values = append(values, v+1)
		}
		q := load.Quantiles(histogram(values...))
		if len(q) == 0 || q[0].Q != 0.5 || int64(q[0].Low) != want[0] || int64(q[0].High) != want[1] || int64(q[0].Value) != (n+1)/2 {
			t.Errorf("n = %d: %+v, want %v", n, q, want)
		}
	}
}

// A quantile needs ten samples beyond it.
func TestWhichQuantiles(t *testing.T) {
	for n, want := range map[int]int{0: 0, 19: 0, 20: 1, 99: 1, 100: 2, 999: 2, 1000: 3, 9999: 3, 10000: 4} {
		if got := len(load.Quantiles(histogram(make([]int64, n)...))); got != want {
			t.Errorf("n = %d: %d quantiles, want %d", n, got, want)
		}
	}
}

// The quantiles are the samples' own, to three digits, and the intervals cover those
// of the distribution in 95 of 100 runs or more. The seed is fixed.
func TestCoverage(t *testing.T) {
	const n, runs = 1000, 200
	r := rand.New(rand.NewPCG(1, 2))
	for name, dist := range map[string]struct {
		draw func() float64
		at   func(q float64) float64
	}{
		"exponential": {r.ExpFloat64, func(q float64) float64 { return -math.Log(1 - q) }},
		"heavy tail":  {func() float64 { return math.Pow(1-r.Float64(), -1/1.5) }, func(q float64) float64 { return math.Pow(1-q, -1/1.5) }},
	} {
		covered := map[float64]int{}
		for range runs {
			values := make([]int64, n)
			for i := range values {
				values[i] = int64(dist.draw() * 1e6)
			}
			h := histogram(values...)
			slices.Sort(values)
			for _, q := range load.Quantiles(h) {
				exact := float64(values[int(math.Round(q.Q*n))-1])
				if d := float64(q.Value) - exact; d < 0 || d > exact/1000 {
					t.Fatalf("%s: P%v is %v, of the samples %v", name, 100*q.Q, q.Value, exact)
				}
				if v := dist.at(q.Q) * 1e6; float64(q.Low) <= v && v <= float64(q.High) {
					covered[q.Q]++
				}
			}
		}
		for _, q := range []float64{0.5, 0.9, 0.99} {
			// 95 % less three standard deviations of 200 runs; an interval of everything would cover all.
			if c := covered[q]; c < 181 || c == runs {
				t.Errorf("%s: P%v was covered in %d of %d runs", name, 100*q, c, runs)
			}
		}
		t.Logf("%s: %v", name, covered)
	}
}
