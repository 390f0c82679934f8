// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"slices"
	"sync/atomic"

	"devxlab.example/mlx5"
)

// resource is an object that only a driver makes: a context as it was given and
// modified, and the objects that it uses.
type resource struct {
	entry
	kind  queueKind
	ctx   []byte
	held  []*entry
	queue atomic.Pointer[sendQueue] // of an SQ
	recv  *recvQueue                // of an RQ, RMP or XRC SRQ
	ring  *cqRing                   // where an RQ completes

	targets []*resource      // RQs of an RQ table
	flows   map[uint32]*flow // of a flow table, by index
	group   span             // of a flow group
	way     direction        // of a flow table
}

// queueKind tells apart what shares a number space.
type queueKind uint8

const (
	kindPlain queueKind = iota
	kindRMP
	kindXRCSRQ
)

// holding collects the objects that another uses, like uses, but any number.
type holding struct {
	uid     uint16
	held    []*entry
	refused check
}

func (u *holding) hold(e *entry, kernels bool, missing check) {
	switch {
	case u.refused != ok:
	case e == nil || !e.use(u.uid, kernels):
		u.refused = missing
	default:
		u.held = append(u.held, e)
	}
}

// holdAny is hold for objects that the kernel uses on behalf of its users, under
// its own uid.
func (u *holding) holdAny(e *entry, missing check) {
	switch {
	case u.uid != 0:
		u.hold(e, true, missing)
	case u.refused != ok:
	case e == nil || !e.useAny():
		u.refused = missing
	default:
		u.held = append(u.held, e)
	}
}

func (u *holding) want(good bool, otherwise check) {
	if u.refused == ok && !good {
		u.refused = otherwise
	}
}

func unuseAll(held []*entry) {
	for _, e := range held {
		e.unuse()
	}
}

// make makes a resource of what was collected, unless something was refused.
func (h *HCA) make(c command, t *table[resource], u *holding, ctx []byte, then func(uint32, *resource)) check {
	if u.refused != ok {
		unuseAll(u.held)
		return u.refused
	}
	id, r, room := t.alloc()
	if !room {
		unuseAll(u.held)
		return objectLimit
	}
	r.kind, r.ctx, r.held, r.flows, r.group = kindPlain, slices.Clone(ctx), u.held, nil, span{}
	r.queue.Store(nil)
	r.recv, r.ring, r.targets = nil, nil, nil
	if then != nil {
		then(id, r)
	}
	return h.born(c, id, &r.entry)
}

// unmake destroys one of a kind.
func (h *HCA) unmake(c command, t *table[resource], k queueKind, missing check) check {
	id := id24(c)
	if r := t.get(id); r != nil && r.kind != k {
		return missing
	}
	return destroy(h, c, t, id, missing, func(h *HCA, r *resource) {
		if q := r.queue.Swap(nil); q != nil {
			h.run(q, false, false)
		}
		if r.recv != nil && r.kind != kindPlain {
			r.recv.kill()
		}
		unuseAll(r.held)
		r.mu.Lock() // frames may be on their way
		defer r.mu.Unlock()
		r.held, r.ctx, r.flows, r.recv, r.ring, r.targets = nil, nil, nil, nil, nil, nil
	})
}

// find returns a resource of a kind, locked.
func find(t *table[resource], id uint32, k queueKind, uid uint16) *resource {
	r := t.get(id)
	if r == nil || !r.own(uid) {
		return nil
	}
	if r.kind != k {
		r.mu.Unlock()
		return nil
	}
	return r
}

// Where a context stands in the answer to its query.
const contextAt = 32

func (h *HCA) queryResource(c command, t *table[resource], k queueKind, missing check, at int) check {
	r := t.get(id24(c))
	if r == nil || !r.see(c.uid) {
		return missing
	}
	defer r.mu.Unlock()
	if r.kind != k {
		return missing
	}
	copy(c.out[at:], r.ctx)
	return ok
}

