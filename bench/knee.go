// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
)

// Knee is what a fit with and without a knee says about a sweep: whether the
// quantity takes another course from some X on.
type Knee struct {
	Found    bool   `json:"found"`
	At       Float  `json:"at"`       // the knee's X, null if none was found
	Low      Float  `json:"low"`      // the interval that covers it with 95 % confidence
	High     Float  `json:"high"`     //
	Model    string `json:"model"`    // of the best fit with a knee, in words
	Plain    string `json:"plain"`    // of the best fit without one
	Evidence Float  `json:"evidence"` // BIC of the plain fit less that of the knee: above 10 is very strong
	Rise     Float  `json:"rise"`     // the fit at the largest X against what it would be there without the knee: 1.5 is half as much again
	Why      string `json:"why"`      // in words

	// The least factor by which a full cache at 32,768 would have to slow commands
	// down to be found in such measurements; 0: not looked for.
	Least float64 `json:"least,omitempty"`
}

// What a knee must have to be found.
const (
	kneeEvidence = 10.0 // Kass and Raftery, Bayes Factors (1995): very strong
	kneeRise     = 1.05 // less is not worth a name
	kneeShare    = 0.75 // of the resampled sweeps that must have it too: their noise is greater
	kneeResample = 100
	kneeSizes    = 8 // fewer X say nothing
)

// term is a function of x that a model adds with a coefficient.
type term func(x float64) float64

func constant(float64) float64 { return 1 }
func linear(x float64) float64 { return x }

// plainModels are courses without a knee: our own code's, a cost per object, a
// tree's, both, and what bends upwards all the way.
var plainModels = []struct {
	name  string
	terms []term
}{
	{"constant", []term{constant}},
	{"linear in x", []term{constant, linear}},
	{"linear in log x", []term{constant, math.Log2}},
	{"linear in x and log x", []term{constant, math.Log2, linear}},
	{"linear in x·log x", []term{constant, func(x float64) float64 { return x * math.Log2(x) }}},
	{"quadratic", []term{constant, linear, func(x float64) float64 { return x * x }}},
}

// kneeModels are courses that change at k.
var kneeModels = []struct {
	name  string
	terms []term
	bend  func(k float64) term
}{
	{"another slope", []term{constant}, func(k float64) term { return func(x float64) float64 { return max(0, x-k) } }},
	{"another slope", []term{constant, linear}, func(k float64) term { return func(x float64) float64 { return max(0, x-k) } }},
	{"another slope in log x", []term{constant, math.Log2}, func(k float64) term { return func(x float64) float64 { return max(0, math.Log2(x/k)) } }},
	{"a cache that is full", []term{constant}, func(k float64) term { return func(x float64) float64 { return max(0, 1-k/x) } }},
	{"a step", []term{constant}, func(k float64) term {
		return func(x float64) float64 {
			if x > k {
				return 1
			}
			return 0
		}
	}},
}

