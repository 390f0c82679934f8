// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/bench"
	"devxlab.example/devx"
	"devxlab.example/emu/uverbs"
	"devxlab.example/internal/qpparams"
)

type benchCmd struct {
	Experiments []string `arg:"" optional:"" help:"Which ones (see --list); default: all but those that --list marks."`
	Device      string   `default:"emu:" env:"DEV" help:"Where to measure. Hardware is opened only if it is named, here or in $DEV."`
	Dir         string   `default:"results" help:"Directory for raw samples and benchmark lines; each run gets one of its own below it. Empty: nothing is written."`
	Quick       bool     `help:"The fewest pairs that allow an answer: 20."`

	Duration *time.Duration `placeholder:"TIME" help:"How long c8 lasts, all runs together; default 20s. How long c3 may last: it makes fewer connections then."`
	Rate     *float64       `placeholder:"N" help:"Changes of state a second in c8; default 500. Connections a second in c3 (open loop); default: each worker begins the next when one has ended."`
	Resume   string         `placeholder:"DIR" help:"Go on with the c8 that was interrupted in this run's directory (results/20…)."`

	Rival string `placeholder:"COMMAND" help:"Program, with arguments, that the experiment rival compares with: bench/rival/modify.c."`

	KernelCost  bool   `help:"Also show what the kernel spends on each command, stage by stage; needs root, and costs each command something (devxlab trace)."`
	Peer        string `placeholder:"ADDRESS" help:"Where devxlab cm server runs, for c3: ADDRESS or ADDRESS:PORT."`
	Congest     string `placeholder:"COMMAND" help:"Program, with arguments, that makes the wire busy in every second block of c3: it says a line when it does, and ends at SIGTERM."`
	Connections int    `placeholder:"N" help:"Connections that c3 makes of each kind; default 10000."`
	Workers     int    `placeholder:"N" help:"That c3 makes at the same time; default 8."`

	qpparams.Flags

	List bool `help:"List the experiments and their questions."`
}

func (c benchCmd) Run(e *env) error {
	if c.List {
		return c.list(e)
	}
	if c.Device == "" {
		c.Device = uverbs.Scheme + ":"
	}
	o, err := c.options(e)
	if err != nil {
		return usageError{err}
	}
	chosen, err := c.choose()
	if err != nil {
		return usageError{err}
	}
	dir := c.Resume
	if dir == "" && c.Dir != "" {
		if dir, err = runDir(c.Dir, time.Now()); err != nil {
			return err
		}
	}
	o.Dir = dir
	if !e.asJSON {
		c.announce(e)
	}
	results := []*bench.Result{}
	for _, x := range chosen {
		if e.ctx.Err() != nil || err != nil {
			fmt.Fprintf(e.err, "devxlab: not run: %s\n", x.Name)
			continue
		}
		var r *bench.Result
		o.Command = c.command(x.Name)
		if r, err = bench.Do(e.ctx, x, o); r == nil {
			err = openError(c.Device, err)
			continue
		}
		results = append(results, r)
		if !e.asJSON {
			if err := r.WriteText(e.out); err != nil {
				return err
			}
			fmt.Fprintln(e.out)
		}
	}
	if dir != "" && len(results) == 0 && c.Resume == "" {
		_ = os.Remove(dir) // empty
	}
	file := "" // the report
	if dir != "" && len(results) > 0 {
		var rerr error
		all := results
		if c.Resume != "" { // what the first run measured besides
			if there, _ := bench.LoadDir(dir); len(there) > 0 {
				all = there
			}
		}
		file, rerr = benchReport(dir, all)
		err = errors.Join(err, rerr)
	}
	switch {
	case e.asJSON:
		err = errors.Join(err, e.json(results))
	case len(results) > 0:
		err = errors.Join(err, bench.WriteVerdicts(e.out, results))
		if dir != "" {
			fmt.Fprintf(e.out, "\nraw samples (JSON) and Go benchmark lines (for benchstat): %s\n", dir)
		}
		if file != "" {
			fmt.Fprintf(e.out, "report, for a browser: %s\n", file)
		}
	}
	return err
}

// options are what the flags say, checked.
func (c benchCmd) options(e *env) (bench.Options, error) {
	o := bench.Options{Device: c.Device, Quick: c.Quick, Resume: c.Resume != "", Announce: e.out}
	if e.asJSON {
		o.Announce = e.err
	}
	if isTerminal(e.err) {
		o.Progress = e.err
	}
	o.Rival, o.Congest, o.Connections, o.Workers, o.KernelCost = strings.Fields(c.Rival), strings.Fields(c.Congest), c.Connections, c.Workers, c.KernelCost
	if c.Peer != "" {
		to, err := address(c.Peer, false)
		if err != nil {
			return o, fmt.Errorf("--peer %w", err)
		}
		o.Peer = to.String()
	}
	if c.Duration != nil {
		o.Duration = *c.Duration
	}
	if c.Rate != nil {
		o.Rate = *c.Rate
	}
	switch {
	case c.Duration != nil && *c.Duration <= 0:
		return o, fmt.Errorf("--duration %v: a time above 0, such as 20s or 8h", *c.Duration)
	case c.Rate != nil && !(*c.Rate >= bench.LeastRate && *c.Rate <= bench.MostRate):
		return o, fmt.Errorf("--rate %g: %g to %g a second", *c.Rate, bench.LeastRate, bench.MostRate)
	case slices.Contains(c.Experiments, "c3") && c.Peer == "":
		return o, errors.New("c3 connects to a peer: --peer ADDRESS, where devxlab cm server runs")
	case c.Connections < 0 || c.Workers < 0:
		return o, errors.New("--connections and --workers: 1 or more")
	case c.Resume != "" && !slices.Equal(c.Experiments, []string{"c8"}):
		return o, errors.New("--resume goes on with c8: devxlab bench c8 --resume DIR")
	}
	p, sources, err := c.Flags.Resolve()
	if err != nil {
		return o, err
	}
	for _, s := range sources {
		if s.Kind == qpparams.FromDefault {
			continue
		}
		warn(e, p)
		if sources["max_qp"].Kind == qpparams.FromDefault {
			p.MaxQP = 1<<24 - 1 // nobody asked for a limit
		}
		o.QP = &p
		break
	}
	return o, nil
}

