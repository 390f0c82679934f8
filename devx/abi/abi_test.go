// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"bytes"
	"encoding/binary"
	"regexp"
	"strconv"
	"testing"

	"devxlab.example/internal/cstruct"
)

// accessor reads and writes one member; set is nil where the view only reads.
type accessor struct {
	member string
	set    func([]byte, uint64)
	get    func([]byte) uint64
}

func check(t *testing.T, s cstruct.Layout, size int, list []accessor) {
	t.Helper()
	if s.Size != size {
		t.Errorf("the struct has %d bytes, the package says %d", s.Size, size)
	}
	for _, a := range list {
		f, ok := s.At[a.member]
		if !ok {
			t.Errorf("no member %s", a.member)
			continue
		}
		var raw [8]byte
		binary.LittleEndian.PutUint64(raw[:], 0x8877665544332211)
		value := binary.LittleEndian.Uint64(raw[:]) & (1<<(8*f[1]) - 1)
		if f[1] == 8 {
			value = binary.LittleEndian.Uint64(raw[:])
		}
		want := bytes.Repeat([]byte{0xee}, size)
		copy(want[f[0]:], raw[:f[1]])
		if got := a.get(want); got != value {
			t.Errorf("%s reads %#x, want %#x", a.member, got, value)
		}
		if a.set == nil {
			continue
		}
		got := bytes.Repeat([]byte{0xee}, size)
		if a.set(got, value); !bytes.Equal(got, want) {
			t.Errorf("%s writes\n%x, want\n%x", a.member, got, want)
		}
	}
}

func TestStructs(t *testing.T) {
	cmds := cstruct.Headers(t, "rdma_user_ioctl_cmds.h")
	hdr, attr := cstruct.Of(t, cmds, "ib_uverbs_ioctl_hdr"), cstruct.Of(t, cmds, "ib_uverbs_attr")
	check(t, hdr, HeaderSize, []accessor{
		{"length", func(b []byte, v uint64) { Header(b).SetLength(uint16(v)) }, func(b []byte) uint64 { return uint64(Header(b).Length()) }},
		{"object_id", func(b []byte, v uint64) { Header(b).SetObjectID(uint16(v)) }, func(b []byte) uint64 { return uint64(Header(b).ObjectID()) }},
		{"method_id", func(b []byte, v uint64) { Header(b).SetMethodID(uint16(v)) }, func(b []byte) uint64 { return uint64(Header(b).MethodID()) }},
		{"num_attrs", func(b []byte, v uint64) { Header(b).SetNumAttrs(uint16(v)) }, func(b []byte) uint64 { return uint64(Header(b).NumAttrs()) }},
		{"reserved1", func(b []byte, v uint64) { Header(b).SetReserved1(v) }, func(b []byte) uint64 { return Header(b).Reserved1() }},
		{"driver_id", func(b []byte, v uint64) { Header(b).SetDriverID(uint32(v)) }, func(b []byte) uint64 { return uint64(Header(b).DriverID()) }},
		{"reserved2", func(b []byte, v uint64) { Header(b).SetReserved2(uint32(v)) }, func(b []byte) uint64 { return uint64(Header(b).Reserved2()) }},
	})
	check(t, attr, AttrSize, []accessor{
		{"attr_id", func(b []byte, v uint64) { Attr(b).SetID(uint16(v)) }, func(b []byte) uint64 { return uint64(Attr(b).ID()) }},
		{"len", func(b []byte, v uint64) { Attr(b).SetLen(uint16(v)) }, func(b []byte) uint64 { return uint64(Attr(b).Len()) }},
		{"flags", func(b []byte, v uint64) { Attr(b).SetFlags(uint16(v)) }, func(b []byte) uint64 { return uint64(Attr(b).Flags()) }},
		{"attr_data", func(b []byte, v uint64) { Attr(b).SetReserved(uint16(v)) }, func(b []byte) uint64 { return uint64(Attr(b).Reserved()) }},
		{"data", func(b []byte, v uint64) { Attr(b).SetData(v) }, func(b []byte) uint64 { return Attr(b).Data() }},
	})
	if f := attr.At["data"]; f[1] != InlineSize {
		t.Errorf("an attribute holds %d bytes inline, the package says %d", f[1], InlineSize)
	}
	b := make([]byte, hdr.At["attrs"][0]+3*attr.Size)
	Header(b).Attr(2).SetID(0x1234)
	if at := bytes.IndexByte(b, 0x34); at != hdr.At["attrs"][0]+2*attr.Size {
		t.Errorf("attribute 2 is at %d", at)
	}
	if cap(Header(b).Attr(0)) < AttrSize || len(Header(b).Attr(0)) != AttrSize {
		t.Errorf("an attribute has %d bytes", len(Header(b).Attr(0)))
	}

	magic := regexp.MustCompile(`#define RDMA_IOCTL_MAGIC\s+(\w+)`).FindStringSubmatch(cmds)
	if !regexp.MustCompile(`#define RDMA_VERBS_IOCTL \\\s*_IOWR\(RDMA_IOCTL_MAGIC, 1, struct ib_uverbs_ioctl_hdr\)`).MatchString(cmds) || magic == nil {
		t.Fatal("RDMA_VERBS_IOCTL is defined in another way")
	}
	typ, err := strconv.ParseUint(magic[1], 0, 8)
	if err != nil {
		t.Fatal(err)
	}
	if want := 3<<30 | hdr.Size<<16 | int(typ)<<8 | 1; RDMA_VERBS_IOCTL != want {
		t.Errorf("RDMA_VERBS_IOCTL is %#x, want %#x", RDMA_VERBS_IOCTL, want)
	}
}

