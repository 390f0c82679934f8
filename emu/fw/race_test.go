// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"devxlab.example/mlx5"
)

// quiet runs a command and returns its status. The rig's other methods may end
// the test, which is the main goroutine's to do.
func quiet(h *HCA, in []byte) (mlx5.Status, []byte) {
	out := make([]byte, handlers[mlx5.OpOf(in)].out)
	h.Exec(in, out)
	status, _ := mlx5.StatusOf(out)
	return status, out
}

// Many goroutines do anything to the same few objects. Whatever the order, the
// users of each are counted right in the end (newHCA audits), and an object
// that somebody else destroys is missing, never half there.
func TestConcurrentSharing(t *testing.T) {
	r := newRig(t, Config{LogMaxQP: 3})
	set := uint8(r.made(build(mlx5.OpAllocQCounter, sharedUID)))
	commands := [][]byte{r.qp(mlx5.STRC), r.qp(mlx5.STUD), r.mkey(), r.cq(), umemOf(r.uid, 1), build(mlx5.OpAllocPD, r.uid),
		build(mlx5.OpCreateUCTX, 0), build(mlx5.OpAllocQCounter, r.uid)}
	for id := range uint32(12) {
		for _, op := range mlx5.Transitions() {
			in := about(op, r.uid, firstQPN+id)
			if len(in) > mlx5.ToRSTQPInSize {
				in = r.modify(op, firstQPN+id)
				copy(mlx5.RST2INITQPIn(in).QPC(), noise())
				mlx5.RST2INITQPIn(in).SetOptParamMask(0x0200fffe)
				mlx5.RST2INITQPIn(in).QPC().SetCounterSetID(uint8(id % 4)) // set 1 is shared, others come and go
			}
			commands = append(commands, in)
		}
		for _, c := range []struct {
			op    mlx5.Op
			first uint32
		}{
			{mlx5.OpQueryQP, firstQPN}, {mlx5.OpDestroyQP, firstQPN}, {mlx5.OpQueryCQ, r.cqn}, {mlx5.OpDestroyCQ, r.cqn},
			{mlx5.OpQueryMKey, firstMKey}, {mlx5.OpDestroyMKey, firstMKey}, {mlx5.OpDeallocPD, r.pd}, {mlx5.OpDestroyUmem, r.umem},
			{mlx5.OpDeallocQCounter, 1},
		} {
			commands = append(commands, about(c.op, r.uid, c.first+id))
		}
		uctx := mlx5.DestroyUCTXIn(build(mlx5.OpDestroyUCTX, 0))
		uctx.SetUID(uint16(id))
		commands = append(commands, uctx)
	}
	if set != 1 {
		t.Fatalf("the shared counter set has id %d", set)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for range 4000 {
				in := commands[rng.IntN(len(commands))]
				out := make([]byte, handlers[mlx5.OpOf(in)].out)
				r.h.Exec(in, out)
				wellFormed(t, in, out)
				if rng.IntN(50) == 0 {
					r.h.Fault(firstQPN+rng.Uint32N(12), mlx5.StateSQER)
					r.h.Stats()
				}
			}
		})
	}
	wg.Wait()
}

// Goroutines with objects of their own do not disturb each other: every command
// has the answer that it would have alone.
func TestConcurrentOwn(t *testing.T) {
	r := newRig(t, Config{})
	var wg sync.WaitGroup
	for g := range 8 {
		uid := r.uid
		if g%2 == 0 {
			uid = r.context()
		}
		wg.Go(func() {
			do := func(in []byte) uint32 {
				binary.BigEndian.PutUint16(in[2:], uid)
				status, out := quiet(r.h, in)
				if status != mlx5.StatusOK {
					t.Errorf("goroutine %d: %v: %v", g, mlx5.OpOf(in), status)
				}
				return binary.BigEndian.Uint32(out[8:])
			}
			for range 100 {
				mine := *r
				mine.uid = uid
				mine.uar = do(build(mlx5.OpAllocUAR, 0))
				mine.pd = do(build(mlx5.OpAllocPD, 0))
				mine.umem = do(umemOf(0, 1))
				mine.cqn = do(mine.cq())
				qpn := do(mine.qp(mlx5.STRC))
				for _, op := range []mlx5.Op{mlx5.OpRST2INIT, mlx5.OpINIT2RTR, mlx5.OpRTR2RTS} {
					in := mine.modify(op, qpn)
					in.QPC().SetRemoteQPN(qpn)
					do(in)
				}
				in := about(mlx5.OpQueryQP, uid, qpn)
				if _, out := quiet(r.h, in); mlx5.QueryQPOut(out).QPC().RemoteQPN() != qpn || mlx5.QueryQPOut(out).QPC().State() != uint8(mlx5.StateRTS) {
					t.Errorf("goroutine %d: QP %#x: %x", g, qpn, out)
				}
				do(about(mlx5.OpDestroyQP, 0, qpn))
				do(about(mlx5.OpDestroyCQ, 0, mine.cqn))
				do(about(mlx5.OpDestroyUmem, 0, mine.umem))
				do(about(mlx5.OpDeallocPD, 0, mine.pd))
				do(about(mlx5.OpDeallocUAR, 0, mine.uar))
			}
		})
	}
	wg.Wait()
	if got, want := snapshot(r.h), [9]int64{1, 1, 1, 0, 1, 1, 0, 0, 5}; got != want {
		t.Errorf("%v objects left, want %v", got, want)
	}
}

