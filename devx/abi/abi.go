// SPDX-License-Identifier: BSD-2-Clause

// Package abi is the interface of a uverbs file as far as DevX and the verbs
// calls on a queue pair need it: constants, the layouts of the structs, one table
// of ioctl methods and one of write commands. It has no logic beyond reading and
// writing those structs. Package devx encodes from the tables, the emulated
// uverbs file decodes by that of methods.
//
// Integers are in the host's byte order, which is little endian wherever this
// module builds.
package abi

import "encoding/binary"

//go:generate go run devxlab.example/internal/headergen/cmd abi .

// RDMA_VERBS_IOCTL is _IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)
// (rdma_user_ioctl_cmds.h).
const RDMA_VERBS_IOCTL = 0xc0181b01

// Sizes of the structs below in bytes.
const (
	HeaderSize        = 24 // struct ib_uverbs_ioctl_hdr
	AttrSize          = 16 // struct ib_uverbs_attr
	UcontextReqSize   = 32 // struct mlx5_ib_alloc_ucontext_req_v2
	UcontextRespSize  = 72 // struct mlx5_ib_alloc_ucontext_resp
	AsyncCmdHdrSize   = 8  // struct mlx5_ib_uapi_devx_async_cmd_hdr: wr_id; the output follows
	AsyncEventHdrSize = 8  // struct mlx5_ib_uapi_devx_async_event_hdr: a cookie; an EQE follows
	InlineSize        = 8  // input of at most this many bytes stands in the attribute
	MaxIoctlSize      = 4096
)

// Header is a view of struct ib_uverbs_ioctl_hdr: length, object and method
// id, number of attributes, reserved 64 bits, driver id, reserved 32 bits.
type Header []byte

func (h Header) Length() uint16        { return binary.LittleEndian.Uint16(h) }
func (h Header) ObjectID() uint16      { return binary.LittleEndian.Uint16(h[2:]) }
func (h Header) MethodID() uint16      { return binary.LittleEndian.Uint16(h[4:]) }
func (h Header) NumAttrs() uint16      { return binary.LittleEndian.Uint16(h[6:]) }
func (h Header) Reserved1() uint64     { return binary.LittleEndian.Uint64(h[8:]) }
func (h Header) DriverID() uint32      { return binary.LittleEndian.Uint32(h[16:]) }
func (h Header) Reserved2() uint32     { return binary.LittleEndian.Uint32(h[20:]) }
func (h Header) SetLength(v uint16)    { binary.LittleEndian.PutUint16(h, v) }
func (h Header) SetObjectID(v uint16)  { binary.LittleEndian.PutUint16(h[2:], v) }
func (h Header) SetMethodID(v uint16)  { binary.LittleEndian.PutUint16(h[4:], v) }
func (h Header) SetNumAttrs(v uint16)  { binary.LittleEndian.PutUint16(h[6:], v) }
func (h Header) SetDriverID(v uint32)  { binary.LittleEndian.PutUint32(h[16:], v) }
func (h Header) SetReserved1(v uint64) { binary.LittleEndian.PutUint64(h[8:], v) }
func (h Header) SetReserved2(v uint32) { binary.LittleEndian.PutUint32(h[20:], v) }
func (h Header) Attr(i int) Attr       { return Attr(h[HeaderSize+AttrSize*i:][:AttrSize]) }

// Attr is a view of struct ib_uverbs_attr: id, length, flags, 16 bits of
// reserved or enum data, and 64 bits that are inline data, a pointer, a handle
// or a file descriptor.
type Attr []byte

func (a Attr) ID() uint16           { return binary.LittleEndian.Uint16(a) }
func (a Attr) Len() uint16          { return binary.LittleEndian.Uint16(a[2:]) }
func (a Attr) Flags() uint16        { return binary.LittleEndian.Uint16(a[4:]) }
func (a Attr) Reserved() uint16     { return binary.LittleEndian.Uint16(a[6:]) }
func (a Attr) Data() uint64         { return binary.LittleEndian.Uint64(a[8:]) }
func (a Attr) SetID(v uint16)       { binary.LittleEndian.PutUint16(a, v) }
func (a Attr) SetLen(v uint16)      { binary.LittleEndian.PutUint16(a[2:], v) }
func (a Attr) SetFlags(v uint16)    { binary.LittleEndian.PutUint16(a[4:], v) }
func (a Attr) SetReserved(v uint16) { binary.LittleEndian.PutUint16(a[6:], v) }
func (a Attr) SetData(v uint64)     { binary.LittleEndian.PutUint64(a[8:], v) }

// UcontextReq is a view of struct mlx5_ib_alloc_ucontext_req_v2 (mlx5-abi.h).
type UcontextReq []byte

func (r UcontextReq) TotalBfregs() uint32          { return binary.LittleEndian.Uint32(r) }
func (r UcontextReq) LowLatencyBfregs() uint32     { return binary.LittleEndian.Uint32(r[4:]) }
func (r UcontextReq) Flags() uint32                { return binary.LittleEndian.Uint32(r[8:]) }
func (r UcontextReq) CompMask() uint32             { return binary.LittleEndian.Uint32(r[12:]) }
func (r UcontextReq) MaxCQEVersion() uint8         { return r[16] }
func (r UcontextReq) Reserved() bool               { return r[17]|r[18]|r[19]|r[20]|r[21]|r[22]|r[23] != 0 }
func (r UcontextReq) LibCaps() uint64              { return binary.LittleEndian.Uint64(r[24:]) }
func (r UcontextReq) SetTotalBfregs(v uint32)      { binary.LittleEndian.PutUint32(r, v) }
func (r UcontextReq) SetLowLatencyBfregs(v uint32) { binary.LittleEndian.PutUint32(r[4:], v) }
func (r UcontextReq) SetFlags(v uint32)            { binary.LittleEndian.PutUint32(r[8:], v) }
func (r UcontextReq) SetMaxCQEVersion(v uint8)     { r[16] = v }
func (r UcontextReq) SetLibCaps(v uint64)          { binary.LittleEndian.PutUint64(r[24:], v) }

// UcontextResp is a view of struct mlx5_ib_alloc_ucontext_resp (mlx5-abi.h).
type UcontextResp []byte

func (r UcontextResp) QPTabSize() uint32      { return binary.LittleEndian.Uint32(r) }
func (r UcontextResp) NumPorts() uint16       { return binary.LittleEndian.Uint16(r[32:]) }
func (r UcontextResp) ResponseLength() uint32 { return binary.LittleEndian.Uint32(r[40:]) }
func (r UcontextResp) CQEVersion() uint8      { return r[44] }
func (r UcontextResp) LogUARSize() uint32     { return binary.LittleEndian.Uint32(r[56:]) }
func (r UcontextResp) NumUARsPerPage() uint32 { return binary.LittleEndian.Uint32(r[60:]) }
func (r UcontextResp) SetQPTabSize(v uint32)  { binary.LittleEndian.PutUint32(r, v) }
func (r UcontextResp) SetNumPorts(v uint16)   { binary.LittleEndian.PutUint16(r[32:], v) }
func (r UcontextResp) SetResponseLength(v uint32) {
	binary.LittleEndian.PutUint32(r[40:], v)
}
func (r UcontextResp) SetCQEVersion(v uint8)      { r[44] = v }
func (r UcontextResp) SetLogUARSize(v uint32)     { binary.LittleEndian.PutUint32(r[56:], v) }
func (r UcontextResp) SetNumUARsPerPage(v uint32) { binary.LittleEndian.PutUint32(r[60:], v) }
