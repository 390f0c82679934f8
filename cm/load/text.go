// SPDX-License-Identifier: BSD-2-Clause

package load

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"devxlab.example/cm"
)

// Quantile is one of a distribution, with the interval that covers it with at least
// 95 % confidence: order statistics, which need no shape. How many samples lie below
// a quantile is binomial; at most 2.5 % are left out on either side. That holds only
// if samples are independent of each other: set-ups that queue behind the same lock
// or worker are not, and then the interval is too short. Several runs tell. All are
// rounded to three digits.
type Quantile struct {
	Q     float64       `json:"q"`       // 0.99
	Value time.Duration `json:"ns"`      // of the samples
	Low   time.Duration `json:"low_ns"`  // the interval
	High  time.Duration `json:"high_ns"` // and its end
}

// beyond is how many samples a quantile needs on its far side: none is given that
// rests on fewer. P99.9 so needs 10,000.
const beyond = 10

// Quantiles returns the median, P90, P99 and P99.9 as far as there are samples
// enough.
func Quantiles(h *hdrhistogram.Histogram) (all []Quantile) {
	n := float64(h.TotalCount())
	for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
		if n*(1-q) < beyond*(1-1e-9) {
			break
		}
		at := func(rank float64) time.Duration { return time.Duration(h.ValueAtQuantile(100 * rank / n)) }
		low, high := ranks(n, q)
		all = append(all, Quantile{Q: q, Value: at(q * n), Low: lowest(at(low)), High: at(high)})
	}
	return all
}

// lowest is the least of the values that a histogram of three digits does not tell
// from this one, which is the greatest of them.
func lowest(v time.Duration) time.Duration {
	const exact = 11 // bits of a value that are kept: 2048 is the power of two above 2 · 10^3
	return v &^ (1<<max(bits.Len64(uint64(v))-exact, 0) - 1)
}

// ranks returns which samples of n, in their order from 1, enclose the quantile q.
func ranks(n, q float64) (low, high float64) {
	const outside = 0.025 // on either side
	factorial := func(k float64) float64 { v, _ := math.Lgamma(k + 1); return v }
	low = 1
	upTo := 0.0                                                                 // the chance that no more than k samples lie below
	for k := math.Max(0, math.Floor(n*q-12*math.Sqrt(n*q*(1-q)))); k < n; k++ { // 12 standard deviations: less than 1e-30 before
		upTo += math.Exp(factorial(n) - factorial(k) - factorial(n-k) + k*math.Log(q) + (n-k)*math.Log1p(-q))
		if upTo <= outside {
			low = k + 1
		}
		if upTo >= 1-outside {
			return low, k + 1
		}
	}
	return low, n
}

// short writes a time with three significant digits: "1.23 ms".
func short(d time.Duration) string {
	v, unit := float64(d)/1e3, "µs"
	if v >= 999.5 {
		v, unit = v/1e3, "ms"
	}
	if v >= 999.5 && unit == "ms" {
		v, unit = v/1e3, "s"
	}
	switch {
	case v >= 99.95:
		return fmt.Sprintf("%.0f %s", v, unit)
	case v >= 9.995:
		return fmt.Sprintf("%.1f %s", v, unit)
	}
	return fmt.Sprintf("%.2f %s", v, unit)
}

// WriteText writes a table of the parts, and what failed.
func (r *Result) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%d connections in %s: %.1f a second; %d failed", r.Done, short(r.Took), r.Rate(), r.Failed)
	if r.Stale > 0 {
		fmt.Fprintf(w, "; %d tries rejected as stale", r.Stale)
	}
	if r.NotBegun > 0 {
		fmt.Fprintf(w, "; %d were due and not begun: no worker was free", r.NotBegun)
	}
	if r.Stopped != "" {
		fmt.Fprintf(w, "; stopped early: %s", r.Stopped)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "step\tn\tleast\tP50\tP90\tP99\tP99.9\tgreatest")
	row := func(name string, h *hdrhistogram.Histogram) {
		if h.TotalCount() == 0 {
			return
		}
		fmt.Fprintf(t, "%s\t%d\t%s", name, h.TotalCount(), short(time.Duration(h.Min())))
		qs := Quantiles(h)
		for i := range 4 {
			if i < len(qs) {
				fmt.Fprintf(t, "\t%s [%s, %s]", short(qs[i].Value), short(qs[i].Low), short(qs[i].High))
			} else {
				fmt.Fprint(t, "\t-")
			}
		}
		fmt.Fprintf(t, "\t%s\n", short(time.Duration(h.Max())))
	}
	for _, i := range Parts() {
		row(PartName(i), r.Parts[i])
	}
	if r.Late != nil {
		row("began late", r.Late)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Done > 0 {
		fmt.Fprintln(w, "[interval that covers the quantile with 95 % confidence, if set-ups are independent of each other]; -: fewer than 10 samples beyond it")
	}
	if len(r.Phases) > 0 {
		var names []string
		for _, s := range cm.ClientSteps() {
			names = append(names, s.String())
		}
		var all []string
		for _, name := range append(names, endPhase) {
			all = append(all, name+" "+short(r.Phases[name]))
		}
		fmt.Fprintf(w, "all connections took for each step: %s\n", strings.Join(all, ", "))
	}
	for _, f := range []struct {
		what string
		why  map[string]int
	}{{"failed", r.Failures}, {"ended badly", r.Ends}} {
		for _, why := range slices.Sorted(maps.Keys(f.why)) {
			if _, err := fmt.Fprintf(w, "%s %d: %s\n", f.what, f.why[why], why); err != nil {
				return err
			}
		}
	}
	return nil
}

// MarshalJSON has the quantiles of each part and its whole histogram (HdrHistogram
// V2, base64, nanoseconds).
func (r *Result) MarshalJSON() ([]byte, error) {
	type part struct {
		Part      string        `json:"part"`
		N         int64         `json:"n"`
		Min       time.Duration `json:"min_ns"`
		Max       time.Duration `json:"max_ns"`
		Quantiles []Quantile    `json:"quantiles"`
		Histogram string        `json:"hdr_v2"`
	}
	var parts []part
	var failed error
	add := func(name string, h *hdrhistogram.Histogram) {
		text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		if failed == nil {
			failed = err
		}
		parts = append(parts, part{name, h.TotalCount(), time.Duration(h.Min()), time.Duration(h.Max()), Quantiles(h), string(text)})
	}
	for _, i := range Parts() {
		add(PartName(i), r.Parts[i])
	}
	if r.Late != nil {
		add("began late", r.Late)
	}
	if failed != nil {
		return nil, failed
	}
	return json.Marshal(struct {
		Began    time.Time                `json:"began"`
		Took     time.Duration            `json:"took_ns"`
		Done     int                      `json:"done"`
		Failed   int                      `json:"failed"`
		Stale    int                      `json:"stale"`
		NotBegun int                      `json:"not_begun"`
		Rate     float64                  `json:"rate_per_s"`
		Stopped  string                   `json:"stopped,omitempty"`
		Failures map[string]int           `json:"failures"`
		Ends     map[string]int           `json:"ended_badly"`
		Parts    []part                   `json:"parts"`
		Phases   map[string]time.Duration `json:"phases_ns,omitempty"`
	}{r.Began, r.Took, r.Done, r.Failed, r.Stale, r.NotBegun, r.Rate(), r.Stopped, r.Failures, r.Ends, parts, r.Phases})
}
