// SPDX-License-Identifier: BSD-2-Clause

package fw

import "devxlab.example/mlx5"

func (h *HCA) createQP(c command) check {
	in := mlx5.CreateQPIn(c.in)
	ctx := in.QPC()
	switch mlx5.ServiceType(ctx.St()) {
	case mlx5.STRC, mlx5.STUC, mlx5.STUD:
	case mlx5.STXRC, mlx5.STQp1, mlx5.STRegUMR:
		if h.driver == nil {
			return badST
		}
	default:
		return badST
	}
	switch ctx.RQType() {
	case mlx5.RQNormal, mlx5.RQNone:
	case mlx5.RQShared:
		if h.driver == nil {
			return badSRQN
		}
	default:
		return badRQType
	}
	switch {
	case ctx.PMState() == 2:
		return badPMState
	case in.WQUmemValid() != ctx.DBRUmemValid() || h.driver == nil && !in.WQUmemValid():
		return noUmem
	}
	// No check of log_rq_size and log_sq_size: their 4 bits go as far as
	// log_max_qp_sz does.
	var rq, sq uint64
	if ctx.RQType() == mlx5.RQNormal {
		rq = 16 << ctx.LogRQStride() << ctx.LogRQSize()
	}
	if !ctx.NoSQ() {
		sq = 64 << ctx.LogSQSize()
	}
	// The kernel makes its users' XRC queue pairs under its own uid (mlx5_ib qp.c,
	// create_user_qp).
	u := uses{uid: c.uid, any: c.uid == 0 && mlx5.ServiceType(ctx.St()) == mlx5.STXRC}
	if mlx5.ServiceType(ctx.St()) != mlx5.STRegUMR { // the driver gives it none (create_kernel_qp)
		u.hold(entryOf(h.pds.get(ctx.PD())), false, badPD)
	}
	u.hold(entryOf(h.cqs.get(ctx.CQNSnd())), false, badCQN)
	u.hold(entryOf(h.cqs.get(ctx.CQNRcv())), false, badCQN)
	if !ctx.NoSQ() || ctx.UARPage() != 0 { // the driver gives an XRC target none (create_xrc_tgt_qp)
		u.hold(entryOf(h.uars.get(ctx.UARPage())), true, badUAR)
	}
	if in.WQUmemValid() {
		u.umem(h, in.WQUmemID(), in.WQUmemOffset(), rq+sq, 64)
		u.umem(h, ctx.DBRUmemID(), ctx.DBRAddr(), 8, 8)
	}
	more := holding{uid: c.uid, refused: u.refused}
	var queue *sendQueue
	var recv *recvQueue
	if h.mem != nil {
		queue, recv = h.createQueues(in, rq, sq, &more)
	}
	if more.refused != ok {
		u.release()
		unuseAll(more.held)
		return more.refused
	}
	id, q, room := h.qps.alloc()
	if !room {
		u.release()
		unuseAll(more.held)
		return qpLimit
	}
	copy(q.qpc[:], ctx)
	q.wqUmem, q.pmState, q.held = 0, ctx.PMState(), more.held
	if in.WQUmemValid() {
		q.wqUmem = in.WQUmemID()
	}
	q.reset()
	q.ep = nil
	if h.mem != nil {
		q.ep = h.newEndpoint(q, id, c.uid, queue, recv)
	}
	if queue != nil {
		queue.number, queue.ep = id, q.ep
		q.queue.Store(queue)
	}
	if h.contexts != nil {
		h.contexts.use(id - firstQPN)
	}
	return h.born(c, id, &q.entry)
}

