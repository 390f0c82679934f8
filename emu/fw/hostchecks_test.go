// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/binary"
	"testing"

	"devxlab.example/mlx5"
)

// opMod returns a command with another op_mod.
func opMod[T ~[]byte](in T, mod uint16) []byte {
	mlx5.PutHeader(in, mlx5.OpOf(in), mod)
	return in
}

func register1(id uint16, mod uint16, data ...byte) []byte {
	in := mlx5.AccessRegisterIn(append(make([]byte, 16), make([]byte, 256)...))
	mlx5.PutHeader(in, mlx5.OpAccessReg, mod)
	in.SetRegisterID(id)
	copy(in.RegisterData(), data)
	return in
}

func (h *host) modifyVPort(change func(mlx5.ModifyNICVPortFieldSelect, mlx5.NICVPortContext)) []byte {
	in := mlx5.ModifyNICVPortContextIn(build(mlx5.OpModifyNICVPortContext, 0))
	change(in.FieldSelect(), in.NICVPortContext())
	return in
}

func (h *host) modifyQueue(op mlx5.Op, number uint32, from, to uint8) mlx5.ModifyRQIn {
	in := mlx5.ModifyRQIn(build(op, 0)) // an SQ's is laid out alike
	in.SetRQState(from)
	in.SetRQN(number)
	in.Ctx().SetState(to)
	return in
}

func (h *host) modifyTable(id uint32, action uint8, miss uint32) mlx5.ModifyFlowTableIn {
	in := mlx5.ModifyFlowTableIn(build(mlx5.OpModifyFlowTable, 0))
	in.SetModifyFieldSelect(modifyMiss)
	in.SetTableID(id)
	in.FlowTableContext().SetTableMissAction(action)
	in.FlowTableContext().SetTableMissID(miss)
	return in
}

func (h *host) modifyCQ(fields uint32) mlx5.ModifyCQIn {
	in := mlx5.ModifyCQIn(about(mlx5.OpModifyCQ, 0, h.cqn))
	binary.BigEndian.PutUint32(in.ModifyFieldSelectResizeFieldSelect(), fields)
	return in
}

func (h *host) resizeCQ(log uint8) mlx5.ModifyCQIn {
	cq, _, _ := h.cqIn(log)
	in := mlx5.ModifyCQIn(append(opMod(h.modifyCQ(0), resizeCQ), cq.PAS()...))
	copy(in.CQContext(), cq.CQContext())
	return in
}

// hostRefusal provokes one check of a device with a driver.
type hostRefusal struct {
	check check
	by    string
	in    func(*host) []byte
}

