// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"encoding/json"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Format is in every result file: what it is, and the version of its layout.
const Format = "devxlab-result-1"

// Result is everything that an experiment found.
type Result struct {
	Format      string        `json:"format"` // Format
	Experiment  string        `json:"experiment"`
	Question    string        `json:"question"`
	Method      string        `json:"method"`
	Params      Params        `json:"params"`
	Provenance  Provenance    `json:"provenance"`
	Command     string        `json:"command"` // that runs the experiment again
	Verdicts    []Verdict     `json:"verdicts"`
	Series      []Series      `json:"series"`
	Comparisons []Comparison  `json:"comparisons"`
	Sweeps      []Sweep       `json:"sweeps,omitempty"`
	BreakEven   []BreakEven   `json:"break_even,omitempty"`
	Campaign    *Campaign     `json:"campaign,omitempty"`
	Memory      *Memory       `json:"memory,omitempty"`
	Setups      *Setups       `json:"setups,omitempty"`
	KernelCost  *KernelCost   `json:"kernel_cost,omitempty"`
	PatchedBoot *PatchedBoot  `json:"patched_boot,omitempty"`
	Patches     *PatchRounds  `json:"patches,omitempty"`
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

	// Where every operation was timed by itself: their distribution, of which
	// Summary is then made. It is kept as an HDR log in NAME.hlog, under the tag
	// Log, and not in the JSON.
	Log       string                  `json:"log,omitempty"`
	Histogram *hdrhistogram.Histogram `json:"-"` // in nanoseconds
}

// Sweep is a quantity against a parameter.
type Sweep struct {
	Name   string  `json:"name"`
	What   string  `json:"what"`           // the quantity, in words; it is in nanoseconds
	X      string  `json:"x"`              // the parameter, in words
	Log    bool    `json:"log"`            // it rises by factors
	Device string  `json:"device"`         // where it was taken
	Points []Point `json:"points"`         // by rising X
	Knee   *Knee   `json:"knee,omitempty"` // nil: nobody looked for one
	Void   string  `json:"void,omitempty"` // why it must not be used
}

// Point is a point of a sweep: the median of the samples there, and the
// interval that covers it with 95 % confidence.
type Point struct {
	X      float64 `json:"x"`
	N      int     `json:"n"`
	Median Float   `json:"median_ns"`
	Low    Float   `json:"low_ns"`
	High   Float   `json:"high_ns"`
	Void   string  `json:"void,omitempty"` // why it must not be used
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
	Answer string `json:"answer"` // Supported, Refuted, OnlyBreakEven or NotDecidable
	Why    string `json:"why"`
	Where  string `json:"where,omitempty"` // what can decide it: a command
}

// Answers of a verdict.
const (
	Supported     = "supported"
	Refuted       = "refuted"
	OnlyBreakEven = "break-even" // not decidable here, but what it depends on is: Why says from where on it holds
	NotDecidable  = "not decidable here"
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