// command is the command line that runs one of the experiments again.
func (c benchCmd) command(name string) string {
	words := []string{"devxlab", "bench", name, "--device", quote(c.Device)}
	flag := func(name string, value *string) {
		if value != nil {
			words = append(words, name, quote(*value))
		}
	}
	if c.Quick {
		words = append(words, "--quick")
	}
	if c.KernelCost {
		words = append(words, "--kernel-cost")
	}
	if name == "c8" && c.Duration != nil {
		words = append(words, "--duration", c.Duration.String())
	}
	if name == "c8" && c.Rate != nil {
		words = append(words, "--rate", fmt.Sprint(*c.Rate))
	}
	if name == "rival" && c.Rival != "" {
		flag("--rival", &c.Rival)
	}
	if name == "c3" {
		flag("--peer", &c.Peer)
		if c.Congest != "" {
			flag("--congest", &c.Congest)
		}
		if c.Connections > 0 {
			words = append(words, "--connections", fmt.Sprint(c.Connections))
		}
		if c.Workers > 0 {
			words = append(words, "--workers", fmt.Sprint(c.Workers))
		}
		if c.Duration != nil {
			words = append(words, "--duration", c.Duration.String())
		}
		if c.Rate != nil {
			words = append(words, "--rate", fmt.Sprint(*c.Rate))
		}
	}
	flag("--config", c.Config)
	flag("--max-qp", c.MaxQP)
	flag("--qp-timeout", c.QPTimeout)
	flag("--retry-cnt", c.RetryCnt)
	flag("--rnr-retry", c.RNRRetry)
	return strings.Join(words, " ")
}

func (c benchCmd) list(e *env) error {
	all := bench.Experiments()
	if e.asJSON {
		return e.json(all)
	}
	for _, x := range all {
		note := ""
		if !x.Default {
			note = " (only if named)"
		}
		fmt.Fprintf(e.out, "%-6s %s%s\n", x.Name, x.Question, note)
	}
	return nil
}

// choose returns the experiments that were asked for.
func (c benchCmd) choose() ([]bench.Experiment, error) {
	var out []bench.Experiment
	var known []string
	byName := map[string]bench.Experiment{}
	for _, x := range bench.Experiments() {
		byName[x.Name] = x
		known = append(known, x.Name)
		if x.Default && len(c.Experiments) == 0 {
			out = append(out, x)
		}
	}
	for _, n := range c.Experiments {
		x, ok := byName[strings.ToLower(n)]
		switch {
		case !ok:
			return nil, fmt.Errorf("no experiment %q: %s", n, strings.Join(known, ", "))
		case x.EmuOnly && !c.emulated():
			return nil, fmt.Errorf("%s %w: --device %s", x.Name, bench.ErrEmuOnly, uverbs.Scheme+":")
		case !slices.ContainsFunc(out, func(o bench.Experiment) bool { return o.Name == x.Name }):
			out = append(out, x)
		}
	}
	return out, nil
}

func (c benchCmd) emulated() bool { return strings.HasPrefix(c.Device, uverbs.Scheme+":") }

// runDir makes a directory below base that no other run has.
func runDir(base string, now time.Time) (string, error) {
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", fmt.Errorf("no directory for the results (--dir): %w", err)
	}
	name := filepath.Join(base, now.Format("20060102-150405"))
	for i := 1; ; i++ {
		dir := name
		if i > 1 {
			dir = fmt.Sprintf("%s-%d", name, i)
		}
		err := os.Mkdir(dir, 0o755)
		if !errors.Is(err, fs.ErrExist) {
			if err != nil {
				err = fmt.Errorf("no directory for the results (--dir): %w", err)
			}
			return dir, err
		}
	}
}

// announce says where the run takes place. What is done to hardware, each
// experiment says itself before it begins.
func (c benchCmd) announce(e *env) {
	if !c.emulated() {
		fmt.Fprintf(e.out, "place: %s, %s. It is used through DevX and verbs; nobody else's queue pairs are touched.\n", bench.KernelPlace(), c.Device)
		return
	}
	fmt.Fprintf(e.out, "place: emu. Kernel and NIC are emulated inside this process (%s); no hardware is touched.\n", c.Device)
	if found, err := devx.Devices(); err == nil && len(found) > 0 {
		var names []string
		for _, d := range found {
			names = append(names, d.Name)
		}
		fmt.Fprintf(e.out, "This machine has %s. To measure there: make bench DEV=%s\n", strings.Join(names, ", "), names[0])
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