var hostRefusals = []hostRefusal{
	{badOpMod, "QUERY_PAGES", func(*host) []byte { return opMod(build(mlx5.OpQueryPages, 0), 7) }},
	{badOpMod, "MANAGE_PAGES", func(*host) []byte { return opMod(build(mlx5.OpManagePages, 0), 3) }},
	{badOpMod, "ACCESS_REG", func(*host) []byte { return register1(regPMTU, 2) }},
	{badOpMod, "SET_FLOW_TABLE_ROOT", func(*host) []byte { return opMod(build(mlx5.OpSetFlowTableRoot, 0), 2) }},
	{badUID, "ACCESS_REG of a user", func(h *host) []byte {
		in := register1(regPMTU, regRead)
		binary.BigEndian.PutUint16(in[2:], h.context())
		return in
	}},
	{shortIn, "a register", func(*host) []byte { return register1(regPTYS, regRead)[:20] }},
	{badPAS, "CREATE_EQ", func(h *host) []byte { in, _ := h.eqIn(4); return in[:len(in)-8] }},
	{badPAS, "CREATE_CQ", func(h *host) []byte { in, _, _ := h.cqIn(10); return in[:len(in)-8] }},
	{badPAS, "CREATE_QP", func(h *host) []byte { in, _, _ := h.qpIn(mlx5.STRC); in.QPC().SetLogSQSize(12); return in }},
	{badPAS, "CREATE_SQ", func(h *host) []byte { in, _, _ := h.sqIn(); return in[:len(in)-8] }},
	{badPAS, "CREATE_XRC_SRQ", func(h *host) []byte { in := h.xrcSRQIn(); in.XRCSRQContextEntry().SetLogXRCSRQSize(15); return in }},
	{badPAS, "CREATE_MKEY", func(h *host) []byte {
		in := mlx5.CreateMKeyIn(build(mlx5.OpCreateMKey, 0))
		in.MemoryKeyMKeyEntry().SetAccessMode10(accessMTT)
		in.MemoryKeyMKeyEntry().SetLen(4096)
		in.SetTranslationsOctwordActualSize(1)
		return in
	}},
	{badPAS, "MANAGE_PAGES", func(h *host) []byte { in := h.give(1); in.SetInputNumEntries(2); return in }},
	{mkeyListSize, "CREATE_MKEY", func(h *host) []byte { return h.keysIn(accessKLM, 0, 1<<logMaxKLMList+1) }},
	{mkeyPageSize, "KSM of 128 bytes", func(h *host) []byte { return h.keysIn(accessKSM, minKSMShift-1, 1) }},
	{mkeyPageSize, "KSM of no size", func(h *host) []byte { return h.keysIn(accessKSM, 0, 1) }},
	{badVector, "CREATE_EQ", func(h *host) []byte { in, _ := h.eqIn(4); in.EQContextEntry().SetIntr(8); return in }},
	{badUAR, "CREATE_EQ", func(h *host) []byte { in, _ := h.eqIn(4); in.EQContextEntry().SetUARPage(0); return in }},
	{badFieldSelect, "MODIFY_CQ", func(h *host) []byte { return h.modifyCQ(1 << 3) }},
	{badFieldSelect, "MODIFY_RQ", func(h *host) []byte {
		in := h.modifyQueue(mlx5.OpModifyRQ, h.rq, 0, 0)
		in.SetModifyBitmask(1 << 40)
		return in
	}},
	{badFieldSelect, "MODIFY_RMP", func(h *host) []byte {
		in := mlx5.ModifyRMPIn(about(mlx5.OpModifyRMP, 0, h.rmp))
		in.SetRMPState(wqReady)
		return in
	}},
	{badFieldSelect, "MODIFY_RQT", func(h *host) []byte { return about(mlx5.OpModifyRQT, 0, h.rqt) }},
	{badFieldSelect, "MODIFY_FLOW_TABLE", func(h *host) []byte { in := h.modifyTable(h.ft, 0, 0); in.SetModifyFieldSelect(2); return in }},
	{badFieldSelect, "SET_FLOW_TABLE_ENTRY", func(h *host) []byte {
		in := h.flowIn(4, toTIR, h.tir)
		in.SetModifyEnableMask(0x80)
		return opMod(in, 1)
	}},
	{badFieldSelect, "MODIFY_NIC_VPORT_CONTEXT", func(h *host) []byte {
		return h.modifyVPort(func(s mlx5.ModifyNICVPortFieldSelect, _ mlx5.NICVPortContext) { s.SetAffiliation(true) })
	}},
	{noResize, "MODIFY_CQ", func(h *host) []byte { in := h.resizeCQ(5); in.SetCQUmemValid(true); return in }},
	{badCQSize, "MODIFY_CQ", func(h *host) []byte { in := h.resizeCQ(5); in.CQContext().SetLogCQSize(23); return in }},
	{badFunction, "ENABLE_HCA", func(h *host) []byte {
		in := mlx5.EnableHCAIn(build(mlx5.OpEnableHCA, 0))
		in.SetFunctionID(1)
		return in
	}},
	{badFunction, "DISABLE_HCA", func(h *host) []byte {
		in := mlx5.DisableHCAIn(build(mlx5.OpDisableHCA, 0))
		in.SetFunctionID(1)
		return in
	}},
	{badFunction, "QUERY_PAGES", func(h *host) []byte {
		in := mlx5.QueryPagesIn(build(mlx5.OpQueryPages, 0))
		in.SetEmbeddedCpuFunction(true)
		return in
	}},
	{badFunction, "QUERY_HCA_CAP", func(h *host) []byte { in := mlx5.QueryHCACapIn(capQuery(0)); in.SetOtherFunction(true); return in }},
	{badFunction, "SET_HCA_CAP", func(h *host) []byte {
		in := mlx5.SetHCACapIn(build(mlx5.OpSetHCACap, 0))
		in.SetFunctionID(1)
		return in
	}},
	{badPhase, "ENABLE_HCA twice", func(*host) []byte { return build(mlx5.OpEnableHCA, 0) }},
	{badPhase, "INIT_HCA twice", func(*host) []byte { return build(mlx5.OpInitHCA, 0) }},
	{badPhase, "SET_HCA_CAP after INIT_HCA", func(*host) []byte { return build(mlx5.OpSetHCACap, 0) }},
	{badPhase, "ALLOC_PD after TEARDOWN_HCA", func(h *host) []byte { h.must(build(mlx5.OpTeardownHCA, 0)); return build(mlx5.OpAllocPD, 0) }},
	{badISSI, "2", func(*host) []byte { in := mlx5.SetISSIIn(build(mlx5.OpSetISSI, 0)); in.SetCurrentISSI(2); return in }},
	{badTeardown, "3", func(*host) []byte {
		in := mlx5.TeardownHCAIn(build(mlx5.OpTeardownHCA, 0))
		in.SetProfile(3)
		return in
	}},
	{pagesHeld, "DISABLE_HCA", func(h *host) []byte { h.must(build(mlx5.OpTeardownHCA, 0)); return build(mlx5.OpDisableHCA, 0) }},
	{pagesMissing, "INIT_HCA", func(h *host) []byte {
		h.must(build(mlx5.OpTeardownHCA, 0))
		h.take(1000)
		h.pagesOf(queryInit)
		return build(mlx5.OpInitHCA, 0)
	}},
	{pagesUnasked, "MANAGE_PAGES", func(h *host) []byte { return h.give(1) }},
	{badPage, "0", func(h *host) []byte { return h.oddPage(0) }},
	{badPage, "unaligned", func(h *host) []byte { return h.oddPage(0x1234) }},
	{badPage, "outside", func(h *host) []byte { return h.oddPage(1 << 40) }},
	{badPage, "twice", func(h *host) []byte { return h.oddPage(1 << 20) }},
	{noPages, "ALLOC_PD", func(h *host) []byte {
		h.h.alive.Store(freeObjects)
		h.h.pages.denied = true
		h.t.Cleanup(func() { h.h.alive.Store(0) })
		return build(mlx5.OpAllocPD, 0)
	}},
	{badCapPage, "SET_HCA_CAP", func(h *host) []byte {
		h.must(build(mlx5.OpTeardownHCA, 0))
		return opMod(build(mlx5.OpSetHCACap, 0), 0x7e)
	}},
	{badCapValue, "over the maximum", func(h *host) []byte { return h.setCap(func(c mlx5.HCACap) { c.SetLogMaxQP(18) }) }},
	{badCapValue, "not to be set", func(h *host) []byte { return h.setCap(func(c mlx5.HCACap) { c.SetXRC(false) }) }},
	{badXRCD, "DEALLOC_XRCD", func(h *host) []byte { return about(mlx5.OpDeallocXRCD, 0, h.xrcd+1) }},
	{badXRCD, "CREATE_QP", func(h *host) []byte { in, _, _ := h.qpIn(mlx5.STXRC); in.QPC().SetXRCD(0); return in }},
	{badTD, "CREATE_TIS", func(h *host) []byte { in := h.tisIn(); in.Ctx().SetTransportDomain(h.td + 1); return in }},
	{badTIS, "CREATE_SQ", func(h *host) []byte { in, _, _ := h.sqIn(); in.Ctx().SetTISNum0(h.tis + 1); return in }},
	{badTIS, "two of them", func(h *host) []byte { in, _, _ := h.sqIn(); in.Ctx().SetTISLstSz(2); return in }},
	{badTIRN, "SET_FLOW_TABLE_ENTRY", func(h *host) []byte { return h.flowIn(5, toTIR, h.tir+1) }},
	{badTIRN, "MODIFY_TIR", func(h *host) []byte { return about(mlx5.OpModifyTIR, 0, h.tir+1) }},
	{badRQTN, "CREATE_TIR", func(h *host) []byte { in := h.tirIn(); in.Ctx().SetIndirectTable(h.rqt + 1); return in }},
	{badSQN, "MODIFY_SQ", func(h *host) []byte { return h.modifyQueue(mlx5.OpModifySQ, h.sq+1, 0, 1) }},
	{badRQN, "MODIFY_RQ", func(h *host) []byte { return h.modifyQueue(mlx5.OpModifyRQ, h.rq+1, 0, 1) }},
	{badRQN, "CREATE_RQT", func(h *host) []byte { return h.rqtIn(h.rq, h.rq+1) }},
	{badSRQN, "an RMP as an XRC SRQ", func(h *host) []byte { return about(mlx5.OpDestroyXRCSRQ, 0, h.rmp) }},
	{badSRQN, "CREATE_QP", func(h *host) []byte { in, _, _ := h.qpIn(mlx5.STRC); in.QPC().SetRQType(mlx5.RQShared); return in }},
	{badOffload, "TLS", func(h *host) []byte { in := h.tisIn(); in.Ctx().SetTLSEn(true); return in }},
	{badOffload, "hairpin SQ", func(h *host) []byte { in, _, _ := h.sqIn(); in.Ctx().SetHairpin(true); return in }},
	{badOffload, "LRO", func(h *host) []byte { in := h.tirIn(); in.Ctx().SetPacketMergeMask(1); return in }},
	{badWQType, "striding", func(h *host) []byte { in := h.rqIn(); in.Ctx().WQ().SetWQType(3); return in }},
	{noWQUmem, "CREATE_RQ", func(h *host) []byte { in := h.rqIn(); in.Ctx().WQ().SetWQUmemValid(true); return in }},
	{badWQSize, "2^16", func(h *host) []byte { in := h.rqIn(); in.Ctx().WQ().SetLogWQSz(16); return in }},
	{badWQSize, "32 bytes in an SQ", func(h *host) []byte { in, _, _ := h.sqIn(); in.Ctx().WQ().SetLogWQStride(5); return in }},
	{badWQState, "not in it", func(h *host) []byte { return h.modifyQueue(mlx5.OpModifyRQ, h.rq, wqReady, wqReady) }},
	{badWQState, "ERR to RDY", func(h *host) []byte {
		h.must(h.modifyQueue(mlx5.OpModifySQ, h.sq, wqReset, wqError))
		return h.modifyQueue(mlx5.OpModifySQ, h.sq, wqError, wqReady)
	}},
	{badWQState, "born ready", func(h *host) []byte { in := h.rqIn(); in.Ctx().SetState(wqReady); return in }},
	{badRQTSize, "actual", func(h *host) []byte { return h.rqtIn(h.rq, h.rq, h.rq, h.rq, h.rq) }},
	{badRQTSize, "maximum", func(h *host) []byte { in := h.rqtIn(); in.RQTContext().SetRQTMaxSize(1<<logMaxRQTSize + 1); return in }},
	{badDisp, "2", func(h *host) []byte { in := h.tirIn(); in.Ctx().SetDispType(2); return in }},
	{badVPort, "QUERY_NIC_VPORT_CONTEXT", func(h *host) []byte {
		in := mlx5.QueryNICVPortContextIn(build(mlx5.OpQueryNICVPortContext, 0))
		in.SetOtherVPort(true)
		return in
	}},
	{badVPort, "CREATE_FLOW_TABLE", func(h *host) []byte { in := h.tableIn(1); in.SetVPortNumber(1); return in }},
	{badPkeyIndex, "QUERY_HCA_VPORT_PKEY", func(h *host) []byte {
		in := mlx5.QueryHCAVPortPkeyIn(build(mlx5.OpQueryHCAVPortPkey, 0))
		in.SetPkeyIndex(1)
		return in
	}},
	{badListType, "3", func(h *host) []byte {
		return h.modifyVPort(func(s mlx5.ModifyNICVPortFieldSelect, c mlx5.NICVPortContext) {
			s.SetAddressesList(true)
			c.SetAllowedListType(3)
		})
	}},
	{badListSize, "longer than the command", func(h *host) []byte {
		return h.modifyVPort(func(s mlx5.ModifyNICVPortFieldSelect, c mlx5.NICVPortContext) {
			s.SetAddressesList(true)
			c.SetAllowedListSize(1)
		})
	}},
	{badVPortMTU, "NIC vport", func(h *host) []byte {
		return h.modifyVPort(func(s mlx5.ModifyNICVPortFieldSelect, c mlx5.NICVPortContext) { s.SetMTU(true); c.SetMTU(9979) })
	}},
	{badVPortMTU, "PMTU", func(h *host) []byte { return register1(regPMTU, regWrite, 0, 1) }},
	{badAdminState, "MODIFY_VPORT_STATE", func(h *host) []byte {
		in := mlx5.ModifyVPortStateIn(build(mlx5.OpModifyVPortState, 0))
		in.SetAdminState(3)
		return in
	}},
	{badAdminState, "PAOS", func(h *host) []byte { return register1(regPAOS, regWrite, 0, 1, 9) }},
	{badPort, "PAOS", func(h *host) []byte { return register1(regPAOS, regWrite, 0, 2, portUp) }},
	{badPort, "PTYS", func(h *host) []byte { return register1(regPTYS, regRead, 0, 0, 0, protoEthernet) }},
	{badComponent, "MCQS", func(h *host) []byte { return register1(regMCQS, regRead, 0, 0, 0, 1) }},
	{badComponent, "MCQI of what is pending", func(h *host) []byte {
		return register1(regMCQI, regRead, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, infoVersion)
	}},
	{badRegister, "0x1234", func(h *host) []byte { return register1(0x1234, regRead) }},
	{badRegAccess, "PPCNT", func(h *host) []byte { return register1(regPPCNT, regWrite) }},
	{badRegAccess, "host endianness", func(h *host) []byte { return register1(regHostEndianness, regRead) }},
	{badProtocol, "InfiniBand", func(h *host) []byte { return register1(regPTYS, regRead, 0, 1, 0, 1) }},
	{badEndianness, "1", func(h *host) []byte { return register1(regHostEndianness, regWrite, 1) }},
	{badTableType, "E-switch", func(h *host) []byte { in := h.tableIn(1); in.SetTableType(4); return in }},
	{badTable, "of the other direction", func(h *host) []byte { in := h.flowIn(5, toFlowTable, h.ft2); in.SetTableType(uint8(wayOut)); return in }},
	{badTable, "a way from one direction to the other", func(h *host) []byte {
		out := h.tableIn(5)
		out.SetTableType(uint8(wayOut))
		return h.flowIn(5, toFlowTable, h.made(out))
	}},
	{badFlowAction, "a TIR for what is sent", func(h *host) []byte { return h.outFlow(toTIR, h.tir) }},
	{badFlowAction, "a count without a counter", func(h *host) []byte {
		in := h.flowIn(5, toTIR, h.tir)
		in.FlowContext().SetAction(flowForward | flowCount)
		return in
	}},
	{badFlowCounter, "SET_FLOW_TABLE_ENTRY", func(h *host) []byte { return h.countedFlow(5, 77) }},
	{badFlowCounter, "QUERY_FLOW_COUNTER", func(h *host) []byte { return h.counterQuery(1, false) }},
	{badOffload, "flow counters in bulk", func(h *host) []byte {
		in := mlx5.AllocFlowCounterIn(build(mlx5.OpAllocFlowCounter, 0))
		in.SetFlowCounterBulk(1)
		return in
	}},
	{inUse, "DEALLOC_FLOW_COUNTER", func(h *host) []byte {
		id := h.made(build(mlx5.OpAllocFlowCounter, 0))
		h.must(h.countedFlow(5, id))
		return about(mlx5.OpDeallocFlowCounter, 0, id)
	}},
	{badTable, "CREATE_FLOW_GROUP", func(h *host) []byte { in := h.groupIn(0, 1); in.SetTableID(0); return in }},
	{badTable, "SET_FLOW_TABLE_ROOT", func(h *host) []byte { return build(mlx5.OpSetFlowTableRoot, 0) }},
	{badTable, "MODIFY_FLOW_TABLE", func(h *host) []byte { return h.modifyTable(h.ft2+1, 0, 0) }},
	{badTableSize, "2^21", func(h *host) []byte { in := h.tableIn(1); in.FlowTableContext().SetLogSize(21); return in }},
	{badMiss, "2", func(h *host) []byte { return h.modifyTable(h.ft, 2, 0) }},
	{badMiss, "itself", func(h *host) []byte { return h.modifyTable(h.ft, missTable, h.ft) }},
	{badGroup, "DESTROY_FLOW_GROUP", func(h *host) []byte { return build(mlx5.OpDestroyFlowGroup, 0) }},
	{badGroup, "SET_FLOW_TABLE_ENTRY", func(h *host) []byte {
		in := h.flowIn(5, toTIR, h.tir)
		in.FlowContext().SetGroupID(h.fg + 1)
		return in
	}},
	{badFlowRange, "outside the table", func(h *host) []byte { return h.groupIn(8, 16) }},
	{badFlowRange, "in two groups", func(h *host) []byte { return h.groupIn(0, 4) }},
	{badFlowRange, "outside the group", func(h *host) []byte { return h.flowIn(8, toTIR, h.tir) }},
	{badFlow, "a second one", func(h *host) []byte { return h.flowIn(4, toTIR, h.tir) }},
	{badFlow, "none to modify", func(h *host) []byte { return opMod(h.flowIn(5, toTIR, h.tir), 1) }},
	{badFlow, "none to delete", func(h *host) []byte { return h.flowGone(5) }},
	{badFlowAction, "count", func(h *host) []byte { in := h.flowIn(5, toTIR, h.tir); in.FlowContext().SetAction(8); return in }},
	{badFlowAction, "forward to nowhere", func(h *host) []byte {
		in := h.flowIn(5, toTIR, h.tir)
		in.FlowContext().SetDestinationListSize(0)
		return in
	}},
	{badFlowAction, "to a vport", func(h *host) []byte { return h.flowIn(5, 0, 0) }},
	{badGroupGID, "ATTACH_TO_MCG", func(h *host) []byte { return h.groupOf(mlx5.OpAttachToMcg, 0xfe) }},
	{badGroupGID, "DETACH_FROM_MCG", func(h *host) []byte { return h.groupOf(mlx5.OpDetachFromMcg, 0xff) }},
	{badFlowLevel, "its own table", func(h *host) []byte { return h.flowIn(5, toFlowTable, h.ft) }},
	{inUse, "DESTROY_FLOW_GROUP", func(h *host) []byte {
		in := mlx5.DestroyFlowGroupIn(build(mlx5.OpDestroyFlowGroup, 0))
		in.SetTableID(h.ft)
		in.SetGroupID(h.fg)
		return in
	}},
	{tableInUse, "DESTROY_FLOW_TABLE", func(h *host) []byte {
		in := mlx5.DestroyFlowTableIn(build(mlx5.OpDestroyFlowTable, 0))
		in.SetTableID(h.ft)
		return in
	}},
	{inUse, "DESTROY_TIR", func(h *host) []byte { return about(mlx5.OpDestroyTIR, 0, h.tir) }},
	{inUse, "DESTROY_RQ", func(h *host) []byte { return about(mlx5.OpDestroyRQ, 0, h.rq) }},
	{inUse, "DEALLOC_UAR", func(h *host) []byte { return about(mlx5.OpDeallocUAR, 0, h.uar) }},
}

