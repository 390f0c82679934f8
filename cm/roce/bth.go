// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"encoding/binary"
	"fmt"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// Opcode of a base transport header: the transport in the upper three bits, the
// operation in the lower five (specification, table 38).
type Opcode uint8

// Transports.
const (
	RC  Opcode = 0x00
	UC  Opcode = 0x20
	RD  Opcode = 0x40
	UD  Opcode = 0x60
	CNs Opcode = 0x80 // annex A17: congestion notification
	XRC Opcode = 0xa0
)

// Operations, the same in each transport that has them.
const (
	SendFirst      Opcode = 0x00
	SendMiddle     Opcode = 0x01
	SendLast       Opcode = 0x02
	SendLastImm    Opcode = 0x03
	SendOnly       Opcode = 0x04
	SendOnlyImm    Opcode = 0x05
	WriteFirst     Opcode = 0x06
	WriteMiddle    Opcode = 0x07
	WriteLast      Opcode = 0x08
	WriteLastImm   Opcode = 0x09
	WriteOnly      Opcode = 0x0a
	WriteOnlyImm   Opcode = 0x0b
	ReadRequest    Opcode = 0x0c
	ReadFirst      Opcode = 0x0d
	ReadMiddle     Opcode = 0x0e
	ReadLast       Opcode = 0x0f
	ReadOnly       Opcode = 0x10
	Acknowledge    Opcode = 0x11
	AtomicAck      Opcode = 0x12
	CompareSwap    Opcode = 0x13
	FetchAdd       Opcode = 0x14
	SendLastInv    Opcode = 0x16
	SendOnlyInv    Opcode = 0x17
	CongestionNote        = CNs | 0x01 // CNP, the only one of its kind

	operation = 0x1f
)

// Transport returns the upper three bits: RC, UC, RD, UD, CNs or XRC.
func (o Opcode) Transport() Opcode { return o &^ operation }

// Operation returns the lower five bits.
func (o Opcode) Operation() Opcode { return o & operation }

var (
	transportNames = map[Opcode]string{RC: "RC", UC: "UC", RD: "RD", UD: "UD", XRC: "XRC"}
	operationNames = map[Opcode]string{
		SendFirst: "SEND first", SendMiddle: "SEND middle", SendLast: "SEND last", SendLastImm: "SEND last with immediate", SendOnly: "SEND only",
		SendOnlyImm: "SEND only with immediate", WriteFirst: "WRITE first", WriteMiddle: "WRITE middle", WriteLast: "WRITE last",
		WriteLastImm: "WRITE last with immediate", WriteOnly: "WRITE only", WriteOnlyImm: "WRITE only with immediate",
		ReadRequest: "READ request", ReadFirst: "READ response first", ReadMiddle: "READ response middle", ReadLast: "READ response last",
		ReadOnly: "READ response only", Acknowledge: "ACK", AtomicAck: "ATOMIC ACK", CompareSwap: "CmpSwap", FetchAdd: "FetchAdd",
		SendLastInv: "SEND last with invalidate", SendOnlyInv: "SEND only with invalidate",
	}
)

// String is such as "RC SEND only".
func (o Opcode) String() string {
	if o == CongestionNote {
		return "CNP"
	}
	if !o.defined() {
		return fmt.Sprintf("opcode %#02x", uint8(o))
	}
	return transportNames[o.Transport()] + " " + operationNames[o.Operation()]
}

// defined reports whether table 38 has the operation for the transport. UC sends
// and writes; a datagram is whole.
func (o Opcode) defined() bool {
	op := o.Operation()
	switch o.Transport() {
	case UC:
		return op <= WriteOnlyImm
	case UD:
		return op == SendOnly || op == SendOnlyImm
	case RC, RD, XRC:
		return operationNames[op] != ""
	}
	return false
}

// header numbers the extended transport headers.
type header uint8

const (
	noHeader header = iota
	hXRCETH
	hDETH
	hRETH
	hAETH
	hAtomicETH
	hAtomicAckETH
	hImmDt
	hIETH
	hCNP

	numHeaders
)

