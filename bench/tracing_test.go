// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bufio"
	"context"
	"errors"
	"strings"
	"testing"
)

// What it costs to be traced is asked of a kernel.
func TestTracingNeedsAKernel(t *testing.T) {
	if _, err := Do(context.Background(), tracing, Options{}); !errors.Is(err, ErrNoKernel) {
		t.Error(err)
	}
	if _, err := Do(context.Background(), tracing, Options{asHardware: true, KernelCost: true}); err == nil {
		t.Error("to measure what is in force")
	}
}

// Costs are differences within a round, and are compared round by round.
func TestTracingCosts(t *testing.T) {
	r := &Run{seed: 1}
	for how, more := range map[string]float64{howUntraced: 0, howHistograms: 50, howRecords: 90, howBpftrace: 100} {
		s := Series{Name: how, Ops: tracingCalls}
		for i := range MinPairs {
			s.Samples = append(s.Samples, 300*float64(i+1)+more)
		}
		r.Series = append(r.Series, s)
	}
	r.tracingCosts()
	for how, want := range map[string]Float{howHistograms: 0.5, howRecords: 0.9} {
		if x := r.ComparisonOf("cost/"+how, "cost/"+howBpftrace); x == nil || x.Ratio.Median != want || x.Ratio.Low != want || x.Ratio.High != want {
			t.Errorf("%s: %+v, want %v", how, x, want)
		}
	}
	said := strings.Join(r.Findings, "\n")
	for _, want := range []string{"bpftrace costs a command 100 ns [100 ns, 100 ns].", "histograms against bpftrace: ratio 0.500 [0.500, 0.500]; aim 0.7: met.", "records against bpftrace: ratio 0.900 [0.900, 0.900]; aim 0.7: missed."} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in\n%s", want, said)
		}
	}
	var text strings.Builder
	r.Experiment = tracing.Name
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "of bpftrace's [95 %]") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

// What bpftrace prints, and what it says of itself.
func TestBpftrace(t *testing.T) {
	out := `{"type": "printf", "data": "ready\n"}
{"type": "map", "data": {"@awake": 1050}}
{"type": "hist", "data": {"@call": [{"min": 262144, "max": 524287, "count": 17}]}}
not JSON
{"type": "map", "data": {"@stage": {"1,1294": 1050}}}
`
	if n, err := bpftraceAwake(bufio.NewScanner(strings.NewReader(out))); n != 1050 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	symbols := "ffffffffc0001000 t cmd_work_handler.cold\t[mlx5_core]\nffffffffc0002000 t cmd_work_handler\t[other]\nffffffffc0003000 t cmd_work_handler\t[mlx5_core]\n"
	if a, err := moduleSymbol(symbols, "cmd_work_handler", "mlx5_core"); a != "ffffffffc0003000" || err != nil {
		t.Errorf("%s, %v", a, err)
	}
	if _, err := moduleSymbol(symbols, "cmd_exec", "mlx5_core"); err == nil {
		t.Error("found what is not there")
	}
	if s := bpftraceScript(4711, "ffffffffc0003000"); !strings.Contains(s, "/pid == 4711/") || !strings.Contains(s, "== 0xffffffffc0003000)") || strings.ContainsAny(s, "‽") || strings.Contains(s, "WORK") || strings.Contains(s, "TS1") {
		t.Error(s)
	}
}