// A query or a refused command holds nothing that another could see: the
// destruction of an object never finds it in use because somebody looks at it.
func TestConcurrentLook(t *testing.T) {
	for _, tt := range []struct {
		what            string
		create, destroy mlx5.Op
		look            func(r *rig, id uint32) []byte
	}{
		{"query", mlx5.OpCreateCQ, mlx5.OpDestroyCQ, func(r *rig, id uint32) []byte { return about(mlx5.OpQueryCQ, r.uid, id) }},
		{"query", mlx5.OpCreateMKey, mlx5.OpDestroyMKey, func(r *rig, id uint32) []byte { return about(mlx5.OpQueryMKey, r.uid, id) }},
		{"query", mlx5.OpAllocQCounter, mlx5.OpDeallocQCounter, func(r *rig, id uint32) []byte {
			return with(build(mlx5.OpQueryQCounter, r.uid), func(in []byte) { mlx5.QueryQCounterIn(in).SetCounterSetID(uint8(id)) })
		}},
		{"refused RST2INIT", mlx5.OpAllocQCounter, mlx5.OpDeallocQCounter, func(r *rig, id uint32) []byte {
			in := r.modify(mlx5.OpRST2INIT, firstQPN)
			in.QPC().SetCounterSetID(uint8(id))
			in.QPC().PrimaryAddressPath().SetVHCAPortNum(0)
			return in
		}},
		{"refused CREATE_QP", mlx5.OpAllocPD, mlx5.OpDeallocPD, func(r *rig, id uint32) []byte {
			return r.qpWith(func(q mlx5.QPC) { q.SetPD(id); q.SetUARPage(0) })
		}},
		{"refused CREATE_CQ", mlx5.OpCreateUmem, mlx5.OpDestroyUmem, func(r *rig, id uint32) []byte {
			return with(r.cq(), func(in mlx5.CreateCQIn) { in.SetCQUmemID(id); in.CQContext().SetDBRUmemID(0) })
		}},
	} {
		t.Run(fmt.Sprintf("%s %v", tt.what, tt.destroy), func(t *testing.T) {
			r := newRig(t, Config{})
			r.must(r.qp(mlx5.STRC))
			create := map[mlx5.Op][]byte{mlx5.OpCreateCQ: r.cq(), mlx5.OpCreateMKey: r.mkey(), mlx5.OpCreateUmem: umemOf(r.uid, 1)}[tt.create]
			if create == nil {
				create = build(tt.create, r.uid)
			}
			var id atomic.Uint32
			var stop atomic.Bool
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					for !stop.Load() {
						in := tt.look(r, id.Load())
						out := make([]byte, handlers[mlx5.OpOf(in)].out)
						for range 20 {
							r.h.Exec(in, out)
						}
					}
				})
			}
			for range 10000 {
				id.Store(r.made(create))
				r.must(about(tt.destroy, r.uid, id.Load()))
			}
			stop.Store(true)
			wg.Wait()
		})
	}
}

// A context dies with nothing of its own, or not at all, whatever is created in
// it at the same time.
func TestConcurrentContext(t *testing.T) {
	r := newRig(t, Config{LogMaxUC: 1}) // the second uid is used again at once
	var wg sync.WaitGroup
	var uid atomic.Uint32
	var stop atomic.Bool
	for range 3 {
		wg.Go(func() {
			for !stop.Load() {
				own := uint16(uid.Load())
				if status, out := quiet(r.h, build(mlx5.OpAllocPD, own)); status == mlx5.StatusOK {
					if status, _ := quiet(r.h, about(mlx5.OpDeallocPD, own, binary.BigEndian.Uint32(out[8:]))); status != mlx5.StatusOK {
						t.Errorf("DEALLOC_PD: %v", status)
					}
				}
			}
		})
	}
	for range 10000 {
		own := r.context()
		uid.Store(uint32(own))
		for {
			if status, _ := quiet(r.h, r.closeContext(own)); status == mlx5.StatusOK {
				break
			} else if status != mlx5.StatusBadResState {
				t.Fatalf("DESTROY_UCTX: %v", status)
			}
		}
	}
	stop.Store(true)
	wg.Wait()
}

// Tracing and events may be switched while commands run.
func TestTraceAndEvents(t *testing.T) {
	r := newRig(t, Config{})
	var traced, events atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				quiet(r.h, build(mlx5.OpNOP, r.uid))
				r.h.Raise(Event{Type: mlx5.EventPortChange})
				r.h.Doorbell(r.uar, 0x800, 1)
			}
		})
	}
	for range 100 {
		r.h.Trace(func(in, out []byte, took time.Duration) { traced.Add(1) })
		r.h.Trace(nil)
		r.h.Notify(func(Event) { events.Add(1) })
		r.h.Notify(nil)
	}
	wg.Wait()
	n := traced.Load()
	r.h.Trace(func(in, out []byte, took time.Duration) {
		if mlx5.OpOf(in) == mlx5.OpNOP && bytes.Equal(out, make([]byte, 16)) && took >= 0 {
			traced.Add(1)
		}
	})
	var got []Event
	r.h.Notify(func(e Event) { got = append(got, e) })
	r.must(build(mlx5.OpNOP, r.uid))
	r.h.Raise(Event{mlx5.EventCQError, 7})
	if traced.Load() != n+1 || len(got) != 1 || got[0] != (Event{mlx5.EventCQError, 7}) {
		t.Errorf("%d commands traced, events %v", traced.Load()-n, got)
	}
	if s := r.h.Stats(); s.Doorbells != 2000 || s.Commands != 4*500+6+1 || s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}
