// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"devxlab.example/mlx5"
)

// everyKind returns a net of one device with two connected queue pairs of each
// service, and memory that no key covers, with a pattern.
func everyKind(t testing.TB) (n *net, ends []*end, guard func()) {
	n = newNetOf(t, 1)
	for _, st := range []mlx5.ServiceType{mlx5.STRC, mlx5.STUC, mlx5.STUD, mlx5.STXRC, mlx5.STQp1} {
		a, b := n.end(0, st), n.end(0, st)
		n.connect(a, b, usual)
		b.recv(0, 2048)
		b.recv(2048, 2048)
		ends = append(ends, a, b)
	}
	n.station(0)
	m := n.host[0].mem
	_, at := m.pages(1)
	pattern := bytes.Repeat([]byte{0xa5, 0x5a}, pageSize/2)
	_ = m.WriteDMA(at, pattern)
	return n, ends, func() {
		got := make([]byte, pageSize)
		_ = m.ReadDMA(at, got)
		if !bytes.Equal(got, pattern) {
			t.Fatal("memory that no key covers was written")
		}
	}
}

// pieces splits a fuzz input into parts that have their length in front.
func inParts(b []byte) (out [][]byte) {
	for len(b) >= 2 && len(out) < 40 {
		n := min(int(binary.BigEndian.Uint16(b)), len(b)-2)
		out = append(out, b[2:2+n])
		b = b[2+n:]
	}
	return out
}

func addPart(b, part []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(part))), part...)
}

// mend gives a frame the checksums that its bytes want, so that what is behind
// them is looked at.
func mend(f []byte) {
	var v layers
	if !v.parse(f) || v.l4 > len(f) {
		return
	}
	end := min(v.end, len(f))
	if !v.v6 {
		v.sum(f, true, false)
	}
	if end-v.l3 >= ipv6Bytes+udpBytes+bthBytes+icrcBytes || !v.v6 && end-v.l3 >= ipv4Bytes+udpBytes+bthBytes+icrcBytes {
		binary.LittleEndian.PutUint32(f[end-icrcBytes:], invariantCRC(f[v.l3:end-icrcBytes], true, !v.v6))
	}
}

// FuzzFrame lets any frames arrive, as they are or with right checksums. The
// device takes them or not, comes to rest, and writes nowhere else than keys
// allow.
func FuzzFrame(f *testing.F) {
	n, ends, _ := everyKind(f)
	var seen [][]byte
	for i, e := range ends {
		other := ends[i^1]
		for _, h := range []header{
			{op: pktSendOnly}, {op: pktSendFirst}, {op: pktSendLastImm}, {op: pktWriteOnly}, {op: pktReadRequest}, {op: pktCompareSwap},
			{op: pktAck}, {op: pktReadOnly}, {op: pktAtomicAck}, {op: pktSendOnlyInv},
		} {
			r := other.path(f)
			h.qpn, h.psn, h.ack = e.qpn, usual.psn[1-i&1], true
			size := 16
			switch e.st {
			case mlx5.STUC:
				h.op |= transportUC
			case mlx5.STUD, mlx5.STQp1:
				h.op |= transportUD
				h.add32(0x1234)
				h.add32(other.qpn)
			case mlx5.STXRC:
				h.op |= transportXRC
			}
			switch h.op &^ transportMask {
			case pktWriteOnly, pktReadRequest:
				h.addRETH(e.mem, e.key, 16)
			case pktCompareSwap:
				h.add64(e.mem)
				h.add32(e.key)
			case pktAck, pktReadOnly, pktAtomicAck:
				h.addAETH(aethAck, 1)
			case pktSendFirst:
				size = 256
			}
			frame, _ := r.frame(&h, size)
			frame = r.seal(frame)
			seen = append(seen, frame)
			f.Add(true, addPart(addPart(nil, frame), frame))
		}
	}
	f.Add(false, addPart(addPart(nil, tcpFrame(1, 0, 60, true)), seen[0]))
	_ = n
	f.Fuzz(func(t *testing.T, right bool, b []byte) {
		n, ends, guard := everyKind(t)
		ends[0].post(work{op: opRead, n: 600, va: ends[1].mem, rkey: ends[1].key}, work{op: opSend, n: 600})
		for _, frame := range inParts(b) {
			frame = bytes.Clone(frame)
			if right {
				mend(frame)
			}
			n.host[0].h.Receive(frame)
		}
		n.run(time.Second)
		guard()
	})
}

