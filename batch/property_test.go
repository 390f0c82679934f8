// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/internal/testdev"
	"devxlab.example/mlx5"
)

// step is a transition in both forms: as part of a batch and by itself.
type step struct {
	name   string
	add    func(b *batch.Batch, q *devx.QP, tag uint64) error
	modify func(q *devx.QP) error
}

func of[T mlx5.Transition](name string, t T) step {
	return step{
		name,
		func(b *batch.Batch, q *devx.QP, tag uint64) error { return batch.Add(b, q, t, tag) },
		func(q *devx.QP) error { return devx.Modify(q, t) },
	}
}

// foreignQPN names another queue pair than the one that it is sent for, which
// the kernel refuses.
type foreignQPN struct{ mlx5.ToERR }

func (foreignQPN) Encode(dst []byte, qpn uint32, st mlx5.ServiceType) (int, error) {
	return mlx5.ToERR{}.Encode(dst, qpn^1, st)
}

// Attributes of a UD queue pair: legal at the right time, and such as firmware
// or the encoder refuse.
var steps = []step{
	of("RST2INIT", mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), QKey: mlx5.Set(0x1234)}),
	of("INIT2INIT", mlx5.INIT2INIT{QKey: mlx5.Set(0x77)}),
	of("INIT2RTR", mlx5.INIT2RTR{}),
	of("RTR2RTS", mlx5.RTR2RTS{NextSendPSN: mlx5.Set(99)}),
	of("RTS2RTS", mlx5.RTS2RTS{QKey: mlx5.Set(0x88)}),
	of("SQERR2RTS", mlx5.SQERR2RTS{}),
	of("2ERR", mlx5.ToERR{}),
	of("2RST", mlx5.ToRST{}),
	of("RST2INIT on port 2", mlx5.RST2INIT{Port: mlx5.Set(2), PkeyIndex: mlx5.Set(0), QKey: mlx5.Set(1)}),
	of("INIT2INIT with P_Key 9", mlx5.INIT2INIT{PkeyIndex: mlx5.Set(9)}),
	of("2ERR of another QP", foreignQPN{}),
	of("RST2INIT without attributes", mlx5.RST2INIT{}),
}

// onPath are the steps from RESET to RTS, so that batches get far.
var onPath = []int{0, 2, 3, 4}

// answered is a transition as the device saw it.
type answered struct {
	op     mlx5.Op
	status mlx5.Status
}

// recorder keeps the transitions that a device has executed, by queue pair.
type recorder struct {
	mu  sync.Mutex
	got map[uint32][]answered
}

func (r *recorder) trace(in, out []byte, _ time.Duration) {
	op := mlx5.OpOf(in)
	if !slices.Contains(mlx5.Transitions(), op) {
		return
	}
	status, _ := mlx5.StatusOf(out)
	r.mu.Lock()
	defer r.mu.Unlock()
	qpn := mlx5.RST2INITQPIn(in).QPN()
	r.got[qpn] = append(r.got[qpn], answered{op, status})
}

