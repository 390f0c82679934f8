// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"hash/crc32"

	"devxlab.example/mlx5"
)

// Sizes of headers, in bytes.
const (
	macBytes      = 6
	etherBytes    = 14
	vlanBytes     = 4
	ipv4Bytes     = 20
	ipv6Bytes     = 40
	udpBytes      = 8
	bthBytes      = 12
	icrcBytes     = 4
	grhBytes      = 40 // what a datagram's receiver gets in front of it
	leastFrame    = 60 // of Ethernet, without the FCS
	lrhBytes      = 8  // of InfiniBand: RoCE has none, its checksum counts it as ones
	roceUDPPort   = 4791
	roceHopLimit  = 64
	sportFirst    = 0xc000 // r_roce_min_src_udp_port
	bthMigReq     = 0x40
	bthSolicited  = 0x80
	bthAckReq     = 0x80
	wholePkey     = 0xffff
	psnMask       = 1<<24 - 1
	multicastQPN  = 0xffffff
	gsiQPN        = 1
	multicastByte = 0xff // a multicast GID's first
)

// EtherTypes and IP protocols.
const (
	etherIPv4   = 0x0800
	etherIPv6   = 0x86dd
	etherVLAN   = 0x8100
	etherRoCE   = 0x8915
	protoTCP    = 6
	protoUDP    = 17
	nextRoCE    = 0x1b // IPv6's next header in a GRH: BTH
	ipDontFrag  = 0x4000
	ipFragments = 0x3fff
)

// Transports are the upper 3 bits of a BTH opcode (IBTA specification, volume
// 1, table 38).
const (
	transportRC  = 0x00
	transportUC  = 0x20
	transportUD  = 0x60
	transportXRC = 0xa0

	transportMask = 0xe0
)

// The lower 5 bits.
const (
	pktSendFirst    = 0x00
	pktSendMiddle   = 0x01
	pktSendLast     = 0x02
	pktSendLastImm  = 0x03
	pktSendOnly     = 0x04
	pktSendOnlyImm  = 0x05
	pktWriteFirst   = 0x06
	pktWriteMiddle  = 0x07
	pktWriteLast    = 0x08
	pktWriteLastImm = 0x09
	pktWriteOnly    = 0x0a
	pktWriteOnlyImm = 0x0b
	pktReadRequest  = 0x0c
	pktReadFirst    = 0x0d
	pktReadMiddle   = 0x0e
	pktReadLast     = 0x0f
	pktReadOnly     = 0x10
	pktAck          = 0x11
	pktAtomicAck    = 0x12
	pktCompareSwap  = 0x13
	pktFetchAdd     = 0x14
	pktSendLastInv  = 0x16
	pktSendOnlyInv  = 0x17

	numPackets = 0x18
)

// part is an extended transport header, or a property of a packet.
type part uint16

const (
	hasRETH part = 1 << iota
	hasAETH
	hasAtomicETH
	hasAtomicAck
	hasImm
	hasIETH
	isResponse
	isFirst
	isLast
	isSend
	isWrite
)

// packetParts is what each opcode carries.
var packetParts = [numPackets]part{
	pktSendFirst:    isSend | isFirst,
	pktSendMiddle:   isSend,
	pktSendLast:     isSend | isLast,
	pktSendLastImm:  isSend | isLast | hasImm,
	pktSendOnly:     isSend | isFirst | isLast,
	pktSendOnlyImm:  isSend | isFirst | isLast | hasImm,
	pktWriteFirst:   isWrite | isFirst | hasRETH,
	pktWriteMiddle:  isWrite,
	pktWriteLast:    isWrite | isLast,
	pktWriteLastImm: isWrite | isLast | hasImm,
	pktWriteOnly:    isWrite | isFirst | isLast | hasRETH,
	pktWriteOnlyImm: isWrite | isFirst | isLast | hasRETH | hasImm,
	pktReadRequest:  hasRETH | isFirst | isLast,
	pktReadFirst:    hasAETH | isResponse,
	pktReadMiddle:   isResponse,
	pktReadLast:     hasAETH | isResponse,
	pktReadOnly:     hasAETH | isResponse,
	pktAck:          hasAETH | isResponse,
	pktAtomicAck:    hasAETH | hasAtomicAck | isResponse,
	pktCompareSwap:  hasAtomicETH | isFirst | isLast,
	pktFetchAdd:     hasAtomicETH | isFirst | isLast,
	pktSendLastInv:  isSend | isLast | hasIETH,
	pktSendOnlyInv:  isSend | isFirst | isLast | hasIETH,
}