func (h *HCA) allocXRCD(c command) check   { return h.make(c, h.xrcds, &holding{uid: c.uid}, nil, nil) }
func (h *HCA) deallocXRCD(c command) check { return h.unmake(c, h.xrcds, kindPlain, badXRCD) }

func (h *HCA) allocTD(c command) check   { return h.make(c, h.tds, &holding{uid: c.uid}, nil, nil) }
func (h *HCA) deallocTD(c command) check { return h.unmake(c, h.tds, kindPlain, badTD) }

func (h *HCA) createTIS(c command) check {
	ctx := mlx5.CreateTISIn(c.in).Ctx()
	u := holding{uid: c.uid}
	u.want(!ctx.TLSEn(), badOffload)
	u.hold(entryOf(h.tds.get(ctx.TransportDomain())), true, badTD)
	return h.make(c, h.tiss, &u, ctx, nil)
}

func (h *HCA) queryTIS(c command) check {
	return h.queryResource(c, h.tiss, kindPlain, badTIS, 16)
}
func (h *HCA) destroyTIS(c command) check { return h.unmake(c, h.tiss, kindPlain, badTIS) }

// Types of work queues (MLX5_WQ_TYPE_* in linux/mlx5/mlx5_ifc.h).
const (
	wqList   = 0
	wqCyclic = 1
)

// wq checks a work queue whose entries lie in physical pages, and returns its
// buffer. The view of a context ends before what follows it, so the list of
// pages comes apart.
func (u *holding) wq(h *HCA, wq mlx5.WQ, list []byte, least uint8) (b buffer) {
	shift := wq.LogWQPgSz() + 12
	stride := uint64(1) << wq.LogWQStride()
	fits := false
	u.want(wq.WQType() == wqList || wq.WQType() == wqCyclic, badWQType)
	u.want(!wq.WQUmemValid() && !wq.DBRUmemValid(), noWQUmem)
	u.want(wq.LogWQSz() <= maxWQSize && wq.LogWQStride() >= least, badWQSize)
	u.want(wq.DBRAddr()%8 == 0, umemUnaligned)
	if u.refused == ok {
		b, fits = bufferOf(list, shift, uint64(wq.PageOffset())<<shift/64, stride<<wq.LogWQSz())
		u.want(fits, badPAS)
	}
	if wq.PD() != 0 || least != 4 {
		// The driver gives none for the RQ that drops (mlx5e_alloc_drop_rq).
		u.hold(entryOf(h.pds.get(wq.PD())), true, badPD)
	}
	return b
}

func (h *HCA) createSQ(c command) check {
	ctx := mlx5.CreateSQIn(c.in).Ctx()
	u := holding{uid: c.uid}
	u.want(ctx.State() == wqReset, badWQState)
	u.want(!ctx.Hairpin() && !ctx.RegUMR() && !ctx.AllowMultiPktSendWQE() && !ctx.AllowSwp(), badOffload)
	b := u.wq(h, ctx.WQ(), c.in[mlx5.CreateSQInSize:], 6)
	u.want(ctx.WQ().WQType() == wqCyclic, badWQType)
	u.hold(entryOf(h.uars.get(ctx.WQ().UARPage())), true, badUAR)
	q := h.cqs.get(ctx.CQN())
	u.hold(entryOf(q), false, badCQN)
	u.want(ctx.TISLstSz() <= maxTISPerSQ, badTIS)
	if ctx.TISLstSz() > 0 {
		u.hold(entryOf(h.tiss.get(ctx.TISNum0())), true, badTIS)
	}
	return h.make(c, h.sqs, &u, ctx[:mlx5.SQCSize], func(id uint32, r *resource) {
		r.queue.Store(&sendQueue{number: id, index: ctx.UserIndex(), cq: q.ring.Load(), buf: b, log: ctx.WQ().LogWQSz(), record: ctx.WQ().DBRAddr(), who: user{ctx.WQ().PD(), anyQPN, c.uid == 0 && ctx.Rlky()}, wqe: new(wqe), last: noLane})
	})
}

