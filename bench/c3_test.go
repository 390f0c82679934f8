// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"devxlab.example/cm"
	churn "devxlab.example/cm/load"
)

// setups is a result of c3 as it would refute.
func setups() *Result {
	return &Result{
		Experiment:  c3.Name,
		Comparisons: []Comparison{{A: "congested/block=p90", B: "idle/block=p90", Ratio: Ratio{Pairs: 20, Answer: Worse}}},
		Setups: &Setups{Workers: 8, Block: 500, Conditions: []SetupCondition{
			{Name: "idle", Done: 10000},
			{Name: "congested", Done: 10000, Counters: map[string]int64{"cm_tx_retries/req": 70, "cm_tx_retries/rep": 3},
				Tail: SetupTail{N: 10, Share: map[string]float64{"REQ→REP": 0.97, "else": 0.03}}},
		}},
	}
}

// Only evidence that carries it refutes the claim.
func TestC3Verdict(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(r *Result, c *SetupCondition)
		answer string
		why    string
	}{
		"no conflict":       {func(*Result, *SetupCondition) {}, Refuted, "REQ→REP makes 97 % of their time; 70 requests and 3 answers were repeated"},
		"one of many":       {func(_ *Result, c *SetupCondition) { c.Tail.Stale, c.Tail.N, c.Stale = 1, 100, 1 }, Refuted, "at most 5 %"},
		"no congested part": {func(r *Result, _ *SetupCondition) { r.Setups.Conditions = r.Setups.Conditions[:1] }, NotDecidable, "--congest"},
		"too few":           {func(_ *Result, c *SetupCondition) { c.Done = 9999 }, NotDecidable, "P99.9 needs 10,000"},
		"the wire was idle": {func(r *Result, _ *SetupCondition) { r.Comparisons[0].Ratio.Answer = Inconclusive }, NotDecidable, "not congested"},
		"was not compared":  {func(r *Result, _ *SetupCondition) { r.Comparisons = nil }, NotDecidable, "not congested"},
		"many fail":         {func(_ *Result, c *SetupCondition) { c.Failed = 11 }, NotDecidable, "11 set-ups failed"},
		"few fail":          {func(_ *Result, c *SetupCondition) { c.Failed = 10 }, Refuted, ""},
		"the kernels rejected": {func(_ *Result, c *SetupCondition) { c.Counters["cm_tx_msgs/rej"] = 1 }, NotDecidable,
			"1 REJ were sent or received, and this program has seen 0"},
		"all seen":      {func(_ *Result, c *SetupCondition) { c.Counters["cm_rx_msgs/rej"], c.Stale = 2, 2 }, Refuted, ""},
		"two of ten":    {func(_ *Result, c *SetupCondition) { c.Tail.Stale, c.Stale = 2, 2 }, NotDecidable, "at most 51 %"},
		"half of many":  {func(_ *Result, c *SetupCondition) { c.Tail.Stale, c.Tail.N, c.Stale = 50, 100, 50 }, NotDecidable, "Too many"},
		"hardly a tail": {func(_ *Result, c *SetupCondition) { c.Tail.N = 4 }, NotDecidable, "at most 53 %"},
	} {
		r := setups()
		tt.change(r, &r.Setups.Conditions[len(r.Setups.Conditions)-1])
		if v := c3Verdict(r); v.Claim != "C3" || v.Answer != tt.answer || !strings.Contains(v.Why, tt.why) {
			t.Errorf("%s: %s: %s", name, v.Answer, v.Why)
		}
	}
}

// Values of the tables of Clopper and Pearson.
func TestShare(t *testing.T) {
	for _, tt := range []struct {
		k, n      int
		low, high float64
	}{{0, 10, 0, 0.2589}, {1, 10, 0.0051, 0.3942}, {5, 10, 0.2224, 0.7776}, {10, 10, 0.7411, 1}, {0, 0, 0, 1}} {
		if low, high := share(tt.k, tt.n); math.Abs(low-tt.low) > 1e-4 || math.Abs(high-tt.high) > 1e-4 {
			t.Errorf("%d of %d: %.4f to %.4f, want %.4f to %.4f", tt.k, tt.n, low, high, tt.low, tt.high)
		}
	}
}

