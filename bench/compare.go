// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/stat/distuv"
)

// RunComparison is what two runs have in common, and in what they differ. They
// were not interleaved: whatever changed in the machine between them is in
// every ratio.
type RunComparison struct {
	Series     []SeriesComparison `json:"series"`
	OnlyA      []string           `json:"only_a"` // "c6: own/workers=1/how=serial"
	OnlyB      []string           `json:"only_b"`
	Verdicts   []VerdictChange    `json:"verdicts"`   // that differ
	Provenance []Difference       `json:"provenance"` // what differs
}

// SeriesComparison compares a series of run A with the same one of run B.
type SeriesComparison struct {
	Experiment string `json:"experiment"`
	Series     string `json:"series"`
	Device     string `json:"device"`            // of A
	Profile    string `json:"profile,omitempty"` // of A
	NA         int64  `json:"n_a"`               // samples, or operations where each was timed
	NB         int64  `json:"n_b"`
	MedianA    Float  `json:"median_a_ns"`
	MedianB    Float  `json:"median_b_ns"`
	Ratio      Float  `json:"ratio"` // of the medians, B/A
	Low        Float  `json:"low"`   // the interval that covers it with 95 % confidence
	High       Float  `json:"high"`
	Answer     Answer `json:"answer"`         // of B: better if it takes less
	Void       string `json:"void,omitempty"` // why they must not be compared: then there is no ratio
}

// VerdictChange is a verdict that is not the same in both runs.
type VerdictChange struct {
	Claim      string `json:"claim"`
	Experiment string `json:"experiment"`
	A          string `json:"a"` // "" if there is none
	B          string `json:"b"`
}

// Difference is a fact of two runs' provenance that is not the same.
type Difference struct {
	Experiment string `json:"experiment"`
	Field      string `json:"field"`
	A          string `json:"a"`
	B          string `json:"b"`
}

// CompareRuns compares the results of run b with those of run a. The ratio of
// two medians has an interval from an unpaired bootstrap, 10,000 resamples of
// each side; fewer than MinPairs samples on a side, or a histogram alone, are
// always inconclusive. Other parameters make series incomparable.
func CompareRuns(a, b []*Result) *RunComparison {
	c := &RunComparison{Series: []SeriesComparison{}, OnlyA: []string{}, OnlyB: []string{}, Verdicts: []VerdictChange{}, Provenance: []Difference{}}
	of := func(rs []*Result, experiment string) *Result {
		for _, r := range rs {
			if r.Experiment == experiment {
				return r
			}
		}
		return nil
	}
	for _, ra := range a {
		rb := of(b, ra.Experiment)
		if rb == nil {
			c.OnlyA = append(c.OnlyA, allOf(ra))
			continue
		}
		for i := range ra.Series {
			s := &ra.Series[i]
			if t := rb.SeriesOf(s.Name); t != nil {
				c.Series = append(c.Series, compareSeries(ra, rb, s, t))
			} else {
				c.OnlyA = append(c.OnlyA, ra.Experiment+": "+s.Name)
			}
		}
		c.Provenance = append(c.Provenance, differences(ra, rb)...)
	}
	for _, rb := range b {
		ra := of(a, rb.Experiment)
		if ra == nil {
			c.OnlyB = append(c.OnlyB, allOf(rb))
			continue
		}
		for _, s := range rb.Series {
			if ra.SeriesOf(s.Name) == nil {
				c.OnlyB = append(c.OnlyB, rb.Experiment+": "+s.Name)
			}
		}
	}
	c.Verdicts = append(c.Verdicts, changes(Rulings(a), Rulings(b))...)
	return c
}

func allOf(r *Result) string {
	return fmt.Sprintf("%s: all of it, %d series", r.Experiment, len(r.Series))
}

func changes(a, b []Ruling) (out []VerdictChange) {
	same := func(x Ruling) func(Ruling) bool {
		return func(y Ruling) bool { return x.Claim.ID == y.Claim.ID && x.Experiment == y.Experiment }
	}
	for _, x := range a {
		v := VerdictChange{Claim: x.Claim.ID, Experiment: x.Experiment, A: x.Answer}
		if i := slices.IndexFunc(b, same(x)); i >= 0 {
			v.B = b[i].Answer
		}
		if v.A != v.B {
			out = append(out, v)
		}
	}
	for _, y := range b {
		if !slices.ContainsFunc(a, same(y)) {
			out = append(out, VerdictChange{Claim: y.Claim.ID, Experiment: y.Experiment, B: y.Answer})
		}
	}
	slices.SortStableFunc(out, func(x, y VerdictChange) int { return compareClaims(x.Claim, y.Claim) })
	return out
}

