// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// around returns n samples around v, some far above.
func around(v float64, n int, seed uint64) (xs []float64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for range n {
		xs = append(xs, v*math.Exp(0.1*rng.NormFloat64()))
	}
	return xs
}

// oneSeries is a run of one experiment with one series.
func oneSeries(s Series) []*Result {
	r := build(micro, PlaceEmu)
	r.Format = Format
	r.Series = []Series{s}
	return []*Result{&r.Result}
}

func TestCompareRuns(t *testing.T) {
	of := func(v float64, n int, seed uint64) Series {
		return Series{Name: "modify", What: "a modify", Samples: around(v, n, seed)}
	}
	for _, c := range []struct {
		what   string
		a, b   Series
		answer Answer
		void   string
	}{
		{"same", of(100, 50, 1), of(100, 50, 2), Inconclusive, ""},
		{"faster", of(100, 50, 1), of(80, 50, 2), Better, ""},
		{"slower", of(100, 50, 1), of(125, 51, 2), Worse, ""},
		{"unequal numbers", of(100, 25, 1), of(80, 4000, 2), Better, ""},
		{"few", of(100, MinPairs-1, 1), of(10, 50, 2), Inconclusive, ""},
		{"not finite", Series{Name: "modify", What: "a modify", Samples: append(around(100, 30, 1), nan, inf)}, of(80, 30, 2), Better, ""},
		{"none", of(100, 0, 1), of(80, 50, 2), Inconclusive, "no samples"},
		{"zero", Series{Name: "modify", What: "a modify", Samples: repeat(0, 30)}, of(80, 50, 2), Inconclusive, "a median is not above zero"},
		{"void", Series{Name: "modify", What: "a modify", Void: "6.0 of 8.0 in flight", Samples: repeat(1, 30)}, of(80, 50, 2), Inconclusive, "void in A: 6.0 of 8.0"},
		{"device", Series{Name: "modify", What: "a modify", Device: "emu:x", Profile: "zero", Samples: repeat(1, 30)}, of(80, 50, 2), Inconclusive, "devices emu:x and emu:"},
		{"profile", Series{Name: "modify", What: "a modify", Device: "emu:", Profile: "published", Samples: repeat(1, 30)}, of(80, 50, 2), Inconclusive, "profiles published and zero"},
		{"another thing", Series{Name: "modify", What: "a query", Samples: repeat(1, 30)}, of(80, 50, 2), Inconclusive, `"a query" and "a modify"`},
		{"depth", Series{Name: "modify", What: "a modify", Depth: 8, Samples: repeat(1, 30)}, of(80, 50, 2), Inconclusive, "depths 8 and 0"},
	} {
		x := CompareRuns(oneSeries(c.a), oneSeries(c.b))
		if len(x.Series) != 1 {
			t.Fatalf("%s: %+v", c.what, x)
		}
		s := x.Series[0]
		if s.Answer != c.answer || c.void == "" != (s.Void == "") || !strings.Contains(s.Void, c.void) {
			t.Errorf("%s: %+v", c.what, s)
		}
		if c.void == "" {
			want := Float(Median(finiteOf(c.b.Samples)) / Median(finiteOf(c.a.Samples)))
			if math.Abs(float64(s.Ratio/want-1)) > 1e-12 || !(s.Low <= s.Ratio && s.Ratio <= s.High) {
				t.Errorf("%s: ratio %v [%v, %v], want %v", c.what, s.Ratio, s.Low, s.High, want)
			}
		} else if s.Ratio.finite() || s.Low.finite() {
			t.Errorf("%s: not comparable, and yet a ratio %v", c.what, s.Ratio)
		}
		if again := CompareRuns(oneSeries(c.a), oneSeries(c.b)); fmt.Sprint(again) != fmt.Sprint(x) {
			t.Errorf("%s: not the same again", c.what)
		}
	}
	hw := oneSeries(of(100, 30, 1))
	hw[0].Provenance.Place = PlaceHW
	if s := CompareRuns(hw, oneSeries(of(100, 30, 1))).Series[0]; !strings.Contains(s.Void, "places hw and emu") {
		t.Errorf("%+v", s)
	}
}

func finiteOf(xs []float64) (out []float64) {
	for _, x := range xs {
		if Float(x).finite() {
			out = append(out, x)
		}
	}
	return out
}

// Drawing only the middle of a resample has the distribution of drawing all of
// it: the quantiles of both agree.
func TestResampled(t *testing.T) {
	for _, n := range []int{1, 2, 3, 20, 21} {
		xs := around(100, n, 7)
		slices.Sort(xs)
		src := rand.NewPCG(1, 2)
		rng := rand.New(src)
		const draws = 20000
		var short, long []float64
		s := ordered(&Series{Samples: xs})
		for range draws {
			short = append(short, s.resampled(src))
			resample := make([]float64, n)
			for i := range resample {
				resample[i] = xs[rng.IntN(n)]
			}
			long = append(long, Median(resample))
		}
		for _, q := range []float64{0.05, 0.4, 0.5, 0.6, 0.95} {
			a, b := quantile(short, q), quantile(long, q)
			// One step of the order statistics at most.
			if spread := xs[n-1] - xs[0]; math.Abs(a-b) > 0.05*spread {
				t.Errorf("n = %d: quantile %v is %v, want %v", n, q, a, b)
			}
		}
	}
}

