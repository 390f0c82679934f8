// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"sync"

	"devxlab.example/mlx5"
)

const eqeSize = 64

// Index masks: consumer counters have 24 bits.
const counterMask = 1<<24 - 1

// eqRing is an event queue in the host's memory.
type eqRing struct {
	mu     sync.Mutex
	buf    buffer
	log    uint8
	vector int
	mask   [4]uint64 // of the event types that it takes: types 0 to 63 first (driver, eq.c)
	pi, ci uint32
	armed  bool
	full   bool // the next event finds no room: see OverflowEQ
	failed bool // it overflowed, or its memory is not there: nothing more is written
	dead   bool
}

func (r *eqRing) takes(t mlx5.EventType) bool {
	return t < 256 && r.mask[t/64]>>(t%64)&1 != 0
}

// eventBytes is what an event says about itself (union ev_data in
// linux/mlx5/device.h).
type eventBytes [28]byte

// object returns the queue that an event is about.
func (b *eventBytes) object(t mlx5.EventType) uint32 {
	switch t {
	case mlx5.EventPortChange:
		return 0
	case mlx5.EventCQError: // struct mlx5_eqe_cq_err
		return binary.BigEndian.Uint32(b[:])
	}
	return binary.BigEndian.Uint32(b[24:]) // struct mlx5_eqe_qp_srq, struct mlx5_eqe_comp
}

// post writes an event and signals it if the driver waits.
func (h *HCA) post(r *eqRing, t mlx5.EventType, subtype uint8, data *eventBytes) {
	var e [eqeSize]byte
	e[1], e[3] = byte(t), subtype
	copy(e[0x20:], data[:])
	r.mu.Lock()
	if r.dead || r.failed {
		r.mu.Unlock()
		return
	}
	if (r.pi-r.ci)&counterMask >= 1<<r.log || r.full {
		r.failed = true
		r.mu.Unlock()
		if r.mask != [4]uint64{} { // those of completions have none (driver, eq.c)
			h.overflow()
		}
		return
	}
	e[eqeSize-1] = byte(r.pi>>r.log) & 1
	if r.buf.writeOwned(h.mem, uint64(r.pi)&(1<<r.log-1)*eqeSize, e[:]) != nil {
		r.failed = true
		r.mu.Unlock()
		return
	}
	r.pi++
	signal := r.armed
	r.armed = false
	r.mu.Unlock()
	if signal {
		h.interrupt(r.vector)
	}
}

// report posts an event to the queue that takes its type, if there is one. Where
// no driver has made any it goes to Notify.
func (h *HCA) report(t mlx5.EventType, subtype uint8, data *eventBytes) {
	if h.driver == nil {
		h.Raise(Event{t, data.object(t)})
		return
	}
	if r := h.routes[t&0xff].Load(); r != nil {
		h.post(r, t, subtype, data)
	}
}

// OverflowEQ makes the event queue that takes events of this type overflow at its
// next event, as if the driver had not consumed any: that event and all later ones
// are lost. It reports whether there is such a queue.
func (h *HCA) OverflowEQ(t mlx5.EventType) bool {
	r := h.routes[t&0xff].Load()
	if r == nil {
		return false
	}
	r.mu.Lock()
	r.full = true
	r.mu.Unlock()
	return true
}

// HearsCommands reports whether an event queue takes the completions of
// commands. A command that was issued when none did is polled for.
func (h *HCA) HearsCommands() bool { return h.routes[mlx5.EventCmd].Load() != nil }

// CommandsDone reports that the commands in these slots are done.
func (h *HCA) CommandsDone(slots uint32) {
	var data eventBytes
	binary.BigEndian.PutUint32(data[:], slots)
	h.report(mlx5.EventCmd, 0, &data)
}

// UpdateEQ takes a doorbell of an event queue: the driver has consumed the
// events before ci, and with arm it waits for the next.
func (h *HCA) UpdateEQ(eqn uint8, ci uint32, arm bool) {
	h.doorbells.Add(1)
	e := h.eqs.get(uint32(eqn))
	if e == nil {
		return
	}
	r := e.ring.Load()
	if r == nil {
		return
	}
	r.mu.Lock()
	signal := false
	if !r.dead {
		r.ci = ci & counterMask
		if arm {
			// What came since the driver looked is signalled now.
			signal = r.ci != r.pi&counterMask
			r.armed = !signal
		}
	}
	r.mu.Unlock()
	if signal {
		h.interrupt(r.vector)
	}
}

// createRing makes an event queue's ring.
func (h *HCA) createRing(in mlx5.CreateEQIn) (*eqRing, check) {
	ctx := in.EQContextEntry()
	shift := ctx.LogPageSize() + 12
	r := &eqRing{log: ctx.LogEQSize(), vector: int(ctx.Intr())}
	var fits bool
	if r.buf, fits = bufferOf(in.PAS(), shift, uint64(ctx.PageOffset())<<shift/64, eqeSize<<r.log); !fits {
		return nil, badPAS
	}
	if r.vector >= h.vectors {
		return nil, badVector
	}
	for i := range r.mask {
		r.mask[i] = binary.BigEndian.Uint64(in.EventBitmask()[8*i:])
	}
	return r, ok
}

// route makes an event queue the one that gets the types of its mask.
func (h *HCA) route(r *eqRing) {
	for t := range h.routes {
		if r.takes(mlx5.EventType(t)) {
			h.routes[t].Store(r)
		}
	}
}

// unroute is its end: when it returns nothing is written any more.
func (h *HCA) unroute(r *eqRing) {
	for t := range h.routes {
		h.routes[t].CompareAndSwap(r, nil)
	}
	r.mu.Lock()
	r.dead = true
	r.mu.Unlock()
}

func (h *HCA) queryEQ(c command) check {
	e := h.eqs.get(id24(c) & 0xff)
	if e == nil || !e.own(c.uid) {
		return badEQN
	}
	defer e.mu.Unlock()
	r := e.ring.Load()
	if r == nil {
		return badEQN
	}
	out := mlx5.QueryEQOut(c.out)
	ctx := out.EQContextEntry()
	copy(ctx, e.ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx.SetProducerCounter(r.pi & counterMask)
	ctx.SetConsumerCounter(r.ci)
	ctx.SetSt(eqFired)
	if r.armed {
		ctx.SetSt(eqArmed)
	}
	if r.failed {
		ctx.SetStatus(eqWriteFailure)
	}
	return ok
}

// States and status of an event queue's context (linux/mlx5/mlx5_ifc.h,
// MLX5_EQC_*).
const (
	eqArmed        = 0x9
	eqFired        = 0xa
	eqWriteFailure = 0xa
)