func (h *HCA) querySQ(c command) check {
	return h.queryResource(c, h.sqs, kindPlain, badSQN, contextAt)
}
func (h *HCA) destroySQ(c command) check { return h.unmake(c, h.sqs, kindPlain, badSQN) }

// States of RQs and SQs (MLX5_RQC_STATE_*, MLX5_SQC_STATE_*).
const (
	wqReset = 0
	wqReady = 1
	wqError = 3
)

// wqMoves is where a queue may go from each state.
var wqMoves = map[uint8][]uint8{
	wqReset: {wqReset, wqReady, wqError},
	wqReady: {wqReady, wqReset, wqError},
	wqError: {wqError, wqReset},
}

func (h *HCA) modifySQ(c command) check {
	in := mlx5.ModifySQIn(c.in)
	r := find(h.sqs, in.Sqn(), kindPlain, c.uid)
	if r == nil {
		return badSQN
	}
	defer r.mu.Unlock()
	ctx, to := mlx5.SQC(r.ctx), in.Ctx().State()
	if in.SQState() != ctx.State() || !slices.Contains(wqMoves[ctx.State()], to) {
		return badWQState
	}
	ctx.SetState(to)
	if q := r.queue.Load(); q != nil {
		h.run(q, to == wqReady, to == wqReset)
	}
	return ok
}

// Memory of an RQ (MLX5_RQC_MEM_RQ_TYPE_*).
const (
	rqInline = 0
	rqRMP    = 1
)

func (h *HCA) createRQ(c command) check {
	ctx := mlx5.CreateRQIn(c.in).Ctx()
	u := holding{uid: c.uid}
	u.want(ctx.State() == wqReset, badWQState)
	u.want(!ctx.Hairpin() && !ctx.DelayDropEn(), badOffload)
	q := h.cqs.get(ctx.CQN())
	u.hold(entryOf(q), false, badCQN)
	var recv *recvQueue
	switch ctx.MemRQType() {
	case rqInline:
		b := u.wq(h, ctx.WQ(), c.in[mlx5.CreateRQInSize:], 4)
		recv = queueOf(ctx.WQ(), b, c.uid == 0 && ctx.Rlky())
	case rqRMP:
		u.hold(h.srqEntry(ctx.RMPN(), kindRMP), true, badSRQN)
		if u.refused == ok {
			recv = h.srqs.get(ctx.RMPN()).recv
		}
	default:
		u.want(false, badRQType)
	}
	if id := ctx.CounterSetID(); id != 0 {
		u.hold(entryOf(h.counters.get(uint32(id))), true, badCounterSet)
	}
	return h.make(c, h.rqs, &u, ctx[:mlx5.RQCSize], func(_ uint32, r *resource) {
		r.recv, r.ring = recv, q.ring.Load()
	})
}

// queueOf makes a receive queue of a work queue's context. Who may use the
// reserved key is said in the context around it, as a queue pair's does (rlky);
// that of an RMP has no such bit.
func queueOf(wq mlx5.WQ, b buffer, reserved bool) *recvQueue {
	q := &recvQueue{
		buf: b, log: wq.LogWQSz(), stride: 1 << wq.LogWQStride(), record: wq.DBRAddr(), mask: counter16,
		user: user{wq.PD(), anyQPN, reserved}, shared: wq.WQType() == wqList,
	}
	if q.shared || wq.WQSignature() {
		q.skip = segBytes
	}
	return q
}

// What frames need to know of an RQ, whose lock is held.
func (r *resource) ready() bool        { return mlx5.RQC(r.ctx).State() == wqReady }
func (r *resource) index() uint32      { return mlx5.RQC(r.ctx).UserIndex() }
func (r *resource) keepsVLAN() bool    { return mlx5.RQC(r.ctx).VSD() }
func (r *resource) counterSet() uint32 { return uint32(mlx5.RQC(r.ctx).CounterSetID()) }