// createQueues makes the queues of a queue pair in the host's memory, nil where
// it has none, and collects what shared queues and domains it uses.
func (h *HCA) createQueues(in mlx5.CreateQPIn, rq, sq uint64, u *holding) (*sendQueue, *recvQueue) {
	ctx := in.QPC()
	st := mlx5.ServiceType(ctx.St())
	var shared *resource
	if ctx.RQType() == mlx5.RQShared {
		shared = h.srqs.get(ctx.SRQNRMPNXRQN())
		u.hold(h.srqEntry(ctx.SRQNRMPNXRQN(), kindRMP, kindXRCSRQ), true, badSRQN)
	}
	if st == mlx5.STXRC {
		u.holdAny(entryOf(h.xrcds.get(ctx.XRCD())), badXRCD)
	}
	if u.refused != ok {
		return nil, nil
	}
	record := ctx.DBRAddr()
	var buf buffer
	if in.WQUmemValid() {
		buf = h.umems.get(in.WQUmemID()).part(in.WQUmemOffset())
		part := h.umems.get(ctx.DBRUmemID()).part(ctx.DBRAddr())
		record, _, _ = part.at(0)
	} else {
		shift, fits := ctx.LogPageSize()+12, false
		buf, fits = bufferOf(in.PAS(), shift, uint64(ctx.PageOffset())<<shift/64, rq+sq)
		u.want(fits, badPAS)
		u.want(record%8 == 0, umemUnaligned)
	}
	var send *sendQueue
	var recv *recvQueue
	switch {
	case shared != nil:
		recv = shared.recv
	case ctx.RQType() == mlx5.RQNormal:
		recv = &recvQueue{buf: buf, log: ctx.LogRQSize(), stride: segBytes << ctx.LogRQStride(), record: record, mask: counter16}
		if ctx.WQSignature() {
			recv.skip = segBytes
		}
	}
	if !ctx.NoSQ() {
		send = &sendQueue{index: ctx.UserIndex(), buf: buf, at: rq, log: ctx.LogSQSize(), record: record}
		send.cq = h.cqs.get(ctx.CQNSnd()).ring.Load()
	}
	return send, recv
}

func (h *HCA) queryQP(c command) check {
	q := h.qps.get(id24(c))
	if q == nil || !q.see(c.uid) {
		return badQPN
	}
	defer q.mu.Unlock()
	o := mlx5.QueryQPOut(c.out).QPC()
	copy(o, q.qpc[:])
	if q.ep != nil {
		q.ep.describe(o)
	}
	return ok
}

func (h *HCA) destroyQP(c command) check {
	return destroy(h, c, h.qps, id24(c), badQPN, func(h *HCA, q *qp) {
		ctx := mlx5.QPC(q.qpc[:])
		if mlx5.ServiceType(ctx.St()) != mlx5.STRegUMR {
			h.pds.get(ctx.PD()).unuse()
		}
		h.cqs.get(ctx.CQNSnd()).unuse()
		h.cqs.get(ctx.CQNRcv()).unuse()
		if u := h.uars.get(ctx.UARPage()); u != nil {
			u.unuse()
		}
		if q.wqUmem != 0 {
			h.umems.get(q.wqUmem).unuse()
			h.umems.get(ctx.DBRUmemID()).unuse()
		}
		h.endEndpoint(q)
		unuseAll(q.held)
		q.held = nil
		h.setCounterSet(ctx, 0, 0)
		if h.contexts != nil {
			h.contexts.drop(id24(c) - firstQPN)
		}
	})
}

// transition executes the eight QP transitions that DevX lets through. Of the
// command's context it looks at what the transition takes and at nothing else:
// drivers leave st, pd and cqn zero.
func (h *HCA) transition(c command) check {
	q := h.qps.get(id24(c))
	if q == nil || !q.own(c.uid) {
		return badQPN
	}
	defer q.mu.Unlock()
	qpc := mlx5.QPC(q.qpc[:])
	rule := mlx5.RuleOf(mlx5.OpOf(c.in), ruledBy(mlx5.ServiceType(qpc.St())))
	if !rule.AcceptsFrom(mlx5.State(qpc.State())) {
		return badState
	}
	switch rule.To {
	case mlx5.StateErr:
		qpc.SetState(uint8(mlx5.StateErr))
		h.follow(q, rule.To)
		return ok
	case mlx5.StateRST:
		h.setCounterSet(qpc, 0, 0)
		q.reset()
		h.follow(q, rule.To)
		return ok
	}
	in := mlx5.RST2INITQPIn(c.in) // one layout for the transitions with a context
	src := in.QPC()
	take := taken(rule, mlx5.OptPar(in.OptParamMask()))
	if refused := checkAttrs(rule, src, take); refused != ok {
		return refused
	}
	if take&mlx5.OptParCounterSetID != 0 && !h.setCounterSet(qpc, c.uid, src.CounterSetID()) {
		return badCounterSet
	}
	merge(rule, qpc, src, take)
	qpc.SetState(uint8(rule.To))
	h.follow(q, rule.To)
	return ok
}

