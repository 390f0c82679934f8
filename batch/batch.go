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
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
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
	Depth       int      // in flight at once, 1 to 64; 0: the device's slots (31), or Group if that is less; not with Strategy
	StopOnError bool     // send nothing more once an entry is failed, unknown or not sendable
	Strategy    Strategy // how a group is carried to the device; nil: Parallel of Depth

	// OnWait is called if Run's context ends while commands are in flight, on a
	// goroutine of its own, and by Close if there are any: both wait for them,
	// since a firmware command cannot be recalled. One that hangs holds its
	// caller until the driver gives up, up to 65 s. Neither returns before OnWait
	// has; it must not call the batch. Both may call it, at the same time.
	OnWait func(inFlight int)

	// OnSend is called with the tag of each entry right before its call, on the
	// goroutine that makes it: several may do so at a time. nil: it is not.
	OnSend func(tag uint64)

	// Announced says that the goroutine which calls Run is announced to the
	// device's clock (devx.Device.Busy). It matters only where that is virtual.
	Announced bool
}

// Batch collects transitions and runs them. Close may be called at any time;
// otherwise it is not safe for concurrent use. Several batches may run on one
// device at the same time, with no order between them where they share a queue
// pair.
type Batch struct {
	d       *devx.Device
	o       Options
	carrier Carrier
	entries []entry
	ran     bool
	closed  atomic.Bool
	running sync.Mutex // held by Run

	group  Group
	last   map[*devx.QP]int32    // of the group at hand: each queue pair's latest entry
	lost   map[*devx.QP]struct{} // queue pairs with an entry that ended unknown
	watch  *watcher
	waited int           // in flight when the context ended
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

// ErrOptions is in the error of options that are out of range or do not go
// together.
var ErrOptions = errors.New("batch")

// New returns an empty batch for queue pairs of d. Close it to end its
// goroutines.
func New(d *devx.Device, o Options) (*Batch, error) {
	if o.Group == 0 {
		o.Group = DefaultGroup
	}
	if o.Group < 1 || o.Group > MaxGroup {
		return nil, fmt.Errorf("%w: Options.Group %d is out of range: 1 to %d, or 0 for %d", ErrOptions, o.Group, MaxGroup, DefaultGroup)
	}
	if o.Depth != 0 && o.Strategy != nil {
		return nil, fmt.Errorf("%w: Options.Depth and Options.Strategy are both set: a strategy has its own depth", ErrOptions)
	}
	if o.Depth == 0 {
		o.Depth = min(o.Group, d.Slots())
	}
	if o.Depth < 1 || o.Depth > MaxDepth {
		return nil, fmt.Errorf("%w: Options.Depth %d is out of range: 1 to %d, or 0 for the device's %d slots", ErrOptions, o.Depth, MaxDepth, d.Slots())
	}
	if o.Strategy == nil {
		o.Strategy = Parallel(o.Depth)
	}
	c, err := o.Strategy.Start(d)
	if err != nil {
		return nil, fmt.Errorf("batch: %s: %w", o.Strategy.Name(), err)
	}
	b := &Batch{d: d, o: o, carrier: c, last: map[*devx.QP]int32{}, lost: map[*devx.QP]struct{}{}}
	b.group.b = b
	return b, nil
}

func closedError() error {
	return fmt.Errorf("batch: %w: make another one with New", devx.ErrClosed)
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
	if err == nil && (n < minCommand || n > mlx5.TransitionSize) {
		err = fmt.Errorf("batch: %T encoded %d bytes: a transition has %d to %d", t, n, minCommand, mlx5.TransitionSize)
	}
	if err != nil {
		*e = entry{}
		b.entries = b.entries[:len(b.entries)-1]
		return err
	}
	e.Tag, e.QP, e.Op, e.n = tag, q, t.Op(), uint16(n)
	return nil
}

// minCommand is the length of the shortest command (2ERR, 2RST).
const minCommand = 16

// grow appends a zero entry.
func (b *Batch) grow(q *devx.QP) (*entry, error) {
	switch {
	case b.closed.Load():
		return nil, closedError()
	case b.ran:
		return nil, errors.New("batch: it has run: Reset it before adding")
	case q == nil:
		return nil, errors.New("batch: no queue pair given: it is nil")
	case q.Device() != b.d:
		return nil, fmt.Errorf("batch: QP %#x %w than %s", q.Number(), devx.ErrForeign, b.d.Name())
	}
	if len(b.entries) < cap(b.entries) {
		b.entries = b.entries[:len(b.entries)+1] // zero: see Reset
	} else {
		b.entries = append(b.entries, entry{})
	}
	return &b.entries[len(b.entries)-1], nil
}

// Len returns the number of entries.
func (b *Batch) Len() int { return len(b.entries) }

// Run carries out the entries, and returns nil if all of them are done, else an
// *Error. If ctx ends, nothing more is sent and Run waits for what is in flight
// (see Options.OnWait). In the steady state it allocates nothing.
//
// An entry is held back if an earlier one of its queue pair ended Unknown: a
// command that timed out may still be executed, and the later one overtake it. With
// Kernel nothing more is sent at all then.
func (b *Batch) Run(ctx context.Context) error {
	if !b.running.TryLock() {
		return errors.New("batch: it is running: wait for Run to return, or make another one with New")
	}
	defer b.running.Unlock()
	g := &b.group
	g.gate.reset()
	switch {
	case b.closed.Load(): // after the reset, so that a Close from now on shuts the gate
		return closedError()
	case b.ran:
		return errors.New("batch: it has run: Reset it first")
	}
	b.ran = true
	b.busy, b.wall, b.most, b.waited = 0, 0, 0, 0
	g.ctx = ctx
	watched := ctx.Done() != nil
	if watched {
		b.watchContext(ctx)
	}
	for at := 0; at < len(b.entries) && g.open(); at += b.o.Group {
		to := min(at+b.o.Group, len(b.entries))
		if g.fill(at, to); len(g.heads) == 0 {
			continue
		}
		start := time.Now()
		b.carrier.Carry(g)
		b.wall += time.Since(start)
		if g.lost.Swap(false) {
			b.noteLost(b.entries[at:to])
		}
	}
	if watched {
		b.watch.end <- struct{}{}
	}
	g.ctx = nil
	return b.verdict(ctx)
}

func (b *Batch) noteLost(entries []entry) {
	for i := range entries {
		if entries[i].Outcome == Unknown {
			b.lost[entries[i].QP] = struct{}{}
		}
	}
}

// verdict gives the entries that were not sent their outcome, and counts.
func (b *Batch) verdict(ctx context.Context) error {
	var ended, refused, failure error // why entries were not sent, the most telling first
	switch b.group.gate.why() {
	case byContext:
		ended = context.Cause(ctx)
	case byClose:
		ended = closedError()
	case byKernel:
		ended = errKernel
	case byFailure:
		failure = errStopped
	}
	var rest, held, first error
	var counts [Unknown + 1]int
	for i := range b.entries {
		e := &b.entries[i]
		if e.Outcome == Pending {
			e.Outcome = NotSent
			if _, lost := b.lost[e.QP]; lost {
				held = notSent(held, errLost)
				e.Err = held
			} else {
				rest = notSent(rest, cmp.Or(ended, failure, errLeftOut))
				e.Err = rest
			}
		} else if e.Outcome == NotSent && refused == nil {
			refused = errors.Unwrap(e.Err)
		}
		if first == nil && (e.Outcome == Failed || e.Outcome == Unknown) {
			first = e.Err
		}
		counts[e.Outcome]++
		b.busy += e.Took
		b.most = max(b.most, e.InFlight)
	}
	if counts[Done] == len(b.entries) {
		return nil
	}
	v := &Error{Failed: counts[Failed], NotSent: counts[NotSent], Unknown: counts[Unknown], First: first, Waited: b.waited}
	if v.NotSent > 0 {
		v.Cause = cmp.Or(ended, refused, failure, errors.Unwrap(cmp.Or(held, rest)))
	}
	return v
}

// notSent returns err, or makes it: one serves all entries.
func notSent(err, why error) error {
	if err == nil {
		err = &notSentError{why}
	}
	return err
}

// Results yields what became of each entry, in the order in which they were
// added.
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
	clear(b.entries) // also so that it keeps no queue pair alive
	clear(b.last)
	clear(b.lost)
	b.entries = b.entries[:0]
	b.ran = false
}

