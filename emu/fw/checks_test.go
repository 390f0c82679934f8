// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"

	"devxlab.example/mlx5"
)

// with returns a command after a change.
func with[T ~[]byte](in T, change func(T)) []byte {
	change(in)
	return in
}

// qpWith and modifyWith change the QP context of a command.
func (r *rig) qpWith(change func(mlx5.QPC)) []byte {
	in := r.qp(mlx5.STRC)
	change(in.QPC())
	return in
}

func (r *rig) modifyWith(op mlx5.Op, mask mlx5.OptPar, change func(mlx5.QPC)) []byte {
	from := map[mlx5.Op]mlx5.State{mlx5.OpINIT2INIT: mlx5.StateInit, mlx5.OpINIT2RTR: mlx5.StateInit, mlx5.OpRTR2RTS: mlx5.StateRTR,
		mlx5.OpRTS2RTS: mlx5.StateRTS, mlx5.OpSQERR2RTS: mlx5.StateSQER}[op]
	in := r.modify(op, r.inState(mlx5.STRC, from))
	in.SetOptParamMask(uint32(mask))
	change(in.QPC())
	return in
}

func (r *rig) umemWith(pages int, change func(mlx5.UmemContext)) []byte {
	return with(umemOf(r.uid, pages), func(in []byte) { change(mlx5.CreateUmemIn(in).Umem()) })
}

func (r *rig) cqWith(change func(mlx5.CQC)) []byte {
	return with(r.cq(), func(in mlx5.CreateCQIn) { change(in.CQContext()) })
}

func (r *rig) mkeyWith(change func(mlx5.MKC)) []byte {
	return with(r.mkey(), func(in mlx5.CreateMKeyIn) { change(in.MemoryKeyMKeyEntry()) })
}

func capQuery(opMod uint16) []byte {
	in := build(mlx5.OpQueryHCACap, 0)
	mlx5.PutHeader(in, mlx5.OpQueryHCACap, opMod)
	return in
}

// refusal provokes one check; several may provoke the same.
type refusal struct {
	check  check
	status mlx5.Status
	by     string
	in     func(*rig) []byte
}