// ruledBy returns the service type whose transitions a queue pair takes: the
// driver's table (opt_mask in mlx5_ib qp.c) has XRC as RC and GSI as UD, and a
// UMR queue pair has no other end.
func ruledBy(st mlx5.ServiceType) mlx5.ServiceType {
	switch st {
	case mlx5.STXRC:
		return mlx5.STRC
	case mlx5.STQp1, mlx5.STRegUMR:
		return mlx5.STUD
	}
	return st
}

// taken returns the optional parameters that a transition takes from the
// command: those that it always takes, and those that opt_param_mask asks for
// among the bits that it knows. It ignores other bits.
func taken(rule *mlx5.Rule, mask mlx5.OptPar) mlx5.OptPar {
	known, always := rule.OptMask, mlx5.OptPar(0)
	switch {
	case rule.Op == mlx5.OpRST2INIT:
		always = mlx5.OptParPriPort | mlx5.OptParPkeyIndex | mlx5.OptParPMState | mlx5.OptParQKey | mlx5.OptParRRE |
			mlx5.OptParRWE | mlx5.OptParRAE | mlx5.OptParLAGTXAff | mlx5.OptParCounterSetID
	case rule.Op == mlx5.OpINIT2RTR && rule.ST == mlx5.STRC:
		always = mlx5.OptParRNRTimeout
	case rule.Op == mlx5.OpRTS2RTS:
		known |= mlx5.OptParCounterSetID // mlx5_ib qp.c, __mlx5_ib_qp_set_counter
	}
	return always | mask&known
}

// checkAttrs looks at what the transition takes from the command.
func checkAttrs(rule *mlx5.Rule, src mlx5.QPC, take mlx5.OptPar) check {
	ads := src.PrimaryAddressPath()
	switch {
	case take&(mlx5.OptParAltAddrPath|mlx5.OptParSRQN|mlx5.OptParCQNRcv) != 0:
		return badOptPar
	case take&mlx5.OptParPriPort != 0 && (ads.VHCAPortNum() < 1 || ads.VHCAPortNum() > numPorts):
		return badPort
	case take&mlx5.OptParPkeyIndex != 0 && ads.PkeyIndex() != 0:
		return badPkeyIndex
	case take&mlx5.OptParPMState != 0 && src.PMState() == 2:
		return badPMState
	}
	connected, reliable := rule.ST != mlx5.STUD, rule.ST == mlx5.STRC
	switch rule.Op {
	case mlx5.OpINIT2RTR:
		switch {
		case connected && (ads.VHCAPortNum() < 1 || ads.VHCAPortNum() > numPorts):
			return badPort // mlx5_ib writes the port with every address vector (mlx5_set_path)
		case src.MTU() < uint8(mlx5.MTU256) || src.MTU() > uint8(mlx5.MTU4096):
			return badMTU
		case src.LogMsgMax() > logMaxMsg:
			return badMsgMax
		case reliable && src.LogRRAMax() > logMaxRA:
			return badRRAMax
		case connected && ads.SrcAddrIndex() >= roceTableSize:
			return badSrcAddrIndex
		case connected && ads.RMAC4732() == 0 && ads.RMAC310() == 0:
			return zeroRMAC
		case connected && zero(ads.RGIDRip()):
			return zeroRGID
		}
	case mlx5.OpRTR2RTS:
		if reliable && src.LogSRAMax() > logMaxRA {
			return badSRAMax
		}
	}
	return ok
}

