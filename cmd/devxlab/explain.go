// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"devxlab.example/emu/fw"
	"devxlab.example/mlx5"
	"devxlab.example/mlx5/explain"
)

type explainCmd struct {
	Op       string   `help:"Command, by name (CREATE_QP) or opcode (0x500); with --status and --syndrome."`
	Status   string   `help:"Firmware status, such as 0x8; with --syndrome."`
	Syndrome string   `help:"Firmware syndrome, such as 0x19c6d6; with --status."`
	Text     []string `arg:"" optional:"" help:"What was seen: a dmesg line, an errno (22, EREMOTEIO), an outbox in hexadecimal, a completion (12/0x81), an attribute (retry_cnt=15), a transition (RESET->RESET). Without it, lines are read from standard input; those in which nothing is recognised are passed over, unless it is all of them."`
}

func (c explainCmd) Run(e *env) error {
	switch {
	case c.Op != "" || c.Status != "" || c.Syndrome != "":
		if len(c.Text) > 0 {
			return usageError{errors.New("either --op, --status and --syndrome, or a text")}
		}
		a, err := c.flags()
		if err != nil {
			return usageError{err}
		}
		return e.answer(a)
	case len(c.Text) > 0:
		a, err := explain.Line(strings.Join(c.Text, " "))
		if err != nil {
			return usageError{err}
		}
		return e.answer(a)
	}
	return e.explainLines()
}

// maxWrapped is how many lines one message may have been wrapped into.
const maxWrapped = 4

// explainLines explains standard input, line by line as it comes.
func (e *env) explainLines() error {
	s := bufio.NewScanner(e.in)
	s.Buffer(nil, 1<<20)
	l := lineExplainer{e: e}
	n := 0
	for s.Scan() {
		n++
		if strings.TrimSpace(s.Text()) == "" {
			continue
		}
		if err := l.line(n, s.Text()); err != nil {
			return err
		}
	}
	l.giveUp()
	if err := s.Err(); err != nil {
		return fmt.Errorf("standard input, after line %d: %w", n, err)
	}
	switch {
	case len(l.errs) > 0:
		return usageError{errors.Join(l.errs...)}
	case l.unknown == 0 && l.answers == 0:
		return usageError{errors.New(`nothing to explain: give it as an argument, or on standard input ("dmesg | grep mlx5_core | devxlab explain")`)}
	case l.answers == 0:
		return usageError{l.first}
	case l.unknown > 0:
		fmt.Fprintf(e.err, "devxlab: nothing recognised in %d other lines\n", l.unknown)
	}
	return nil
}

// lineExplainer puts together a message that was wrapped: a line of which only
// a part is recognised waits for the next one.
type lineExplainer struct {
	e       *env
	answers int
	unknown int // lines
	first   error
	errs    []error

	partial      string
	lines        int
	partialSince int
	partialErr   error
}

// line takes the next line. The error is one of writing.
func (l *lineExplainer) line(n int, text string) error {
	a, err := explain.Line(text)
	if l.partial != "" && err != nil && l.lines < maxWrapped && !strings.Contains(text, "mlx5_core") {
		joined := l.partial + "\n" + text
		if a, err := explain.Line(joined); err == nil {
			l.partial = ""
			return l.answer(a)
		} else if recognised(err) {
			l.partial, l.partialErr = joined, err
			l.lines++
			return nil
		}
	}
	l.giveUp()
	switch {
	case err == nil:
		return l.answer(a)
	case recognised(err):
		l.partial, l.lines, l.partialSince, l.partialErr = text, 1, n, err
	case nothing(err):
		l.unknown++
		if l.first == nil {
			l.first = fmt.Errorf("line %d: %w", n, err)
		}
	default:
		l.errs = append(l.errs, fmt.Errorf("line %d: %w", n, err))
	}
	return nil
}

// giveUp reports the partial message: its rest has not come.
func (l *lineExplainer) giveUp() {
	if l.partial != "" {
		l.errs = append(l.errs, fmt.Errorf("line %d: %w", l.partialSince, l.partialErr))
		l.partial = ""
	}
}

func (l *lineExplainer) answer(a explain.Answer) error {
	if l.answers > 0 && !l.e.asJSON {
		if _, err := io.WriteString(l.e.out, "\n"); err != nil {
			return err
		}
	}
	l.answers++
	return l.e.answer(a)
}

// recognised reports whether a part of the text was recognised.
func recognised(err error) bool {
	var in *explain.InputError
	return errors.As(err, &in) && len(in.Recognised) > 0
}

func nothing(err error) bool {
	var in *explain.InputError
	return errors.As(err, &in) && len(in.Recognised) == 0
}

func (e *env) answer(a explain.Answer) error {
	if a.Emulated() {
		if check := fw.CheckOf(a.Syndrome); check != nil {
			a.Meaning = append(a.Meaning, fmt.Sprintf("The emulated HCA refuses %s. Evidence for that: %s.", check.Refuses, check.Evidence))
		}
	}
	if e.asJSON {
		return e.json(a)
	}
	return a.WriteText(e.out)
}

func (c explainCmd) flags() (explain.Answer, error) {
	var op mlx5.Op
	if c.Op != "" {
		var ok bool
		if op, ok = mlx5.ParseOp(c.Op); !ok {
			v, err := strconv.ParseUint(c.Op, 0, 16)
			if err != nil {
				return explain.Answer{}, fmt.Errorf("--op %q is no command's name or opcode", c.Op)
			}
			op = mlx5.Op(v)
		}
	}
	if c.Status == "" || c.Syndrome == "" {
		return explain.Answer{}, errors.New("--status and --syndrome belong together: both stand in the log line and in the command's output; a syndrome that is 0 is given as 0")
	}
	status, err := strconv.ParseUint(c.Status, 0, 8)
	if err != nil {
		return explain.Answer{}, fmt.Errorf("--status %q is no status: one byte, such as 0x8", c.Status)
	}
	syndrome, err := strconv.ParseUint(c.Syndrome, 0, 32)
	if err != nil {
		return explain.Answer{}, fmt.Errorf("--syndrome %q is no syndrome: 32 bits, such as 0x19c6d6", c.Syndrome)
	}
	return explain.Status(op, mlx5.Status(status), uint32(syndrome)), nil
}
