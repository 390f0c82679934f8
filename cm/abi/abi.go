// SPDX-License-Identifier: BSD-2-Clause

// Package abi is the interface of /dev/infiniband/rdma_cm: constants and the
// layouts of the structs that write(2) carries there and that it answers with
// (rdma_user_cm.h). It has no logic. The tag c is the member's name in C.
//
// Integers are in the host's byte order, which is little endian wherever this
// module builds; addresses are socket addresses as the kernel has them.
package abi

import uverbs "devxlab.example/devx/abi"

//go:generate go run devxlab.example/internal/headergen/cmd ucm .

// Hdr is struct rdma_ucm_cmd_hdr: what write(2) begins with. The lengths are in
// bytes, without the header.
type Hdr struct {
	Cmd uint32 `c:"cmd"`
	In  uint16 `c:"in"`
	Out uint16 `c:"out"`
}

// Sockaddr is struct __kernel_sockaddr_storage.
type Sockaddr [128]byte

// CreateID is struct rdma_ucm_create_id.
type CreateID struct {
	UID      uint64   `c:"uid"` // comes back with each event; 0: there are none
	Response uint64   `c:"response"`
	PS       uint16   `c:"ps"`
	QPType   uint8    `c:"qp_type"`
	Reserved [5]uint8 `c:"reserved"`
}

// CreateIDResp is struct rdma_ucm_create_id_resp.
type CreateIDResp struct {
	ID uint32 `c:"id"`
}

// DestroyID is struct rdma_ucm_destroy_id.
type DestroyID struct {
	Response uint64 `c:"response"`
	ID       uint32 `c:"id"`
	Reserved uint32 `c:"reserved"`
}

// DestroyIDResp is struct rdma_ucm_destroy_id_resp.
type DestroyIDResp struct {
	EventsReported uint32 `c:"events_reported"`
}

// Bind is struct rdma_ucm_bind.
type Bind struct {
	ID       uint32   `c:"id"`
	AddrSize uint16   `c:"addr_size"`
	Reserved uint16   `c:"reserved"`
	Addr     Sockaddr `c:"addr"`
}

// ResolveAddr is struct rdma_ucm_resolve_addr.
type ResolveAddr struct {
	ID        uint32   `c:"id"`
	TimeoutMS uint32   `c:"timeout_ms"`
	SrcSize   uint16   `c:"src_size"`
	DstSize   uint16   `c:"dst_size"`
	Reserved  uint32   `c:"reserved"`
	SrcAddr   Sockaddr `c:"src_addr"`
	DstAddr   Sockaddr `c:"dst_addr"`
}

// ResolveRoute is struct rdma_ucm_resolve_route.
type ResolveRoute struct {
	ID        uint32 `c:"id"`
	TimeoutMS uint32 `c:"timeout_ms"`
}

// Query is struct rdma_ucm_query.
type Query struct {
	Response uint64 `c:"response"`
	ID       uint32 `c:"id"`
	Option   uint32 `c:"option"`
}

// QueryAddrResp is struct rdma_ucm_query_addr_resp. Kernels before 5.5 end it
// before IBDevIndex.
type QueryAddrResp struct {
	NodeGUID   uint64   `c:"node_guid"` // big endian
	PortNum    uint8    `c:"port_num"`
	Reserved   uint8    `c:"reserved"`
	Pkey       uint16   `c:"pkey"` // big endian
	SrcSize    uint16   `c:"src_size"`
	DstSize    uint16   `c:"dst_size"`
	SrcAddr    Sockaddr `c:"src_addr"`
	DstAddr    Sockaddr `c:"dst_addr"`
	IBDevIndex uint32   `c:"ibdev_index"`
	Reserved1  uint32   `c:"reserved1"`
}

// ConnParam is struct rdma_ucm_conn_param.
type ConnParam struct {
	QPNum              uint32                       `c:"qp_num"`
	QKey               uint32                       `c:"qkey"`
	PrivateData        [RDMA_MAX_PRIVATE_DATA]uint8 `c:"private_data"`
	PrivateDataLen     uint8                        `c:"private_data_len"`
	SRQ                uint8                        `c:"srq"`
	ResponderResources uint8                        `c:"responder_resources"`
	InitiatorDepth     uint8                        `c:"initiator_depth"`
	FlowControl        uint8                        `c:"flow_control"`
	RetryCount         uint8                        `c:"retry_count"`
	RNRRetryCount      uint8                        `c:"rnr_retry_count"`
	Valid              uint8                        `c:"valid"`
}

// UDParam is struct rdma_ucm_ud_param.
type UDParam struct {
	QPNum          uint32                       `c:"qp_num"`
	QKey           uint32                       `c:"qkey"`
	AH             uverbs.AHAttr                `c:"ah_attr"`
	PrivateData    [RDMA_MAX_PRIVATE_DATA]uint8 `c:"private_data"`
	PrivateDataLen uint8                        `c:"private_data_len"`
	Reserved       [7]uint8                     `c:"reserved"`
}

// ECE is struct rdma_ucm_ece.
type ECE struct {
	VendorID uint32 `c:"vendor_id"`
	AttrMod  uint32 `c:"attr_mod"`
}

// Connect is struct rdma_ucm_connect.
type Connect struct {
	Param    ConnParam `c:"conn_param"`
	ID       uint32    `c:"id"`
	Reserved uint32    `c:"reserved"`
	ECE      ECE       `c:"ece"`
}

// Listen is struct rdma_ucm_listen.
type Listen struct {
	ID      uint32 `c:"id"`
	Backlog uint32 `c:"backlog"`
}

// Accept is struct rdma_ucm_accept.
type Accept struct {
	UID      uint64    `c:"uid"`
	Param    ConnParam `c:"conn_param"`
	ID       uint32    `c:"id"`
	Reserved uint32    `c:"reserved"`
	ECE      ECE       `c:"ece"`
}

// Reject is struct rdma_ucm_reject.
type Reject struct {
	ID             uint32                       `c:"id"`
	PrivateDataLen uint8                        `c:"private_data_len"`
	Reason         uint8                        `c:"reason"`
	Reserved       [2]uint8                     `c:"reserved"`
	PrivateData    [RDMA_MAX_PRIVATE_DATA]uint8 `c:"private_data"`
}

// Disconnect is struct rdma_ucm_disconnect.
type Disconnect struct {
	ID uint32 `c:"id"`
}

// InitQPAttr is struct rdma_ucm_init_qp_attr. The answer is struct
// ib_uverbs_qp_attr.
type InitQPAttr struct {
	Response uint64 `c:"response"`
	ID       uint32 `c:"id"`
	QPState  uint32 `c:"qp_state"`
}

// GetEvent is struct rdma_ucm_get_event.
type GetEvent struct {
	Response uint64 `c:"response"`
}

// EventResp is struct rdma_ucm_event_resp. Its union is as long as UDParam; of a
// connection it is a ConnParam.
type EventResp struct {
	UID      uint64  `c:"uid"`
	ID       uint32  `c:"id"`
	Event    uint32  `c:"event"`
	Status   uint32  `c:"status"`
	UD       UDParam `c:"param"`
	Reserved uint32  `c:"reserved"`
	ECE      ECE     `c:"ece"`
}

// SetOption is struct rdma_ucm_set_option.
type SetOption struct {
	OptVal  uint64 `c:"optval"` // address
	ID      uint32 `c:"id"`
	Level   uint32 `c:"level"`
	OptName uint32 `c:"optname"`
	OptLen  uint32 `c:"optlen"`
}
