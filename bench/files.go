// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unicode"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/perf/benchfmt"
	"golang.org/x/sys/unix"

	"devxlab.example/internal/atomicfile"
)

// writable makes dir, and reports now what would otherwise be lost later.
func writable(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("bench: no directory for the results: %w", err)
	}
	f, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return fmt.Errorf("bench: results cannot be written: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Endings of a result's files, behind the experiment's name.
const (
	jsonExt = ".json" // everything but histograms
	textExt = ".txt"  // Go benchmark lines
	logExt  = ".hlog" // an HDR histogram log
)

// WriteError says what of a result could not be written. The files that are not
// in Missing are there, and whole.
type WriteError struct {
	Experiment string
	Dir        string
	Missing    []string // names of files
	Command    string   // that runs the experiment again; "" if that is not known
	errs       []error  // why, one for each
	kept       string
}

func (e *WriteError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "bench: %s: not written to %s: ", e.Experiment, e.Dir)
	for i, name := range e.Missing {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s (%v)", name, e.errs[i])
	}
	again := "run the experiment again"
	if e.Command != "" {
		again = "run " + e.Command
	}
	first := "make " + e.Dir + " writable"
	for _, err := range e.errs {
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) {
			first = "free space there (or raise quota or ulimit -f)"
		}
	}
	fmt.Fprintf(&b, ". %s. To have it all, %s and %s", e.kept, first, again)
	return b.String()
}

// Unwrap gives the reasons.
func (e *WriteError) Unwrap() []error { return e.errs }

// WriteFiles writes the result to dir: NAME.json with the raw samples, NAME.txt
// as Go benchmark lines, which benchstat compares, and, if a series has a
// histogram, NAME.hlog as an HDR histogram log. Each file is whole or not
// there. If one cannot be written the others are, and the error is a
// *WriteError.
func (r *Result) WriteFiles(dir string) error {
	e := &WriteError{Experiment: r.Experiment, Dir: dir, Command: r.Command}
	base := filepath.Join(dir, r.Experiment)
	var there []string
	put := func(ext string, write func(io.Writer) error) (ok bool) {
		// The directory may have gone while the experiment ran.
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = atomicfile.Write(base+ext, write)
		}
		if err != nil {
			e.Missing, e.errs = append(e.Missing, r.Experiment+ext), append(e.errs, pathless(err))
			return false
		}
		there = append(there, r.Experiment+ext)
		return true
	}
	whole := put(jsonExt, r.writeJSON)
	put(textExt, r.WriteBenchmarks)
	logged := true
	if slices.ContainsFunc(r.Series, func(s Series) bool { return s.Histogram != nil }) {
		logged = put(logExt, r.WriteLog)
	} else {
		// One of an earlier result would be taken for this one's.
		_ = os.Remove(base + logExt)
	}
	switch {
	case e.Missing == nil:
		return nil
	case whole && logged:
		e.kept = "Nothing measured is lost: it is in " + there[0]
	case whole:
		e.kept = "The distributions of single operations are lost; samples, summaries and verdicts are in " + there[0]
	case there != nil:
		e.kept = "Besides " + strings.Join(there, " and ") + ", what this run prints is all that is left"
	default:
		e.kept = "The measurements are saved nowhere: what this run prints is all that is left"
	}
	return e
}

// pathless drops the name from an error of package os: of a temporary file it
// would mislead.
func pathless(err error) error {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		return p.Err
	case errors.As(err, &l):
		return l.Err
	}
	return err
}

