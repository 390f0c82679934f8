// SPDX-License-Identifier: BSD-2-Clause

package wire

import "encoding/binary"

// MaxFrame is the longest frame that is carried, in bytes without FCS.
const MaxFrame = 16 << 10

// Ethernet (IEEE 802.3) and what this package reads of VLAN tags and IP headers.
const (
	headerSize = 14
	minFrame   = 60 // without FCS; shorter ones are padded on the wire
	overhead   = 24 // preamble and SFD 8, FCS 4, interpacket gap 12

	typeIPv4       = 0x0800
	typeIPv6       = 0x86dd
	typeVLAN       = 0x8100
	typeSTag       = 0x88a8
	typeMACControl = 0x8808

	tagSize   = 4
	ipv4Size  = 20
	ipv6Size  = 40
	ecnMask   = 3
	ecnNotECT = 0
	ecnCE     = 3
	vidMask   = 0xfff
)

func wireSize(n int) int { return max(n, minFrame) + overhead }

func etherType(b []byte) uint16 { return binary.BigEndian.Uint16(b[12:]) }

// network returns the type behind VLAN tags, and where its header begins.
func network(b []byte) (etherType uint16, at int) {
	for at = headerSize; ; at += tagSize {
		etherType = binary.BigEndian.Uint16(b[at-2:])
		if etherType != typeVLAN && etherType != typeSTag || len(b) < at+tagSize {
			return etherType, at
		}
	}
}

// vlan returns the outer tag's VLAN identifier, or 0.
func vlan(b []byte) uint16 {
	if t := etherType(b); (t == typeVLAN || t == typeSTag) && len(b) >= headerSize+tagSize {
		return binary.BigEndian.Uint16(b[headerSize:]) & vidMask
	}
	return 0
}

// trafficClass returns the 8 bits of TOS or traffic class.
func trafficClass(b []byte) (tc uint8, ok bool) {
	switch t, at := network(b); {
	case t == typeIPv4 && len(b) >= at+ipv4Size:
		return b[at+1], true
	case t == typeIPv6 && len(b) >= at+ipv6Size:
		return uint8(binary.BigEndian.Uint16(b[at:]) >> 4), true
	}
	return 0, false
}

// Priority is a frame's priority by default: PCP if it has a VLAN tag, else the
// upper three bits of the DSCP (the class selector of RFC 2474, as NICs and
// switches map it when nobody configured them), else 0.
func Priority(frame []byte) int {
	if t := etherType(frame); (t == typeVLAN || t == typeSTag) && len(frame) >= headerSize+tagSize {
		return int(frame[headerSize] >> 5)
	}
	tc, _ := trafficClass(frame)
	return int(tc >> 5)
}

// mark sets CE if the frame is ECN capable, and says whether it is marked now
// and was not before.
func mark(b []byte) bool {
	tc, ok := trafficClass(b)
	if ecn := tc & ecnMask; !ok || ecn == ecnNotECT || ecn == ecnCE {
		return false
	}
	t, at := network(b)
	if t == typeIPv6 {
		b[at+1] |= ecnCE << 4
		return true
	}
	old := binary.BigEndian.Uint16(b[at:])
	b[at+1] |= ecnCE
	sum := b[at+10 : at+12]
	binary.BigEndian.PutUint16(sum, updateChecksum(binary.BigEndian.Uint16(sum), old, binary.BigEndian.Uint16(b[at:])))
	return true
}

// updateChecksum is RFC 1624, equation 3.
func updateChecksum(sum, old, value uint16) uint16 {
	s := uint32(^sum) + uint32(^old) + uint32(value)
	s = s&0xffff + s>>16
	s = s&0xffff + s>>16
	return ^uint16(s)
}

// MAC control, PFC: IEEE 802.3 annex 31D.
const (
	pfcOpcode  = 0x0101
	pfcSize    = headerSize + 4 + 2*Priorities
	quantum    = 512 // bit times
	maxQuanta  = 0xffff
	pfcNominal = 100_000_000_000 // bit/s, for a wire without a rate
)

// putPFC makes a PAUSE frame for all priorities: those in xoff stop, the others
// go on.
func putPFC(b []byte, xoff uint8, port int) {
	copy(b, []byte{0x01, 0x80, 0xc2, 0x00, 0x00, 0x01, 0x02, 'w', 'i', 'r', 'e', byte(port)})
	binary.BigEndian.PutUint16(b[12:], typeMACControl)
	binary.BigEndian.PutUint16(b[14:], pfcOpcode)
	binary.BigEndian.PutUint16(b[16:], 1<<Priorities-1)
	for p := range Priorities {
		if xoff>>p&1 != 0 {
			binary.BigEndian.PutUint16(b[18+2*p:], maxQuanta)
		}
	}
}

// readPFC returns the pause of each priority in quanta, and for which it is told.
func readPFC(b []byte) (enabled uint8, quanta [Priorities]uint16) {
	if len(b) < pfcSize || binary.BigEndian.Uint16(b[14:]) != pfcOpcode {
		return 0, quanta
	}
	for p := range quanta {
		quanta[p] = binary.BigEndian.Uint16(b[18+2*p:])
	}
	return b[17], quanta
}
