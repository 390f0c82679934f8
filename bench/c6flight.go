// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"fmt"

	"devxlab.example/batch"
)

const (
	c6FlightDevice = "emu:latency=1ms,threads=64,name=c6-flight"
	c6FlightPairs  = 20
	c6FewProcs     = 2
)

// c6Flight sweeps the depth on the real clock, to see how many commands really
// are in flight and what GOMAXPROCS does to it. It is about this machine and Go;
// the device's time is what the profile was told.
func (r *Run) c6Flight(ctx context.Context) (err error) {
	r.Params["flight_device"] = c6FlightDevice
	bd, err := r.newBed(c6FlightDevice, batch.MaxGroup)
	if err != nil {
		return err
	}
	defer closed(&err, bd.d)
	defer func() {
		for _, procs := range []string{"enough", "few"} {
			r.sweepOver(Sweep{
				Name: "flight/procs=" + procs, What: "one transition of a batch, commands of 1 ms", X: "workers", Log: true, Device: c6FlightDevice,
			}, c6Workers, func(w int) string {
				if procs == "few" {
					return flightName(w, c6FewProcs)
				}
				return flightName(w, w+2)
			})
		}
	}()
	for _, workers := range c6Workers {
		// As many queue pairs as workers: each step is one wave.
		wave := &bed{d: bd.d, c: bd.c, qps: bd.qps[:workers]}
		if err := r.c6FlightAt(ctx, wave, workers); err != nil {
			return err
		}
	}
	return nil
}

func (r *Run) c6FlightAt(ctx context.Context, bd *bed, workers int) (err error) {
	t, err := batch.New(bd.d, batch.Options{Group: workers, Depth: workers, OnWait: r.onWait})
	if err != nil {
		return err
	}
	defer closed(&err, t)
	var cs []*contender
	for _, procs := range []int{workers + 2, c6FewProcs} {
		c := &contender{
			Series: Series{
				Name: flightName(workers, procs), What: "one transition", Ops: stepsPerCycle * workers, Depth: workers,
				Device: c6FlightDevice, Profile: "zero+latency=1ms+threads=64",
			},
			procs: procs,
		}
		warm, measured := bd.batched(t, 1, 0, nil), bd.batched(t, 1, workers, nil)
		c.sample = func(ctx context.Context) (sample, error) {
			if _, err := warm(ctx); err != nil { // after the change of GOMAXPROCS
				return sample{}, err
			}
			return measured(ctx)
		}
		cs = append(cs, c)
	}
	return r.against(ctx, r.pairs(c6FlightPairs), cs[0], cs[1])
}

func flightName(workers, procs int) string {
	return fmt.Sprintf("flight/workers=%d/procs=%d", workers, procs)
}

func c6FlightText(r *Result, p *page) {
	one := r.SeriesOf(flightName(1, c6FewProcs))
	cells := func(workers, procs int) []string {
		s := r.SeriesOf(flightName(workers, procs))
		if s == nil {
			return []string{"-", "-", "-"}
		}
		void := ""
		if s.Void != "" {
			void = " void"
		}
		speed := "-"
		if one != nil {
			speed = fmt.Sprintf("× %.1f", Median(one.Samples)/Median(s.Samples))
		}
		return []string{nanos(Median(s.Samples)), fmt.Sprintf("%.1f%s", s.InFlight, void), speed}
	}
	var rows [][]string
	for _, w := range c6Workers {
		enough, few := flightName(w, w+2), flightName(w, c6FewProcs)
		if r.SeriesOf(enough) == nil || r.SeriesOf(few) == nil {
			continue
		}
		ratio, _, pairs := r.ratioCells(enough, few)
		rows = append(rows, append(append(append([]string{fmt.Sprint(w)}, cells(w, c6FewProcs)...), cells(w, w+2)...), ratio, pairs))
	}
	if rows == nil {
		return
	}
	p.section("3. In flight (emu, real clock, a command of 1 ms: how far this machine and Go keep up)",
		fmt.Sprintf("One transition, the mean of a batch with one queue pair for each worker; commands in flight (void below 0.9 of the workers; beyond %d they queue for a slot); speed-up against one worker. "+
			"With GOMAXPROCS %d blocked threads are handed over late; a program should set it to workers + 2. Ratio: time with workers + 2 / with %d, interleaved pairs.", c6Claimed, c6FewProcs, c6FewProcs))
	p.table("rrlrrlrlr", []string{"workers", fmt.Sprintf("GOMAXPROCS %d", c6FewProcs), "in flight", "speed-up", "workers + 2", "in flight", "speed-up", "ratio [95 %]", "pairs"}, rows...)
}
