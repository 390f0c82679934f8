// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// What a file may have. Results that experiments write are far below.
const (
	maxFile       = 256 << 20 // bytes
	maxValues     = 8 << 20   // numbers, strings and the like
	maxNested     = 1 << 18   // objects and lists
	maxLogFile    = 64 << 20  // bytes
	maxHistograms = 256 << 20 // bytes, as they lie in memory
)

// Load reads a result that WriteFiles wrote: a NAME.json, and the histograms
// from the NAME.hlog beside it if there is one. It refuses whatever is not a
// whole result of a format that it knows. If only the histograms cannot be
// read, the result is returned without them, together with the error.
func Load(path string) (*Result, error) {
	b, err := slurp(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	r, err := decode(b)
	if err != nil {
		return nil, fmt.Errorf("bench: %s: %w", path, err)
	}
	log := strings.TrimSuffix(path, jsonExt) + logExt
	b, err = slurp(log, maxLogFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r, nil
	case err == nil:
		if err = r.readLog(b); err == nil {
			return r, nil
		}
		err = fmt.Errorf("%s: %w", log, err)
	}
	return r, fmt.Errorf("bench: %w. The result is used without its distributions; copy the log again to have them", err)
}

// LoadDir returns the results in a run's directory in the order of Experiments,
// and those of no known experiment after them. For each file that could not be
// read, and each result that is missing beside its other files, broken has an
// error; if there is nothing at all, it says so.
func LoadDir(dir string) (results []*Result, broken []error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, []error{fmt.Errorf("bench: %w", err)}
	}
	has := map[string]bool{}
	for _, e := range entries {
		has[e.Name()] = true
	}
	from := map[string]string{} // experiment: file
	var below []string
	for _, e := range entries {
		name := e.Name()
		ext := filepath.Ext(name)
		base := strings.TrimSuffix(name, ext)
		switch {
		case strings.HasPrefix(name, "."): // what an ended program has left half-done
		case ext == jsonExt:
			r, err := Load(filepath.Join(dir, name))
			if err != nil {
				broken = append(broken, err)
			}
			switch {
			case r == nil:
			case from[r.Experiment] != "":
				broken = append(broken, fmt.Errorf("bench: %s: is a second result of %s, beside %s: move it into a directory of its own", filepath.Join(dir, name), r.Experiment, from[r.Experiment]))
			default:
				from[r.Experiment] = name
				results = append(results, r)
			}
		case ext == logExt && !has[base+jsonExt], ext == textExt && !has[base+jsonExt] && experiment(base).Name != "":
			broken = append(broken, fmt.Errorf("bench: %s: is missing, but %s is there: the run could not write it, or it was not copied", filepath.Join(dir, base+jsonExt), name))
		case e.IsDir():
			below = append(below, name)
		}
	}
	if results == nil && broken == nil {
		err := fmt.Errorf("bench: %s: holds no result: give the directory that `devxlab bench` named at its end", dir)
		if below != nil {
			err = fmt.Errorf("bench: %s: holds no result itself: give a run below it, such as %s", dir, filepath.Join(dir, below[len(below)-1]))
		}
		broken = append(broken, err)
	}
	rank := map[string]int{}
	for i, e := range Experiments() {
		rank[e.Name] = i - len(Experiments())
	}
	slices.SortStableFunc(results, func(a, b *Result) int { return rank[a.Experiment] - rank[b.Experiment] })
	return results, broken
}