// oddPage returns a MANAGE_PAGES with one page, when the device wants one.
func (h *host) oddPage(addr uint64) []byte {
	h.must(build(mlx5.OpTeardownHCA, 0))
	h.take(1)
	h.pagesOf(queryInit)
	in := h.give(1)
	binary.BigEndian.PutUint64(in.PAS(), addr)
	return in
}

func (h *host) setCap(change func(mlx5.HCACap)) []byte {
	h.must(build(mlx5.OpTeardownHCA, 0))
	in := mlx5.SetHCACapIn(build(mlx5.OpSetHCACap, 0))
	copy(in.Capability(), mlx5.QueryHCACapOut(h.must(capQuery(mlx5.QueryHCACapOpMod(mlx5.CapGeneral, true)))).Capability())
	change(mlx5.HCACap(in.Capability()))
	return in
}

// outFlow returns a flow of what is sent, in a table and a group of its own.
func (h *host) outFlow(kind uint8, id uint32) mlx5.SetFTEIn {
	table := h.tableIn(1)
	table.SetTableType(uint8(wayOut))
	group := h.groupIn(0, 3)
	group.SetTableType(uint8(wayOut))
	group.SetTableID(h.made(table))
	for i := range macBytes {
		group.MatchCriteria()[matchSMAC+i] = 0xff
	}
	in := h.flowIn(0, kind, id)
	in.SetTableType(uint8(wayOut))
	in.SetTableID(group.TableID())
	in.FlowContext().SetGroupID(h.made(group))
	return in
}

