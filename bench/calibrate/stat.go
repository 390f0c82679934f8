// SPDX-License-Identifier: BSD-2-Clause

package calibrate

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"
)

func sortEvents(es []event) {
	slices.SortStableFunc(es, func(a, b event) int { return cmp.Compare(a.start, b.start) })
}

// quantile returns the quantile q of sorted samples: the least of which a share
// q is not above it.
func quantile(sorted []time.Duration, q float64) time.Duration {
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func median(xs []time.Duration) time.Duration {
	s := slices.Clone(xs)
	slices.Sort(s)
	return quantile(s, 0.5)
}

// mode returns the most frequent value, or false if it is not one in twenty.
func mode(xs []time.Duration) (time.Duration, bool) {
	times := map[time.Duration]int{}
	var best time.Duration
	for _, x := range xs {
		times[x]++
		if n := times[x]; n > times[best] || n == times[best] && x < best {
			best = x
		}
	}
	return best, times[best] > 1 && times[best]*20 >= len(xs)
}

// grid is which quantiles are written if the samples carry them.
var grid = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999}

// carried reports whether n samples carry a quantile: ten lie beyond it. P99
// needs 1,000, P99.9 needs 10,000. The median is always given, with its interval.
func carried(q float64, n int) bool {
	return q == 0.5 || min(q, 1-q)*float64(n) >= 10-1e-6 // 1-0.99 is not quite 0.01
}

// medianInterval returns the percentile bootstrap's 95 % interval of the median
// of sorted samples, as infinitely many resamples would give it: the median of
// n draws with replacement is at most the k-th sample if more than half of them
// are, which is binomial (Efron, The Jackknife, the Bootstrap and Other
// Resampling Plans, 1982, chapter 10).
func medianInterval(sorted []time.Duration) (low, high time.Duration) {
	n := len(sorted)
	upTo := func(k int) float64 { return binomialTail(n, float64(k+1)/float64(n), (n-1)/2+1) }
	at := func(share float64) time.Duration {
		k := sort.Search(n-1, func(k int) bool { return upTo(k) >= share })
		return sorted[k]
	}
	return at(0.025), at(0.975)
}

// binomialTail returns the probability of at least k successes of n.
func binomialTail(n int, p float64, k int) float64 {
	if p >= 1 {
		return 1
	}
	sum, all := 0.0, lgamma(n+1)
	for i := k; i <= n; i++ {
		sum += math.Exp(all - lgamma(i+1) - lgamma(n-i+1) + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
	}
	return sum
}

func lgamma(n int) float64 {
	v, _ := math.Lgamma(float64(n))
	return v
}

// density is what is known of how long a command takes alone.
type density struct {
	atoms  []time.Duration // values that come again and again
	mass   []float64
	rest   []time.Duration // sorted
	n      float64
	window time.Duration // half a kernel
	floor  float64       // of what was never seen, per ns
}

func newDensity(sorted []time.Duration) *density {
	d := &density{n: float64(len(sorted))}
	least := max(10, len(sorted)/20)
	for i := 0; i < len(sorted); {
		j := i
		for j < len(sorted) && sorted[j] == sorted[i] {
			j++
		}
		if j-i >= least {
			d.atoms, d.mass = append(d.atoms, sorted[i]), append(d.mass, float64(j-i)/d.n)
		} else {
			d.rest = append(d.rest, sorted[i:j]...)
		}
		i = j
	}
	// Silverman's rule, with the spread of the middle half: tails do not widen it.
	if m := len(d.rest); m > 0 {
		spread := float64(quantile(d.rest, 0.75)-quantile(d.rest, 0.25)) / 1.34
		d.window = max(time.Duration(1.6*spread*math.Pow(float64(m), -0.2)), 20)
	}
	d.floor = 1e-4 / float64(sorted[len(sorted)-1]+time.Microsecond)
	return d
}

func (d *density) at(x time.Duration) float64 {
	p := d.floor
	if i, ok := slices.BinarySearch(d.atoms, x); ok {
		p += d.mass[i]
	}
	if len(d.rest) > 0 {
		from, _ := slices.BinarySearch(d.rest, x-d.window)
		to, _ := slices.BinarySearch(d.rest, x+d.window+1)
		p += float64(to-from) / d.n / float64(2*d.window+1)
	}
	return p
}
