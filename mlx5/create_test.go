// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"bytes"
	"encoding/hex"
	"math"
	"testing"
)

// Each value in its place: the positions are counted in mlx5_ifc.h by hand,
// those of umem fields in rdma-core's.
func TestCreateBytes(t *testing.T) {
	for _, c := range []struct {
		name  string
		f     func([]byte) (int, error)
		bytes map[int]string // at, hexadecimal; the rest is zero
	}{
		{"QP", CreateQP{
			ST: STUD, PD: 0x111111, UARPage: 0x222222, CQNSend: 0x333333, CQNRecv: 0x444444, Buf: UmemRef{0x55, 0x1000}, DoorbellRecord: UmemRef{0x66, 0x40},
			LogRQSize: 9, LogRQStride: 6, LogSQSize: 10, UserIndex: 0x777777, LogPageSize: 4, TsFormat: 1,
		}.Encode, map[int]string{
			0: "0500", 25: "0218", 29: "111111", 33: "4a5040", 37: "222222", 41: "777777", 44: "04",
			24 + 0x7d: "333333", 24 + 0x9d: "444444", 24 + 0xa0: "0000000000000040", 24 + 228: "00000066", 256: "0000000000001000", 264: "00000055",
		}},
		{"QP with an SRQ and no SQ", CreateQP{RQType: RQShared, NoSQ: true, SRQN: 0x123456, LogRQStride: 200}.Encode,
			map[int]string{0: "0500", 26: "18", 34: "80", 24 + 0xac: "01123456"}},
		{"CQ", CreateCQ{Buf: UmemRef{1, 0x3000}, DoorbellRecord: UmemRef{2, 8}, LogSize: 22, UARPage: 0xabcdef, EQN: 7, CQE128: true, LogPageSize: 3}.Encode,
			map[int]string{0: "0400", 16: "00200000", 20: "00000002", 28: "16abcdef", 36: "00000007", 40: "03", 16 + 56: "0000000000000008", 80: "0000000000003000", 88: "00000001"}},
		{"MKEY", CreateMKey{
			PD: 0x42, Buf: UmemRef{9, 0x10}, Addr: 0x10000ff8, Len: 0x1010, LogPageSize: 12, LocalWrite: true, Access: RemoteRead | RemoteWrite | RemoteAtomic, Variant: 0x5a,
		}.Encode, map[int]string{
			0: "0200", 16: "00007d00ffffff5a", 29: "000042", 32: "0000000010000ff8", 40: "0000000000001010", 16 + 52: "00000002", 16 + 59: "0c",
			96: "00000002", 100: "00000009", 104: "0000000000000010",
		}},
		{"MKEY for reads", CreateMKey{Len: 1, LogPageSize: 12, Access: RemoteRead}.Encode,
			map[int]string{0: "0200", 16: "00001500ffffff00", 40: "0000000000000001", 16 + 52: "00000001", 16 + 59: "0c", 96: "00000001"}},
		{"MKEY for writes", CreateMKey{Len: 1, LogPageSize: 12, Access: RemoteWrite}.Encode,
			map[int]string{0: "0200", 16: "00002500ffffff00", 40: "0000000000000001", 16 + 52: "00000001", 16 + 59: "0c", 96: "00000001"}},
		{"MKEY for atomics", CreateMKey{Len: 1, LogPageSize: 12, Access: RemoteAtomic}.Encode,
			map[int]string{0: "0200", 16: "00004500ffffff00", 40: "0000000000000001", 16 + 52: "00000001", 16 + 59: "0c", 96: "00000001"}},
	} {
		got := make([]byte, 272)
		if n, err := c.f(got); err != nil || n != 272 {
			t.Errorf("%s: %d, %v", c.name, n, err)
			continue
		}
		want := make([]byte, 272)
		for at, text := range c.bytes {
			b, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			copy(want[at:], b)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", c.name, got, want)
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	for _, c := range []struct {
		f    func([]byte) (int, error)
		want string
	}{
		{CreateQP{PD: 1 << 24, LogRQStride: 4}.Encode, "mlx5: CREATE_QP: pd 0x1000000 does not fit in 24 bits"},
		{CreateQP{UARPage: 1 << 24, LogRQStride: 4}.Encode, "mlx5: CREATE_QP: uar_page 0x1000000 does not fit in 24 bits"},
		{CreateQP{CQNSend: 1 << 24, LogRQStride: 4}.Encode, "mlx5: CREATE_QP: cqn_snd 0x1000000 does not fit in 24 bits"},
		{CreateQP{CQNRecv: 1 << 24, LogRQStride: 4}.Encode, "mlx5: CREATE_QP: cqn_rcv 0x1000000 does not fit in 24 bits"},
		{CreateQP{LogRQSize: 16, LogRQStride: 4}.Encode, "mlx5: CREATE_QP: log_rq_size 0x10 does not fit in 4 bits"},
		{CreateQP{LogSQSize: 16, LogRQStride: 4}.Encode, "mlx5: CREATE_QP: log_sq_size 0x10 does not fit in 4 bits"},
		{CreateQP{RQType: 8}.Encode, "mlx5: CREATE_QP: rq_type 0x8 does not fit in 3 bits"},
		{CreateQP{SRQN: 1 << 24, RQType: RQShared}.Encode, "mlx5: CREATE_QP: srqn_rmpn_xrqn 0x1000000 does not fit in 24 bits"},
		{CreateQP{UserIndex: 1 << 24, LogRQStride: 4}.Encode, "mlx5: CREATE_QP: user_index 0x1000000 does not fit in 24 bits"},
		{CreateQP{LogPageSize: 32, LogRQStride: 4}.Encode, "mlx5: CREATE_QP: log_page_size 0x20 does not fit in 5 bits"},
		{CreateQP{TsFormat: 4, LogRQStride: 4}.Encode, "mlx5: CREATE_QP: ts_format 0x4 does not fit in 2 bits"},
		{CreateQP{LogRQStride: 3}.Encode, "mlx5: CREATE_QP: log_rq_stride 3 is out of range: an entry has 16 to 2048 bytes, so 4 to 11"},
		{CreateQP{LogRQStride: 12}.Encode, "mlx5: CREATE_QP: log_rq_stride 12 is out of range: an entry has 16 to 2048 bytes, so 4 to 11"},
		{CreateCQ{LogSize: 32}.Encode, "mlx5: CREATE_CQ: log_cq_size 0x20 does not fit in 5 bits"},
		{CreateCQ{UARPage: 1 << 24}.Encode, "mlx5: CREATE_CQ: uar_page 0x1000000 does not fit in 24 bits"},
		{CreateCQ{LogPageSize: 32}.Encode, "mlx5: CREATE_CQ: log_page_size 0x20 does not fit in 5 bits"},
		{CreateMKey{PD: 1 << 24, Len: 1}.Encode, "mlx5: CREATE_MKEY: pd 0x1000000 does not fit in 24 bits"},
		{CreateMKey{LogPageSize: 32, Len: 1}.Encode, "mlx5: CREATE_MKEY: log_page_size 0x20 does not fit in 5 bits"},
		{CreateMKey{LogPageSize: 12}.Encode, "mlx5: CREATE_MKEY: len is zero"},
		{CreateMKey{LogPageSize: 12, Addr: math.MaxUint64, Len: 2}.Encode, "mlx5: CREATE_MKEY: len 0x2 leads beyond the last address, from 0xffffffffffffffff"},
		{CreateMKey{LogPageSize: 12, Len: 1<<45 + 1}.Encode, "mlx5: CREATE_MKEY: translations_octword_size 0x100000001 does not fit in 32 bits"},
		{CreateMKey{LogPageSize: 0, Len: math.MaxUint64}.Encode, "mlx5: CREATE_MKEY: translations_octword_size 0x8000000000000000 does not fit in 32 bits"},
	} {
		dst := make([]byte, 272)
		if n, err := c.f(dst); err == nil || err.Error() != c.want || n != 0 || !allZero(dst) {
			t.Errorf("got %v\nwant %s\n%x", err, c.want, dst)
		}
	}
	for name, f := range map[string]func([]byte) (int, error){
		"CREATE_QP": CreateQP{LogRQStride: 4}.Encode, "CREATE_CQ": CreateCQ{}.Encode, "CREATE_MKEY": CreateMKey{Len: 1, LogPageSize: 12}.Encode,
	} {
		want := "mlx5: " + name + " needs a buffer of 272 bytes, not 271"
		if n, err := f(make([]byte, 271)); err == nil || err.Error() != want || n != 0 {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}

// The last byte that can be addressed may be covered.
func TestCreateMKeyAtTheEnd(t *testing.T) {
	dst := make([]byte, 272)
	if _, err := (CreateMKey{LogPageSize: 12, Addr: math.MaxUint64 - 0xfff, Len: 0x1000}).Encode(dst); err != nil {
		t.Fatal(err)
	}
	if n := CreateMKeyIn(dst).TranslationsOctwordActualSize(); n != 1 {
		t.Errorf("%d octwords, want 1", n)
	}
}

func TestQueryHCACapOpMod(t *testing.T) {
	for _, c := range []struct {
		page    CapType
		current bool
		want    uint16
	}{{CapGeneral, false, 0}, {CapGeneral, true, 1}, {CapRoCE, false, 8}, {CapRoCE, true, 9}} {
		if got := QueryHCACapOpMod(c.page, c.current); got != c.want {
			t.Errorf("page %d, current %v: op_mod %d, want %d", c.page, c.current, got, c.want)
		}
	}
}