// path is the route from an end to the device itself.
func (e *end) path(testing.TB) route {
	e.host.h.qps.get(e.qpn).mu.Lock()
	defer e.host.h.qps.get(e.qpn).mu.Unlock()
	if r := e.host.h.qps.get(e.qpn).ep.route; r.v2 {
		return r
	}
	r, _ := e.host.h.routeFrom(0)
	r.dmac, r.dgid, r.hops, r.sport = r.smac, r.sgid, roceHopLimit, sportFirst
	return r
}

// FuzzWQE posts any bytes as work requests of a queue pair of each service, and
// as its receive entries, under doorbell records that may say anything. They
// complete, or break the queue, and whatever they name, nothing is written that
// no key allows.
func FuzzWQE(f *testing.F) {
	_, ends, _ := everyKind(f)
	all := []byte{opNOP, opSend, opSendImm, opSendInval, opWrite, opWriteImm, opRead, opCAS, opFetchAdd, opUMR}
	request := func(e *end, op, ds byte, va uint64, rkey uint32, data ...[]byte) []byte {
		b := []byte{0, 0, 0, op, 0, 0, 0, ds, 0, 0, 0, wqeCompletion, 0, 0, 1, 0}
		if e.st == mlx5.STUD || e.st == mlx5.STQp1 {
			b = append(b, e.av(0x1234, e.qpn, 0)...)
			b[7] += 3
		}
		b = binary.BigEndian.AppendUint64(b, va)
		b = binary.BigEndian.AppendUint32(b, rkey)
		return append(append(b, 0, 0, 0, 0), bytes.Join(data, nil)...)
	}
	for i, e := range ends {
		peer, entry := ends[i^1], segment(100, e.key, e.mem)
		for _, op := range all {
			f.Add(byte(i), request(e, op, 5, peer.mem, peer.key, segment(40, e.key, e.mem), segment(1<<31|8, 0x01020304, 0x05060708)), entry, uint16(0), uint16(0))
		}
		if i%2 != 0 || e.st != mlx5.STRC && e.st != mlx5.STUD {
			continue // the fuzzer goes from there to the others
		}
		good := func(op byte) []byte { return request(e, op, 3, peer.mem, peer.key, segment(40, e.key, e.mem)) }
		for _, op := range []byte{opSend, opWrite, opRead, opFetchAdd} {
			// Keys: another's, the reserved one, the one that ends lists, none there is.
			for _, key := range []uint32{e.key ^ 1, reservedLkey, lkeyEnd, 0xffffffff} {
				f.Add(byte(i), request(e, op, 3, peer.mem, key, segment(40, key, e.mem)), segment(100, key, e.mem), uint16(0), uint16(0))
			}
			// Lengths and addresses: beyond the key, the most that a message has, round the end of addresses.
			for _, n := range []int{endMemory + 1, 1<<31 - 1, 1 << 30} {
				f.Add(byte(i), request(e, op, 3, 1<<64-4, peer.key, segment(n, e.key, e.mem)), segment(n, e.key, e.mem), uint16(0), uint16(0))
			}
			// Sizes of the request: none, the most, inline data beyond it.
			for _, ds := range []byte{0, 1, 2, 63} {
				f.Add(byte(i), request(e, op, ds, peer.mem, peer.key, segment(40, e.key, e.mem)), entry, uint16(0), uint16(0))
			}
			f.Add(byte(i), request(e, op, 3, peer.mem, peer.key, segment(1<<31|4000, 0, 0)), entry, uint16(0), uint16(0))
		}
		// Doorbell records: fewer than there are, more than the ring has, behind.
		for _, skew := range []uint16{1, 1 << endSQLog, 1<<endSQLog + 1, 1 << 15, 1<<16 - 1} {
			f.Add(byte(i), good(opSend), entry, skew, skew)
		}
		for _, op := range []byte{0x0e, 0x24, 0x7f, 0xff} { // opcodes that it has not
			f.Add(byte(i), good(op), entry, uint16(0), uint16(0))
		}
		// UMR: more entries than stand there, of a list elsewhere, of itself.
		for _, octowords := range []uint16{4, 0xffff} {
			seg := make([]byte, umrCtrlBytes+umrSegBytes)
			seg[0] = umrInline
			binary.BigEndian.PutUint16(seg[4:], octowords)
			binary.BigEndian.PutUint64(seg[8:], umrLen|umrKey|umrFree)
			u := append([]byte{0, 0, 0, opUMR, 0, 0, 0, byte(1 + len(seg)/segBytes + 1), 0, 0, 0, wqeCompletion}, binary.BigEndian.AppendUint32(nil, e.key)...)
			f.Add(byte(i), append(append(u, seg...), segment(64, e.key, e.mem)...), entry, uint16(0), uint16(0))
			seg[0] = 0 // a list elsewhere
			f.Add(byte(i), append(append(u, seg...), segment(64, e.key, 1<<63)...), entry, uint16(0), uint16(0))
		}
	}
	f.Fuzz(func(t *testing.T, which byte, b, entry []byte, sent, posted uint16) {
		n, ends, guard := everyKind(t)
		e, peer := ends[int(which)%len(ends)], ends[(int(which)^1)%len(ends)]
		ring := make([]byte, wqeBlock<<endSQLog)
		used := copy(ring, b)
		_ = e.host.mem.WriteDMA(e.sq, ring)
		for i := range 4 {
			_ = e.host.mem.WriteDMA(peer.rq+uint64(i*endStride), entry[:min(len(entry), endStride)])
		}
		if posted != 0 {
			e.host.mem.put32(peer.record, peer.rpi+uint32(posted))
		}
		blocks := (used + wqeBlock - 1) / wqeBlock
		e.host.mem.put32(e.record+4, uint32(blocks)+uint32(sent))
		e.h.Ring(e.qpn)
		n.run(time.Second)
		e.must(about(mlx5.Op2ERR, 0, e.qpn))
		n.run(time.Second)
		if q := e.h.sendQueueOf(e.qpn); !q.broken && q.cc != uint16(blocks)+sent {
			t.Fatalf("%d of %d blocks were taken", q.cc, uint16(blocks)+sent)
		}
		guard()
	})
}

