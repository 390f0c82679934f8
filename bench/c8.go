// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// c8 changes states at a steady rate for as long as asked, and checks after each
// change what must hold.
var c8 = Experiment{
	Name:       "c8",
	Question:   "Do queue pairs survive 500 changes of state a second?",
	Default:    true,
	run:        runC8,
	resume:     resumeC8,
	text:       c8Text,
	queuePairs: c8QPs,
	needs:      func(Options) int { return c8QPs },
	plan: func(r *Run) string {
		return fmt.Sprintf("makes %d queue pairs of its own through DevX, addressed to the port itself, and destroys them at the end; for %v it changes the state of one of them %g times a second, and queries two after each change. No work request, no packet.",
			c8QPs, r.c8Duration(), r.c8Rate())
	},
}

const (
	c8QPs        = 64
	c8Rate       = 500 // changes of state a second, as claimed
	c8Short      = 20 * time.Second
	c8Quick      = 2 * time.Second
	c8Enough     = 4 * time.Hour    // of hardware, to call it survived
	c8Keep       = 30 * time.Second // the result is written so often
	c8Violations = 100              // are told; after ten times as many the campaign ends
)

// Campaign is a run that may be interrupted and resumed.
type Campaign struct {
	Rate       float64       `json:"rate"`       // changes of state a second, asked for
	Wanted     time.Duration `json:"wanted_ns"`  // how long in all
	Elapsed    time.Duration `json:"elapsed_ns"` // so far, all runs together
	Runs       int           `json:"runs"`       // it was resumed one time less
	Changes    int64         `json:"changes"`    // of state
	Checks     int64         `json:"checks"`     // of what must hold
	Violations int64         `json:"violations"`
	First      []string      `json:"first_violations,omitempty"` // at most 100
	Partial    bool          `json:"partial,omitempty"`          // the distributions are of the last runs only: earlier ones were lost
}

func (r *Run) c8Rate() float64 {
	if r.Options.Rate > 0 {
		return r.Options.Rate
	}
	return c8Rate
}

func (r *Run) c8Duration() time.Duration {
	switch {
	case r.Options.Duration > 0:
		return r.Options.Duration
	case r.small:
		return c8Quick / 20
	case r.Quick:
		return c8Quick
	}
	return c8Short
}

// Names of the series.
const (
	c8Meant   = "change/from=meant"
	c8Service = "change/from=call"
)

func runC8(ctx context.Context, r *Run) (err error) {
	r.Method = fmt.Sprintf("Open loop, %g changes of state a second over %d queue pairs: a random one that its state allows, to a random one of them. After each: firmware says OK; a query shows the state that it must have, with the attributes that were set; and another queue pair, a random one, is still in its own.",
		r.c8Rate(), c8QPs)
	c := &Campaign{Rate: r.c8Rate(), Wanted: r.c8Duration()}
	meant := &contender{Series: Series{Name: c8Meant, What: "a change of state, from when it was meant to begin", Ops: 1, Log: c8Meant, Histogram: newHistogram()}}
	service := &contender{Series: Series{Name: c8Service, What: "a change of state, the call", Ops: 1, Log: c8Service, Histogram: newHistogram()}}
	if r.resumed != nil {
		c = r.resumed.Campaign
		c.Wanted = r.Options.Duration
		for _, s := range []*contender{meant, service} {
			if before := r.resumed.SeriesOf(s.Name); before != nil && before.Histogram != nil {
				s.Histogram.Merge(before.Histogram)
			} else {
				c.Partial = true
			}
		}
	}
	c.Runs++
	r.Campaign = c
	bd, err := r.newBed(r.Device, c8QPs)
	if err != nil {
		return err
	}
	defer closed(&err, bd.d)
	t := &toggler{bed: bd, c: c, watch: stopwatchOf(r.Device), rng: rand.New(rand.NewPCG(r.seed, uint64(c.Changes))), meant: meant.Histogram, service: service.Histogram}
	err = r.toggle(ctx, t, func() error { return r.keepC8(meant, service) })
	r.setC8(meant, service)
	if err != nil {
		return err
	}
	r.Verdicts = append(r.Verdicts, c8Verdict(&r.Result))
	if r.emulated() && c.Violations > 0 {
		return fmt.Errorf("bench: %d violations on the emulated device: a fault of this module; the first: %s", c.Violations, c.First[0])
	}
	return nil
}

