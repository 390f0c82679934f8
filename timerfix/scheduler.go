// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// Options of a scheduler. The zero value is a timerfd and a batch's defaults.
type Options struct {
	// Batch says how what is due together is sent; see batch.Options. Its OnWait
	// is called by Stop; StopOnError and OnSend must not be set.
	Batch batch.Options

	// Timer is where time comes from; nil: CLOCK_MONOTONIC, from a timerfd. The
	// scheduler closes it when it is stopped.
	Timer Timer

	// OnEnd is called with the result of every transition that was not
	// cancelled, batch by batch, from the scheduler's goroutine:
	// while it runs nothing is sent. It may call Defer and Cancel; Wait, Drain
	// and Stop would wait for themselves. The ticket is gone by then: a result
	// that is reported is not kept for Wait, except for those who wait already.
	//
	// Without OnEnd the result is kept until Wait or Forget takes it: about 250
	// bytes each.
	OnEnd func(Ticket, batch.Result)
}

// Scheduler runs transitions of one device's queue pairs when they are due. Its
// methods may be called at the same time.
type Scheduler struct {
	d     *devx.Device
	o     Options
	timer Timer
	clock *clock // that of the timer, if it is a timerfd
	batch *batch.Batch
	gone  chan struct{} // closed when the goroutine has ended

	mu       sync.Mutex
	slab     slab
	wheel    wheel
	seq      uint64
	pending  int
	sending  int
	armed    Instant
	stopping bool
	closed   bool
	closing  error // of the batch and the timer
	failure  error // of the timer
	results  map[uint32]batch.Result
	waiters  map[uint32]*waiter
	drains   []*drain
	lost     map[*devx.QP]uint64 // of a queue pair whose transition ended unknown: what was deferred up to then is held back
	lostMost int                 // from how many on it is pruned
	counts   Counts
	lateness *hdrhistogram.Histogram
	unsent   []Unsent
	scratch  [mlx5.TransitionSize]byte // where Defer encodes: on its stack it would escape

	group []entry   // the goroutine's own
	calls []Instant // when each of the group was sent, if the timer is not ours
	ends  []end     // to be reported to OnEnd
}

// entry is one of the group that is being sent.
type entry struct {
	idx uint32
	qp  *devx.QP
	cmd packed
}

// Counts is what became of the transitions so far.
type Counts struct {
	Deferred                       uint64 // all of them
	Pending                        int    // not due yet, or not yet sent
	Sending                        int    // in the batch under way
	Done, Failed, Unknown, NotSent uint64 // see batch.Outcome
	Cancelled                      uint64
}

// Unsent is a transition that Stop found pending.
type Unsent struct {
	Ticket Ticket
	QP     *devx.QP
	Op     mlx5.Op
	Due    Instant
}

// ErrStopped is in the error of what was not sent because of Stop, and of Defer
// after it.
var ErrStopped = errors.New("timerfix: the scheduler was stopped")

// Why a transition was not sent.
var errLost = errors.New("timerfix: an earlier transition of its queue pair ended unknown: query the state first")

// New returns a scheduler for queue pairs of d. Stop it to end its goroutine. If
// it returns an error, it has closed Options.Timer.
func New(d *devx.Device, o Options) (*Scheduler, error) {
	if o.Batch.StopOnError || o.Batch.OnSend != nil {
		return nil, refused(o.Timer, "timerfix: Options.Batch.StopOnError and OnSend are not for a scheduler: transitions that are due at the same time have nothing to do with each other, and it needs OnSend itself")
	}
	if o.Batch.Group == 0 {
		o.Batch.Group = batch.DefaultGroup
	}
	s := &Scheduler{
		d: d, o: o, timer: o.Timer, gone: make(chan struct{}), armed: Never,
		results: map[uint32]batch.Result{}, waiters: map[uint32]*waiter{}, lost: map[*devx.QP]uint64{}, lostMost: lostLeast,
		lateness: newHistogram(),
	}
	s.wheel.slab = &s.slab
	if s.timer == nil {
		t, err := newTimerFD()
		if err != nil {
			return nil, err
		}
		s.timer, s.clock = t, &t.clock
	} else {
		s.calls = make([]Instant, max(o.Batch.Group, 0))
		o.Batch.OnSend = func(tag uint64) { s.calls[tag] = s.timer.Now() }
	}
	var err error
	if s.batch, err = batch.New(d, o.Batch); err != nil {
		return nil, errors.Join(err, s.timer.Close())
	}
	s.wheel.base = max(s.timer.Now(), 0)
	go s.run()
	return s, nil
}

