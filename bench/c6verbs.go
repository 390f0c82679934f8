// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"fmt"

	"devxlab.example/batch"
)

// c6Verbs measures queue pairs that verbs made: the same transitions one by one
// through verbs, one by one through DevX, and in a batch, which is DevX, too. Each
// way ends in RESET, so the state that the driver remembers is right whoever is
// next.
func (r *Run) c6Verbs(ctx context.Context) (err error) {
	bd, err := r.newVerbsBed(r.Device)
	if err != nil || bd == nil {
		return err
	}
	defer closed(&err, bd.d)
	if err := bd.grow(ctx, c6Group, nil); err != nil {
		return err
	}
	t, err := batch.New(bd.d, batch.Options{Group: c6Group, Depth: c6Claimed, OnWait: r.onWait})
	if err != nil {
		return err
	}
	defer closed(&err, t)
	r.Method += " Verbs: devx.ModifyVerbs in a loop, on queue pairs that verbs made, and on the same ones the two ways through DevX."
	arm := func(how string) *contender {
		return &contender{
			Series: Series{Name: c6VerbsName(how), What: "one transition of a queue pair that verbs made", Ops: c6RoundsHW * stepsPerCycle * c6Group},
			procs:  procsFor(c6Claimed),
		}
	}
	verbs, devx, batched := arm("verbs"), arm("devx"), arm("batched")
	verbs.sample, devx.sample = bd.oneByOne(c6RoundsHW, bd.c.modifyVerbs), bd.oneByOne(c6RoundsHW, bd.c.modify)
	batched.Depth, batched.sample = c6Claimed, bd.batched(t, c6RoundsHW, c6Claimed, nil)
	err = r.inTurn(ctx, r.pairs(c6PairsHW), batched, devx, verbs)
	r.compare(devx, verbs)
	r.compare(batched, verbs)
	if err == nil {
		r.voidWithSeries()
	}
	return err
}

// c6VerbsName is the name of a series on queue pairs that verbs made.
func c6VerbsName(how string) string { return "verbs-qps/how=" + how }

// c6Against adds to a verdict what one by one through verbs says. Both kinds of
// one by one must agree.
func c6Against(v Verdict, verbs *Comparison) Verdict {
	if verbs == nil {
		return v
	}
	w := c6Verdict(verbs)
	c := verbs.Ratio
	v.Why += fmt.Sprintf(" On queue pairs that verbs made, a batch through DevX takes %s of what one by one through verbs takes, 95 %% interval %s to %s, %d pairs", times(c.Median), times(c.Low), times(c.High), c.Pairs)
	switch {
	case verbs.Void != "":
		v.Why += "; but only " + verbs.Void + "."
	case c.Answer == Inconclusive:
		v.Why += ", which does not tell which is faster."
	default:
		v.Why += "."
	}
	if w.Answer != v.Answer {
		v.Answer = NotDecidable
		v.Why += " The two comparisons do not agree."
	}
	return v
}

func c6VerbsText(r *Result, p *page) {
	verbs := r.SeriesOf(c6VerbsName("verbs"))
	if verbs == nil {
		return
	}
	rows := [][]string{{"one by one through verbs", nanos(Median(verbs.Samples)), "", "", ""}}
	for _, x := range []struct{ how, what string }{{"devx", "one by one through DevX"}, {"batched", fmt.Sprintf("batched through DevX, %d workers", c6Claimed)}} {
		s := r.SeriesOf(c6VerbsName(x.how))
		if s == nil {
			continue
		}
		ratio, answer, pairs := r.ratioCells(s.Name, verbs.Name)
		rows = append(rows, []string{x.what, nanos(Median(s.Samples)), ratio, pairs, answer})
	}
	p.section(fmt.Sprintf("Queue pairs that verbs made (%s)", r.Provenance.Place),
		"One transition, the mean of the way from RESET to RTS and back. Through verbs the driver checks the attributes, takes the queue pair's lock and, on the way to RTR, resolves the destination's MAC address; DevX skips all of that.")
	p.table("lrlrl", []string{"how", "a transition", "ratio to verbs [95 %]", "pairs", "than verbs it is"}, rows...)
}
