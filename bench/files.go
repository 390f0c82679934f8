// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unicode"

	"golang.org/x/perf/benchfmt"
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
