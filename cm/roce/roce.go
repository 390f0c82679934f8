// SPDX-License-Identifier: BSD-2-Clause

// Package roce has the headers of RoCE, management datagrams (MAD) and the
// messages of the communication manager (CM) as layers of gopacket.
//
// Importing it makes gopacket decode UDP port 4791 (RoCEv2) and EtherType 0x8915
// (RoCEv1). Which headers follow a base transport header depends on its opcode,
// which a layer that is decoded by itself does not know: decode whole packets
// with gopacket.NewPacket, or, without allocating, with the layers of one Stack
// in a gopacket.DecodingLayerParser.
//
// Formats are those of the InfiniBand Architecture specification, volume 1:
// chapter 9 (transport headers), annex A17 (RoCEv2), 13.4.3 (MAD), 12.6 (CM). The
// messages of the CM are generated from the kernel's ibta_vol1_c12.h.
package roce

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

//go:generate go run devxlab.example/internal/headergen/cmd cm .

// UDPPort is the destination port of RoCEv2 (IANA, "roce").
const UDPPort = 4791

// EtherType is that of RoCEv1.
const EtherType layers.EthernetType = 0x8915

// The layers. Their numbers are registered with gopacket.
var (
	LayerTypeGRH          = register(0, "GRH")
	LayerTypeBTH          = register(1, "BTH")
	LayerTypeRETH         = register(2, "RETH")
	LayerTypeDETH         = register(3, "DETH")
	LayerTypeAETH         = register(4, "AETH")
	LayerTypeAtomicETH    = register(5, "AtomicETH")
	LayerTypeAtomicAckETH = register(6, "AtomicAckETH")
	LayerTypeImmDt        = register(7, "ImmDt")
	LayerTypeIETH         = register(8, "IETH")
	LayerTypeXRCETH       = register(9, "XRCETH")
	LayerTypeCNP          = register(10, "CNP")
	LayerTypeMAD          = register(11, "MAD")

	LayerTypeREQ     = register(16, "CM REQ")
	LayerTypeMRA     = register(17, "CM MRA")
	LayerTypeREJ     = register(18, "CM REJ")
	LayerTypeREP     = register(19, "CM REP")
	LayerTypeRTU     = register(20, "CM RTU")
	LayerTypeDREQ    = register(21, "CM DREQ")
	LayerTypeDREP    = register(22, "CM DREP")
	LayerTypeSIDRReq = register(23, "CM SIDR_REQ")
	LayerTypeSIDRRep = register(24, "CM SIDR_REP")
	LayerTypeLAP     = register(25, "CM LAP")
	LayerTypeAPR     = register(26, "CM APR")
)

// firstType is where the numbers of our layer types begin; gopacket leaves those
// from 2000 on to others.
const firstType = UDPPort

// decoders has, for each layer type from firstType on, how a packet goes on with
// it. It is filled in by init, since decoders refer to layer types.
var decoders [numTypes]func(data []byte, p gopacket.PacketBuilder) error

const numTypes = 32

func register(n int, name string) gopacket.LayerType {
	return gopacket.RegisterLayerType(firstType+n, gopacket.LayerTypeMetadata{Name: name, Decoder: gopacket.DecodeFunc(
		func(data []byte, p gopacket.PacketBuilder) error { return decoders[n](data, p) },
	)})
}

func init() {
	for _, make := range []func() layer{
		func() layer { return &GRH{} }, func() layer { return &RETH{} }, func() layer { return &DETH{} }, func() layer { return &AETH{} },
		func() layer { return &AtomicETH{} }, func() layer { return &AtomicAckETH{} }, func() layer { return &ImmDt{} }, func() layer { return &IETH{} },
		func() layer { return &XRCETH{} }, func() layer { return &CNP{} }, func() layer { return &MAD{} },
		func() layer { return &REQ{} }, func() layer { return &MRA{} }, func() layer { return &REJ{} }, func() layer { return &REP{} },
		func() layer { return &RTU{} }, func() layer { return &DREQ{} }, func() layer { return &DREP{} }, func() layer { return &SIDRReq{} },
		func() layer { return &SIDRRep{} }, func() layer { return &LAP{} }, func() layer { return &APR{} },
	} {
		decoders[make().LayerType()-firstType] = func(data []byte, p gopacket.PacketBuilder) error { return add(make(), data, p) }
	}
	decoders[LayerTypeBTH-firstType] = decodeBTH
	layers.RegisterUDPPortLayerType(UDPPort, LayerTypeBTH)
	layers.EthernetTypeMetadata[EtherType] = layers.EnumMetadata{Name: "RoCE", LayerType: LayerTypeGRH, DecodeWith: LayerTypeGRH}
}

// layer is what all layers of this package are.
type layer interface {
	gopacket.Layer
	gopacket.DecodingLayer
	gopacket.SerializableLayer
}

func add(l layer, data []byte, p gopacket.PacketBuilder) error {
	if err := l.DecodeFromBytes(data, p); err != nil {
		return err
	}
	p.AddLayer(l)
	if next := l.NextLayerType(); next != gopacket.LayerTypeZero {
		return p.NextDecoder(next)
	}
	return nil
}

