// SPDX-License-Identifier: BSD-2-Clause

// Package report makes one HTML file of the results of a run: the verdicts
// first, then where the figures come from, then each experiment with its
// figures, tables and the command that repeats it.
//
// The file stands alone. It has no script, asks for nothing from anywhere, and
// a content security policy says so to the browser. The same results make the
// same bytes.
//
// It measures and judges nothing: what it shows is in the results, see package
// bench.
package report

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"devxlab.example/bench"
)

//go:embed report.html.tmpl
var page string

//go:embed style.css
var css string

var tmpl = template.Must(template.New("report").Funcs(template.FuncMap{
	"nanos":  bench.Nanos,
	"float":  func(f bench.Float) float64 { return float64(f) },
	"ns":     func(n int64) string { return zeroIsNone(float64(n)) },
	"count":  count,
	"upper":  strings.ToUpper,
	"symbol": symbol,
	"class":  func(answer string) string { return strings.ReplaceAll(answer, " ", "-") },
	"p":      star,
	"pair":   pair,
	"bytes":  func(f bench.Float) string { return bytesOf(float64(f)) },
	"whole":  whole,
}).Parse(page))

// Write writes the report. broken is what could not be read of the run
// (bench.LoadDir): it is in the report, so that nobody takes the rest for all.
func Write(w io.Writer, results []*bench.Result, broken []error) error {
	v := view{CSS: template.CSS(css), Undecided: bench.Undecided(results)}
	for _, err := range broken {
		v.Broken = append(v.Broken, err.Error())
	}
	for _, r := range results {
		v.Emu = v.Emu || r.Provenance.Place == bench.PlaceEmu
		v.Results = append(v.Results, experiment(r))
		if v.Started.IsZero() || r.Started.Before(v.Started) {
			v.Started = r.Started
		}
	}
	v.claims(results)
	v.facts(results)
	var b bytes.Buffer
	if err := tmpl.Execute(&b, v); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	_, err := w.Write(bytes.Map(harmless, b.Bytes()))
	return err
}

// harmless drops characters that HTML forbids, and those that turn the
// direction of text around and so can make it say something else.
func harmless(c rune) rune {
	if unicode.IsControl(c) && c != '\n' && c != '\t' || c >= 0x202a && c <= 0x202e || c >= 0x2066 && c <= 0x2069 {
		return -1
	}
	return c
}

// view is what the page shows.
type view struct {
	CSS       template.CSS
	Emu       bool
	Started   time.Time
	Broken    []string
	Undecided []string
	Claims    []claimView
	Silent    []string // claims that no result speaks about
	Differ    bool
	Facts     []factView
	Results   []resultView
}

type claimView struct {
	bench.Claim
	Rulings []bench.Ruling
}

// factView is a line of the provenance: one value, or one for each experiment.
type factView struct {
	Name    string
	Value   string
	Each    []string
	Differs bool // and should not
}

type resultView struct {
	*bench.Result
	ID          string
	Place       string
	Params      [][2]string
	Sweeps      []sweepView
	Tails       []figure
	Forests     []figure
	Comparisons string // places of the comparisons
	Text        string
	Depth       bool // some series has commands in flight
}

type figure struct {
	SVG   template.HTML
	Title string
	Place string
	Note  string
}

type sweepView struct {
	*bench.Sweep
	figure
	Drawn bool
}

// claims sorts the verdicts by claim.
func (v *view) claims(results []*bench.Result) {
	for _, r := range bench.Rulings(results) {
		if n := len(v.Claims); n == 0 || v.Claims[n-1].ID != r.Claim.ID {
			v.Claims = append(v.Claims, claimView{Claim: r.Claim})
		}
		last := &v.Claims[len(v.Claims)-1]
		last.Rulings = append(last.Rulings, r)
	}
	for _, c := range bench.Claims() {
		if !slices.ContainsFunc(v.Claims, func(x claimView) bool { return x.ID == c.ID }) {
			v.Silent = append(v.Silent, c.ID)
		}
	}
}

// facts collects the provenance of all results, and marks what differs.
func (v *view) facts(results []*bench.Result) {
	if len(results) == 0 {
		return
	}
	add := func(name string, may bool, of func(bench.Provenance, *bench.Result) string) {
		f := factView{Name: name}
		same := true
		for _, r := range results {
			value := cmp.Or(of(r.Provenance, r), "none")
			same = same && value == cmp.Or(of(results[0].Provenance, results[0]), "none")
			f.Each = append(f.Each, r.Experiment+": "+value)
		}
		if same {
			f.Value, f.Each = cmp.Or(of(results[0].Provenance, results[0]), "none"), nil
		}
		f.Differs = !same && !may
		v.Differ = v.Differ || f.Differs
		v.Facts = append(v.Facts, f)
	}
	// Experiments choose among emulated devices; every figure names its own.
	emulated := !slices.ContainsFunc(results, func(r *bench.Result) bool { return r.Provenance.Place != bench.PlaceEmu })
	for i, fact := range results[0].Provenance.Facts() {
		add(fact.Field, emulated && (fact.Field == "device" || fact.Field == "profile"), func(p bench.Provenance, _ *bench.Result) string { return p.Facts()[i].Value })
	}
	add("load before", true, func(p bench.Provenance, _ *bench.Result) string { return number("%.3g", p.Load, 1) })
	add("steal", true, func(p bench.Provenance, _ *bench.Result) string { return number("%.1f %%", p.Steal, 100) })
	add("began", true, func(_ bench.Provenance, r *bench.Result) string {
		return r.Started.UTC().Format(time.DateTime) + " UTC"
	})
	add("took", true, func(_ bench.Provenance, r *bench.Result) string { return fmt.Sprintf("%.1f s", r.Took.Seconds()) })
}

