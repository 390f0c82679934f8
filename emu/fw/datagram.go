// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"

	"devxlab.example/mlx5"
)

// Offsets in an address vector (struct mlx5_av in linux/mlx5/qp.h).
const (
	avQKey  = 0
	avQPN   = 8
	avSport = 14
	avMAC   = 20
	avClass = 26
	avHops  = 27
	avFlow  = 28 // GRH flag, source GID index, flow label
	avGID   = 32

	qkeyOwn = 1 << 31 // of a work request: take the queue pair's
)

// Headers in front of a datagram, as its completion says (MLX5_CQE_ROCE_L3_*,
// bits 24 and 28 of flags_rqpn).
const (
	l3GRH  = 0
	l3IPv6 = 1
	l3IPv4 = 2

	flagL3  = 24
	flagGRH = 28
)

// sendDatagrams sends up to a turn's datagrams of a UD queue pair.
func (e *endpoint) sendDatagrams(h *HCA) (more bool) {
	for range turnPackets {
		if e.sq.broken || e.state != mlx5.StateRTS {
			return false
		}
		w := e.oldest(h)
		if w == nil {
			return false
		}
		if fail := e.sendDatagram(h, w); fail != nil {
			e.failSend(h, &w.wqe, fail)
			return false
		}
	}
	return true
}

func (e *endpoint) sendDatagram(h *HCA, w *request) *failure {
	switch {
	case w.fail != nil:
		return w.fail
	case w.op == opNOP || w.op == opUMR:
		return e.local(h, w)
	case w.op != opSend && w.op != opSendImm:
		return &failOperation
	case w.bytes > uint64(e.mtu):
		return &failLength
	}
	hd := header{op: transportUD | pktSendOnly, solicited: w.solicited}
	if w.op == opSendImm {
		hd.op++
	}
	hd.qpn = binary.BigEndian.Uint32(w.av[avQPN:]) & 0xffffff
	hd.psn = e.req.psn
	qkey := binary.BigEndian.Uint32(w.av[avQKey:])
	c := mlx5.QPC(e.q.qpc[:])
	if qkey&qkeyOwn != 0 {
		qkey = c.QKey()
		if e.st == mlx5.STQp1 {
			qkey = gsiQKey
		}
	}
	from := e.who.qpn
	switch {
	case e.st == mlx5.STQp1:
		from = gsiQPN
	case c.DETHSQPN() != 0:
		from = c.DETHSQPN()
	}
	hd.add32(qkey)
	hd.add32(from)
	if w.op == opSendImm {
		hd.add32(w.imm)
	}
	flow := binary.BigEndian.Uint32(w.av[avFlow:])
	r, there := h.routeFrom(uint8(flow >> 20))
	copy(r.dmac[:], w.av[avMAC:])
	copy(r.dgid[:], w.av[avGID:])
	r.tclass, r.flow, r.sport = w.av[avClass], flow&0xfffff, binary.BigEndian.Uint16(w.av[avSport:])
	if r.hops = w.av[avHops]; r.hops == 0 {
		r.hops = roceHopLimit
	}
	if r.sport < sportFirst {
		r.sport = sportFirst | uint16(from^hd.qpn)
	}
	frame, payload := r.frame(&hd, int(w.bytes))
	if !h.gather(&e.who, w.sges, 0, payload) {
		return &failProtection
	}
	if there { // an address that is gone sends nothing
		e.out = append(e.out, r.seal(frame))
	}
	e.req.psn = (e.req.psn + 1) & psnMask
	e.finish(h, w, 0)
	return nil
}

// gsiQKey is that of the general service interface.
const gsiQKey = 0x80010000

// datagram takes a datagram.
func (e *endpoint) datagram(h *HCA, k *packet) {
	want := mlx5.QPC(e.q.qpc[:]).QKey()
	if e.st == mlx5.STQp1 {
		want = gsiQKey
	}
	if k.word(0) != want || k.parts&isSend == 0 || k.parts&isFirst == 0 || k.parts&isLast == 0 || len(k.payload) > e.mtu {
		return
	}
	p := &e.rsp
	switch e.take(h, k) {
	case noEntry:
		e.count(ctrOutOfBuffer)
		return
	case badRequest:
		return
	case badMemory:
		e.report(h, mlx5.EventWQCatasError)
		e.setState(h, mlx5.StateErr)
		return
	}
	var grh [grhBytes]byte
	l3 := uint32(l3GRH)
	switch {
	case k.v4:
		copy(grh[grhBytes-ipv4Bytes:], k.ip)
		l3 = l3IPv4
	default:
		copy(grh[:], k.ip)
		if k.v2 {
			l3 = l3IPv6
		}
	}
	n := uint64(grhBytes + len(k.payload))
	switch who := e.receiverUser(); {
	case n > p.recv.room:
		e.count(ctrRespLength)
		e.failRecv(h, &failLength)
		e.setState(h, mlx5.StateErr)
		return
	case !h.scatter(who, p.recv.sges, 0, grh[:]) || !h.scatter(who, p.recv.sges, grhBytes, k.payload):
		e.count(ctrRespProtection)
		e.failRecv(h, &failReceive)
		e.setState(h, mlx5.StateErr)
		return
	}
	c := &cqe{cqeOpcode: cqeRecvSend << 4}
	binary.BigEndian.PutUint32(c[cqeFlags:], 1<<flagGRH|l3<<flagL3|k.word(4)&0xffffff)
	binary.BigEndian.PutUint32(c[cqeImm:], wholePkey)
	if k.parts&hasImm != 0 {
		c[cqeOpcode] = cqeRecvSendImm << 4
		binary.BigEndian.PutUint32(c[cqeImm:], k.immediate())
	}
	binary.BigEndian.PutUint32(c[cqeBytes:], uint32(n))
	p.holds = false
	e.completeRecv(h, p.recv.index, c, k.solicited)
}

// deliverMulticast gives a datagram to the queue pairs that have joined its
// group.
func (h *HCA) deliverMulticast(k *packet) {
	h.groups.mu.RLock()
	members := h.groups.members[k.dgid]
	h.groups.mu.RUnlock()
	for _, q := range members {
		h.deliverTo(q, k)
	}
}
