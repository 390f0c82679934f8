// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"encoding/binary"
	"fmt"
)

// WQEOp is the opcode of a work request (MLX5_OPCODE_* in linux/mlx5/device.h).
type WQEOp uint8

// Work requests of RC and UC queue pairs.
const (
	WQENop      WQEOp = 0x00
	WQESendInv  WQEOp = 0x01
	WQEWrite    WQEOp = 0x08
	WQEWriteImm WQEOp = 0x09
	WQESend     WQEOp = 0x0a
	WQESendImm  WQEOp = 0x0b
	WQERead     WQEOp = 0x10
	WQECmpSwap  WQEOp = 0x11
	WQEFetchAdd WQEOp = 0x12
)

// Sizes of queues and of what lies in them, in bytes.
const (
	WQEBB      = 64  // the unit of a send queue (MLX5_SEND_WQE_BB)
	WQESegment = 16  // the unit of a work request, and an SGE
	MaxSendWQE = 512 // that SendWQE encodes
	CQESize    = 64
)

// Doorbells within a UAR page (MLX5_BF_OFFSET and MLX5_CQ_DOORBELL in
// linux/mlx5/doorbell.h).
const (
	DoorbellSend = 0x800
	DoorbellCQ   = 0x20
)

// SGE is a piece of registered memory (struct mlx5_wqe_data_seg in
// linux/mlx5/qp.h).
type SGE struct {
	Addr  uint64
	Bytes uint32 // below 2^31; of 0 it is left out, as drivers do: for the device, 0 is 2^31 (mlx5_ib wr.c)
	LKey  uint32
}

// SendWQE is a work request of an RC or UC queue pair's send queue (struct
// mlx5_wqe_ctrl_seg, _raddr_seg, _atomic_seg, _data_seg and _inline_seg in
// linux/mlx5/qp.h).
type SendWQE struct {
	Op         WQEOp
	Signaled   bool   // it has a completion also if it succeeds
	Solicited  bool   // the other end's completion is a solicited event
	Fence      bool   // it begins when the RDMA READs and atomics before it are complete
	Imm        uint32 // of WQESendImm and WQEWriteImm; the key of WQESendInv
	RemoteAddr uint64 // of WRITE, READ and atomics
	RKey       uint32
	SwapAdd    uint64 // what a compare-and-swap stores, or a fetch-and-add adds
	Compare    uint64
	Inline     []byte // data in the request itself, before that of Data; not of READ and atomics
	Data       []SGE
}

// Bits of a control segment's fm_ce_se (MLX5_WQE_CTRL_CQ_UPDATE and _SOLICITED,
// MLX5_FENCE_MODE_SMALL_AND_FENCE in linux/mlx5/qp.h), and of a data segment's
// length (MLX5_INLINE_SEG).
const (
	wqeCompletion = 2 << 2
	wqeSolicited  = 1 << 1
	wqeFence      = 4 << 5
	wqeInline     = 1 << 31
)

// Encode writes the request into a send queue, whose length is a power of two
// units of WQEBB, at a producer index. It returns how many units that takes, and
// the first 8 bytes of the request, which are the doorbell.
func (w *SendWQE) Encode(queue []byte, index uint16, qpn uint32) (units int, doorbell uint64, err error) {
	var b [MaxSendWQE]byte
	n, err := w.segments(b[:])
	if err != nil {
		return 0, 0, err
	}
	units = (n + WQEBB - 1) / WQEBB
	room := len(queue) / WQEBB
	if room == 0 || room&(room-1) != 0 || len(queue)%WQEBB != 0 || units > room || qpn >= 1<<24 {
		return 0, 0, fmt.Errorf("mlx5: work request of %d units for QP %#x in a send queue of %d bytes: the queue must be a power of two units of %d bytes that holds it, the QPN of 24 bits",
			units, qpn, len(queue), WQEBB)
	}
	doorbell = (uint64(index)<<8|uint64(w.Op))<<32 | uint64(qpn)<<8 | uint64(n/WQESegment)
	binary.BigEndian.PutUint64(b[:], doorbell)
	at := int(index) % room * WQEBB
	first := copy(queue[at:], b[:n])
	copy(queue, b[first:n])
	return units, doorbell, nil
}

// segments writes everything but the first 8 bytes, and returns the length.
func (w *SendWQE) segments(b []byte) (n int, err error) {
	if w.Signaled {
		b[11] |= wqeCompletion
	}
	if w.Solicited {
		b[11] |= wqeSolicited
	}
	if w.Fence {
		b[11] |= wqeFence
	}
	binary.BigEndian.PutUint32(b[12:], w.Imm)
	n = WQESegment
	atomic := w.Op == WQECmpSwap || w.Op == WQEFetchAdd
	switch w.Op {
	case WQENop, WQESend, WQESendImm, WQESendInv:
	case WQEWrite, WQEWriteImm, WQERead, WQECmpSwap, WQEFetchAdd:
		binary.BigEndian.PutUint64(b[n:], w.RemoteAddr)
		binary.BigEndian.PutUint32(b[n+8:], w.RKey)
		n += WQESegment
	default:
		return 0, fmt.Errorf("mlx5: work request opcode %#x: not one of the WQE constants", uint8(w.Op))
	}
	if atomic {
		binary.BigEndian.PutUint64(b[n:], w.SwapAdd)
		binary.BigEndian.PutUint64(b[n+8:], w.Compare)
		n += WQESegment
	}
	if len(w.Inline) > 0 {
		whole := (4 + len(w.Inline) + WQESegment - 1) &^ (WQESegment - 1)
		if w.Op == WQENop || w.Op == WQERead || atomic || n+whole > len(b) {
			return 0, fmt.Errorf("mlx5: %d bytes of inline data in work request %#x: SEND and WRITE have room for %d", len(w.Inline), uint8(w.Op), len(b)-n-4)
		}
		binary.BigEndian.PutUint32(b[n:], uint32(len(w.Inline))|wqeInline)
		copy(b[n+4:], w.Inline)
		n += whole
	}
	if w.Op == WQENop && len(w.Data) > 0 || n+len(w.Data)*WQESegment > len(b) {
		return 0, fmt.Errorf("mlx5: %d data segments in work request %#x: room for %d", len(w.Data), uint8(w.Op), (len(b)-n)/WQESegment)
	}
	for i := range w.Data {
		if w.Data[i].Bytes == 0 {
			continue
		}
		if err := w.Data[i].encode(b[n:]); err != nil {
			return 0, err
		}
		n += WQESegment
	}
	return n, nil
}