func number(format string, f bench.Float, scale float64) string {
	if !finite(float64(f)) {
		return "unknown"
	}
	return fmt.Sprintf(format, float64(f)*scale)
}

func experiment(r *bench.Result) resultView {
	v := resultView{Result: r, ID: "x-" + ident(r.Experiment)}
	p := r.Provenance
	v.Place = place(p.Place, p.Device, p.Profile)
	for k, x := range r.Params {
		v.Params = append(v.Params, [2]string{k, fmt.Sprint(x)})
	}
	slices.SortFunc(v.Params, func(a, b [2]string) int { return cmp.Compare(a[0], b[0]) })
	for i := range r.Sweeps {
		s := &r.Sweeps[i]
		profile := ""
		if s.Device == p.Device || s.Device == "" {
			profile = p.Profile
		}
		x := sweepView{Sweep: s, figure: figure{Title: s.What + " against " + s.X, Place: place(p.Place, cmp.Or(s.Device, p.Device), profile)}}
		var fromZero bool
		x.SVG, fromZero, x.Drawn = sweepPlot(fmt.Sprintf("%s-sweep-%d", v.ID, i), x.Title, s)
		if x.Drawn && !fromZero {
			x.Note = "The vertical axis does not begin at zero."
		}
		v.Sweeps = append(v.Sweeps, x)
	}
	var timed, all []*bench.Series
	for i := range r.Series {
		s := &r.Series[i]
		all = append(all, s)
		if s.Histogram != nil && s.Histogram.TotalCount() > 0 && s.Void == "" {
			timed = append(timed, s)
		}
		v.Depth = v.Depth || s.Depth > 0
	}
	n := 0
	for some := range slices.Chunk(timed, perFigure) {
		n++
		f := figure{Title: "How long one operation took, by percentile", Place: places(r, some)}
		var ok bool
		if f.SVG, ok = tailPlot(fmt.Sprintf("%s-tail-%d", v.ID, n), f.Title, some); ok {
			v.Tails = append(v.Tails, f)
		}
	}
	v.Comparisons = places(r, all)
	for i, f := range forests(r.Comparisons) {
		var of []*bench.Series
		for _, c := range f.cs {
			for _, name := range []string{c.A, c.B} {
				if s := r.SeriesOf(name); s != nil {
					of = append(of, s)
				}
			}
		}
		x := figure{Title: "Who takes less", Place: places(r, of)}
		if f.title != "" {
			x.Title += ": " + f.title
		}
		var ok bool
		if x.SVG, ok = forestPlot(fmt.Sprintf("%s-forest-%d", v.ID, i), x.Title, f.labels, f.cs); ok {
			v.Forests = append(v.Forests, x)
		}
	}
	var b strings.Builder
	_ = r.WriteText(&b) // into memory
	v.Text = b.String()
	return v
}

// place says where a figure was measured.
func place(place, device, profile string) string {
	s := "place: " + place + ", " + device
	if profile != "" {
		s += ", profile " + profile
	}
	return s
}

// places says where series were measured.
func places(r *bench.Result, series []*bench.Series) string {
	var out []string
	for _, s := range series {
		device, profile := r.DeviceOf(s)
		if p := place(r.Provenance.Place, device, profile); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return place(r.Provenance.Place, r.Provenance.Device, r.Provenance.Profile)
	}
	for i := 1; i < len(out); i++ {
		out[i] = strings.TrimPrefix(out[i], "place: ")
	}
	return strings.Join(out, "; ")
}

// SeriesPlace is the device and profile of a series where they are not the
// result's.
func (v resultView) SeriesPlace(s bench.Series) string {
	device, profile := v.DeviceOf(&s)
	if device == v.Provenance.Device && profile == v.Provenance.Profile {
		return ""
	}
	if profile != "" {
		device += ", profile " + profile
	}
	return device
}

// Median is that of the samples or, where each operation was timed, of those.
func (v resultView) Median(s bench.Series) string {
	if s.Histogram == nil && len(s.Samples) > 0 {
		return bench.Nanos(bench.Median(s.Samples))
	}
	return zeroIsNone(float64(s.Summary.P50))
}

// zeroIsNone formats a percentile: 0 stands for too few samples.
func zeroIsNone(ns float64) string {
	if ns == 0 {
		return "–"
	}
	return bench.Nanos(ns)
}

// ident makes a name fit for an id.
func ident(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' {
			return c
		}
		return '-'
	}, strings.ToLower(s))
}

// symbol tells answers apart without colour.
func symbol(answer string) string {
	switch answer {
	case bench.Supported:
		return "✓"
	case bench.Refuted:
		return "✗"
	case bench.OnlyBreakEven:
		return "⇄"
	}
	return "?"
}

func star(p int) string {
	if p == 0 {
		return "none"
	}
	return strconv.Itoa(p)
}

// count formats a whole number with commas.
func count(v any) string {
	s := fmt.Sprint(v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func bytesOf(b float64) string {
	if !finite(b) {
		return "–"
	}
	return fmt.Sprintf("%.0f B", b)
}
