// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"devxlab.example/devx"
	"devxlab.example/emu/uverbs"
	"devxlab.example/internal/qpparams"
)

// ErrEmuOnly is in the error of an experiment that refuses hardware.
var ErrEmuOnly = errors.New("is about the emulated device and runs on no other")

// Options of a run.
type Options struct {
	Device   string        // "" or "emu:…": the emulated device; a name such as mlx5_0: hardware
	Dir      string        // where the files go; "" writes none
	Quick    bool          // the fewest pairs that allow an answer
	Duration time.Duration // of campaigns (c8), 0: a short one; at most, of c3, 0: any
	Rate     float64       // of campaigns, operations a second; 0: the claim's. Of c3, connections a second; 0: closed loop
	Resume   bool          // a campaign goes on with what an earlier run has left in Dir
	Rival    []string      // program and arguments that rival compares with

	KernelCost bool // show what the kernel spent on the commands

	Peer        string   // address and port of the server that c3 connects to
	Congest     []string // program and arguments that make the wire busy for c3; nil: no congested part
	Connections int      // that c3 makes, of each kind; 0: as many as P99.9 needs
	Workers     int      // that make them at the same time; 0: 8

	Command string // that runs the experiment again, for the result
	// What queue pairs get in RTR2RTS, and where sweeps over their number stop; nil:
	// qpparams.Default, and what the device offers.
	QP *qpparams.Params

	Progress io.Writer // a terminal; nil: none
	Announce io.Writer // gets what will be done to hardware, before it is done; nil: none

	// For tests: take an emulated device for hardware, see each step, and do
	// little in each sample.
	asHardware bool
	step       func(label string)
	small      bool
}

// Run is an experiment under way.
type Run struct {
	Options
	Result
	seed    uint64
	shown   time.Time
	offered int     // queue pairs that the device has at most
	verbs   bool    // the device answers verbs commands
	resumed *Result // what an earlier run has left

	modifyBatch bool // the kernel has the batch ioctl of patches/
}

// emulated reports whether figures depend on what a profile was told.
func (r *Run) emulated() bool { return r.Provenance.Place == PlaceEmu }

// progress shows what is going on, ten times a second at most.
func (r *Run) progress(format string, args ...any) {
	if r.step != nil {
		r.step(fmt.Sprintf(format, args...))
	}
	if r.Options.Progress == nil || time.Since(r.shown) < 100*time.Millisecond {
		return
	}
	fmt.Fprintf(r.Options.Progress, "\r\x1b[K"+r.Experiment+": "+format, args...)
	r.shown = time.Now()
}

// pairs is how many interleaved pairs a comparison takes.
func (r *Run) pairs(full int) int {
	if r.Quick {
		return MinPairs
	}
	return max(full, MinPairs)
}

// repeats is how often a sample does what it measures.
func (r *Run) repeats(full int) int {
	if r.small {
		return max(full/100, 1)
	}
	return full
}

// onWait says why the end of an interrupted run is not there yet.
func (r *Run) onWait(inFlight int) {
	if r.Options.Progress != nil {
		fmt.Fprintf(r.Options.Progress, "\r\x1b[K%s: interrupted; waiting for %d commands in flight, which cannot be recalled (a hung one takes up to 65 s)\n", r.Experiment, inFlight)
	}
}

