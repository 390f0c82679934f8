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

// Ratio compares two alternatives that were measured in turn, A B A B …, within
// one run: the median of the ratios A/B pair by pair, and the interval that
// covers it with 95 % confidence.
type Ratio struct {
	Pairs  int     `json:"pairs"`
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Answer Answer  `json:"answer"` // of A: better if it takes less
}

// CompareCosts computes the ratio of two costs from pairs of them. The interval
// is a percentile bootstrap of the median, 10,000 resamples; seed makes it
// repeatable. It panics if a and b differ in length: they are not pairs.
func CompareCosts(a, b []float64, seed uint64) Ratio {
	if len(a) != len(b) {
		panic(fmt.Sprintf("bench: %d and %d samples are not pairs", len(a), len(b)))
	}
	r := Ratio{Pairs: len(a), Answer: Inconclusive}
	if len(a) == 0 {
		return r
	}
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = a[i] / b[i]
	}
	r.Median = Median(ratios)
	r.Low, r.High = bootstrapMedian(ratios, seed)
	switch {
	case r.Pairs < MinPairs || math.IsNaN(r.Median):
	case r.High < 1:
		r.Answer = Better
	case r.Low > 1:
		r.Answer = Worse
	}
	return r
}

func (r Ratio) String() string {
	return fmt.Sprintf("%.3f [%.3f, %.3f] %s (%d pairs)", r.Median, r.Low, r.High, r.Answer, r.Pairs)
}

// Median returns the middle of xs, or the mean of the two that are; NaN of
// none. It does not change xs.
func Median(xs []float64) float64 {
	if len(xs) == 0 {
		return math.NaN()
	}
	s := slices.Clone(xs)
	slices.Sort(s)
	return middle(s)
}

func middle(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

const resamples = 10000

func bootstrapMedian(xs []float64, seed uint64) (low, high float64) {
	rng := rand.New(rand.NewPCG(seed, 0x626f6f74))
	medians := make([]float64, resamples)
	draw := make([]float64, len(xs))
	for i := range medians {
		for j := range draw {
			draw[j] = xs[rng.IntN(len(xs))]
		}
		slices.Sort(draw)
		medians[i] = middle(draw)
	}
	slices.Sort(medians)
	return medians[resamples*25/1000], medians[resamples*975/1000-1]
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

// Summarize computes a summary of samples in nanoseconds through an HDR
// histogram with three significant digits.
func Summarize(samples []float64) Summary {
	const longest = 120e9 // ns; a command is given up after 65 s
	h := hdrhistogram.New(1, longest, 3)
	for _, s := range samples {
		// Within the bounds RecordValue cannot fail.
		_ = h.RecordValue(int64(min(max(s, 1), longest)))
	}
	if len(samples) == 0 {
		return Summary{}
	}
	sum := Summary{
		N: h.TotalCount(), Min: h.Min(), Max: h.Max(),
		P50: h.ValueAtQuantile(50), P90: h.ValueAtQuantile(90),
	}
	if sum.N >= 1000 {
		sum.P99 = h.ValueAtQuantile(99)
	}
	if sum.N >= 10000 {
		sum.P999 = h.ValueAtQuantile(99.9)
	}
	return sum
}