// counted makes a flow count: with a counter behind its destinations.
func counted(in mlx5.SetFTEIn, counter uint32) mlx5.SetFTEIn {
	c := in.FlowContext()
	c.SetAction(c.Action() | flowCount)
	c.SetFlowCounterListSize(1)
	in = append(in, make([]byte, mlx5.FlowCounterListSize)...)
	mlx5.FlowCounterList(in[len(in)-mlx5.FlowCounterListSize:]).SetFlowCounterID(counter)
	return in
}

func (h *host) countedFlow(index, counter uint32) mlx5.SetFTEIn {
	return counted(h.flowIn(index, toTIR, h.tir), counter)
}

func (h *host) counterQuery(id uint32, clear bool) mlx5.QueryFlowCounterIn {
	in := mlx5.QueryFlowCounterIn(build(mlx5.OpQueryFlowCounter, 0))
	in.SetFlowCounterID(id)
	in.SetClear(clear)
	return in
}

// keysIn returns a CREATE_MKEY of a key of n other keys.
func (h *host) keysIn(mode, shift uint8, n int) mlx5.CreateMKeyIn {
	in := mlx5.CreateMKeyIn(append(build(mlx5.OpCreateMKey, 0), make([]byte, n*klmBytes)...))
	in.SetTranslationsOctwordActualSize(uint32(n))
	m := in.MemoryKeyMKeyEntry()
	m.SetAccessMode10(mode)
	m.SetLogPageSize(shift)
	m.SetPD(h.pd)
	m.SetQPN(anyQPN)
	m.SetLen(1)
	return in
}

