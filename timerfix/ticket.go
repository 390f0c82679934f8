// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import (
	"context"
	"errors"
	"slices"

	"devxlab.example/batch"
)

// Ticket names a deferred transition.
type Ticket struct {
	s   *Scheduler
	idx uint32
	seq uint64
}

// ErrTicket says that a ticket names nothing that the scheduler has: it was
// cancelled or forgotten, its result was taken by Wait or reported to OnEnd, or
// it is another scheduler's.
var ErrTicket = errors.New("timerfix: no such ticket: cancelled, forgotten, its result taken already, or another scheduler's")

// ErrCancelled is in the error of what was cancelled while somebody waited.
var ErrCancelled = errors.New("timerfix: cancelled")

type waiter struct {
	n      int // how many wait
	done   chan struct{}
	result batch.Result
}

func (w *waiter) tell(r batch.Result) {
	w.result = r
	close(w.done)
}

// find returns the state of a ticket's transition: free if there is none.
func (s *Scheduler) find(t Ticket) state {
	if t.s != s || t.seq == 0 {
		return free
	}
	if h := s.slab.head(t.idx); h.seq() == t.seq {
		return h.state
	}
	return free
}

// Cancel reports whether the transition is cancelled: then it is never sent. It
// is false if it is on its way already, has ended, or is not the scheduler's.
func (s *Scheduler) Cancel(t Ticket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.find(t) != pending {
		return false
	}
	if w := s.waiters[t.idx]; w != nil {
		w.tell(batch.Result{QP: s.slab.head(t.idx).qp, Op: s.slab.packed(t.idx).Op(), Outcome: batch.NotSent, Err: notSent(ErrCancelled)})
		delete(s.waiters, t.idx)
	}
	s.wheel.remove(t.idx)
	s.slab.put(t.idx)
	s.counts.Cancelled++
	s.pending--
	s.leave(t.seq)
	s.nonePending()
	return true
}

// Wait is the barrier: it returns when the transition has ended, with what
// became of it. Its error is the context's, or ErrTicket; a failure of the
// transition is in the result. The result is then no longer kept: of those who
// wait at the same time each gets it, a later one gets ErrTicket.
func (s *Scheduler) Wait(ctx context.Context, t Ticket) (batch.Result, error) {
	s.mu.Lock()
	switch s.find(t) {
	case free:
		s.mu.Unlock()
		return batch.Result{}, ErrTicket
	case ended:
		defer s.mu.Unlock()
		return s.taken(t.idx), nil
	}
	w := s.waiters[t.idx]
	if w == nil {
		w = &waiter{done: make(chan struct{})}
		s.waiters[t.idx] = w
	}
	w.n++
	s.mu.Unlock()
	select {
	case <-w.done:
		return w.result, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.done: // in the meantime: the result is kept nowhere else
		return w.result, nil
	default:
	}
	if w.n--; w.n == 0 {
		delete(s.waiters, t.idx)
	}
	return batch.Result{}, context.Cause(ctx)
}

// taken gives a kept result away.
func (s *Scheduler) taken(idx uint32) batch.Result {
	result := s.results[idx]
	delete(s.results, idx)
	s.slab.put(idx)
	return result
}

// Forget drops the result of a transition that has ended, or reports false if it
// has not, or is not kept.
func (s *Scheduler) Forget(t Ticket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.find(t) != ended {
		return false
	}
	s.taken(t.idx)
	return true
}

// end is a result to be reported to OnEnd.
type end struct {
	t Ticket
	r batch.Result
}

// end notes what became of a transition, and tells those who wait for it.
func (s *Scheduler) end(idx uint32, result batch.Result) {
	switch result.Outcome {
	case batch.Done:
		s.counts.Done++
	case batch.Failed:
		s.counts.Failed++
	case batch.Unknown:
		s.counts.Unknown++
	default:
		s.counts.NotSent++
	}
	waited := s.waiters[idx]
	if waited != nil {
		waited.tell(result)
		delete(s.waiters, idx)
	}
	if s.o.OnEnd != nil {
		s.ends = append(s.ends, end{Ticket{s, idx, s.slab.head(idx).seq()}, result})
		s.slab.put(idx)
		return
	}
	if waited != nil {
		s.slab.put(idx)
	} else {
		s.slab.head(idx).state = ended
		s.results[idx] = result
	}
	s.leave(s.slab.head(idx).seq())
}

// report calls OnEnd, without the lock; only then those who drain go on.
func (s *Scheduler) report() {
	if len(s.ends) == 0 {
		return
	}
	for i := range s.ends {
		s.o.OnEnd(s.ends[i].t, s.ends[i].r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.ends {
		s.leave(s.ends[i].t.seq)
	}
	clear(s.ends)
	s.ends = s.ends[:0]
}

// drain waits for what was deferred up to a sequence number.
type drain struct {
	upTo uint64
	left int
	done chan struct{}
}

// Drain returns when every transition deferred before the call has ended or is
// cancelled. None is sent earlier for it: it waits until the last one is due.
// Its error is the context's; what became of them is in their results.
func (s *Scheduler) Drain(ctx context.Context) error {
	s.mu.Lock()
	d := &drain{s.seq, s.pending + s.sending + len(s.ends), make(chan struct{})}
	if d.left == 0 {
		s.mu.Unlock()
		return nil
	}
	s.drains = append(s.drains, d)
	s.mu.Unlock()
	select {
	case <-d.done:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(d)
	return context.Cause(ctx)
}

// leave counts a transition out of the drains that wait for it.
func (s *Scheduler) leave(seq uint64) {
	for i := 0; i < len(s.drains); {
		d := s.drains[i]
		if seq > d.upTo {
			i++
			continue
		}
		if d.left--; d.left > 0 {
			i++
			continue
		}
		close(d.done)
		s.drop(d)
	}
}

func (s *Scheduler) drop(d *drain) {
	s.drains = slices.DeleteFunc(s.drains, func(x *drain) bool { return x == d })
}
