// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"strings"
	"testing"
)

func TestTimer(t *testing.T) {
	r, text := run(t, context.Background(), timer, Options{})
	for _, name := range []string{"late/how=timerfix/p50", "late/how=timerfix/p90", "late/how=bare/p50", "late/how=bare/p90",
		"defer/pending=1000", "cancel/pending=1000", "both/pending=1000", "defer/pending=100", "cancel/pending=100", "both/pending=100"} {
		if s := r.SeriesOf(name); s == nil || len(s.Samples) != MinPairs {
			t.Errorf("%s: %+v", name, s)
		}
	}
	for _, name := range []string{"late/how=timerfix", "late/how=bare"} {
		s := r.SeriesOf(name)
		// Two shots a sample, and two in the warm-up.
		if s == nil || s.Histogram == nil || s.Histogram.TotalCount() != 2*(MinPairs+1) || s.Summary.N != 2*(MinPairs+1) || s.Histogram.Min() < 1 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if len(r.Comparisons) != 5 || len(r.Findings) != 5 || len(r.Verdicts) != 0 {
		t.Errorf("%d comparisons, findings %q", len(r.Comparisons), r.Findings)
	}
	for _, w := range []string{"\nLateness (emu;", "\nPending transitions (emu;", "aim 1.1"} {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

// What is within an aim, what misses it, and what nobody can tell.
func TestTimerFindings(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      string
	}{{1.0, 1.05, "within."}, {1.2, 1.3, "missed."}, {1.05, 1.2, "the interval does not tell whether it is within."}} {
		r := &Result{Params: Params{}, Comparisons: []Comparison{{A: "late/how=timerfix/p50", B: "late/how=bare/p50", Ratio: Ratio{Median: Float((c.low + c.high) / 2), Low: Float(c.low), High: Float(c.high)}}}}
		if got := timerFindings(r); len(got) != 1 || !strings.HasSuffix(got[0], ": "+c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