// refused closes the caller's timer, which nobody else would.
func refused(t Timer, why string) error {
	err := errors.New(why)
	if t != nil {
		err = errors.Join(err, t.Close())
	}
	return err
}

// newHistogram has lateness in nanoseconds with three significant digits, up to
// an hour.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, longest, 3)
}

const longest = int64(time.Hour)

// Now returns the time that due times are compared with.
func (s *Scheduler) Now() Instant { return s.timer.Now() }

// Defer encodes a transition of q and has it sent when it is due, at once if
// that is past. It is a function because a transition passed as an interface
// would allocate. A missing or unencodable attribute (*mlx5.AttrError), a queue
// pair of another context (devx.ErrForeign) or a stopped scheduler (ErrStopped)
// defers nothing.
//
// A pending transition takes 116 bytes. The memory is kept for later ones.
func Defer[T mlx5.Transition](s *Scheduler, q *devx.QP, t T, due Instant) (Ticket, error) {
	switch {
	case q == nil:
		return Ticket{}, errors.New("timerfix: no queue pair given: it is nil")
	case q.Device() != s.d:
		return Ticket{}, fmt.Errorf("timerfix: QP %#x %w than %s", q.Number(), devx.ErrForeign, s.d.Name())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.scratch[:])
	n, err := t.Encode(s.scratch[:], q.Number(), q.Transport())
	if err != nil {
		return Ticket{}, err
	}
	if n < minCommand || n > len(s.scratch) {
		return Ticket{}, fmt.Errorf("timerfix: %T encoded %d bytes: a transition has %d to %d", t, n, minCommand, len(s.scratch))
	}
	return s.insert(q, s.scratch[:n], due)
}

// minCommand is the length of the shortest command (2ERR, 2RST).
const minCommand = 16

func (s *Scheduler) insert(q *devx.QP, cmd []byte, due Instant) (Ticket, error) {
	if s.stopping {
		return Ticket{}, fmt.Errorf("%w: make another one with New", s.stopped())
	}
	if s.pending == math.MaxInt32 {
		return Ticket{}, errors.New("timerfix: 2^31 - 1 transitions are pending, which is the most: wait until some are sent")
	}
	idx := s.slab.take()
	s.seq++ // 0 is no ticket's
	s.slab.pack(idx, cmd)
	h := s.slab.head(idx)
	h.setSeq(s.seq)
	h.qp, h.due, h.state = q, due, pending
	s.wheel.push(idx)
	s.pending++
	s.counts.Deferred++
	if due < s.armed {
		s.arm(due)
	}
	return Ticket{s, idx, s.seq}, nil
}

func (s *Scheduler) arm(at Instant) {
	s.armed = at
	s.timer.Arm(at)
}

// stopped is why nothing is taken any more.
func (s *Scheduler) stopped() error {
	if s.failure != nil {
		return fmt.Errorf("%w (%w)", ErrStopped, s.failure)
	}
	return ErrStopped
}

// run sends what is due, until the scheduler is stopped.
func (s *Scheduler) run() {
	defer close(s.gone)
	for {
		s.mu.Lock()
		if s.stopping {
			s.abandon()
			s.mu.Unlock()
			s.report()
			return
		}
		s.group = s.group[:0]
		s.collect()
		if len(s.group) == 0 && len(s.ends) == 0 {
			s.arm(s.wheel.next())
			s.mu.Unlock()
			if err := s.timer.Wait(); err != nil {
				s.mu.Lock()
				s.stopping, s.failure = true, err
				s.mu.Unlock()
			}
			continue
		}
		s.mu.Unlock()
		s.send()
		s.report()
	}
}

// collect takes what is due, at most one group, out of the wheel: the rest can be
// cancelled while that is on its way.
func (s *Scheduler) collect() {
	defer s.nonePending()
	now := s.timer.Now()
	for len(s.group) < s.o.Batch.Group {
		idx, due := s.wheel.due(now)
		if !due {
			return
		}
		s.wheel.remove(idx)
		s.pending--
		h := s.slab.head(idx)
		if upTo, lost := s.lost[h.qp]; lost && h.seq() <= upTo {
			s.notSent(idx, notSent(errLost))
			continue
		}
		h.state = sending
		s.sending++
		s.group = append(s.group, entry{idx, h.qp, s.slab.packed(idx)})
	}
}

// lostLeast is how many queue pairs with a lost answer are remembered at least.
const lostLeast = 64