func TestDriverStructs(t *testing.T) {
	text := cstruct.Headers(t, "mlx5-abi.h", "mlx5_user_ioctl_verbs.h")
	check(t, cstruct.Of(t, text, "mlx5_ib_alloc_ucontext_req_v2"), UcontextReqSize, []accessor{
		{"total_num_bfregs", func(b []byte, v uint64) { UcontextReq(b).SetTotalBfregs(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextReq(b).TotalBfregs()) }},
		{"num_low_latency_bfregs", func(b []byte, v uint64) { UcontextReq(b).SetLowLatencyBfregs(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextReq(b).LowLatencyBfregs()) }},
		{"flags", func(b []byte, v uint64) { UcontextReq(b).SetFlags(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextReq(b).Flags()) }},
		{"comp_mask", nil, func(b []byte) uint64 { return uint64(UcontextReq(b).CompMask()) }},
		{"max_cqe_version", func(b []byte, v uint64) { UcontextReq(b).SetMaxCQEVersion(uint8(v)) }, func(b []byte) uint64 { return uint64(UcontextReq(b).MaxCQEVersion()) }},
		{"lib_caps", func(b []byte, v uint64) { UcontextReq(b).SetLibCaps(v) }, func(b []byte) uint64 { return UcontextReq(b).LibCaps() }},
	})
	req := cstruct.Of(t, text, "mlx5_ib_alloc_ucontext_req_v2")
	for i := range UcontextReqSize {
		b := make([]byte, UcontextReqSize)
		b[i] = 1
		reserved := false
		for _, name := range []string{"reserved0", "reserved1", "reserved2"} {
			f, ok := req.At[name]
			if !ok {
				t.Fatalf("no member %s", name)
			}
			reserved = reserved || i >= f[0] && i < f[0]+f[1]
		}
		if got := UcontextReq(b).Reserved(); got != reserved {
			t.Errorf("byte %d set: Reserved() = %v, want %v", i, got, reserved)
		}
	}
	check(t, cstruct.Of(t, text, "mlx5_ib_alloc_ucontext_resp"), UcontextRespSize, []accessor{
		{"qp_tab_size", func(b []byte, v uint64) { UcontextResp(b).SetQPTabSize(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextResp(b).QPTabSize()) }},
		{"num_ports", func(b []byte, v uint64) { UcontextResp(b).SetNumPorts(uint16(v)) }, func(b []byte) uint64 { return uint64(UcontextResp(b).NumPorts()) }},
		{"response_length", func(b []byte, v uint64) { UcontextResp(b).SetResponseLength(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextResp(b).ResponseLength()) }},
		{"cqe_version", func(b []byte, v uint64) { UcontextResp(b).SetCQEVersion(uint8(v)) }, func(b []byte) uint64 { return uint64(UcontextResp(b).CQEVersion()) }},
		{"log_uar_size", func(b []byte, v uint64) { UcontextResp(b).SetLogUARSize(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextResp(b).LogUARSize()) }},
		{"num_uars_per_page", func(b []byte, v uint64) { UcontextResp(b).SetNumUARsPerPage(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextResp(b).NumUARsPerPage()) }},
	})
	if s := cstruct.Of(t, text, "mlx5_ib_uapi_devx_async_cmd_hdr"); s.Size != AsyncCmdHdrSize {
		t.Errorf("the header of an asynchronous answer has %d bytes, the package says %d", s.Size, AsyncCmdHdrSize)
	}
	if s := cstruct.Of(t, text, "mlx5_ib_uapi_devx_async_event_hdr"); s.Size != AsyncEventHdrSize {
		t.Errorf("the header of an event has %d bytes, the package says %d", s.Size, AsyncEventHdrSize)
	}
}
