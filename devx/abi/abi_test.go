// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"devxlab.example/internal/headergen"
	"devxlab.example/internal/require"
)

// headers returns the text of the uverbs headers without its comments.
func headers(t *testing.T, names ...string) string {
	t.Helper()
	dir, err := headergen.UAPIHeaders()
	if errors.Is(err, headergen.ErrNoHeaders) {
		require.Have(t, "headers", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, b...)
	}
	return regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(string(text), "")
}

// cstruct is the layout of a C struct whose members have their natural
// alignment.
type cstruct struct {
	size, align int
	at          map[string][2]int // offset and size
}

var widths = map[string]int{"__u8": 1, "__u16": 2, "__u32": 4, "__u64": 8, "__s64": 8, "__aligned_u64": 8}

// layoutOf computes the layout of a struct of the header. Members of anonymous
// structs and unions count as its own.
func layoutOf(t *testing.T, text, name string) cstruct {
	t.Helper()
	m := regexp.MustCompile(`struct ` + name + ` \{`).FindStringIndex(text)
	if m == nil {
		t.Fatalf("no struct %s", name)
	}
	toks := regexp.MustCompile(`\w+|[{};\[\]]`).FindAllString(text[m[1]:], -1)
	s, _ := parseBody(t, toks, false)
	return s
}

// parseBody reads members up to the closing brace and returns what follows it.
func parseBody(t *testing.T, toks []string, union bool) (cstruct, []string) {
	t.Helper()
	s := cstruct{align: 1, at: map[string][2]int{}}
	place := func(align, size int) int {
		s.align = max(s.align, align)
		if union {
			s.size = max(s.size, size)
			return 0
		}
		at := (s.size + align - 1) / align * align
		s.size = at + size
		return at
	}
	for toks[0] != "}" {
		kind := toks[0]
		if (kind == "struct" || kind == "union") && toks[1] == "{" {
			inner, rest := parseBody(t, toks[2:], kind == "union")
			at := place(inner.align, inner.size)
			if rest[0] != ";" { // the name of the member
				s.at[rest[0]] = [2]int{at, inner.size}
				rest = rest[1:]
			} else {
				for n, f := range inner.at {
					s.at[n] = [2]int{at + f[0], f[1]}
				}
			}
			toks = rest[1:]
			continue
		}
		align := widths[kind]
		if kind == "struct" { // of another struct: here only at the end, without a size
			align, toks = 8, toks[1:]
		}
		if align == 0 {
			t.Fatalf("unknown type %s", kind)
		}
		name, n := toks[1], 1
		if toks = toks[2:]; toks[0] == "[" {
			n = 0
			if toks[1] != "]" {
				var err error
				if n, err = strconv.Atoi(toks[1]); err != nil {
					t.Fatal(err)
				}
				toks = toks[1:]
			}
			toks = toks[2:]
		}
		s.at[name] = [2]int{place(align, align*n), align * n}
		toks = toks[1:]
	}
	s.size = (s.size + s.align - 1) / s.align * s.align
	return s, toks[1:]
}

// The calculator itself, on what it must get right.
func TestNaturalAlignment(t *testing.T) {
	s := layoutOf(t, `struct t { __u8 a; __u16 b; __u8 c[3]; __u32 d; union { __u8 e; struct { __u16 f; __u16 g; } h; __u64 i; }; __u8 j; struct other k[]; };`, "t")
	want := map[string][2]int{"a": {0, 1}, "b": {2, 2}, "c": {4, 3}, "d": {8, 4}, "e": {16, 1}, "h": {16, 4}, "i": {16, 8}, "j": {24, 1}, "k": {32, 0}}
	if s.size != 32 || s.align != 8 || fmt.Sprint(s.at) != fmt.Sprint(want) {
		t.Errorf("size %d, alignment %d, members %v; want %v", s.size, s.align, s.at, want)
	}
}

// accessor reads and writes one member; set is nil where the view only reads.
type accessor struct {
	member string
	set    func([]byte, uint64)
	get    func([]byte) uint64
}

