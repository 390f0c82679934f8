// SPDX-License-Identifier: BSD-2-Clause

package abi

// The structs of the verbs write commands (ib_user_verbs.h) and the mlx5
// driver's own parts of them (mlx5-abi.h). The tag c is the member's name there;
// driver_data is left out: the driver's part follows the struct.

// CmdHdr is struct ib_uverbs_cmd_hdr: what write(2) begins with. The lengths
// are in words of 4 bytes, the header included in the first; of an extended
// command in words of 8 bytes without headers and driver parts.
type CmdHdr struct {
	Command  uint32 `c:"command"`
	InWords  uint16 `c:"in_words"`
	OutWords uint16 `c:"out_words"`
}

// ExCmdHdr is struct ib_uverbs_ex_cmd_hdr, behind CmdHdr in an extended command.
type ExCmdHdr struct {
	Response         uint64 `c:"response"`
	ProviderInWords  uint16 `c:"provider_in_words"`
	ProviderOutWords uint16 `c:"provider_out_words"`
	Reserved         uint32 `c:"cmd_hdr_reserved"`
}

// AllocPD is struct ib_uverbs_alloc_pd.
type AllocPD struct {
	Response uint64 `c:"response"`
}

// AllocPDResp is struct ib_uverbs_alloc_pd_resp.
type AllocPDResp struct {
	PDHandle uint32 `c:"pd_handle"`
}

// MLX5AllocPDResp is struct mlx5_ib_alloc_pd_resp.
type MLX5AllocPDResp struct {
	PDN uint32 `c:"pdn"`
}

// DeallocPD is struct ib_uverbs_dealloc_pd.
type DeallocPD struct {
	PDHandle uint32 `c:"pd_handle"`
}

// RegMR is struct ib_uverbs_reg_mr.
type RegMR struct {
	Response    uint64 `c:"response"`
	Start       uint64 `c:"start"`
	Length      uint64 `c:"length"`
	HCAVA       uint64 `c:"hca_va"`
	PDHandle    uint32 `c:"pd_handle"`
	AccessFlags uint32 `c:"access_flags"`
}

// RegMRResp is struct ib_uverbs_reg_mr_resp.
type RegMRResp struct {
	MRHandle uint32 `c:"mr_handle"`
	LKey     uint32 `c:"lkey"`
	RKey     uint32 `c:"rkey"`
}

// DeregMR is struct ib_uverbs_dereg_mr.
type DeregMR struct {
	MRHandle uint32 `c:"mr_handle"`
}

// CreateCQ is struct ib_uverbs_create_cq.
type CreateCQ struct {
	Response    uint64 `c:"response"`
	UserHandle  uint64 `c:"user_handle"`
	CQE         uint32 `c:"cqe"`
	CompVector  uint32 `c:"comp_vector"`
	CompChannel int32  `c:"comp_channel"` // file descriptor, -1 for none
	Reserved    uint32 `c:"reserved"`
}

// CreateCQResp is struct ib_uverbs_create_cq_resp.
type CreateCQResp struct {
	CQHandle uint32 `c:"cq_handle"`
	CQE      uint32 `c:"cqe"`
}

// MLX5CreateCQ is struct mlx5_ib_create_cq.
type MLX5CreateCQ struct {
	BufAddr          uint64 `c:"buf_addr"`
	DBAddr           uint64 `c:"db_addr"`
	CQESize          uint32 `c:"cqe_size"`
	CQECompEn        uint8  `c:"cqe_comp_en"`
	CQECompResFormat uint8  `c:"cqe_comp_res_format"`
	Flags            uint16 `c:"flags"` // MLX5_IB_CREATE_CQ_FLAGS_*
	UARPageIndex     uint16 `c:"uar_page_index"`
	Reserved0        uint16 `c:"reserved0"`
	Reserved1        uint32 `c:"reserved1"`
}

