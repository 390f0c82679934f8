// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/perf/benchfmt"
)

// Experiment answers one question.
type Experiment struct {
	Name     string // "c6"
	Question string
	run      func(ctx context.Context, r *Run) error
}

// Experiments returns all of them, in the order in which they run.
func Experiments() []Experiment { return []Experiment{micro, c6} }

// Verdict says what holds.
type Verdict struct {
	Claim  string `json:"claim"`
	Answer string `json:"answer"` // Supported, Refuted or NotDecidable
	Why    string `json:"why"`
}

// Answers of a verdict.
const (
	Supported    = "supported"
	Refuted      = "refuted"
	NotDecidable = "not decidable here"
)

// Series is what was measured of one thing.
type Series struct {
	Name     string             `json:"name"` // a Go benchmark's, without "Benchmark"
	What     string             `json:"what"` // one sample, in words
	Samples  []float64          `json:"samples_ns"`
	Summary  Summary            `json:"summary"`
	InFlight float64            `json:"in_flight,omitempty"` // mean
	Void     string             `json:"void,omitempty"`      // why it must not be used
	Extra    map[string]float64 `json:"extra,omitempty"`
}

// Comparison is a ratio of two series.
type Comparison struct {
	A     string `json:"a"`
	B     string `json:"b"`
	Ratio Ratio  `json:"ratio"`
}

// Result is everything that an experiment found.
type Result struct {
	Experiment  string         `json:"experiment"`
	Question    string         `json:"question"`
	Method      string         `json:"method"`
	Params      map[string]any `json:"params"`
	Provenance  Provenance     `json:"provenance"`
	Verdicts    []Verdict      `json:"verdicts"`
	Series      []Series       `json:"series"`
	Comparisons []Comparison   `json:"comparisons"`
	Findings    []string       `json:"findings"`
	Interrupted bool           `json:"interrupted"`
	Error       string         `json:"error,omitempty"`
	Started     time.Time      `json:"started"`
	Took        time.Duration  `json:"took_ns"`
}

// Series returns the named series, or nil.
func (r *Result) SeriesOf(name string) *Series {
	for i := range r.Series {
		if r.Series[i].Name == name {
			return &r.Series[i]
		}
	}
	return nil
}

// WriteFiles writes the result to dir: NAME.json with the raw samples, and
// NAME.txt as Go benchmark lines, which benchstat compares.
func (r *Result) WriteFiles(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	base := filepath.Join(dir, r.Experiment)
	if err := os.WriteFile(base+".json", append(b, '\n'), 0o644); err != nil {
		return err
	}
	f, err := os.Create(base + ".txt")
	if err != nil {
		return err
	}
	return errors.Join(r.WriteBenchmarks(f), f.Close())
}

// WriteBenchmarks writes one Go benchmark line a sample.
func (r *Result) WriteBenchmarks(w io.Writer) error {
	bw := benchfmt.NewWriter(w)
	config := []benchfmt.Config{
		{Key: "place", Value: []byte(r.Provenance.Place), File: true},
		{Key: "device", Value: []byte(r.Provenance.Device), File: true},
		{Key: "profile", Value: []byte(r.Provenance.Profile), File: true},
		{Key: "cpu", Value: []byte(r.Provenance.CPU), File: true},
		{Key: "kernel", Value: []byte(r.Provenance.Kernel), File: true},
		{Key: "commit", Value: []byte(r.Provenance.Commit), File: true},
	}
	for _, s := range r.Series {
		if s.Void != "" {
			continue
		}
		for _, v := range s.Samples {
			rec := &benchfmt.Result{
				Config: config,
				Name:   benchfmt.Name(title(r.Experiment) + "/" + strings.ReplaceAll(s.Name, " ", "_")),
				Iters:  1,
				Values: []benchfmt.Value{{Value: v, Unit: "ns/op"}},
			}
			if err := bw.Write(rec); err != nil {
				return err
			}
		}
	}
	return nil
}

func title(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// nanos formats nanoseconds for people.
func nanos(ns float64) string {
	switch {
	case ns < 1e3:
		return strconv.FormatFloat(ns, 'f', 0, 64) + " ns"
	case ns < 1e6:
		return fmt.Sprintf("%.2f µs", ns/1e3)
	case ns < 1e9:
		return fmt.Sprintf("%.2f ms", ns/1e6)
	}
	return fmt.Sprintf("%.2f s", ns/1e9)
}
