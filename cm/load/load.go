// SPDX-License-Identifier: BSD-2-Clause

// Package load makes many connections and measures how long each step of each
// takes: as churn, closed loop or open loop, or all of them together, step by step.
//
// It sends nothing through the connections, compares no two runs (package bench
// does that), does not control what else the machine does, and is one process: what
// it measures has the client's scheduling in it, and no more than MaxWorkers
// connections are on their way at a time, but for Together.
package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sort"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"devxlab.example/cm"
	"devxlab.example/cm/roce"
)

// Config says what is done. The zero value of a member with a default takes it.
type Config struct {
	Dialer      *cm.Dialer     // makes them
	To          netip.AddrPort // the server
	Connections int            // how many, 1 or more; with Together up to MaxTogether
	Workers     int            // that make connections at the same time, 1 to MaxWorkers; also an open loop has no more under way at once
	Rate        float64        // a second, open loop: connection i is meant to begin at i/Rate; 0: closed loop, the next begins when the one before has ended
	Timeout     time.Duration  // of one set-up, and of its end
	For         time.Duration  // no new connection after this; 0: until all are made
	Together    bool           // all connections are brought through each step, before any of them to the next (as rdma-core's cmtime does); Rate and For are 0 then
	Stale       int            // how often a set-up that was rejected as stale (reason 10) is tried again at once; its time counts from the first request
	Each        func(Sample)   // gets each set-up; called by one worker at a time; may be nil
	Progress    func(done int) // called now and then; may be nil
	Interrupted func(open int) // called once if the context ends while connections are open: they are ended first; may be nil
}

// DefaultTimeout is longer than until a request is repeated for the first time and
// shorter than for the third: on RoCE the kernel repeats it each 6.144 s (Linux 5.15,
// 6.1) or 4.608 s (newer; cm.ID.Connect).
const DefaultTimeout = 10 * time.Second

// The Go runtime ends a program that has 10,000 OS threads (SetMaxThreads in
// runtime/debug), and a call that blocks in the kernel has one to itself.
const (
	MaxWorkers  = 1024 // also how many connections are ended at a time
	MaxTogether = 8192
)

// Extra parts of a connection's life, behind the steps of package cm.
const (
	Setup      = int(cm.StepCount) + iota // all steps; open loop: from when it was meant to begin
	Disconnect                            // DREQ to DREP
	Destroy                               // of ID and queue pair
	parts
)

// PartName is the name of a step of package cm, or of an extra part.
func PartName(i int) string {
	switch i {
	case Setup:
		return "set-up"
	case Disconnect:
		return "DREQ→DREP"
	case Destroy:
		return "destroy"
	}
	return cm.Step(i).String()
}

// Parts are the steps of a client and the extra parts, in their order.
func Parts() (all []int) {
	for i := range parts {
		if i != int(cm.StepAccept) {
			all = append(all, i)
		}
	}
	return all
}

// Sample is one connection's set-up.
type Sample struct {
	Setup time.Duration
	Steps cm.Steps // of the try that succeeded
	Stale int      // tries before it that were rejected as stale
}

// Result is what was measured. Histograms are of nanoseconds, from 1 to 20
// minutes, with three significant digits; those of steps have connections that
// succeeded only.
type Result struct {
	Began    time.Time
	Took     time.Duration
	Done     int            // connections that were set up
	Failed   int            // that were not
	Stale    int            // tries that were rejected as stale, also of those that succeeded later
	Failures map[string]int // by step and reason
	Ends     map[string]int // connections that did not end well, by reason: they were set up all the same
	Parts    [parts]*hdrhistogram.Histogram
	Phases   map[string]time.Duration // Together only: how long all connections took for each step
	Late     *hdrhistogram.Histogram  // how much later than meant connections began; nil: closed loop
	NotBegun int                      // connections that were due (Rate) within For and for which no worker was free
	Stopped  string                   // why not all were made: "time", "interrupted"; empty: they were
}

// Rate is the number of connections set up a second.
func (r *Result) Rate() float64 {
	if r.Took <= 0 {
		return 0
	}
	return float64(r.Done) / r.Took.Seconds()
}

