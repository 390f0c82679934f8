// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/bench"
	"devxlab.example/devx"
)

type benchCmd struct {
	Experiments []string `arg:"" optional:"" help:"Which ones; default: all."`
	Device      string   `default:"emu:" env:"DEV" help:"Where to measure. Hardware is touched only if it is named here."`
	Dir         string   `default:"results" help:"Directory for raw samples and reports; each run gets one of its own below it."`
	Quick       bool     `help:"The fewest pairs that allow an answer."`
	List        bool     `help:"List the experiments and their questions."`
}

func (c benchCmd) Run(e *env) error {
	all := bench.Experiments()
	if c.List {
		for _, x := range all {
			fmt.Fprintf(e.out, "%s\t%s\n", x.Name, x.Question)
		}
		return nil
	}
	chosen, err := choose(all, c.Experiments)
	if err != nil {
		return usageError{err}
	}
	if !e.asJSON {
		c.announce(e)
	}
	dir := filepath.Join(c.Dir, time.Now().Format("20060102-150405"))
	var results []*bench.Result
	for _, x := range chosen {
		o := bench.Options{Device: c.Device, Dir: dir, Quick: c.Quick}
		if isTerminal(e.err) {
			o.Progress = e.err
		}
		r, err := bench.Do(e.ctx, x, o)
		if r != nil {
			results = append(results, r)
			if !e.asJSON {
				if err := r.WriteText(e.out); err != nil {
					return err
				}
				fmt.Fprintln(e.out)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", x.Name, err)
		}
		if e.ctx.Err() != nil {
			break
		}
	}
	if e.asJSON {
		return e.json(results)
	}
	fmt.Fprintf(e.out, "raw samples (JSON) and Go benchmark lines (for benchstat): %s\n", dir)
	return nil
}

func choose(all []bench.Experiment, names []string) ([]bench.Experiment, error) {
	if len(names) == 0 {
		return all, nil
	}
	var known []string
	byName := map[string]bench.Experiment{}
	for _, x := range all {
		byName[x.Name] = x
		known = append(known, x.Name)
	}
	var out []bench.Experiment
	for _, n := range names {
		x, ok := byName[strings.ToLower(n)]
		if !ok {
			return nil, fmt.Errorf("no experiment %q: %s", n, strings.Join(known, ", "))
		}
		out = append(out, x)
	}
	return out, nil
}

// announce says where the run takes place, and what it will do to hardware.
func (c benchCmd) announce(e *env) {
	if strings.HasPrefix(c.Device, "emu:") {
		fmt.Fprintf(e.out, "place: emu. Kernel and NIC are emulated inside this process (%s); no hardware is touched.\n", c.Device)
		if found, err := devx.Devices(); err == nil && len(found) > 0 {
			var names []string
			for _, d := range found {
				names = append(names, d.Name)
			}
			fmt.Fprintf(e.out, "This machine has %s. To measure there: make bench DEV=%s\n", strings.Join(names, ", "), names[0])
		}
	} else {
		fmt.Fprintf(e.out, "place: hw, %s. This makes at most 64 queue pairs of its own through DevX, addressed to the port itself, and moves\n"+
			"them between RESET and RTS. It posts no work request, sends no packet, and touches nobody else's queue pairs.\n", c.Device)
	}
	fmt.Fprintln(e.out)
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
