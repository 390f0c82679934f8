// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"sync"

	"devxlab.example/mlx5"
)

// cqRing is a completion queue in the host's memory.
type cqRing struct {
	mu     sync.Mutex
	cqn    uint32
	eq     *eqRing
	buf    buffer
	log    uint8
	stride uint64  // of entries: 64 or 128 bytes
	ignore bool    // oi: an overrun is the driver's affair
	record uint64  // address of the doorbell record: the consumer counter, then what it was armed with
	ci     [4]byte // what was read there last
	pi     uint32
	armed  bool
	only   bool   // armed for solicited completions only
	last   uint32 // pi behind the last solicited completion
	status uint8
	dead   bool
}

// Status of a completion queue's context (MLX5_CQC_STATUS_*).
const (
	cqOverflow  = 0x9
	cqWriteFail = 0xa
)

const cqeSize = 64

// cqe is a completion (struct mlx5_cqe64 in linux/mlx5/device.h). The queue
// fills in the owner bit.
type cqe [cqeSize]byte

// complete writes a completion and tells the driver if it waits for one. A
// queue that overruns, or whose memory is not there, fails: the driver gets an
// event, and nothing is written any more.
func (h *HCA) complete(r *cqRing, e *cqe, solicited bool) bool {
	r.mu.Lock()
	if r.dead || r.status != 0 {
		r.mu.Unlock()
		return false
	}
	if !r.ignore {
		if h.mem.ReadDMA(r.record, r.ci[:]) == nil && (r.pi-binary.BigEndian.Uint32(r.ci[:]))&counterMask >= 1<<r.log {
			r.fail(h, cqOverflow, 1)
			return false
		}
	}
	if h.put(r, e) != nil {
		r.fail(h, cqWriteFail, 2)
		return false
	}
	r.pi = (r.pi + 1) & counterMask
	if solicited {
		r.last = r.pi
	}
	signal := r.armed && (solicited || !r.only)
	if signal {
		r.armed = false
	}
	r.mu.Unlock()
	if signal {
		h.notify(r)
	}
	return true
}

// put writes a completion at the producer counter.
func (h *HCA) put(r *cqRing, e *cqe) error {
	e[cqeSize-1] = e[cqeSize-1]&^1 | byte(r.pi>>r.log)&1
	at := uint64(r.pi) & (1<<r.log - 1) * r.stride
	return r.buf.writeOwned(h.mem, at+r.stride-cqeSize, e[:])
}

// fail ends a queue that is locked; it unlocks it.
func (r *cqRing) fail(h *HCA, status, syndrome uint8) {
	r.status = status
	r.mu.Unlock()
	var data eventBytes // struct mlx5_eqe_cq_err
	binary.BigEndian.PutUint32(data[:], r.cqn)
	data[11] = syndrome
	h.report(mlx5.EventCQError, 0, &data)
}

// notify posts the completion event.
func (h *HCA) notify(r *cqRing) {
	if h.driver == nil {
		h.Raise(Event{mlx5.EventComp, r.cqn})
		return
	}
	var data eventBytes // struct mlx5_eqe_comp
	binary.BigEndian.PutUint32(data[24:], r.cqn)
	h.post(r.eq, mlx5.EventComp, 0, &data)
}

// kill ends a queue: when it returns nothing is written any more.
func (r *cqRing) kill() {
	r.mu.Lock()
	r.dead = true
	r.mu.Unlock()
}

// describe fills in what has changed since the queue was made.
func (r *cqRing) describe(c mlx5.CQC) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.SetStatus(r.status)
	c.SetProducerCounter(r.pi)
	c.SetLastSolicitIndex(r.last)
	switch {
	case r.armed && r.only:
		c.SetSt(cqSolicited)
	case r.armed:
		c.SetSt(cqArmed)
	default:
		c.SetSt(cqFired)
	}
}

// States of a completion queue's context (MLX5_CQC_ST_*).
const (
	cqSolicited = 0x6
	cqArmed     = 0x9
	cqFired     = 0xa
)

// ArmCQ takes a doorbell of a completion queue: the driver has consumed the
// completions before ci and wants an event for the next one, or for the next
// solicited one.
func (h *HCA) ArmCQ(cqn, ci uint32, solicited bool) {
	h.doorbells.Add(1)
	q := h.cqs.get(cqn)
	if q == nil {
		return
	}
	r := q.ring.Load()
	if r == nil {
		return
	}
	ci &= counterMask
	r.mu.Lock()
	behind := r.pi
	if solicited {
		behind = r.last
	}
	// More than half the counters behind is ahead.
	now := !r.dead && r.status == 0 && (behind-ci-1)&counterMask < 1<<23
	r.armed, r.only = !now, solicited
	r.mu.Unlock()
	if now {
		h.notify(r)
	}
}