func (h *HCA) queryRQ(c command) check {
	return h.queryResource(c, h.rqs, kindPlain, badRQN, contextAt)
}
func (h *HCA) destroyRQ(c command) check { return h.unmake(c, h.rqs, kindPlain, badRQN) }

// Fields of MODIFY_RQ (MLX5_MODIFY_RQ_IN_MODIFY_BITMASK_*).
const (
	rqVSD        = 1 << 1
	rqScatterFCS = 1 << 2
	rqCounterSet = 1 << 3
)

func (h *HCA) modifyRQ(c command) check {
	in := mlx5.ModifyRQIn(c.in)
	r := find(h.rqs, in.RQN(), kindPlain, c.uid)
	if r == nil {
		return badRQN
	}
	defer r.mu.Unlock()
	ctx, src := mlx5.RQC(r.ctx), in.Ctx()
	switch {
	case in.RQState() != ctx.State() || !slices.Contains(wqMoves[ctx.State()], src.State()):
		return badWQState
	case in.ModifyBitmask()&^(rqVSD|rqScatterFCS|rqCounterSet) != 0:
		return badFieldSelect
	}
	if in.ModifyBitmask()&rqCounterSet != 0 {
		var to *entry
		if id := src.CounterSetID(); id != 0 {
			if to = entryOf(h.counters.get(uint32(id))); to == nil || !to.use(c.uid, true) {
				return badCounterSet
			}
		}
		if old := ctx.CounterSetID(); old != 0 {
			e := entryOf(h.counters.get(uint32(old)))
			e.unuse()
			r.held = slices.DeleteFunc(r.held, func(x *entry) bool { return x == e })
		}
		if to != nil {
			r.held = append(r.held, to)
		}
		ctx.SetCounterSetID(src.CounterSetID())
	}
	if in.ModifyBitmask()&rqVSD != 0 {
		ctx.SetVSD(src.VSD())
	}
	if in.ModifyBitmask()&rqScatterFCS != 0 {
		ctx.SetScatterFcs(src.ScatterFcs())
	}
	ctx.SetState(src.State())
	if src.State() == wqReset && ctx.MemRQType() == rqInline {
		r.recv.restart()
	}
	return ok
}

// srqEntry returns an RMP or XRC SRQ: they share one number space.
func (h *HCA) srqEntry(id uint32, kinds ...queueKind) *entry {
	r := h.srqs.get(id)
	if r == nil || !slices.Contains(kinds, r.kind) {
		return nil
	}
	return &r.entry
}

func (h *HCA) createRMP(c command) check {
	ctx := mlx5.CreateRMPIn(c.in).Ctx()
	u := holding{uid: c.uid}
	u.want(ctx.State() == wqReady, badWQState)
	b := u.wq(h, ctx.WQ(), c.in[mlx5.CreateRMPInSize:], 5)
	return h.make(c, h.srqs, &u, ctx[:mlx5.RMPCSize], func(id uint32, r *resource) {
		r.kind, r.recv = kindRMP, queueOf(ctx.WQ(), b, false)
		r.recv.number, r.recv.shared, r.recv.skip, r.recv.limit = id, true, segBytes, ctx.WQ().Lwm()
	})
}

// modifyRMP arms the limit: the one field that the driver modifies
// (mlx5_ib srq_cmd.c, arm_rmp_cmd).
func (h *HCA) modifyRMP(c command) check {
	in := mlx5.ModifyRMPIn(c.in)
	r := find(h.srqs, in.RMPN(), kindRMP, c.uid)
	if r == nil {
		return badSRQN
	}
	defer r.mu.Unlock()
	switch {
	case in.RMPState() != mlx5.RMPC(r.ctx).State() || in.Ctx().State() != in.RMPState() && in.Ctx().State() != 0:
		return badWQState
	case !in.Bitmask().Lwm():
		return badFieldSelect
	}
	mlx5.RMPC(r.ctx).WQ().SetLwm(in.Ctx().WQ().Lwm())
	h.arm(r.recv, in.Ctx().WQ().Lwm())
	return ok
}

