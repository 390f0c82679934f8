// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"devxlab.example/internal/cheader"
	"devxlab.example/internal/headergen"
	"devxlab.example/internal/require"
)

// cStruct returns the offsets of a C struct's members, whose types say their
// length and are aligned by themselves, as those of work requests and completions
// are. A union's members share an offset.
func cStruct(t *testing.T, text, name string) map[string]int {
	t.Helper()
	_, body, found := strings.Cut(text, "struct "+name+" {")
	if !found {
		t.Fatalf("no struct %s", name)
	}
	body = regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(body, "")
	body = regexp.MustCompile(`struct_group\(\w+,|\);`).ReplaceAllString(body, "")
	sizes := map[string]int{"u8": 1, "__u8": 1, "__be16": 2, "__be32": 4, "u32": 4, "__be64": 8}
	member := regexp.MustCompile(`^(\w+)\s+(\w+)(?:\[(\d*)\]|:\d+)?$`)
	offsets := map[string]int{}
	type open struct {
		union     bool
		at, whole int
	}
	stack := []open{{}}
	for _, token := range regexp.MustCompile(`[^;{}]+[;{]|\}[^;]*;`).FindAllString(body, -1) {
		top := &stack[len(stack)-1]
		place := func(n int) (at int) {
			at = top.at
			if top.union {
				top.whole = max(top.whole, n)
			} else {
				top.at, top.whole = top.at+n, top.whole+n
			}
			return at
		}
		switch word := strings.TrimSpace(token); {
		case strings.HasPrefix(word, "}"):
			if len(stack) == 1 {
				return offsets
			}
			whole := top.whole
			stack = stack[:len(stack)-1]
			top = &stack[len(stack)-1]
			place(whole)
		case strings.HasSuffix(word, "{"):
			stack = append(stack, open{union: strings.HasPrefix(word, "union"), at: top.at})
		default:
			m := member.FindStringSubmatch(strings.TrimSpace(strings.TrimSuffix(word, ";")))
			if m == nil || sizes[m[1]] == 0 {
				t.Fatalf("struct %s: %q", name, word)
			}
			if strings.Contains(word, ":") && !strings.HasSuffix(word, ":1;") {
				continue // the rest of a byte of bits, of whose parts only the first counts
			}
			if strings.Contains(word, ":1;") && m[2] != "reserved0" {
				continue
			}
			n := sizes[m[1]]
			if strings.Contains(word, "[") {
				count, _ := strconv.Atoi(m[3])
				n *= count
			}
			offsets[m[2]] = place(n)
		}
	}
	t.Fatalf("struct %s has no end", name)
	return nil
}