// resumeC8 reads what an earlier run in the same directory has measured, and
// refuses what would not be the same campaign.
func resumeC8(r *Run) error {
	path := filepath.Join(r.Options.Dir, r.Experiment+jsonExt)
	old, err := Load(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("bench: nothing to resume: there is no %s", path)
	case old == nil:
		return fmt.Errorf("bench: it cannot be resumed: %w", err)
	case old.Campaign == nil:
		return fmt.Errorf("bench: %s is no campaign that could be resumed", path)
	}
	// Without its distributions, which a full disk or a power cut may have taken, a
	// campaign still has its counts.
	if p := old.Provenance; p.Device != r.Provenance.Device || p.Profile != r.Provenance.Profile || p.Firmware != r.Provenance.Firmware {
		return fmt.Errorf("bench: %s was measured on %s (firmware %s, profile %q), this is %s (firmware %s, profile %q): resume it there, or begin another one",
			path, p.Device, p.Firmware, p.Profile, r.Provenance.Device, r.Provenance.Firmware, r.Provenance.Profile)
	}
	c := old.Campaign
	if r.Options.Rate > 0 && r.Options.Rate != c.Rate {
		return fmt.Errorf("bench: %s was measured with %g changes a second, not %g: begin another one", path, c.Rate, r.Options.Rate)
	}
	if r.Options.QP == nil { // as before
		r.Result.Params = old.Params
		r.Options.QP = qpParamsOf(old.Params)
	} else if fmt.Sprint(r.Result.Params) != fmt.Sprint(old.Params) {
		return fmt.Errorf("bench: %s was measured with the parameters %v, not %v: begin another one", path, old.Params, r.Result.Params)
	}
	// What is announced, done and noted is the campaign's.
	r.Options.Rate = c.Rate
	if r.Options.Duration == 0 {
		r.Options.Duration = c.Wanted
	}
	if old.Command != "" && r.Options.Duration == c.Wanted {
		r.Result.Command = old.Command
	}
	r.Started, r.resumed = old.Started, old
	return nil
}

// keepC8 writes what there is so far: a power cut loses half a minute.
func (r *Run) keepC8(series ...*contender) error {
	if r.Options.Dir == "" {
		return nil
	}
	r.setC8(series...)
	so := r.Result
	so.Interrupted, so.Took = true, time.Since(r.Started)
	return so.WriteFiles(r.Options.Dir)
}

func (r *Run) setC8(series ...*contender) {
	r.Series = nil
	for _, s := range series {
		if n := s.Histogram.TotalCount(); n > 0 {
			s.Summary = SummarizeHistogram(s.Histogram)
			r.Series = append(r.Series, s.Series)
		}
	}
}

// toggler changes states, and knows what they must be.
type toggler struct {
	*bed
	c              *Campaign
	watch          stopwatch
	rng            *rand.Rand
	meant, service *hdrhistogram.Histogram
	want           [c8QPs]mlx5.State
}

// toggle runs the campaign until it has lasted as long as wanted.
func (r *Run) toggle(ctx context.Context, t *toggler, keep func() error) error {
	c := t.c
	p := newPace(t.watch, c.Rate)
	before := c.Elapsed
	kept := time.Now()
	for i := 0; c.Elapsed < c.Wanted && before+time.Duration(i)*p.every < c.Wanted; i++ {
		at, err := p.wait(ctx, i)
		if err != nil {
			return err
		}
		if err := t.change(at); err != nil {
			return err
		}
		c.Elapsed = before + t.watch.now() - p.start
		if c.Violations >= 10*c8Violations {
			return fmt.Errorf("bench: c8: given up after %d violations; the first: %s", c.Violations, c.First[0])
		}
		r.progress("%s of %v, %s changes, %d violations", c.Elapsed.Round(time.Second), c.Wanted, count(int(c.Changes)), c.Violations)
		if time.Since(kept) > c8Keep {
			kept = time.Now()
			// A disk that is full now may not be at the end.
			if err := keep(); err != nil && r.Options.Announce != nil {
				fmt.Fprintf(r.Options.Announce, "c8 goes on, but what it has so far could not be written: %v\n", err)
			}
		}
	}
	err := t.watch.until(ctx, p.start+c.Wanted-before) // the last one's time, too
	c.Elapsed = before + t.watch.now() - p.start
	return err
}

