// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"fmt"

	"github.com/HdrHistogram/hdrhistogram-go"

	"devxlab.example/batch"
)

// c6 asks whether batches are faster than one transition after the other.
var c6 = Experiment{
	Name:       "c6",
	Question:   "Is modifying queue pairs in batches of 32 faster than one by one?",
	Default:    true,
	run:        runC6,
	text:       c6Text,
	queuePairs: c6Group,
	needs:      func(Options) int { return c6Group },
	plan: func(r *Run) string {
		cycles := c6RoundsHW * stepsPerCycle * c6Group * (r.pairs(c6PairsHW) + 1)
		serial, n, by := len(c6Workers)*cycles, 2*len(c6Workers)*cycles, "through DevX"
		if r.verbs {
			serial, n, by = serial+2*cycles, n+3*cycles, "through DevX, and then as many by verbs"
		}
		if r.modifyBatch {
			serial, n = serial+cycles, n+3*cycles
		}
		return fmt.Sprintf("makes %d queue pairs of its own %s, addressed to the port itself, and destroys them at the end; moves them from RESET to RTS and back with %s modify commands, "+
			"%s of them one by one (%d s if a command takes a millisecond), the rest up to 31 at once. No work request, no packet.", c6Group, by, count(n), count(serial), serial/1000)
	},
}

const (
	c6Group    = batch.DefaultGroup
	c6Claimed  = 31 // workers that a batch of 32 has by default: the slots of the command queue
	c6PairsHW  = 20
	c6RoundsHW = 1 // cycles of the group in one sample
)

// c6Workers are the depths of the sweeps: the powers of two, the slots of the
// command queue, and beyond.
var c6Workers = []int{1, 2, 4, 8, 16, c6Claimed, 32, 64}

func runC6(ctx context.Context, r *Run) error {
	r.Params["group"] = c6Group
	if !r.emulated() {
		return r.c6Device(ctx)
	}
	r.Method = "One by one: devx.Modify in a loop. Batched: batch.Add and batch.Run. Each moves the same queue pairs from RESET to INIT, RTR, RTS and back."
	for _, part := range []func(context.Context) error{r.c6Own, r.c6BreakEven, r.c6Flight} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	r.Verdicts = append(r.Verdicts, c6EmuVerdict(r.BreakEven))
	return nil
}

// duel measures one by one against batched, pair by pair.
func (r *Run) duel(ctx context.Context, bd *bed, prefix string, workers, rounds, pairs int, series Series, look bool) (err error) {
	t, err := batch.New(bd.d, batch.Options{Group: len(bd.qps), Depth: workers, OnWait: r.onWait})
	if err != nil {
		return err
	}
	defer closed(&err, t)
	series.What = "one transition"
	series.Ops = rounds * stepsPerCycle * len(bd.qps)
	depth := 0
	if look {
		depth = workers
	}
	name := fmt.Sprintf("%s/workers=%d", prefix, workers)
	procs := procsFor(workers)
	serial := &contender{Series: series, sample: bd.oneByOne(rounds, bd.c.modify), procs: procs}
	serial.Name = name + "/how=serial"
	var took *hdrhistogram.Histogram
	var parts []*contender
	if look {
		took = newHistogram()
		parts = []*contender{{Series: Series{
			Name: name + "/command", What: "one command of a batch, from the call until it returned", Device: series.Device, Profile: series.Profile,
			Ops: series.Ops, Log: name + "/command", Histogram: took,
		}}}
	}
	batched := &contender{Series: series, sample: bd.batched(t, rounds, depth, took), procs: procs, parts: parts}
	batched.Name, batched.Depth = name+"/how=batched", depth
	return r.against(ctx, pairs, batched, serial)
}

// c6Device measures where there is a kernel, and on hardware the firmware
// decides.
func (r *Run) c6Device(ctx context.Context) error {
	r.Method = fmt.Sprintf("One by one: devx.Modify in a loop. Batched: batch.Add and batch.Run in groups of %d. Each moves the same queue pairs from RESET to INIT, RTR, RTS and back.", c6Group)
	if err := r.c6DevX(ctx); err != nil {
		return err
	}
	if err := r.c6Verbs(ctx); err != nil {
		return err
	}
	if err := r.c6Kernel(ctx); err != nil {
		return err
	}
	v := c6Against(c6Verdict(r.ComparisonOf(c6Names("device", c6Claimed))), r.ComparisonOf(c6VerbsName("batched"), c6VerbsName("verbs")))
	r.Verdicts = append(r.Verdicts, c6KernelSays(v, &r.Result))
	return nil
}

