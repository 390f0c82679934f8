// SPDX-License-Identifier: BSD-2-Clause

package fw

import "devxlab.example/mlx5"

// driverCommands is what the device offers to a driver besides what it offers
// to everyone.
var driverCommands = []struct {
	op     mlx5.Op
	run    func(*HCA, command) check
	flags  flags
	layout string // of structs that are not named like their opcode
}{
	{mlx5.OpEnableHCA, (*HCA).enableHCA, early | driver, ""},
	{mlx5.OpDisableHCA, (*HCA).disableHCA, early | driver, ""},
	{mlx5.OpSetISSI, (*HCA).setISSI, early | driver, ""},
	{mlx5.OpQueryPages, (*HCA).queryPages, early | driver | anyMod, ""},
	{mlx5.OpManagePages, (*HCA).managePages, early | driver | anyMod, ""},
	{mlx5.OpSetHCACap, (*HCA).setHCACap, early | driver | anyMod, ""},
	{mlx5.OpInitHCA, (*HCA).initHCA, early | driver, ""},
	{mlx5.OpTeardownHCA, (*HCA).teardownHCA, early | driver | objects, ""},
	{mlx5.OpAccessReg, (*HCA).accessReg, early | driver | anyMod, "access_register"},
	{mlx5.OpMADIfc, (*HCA).madIfc, driver | anyMod, ""},
	{mlx5.OpQuerySpecialContexts, (*HCA).specialContexts, driver, ""},
	{mlx5.OpModifyNICVPortContext, (*HCA).modifyNICVPort, driver, ""},
	{mlx5.OpModifyVPortState, (*HCA).modifyVPortState, driver | anyMod, ""},
	{mlx5.OpQueryHCAVPortPkey, (*HCA).queryPkey, driver, ""},
	{mlx5.OpQueryEQ, (*HCA).queryEQ, driver, ""},
	{mlx5.OpModifyCQ, (*HCA).modifyCQ, anyMod, ""},
	{mlx5.OpAttachToMcg, (*HCA).attachMcg, objects, ""},
	{mlx5.OpDetachFromMcg, (*HCA).detachMcg, objects, ""},
	{mlx5.OpAllocXRCD, (*HCA).allocXRCD, objects | alloc, ""},
	{mlx5.OpDeallocXRCD, (*HCA).deallocXRCD, objects, ""},
	{mlx5.OpAllocTransportDomain, (*HCA).allocTD, objects | alloc, ""},
	{mlx5.OpDeallocTransportDomain, (*HCA).deallocTD, objects, ""},
	{mlx5.OpCreateTIS, (*HCA).createTIS, objects | alloc, ""},
	{mlx5.OpQueryTIS, (*HCA).queryTIS, 0, ""},
	{mlx5.OpDestroyTIS, (*HCA).destroyTIS, objects, ""},
	{mlx5.OpCreateSQ, (*HCA).createSQ, objects | alloc, ""},
	{mlx5.OpModifySQ, (*HCA).modifySQ, 0, ""},
	{mlx5.OpQuerySQ, (*HCA).querySQ, 0, ""},
	{mlx5.OpDestroySQ, (*HCA).destroySQ, objects, ""},
	{mlx5.OpCreateRQ, (*HCA).createRQ, objects | alloc, ""},
	{mlx5.OpModifyRQ, (*HCA).modifyRQ, objects, ""},
	{mlx5.OpQueryRQ, (*HCA).queryRQ, 0, ""},
	{mlx5.OpDestroyRQ, (*HCA).destroyRQ, objects, ""},
	{mlx5.OpCreateRMP, (*HCA).createRMP, objects | alloc, ""},
	{mlx5.OpModifyRMP, (*HCA).modifyRMP, 0, ""},
	{mlx5.OpQueryRMP, (*HCA).queryRMP, 0, ""},
	{mlx5.OpDestroyRMP, (*HCA).destroyRMP, objects, ""},
	{mlx5.OpCreateXRCSRQ, (*HCA).createXRCSRQ, objects | alloc, ""},
	{mlx5.OpArmXRCSRQ, (*HCA).armXRCSRQ, anyMod, ""},
	{mlx5.OpQueryXRCSRQ, (*HCA).queryXRCSRQ, 0, ""},
	{mlx5.OpDestroyXRCSRQ, (*HCA).destroyXRCSRQ, objects, ""},
	{mlx5.OpCreateRQT, (*HCA).createRQT, objects | alloc, ""},
	{mlx5.OpModifyRQT, (*HCA).modifyRQT, objects, ""},
	{mlx5.OpDestroyRQT, (*HCA).destroyRQT, objects, ""},
	{mlx5.OpCreateTIR, (*HCA).createTIR, objects | alloc, ""},
	{mlx5.OpModifyTIR, (*HCA).modifyTIR, 0, ""},
	{mlx5.OpQueryTIR, (*HCA).queryTIR, 0, ""},
	{mlx5.OpDestroyTIR, (*HCA).destroyTIR, objects, ""},
	{mlx5.OpCreateFlowTable, (*HCA).createFlowTable, objects | alloc, ""},
	{mlx5.OpModifyFlowTable, (*HCA).modifyFlowTable, objects | steers, ""},
	{mlx5.OpDestroyFlowTable, (*HCA).destroyFlowTable, objects | steers, ""},
	{mlx5.OpSetFlowTableRoot, (*HCA).setFlowTableRoot, objects | anyMod | steers, ""},
	{mlx5.OpCreateFlowGroup, (*HCA).createFlowGroup, objects | alloc, ""},
	{mlx5.OpDestroyFlowGroup, (*HCA).destroyFlowGroup, objects, ""},
	{mlx5.OpSetFlowTableEntry, (*HCA).setFlow, objects | anyMod | alloc | steers, "set_fte"},
	{mlx5.OpAllocFlowCounter, (*HCA).allocFlowCounter, objects | alloc, ""},
	{mlx5.OpDeallocFlowCounter, (*HCA).deallocFlowCounter, objects, ""},
	{mlx5.OpQueryFlowCounter, (*HCA).queryFlowCounter, 0, ""},
	{mlx5.OpDeleteFlowTableEntry, (*HCA).deleteFlow, objects | steers, "delete_fte"},
}
