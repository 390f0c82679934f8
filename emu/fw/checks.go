// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"fmt"
	"strings"

	"devxlab.example/mlx5"
)

// SyndromeBase marks the syndromes of the emulated device: its low 24 bits are
// the number of the check that refused. Real firmware's syndromes have 24
// bits, so none of them looks like one of these.
const SyndromeBase = 0xde000000

// Check is one thing that the emulated device refuses.
type Check struct {
	ID       uint32 // low bits of its syndrome
	Refuses  string
	Status   mlx5.Status
	Evidence string // where it is known from, or "assumed"
}

// Syndrome returns what a command refused by the check answers.
func (c *Check) Syndrome() uint32 { return SyndromeBase | c.ID }

// check is an index into checks; 0 means that nothing was refused. The order is
// that of the syndromes, so a new one goes to the end.
type check uint8

const (
	ok check = iota
	badOp
	badOpMod
	shortIn
	shortOut
	badUID
	badPD
	badCQN
	badUAR
	badUmem
	badQPN
	badEQN
	badMKey
	badCounterSet
	badSRQN
	badUCTX
	badST
	badRQType
	badMTU
	badPort
	badPkeyIndex
	badSrcAddrIndex
	badCQSize
	badCQESize
	badEQSize
	badSRAMax
	badRRAMax
	badMsgMax
	badPMState
	badState
	inUse
	uctxInUse
	qpLimit
	objectLimit
	noUmem
	umemTooSmall
	umemUnaligned
	badUmemPages
	zeroRMAC
	zeroRGID
	mkeyZeroLen
	mkeyMode
	mkeyPageSize
	mkeyRange
	badCapPage
	badRoCEIndex
	badOptPar
	badPAS
	badVector
	badFieldSelect
	noResize
	badFunction
	badPhase
	badISSI
	badTeardown
	pagesHeld
	pagesMissing
	pagesUnasked
	badPage
	noPages
	badCapValue
	badXRCD
	badTD
	badTIS
	badTIRN
	badRQTN
	badSQN
	badRQN
	badOffload
	badWQType
	noWQUmem
	badWQSize
	badWQState
	badRQTSize
	badDisp
	badVPort
	badListType
	badListSize
	badVPortMTU
	badAdminState
	badRegister
	badRegAccess
	badProtocol
	badEndianness
	badTableType
	badTable
	badTableSize
	badMiss
	badGroup
	badFlowRange
	badFlow
	badFlowAction
	badFlowLevel
	badGroupGID
	badComponent
	tableInUse
	badFlowCounter
	mkeyListSize
	numChecks
)

