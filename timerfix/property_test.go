// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"golang.org/x/sys/unix"

	"devxlab.example/batch"
	"devxlab.example/internal/race"
	"devxlab.example/mlx5"
)

// fates is what became of one transition, as seen from all sides.
type fates struct {
	due       Instant
	sent      atomic.Int32 // commands that the device got
	cancelled atomic.Bool  // Cancel said true
}

// A million transitions from several goroutines, with random cancels and drains,
// queue pairs that fall into ERR or are closed, and in the end a device that goes
// away and a Stop: none is early, none lost, none doubled, and each has exactly
// one fate.
func TestMillion(t *testing.T) {
	const (
		deferrers = 4
		queues    = 512
		most      = 20_000 // pending, about
	)
	total := 1_000_000
	if race.Enabled {
		total = 100_000
	}
	d, emu := open(t, "")
	qps := newQPs(t, d, queues)
	toRTS(t, qps)
	timer := newFake()
	all := make([]fates, total)
	var early atomic.Int32
	emu.HCA().Trace(func(in, _ []byte, _ time.Duration) {
		if mlx5.OpOf(in) != mlx5.OpRTS2RTS {
			return
		}
		f := &all[markOf(in)]
		if f.sent.Add(1); timer.Now() < f.due {
			early.Add(1)
		}
	})
	ended := map[Ticket]batch.Outcome{} // OnEnd is called by one goroutine
	doubled := 0
	s, err := New(d, Options{Timer: timer, OnEnd: func(x Ticket, r batch.Result) {
		if _, twice := ended[x]; twice {
			doubled++
		}
		ended[x] = r.Outcome
	}})
	if err != nil {
		t.Fatal(err)
	}
	tickets := make([]Ticket, total)
	var deferring, others sync.WaitGroup
	for w := range deferrers {
		deferring.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			from, to := w*total/deferrers, (w+1)*total/deferrers
			for i := from; i < to; i++ {
				now := s.Now()
				all[i].due = now.Add(time.Duration(rng.Int64N(int64(20*ms))) - ms)
				x, err := Defer(s, qps[rng.IntN(queues)], marked(i), all[i].due)
				if err != nil {
					t.Errorf("Defer: %v", err)
					return
				}
				tickets[i] = x
				for i%64 == 0 && s.Counts().Pending > most {
					timer.move(100 * time.Microsecond)
					runtime.Gosched()
				}
				if rng.IntN(4) == 0 {
					old := i - rng.IntN(min(i-from+1, most/deferrers))
					if s.Cancel(tickets[old]) && all[old].cancelled.Swap(true) {
						t.Errorf("%d was cancelled twice", old)
					}
				}
			}
		})
	}
	finished := make(chan struct{})
	var faults sync.WaitGroup
	whole := make(chan struct{}) // until then the device is there
	faults.Go(func() {           // device errors
		rng := rand.New(rand.NewPCG(101, 1))
		for i := 0; !isClosed(whole); i++ {
			emu.HCA().Fault(qps[rng.IntN(queues/4)].Number(), mlx5.StateErr)
			if i%1000 == 0 {
				q := qps[queues-1-rng.IntN(queues/8)]
				err := q.Close()
				for errors.Is(err, unix.EBUSY) { // refused while a transition is under way: it has to end
					runtime.Gosched()
					err = q.Close()
				}
				if err != nil {
					t.Errorf("close: %v", err) // a second one is none
				}
			}
			runtime.Gosched()
		}
	})
	others.Go(func() { // drains, some of which give up
		rng := rand.New(rand.NewPCG(102, 1))
		for !isClosed(finished) {
			ctx, cancel := context.WithCancel(context.Background())
			if rng.IntN(2) == 0 {
				cancel()
			}
			if err := s.Drain(ctx); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("Drain: %v", err)
			}
			cancel()
			runtime.Gosched()
		}
	})
	deferring.Wait()
	close(whole)
	faults.Wait()
	emu.Unplug() // some 10 ms of transitions are still pending
	timer.move(ms)
	close(finished)
	timer.move(time.Hour)
	others.Wait()
	unsent := stop(t, s)

	if n := early.Load(); n > 0 {
		t.Errorf("%d were sent early", n)
	}
	if doubled > 0 {
		t.Errorf("%d ended twice", doubled)
	}
	for _, u := range unsent {
		if o, ok := ended[u.Ticket]; !ok || o != batch.NotSent {
			t.Fatalf("Stop calls it not sent, OnEnd %v (%v)", o, ok)
		}
	}
	var got [batch.Unknown + 1]uint64
	cancelled := uint64(0)
	for i := range all {
		f := &all[i]
		outcome, hasEnded := ended[tickets[i]]
		if hasEnded == f.cancelled.Load() {
			t.Fatalf("%d: ended %v, cancelled %v", i, hasEnded, f.cancelled.Load())
		}
		sent := f.sent.Load()
		switch {
		case !hasEnded:
			cancelled++
			if sent != 0 {
				t.Fatalf("%d was cancelled, and sent %d times", i, sent)
			}
			continue
		case outcome == batch.NotSent && sent != 0,
			(outcome == batch.Done || outcome == batch.Failed) && sent != 1,
			outcome == batch.Unknown && sent > 1:
			t.Fatalf("%d is %v, and was sent %d times", i, outcome, sent)
		}
		got[outcome]++
	}
	want := Counts{Deferred: uint64(total), Done: got[batch.Done], Failed: got[batch.Failed], Unknown: got[batch.Unknown], NotSent: got[batch.NotSent], Cancelled: cancelled}
	if c := s.Counts(); c != want {
		t.Errorf("Counts %+v, seen %+v", c, want)
	}
	if got[batch.Pending] > 0 || got[batch.Done] == 0 || got[batch.Failed] == 0 || got[batch.Unknown] == 0 || got[batch.NotSent] == 0 || cancelled == 0 {
		t.Errorf("the test is not what it says: %v, %d cancelled", got, cancelled)
	}
	t.Logf("done %d, failed %d, not sent %d, unknown %d, cancelled %d", got[batch.Done], got[batch.Failed], got[batch.NotSent], got[batch.Unknown], cancelled)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Step by step against a model that is a plain list: the same transitions in the
