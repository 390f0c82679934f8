// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

var inf, nan = math.Inf(1), math.NaN()

func TestCompareCosts(t *testing.T) {
	// Twenty ratios around 1: ten below, ten above.
	var mixed []float64
	for i := range 10 {
		mixed = append(mixed, 0.9-float64(i)/100, 1.1+float64(i)/100)
	}
	for _, c := range []struct {
		name   string
		a, b   []float64
		pairs  int
		median float64
		answer Answer
	}{
		{"half", repeat(50, 20), repeat(100, 20), 20, 0.5, Better},
		{"twice", repeat(200, 20), repeat(100, 20), 20, 2, Worse},
		{"the same", repeat(100, 20), repeat(100, 20), 20, 1, Inconclusive},
		{"both sides of 1", mixed, repeat(1, 20), 20, 1, Inconclusive},
		{"19 pairs, however clear", repeat(1, 19), repeat(100, 19), 19, 0.01, Inconclusive},
		{"one pair", repeat(3, 1), repeat(2, 1), 1, 1.5, Inconclusive},
		{"none", nil, nil, 0, nan, Inconclusive},
		{"a clock that saw nothing", repeat(0, 30), repeat(0, 30), 0, nan, Inconclusive},
		{"20 of 22 usable", append(repeat(50, 20), nan, 0), append(repeat(100, 20), 100, 100), 20, 0.5, Better},
		{"19 of 20 usable", append(repeat(50, 19), inf), append(repeat(100, 19), 100), 19, 0.5, Inconclusive},
		{"divided by zero", append(repeat(50, 20), 50), append(repeat(100, 20), 0), 20, 0.5, Better},
		{"a negative one", append(repeat(50, 20), -1), append(repeat(100, 20), -1), 20, 0.5, Better},
	} {
		r := CompareCosts(c.a, c.b, 1)
		same := float64(r.Median) == c.median || math.IsNaN(float64(r.Median)) && math.IsNaN(c.median)
		if again := CompareCosts(c.a, c.b, 1); fmt.Sprint(again) != fmt.Sprint(r) {
			t.Errorf("%s: %v, and with the same seed again %v", c.name, r, again)
		}
		if r.Pairs != c.pairs || !same || r.Answer != c.answer {
			t.Errorf("%s: %d pairs, median %v, %s; want %d, %v, %s", c.name, r.Pairs, r.Median, r.Answer, c.pairs, c.median, c.answer)
		}
	}
	if a, b := CompareCosts(mixed, repeat(1, 20), 1), CompareCosts(mixed, repeat(1, 20), 2); a.Median != b.Median {
		t.Errorf("the median depends on the seed: %v and %v", a, b)
	}
	defer func() {
		if recover() == nil {
			t.Error("samples that are no pairs are compared")
		}
	}()
	CompareCosts([]float64{1}, nil, 1)
}

func TestIntervalProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 25).Draw(t, "pairs")
		cost := rapid.Float64Range(1e-3, 1e12)
		a, b := rapid.SliceOfN(cost, n, n).Draw(t, "a"), rapid.SliceOfN(cost, n, n).Draw(t, "b")
		seed := rapid.Uint64().Draw(t, "seed")
		before := slices.Clone(a)
		r := CompareCosts(a, b, seed)
		if !(r.Low <= r.Median && r.Median <= r.High) {
			t.Fatalf("the interval %v to %v does not contain the median %v", r.Low, r.High, r.Median)
		}
		if !slices.Equal(a, before) {
			t.Fatal("the samples were changed")
		}
		ratios := make([]float64, n)
		for i := range a {
			ratios[i] = a[i] / b[i]
		}
		if low, high := slices.Min(ratios), slices.Max(ratios); float64(r.Low) < low*(1-1e-12) || float64(r.High) > high*(1+1e-12) {
			t.Fatalf("the interval %v to %v leaves the ratios %v to %v", r.Low, r.High, low, high)
		}
		if m := Median(ratios); math.Abs(m-float64(r.Median)) > 1e-12*m {
			t.Fatalf("median %v, want %v", r.Median, m)
		}
	})
}

// arms are pairs of costs with so much noise, the first of them slower by a
// factor.
func arms(pairs int, factor, noise float64, seed uint64) (a, b []float64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for range pairs {
		a = append(a, factor*math.Exp(noise*rng.NormFloat64()))
		b = append(b, math.Exp(noise*rng.NormFloat64()))
	}
	return a, b
}

