// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/emu/uverbs"
)

// c6 asks whether batches are faster than one transition after the other.
var c6 = Experiment{
	Name:     "c6",
	Question: "Is modifying queue pairs in batches of 32 faster than one by one?",
	run:      runC6,
}

const (
	c6Group  = batch.DefaultGroup
	c6Rounds = 8 // cycles of the group in one sample
)

// c6Depths are the depths of the sweep: around the powers of two, the 31 slots
// of the command queue, and beyond.
var c6Depths = []int{1, 2, 4, 8, 16, 31, 32, 64}

func runC6(ctx context.Context, r *Run) error {
	r.Method = fmt.Sprintf("One sample: %d queue pairs from RESET to INIT, RTR, RTS and back, through DevX. Serial (one by one, from one goroutine) "+
		"and batched samples alternate; ratios are the median over pairs with a 95 %% bootstrap interval.", c6Group)
	r.Params["group"] = c6Group
	if !r.emulated() {
		return r.c6Device(ctx)
	}
	if err := r.c6Own(ctx); err != nil {
		return err
	}
	if err := r.c6BreakEven(ctx); err != nil {
		return err
	}
	return r.c6Flight(ctx)
}

// bed is a device with a group of queue pairs and a way to move them.
type bed struct {
	d   *devx.Device
	c   cycle
	qps []*devx.QP
}

func newBed(name string, n int) (*bed, error) {
	d, err := devx.Open(name)
	if err != nil {
		return nil, err
	}
	b := &bed{d: d}
	if b.c, err = loopback(d); err != nil {
		return nil, joinClose(err, d)
	}
	for range n {
		q, err := d.NewQP(devx.QPConfig{})
		if err != nil {
			return nil, joinClose(err, d)
		}
		b.qps = append(b.qps, q)
	}
	return b, nil
}

// transitions runs the cycle on every queue pair, rounds times, and returns the
// time for one transition in nanoseconds.
func (b *bed) transitions(ctx context.Context, t *batch.Batch, rounds int) (float64, error) {
	var spent time.Duration
	for range rounds {
		for step := range stepsPerCycle {
			t.Reset()
			for i, q := range b.qps {
				if err := b.add(t, q, step, uint64(i)); err != nil {
					return 0, err
				}
			}
			start := time.Now()
			if err := t.Run(ctx); err != nil {
				return 0, err
			}
			spent += time.Since(start)
		}
	}
	return float64(spent.Nanoseconds()) / float64(rounds*stepsPerCycle*len(b.qps)), nil
}

func (b *bed) add(t *batch.Batch, q *devx.QP, step int, tag uint64) error {
	switch step {
	case 0:
		return batch.Add(t, q, b.c.init, tag)
	case 1:
		return batch.Add(t, q, b.c.rtr, tag)
	case 2:
		return batch.Add(t, q, b.c.rts, tag)
	}
	return batch.Add(t, q, reset, tag)
}

func joinClose(err error, c interface{ Close() error }) error {
	return joined(err, c.Close())
}

// rival is one way to move a group, and the samples taken of it.
type rival struct {
	strategy batch.Strategy
	b        *batch.Batch
	samples  []float64
	flight   []float64
}

// race takes pairs of samples of each rival and of the first one, in turn.
func (r *Run) race(ctx context.Context, bd *bed, rounds, pairs int, label string, strategies ...batch.Strategy) (base []rival, others []rival, err error) {
	reference := strategies[0]
	for _, s := range strategies[1:] {
		a, err := newRival(bd.d, reference)
		if err != nil {
			return base, others, err
		}
		o, err := newRival(bd.d, s)
		if err != nil {
			return base, others, joinClose(err, a.b)
		}
		for i := range pairs + 1 {
			r.progress("%s: %s against %s, pair %d of %d", label, s.Name(), reference.Name(), i, pairs)
			for _, x := range []*rival{a, o} {
				ns, err := bd.transitions(ctx, x.b, rounds)
				if err != nil {
					return append(base, *a), append(others, *o), joined(err, a.b.Close(), o.b.Close())
				}
				if i == 0 { // warm-up
					continue
				}
				mean, _ := x.b.InFlight()
				x.samples, x.flight = append(x.samples, ns), append(x.flight, mean)
			}
		}
		base, others = append(base, *a), append(others, *o)
		if err := joined(a.b.Close(), o.b.Close()); err != nil {
			return base, others, err
		}
	}
	return base, others, nil
}