func (r *Result) writeJSON(w io.Writer) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// WriteLog writes the histograms as an HDR histogram log: one interval for each
// series that has one, tagged with Series.Log, from the result's start to its
// end. The tools of HdrHistogram read it; values are nanoseconds.
func (r *Result) WriteLog(w io.Writer) error {
	lw := hdrhistogram.NewHistogramLogWriter(w)
	start := max(r.Started.UnixMilli(), 0) // the format has no sign
	end := start + max(r.Took.Milliseconds(), 0)
	p := r.Provenance
	about := oneLine(fmt.Sprintf("devxlab %s, place %s, device %s %s: nanoseconds for one operation", r.Experiment, p.Place, p.Device, p.Profile))
	if err := errors.Join(lw.OutputComment("["+about+"]"), lw.OutputLogFormatVersion(), lw.OutputStartTime(start), lw.OutputLegend()); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, s := range r.Series {
		if s.Histogram == nil {
			continue
		}
		if !isTag(s.Log) || seen[s.Log] {
			return fmt.Errorf("series %q: %q is no tag of its own in an HDR log", s.Name, s.Log)
		}
		seen[s.Log] = true
		h := *s.Histogram // its counts are shared, its tag and times are not
		h.SetTag(s.Log)
		h.SetStartTimeMs(start)
		h.SetEndTimeMs(end)
		if err := lw.OutputIntervalHistogram(&h); err != nil {
			return fmt.Errorf("series %q: %w", s.Name, err)
		}
	}
	return nil
}

// isTag reports whether an HDR log can have that tag.
func isTag(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return c == ',' || unicode.IsSpace(c) || !unicode.IsPrint(c) })
}

// WriteBenchmarks writes one Go benchmark line for each sample that is not
// void. Configuration lines say what two runs must have in common to be
// compared; what may differ between them is in comments, since benchstat keeps
// runs with different configurations apart.
func (r *Result) WriteBenchmarks(w io.Writer) error {
	p := r.Provenance
	for _, c := range []struct{ key, value string }{
		{"commit", p.Commit}, {"kernel", p.Kernel}, {"stack", p.Stack}, {"firmware", p.Firmware}, {"go", p.Go},
		{"started", r.Started.Format("2006-01-02 15:04:05")}, {"error", r.Error},
	} {
		if c.value != "" {
			if _, err := fmt.Fprintf(w, "# %s %s\n", c.key, oneLine(c.value)); err != nil {
				return err
			}
		}
	}
	if r.Interrupted {
		if _, err := io.WriteString(w, "# interrupted\n"); err != nil {
			return err
		}
	}
	bw := benchfmt.NewWriter(w)
	for _, s := range r.Series {
		if s.Void != "" {
			continue
		}
		device, profile := p.Device, p.Profile
		if s.Device != "" {
			device, profile = s.Device, s.Profile
		}
		var config []benchfmt.Config
		for _, c := range []struct{ key, value string }{
			{"goos", runtime.GOOS}, {"goarch", p.Arch}, {"pkg", "devxlab.example/bench"}, {"cpu", p.CPU},
			{"place", p.Place}, {"device", device}, {"profile", profile},
		} {
			if v := oneLine(c.value); v != "" {
				config = append(config, benchfmt.Config{Key: c.key, Value: []byte(v), File: true})
			}
		}
		for _, v := range s.Samples {
			if !Float(v).finite() {
				continue
			}
			rec := &benchfmt.Result{
				Config: config,
				Name:   benchfmt.Name(benchmarkName(r.Experiment, s)),
				Iters:  max(s.Ops, 1),
				Values: []benchfmt.Value{{Value: v, Unit: "ns/op"}},
			}
			if err := bw.Write(rec); err != nil {
				return err
			}
		}
	}
	return nil
}

// benchmarkName is a Go benchmark's without "Benchmark": "C6/own/workers=31-33".
// As there, the number behind the last "-" is GOMAXPROCS, and is left out if it
// is 1.
func benchmarkName(experiment string, s Series) string {
	name := strings.Map(func(c rune) rune {
		if unicode.IsSpace(c) || !unicode.IsPrint(c) {
			return '_'
		}
		return c
	}, upper(experiment)+"/"+s.Name)
	if s.GOMAXPROCS > 1 {
		name += fmt.Sprintf("-%d", s.GOMAXPROCS)
	}
	return name
}

func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
