// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"fmt"

	"devxlab.example/batch"
	"devxlab.example/devx"
)

// Ways to move a group of queue pairs that DevX made, in the part of c6 that has the
// kernel's batch in it.
const (
	wayKernel  = "kernel"  // batch.Kernel: one ioctl for up to 32
	wayBatched = "batched" // batch's own threads, as many as there are slots
	waySerial  = "serial"  // one by one
)

// c6KernelName is the name of a series of that part.
func c6KernelName(how string) string { return "one-ioctl/how=" + how }

// c6Kernel measures the kernel's own batch, where the kernel has it: the same
// transitions by one ioctl, by batch's threads, and one by one.
func (r *Run) c6Kernel(ctx context.Context) (err error) {
	if !r.modifyBatch {
		r.Findings = append(r.Findings, "One ioctl for a whole batch was not measured: this kernel has none. It takes patch 0003: patches/README.md says how to build and load it, and make patches-compare tries it in the lab.")
		return nil
	}
	bd, err := r.newBed(r.Device, c6Group)
	if err != nil {
		return err
	}
	defer closed(&err, bd.d)
	return r.c6KernelOn(ctx, bd)
}

// c6KernelOn measures on a bed.
func (r *Run) c6KernelOn(ctx context.Context, bd *bed) (err error) {
	r.Method += " Kernel: the same queue pairs by batch.Kernel, one ioctl for the group."
	ways, end, err := r.c6Ways(bd, c6RoundsHW)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for _, w := range ways {
		w.Name = c6KernelName(w.Name)
	}
	err = r.inTurn(ctx, r.pairs(c6PairsHW), ways...)
	r.compare(ways[0], ways[2])
	r.compare(ways[0], ways[1])
	return err
}

// c6Ways are the ways to move the queue pairs of a bed, without the kernel's if it
// has none, named as the ways are; end ends their batches.
func (r *Run) c6Ways(bd *bed, rounds int) (ways []*contender, end func() error, err error) {
	var open []*batch.Batch
	end = func() (err error) {
		for _, t := range open {
			err = errors.Join(err, t.Close())
		}
		return err
	}
	way := func(how string) *contender {
		c := &contender{Series: Series{Name: how, What: "one transition", Ops: rounds * stepsPerCycle * len(bd.qps)}, procs: procsFor(c6Claimed)}
		ways = append(ways, c)
		return c
	}
	for _, x := range []struct {
		how string
		o   batch.Options
	}{
		{wayKernel, batch.Options{Group: len(bd.qps), Strategy: batch.Kernel(), OnWait: r.onWait}},
		{wayBatched, batch.Options{Group: len(bd.qps), Depth: c6Claimed, OnWait: r.onWait}},
	} {
		t, err := batch.New(bd.d, x.o)
		if x.how == wayKernel && errors.Is(err, devx.ErrNoModifyBatch) {
			continue
		}
		if err != nil {
			return nil, nil, errors.Join(err, end())
		}
		open = append(open, t)
		way(x.how).sample = bd.batched(t, rounds, 0, nil)
	}
	way(waySerial).sample = bd.oneByOne(rounds, bd.c.modify)
	return ways, end, nil
}

// c6KernelSays adds to a verdict what the kernel's batch did. It does not change the
// answer: the claim is about batches that there are.
func c6KernelSays(v Verdict, r *Result) Verdict {
	serial, batched := r.ComparisonOf(c6KernelName(wayKernel), c6KernelName(waySerial)), r.ComparisonOf(c6KernelName(wayKernel), c6KernelName(wayBatched))
	if serial == nil || batched == nil {
		return v
	}
	v.Why += fmt.Sprintf(" By one ioctl of the patched kernel a transition takes %s of what it takes one by one (%s, %d pairs), and %s of what it takes in a batch over threads (%s).",
		serial.Ratio.interval(), serial.Ratio.Answer, serial.Ratio.Pairs, batched.Ratio.interval(), batched.Ratio.Answer)
	return v
}

func c6KernelText(r *Result, p *page) {
	one := r.SeriesOf(c6KernelName(wayKernel))
	if one == nil {
		return
	}
	rows := [][]string{{"one ioctl of the patched kernel", nanos(Median(one.Samples)), nanos(c6Group * Median(one.Samples)), "", "", ""}}
	for _, x := range []struct{ how, what string }{{wayBatched, fmt.Sprintf("batched, %d workers", c6Claimed)}, {waySerial, "one by one"}} {
		s := r.SeriesOf(c6KernelName(x.how))
		if s == nil {
			continue
		}
		ratio, answer, pairs := r.ratioCells(one.Name, s.Name)
		rows = append(rows, []string{x.what, nanos(Median(s.Samples)), nanos(c6Group * Median(s.Samples)), ratio, pairs, answer})
	}
	p.section(fmt.Sprintf("One ioctl for %d (%s)", c6Group, r.Provenance.Place),
		"The same transitions of the same queue pairs, in turn. The ioctl holds up to half of the command slots, and returns when the last answer is in.")
	p.table("lrrlrl", []string{"how", "a transition", fmt.Sprintf("a batch of %d", c6Group), "one ioctl / this [95 %]", "pairs", "one ioctl is"}, rows...)
}