// FitKnee looks for a knee in a sweep: visits[i] are independent measurements at
// xs[i], which rise. It fits courses with and without a knee to the medians,
// with relative errors, and compares the best of each by the Bayesian information
// criterion. A knee is found if the evidence is very strong, if the quantity is
// at least 5 % above what it would be without, and if three of four sweeps
// resampled from the visits show it too. seed makes it repeatable.
func FitKnee(xs []float64, visits [][]float64, seed uint64) Knee {
	nan := Float(math.NaN())
	k := Knee{At: nan, Low: nan, High: nan, Evidence: nan, Rise: nan}
	if len(xs) < kneeSizes || len(xs) != len(visits) {
		k.Why = fmt.Sprintf("%d points are too few: a knee needs %d", len(xs), kneeSizes)
		return k
	}
	ys := make([]float64, len(xs))
	for i, v := range visits {
		if ys[i] = Median(v); !(ys[i] > 0) || math.IsInf(ys[i], 0) {
			k.Why = fmt.Sprintf("nothing was measured at %g", xs[i])
			return k
		}
	}
	s := newKneeSearch(xs)
	plain, bent := s.fit(ys)
	k.Plain, k.Model = plain.name, bent.name
	k.Evidence, k.Rise = Float(plain.bic-bent.bic), Float(bent.rise)
	if why := bent.tooLittle(plain); why != "" {
		k.Why = fmt.Sprintf("no knee: %s is as good (%s)", plain.name, why)
		return k
	}
	// Does it depend on a few of the visits?
	rng := rand.New(rand.NewPCG(seed, 0x6b6e6565))
	var at []float64
	drawn, again := []float64{}, make([]float64, len(ys))
	for range kneeResample {
		for i, v := range visits {
			drawn = drawn[:0]
			for range v {
				drawn = append(drawn, v[rng.IntN(len(v))])
			}
			again[i] = Median(drawn)
		}
		if p, b := s.fit(again); b.tooLittle(p) == "" {
			at = append(at, b.at)
		}
	}
	if share := float64(len(at)) / kneeResample; share < kneeShare {
		k.Why = fmt.Sprintf("no knee that is sure: only %.0f %% of the resampled sweeps have it", 100*share)
		return k
	}
	// Between two X nobody can tell where it is.
	k.Found, k.At = true, Float(bent.at)
	low, high := quantile(at, 0.025), quantile(at, 0.975)
	i, _ := slices.BinarySearch(xs, low)
	j, _ := slices.BinarySearch(xs, high)
	if i > 0 && (i == len(xs) || xs[i] > low) {
		i--
	}
	k.Low, k.High = Float(min(low, xs[i])), Float(max(high, xs[min(j, len(xs)-1)]))
	k.Why = fmt.Sprintf("a knee at %s, between %s and %s: %s, × %.3g at the end of what it would be without", rounded(bent.at), rounded(float64(k.Low)), rounded(float64(k.High)), bent.name, bent.rise)
	return k
}

// rounded formats a number with three significant digits.
func rounded(x float64) string {
	if x < 1000 {
		return strconv.FormatFloat(x, 'g', 3, 64)
	}
	unit := math.Pow10(int(math.Log10(x)) - 2)
	return count(int(math.Round(x/unit) * unit))
}

// fitted is the best model of its kind.
type fitted struct {
	name string
	bic  float64
	at   float64
	rise float64
}

// tooLittle says why a fit with a knee is none against a plain one.
func (f fitted) tooLittle(plain fitted) string {
	switch {
	case !(plain.bic-f.bic > kneeEvidence):
		return fmt.Sprintf("evidence %.1f, not above %g", plain.bic-f.bic, kneeEvidence)
	case !(f.rise >= kneeRise):
		return fmt.Sprintf("it would be × %.3g, less than %g", f.rise, kneeRise)
	}
	return ""
}

// kneeSearch fits all models to any ordinates over the same abscissas.
type kneeSearch struct {
	xs          []float64
	plain, bent []design
}

// design is a model for these abscissas: a column for each term.
type design struct {
	name    string
	columns [][]float64
	at      float64 // the knee
}

func newKneeSearch(xs []float64) *kneeSearch {
	s := &kneeSearch{xs: xs}
	// Columns are scaled to their largest value, so that x up to a million and 1 go
	// together: coefficients are of these.
	column := func(t term) []float64 {
		c := make([]float64, len(xs))
		for i, x := range xs {
			c[i] = t(x)
		}
		if largest := math.Abs(slices.MaxFunc(c, func(a, b float64) int { return cmp.Compare(math.Abs(a), math.Abs(b)) })); largest > 0 {
			for i := range c {
				c[i] /= largest
			}
		}
		return c
	}
	columns := func(terms []term) (cs [][]float64) {
		for _, t := range terms {
			cs = append(cs, column(t))
		}
		return cs
	}
	for _, m := range plainModels {
		s.plain = append(s.plain, design{name: m.name, columns: columns(m.terms)})
	}
	const between = 4 // places from one x to the next
	for _, m := range kneeModels {
		for i := 1; i < len(xs)-2; i++ { // two points or more on either side
			for j := range between {
				k := xs[i] * math.Pow(xs[i+1]/xs[i], float64(j)/between)
				s.bent = append(s.bent, design{m.name, append(columns(m.terms), column(m.bend(k))), k})
			}
		}
	}
	return s
}