var headerTypes = [numHeaders]gopacket.LayerType{
	hXRCETH: LayerTypeXRCETH, hDETH: LayerTypeDETH, hRETH: LayerTypeRETH, hAETH: LayerTypeAETH, hAtomicETH: LayerTypeAtomicETH,
	hAtomicAckETH: LayerTypeAtomicAckETH, hImmDt: LayerTypeImmDt, hIETH: LayerTypeIETH, hCNP: LayerTypeCNP,
}

// following has the headers behind the base transport header of each operation
// of the reliable connected transport, in their order (specification, table 38).
var following = map[Opcode][]header{
	SendLastImm:  {hImmDt},
	SendOnlyImm:  {hImmDt},
	WriteFirst:   {hRETH},
	WriteLastImm: {hImmDt},
	WriteOnly:    {hRETH},
	WriteOnlyImm: {hRETH, hImmDt},
	ReadRequest:  {hRETH},
	ReadFirst:    {hAETH},
	ReadLast:     {hAETH},
	ReadOnly:     {hAETH},
	Acknowledge:  {hAETH},
	AtomicAck:    {hAETH, hAtomicAckETH},
	CompareSwap:  {hAtomicETH},
	FetchAdd:     {hAtomicETH},
	SendLastInv:  {hIETH},
	SendOnlyInv:  {hIETH},
}

// answers carry no XRCETH: it names a receive queue.
var answers = map[Opcode]bool{ReadFirst: true, ReadMiddle: true, ReadLast: true, ReadOnly: true, Acknowledge: true, AtomicAck: true}

// nextHeader has, for each opcode, what follows each header, the base transport
// header (noHeader) first.
var nextHeader = func() (t [256][numHeaders]header) {
	put := func(o Opcode, chain ...header) {
		if !o.defined() && o != CongestionNote {
			return
		}
		at := noHeader
		for _, h := range chain {
			t[o][at] = h
			at = h
		}
	}
	for op := range operationNames {
		put(RC|op, following[op]...)
		put(UC|op, following[op]...)
		put(UD|op, append([]header{hDETH}, following[op]...)...)
		if answers[op] {
			put(XRC|op, following[op]...)
		} else {
			put(XRC|op, append([]header{hXRCETH}, following[op]...)...)
		}
	}
	put(CongestionNote, hCNP)
	return t
}()

const (
	bthBytes  = 12
	icrcBytes = 4

	qpnMask = 1<<24 - 1

	// GSI is the number of the queue pair that management datagrams go to.
	GSI = 1
)

// BTH is the base transport header (specification, 9.2). Its payload is that of
// the packet, with the headers that follow, without padding and ICRC.
type BTH struct {
	layers.BaseLayer
	Opcode    Opcode
	Solicited bool
	MigReq    bool
	Pad       uint8 // bytes of padding behind the payload, 0 to 3
	TVer      uint8 // 4 bits; 0
	PKey      uint16
	FECN      bool // annex A17: not used by RoCEv2, which marks in the IP header
	BECN      bool
	DestQP    uint32 // 24 bits
	AckReq    bool
	PSN       uint32 // 24 bits
	ICRC      uint32 // as the packet has it; see CheckICRC
}

// LayerType is LayerTypeBTH.
func (*BTH) LayerType() gopacket.LayerType { return LayerTypeBTH }

// CanDecode is LayerTypeBTH.
func (*BTH) CanDecode() gopacket.LayerClass { return LayerTypeBTH }

// NextLayerType is the first extended transport header, or gopacket.LayerTypePayload.
func (b *BTH) NextLayerType() gopacket.LayerType { return b.after(noHeader) }

// after is what follows a header.
func (b *BTH) after(h header) gopacket.LayerType {
	if b == nil {
		return gopacket.LayerTypePayload
	}
	if n := nextHeader[b.Opcode][h]; n != noHeader {
		return headerTypes[n]
	}
	if b.Opcode.Transport() == UD && b.DestQP == GSI {
		return LayerTypeMAD
	}
	return gopacket.LayerTypePayload
}

