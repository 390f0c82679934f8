// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
)

// Ethernet segment of a work request (struct mlx5_wqe_eth_seg in
// linux/mlx5/qp.h).
const (
	ethSegBytes  = 16
	ethFlags     = 4
	ethMSS       = 6
	ethInline    = 12 // size of the headers that stand in the request, or a VLAN tag
	ethInlineHdr = 14

	ethL3Sum      = 1 << 6
	ethL4Sum      = 1 << 7
	ethInsertVLAN = 1 << 15

	maxLSO = 1 << 18 // max_lso_cap
	// minMSS is the least that Linux cuts packets into (TCP_MIN_GSO_SIZE in
	// net/tcp.h): with it a request is at most 32768 frames. That a card refuses
	// less is assumed.
	minMSS        = 8
	maxLSOHeaders = 256
)

// sendFrames sends what a work request of an SQ says: a frame, or one for each
// segment of a long TCP packet. It returns how many, 0 if the request makes no
// sense.
func (h *HCA) sendFrames(q *sendQueue, w *wqe, ds int) (frames int) {
	b := w.raw[segBytes : ds*segBytes]
	if w.op != opSend && w.op != opLSO || len(b) < ethSegBytes {
		return 0
	}
	flags, mss := b[ethFlags], int(binary.BigEndian.Uint16(b[ethMSS:]))
	n := int(binary.BigEndian.Uint16(b[ethInline:]))
	tci, insert := uint16(0), n&ethInsertVLAN != 0
	var headers []byte
	if insert {
		tci, n = binary.BigEndian.Uint16(b[ethInlineHdr:]), 0
	}
	if ethInlineHdr+n > len(b) {
		return 0
	}
	headers = b[ethInlineHdr : ethInlineHdr+n]
	rest := b[min((max(ethInlineHdr+n, ethSegBytes)+segBytes-1)/segBytes*segBytes, len(b)):]
	var good bool
	w.sges, w.bytes, good = appendSGEs(w.sges[:0], rest)
	if !good || w.bytes > maxLSO || w.op == opSend && n+int(w.bytes) > maxFrame {
		return 0
	}
	frame := make([]byte, n+int(w.bytes), max(n+int(w.bytes)+vlanBytes, leastFrame))
	copy(frame, headers)
	if !h.gather(&q.who, w.sges, 0, frame[n:]) || len(frame) < etherBytes {
		return 0
	}
	if insert {
		frame = append(frame, make([]byte, vlanBytes)...)
		copy(frame[2*macBytes+vlanBytes:], frame[2*macBytes:])
		binary.BigEndian.PutUint16(frame[2*macBytes:], etherVLAN)
		binary.BigEndian.PutUint16(frame[2*macBytes+2:], tci)
	}
	if w.op == opLSO {
		return h.segment(q, frame, mss, n)
	}
	h.sendFrame(q, frame, flags&ethL3Sum != 0, flags&ethL4Sum != 0)
	return 1
}

// sendFrame sends a frame whose checksums may be left to the device.
func (h *HCA) sendFrame(q *sendQueue, frame []byte, l3, l4 bool) {
	var v layers
	if (l3 || l4) && v.parse(frame) {
		v.sum(frame, l3, l4)
	}
	if n := len(frame); n < leastFrame {
		frame = append(frame, make([]byte, leastFrame-n)...)
	}
	if !h.passes(frame) {
		return
	}
	h.loopback(frame)
	q.last = h.transmit(frame, false, false)
}

// layers is where a frame's headers are.
type layers struct {
	l3, l4 int
	v6     bool
	proto  byte
	end    int // of the IP packet
	frag   bool
	vlan   bool
	tci    uint16
	kind   uint16 // EtherType
}

// parse finds IP and what follows it; false if there is no IP.
func (v *layers) parse(f []byte) bool {
	*v = layers{}
	if len(f) < etherBytes {
		return false
	}
	v.kind, v.l3 = binary.BigEndian.Uint16(f[2*macBytes:]), etherBytes
	if v.kind == etherVLAN && len(f) >= etherBytes+vlanBytes {
		v.vlan, v.tci = true, binary.BigEndian.Uint16(f[etherBytes:])
		v.kind, v.l3 = binary.BigEndian.Uint16(f[etherBytes+2:]), v.l3+vlanBytes
	}
	ip := f[v.l3:]
	switch {
	case v.kind == etherIPv4 && len(ip) >= ipv4Bytes && ip[0]>>4 == 4 && ip[0]&0xf >= 5:
		v.l4 = v.l3 + int(ip[0]&0xf)*4
		v.end = v.l3 + int(binary.BigEndian.Uint16(ip[2:]))
		v.proto = ip[9]
		v.frag = binary.BigEndian.Uint16(ip[6:])&ipFragments != 0
	case v.kind == etherIPv6 && len(ip) >= ipv6Bytes && ip[0]>>4 == 6:
		v.v6 = true
		v.l4 = v.l3 + ipv6Bytes
		v.end = v.l4 + int(binary.BigEndian.Uint16(ip[4:]))
		v.proto = ip[6]
	default:
		return false
	}
	return v.l4 <= len(f)
}

// Offsets of checksums in what follows IP.
const (
	tcpSum   = 16
	udpSum   = 6
	tcpBytes = 20
)

// sum fills in checksums.
func (v *layers) sum(f []byte, l3, l4 bool) {
	end := min(v.end, len(f))
	if l3 && !v.v6 {
		ip := f[v.l3:v.l4]
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^onesSum(0, ip))
	}
	at := 0
	switch v.proto {
	case protoTCP:
		at = tcpSum
	case protoUDP:
		at = udpSum
	}
	if !l4 || at == 0 || v.frag || v.l4+at+2 > end {
		return
	}
	b := f[v.l4:end]
	b[at], b[at+1] = 0, 0
	s := ^onesSum(v.pseudo(f, len(b)), b)
	if s == 0 && v.proto == protoUDP {
		s = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], s)
}

