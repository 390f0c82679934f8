// SPDX-License-Identifier: BSD-2-Clause

// Package calibrate measures what the commands of a device cost, and writes it
// down as a profile for the emulated one:
//
//	r, err := calibrate.Run(ctx, calibrate.Options{Device: "mlx5_0"})
//	…
//	err = calibrate.WriteProfile("mlx5_0.json", r.Profile, false)
//	d, err := devx.Open("emu:profile=mlx5_0.json")
//
// It measures how long each command takes alone, and when the commands of a
// burst end. What explains both is found by trying: see fit.go. Each figure says
// how sure it is; one that cannot be told from outside says that, and is never
// made up.
//
// It makes queue pairs and other objects of its own, posts no work request, and
// leaves nothing behind. What it finds on an emulated device is what its profile
// was told.
package calibrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/emu/fw"
	"devxlab.example/emu/uverbs"
	"devxlab.example/mlx5"
)

// Bounds of Options.
const (
	DefaultSamples = 1000
	MinSamples     = 100
	MaxSamples     = 1_000_000
	MinQPs         = 1000
	MaxQPs         = 1 << 21
)

// Options of a calibration.
type Options struct {
	Device   string    // as devx.Open takes it
	Samples  int       // of each command alone, 100 to 1,000,000; 0: 1,000. P99.9 needs 10,000
	QPs      int       // grow to so many queue pairs, 1,000 to 2,097,152, to see what they add; 0: do not
	Announce io.Writer // gets what will be done to hardware, before it is done; nil: none
	Progress io.Writer // a terminal; nil: none

	// For tests: take an emulated device for hardware, and see each step.
	asHardware bool
	step       func(string)
}

// Confidence says how sure a figure is.
type Confidence string

// Confidences.
const (
	Exact           Confidence = "exact"            // no other value explains what was seen, and times do not vary
	Estimated       Confidence = "estimated"        // the interval covers it with 95 % confidence, if what the note assumes holds
	NotIdentifiable Confidence = "not identifiable" // the note says why, and low and high what it may be
)

// Figure is one thing that was found.
type Figure struct {
	Name       string     `json:"name"`
	Unit       string     `json:"unit,omitempty"` // "ns", or none for a number
	Value      int64      `json:"value"`
	Low        int64      `json:"low"`
	High       int64      `json:"high"`
	N          int        `json:"n"` // commands that it rests on
	Confidence Confidence `json:"confidence"`
	Note       string     `json:"note,omitempty"`
}

// Latency is what one command takes from doorbell to completion: the Figure is
// its median. Submit is subtracted, as a profile wants it.
type Latency struct {
	Figure
	Quantiles []fw.Point `json:"-"` // those that the samples carry
	P90       int64      `json:"p90_ns,omitempty"`
	P99       int64      `json:"p99_ns,omitempty"`
	P999      int64      `json:"p999_ns,omitempty"`
	Min       int64      `json:"min_ns"`
	Max       int64      `json:"max_ns"`
}

// Result is what a calibration found.
type Result struct {
	Device   string        `json:"device"`
	Place    string        `json:"place"` // "emu" or "hw"
	Clock    string        `json:"clock"` // "virtual" or "CLOCK_MONOTONIC"
	Card     string        `json:"card,omitempty"`
	Firmware string        `json:"firmware,omitempty"`
	Started  time.Time     `json:"started"`
	Took     time.Duration `json:"took_ns"`
	Commands int           `json:"commands"` // those that were timed
	Figures  []Figure      `json:"figures"`  // threads, submit, slots, and what was asked for
	Ops      []Latency     `json:"ops"`
	Notes    []string      `json:"notes,omitempty"`
	Profile  *fw.Profile   `json:"profile"`
}

// Figure returns the figure of that name, or nil.
func (r *Result) Figure(name string) *Figure {
	for i := range r.Figures {
		if r.Figures[i].Name == name {
			return &r.Figures[i]
		}
	}
	return nil
}

