// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// MinPairs is how many interleaved pairs a comparison needs.
const MinPairs = 20

// Answer is what a comparison says.
type Answer string

// Answers.
const (
	Better       Answer = "better"
	Worse        Answer = "worse"
	Inconclusive Answer = "inconclusive"
)

// Ratio compares two alternatives that were measured in turn, within one run:
// the median of the ratios A/B pair by pair, and the interval that covers it
// with 95 % confidence. All three are NaN, in JSON null, if there are no pairs.
type Ratio struct {
	Pairs  int    `json:"pairs"`
	Median Float  `json:"median"`
	Low    Float  `json:"low"`
	High   Float  `json:"high"`
	Answer Answer `json:"answer"` // of A: better if it takes less
}

// CompareCosts computes the ratio of two costs from pairs of them. The interval
// is that of MedianInterval; seed makes it repeatable. Fewer than MinPairs pairs are always inconclusive. A pair counts
// only if both costs are above zero and finite: a clock too coarse to see one
// of them says nothing. It panics if a and b differ in length: they are not
// pairs.
func CompareCosts(a, b []float64, seed uint64) Ratio {
	if len(a) != len(b) {
		panic(fmt.Sprintf("bench: %d and %d samples are not pairs", len(a), len(b)))
	}
	nan := Float(math.NaN())
	r := Ratio{Median: nan, Low: nan, High: nan, Answer: Inconclusive}
	var ratios []float64
	for i := range a {
		if x := a[i] / b[i]; a[i] > 0 && b[i] > 0 && x > 0 && !math.IsInf(x, 0) {
			ratios = append(ratios, x)
		}
	}
	r.Pairs = len(ratios)
	if r.Pairs == 0 {
		return r
	}
	r.Median = Float(Median(ratios))
	low, high := MedianInterval(ratios, seed)
	r.Low, r.High = Float(low), Float(high)
	switch {
	case r.Pairs < MinPairs:
	case r.High < 1:
		r.Answer = Better
	case r.Low > 1:
		r.Answer = Worse
	}
	return r
}

func (r Ratio) String() string {
	return fmt.Sprintf("%s, %s (%d pairs)", r.interval(), r.Answer, r.Pairs)
}

// Median returns the middle of xs, or the mean of the two that are; NaN of
// none. It does not change xs.
func Median(xs []float64) float64 { return quantile(xs, 0.5) }

// quantile returns the quantile q of xs, 0 to 1, interpolated between the two
// next to it; NaN of none.
func quantile(xs []float64, q float64) float64 {
	if len(xs) == 0 {
		return math.NaN()
	}
	s := slices.Clone(xs)
	slices.Sort(s)
	at := q * float64(len(s)-1)
	i := min(int(at), len(s)-1)
	j := min(i+1, len(s)-1)
	if s[i] == s[j] {
		return s[i]
	}
	f := at - float64(i)
	return s[i]*(1-f) + s[j]*f
}

const resamples = 10000

// MedianInterval returns the interval that covers the median of what xs are
// drawn from with 95 % confidence: a percentile bootstrap, 10,000 resamples,
// widened to the order statistics that cover it for any distribution where those
// are wider. By itself the bootstrap of the median of 20 covers it in 93 of 100
// runs only. NaN of none.
func MedianInterval(xs []float64, seed uint64) (low, high float64) {
	if len(xs) == 0 {
		return math.NaN(), math.NaN()
	}
	low, high = bootstrapMedian(xs, seed)
	sorted := slices.Clone(xs)
	slices.Sort(sorted)
	k := medianRank(len(xs))
	return min(low, sorted[k]), max(high, sorted[len(xs)-1-k])
}

// medianRank returns the largest k for which the median is below the k-th of n
// sorted values, counted from 0, in at most 2.5 of 100 cases: the number of values
// below the median is binomial. It is 0 if there is none.
func medianRank(n int) int {
	k, tail := 0, 0.0
	for ; k < n/2; k++ {
		if tail += binomial(n, k); tail > 0.025 {
			break
		}
	}
	return max(k-1, 0)
}