// The interval of the ratio of two medians that are the same covers 1 about as
// often as it says.
func TestCoverage(t *testing.T) {
	const runs = 300
	missed := 0
	for seed := range uint64(runs) {
		a, b := Series{Samples: around(100, 25, 2*seed+1000)}, Series{Samples: around(100, 30, 2*seed+1001)}
		if low, high := bootstrapRatio(ordered(&b), ordered(&a), seed); low > 1 || high < 1 {
			missed++
		}
	}
	if missed < runs/200 || missed > runs*10/100 { // 5 % are expected
		t.Errorf("of %d intervals %d miss", runs, missed)
	}
}

// Where only single operations were timed, their medians are shown, and no answer
// is given: those of one run are not independent.
func TestCompareDistributions(t *testing.T) {
	values := func(v float64, seed uint64) (out []int64) {
		for _, x := range around(v, 5000, seed) {
			out = append(out, int64(x))
		}
		return out
	}
	a, b := timedSeries("setup", values(1e6, 1)...), timedSeries("setup", values(0.9e6, 2)...)
	s := CompareRuns(oneSeries(a), oneSeries(b)).Series[0]
	if s.Answer != Inconclusive || s.NA != 5000 || math.Abs(float64(s.Ratio)-0.9) > 0.02 || math.Abs(float64(s.MedianA)-1e6) > 2e4 {
		t.Errorf("%+v", s)
	}
}

func TestCompareRunsDiffer(t *testing.T) {
	a := []*Result{synthetic()["micro"], synthetic()["c6"]}
	b := []*Result{synthetic()["micro"], synthetic()["scale"]}
	b[0].Provenance.Commit, b[0].Provenance.Kernel, b[0].Interrupted = "other", "6.8.0", true
	b[0].Series[0].Name = "new"
	x := CompareRuns(a, b)
	if got := fmt.Sprint(x.OnlyA); got != fmt.Sprintf("[micro: getpid c6: all of it, %d series]", len(a[1].Series)) {
		t.Error(got)
	}
	if got := fmt.Sprint(x.OnlyB); got != "[micro: new scale: all of it, 6 series]" {
		t.Error(got)
	}
	if got := fmt.Sprint(x.Provenance); got != "[{micro kernel 6.1.0-49-amd64 6.8.0} {micro commit 2d114f3 other} {micro run complete interrupted}]" {
		t.Error(got)
	}
	if got := fmt.Sprint(x.Verdicts); got != "[{C1 scale  not decidable here} {C6 c6 not decidable here }]" {
		t.Error(got)
	}
	var out bytes.Buffer
	if err := x.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"The runs were not interleaved", "MICRO (emu:, zero)", "B / A [95 %]", "C6 (c6): not decidable here, now none", "micro: run: A complete; B interrupted", "Only in A", "Only in B"} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), w) {
			t.Errorf("no %q in\n%s", w, out.String())
		}
	}
	out.Reset()
	if err := CompareRuns(nil, a).WriteText(&out); err != nil || !strings.Contains(out.String(), "no series is in both runs") {
		t.Errorf("%v, %s", err, out.String())
	}
}

// All twelve claims are there, in order, and verdicts go by it.
func TestClaims(t *testing.T) {
	for i, c := range Claims() {
		if c.ID != fmt.Sprintf("C%d", i+1) || !strings.HasSuffix(c.Claim, ".") || c.Figure == "" || ClaimOf(c.ID) != c {
			t.Errorf("%d: %+v", i, c)
		}
	}
	if len(Claims()) != 12 {
		t.Errorf("%d claims", len(Claims()))
	}
	a, b := build(micro, PlaceEmu), build(c6, PlaceHW)
	a.Verdicts = []Verdict{{Claim: "C10", Answer: Supported, Why: "x"}, {Claim: "X", Answer: Refuted, Why: "y"}, {Claim: "C2", Answer: NotDecidable, Why: "z", Where: "make bench DEV=mlx5_0"}}
	b.Verdicts = []Verdict{{Claim: "C2", Answer: Refuted, Why: "w"}}
	i := build(scale, PlaceEmu)
	i.Interrupted = true
	f := build(micro, PlaceEmu)
	f.Error = "gone"
	rs := []*Result{&a.Result, &b.Result, &i.Result, &f.Result}
	var order []string
	for _, r := range Rulings(rs) {
		order = append(order, r.Claim.ID+" "+r.Place)
	}
	if got := strings.Join(order, ", "); got != "C2 emu, C2 hw, C10 emu, X emu" {
		t.Error(got)
	}
	var out bytes.Buffer
	if err := WriteVerdicts(&out, rs); err != nil {
		t.Fatal(err)
	}
	golden(t, "verdicts.txt", out.String())
	out.Reset()
	if err := WriteVerdicts(&out, nil); err != nil || out.String() != "Verdicts: none\n" {
		t.Errorf("%v, %q", err, out.String())
	}
}