// AETH syndromes (IBTA specification, volume 1, table 43).
const (
	aethAck        = 0x1f // no end-to-end credits
	aethRNR        = 0x20
	aethNakSeq     = 0x60
	aethNakInvalid = 0x61
	aethNakAccess  = 0x62
	aethNakOp      = 0x63

	aethKind    = 0xe0
	aethKindAck = 0x00
	aethKindRNR = 0x20
	aethKindNak = 0x60
)

// route is how packets get from a queue pair to another.
type route struct {
	dmac, smac   [macBytes]byte
	sgid, dgid   [16]byte
	v2, v6       bool // RoCEv2, over IPv6; RoCEv1 has a GRH
	tagged       bool
	tci          uint16
	tclass, hops uint8
	flow         uint32
	sport        uint16
}

func (r *route) l3() int {
	switch {
	case !r.v2:
		return ipv6Bytes
	case r.v6:
		return ipv6Bytes + udpBytes
	}
	return ipv4Bytes + udpBytes
}

// header is what a packet has in front of its payload.
type header struct {
	op             byte
	solicited, ack bool
	becn           bool // a CNP
	qpn, psn       uint32
	ext            [36]byte // extended headers, in their order
	extLen         int
}

func (h *header) add32(v uint32) {
	binary.BigEndian.PutUint32(h.ext[h.extLen:], v)
	h.extLen += 4
}

func (h *header) add64(v uint64) {
	binary.BigEndian.PutUint64(h.ext[h.extLen:], v)
	h.extLen += 8
}

func (h *header) addRETH(addr uint64, key, n uint32) {
	h.add64(addr)
	h.add32(key)
	h.add32(n)
}

func (h *header) addAETH(syndrome byte, msn uint32) { h.add32(uint32(syndrome)<<24 | msn&psnMask) }

// frame makes a frame with room for n bytes of payload, which it returns too.
// Whoever fills that in seals the frame.
func (r *route) frame(h *header, n int) (frame, payload []byte) {
	pad := -n & 3
	l2 := etherBytes
	if r.tagged {
		l2 += vlanBytes
	}
	l3 := r.l3()
	frame = make([]byte, max(l2+l3+bthBytes+h.extLen+n+pad+icrcBytes, leastFrame))
	frame = frame[:l2+l3+bthBytes+h.extLen+n+pad+icrcBytes]
	copy(frame, r.dmac[:])
	copy(frame[macBytes:], r.smac[:])
	at := 2 * macBytes
	if r.tagged {
		binary.BigEndian.PutUint16(frame[at:], etherVLAN)
		binary.BigEndian.PutUint16(frame[at+2:], r.tci)
		at += vlanBytes
	}
	r.network(frame[at:], len(frame)-l2)
	b := frame[l2+l3:]
	b[0] = h.op
	b[1] = bthMigReq | byte(pad)<<4
	if h.solicited {
		b[1] |= bthSolicited
	}
	binary.BigEndian.PutUint16(b[2:], wholePkey)
	binary.BigEndian.PutUint32(b[4:], h.qpn)
	binary.BigEndian.PutUint32(b[8:], h.psn&psnMask)
	if h.ack {
		b[8] = bthAckReq
	}
	if h.becn { // the recorded one had no MigReq either
		b[1], b[4] = byte(pad)<<4, bthBECN
	}
	copy(b[bthBytes:], h.ext[:h.extLen])
	return frame, b[bthBytes+h.extLen:][:n]
}

