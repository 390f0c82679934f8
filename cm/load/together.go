// SPDX-License-Identifier: BSD-2-Clause

package load

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"devxlab.example/cm"
)

// together brings all connections through each step before any of them to the
// next. A step that ends with an event is begun for all at once, by a goroutine
// each (the channel bounds the calls among them that block); the others are done by
// the workers. When the context has ended, steps only undo what there is. It returns
// how long the set-up of all took.
func (g *generator) together(ctx context.Context) time.Duration {
	dials := make([]*cm.Dialing, g.Connections)
	for i := range dials {
		dials[i] = g.Dialer.Begin(g.To)
	}
	g.r.Phases = map[string]time.Duration{}
	phase := func(name string, f func()) {
		start := time.Now()
		f()
		g.r.Phases[name] = time.Since(start)
	}
	for _, s := range cm.ClientSteps() {
		workers := g.Workers
		if s.Waits() && ctx.Err() == nil {
			workers = g.Connections
		}
		phase(s.String(), func() {
			// Of each step: one connection without an answer must not end the others.
			limit, cancel := context.WithTimeout(ctx, g.Timeout*time.Duration(1+g.Connections/100))
			defer cancel()
			g.all(workers, func(i int) {
				if dials[i] == nil {
					return
				}
				if err := dials[i].Step(limit, s); err != nil {
					g.fail(ctx, err)
					dials[i] = nil
				}
			})
		})
	}
	took := time.Since(g.r.Began)
	phase(endPhase, func() {
		for _, d := range dials {
			if d != nil {
				c := d.Conn()
				g.setUp(Sample{Setup: c.Steps.Total(), Steps: c.Steps})
			}
		}
		g.all(MaxWorkers, func(i int) {
			if dials[i] != nil {
				g.end(ctx, dials[i].Conn())
			}
		})
	})
	return took
}

// endPhase is no step of package cm: connections are ended.
const endPhase = "end"

// all calls f for each connection, from so many goroutines; one is the caller's.
func (g *generator) all(workers int, f func(i int)) {
	var next atomic.Int64
	work := func() {
		for i := next.Add(1) - 1; int(i) < g.Connections; i = next.Add(1) - 1 {
			f(int(i))
		}
	}
	var wg sync.WaitGroup
	for range min(workers, g.Connections) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}
