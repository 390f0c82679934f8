// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Outcomes of a test.
const (
	TestPassed  = "passed"
	TestSkipped = "skipped"
	TestFailed  = "failed"
)

// TestOutcome is what became of one of rdma-core's tests.
type TestOutcome struct {
	Test    string `json:"test"` // Class.method
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"` // why it was skipped, or the last line of the traceback
}

// TestFile is one file of rdma-core's tests.
type TestFile struct {
	File  string        `json:"file"`
	Tests []TestOutcome `json:"tests"`
}

// Count returns how many tests came out so.
func (f TestFile) Count(outcome string) (n int) {
	for _, t := range f.Tests {
		if t.Outcome == outcome {
			n++
		}
	}
	return n
}

// Conformance is what rdma-core's own tests find in the emulated HCA under a
// kernel's driver.
type Conformance struct {
	RDMACore string     `json:"rdma_core"` // its version
	Kernel   string     `json:"kernel"`    // uname -r
	Files    []TestFile `json:"files"`
}

// Count returns how many tests of all files came out so.
func (c Conformance) Count(outcome string) (n int) {
	for _, f := range c.Files {
		n += f.Count(outcome)
	}
	return n
}

// ErrConformance is a run of the tests that did not come to its end.
var ErrConformance = errors.New("rdma-core's tests did not all run")

// errNotOff is a driver that does not let the machine power off: it waits for
// what a test has begun.
var errNotOff = errors.New("the guest does not power off: a test waits in its kernel")

const offPatience = 30 * time.Second

//go:embed conformance.py
var conformanceScript []byte

// conformanceLine is what the script says.
type conformanceLine struct {
	RDMACore string `json:"rdma_core"`
	Kernel   string `json:"kernel"`
	File     string `json:"file"`
	Tests    *int   `json:"tests"`
	TestOutcome
	Done bool `json:"done"`
}

// Conform runs rdma-core's own tests in a guest with ImageFull, or with the image
// that is asked for and has them: all files, or those that are named
// (test_device). A test that takes longer than limit, which
// is rounded up to seconds, has failed; the rest go on. Progress gets a line for
// each file. Where the guest does not come to its end, ErrConformance, the report
// has what was found until then; with any other error, for example a
// *KernelError, it is complete.
func Conform(ctx context.Context, o Options, limit time.Duration, files ...string) (*Conformance, error) {
	script, err := os.CreateTemp("", "conformance-*.py")
	if err != nil {
		return nil, err
	}
	defer os.Remove(script.Name())
	_, err = script.Write(conformanceScript)
	if err := errors.Join(err, script.Close()); err != nil {
		return nil, err
	}
	const inGuest = "/lab/conformance.py"
	if o.Progress == nil {
		o.Progress = os.Stderr
	}
	seconds := int((limit + time.Second - 1) / time.Second)
	o.Image, o.Devices = cmp.Or(o.Image, ImageFull), max(o.Devices, 1)
	o.Put = append(slices.Clip(o.Put), Copy{From: script.Name(), To: inGuest})
	o.Args = append([]string{"python3", inGuest, strconv.Itoa(seconds)}, files...)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c := &conformanceReader{progress: o.Progress, ended: func() { time.AfterFunc(offPatience, func() { stop(errNotOff) }) }}
	o.Stdout = c
	r, err := Run(ctx, o)
	switch {
	case r == nil:
		err = errors.Join(err, ErrConformance)
	case c.err != nil:
		err = errors.Join(err, c.err)
	case r.Status != 0 || !c.done:
		err = errors.Join(err, fmt.Errorf("%w: exit status %d", ErrConformance, r.Status))
	default:
		err = errors.Join(err, c.complete(files))
	}
	return &c.report, err
}

// conformanceReader reads the script's lines as they come.
type conformanceReader struct {
	report   Conformance
	want     []int // tests of each file
	progress io.Writer
	partial  []byte
	ended    func() // the script has come to its end
	done     bool
	err      error
}

func (c *conformanceReader) Write(p []byte) (int, error) {
	c.partial = append(c.partial, p...)
	for {
		line, rest, ok := bytes.Cut(c.partial, []byte{'\n'})
		if !ok {
			return len(p), nil
		}
		c.partial = bytes.Clone(rest)
		if err := c.line(line); err != nil && c.err == nil {
			c.err = fmt.Errorf("%w: %w: %q", ErrConformance, err, line)
		}
	}
}

