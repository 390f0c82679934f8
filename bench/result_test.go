// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/perf/benchfmt"
)

// No number that JSON lacks keeps a result from being written.
func TestNotFinite(t *testing.T) {
	for _, bad := range []float64{nan, inf, -inf} {
		r := Result{
			Experiment: "c6",
			Params:     Params{"x": bad, "y": 1, "z": []int{2}},
			Provenance: Provenance{Steal: Float(bad), Load: Float(bad)},
			Series: []Series{{Name: "s", Samples: Samples{1, bad, 3}, InFlight: 2, Summary: Summarize([]float64{bad})},
				{Name: "t", Samples: nil}},
			Comparisons: []Comparison{{A: "s", B: "t", Ratio: Ratio{Median: Float(bad), Low: Float(bad), High: Float(bad)}}},
			Memory:      &Memory{Heap: Float(bad), Sys: Float(bad), Resident: Float(bad)},
		}
		dir := t.TempDir()
		if err := r.WriteFiles(dir); err != nil {
			t.Fatalf("%v: %v", bad, err)
		}
		b, err := os.ReadFile(filepath.Join(dir, "c6.json"))
		if err != nil {
			t.Fatal(err)
		}
		var back Result
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatalf("%v: %v in %s", bad, err, b)
		}
		s := back.Series[0].Samples
		if len(s) != 3 || s[0] != 1 || !math.IsNaN(s[1]) || s[2] != 3 {
			t.Errorf("%v: samples %v", bad, s)
		}
		if back.Params["x"] != nil || back.Params["y"] != 1.0 || back.Provenance.Steal.finite() || back.Comparisons[0].Ratio.Median.finite() {
			t.Errorf("%v: came back as %+v", bad, back)
		}
		if err := r.WriteText(new(bytes.Buffer)); err != nil {
			t.Error(err)
		}
	}
}

// What was written comes back.
func TestJSONRoundTrip(t *testing.T) {
	for name, r := range synthetic() {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var back Result
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !back.Provenance.Steal.finite() && !r.Provenance.Steal.finite() { // NaN is not NaN
			back.Provenance.Steal, r.Provenance.Steal = 0, 0
		}
		if !reflect.DeepEqual(back.Series, r.Series) || !reflect.DeepEqual(back.Comparisons, r.Comparisons) ||
			!reflect.DeepEqual(back.BreakEven, r.BreakEven) || !reflect.DeepEqual(back.Verdicts, r.Verdicts) || back.Provenance != r.Provenance {
			t.Errorf("%s: came back as\n%s", name, b)
		}
	}
}

type line struct {
	name   string
	iters  int
	values []benchfmt.Value
	config map[string]string
}

