// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"devxlab.example/bench"
	htmlreport "devxlab.example/bench/report"
	"devxlab.example/internal/atomicfile"
)

type reportCmd struct {
	Run1 string `arg:"" name:"run" help:"The directory of a run of bench, or one result (NAME.json) of it."`
	Run2 string `arg:"" name:"run2" optional:"" help:"Another one: it is compared with the first."`
	HTML string `name:"html" placeholder:"FILE" help:"Write the report of the one run as one HTML file that needs nothing else."`
}

// reportName is the file that bench leaves in a run's directory.
const reportName = "report.html"

// reportOutput is what report prints of one run as JSON.
type reportOutput struct {
	Verdicts []bench.Ruling  `json:"verdicts"`
	Results  []*bench.Result `json:"results"`
	Broken   []string        `json:"broken"` // what could not be read
}

// compareOutput is what it prints of two.
type compareOutput struct {
	A      string   `json:"a"`
	B      string   `json:"b"`
	Broken []string `json:"broken"`
	*bench.RunComparison
}

func (c reportCmd) Run(e *env) error {
	if c.Run2 != "" && c.HTML != "" {
		return usageError{errors.New("--html makes the report of one run: give one, or leave --html out to compare two")}
	}
	a, broken := loadRun(c.Run1)
	if len(a) == 0 {
		return errors.Join(broken...)
	}
	if c.Run2 != "" {
		return c.compare(e, a, broken)
	}
	err := errors.Join(broken...)
	if c.HTML != "" {
		err = errors.Join(err, writeReport(c.HTML, a, broken))
	}
	if e.asJSON {
		return errors.Join(e.json(reportOutput{bench.Rulings(a), a, messages(broken)}), err)
	}
	out := &plain{e.out}
	if werr := bench.WriteVerdicts(out, a); werr != nil {
		return errors.Join(werr, err)
	}
	for _, r := range a {
		fmt.Fprintln(out)
		if werr := r.WriteText(out); werr != nil {
			return errors.Join(werr, err)
		}
		if r.Command != "" {
			fmt.Fprintf(out, "again: %s\n", r.Command)
		}
	}
	return err
}

func (c reportCmd) compare(e *env, a []*bench.Result, broken []error) error {
	b, more := loadRun(c.Run2)
	broken = append(broken, more...)
	err := errors.Join(broken...)
	if len(b) == 0 {
		return err
	}
	x := bench.CompareRuns(a, b)
	if e.asJSON {
		return errors.Join(e.json(compareOutput{c.Run1, c.Run2, messages(broken), x}), err)
	}
	out := &plain{e.out}
	fmt.Fprintf(out, "A: %s\nB: %s\n\n", c.Run1, c.Run2)
	return errors.Join(x.WriteText(out), err)
}

// loadRun reads the results in a directory, or one.
func loadRun(path string) ([]*bench.Result, []error) {
	if fi, err := os.Stat(path); err != nil || fi.IsDir() {
		return bench.LoadDir(path)
	}
	r, err := bench.Load(path)
	var rs []*bench.Result
	if r != nil {
		rs = append(rs, r)
	}
	if err != nil {
		return rs, []error{err}
	}
	return rs, nil
}

func messages(errs []error) []string {
	out := []string{}
	for _, err := range errs {
		out = append(out, err.Error())
	}
	return out
}

// writeReport writes the HTML report.
func writeReport(file string, results []*bench.Result, broken []error) error {
	err := atomicfile.Write(file, func(w io.Writer) error { return htmlreport.Write(w, results, broken) })
	switch {
	case errors.Is(err, unix.EISDIR):
		return usageError{fmt.Errorf("--html %s: it is a directory: name a file in it", file)}
	case err != nil:
		return fmt.Errorf("the report is not written to %s: %w; give --html a file where there is room", file, err)
	}
	return nil
}

// benchReport leaves the report of a run in its directory, and says where.
func benchReport(dir string, results []*bench.Result) (file string, err error) {
	file = filepath.Join(dir, reportName)
	if err := atomicfile.Write(file, func(w io.Writer) error { return htmlreport.Write(w, results, nil) }); err != nil {
		return "", fmt.Errorf("no report in %s: %w; once there is room: devxlab report %s --html FILE", dir, err, quote(dir))
	}
	return file, nil
}

// plain drops what could command a terminal: results come from files, and
// files from anywhere.
type plain struct{ w io.Writer }

func (p *plain) Write(b []byte) (int, error) {
	clean := strings.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' {
			return -1
		}
		return c
	}, string(b))
	if _, err := io.WriteString(p.w, clean); err != nil {
		return 0, err
	}
	return len(b), nil
}

// quote writes a word so that a POSIX shell reads it as it is.
func quote(s string) string {
	const safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"
	if s != "" && strings.Trim(s, safe) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