func (c *conformanceReader) line(b []byte) error {
	var l conformanceLine
	if err := json.Unmarshal(b, &l); err != nil {
		return err
	}
	last := len(c.report.Files) - 1
	switch {
	case l.RDMACore != "":
		c.report.RDMACore, c.report.Kernel = l.RDMACore, l.Kernel
	case l.Tests != nil:
		c.tell()
		c.report.Files, c.want = append(c.report.Files, TestFile{File: l.File}), append(c.want, *l.Tests)
	case l.Done:
		c.tell()
		c.done = true
		if c.ended != nil {
			c.ended()
		}
	case last < 0 || l.File != c.report.Files[last].File || !slices.Contains([]string{TestPassed, TestSkipped, TestFailed}, l.Outcome):
		return errors.New("not what its script says")
	default:
		c.report.Files[last].Tests = append(c.report.Files[last].Tests, l.TestOutcome)
	}
	return nil
}

// tell says how the last file went.
func (c *conformanceReader) tell() {
	if n := len(c.report.Files); n > 0 {
		f := c.report.Files[n-1]
		fmt.Fprintf(c.progress, "%-26s %3d passed, %3d skipped, %3d failed\n", f.File, f.Count(TestPassed), f.Count(TestSkipped), f.Count(TestFailed))
	}
}

// complete checks that every test of every file has an outcome.
func (c *conformanceReader) complete(files []string) error {
	for i, f := range c.report.Files {
		if len(f.Tests) != c.want[i] {
			return fmt.Errorf("%w: %d of %d in %s", ErrConformance, len(f.Tests), c.want[i], f.File)
		}
	}
	for _, name := range files {
		if !slices.ContainsFunc(c.report.Files, func(f TestFile) bool { return f.File == name }) {
			return fmt.Errorf("%w: there is no file %s", ErrConformance, name)
		}
	}
	return nil
}

const conformanceIntro = `# Conformance: rdma-core's own tests

rdma-core, unmodified, on the mlx5 driver of a Linux kernel, unmodified, with the emulated HCA below it.

Made by ` + "`make conformance`" + `, which is ` + "`devxlab lab conformance`" + ` with a suite of Debian and a kernel for each part: every file of the tests
that the suite's python3-pyverbs has, each with a process of its own, and a time limit for each test.

| rdma-core | Linux | tests | passed | skipped | failed |
|---|---|--:|--:|--:|--:|
`

// ConformanceMarkdown returns reports as a document. It has no times, so that two
// of them can be compared.
func ConformanceMarkdown(reports ...*Conformance) string {
	var b strings.Builder
	b.WriteString(conformanceIntro)
	for _, c := range reports {
		passed, skipped, failed := c.Count(TestPassed), c.Count(TestSkipped), c.Count(TestFailed)
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d |\n", c.RDMACore, c.Kernel, passed+skipped+failed, passed, skipped, failed)
	}
	for _, c := range reports {
		c.markdown(&b)
	}
	return b.String()
}

func (c Conformance) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n## rdma-core %s on Linux %s\n\n| file | passed | skipped | failed |\n|---|--:|--:|--:|\n", c.RDMACore, c.Kernel)
	for _, f := range c.Files {
		fmt.Fprintf(b, "| %s | %d | %d | %d |\n", f.File, f.Count(TestPassed), f.Count(TestSkipped), f.Count(TestFailed))
	}
	c.reasons(b, "Failed: the last line of the traceback", TestFailed)
	c.reasons(b, "Skipped: what the test says", TestSkipped)
}

// reasons lists why, and which tests have the same reason.
func (c Conformance) reasons(b *strings.Builder, title, outcome string) {
	fmt.Fprintf(b, "\n### %s\n\n", title)
	if c.Count(outcome) == 0 {
		b.WriteString("None.\n")
		return
	}
	b.WriteString("| file | tests | reason |\n|---|---|---|\n")
	for _, f := range c.Files {
		var order []string
		tests := map[string][]string{}
		for _, t := range f.Tests {
			if t.Outcome != outcome {
				continue
			}
			if tests[t.Reason] == nil {
				order = append(order, t.Reason)
			}
			tests[t.Reason] = append(tests[t.Reason], t.Test)
		}
		for _, why := range order {
			fmt.Fprintf(b, "| %s | %s | %s |\n", f.File, strings.Join(tests[why], ", "), cell(why))
		}
	}
}

// cell is text as a cell of a Markdown table.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(strings.TrimSpace(s))
}