// Do runs one experiment. If ctx ends, so does the run: what was measured until
// then is in the result and in its files, marked, and without a verdict. A
// result is returned unless the device could not be opened or nothing could be
// written to Dir.
func Do(ctx context.Context, e Experiment, o Options) (*Result, error) {
	if o.Device == "" {
		o.Device = uverbs.Scheme + ":"
	}
	if e.many && !o.asHardware && isEmulated(o.Device) {
		o.Device = withOption(o.Device, "log_max_qp", "20")
	}
	if e.EmuOnly && (o.asHardware || !isEmulated(o.Device)) {
		return nil, fmt.Errorf("bench: %s %w: not on %s", e.Name, ErrEmuOnly, o.Device)
	}
	if o.Resume {
		if st, err := os.Stat(o.Dir); err != nil || !st.IsDir() {
			return nil, fmt.Errorf("bench: nothing to resume: %s is not the directory of a run", o.Dir)
		}
	}
	if q := o.QP; q != nil && e.needs != nil && e.needs(o) > q.MaxQP {
		return nil, fmt.Errorf("bench: %s makes %s queue pairs and max_qp is %s: raise it, or leave the experiment out", e.Name, count(e.needs(o)), count(q.MaxQP))
	}
	if err := writable(o.Dir); err != nil {
		return nil, err
	}
	r := &Run{Options: o, seed: 1}
	if err := r.inspect(e); err != nil {
		return nil, err
	}
	if o.Resume {
		if e.resume == nil {
			return nil, fmt.Errorf("bench: %s cannot be resumed: run it again", e.Name)
		}
		if err := e.resume(r); err != nil {
			return nil, err
		}
	}
	if r.emulated() && o.KernelCost {
		return nil, fmt.Errorf("bench: the kernel's cost %w, and %s is inside this process: --device mlx5_0, on a card or in the lab", ErrNoKernel, o.Device)
	}
	if !r.emulated() && o.Announce != nil {
		if _, err := fmt.Fprintf(o.Announce, "%s, on %s: %s\n", e.Name, o.Device, e.plan(r)); err != nil {
			return nil, err
		}
	}
	before, procs := readCPUTime(), runtime.GOMAXPROCS(0)
	err := r.watched(func() error { return e.run(ctx, r) })
	runtime.GOMAXPROCS(procs)
	if o.Progress != nil {
		fmt.Fprint(o.Progress, "\r\x1b[K")
	}
	r.Took = time.Since(r.Started)
	r.Provenance.Steal = stealSince(before)
	if err != nil && ctx.Err() != nil {
		r.Interrupted = true
		if onlyEnded(ctx, err) {
			err = nil
		}
	}
	if err != nil {
		r.Error = err.Error()
	}
	if r.Interrupted || err != nil {
		r.Verdicts, r.Findings = nil, nil
	}
	r.labVerdicts()
	if o.Dir != "" {
		err = errors.Join(err, r.Result.WriteFiles(o.Dir))
	}
	return &r.Result, err
}

// labVerdicts takes back what the lab cannot decide: its kernel is real, its
// firmware is not, and a whole command has both in it.
func (r *Run) labVerdicts() {
	if r.Provenance.Place != PlaceLab {
		return
	}
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		if v.Answer == Supported || v.Answer == Refuted {
			v.Answer, v.Where = NotDecidable, "make bench DEV=mlx5_0, on a machine that has one"
			v.Why = "The kernel of the lab is real and its firmware is emulated, and what was measured has both in it. As if it were a card: " + v.Why
		}
	}
}

// onlyEnded reports whether err says no more than that ctx has ended.
func onlyEnded(ctx context.Context, err error) bool {
	if err == ctx.Err() || err == context.Cause(ctx) {
		return true
	}
	switch x := err.(type) {
	case interface{ Unwrap() error }:
		return onlyEnded(ctx, x.Unwrap())
	case interface{ Unwrap() []error }: // joined ones, and *batch.Error: a failure and the reason for not sending
		for _, e := range x.Unwrap() {
			if !onlyEnded(ctx, e) {
				return false
			}
		}
		return len(x.Unwrap()) > 0
	}
	return false
}

// closed adds what closing c says to an error that is about to be returned.
func closed(err *error, c io.Closer) { *err = errors.Join(*err, c.Close()) }

// inspect opens the device to see what it is, and begins the result.
func (r *Run) inspect(e Experiment) error {
	d, err := devx.Open(r.Device)
	if err != nil {
		return err
	}
	profile := ""
	if emu, ok := uverbs.Lookup(r.Device); ok {
		profile = emu.HCA().Profile().Name
	}
	p := provenance(d.Info(), profile)
	if r.asHardware {
		p.Place, p.Profile = PlaceHW, ""
	}
	r.Result = Result{Format: Format, Experiment: e.Name, Question: e.Question, Command: r.Options.Command, Params: Params{}, Started: time.Now(), Provenance: p}
	if q := r.Options.QP; q != nil {
		for k, v := range qpParams(q) {
			r.Result.Params[k] = v
		}
	}
	r.verbs, r.modifyBatch = d.HasVerbs(), d.HasModifyBatch() == nil
	caps, err := d.Caps()
	if err == nil {
		r.offered = 1 << caps.LogMaxQP()
		if !r.emulated() {
			err = room(d, r.offered, e.queuePairs)
		}
	}
	return errors.Join(err, d.Close())
}