// Merge adds what another run measured.
func (r *Result) Merge(o *Result) {
	r.Took += o.Took
	r.Done += o.Done
	r.Failed += o.Failed
	r.Stale += o.Stale
	r.NotBegun += o.NotBegun
	for why, n := range o.Failures {
		r.Failures[why] += n
	}
	for why, n := range o.Ends {
		r.Ends[why] += n
	}
	for i, h := range o.Parts {
		r.Parts[i].Merge(h)
	}
	if r.Late != nil && o.Late != nil {
		r.Late.Merge(o.Late)
	}
	r.Stopped = cmp.Or(r.Stopped, o.Stopped)
}

const (
	shortest = int64(1) // also what three digits are counted from: 1 µs would make all below 1 ms as coarse as 0.5 µs
	longest  = int64(20 * time.Minute)
	digits   = 3
)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(shortest, longest, digits) }

func newResult() *Result {
	r := &Result{Began: time.Now(), Failures: map[string]int{}, Ends: map[string]int{}}
	for i := range r.Parts {
		r.Parts[i] = newHistogram()
	}
	return r
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(d.Nanoseconds(), shortest), longest)) // within the bounds it cannot fail
}

func (g *generator) setUp(s Sample) {
	g.note(func(r *Result) {
		r.Done++
		g.open++
		for _, step := range cm.ClientSteps() {
			record(r.Parts[step], s.Steps[step])
		}
		record(r.Parts[Setup], s.Setup)
		if g.Each != nil {
			g.Each(s)
		}
	})
}

func (r *Result) fail(err error) {
	if r.Failed++; errors.Is(err, errStale) {
		r.Stale++
	}
	r.Failures[Reason(err)]++
}

// Check reports what Run would refuse.
func (c *Config) Check() error {
	switch {
	case c.Connections < 1:
		return fmt.Errorf("load: %d connections: 1 or more", c.Connections)
	case c.Workers < 1:
		return fmt.Errorf("load: %d workers: 1 or more", c.Workers)
	case c.Workers > MaxWorkers:
		return fmt.Errorf("load: %d workers: up to %d, each may block an OS thread", c.Workers, MaxWorkers)
	case c.Together && c.Connections > MaxTogether:
		return fmt.Errorf("load: %d connections together: up to %d, each may block an OS thread", c.Connections, MaxTogether)
	case c.Together && (c.Rate != 0 || c.For != 0):
		return errors.New("load: connections that are made together have no rate and no time to begin in: leave one or the other")
	case !(c.Rate >= 0) || c.Timeout < 0 || c.For < 0: // NaN too
		return errors.New("load: rate and times are 0 or more")
	case c.Stale < 0:
		return errors.New("load: a set-up is tried again 0 or more times")
	}
	return nil
}

// Run makes the connections. An error says that it could not begin: failures of
// connections are results.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	r := newResult()
	if c.Rate > 0 {
		r.Late = newHistogram()
	}
	g := &generator{Config: c, r: r}
	defer g.watch(ctx)()
	if c.Together {
		r.Took = g.together(ctx)
	} else {
		g.churn(ctx)
		r.Took = time.Since(r.Began)
	}
	if r.Stopped = g.stopped; r.Stopped == timeIsOver && g.Rate > 0 {
		r.NotBegun = sort.Search(g.Connections, func(i int) bool { return g.due(i) >= g.For }) - g.next
	}
	if ctx.Err() != nil && r.Done+r.Failed < c.Connections {
		r.Stopped = "interrupted"
	}
	return r, nil
}

// generator gives out the connections to be made.
type generator struct {
	Config

	mu      sync.Mutex
	r       *Result
	next    int
	stopped string
	open    int  // connections that were set up and have not ended
	told    bool // Interrupted was called
}

const timeIsOver = "time"

// watch calls Interrupted if the context ends. The function that it returns ends
// that.
func (g *generator) watch(ctx context.Context) func() {
	told := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(told)
		g.interrupted(ctx)
	})
	return func() {
		if !stop() {
			<-told
		}
	}
}

// interrupted says once how many connections are still to be ended, if the context
// has ended.
func (g *generator) interrupted(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ctx.Err() != nil && g.Interrupted != nil && g.open > 0 && !g.told {
		g.told = true
		g.Interrupted(g.open)
	}
}

