// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"fmt"
	"math"
)

// FieldError says which field of a command was refused, and why.
type FieldError struct {
	Op     Op
	Field  string
	Reason string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("mlx5: %s: %s %s", e.Op, e.Field, e.Reason)
}

// fields checks the widths of a command's values before they are written.
type fields struct {
	op  Op
	err error
}

func (f *fields) fits(name string, v uint64, width int) {
	if f.err == nil && v >= 1<<width {
		f.err = &FieldError{f.op, name, fmt.Sprintf("%#x does not fit in %d bits", v, width)}
	}
}

func (f *fields) room(dst []byte, n int) {
	if f.err == nil && len(dst) < n {
		f.err = fmt.Errorf("mlx5: %s needs a buffer of %d bytes, not %d", f.op, n, len(dst))
	}
}

// UmemRef is a place in registered user memory.
type UmemRef struct {
	ID     uint32
	Offset uint64 // bytes
}

// CreateCQ builds CREATE_CQ for a completion queue in user memory.
type CreateCQ struct {
	Buf, DoorbellRecord UmemRef
	LogSize             uint8  // log2 of the number of entries
	UARPage             uint32 // page id of a UAR
	EQN                 uint32 // completion event queue, from QUERY_EQN
	CQE128              bool   // entries of 128 bytes in the place of 64
	LogPageSize         uint8  // of the buffer, minus 12
}

// Encode writes the 272-byte command into dst, which must be zero.
func (c CreateCQ) Encode(dst []byte) (int, error) {
	f := fields{op: OpCreateCQ}
	f.room(dst, CreateCQInSize)
	f.fits("log_cq_size", uint64(c.LogSize), 5)
	f.fits("uar_page", uint64(c.UARPage), 24)
	f.fits("log_page_size", uint64(c.LogPageSize), 5)
	if f.err != nil {
		return 0, f.err
	}
	in := CreateCQIn(dst)
	in.SetOpcode(uint16(OpCreateCQ))
	in.SetCQUmemID(c.Buf.ID)
	in.SetCQUmemOffset(c.Buf.Offset)
	cqc := in.CQContext()
	cqc.SetDBRUmemID(c.DoorbellRecord.ID)
	cqc.SetDBRAddr(c.DoorbellRecord.Offset)
	cqc.SetLogCQSize(c.LogSize)
	cqc.SetUARPage(c.UARPage)
	cqc.SetCEQNOrApuElement(c.EQN)
	cqc.SetLogPageSize(c.LogPageSize)
	if c.CQE128 {
		cqc.SetCQESz(1)
	}
	return CreateCQInSize, nil
}

// Receive queue types (qpc.rq_type in the Programmer's Reference Manual;
// MLX5_NON_ZERO_RQ and following in linux/mlx5/qp.h).
const (
	RQNormal = 0
	RQShared = 1 // an SRQ or RMP
	RQNone   = 3
)

// CreateQP builds CREATE_QP for a queue pair in user memory: one buffer, the
// receive queue first, and a doorbell record with the receive counter at +0 and
// the send counter at +4.
type CreateQP struct {
	ST                  ServiceType
	PD, UARPage         uint32
	CQNSend, CQNRecv    uint32
	Buf, DoorbellRecord UmemRef
	LogRQSize           uint8 // log2 of the number of receive entries
	LogRQStride         uint8 // log2 of an entry's bytes, at least 4
	LogSQSize           uint8 // log2 of the send queue in units of 64 bytes
	RQType              uint8
	NoSQ                bool
	SRQN                uint32 // with RQShared
	UserIndex           uint32 // what completions carry
	LogPageSize         uint8  // of the buffer, minus 12
	TsFormat            uint8  // 1 is the default format
}