// network writes EtherType, IP and UDP headers of a packet of n bytes.
func (r *route) network(b []byte, n int) {
	ip := b[2:]
	if r.v2 && !r.v6 {
		binary.BigEndian.PutUint16(b, etherIPv4)
		ip[0], ip[1] = 0x45, r.tclass
		binary.BigEndian.PutUint16(ip[2:], uint16(n))
		binary.BigEndian.PutUint16(ip[6:], ipDontFrag)
		ip[8], ip[9] = r.hops, protoUDP
		copy(ip[12:16], r.sgid[12:])
		copy(ip[16:20], r.dgid[12:])
		binary.BigEndian.PutUint16(ip[10:], ^onesSum(0, ip[:ipv4Bytes]))
		r.udp(ip[ipv4Bytes:], n-ipv4Bytes)
		return
	}
	binary.BigEndian.PutUint16(b, etherRoCE)
	binary.BigEndian.PutUint32(ip, 6<<28|uint32(r.tclass)<<20|r.flow&0xfffff)
	binary.BigEndian.PutUint16(ip[4:], uint16(n-ipv6Bytes))
	ip[6], ip[7] = nextRoCE, r.hops
	copy(ip[8:24], r.sgid[:])
	copy(ip[24:40], r.dgid[:])
	if r.v2 {
		binary.BigEndian.PutUint16(b, etherIPv6)
		ip[6] = protoUDP
		r.udp(ip[ipv6Bytes:], n-ipv6Bytes)
	}
}

// udp writes a UDP header; RoCEv2 uses no checksum there (IBTA annex A17).
func (r *route) udp(b []byte, n int) {
	binary.BigEndian.PutUint16(b, r.sport)
	binary.BigEndian.PutUint16(b[2:], roceUDPPort)
	binary.BigEndian.PutUint16(b[4:], uint16(n))
}

