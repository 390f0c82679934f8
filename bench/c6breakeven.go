// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"fmt"
	"time"

	"devxlab.example/batch"
	"devxlab.example/emu/uverbs"
)

// c6Costs are the times of a command that the break-even is computed for: from
// less than our own cost to what slow cards were seen to take.
var c6Costs = []time.Duration{500 * time.Nanosecond, 5 * time.Microsecond, 50 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond}

// BreakEven says from how many commands at once on a batch wins.
type BreakEven struct {
	Command time.Duration `json:"command_ns"` // what one command takes
	// Least number of commands executed at once with which, and with any
	// larger one, the batch takes less; 0: with none up to 31. With the own
	// costs' medians, and with their 10th and 90th percentile in favour of the
	// batch and against it.
	P        int             `json:"p"`
	PFavour  int             `json:"p_favour"`
	PAgainst int             `json:"p_against"`
	Group    []time.Duration `json:"group_ns"` // the device's time for the batch, by commands at once, from 1
}

// c6BreakEven asks from how many commands at once on a batch wins. The device's
// part runs on the virtual clock, where it is exact; our own part is what c6Own
// measured. Nothing else is in the answer.
func (r *Run) c6BreakEven(ctx context.Context) error {
	batched, serial := c6Names("own", c6Claimed)
	b, s := r.SeriesOf(batched), r.SeriesOf(serial)
	if b == nil || s == nil {
		return fmt.Errorf("bench: break-even: the own cost with %d workers was not measured", c6Claimed)
	}
	for _, cost := range c6Costs {
		group, err := r.groupTimes(ctx, cost)
		if err != nil {
			return err
		}
		least := func(serial, batched float64) int { return breakEven(group, cost, serial, batched) }
		r.BreakEven = append(r.BreakEven, BreakEven{
			Command:  cost,
			P:        least(Median(s.Samples), Median(b.Samples)),
			PFavour:  least(quantile(s.Samples, 0.9), quantile(b.Samples, 0.1)),
			PAgainst: least(quantile(s.Samples, 0.1), quantile(b.Samples, 0.9)),
			Group:    group,
		})
	}
	return nil
}

// breakEven returns the least p with which, and with every larger one, the
// device's time for the group and our own for its transitions are less than
// those transitions one by one. group[p-1] is the device's time with p at once.
func breakEven(group []time.Duration, cost time.Duration, ownSerial, ownBatched float64) int {
	least := 0
	alone := c6Group * (float64(cost.Nanoseconds()) + ownSerial)
	for i, g := range group {
		switch total := float64(g.Nanoseconds()) + c6Group*ownBatched; {
		case total >= alone:
			least = 0
		case least == 0:
			least = i + 1
		}
	}
	return least
}

// groupTimes returns the virtual time of a batch on devices that execute 1 to
// 31 commands at once.
func (r *Run) groupTimes(ctx context.Context, cost time.Duration) ([]time.Duration, error) {
	var times []time.Duration
	for p := 1; p <= c6Claimed; p++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r.progress("break-even, %v a command, %d at once", cost, p)
		t, err := groupTime(ctx, cost, p)
		if err != nil {
			return nil, err
		}
		times = append(times, t)
	}
	return times, nil
}

// groupTime returns the virtual time of one batch.
func groupTime(ctx context.Context, cost time.Duration, threads int) (took time.Duration, err error) {
	name := fmt.Sprintf("emu:clock=virtual,latency=%v,threads=%d,name=c6-break-even", cost, threads)
	bd, err := newBed(name, c6Group)
	if err != nil {
		return 0, err
	}
	defer closed(&err, bd.d)
	emu, ok := uverbs.Lookup(name)
	if !ok {
		return 0, fmt.Errorf("bench: %s is not open", name)
	}
	b, err := batch.New(bd.d, batch.Options{Group: c6Group})
	if err != nil {
		return 0, err
	}
	defer closed(&err, b)
	for _, q := range bd.qps {
		if err := bd.c.add(b, q, 0); err != nil {
			return 0, err
		}
	}
	start := emu.HCA().Clock().Now()
	err = b.Run(ctx)
	return emu.HCA().Clock().Now() - start, err
}

// c6EmuVerdict is the answer in emu, where it can only be a condition.
func c6EmuVerdict(points []BreakEven) Verdict {
	v := Verdict{Claim: "C6", Answer: NotDecidable, Why: "It depends on how many commands the firmware executes at once, which no emulated device can know."}
	// The longest commands, for all of which there is a break-even, also with
	// the own costs that speak against the batch.
	from := len(points)
	most := 0
	for from > 0 && points[from-1].PAgainst > 0 {
		from--
		most = max(most, points[from].P, points[from].PAgainst)
	}
	v.Where = "make bench DEV=mlx5_0"
	if most > 0 {
		v.Answer = OnlyBreakEven
		v.Why += fmt.Sprintf(" Break-even: with %d or more, a batch is faster for commands of %v and longer.", most, points[from].Command)
	}
	return v
}

func c6BreakEvenText(r *Result, p *page) {
	if len(r.BreakEven) == 0 {
		return
	}
	batched, serial := c6Names("own", c6Claimed)
	about := fmt.Sprintf("A batch of %d over %d workers beats one by one if the device executes at least p* commands at once. The device's part is exact: the time of a command × ⌈%d/p⌉.",
		c6Group, c6Claimed, c6Group)
	if b, s := r.SeriesOf(batched), r.SeriesOf(serial); b != nil && s != nil {
		about += fmt.Sprintf(" Ours is added to it, from section 1: %s one by one, %s batched; in brackets, p* with their 10th and 90th percentile for and against the batch. Not in it: waking a thread for each answer (section 3).",
			nanos(Median(s.Samples)), nanos(Median(b.Samples)))
	}
	p.section("2. Break-even (emu, virtual clock)", about)
	head, row := []string{"a command takes"}, []string{"p*"}
	align := "l"
	for _, b := range r.BreakEven {
		head = append(head, nanos(float64(b.Command)))
		cell := star(b.P)
		if b.PFavour != b.P || b.PAgainst != b.P {
			cell += fmt.Sprintf(" [%s, %s]", star(b.PFavour), star(b.PAgainst))
		}
		row = append(row, cell)
		align += "r"
	}
	p.table(align, head, row)
}

func star(p int) string {
	if p == 0 {
		return "none"
	}
	return fmt.Sprint(p)
}