// Facts are what must be the same in two results for their figures to be
// comparable without a word, in the order in which a report shows them.
func (p Provenance) Facts() []struct{ Field, Value string } {
	return []struct{ Field, Value string }{
		{"place", p.Place}, {"device", p.Device}, {"profile", p.Profile}, {"firmware", p.Firmware}, {"kernel", p.Kernel}, {"driver", p.Stack},
		{"CPU", p.CPU}, {"CPUs", strconv.Itoa(p.CPUs)}, {"architecture", p.Arch}, {"GOMAXPROCS", strconv.Itoa(p.GOMAXPROCS)}, {"Go", p.Go}, {"commit", p.Commit},
	}
}

func differences(a, b *Result) (out []Difference) {
	fa, fb := a.Provenance.Facts(), b.Provenance.Facts()
	for i := range fa {
		if fa[i].Value != fb[i].Value {
			out = append(out, Difference{a.Experiment, fa[i].Field, fa[i].Value, fb[i].Value})
		}
	}
	state := func(r *Result) string {
		switch {
		case r.Interrupted:
			return "interrupted"
		case r.Error != "":
			return "failed"
		}
		return "complete"
	}
	if x, y := state(a), state(b); x != y {
		out = append(out, Difference{a.Experiment, "run", x, y})
	}
	return out
}

// DeviceOf returns the device and the profile that a series was measured with.
func (r *Result) DeviceOf(s *Series) (device, profile string) {
	if s.Device != "" {
		return s.Device, s.Profile
	}
	return r.Provenance.Device, r.Provenance.Profile
}

func compareSeries(ra, rb *Result, a, b *Series) SeriesComparison {
	nan := Float(math.NaN())
	c := SeriesComparison{Experiment: ra.Experiment, Series: a.Name, MedianA: nan, MedianB: nan, Ratio: nan, Low: nan, High: nan, Answer: Inconclusive}
	c.Device, c.Profile = ra.DeviceOf(a)
	x, y := ordered(a), ordered(b)
	c.NA, c.NB = x.n, y.n
	if x.n > 0 {
		c.MedianA = Float(x.median())
	}
	if y.n > 0 {
		c.MedianB = Float(y.median())
	}
	device, profile := rb.DeviceOf(b)
	switch {
	case ra.Provenance.Place != rb.Provenance.Place:
		c.Void = fmt.Sprintf("places %s and %s", ra.Provenance.Place, rb.Provenance.Place)
	case c.Device != device:
		c.Void = fmt.Sprintf("devices %s and %s", c.Device, device)
	case c.Profile != profile:
		c.Void = fmt.Sprintf("profiles %s and %s", c.Profile, profile)
	case a.What != b.What:
		c.Void = fmt.Sprintf("not the same thing: %q and %q", a.What, b.What)
	case a.Depth != b.Depth:
		c.Void = fmt.Sprintf("depths %d and %d", a.Depth, b.Depth)
	case a.Void != "":
		c.Void = "void in A: " + a.Void
	case b.Void != "":
		c.Void = "void in B: " + b.Void
	case otherParams(ra, rb) != "":
		c.Void = "other parameters: " + otherParams(ra, rb)
	case x.n == 0 || y.n == 0:
		c.Void = "no samples"
	case !(c.MedianA > 0 && c.MedianB > 0):
		c.Void = "a median is not above zero"
	}
	if c.Void != "" {
		return c
	}
	c.Ratio = c.MedianB / c.MedianA
	low, high := bootstrapRatio(y, x, 1)
	c.Low, c.High = Float(low), Float(high)
	switch {
	case min(c.NA, c.NB) < MinPairs, len(a.Samples) == 0, len(b.Samples) == 0:
		// Operations of one run are not independent of each other: their number
		// makes no interval of what runs differ by.
	case c.High < 1:
		c.Answer = Better
	case c.Low > 1:
		c.Answer = Worse
	}
	return c
}

