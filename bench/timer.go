// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
	"devxlab.example/timerfix"
)

// timer measures package timerfix itself: what comes before the command, which
// no profile has a say in.
var timer = Experiment{
	Name:       "timer",
	Question:   "How late does a deferred transition go out with 100,000 pending, against a bare blocking timerfd, and what do pending ones cost?",
	Default:    true,
	run:        runTimer,
	text:       timerText,
	queuePairs: 1,
	needs:      func(Options) int { return 1 },
	plan: func(r *Run) string {
		return fmt.Sprintf("makes 1 queue pair of its own through DevX and destroys it at the end; resets it %s times, each half a millisecond after the other. No work request, no packet.",
			count(timerShots*(r.pairs(timerPairs)+1)))
	},
}

const (
	timerPending = 100_000
	timerFew     = 100
	timerPairs   = 60
	timerShots   = 200 // in one sample
	timerAhead   = 300 * time.Microsecond
	timerBatch   = 500 // deferred and cancelled in one sample
)

func runTimer(ctx context.Context, r *Run) (err error) {
	many := timerPending
	if r.small {
		many = 10 * timerFew
	}
	r.Method = fmt.Sprintf("Interleaved: a sample is %d shots, each due %v to %v ahead. Bare: a timerfd set to the absolute time and read; late is the clock after the read. Deferred: timerfix, %s others pending; late is the beginning of the call that sends the transition.",
		timerShots, timerAhead, 2*timerAhead, count(many))
	r.Params["pending"], r.Params["pending_few"], r.Params["shots"] = many, timerFew, timerShots
	bd, err := r.newBed(r.Device, 1)
	if err != nil {
		return err
	}
	defer closed(&err, bd.d)
	big, err := newPile(bd, many)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, big.stop()) }()
	small, err := newPile(bd, timerFew)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, small.stop()) }()
	if err := r.lateness(ctx, big); err != nil {
		return err
	}
	if err := r.pendingCost(ctx, big, small); err != nil {
		return err
	}
	r.Findings = append(r.Findings, timerFindings(&r.Result)...)
	return nil
}

// pile is a scheduler with many pending transitions, due in an hour or later.
type pile struct {
	s       *timerfix.Scheduler
	q       *devx.QP
	tickets []timerfix.Ticket
	rng     *rand.Rand
	picks   []int
}

func newPile(bd *bed, n int) (*pile, error) {
	s, err := timerfix.New(bd.d, timerfix.Options{})
	if err != nil {
		return nil, err
	}
	p := &pile{s: s, q: bd.qps[0], rng: rand.New(rand.NewPCG(1, 0x70696c65)), picks: make([]int, timerBatch)}
	for range n {
		t, err := p.put()
		if err != nil {
			return nil, errors.Join(err, p.stop())
		}
		p.tickets = append(p.tickets, t)
	}
	return p, nil
}

func (p *pile) stop() error {
	_, err := p.s.Stop()
	return err
}

// put defers one more to some time between one and two hours from now.
func (p *pile) put() (timerfix.Ticket, error) {
	return timerfix.Defer(p.s, p.q, mlx5.ToRST{}, p.s.Now().Add(time.Hour+time.Duration(p.rng.Int64N(int64(time.Hour)))))
}

// shots are the lateness of one sample: median and 90th percentile.
func shots(h *hdrhistogram.Histogram) sample {
	p90 := float64(h.ValueAtQuantile(90))
	return sample{ns: float64(h.ValueAtQuantile(50)), more: []float64{p90}}
}

// lateness compares when things happen that were due.
func (r *Run) lateness(ctx context.Context, big *pile) (err error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("bench: no timer: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	rng := rand.New(rand.NewPCG(r.seed, 0x74696d65))
	ahead := func() timerfix.Instant {
		return big.s.Now().Add(timerAhead + time.Duration(rng.Int64N(int64(timerAhead))))
	}
	count := max(timerShots/100, r.repeats(timerShots))
	bare := func(h *hdrhistogram.Histogram) error {
		due := ahead()
		spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(due))}
		if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
			return err
		}
		var b [8]byte
		for {
			if _, err := unix.Read(fd, b[:]); err == nil {
				break
			} else if err != unix.EINTR {
				return err
			}
		}
		return h.RecordValue(max(int64(big.s.Now().Sub(due)), 1))
	}
	deferred := func(*hdrhistogram.Histogram) error {
		t, err := timerfix.Defer(big.s, big.q, mlx5.ToRST{}, ahead())
		if err != nil {
			return err
		}
		res, err := big.s.Wait(ctx, t)
		return errors.Join(err, res.Err)
	}
	arm := func(how, what string, shot func(*hdrhistogram.Histogram) error, seen func() *hdrhistogram.Histogram) *contender {
		c := &contender{Series: Series{Name: "late/how=" + how + "/p50", What: what + ", median of a sample", Ops: count}}
		p90 := &contender{Series: Series{Name: "late/how=" + how + "/p90", What: what + ", 90th percentile of a sample", Ops: count}}
		all := &contender{Series: Series{Name: "late/how=" + how, What: what + ", every shot, the warm-up round too", Ops: 1, Log: "late/how=" + how, Histogram: newHistogram()}}
		c.parts = []*contender{p90, all}
		c.sample = func(ctx context.Context) (sample, error) {
			before, h := seen(), newHistogram()
			for range count {
				if err := ctx.Err(); err != nil {
					return sample{}, err
				}
				if err := shot(h); err != nil {
					return sample{}, err
				}
			}
			if before != nil {
				h = since(before, seen())
			}
			all.Histogram.Merge(h)
			m := shots(h)
			m.more = append(m.more, h.Mean())
			return m, nil
		}
		return c
	}
	a := arm("timerfix", "how late a deferred transition was sent", deferred, big.s.Lateness)
	b := arm("bare", "how late a read of a timerfd returned", bare, func() *hdrhistogram.Histogram { return nil })
	err = r.inTurn(ctx, r.pairs(timerPairs), a, b)
	r.compare(a, b)
	r.compare(a.parts[0], b.parts[0])
	return err
}

