// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"encoding/binary"
	"fmt"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// extended is what all extended transport headers have: the base transport header
// whose opcode says what follows.
type extended struct {
	layers.BaseLayer
	bth *BTH
}

func (e *extended) split(name string, data []byte, n int, df gopacket.DecodeFeedback) error {
	if len(data) < n {
		return tooShort(name, len(data), n, df)
	}
	e.Contents, e.Payload = data[:n], data[n:]
	return nil
}

func newHeader(h header, b *BTH) layer {
	e := extended{bth: b}
	switch h {
	case hXRCETH:
		return &XRCETH{extended: e}
	case hDETH:
		return &DETH{extended: e}
	case hRETH:
		return &RETH{extended: e}
	case hAETH:
		return &AETH{extended: e}
	case hAtomicETH:
		return &AtomicETH{extended: e}
	case hAtomicAckETH:
		return &AtomicAckETH{extended: e}
	case hImmDt:
		return &ImmDt{extended: e}
	case hIETH:
		return &IETH{extended: e}
	}
	return &CNP{extended: e}
}

// RETH addresses remote memory (specification, 9.3.3).
type RETH struct {
	extended
	VA     uint64
	RKey   uint32
	DMALen uint32 // bytes
}

// LayerType is LayerTypeRETH.
func (*RETH) LayerType() gopacket.LayerType { return LayerTypeRETH }

// CanDecode is LayerTypeRETH.
func (*RETH) CanDecode() gopacket.LayerClass { return LayerTypeRETH }

// NextLayerType depends on the opcode.
func (h *RETH) NextLayerType() gopacket.LayerType { return h.bth.after(hRETH) }

// DecodeFromBytes reads 16 bytes.
func (h *RETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.split("RETH", data, 16, df); err != nil {
		return err
	}
	h.VA, h.RKey, h.DMALen = binary.BigEndian.Uint64(data), binary.BigEndian.Uint32(data[8:]), binary.BigEndian.Uint32(data[12:])
	return nil
}

// SerializeTo prepends 16 bytes.
func (h *RETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(b, 16)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint64(p, h.VA)
	binary.BigEndian.PutUint32(p[8:], h.RKey)
	binary.BigEndian.PutUint32(p[12:], h.DMALen)
	return nil
}

// DETH is of datagrams (specification, 9.3.2).
type DETH struct {
	extended
	QKey  uint32
	SrcQP uint32 // 24 bits
}

// LayerType is LayerTypeDETH.
func (*DETH) LayerType() gopacket.LayerType { return LayerTypeDETH }

// CanDecode is LayerTypeDETH.
func (*DETH) CanDecode() gopacket.LayerClass { return LayerTypeDETH }

// NextLayerType is LayerTypeMAD if the packet goes to queue pair 1.
func (h *DETH) NextLayerType() gopacket.LayerType { return h.bth.after(hDETH) }

// DecodeFromBytes reads 8 bytes.
func (h *DETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.split("DETH", data, 8, df); err != nil {
		return err
	}
	h.QKey, h.SrcQP = binary.BigEndian.Uint32(data), binary.BigEndian.Uint32(data[4:])&qpnMask
	return nil
}

// SerializeTo prepends 8 bytes.
func (h *DETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	if h.SrcQP > qpnMask {
		return tooWide("DETH", "SrcQP", uint64(h.SrcQP), 24)
	}
	p, err := prepend(b, 8)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(p, h.QKey)
	put24(p[5:], h.SrcQP)
	return nil
}

// Syndrome of an AETH: what an acknowledgement says (specification, table 43).
type Syndrome uint8

// NAK codes, whole syndromes.
const (
	NAKSequence      Syndrome = 0x60
	NAKInvalid       Syndrome = 0x61
	NAKAccess        Syndrome = 0x62
	NAKOperational   Syndrome = 0x63
	NAKInvalidRD     Syndrome = 0x64
	syndromeKind              = 0x60
	syndromeAck               = 0x00
	syndromeRNR               = 0x20
	syndromeValue             = 0x1f
	unlimitedCredits          = 0x1f
)

// RNR reports whether it says that the receiver was not ready, and the code of
// the time to wait (specification, table 45), 0 to 31.
func (s Syndrome) RNR() (timer uint8, ok bool) {
	return uint8(s) & syndromeValue, s&^syndromeValue == syndromeRNR
}

