// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"
)

// views has the type of each layout, since reflection cannot list them.
var views = []struct {
	layout string
	view   any
	size   int
}{
	{"general_obj_in_cmd_hdr", CmdIn(nil), CmdInSize},
	{"general_obj_out_cmd_hdr", CmdOut(nil), CmdOutSize},
	{"ads", ADS(nil), ADSSize},
	{"qpc", QPC(nil), QPCSize},
	{"cqc", CQC(nil), CQCSize},
	{"mkc", MKC(nil), MKCSize},
	{"umem", UmemContext(nil), UmemContextSize},
	{"uctx", UCTXContext(nil), UCTXContextSize},
	{"roce_addr_layout", RoCEAddrLayout(nil), RoCEAddrLayoutSize},
	{"roce_cap", RoCECap(nil), RoCECapSize},
	{"cmd_hca_cap", HCACap(nil), HCACapSize},
	{"query_adapter_param_block", QueryAdapterParamBlock(nil), QueryAdapterParamBlockSize},
	{"query_hca_cap_in", QueryHCACapIn(nil), QueryHCACapInSize},
	{"query_hca_cap_out", QueryHCACapOut(nil), QueryHCACapOutSize},
	{"query_adapter_in", QueryAdapterIn(nil), QueryAdapterInSize},
	{"query_adapter_out", QueryAdapterOut(nil), QueryAdapterOutSize},
	{"query_roce_address_in", QueryRoCEAddressIn(nil), QueryRoCEAddressInSize},
	{"query_roce_address_out", QueryRoCEAddressOut(nil), QueryRoCEAddressOutSize},
	{"set_roce_address_in", SetRoCEAddressIn(nil), SetRoCEAddressInSize},
	{"set_roce_address_out", SetRoCEAddressOut(nil), SetRoCEAddressOutSize},
	{"query_issi_in", QueryISSIIn(nil), QueryISSIInSize},
	{"query_issi_out", QueryISSIOut(nil), QueryISSIOutSize},
	{"nop_in", NOPIn(nil), NOPInSize},
	{"nop_out", NOPOut(nil), NOPOutSize},
	{"alloc_pd_in", AllocPDIn(nil), AllocPDInSize},
	{"alloc_pd_out", AllocPDOut(nil), AllocPDOutSize},
	{"dealloc_pd_in", DeallocPDIn(nil), DeallocPDInSize},
	{"dealloc_pd_out", DeallocPDOut(nil), DeallocPDOutSize},
	{"alloc_uar_in", AllocUARIn(nil), AllocUARInSize},
	{"alloc_uar_out", AllocUAROut(nil), AllocUAROutSize},
	{"dealloc_uar_in", DeallocUARIn(nil), DeallocUARInSize},
	{"dealloc_uar_out", DeallocUAROut(nil), DeallocUAROutSize},
	{"create_uctx_in", CreateUCTXIn(nil), CreateUCTXInSize},
	{"create_uctx_out", CreateUCTXOut(nil), CreateUCTXOutSize},
	{"destroy_uctx_in", DestroyUCTXIn(nil), DestroyUCTXInSize},
	{"destroy_uctx_out", DestroyUCTXOut(nil), DestroyUCTXOutSize},
	{"create_umem_in", CreateUmemIn(nil), CreateUmemInSize},
	{"create_umem_out", CreateUmemOut(nil), CreateUmemOutSize},
	{"destroy_umem_in", DestroyUmemIn(nil), DestroyUmemInSize},
	{"destroy_umem_out", DestroyUmemOut(nil), DestroyUmemOutSize},
	{"create_mkey_in", CreateMKeyIn(nil), CreateMKeyInSize},
	{"create_mkey_out", CreateMKeyOut(nil), CreateMKeyOutSize},
	{"query_mkey_in", QueryMKeyIn(nil), QueryMKeyInSize},
	{"query_mkey_out", QueryMKeyOut(nil), QueryMKeyOutSize},
	{"destroy_mkey_in", DestroyMKeyIn(nil), DestroyMKeyInSize},
	{"destroy_mkey_out", DestroyMKeyOut(nil), DestroyMKeyOutSize},
	{"create_cq_in", CreateCQIn(nil), CreateCQInSize},
	{"create_cq_out", CreateCQOut(nil), CreateCQOutSize},
	{"query_cq_in", QueryCQIn(nil), QueryCQInSize},
	{"query_cq_out", QueryCQOut(nil), QueryCQOutSize},
	{"modify_cq_in", ModifyCQIn(nil), ModifyCQInSize},
	{"modify_cq_out", ModifyCQOut(nil), ModifyCQOutSize},
	{"destroy_cq_in", DestroyCQIn(nil), DestroyCQInSize},
	{"destroy_cq_out", DestroyCQOut(nil), DestroyCQOutSize},
	{"create_eq_in", CreateEQIn(nil), CreateEQInSize},
	{"create_eq_out", CreateEQOut(nil), CreateEQOutSize},
	{"destroy_eq_in", DestroyEQIn(nil), DestroyEQInSize},
	{"destroy_eq_out", DestroyEQOut(nil), DestroyEQOutSize},
	{"eqc", EQC(nil), EQCSize},
	{"create_qp_in", CreateQPIn(nil), CreateQPInSize},
	{"create_qp_out", CreateQPOut(nil), CreateQPOutSize},
	{"query_qp_in", QueryQPIn(nil), QueryQPInSize},
	{"query_qp_out", QueryQPOut(nil), QueryQPOutSize},
	{"destroy_qp_in", DestroyQPIn(nil), DestroyQPInSize},
	{"destroy_qp_out", DestroyQPOut(nil), DestroyQPOutSize},
	{"rst2init_qp_in", RST2INITQPIn(nil), RST2INITQPInSize},
	{"rst2init_qp_out", RST2INITQPOut(nil), RST2INITQPOutSize},
	{"init2init_qp_in", INIT2INITQPIn(nil), INIT2INITQPInSize},
	{"init2init_qp_out", INIT2INITQPOut(nil), INIT2INITQPOutSize},
	{"init2rtr_qp_in", INIT2RTRQPIn(nil), INIT2RTRQPInSize},
	{"init2rtr_qp_out", INIT2RTRQPOut(nil), INIT2RTRQPOutSize},
	{"rtr2rts_qp_in", RTR2RTSQPIn(nil), RTR2RTSQPInSize},
	{"rtr2rts_qp_out", RTR2RTSQPOut(nil), RTR2RTSQPOutSize},
	{"rts2rts_qp_in", RTS2RTSQPIn(nil), RTS2RTSQPInSize},
	{"rts2rts_qp_out", RTS2RTSQPOut(nil), RTS2RTSQPOutSize},
	{"sqerr2rts_qp_in", SQERR2RTSQPIn(nil), SQERR2RTSQPInSize},
	{"sqerr2rts_qp_out", SQERR2RTSQPOut(nil), SQERR2RTSQPOutSize},
	{"qp_2err_in", ToERRQPIn(nil), ToERRQPInSize},
	{"qp_2err_out", ToERRQPOut(nil), ToERRQPOutSize},
	{"qp_2rst_in", ToRSTQPIn(nil), ToRSTQPInSize},
	{"qp_2rst_out", ToRSTQPOut(nil), ToRSTQPOutSize},
	{"alloc_q_counter_in", AllocQCounterIn(nil), AllocQCounterInSize},
	{"alloc_q_counter_out", AllocQCounterOut(nil), AllocQCounterOutSize},
	{"dealloc_q_counter_in", DeallocQCounterIn(nil), DeallocQCounterInSize},
	{"dealloc_q_counter_out", DeallocQCounterOut(nil), DeallocQCounterOutSize},
	{"query_q_counter_in", QueryQCounterIn(nil), QueryQCounterInSize},
	{"query_q_counter_out", QueryQCounterOut(nil), QueryQCounterOutSize},
	{"enable_hca_in", EnableHCAIn(nil), EnableHCAInSize},
	{"enable_hca_out", EnableHCAOut(nil), EnableHCAOutSize},
	{"disable_hca_in", DisableHCAIn(nil), DisableHCAInSize},
	{"disable_hca_out", DisableHCAOut(nil), DisableHCAOutSize},
	{"init_hca_in", InitHCAIn(nil), InitHCAInSize},
	{"init_hca_out", InitHCAOut(nil), InitHCAOutSize},
	{"teardown_hca_in", TeardownHCAIn(nil), TeardownHCAInSize},
	{"teardown_hca_out", TeardownHCAOut(nil), TeardownHCAOutSize},
	{"query_pages_in", QueryPagesIn(nil), QueryPagesInSize},
	{"query_pages_out", QueryPagesOut(nil), QueryPagesOutSize},
	{"manage_pages_in", ManagePagesIn(nil), ManagePagesInSize},
	{"manage_pages_out", ManagePagesOut(nil), ManagePagesOutSize},
	{"set_issi_in", SetISSIIn(nil), SetISSIInSize},
	{"set_issi_out", SetISSIOut(nil), SetISSIOutSize},
	{"set_hca_cap_in", SetHCACapIn(nil), SetHCACapInSize},
	{"set_hca_cap_out", SetHCACapOut(nil), SetHCACapOutSize},
	{"access_register_in", AccessRegisterIn(nil), AccessRegisterInSize},
	{"access_register_out", AccessRegisterOut(nil), AccessRegisterOutSize},
	{"ptys_reg", PTYSReg(nil), PTYSRegSize},
	{"pmtu_reg", PMTUReg(nil), PMTURegSize},
	{"paos_reg", PAOSReg(nil), PAOSRegSize},
	{"dtor_reg", DtorReg(nil), DtorRegSize},
	{"default_timeout", DefaultTimeout(nil), DefaultTimeoutSize},
	{"mad_ifc_in", MADIfcIn(nil), MADIfcInSize},
	{"mad_ifc_out", MADIfcOut(nil), MADIfcOutSize},
	{"atomic_caps", AtomicCaps(nil), AtomicCapsSize},
	{"per_protocol_networking_offload_caps", PerProtocolNetworkingOffloadCaps(nil), PerProtocolNetworkingOffloadCapsSize},
	{"flow_table_nic_cap", FlowTableNICCap(nil), FlowTableNICCapSize},
	{"flow_table_prop_layout", FlowTablePropLayout(nil), FlowTablePropLayoutSize},
	{"flow_table_fields_supported", FlowTableFieldsSupported(nil), FlowTableFieldsSupportedSize},
	{"query_special_contexts_in", QuerySpecialContextsIn(nil), QuerySpecialContextsInSize},
	{"query_special_contexts_out", QuerySpecialContextsOut(nil), QuerySpecialContextsOutSize},
	{"query_eq_in", QueryEQIn(nil), QueryEQInSize},
	{"query_eq_out", QueryEQOut(nil), QueryEQOutSize},
	{"nic_vport_context", NICVPortContext(nil), NICVPortContextSize},
	{"query_nic_vport_context_in", QueryNICVPortContextIn(nil), QueryNICVPortContextInSize},
	{"query_nic_vport_context_out", QueryNICVPortContextOut(nil), QueryNICVPortContextOutSize},
	{"modify_nic_vport_field_select", ModifyNICVPortFieldSelect(nil), ModifyNICVPortFieldSelectSize},
	{"modify_nic_vport_context_in", ModifyNICVPortContextIn(nil), ModifyNICVPortContextInSize},
	{"modify_nic_vport_context_out", ModifyNICVPortContextOut(nil), ModifyNICVPortContextOutSize},
	{"query_vport_state_in", QueryVPortStateIn(nil), QueryVPortStateInSize},
	{"query_vport_state_out", QueryVPortStateOut(nil), QueryVPortStateOutSize},
	{"modify_vport_state_in", ModifyVPortStateIn(nil), ModifyVPortStateInSize},
	{"modify_vport_state_out", ModifyVPortStateOut(nil), ModifyVPortStateOutSize},
	{"query_hca_vport_pkey_in", QueryHCAVPortPkeyIn(nil), QueryHCAVPortPkeyInSize},
	{"query_hca_vport_pkey_out", QueryHCAVPortPkeyOut(nil), QueryHCAVPortPkeyOutSize},
	{"query_vport_counter_in", QueryVPortCounterIn(nil), QueryVPortCounterInSize},
	{"query_vport_counter_out", QueryVPortCounterOut(nil), QueryVPortCounterOutSize},
	{"alloc_xrcd_in", AllocXRCDIn(nil), AllocXRCDInSize},
	{"alloc_xrcd_out", AllocXRCDOut(nil), AllocXRCDOutSize},
	{"dealloc_xrcd_in", DeallocXRCDIn(nil), DeallocXRCDInSize},
	{"dealloc_xrcd_out", DeallocXRCDOut(nil), DeallocXRCDOutSize},
	{"alloc_transport_domain_in", AllocTransportDomainIn(nil), AllocTransportDomainInSize},
	{"alloc_transport_domain_out", AllocTransportDomainOut(nil), AllocTransportDomainOutSize},
	{"dealloc_transport_domain_in", DeallocTransportDomainIn(nil), DeallocTransportDomainInSize},
	{"dealloc_transport_domain_out", DeallocTransportDomainOut(nil), DeallocTransportDomainOutSize},
	{"wq", WQ(nil), WQSize},
	{"rmpc", RMPC(nil), RMPCSize},
	{"rmp_bitmask", RMPBitmask(nil), RMPBitmaskSize},
	{"create_rmp_in", CreateRMPIn(nil), CreateRMPInSize},
	{"create_rmp_out", CreateRMPOut(nil), CreateRMPOutSize},
	{"query_rmp_in", QueryRMPIn(nil), QueryRMPInSize},
	{"query_rmp_out", QueryRMPOut(nil), QueryRMPOutSize},
	{"modify_rmp_in", ModifyRMPIn(nil), ModifyRMPInSize},
	{"modify_rmp_out", ModifyRMPOut(nil), ModifyRMPOutSize},
	{"destroy_rmp_in", DestroyRMPIn(nil), DestroyRMPInSize},
	{"destroy_rmp_out", DestroyRMPOut(nil), DestroyRMPOutSize},
	{"xrc_srqc", XRCSRQC(nil), XRCSRQCSize},
	{"create_xrc_srq_in", CreateXRCSRQIn(nil), CreateXRCSRQInSize},
	{"create_xrc_srq_out", CreateXRCSRQOut(nil), CreateXRCSRQOutSize},
	{"query_xrc_srq_in", QueryXRCSRQIn(nil), QueryXRCSRQInSize},
	{"query_xrc_srq_out", QueryXRCSRQOut(nil), QueryXRCSRQOutSize},
	{"arm_xrc_srq_in", ArmXRCSRQIn(nil), ArmXRCSRQInSize},
	{"arm_xrc_srq_out", ArmXRCSRQOut(nil), ArmXRCSRQOutSize},
	{"destroy_xrc_srq_in", DestroyXRCSRQIn(nil), DestroyXRCSRQInSize},
	{"destroy_xrc_srq_out", DestroyXRCSRQOut(nil), DestroyXRCSRQOutSize},
	{"rqc", RQC(nil), RQCSize},
	{"create_rq_in", CreateRQIn(nil), CreateRQInSize},
	{"create_rq_out", CreateRQOut(nil), CreateRQOutSize},
	{"query_rq_in", QueryRQIn(nil), QueryRQInSize},
	{"query_rq_out", QueryRQOut(nil), QueryRQOutSize},
	{"modify_rq_in", ModifyRQIn(nil), ModifyRQInSize},
	{"modify_rq_out", ModifyRQOut(nil), ModifyRQOutSize},
	{"destroy_rq_in", DestroyRQIn(nil), DestroyRQInSize},
	{"destroy_rq_out", DestroyRQOut(nil), DestroyRQOutSize},
	{"sqc", SQC(nil), SQCSize},
	{"create_sq_in", CreateSQIn(nil), CreateSQInSize},
	{"create_sq_out", CreateSQOut(nil), CreateSQOutSize},
	{"query_sq_in", QuerySQIn(nil), QuerySQInSize},
	{"query_sq_out", QuerySQOut(nil), QuerySQOutSize},
	{"modify_sq_in", ModifySQIn(nil), ModifySQInSize},
	{"modify_sq_out", ModifySQOut(nil), ModifySQOutSize},
	{"destroy_sq_in", DestroySQIn(nil), DestroySQInSize},
	{"destroy_sq_out", DestroySQOut(nil), DestroySQOutSize},
	{"tisc", TISC(nil), TISCSize},
	{"create_tis_in", CreateTISIn(nil), CreateTISInSize},
	{"create_tis_out", CreateTISOut(nil), CreateTISOutSize},
	{"query_tis_in", QueryTISIn(nil), QueryTISInSize},
	{"query_tis_out", QueryTISOut(nil), QueryTISOutSize},
	{"modify_tis_in", ModifyTISIn(nil), ModifyTISInSize},
	{"modify_tis_out", ModifyTISOut(nil), ModifyTISOutSize},
	{"destroy_tis_in", DestroyTISIn(nil), DestroyTISInSize},
	{"destroy_tis_out", DestroyTISOut(nil), DestroyTISOutSize},
	{"tirc", TIRC(nil), TIRCSize},
	{"create_tir_in", CreateTIRIn(nil), CreateTIRInSize},
	{"create_tir_out", CreateTIROut(nil), CreateTIROutSize},
	{"query_tir_in", QueryTIRIn(nil), QueryTIRInSize},
	{"query_tir_out", QueryTIROut(nil), QueryTIROutSize},
	{"modify_tir_bitmask", ModifyTIRBitmask(nil), ModifyTIRBitmaskSize},
	{"modify_tir_in", ModifyTIRIn(nil), ModifyTIRInSize},
	{"modify_tir_out", ModifyTIROut(nil), ModifyTIROutSize},
	{"destroy_tir_in", DestroyTIRIn(nil), DestroyTIRInSize},
	{"destroy_tir_out", DestroyTIROut(nil), DestroyTIROutSize},
	{"rqtc", RQTC(nil), RQTCSize},
	{"rqt_bitmask", RQTBitmask(nil), RQTBitmaskSize},
	{"create_rqt_in", CreateRQTIn(nil), CreateRQTInSize},
	{"create_rqt_out", CreateRQTOut(nil), CreateRQTOutSize},
	{"query_rqt_in", QueryRQTIn(nil), QueryRQTInSize},
	{"query_rqt_out", QueryRQTOut(nil), QueryRQTOutSize},
	{"modify_rqt_in", ModifyRQTIn(nil), ModifyRQTInSize},
	{"modify_rqt_out", ModifyRQTOut(nil), ModifyRQTOutSize},
	{"destroy_rqt_in", DestroyRQTIn(nil), DestroyRQTInSize},
	{"destroy_rqt_out", DestroyRQTOut(nil), DestroyRQTOutSize},
	{"flow_table_context", FlowTableContext(nil), FlowTableContextSize},
	{"create_flow_table_in", CreateFlowTableIn(nil), CreateFlowTableInSize},
	{"create_flow_table_out", CreateFlowTableOut(nil), CreateFlowTableOutSize},
	{"modify_flow_table_in", ModifyFlowTableIn(nil), ModifyFlowTableInSize},
	{"modify_flow_table_out", ModifyFlowTableOut(nil), ModifyFlowTableOutSize},
	{"destroy_flow_table_in", DestroyFlowTableIn(nil), DestroyFlowTableInSize},
	{"destroy_flow_table_out", DestroyFlowTableOut(nil), DestroyFlowTableOutSize},
	{"set_flow_table_root_in", SetFlowTableRootIn(nil), SetFlowTableRootInSize},
	{"set_flow_table_root_out", SetFlowTableRootOut(nil), SetFlowTableRootOutSize},
	{"create_flow_group_in", CreateFlowGroupIn(nil), CreateFlowGroupInSize},
	{"create_flow_group_out", CreateFlowGroupOut(nil), CreateFlowGroupOutSize},
	{"destroy_flow_group_in", DestroyFlowGroupIn(nil), DestroyFlowGroupInSize},
	{"destroy_flow_group_out", DestroyFlowGroupOut(nil), DestroyFlowGroupOutSize},
	{"flow_context", FlowContext(nil), FlowContextSize},
	{"dest_format_struct", DestFormatStruct(nil), DestFormatStructSize},
	{"set_fte_in", SetFTEIn(nil), SetFTEInSize},
	{"set_fte_out", SetFTEOut(nil), SetFTEOutSize},
	{"delete_fte_in", DeleteFTEIn(nil), DeleteFTEInSize},
	{"delete_fte_out", DeleteFTEOut(nil), DeleteFTEOutSize},
	{"flow_counter_list", FlowCounterList(nil), FlowCounterListSize},
	{"alloc_flow_counter_in", AllocFlowCounterIn(nil), AllocFlowCounterInSize},
	{"alloc_flow_counter_out", AllocFlowCounterOut(nil), AllocFlowCounterOutSize},
	{"dealloc_flow_counter_in", DeallocFlowCounterIn(nil), DeallocFlowCounterInSize},
	{"dealloc_flow_counter_out", DeallocFlowCounterOut(nil), DeallocFlowCounterOutSize},
	{"query_flow_counter_in", QueryFlowCounterIn(nil), QueryFlowCounterInSize},
	{"query_flow_counter_out", QueryFlowCounterOut(nil), QueryFlowCounterOutSize},
	{"qos_cap", QosCap(nil), QosCapSize},
	{"attach_to_mcg_in", AttachToMcgIn(nil), AttachToMcgInSize},
	{"attach_to_mcg_out", AttachToMcgOut(nil), AttachToMcgOutSize},
	{"detach_from_mcg_in", DetachFromMcgIn(nil), DetachFromMcgInSize},
	{"detach_from_mcg_out", DetachFromMcgOut(nil), DetachFromMcgOutSize},
	{"mcam_reg", McamReg(nil), McamRegSize},
	{"pcam_reg", PcamReg(nil), PcamRegSize},
	{"mcqs_reg", McqsReg(nil), McqsRegSize},
	{"mcqi_reg", McqiReg(nil), McqiRegSize},
	{"mcqi_version", McqiVersion(nil), McqiVersionSize},
	{"query_cong_statistics_in", QueryCongStatisticsIn(nil), QueryCongStatisticsInSize},
	{"query_cong_statistics_out", QueryCongStatisticsOut(nil), QueryCongStatisticsOutSize},
	{"device_mem_cap", DeviceMemCap(nil), DeviceMemCapSize},
}