// Op returns what was found about an opcode, or nil.
func (r *Result) Op(op mlx5.Op) *Latency {
	for i := range r.Ops {
		if r.Ops[i].Name == op.String() {
			return &r.Ops[i]
		}
	}
	return nil
}

// ErrOptions is in the error of options that are out of range.
var ErrOptions = errors.New("calibrate")

func (o *Options) check() error {
	if o.Samples == 0 {
		o.Samples = DefaultSamples
	}
	switch {
	case o.Device == "":
		return fmt.Errorf("%w: no device: name one (mlx5_0), or the emulated one (emu:)", ErrOptions)
	case o.Samples < MinSamples || o.Samples > MaxSamples:
		return fmt.Errorf("%w: %d samples are out of range: %d to %d", ErrOptions, o.Samples, MinSamples, MaxSamples)
	case o.QPs != 0 && (o.QPs < MinQPs || o.QPs > MaxQPs):
		return fmt.Errorf("%w: %d queue pairs are out of range: %d to %d, or 0 for not looking", ErrOptions, o.QPs, MinQPs, MaxQPs)
	}
	return nil
}

// How much is measured.
const (
	flight = 64  // commands of a burst: more than any device has slots
	pairs  = 100 // bursts of two
	bursts = 10  // of flight
	mixed  = 20  // of long and short commands
	calls  = 200 // of the yardstick
)

// run is a calibration under way.
type run struct {
	Result
	o     Options
	ctx   context.Context
	team  *team
	alone [][]time.Duration // by step, sorted; nil: refused
	fit   fitter
	shown time.Time
}