// checks is the one table of what is refused and why that is believed. Sources
// named are the driver (drivers/infiniband/hw/mlx5, drivers/net/ethernet/
// mellanox/mlx5/core), rdma-core, and failures of real cards that were reported
// in public, by their syndrome.
var checks = [numChecks]Check{
	badOp:           {Refuses: "an opcode that the device does not offer", Status: mlx5.StatusBadOp, Evidence: "status text, cmd.c cmd_status_str"},
	badOpMod:        {Refuses: "an op_mod that the command does not have", Status: mlx5.StatusBadOp, Evidence: "assumed"},
	shortIn:         {Refuses: "an input shorter than the command's layout", Status: mlx5.StatusBadInpLen, Evidence: "status text, cmd.c cmd_status_str"},
	shortOut:        {Refuses: "room for output shorter than the command's layout", Status: mlx5.StatusBadOutpLen, Evidence: "status text, cmd.c cmd_status_str"},
	badUID:          {Refuses: "a uid that no CREATE_UCTX has returned", Status: mlx5.StatusBadRes, Evidence: "reported for CREATE_MKEY as syndrome 0x76555f, without its status: status assumed"},
	badPD:           {Refuses: "a protection domain that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid: rdma-core tests, test_mlx5_devx.py"},
	badCQN:          {Refuses: "a completion queue that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid assumed; uid 0 may query every one: driver, mlx5_core_query_cq"},
	badUAR:          {Refuses: "a UAR that does not exist or has another uid (uid 0 is everyone's: Linux before 6.1 allocates UARs so)", Status: mlx5.StatusBadRes, Evidence: "status text; uid of UARs: driver, mlx5_cmd_uar_alloc"},
	badUmem:         {Refuses: "user memory that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid assumed"},
	badQPN:          {Refuses: "a queue pair that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "queries: driver, mlx5_core_qp_query sends no uid; otherwise assumed; real cards answered 0x9 (syndromes 0x25b161, 0x7ea02d) for QPs lost in a reset"},
	badEQN:          {Refuses: "an event queue that does not exist", Status: mlx5.StatusBadRes, Evidence: "status text; the driver checks it first (mlx5_vector2eqn)"},
	badMKey:         {Refuses: "a memory key that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid assumed"},
	badCounterSet:   {Refuses: "a Q counter set that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid assumed"},
	badSRQN:         {Refuses: "a shared receive queue that does not exist (the device offers none)", Status: mlx5.StatusBadRes, Evidence: "status text"},
	badUCTX:         {Refuses: "the uid of a context that does not exist, in DESTROY_UCTX", Status: mlx5.StatusBadParam, Evidence: "reported, syndrome 0x15555"},
	badST:           {Refuses: "a service type that the device does not offer", Status: mlx5.StatusBadParam, Evidence: "status text"},
	badRQType:       {Refuses: "a receive queue type that does not exist", Status: mlx5.StatusBadParam, Evidence: "status text"},
	badMTU:          {Refuses: "a path MTU other than 1 to 5", Status: mlx5.StatusBadParam, Evidence: "driver, qp.c: IB_MTU_256 to IB_MTU_4096 are passed on as they are"},
	badPort:         {Refuses: "a port other than 1 to num_ports", Status: mlx5.StatusBadParam, Evidence: "reported for RST2INIT (0x177405) and for PPCNT (0x1e5585); assumed for INIT2INIT and INIT2RTR"},
	badPkeyIndex:    {Refuses: "a P_Key index other than 0: the table of an Ethernet port has one entry", Status: mlx5.StatusIX, Evidence: "assumed"},
	badSrcAddrIndex: {Refuses: "a GID index outside the RoCE address table", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	badCQSize:       {Refuses: "a completion queue larger than log_max_cq_sz", Status: mlx5.StatusBadParam, Evidence: "status text; the driver keeps to the capability"},
	badCQESize:      {Refuses: "a completion queue entry of neither 64 nor 128 bytes", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	badEQSize:       {Refuses: "an event queue larger than 2^22 entries", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	badSRAMax:       {Refuses: "log_sra_max over log_max_ra_req_qp", Status: mlx5.StatusBadParam, Evidence: "status text; the driver keeps to the capability (max_qp_init_rd_atom)"},
	badRRAMax:       {Refuses: "log_rra_max over log_max_ra_res_qp", Status: mlx5.StatusBadParam, Evidence: "status text; the driver keeps to the capability (max_qp_rd_atom)"},
	badMsgMax:       {Refuses: "log_msg_max over log_max_msg", Status: mlx5.StatusBadParam, Evidence: "status text; the driver keeps to the capability"},
	badPMState:      {Refuses: "path migration state 2, which does not exist", Status: mlx5.StatusBadParam, Evidence: "linux/mlx5/qp.h: 0 armed, 1 rearm, 3 migrated"},
	badState:        {Refuses: "a transition that does not start from the queue pair's state", Status: mlx5.StatusBadQPState, Evidence: "status text; whether cards answer 0x3 here is not public"},
	inUse:           {Refuses: "the destruction of an object that another one uses", Status: mlx5.StatusBadResState, Evidence: "reported for DESTROY_CQ (0x1870ad), DEALLOC_PD (0x31b635) and DESTROY_FLOW_GROUP (0x563e2f); the others assumed alike"},
	uctxInUse:       {Refuses: "the destruction of a user context that still has objects", Status: mlx5.StatusBadResState, Evidence: "assumed"},
	qpLimit:         {Refuses: "a queue pair over log_max_qp", Status: mlx5.StatusLIM, Evidence: "reported: limits exceeded, CREATE_QP; another card answered 0x5 (0x65b500)"},
	objectLimit:     {Refuses: "an object over the limit of its kind", Status: mlx5.StatusLIM, Evidence: "reported for CREATE_MKEY (0x59c8a4, 0x18af6); the others assumed alike"},
	noUmem:          {Refuses: "a queue or memory key that is not in user memory (umem)", Status: mlx5.StatusBadParam, Evidence: "assumed; the kernel sets the umem valid bits itself (devx_set_umem_valid)"},
	umemTooSmall:    {Refuses: "user memory too small for the queue or doorbell record in it", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	umemUnaligned:   {Refuses: "a queue that is not 64-byte aligned or a doorbell record that is not 8-byte aligned", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	badUmemPages:    {Refuses: "a umem without pages, with more than the input lists, of pages over 2 GiB, or that begins behind its first page", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	zeroRMAC:        {Refuses: "a RoCE INIT2RTR without a remote MAC address", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	zeroRGID:        {Refuses: "a RoCE INIT2RTR without a remote GID", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	mkeyZeroLen:     {Refuses: "a memory key without translation entries", Status: mlx5.StatusBadParam, Evidence: "reported, syndrome 0x3bf6f"},
	mkeyMode:        {Refuses: "a memory key access mode that the device does not offer", Status: mlx5.StatusBadParam, Evidence: "status text"},
	mkeyPageSize:    {Refuses: "a memory key page size below 4 KiB, or below 256 bytes for one of other keys (KSM)", Status: mlx5.StatusBadParam, Evidence: "assumed; reported for one over the capability, syndrome 0x38a711"},
	mkeyRange:       {Refuses: "a memory key that reaches beyond its user memory", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	badCapPage:      {Refuses: "a capability page that the device does not have", Status: mlx5.StatusBadParam, Evidence: "reported for QUERY_HCA_CAP, syndrome 0x5add95"},
	badOptPar:       {Refuses: "an optional parameter that the device does not offer: alternate path, SRQ, receive CQ", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	badRoCEIndex:    {Refuses: "a RoCE address index outside the table", Status: mlx5.StatusIX, Evidence: "status text; the command assumed"},
	badPAS:          {Refuses: "a list of pages too short for what is to lie in them", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	badVector:       {Refuses: "an event queue on a vector that the function does not have", Status: mlx5.StatusBadParam, Evidence: "assumed; reported for CREATE_EQ with another cause, an event that the firmware does not know (0x8fef)"},
	badFieldSelect:  {Refuses: "the modification of a field that the device does not modify", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	noResize:        {Refuses: "a resize of a completion queue in user memory", Status: mlx5.StatusBadParam, Evidence: "assumed; the driver resizes with physical pages (mlx5_ib_resize_cq)"},
	badFunction:     {Refuses: "another function than the one that asks: there are none", Status: mlx5.StatusBadParam, Evidence: "assumed; ENABLE_HCA of a function whose parent was not up was reported as 0x9 (0x658908)"},
	badPhase:        {Refuses: "a command out of the order ENABLE_HCA, INIT_HCA, TEARDOWN_HCA, DISABLE_HCA", Status: mlx5.StatusBadSysState, Evidence: "status text; driver, mlx5_function_setup"},
	badISSI:         {Refuses: "an ISSI other than 0 and 1", Status: mlx5.StatusBadParam, Evidence: "driver, mlx5_core_set_issi: supported_issi_dw0"},
	badTeardown:     {Refuses: "a teardown profile other than graceful, forced and fast", Status: mlx5.StatusBadParam, Evidence: "linux/mlx5/mlx5_ifc.h, MLX5_TEARDOWN_HCA_IN_PROFILE_*"},
	pagesHeld:       {Refuses: "DISABLE_HCA before all pages are given back", Status: mlx5.StatusBadResState, Evidence: "assumed; driver, mlx5_reclaim_startup_pages comes first"},
	pagesMissing:    {Refuses: "INIT_HCA before the pages that were asked for are given", Status: mlx5.StatusNoRes, Evidence: "assumed; driver, mlx5_satisfy_startup_pages comes first"},
	pagesUnasked:    {Refuses: "more pages than the device asked for", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	badPage:         {Refuses: "a page at address 0, unaligned, outside the host's memory, or given twice", Status: mlx5.StatusBadParam, Evidence: "driver, alloc_system_page: firmware does not support address 0; the others assumed"},
	noPages:         {Refuses: "an object for which the host gives no page", Status: mlx5.StatusNoRes, Evidence: "status text"},
	badCapValue:     {Refuses: "a capability over its maximum, or one that cannot be set", Status: mlx5.StatusBadParam, Evidence: "reported for log_max_current_uc_list over its maximum, syndrome 0x537801; driver, handle_hca_cap"},
	badXRCD:         {Refuses: "an XRC domain that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid assumed"},
	badTD:           {Refuses: "a transport domain that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid assumed"},
	badTIS:          {Refuses: "a TIS that does not exist or has another uid, or more than one for an SQ", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid assumed"},
	badTIRN:         {Refuses: "a TIR that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid assumed"},
	badRQTN:         {Refuses: "an RQ table that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid assumed"},
	badSQN:          {Refuses: "a send queue that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid assumed"},
	badRQN:          {Refuses: "a receive queue that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid assumed"},
	badOffload:      {Refuses: "an offload that the device does not advertise", Status: mlx5.StatusBadParam, Evidence: "assumed; reported with other causes for CREATE_TIS (0x595b5d), CREATE_TIR (0x562b00) and CREATE_SQ (0xd61c0b)"},
	badWQType:       {Refuses: "a work queue or list type that the device does not offer", Status: mlx5.StatusBadParam, Evidence: "status text"},
	noWQUmem:        {Refuses: "an RQ, SQ, RMP or XRC SRQ in user memory", Status: mlx5.StatusBadParam, Evidence: "assumed; the device takes physical pages for them"},
	badWQSize:       {Refuses: "a work queue of more than 2^15 entries, or with smaller ones than it can have", Status: mlx5.StatusBadParam, Evidence: "status text; the driver keeps to the capability"},
	badWQState:      {Refuses: "a state that a queue is not in, or that it cannot go to", Status: mlx5.StatusBadResState, Evidence: "assumed; driver, mlx5e_modify_rq_state"},
	badRQTSize:      {Refuses: "an RQ table with more entries than it or the device can have", Status: mlx5.StatusBadParam, Evidence: "status text; the driver keeps to log_max_rqt_size"},
	badDisp:         {Refuses: "a TIR that is neither direct nor indirect", Status: mlx5.StatusBadParam, Evidence: "linux/mlx5/mlx5_ifc.h, MLX5_TIRC_DISP_TYPE_*"},
	badVPort:        {Refuses: "another vport than one's own: the function manages no others", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	badListType:     {Refuses: "an address list other than unicast, multicast and VLAN", Status: mlx5.StatusBadParam, Evidence: "linux/mlx5/vport.h, mlx5_list_type"},
	badListSize:     {Refuses: "an address list longer than the command or the capability", Status: mlx5.StatusBadParam, Evidence: "driver, mlx5_modify_nic_vport_mac_list"},
	badVPortMTU:     {Refuses: "an MTU of a port below 68 or above 9978", Status: mlx5.StatusBadParam, Evidence: "driver: mlx5e's least is ETH_MIN_MTU, its most PMTU's max_mtu; the refusal itself assumed"},
	badAdminState:   {Refuses: "an administrative state that a port does not have", Status: mlx5.StatusBadParam, Evidence: "linux/mlx5/mlx5_ifc.h, MLX5_VPORT_ADMIN_STATE_*, MLX5_PORT_UP"},
	badRegister:     {Refuses: "a register that the device does not have", Status: mlx5.StatusBadParam, Evidence: "reported for a query of MPIR on firmware without it, syndrome 0x6c4d48"},
	badRegAccess:    {Refuses: "a write to a register that is only read, or the reverse", Status: mlx5.StatusBadRes, Evidence: "reported for a write that is not permitted, syndrome 0xb06e1f; the reverse assumed"},
	badProtocol:     {Refuses: "PTYS for another protocol than Ethernet", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	badEndianness:   {Refuses: "a host that is not little endian", Status: mlx5.StatusBadParam, Evidence: "driver, set_hca_ctrl writes 0"},
	badTableType:    {Refuses: "flow tables elsewhere than in what the port receives and what send queues of frames send", Status: mlx5.StatusBadParam, Evidence: "assumed; the capability page offers no other"},
	badTable:        {Refuses: "a flow table that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid assumed"},
	badTableSize:    {Refuses: "a flow table over the advertised size or level", Status: mlx5.StatusBadParam, Evidence: "assumed; what is reported for CREATE_FLOW_TABLE (0x754a4, 0xa43321) has other causes"},
	badMiss:         {Refuses: "a miss action that the device does not have, or a table that is its own", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	badGroup:        {Refuses: "a flow group that does not exist or is of another table", Status: mlx5.StatusBadRes, Evidence: "status text"},
	badFlowRange:    {Refuses: "flow indexes outside the table or the group, or in two groups", Status: mlx5.StatusBadParam, Evidence: "assumed; what is reported for CREATE_FLOW_GROUP (0x7e1580, 0x17faa8) and SET_FLOW_TABLE_ENTRY has other causes"},
	badFlow:         {Refuses: "the modification or deletion of a flow that does not exist, or a second one at its index", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	badFlowAction:   {Refuses: "an action or destination that the device does not advertise, or one without the other", Status: mlx5.StatusBadParam, Evidence: "reported for an entry that neither forwards nor drops, syndrome 0x144b7a; the others assumed"},
	badFlowLevel:    {Refuses: "a flow that goes to a table of its own or a lower level, without ignore_flow_level", Status: mlx5.StatusBadParam, Evidence: "reported, syndrome 0x6ae84c; driver, fs_core keeps to it"},
	badGroupGID:     {Refuses: "a multicast group whose GID is none, or one that the queue pair has not joined", Status: mlx5.StatusBadParam, Evidence: "assumed"},
	badComponent:    {Refuses: "a firmware component or kind of information other than the boot image's running version", Status: mlx5.StatusBadParam, Evidence: "assumed; driver, mlx5_get_boot_img_component_index stops at the last one"},
	tableInUse:      {Refuses: "the destruction of a flow table that has groups or is where flows go", Status: mlx5.StatusBadParam, Evidence: "reported, syndromes 0x389e56 and 0x66d6c3"},
	mkeyListSize:    {Refuses: "a memory key of more other keys than log_max_klm_list_size", Status: mlx5.StatusBadParam, Evidence: "status text; driver, mlx5_ib main.c: max_fast_reg_page_list_len"},
	badFlowCounter:  {Refuses: "a flow counter that does not exist or has another uid", Status: mlx5.StatusBadRes, Evidence: "status text; foreign uid assumed"},
}

func init() {
	for i := range checks {
		checks[i].ID = uint32(i)
	}
}

// Checks returns everything that the device refuses.
func Checks() []Check { return append([]Check(nil), checks[1:]...) }

// CheckOf returns the check that a syndrome of the emulated device names, or
// nil if it is no such syndrome.
func CheckOf(syndrome uint32) *Check {
	id := syndrome &^ SyndromeBase
	if syndrome&0xff000000 != SyndromeBase || id == 0 || id >= uint32(numChecks) {
		return nil
	}
	c := checks[id]
	return &c
}

// ChecksMarkdown returns the table for docs/.
func ChecksMarkdown() string {
	var b strings.Builder
	b.WriteString("| syndrome | refuses | status | evidence |\n|---|---|---|---|\n")
	for _, c := range Checks() {
		fmt.Fprintf(&b, "| %#x | %s | %#x %s | %s |\n", c.Syndrome(), c.Refuses, uint8(c.Status), c.Status, c.Evidence)
	}
	return b.String()
}