// slurp reads a regular file that is not too long.
func slurp(path string, most int64) ([]byte, error) {
	// Before it is opened: opening a pipe would wait for a writer.
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		what := "no regular file"
		if fi.IsDir() {
			what = "a directory"
		}
		return nil, fmt.Errorf("%s: is %s: give a NAME.json that `devxlab bench` wrote", path, what)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	long := fi.Size() > most
	var b []byte
	if !long {
		b, err = io.ReadAll(io.LimitReader(f, most+1))
		long = int64(len(b)) > most // it has grown
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if long {
		return nil, fmt.Errorf("%s: is longer than %d MiB, as no result is: give a file that `devxlab bench` wrote", path, most>>20)
	}
	return b, nil
}

// decode reads a result, and refuses what cannot be one.
func decode(b []byte) (*Result, error) {
	trimmed := bytes.TrimSpace(b)
	switch {
	case len(trimmed) == 0:
		return nil, errors.New("is empty: copy it again, or run the experiment again")
	case trimmed[0] == '[':
		return nil, errors.New("holds a JSON list, as `devxlab bench -o json` prints it: give a NAME.json from the run's directory, or cut one result out of the list")
	case trimmed[0] != '{':
		return nil, fmt.Errorf("is no result of `devxlab bench`: it begins with %q, not with {", head(trimmed))
	}
	if values, nested := weigh(trimmed); values > maxValues || nested > maxNested {
		return nil, fmt.Errorf("has more than %d values or %d objects and lists, as no result has: give a file that `devxlab bench` wrote", maxValues, maxNested)
	}
	var kind struct {
		Format     any `json:"format"`
		Provenance struct{ Commit any }
	}
	if err := json.Unmarshal(b, &kind); err != nil {
		var syntax *json.SyntaxError
		if !errors.As(err, &syntax) {
			return nil, foreign(err)
		}
		if syntax.Error() == "unexpected end of JSON input" {
			return nil, fmt.Errorf("ends in the middle, after %d bytes: copy it again, or run the experiment again", len(b))
		}
		return nil, fmt.Errorf("is damaged, or no JSON: %w (at byte %d): copy it again, or run the experiment again", err, syntax.Offset)
	}
	switch kind.Format {
	case Format:
	case nil:
		return nil, foreign(errors.New(`it has no "format"`))
	default:
		by := ""
		if c, ok := kind.Provenance.Commit.(string); ok {
			by = fmt.Sprintf(", with the devxlab that wrote it (commit %q)", c)
		}
		return nil, fmt.Errorf("has format %q, and this devxlab reads %q only: read it with a newer one%s", fmt.Sprint(kind.Format), Format, by)
	}
	r := new(Result)
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields() // they would be lost when it is written again
	d.UseNumber()
	if err := d.Decode(r); err != nil {
		if strings.Contains(err.Error(), "unknown field") {
			return nil, fmt.Errorf("%w: a newer devxlab wrote it, or it was edited: read it with that one", err)
		}
		return nil, fmt.Errorf("is no result as `devxlab bench` writes it: %w", err)
	}
	for k, v := range r.Params {
		p, err := param(v)
		if err != nil {
			return nil, fmt.Errorf("parameter %q: %w", k, err)
		}
		r.Params[k] = p
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("is no result as `devxlab bench` writes it: %w: it was edited or damaged; copy it again, or run the experiment again", err)
	}
	return r, nil
}

func foreign(err error) error {
	return fmt.Errorf("is JSON, but no result of `devxlab bench`: %w", err)
}

// head is what a file begins with, for an error.
func head(b []byte) string {
	b = b[:min(len(b), 24)]
	for len(b) > 0 && !utf8.Valid(b) && utf8.RuneStart(b[len(b)-1]) {
		b = b[:len(b)-1] // cut through
	}
	return string(b)
}

// weigh counts the values of a JSON text, and its objects and lists, which say
// how much memory it takes decoded.
func weigh(b []byte) (values, nested int) {
	text := false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == ',':
			values++
		case c == '{', c == '[':
			nested++
		}
	}
	return values, nested
}