// MLX5CreateCQResp is struct mlx5_ib_create_cq_resp.
type MLX5CreateCQResp struct {
	CQN      uint32 `c:"cqn"`
	Reserved uint32 `c:"reserved"`
}

// DestroyCQ is struct ib_uverbs_destroy_cq.
type DestroyCQ struct {
	Response uint64 `c:"response"`
	CQHandle uint32 `c:"cq_handle"`
	Reserved uint32 `c:"reserved"`
}

// DestroyCQResp is struct ib_uverbs_destroy_cq_resp.
type DestroyCQResp struct {
	CompEventsReported  uint32 `c:"comp_events_reported"`
	AsyncEventsReported uint32 `c:"async_events_reported"`
}

// CreateQP is struct ib_uverbs_create_qp.
type CreateQP struct {
	Response      uint64 `c:"response"`
	UserHandle    uint64 `c:"user_handle"`
	PDHandle      uint32 `c:"pd_handle"`
	SendCQHandle  uint32 `c:"send_cq_handle"`
	RecvCQHandle  uint32 `c:"recv_cq_handle"`
	SRQHandle     uint32 `c:"srq_handle"`
	MaxSendWR     uint32 `c:"max_send_wr"`
	MaxRecvWR     uint32 `c:"max_recv_wr"`
	MaxSendSGE    uint32 `c:"max_send_sge"`
	MaxRecvSGE    uint32 `c:"max_recv_sge"`
	MaxInlineData uint32 `c:"max_inline_data"`
	SQSigAll      uint8  `c:"sq_sig_all"`
	QPType        uint8  `c:"qp_type"` // IB_UVERBS_QPT_*
	IsSRQ         uint8  `c:"is_srq"`
	Reserved      uint8  `c:"reserved"`
}

// CreateQPResp is struct ib_uverbs_create_qp_resp.
type CreateQPResp struct {
	QPHandle      uint32 `c:"qp_handle"`
	QPN           uint32 `c:"qpn"`
	MaxSendWR     uint32 `c:"max_send_wr"`
	MaxRecvWR     uint32 `c:"max_recv_wr"`
	MaxSendSGE    uint32 `c:"max_send_sge"`
	MaxRecvSGE    uint32 `c:"max_recv_sge"`
	MaxInlineData uint32 `c:"max_inline_data"`
	Reserved      uint32 `c:"reserved"`
}

// MLX5CreateQP is struct mlx5_ib_create_qp.
type MLX5CreateQP struct {
	BufAddr    uint64   `c:"buf_addr"`
	DBAddr     uint64   `c:"db_addr"`
	SQWQECount uint32   `c:"sq_wqe_count"` // units of 64 bytes
	RQWQECount uint32   `c:"rq_wqe_count"`
	RQWQEShift uint32   `c:"rq_wqe_shift"`
	Flags      uint32   `c:"flags"` // MLX5_QP_FLAG_*
	UIDX       uint32   `c:"uidx"`
	BFRegIndex uint32   `c:"bfreg_index"` // with UAR_PAGE_INDEX: the page's id
	SQBufAddr  uint64   `c:"sq_buf_addr"`
	ECEOptions uint32   `c:"ece_options"`
	DCIStreams [2]uint8 `c:"dci_streams"`
	Reserved   uint16   `c:"reserved"`
}

// MLX5CreateQPResp is struct mlx5_ib_create_qp_resp.
type MLX5CreateQPResp struct {
	BFRegIndex uint32 `c:"bfreg_index"`
	ECEOptions uint32 `c:"ece_options"`
	CompMask   uint32 `c:"comp_mask"`
	TIRN       uint32 `c:"tirn"`
	TISN       uint32 `c:"tisn"`
	RQN        uint32 `c:"rqn"`
	SQN        uint32 `c:"sqn"`
	Reserved1  uint32 `c:"reserved1"`
	TIRICMAddr uint64 `c:"tir_icm_addr"`
}