func newRival(d *devx.Device, s batch.Strategy) (*rival, error) {
	b, err := batch.New(d, batch.Options{Group: c6Group, Strategy: s})
	if err != nil {
		return nil, err
	}
	return &rival{strategy: s, b: b}, nil
}

// keep records what a race measured.
func (r *Run) keep(prefix string, base, others []rival) {
	for i := range others {
		a, o := base[i], others[i]
		n := min(len(a.samples), len(o.samples))
		if n == 0 {
			continue
		}
		for _, x := range []rival{a, o} {
			name := prefix + x.strategy.Name()
			if x.strategy == a.strategy {
				name += "/vs=" + o.strategy.Name()
			}
			r.Series = append(r.Series, Series{
				Name: name, What: "one transition", Samples: x.samples, Summary: Summarize(x.samples), InFlight: Median(x.flight),
			})
		}
		r.Comparisons = append(r.Comparisons, Comparison{
			A: prefix + o.strategy.Name(), B: prefix + a.strategy.Name(), Ratio: CompareCosts(o.samples[:n], a.samples[:n], r.seed),
		})
	}
}

// c6Own measures what batching itself costs: on a device that adds nothing.
func (r *Run) c6Own(ctx context.Context) error {
	bd, err := newBed("emu:name=c6-own", c6Group)
	if err != nil {
		return err
	}
	defer bd.d.Close()
	for _, depth := range []int{1, 2, 4, 8, 16, 31, 64} {
		restore := maxProcs(depth)
		base, others, err := r.race(ctx, bd, c6Rounds, r.pairs(40), "own cost", batch.Serial(), batch.Parallel(depth))
		restore()
		r.keep("zero/", base, others)
		if err != nil {
			return err
		}
	}
	return nil
}

// c6Costs are the device's times per command that the break-even is told for.
var c6Costs = []time.Duration{500 * time.Nanosecond, 5 * time.Microsecond, 50 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond}

// c6BreakEven asks from how many commands at once on a batch wins. The device's
// part runs on the virtual clock, where it is exact; our own part is what c6Own
// measured. Nothing else is in the answer.
func (r *Run) c6BreakEven(ctx context.Context) error {
	own := func(name string) float64 {
		if s := r.SeriesOf("zero/" + name); s != nil {
			return float64(s.Summary.P50)
		}
		return 0
	}
	serial, parallel := own("serial-devx/vs=parallel-31"), own("parallel-31")
	table := map[string]any{}
	var said []string
	for _, cost := range c6Costs {
		p, times, err := r.breakEven(ctx, cost, serial, parallel)
		if err != nil {
			return err
		}
		table[cost.String()] = map[string]any{"p": p, "group_ns_by_p": times}
		if p == 0 {
			said = append(said, fmt.Sprintf("%v: never", cost))
		} else {
			said = append(said, fmt.Sprintf("%v: p* = %d", cost, p))
		}
	}
	r.Params["break_even"] = table
	r.Findings = append(r.Findings,
		fmt.Sprintf("own cost of one transition: %s one by one, %s batched at depth 31 (profile zero)", nanos(serial), nanos(parallel)),
		"break-even: a batch of 32 wins if the firmware executes at least p* commands at once; by the time that a command takes: "+strings.Join(said, ", "))
	r.Verdicts = append(r.Verdicts, Verdict{
		Claim: "C6", Answer: NotDecidable,
		Why: "how many commands firmware executes at once is not known here; " + strings.Join(said, ", ") +
			". Decided by: make bench DEV=<an mlx5 device>",
	})
	return nil
}

// breakEven returns the least number of firmware threads with which, and with
// every larger number, a batched group takes less than a serial one; 0 if there
// is none up to 31. times is the batched group's time for each.
func (r *Run) breakEven(ctx context.Context, cost time.Duration, ownSerial, ownParallel float64) (int, []float64, error) {
	var times []float64
	least := 0
	alone := c6Group * (float64(cost.Nanoseconds()) + ownSerial)
	for p := 1; p <= 31; p++ {
		if err := ctx.Err(); err != nil {
			return 0, times, err
		}
		r.progress("break-even: %v a command, %d at once", cost, p)
		device, err := groupTime(ctx, cost, p)
		if err != nil {
			return 0, times, err
		}
		total := float64(device.Nanoseconds()) + c6Group*ownParallel
		times = append(times, total)
		switch {
		case total >= alone:
			least = 0
		case least == 0:
			least = p
		}
	}
	return least, times, nil
}

