// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"devxlab.example/emu/fw"
	"devxlab.example/mlx5"
	"devxlab.example/mlx5/explain"
)

type explainCmd struct {
	Op       string   `help:"Command, by name (CREATE_QP) or opcode (0x500); with --status."`
	Status   string   `help:"Firmware status, 0x…; with --op."`
	Syndrome string   `help:"Firmware syndrome, 0x…; with --status."`
	Text     []string `arg:"" optional:"" help:"What was seen: a dmesg line, an errno (22, EREMOTEIO), an outbox in hexadecimal, a completion (12/0x81), an attribute (retry_cnt=15), a transition (RESET->RESET). Without it, lines are read from standard input."`
}

func (c explainCmd) Run(e *env) error {
	if c.Op != "" || c.Status != "" || c.Syndrome != "" {
		a, err := c.flags()
		if err != nil {
			return usageError{err}
		}
		return e.answer(a)
	}
	if len(c.Text) > 0 {
		return e.explain(strings.Join(c.Text, " "))
	}
	s := bufio.NewScanner(e.in)
	s.Buffer(nil, 1<<20)
	var errs []error
	n := 0
	for s.Scan() {
		if strings.TrimSpace(s.Text()) == "" {
			continue
		}
		n++
		if err := e.explain(s.Text()); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", n, err))
		}
	}
	if n == 0 && s.Err() == nil {
		return usageError{errors.New(`nothing to explain: give it as an argument, or on standard input ("dmesg | grep mlx5_core | devxlab explain")`)}
	}
	return errors.Join(append(errs, s.Err())...)
}

func (e *env) explain(text string) error {
	a, err := explain.Line(text)
	if err != nil {
		return usageError{err}
	}
	return e.answer(a)
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
	if c.Status == "" {
		return explain.Answer{}, errors.New("--op and --syndrome need --status")
	}
	status, err := strconv.ParseUint(c.Status, 0, 8)
	if err != nil {
		return explain.Answer{}, fmt.Errorf("--status %q is no status: one byte, such as 0x8", c.Status)
	}
	var syndrome uint64
	if c.Syndrome != "" {
		if syndrome, err = strconv.ParseUint(c.Syndrome, 0, 32); err != nil {
			return explain.Answer{}, fmt.Errorf("--syndrome %q is no syndrome: 32 bits, such as 0x19c6d6", c.Syndrome)
		}
	}
	return explain.Status(op, mlx5.Status(status), uint32(syndrome)), nil
}
