// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"math"
	"math/rand/v2"
	"testing"

	"devxlab.example/internal/race"
)

// sizes are 2^10 to 2^20 in half octaves.
func sizes() (xs []float64) {
	for e := 10.0; e <= 20; e += 0.5 {
		xs = append(xs, math.Round(math.Exp2(e)))
	}
	return xs
}

// noisy makes visits of a course with relative noise: of each visit, and of each
// size in all its visits, which repetition does not average out.
func noisy(xs []float64, f func(x float64) float64, visits int, noise, stays float64, rng *rand.Rand) [][]float64 {
	out := make([][]float64, len(xs))
	for i, x := range xs {
		here := f(x) * math.Exp(stays*rng.NormFloat64())
		for range visits {
			out[i] = append(out[i], here*math.Exp(noise*rng.NormFloat64()))
		}
	}
	return out
}

const kneeAt = 32768

var courses = []struct {
	name string
	f    func(x float64) float64
	knee bool
}{
	{"constant", func(float64) float64 { return 300e3 }, false},
	{"linear in x", func(x float64) float64 { return 300e3 + 0.2*x }, false},
	{"linear in log x", func(x float64) float64 { return 100 + 20*math.Log2(x) }, false},
	{"square root", func(x float64) float64 { return 100 + math.Sqrt(x) }, false},
	{"a full cache", func(x float64) float64 { return 300e3 + 100e3*max(0, 1-kneeAt/x) }, true},
	{"another slope", func(x float64) float64 { return 300e3 + 5*max(0, x-kneeAt) }, true},
	{"another slope in log x", func(x float64) float64 { return 100 + 5*math.Log2(x) + 40*max(0, math.Log2(x/kneeAt)) }, true},
	{"a step", func(x float64) float64 {
		if x > kneeAt {
			return 350e3
		}
		return 300e3
	}, true},
}

// A knee that is there is found, at its place; one that is not there is not.
func TestFitKnee(t *testing.T) {
	xs := sizes()
	runs := 100
	if race.Enabled { // it has nothing to find there
		runs = 20
	}
	for _, c := range courses {
		found, right := 0, 0
		rng := rand.New(rand.NewPCG(1, 2))
		for seed := range uint64(runs) {
			k := FitKnee(xs, noisy(xs, c.f, 4, 0.03, 0.01, rng), seed)
			if k.Found {
				found++
				if float64(k.Low) <= kneeAt && kneeAt <= float64(k.High) && k.At > kneeAt/1.5 && k.At < kneeAt*1.5 {
					right++
				}
			}
		}
		t.Logf("%s: found in %d of %d, at its place in %d", c.name, found, runs, right)
		if !c.knee && found*100 > 5*runs {
			t.Errorf("%s: a knee in %d of %d", c.name, found, runs)
		}
		if c.knee && (found*100 < 95*runs || right*100 < 90*runs) {
			t.Errorf("%s: found in %d of %d, at its place in %d", c.name, found, runs, right)
		}
	}
}

// Without any noise, as on a virtual clock.
func TestFitKneeExact(t *testing.T) {
	xs := sizes()
	for _, c := range courses {
		k := FitKnee(xs, noisy(xs, c.f, 3, 0, 0, rand.New(rand.NewPCG(1, 1))), 1)
		if k.Found != c.knee {
			t.Errorf("%s: %+v", c.name, k)
		}
		if c.knee && !(k.At > kneeAt*0.8 && k.At < kneeAt*1.25) {
			t.Errorf("%s: at %v", c.name, k.At)
		}
	}
}

func TestFitKneeTooLittle(t *testing.T) {
	for _, v := range [][][]float64{
		{{1}, {2}},
		{{1}, {1}, {1}, {1}, {1}, {1}, {1}, {0}, {1}},
		{{1}, {1}, {1}, {1}, {1}, {1}, {1}, {}, {1}},
		{{1}, {1}, {1}, {1}, {1}, {1}, {1}, {math.Inf(1)}, {1}},
	} {
		xs := make([]float64, len(v))
		for i := range xs {
			xs[i] = float64(i + 1)
		}
		if k := FitKnee(xs, v, 1); k.Found || k.Why == "" {
			t.Errorf("%+v", k)
		}
	}
}