func zero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// merge takes over what the transition sets.
func merge(rule *mlx5.Rule, dst, src mlx5.QPC, take mlx5.OptPar) {
	to, from := dst.PrimaryAddressPath(), src.PrimaryAddressPath()
	switch rule.Op {
	case mlx5.OpINIT2RTR:
		dst.SetMTU(src.MTU())
		dst.SetLogMsgMax(src.LogMsgMax())
		if rule.ST != mlx5.STUD {
			dst.SetRemoteQPN(src.RemoteQPN())
			dst.SetNextRcvPSN(src.NextRcvPSN())
			mergePath(to, from)
		}
		if rule.ST == mlx5.STRC {
			dst.SetLogRRAMax(src.LogRRAMax())
		}
	case mlx5.OpRTR2RTS:
		dst.SetNextSendPSN(src.NextSendPSN())
		if rule.ST == mlx5.STRC {
			to.SetAckTimeout(from.AckTimeout())
			dst.SetRetryCount(src.RetryCount())
			dst.SetRNRRetry(src.RNRRetry())
			dst.SetLogSRAMax(src.LogSRAMax())
		}
	}
	if take&mlx5.OptParPriPort != 0 {
		to.SetVHCAPortNum(from.VHCAPortNum())
	}
	if take&mlx5.OptParPkeyIndex != 0 {
		to.SetPkeyIndex(from.PkeyIndex())
	}
	if take&mlx5.OptParPMState != 0 {
		dst.SetPMState(src.PMState())
	}
	if take&mlx5.OptParQKey != 0 {
		dst.SetQKey(src.QKey())
	}
	if take&mlx5.OptParRRE != 0 {
		dst.SetRRE(src.RRE())
	}
	if take&mlx5.OptParRWE != 0 {
		dst.SetRWE(src.RWE())
	}
	if take&mlx5.OptParRAE != 0 {
		dst.SetRAE(src.RAE())
		dst.SetAtomicMode(src.AtomicMode())
	}
	if take&mlx5.OptParRNRTimeout != 0 {
		dst.SetMinRNRNak(src.MinRNRNak())
	}
	if take&mlx5.OptParLAGTXAff != 0 {
		dst.SetLAGTXPortAffinity(src.LAGTXPortAffinity())
	}
}

// mergePath takes over an address vector; P_Key index and ACK time-out stand in
// it but are attributes of their own.
func mergePath(to, from mlx5.ADS) {
	pkey, timeout := to.PkeyIndex(), to.AckTimeout()
	copy(to, from)
	to.SetPkeyIndex(pkey)
	to.SetAckTimeout(timeout)
}

// setCounterSet moves a queue pair from its Q counter set to another; 0 is
// none. It changes nothing and returns false if the uid may not use the set.
func (h *HCA) setCounterSet(qpc mlx5.QPC, uid uint16, id uint8) bool {
	if id != 0 {
		if s := h.counters.get(uint32(id)); s == nil || !s.use(uid, true) {
			return false
		}
	}
	if old := qpc.CounterSetID(); old != 0 {
		h.counters.get(uint32(old)).unuse()
	}
	qpc.SetCounterSetID(id)
	return true
}

// reset brings the context to RESET: what transitions set is forgotten, what
// CREATE_QP set stays.
func (q *qp) reset() {
	c := mlx5.QPC(q.qpc[:])
	c.SetState(uint8(mlx5.StateRST))
	c.SetPMState(q.pmState)
	clear(c.PrimaryAddressPath())
	c.SetCounterSetID(0)
	c.SetMTU(0)
	c.SetLogMsgMax(0)
	c.SetRemoteQPN(0)
	c.SetNextRcvPSN(0)
	c.SetNextSendPSN(0)
	c.SetLogRRAMax(0)
	c.SetLogSRAMax(0)
	c.SetRetryCount(0)
	c.SetRNRRetry(0)
	c.SetMinRNRNak(0)
	c.SetRRE(false)
	c.SetRWE(false)
	c.SetRAE(false)
	c.SetAtomicMode(0)
	c.SetQKey(0)
	c.SetLAGTXPortAffinity(0)
}