func readBenchmarks(t *testing.T, r *Result) (lines []line, text string) {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteBenchmarks(&b); err != nil {
		t.Fatal(err)
	}
	text = b.String()
	in := benchfmt.NewReader(&b, "x")
	for in.Scan() {
		switch rec := in.Result().(type) {
		case *benchfmt.Result:
			l := line{string(rec.Name), rec.Iters, append([]benchfmt.Value(nil), rec.Values...), map[string]string{}}
			for _, c := range rec.Config {
				l.config[c.Key] = string(c.Value)
			}
			lines = append(lines, l)
		default:
			t.Fatalf("%T %v in\n%s", rec, rec, text)
		}
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	return lines, text
}

func TestBenchmarkLines(t *testing.T) {
	r := &Result{
		Experiment: "c6",
		Provenance: Provenance{Place: "emu", Device: "emu:", Profile: "zero", CPU: "AMD EPYC", Arch: "amd64", Kernel: "6.1", Commit: "abc", Go: "go1.26"},
		Series: []Series{
			{Name: "own/workers=31/how=batched", GOMAXPROCS: 33, Ops: 3072, Samples: Samples{1234.5, nan, 0.25}},
			{Name: "flight/workers=8/procs=10", GOMAXPROCS: 10, Ops: 32, Depth: 8, Void: "6.0 of 8.0 in flight", Samples: Samples{7}},
			{Name: "flight/workers=1/procs=1", GOMAXPROCS: 1, Ops: 4, Device: "emu:latency=1ms", Profile: "one", Samples: Samples{9e6}},
		},
	}
	lines, text := readBenchmarks(t, r)
	want := []struct {
		name, device, profile string
		iters                 int
		seconds               float64
	}{
		{"C6/own/workers=31/how=batched-33", "emu:", "zero", 3072, 1234.5e-9},
		{"C6/own/workers=31/how=batched-33", "emu:", "zero", 3072, 0.25e-9},
		{"C6/flight/workers=1/procs=1", "emu:latency=1ms", "one", 4, 9e-3},
	}
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), text)
	}
	for i, w := range want {
		l := lines[i]
		v := l.values[0]
		if l.name != w.name || l.iters != w.iters || l.config["device"] != w.device || l.config["profile"] != w.profile ||
			len(l.values) != 1 || v.Unit != "sec/op" || v.OrigUnit != "ns/op" || math.Abs(v.Value-w.seconds) > 1e-12*w.seconds {
			t.Errorf("line %d is %+v, want %+v", i, l, w)
		}
		for _, key := range []string{"goos", "goarch", "pkg", "cpu", "place"} {
			if l.config[key] == "" {
				t.Errorf("line %d has no %s", i, key)
			}
		}
	}
	if !strings.Contains(text, "\nBenchmarkC6/own/workers=31/how=batched-33 3072 1234.5 ns/op\n") {
		t.Errorf("no such line in\n%s", text)
	}
}

// benchstat puts runs into one table only if their configuration is the same:
// another commit or kernel must not keep them apart.
func TestRunsCompare(t *testing.T) {
	a := &Result{Experiment: "micro", Started: time.Unix(1, 0), Series: []Series{{Name: "modify", GOMAXPROCS: 2, Samples: Samples{1}}},
		Provenance: Provenance{Place: "emu", Device: "emu:", Profile: "zero", CPU: "x", Commit: "one", Kernel: "6.1", Go: "go1.26.0"}}
	b := *a
	b.Provenance.Commit, b.Provenance.Kernel, b.Provenance.Go, b.Started = "two", "6.8", "go1.27.0", time.Unix(2, 0)
	la, ta := readBenchmarks(t, a)
	lb, tb := readBenchmarks(t, &b)
	if !reflect.DeepEqual(la, lb) {
		t.Errorf("%+v and %+v are kept apart", la, lb)
	}
	if !strings.Contains(ta, "# commit one\n") || !strings.Contains(tb, "# commit two\n") {
		t.Errorf("the commit is missing:\n%s%s", ta, tb)
	}
	b.Provenance.Place = "hw"
	if lb, _ := readBenchmarks(t, &b); reflect.DeepEqual(la, lb) {
		t.Error("figures of two places are compared")
	}
}

// Whatever stands in a device's name or a model's, the lines stay lines.
func TestHostileNames(t *testing.T) {
	evil := "x\nBenchmarkEvil 1 1 ns/op\r\nUnit ns/op better=higher\tcommit: y"
	r := &Result{
		Experiment: "micro", Error: evil,
		Provenance: Provenance{Place: "emu", Device: evil, Profile: evil, CPU: evil, Commit: evil, Kernel: evil},
		Series:     []Series{{Name: "a b\tc\nBenchmarkEvil 1 1 ns/op \u00a0 ", Device: evil, Profile: evil, Samples: Samples{5}}},
	}
	lines, text := readBenchmarks(t, r)
	if len(lines) != 1 || lines[0].values[0].OrigValue != 5 && lines[0].values[0].Value != 5e-9 {
		t.Errorf("%+v from\n%s", lines, text)
	}
}
