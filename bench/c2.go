// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"devxlab.example/batch"
	"devxlab.example/timerfix"
)

// c2 asks what deferring RTR to RTS does to the time until a queue pair is
// usable: the user-space half of the claim.
var c2 = Experiment{
	Name:     "c2",
	Question: "With more than 30,000 queue pairs, are they usable sooner if RTR to RTS is deferred by 1 ms?",
	Default:  true,
	many:     true,
	run:      runC2,
	needs:    func(o Options) int { return (&Run{Options: o}).c2QPs() },
	text:     c2Text,
	plan: func(r *Run) string {
		return fmt.Sprintf("makes %s queue pairs of its own through DevX, addressed to the port itself, and destroys them at the end; moves %d of them from RESET to RTS and back with %s modify commands, up to 31 at once; %s MiB of locked memory. No work request, no packet.",
			count(r.c2QPs()), c2Burst, count(3*stepsPerCycle*c2Burst*(r.pairs(c2Pairs)+1)), count(r.c2QPs()*pinnedPerQP>>20))
	},
}

const (
	c2Burst = batch.DefaultGroup // queue pairs that are wanted at the same moment
	c2Pairs = 30
)

// c2Policy is the article's; a test's has a lower threshold.
func (r *Run) c2Policy() timerfix.Policy {
	p := timerfix.Article()
	if r.small {
		p.QPs = 2 * c2Burst
	}
	return p
}

// c2QPs is one burst more than the policy's threshold.
func (r *Run) c2QPs() int { return r.c2Policy().QPs + c2Burst }

// Ways to bring queue pairs to RTS.
const (
	howNow      = "now"      // one after the other, at once
	howTogether = "together" // through the scheduler, due at once: what is due together is a batch
	howDeferred = "deferred" // through the scheduler, by the policy
)

func runC2(ctx context.Context, r *Run) error {
	p := r.c2Policy()
	r.Params["threshold"], r.Params["delay_ns"], r.Params["burst"] = p.QPs, p.Delay.Nanoseconds(), c2Burst
	r.Method = fmt.Sprintf("%d queue pairs in RTR are wanted in RTS at the same moment, while %s are alive. Now: devx.Modify, one after the other. Together: timerfix with no delay, so that they go out as a batch. Deferred: timerfix, by %v. Usable is when their owner is told; returns is when the call that asks for it has returned. Means of a burst, in turn.",
		c2Burst, count(r.c2QPs()), p.Delay)
	if r.c2QPs() > r.offered*permille/1000 && !r.emulated() || r.c2QPs() > r.offered {
		return fmt.Errorf("bench: c2 needs more than %s live queue pairs; %s offers %s, of which a run takes at most 70 %% on hardware: use a device or function with log_max_qp of 16 or more",
			count(p.QPs), r.Device, count(r.offered))
	}
	if err := r.lockable(r.c2QPs()); err != nil {
		return err
	}
	if err := r.c2Bursts(ctx, p); err != nil {
		return err
	}
	if r.emulated() {
		if err := r.c2Load(ctx, p); err != nil {
			return err
		}
	}
	r.Verdicts = append(r.Verdicts, c2Verdict(&r.Result))
	return nil
}

// c2Name is the series of a way: "burst/how=now/usable".
func c2Name(how, what string) string { return "burst/how=" + how + "/" + what }

// c2Bursts measures bursts on the device itself.
func (r *Run) c2Bursts(ctx context.Context, p timerfix.Policy) (err error) {
	bd, err := r.newBed(r.Device, 0)
	if err != nil {
		return err
	}
	defer closed(&err, bd.d)
	if err := bd.grow(ctx, r.c2QPs(), func(i int) { r.progress("%s of %s queue pairs made", count(i), count(r.c2QPs())) }); err != nil {
		return err
	}
	live := len(bd.qps)
	bd.qps = bd.qps[:c2Burst] // the rest stay alive with the device
	b := &burst{bed: bd, watch: stopwatchOf(r.Device), live: live}
	if b.s, err = b.scheduler(batch.Options{OnWait: r.onWait}); err != nil {
		return err
	}
	defer func() {
		_, stopped := b.s.Stop()
		err = errors.Join(err, stopped)
	}()
	// Every way has the threads that the batch needs.
	procs := procsFor(bd.d.Slots())
	arm := func(how string, send func(ctx context.Context) error) *contender {
		c := &contender{Series: Series{Name: c2Name(how, "usable"), What: "until one queue pair of a burst is usable", Ops: c2Burst}, procs: procs}
		c.parts = []*contender{{Series: Series{Name: c2Name(how, "returns"), What: "until the call that asks for it has returned", Ops: c2Burst}}}
		c.sample = func(ctx context.Context) (sample, error) { return b.take(ctx, send) }
		return c
	}
	now, together, deferred := arm(howNow, b.now), arm(howTogether, b.defers(timerfix.Policy{})), arm(howDeferred, b.defers(p))
	err = r.inTurn(ctx, r.pairs(c2Pairs), now, together, deferred)
	for _, pair := range [][2]*contender{{deferred, now}, {together, now}, {deferred, together}} {
		r.compare(pair[0], pair[1])
		r.compare(pair[0].parts[0], pair[1].parts[0])
	}
	return err
}

// burst is queue pairs that are wanted at the same moment.
type burst struct {
	*bed
	watch stopwatch
	live  int
	s     *timerfix.Scheduler

	start           time.Duration
	usable, returns time.Duration // sums of the burst
	failed          error
}