// Layouts and numbers are those of the installed kernel headers.
func TestWorkRequestsAreTheKernels(t *testing.T) {
	dir, err := headergen.KernelHeaders()
	require.Have(t, "headers", err)
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	qp, device := read("qp.h"), read("device.h")
	for _, s := range []struct {
		text, name string
		want       map[string]int
	}{
		{qp, "mlx5_wqe_ctrl_seg", map[string]int{"opmod_idx_opcode": 0, "qpn_ds": 4, "fm_ce_se": 11, "imm": 12}},
		{qp, "mlx5_wqe_raddr_seg", map[string]int{"raddr": 0, "rkey": 8}},
		{qp, "mlx5_wqe_atomic_seg", map[string]int{"swap_add": 0, "compare": 8}},
		{qp, "mlx5_wqe_data_seg", map[string]int{"byte_count": 0, "lkey": 4, "addr": 8}},
		{qp, "mlx5_wqe_inline_seg", map[string]int{"byte_count": 0, "data": 4}},
		{device, "mlx5_cqe64", map[string]int{"srqn": 0x20, "immediate": 0x24, "byte_cnt": 0x2c, "sop_drop_qpn": 0x38, "wqe_counter": 0x3c, "op_own": 0x3f}},
		{device, "mlx5_err_cqe", map[string]int{"vendor_err_synd": 0x36, "syndrome": 0x37, "s_wqe_opcode_qpn": 0x38, "wqe_counter": 0x3c, "op_own": 0x3f}},
	} {
		got := cStruct(t, s.text, s.name)
		for field, at := range s.want {
			if off, there := got[field]; !there || off != at {
				t.Errorf("struct %s: %s at %#x (%v), want %#x", s.name, field, off, there, at)
			}
		}
	}
	h, err := cheader.Parse(qp, device, read("cq.h"), read("doorbell.h"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint64{
		"MLX5_OPCODE_NOP": uint64(WQENop), "MLX5_OPCODE_SEND_INVAL": uint64(WQESendInv), "MLX5_OPCODE_RDMA_WRITE": uint64(WQEWrite),
		"MLX5_OPCODE_RDMA_WRITE_IMM": uint64(WQEWriteImm), "MLX5_OPCODE_SEND": uint64(WQESend), "MLX5_OPCODE_SEND_IMM": uint64(WQESendImm),
		"MLX5_OPCODE_RDMA_READ": uint64(WQERead), "MLX5_OPCODE_ATOMIC_CS": uint64(WQECmpSwap), "MLX5_OPCODE_ATOMIC_FA": uint64(WQEFetchAdd),
		"MLX5_SEND_WQE_BB": WQEBB, "MLX5_WQE_CTRL_CQ_UPDATE": wqeCompletion, "MLX5_WQE_CTRL_SOLICITED": wqeSolicited,
		"MLX5_FENCE_MODE_SMALL_AND_FENCE": wqeFence, "MLX5_INLINE_SEG": wqeInline, "MLX5_BF_OFFSET": DoorbellSend, "MLX5_CQ_DOORBELL": DoorbellCQ,
		"MLX5_CQE_REQ": uint64(CQERequest), "MLX5_CQE_RESP_WR_IMM": uint64(CQERecvWriteImm), "MLX5_CQE_RESP_SEND": uint64(CQERecvSend),
		"MLX5_CQE_RESP_SEND_IMM": uint64(CQERecvSendImm), "MLX5_CQE_RESP_SEND_INV": uint64(CQERecvSendInv),
		"MLX5_CQE_REQ_ERR": uint64(CQERequestError), "MLX5_CQE_RESP_ERR": uint64(CQEResponseError), "MLX5_CQE_INVALID": uint64(CQEInvalid),
	} {
		if got, known := h.Value(name); !known || got != want {
			t.Errorf("%s is %#x (%v), not %#x", name, got, known, want)
		}
	}
}

func TestSendWQE(t *testing.T) {
	for _, c := range []struct {
		w     SendWQE
		units int
		want  string
	}{
		{SendWQE{Op: WQENop}, 1, "00fffe00 00123401 00000000 00000000"},
		{SendWQE{Op: WQESendImm, Signaled: true, Solicited: true, Imm: 0xdeadbeef, Data: []SGE{{Addr: 0x1122334455667788, Bytes: 9, LKey: 0xabc00}}}, 1,
			"00fffe0b 00123402 0000000a deadbeef 00000009 000abc00 11223344 55667788"},
		{SendWQE{Op: WQEWrite, Fence: true, RemoteAddr: 0x1000, RKey: 7, Inline: []byte("hello, hello, hello, hello, hello")}, 2,
			"00fffe08 00123405 00000080 00000000 00000000 00001000 00000007 00000000 80000021 68656c6c 6f2c2068 656c6c6f " +
				"2c206865 6c6c6f2c 2068656c 6c6f2c20 68656c6c 6f000000 00000000 00000000"},
		{SendWQE{Op: WQECmpSwap, RemoteAddr: 8, RKey: 7, SwapAdd: 5, Compare: 6, Data: []SGE{{Addr: 16, Bytes: 8, LKey: 3}}}, 1,
			"00fffe11 00123404 00000000 00000000 00000000 00000008 00000007 00000000 00000000 00000005 00000000 00000006 00000008 00000003 00000000 00000010"},
	} {
		queue := bytes.Repeat([]byte{0xee}, 4*WQEBB)
		units, doorbell, err := c.w.Encode(queue, 0xfffe, 0x1234)
		if err != nil || units != c.units {
			t.Errorf("%+v: %d units, %v", c.w, units, err)
		}
		want, _ := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		got := append(bytes.Clone(queue[2*WQEBB:]), queue[:2*WQEBB]...)[:len(want)]
		if !bytes.Equal(got, want) {
			t.Errorf("%+v:\n got %x\nwant %x", c.w, got, want)
		}
		if fmt.Sprintf("%016x", doorbell) != hex.EncodeToString(want[:8]) {
			t.Errorf("doorbell %#x", doorbell)
		}
	}
	// It goes round the end of the queue.
	queue := make([]byte, 2*WQEBB)
	w := SendWQE{Op: WQESend, Inline: bytes.Repeat([]byte{1}, 100)}
	if units, _, err := w.Encode(queue, 1, 1); units != 2 || err != nil || queue[WQEBB+16] != 0x80 || queue[0] != 1 || queue[55] != 1 || queue[56] != 0 {
		t.Errorf("%d units, %v: %x", units, err, queue)
	}
}

func TestWorkRequestsThatDoNotFit(t *testing.T) {
	queue := make([]byte, 4*WQEBB)
	for _, w := range []SendWQE{
		{Op: 0x77}, {Op: WQENop, Data: make([]SGE, 1)}, {Op: WQERead, Inline: []byte{1}}, {Op: WQESend, Inline: make([]byte, MaxSendWQE)},
		{Op: WQEWrite, Data: make([]SGE, 31)}, {Op: WQESend, Data: []SGE{{Bytes: 1 << 31}}}, {Op: WQESend, Inline: make([]byte, 300)},
	} {
		if _, _, err := w.Encode(queue, 0, 1); err == nil {
			t.Errorf("%+v was encoded", w)
		}
	}
	ok := SendWQE{Op: WQESend}
	for _, n := range []int{0, WQEBB - 1, 3 * WQEBB, WQEBB + 1} {
		if _, _, err := ok.Encode(make([]byte, n), 0, 1); err == nil {
			t.Errorf("a queue of %d bytes was taken", n)
		}
	}
	if _, _, err := ok.Encode(queue, 0, 1<<24); err == nil {
		t.Error("a QPN of 25 bits was taken")
	}
}

func TestEncodeRecv(t *testing.T) {
	entry := bytes.Repeat([]byte{0xee}, 32)
	if err := EncodeRecv(entry, []SGE{{Addr: 1, Bytes: 2, LKey: 3}}); err != nil {
		t.Error(err)
	}
	if want := "0000000200000003000000000000000100000000000001000000000000000000"; hex.EncodeToString(entry) != want {
		t.Errorf("%x", entry)
	}
	if err := EncodeRecv(entry[:16], []SGE{{Bytes: 1}}); err != nil {
		t.Error(err)
	}
	if EncodeRecv(entry, make([]SGE, 3)) == nil || EncodeRecv(entry, []SGE{{Bytes: 1 << 31}}) == nil {
		t.Error("an entry that does not fit")
	}
}

func TestCQE(t *testing.T) {
	c := make(CQE, CQESize)
	c[0x3f] = 0xf1
	for ci := range uint32(16) {
		if c.Owned(ci, 2) {
			t.Errorf("index %d: an entry that was never written is owned", ci)
		}
	}
	c[0x3f] = 0x20
	for ci := range uint32(16) {
		if c.Owned(ci, 2) != (ci/4%2 == 0) {
			t.Errorf("owner bit 0 at index %d", ci)
		}
	}
	copy(c[0x20:], []byte{0xff, 1, 2, 3, 4, 5, 6, 7})
	copy(c[0x2c:], []byte{0, 0, 1, 0})
	copy(c[0x36:], []byte{0x81, 0x15, 8, 0, 0, 9, 0x12, 0x34})
	c[0x3f] = 0xd0
	if c.Opcode() != CQERequestError || !c.Failed() || c.UserIndex() != 0x010203 || c.Imm() != 0x04050607 || c.Bytes() != 256 ||
		c.VendorSyndrome() != 0x81 || c.Syndrome() != 0x15 || c.WQEOpcode() != WQEWrite || c.QPN() != 9 || c.WQECounter() != 0x1234 {
		t.Errorf("%x", []byte(c))
	}
}

// A segment of no bytes is left out: a device reads 0 as 2^31.
func TestEmptySegments(t *testing.T) {
	entry := make([]byte, 48)
	if err := EncodeRecv(entry, []SGE{{LKey: 1}, {Addr: 2, Bytes: 3, LKey: 4}, {LKey: 5}}); err != nil {
		t.Fatal(err)
	}
	if got := binary.BigEndian.Uint32(entry[4:]); binary.BigEndian.Uint32(entry) != 3 || got != 4 || binary.BigEndian.Uint32(entry[20:]) != lkeyEnd {
		t.Errorf("%x", entry)
	}
	queue := make([]byte, WQEBB)
	w := SendWQE{Op: WQESend, Data: []SGE{{LKey: 1}, {Addr: 2, Bytes: 3, LKey: 4}}}
	if _, _, err := w.Encode(queue, 0, 7); err != nil {
		t.Fatal(err)
	}
	if queue[7] != 2 || binary.BigEndian.Uint32(queue[16:]) != 3 {
		t.Errorf("%x", queue)
	}
}
