// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import "devxlab.example/mlx5"

// class is what the driver takes a command for; it decides through which call
// it may come.
type class uint8

const (
	creates class = 1 << iota
	modifies
	queries
	general
	whitelisted // needs no user context of its own
)

// opInfo is what the driver knows of a command.
type opInfo struct {
	class     class
	maker     mlx5.Op // of a modify or query: the command whose objects it is about
	destroyer mlx5.Op // of a create: the command that undoes it
}

// generalStart and generalEnd are MLX5_CMD_OP_GENERAL_START and _END: a range
// that passes as general commands.
const generalStart, generalEnd = 0xb00, 0xd00

// opTable follows devx_is_obj_create_cmd, devx_is_obj_modify_cmd,
// devx_is_obj_query_cmd, devx_is_general_cmd and devx_is_whitelist_cmd in
// drivers/infiniband/hw/mlx5/devx.c. It has what the driver lets through, also
// where the device then answers that it does not know the command; of modifies
// and queries only those about objects that the device offers: of others there
// is none, and the driver's answer is EINVAL either way.
var opTable [generalEnd]opInfo

func init() {
	for _, op := range []mlx5.Op{
		mlx5.OpCreateGeneralObject, mlx5.OpCreateMKey, mlx5.OpCreateCQ, mlx5.OpAllocPD, mlx5.OpAllocTransportDomain,
		mlx5.OpCreateRMP, mlx5.OpCreateSQ, mlx5.OpCreateRQ, mlx5.OpCreateRQT, mlx5.OpCreateTIR, mlx5.OpCreateTIS,
		mlx5.OpAllocQCounter, mlx5.OpCreateFlowTable, mlx5.OpCreateFlowGroup, mlx5.OpAllocFlowCounter,
		mlx5.OpAllocPacketReformatContext, mlx5.OpAllocModifyHeaderContext, mlx5.OpCreateSchedulingElement,
		mlx5.OpAddVxlanUDPDport, mlx5.OpSetL2TableEntry, mlx5.OpCreateQP, mlx5.OpCreateSRQ, mlx5.OpCreateXRCSRQ,
		mlx5.OpCreateDCT, mlx5.OpCreateXRQ, mlx5.OpAttachToMcg, mlx5.OpAllocXRCD, mlx5.OpSetFlowTableEntry,
	} {
		opTable[op].class |= creates
	}
	for _, op := range []mlx5.Op{
		mlx5.OpQueryHCACap, mlx5.OpQueryHCAVPortContext, mlx5.OpQueryESWVPortContext, mlx5.OpQueryVPortState,
		mlx5.OpQueryAdapter, mlx5.OpQueryISSI, mlx5.OpQueryNICVPortContext, mlx5.OpQueryRoCEAddress,
		mlx5.OpQueryVNICEnv, mlx5.OpQueryVPortCounter, mlx5.OpGetDroppedPacketLog, mlx5.OpNOP,
		mlx5.OpQueryCongStatus, mlx5.OpQueryCongParams, mlx5.OpQueryCongStatistics, mlx5.OpQueryLAG,
	} {
		opTable[op].class |= general
	}
	for op := generalStart; op < generalEnd; op++ {
		opTable[op].class |= general
	}
	for _, op := range []mlx5.Op{mlx5.OpQueryHCACap, mlx5.OpQueryHCAVPortContext, mlx5.OpQueryESWVPortContext} {
		opTable[op].class |= whitelisted
	}
	about := func(c class, made mlx5.Op, ops ...mlx5.Op) {
		for _, op := range ops {
			opTable[op].class |= c
			opTable[op].maker = made
		}
	}
	about(modifies, mlx5.OpCreateQP, mlx5.Transitions()...)
	about(modifies, mlx5.OpCreateCQ, mlx5.OpModifyCQ)
	about(queries, mlx5.OpCreateQP, mlx5.OpQueryQP)
	about(queries, mlx5.OpCreateCQ, mlx5.OpQueryCQ)
	about(queries, mlx5.OpCreateMKey, mlx5.OpQueryMKey)
	about(queries, mlx5.OpAllocQCounter, mlx5.OpQueryQCounter)
	// Each has the object's number where most have it: in the 24 bits from 0x48.
	for made, op := range map[mlx5.Op]mlx5.Op{
		mlx5.OpAllocPD:       mlx5.OpDeallocPD,
		mlx5.OpAllocUAR:      mlx5.OpDeallocUAR,
		mlx5.OpCreateUmem:    mlx5.OpDestroyUmem,
		mlx5.OpCreateMKey:    mlx5.OpDestroyMKey,
		mlx5.OpCreateCQ:      mlx5.OpDestroyCQ,
		mlx5.OpCreateQP:      mlx5.OpDestroyQP,
		mlx5.OpAllocQCounter: mlx5.OpDeallocQCounter,
	} {
		opTable[made].destroyer = op
	}
}

func infoOf(op mlx5.Op) opInfo {
	if int(op) < len(opTable) {
		return opTable[op]
	}
	return opInfo{}
}

// classOf returns what the driver takes a command for. SET_FLOW_TABLE_ENTRY
// creates with op_mod 0 only.
func classOf(op mlx5.Op, in []byte) class {
	c := infoOf(op).class
	if op == mlx5.OpSetFlowTableEntry && in[6]|in[7] != 0 {
		c &^= creates
	}
	return c
}

// numberOf returns the number of the object that a modify or query is about
// (devx_get_obj_id).
func numberOf(op mlx5.Op, in []byte) uint32 {
	if op == mlx5.OpQueryQCounter {
		if len(in) < mlx5.QueryQCounterInSize {
			return ^uint32(0)
		}
		return uint32(mlx5.QueryQCounterIn(in).CounterSetID())
	}
	return mlx5.DestroyQPIn(in).QPN() // the same 24 bits for all others
}