// groupTime returns the virtual time of one batched group.
func groupTime(ctx context.Context, cost time.Duration, threads int) (time.Duration, error) {
	name := fmt.Sprintf("emu:clock=virtual,latency=%v,threads=%d,name=c6", cost, threads)
	bd, err := newBed(name, c6Group)
	if err != nil {
		return 0, err
	}
	defer bd.d.Close()
	emu, ok := uverbs.Lookup(name)
	if !ok {
		return 0, fmt.Errorf("bench: %s is not open", name)
	}
	b, err := batch.New(bd.d, batch.Options{Group: c6Group})
	if err != nil {
		return 0, err
	}
	defer b.Close()
	for i, q := range bd.qps {
		if err := bd.add(b, q, 0, uint64(i)); err != nil {
			return 0, err
		}
	}
	start := emu.HCA().Clock().Now()
	err = b.Run(ctx)
	return emu.HCA().Clock().Now() - start, err
}

// c6Flight sweeps the depth on the real clock, to see how many commands really
// are in flight and what GOMAXPROCS does to it. It is about this machine and Go;
// the device's time is what the profile was told.
func (r *Run) c6Flight(ctx context.Context) error {
	const device = "emu:latency=1ms,threads=64,name=c6-flight"
	r.Params["flight_device"] = device
	bd, err := newBed(device, batch.MaxGroup)
	if err != nil {
		return err
	}
	defer bd.d.Close()
	all := bd.qps
	old := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(old)
	for _, procs := range []int{2, 40} {
		runtime.GOMAXPROCS(procs)
		for _, depth := range c6Depths {
			// Whole waves: a last one that is half empty would look like a lack
			// of commands in flight.
			group := depth * (batch.MaxGroup / depth)
			bd.qps = all[:group]
			b, err := batch.New(bd.d, batch.Options{Group: group, Strategy: batch.Parallel(depth)})
			if err != nil {
				return err
			}
			s := Series{Name: fmt.Sprintf("flight/GOMAXPROCS=%d/depth=%d", procs, depth), What: "one transition"}
			var flight []float64
			for i := range 5 {
				r.progress("in flight: GOMAXPROCS %d, depth %d", procs, depth)
				ns, err := bd.transitions(ctx, b, 1)
				if err != nil {
					return joined(err, b.Close())
				}
				if i > 0 {
					mean, _ := b.InFlight()
					s.Samples, flight = append(s.Samples, ns), append(flight, mean)
				}
			}
			s.Summary, s.InFlight = Summarize(s.Samples), Median(flight)
			s.Void = voidDepth(s.InFlight, depth)
			r.Series = append(r.Series, s)
			if err := b.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// voidDepth says why a sample at a depth must not be used: fewer commands were
// in flight than was asked for.
func voidDepth(achieved float64, depth int) string {
	if achieved >= 0.9*float64(depth) {
		return ""
	}
	return fmt.Sprintf("%.1f of %d in flight", achieved, depth)
}

// c6Device measures on hardware, where the firmware decides.
func (r *Run) c6Device(ctx context.Context) error {
	bd, err := newBed(r.Device, c6Group)
	if err != nil {
		return err
	}
	defer bd.d.Close()
	for _, depth := range c6Depths {
		restore := maxProcs(depth)
		base, others, err := r.race(ctx, bd, c6Rounds, r.pairs(20), "device", batch.Serial(), batch.Parallel(depth))
		restore()
		r.keep("", base, others)
		if err != nil {
			return err
		}
	}
	v := Verdict{Claim: "C6", Answer: NotDecidable, Why: "no comparison at depth 31"}
	for _, c := range r.Comparisons {
		if c.A != "parallel-31" {
			continue
		}
		v.Why = fmt.Sprintf("batched at depth 31 against one by one: %v", c.Ratio)
		switch c.Ratio.Answer {
		case Better:
			v.Answer = Supported
		case Worse:
			v.Answer = Refuted
		}
	}
	r.Verdicts = append(r.Verdicts, v)
	return nil
}