var refusals = []refusal{
	{badOp, mlx5.StatusBadOp, "no command", func(*rig) []byte { return nil }},
	{badOp, mlx5.StatusBadOp, "one byte", func(*rig) []byte { return []byte{5} }},
	{badOp, mlx5.StatusBadOp, "SQD2RTS", func(r *rig) []byte { return []byte{0x05, 0x0c, 15: 0} }},
	{badOp, mlx5.StatusBadOp, "an opcode beyond all", func(r *rig) []byte { return []byte{0xff, 0xff, 15: 0} }},
	{badOpMod, mlx5.StatusBadOp, "ALLOC_PD", func(r *rig) []byte {
		return with(build(mlx5.OpAllocPD, r.uid), func(in []byte) { mlx5.PutHeader(in, mlx5.OpAllocPD, 1) })
	}},
	{shortIn, mlx5.StatusBadInpLen, "RST2INIT", func(r *rig) []byte { in := r.modify(mlx5.OpRST2INIT, 0); return in[:len(in)-1] }},
	{shortIn, mlx5.StatusBadInpLen, "two bytes", func(r *rig) []byte { return []byte{0x08, 0x00} }},
	{badUID, mlx5.StatusBadRes, "a uid that never was", func(r *rig) []byte { return build(mlx5.OpAllocPD, r.uid+1) }},
	{badUID, mlx5.StatusBadRes, "a uid that is gone", func(r *rig) []byte {
		uid := r.context()
		r.must(r.closeContext(uid))
		return build(mlx5.OpNOP, uid)
	}},
	{badPD, mlx5.StatusBadRes, "DEALLOC_PD", func(r *rig) []byte { return about(mlx5.OpDeallocPD, r.uid, r.pd+1) }},
	{badPD, mlx5.StatusBadRes, "foreign", func(r *rig) []byte { return about(mlx5.OpDeallocPD, r.context(), r.pd) }},
	{badPD, mlx5.StatusBadRes, "the kernel's", func(r *rig) []byte {
		pd := r.made(build(mlx5.OpAllocPD, 0))
		return r.qpWith(func(q mlx5.QPC) { q.SetPD(pd) })
	}},
	{badPD, mlx5.StatusBadRes, "CREATE_MKEY", func(r *rig) []byte { return r.mkeyWith(func(m mlx5.MKC) { m.SetPD(0) }) }},
	{badCQN, mlx5.StatusBadRes, "DESTROY_CQ", func(r *rig) []byte { return about(mlx5.OpDestroyCQ, r.uid, r.cqn+1) }},
	{badCQN, mlx5.StatusBadRes, "QUERY_CQ, foreign", func(r *rig) []byte { return about(mlx5.OpQueryCQ, r.context(), r.cqn) }},
	{badCQN, mlx5.StatusBadRes, "CREATE_QP, send", func(r *rig) []byte { return r.qpWith(func(q mlx5.QPC) { q.SetCQNSnd(0) }) }},
	{badCQN, mlx5.StatusBadRes, "CREATE_QP, receive", func(r *rig) []byte { return r.qpWith(func(q mlx5.QPC) { q.SetCQNRcv(0) }) }},
	{badUAR, mlx5.StatusBadRes, "DEALLOC_UAR", func(r *rig) []byte { return about(mlx5.OpDeallocUAR, r.uid, r.uar+1) }},
	{badUAR, mlx5.StatusBadRes, "CREATE_QP", func(r *rig) []byte { return r.qpWith(func(q mlx5.QPC) { q.SetUARPage(0) }) }},
	{badUAR, mlx5.StatusBadRes, "CREATE_CQ, foreign", func(r *rig) []byte {
		uar := r.made(build(mlx5.OpAllocUAR, r.context()))
		return r.cqWith(func(c mlx5.CQC) { c.SetUARPage(uar) })
	}},
	{badUmem, mlx5.StatusBadRes, "DESTROY_UMEM", func(r *rig) []byte { return about(mlx5.OpDestroyUmem, r.uid, r.umem+1) }},
	{badUmem, mlx5.StatusBadRes, "CREATE_QP, foreign", func(r *rig) []byte {
		umem := r.made(umemOf(r.context(), 1))
		return r.qpWith(func(q mlx5.QPC) { q.SetDBRUmemID(umem) })
	}},
	{badQPN, mlx5.StatusBadRes, "DESTROY_QP", func(r *rig) []byte { return about(mlx5.OpDestroyQP, r.uid, firstQPN) }},
	{badQPN, mlx5.StatusBadRes, "2RST of one that is gone", func(r *rig) []byte {
		qpn := r.made(r.qp(mlx5.STUD))
		r.must(about(mlx5.OpDestroyQP, r.uid, qpn))
		return about(mlx5.Op2RST, r.uid, qpn)
	}},
	{badQPN, mlx5.StatusBadRes, "2ERR, foreign", func(r *rig) []byte { return about(mlx5.Op2ERR, r.context(), r.made(r.qp(mlx5.STRC))) }},
	{badQPN, mlx5.StatusBadRes, "QUERY_QP, foreign", func(r *rig) []byte { return about(mlx5.OpQueryQP, r.context(), r.made(r.qp(mlx5.STRC))) }},
	{badEQN, mlx5.StatusBadRes, "DESTROY_EQ", func(r *rig) []byte { return about(mlx5.OpDestroyEQ, r.uid, r.eq) }},
	{badEQN, mlx5.StatusBadRes, "CREATE_CQ", func(r *rig) []byte { return r.cqWith(func(c mlx5.CQC) { c.SetCEQNOrApuElement(r.eq + 1) }) }},
	{badMKey, mlx5.StatusBadRes, "DESTROY_MKEY", func(r *rig) []byte { return about(mlx5.OpDestroyMKey, r.uid, firstMKey) }},
	{badMKey, mlx5.StatusBadRes, "QUERY_MKEY, foreign", func(r *rig) []byte { return about(mlx5.OpQueryMKey, r.context(), r.made(r.mkey())) }},
	{badCounterSet, mlx5.StatusBadRes, "DEALLOC_Q_COUNTER", func(r *rig) []byte { return about(mlx5.OpDeallocQCounter, r.uid, 1) }},
	{badCounterSet, mlx5.StatusBadRes, "QUERY_Q_COUNTER", func(r *rig) []byte { return build(mlx5.OpQueryQCounter, r.uid) }},
	{badCounterSet, mlx5.StatusBadRes, "RST2INIT, foreign", func(r *rig) []byte {
		id := r.made(build(mlx5.OpAllocQCounter, r.context()))
		return r.modifyWith(mlx5.OpRST2INIT, 0, func(q mlx5.QPC) { q.SetCounterSetID(uint8(id)) })
	}},
	{badCounterSet, mlx5.StatusBadRes, "RTS2RTS", func(r *rig) []byte {
		return r.modifyWith(mlx5.OpRTS2RTS, mlx5.OptParCounterSetID, func(q mlx5.QPC) { q.SetCounterSetID(9) })
	}},
	{badSRQN, mlx5.StatusBadRes, "CREATE_QP", func(r *rig) []byte { return r.qpWith(func(q mlx5.QPC) { q.SetRQType(1) }) }},
	{badUCTX, mlx5.StatusBadParam, "0", func(r *rig) []byte { return r.closeContext(0) }},
	{badUCTX, mlx5.StatusBadParam, "twice", func(r *rig) []byte {
		uid := r.context()
		r.must(r.closeContext(uid))
		return r.closeContext(uid)
	}},
	{badST, mlx5.StatusBadParam, "XRC", func(r *rig) []byte { return r.qpWith(func(q mlx5.QPC) { q.SetSt(3) }) }},
	{badRQType, mlx5.StatusBadParam, "2", func(r *rig) []byte { return r.qpWith(func(q mlx5.QPC) { q.SetRQType(2) }) }},
	{badMTU, mlx5.StatusBadParam, "0", func(r *rig) []byte { return r.modifyWith(mlx5.OpINIT2RTR, 0, func(q mlx5.QPC) { q.SetMTU(0) }) }},
	{badMTU, mlx5.StatusBadParam, "6", func(r *rig) []byte { return r.modifyWith(mlx5.OpINIT2RTR, 0, func(q mlx5.QPC) { q.SetMTU(6) }) }},
	{badPort, mlx5.StatusBadParam, "0", func(r *rig) []byte {
		return r.modifyWith(mlx5.OpRST2INIT, 0, func(q mlx5.QPC) { q.PrimaryAddressPath().SetVHCAPortNum(0) })
	}},
	{badPort, mlx5.StatusBadParam, "INIT2INIT, 2", func(r *rig) []byte {
		return r.modifyWith(mlx5.OpINIT2INIT, mlx5.OptParPriPort, func(q mlx5.QPC) { q.PrimaryAddressPath().SetVHCAPortNum(2) })
	}},
	{badPort, mlx5.StatusBadParam, "INIT2RTR, 0", func(r *rig) []byte {
		return r.modifyWith(mlx5.OpINIT2RTR, 0, func(q mlx5.QPC) { q.PrimaryAddressPath().SetVHCAPortNum(0) })
	}},
	{badPkeyIndex, mlx5.StatusIX, "RST2INIT", func(r *rig) []byte {
		return r.modifyWith(mlx5.OpRST2INIT, 0, func(q mlx5.QPC) { q.PrimaryAddressPath().SetPkeyIndex(1) })
	}},
	{badPkeyIndex, mlx5.StatusIX, "INIT2RTR", func(r *rig) []byte {
		return r.modifyWith(mlx5.OpINIT2RTR, mlx5.OptParPkeyIndex, func(q mlx5.QPC) { q.PrimaryAddressPath().SetPkeyIndex(0x8000) })
	}},
	{badSrcAddrIndex, mlx5.StatusBadParam, "255", func(r *rig) []byte {
		return r.modifyWith(mlx5.OpINIT2RTR, 0, func(q mlx5.QPC) { q.PrimaryAddressPath().SetSrcAddrIndex(255) })
	}},
	{badCQSize, mlx5.StatusBadParam, "2^23", func(r *rig) []byte { return r.cqWith(func(c mlx5.CQC) { c.SetLogCQSize(23) }) }},
	{badCQESize, mlx5.StatusBadParam, "2", func(r *rig) []byte { return r.cqWith(func(c mlx5.CQC) { c.SetCQESz(2) }) }},
	{badEQSize, mlx5.StatusBadParam, "2^23", func(r *rig) []byte {
		return with(build(mlx5.OpCreateEQ, 0), func(in []byte) { mlx5.CreateEQIn(in).EQContextEntry().SetLogEQSize(23) })
	}},
	{badSRAMax, mlx5.StatusBadParam, "5", func(r *rig) []byte { return r.modifyWith(mlx5.OpRTR2RTS, 0, func(q mlx5.QPC) { q.SetLogSRAMax(5) }) }},
	{badRRAMax, mlx5.StatusBadParam, "5", func(r *rig) []byte { return r.modifyWith(mlx5.OpINIT2RTR, 0, func(q mlx5.QPC) { q.SetLogRRAMax(5) }) }},
	{badMsgMax, mlx5.StatusBadParam, "31", func(r *rig) []byte { return r.modifyWith(mlx5.OpINIT2RTR, 0, func(q mlx5.QPC) { q.SetLogMsgMax(31) }) }},
	{badPMState, mlx5.StatusBadParam, "CREATE_QP", func(r *rig) []byte { return r.qpWith(func(q mlx5.QPC) { q.SetPMState(2) }) }},
	{badPMState, mlx5.StatusBadParam, "RST2INIT", func(r *rig) []byte { return r.modifyWith(mlx5.OpRST2INIT, 0, func(q mlx5.QPC) { q.SetPMState(2) }) }},
	{badPMState, mlx5.StatusBadParam, "RTS2RTS", func(r *rig) []byte {
		return r.modifyWith(mlx5.OpRTS2RTS, mlx5.OptParPMState, func(q mlx5.QPC) { q.SetPMState(2) })
	}},
	{badState, mlx5.StatusBadQPState, "INIT2RTR in RESET", func(r *rig) []byte { return r.modify(mlx5.OpINIT2RTR, r.inState(mlx5.STUC, mlx5.StateRST)) }},
	{badState, mlx5.StatusBadQPState, "SQERR2RTS in RTS", func(r *rig) []byte { return r.modify(mlx5.OpSQERR2RTS, r.inState(mlx5.STUD, mlx5.StateRTS)) }},
	{badState, mlx5.StatusBadQPState, "RTS2RTS in SQD", func(r *rig) []byte { return r.modify(mlx5.OpRTS2RTS, r.inState(mlx5.STRC, mlx5.StateSQD)) }},
	{inUse, mlx5.StatusBadResState, "DEALLOC_PD", func(r *rig) []byte {
		r.must(r.qp(mlx5.STRC))
		return about(mlx5.OpDeallocPD, r.uid, r.pd)
	}},
	{inUse, mlx5.StatusBadResState, "DESTROY_UMEM", func(r *rig) []byte { return about(mlx5.OpDestroyUmem, r.uid, r.umem) }},
	{inUse, mlx5.StatusBadResState, "DESTROY_EQ", func(r *rig) []byte { return about(mlx5.OpDestroyEQ, 0, r.eq) }},
	{inUse, mlx5.StatusBadResState, "DEALLOC_Q_COUNTER", func(r *rig) []byte {
		id := r.made(build(mlx5.OpAllocQCounter, sharedUID))
		r.must(r.modifyWith(mlx5.OpRST2INIT, 0, func(q mlx5.QPC) { q.SetCounterSetID(uint8(id)) }))
		return about(mlx5.OpDeallocQCounter, 0, id)
	}},
	{uctxInUse, mlx5.StatusBadResState, "DESTROY_UCTX", func(r *rig) []byte { return r.closeContext(r.uid) }},
	{qpLimit, mlx5.StatusLIM, "the third of two", func(r *rig) []byte {
		r.must(r.qp(mlx5.STRC))
		r.must(r.qp(mlx5.STUD))
		return r.qp(mlx5.STUC)
	}},
	{objectLimit, mlx5.StatusLIM, "ALLOC_Q_COUNTER", func(r *rig) []byte {
		for range maxCounters {
			r.must(build(mlx5.OpAllocQCounter, r.uid))
		}
		return build(mlx5.OpAllocQCounter, r.uid)
	}},
	{objectLimit, mlx5.StatusLIM, "CREATE_UCTX", func(r *rig) []byte { r.context(); return build(mlx5.OpCreateUCTX, 0) }},
	// Their real limits are in the millions.
	{objectLimit, mlx5.StatusLIM, "ALLOC_PD", func(r *rig) []byte { r.h.pds.limit = 1; return build(mlx5.OpAllocPD, r.uid) }},
	{objectLimit, mlx5.StatusLIM, "CREATE_UMEM", func(r *rig) []byte { r.h.umems.limit = 1; return umemOf(r.uid, 1) }},
	{objectLimit, mlx5.StatusLIM, "CREATE_MKEY", func(r *rig) []byte { r.h.mkeys.limit = 0; return r.mkey() }},
	{objectLimit, mlx5.StatusLIM, "CREATE_CQ", func(r *rig) []byte { r.h.cqs.limit = 1; return r.cq() }},
	{noUmem, mlx5.StatusBadParam, "CREATE_QP, queue", func(r *rig) []byte {
		return with(r.qp(mlx5.STRC), func(in mlx5.CreateQPIn) { in.SetWQUmemValid(false) })
	}},
	{noUmem, mlx5.StatusBadParam, "CREATE_QP, doorbell record", func(r *rig) []byte { return r.qpWith(func(q mlx5.QPC) { q.SetDBRUmemValid(false) }) }},
	{noUmem, mlx5.StatusBadParam, "CREATE_CQ, queue", func(r *rig) []byte {
		return with(r.cq(), func(in mlx5.CreateCQIn) { in.SetCQUmemValid(false) })
	}},
	{noUmem, mlx5.StatusBadParam, "CREATE_CQ, doorbell record", func(r *rig) []byte { return r.cqWith(func(c mlx5.CQC) { c.SetDBRUmemValid(false) }) }},
	{noUmem, mlx5.StatusBadParam, "CREATE_MKEY", func(r *rig) []byte {
		return with(r.mkey(), func(in mlx5.CreateMKeyIn) { in.SetMKeyUmemValid(false) })
	}},
	{umemTooSmall, mlx5.StatusBadParam, "CREATE_CQ", func(r *rig) []byte { return r.cqWith(func(c mlx5.CQC) { c.SetLogCQSize(9) }) }},
	{umemTooSmall, mlx5.StatusBadParam, "CREATE_QP", func(r *rig) []byte {
		return with(r.qp(mlx5.STRC), func(in mlx5.CreateQPIn) { // one unit of 64 bytes and 16 of the receive queue
			in.SetWQUmemOffset(4*4096 - 64)
		})
	}},
	{umemTooSmall, mlx5.StatusBadParam, "an offset beyond all", func(r *rig) []byte { return r.qpWith(func(q mlx5.QPC) { q.SetDBRAddr(1<<64 - 8) }) }},
	{umemUnaligned, mlx5.StatusBadParam, "queue", func(r *rig) []byte {
		return with(r.qp(mlx5.STRC), func(in mlx5.CreateQPIn) { in.SetWQUmemOffset(32) })
	}},
	{umemUnaligned, mlx5.StatusBadParam, "doorbell record in user memory that begins at 4", func(r *rig) []byte {
		id := r.made(r.umemWith(1, func(u mlx5.UmemContext) { u.SetPageOffset(4) }))
		return r.cqWith(func(c mlx5.CQC) { c.SetDBRUmemID(id) })
	}},
	{umemUnaligned, mlx5.StatusBadParam, "doorbell record", func(r *rig) []byte { return r.cqWith(func(c mlx5.CQC) { c.SetDBRAddr(4) }) }},
	{badUmemPages, mlx5.StatusBadParam, "none", func(r *rig) []byte { return umemOf(r.uid, 0) }},
	{badUmemPages, mlx5.StatusBadParam, "more than there are", func(r *rig) []byte { return r.umemWith(2, func(u mlx5.UmemContext) { u.SetNumOfMTT(3) }) }},
	{badUmemPages, mlx5.StatusBadParam, "of 4 GiB", func(r *rig) []byte { return r.umemWith(1, func(u mlx5.UmemContext) { u.SetLogPageSize(20) }) }},
	{badUmemPages, mlx5.StatusBadParam, "offset of a page", func(r *rig) []byte { return r.umemWith(1, func(u mlx5.UmemContext) { u.SetPageOffset(4096) }) }},
	{zeroRMAC, mlx5.StatusBadParam, "INIT2RTR", func(r *rig) []byte {
		return r.modifyWith(mlx5.OpINIT2RTR, 0, func(q mlx5.QPC) { q.PrimaryAddressPath().SetRMAC310(0) })
	}},
	{zeroRGID, mlx5.StatusBadParam, "INIT2RTR", func(r *rig) []byte {
		return r.modifyWith(mlx5.OpINIT2RTR, 0, func(q mlx5.QPC) { clear(q.PrimaryAddressPath().RGIDRip()) })
	}},
	{mkeyZeroLen, mlx5.StatusBadParam, "length", func(r *rig) []byte { return r.mkeyWith(func(m mlx5.MKC) { m.SetLen(0) }) }},
	{mkeyZeroLen, mlx5.StatusBadParam, "translation entries", func(r *rig) []byte {
		return with(r.mkey(), func(in mlx5.CreateMKeyIn) { in.SetTranslationsOctwordActualSize(0) })
	}},
	{mkeyMode, mlx5.StatusBadParam, "KLM", func(r *rig) []byte { return r.mkeyWith(func(m mlx5.MKC) { m.SetAccessMode10(2) }) }},
	{mkeyMode, mlx5.StatusBadParam, "upper bits", func(r *rig) []byte { return r.mkeyWith(func(m mlx5.MKC) { m.SetAccessMode42(1) }) }},
	{mkeyPageSize, mlx5.StatusBadParam, "2 KiB", func(r *rig) []byte { return r.mkeyWith(func(m mlx5.MKC) { m.SetLogPageSize(11) }) }},
	{mkeyRange, mlx5.StatusBadParam, "one byte", func(r *rig) []byte { return r.mkeyWith(func(m mlx5.MKC) { m.SetLen(4*4096 + 1) }) }},
	{badCapPage, mlx5.StatusBadParam, "0x7f", func(r *rig) []byte { return capQuery(0x7f << 1) }},
	{badRoCEIndex, mlx5.StatusIX, "QUERY_ROCE_ADDRESS", func(r *rig) []byte {
		return with(build(mlx5.OpQueryRoCEAddress, 0), func(in []byte) { mlx5.QueryRoCEAddressIn(in).SetRoCEAddressIndex(255) })
	}},
	{badRoCEIndex, mlx5.StatusIX, "SET_ROCE_ADDRESS", func(r *rig) []byte {
		return with(build(mlx5.OpSetRoCEAddress, 0), func(in []byte) { mlx5.SetRoCEAddressIn(in).SetRoCEAddressIndex(0xffff) })
	}},
	{badOptPar, mlx5.StatusBadParam, "alternate path", func(r *rig) []byte {
		return r.modifyWith(mlx5.OpINIT2RTR, mlx5.OptParAltAddrPath, func(mlx5.QPC) {})
	}},
	{badOptPar, mlx5.StatusBadParam, "SRQ of UD", func(r *rig) []byte {
		in := r.modify(mlx5.OpRTS2RTS, r.inState(mlx5.STUD, mlx5.StateRTS))
		in.SetOptParamMask(uint32(mlx5.OptParSRQN))
		return in
	}},
	{badOptPar, mlx5.StatusBadParam, "receive CQ of UD", func(r *rig) []byte {
		in := r.modify(mlx5.OpRTS2RTS, r.inState(mlx5.STUD, mlx5.StateRTS))
		in.SetOptParamMask(uint32(mlx5.OptParCQNRcv))
		return in
	}},
}