// Close ends the batch's goroutines. A Run that is under way sends nothing
// more, and Close waits for what it has in flight. A second call does nothing.
func (b *Batch) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	if n := b.group.gate.shut(byClose); n > 0 && b.o.OnWait != nil {
		b.o.OnWait(n)
	}
	b.running.Lock()
	defer b.running.Unlock()
	if b.watch != nil {
		close(b.watch.begin)
		<-b.watch.gone
	}
	return b.carrier.Close()
}

// watcher is a goroutine that shuts the gate when a context ends. It serves one
// Run after the other: context.AfterFunc would allocate in each.
type watcher struct {
	begin chan context.Context
	end   chan struct{}
	gone  chan struct{}
}

func (b *Batch) watchContext(ctx context.Context) {
	if b.watch == nil {
		b.watch = &watcher{make(chan context.Context), make(chan struct{}), make(chan struct{})}
		go b.watcher(b.watch)
	}
	b.watch.begin <- ctx
}

func (b *Batch) watcher(w *watcher) {
	defer close(w.gone)
	for ctx := range w.begin {
		select {
		case <-w.end:
			continue
		case <-ctx.Done():
		}
		if b.waited = b.group.gate.shut(byContext); b.waited > 0 && b.o.OnWait != nil {
			b.o.OnWait(b.waited)
		}
		<-w.end
	}
}