// A batch, in whatever groups and however many at once, does to each queue pair
// what its transitions do one after the other, and says of each what the device
// did.
func TestBatchIsTheSameAsOneByOne(t *testing.T) {
	testdev.Emulated(t)
	rapid.Check(t, func(t *rapid.T) {
		rec := recorder{got: map[uint32][]answered{}}
		options := "log_max_qp=6"
		if rapid.Bool().Draw(t, "virtual") {
			options += ",clock=virtual,latency=5us,threads=3"
		}
		d, _ := emulate(t, options, devx.WithTrace(rec.trace))
		other, _ := emulate(t, "log_max_qp=6")
		qps, twins := make([]*devx.QP, rapid.IntRange(1, 6).Draw(t, "QPs")), []*devx.QP{}
		for i := range qps {
			qps[i] = newQP(t, d, mlx5.STUD)
			twins = append(twins, newQP(t, other, mlx5.STUD))
		}
		o := batch.Options{
			Group:       rapid.IntRange(0, batch.MaxGroup).Draw(t, "group"),
			Depth:       rapid.IntRange(0, 8).Draw(t, "depth"),
			StopOnError: rapid.Bool().Draw(t, "StopOnError"),
		}
		if rapid.IntRange(0, 5).Draw(t, "strategy") == 0 {
			o.Depth, o.Strategy = 0, batch.Serial()
		}
		b := newBatch(t, d, o)

		type planned struct{ qp, step int }
		var plan []planned
		next := make([]int, len(qps)) // where on the path each queue pair is
		for range rapid.IntRange(0, 100).Draw(t, "entries") {
			p := planned{qp: rapid.IntRange(0, len(qps)-1).Draw(t, "QP")}
			if rapid.IntRange(0, 2).Draw(t, "random") > 0 {
				p.step = onPath[min(next[p.qp], len(onPath)-1)]
				next[p.qp]++
			} else {
				p.step = rapid.IntRange(0, len(steps)-1).Draw(t, "step")
			}
			err := steps[p.step].add(b, qps[p.qp], uint64(len(plan)))
			var attr *mlx5.AttrError
			if missing := p.step == len(steps)-1; missing != errors.As(err, &attr) || !missing && err != nil {
				t.Fatalf("Add %s: %v", steps[p.step].name, err)
			} else if !missing {
				plan = append(plan, p)
			}
		}
		if rapid.IntRange(0, 3).Draw(t, "close one") == 0 {
			i := rapid.IntRange(0, len(qps)-1).Draw(t, "closed QP")
			if err := errors.Join(qps[i].Close(), twins[i].Close()); err != nil {
				t.Fatal(err)
			}
		}

		err := b.Run(context.Background())
		got := results(b)
		if len(got) != len(plan) || b.Len() != len(plan) {
			t.Fatalf("%d results for %d entries", len(got), len(plan))
		}

		// What the device executed, in each queue pair's order.
		counts := map[batch.Outcome]int{}
		var first error
		failedAt, stopped := len(plan), make([]bool, len(qps))
		for i, r := range got {
			p := plan[i]
			if r.Tag != uint64(i) || r.QP != qps[p.qp] || (r.Err == nil) != (r.Outcome == batch.Done) {
				t.Fatalf("result %d: %+v", i, r)
			}
			counts[r.Outcome]++
			var c *devx.CommandError
			switch isCommand := errors.As(r.Err, &c); {
			case r.Outcome == batch.NotSent:
				if isCommand || !errors.Is(r.Err, batch.ErrNotSent) || !r.Sent.IsZero() || r.Took != 0 || r.InFlight != 0 {
					t.Fatalf("entry %d was not sent: %+v", i, r)
				}
				if errors.Is(r.Err, devx.ErrClosed) { // its queue pair is
					failedAt = min(failedAt, i)
				}
				stopped[p.qp] = true
			case r.Outcome == batch.Failed || r.Outcome == batch.Done:
				if stopped[p.qp] {
					t.Fatalf("entry %d was sent after an earlier one of its queue pair was not", i)
				}
				if r.Outcome == batch.Failed {
					if !isCommand {
						t.Fatalf("entry %d failed: %v", i, r.Err)
					}
					failedAt = min(failedAt, i)
					stopped[p.qp] = o.StopOnError
					if first == nil {
						first = r.Err
					}
					if !c.HasOutbox {
						break // the kernel refused it: the device never saw it
					}
				}
				want := answered{op: r.Op}
				if c != nil {
					want.status = c.Status
				}
				seen := rec.got[r.QP.Number()]
				if len(seen) == 0 || seen[0] != want {
					t.Fatalf("entry %d is %v (%v), but the device's next for its queue pair is %v", i, r.Outcome, want, seen)
				}
				rec.got[r.QP.Number()] = seen[1:]
			default:
				t.Fatalf("entry %d is %v", i, r.Outcome)
			}
		}
		for qpn, left := range rec.got {
			if len(left) > 0 {
				t.Fatalf("the device executed %v on QP %#x, of which no result tells", left, qpn)
			}
		}

		// The error adds up.
		var p batch.Error
		if err != nil {
			p = *partial(t, err)
		}
		if p.Failed != counts[batch.Failed] || p.NotSent != counts[batch.NotSent] || p.Unknown != 0 || p.First != first || p.Waited != 0 ||
			(p.Cause == nil) != (p.NotSent == 0) || (err == nil) != (counts[batch.Done] == len(plan)) {
			t.Fatalf("%+v, but the outcomes are %v", p, counts)
		}
		// Nothing is held back without a reason, and no later group begins after
		// a failure.
		group := o.Group
		if group == 0 {
			group = batch.DefaultGroup
		}
		for i, r := range got {
			switch {
			case r.Outcome == batch.NotSent && !errors.Is(r.Err, devx.ErrClosed) && (!o.StopOnError || failedAt == len(plan)):
				t.Fatalf("entry %d was not sent: %v", i, r.Err)
			case r.Outcome != batch.NotSent && o.StopOnError && i/group > failedAt/group:
				t.Fatalf("entry %d is %v, but entry %d, of an earlier group, failed", i, r.Outcome, failedAt)
			}
		}

		// The same one by one on the twin.
		for i, r := range got {
			if o.StopOnError && r.Outcome == batch.NotSent {
				continue
			}
			err := steps[plan[i].step].modify(twins[plan[i].qp])
			if same := fmt.Sprint(command(err)) == fmt.Sprint(command(r.Err)) && errors.Is(err, devx.ErrClosed) == errors.Is(r.Err, devx.ErrClosed); !same {
				t.Fatalf("entry %d (%s): %v in the batch, %v by itself", i, steps[plan[i].step].name, r.Err, err)
			}
		}
		for i, q := range qps {
			is, errA := q.Query()
			want, errB := twins[i].Query()
			if !bytes.Equal(is, want) || errors.Is(errA, devx.ErrClosed) != errors.Is(errB, devx.ErrClosed) {
				t.Fatalf("QP %#x: context %x (%v) after the batch, %x (%v) one by one", q.Number(), is, errA, want, errB)
			}
		}
	})
}

// command returns the failed command in an error, or nil.
func command(err error) *devx.CommandError {
	var c *devx.CommandError
	errors.As(err, &c)
	return c
}