// binomial is the chance of k heads in n tosses.
func binomial(n, k int) float64 {
	lg := func(x int) float64 { v, _ := math.Lgamma(float64(x + 1)); return v }
	return math.Exp(lg(n) - lg(k) - lg(n-k) - float64(n)*math.Ln2)
}

// bootstrapMedian returns the 2.5th and 97.5th percentile of the medians of
// samples drawn from xs with replacement.
func bootstrapMedian(xs []float64, seed uint64) (low, high float64) {
	rng := rand.New(rand.NewPCG(seed, 0x626f6f74))
	n := len(xs)
	sorted := slices.Clone(xs)
	slices.Sort(sorted)
	drawn := make([]int, n) // how often each
	medians := make([]float64, resamples)
	for i := range medians {
		clear(drawn)
		for range n {
			drawn[rng.IntN(n)]++
		}
		medians[i] = middleOf(sorted, drawn)
	}
	slices.Sort(medians)
	return medians[resamples*25/1000], medians[resamples*975/1000-1]
}

// middleOf returns the median of sorted values, each taken so many times, as
// many as there are values.
func middleOf(sorted []float64, times []int) float64 {
	n, seen := len(sorted), 0
	lower := -1
	for i, t := range times {
		seen += t
		if lower < 0 && seen > (n-1)/2 {
			lower = i
		}
		if seen > n/2 {
			if sorted[lower] == sorted[i] {
				return sorted[i]
			}
			return sorted[lower]/2 + sorted[i]/2
		}
	}
	return sorted[n-1]
}

// Summary is a distribution in nanoseconds. A percentile for which there are
// too few samples is 0: P99 needs 1,000, P99.9 needs 10,000.
type Summary struct {
	N    int64 `json:"n"`
	Min  int64 `json:"min_ns"`
	P50  int64 `json:"p50_ns"`
	P90  int64 `json:"p90_ns"`
	P99  int64 `json:"p99_ns,omitempty"`
	P999 int64 `json:"p999_ns,omitempty"`
	Max  int64 `json:"max_ns"`
}

// Samples that a percentile needs.
const (
	minForP99  = 1000
	minForP999 = 10000
)

// Summarize computes a summary of samples in nanoseconds: the percentiles
// through an HDR histogram with three significant digits, least and greatest as
// they are. A sample that is not finite does not count.
func Summarize(samples []float64) Summary {
	h := newHistogram()
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range samples {
		if !Float(s).finite() {
			continue
		}
		low, high = min(low, s), max(high, s)
		// Within the bounds RecordValue cannot fail.
		_ = h.RecordValue(int64(math.Round(min(max(s, 1), longest))))
	}
	sum := SummarizeHistogram(h)
	if sum.N == 0 {
		return sum
	}
	whole := func(v float64) int64 { return int64(math.Round(min(max(v, -longest), longest))) }
	sum.Min, sum.Max = whole(low), whole(high)
	return sum
}

// longest is what a histogram holds, in nanoseconds: a command is given up after
// 65 s.
const longest = 120e9

// newHistogram has three significant digits.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, longest, 3) }

// SummarizeHistogram computes a summary of a histogram in nanoseconds.
func SummarizeHistogram(h *hdrhistogram.Histogram) Summary {
	sum := Summary{N: h.TotalCount()}
	if sum.N == 0 {
		return sum
	}
	sum.Min, sum.Max = h.Min(), h.Max()
	sum.P50, sum.P90 = h.ValueAtQuantile(50), h.ValueAtQuantile(90)
	if sum.N >= minForP99 {
		sum.P99 = h.ValueAtQuantile(99)
	}
	if sum.N >= minForP999 {
		sum.P999 = h.ValueAtQuantile(99.9)
	}
	return sum
}