func check(t *testing.T, s cstruct, size int, list []accessor) {
	t.Helper()
	if s.size != size {
		t.Errorf("the struct has %d bytes, the package says %d", s.size, size)
	}
	for _, a := range list {
		f, ok := s.at[a.member]
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
	cmds := headers(t, "rdma_user_ioctl_cmds.h")
	hdr, attr := layoutOf(t, cmds, "ib_uverbs_ioctl_hdr"), layoutOf(t, cmds, "ib_uverbs_attr")
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
	if f := attr.at["data"]; f[1] != InlineSize {
		t.Errorf("an attribute holds %d bytes inline, the package says %d", f[1], InlineSize)
	}
	b := make([]byte, hdr.at["attrs"][0]+3*attr.size)
	Header(b).Attr(2).SetID(0x1234)
	if at := bytes.IndexByte(b, 0x34); at != hdr.at["attrs"][0]+2*attr.size {
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
	if want := 3<<30 | hdr.size<<16 | int(typ)<<8 | 1; RDMA_VERBS_IOCTL != want {
		t.Errorf("RDMA_VERBS_IOCTL is %#x, want %#x", RDMA_VERBS_IOCTL, want)
	}
}

func TestDriverStructs(t *testing.T) {
	text := headers(t, "mlx5-abi.h", "mlx5_user_ioctl_verbs.h")
	check(t, layoutOf(t, text, "mlx5_ib_alloc_ucontext_req_v2"), UcontextReqSize, []accessor{
		{"total_num_bfregs", func(b []byte, v uint64) { UcontextReq(b).SetTotalBfregs(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextReq(b).TotalBfregs()) }},
		{"num_low_latency_bfregs", func(b []byte, v uint64) { UcontextReq(b).SetLowLatencyBfregs(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextReq(b).LowLatencyBfregs()) }},
		{"flags", func(b []byte, v uint64) { UcontextReq(b).SetFlags(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextReq(b).Flags()) }},
		{"comp_mask", nil, func(b []byte) uint64 { return uint64(UcontextReq(b).CompMask()) }},
		{"max_cqe_version", func(b []byte, v uint64) { UcontextReq(b).SetMaxCQEVersion(uint8(v)) }, func(b []byte) uint64 { return uint64(UcontextReq(b).MaxCQEVersion()) }},
		{"lib_caps", func(b []byte, v uint64) { UcontextReq(b).SetLibCaps(v) }, func(b []byte) uint64 { return UcontextReq(b).LibCaps() }},
	})
	req := layoutOf(t, text, "mlx5_ib_alloc_ucontext_req_v2")
	for i := range UcontextReqSize {
		b := make([]byte, UcontextReqSize)
		b[i] = 1
		reserved := false
		for _, name := range []string{"reserved0", "reserved1", "reserved2"} {
			f, ok := req.at[name]
			if !ok {
				t.Fatalf("no member %s", name)
			}
			reserved = reserved || i >= f[0] && i < f[0]+f[1]
		}
		if got := UcontextReq(b).Reserved(); got != reserved {
			t.Errorf("byte %d set: Reserved() = %v, want %v", i, got, reserved)
		}
	}
	check(t, layoutOf(t, text, "mlx5_ib_alloc_ucontext_resp"), UcontextRespSize, []accessor{
		{"qp_tab_size", func(b []byte, v uint64) { UcontextResp(b).SetQPTabSize(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextResp(b).QPTabSize()) }},
		{"num_ports", func(b []byte, v uint64) { UcontextResp(b).SetNumPorts(uint16(v)) }, func(b []byte) uint64 { return uint64(UcontextResp(b).NumPorts()) }},
		{"response_length", func(b []byte, v uint64) { UcontextResp(b).SetResponseLength(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextResp(b).ResponseLength()) }},
		{"cqe_version", func(b []byte, v uint64) { UcontextResp(b).SetCQEVersion(uint8(v)) }, func(b []byte) uint64 { return uint64(UcontextResp(b).CQEVersion()) }},
		{"log_uar_size", func(b []byte, v uint64) { UcontextResp(b).SetLogUARSize(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextResp(b).LogUARSize()) }},
		{"num_uars_per_page", func(b []byte, v uint64) { UcontextResp(b).SetNumUARsPerPage(uint32(v)) }, func(b []byte) uint64 { return uint64(UcontextResp(b).NumUARsPerPage()) }},
	})
	if s := layoutOf(t, text, "mlx5_ib_uapi_devx_async_cmd_hdr"); s.size != AsyncCmdHdrSize {
		t.Errorf("the header of an asynchronous answer has %d bytes, the package says %d", s.size, AsyncCmdHdrSize)
	}
	if s := layoutOf(t, text, "mlx5_ib_uapi_devx_async_event_hdr"); s.size != AsyncEventHdrSize {
		t.Errorf("the header of an event has %d bytes, the package says %d", s.size, AsyncEventHdrSize)
	}
}
