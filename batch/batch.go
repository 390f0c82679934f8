// SPDX-License-Identifier: BSD-2-Clause

// Package batch brings many queue pairs through their transitions as one call.
//
// A batch takes any number of transitions and runs them in groups (32 unless
// asked otherwise). Within a group they go out at once, as many as the depth
// allows; the next group begins when the last answer is in. Two transitions of
// one queue pair keep their order. A failure does not stop the others unless
// the caller asks for that, and afterwards every entry has an outcome: nothing
// is reported done that was not.
//
// There is no firmware command for many queue pairs. A batch wins because the
// driver holds up to 31 commands at once and each blocks only its own thread; it
// wins nothing if the firmware executes them one after the other anyway. How
// much it wins is therefore a question to each device: see experiment C6 of
// devxlab bench.
//
// Each command in flight blocks one OS thread. A program whose GOMAXPROCS is
// smaller than depth + 2 has its threads handed over slowly; this package does
// not change GOMAXPROCS.
package batch

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// Limits and defaults of Options.
const (
	DefaultGroup = 32
	MaxGroup     = 64
	MaxDepth     = 64
)

// Options say how a batch runs. The zero value is groups of 32, as many at once
// as the device has slots, and going on after a failure.
type Options struct {
	Group       int      // transitions in a group, 1 to 64; 0: 32
	Depth       int      // in flight at once, 1 to 64; 0: the device's slots (31), or Group if that is less
	StopOnError bool     // send nothing more after the first failure
	Strategy    Strategy // how a group is carried to the device; nil: Parallel of Depth

	// OnWait is called if Run is cancelled while commands are in flight, before
	// it waits for them: a firmware command cannot be recalled. One that hangs
	// holds its caller until the driver gives up, up to 65 s.
	OnWait func(inFlight int)
}

// Outcome is what became of an entry.
type Outcome uint8

const (
	Pending Outcome = iota // Run has not come to it
	Done                   // the firmware said OK
	Failed                 // the firmware or the kernel refused it
	NotSent                // it never reached the kernel
	Unknown                // it was sent and the answer was lost: the device went away or timed out
)

var outcomeNames = [...]string{"pending", "done", "failed", "not sent", "unknown"}

func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Result is what became of one entry, in the order in which they were added.
type Result struct {
	Tag      uint64 // what Add was given
	QP       *devx.QP
	Op       mlx5.Op
	Outcome  Outcome
	Err      error         // of Failed and Unknown, a *devx.CommandError inside
	Sent     time.Time     // when the call began; zero if not sent
	Took     time.Duration // until it returned
	InFlight int           // calls under way when it was sent, itself included
}

// Batch collects transitions and runs them. It is not safe for concurrent use;
// several batches may run on one device at the same time.
type Batch struct {
	d       *devx.Device
	o       Options
	carrier Carrier
	entries []entry
	last    map[*devx.QP]int32 // of the group at hand: each queue pair's latest entry
	ran     bool
	closed  bool

	group  Group
	flight atomic.Int64
	busy   time.Duration // sum of Took
	wall   time.Duration // sum of the groups' durations
	most   int
}

// entry is a transition, encoded when it was added.
type entry struct {
	Result
	n    uint16
	next int32 // the same queue pair's next entry in the group, -1 if none
	cmd  [mlx5.TransitionSize]byte
}

// New returns an empty batch for queue pairs of d. Close it to end its
// goroutines.
func New(d *devx.Device, o Options) (*Batch, error) {
	if o.Group == 0 {
		o.Group = DefaultGroup
	}
	if o.Group < 1 || o.Group > MaxGroup {
		return nil, fmt.Errorf("batch: Options.Group %d is out of range: 1 to %d", o.Group, MaxGroup)
	}
	if o.Depth == 0 {
		o.Depth = min(o.Group, d.Slots())
	}
	if o.Depth < 1 || o.Depth > MaxDepth {
		return nil, fmt.Errorf("batch: Options.Depth %d is out of range: 1 to %d", o.Depth, MaxDepth)
	}
	if o.Strategy == nil {
		o.Strategy = Parallel(o.Depth)
	}
	c, err := o.Strategy.Start(d)
	if err != nil {
		return nil, fmt.Errorf("batch: %s: %w", o.Strategy.Name(), err)
	}
	return &Batch{d: d, o: o, carrier: c, last: map[*devx.QP]int32{}}, nil
}

// Add encodes a transition of q and appends it. It is a function because a
// transition passed as an interface would allocate. A missing or unencodable
// attribute (*mlx5.AttrError), or a queue pair of another context
// (devx.ErrForeign), adds nothing. The tag comes back in the Result.
func Add[T mlx5.Transition](b *Batch, q *devx.QP, t T, tag uint64) error {
	e, err := b.grow(q)
	if err != nil {
		return err
	}
	n, err := t.Encode(e.cmd[:], q.Number(), q.Transport())
	if err != nil {
		b.entries = b.entries[:len(b.entries)-1]
		return err
	}
	e.Tag, e.QP, e.Op, e.n = tag, q, t.Op(), uint16(n)
	return nil
}

