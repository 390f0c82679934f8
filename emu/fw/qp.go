// SPDX-License-Identifier: BSD-2-Clause

package fw

import "devxlab.example/mlx5"

func (h *HCA) createQP(c *command) check {
	in := mlx5.CreateQPIn(c.in)
	ctx := in.QPC()
	switch mlx5.ServiceType(ctx.St()) {
	case mlx5.STRC, mlx5.STUC, mlx5.STUD:
	default:
		return badST
	}
	switch ctx.RQType() {
	case mlx5.RQNormal, mlx5.RQNone:
	case mlx5.RQShared:
		return badSRQN
	default:
		return badRQType
	}
	switch {
	case ctx.LogRQSize() > logMaxQPSize || ctx.LogSQSize() > logMaxQPSize:
		return badQueueSize
	case ctx.PMState() == 2:
		return badPMState
	case !in.WQUmemValid() || !ctx.DBRUmemValid():
		return noUmem
	}
	refused := h.useQPObjects(c.uid, in)
	if refused != ok {
		return refused
	}
	id, q, room := h.qps.alloc()
	if !room {
		h.unuseQPObjects(ctx, in.WQUmemID())
		return qpLimit
	}
	return h.born(c, id, &q.entry, func() {
		copy(q.qpc[:], ctx)
		mlx5.QPC(q.qpc[:]).SetState(uint8(mlx5.StateRST))
		q.wqUmem, q.wqOffset = in.WQUmemID(), in.WQUmemOffset()
	})
}

// useQPObjects counts the queue pair as a user of everything that it refers to,
// or of nothing if one of them is refused.
func (h *HCA) useQPObjects(uid uint16, in mlx5.CreateQPIn) check {
	ctx := in.QPC()
	rq := uint64(0)
	if ctx.RQType() == mlx5.RQNormal {
		rq = 16 << ctx.LogRQStride() << ctx.LogRQSize()
	}
	sq := uint64(0)
	if !ctx.NoSQ() {
		sq = 64 << ctx.LogSQSize()
	}
	var held [6]*entry
	n := 0
	refused := ok
	hold := func(o holder, exists, shared bool, missing check) {
		if refused != ok {
			return
		}
		if !exists || !o.object().use(uid, shared) {
			refused = missing
			return
		}
		held[n] = o.object()
		n++
	}
	holdUmem := func(id uint32, offset, bytes, align uint64) {
		if refused != ok {
			return
		}
		if refused = h.useUmem(uid, id, offset, bytes, align); refused == ok {
			held[n] = &h.umems.get(id).entry
			n++
		}
	}
	pd, uar := h.pds.get(ctx.PD()), h.uars.get(ctx.UARPage())
	snd, rcv := h.cqs.get(ctx.CQNSnd()), h.cqs.get(ctx.CQNRcv())
	hold(pd, pd != nil, false, badPD)
	hold(snd, snd != nil, false, badCQN)
	hold(rcv, rcv != nil, false, badCQN)
	hold(uar, uar != nil, true, badUAR)
	holdUmem(in.WQUmemID(), in.WQUmemOffset(), rq+sq, 64)
	holdUmem(ctx.DBRUmemID(), ctx.DBRAddr(), 8, 8)
	if refused != ok {
		for _, e := range held[:n] {
			e.unuse()
		}
	}
	return refused
}

func (h *HCA) unuseQPObjects(ctx mlx5.QPC, wqUmem uint32) {
	h.pds.get(ctx.PD()).unuse()
	h.cqs.get(ctx.CQNSnd()).unuse()
	h.cqs.get(ctx.CQNRcv()).unuse()
	h.uars.get(ctx.UARPage()).unuse()
	h.umems.get(wqUmem).unuse()
	h.umems.get(ctx.DBRUmemID()).unuse()
}