// Each check has a command that provokes it, gets its exact status and
// syndrome, and changes nothing.
func TestChecks(t *testing.T) {
	provoked := map[check]bool{shortOut: true} // by TestLengths
	for _, c := range refusals {
		provoked[c.check] = true
		t.Run(c.by+": "+checks[c.check].Refuses, func(t *testing.T) {
			r := newRig(t, Config{LogMaxQP: 1, LogMaxUC: 1})
			in := c.in(r)
			before := snapshot(r.h)
			status, syndrome, out := r.exec(in)
			if status != c.status || syndrome != checks[c.check].Syndrome() {
				t.Errorf("%v: got %v, %s", mlx5.OpOf(in), status, reason(syndrome))
			}
			if status != checks[c.check].Status {
				t.Errorf("the table says %v", checks[c.check].Status)
			}
			clear(out[:8])
			if !bytes.Equal(out, make([]byte, len(out))) {
				t.Errorf("more than status and syndrome: %x", out)
			}
			if before != snapshot(r.h) {
				t.Errorf("a refused command changed the number of objects")
			}
		})
	}
	for _, c := range hostRefusals { // run by TestHostChecks
		provoked[c.check] = true
	}
	for c := ok + 1; c < numChecks; c++ {
		if !provoked[c] {
			t.Errorf("no command provokes check %d: %s", c, checks[c].Refuses)
		}
	}
}

