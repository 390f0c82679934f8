// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"fmt"
)

const (
	c6OwnDevice = "emu:name=c6-own"
	c6OwnRounds = 24 // cycles of the group in one sample
	c6OwnPairs  = 40
)

// c6Own measures what batching itself costs: on a device that answers at once.
func (r *Run) c6Own(ctx context.Context) (err error) {
	bd, err := r.newBed(c6OwnDevice, c6Group)
	if err != nil {
		return err
	}
	defer closed(&err, bd.d)
	defer r.c6Sweep("own", c6OwnDevice)
	for _, workers := range c6Workers {
		if err := r.duel(ctx, bd, "own", workers, r.repeats(c6OwnRounds), r.pairs(c6OwnPairs), Series{Device: c6OwnDevice, Profile: "zero"}, false); err != nil {
			return err
		}
	}
	return nil
}

func c6OwnText(r *Result, p *page) {
	var rows [][]string
	n := 0
	for _, w := range c6Workers {
		batched, serial := c6Names("own", w)
		b, s := r.SeriesOf(batched), r.SeriesOf(serial)
		if b == nil || s == nil {
			continue
		}
		ratio, answer, pairs := r.ratioCells(batched, serial)
		rows = append(rows, []string{fmt.Sprint(w), nanos(Median(s.Samples)), nanos(Median(b.Samples)), ratio, pairs, answer})
		n = b.Ops
	}
	if rows == nil {
		return
	}
	p.section("1. Own cost (emu, profile zero: the device answers at once, so this is our code alone)",
		fmt.Sprintf("One transition, one by one (devx.Modify) and in a batch of %d over so many workers (batch.Add, batch.Run); the mean of %s, interleaved pairs, GOMAXPROCS at least workers + 2. "+
			"With nothing to wait for, workers only cost: waking them is what a batch must win back.", c6Group, count(n)))
	p.table("rrrlrl", []string{"workers", "one by one", "batched", "batched / one by one [95 %]", "pairs", "batched is"}, rows...)
}