// Run measures a device. On a real clock it sets GOMAXPROCS, for each command in
// flight holds a thread, and sets it back. If ctx ends, so does the run, with
// nothing found; commands in flight are waited for.
func Run(ctx context.Context, o Options) (res *Result, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	d, err := devx.Open(o.Device)
	if err != nil {
		return nil, err
	}
	info := d.Info()
	r := &run{o: o, ctx: ctx, alone: make([][]time.Duration, len(steps))}
	r.Result = Result{Device: o.Device, Place: "hw", Clock: "CLOCK_MONOTONIC", Firmware: info.Firmware, Started: time.Now()}
	r.Card = strings.TrimSpace(info.HCAType + " " + info.BoardID)
	var c clock = fw.NewRealClock()
	if emu, ok := uverbs.Lookup(o.Device); ok {
		r.Place, c = "emu", emu.HCA().Clock()
	}
	if o.asHardware {
		r.Place = "hw"
	}
	_, virtual := c.(*fw.VirtualClock)
	if virtual {
		r.Clock = "virtual"
	}
	if err := r.room(d); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if r.Place == "hw" && o.Announce != nil {
		if _, err := fmt.Fprintln(o.Announce, r.plan()); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	if procs := runtime.GOMAXPROCS(0); !virtual && procs < flight+2 {
		runtime.GOMAXPROCS(flight + 2)
		defer runtime.GOMAXPROCS(procs)
	}
	r.team, err = newTeam(d, c, virtual, flight)
	defer func() {
		if closeErr := r.team.close(); closeErr != nil || err != nil {
			res, err = nil, errors.Join(err, closeErr)
		}
	}()
	for _, part := range []func() error{r.oneByOne, r.together, r.herd} {
		if err == nil {
			err = part()
		}
	}
	if o.Progress != nil {
		fmt.Fprint(o.Progress, "\r\x1b[K")
	}
	if err != nil {
		return nil, fmt.Errorf("calibrate: %s: %w", o.Device, err)
	}
	r.Took = time.Since(r.Started)
	if err := r.profile(); err != nil {
		return nil, err
	}
	return &r.Result, nil
}

// permille is how much of the queue pairs of real hardware a run may take.
const permille = 700

func (r *run) room(d *devx.Device) error {
	caps, err := d.Caps()
	if err != nil {
		return err
	}
	most, why := 1<<caps.LogMaxQP(), "the device offers no more"
	if r.Place == "hw" {
		most, why = most*permille/1000, "a run on hardware stops at 70 % of what the device offers"
	}
	if n := r.o.QPs + flight + 1; n > most {
		return fmt.Errorf("%w: this makes %d queue pairs, and %s has log_max_qp %d: at most %d, as %s", ErrOptions, n, r.Device, caps.LogMaxQP(), most, why)
	}
	return nil
}

// plan says what will be done.
func (r *run) plan() string {
	n := r.o.Samples*len(steps) + 3*(2*pairs+flight*bursts) + 2*flight*mixed
	text := fmt.Sprintf("calibrate, on %s: makes %d queue pairs, PDs and memory keys of its own through DevX, and destroys them at the end. Sends about %d commands, first one by one, then up to %d at once.",
		r.Device, flight+1, n, flight)
	if r.o.QPs > 0 {
		text += fmt.Sprintf(" Grows to %d queue pairs, and sends up to %d more commands to them, one by one.", r.o.QPs+flight, r.o.QPs*22)
	}
	return text + " No work request, no packet; nobody else's objects are touched, but others wait for the same firmware."
}

// progress shows what is going on, ten times a second at most, and returns the
// error of a context that has ended.
func (r *run) progress(format string, args ...any) error {
	if r.o.step != nil {
		r.o.step(fmt.Sprintf(format, args...))
	}
	if r.o.Progress != nil && time.Since(r.shown) > 100*time.Millisecond {
		fmt.Fprintf(r.o.Progress, "\r\x1b[Kcalibrate: "+format, args...)
		r.shown = time.Now()
	}
	return r.ctx.Err()
}

// timed runs f on the first kit, and returns how long it took.
func (r *run) timed(f func(*kit) error) (time.Duration, error) {
	start := r.team.clock.Now()
	err := f(r.team.kits[0])
	return r.team.clock.Now() - start, err
}

// oneByOne measures each command alone: every step in turn, again and again.
func (r *run) oneByOne() error {
	r.team.d.Busy(1)
	defer r.team.d.Busy(-1)
	refused := make([]bool, len(steps))
	for round := range r.o.Samples + 1 {
		if err := r.progress("one by one, round %d of %d", round, r.o.Samples); err != nil {
			return err
		}
		for i, s := range steps {
			if refused[i] {
				continue
			}
			took, err := r.timed(s.do)
			_, answered := errors.AsType[*mlx5.CommandError](err)
			switch {
			case err == nil && round > 0: // the first makes what devx shares
				r.alone[i] = append(r.alone[i], took)
			case err == nil:
			case s.optional && round == 0 && (answered || errors.Is(err, errNoKey)):
				refused[i] = true
				r.Notes = append(r.Notes, fmt.Sprintf("%v was not measured: %v", s.op, err))
			default:
				return fmt.Errorf("%v: %w", s.op, err)
			}
		}
	}
	for i := range r.alone {
		slices.Sort(r.alone[i])
		r.Commands += len(r.alone[i])
	}
	return r.yardstick()
}

// yardstick measures a modify that the kernel refuses (devx_is_valid_obj_id):
// what of a command's time is the call.
func (r *run) yardstick() error {
	if r.team.virtual {
		return nil
	}
	k := r.team.kits[0]
	cmd := k.reset
	mlx5.ToRSTQPIn(cmd[:]).SetQPN(k.q.Number() ^ 1)
	var all []time.Duration
	for range calls {
		took, err := r.timed(func(k *kit) error { return k.s.Send(k.q, cmd[:]) })
		if !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("a modify with another queue pair's number should be refused with EINVAL: %w", err)
		}
		all = append(all, took)
	}
	slices.Sort(all)
	f := medianFigure("refused call", all)
	f.Note = "a modify that the kernel refuses before it sends anything: the yardstick for what of the other times is the call. Nothing is subtracted"
	r.Figures = append(r.Figures, f)
	return nil
}