// Two identical arms are inconclusive in at least 95 of 100 runs, also with the
// fewest pairs; and not in all, since an interval that never misses is too wide.
func TestIdenticalArms(t *testing.T) {
	const runs = 300
	for _, pairs := range []int{MinPairs, 30, 40} {
		inconclusive := 0
		for seed := range uint64(runs) {
			a, b := arms(pairs, 1, 0.05, seed)
			if CompareCosts(a, b, seed).Answer == Inconclusive {
				inconclusive++
			}
		}
		t.Logf("%d pairs: %d of %d", pairs, inconclusive, runs)
		if inconclusive < runs*95/100 || inconclusive == runs {
			t.Errorf("%d pairs: %d of %d are inconclusive", pairs, inconclusive, runs)
		}
	}
}

// A difference of 5 % is found with the pairs that docs/statistics.md names, in
// at least 95 of 100 runs; and with too few for such noise it is not.
func TestFivePercent(t *testing.T) {
	const runs = 100
	for _, c := range []struct {
		noise       float64
		pairs       int
		least, most int // found
	}{{0.02, MinPairs, 95, 100}, {0.05, 60, 95, 100}, {0.08, 160, 95, 100}, {0.08, MinPairs, 0, 50}} {
		found, wrong := 0, 0
		for seed := range uint64(runs) {
			a, b := arms(c.pairs, 1.05, c.noise, seed)
			switch CompareCosts(a, b, seed).Answer {
			case Worse:
				found++
			case Better:
				wrong++
			}
		}
		t.Logf("noise %g, %d pairs: %d of %d", c.noise, c.pairs, found, runs)
		if found < c.least || found > c.most || wrong > 0 {
			t.Errorf("noise %g, %d pairs: found in %d of %d, the wrong way round in %d", c.noise, c.pairs, found, runs, wrong)
		}
	}
}

func TestMedianRank(t *testing.T) {
	// Tables of the sign test.
	for n, want := range map[int]int{1: 0, 5: 0, 6: 0, 9: 1, 20: 5, 30: 9, 40: 13, 100: 39} {
		if got := medianRank(n); got != want {
			t.Errorf("%d: %d, not %d", n, got, want)
		}
	}
}

// The resampled median, counted, is that of the sample drawn.
func TestMiddleOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "n")
		sorted := rapid.SliceOfN(rapid.Float64Range(1, 100), n, n).Draw(t, "values")
		slices.Sort(sorted)
		times, draw := make([]int, n), []float64{}
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, n-1), n, n).Draw(t, "drawn") {
			times[i]++
			draw = append(draw, sorted[i])
		}
		if got, want := middleOf(sorted, times), Median(draw); math.Abs(got-want) > 1e-12*want {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		xs      []float64
		q, want float64
	}{
		{nil, 0.5, nan},
		{[]float64{7}, 0.9, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 2, 3}, 0.5, 2.5},
		{[]float64{0, 10}, 0.1, 1},
		{[]float64{5, 1}, 0, 1},
		{[]float64{5, 1}, 1, 5},
	} {
		if got := quantile(c.xs, c.q); got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("quantile %v of %v is %v, want %v", c.q, c.xs, got, c.want)
		}
	}
}

// P99 needs 1,000 samples and P99.9 10,000.
func TestSummarizeMinima(t *testing.T) {
	for _, c := range []struct {
		n         int
		p99, p999 bool
	}{{0, false, false}, {1, false, false}, {999, false, false}, {1000, true, false}, {9999, true, false}, {10000, true, true}} {
		s := Summarize(repeat(500, c.n))
		if s.N != int64(c.n) || (s.P99 != 0) != c.p99 || (s.P999 != 0) != c.p999 {
			t.Errorf("%d samples: %+v", c.n, s)
		}
	}
	if s := Summarize(append(repeat(500, 999), nan, inf, -inf)); s.N != 999 || s.P99 != 0 || s.Max != 500 {
		t.Errorf("samples that are no numbers count: %+v", s)
	}
	if s := Summarize([]float64{nan}); s != (Summary{}) {
		t.Errorf("no sample: %+v", s)
	}
}

// The percentiles are those of the sorted samples, to three digits.
func TestSummarize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(rapid.Float64Range(1, 60e9), 1, 300).Draw(t, "samples")
		s := Summarize(xs)
		sorted := slices.Clone(xs)
		slices.Sort(sorted)
		n := len(xs)
		below := func(q float64) float64 { return sorted[max(int(q*float64(n)), 1)-1] }
		above := func(q float64) float64 { return sorted[int(math.Ceil(q*float64(n)))-1] }
		for _, c := range []struct {
			name      string
			got       int64
			low, high float64
		}{{"min", s.Min, sorted[0], sorted[0]}, {"max", s.Max, sorted[n-1], sorted[n-1]}, {"P50", s.P50, below(0.5), above(0.5)}, {"P90", s.P90, below(0.9), above(0.9)}} {
			if got := float64(c.got); got < c.low-max(1, c.low/1000) || got > c.high+max(1, c.high/1000) {
				t.Fatalf("%s is %d, want %v to %v", c.name, c.got, c.low, c.high)
			}
		}
	})
}
