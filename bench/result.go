// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"encoding/json"
	"math"
	"time"
)

// Result is everything that an experiment found.
type Result struct {
	Experiment  string        `json:"experiment"`
	Question    string        `json:"question"`
	Method      string        `json:"method"`
	Params      Params        `json:"params"`
	Provenance  Provenance    `json:"provenance"`
	Verdicts    []Verdict     `json:"verdicts"`
	Series      []Series      `json:"series"`
	Comparisons []Comparison  `json:"comparisons"`
	BreakEven   []BreakEven   `json:"break_even,omitempty"`
	Memory      *Memory       `json:"memory,omitempty"`
	Findings    []string      `json:"findings"`
	Interrupted bool          `json:"interrupted"` // ended early: no verdict
	Error       string        `json:"error,omitempty"`
	Started     time.Time     `json:"started"`
	Took        time.Duration `json:"took_ns"`
}

// Series is what was measured of one thing.
type Series struct {
	Name       string  `json:"name"`              // of its own in a result; "own/workers=31/how=batched"
	What       string  `json:"what"`              // one operation, in words
	Device     string  `json:"device,omitempty"`  // where it is not the result's
	Profile    string  `json:"profile,omitempty"` // of that device
	GOMAXPROCS int     `json:"gomaxprocs"`
	Ops        int     `json:"ops"`                 // operations whose mean one sample is
	Depth      int     `json:"depth,omitempty"`     // commands that were to be in flight; 0: that is not asked
	InFlight   float64 `json:"in_flight,omitempty"` // that were: mean over a sample, median of the samples
	Possible   float64 `json:"possible,omitempty"`  // the same with never fewer than Depth of what was left in a group
	Void       string  `json:"void,omitempty"`      // why it must not be used
	Samples    Samples `json:"samples_ns"`          // nanoseconds for one operation
	Summary    Summary `json:"summary"`
}

// Comparison is a ratio of two series.
type Comparison struct {
	A     string `json:"a"`
	B     string `json:"b"`
	Ratio Ratio  `json:"ratio"`
	Void  string `json:"void,omitempty"` // why it answers nothing
}

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

// SeriesOf returns the named series, or nil.
func (r *Result) SeriesOf(name string) *Series {
	for i := range r.Series {
		if r.Series[i].Name == name {
			return &r.Series[i]
		}
	}
	return nil
}

// ComparisonOf returns the comparison of the two named series, or nil.
func (r *Result) ComparisonOf(a, b string) *Comparison {
	for i := range r.Comparisons {
		if c := &r.Comparisons[i]; c.A == a && c.B == b {
			return c
		}
	}
	return nil
}

// Float is a number that may be missing: NaN and the infinities, which JSON
// does not have, are null there.
type Float float64

func (f Float) finite() bool { return !math.IsNaN(float64(f)) && !math.IsInf(float64(f), 0) }

// MarshalJSON writes the number, or null.
func (f Float) MarshalJSON() ([]byte, error) {
	if !f.finite() {
		return []byte("null"), nil
	}
	return json.Marshal(float64(f))
}

// UnmarshalJSON reads null as NaN.
func (f *Float) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*f = Float(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(f))
}

// Samples are measured values; one that is not finite is null in JSON.
type Samples []float64

// MarshalJSON writes the samples.
func (s Samples) MarshalJSON() ([]byte, error) {
	out := make([]Float, len(s))
	for i, v := range s {
		out[i] = Float(v)
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads them.
func (s *Samples) UnmarshalJSON(b []byte) error {
	var in []Float
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*s = make(Samples, len(in))
	for i, v := range in {
		(*s)[i] = float64(v)
	}
	return nil
}

// Params are the parameters of a run.
type Params map[string]any

// MarshalJSON writes them; a number that is not finite is null.
func (p Params) MarshalJSON() ([]byte, error) {
	out := make(map[string]any, len(p))
	for k, v := range p {
		if f, ok := v.(float64); ok {
			v = Float(f)
		}
		out[k] = v
	}
	return json.Marshal(out)
}