// pseudo is the sum of the pseudo header.
func (v *layers) pseudo(f []byte, n int) uint16 {
	var t [8]byte
	binary.BigEndian.PutUint32(t[:], uint32(n))
	t[7] = v.proto
	if v.v6 {
		return onesSum(onesSum(0, t[:]), f[v.l3+8:v.l3+40])
	}
	return onesSum(onesSum(0, t[:]), f[v.l3+12:v.l3+20])
}

// TCP flags that only the last, or the first, segment keeps.
const (
	tcpFIN = 0x01
	tcpPSH = 0x08
	tcpCWR = 0x80
)

// segment sends a long TCP packet as frames of mss bytes each (LSO).
func (h *HCA) segment(q *sendQueue, f []byte, mss, inline int) (frames int) {
	var v layers
	if !v.parse(f) || v.proto != protoTCP || mss < minMSS || len(f) < v.l4+tcpBytes {
		return 0
	}
	head := v.l4 + int(f[v.l4+12]>>4)*4
	if head > len(f) || head < v.l4+tcpBytes || head > maxLSOHeaders || head+mss > maxFrame || inline > head+mss {
		return 0
	}
	payload := f[head:]
	seq, flags := binary.BigEndian.Uint32(f[v.l4+4:]), f[v.l4+13]
	id := uint16(0)
	if !v.v6 {
		id = binary.BigEndian.Uint16(f[v.l3+4:])
	}
	for first := true; first || len(payload) > 0; first = false {
		n := min(mss, len(payload))
		g := make([]byte, head+n, max(head+n, leastFrame))
		copy(g, f[:head])
		copy(g[head:], payload[:n])
		payload = payload[n:]
		if v.v6 {
			binary.BigEndian.PutUint16(g[v.l3+4:], uint16(head+n-v.l4))
		} else {
			binary.BigEndian.PutUint16(g[v.l3+2:], uint16(head+n-v.l3))
			binary.BigEndian.PutUint16(g[v.l3+4:], id)
			id++
		}
		binary.BigEndian.PutUint32(g[v.l4+4:], seq)
		seq += uint32(n)
		now := flags
		if len(payload) > 0 {
			now &^= tcpFIN | tcpPSH
		}
		if !first {
			now &^= tcpCWR
		}
		g[v.l4+13] = now
		h.sendFrame(q, g, true, true)
		frames++
	}
	return frames
}

// Fields of a receive completion of Ethernet (struct mlx5_cqe64).
const (
	cqeHash     = 0x0c
	cqeHashType = 0x10
	cqeSum      = 0x14
	cqeGood     = 0x1c // hds_ip_ext: which checksums are right
	cqeLayers   = 0x1d // l4_l3_hdr_type
	cqeVLAN     = 0x1e

	goodL2 = 1 << 0
	goodL3 = 1 << 1
	goodL4 = 1 << 2

	layerVLAN = 1 << 0
)

// receiveOn puts a frame into an RQ, and its completion into the RQ's queue. A
// frame that finds no entry is dropped. The RQ stays locked: when a command has
// stopped or destroyed it, nothing is written any more.
func (h *HCA) receiveOn(r *resource, f []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.live.Load() || r.recv == nil || !r.ready() {
		return
	}
	var v layers
	ip := v.parse(f)
	tagged := v.vlan && !r.keepsVLAN()
	if tagged {
		f = append(append([]byte(nil), f[:2*macBytes]...), f[2*macBytes+vlanBytes:]...)
		if ip {
			v.l3, v.l4, v.end = v.l3-vlanBytes, v.l4-vlanBytes, v.end-vlanBytes
		}
	}
	var at receive
	switch h.take(r.recv, &at) {
	case tookNone:
		h.port.stats.dropped.Add(1)
		if id := r.counterSet(); id != 0 {
			h.counters.get(id).values[ctrOutOfBuffer].Add(1)
		}
		return
	case tookBroken:
		return
	}
	c := &cqe{cqeOpcode: cqeRecvSend << 4}
	if who := r.recv.user; uint64(len(f)) > at.room || !h.scatter(&who, at.sges, 0, f) {
		c = failReceive.completion(cqeRecvErr)
	} else {
		v.describe(c, f, ip, tagged)
	}
	binary.BigEndian.PutUint32(c[cqeIndex:], r.index())
	binary.BigEndian.PutUint32(c[cqeBytes:], uint32(len(f)))
	binary.BigEndian.PutUint16(c[cqeCounter:], at.index)
	h.complete(r.ring, c, true)
}

// describe says in a completion what the device found out about a frame.
func (v *layers) describe(c *cqe, f []byte, ip, tagged bool) {
	c[cqeGood] = goodL2
	if tagged {
		c[cqeLayers] |= layerVLAN
		binary.BigEndian.PutUint16(c[cqeVLAN:], v.tci)
	}
	binary.BigEndian.PutUint16(c[cqeSum:], onesSum(0, f[etherBytes:]))
	if !ip {
		return
	}
	if v.v6 || onesSum(0, f[v.l3:v.l4]) == 0xffff {
		c[cqeGood] |= goodL3
	}
	if end := min(v.end, len(f)); !v.frag && v.l4 <= end && (v.proto == protoTCP || v.proto == protoUDP) {
		b := f[v.l4:end]
		if onesSum(v.pseudo(f, len(b)), b) == 0xffff {
			c[cqeGood] |= goodL4
		}
	}
}