func (h *HCA) queryQP(c *command) check {
	q := h.qps.get(id24(c))
	if q == nil {
		return badQPN
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.live || q.uid != c.uid {
		return badQPN
	}
	copy(mlx5.QueryQPOut(c.out).QPC(), q.qpc[:])
	return ok
}

func (h *HCA) destroyQP(c *command) check {
	q := h.qps.get(id24(c))
	if q == nil {
		return badQPN
	}
	if refused := q.drop(c.uid, badQPN); refused != ok {
		return refused
	}
	ctx := mlx5.QPC(q.qpc[:])
	h.unuseQPObjects(ctx, q.wqUmem)
	h.useCounterSet(c.uid, uint32(ctx.CounterSetID()), 0)
	return gone(h, c, h.qps, id24(c))
}

// transition executes the eight QP transitions that DevX lets through.
func (h *HCA) transition(c *command) check {
	q := h.qps.get(id24(c))
	if q == nil {
		return badQPN
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.live || q.uid != c.uid {
		return badQPN
	}
	qpc := mlx5.QPC(q.qpc[:])
	rule := mlx5.RuleOf(mlx5.OpOf(c.in), mlx5.ServiceType(qpc.St()))
	if !rule.AcceptsFrom(mlx5.State(qpc.State())) {
		return badState
	}
	if rule.To == mlx5.StateRST || rule.To == mlx5.StateErr {
		if rule.To == mlx5.StateRST {
			h.reset(q, c.uid)
		}
		qpc.SetState(uint8(rule.To))
		return ok
	}
	in := mlx5.RST2INITQPIn(c.in) // one layout for the transitions with a context
	src := in.QPC()
	mask := mlx5.OptPar(in.OptParamMask())
	if refused := h.checkAttrs(rule, src, mask, c.uid); refused != ok {
		return refused
	}
	h.merge(rule, qpc, src, mask, c.uid)
	qpc.SetState(uint8(rule.To))
	return ok
}

// checkAttrs looks at what the transition would take from the command.
func (h *HCA) checkAttrs(rule *mlx5.Rule, src mlx5.QPC, mask mlx5.OptPar, uid uint16) check {
	ads := src.PrimaryAddressPath()
	connected := rule.ST != mlx5.STUD
	first := rule.Op == mlx5.OpRST2INIT
	switch {
	case (first || mask&mlx5.OptParPriPort != 0) && (ads.VHCAPortNum() < 1 || ads.VHCAPortNum() > numPorts):
		return badPort
	case (first || mask&mlx5.OptParPkeyIndex != 0) && ads.PkeyIndex() != 0:
		return badPkeyIndex
	case (first || mask&mlx5.OptParPMState != 0) && src.PMState() == 2:
		return badPMState
	}
	switch rule.Op {
	case mlx5.OpRST2INIT:
		if id := src.CounterSetID(); id != 0 {
			s := h.counters.get(uint32(id))
			if s == nil || !s.use(uid, true) {
				return badCounterSet
			}
			s.unuse()
		}
	case mlx5.OpINIT2RTR:
		switch {
		case src.MTU() < uint8(mlx5.MTU256) || src.MTU() > uint8(mlx5.MTU4096):
			return badMTU
		case src.LogMsgMax() > logMaxMsg:
			return badMsgMax
		case src.LogRRAMax() > logMaxRA:
			return badRRAMax
		case connected && ads.SrcAddrIndex() >= roceTableSize:
			return badSrcAddrIndex
		case connected && ads.RMAC4732() == 0 && ads.RMAC310() == 0:
			return zeroRMAC
		case connected && zero(ads.RGIDRip()):
			return zeroRGID
		}
	case mlx5.OpRTR2RTS:
		if src.LogSRAMax() > logMaxRA {
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

// merge takes over what the transition sets: what it always sets, and what
// opt_param_mask asks for among the bits that the transition knows.
func (h *HCA) merge(rule *mlx5.Rule, dst, src mlx5.QPC, mask mlx5.OptPar, uid uint16) {
	mask &= rule.OptMask
	to, from := dst.PrimaryAddressPath(), src.PrimaryAddressPath()
	switch rule.Op {
	case mlx5.OpRST2INIT:
		mask |= mlx5.OptParPriPort | mlx5.OptParPkeyIndex | mlx5.OptParPMState | mlx5.OptParQKey |
			mlx5.OptParRRE | mlx5.OptParRWE | mlx5.OptParRAE | mlx5.OptParLAGTXAff
		h.useCounterSet(uid, uint32(dst.CounterSetID()), uint32(src.CounterSetID()))
		dst.SetCounterSetID(src.CounterSetID())
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
			mask |= mlx5.OptParRNRTimeout
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
	if mask&mlx5.OptParPriPort != 0 {
		to.SetVHCAPortNum(from.VHCAPortNum())
	}
	if mask&mlx5.OptParPkeyIndex != 0 {
		to.SetPkeyIndex(from.PkeyIndex())
	}
	if mask&mlx5.OptParPMState != 0 {
		dst.SetPMState(src.PMState())
	}
	if mask&mlx5.OptParQKey != 0 {
		dst.SetQKey(src.QKey())
	}
	if mask&mlx5.OptParRRE != 0 {
		dst.SetRRE(src.RRE())
	}
	if mask&mlx5.OptParRWE != 0 {
		dst.SetRWE(src.RWE())
	}
	if mask&mlx5.OptParRAE != 0 {
		dst.SetRAE(src.RAE())
		dst.SetAtomicMode(src.AtomicMode())
	}
	if mask&mlx5.OptParRNRTimeout != 0 {
		dst.SetMinRNRNak(src.MinRNRNak())
	}
	if mask&mlx5.OptParLAGTXAff != 0 {
		dst.SetLAGTXPortAffinity(src.LAGTXPortAffinity())
	}
}

// mergePath takes over an address vector; P_Key index, port and ACK time-out
// stand in it but are attributes of their own.
func mergePath(to, from mlx5.ADS) {
	pkey, port, timeout := to.PkeyIndex(), to.VHCAPortNum(), to.AckTimeout()
	copy(to, from)
	to.SetPkeyIndex(pkey)
	to.SetVHCAPortNum(port)
	to.SetAckTimeout(timeout)
}

// useCounterSet moves a queue pair from one Q counter set to another; 0 is
// none.
func (h *HCA) useCounterSet(uid uint16, from, to uint32) {
	if from == to {
		return
	}
	if s := h.counters.get(to); s != nil {
		s.use(uid, true)
	}
	if s := h.counters.get(from); s != nil {
		s.unuse()
	}
}

// reset forgets what transitions have set; what CREATE_QP set stays.
func (h *HCA) reset(q *qp, uid uint16) {
	old := q.qpc
	from, to := mlx5.QPC(old[:]), mlx5.QPC(q.qpc[:])
	h.useCounterSet(uid, uint32(from.CounterSetID()), 0)
	clear(to.PrimaryAddressPath())
	to.SetCounterSetID(0)
	to.SetMTU(0)
	to.SetLogMsgMax(0)
	to.SetRemoteQPN(0)
	to.SetNextRcvPSN(0)
	to.SetNextSendPSN(0)
	to.SetLogRRAMax(0)
	to.SetLogSRAMax(0)
	to.SetRetryCount(0)
	to.SetRNRRetry(0)
	to.SetMinRNRNak(0)
	to.SetRRE(false)
	to.SetRWE(false)
	to.SetRAE(false)
	to.SetAtomicMode(0)
	to.SetQKey(0)
	to.SetLAGTXPortAffinity(0)
}