// QPDest is struct ib_uverbs_qp_dest, an address vector.
type QPDest struct {
	DGID         [16]uint8 `c:"dgid"`
	FlowLabel    uint32    `c:"flow_label"`
	DLID         uint16    `c:"dlid"`
	Reserved     uint16    `c:"reserved"`
	SGIDIndex    uint8     `c:"sgid_index"`
	HopLimit     uint8     `c:"hop_limit"`
	TrafficClass uint8     `c:"traffic_class"`
	SL           uint8     `c:"sl"`
	SrcPathBits  uint8     `c:"src_path_bits"`
	StaticRate   uint8     `c:"static_rate"`
	IsGlobal     uint8     `c:"is_global"`
	PortNum      uint8     `c:"port_num"`
}

// ModifyQP is struct ib_uverbs_modify_qp.
type ModifyQP struct {
	Dest             QPDest   `c:"dest"`
	AltDest          QPDest   `c:"alt_dest"`
	QPHandle         uint32   `c:"qp_handle"`
	AttrMask         uint32   `c:"attr_mask"` // IB_QP_*
	QKey             uint32   `c:"qkey"`
	RQPSN            uint32   `c:"rq_psn"`
	SQPSN            uint32   `c:"sq_psn"`
	DestQPNum        uint32   `c:"dest_qp_num"`
	QPAccessFlags    uint32   `c:"qp_access_flags"`
	PkeyIndex        uint16   `c:"pkey_index"`
	AltPkeyIndex     uint16   `c:"alt_pkey_index"`
	QPState          uint8    `c:"qp_state"`
	CurQPState       uint8    `c:"cur_qp_state"`
	PathMTU          uint8    `c:"path_mtu"`
	PathMigState     uint8    `c:"path_mig_state"`
	EnSQDAsyncNotify uint8    `c:"en_sqd_async_notify"`
	MaxRdAtomic      uint8    `c:"max_rd_atomic"`
	MaxDestRdAtomic  uint8    `c:"max_dest_rd_atomic"`
	MinRNRTimer      uint8    `c:"min_rnr_timer"`
	PortNum          uint8    `c:"port_num"`
	Timeout          uint8    `c:"timeout"`
	RetryCnt         uint8    `c:"retry_cnt"`
	RNRRetry         uint8    `c:"rnr_retry"`
	AltPortNum       uint8    `c:"alt_port_num"`
	AltTimeout       uint8    `c:"alt_timeout"`
	Reserved         [2]uint8 `c:"reserved"`
}

// ExModifyQP is struct ib_uverbs_ex_modify_qp.
type ExModifyQP struct {
	Base      ModifyQP `c:"base"`
	RateLimit uint32   `c:"rate_limit"`
	Reserved  uint32   `c:"reserved"`
}

// ExModifyQPResp is struct ib_uverbs_ex_modify_qp_resp.
type ExModifyQPResp struct {
	CompMask       uint32 `c:"comp_mask"`
	ResponseLength uint32 `c:"response_length"`
}

// QueryQP is struct ib_uverbs_query_qp.
type QueryQP struct {
	Response uint64 `c:"response"`
	QPHandle uint32 `c:"qp_handle"`
	AttrMask uint32 `c:"attr_mask"`
}