// scheduler tells when a queue pair is usable.
func (b *burst) scheduler(o batch.Options) (*timerfix.Scheduler, error) {
	options := timerfix.Options{Batch: o, OnEnd: func(_ timerfix.Ticket, r batch.Result) {
		b.usable += b.watch.now() - b.start
		b.failed = errors.Join(b.failed, r.Err)
	}}
	if b.watch.virtual != nil {
		options.Timer, options.Batch.Announced = newVirtualTimer(b.watch.virtual), true
	}
	return timerfix.New(b.d, options)
}

// take is one burst: up to RTR, then the timed step, and back.
func (b *burst) take(ctx context.Context, send func(context.Context) error) (sample, error) {
	for step := range rts {
		for _, q := range b.qps {
			if err := b.c.modify(q, step); err != nil {
				return sample{}, err
			}
		}
	}
	b.usable, b.returns, b.failed = 0, 0, nil
	b.start = b.watch.now()
	if err := errors.Join(send(ctx), b.failed); err != nil {
		return sample{}, err
	}
	for _, q := range b.qps {
		if err := b.c.modify(q, rts+1); err != nil {
			return sample{}, err
		}
	}
	return sample{ns: perOp(b.usable, len(b.qps)), more: []float64{perOp(b.returns, len(b.qps))}}, nil
}

// now brings them to RTS one after the other.
func (b *burst) now(context.Context) error {
	for _, q := range b.qps {
		if err := b.c.modify(q, rts); err != nil {
			return err
		}
		took := b.watch.now() - b.start
		b.usable += took
		b.returns += took
	}
	return nil
}

// defers brings them to RTS through the scheduler.
func (b *burst) defers(p timerfix.Policy) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, q := range b.qps {
			due, _ := p.Due(b.live, b.s.Now())
			if _, err := timerfix.Defer(b.s, q, b.c.rts, due); err != nil {
				return err
			}
			b.returns += b.watch.now() - b.start
		}
		return b.s.Drain(ctx) // after the last OnEnd
	}
}

// c2Verdict says what the user-space half shows.
func c2Verdict(r *Result) Verdict {
	v := Verdict{Claim: "C2", Answer: NotDecidable}
	c, back := r.ComparisonOf(c2Name(howDeferred, "usable"), c2Name(howNow, "usable")), r.ComparisonOf(c2Name(howDeferred, "returns"), c2Name(howNow, "returns"))
	delay := r.ComparisonOf(c2Name(howDeferred, "usable"), c2Name(howTogether, "usable"))
	if c == nil || back == nil || delay == nil {
		v.Why = "Nothing was compared."
		return v
	}
	figures := fmt.Sprintf("a burst of %d is usable after %s of the time of one by one if it is deferred, and after %s of the time of the same batch without delay; the calls return after %s of the time of one by one",
		c2Burst, c.Ratio.interval(), delay.Ratio.interval(), back.Ratio.interval())
	if r.Provenance.Place == PlaceEmu {
		v.Answer, v.Where = OnlyBreakEven, "make bench DEV=mlx5_0; the kernel's half: a patched kernel"
		own := "with our own code alone"
		if r.Provenance.Profile != "zero" {
			own = "with commands as profile " + r.Provenance.Profile + " was told"
		}
		v.Why = fmt.Sprintf("In user space, %s: %s. %s", own, figures, c2LoadSays(r))
		return v
	}
	// The claim is about the delay. What a batch wins is another one's (C6), and
	// what the driver's bookkeeping costs only a patched kernel shows.
	v.Where = "a patched kernel, for the driver's half"
	switch {
	case c.Ratio.Answer == Better && delay.Ratio.Answer == Better:
		v.Answer = Supported
		v.Why = "In user space, the delay itself helps: " + figures + "."
	case c.Ratio.Answer == Better && delay.Ratio.Answer == Worse:
		v.Why = "In user space the batch helps and the delay does not: " + figures + "."
	case delay.Ratio.Answer == Worse:
		v.Why = "In user space the delay does not help: " + figures + "."
	default:
		v.Why = "In user space the intervals do not tell: " + figures + "."
	}
	return v
}

func c2Text(r *Result, p *page) {
	var rows [][]string
	for _, x := range []struct{ how, what string }{{howNow, "one by one, now"}, {howTogether, "together, no delay"}, {howDeferred, "deferred"}} {
		usable, returns := r.SeriesOf(c2Name(x.how, "usable")), r.SeriesOf(c2Name(x.how, "returns"))
		if usable == nil || returns == nil {
			continue
		}
		row := []string{x.what, nanos(Median(usable.Samples)), "1", nanos(Median(returns.Samples)), "1"}
		if x.how != howNow {
			row[2], _, _ = r.ratioCells(usable.Name, c2Name(howNow, "usable"))
			row[4], _, _ = r.ratioCells(returns.Name, c2Name(howNow, "returns"))
		}
		rows = append(rows, row)
	}
	if rows != nil {
		p.section(fmt.Sprintf("1. A burst of queue pairs (%s, %s)", r.Provenance.Place, r.Provenance.Device), r.Method)
		p.table("lrlrl", []string{"", "usable after", "against now [95 %]", "call returns after", "against now [95 %]"}, rows...)
	}
	c2LoadText(r, p)
}