func (h *HCA) queryRMP(c command) check {
	return h.queryResource(c, h.srqs, kindRMP, badSRQN, contextAt)
}
func (h *HCA) destroyRMP(c command) check { return h.unmake(c, h.srqs, kindRMP, badSRQN) }

func (h *HCA) createXRCSRQ(c command) check {
	in := mlx5.CreateXRCSRQIn(c.in)
	ctx := in.XRCSRQContextEntry()
	shift := ctx.LogPageSize() + 12
	record := uint64(ctx.DbRecordAddrH())<<32 | uint64(ctx.DbRecordAddrL())<<2
	u := holding{uid: c.uid}
	u.want(!in.XRCSRQUmemValid() && !ctx.DBRUmemValid(), noWQUmem)
	u.want(ctx.LogXRCSRQSize() <= logMaxSRQSize, badWQSize)
	u.want(record%8 == 0, umemUnaligned)
	var b buffer
	stride := uint64(segBytes) << ctx.LogRQStride()
	if u.refused == ok {
		fits := false
		b, fits = bufferOf(in.PAS(), shift, uint64(ctx.PageOffset())<<shift/64, stride<<ctx.LogXRCSRQSize())
		u.want(fits, badPAS)
	}
	// The kernel makes those of its users under its own uid, as their XRC queue pairs.
	u.holdAny(entryOf(h.xrcds.get(ctx.XRCD())), badXRCD)
	u.holdAny(entryOf(h.pds.get(ctx.PD())), badPD)
	q := h.cqs.get(ctx.CQN())
	u.holdAny(entryOf(q), badCQN)
	return h.make(c, h.srqs, &u, ctx, func(id uint32, r *resource) {
		r.kind = kindXRCSRQ
		r.recv = &recvQueue{
			number: id, buf: b, log: ctx.LogXRCSRQSize(), stride: stride, skip: segBytes, record: record, mask: counter16, shared: true,
			limit: ctx.Lwm(), user: user{ctx.PD(), anyQPN, ctx.Rlky() && c.uid == 0}, cq: q.ring.Load(), index: ctx.UserIndex(),
		}
	})
}

func (h *HCA) armXRCSRQ(c command) check {
	in := mlx5.ArmXRCSRQIn(c.in)
	if in.OpMod() != 1 { // MLX5_ARM_XRC_SRQ_IN_OP_MOD_XRC_SRQ
		return badOpMod
	}
	r := find(h.srqs, in.XRCSRQN(), kindXRCSRQ, c.uid)
	if r == nil {
		return badSRQN
	}
	mlx5.XRCSRQC(r.ctx).SetLwm(in.Lwm())
	h.arm(r.recv, in.Lwm())
	r.mu.Unlock()
	return ok
}

func (h *HCA) queryXRCSRQ(c command) check {
	return h.queryResource(c, h.srqs, kindXRCSRQ, badSRQN, 16)
}
func (h *HCA) destroyXRCSRQ(c command) check { return h.unmake(c, h.srqs, kindXRCSRQ, badSRQN) }

// rqt collects the receive queues of a table.
func (u *holding) rqt(h *HCA, ctx mlx5.RQTC, list []byte, most uint16) (rqs []*resource) {
	n := int(ctx.RQTActualSize())
	u.want(ctx.ListQType() == 0 && !ctx.RQVHCAIDFormat(), badWQType)
	u.want(n <= int(most) && 4*n <= len(list), badRQTSize)
	for i := 0; i < n && u.refused == ok; i++ {
		rq := h.rqs.get(binary.BigEndian.Uint32(list[4*i:]) & counterMask)
		u.hold(entryOf(rq), false, badRQN)
		rqs = append(rqs, rq)
	}
	return rqs
}