// param gives a parameter the type that it had in the run: whole numbers are int.
func param(v any) (any, error) {
	switch v := v.(type) {
	case json.Number:
		if n, err := strconv.Atoi(v.String()); err == nil && v != "-0" {
			return n, nil
		}
		f, err := v.Float64()
		if err != nil {
			return nil, err
		}
		return f, nil
	case []any:
		for i := range v {
			var err error
			if v[i], err = param(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			var err error
			if v[k], err = param(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// check reports what cannot stand in a result.
func (r *Result) check() error {
	var c checker
	c.that(isName(r.Experiment), "experiment %q is no name", r.Experiment)
	c.least("took_ns", int(r.Took))
	p := r.Provenance
	c.that(p.Place == PlaceEmu || p.Place == PlaceHW || p.Place == PlaceLab, "place %q is not emu, lab or hw", p.Place)
	c.least("cpus", p.CPUs, p.GOMAXPROCS)
	c.that(!(p.Load < 0), "load %v", p.Load)
	c.that(!(p.Steal < 0 || p.Steal > 1), "steal %v", p.Steal)

	seen := map[string]bool{}
	logs := map[string]bool{}
	for _, s := range r.Series {
		c.that(s.Name != "", "a series without a name")
		c.that(!seen[s.Name], "two series are named %q", s.Name)
		c.that(s.Log == "" || isTag(s.Log) && !logs[s.Log], "series %q: log %q is no tag of its own", s.Name, s.Log)
		seen[s.Name], logs[s.Log] = true, true
		c.least("series "+s.Name, s.GOMAXPROCS, s.Ops, s.Depth, int(s.Summary.N))
		c.that(s.InFlight >= 0 && s.Possible >= 0, "series %q: %v of %v in flight", s.Name, s.InFlight, s.Possible)
	}
	for _, x := range r.Comparisons {
		q := x.Ratio
		c.that(x.A != "" && x.B != "", "a comparison of %q and %q", x.A, x.B)
		c.least("comparison "+x.A, q.Pairs)
		c.that(!(q.Median < 0 || q.Low < 0 || q.High < q.Low), "comparison %q: ratio %v [%v, %v]", x.A, q.Median, q.Low, q.High)
		c.that(slices.Contains([]Answer{Better, Worse, Inconclusive}, q.Answer), "comparison %q: answer %q", x.A, q.Answer)
	}
	for _, s := range r.Sweeps {
		c.that(s.Name != "", "a sweep without a name")
		last := math.Inf(-1)
		for _, q := range s.Points {
			c.that(q.X >= last, "sweep %q: %v comes after %v", s.Name, q.X, last)
			last = q.X
			c.least("sweep "+s.Name, q.N)
			c.that(!(q.High < q.Low), "sweep %q: interval [%v, %v] at %v", s.Name, q.Low, q.High, q.X)
		}
	}
	for _, b := range r.BreakEven {
		c.least("break-even", int(b.Command), b.P, b.PFavour, b.PAgainst)
		for _, g := range b.Group {
			c.least("break-even", int(g))
		}
	}
	if k := r.Campaign; k != nil {
		c.that(k.Rate >= LeastRate && k.Rate <= MostRate, "campaign: a rate of %v a second", k.Rate)
		c.least("campaign", int(k.Wanted), int(k.Elapsed), k.Runs, int(k.Changes), int(k.Checks), int(k.Violations))
		c.that(len(k.First) == int(min(k.Violations, c8Violations)), "campaign: %d violations, %d are told", k.Violations, len(k.First))
	}
	if m := r.Memory; m != nil {
		c.least("memory", m.QueuePairs, m.QP, m.Mapped)
	}
	for _, v := range r.Verdicts {
		c.that(v.Claim != "", "a verdict on no claim")
		c.that(slices.Contains([]string{Supported, Refuted, OnlyBreakEven, NotDecidable}, v.Answer), "verdict on %s: answer %q", v.Claim, v.Answer)
	}
	c.that(!r.Interrupted || len(r.Verdicts) == 0, "interrupted, and yet with a verdict")
	return c.err
}

// checker keeps the first thing that is wrong.
type checker struct{ err error }

func (c *checker) that(ok bool, format string, args ...any) {
	if !ok && c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// least refuses counts below zero.
func (c *checker) least(what string, counts ...int) {
	for _, n := range counts {
		c.that(n >= 0, "%s: %d is below zero", what, n)
	}
}

// isName reports whether an experiment can be called that: it names files, too.
func isName(s string) bool {
	return s != "" && len(s) <= 64 && s[0] != '-' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}

// readLog takes the histograms of the series from an HDR log.
func (r *Result) readLog(b []byte) error {
	want := map[string]*Series{}
	for i := range r.Series {
		if s := &r.Series[i]; s.Log != "" {
			want[s.Log] = s
		}
	}
	found := map[string]*hdrhistogram.Histogram{}
	lr := hdrhistogram.NewHistogramLogReader(bytes.NewReader(b))
	for size := 0; ; {
		h, err := lr.NextIntervalHistogram()
		if err != nil {
			return fmt.Errorf("is damaged or cut short: %w", err)
		}
		if h == nil {
			break
		}
		s := want[h.Tag()]
		if s == nil {
			return fmt.Errorf("has a distribution %q that no series of the result names: it belongs to another result", h.Tag())
		}
		if found[h.Tag()] != nil {
			return fmt.Errorf("has two distributions %q", h.Tag())
		}
		if h.TotalCount() != s.Summary.N {
			return fmt.Errorf("has %d operations in %q where the result has %d: it belongs to another result", h.TotalCount(), h.Tag(), s.Summary.N)
		}
		found[h.Tag()] = h
		if size += h.ByteSize(); size > maxHistograms {
			return fmt.Errorf("takes more than %d MiB of memory, as no log of a result does", maxHistograms>>20)
		}
	}
	for _, tag := range slices.Sorted(maps.Keys(want)) {
		if found[tag] == nil {
			return fmt.Errorf("has no distribution %q: it is cut short, or belongs to another result", tag)
		}
	}
	for tag, h := range found {
		want[tag].Histogram = h
	}
	return nil
}