// c6DevX is of queue pairs made through DevX.
func (r *Run) c6DevX(ctx context.Context) (err error) {
	bd, err := r.newBed(r.Device, c6Group)
	if err != nil {
		return err
	}
	defer closed(&err, bd.d)
	defer r.c6Sweep("device", r.Device)
	for _, workers := range c6Workers {
		if err := r.duel(ctx, bd, "device", workers, c6RoundsHW, r.pairs(c6PairsHW), Series{}, true); err != nil {
			return err
		}
		r.voidWithSeries()
	}
	return nil
}

// voidWithSeries makes the last comparison void if what was batched in it did not
// reach its depth.
func (r *Run) voidWithSeries() {
	last := &r.Comparisons[len(r.Comparisons)-1]
	last.Void = r.SeriesOf(last.A).Void
}

// c6Sweep shows a transition against the workers.
func (r *Run) c6Sweep(prefix, device string) {
	for _, how := range []string{"batched", "serial"} {
		r.sweepOver(Sweep{Name: prefix + "/how=" + how, What: "one transition, " + how, X: "workers", Log: true, Device: device}, c6Workers, func(w int) string {
			return fmt.Sprintf("%s/workers=%d/how=%s", prefix, w, how)
		})
	}
}

// c6Names are the names of the series of a duel.
func c6Names(prefix string, workers int) (batched, serial string) {
	name := fmt.Sprintf("%s/workers=%d", prefix, workers)
	return name + "/how=batched", name + "/how=serial"
}

// c6Verdict is the answer on hardware: what the default batch did.
func c6Verdict(c *Comparison) Verdict {
	v := Verdict{Claim: "C6", Answer: NotDecidable}
	if c == nil {
		v.Why = fmt.Sprintf("There is no comparison with %d workers.", c6Claimed)
		return v
	}
	v.Why = fmt.Sprintf("A transition batched over %d workers takes %s of what it takes one by one, 95 %% interval %s to %s, %d pairs", c6Claimed, times(c.Ratio.Median), times(c.Ratio.Low), times(c.Ratio.High), c.Ratio.Pairs)
	switch {
	case c.Void != "":
		v.Why += "; but only " + c.Void + ": this machine did not keep up, so the figure says nothing about the device."
	case c.Ratio.Answer == Better:
		v.Answer = Supported
		v.Why += "."
	case c.Ratio.Answer == Worse:
		v.Answer = Refuted
		v.Why += "."
	default:
		v.Why += ": the interval does not tell which is faster."
	}
	return v
}

func c6Text(r *Result, p *page) {
	if r.SeriesOf("device/workers=1/how=batched") != nil {
		c6DeviceText(r, p)
		return
	}
	c6OwnText(r, p)
	c6BreakEvenText(r, p)
	c6FlightText(r, p)
}

func c6DeviceText(r *Result, p *page) {
	p.section(fmt.Sprintf("Batched against one by one (%s)", r.Provenance.Place),
		r.Method+" GOMAXPROCS is at least workers + 2. Possible is what a batch with so many workers could have in flight; below 0.9 of it a row is void.")
	var rows [][]string
	for _, w := range c6Workers {
		batched, serial := c6Names("device", w)
		b, s := r.SeriesOf(batched), r.SeriesOf(serial)
		if b == nil || s == nil {
			continue
		}
		ratio, answer, pairs := r.ratioCells(batched, serial)
		rows = append(rows, []string{fmt.Sprint(w), nanos(Median(s.Samples)), nanos(Median(b.Samples)), fmt.Sprintf("%.1f", b.InFlight), fmt.Sprintf("%.1f", b.Possible), ratio, pairs, answer})
	}
	p.table("rrrrrlrl", []string{"workers", "one by one", "batched", "in flight", "possible", "batched / one by one [95 %]", "pairs", "batched is"}, rows...)
	var whole [][]string
	for _, w := range c6Workers {
		batched, _ := c6Names("device", w)
		b, c := r.SeriesOf(batched), r.SeriesOf(fmt.Sprintf("device/workers=%d/command", w))
		if b != nil && c != nil {
			whole = append(whole, append([]string{fmt.Sprint(w), nanos(c6Group * Median(b.Samples))}, percentiles(c.Summary)...))
		}
	}
	c6VerbsText(r, p)
	c6KernelText(r, p)
	if whole != nil {
		p.section(fmt.Sprintf("A batch of %d, and each of its commands (%s)", c6Group, r.Provenance.Place), "A command, from the call until it returned: also while it waits for a slot or for the firmware.")
		p.table("rrrrrrr", []string{"workers", "a batch", "command P50", "P90", "P99", "P99.9", "most"}, whole...)
	}
}