// onesSum is the Internet checksum's sum of b, onto an earlier one.
func onesSum(sum uint16, b []byte) uint16 {
	s := uint64(sum)
	for ; len(b) >= 8; b = b[8:] {
		v := binary.BigEndian.Uint64(b)
		s += v>>32 + v&0xffffffff
	}
	for ; len(b) >= 2; b = b[2:] {
		s += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// seal completes a frame with its invariant CRC, and pads it to the least
// length that Ethernet has.
func (r *route) seal(frame []byte) []byte {
	l2 := etherBytes
	if r.tagged {
		l2 += vlanBytes
	}
	end := len(frame) - icrcBytes
	binary.LittleEndian.PutUint32(frame[end:], invariantCRC(frame[l2:end], r.v2, r.v2 && !r.v6))
	if len(frame) < leastFrame {
		frame = frame[:leastFrame]
	}
	return frame
}

// invariantCRC is the checksum over what no router changes: the packet from its
// IP header on, with the fields that change as ones, behind a local route header
// of ones (IBTA specification, volume 1, 7.8.1; annex A17.3.3 for RoCEv2).
func invariantCRC(b []byte, v2, v4 bool) uint32 {
	var h [lrhBytes + ipv6Bytes + udpBytes + bthBytes]byte
	for i := range lrhBytes {
		h[i] = 0xff
	}
	n := ipv6Bytes
	if v4 {
		n = ipv4Bytes
	}
	if v2 {
		n += udpBytes
	}
	m := h[lrhBytes:]
	copy(m, b[:n+bthBytes])
	if v4 {
		m[1], m[8], m[10], m[11] = 0xff, 0xff, 0xff, 0xff // TOS, TTL, checksum
	} else {
		m[0] |= 0x0f // traffic class, flow label
		m[1], m[2], m[3], m[7] = 0xff, 0xff, 0xff, 0xff
	}
	if v2 {
		m[n-2], m[n-1] = 0xff, 0xff // UDP checksum
	}
	m[n+4] = 0xff // BTH: FECN, BECN, reserved
	crc := crc32.ChecksumIEEE(h[:lrhBytes+n+bthBytes])
	return crc32.Update(crc, crc32.IEEETable, b[n+bthBytes:])
}

// packet is a frame with RoCE in it, as parse found it. Its slices are parts of
// the frame.
type packet struct {
	smac, dmac     []byte
	ip             []byte // the IPv4 header, or the GRH or IPv6 header
	sgid, dgid     [16]byte
	v2, v4         bool
	op             byte
	solicited, ack bool
	qpn, psn       uint32
	parts          part
	ext            []byte // behind the BTH
	payload        []byte
}

// What parse found.
type verdict uint8

const (
	notRoCE verdict = iota
	badRoCE         // to be dropped
	isRoCE
)

// parse takes a frame apart. It trusts nothing in it.
func (p *packet) parse(frame []byte) verdict {
	if len(frame) < etherBytes {
		return badRoCE
	}
	*p = packet{dmac: frame[:macBytes], smac: frame[macBytes : 2*macBytes]}
	kind, b := binary.BigEndian.Uint16(frame[2*macBytes:]), frame[etherBytes:]
	if kind == etherVLAN && len(b) >= vlanBytes {
		kind, b = binary.BigEndian.Uint16(b[2:]), b[vlanBytes:]
	}
	l3 := b
	var n int // bytes in front of the BTH
	switch kind {
	case etherIPv4:
		if len(b) < ipv4Bytes || b[0] != 0x45 || b[9] != protoUDP || binary.BigEndian.Uint16(b[6:])&ipFragments != 0 {
			return notRoCE
		}
		total := int(binary.BigEndian.Uint16(b[2:]))
		if total > len(b) || total < ipv4Bytes+udpBytes || !toRoCE(b[ipv4Bytes:]) {
			return notRoCE
		}
		l3, n = b[:total], ipv4Bytes+udpBytes
		p.v2, p.v4, p.ip = true, true, b[:ipv4Bytes]
		p.sgid, p.dgid = mappedGID(b[12:16]), mappedGID(b[16:20])
		if onesSum(0, p.ip) != 0xffff {
			return badRoCE
		}
	case etherIPv6, etherRoCE:
		if len(b) < ipv6Bytes || b[0]>>4 != 6 {
			return notRoCE
		}
		total := ipv6Bytes + int(binary.BigEndian.Uint16(b[4:]))
		p.v2, n = kind == etherIPv6, ipv6Bytes
		if p.v2 && (b[6] != protoUDP || total > len(b) || total < ipv6Bytes+udpBytes || !toRoCE(b[ipv6Bytes:])) {
			return notRoCE
		}
		if p.v2 {
			n += udpBytes
		}
		if total > len(b) || total < n || !p.v2 && b[6] != nextRoCE {
			return badRoCE
		}
		l3, p.ip = b[:total], b[:ipv6Bytes]
		copy(p.sgid[:], b[8:24])
		copy(p.dgid[:], b[24:40])
	default:
		return notRoCE
	}
	if len(l3) < n+bthBytes+icrcBytes {
		return badRoCE
	}
	end := len(l3) - icrcBytes
	if binary.LittleEndian.Uint32(l3[end:]) != invariantCRC(l3[:end], p.v2, p.v4) {
		return badRoCE
	}
	return p.transport(l3[n:end])
}

func toRoCE(udp []byte) bool { return binary.BigEndian.Uint16(udp[2:]) == roceUDPPort }

// mappedGID is the GID of an IPv4 address.
func mappedGID(ip []byte) (g [16]byte) {
	g[10], g[11] = 0xff, 0xff
	copy(g[12:], ip)
	return g
}

// transport takes the BTH and what follows apart.
func (p *packet) transport(b []byte) verdict {
	p.op = b[0]
	pad, version := int(b[1]>>4&3), b[1]&0xf
	p.solicited = b[1]&bthSolicited != 0
	p.qpn = binary.BigEndian.Uint32(b[4:]) & psnMask
	p.ack = b[8]&bthAckReq != 0
	p.psn = binary.BigEndian.Uint32(b[8:]) & psnMask
	pkey := binary.BigEndian.Uint16(b[2:])
	low := p.op &^ transportMask
	if p.op == pktCNP && version == 0 && len(b) == bthBytes+cnpBytes {
		p.payload = b[bthBytes:]
		return isRoCE
	}
	if version != 0 || low >= numPackets || packetParts[low] == 0 || pkey&0x7fff != wholePkey&0x7fff {
		return badRoCE
	}
	p.parts = packetParts[low]
	b = b[bthBytes:]
	n := p.extBytes()
	if len(b) < n+pad {
		return badRoCE
	}
	p.ext, p.payload = b[:n], b[n:len(b)-pad]
	return isRoCE
}

// Sizes of the extended headers.
const (
	dethBytes      = 8
	xrcethBytes    = 4
	rethBytes      = 16
	aethBytes      = 4
	atomicETHBytes = 28
	atomicAckBytes = 8
	immBytes       = 4
)

// first is the size of what only this transport has.
func (p *packet) first() int {
	switch p.op & transportMask {
	case transportUD:
		return dethBytes
	case transportXRC:
		if p.parts&isResponse == 0 {
			return xrcethBytes
		}
	}
	return 0
}

func (p *packet) extBytes() int {
	n := p.first()
	for _, x := range [...]struct {
		part part
		n    int
	}{{hasRETH, rethBytes}, {hasAETH, aethBytes}, {hasAtomicETH, atomicETHBytes}, {hasAtomicAck, atomicAckBytes}, {hasImm | hasIETH, immBytes}} {
		if p.parts&x.part != 0 {
			n += x.n
		}
	}
	return n
}

func (p *packet) transportOf() byte { return p.op & transportMask }

// word returns a word of the extended headers.
func (p *packet) word(at int) uint32 { return binary.BigEndian.Uint32(p.ext[at:]) }

// reth returns address, key and length of an RDMA request.
func (p *packet) reth() (va uint64, key, n uint32) {
	b := p.ext[p.first():]
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
}

// atomicETH returns address, key and operands of an atomic request.
func (p *packet) atomicETH() (va uint64, key uint32, swap, compare uint64) {
	b := p.ext[p.first():]
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint64(b[12:]), binary.BigEndian.Uint64(b[20:])
}

// immediate returns immediate data or the key to invalidate: the last header.
func (p *packet) immediate() uint32 { return p.word(len(p.ext) - immBytes) }

// aeth returns syndrome and message number of a response.
func (p *packet) aeth() (syndrome byte, msn uint32) {
	w := p.word(0)
	return byte(w >> 24), w & psnMask
}

func (p *packet) original() uint64 { return binary.BigEndian.Uint64(p.ext[aethBytes:]) }

// psnDiff is how far a is ahead of b: PSNs have 24 bits and go round.
func psnDiff(a, b uint32) int { return int(int32((a-b)<<8) >> 8) }

// gidEntry is a place of the RoCE address table as a route begins with it.
func (h *HCA) routeFrom(index uint8) (r route, there bool) {
	if int(index) >= roceTableSize {
		return r, false
	}
	h.roceMu.Lock()
	a := mlx5.RoCEAddrLayout(h.roce[index][:])
	defer h.roceMu.Unlock()
	copy(r.sgid[:], a.SourceL3Address())
	binary.BigEndian.PutUint16(r.smac[:], a.SourceMAC4732())
	binary.BigEndian.PutUint32(r.smac[2:], a.SourceMAC310())
	r.v2 = a.RoCEVersion() == roceVersion2
	r.v6 = a.RoCEL3Type() == roceIPv6
	if r.tagged = a.VLANValid(); r.tagged {
		r.tci = a.VLANID() & 0xfff
	}
	return r, !zero(r.sgid[:])
}

// Values of a RoCE address (linux/mlx5/mlx5_ifc.h, MLX5_ROCE_VERSION_*,
// MLX5_ROCE_L3_TYPE_*).
const (
	roceVersion2 = 2
	roceIPv6     = 1
)

// hasGID reports whether a GID is in the RoCE address table.
func (h *HCA) hasGID(gid *[16]byte, v2 bool) bool {
	h.roceMu.Lock()
	defer h.roceMu.Unlock()
	for i := range h.roceUsed {
		a := mlx5.RoCEAddrLayout(h.roce[i][:])
		if (a.RoCEVersion() == roceVersion2) == v2 && [16]byte(a.SourceL3Address()) == *gid {
			return true
		}
	}
	return false
}