// medianFigure is the median of sorted times, with its bootstrap interval.
func medianFigure(name string, sorted []time.Duration) Figure {
	low, high := medianInterval(sorted)
	f := Figure{Name: name, Unit: "ns", Value: int64(quantile(sorted, 0.5)), Low: int64(low), High: int64(high), N: len(sorted), Confidence: Estimated}
	if sorted[0] == sorted[len(sorted)-1] {
		f.Confidence = Exact
	}
	return f
}

// together measures bursts, and finds threads, slots and submit.
func (r *run) together() error {
	r.fit.real = !r.team.virtual
	r.fit.alone = make([]*density, len(steps))
	long, short := -1, -1
	for i, s := range steps {
		if len(r.alone[i]) == 0 || !s.burst {
			continue
		}
		r.fit.alone[i] = newDensity(r.alone[i])
		if long < 0 || r.usual(i) > r.usual(long) {
			long = i
		}
		if short < 0 || r.usual(i) < r.usual(short) {
			short = i
		}
	}
	kinds := []int{stepOf(mlx5.Op2RST), long, short}
	slices.Sort(kinds)
	for _, step := range slices.Compact(kinds) {
		for _, b := range []struct{ n, times int }{{2, pairs}, {flight, bursts}} {
			if err := r.burst(slices.Repeat([]int{step}, b.n), nil, b.times); err != nil {
				return err
			}
		}
	}
	if threads := r.fit.solve()[0].threads; long != short && threads < maxSlots {
		for _, longs := range [][]int{{long}, r.distinct(short)} {
			of, after := r.hold(longs, threads, short)
			if err := r.burst(of, after, mixed); err != nil {
				return err
			}
		}
	}
	r.conclude(r.fit.solve(), long)
	return nil
}

// hold returns a burst in which long commands hold all threads, and end
// together as far as their times allow, while short ones fill the slots behind
// them: those that were in go at once when the threads are free, the others as
// they are submitted.
func (r *run) hold(longs []int, threads, short int) (of []int, after []time.Duration) {
	for i := range threads {
		of = append(of, longs[i%len(longs)])
	}
	slices.SortStableFunc(of, func(a, b int) int { return cmp.Compare(r.usual(b), r.usual(a)) })
	for _, step := range of {
		after = append(after, r.usual(of[0])-r.usual(step))
	}
	last := after[threads-1]
	if !r.team.virtual {
		last += 60 * time.Microsecond // more than the kernel's timer slack of 50 µs
	}
	for range flight - threads {
		of, after = append(of, short), append(after, last)
	}
	return of, after
}

// distinct returns the commands that take longer than short, the longest first,
// one for each time that they take.
func (r *run) distinct(short int) (longs []int) {
	for i := range steps {
		if r.fit.alone[i] != nil && r.usual(i) > r.usual(short) && !slices.ContainsFunc(longs, func(l int) bool { return r.usual(l) == r.usual(i) }) {
			longs = append(longs, i)
		}
	}
	slices.SortFunc(longs, func(a, b int) int { return cmp.Compare(r.usual(b), r.usual(a)) })
	return longs
}

func (r *run) usual(step int) time.Duration { return quantile(r.alone[step], 0.5) }

// burst adds trials of one kind; one more, before them, is not recorded.
func (r *run) burst(of []int, after []time.Duration, times int) error {
	for i := range times + 1 {
		if err := r.progress("%d at once, %d of %d", len(of), i, times); err != nil {
			return err
		}
		es, err := r.team.burst(of, after)
		if err != nil {
			return err
		}
		if i > 0 {
			r.fit.trials = append(r.fit.trials, es)
			r.Commands += len(es)
		}
	}
	return nil
}