// same order, after each step.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// One queue pair, so that there is one order.
		r := newRig(noCleanup{t}, 1, Options{Batch: batch.Options{Group: rapid.IntRange(1, 64).Draw(t, "group")}})
		defer r.qps[0].Device().Close()
		defer stop(t, r.Scheduler)
		type pending struct {
			due    Instant
			mark   int
			ticket Ticket
		}
		var model, gone []pending
		var want []int
		mark := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				in := time.Duration(rapid.IntRange(1, 20).Draw(t, "in"))
				model = append(model, pending{r.timer.Now().Add(in), mark, r.in(in, 0, mark)})
				mark++
			case 2:
				if len(model) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
				if !r.Cancel(model[i].ticket) {
					t.Fatalf("%d is pending and was not cancelled", model[i].mark)
				}
				gone = append(gone, model[i])
				model = append(model[:i:i], model[i+1:]...)
			case 3:
				r.timer.advance(time.Duration(rapid.IntRange(0, 15).Draw(t, "advance")))
				for now := r.timer.Now(); ; {
					first := -1
					for i, p := range model {
						if p.due <= now && (first < 0 || p.due < model[first].due) {
							first = i
						}
					}
					if first < 0 {
						break
					}
					want = append(want, model[first].mark)
					gone = append(gone, model[first])
					model = append(model[:first:first], model[first+1:]...)
				}
				if got := r.marks(); !slices.Equal(got, want) {
					t.Fatalf("sent %v, not %v", got, want)
				}
				want = nil
			}
			for _, p := range gone {
				if r.Cancel(p.ticket) {
					t.Fatalf("%d is gone and was cancelled", p.mark)
				}
			}
			if c := r.Counts(); c.Pending != len(model) || c.Deferred != uint64(mark) {
				t.Fatalf("%+v with %d pending", c, len(model))
			}
		}
		unsent := stop(t, r.Scheduler)
		if len(unsent) != len(model) {
			t.Fatalf("%d not sent, not %d", len(unsent), len(model))
		}
		for i := range unsent {
			if i > 0 && unsent[i].Due < unsent[i-1].Due {
				t.Fatal("what was not sent is not in order")
			}
		}
	})
}

// noCleanup is a *rapid.T whose cleanups the test does itself: rapid runs them at
// the end of all cases.
type noCleanup struct{ *rapid.T }

func (noCleanup) Cleanup(func()) {}