// nextStates are what a queue pair is brought to from a state: onwards most
// often, so that every state is met.
var nextStates = map[mlx5.State][]func(t *toggler, i int) (mlx5.State, error){
	mlx5.StateRST:  {(*toggler).init, (*toggler).init, (*toggler).init, (*toggler).toRST, (*toggler).toERR},
	mlx5.StateInit: {(*toggler).rtr, (*toggler).rtr, (*toggler).rtr, (*toggler).reinit, (*toggler).toRST, (*toggler).toERR},
	mlx5.StateRTR:  {(*toggler).rts, (*toggler).rts, (*toggler).rts, (*toggler).toRST, (*toggler).toERR},
	mlx5.StateRTS:  {(*toggler).rerts, (*toggler).rerts, (*toggler).toRST, (*toggler).toRST, (*toggler).toERR},
	mlx5.StateErr:  {(*toggler).toRST, (*toggler).toRST, (*toggler).toERR},
}

func (t *toggler) init(i int) (mlx5.State, error) {
	return mlx5.StateInit, devx.Modify(t.qps[i], t.bed.c.init)
}

func (t *toggler) reinit(i int) (mlx5.State, error) {
	return mlx5.StateInit, devx.Modify(t.qps[i], mlx5.INIT2INIT{Access: t.bed.c.init.Access})
}

func (t *toggler) rtr(i int) (mlx5.State, error) {
	rtr := t.bed.c.rtr
	rtr.RemoteQPN = mlx5.Set(t.qps[i].Number())
	return mlx5.StateRTR, devx.Modify(t.qps[i], rtr)
}

func (t *toggler) rts(i int) (mlx5.State, error) {
	return mlx5.StateRTS, devx.Modify(t.qps[i], t.bed.c.rts)
}

func (t *toggler) rerts(i int) (mlx5.State, error) {
	return mlx5.StateRTS, devx.Modify(t.qps[i], mlx5.RTS2RTS{Access: t.bed.c.init.Access})
}

func (t *toggler) toERR(i int) (mlx5.State, error) {
	return mlx5.StateErr, devx.Modify(t.qps[i], mlx5.ToERR{})
}

func (t *toggler) toRST(i int) (mlx5.State, error) {
	return mlx5.StateRST, devx.Modify(t.qps[i], mlx5.ToRST{})
}

// change changes one state and checks. Its error is that the device is lost.
func (t *toggler) change(meant time.Duration) error {
	i := t.rng.IntN(c8QPs)
	choices := nextStates[t.want[i]]
	before := t.want[i]
	start := t.watch.now()
	to, err := choices[t.rng.IntN(len(choices))](t, i)
	end := t.watch.now()
	t.c.Changes++
	_ = t.meant.RecordValue(int64(min(max(end-meant, 1), longest)))
	_ = t.service.RecordValue(int64(min(max(end-start, 1), longest)))
	if errors.Is(err, devx.ErrDeviceGone) {
		return err
	}
	t.want[i] = to
	if err != nil {
		t.violated("QP %#x from %v to %v: %v", t.qps[i].Number(), before, to, err)
	}
	if err := t.check(i); err != nil {
		return err
	}
	return t.check(t.rng.IntN(c8QPs))
}

// check compares a queue pair with what it must be. After a violation it is
// taken for what it is, so that it counts once.
func (t *toggler) check(i int) error {
	t.c.Checks++
	q, want := t.qps[i], t.want[i]
	qpc, err := q.Query()
	if errors.Is(err, devx.ErrDeviceGone) {
		return err
	}
	if err != nil {
		t.violated("QP %#x cannot be queried: %v", q.Number(), err)
		return nil
	}
	if is := mlx5.State(qpc.State()); is != want {
		t.violated("QP %#x is in %v and must be in %v", q.Number(), is, want)
		t.want[i] = is
		return nil
	}
	type attribute struct {
		name      string
		is, wants int
	}
	var set []attribute
	c := &t.bed.c
	if want == mlx5.StateRTR || want == mlx5.StateRTS {
		set = append(set,
			attribute{"mtu", int(qpc.MTU()), value(c.rtr.MTU)},
			attribute{"remote_qpn", int(qpc.RemoteQPN()), int(q.Number())},
			attribute{"min_rnr_nak", int(qpc.MinRNRNak()), value(c.rtr.MinRNRNak)})
	}
	if want == mlx5.StateRTS {
		set = append(set,
			attribute{"retry_count", int(qpc.RetryCount()), value(c.rts.RetryCount)},
			attribute{"rnr_retry", int(qpc.RNRRetry()), value(c.rts.RNRRetry)},
			attribute{"ack_timeout", int(qpc.PrimaryAddressPath().AckTimeout()), value(c.rts.AckTimeout)})
	}
	for _, a := range set {
		if a.is != a.wants {
			t.violated("QP %#x in %v has %s %d and must have %d", q.Number(), want, a.name, a.is, a.wants)
		}
	}
	return nil
}