// groupOf returns a command about a new queue pair and a multicast group.
func (h *host) groupOf(op mlx5.Op, first byte) []byte {
	qp, _, _ := h.qpIn(mlx5.STUD)
	in := mlx5.AttachToMcgIn(about(op, 0, h.made(qp)))
	in.MulticastGID()[0] = first
	return in
}

// Each check of a driver's commands has a command that provokes it and that
// changes nothing.
func TestHostChecks(t *testing.T) {
	for _, c := range hostRefusals {
		t.Run(c.by+": "+checks[c.check].Refuses, func(t *testing.T) {
			h := newHost(t, Config{LogMaxQP: 4})
			in := c.in(h)
			before, resources := snapshot(h.h), h.counts()
			out := make([]byte, h.outSize(in))
			h.h.Exec(in, out)
			status, syndrome := mlx5.StatusOf(out)
			if status != checks[c.check].Status || syndrome != checks[c.check].Syndrome() {
				t.Errorf("%v: got %v, %s", mlx5.OpOf(in), status, reason(syndrome))
			}
			clear(out[:8])
			if !bytes.Equal(out, make([]byte, len(out))) {
				t.Errorf("more than status and syndrome: %x", out)
			}
			if before != snapshot(h.h) || resources != h.counts() {
				t.Errorf("a refused command changed the number of objects")
			}
		})
	}
}

func (h *host) outSize(in []byte) int {
	if mlx5.OpOf(in) == mlx5.OpAccessReg {
		return 16 + 256
	}
	return h.h.handler(mlx5.OpOf(in)).out
}

// counts returns the number of resources of each kind.
func (h *host) counts() (n [11]int64) {
	for i, t := range h.h.resources() {
		n[i] = t.count()
	}
	n[len(n)-1] = h.h.flowCounters.count()
	return n
}

// A device without memory, as the one in process, has none of a driver's
// commands.
func TestNoDriverCommands(t *testing.T) {
	r := newRig(t, Config{})
	for op, hd := range driverHandlers {
		if hd.run == nil {
			continue
		}
		in := make([]byte, hd.in)
		mlx5.PutHeader(in, mlx5.Op(op), 0)
		if status, syndrome, _ := r.exec(in); status != mlx5.StatusBadOp {
			t.Errorf("%v: %v, %s", mlx5.Op(op), status, reason(syndrome))
		}
	}
}