func (s *SGE) encode(b []byte) error {
	if s.Bytes >= wqeInline {
		return fmt.Errorf("mlx5: a data segment of %d bytes: below 2^31", s.Bytes)
	}
	binary.BigEndian.PutUint32(b, s.Bytes)
	binary.BigEndian.PutUint32(b[4:], s.LKey)
	binary.BigEndian.PutUint64(b[8:], s.Addr)
	return nil
}

// lkeyEnd ends the data segments of a receive entry that has room for more
// (MLX5_INVALID_LKEY in linux/mlx5/qp.h).
const lkeyEnd = 0x100

// EncodeRecv writes a receive entry: data segments as far as they go, and what
// ends them. The entry's length is the queue's stride.
func EncodeRecv(entry []byte, data []SGE) error {
	if len(data)*WQESegment > len(entry) {
		return fmt.Errorf("mlx5: %d data segments in a receive entry of %d bytes: room for %d", len(data), len(entry), len(entry)/WQESegment)
	}
	rest := entry
	for i := range data {
		if data[i].Bytes == 0 {
			continue
		}
		if err := data[i].encode(rest); err != nil {
			return err
		}
		rest = rest[WQESegment:]
	}
	if len(rest) >= WQESegment {
		return (&SGE{LKey: lkeyEnd}).encode(rest)
	}
	return nil
}

// CQE is a completion queue entry of 64 bytes (struct mlx5_cqe64 and struct
// mlx5_err_cqe in linux/mlx5/device.h).
type CQE []byte

// CQEOp is the opcode of a completion (MLX5_CQE_* in linux/mlx5/cq.h).
type CQEOp uint8

// Completions.
const (
	CQERequest       CQEOp = 0
	CQERecvWriteImm  CQEOp = 1
	CQERecvSend      CQEOp = 2
	CQERecvSendImm   CQEOp = 3
	CQERecvSendInv   CQEOp = 4
	CQERequestError  CQEOp = 13
	CQEResponseError CQEOp = 14
	CQEInvalid       CQEOp = 15 // the device has not written it
)

// Opcode says what the completion is of.
func (c CQE) Opcode() CQEOp { return CQEOp(c[0x3f] >> 4) }

// Owned reports whether the device has written the entry for the consumer index
// ci of a queue of 2^log entries: the owner bit turns with each round.
func (c CQE) Owned(ci uint32, log int) bool { return CQEOwned(c[0x3f], ci, log) }

// CQEOwned is CQE.Owned by the entry's last byte, for a program that has loaded it
// in an order of its own.
func CQEOwned(last byte, ci uint32, log int) bool {
	return CQEOp(last>>4) != CQEInvalid && uint32(last&1) == ci>>log&1
}

// Failed reports whether it is an error.
func (c CQE) Failed() bool { return c.Opcode() == CQERequestError || c.Opcode() == CQEResponseError }

// UserIndex returns what CREATE_QP gave as user_index, 24 bits.
func (c CQE) UserIndex() uint32 { return binary.BigEndian.Uint32(c[0x20:]) & 0xffffff }

// Imm returns immediate data, or the key that was invalidated.
func (c CQE) Imm() uint32 { return binary.BigEndian.Uint32(c[0x24:]) }

// Bytes returns how much was received, or read.
func (c CQE) Bytes() uint32 { return binary.BigEndian.Uint32(c[0x2c:]) }

// QPN returns the queue pair.
func (c CQE) QPN() uint32 { return binary.BigEndian.Uint32(c[0x38:]) & 0xffffff }

// WQEOpcode returns the opcode of the request that was completed.
func (c CQE) WQEOpcode() WQEOp { return WQEOp(c[0x38]) }

// WQECounter returns the producer index of the request that was completed, or
// which receive entry it was.
func (c CQE) WQECounter() uint16 { return binary.BigEndian.Uint16(c[0x3c:]) }

// Syndrome returns what an error is (MLX5_CQE_SYNDROME_* in
// linux/mlx5/device.h), and VendorSyndrome what the vendor says besides.
func (c CQE) Syndrome() uint8 { return c[0x37] }

// VendorSyndrome returns the vendor's byte of an error, vendor_err of struct
// ibv_wc.
func (c CQE) VendorSyndrome() uint8 { return c[0x36] }