func (s *kneeSearch) fit(ys []float64) (plain, bent fitted) {
	plain, bent = fitted{bic: math.Inf(1)}, fitted{bic: math.Inf(1)}
	for i := range s.plain {
		d := &s.plain[i]
		if _, rss := s.solve(ys, d.columns); rss >= 0 {
			if b := s.bic(rss, len(d.columns)); b < plain.bic {
				plain = fitted{name: d.name, bic: b}
			}
		}
	}
	for i := range s.bent {
		d := &s.bent[i]
		c, rss := s.solve(ys, d.columns)
		if rss < 0 || c[len(d.columns)-1] <= 0 { // it must get slower
			continue
		}
		if b := s.bic(rss, len(d.columns)+1); b < bent.bic {
			bent = fitted{name: d.name, bic: b, at: d.at, rise: d.rise(c)}
		}
	}
	return plain, bent
}

// rise is the fit at the largest x against the same without the bend.
func (d *design) rise(c coefficients) float64 {
	last := len(d.columns) - 1
	end := len(d.columns[0]) - 1
	without := 0.0
	for j := range last {
		without += c[j] * d.columns[j][end]
	}
	if without <= 0 {
		return math.Inf(1)
	}
	return 1 + c[last]*d.columns[last][end]/without
}

// bic is the Bayesian information criterion of a fit with so many parameters.
// That no measurement is better than a thousandth keeps data without any noise
// from being evidence for everything.
func (s *kneeSearch) bic(rss float64, parameters int) float64 {
	n := float64(len(s.xs))
	return n*math.Log(rss/n+1e-6) + float64(parameters)*math.Log(n)
}

// most is how many terms a model has at most.
const most = 4

type coefficients [most]float64

// solve is least squares of the relative errors: sum of c·column/y against 1. rss
// is negative if the columns are not independent.
func (s *kneeSearch) solve(ys []float64, columns [][]float64) (c coefficients, rss float64) {
	p := len(columns)
	var a [most][most + 1]float64 // the normal equations
	for i, y := range ys {
		w := 1 / y
		var row coefficients
		for j := range p {
			row[j] = columns[j][i] * w
		}
		for j := range p {
			for l := j; l < p; l++ {
				a[j][l] += row[j] * row[l]
			}
			a[j][p] += row[j]
		}
	}
	largest := 0.0
	for j := range p {
		largest = max(largest, a[j][j])
	}
	for j := range p {
		for l := range p {
			if a[j][l] /= largest; l < j {
				a[j][l] = a[l][j] // scaled already
			}
		}
		a[j][p] /= largest
	}
	if !eliminate(&a, p) {
		return c, -1
	}
	for j := range p {
		c[j] = a[j][p]
	}
	for i, y := range ys {
		e := 0.0
		for j := range p {
			e += c[j] * columns[j][i]
		}
		rss += (e/y - 1) * (e/y - 1)
	}
	return c, rss
}

// eliminate solves n equations in place (Gauss and Jordan, pivots by size): the
// column behind the last is the solution.
func eliminate(a *[most][most + 1]float64, n int) bool {
	for c := range n {
		pivot := c
		for r := c + 1; r < n; r++ {
			if math.Abs(a[r][c]) > math.Abs(a[pivot][c]) {
				pivot = r
			}
		}
		if a[c], a[pivot] = a[pivot], a[c]; math.Abs(a[c][c]) < 1e-12 {
			return false
		}
		for r := range n {
			if r == c {
				continue
			}
			f := a[r][c] / a[c][c]
			for j := c; j <= n; j++ {
				a[r][j] -= f * a[c][j]
			}
		}
	}
	for c := range n {
		a[c][n] /= a[c][c]
	}
	return true
}