func (h *HCA) createRQT(c command) check {
	ctx := mlx5.CreateRQTIn(c.in).RQTContext()
	u := holding{uid: c.uid}
	u.want(ctx.RQTMaxSize() <= 1<<logMaxRQTSize, badRQTSize)
	rqs := u.rqt(h, ctx, c.in[mlx5.CreateRQTInSize:], ctx.RQTMaxSize())
	return h.make(c, h.rqts, &u, ctx, func(_ uint32, r *resource) { r.targets = rqs })
}

func (h *HCA) modifyRQT(c command) check {
	in := mlx5.ModifyRQTIn(c.in)
	r := find(h.rqts, in.Rqtn(), kindPlain, c.uid)
	if r == nil {
		return badRQTN
	}
	defer r.mu.Unlock()
	if !in.Bitmask().RQNList() {
		return badFieldSelect
	}
	ctx := mlx5.RQTC(r.ctx)
	most := ctx.RQTMaxSize()
	u := holding{uid: c.uid}
	rqs := u.rqt(h, in.Ctx(), c.in[mlx5.ModifyRQTInSize:], most)
	if u.refused != ok {
		unuseAll(u.held)
		return u.refused
	}
	unuseAll(r.held)
	r.held, r.ctx, r.targets = u.held, slices.Clone([]byte(in.Ctx())), rqs
	mlx5.RQTC(r.ctx).SetRQTMaxSize(most)
	return ok
}

func (h *HCA) destroyRQT(c command) check { return h.unmake(c, h.rqts, kindPlain, badRQTN) }

// How a TIR finds its queue (MLX5_TIRC_DISP_TYPE_*).
const (
	tirDirect   = 0
	tirIndirect = 1
)

func (h *HCA) createTIR(c command) check {
	ctx := mlx5.CreateTIRIn(c.in).Ctx()
	u := holding{uid: c.uid}
	u.want(!ctx.TLSEn() && !ctx.TunneledOffloadEn() && ctx.PacketMergeMask() == 0, badOffload)
	switch ctx.DispType() {
	case tirDirect:
		u.hold(entryOf(h.rqs.get(ctx.InlineRQN())), false, badRQN)
	case tirIndirect:
		u.hold(entryOf(h.rqts.get(ctx.IndirectTable())), false, badRQTN)
	default:
		u.want(false, badDisp)
	}
	u.hold(entryOf(h.tds.get(ctx.TransportDomain())), true, badTD)
	return h.make(c, h.tirs, &u, ctx, nil)
}

func (h *HCA) modifyTIR(c command) check {
	in := mlx5.ModifyTIRIn(c.in)
	r := find(h.tirs, in.Tirn(), kindPlain, c.uid)
	if r == nil {
		return badTIRN
	}
	defer r.mu.Unlock()
	if in.Bitmask().PacketMerge() {
		return badOffload
	}
	dst, src := mlx5.TIRC(r.ctx), in.Ctx()
	if in.Bitmask().SelfLbEn() {
		dst.SetSelfLbBlock(src.SelfLbBlock())
	}
	if in.Bitmask().Hash() {
		dst.SetRXHashFn(src.RXHashFn())
		dst.SetRXHashSymmetric(src.RXHashSymmetric())
		copy(dst.RXHashToeplitzKey(), src.RXHashToeplitzKey())
		copy(dst.RXHashFieldSelectorOuter(), src.RXHashFieldSelectorOuter())
		copy(dst.RXHashFieldSelectorInner(), src.RXHashFieldSelectorInner())
	}
	return ok
}

func (h *HCA) queryTIR(c command) check {
	return h.queryResource(c, h.tirs, kindPlain, badTIRN, contextAt)
}
func (h *HCA) destroyTIR(c command) check { return h.unmake(c, h.tirs, kindPlain, badTIRN) }
