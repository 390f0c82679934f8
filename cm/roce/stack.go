// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// Stack has one of each layer, for a gopacket.DecodingLayerParser that begins
// with Ethernet: it decodes into them and allocates nothing. The layers of a
// Stack know each other and must not be copied.
type Stack struct {
	Ethernet layers.Ethernet
	VLAN     layers.Dot1Q
	IPv4     layers.IPv4
	IPv6     layers.IPv6
	UDP      layers.UDP

	GRH          GRH
	BTH          BTH
	XRCETH       XRCETH
	DETH         DETH
	RETH         RETH
	AETH         AETH
	AtomicETH    AtomicETH
	AtomicAckETH AtomicAckETH
	ImmDt        ImmDt
	IETH         IETH
	CNP          CNP
	MAD          MAD

	REQ     REQ
	MRA     MRA
	REJ     REJ
	REP     REP
	RTU     RTU
	DREQ    DREQ
	DREP    DREP
	SIDRReq SIDRReq
	SIDRRep SIDRRep
	LAP     LAP
	APR     APR

	Payload gopacket.Payload
}

// NewStack returns a Stack.
func NewStack() *Stack {
	s := new(Stack)
	for _, e := range []*extended{&s.XRCETH.extended, &s.DETH.extended, &s.RETH.extended, &s.AETH.extended, &s.AtomicETH.extended,
		&s.AtomicAckETH.extended, &s.ImmDt.extended, &s.IETH.extended, &s.CNP.extended} {
		e.bth = &s.BTH
	}
	return s
}

// Layers returns all of them, Ethernet first.
func (s *Stack) Layers() []gopacket.DecodingLayer {
	return []gopacket.DecodingLayer{
		&s.Ethernet, &s.VLAN, &s.IPv4, &s.IPv6, &s.UDP, &s.GRH, &s.BTH, &s.XRCETH, &s.DETH, &s.RETH, &s.AETH, &s.AtomicETH, &s.AtomicAckETH,
		&s.ImmDt, &s.IETH, &s.CNP, &s.MAD, &s.REQ, &s.MRA, &s.REJ, &s.REP, &s.RTU, &s.DREQ, &s.DREP, &s.SIDRReq, &s.SIDRRep, &s.LAP, &s.APR, &s.Payload,
	}
}

// Parser returns a parser that begins with first, Ethernet or whatever a capture
// has; it ends without error at a layer that neither Stack nor more has.
func (s *Stack) Parser(first gopacket.LayerType, more ...gopacket.DecodingLayer) *gopacket.DecodingLayerParser {
	return parser(first, append(s.Layers(), more...)...)
}

// parser finds a layer by its type as an index: in a map that takes as long as
// decoding.
func parser(first gopacket.LayerType, all ...gopacket.DecodingLayer) *gopacket.DecodingLayerParser {
	p := gopacket.NewDecodingLayerParser(first)
	p.SetDecodingLayerContainer(gopacket.DecodingLayerSparse(nil))
	for _, l := range all {
		p.AddDecodingLayer(l)
	}
	p.IgnoreUnsupported = true
	return p
}