// Encode writes the 272-byte command into dst, which must be zero.
func (c CreateQP) Encode(dst []byte) (int, error) {
	f := fields{op: OpCreateQP}
	f.room(dst, CreateQPInSize)
	f.fits("pd", uint64(c.PD), 24)
	f.fits("uar_page", uint64(c.UARPage), 24)
	f.fits("cqn_snd", uint64(c.CQNSend), 24)
	f.fits("cqn_rcv", uint64(c.CQNRecv), 24)
	f.fits("log_rq_size", uint64(c.LogRQSize), 4)
	f.fits("log_sq_size", uint64(c.LogSQSize), 4)
	f.fits("rq_type", uint64(c.RQType), 3)
	f.fits("srqn_rmpn_xrqn", uint64(c.SRQN), 24)
	f.fits("user_index", uint64(c.UserIndex), 24)
	f.fits("log_page_size", uint64(c.LogPageSize), 5)
	f.fits("ts_format", uint64(c.TsFormat), 2)
	stride := uint8(0)
	if c.RQType == RQNormal {
		if c.LogRQStride < 4 || c.LogRQStride > 11 {
			return 0, &FieldError{OpCreateQP, "log_rq_stride", fmt.Sprintf("%d is out of range: an entry has 16 to 2048 bytes, so 4 to 11", c.LogRQStride)}
		}
		stride = c.LogRQStride - 4
	}
	if f.err != nil {
		return 0, f.err
	}
	in := CreateQPIn(dst)
	in.SetOpcode(uint16(OpCreateQP))
	in.SetWQUmemID(c.Buf.ID)
	in.SetWQUmemOffset(c.Buf.Offset)
	q := in.QPC()
	q.SetSt(uint8(c.ST))
	q.SetPMState(3)
	q.SetPD(c.PD)
	q.SetUARPage(c.UARPage)
	q.SetCQNSnd(c.CQNSend)
	q.SetCQNRcv(c.CQNRecv)
	q.SetLogRQSize(c.LogRQSize)
	q.SetLogRQStride(stride)
	q.SetLogSQSize(c.LogSQSize)
	q.SetRQType(c.RQType)
	q.SetNoSQ(c.NoSQ)
	q.SetSRQNRMPNXRQN(c.SRQN)
	q.SetUserIndex(c.UserIndex)
	q.SetLogPageSize(c.LogPageSize)
	q.SetTsFormat(c.TsFormat)
	q.SetDBRUmemID(c.DoorbellRecord.ID)
	q.SetDBRAddr(c.DoorbellRecord.Offset)
	return CreateQPInSize, nil
}

// CreateMKey builds CREATE_MKEY for a registered range of user memory.
type CreateMKey struct {
	PD          uint32
	Buf         UmemRef
	Addr, Len   uint64 // the range that the key covers, as work requests name it
	LogPageSize uint8  // of the user memory
	LocalWrite  bool
	Access      Access
	Variant     uint8 // low byte of the key
}

// Encode writes the 272-byte command into dst, which must be zero.
func (c CreateMKey) Encode(dst []byte) (int, error) {
	f := fields{op: OpCreateMKey}
	f.room(dst, CreateMKeyInSize)
	f.fits("pd", uint64(c.PD), 24)
	f.fits("log_page_size", uint64(c.LogPageSize), 5)
	if f.err == nil && c.Len == 0 {
		f.err = &FieldError{OpCreateMKey, "len", "is zero"}
	}
	if f.err == nil && c.Len-1 > math.MaxUint64-c.Addr {
		f.err = &FieldError{OpCreateMKey, "len", fmt.Sprintf("%#x leads beyond the last address, from %#x", c.Len, c.Addr)}
	}
	pages := (c.Addr&(1<<c.LogPageSize-1)+c.Len-1)>>c.LogPageSize + 1
	octwords := pages/2 + pages%2 // an MTT has 8 bytes
	f.fits("translations_octword_size", octwords, 32)
	if f.err != nil {
		return 0, f.err
	}
	in := CreateMKeyIn(dst)
	in.SetOpcode(uint16(OpCreateMKey))
	in.SetMKeyUmemID(c.Buf.ID)
	in.SetMKeyUmemOffset(c.Buf.Offset)
	in.SetTranslationsOctwordActualSize(uint32(octwords))
	m := in.MemoryKeyMKeyEntry()
	m.SetAccessMode10(1) // MTT
	m.SetLr(true)
	m.SetLw(c.LocalWrite)
	m.SetRr(c.Access&RemoteRead != 0)
	m.SetRw(c.Access&RemoteWrite != 0)
	m.SetA(c.Access&RemoteAtomic != 0)
	m.SetQPN(0xffffff)
	m.SetPD(c.PD)
	m.SetStartAddr(c.Addr)
	m.SetLen(c.Len)
	m.SetLogPageSize(c.LogPageSize)
	m.SetTranslationsOctwordSize(uint32(octwords))
	m.SetMKey70(c.Variant)
	return CreateMKeyInSize, nil
}

// CapType selects a page of QUERY_HCA_CAP (enum mlx5_cap_type in
// linux/mlx5/device.h).
type CapType uint16

// Pages of QUERY_HCA_CAP that this package has a view of.
const (
	CapGeneral CapType = 0
	CapRoCE    CapType = 4
)

// QueryHCACapOpMod returns the op_mod of QUERY_HCA_CAP: the page, and whether
// the current or the greatest values are asked for.
func QueryHCACapOpMod(t CapType, current bool) uint16 {
	m := uint16(t) << 1
	if current {
		m |= 1
	}
	return m
}