// ringOf makes the ring of a completion queue in physical pages.
func (h *HCA) ringOf(ctx mlx5.CQC, list []byte) (*cqRing, check) {
	r := &cqRing{log: ctx.LogCQSize(), stride: cqeSize << ctx.CQESz(), ignore: ctx.Oi(), record: ctx.DBRAddr()}
	fits := false
	shift := ctx.LogPageSize() + 12
	if r.buf, fits = bufferOf(list, shift, uint64(ctx.PageOffset())<<shift/64, r.stride<<r.log); !fits {
		return nil, badPAS
	}
	if r.record%8 != 0 {
		return nil, umemUnaligned
	}
	return r, ok
}

// Operations of MODIFY_CQ (include/linux/mlx5/cq.h and mlx5_ib cq.c).
const (
	modifyCQFields = 0
	resizeCQ       = 1
)

// Fields of MODIFY_CQ (MLX5_CQ_MODIFY_* in linux/mlx5/cq.h).
const (
	cqPeriod     = 1 << 0
	cqCount      = 1 << 1
	cqOverrun    = 1 << 2
	cqPeriodMode = 1 << 4
)

func (h *HCA) modifyCQ(c command) check {
	in := mlx5.ModifyCQIn(c.in)
	if in.OpMod() > resizeCQ {
		return badOpMod
	}
	q := h.cqs.get(in.CQN())
	if q == nil || !q.own(c.uid) {
		return badCQN
	}
	defer q.mu.Unlock()
	src, dst := in.CQContext(), mlx5.CQC(q.ctx[:])
	r := q.ring.Load()
	if in.OpMod() == resizeCQ {
		return h.resize(q, r, in)
	}
	fields := binary.BigEndian.Uint32(in.ModifyFieldSelectResizeFieldSelect())
	if fields&^(cqPeriod|cqCount|cqOverrun|cqPeriodMode) != 0 {
		return badFieldSelect
	}
	if fields&cqPeriod != 0 {
		dst.SetCQPeriod(src.CQPeriod())
	}
	if fields&cqCount != 0 {
		dst.SetCQMaxCount(src.CQMaxCount())
	}
	if fields&cqPeriodMode != 0 {
		dst.SetCQPeriodMode(src.CQPeriodMode())
	}
	if fields&cqOverrun != 0 {
		dst.SetOi(src.Oi())
		r.mu.Lock()
		r.ignore = src.Oi()
		r.mu.Unlock()
	}
	return ok
}

// fence waits at the port for its turn.
type fence struct {
	wait bool
	done chan struct{}
}

func (f *fence) queued() *bool { return &f.wait }
func (f *fence) lane() lane    { return noLane }

func (f *fence) turn(*HCA) (more bool) {
	close(f.done)
	return false
}

// maxSettle is how many turns of the port a command waits for, at most: some 100 ms
// of a port that never rests, since a driver waits a minute for its command.
const maxSettle = 256

// settle waits until the port has done what was asked of it before: a card sends
// what was rung for long before its firmware has taken a command apart. Queues
// that go on are waited for some turns, not for ever.
func (h *HCA) settle(turns int) {
	for ; turns > 0 && !h.port.idle(); turns-- {
		f := &fence{done: make(chan struct{})}
		h.wake(f)
		select {
		case <-f.done:
		case <-h.down:
			return
		}
	}
}

// resize moves a completion queue to another buffer. A completion of its own on
// the old one tells the driver where it went on. It has a place among the others:
// the driver copies those before it to one place further on, and counts it as
// consumed (mlx5_ib cq.c, copy_resize_cqes).
func (h *HCA) resize(q *cq, r *cqRing, in mlx5.ModifyCQIn) check {
	src, dst := in.CQContext(), mlx5.CQC(q.ctx[:])
	switch {
	case src.LogCQSize() > logMaxCQSize:
		return badCQSize
	case src.CQESz() > 1:
		return badCQESize
	case in.CQUmemValid() || dst.DBRUmemValid():
		return noResize
	}
	wide, refused := h.ringOf(src, in.PAS())
	if refused != ok {
		return refused
	}
	h.settle(min(1<<r.log/turnPackets, maxSettle) + 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.mem.ReadDMA(r.record, r.ci[:]) != nil {
		return badCQSize
	}
	if waiting := (r.pi - binary.BigEndian.Uint32(r.ci[:])) & counterMask; waiting > 1<<wide.log || waiting >= 1<<r.log {
		return badCQSize
	}
	if h.put(r, &cqe{cqeSize - 1: cqeResize << 4}) != nil {
		return badPAS
	}
	r.pi = (r.pi + 1) & counterMask
	r.buf, r.log, r.stride = wide.buf, wide.log, wide.stride
	dst.SetLogCQSize(src.LogCQSize())
	dst.SetCQESz(src.CQESz())
	dst.SetLogPageSize(src.LogPageSize())
	dst.SetPageOffset(src.PageOffset())
	return ok
}
