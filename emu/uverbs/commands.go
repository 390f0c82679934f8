// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import "devxlab.example/mlx5"

// class is what the driver takes a command for; it decides through which call
// it may come.
type class uint8

const (
	unknown class = iota
	creates
	modifies
	queries
	general
)

// classes follows devx_is_obj_create_cmd, devx_is_obj_modify_cmd,
// devx_is_obj_query_cmd and devx_is_general_cmd in
// drivers/infiniband/hw/mlx5/devx.c. It has what the driver lets through, also
// where the device then answers that it does not know the command.
var classes = map[mlx5.Op]class{}

// maker is the command whose objects a modify or query is about.
var maker = map[mlx5.Op]mlx5.Op{
	mlx5.OpQueryMKey:     mlx5.OpCreateMKey,
	mlx5.OpQueryCQ:       mlx5.OpCreateCQ,
	mlx5.OpModifyCQ:      mlx5.OpCreateCQ,
	mlx5.OpQueryQP:       mlx5.OpCreateQP,
	mlx5.OpQueryQCounter: mlx5.OpAllocQCounter,
}

// destroyer is the command that undoes a create. Each has the object's number
// where most have it: in the 24 bits from 0x48.
var destroyer = map[mlx5.Op]mlx5.Op{
	mlx5.OpAllocPD:       mlx5.OpDeallocPD,
	mlx5.OpAllocUAR:      mlx5.OpDeallocUAR,
	mlx5.OpCreateUmem:    mlx5.OpDestroyUmem,
	mlx5.OpCreateMKey:    mlx5.OpDestroyMKey,
	mlx5.OpCreateCQ:      mlx5.OpDestroyCQ,
	mlx5.OpCreateQP:      mlx5.OpDestroyQP,
	mlx5.OpAllocQCounter: mlx5.OpDeallocQCounter,
}

func init() {
	for c, ops := range map[class][]mlx5.Op{
		creates: {
			mlx5.OpCreateGeneralObject, mlx5.OpCreateMKey, mlx5.OpCreateCQ, mlx5.OpAllocPD, mlx5.OpAllocTransportDomain,
			mlx5.OpCreateRMP, mlx5.OpCreateSQ, mlx5.OpCreateRQ, mlx5.OpCreateRQT, mlx5.OpCreateTIR, mlx5.OpCreateTIS,
			mlx5.OpAllocQCounter, mlx5.OpCreateFlowTable, mlx5.OpCreateFlowGroup, mlx5.OpAllocFlowCounter,
			mlx5.OpAllocPacketReformatContext, mlx5.OpAllocModifyHeaderContext, mlx5.OpCreateSchedulingElement,
			mlx5.OpAddVxlanUDPDport, mlx5.OpSetL2TableEntry, mlx5.OpCreateQP, mlx5.OpCreateSRQ, mlx5.OpCreateXRCSRQ,
			mlx5.OpCreateDCT, mlx5.OpCreateXRQ, mlx5.OpAttachToMcg, mlx5.OpAllocXRCD,
		},
		modifies: append(mlx5.Transitions(),
			mlx5.OpModifyCQ, mlx5.OpModifyRMP, mlx5.OpModifySQ, mlx5.OpModifyRQ, mlx5.OpModifyRQT, mlx5.OpModifyTIR,
			mlx5.OpModifyTIS, mlx5.OpModifyGeneralObject, mlx5.OpModifyFlowTable, mlx5.OpModifySchedulingElement),
		queries: {
			mlx5.OpQueryGeneralObject, mlx5.OpQueryMKey, mlx5.OpQueryCQ, mlx5.OpQueryRMP, mlx5.OpQuerySQ, mlx5.OpQueryRQ,
			mlx5.OpQueryRQT, mlx5.OpQueryTIR, mlx5.OpQueryTIS, mlx5.OpQueryQCounter, mlx5.OpQueryQP, mlx5.OpQuerySRQ,
		},
		general: {
			mlx5.OpQueryHCACap, mlx5.OpQueryHCAVPortContext, mlx5.OpQueryESWVPortContext, mlx5.OpQueryVPortState,
			mlx5.OpQueryAdapter, mlx5.OpQueryISSI, mlx5.OpQueryNICVPortContext, mlx5.OpQueryRoCEAddress,
			mlx5.OpQueryVNICEnv, mlx5.OpQueryVPortCounter, mlx5.OpGetDroppedPacketLog, mlx5.OpNOP,
			mlx5.OpQueryCongStatus, mlx5.OpQueryCongParams, mlx5.OpQueryCongStatistics, mlx5.OpQueryLAG,
		},
	} {
		for _, op := range ops {
			classes[op] = c
		}
	}
	for _, op := range mlx5.Transitions() {
		maker[op] = mlx5.OpCreateQP
	}
}

// isGeneral also lets the range of general opcodes through
// (MLX5_CMD_OP_GENERAL_START to _END).
func isGeneral(op mlx5.Op) bool {
	return classes[op] == general || op >= 0xb00 && op < 0xd00
}

// isWhitelisted reports whether a command needs no user context of its own
// (devx_is_whitelist_cmd).
func isWhitelisted(op mlx5.Op) bool {
	switch op {
	case mlx5.OpQueryHCACap, mlx5.OpQueryHCAVPortContext, mlx5.OpQueryESWVPortContext:
		return true
	}
	return false
}

// subject returns the number of the object that a modify or query is about
// (devx_get_obj_id).
func subject(op mlx5.Op, in []byte) uint32 {
	if op == mlx5.OpQueryQCounter {
		if len(in) < mlx5.QueryQCounterInSize {
			return ^uint32(0)
		}
		return uint32(mlx5.QueryQCounterIn(in).CounterSetID())
	}
	return mlx5.DestroyQPIn(in).QPN() // the same 24 bits for all others
}