// DecodeFromBytes reads 12 bytes, and the padding and ICRC at the end. Of a packet
// that was cut off those are not what they seem; gopacket marks it as truncated.
func (b *BTH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if len(data) < bthBytes+icrcBytes {
		return tooShort("BTH and ICRC", len(data), bthBytes+icrcBytes, df)
	}
	b.Opcode = Opcode(data[0])
	b.Solicited, b.MigReq, b.Pad, b.TVer = data[1]&0x80 != 0, data[1]&0x40 != 0, data[1]>>4&3, data[1]&0xf
	b.PKey = be16(data[2:])
	b.FECN, b.BECN = data[4]&0x80 != 0, data[4]&0x40 != 0
	b.DestQP = binary.BigEndian.Uint32(data[4:]) & qpnMask
	b.AckReq = data[8]&0x80 != 0
	b.PSN = binary.BigEndian.Uint32(data[8:]) & qpnMask
	end := len(data) - icrcBytes
	b.ICRC = binary.LittleEndian.Uint32(data[end:])
	if end -= int(b.Pad); end < bthBytes {
		return tooShort("BTH, padding and ICRC", len(data), bthBytes+int(b.Pad)+icrcBytes, df)
	}
	b.Contents, b.Payload = data[:bthBytes], data[bthBytes:end]
	return nil
}

// SerializeTo prepends 12 bytes, and appends padding and ICRC. FixLengths sets
// Pad. The checksum covers headers that come later: set it with SetICRC when the
// packet is whole.
func (b *BTH) SerializeTo(buf gopacket.SerializeBuffer, opts gopacket.SerializeOptions) error {
	switch {
	case b.DestQP > qpnMask:
		return tooWide("BTH", "DestQP", uint64(b.DestQP), 24)
	case b.PSN > qpnMask:
		return tooWide("BTH", "PSN", uint64(b.PSN), 24)
	case b.TVer > 0xf:
		return tooWide("BTH", "TVer", uint64(b.TVer), 4)
	}
	if opts.FixLengths {
		b.Pad = uint8(-len(buf.Bytes()) & 3)
	} else if b.Pad > 3 {
		return tooWide("BTH", "Pad", uint64(b.Pad), 2)
	}
	tail, err := buf.AppendBytes(int(b.Pad) + icrcBytes)
	if err != nil {
		return err
	}
	clear(tail)
	binary.LittleEndian.PutUint32(tail[b.Pad:], b.ICRC)
	p, err := prepend(buf, bthBytes)
	if err != nil {
		return err
	}
	p[0] = uint8(b.Opcode)
	p[1] = bit(b.Solicited, 0x80) | bit(b.MigReq, 0x40) | b.Pad<<4 | b.TVer
	binary.BigEndian.PutUint16(p[2:], b.PKey)
	p[4] = bit(b.FECN, 0x80) | bit(b.BECN, 0x40)
	put24(p[5:], b.DestQP)
	p[8] = bit(b.AckReq, 0x80)
	put24(p[9:], b.PSN)
	return nil
}

func bit(set bool, mask uint8) uint8 {
	if set {
		return mask
	}
	return 0
}

// decodeBTH decodes the headers that follow, too: only here the opcode is known.
func decodeBTH(data []byte, p gopacket.PacketBuilder) error {
	b := &BTH{}
	if err := b.DecodeFromBytes(data, p); err != nil {
		return err
	}
	p.AddLayer(b)
	rest, next := b.Payload, b.NextLayerType()
	for h := nextHeader[b.Opcode][noHeader]; h != noHeader; h = nextHeader[b.Opcode][h] {
		e := newHeader(h, b)
		if err := e.DecodeFromBytes(rest, p); err != nil {
			return err
		}
		p.AddLayer(e)
		rest, next = e.LayerPayload(), e.NextLayerType()
	}
	return p.NextDecoder(next)
}