// snapshot returns the number of objects of each kind.
func snapshot(h *HCA) [9]int64 {
	return [9]int64{h.pds.count(), h.uars.count(), h.umems.count(), h.mkeys.count(), h.eqs.count(),
		h.cqs.count(), h.qps.count(), h.counters.count(), h.uctxs.count()}
}

// Every command is refused for an output or an input that is a byte too short,
// and an answer never reaches beyond the room for it.
func TestLengths(t *testing.T) {
	r := newRig(t, Config{})
	for op, hd := range handlers {
		if hd.run == nil {
			continue
		}
		for _, tt := range []struct {
			in, out int
			want    check
		}{{hd.in - 1, hd.out, shortIn}, {hd.in, hd.out - 1, shortOut}, {hd.in - 1, hd.out - 1, shortIn}} {
			in := make([]byte, tt.in)
			mlx5.PutHeader(in, mlx5.Op(op), 0)
			room := bytes.Repeat([]byte{0xaa}, hd.out+8)
			r.h.Exec(in, room[:tt.out:tt.out])
			status, syndrome := mlx5.StatusOf(room)
			if status != checks[tt.want].Status || syndrome != checks[tt.want].Syndrome() {
				t.Errorf("%v, %d bytes in, %d out: %v, %s", mlx5.Op(op), tt.in, tt.out, status, reason(syndrome))
			}
			if !bytes.Equal(room[tt.out:], bytes.Repeat([]byte{0xaa}, len(room)-tt.out)) {
				t.Errorf("%v: wrote beyond the output", mlx5.Op(op))
			}
		}
	}
	for n := range 8 { // no room for an answer
		out := bytes.Repeat([]byte{0xaa}, n)
		r.h.Exec(build(mlx5.OpNOP, 0), out)
		if !bytes.Equal(out, make([]byte, n)) {
			t.Errorf("room of %d bytes: %x", n, out)
		}
	}
}