func (b *Batch) grow(q *devx.QP) (*entry, error) {
	switch {
	case b.closed:
		return nil, fmt.Errorf("batch: %w", devx.ErrClosed)
	case b.ran:
		return nil, errors.New("batch: it has run: Reset it before adding")
	case q.Device() != b.d:
		return nil, fmt.Errorf("batch: QP %#x %w than %s", q.Number(), devx.ErrForeign, b.d.Name())
	}
	if len(b.entries) < cap(b.entries) {
		b.entries = b.entries[:len(b.entries)+1]
	} else {
		b.entries = append(b.entries, entry{})
	}
	e := &b.entries[len(b.entries)-1]
	*e = entry{}
	return e, nil
}

// Len returns the number of entries.
func (b *Batch) Len() int { return len(b.entries) }

// Error says that not every entry was done. errors.Is and errors.As see the
// first failure and the reason for stopping.
type Error struct {
	Failed, NotSent, Unknown int
	First                    error // of the first entry that failed or whose answer was lost
	Cause                    error // why it stopped early: of the context, or devx.ErrClosed; nil if it did not
	Waited                   int   // commands that were in flight when it was cancelled
}

func (e *Error) Error() string {
	s := fmt.Sprintf("batch: %d failed, %d not sent, %d unknown", e.Failed, e.NotSent, e.Unknown)
	if e.Cause != nil {
		s += fmt.Sprintf("; stopped: %v", e.Cause)
	}
	if e.Waited > 0 {
		s += fmt.Sprintf("; %d in flight were waited for, since a firmware command cannot be recalled", e.Waited)
	}
	if e.First != nil {
		s += fmt.Sprintf("; first: %v", e.First)
	}
	return s
}

// Unwrap returns First and Cause.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.First != nil {
		errs = append(errs, e.First)
	}
	if e.Cause != nil {
		errs = append(errs, e.Cause)
	}
	return errs
}

// Run carries out the entries, and returns nil if all of them are done, else an
// *Error. If ctx ends, nothing more is sent and Run waits for what is in flight
// (see Options.OnWait). In the steady state it allocates nothing.
func (b *Batch) Run(ctx context.Context) error {
	switch {
	case b.closed:
		return fmt.Errorf("batch: %w", devx.ErrClosed)
	case b.ran:
		return errors.New("batch: it has run: Reset it first")
	}
	b.ran = true
	b.busy, b.wall, b.most = 0, 0, 0
	g := &b.group
	g.b, g.ctx = b, ctx
	g.stop.Store(false)
	defer func() { g.ctx = nil }()
	waited := 0
	for at := 0; at < len(b.entries) && !g.stop.Load(); at += b.o.Group {
		g.fill(at, min(at+b.o.Group, len(b.entries)))
		start := time.Now()
		b.carrier.Carry(g)
		b.wall += time.Since(start)
		waited += g.waited
	}
	return b.verdict(ctx, waited)
}

func (b *Batch) verdict(ctx context.Context, waited int) error {
	var v Error
	for i := range b.entries {
		e := &b.entries[i]
		switch e.Outcome {
		case Done:
			b.busy += e.Took
			b.most = max(b.most, e.InFlight)
			continue
		case Pending:
			e.Outcome = NotSent
			fallthrough
		case NotSent:
			v.NotSent++
			if e.Err != nil && v.Cause == nil {
				v.Cause = e.Err
			}
			continue
		case Failed:
			v.Failed++
		case Unknown:
			v.Unknown++
		}
		b.busy += e.Took
		b.most = max(b.most, e.InFlight)
		if v.First == nil {
			v.First = e.Err
		}
	}
	if v.Failed+v.NotSent+v.Unknown == 0 {
		return nil
	}
	if v.NotSent > 0 && ctx.Err() != nil {
		v.Cause = context.Cause(ctx)
	}
	v.Waited = waited
	return &v
}

// Results yields what became of each entry.
func (b *Batch) Results() iter.Seq[Result] {
	return func(yield func(Result) bool) {
		for i := range b.entries {
			if !yield(b.entries[i].Result) {
				return
			}
		}
	}
}

// InFlight returns how many commands the last Run had in flight: the mean over
// its duration, and the most at any time. A sweep over depth means nothing
// where the mean stays below what was asked for.
func (b *Batch) InFlight() (mean float64, most int) {
	if b.wall > 0 {
		mean = float64(b.busy) / float64(b.wall)
	}
	return mean, b.most
}

// Elapsed returns the duration of the last Run's groups together.
func (b *Batch) Elapsed() time.Duration { return b.wall }

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	b.entries = b.entries[:0]
	b.ran = false
}

// Close ends the batch's goroutines. Run must not be under way. A second call
// does nothing.
func (b *Batch) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	return b.carrier.Close()
}