// FuzzFrameWQE posts any bytes as requests of a send queue of frames. They are
// sent, or end the queue with an error, in a bounded number of frames, and read
// only what keys allow.
func FuzzFrameWQE(f *testing.F) {
	seed := newNetOf(f, 1).station(0)
	frame := tcpFrame(0, 1, 2000, false)
	request := func(op, flags, ds byte, mss, headers uint16, key uint32, n int) []byte {
		b := make([]byte, segBytes+ethInlineHdr)
		b[3], b[7], b[11], b[segBytes+ethFlags] = op, ds, wqeCompletion, flags
		binary.BigEndian.PutUint16(b[segBytes+ethMSS:], mss)
		binary.BigEndian.PutUint16(b[segBytes+ethInline:], headers)
		b = append(b, frame[:min(int(headers), 54)]...)
		b = append(b, make([]byte, -len(b)&15)...)
		return append(b, segment(n, key, seed.mem)...)
	}
	for _, op := range []byte{opSend, opLSO, opNOP, opWrite, 0xff} {
		f.Add(request(op, ethL3Sum|ethL4Sum, 7, 1000, 54, seed.key, 2000), uint16(0))
		f.Add(request(op, 0, 7, 1, 54, seed.key, 1<<18), uint16(0)) // a frame for each byte
		f.Add(request(op, 0, 7, 0xffff, 54, seed.key^1, 2000), uint16(0))
		f.Add(request(op, 0, 63, 1000, 0xffff, reservedLkey, 1<<31-1), uint16(0))
		f.Add(request(op, 0, 0, 1000, 0, seed.key, 0), uint16(0))
		f.Add(request(op, 0, 3, 0, ethInsertVLAN, seed.key, 64), uint16(1<<15))
	}
	f.Fuzz(func(t *testing.T, b []byte, sent uint16) {
		n := newNetOf(t, 1)
		s := n.station(0)
		ring := make([]byte, pageSize)
		used := copy(ring, b)
		_ = s.host.mem.WriteDMA(s.sqAt, ring[:16*wqeBlock])
		blocks := min((used+wqeBlock-1)/wqeBlock, 16)
		s.host.mem.put32(s.sqRecord+4, uint32(blocks)+uint32(sent))
		s.h.Ring(s.sq)
		n.run(time.Second)
		if got, most := s.h.port.stats.tx[trafficUnicast].packets.Load(), uint64(16*maxLSO/minMSS); got > most {
			t.Fatalf("%d frames of %d blocks", got, blocks)
		}
	})
}