func value(a mlx5.Attr) int {
	v, _ := a.Get()
	return int(v)
}

func (t *toggler) violated(format string, args ...any) {
	if t.c.Violations++; len(t.c.First) < c8Violations {
		t.c.First = append(t.c.First, fmt.Sprintf("change %s: ", count(int(t.c.Changes)))+fmt.Sprintf(format, args...))
	}
}

// c8Verdict says what so many changes show.
func c8Verdict(r *Result) Verdict {
	c := r.Campaign
	v := Verdict{Claim: "C8", Answer: NotDecidable}
	rate := float64(c.Changes) / c.Elapsed.Seconds()
	done := fmt.Sprintf("%s changes of state in %v (%.0f a second), %s checks, %s violations", count(int(c.Changes)), c.Elapsed.Round(time.Second), rate, count(int(c.Checks)), count(int(c.Violations)))
	where := fmt.Sprintf("devxlab bench c8 --duration 8h --device %s", r.Provenance.Device)
	switch {
	case r.Provenance.Place == PlaceEmu:
		v.Why = done + ", all of them this module's own code: whether a card's firmware survives it is not in emu."
		v.Where = "devxlab bench c8 --duration 8h --device mlx5_0"
	case c.Violations > 0:
		v.Answer, v.Why = Refuted, done+"; the first: "+c.First[0]+"."
	case c.Rate < c8Rate:
		v.Why, v.Where = fmt.Sprintf("%s: the claim is about %d a second.", done, c8Rate), where
	case rate < 0.99*c.Rate:
		v.Why, v.Where = fmt.Sprintf("%s: the device, or this machine, did not keep up with %g a second.", done, c.Rate), where
	case c.Elapsed < c8Enough:
		v.Why, v.Where = done+fmt.Sprintf(": so far; it takes %v to be called survived.", c8Enough), where
	default:
		v.Answer, v.Why = Supported, done+"."
	}
	return v
}

func c8Text(r *Result, p *page) {
	c := r.Campaign
	if c == nil {
		return
	}
	p.section(fmt.Sprintf("Changes of state (%s, %s)", r.Provenance.Place, r.Provenance.Device), r.Method)
	p.table("lr", []string{"", "so far"},
		[]string{"changes of state", count(int(c.Changes))},
		[]string{"asked for", fmt.Sprintf("%g a second for %v", c.Rate, c.Wanted)},
		[]string{"achieved", fmt.Sprintf("%.1f a second for %v", float64(c.Changes)/max(c.Elapsed.Seconds(), 1e-9), c.Elapsed.Round(time.Millisecond))},
		[]string{"checks", count(int(c.Checks))},
		[]string{"violations", count(int(c.Violations))},
		[]string{"runs", fmt.Sprint(c.Runs)})
	var rows [][]string
	for i := range r.Series {
		s := &r.Series[i]
		rows = append(rows, append([]string{s.What}, percentiles(s.Summary)...))
	}
	p.b.WriteByte('\n')
	p.table("lrrrrr", []string{"latency", "P50", "P90", "P99", "P99.9", "most"}, rows...)
	if c.Partial {
		p.para("The distributions are of the last runs only: those of earlier ones were lost. The counts are of all.", indent)
	}
	for _, v := range c.First {
		p.para(v, "VIOLATION: ")
	}
	if r.Interrupted && c.Elapsed < c.Wanted {
		p.para("go on: devxlab bench c8 --resume and the run's directory", indent)
	}
}

// percentiles are the cells of a summary: P50, P90, P99, P99.9 and the greatest.
func percentiles(s Summary) []string {
	cell := func(ns int64) string {
		if ns == 0 {
			return "-"
		}
		return nanos(float64(ns))
	}
	return []string{cell(s.P50), cell(s.P90), cell(s.P99), cell(s.P999), cell(s.Max)}
}