// due returns when a connection of an open loop is meant to begin.
func (g *generator) due(i int) time.Duration {
	return time.Duration(min(float64(i)/g.Rate*float64(time.Second), float64(forever)))
}

// take returns when the next connection is meant to begin, from the beginning on:
// now, or, of an open loop, when its turn is.
func (g *generator) take(ctx context.Context) (at time.Duration, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == g.Connections || ctx.Err() != nil {
		return 0, false
	}
	now := time.Since(g.r.Began)
	if at = now; g.Rate > 0 {
		at = g.due(g.next)
	}
	if g.For > 0 && max(at, now) >= g.For {
		g.stopped = timeIsOver
		return 0, false
	}
	g.next++
	if g.Progress != nil && g.next%100 == 0 {
		g.Progress(g.next)
	}
	return at, true
}

// forever is longer than a run takes.
const forever = 1000 * 24 * time.Hour

// note records something.
func (g *generator) note(f func(r *Result)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g.r)
}

func (g *generator) churn(ctx context.Context) {
	var wg sync.WaitGroup
	for range min(g.Workers, g.Connections) {
		wg.Go(func() {
			for {
				at, ok := g.take(ctx)
				if !ok {
					return
				}
				meant := g.r.Began.Add(at)
				if g.Rate > 0 {
					if !sleepUntil(ctx, meant) {
						return
					}
					late := time.Since(meant)
					g.note(func(r *Result) { record(r.Late, late) })
				}
				g.one(ctx, meant)
			}
		})
	}
	wg.Wait()
}

// one makes a connection and ends it.
func (g *generator) one(ctx context.Context, meant time.Time) {
	limit, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	c, err := g.Dialer.Dial(limit, g.To)
	stale := 0
	for ; stale < g.Stale && errors.Is(err, errStale); stale++ {
		g.note(func(r *Result) { r.Stale++ })
		c, err = g.Dialer.Dial(limit, g.To)
	}
	took := time.Since(meant)
	if err != nil {
		g.fail(ctx, err)
		return
	}
	g.setUp(Sample{Setup: took, Steps: c.Steps, Stale: stale})
	g.end(ctx, c)
}

var errStale = &cm.RejectError{Reason: roce.RejectStaleConnection}

// fail counts a failure, unless this was interrupted: then the connection is
// neither.
func (g *generator) fail(ctx context.Context, err error) {
	if ctx.Err() == nil {
		g.note(func(r *Result) { r.fail(err) })
	}
}

// end ends a connection, also if this was interrupted: the peer must know.
func (g *generator) end(ctx context.Context, c *cm.Conn) {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.Timeout)
	defer cancel()
	g.interrupted(ctx)
	start := time.Now()
	err := c.Disconnect(limit)
	apart := time.Now()
	derr := c.Destroy()
	destroyed := time.Since(apart)
	g.note(func(r *Result) {
		g.open--
		if err == nil {
			record(r.Parts[Disconnect], apart.Sub(start))
		}
		if derr == nil {
			record(r.Parts[Destroy], destroyed)
		}
		if err := errors.Join(err, derr); err != nil {
			r.Ends[Reason(err)]++
		}
	})
}

func sleepUntil(ctx context.Context, t time.Time) bool {
	d := time.Until(t)
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Reason is an error of a connection in few words, so that equal ones can be
// counted: "REQ→REP: rejected: 10, stale connection …".
func Reason(err error) string {
	where := ""
	var step *cm.StepError
	if errors.As(err, &step) {
		where = step.Step.String() + ": "
	}
	var reject *cm.RejectError
	var event *cm.EventError
	var call *cm.CallError
	switch {
	case errors.As(err, &reject):
		return where + "rejected: " + reject.Reason.String()
	case errors.As(err, &event) && event.Errno != nil:
		return fmt.Sprintf("%sevent %s: %v", where, event.Event, event.Errno)
	case errors.As(err, &event):
		return fmt.Sprintf("%sevent %s", where, event.Event)
	case errors.As(err, &call):
		return fmt.Sprintf("%s%s: %v", where, call.Call, call.Errno)
	case errors.Is(err, context.DeadlineExceeded):
		return where + "no answer in time"
	case step != nil:
		return where + step.Err.Error()
	}
	return err.Error()
}