// contender is one of the things that are measured in turn.
type contender struct {
	Series
	sample func(ctx context.Context) (sample, error)
	procs  int // GOMAXPROCS while it is sampled; 0: as it is

	// Where one sample measures several things, each is a contender by itself,
	// and the first one takes the samples: what it returns as more is theirs.
	parts []*contender

	inFlight, possible []float64
}

// inTurn takes rounds samples of each contender, in turn; who goes first
// changes from round to round. One round more, before them, is not recorded.
// Whatever was measured is in the result afterwards, also if it ends early.
func (r *Run) inTurn(ctx context.Context, rounds int, cs ...*contender) error {
	before := runtime.GOMAXPROCS(0)
	defer func() {
		setProcs(before)
		for _, c := range cs {
			r.keep(c)
			for _, p := range c.parts {
				r.keep(p)
			}
		}
	}()
	for i := range rounds + 1 {
		for j := range cs {
			c := cs[(i+j)%len(cs)]
			if err := ctx.Err(); err != nil {
				return err
			}
			r.progress("%s, round %d of %d", c.Name, i, rounds)
			m, err := c.take(ctx)
			if err != nil {
				return fmt.Errorf("bench: %s: %s: %w", r.Experiment, c.Name, err)
			}
			if i > 0 {
				c.Samples = append(c.Samples, m.ns)
				c.inFlight, c.possible = append(c.inFlight, m.inFlight), append(c.possible, m.possible)
				for k, p := range c.parts {
					p.Samples = append(p.Samples, m.more[k])
				}
			}
			c.GOMAXPROCS = runtime.GOMAXPROCS(0)
			for _, p := range c.parts {
				p.GOMAXPROCS = c.GOMAXPROCS
			}
		}
	}
	return nil
}

// take makes a sample with the contender's GOMAXPROCS, which stays: who calls it sets it
// back in the end.
func (c *contender) take(ctx context.Context) (sample, error) {
	if c.procs > 0 {
		setProcs(c.procs)
	}
	return c.sample(ctx)
}

// setProcs changes GOMAXPROCS, which stops the program for a moment, only if it
// must.
func setProcs(n int) {
	if runtime.GOMAXPROCS(0) != n {
		runtime.GOMAXPROCS(n)
	}
}

// keep puts what was measured of c into the result.
func (r *Run) keep(c *contender) {
	if len(c.Samples) == 0 {
		return
	}
	if c.Histogram != nil {
		c.Summary = SummarizeHistogram(c.Histogram)
	} else {
		c.Summary = Summarize(c.Samples)
	}
	if c.Depth > 0 {
		c.InFlight, c.Possible = Median(c.inFlight), Median(c.possible)
		c.Void = voidDepth(c.InFlight, c.Possible)
	}
	r.Series = append(r.Series, c.Series)
}

// against takes pairs of samples of a and b and compares them.
func (r *Run) against(ctx context.Context, pairs int, a, b *contender) error {
	err := r.inTurn(ctx, pairs, a, b)
	r.compare(a, b)
	return err
}

func (r *Run) compare(a, b *contender) {
	n := min(len(a.Samples), len(b.Samples))
	if n == 0 {
		return
	}
	r.Comparisons = append(r.Comparisons, Comparison{A: a.Name, B: b.Name, Ratio: CompareCosts(a.Samples[:n], b.Samples[:n], r.seed)})
}

// sweepOver puts series that were measured at different x into one sweep. What
// was not measured is not in it.
func (r *Run) sweepOver(s Sweep, xs []int, name func(x int) string) {
	for _, x := range xs {
		m := r.SeriesOf(name(x))
		if m == nil {
			continue
		}
		low, high := MedianInterval(m.Samples, r.seed)
		s.Points = append(s.Points, Point{X: float64(x), N: len(m.Samples), Median: Float(Median(m.Samples)), Low: Float(low), High: Float(high), Void: m.Void})
	}
	if s.Points != nil {
		r.Sweeps = append(r.Sweeps, s)
	}
}

// voidDepth says why a point of a sweep over depth must not be used: fewer
// commands were in flight than should have been.
func voidDepth(achieved, asked float64) string {
	if achieved >= 0.9*asked-1e-9 {
		return ""
	}
	return fmt.Sprintf("%.1f of %.1f in flight", achieved, asked)
}

// procsFor is the GOMAXPROCS that a program needs to keep depth commands in
// flight: a thread for each, and two more. With fewer, the runtime hands
// blocked threads over slowly.
func procsFor(depth int) int { return max(runtime.GOMAXPROCS(0), depth+2) }