// ACK reports whether all is well.
func (s Syndrome) ACK() bool { return s&^syndromeValue == syndromeAck }

func (s Syndrome) String() string {
	switch timer, rnr := s.RNR(); {
	case s == unlimitedCredits:
		return "ACK"
	case s.ACK():
		return fmt.Sprintf("ACK, credit code %d", uint8(s))
	case rnr:
		return fmt.Sprintf("RNR NAK, timer code %d", timer)
	case s == NAKSequence:
		return "NAK: PSN sequence error"
	case s == NAKInvalid:
		return "NAK: invalid request"
	case s == NAKAccess:
		return "NAK: remote access error"
	case s == NAKOperational:
		return "NAK: remote operational error"
	case s == NAKInvalidRD:
		return "NAK: invalid RD request"
	}
	return fmt.Sprintf("syndrome %#02x", uint8(s))
}

// AETH acknowledges (specification, 9.3.5).
type AETH struct {
	extended
	Syndrome Syndrome
	MSN      uint32 // 24 bits
}

// LayerType is LayerTypeAETH.
func (*AETH) LayerType() gopacket.LayerType { return LayerTypeAETH }

// CanDecode is LayerTypeAETH.
func (*AETH) CanDecode() gopacket.LayerClass { return LayerTypeAETH }

// NextLayerType depends on the opcode.
func (h *AETH) NextLayerType() gopacket.LayerType { return h.bth.after(hAETH) }

// DecodeFromBytes reads 4 bytes.
func (h *AETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.split("AETH", data, 4, df); err != nil {
		return err
	}
	h.Syndrome, h.MSN = Syndrome(data[0]), binary.BigEndian.Uint32(data)&qpnMask
	return nil
}

// SerializeTo prepends 4 bytes.
func (h *AETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	if h.MSN > qpnMask {
		return tooWide("AETH", "MSN", uint64(h.MSN), 24)
	}
	p, err := prepend(b, 4)
	if err != nil {
		return err
	}
	p[0] = uint8(h.Syndrome)
	put24(p[1:], h.MSN)
	return nil
}

// AtomicETH is of CmpSwap and FetchAdd (specification, 9.3.4).
type AtomicETH struct {
	extended
	VA      uint64
	RKey    uint32
	SwapAdd uint64 // what to swap in, or to add
	Compare uint64
}

// LayerType is LayerTypeAtomicETH.
func (*AtomicETH) LayerType() gopacket.LayerType { return LayerTypeAtomicETH }

// CanDecode is LayerTypeAtomicETH.
func (*AtomicETH) CanDecode() gopacket.LayerClass { return LayerTypeAtomicETH }

// NextLayerType is gopacket.LayerTypePayload.
func (h *AtomicETH) NextLayerType() gopacket.LayerType { return h.bth.after(hAtomicETH) }

// DecodeFromBytes reads 28 bytes.
func (h *AtomicETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.split("AtomicETH", data, 28, df); err != nil {
		return err
	}
	h.VA, h.RKey = binary.BigEndian.Uint64(data), binary.BigEndian.Uint32(data[8:])
	h.SwapAdd, h.Compare = binary.BigEndian.Uint64(data[12:]), binary.BigEndian.Uint64(data[20:])
	return nil
}

// SerializeTo prepends 28 bytes.
func (h *AtomicETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(b, 28)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint64(p, h.VA)
	binary.BigEndian.PutUint32(p[8:], h.RKey)
	binary.BigEndian.PutUint64(p[12:], h.SwapAdd)
	binary.BigEndian.PutUint64(p[20:], h.Compare)
	return nil
}

// AtomicAckETH has what an atomic operation found (specification, 9.3.5.3).
type AtomicAckETH struct {
	extended
	Original uint64
}

// LayerType is LayerTypeAtomicAckETH.
func (*AtomicAckETH) LayerType() gopacket.LayerType { return LayerTypeAtomicAckETH }

// CanDecode is LayerTypeAtomicAckETH.
func (*AtomicAckETH) CanDecode() gopacket.LayerClass { return LayerTypeAtomicAckETH }

// NextLayerType is gopacket.LayerTypePayload.
func (h *AtomicAckETH) NextLayerType() gopacket.LayerType { return h.bth.after(hAtomicAckETH) }