// TestKnownBytes holds layouts against positions that were found by other
// means: rdma-core's mlx5_ifc.h, commands recorded from its programs, and the
// constants in the driver's and rdma-core's code.
func TestKnownBytes(t *testing.T) {
	for _, c := range []struct {
		layout, field string
		byteAt, bit   int // bit 0 is the most significant one of the byte
		width         int
	}{
		{"create_qp_in", "opcode", 0, 0, 16},
		{"create_qp_in", "uid", 2, 0, 16},
		{"create_qp_in", "op_mod", 6, 0, 16},
		{"create_qp_in", "opt_param_mask", 16, 0, 32},
		{"create_qp_in", "qpc.state", 24, 0, 4},
		{"create_qp_in", "qpc.st", 25, 0, 8},
		{"create_qp_in", "qpc.pm_state", 26, 3, 2},
		{"create_qp_in", "qpc.pd", 29, 0, 24},
		{"create_qp_in", "wq_umem_offset", 256, 0, 64},
		{"create_qp_in", "wq_umem_id", 264, 0, 32},
		{"create_qp_in", "wq_umem_valid", 268, 0, 1},
		{"create_qp_out", "status", 0, 0, 8},
		{"create_qp_out", "syndrome", 4, 0, 32},
		{"create_qp_out", "qpn", 9, 0, 24},
		{"qpc", "dbr_umem_valid", 0x683 / 8, 3, 1},
		{"qpc", "dbr_umem_id", 228, 0, 32},
		{"qpc", "primary_address_path.vhca_port_num", 24 + 37, 0, 8},
		{"qpc", "primary_address_path.rgid_rip", 24 + 16, 0, 128},
		{"qpc", "primary_address_path.rmac_47_32", 24 + 38, 0, 16},
		{"qpc", "primary_address_path.rmac_31_0", 24 + 40, 0, 32},
		{"create_cq_in", "cq_context.dbr_umem_id", 16 + 4, 0, 32},
		{"create_cq_in", "cq_umem_offset", 80, 0, 64},
		{"create_cq_in", "cq_umem_id", 88, 0, 32},
		{"create_cq_in", "cq_umem_valid", 92, 0, 1},
		{"create_umem_in", "umem.log_page_size", 16 + 19, 3, 5},
		{"create_umem_in", "umem.page_offset", 36, 0, 32},
		{"create_umem_in", "umem.num_of_mtt", 40, 0, 64},
		{"create_mkey_in", "memory_key_mkey_entry.start_addr", 16 + 16, 0, 64},
		{"rst2init_qp_in", "qpn", 9, 0, 24},
		{"rtr2rts_qp_in", "qpc.next_send_psn", 24 + 0x79, 0, 24},
		{"qp_2err_in", "qpn", 9, 0, 24},
		{"query_qp_out", "qpc.state", 24, 0, 4},
	} {
		l := LayoutOf(c.layout)
		if l == nil {
			t.Errorf("no layout of %s", c.layout)
			continue
		}
		f := l.Field(c.field)
		if f == nil {
			t.Errorf("%s has no field %s", c.layout, c.field)
		} else if f.Offset != 8*c.byteAt+c.bit || f.Width != c.width {
			t.Errorf("%s.%s: %d bits at bit %#x, want %d at %#x", c.layout, c.field, f.Width, f.Offset, c.width, 8*c.byteAt+c.bit)
		}
	}
	for layout, size := range map[string]int{
		"create_qp_in": 272, "create_qp_out": 16, "create_cq_in": 272, "create_mkey_in": 272, "create_eq_in": 272, "query_qp_out": 272,
		"rst2init_qp_in": 272, "init2init_qp_in": 272, "init2rtr_qp_in": 272, "rtr2rts_qp_in": 272, "rts2rts_qp_in": 272, "sqerr2rts_qp_in": 272,
		"qp_2err_in": 16, "qp_2rst_in": 16, "qpc": 232, "cqc": 64, "mkc": 64, "ads": 44, "cmd_hca_cap": 256, "create_umem_in": 48,
		"general_obj_in_cmd_hdr": 16, "general_obj_out_cmd_hdr": 16,
	} {
		if l := LayoutOf(layout); l == nil {
			t.Errorf("no layout of %s", layout)
		} else if l.Bytes != size {
			t.Errorf("%s has %d bytes, want %d", layout, l.Bytes, size)
		}
	}
	if LayoutOf("no_such") != nil || LayoutOf("qpc").Field("no_such") != nil {
		t.Error("what does not exist was found")
	}
}