func TestCheckOf(t *testing.T) {
	all := Checks()
	for i, c := range all {
		if got := CheckOf(c.Syndrome()); got == nil || *got != c || int(c.ID) != i+1 {
			t.Errorf("%#x: got %v, want %v", c.Syndrome(), got, c)
		}
		if c.Refuses == "" || c.Evidence == "" || c.Status == mlx5.StatusOK {
			t.Errorf("check %d is incomplete: %+v", c.ID, c)
		}
		if c.Syndrome() <= 0xffffff {
			t.Errorf("%#x looks like a real syndrome", c.Syndrome())
		}
	}
	for _, s := range []uint32{0, 1, SyndromeBase, SyndromeBase + uint32(numChecks), 0x65b500, ^uint32(0)} {
		if c := CheckOf(s); c != nil {
			t.Errorf("%#x: got %v", s, c)
		}
	}
	all[0].Refuses = "changed"
	if Checks()[0].Refuses == "changed" {
		t.Error("a caller changed the table")
	}
}

var update = flag.Bool("update", false, "rewrite docs/checks.md")

const checksDoc = `# What the emulated device refuses

Generated from the table in emu/fw/checks.go; to regenerate: ` + "`go test ./emu/fw -run TestChecksDoc -update`" + `.

A command that is refused answers with the status and the syndrome of the first check that it fails, and changes
nothing. The statuses are the firmware interface's own. **The syndromes are private to this emulator**: the upper byte
0xde marks them, the rest numbers the check. Real syndromes have 24 bits and no public list, so none of these says
anything about a card, and none can be taken for one.

The evidence says where a check is known from: the Linux driver or rdma-core (file or function named), the text that
the driver prints for the status ("status text"), or failures of real cards that were reported in public, with their
real syndrome ("reported"). **"Assumed" means that nobody outside the vendor is known to have shown it**: a card may
answer with another status, or accept the command. Do not conclude anything about hardware from such a refusal.

Not checked: the signatures of mailboxes. The driver writes them only with cmdif_checksum, which it sets to 0
(mlx5_core cmd.c, checksum_disabled; main.c, handle_hca_cap), and the device does not offer it. That of the command queue's
entry, which the driver always writes, is checked by emu/pci, as are tokens, block numbers and lengths.

`

func TestChecksDoc(t *testing.T) {
	const file = "../../docs/checks.md"
	want := checksDoc + ChecksMarkdown()
	if *update {
		if err := os.MkdirAll("../../docs", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s differs from the table: go test ./emu/fw -run TestChecksDoc -update", file)
	}
	if n := strings.Count(string(got), "\n| 0x"); n != int(numChecks)-1 {
		t.Errorf("%d rows for %d checks", n, numChecks-1)
	}
}
