// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"devxlab.example/internal/qpparams"
	"devxlab.example/internal/race"
)

// runC1On runs the experiment on an emulated device with a virtual clock: the
// whole way from the profile to the verdict.
func runC1On(t *testing.T, options string, most int, hardware bool) *Result {
	t.Helper()
	q := qpparams.Default()
	q.MaxQP = most
	r, err := Do(context.Background(), c1, Options{Device: "emu:clock=virtual,log_max_qp=20," + options, QP: &q, small: true, asHardware: hardware})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A knee that was put into a profile is found, one that is not there is not.
func TestC1FindsTheKneeOfAProfile(t *testing.T) {
	knee, most := c1Knee, 4*c1Knee
	if race.Enabled {
		knee, most = 4096, 4*4096
	}
	for _, x := range []struct {
		name, options string
		found         bool
	}{
		{"a cache", fmt.Sprintf("latency=200us,cache=%d,miss=50us", knee), true},
		{"none", "latency=200us", false},
		{"a cost for each", "latency=200us,per_1000_qps=1us", false},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := runC1On(t, x.options+",name=c1", most, false)
			k := r.Sweeps[0].Knee
			if k.Found != x.found {
				t.Fatalf("%+v", k)
			}
			if x.found && !(float64(k.Low) <= float64(knee)*1.01 && float64(k.High) >= float64(knee) && math.Abs(float64(k.At)/float64(knee)-1) < 0.5) {
				t.Errorf("%+v", k)
			}
			v := r.Verdicts[0]
			if v.Answer != NotDecidable || !strings.Contains(v.Why, "was told") || v.Where == "" {
				t.Errorf("%+v", v)
			}
		})
	}
}

// On hardware the same figures decide.
func TestC1Verdict(t *testing.T) {
	xs := sizes()
	flat, bent, elsewhere := make([][]float64, len(xs)), make([][]float64, len(xs)), make([][]float64, len(xs))
	for i, x := range xs {
		for j := range 4 {
			noise := 1 + 0.01*float64((i*7+j*3)%5-2)
			flat[i] = append(flat[i], 300e3*noise)
			bent[i] = append(bent[i], (300e3+100e3*max(0, 1-c1Knee/x))*noise)
			elsewhere[i] = append(elsewhere[i], (300e3+100e3*max(0, 1-4*c1Knee/x))*noise)
		}
	}
	n := 0
	for i := range xs {
		if xs[i] <= c1Knee {
			n = i + 1
		}
	}
	// Bent all the way is no knee, and a wide interval is none at 32,768.
	curve := make([][]float64, n+3)
	for i := range curve {
		for j := range 4 {
			curve[i] = append(curve[i], 5e5*(1+math.Pow(xs[i]/150000, 2))*(1+0.01*float64((i*7+j*3)%5-2)))
		}
	}
	for _, x := range []struct {
		name   string
		xs     []float64
		visits [][]float64
		want   string
	}{
		{"bent", xs, bent, Supported}, {"flat", xs, flat, Refuted}, {"elsewhere", xs, elsewhere, NotDecidable}, {"not far enough", xs[:n], flat[:n], NotDecidable}, {"a curve", xs[:n+3], curve, NotDecidable},
	} {
		r := &Run{Result: Result{Params: Params{}, Provenance: Provenance{Place: PlaceHW}}}
		k := FitKnee(x.xs, x.visits, 1)
		if !k.Found {
			k.Least = leastKnee(x.xs, x.visits, 1)
		}
		v := r.c1Verdict(x.xs, x.visits, k)
		if v.Answer != x.want || v.Claim != "C1" || (v.Where == "") != (x.want != NotDecidable) {
			t.Errorf("%s: %+v", x.name, v)
		}
	}
}

func TestC1Sizes(t *testing.T) {
	for _, x := range []struct {
		most, n, last int
	}{{1_000_000, 21, 1_000_000}, {1 << 17, 15, 1 << 17}, {44, 1, 44}, {1024, 1, 1024}} {
		s := c1Sizes(x.most)
		if len(s) != x.n || s[len(s)-1] != x.last {
			t.Errorf("%d: %v", x.most, s)
		}
	}
}
