// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"devxlab.example/batch"
	"devxlab.example/emu/fw"
	"devxlab.example/timerfix"
)

// virtualTimer is a scheduler's timer on a virtual clock.
type virtualTimer struct {
	clock *fw.VirtualClock
	*fw.Alarm
}

func newVirtualTimer(c *fw.VirtualClock) virtualTimer { return virtualTimer{c, c.NewAlarm()} }

// Now returns the virtual time.
func (t virtualTimer) Now() timerfix.Instant { return timerfix.Instant(t.clock.Now()) }

// Arm sets the alarm.
func (t virtualTimer) Arm(at timerfix.Instant) {
	if at == timerfix.Never {
		t.Unset()
		return
	}
	t.Set(time.Duration(at))
}

// Wait waits for it.
func (t virtualTimer) Wait() error {
	t.Alarm.Wait()
	return nil
}

// Close ends the alarm.
func (t virtualTimer) Close() error {
	t.Alarm.Close()
	return nil
}

const (
	c2Command  = 200 * time.Microsecond // what a command takes there
	c2Threads  = 8
	c2Arrivals = 500
)

// c2Loads are the offered loads: arrivals in the time of one command.
var c2Loads = []float64{0.1, 0.25, 0.5, 0.75, 0.9, 1.1, 1.5, 2, 4, 6}

// c2Load lets queue pairs be wanted at random times, as a Poisson process, on a
// virtual clock: what follows from waiting, exactly.
func (r *Run) c2Load(ctx context.Context, p timerfix.Policy) error {
	r.Params["load_command_ns"], r.Params["load_threads"], r.Params["load_arrivals"] = c2Command.Nanoseconds(), c2Threads, c2Arrivals
	for _, how := range []string{howNow, howTogether, howDeferred} {
		s := Sweep{Name: c2LoadName(how), What: "until one queue pair is usable, median", X: "offered load: arrivals in the time of a command", Log: true, Device: c2LoadDevice}
		for _, rho := range c2Loads {
			if err := ctx.Err(); err != nil {
				return err
			}
			r.progress("%s, offered load %g", how, rho)
			took, err := c2LoadAt(ctx, how, p, rho, r.seed)
			if err != nil {
				return err
			}
			h := newHistogram()
			for _, t := range took {
				_ = h.RecordValue(int64(min(max(t, 1), longest)))
			}
			name := fmt.Sprintf("%s/offered=%g", c2LoadName(how), rho)
			r.Series = append(r.Series, Series{Name: name, What: "until one queue pair is usable", Device: c2LoadDevice, Profile: "zero", Ops: 1, GOMAXPROCS: r.Provenance.GOMAXPROCS, Log: name, Histogram: h, Summary: SummarizeHistogram(h)})
			m := Float(Median(took))
			s.Points = append(s.Points, Point{X: rho, N: len(took), Median: m, Low: m, High: m})
		}
		r.Sweeps = append(r.Sweeps, s)
	}
	return nil
}

func c2LoadName(how string) string { return "load/how=" + how }

var c2LoadDevice = fmt.Sprintf("emu:clock=virtual,latency=%v,threads=%d,name=c2-load", c2Command, c2Threads)

// load is queue pairs in RTR, and when each is wanted in RTS.
type load struct {
	*bed
	watch  stopwatch
	wanted []time.Duration
	usable []float64 // ns after it was wanted
}

// c2LoadAt returns how long each queue pair took to be usable.
func c2LoadAt(ctx context.Context, how string, p timerfix.Policy, rho float64, seed uint64) (took []float64, err error) {
	bd, err := newBed(c2LoadDevice, c2Arrivals)
	if err != nil {
		return nil, err
	}
	defer closed(&err, bd.d)
	l := &load{bed: bd, watch: stopwatchOf(c2LoadDevice), usable: make([]float64, c2Arrivals)}
	for step := range rts {
		for _, q := range bd.qps {
			if err := bd.c.modify(q, step); err != nil {
				return nil, err
			}
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0x6332))
	at := l.watch.now()
	for range bd.qps {
		at += time.Duration(rng.ExpFloat64() * float64(c2Command) / rho)
		l.wanted = append(l.wanted, at)
	}
	switch how {
	case howNow:
		err = l.oneByOne(ctx)
	case howTogether:
		err = l.scheduled(ctx, timerfix.Policy{})
	default:
		p.QPs = 0 // each of them
		err = l.scheduled(ctx, p)
	}
	return l.usable, err
}