// noteLost remembers that what was deferred for a queue pair up to now is to be
// held back.
func (s *Scheduler) noteLost(q *devx.QP) {
	if s.lost[q] = s.seq; len(s.lost) <= s.lostMost {
		return
	}
	// Most have nothing pending any more.
	with := map[*devx.QP]bool{}
	for idx := range s.slab.used {
		if h := s.slab.head(idx); h.state == pending && h.seq() <= s.lost[h.qp] {
			with[h.qp] = true
		}
	}
	maps.DeleteFunc(s.lost, func(q *devx.QP, _ uint64) bool { return !with[q] })
	s.lostMost = max(lostLeast, 2*len(s.lost))
}

// nonePending forgets what only pending transitions need.
func (s *Scheduler) nonePending() {
	if s.pending == 0 {
		clear(s.lost)
	}
}

// send sends the group and notes what became of it.
func (s *Scheduler) send() {
	if len(s.group) == 0 {
		return
	}
	b := s.batch
	b.Reset()
	var failed error
	for i := range s.group {
		// A record stays as it is while its state is sending.
		if failed = batch.Add(b, s.group[i].qp, s.group[i].cmd, uint64(i)); failed != nil {
			break
		}
	}
	if failed == nil {
		failed = b.Run(context.Background())
	}
	var partial *batch.Error
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending -= len(s.group)
	if failed != nil && !errors.As(failed, &partial) { // nothing was sent: Stop is under way
		for i := range s.group {
			s.notSent(s.group[i].idx, notSent(failed))
		}
		return
	}
	for r := range b.Results() {
		at := int(r.Tag)
		idx := s.group[at].idx
		r.Tag = 0
		switch {
		case r.Outcome == batch.NotSent:
			s.notSent(idx, r.Err)
			continue
		case r.Outcome == batch.Unknown:
			s.noteLost(r.QP)
		}
		s.record(s.slab.head(idx).due, s.sentAt(r.Sent, at))
		s.end(idx, r)
	}
	s.nonePending()
	clear(s.group) // they keep no queue pair alive, nor does the batch
	b.Reset()
}

// sentAt returns the timer's time of a call.
func (s *Scheduler) sentAt(sent time.Time, tag int) Instant {
	if s.clock != nil {
		return s.clock.of(sent)
	}
	return s.calls[tag]
}

// record notes how late a transition was sent.
func (s *Scheduler) record(due, at Instant) {
	// Within the bounds RecordValue cannot fail.
	_ = s.lateness.RecordValue(min(max(int64(at.Sub(due)), 0), longest))
}

// abandon ends everything that is pending.
func (s *Scheduler) abandon() {
	for idx, ok := s.wheel.due(Never); ok; idx, ok = s.wheel.due(Never) {
		s.wheel.remove(idx)
		s.pending--
		s.notSent(idx, nil)
	}
	// Those of a group that was interrupted are there before.
	slices.SortStableFunc(s.unsent, func(a, b Unsent) int { return cmp.Compare(a.Due, b.Due) })
}

// notSent ends a transition that never reached the kernel: because of Stop if
// that is under way, whatever else is to be said.
func (s *Scheduler) notSent(idx uint32, why error) {
	h, op := s.slab.head(idx), s.slab.packed(idx).Op()
	if s.stopping {
		s.unsent = append(s.unsent, Unsent{Ticket{s, idx, h.seq()}, h.qp, op, h.due})
		why = notSent(s.stopped())
	}
	s.end(idx, batch.Result{QP: h.qp, Op: op, Outcome: batch.NotSent, Err: why})
}

func notSent(why error) error { return fmt.Errorf("%w: %w", batch.ErrNotSent, why) }

// Lateness returns a copy of the histogram of how late transitions were sent:
// from the due time to the beginning of the call, in nanoseconds, three
// significant digits, at most an hour. What was never sent is not in it.
func (s *Scheduler) Lateness() *hdrhistogram.Histogram {
	s.mu.Lock()
	defer s.mu.Unlock()
	return hdrhistogram.Import(s.lateness.Export())
}

// Counts returns what became of the transitions so far.
func (s *Scheduler) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts
	c.Pending, c.Sending = s.pending, s.sending
	return c
}

// Stop sends nothing more, waits for what is in flight, and returns what was
// not sent for that reason, in the order of due times; those who wait for it are
// told. A command that hangs holds it until the driver gives up, up to 65 s:
// Options.Batch.OnWait says how many. A second call returns the same.
func (s *Scheduler) Stop() ([]Unsent, error) {
	s.mu.Lock()
	if !s.stopping {
		s.stopping = true
		s.arm(math.MinInt64) // rings at once
	}
	s.mu.Unlock()
	err := s.batch.Close() // a group under way sends nothing more
	<-s.gone
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.closing = errors.Join(s.failure, err, s.timer.Close())
	}
	return slices.Clone(s.unsent), s.closing
}