// DecodeFromBytes reads 8 bytes.
func (h *AtomicAckETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.split("AtomicAckETH", data, 8, df); err != nil {
		return err
	}
	h.Original = binary.BigEndian.Uint64(data)
	return nil
}

// SerializeTo prepends 8 bytes.
func (h *AtomicAckETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(b, 8)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint64(p, h.Original)
	return nil
}

// ImmDt is immediate data (specification, 9.3.6).
type ImmDt struct {
	extended
	Data uint32
}

// LayerType is LayerTypeImmDt.
func (*ImmDt) LayerType() gopacket.LayerType { return LayerTypeImmDt }

// CanDecode is LayerTypeImmDt.
func (*ImmDt) CanDecode() gopacket.LayerClass { return LayerTypeImmDt }

// NextLayerType is gopacket.LayerTypePayload, or LayerTypeMAD.
func (h *ImmDt) NextLayerType() gopacket.LayerType { return h.bth.after(hImmDt) }

// DecodeFromBytes reads 4 bytes.
func (h *ImmDt) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.split("ImmDt", data, 4, df); err != nil {
		return err
	}
	h.Data = binary.BigEndian.Uint32(data)
	return nil
}

// SerializeTo prepends 4 bytes.
func (h *ImmDt) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return serialize32(b, h.Data)
}

// IETH names the memory key that a SEND with invalidate ends (specification,
// 9.3.7).
type IETH struct {
	extended
	RKey uint32
}

// LayerType is LayerTypeIETH.
func (*IETH) LayerType() gopacket.LayerType { return LayerTypeIETH }

// CanDecode is LayerTypeIETH.
func (*IETH) CanDecode() gopacket.LayerClass { return LayerTypeIETH }

// NextLayerType is gopacket.LayerTypePayload.
func (h *IETH) NextLayerType() gopacket.LayerType { return h.bth.after(hIETH) }

// DecodeFromBytes reads 4 bytes.
func (h *IETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.split("IETH", data, 4, df); err != nil {
		return err
	}
	h.RKey = binary.BigEndian.Uint32(data)
	return nil
}

// SerializeTo prepends 4 bytes.
func (h *IETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	return serialize32(b, h.RKey)
}

func serialize32(b gopacket.SerializeBuffer, v uint32) error {
	p, err := prepend(b, 4)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(p, v)
	return nil
}

// XRCETH names a shared receive queue (specification, annex A14).
type XRCETH struct {
	extended
	XRCSRQ uint32 // 24 bits
}

// LayerType is LayerTypeXRCETH.
func (*XRCETH) LayerType() gopacket.LayerType { return LayerTypeXRCETH }

// CanDecode is LayerTypeXRCETH.
func (*XRCETH) CanDecode() gopacket.LayerClass { return LayerTypeXRCETH }

// NextLayerType depends on the opcode.
func (h *XRCETH) NextLayerType() gopacket.LayerType { return h.bth.after(hXRCETH) }

// DecodeFromBytes reads 4 bytes.
func (h *XRCETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := h.split("XRCETH", data, 4, df); err != nil {
		return err
	}
	h.XRCSRQ = binary.BigEndian.Uint32(data) & qpnMask
	return nil
}

// SerializeTo prepends 4 bytes.
func (h *XRCETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	if h.XRCSRQ > qpnMask {
		return tooWide("XRCETH", "XRCSRQ", uint64(h.XRCSRQ), 24)
	}
	return serialize32(b, h.XRCSRQ)
}

// CNP asks a sender to slow down: 16 bytes that are zero (annex A17.9.3).
type CNP struct{ extended }

// LayerType is LayerTypeCNP.
func (*CNP) LayerType() gopacket.LayerType { return LayerTypeCNP }

// CanDecode is LayerTypeCNP.
func (*CNP) CanDecode() gopacket.LayerClass { return LayerTypeCNP }

// NextLayerType is gopacket.LayerTypePayload.
func (h *CNP) NextLayerType() gopacket.LayerType { return h.bth.after(hCNP) }

// DecodeFromBytes takes 16 bytes.
func (h *CNP) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	return h.split("CNP", data, 16, df)
}

// SerializeTo prepends 16 bytes.
func (h *CNP) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	_, err := prepend(b, 16)
	return err
}