// The slowest of a thousand is the tail, and its time is shared out.
func TestTailOf(t *testing.T) {
	var all []churn.Sample
	for i := range 2000 {
		s := churn.Sample{Setup: time.Duration(i) * time.Millisecond}
		s.Steps[cm.StepConnect] = s.Setup / 2
		s.Steps[cm.StepRTR] = s.Setup / 4
		if i == 1999 {
			s.Stale = 2
		}
		all = append(all, s)
	}
	tail := tailOf(all)
	if tail.N != 2 || tail.From != 1998*time.Millisecond || tail.Stale != 1 || len(tail.Setups) != 2 {
		t.Errorf("%+v", tail)
	}
	for name, want := range map[string]float64{"REQ→REP": 0.5, "RTR": 0.25, "else": 0.25, "RTS": 0} {
		if got := tail.Share[name]; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s has %g, want %g", name, got, want)
		}
	}
	if none := tailOf(nil); none.N != 0 || len(none.Share) != 0 {
		t.Errorf("of nothing: %+v", none)
	}
	if one := tailOf(all[:1]); one.N != 1 {
		t.Errorf("of one: %+v", one)
	}
}

func script(t *testing.T, body string) []string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "congest")
	if err := os.WriteFile(p, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"sh", p}
}

// The program that makes the wire busy is waited for, and ended with what it started.
func TestCongest(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "ended")
	c, err := congest(t.Context(), script(t, "trap 'echo >"+mark+"; exit' TERM; sleep 600 & echo busy; wait"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Errorf("it was not told to end: %v", err)
	}
	if _, err := congest(t.Context(), []string{"/not/there"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a command that is not there: %v", err)
	}
	if _, err := congest(t.Context(), script(t, "exit 0")); err == nil || !strings.Contains(err.Error(), "ended by itself (with exit status 0)") {
		t.Errorf("one that says nothing and ends: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := congest(ctx, script(t, "sleep 600")); !errors.Is(err, context.Canceled) {
		t.Errorf("one that says nothing, interrupted: %v", err)
	}
	if c, err = congest(t.Context(), script(t, "echo busy; exit 3")); err == nil {
		<-c.ended
		err = c.stop()
	}
	if err == nil || !strings.Contains(err.Error(), "ended by itself (exit status 3)") {
		t.Errorf("one that ends at once: %v", err)
	}
}

// What there is to be seen is in the text.
func TestC3Text(t *testing.T) {
	r := setups()
	h := newHistogram()
	for i := range 1000 {
		_ = h.RecordValue(int64(1+i) * 1e6)
	}
	for _, k := range []string{"idle", "congested"} {
		name := c3Series(k, int(cm.StepConnect))
		r.Series = append(r.Series, Series{Name: name, Histogram: h, Summary: SummarizeHistogram(h)})
	}
	r.Setups.Conditions[1].Failures = map[string]int{"REQ→REP: rejected": 3}
	r.Setups.Conditions[1].Counters["cm_rx_msgs/rej"] = 3
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"REQ→REP", "500 ms [4", "failed 3: REQ→REP: rejected", "cm_rx_msgs/rej 3", "cm_tx_retries/req 70", "The slowest 10"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// It refuses before it does anything.
func TestC3Refuses(t *testing.T) {
	if _, err := Do(t.Context(), c3, Options{Peer: "192.0.2.1:7471"}); !errors.Is(err, ErrNoPeer) || !strings.Contains(err.Error(), "inside this process") {
		t.Errorf("on the emulated device: %v", err)
	}
	if _, err := Do(t.Context(), c3, Options{asHardware: true}); !errors.Is(err, ErrNoPeer) || !strings.Contains(err.Error(), "--peer") {
		t.Errorf("without a peer: %v", err)
	}
	if _, err := Do(t.Context(), c3, Options{asHardware: true, Peer: "192.0.2.1:7471", Workers: c3Most + 1}); err == nil || !strings.Contains(err.Error(), "at most 64") {
		t.Errorf("too many workers: %v", err)
	}
}