// otherParams names the parameters in which two runs differ.
func otherParams(a, b *Result) string {
	var names []string
	for _, k := range slices.Sorted(maps.Keys(a.Params)) {
		if fmt.Sprint(a.Params[k]) != fmt.Sprint(b.Params[k]) {
			names = append(names, k)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(b.Params)) {
		if _, both := a.Params[k]; !both {
			names = append(names, k)
		}
	}
	if x, y := a.Campaign, b.Campaign; x != nil && y != nil && x.Rate != y.Rate {
		names = append(names, "rate")
	}
	return strings.Join(names, ", ")
}

// sample values in order: at(0) is the least.
type sorted struct {
	n  int64
	at func(int64) float64
}

// ordered returns the values of a series: its samples, or if it has none, each
// operation's time as a histogram has it.
func ordered(s *Series) sorted {
	if h := s.Histogram; len(s.Samples) == 0 && h != nil && h.TotalCount() > 0 {
		var upTo []int64 // how many are in this bar and those before it
		var value []float64
		n := int64(0)
		for _, b := range h.Distribution() {
			if b.Count > 0 {
				n += b.Count
				upTo, value = append(upTo, n), append(value, float64(b.From)/2+float64(b.To)/2)
			}
		}
		return sorted{n, func(i int64) float64 {
			at, _ := slices.BinarySearch(upTo, i+1)
			return value[at]
		}}
	}
	var xs []float64
	for _, v := range s.Samples {
		if Float(v).finite() {
			xs = append(xs, v)
		}
	}
	slices.Sort(xs)
	return sorted{int64(len(xs)), func(i int64) float64 { return xs[i] }}
}

func (s sorted) median() float64 { return s.at((s.n-1)/2)/2 + s.at(s.n/2)/2 }

// resampled returns the median of n values drawn with replacement. It draws only
// the one or two in the middle: the k-th of n uniform numbers has the
// distribution Beta(k, n-k+1), and the next one is the least of the n-k that
// are above it.
func (s sorted) resampled(rng rand.Source) float64 {
	k := (s.n + 1) / 2
	beta := func(a, b int64) float64 { return distuv.Beta{Alpha: float64(a), Beta: float64(b), Src: rng}.Rand() }
	index := func(u float64) int64 { return min(int64(u*float64(s.n)), s.n-1) }
	u := beta(k, s.n-k+1)
	v := s.at(index(u))
	if s.n%2 == 1 {
		return v
	}
	return v/2 + s.at(index(u+(1-u)*beta(1, s.n-k)))/2
}

// bootstrapRatio returns the 2.5th and 97.5th percentile of the ratio of the
// medians of a and b, each resampled by itself.
func bootstrapRatio(a, b sorted, seed uint64) (low, high float64) {
	rng := rand.NewPCG(seed, 0x72756e73)
	ratios := make([]float64, 0, resamples)
	for range resamples {
		if x := a.resampled(rng) / b.resampled(rng); x > 0 && !math.IsInf(x, 0) {
			ratios = append(ratios, x)
		}
	}
	if len(ratios) == 0 {
		return math.NaN(), math.NaN()
	}
	slices.Sort(ratios)
	return quantile(ratios, 0.025), quantile(ratios, 0.975)
}

// notInterleaved is what every ratio of two runs is read with.
const notInterleaved = "Run B against run A: ratio of the medians, 95 % interval of an unpaired bootstrap. The runs were not interleaved: whatever changed in the machine between them (clocks, heat, other load) is in the ratio."

// WriteText writes the comparison for people.
func (c *RunComparison) WriteText(w io.Writer) error {
	p := new(page)
	p.para(notInterleaved, "")
	for _, series := range groups(c.Series) {
		first := series[0]
		p.section(fmt.Sprintf("%s (%s, %s)", strings.ToUpper(first.Experiment), first.Device, cmp.Or(first.Profile, "no profile")), "")
		var rows [][]string
		for _, s := range series {
			ratio, answer := Ratio{Median: s.Ratio, Low: s.Low, High: s.High}.interval(), string(s.Answer)
			if s.Void != "" {
				ratio, answer = "-", "not comparable: "+s.Void
			}
			rows = append(rows, []string{s.Series, nanos(float64(s.MedianA)), nanos(float64(s.MedianB)), ratio, fmt.Sprintf("%d, %d", s.NA, s.NB), answer})
		}
		p.table("lrrlrl", []string{"series", "A", "B", "B / A [95 %]", "n", "B is"}, rows...)
	}
	if len(c.Series) == 0 {
		p.para("no series is in both runs", "\n")
	}
	list := func(title string, rows []string) {
		if len(rows) == 0 {
			return
		}
		p.section(title, "")
		for _, row := range rows {
			p.para(row, indent)
		}
	}
	var rows []string
	for _, v := range c.Verdicts {
		rows = append(rows, fmt.Sprintf("%s (%s): %s, now %s", v.Claim, v.Experiment, cmp.Or(v.A, "none"), cmp.Or(v.B, "none")))
	}
	list("Verdicts that changed", rows)
	list("Only in A", c.OnlyA)
	list("Only in B", c.OnlyB)
	rows = nil
	for _, d := range c.Provenance {
		rows = append(rows, fmt.Sprintf("%s: %s: A %s; B %s", d.Experiment, d.Field, cmp.Or(d.A, "none"), cmp.Or(d.B, "none")))
	}
	list("What differs between the runs", rows)
	_, err := io.WriteString(w, p.b.String())
	return err
}

// groups puts series of the same experiment and device together.
func groups(all []SeriesComparison) (out [][]SeriesComparison) {
	type key struct{ experiment, device, profile string }
	at := map[key]int{}
	for _, s := range all {
		k := key{s.Experiment, s.Device, s.Profile}
		i, ok := at[k]
		if !ok {
			i = len(out)
			at[k] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], s)
	}
	return out
}