// QueryQPResp is struct ib_uverbs_query_qp_resp.
type QueryQPResp struct {
	Dest            QPDest   `c:"dest"`
	AltDest         QPDest   `c:"alt_dest"`
	MaxSendWR       uint32   `c:"max_send_wr"`
	MaxRecvWR       uint32   `c:"max_recv_wr"`
	MaxSendSGE      uint32   `c:"max_send_sge"`
	MaxRecvSGE      uint32   `c:"max_recv_sge"`
	MaxInlineData   uint32   `c:"max_inline_data"`
	QKey            uint32   `c:"qkey"`
	RQPSN           uint32   `c:"rq_psn"`
	SQPSN           uint32   `c:"sq_psn"`
	DestQPNum       uint32   `c:"dest_qp_num"`
	QPAccessFlags   uint32   `c:"qp_access_flags"`
	PkeyIndex       uint16   `c:"pkey_index"`
	AltPkeyIndex    uint16   `c:"alt_pkey_index"`
	QPState         uint8    `c:"qp_state"`
	CurQPState      uint8    `c:"cur_qp_state"`
	PathMTU         uint8    `c:"path_mtu"`
	PathMigState    uint8    `c:"path_mig_state"`
	SQDraining      uint8    `c:"sq_draining"`
	MaxRdAtomic     uint8    `c:"max_rd_atomic"`
	MaxDestRdAtomic uint8    `c:"max_dest_rd_atomic"`
	MinRNRTimer     uint8    `c:"min_rnr_timer"`
	PortNum         uint8    `c:"port_num"`
	Timeout         uint8    `c:"timeout"`
	RetryCnt        uint8    `c:"retry_cnt"`
	RNRRetry        uint8    `c:"rnr_retry"`
	AltPortNum      uint8    `c:"alt_port_num"`
	AltTimeout      uint8    `c:"alt_timeout"`
	SQSigAll        uint8    `c:"sq_sig_all"`
	Reserved        [5]uint8 `c:"reserved"`
}

// DestroyQP is struct ib_uverbs_destroy_qp.
type DestroyQP struct {
	Response uint64 `c:"response"`
	QPHandle uint32 `c:"qp_handle"`
	Reserved uint32 `c:"reserved"`
}

// DestroyQPResp is struct ib_uverbs_destroy_qp_resp.
type DestroyQPResp struct {
	EventsReported uint32 `c:"events_reported"`
}

// WriteCmd is the number of a verbs write command (enum ib_uverbs_write_cmds;
// an extended one has IB_USER_VERBS_CMD_FLAG_EXTENDED).
type WriteCmd uint32

// Extended reports whether the command has an ExCmdHdr.
func (c WriteCmd) Extended() bool { return c&IB_USER_VERBS_CMD_FLAG_EXTENDED != 0 }

// WriteMethod is one verbs write command: the sizes in bytes of its request and
// response, and of the driver's parts, which follow them without a gap.
type WriteMethod struct {
	Cmd                   WriteCmd
	Name                  string
	Req, Resp             int
	DriverReq, DriverResp int
}

// The sizes are those of the structs above; verbs_test.go compares them with the
// installed headers. A driver part of 0 bytes is one that the driver does not
// ask for. ModifyQP has none: libmlx5 sends its part only with ECE or a rate.
var writeMethods = [...]WriteMethod{
	{IB_USER_VERBS_CMD_ALLOC_PD, "ALLOC_PD", 8, 4, 0, 4},
	{IB_USER_VERBS_CMD_DEALLOC_PD, "DEALLOC_PD", 4, 0, 0, 0},
	{IB_USER_VERBS_CMD_REG_MR, "REG_MR", 40, 12, 0, 0},
	{IB_USER_VERBS_CMD_DEREG_MR, "DEREG_MR", 4, 0, 0, 0},
	{IB_USER_VERBS_CMD_CREATE_CQ, "CREATE_CQ", 32, 8, 32, 8},
	{IB_USER_VERBS_CMD_DESTROY_CQ, "DESTROY_CQ", 16, 8, 0, 0},
	{IB_USER_VERBS_CMD_CREATE_QP, "CREATE_QP", 56, 32, 56, 40},
	{IB_USER_VERBS_CMD_QUERY_QP, "QUERY_QP", 16, 128, 0, 0},
	{IB_USER_VERBS_CMD_MODIFY_QP, "MODIFY_QP", 112, 0, 0, 0},
	{IB_USER_VERBS_CMD_DESTROY_QP, "DESTROY_QP", 16, 4, 0, 0},
	{IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_MODIFY_QP, "EX_MODIFY_QP", 120, 8, 0, 0},
}

// EX_MODIFY_QP is the extended MODIFY_QP.
const EX_MODIFY_QP WriteCmd = IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_MODIFY_QP

