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
// as its receive entries. They complete, or break the queue, and whatever they
// name, nothing is written that no key allows.
func FuzzWQE(f *testing.F) {
	_, ends, _ := everyKind(f)
	for i, e := range ends {
		for _, op := range []byte{opNOP, opSend, opSendImm, opSendInval, opWrite, opWriteImm, opRead, opCAS, opFetchAdd, opUMR} {
			b := []byte{0, 0, 0, op, 0, 0, 0, 5, 0, 0, 0, wqeCompletion, 0, 0, 1, 0}
			if e.st == mlx5.STUD || e.st == mlx5.STQp1 {
				b = append(b, e.av(0x1234, e.qpn, 0)...)
				b[7] += 3
			}
			b = binary.BigEndian.AppendUint64(b, ends[i^1].mem)
			b = binary.BigEndian.AppendUint32(b, ends[i^1].key)
			b = append(b, 0, 0, 0, 0)
			b = append(b, segment(40, e.key, e.mem)...)
			b = append(b, segment(1<<31|8, 0x01020304, 0x05060708)...)
			f.Add(byte(i), b, segment(100, e.key, e.mem))
		}
	}
	f.Fuzz(func(t *testing.T, which byte, b, entry []byte) {
		n, ends, guard := everyKind(t)
		e := ends[int(which)%len(ends)]
		ring := make([]byte, wqeBlock<<endSQLog)
		used := copy(ring, b)
		_ = e.host.mem.WriteDMA(e.sq, ring)
		for i := range 4 {
			_ = e.host.mem.WriteDMA(ends[(int(which)^1)%len(ends)].rq+uint64(i*endStride), entry[:min(len(entry), endStride)])
		}
		blocks := (used + wqeBlock - 1) / wqeBlock
		e.host.mem.put32(e.record+4, uint32(blocks))
		e.h.Ring(e.qpn)
		n.run(time.Second)
		e.must(about(mlx5.Op2ERR, 0, e.qpn))
		n.run(time.Second)
		if q := e.h.sendQueueOf(e.qpn); !q.broken && q.cc != uint16(blocks) {
			t.Fatalf("%d of %d blocks were taken", q.cc, blocks)
		}
		guard()
	})
}