// oneByOne is a queue with one server: who comes while another is served waits.
func (l *load) oneByOne(ctx context.Context) error {
	l.d.Busy(1)
	defer l.d.Busy(-1)
	for i, q := range l.qps {
		if err := l.watch.until(ctx, l.wanted[i]); err != nil {
			return err
		}
		if err := l.c.modify(q, rts); err != nil {
			return err
		}
		l.usable[i] = float64(l.watch.now() - l.wanted[i])
	}
	return nil
}

// scheduled defers each when it is wanted.
func (l *load) scheduled(ctx context.Context, p timerfix.Policy) (err error) {
	number := map[uint32]int{}
	for i, q := range l.qps {
		number[q.Number()] = i
	}
	var failed error
	s, err := timerfix.New(l.d, timerfix.Options{
		Batch: batch.Options{Announced: true},
		Timer: newVirtualTimer(l.watch.virtual),
		OnEnd: func(_ timerfix.Ticket, r batch.Result) {
			i := number[r.QP.Number()]
			l.usable[i] = float64(l.watch.now() - l.wanted[i])
			failed = errors.Join(failed, r.Err)
		},
	})
	if err != nil {
		return err
	}
	defer func() {
		_, stopped := s.Stop()
		err = errors.Join(err, stopped)
	}()
	send := func() error {
		l.d.Busy(1)
		defer l.d.Busy(-1)
		for i, q := range l.qps {
			if err := l.watch.until(ctx, l.wanted[i]); err != nil {
				return err
			}
			due, _ := p.Due(len(l.qps), s.Now())
			if _, err := timerfix.Defer(s, q, l.c.rts, due); err != nil {
				return err
			}
		}
		return nil
	}
	if err := send(); err != nil {
		return err
	}
	return errors.Join(s.Drain(ctx), failed)
}

// c2LoadSays puts the sweep over the load in words.
func c2LoadSays(r *Result) string {
	now, together, deferred := sweepOf(r, c2LoadName(howNow)), sweepOf(r, c2LoadName(howTogether)), sweepOf(r, c2LoadName(howDeferred))
	if now == nil || together == nil || deferred == nil {
		return "There is no sweep over the load."
	}
	from, sooner := 0.0, true
	for i := len(deferred.Points) - 1; i >= 0 && deferred.Points[i].Median < now.Points[i].Median; i-- {
		from = deferred.Points[i].X
	}
	for i := range deferred.Points {
		sooner = sooner && together.Points[i].Median < deferred.Points[i].Median
	}
	s := fmt.Sprintf("Break-even, for commands of %v, %d at once: ", c2Command, c2Threads)
	if from > 0 {
		s += fmt.Sprintf("deferring by 1 ms beats one by one from %g arrivals in the time of a command on, because what is due together goes out as a batch", from)
	} else {
		s += "deferring by 1 ms beats one by one at no load that was tried"
	}
	if sooner {
		s += "; the same batches without the delay are sooner at every load."
	} else {
		s += "; at some load the delay pays even against the same batches without it."
	}
	return s
}

func sweepOf(r *Result, name string) *Sweep {
	i := slices.IndexFunc(r.Sweeps, func(s Sweep) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Sweeps[i]
}

func c2LoadText(r *Result, p *page) {
	now := sweepOf(r, c2LoadName(howNow))
	if now == nil {
		return
	}
	p.section("2. Under load (emu, virtual clock)", fmt.Sprintf("%d queue pairs are wanted in RTS at random times (a Poisson process; latency counts from when each was wanted), on a device with commands of %v, %d at once. Offered load is arrivals in the time of one command; above 1, one by one cannot keep up.",
		c2Arrivals, c2Command, c2Threads))
	var rows [][]string
	for _, pt := range now.Points {
		row := []string{fmt.Sprintf("%g", pt.X)}
		for _, how := range []string{howNow, howTogether, howDeferred} {
			s := r.SeriesOf(fmt.Sprintf("%s/offered=%g", c2LoadName(how), pt.X))
			if s == nil {
				row = append(row, "-", "-")
				continue
			}
			row = append(row, nanos(float64(s.Summary.P50)), nanos(float64(s.Summary.P90)))
		}
		rows = append(rows, row)
	}
	p.table("rrrrrrr", []string{"load", "now P50", "P90", "together P50", "P90", "deferred P50", "P90"}, rows...)
}