// WriteMethods returns the write commands. They must not be changed.
func WriteMethods() []WriteMethod { return writeMethods[:] }

// LookupWrite returns the write command, or nil. The result must not be changed.
func LookupWrite(c WriteCmd) *WriteMethod {
	for i := range writeMethods {
		if writeMethods[i].Cmd == c {
			return &writeMethods[i]
		}
	}
	return nil
}

// HeaderLen is the number of bytes before the request in a write(2).
func (m *WriteMethod) HeaderLen() int {
	if m.Cmd.Extended() {
		return CmdHdrSize + ExCmdHdrSize
	}
	return CmdHdrSize
}

// Sizes of the headers of a write command in bytes.
const (
	CmdHdrSize   = 8  // struct ib_uverbs_cmd_hdr
	ExCmdHdrSize = 16 // struct ib_uverbs_ex_cmd_hdr
)

// GlobalRoute is struct ib_uverbs_global_route.
type GlobalRoute struct {
	DGID         [16]byte `c:"dgid"`
	FlowLabel    uint32   `c:"flow_label"`
	SGIDIndex    uint8    `c:"sgid_index"`
	HopLimit     uint8    `c:"hop_limit"`
	TrafficClass uint8    `c:"traffic_class"`
	Reserved     uint8    `c:"reserved"`
}

// AHAttr is struct ib_uverbs_ah_attr.
type AHAttr struct {
	GRH         GlobalRoute `c:"grh"`
	DLID        uint16      `c:"dlid"`
	SL          uint8       `c:"sl"`
	SrcPathBits uint8       `c:"src_path_bits"`
	StaticRate  uint8       `c:"static_rate"`
	IsGlobal    uint8       `c:"is_global"`
	PortNum     uint8       `c:"port_num"`
	Reserved    uint8       `c:"reserved"`
}

// QPAttr is struct ib_uverbs_qp_attr: the attributes that a connection manager
// wants a queue pair to have.
type QPAttr struct {
	AttrMask         uint32   `c:"qp_attr_mask"`
	State            uint32   `c:"qp_state"`
	CurState         uint32   `c:"cur_qp_state"`
	PathMTU          uint32   `c:"path_mtu"`
	PathMigState     uint32   `c:"path_mig_state"`
	QKey             uint32   `c:"qkey"`
	RQPSN            uint32   `c:"rq_psn"`
	SQPSN            uint32   `c:"sq_psn"`
	DestQPNum        uint32   `c:"dest_qp_num"`
	AccessFlags      uint32   `c:"qp_access_flags"`
	AH               AHAttr   `c:"ah_attr"`
	AltAH            AHAttr   `c:"alt_ah_attr"`
	MaxSendWR        uint32   `c:"max_send_wr"`
	MaxRecvWR        uint32   `c:"max_recv_wr"`
	MaxSendSGE       uint32   `c:"max_send_sge"`
	MaxRecvSGE       uint32   `c:"max_recv_sge"`
	MaxInlineData    uint32   `c:"max_inline_data"`
	PkeyIndex        uint16   `c:"pkey_index"`
	AltPkeyIndex     uint16   `c:"alt_pkey_index"`
	EnSQDAsyncNotify uint8    `c:"en_sqd_async_notify"`
	SQDraining       uint8    `c:"sq_draining"`
	MaxRdAtomic      uint8    `c:"max_rd_atomic"`
	MaxDestRdAtomic  uint8    `c:"max_dest_rd_atomic"`
	MinRNRTimer      uint8    `c:"min_rnr_timer"`
	PortNum          uint8    `c:"port_num"`
	Timeout          uint8    `c:"timeout"`
	RetryCnt         uint8    `c:"retry_cnt"`
	RNRRetry         uint8    `c:"rnr_retry"`
	AltPortNum       uint8    `c:"alt_port_num"`
	AltTimeout       uint8    `c:"alt_timeout"`
	Reserved         [5]uint8 `c:"reserved"`
}