// since returns what a histogram got more.
func since(before, now *hdrhistogram.Histogram) *hdrhistogram.Histogram {
	a, b := before.Export(), now.Export()
	for i := range b.Counts {
		b.Counts[i] -= a.Counts[i]
	}
	h := newHistogram()
	h.Merge(hdrhistogram.Import(b))
	return h
}

// pendingCost compares what it costs to defer and to cancel, among many pending
// ones and among few. Due times and who is cancelled are random.
func (r *Run) pendingCost(ctx context.Context, big, small *pile) error {
	n := r.repeats(timerBatch)
	arm := func(p *pile) *contender {
		name := func(what string) string { return fmt.Sprintf("%s/pending=%d", what, len(p.tickets)) }
		c := &contender{Series: Series{Name: name("defer"), What: "deferring one transition, to a random time", Ops: n}}
		c.parts = []*contender{
			{Series: Series{Name: name("cancel"), What: "cancelling a random one of the pending transitions", Ops: n}},
			{Series: Series{Name: name("both"), What: "deferring one transition, to a random time, and cancelling it", Ops: n}},
		}
		fresh, old := make([]timerfix.Ticket, n), make([]timerfix.Ticket, n)
		c.sample = func(context.Context) (sample, error) {
			start := time.Now()
			for i := range fresh {
				var err error
				if fresh[i], err = p.put(); err != nil {
					return sample{}, err
				}
			}
			put := time.Since(start)
			// Who goes is picked before, and so is not timed.
			for i := range fresh {
				at := p.rng.IntN(len(p.tickets))
				old[i], p.tickets[at] = p.tickets[at], fresh[i]
			}
			start = time.Now()
			for _, t := range old {
				if !p.s.Cancel(t) {
					return sample{}, errors.New("what was pending could not be cancelled")
				}
			}
			cancelled := time.Since(start)
			start = time.Now()
			for range n {
				t, err := p.put()
				if err != nil {
					return sample{}, err
				}
				p.s.Cancel(t)
			}
			return sample{ns: perOp(put, n), more: []float64{perOp(cancelled, n), perOp(time.Since(start), n)}}, nil
		}
		return c
	}
	a, b := arm(big), arm(small)
	err := r.inTurn(ctx, r.pairs(timerPairs), a, b)
	r.compare(a, b)
	for i := range a.parts {
		r.compare(a.parts[i], b.parts[i])
	}
	return err
}

// timerFindings say in words what was aimed at, and whether it was met.
func timerFindings(r *Result) []string {
	var out []string
	for _, x := range []struct {
		what, a, b string
		aim        float64
	}{
		{"Lateness, median", "late/how=timerfix/p50", "late/how=bare/p50", 1.1},
		{"Lateness, 90th percentile", "late/how=timerfix/p90", "late/how=bare/p90", 1.1},
		{"Deferring among many pending against few", pendingName("defer", r.Params["pending"]), pendingName("defer", r.Params["pending_few"]), 1.5},
		{"Cancelling a random one among many pending against few", pendingName("cancel", r.Params["pending"]), pendingName("cancel", r.Params["pending_few"]), 1.5},
		{"Deferring one and cancelling it, among many against few", pendingName("both", r.Params["pending"]), pendingName("both", r.Params["pending_few"]), 1.5},
	} {
		c := r.ComparisonOf(x.a, x.b)
		if c == nil {
			continue
		}
		how := "within"
		switch {
		case float64(c.Ratio.Low) > x.aim:
			how = "missed"
		case float64(c.Ratio.High) > x.aim:
			how = "the interval does not tell whether it is within"
		}
		out = append(out, fmt.Sprintf("%s: ratio %s; aim %.3g: %s.", x.what, c.Ratio.interval(), x.aim, how))
	}
	return out
}

func pendingName(what string, n any) string { return fmt.Sprintf("%s/pending=%v", what, n) }

func timerText(r *Result, p *page) {
	place := r.Provenance.Place
	row := func(what, a, b string) []string {
		x, y := r.SeriesOf(a), r.SeriesOf(b)
		if x == nil || y == nil {
			return nil
		}
		ratio, answer, pairs := r.ratioCells(a, b)
		return []string{what, nanos(Median(x.Samples)), nanos(Median(y.Samples)), ratio, pairs, answer}
	}
	table := func(title, about, first, second string, rows ...[]string) {
		var there [][]string
		for _, row := range rows {
			if row != nil {
				there = append(there, row)
			}
		}
		if there == nil {
			return
		}
		p.section(fmt.Sprintf("%s (%s; our own code and this machine's timers)", title, place), about)
		p.table("lrrlrl", []string{"", first, second, "ratio [95 %]", "pairs", first + " is"}, there...)
	}
	table("Lateness", r.Method, "timerfix", "bare",
		row("median", "late/how=timerfix/p50", "late/how=bare/p50"),
		row("90th percentile", "late/how=timerfix/p90", "late/how=bare/p90"))
	many, few := r.Params["pending"], r.Params["pending_few"]
	table("Pending transitions", "Due at random times. A random one of many is not in the processor's cache: what that costs is in it.", fmt.Sprintf("%v pending", many), fmt.Sprintf("%v pending", few),
		row("defer one", pendingName("defer", many), pendingName("defer", few)),
		row("cancel a random one", pendingName("cancel", many), pendingName("cancel", few)),
		row("defer one and cancel it", pendingName("both", many), pendingName("both", few)))
}