// The published exchange: CREATE_QP by uid 2, answered with QPN 0x40121, and
// one that was refused.
func TestPublishedExchange(t *testing.T) {
	in := make(CreateQPIn, CreateQPInSize)
	if _, err := (CreateQP{RQType: RQNone}).Encode(in); err != nil {
		t.Fatal(err)
	}
	in.SetUID(2)
	if want := []byte{5, 0, 0, 2}; !bytes.Equal(in[:4], want) {
		t.Errorf("the request begins %x, want %x", in[:4], want)
	}
	if op := OpOf(in); op != OpCreateQP {
		t.Errorf("OpOf = %s", op)
	}
	good := CreateQPOut{0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0x21, 0, 0, 0, 0}
	if st, syn := StatusOf(good); good.QPN() != 0x40121 || st != StatusOK || syn != 0 {
		t.Errorf("success: QPN %#x, status %s, syndrome %#x", good.QPN(), st, syn)
	}
	bad := CreateQPOut{5, 0, 0, 0, 0, 0x65, 0xb5, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if st, syn := StatusOf(bad); st != StatusBadRes || syn != 0x65b500 {
		t.Errorf("failure: status %s, syndrome %#x", st, syn)
	}
}

func TestLayoutFieldBits(t *testing.T) {
	b := []byte{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 0xff}
	for _, c := range []struct {
		offset, width int
		want          uint64
		ok            bool
	}{
		{0, 8, 0x12, true}, {4, 8, 0x23, true}, {3, 1, 1, true}, {4, 1, 0, true}, {12, 24, 0x456789, true},
		{0, 64, 0x123456789abcdef0, true}, {8, 64, 0x3456789abcdef0ff, true}, {64, 8, 0xff, true}, {71, 1, 1, true}, {0, 0, 0, true},
		{0, 65, 0, false}, {65, 8, 0, false}, {72, 1, 0, false}, {-1, 1, 0, false},
	} {
		f := LayoutField{"f", c.offset, c.width}
		if got, ok := f.Bits(b); got != c.want || ok != c.ok {
			t.Errorf("%d bits at %d: %#x, %v; want %#x, %v", c.width, c.offset, got, ok, c.want, c.ok)
		}
	}
}

// lookup finds the method of a field by its name in mlx5_ifc.h, whatever the
// generator does to capitals and underscores.
func lookup(v reflect.Value, prefix, field string) (reflect.Value, string) {
	names := methods[v.Type()]
	if names == nil {
		names = map[string]int{}
		for i := range v.NumMethod() {
			names[strings.ToLower(v.Type().Method(i).Name)] = i
		}
		methods[v.Type()] = names
	}
	i, ok := names[strings.ToLower(prefix+strings.ReplaceAll(field, "_", ""))]
	if !ok {
		return reflect.Value{}, ""
	}
	return v.Method(i), v.Type().Method(i).Name
}

// methods has the methods of each view by their names in lower case.
var methods = map[reflect.Type]map[string]int{}

// setBits writes a field bit by bit.
func setBits(b []byte, offset, width int, x uint64) {
	for i := range width {
		at, mask := (offset+i)/8, byte(0x80)>>((offset+i)%8)
		b[at] &^= mask
		if x>>(width-1-i)&1 != 0 {
			b[at] |= mask
		}
	}
}

// TestViews calls each accessor of each view and holds it against the layout
// table: what Set writes, Get returns and LayoutField.Bits reads, at that place
// and at no other.
func TestViews(t *testing.T) {
	if len(views) != len(layouts) {
		t.Errorf("%d views, %d layouts", len(views), len(layouts))
	}
	for _, c := range views {
		t.Run(c.layout, func(t *testing.T) {
			l := LayoutOf(c.layout)
			if l == nil {
				t.Fatal("no layout")
			}
			if l.Bytes != c.size {
				t.Errorf("the layout has %d bytes, the view %d", l.Bytes, c.size)
			}
			typ := reflect.TypeOf(c.view)
			called := map[string]bool{}
			for i := range l.Fields {
				checkField(t, typ, l, &l.Fields[i], called)
			}
			for i := range typ.NumMethod() {
				if m := typ.Method(i); !called[m.Name] {
					checkTrailing(t, typ, m.Name, l.Bytes)
				}
			}
		})
	}
}

// of returns b as a view of the type.
func of(typ reflect.Type, b []byte) reflect.Value { return reflect.ValueOf(b).Convert(typ) }

func checkField(t *testing.T, typ reflect.Type, l *Layout, f *LayoutField, called map[string]bool) {
	if f.Offset < 0 || f.Width < 1 || f.Offset+f.Width > 8*l.Bytes {
		t.Errorf("%s leaves its struct", f.Name)
		return
	}
	path := strings.Split(f.Name, ".")
	last := path[len(path)-1]
	// descend returns the view that has the field, or the zero Value where the
	// enclosing struct has no view of its own.
	descend := func(b []byte) reflect.Value {
		v := of(typ, b)
		for i, p := range path[:len(path)-1] {
			m, name := lookup(v, "", p)
			if !m.IsValid() {
				t.Errorf("%s: %s has no method for %s", f.Name, v.Type(), p)
				return reflect.Value{}
			}
			if i == 0 {
				called[name] = true
			}
			if v = m.Call(nil)[0]; v.NumMethod() == 0 {
				return reflect.Value{}
			}
		}
		return v
	}
	probe := descend(make([]byte, l.Bytes))
	if !probe.IsValid() {
		return
	}
	getter, getName := lookup(probe, "", last)
	setter, setName := lookup(probe, "set", last)
	if len(path) == 1 {
		called[getName], called[setName] = true, true
	}
	if !getter.IsValid() {
		if l.Name != "cmd_hca_cap" { // has accessors for a selection
			t.Errorf("%s has no accessor", f.Name)
		}
		return
	}
	if getter.Type().Out(0).Kind() == reflect.Slice {
		checkAlias(t, func(b []byte) []byte { m, _ := lookup(descend(b), "", last); return m.Call(nil)[0].Bytes() }, f.Name, f.Offset, f.Width, l.Bytes)
		return
	}
	if !setter.IsValid() {
		t.Errorf("%s has no Set method", f.Name)
		return
	}
	arg := setter.Type().In(0)
	if getter.Type().Out(0) != arg {
		t.Errorf("%s: Set takes %s, Get returns %s", f.Name, arg, getter.Type().Out(0))
	}
	fit := uint64(math.MaxUint64) >> (64 - f.Width)
	for _, background := range []byte{0x00, 0xff, 0x5a} {
		for _, x := range []uint64{0, 1, fit, 0xa5a5a5a5a5a5a5a5 & fit, fit &^ 1, math.MaxUint64, math.MaxUint64 << f.Width} {
			if arg.Kind() == reflect.Bool && x > 1 {
				continue
			}
			if arg.Kind() != reflect.Bool {
				x &= math.MaxUint64 >> (64 - arg.Bits()) // what the parameter holds; more than the field does
			}
			got := bytes.Repeat([]byte{background}, l.Bytes)
			want := bytes.Clone(got)
			setBits(want, f.Offset, f.Width, x)
			v := descend(got)
			set, _ := lookup(v, "set", last)
			a := reflect.New(arg).Elem()
			if arg.Kind() == reflect.Bool {
				a.SetBool(x == 1)
			} else {
				a.SetUint(x)
			}
			set.Call([]reflect.Value{a})
			if !bytes.Equal(got, want) {
				t.Errorf("%s = %#x on %#x writes\n%x, want\n%x", f.Name, x, background, got, want)
				return
			}
			get, _ := lookup(v, "", last)
			back, out := uint64(0), get.Call(nil)[0]
			if out.Kind() == reflect.Bool {
				if out.Bool() {
					back = 1
				}
			} else {
				back = out.Uint()
			}
			bits, ok := f.Bits(got)
			if back != x&fit || bits != x&fit || !ok {
				t.Errorf("%s: set %#x, Get returns %#x, Bits %#x, %v", f.Name, x, back, bits, ok)
				return
			}
		}
	}
}

// checkAlias checks that a method returns these bytes of the view, with no
// room to append to them.
func checkAlias(t *testing.T, get func(b []byte) []byte, name string, offset, width, size int) {
	b := make([]byte, size+64)
	want := make([]byte, size+64)
	setBits(want[offset/8:], offset%8, min(width, 8), math.MaxUint64)
	for i := offset / 8; i < (offset+width)/8; i++ {
		want[i] = 0xff
	}
	got := get(b)
	for i := range got {
		got[i] = 0xff
	}
	if !bytes.Equal(b, want) {
		t.Errorf("%s does not return the %d bytes at %d", name, width/8, offset/8)
	}
	if cap(got) != len(got) {
		t.Errorf("%s: %d bytes with room for %d", name, len(got), cap(got))
	}
}

// checkTrailing checks a method that no row of the layout table stands for: it
// returns the array at the end, or a part that is not spelled out there.
func checkTrailing(t *testing.T, typ reflect.Type, method string, size int) {
	get := func(b []byte) []byte {
		m := of(typ, b).MethodByName(method)
		if m.Type().NumIn() != 0 || m.Type().Out(0).Kind() != reflect.Slice {
			t.Fatalf("method %s of %s stands for no field of the layout", method, typ)
		}
		return m.Call(nil)[0].Bytes()
	}
	b := make([]byte, size+64)
	got := get(b)
	if len(got) > 0 && &got[len(got)-1] == &b[len(b)-1] {
		if len(got) != 64 {
			t.Errorf("%s returns the last %d of %d bytes, want 64", method, len(got), len(b))
		}
		return
	}
	known := map[string][2]int{ // offset and size in bytes
		"Capability":                         {16, 4096},
		"Bsf0Klm0PASMtt01":                   {272, 16},
		"Bsf1Klm1PASMtt23":                   {288, 16},
		"ModifyFieldSelectResizeFieldSelect": {12, 4},
	}
	if k, ok := known[method]; !ok {
		t.Errorf("method %s of %s stands for no field of the layout", method, typ)
	} else {
		checkAlias(t, get, method, 8*k[0], 8*k[1], size)
	}
}