// GID is an address of a port, of 16 bytes.
type GID [16]byte

// Addr returns the address of IP that a RoCEv2 GID is; of IPv4 without the prefix
// that maps it.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// String is as the kernel's sysfs has it, or an IPv4 address.
func (g GID) String() string {
	if a := g.Addr(); a.Is4() {
		return a.String()
	}
	return fmt.Sprintf("%04x:%04x:%04x:%04x:%04x:%04x:%04x:%04x", be16(g[0:]), be16(g[2:]), be16(g[4:]), be16(g[6:]), be16(g[8:]), be16(g[10:]), be16(g[12:]), be16(g[14:]))
}

// SizeError is of a header that is cut off, or a value that is too long for its
// place.
type SizeError struct {
	Layer, Field string
	Have, Room   int // bytes; bits of a field that is a number
}

func (e *SizeError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("roce: %s of %d bytes: it has %d; was the packet cut off when it was captured (snap length)?", e.Layer, e.Have, e.Room)
	}
	return fmt.Sprintf("roce: %s: %s is too large: %d, and there is room for %d", e.Layer, e.Field, e.Have, e.Room)
}

func tooShort(layer string, have, want int, df gopacket.DecodeFeedback) error {
	df.SetTruncated()
	return &SizeError{Layer: layer, Have: have, Room: want}
}

func tooLong(layer, field string, have, room int) error {
	return &SizeError{Layer: layer, Field: field + " (bytes)", Have: have, Room: room}
}

func tooWide(layer, field string, v uint64, width int) error {
	bits := 0
	for ; v > 0; v >>= 1 {
		bits++
	}
	return &SizeError{Layer: layer, Field: field + " (bits)", Have: bits, Room: width}
}

func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }

func put24(b []byte, v uint32) {
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}

// prepend returns n bytes in front of what there is, cleared.
func prepend(b gopacket.SerializeBuffer, n int) ([]byte, error) {
	p, err := b.PrependBytes(n)
	clear(p)
	return p, err
}

// grhBytes is the length of a GRH, that of an IPv6 header.
const grhBytes = 40

// GRH is the global route header of RoCEv1 (specification, 8.3), an IPv6 header
// but for its next header.
type GRH struct {
	layers.BaseLayer
	IPVer        uint8 // 4 bits; 6
	TrafficClass uint8
	FlowLabel    uint32 // 20 bits
	PayLen       uint16 // with the ICRC
	NextHeader   uint8
	HopLimit     uint8
	SGID, DGID   GID
}

// NextHeaderBTH says that a GRH is followed by a base transport header.
const NextHeaderBTH = 0x1b

// LayerType is LayerTypeGRH.
func (*GRH) LayerType() gopacket.LayerType { return LayerTypeGRH }

// CanDecode is LayerTypeGRH.
func (*GRH) CanDecode() gopacket.LayerClass { return LayerTypeGRH }

// NextLayerType is LayerTypeBTH, or gopacket.LayerTypePayload.
func (g *GRH) NextLayerType() gopacket.LayerType {
	if g.NextHeader == NextHeaderBTH {
		return LayerTypeBTH
	}
	return gopacket.LayerTypePayload
}

// DecodeFromBytes reads 40 bytes; the payload ends where PayLen says, so that
// what Ethernet adds to a short frame is not taken for the ICRC.
func (g *GRH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if len(data) < grhBytes {
		return tooShort("GRH", len(data), grhBytes, df)
	}
	w := binary.BigEndian.Uint32(data)
	g.IPVer, g.TrafficClass, g.FlowLabel = uint8(w>>28), uint8(w>>20), w&0xfffff
	g.PayLen, g.NextHeader, g.HopLimit = be16(data[4:]), data[6], data[7]
	copy(g.SGID[:], data[8:])
	copy(g.DGID[:], data[24:])
	end := grhBytes + int(g.PayLen)
	if end > len(data) {
		df.SetTruncated()
		end = len(data)
	}
	g.Contents, g.Payload = data[:grhBytes], data[grhBytes:end]
	return nil
}

// SerializeTo prepends 40 bytes; FixLengths sets PayLen.
func (g *GRH) SerializeTo(b gopacket.SerializeBuffer, opts gopacket.SerializeOptions) error {
	switch {
	case g.IPVer > 0xf:
		return tooWide("GRH", "IPVer", uint64(g.IPVer), 4)
	case g.FlowLabel > 0xfffff:
		return tooWide("GRH", "FlowLabel", uint64(g.FlowLabel), 20)
	}
	if n := len(b.Bytes()); opts.FixLengths {
		if n > 0xffff {
			return tooLong("GRH", "payload", n, 0xffff)
		}
		g.PayLen = uint16(n)
	}
	p, err := prepend(b, grhBytes)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(p, uint32(g.IPVer)<<28|uint32(g.TrafficClass)<<20|g.FlowLabel)
	binary.BigEndian.PutUint16(p[4:], g.PayLen)
	p[6], p[7] = g.NextHeader, g.HopLimit
	copy(p[8:], g.SGID[:])
	copy(p[24:], g.DGID[:])
	return nil
}
