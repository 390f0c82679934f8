// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"devxlab.example/mlx5"
)

// station is a host with a receive queue of 2 KiB entries behind its flow
// tables, and a send queue.
type station struct {
	*host
	n        *net
	index    int
	rq       uint64
	record   uint64
	posted   uint32
	cqAt     uint64
	cqRecord uint64
	ci       uint32
	rqn      uint32
	key      uint32
	mem      uint64
	sent     uint32
	flow     mlx5.SetFTEIn // changes the flow to it
}

const stationEntry = 2048

func (n *net) station(i int) *station {
	h := n.host[i]
	s := &station{host: h, n: n, index: i}
	cq, at, record := h.cqIn(6)
	cqn := h.made(cq)
	s.cqAt, s.cqRecord = at, record
	in := mlx5.CreateRQIn(build(mlx5.OpCreateRQ, 0))
	in.Ctx().SetCQN(cqn)
	list, at, record := h.wq(in.Ctx().WQ(), 5, 4)
	s.rq, s.record = at, record
	s.rqn = h.made(append(in, list...))
	s.key, s.mem = h.memoryKey(64<<10, nil)
	h.must(h.modifyQueue(mlx5.OpModifyRQ, s.rqn, 0, wqReady))
	h.must(h.modifyQueue(mlx5.OpModifySQ, h.sq, 0, wqReady))
	tir := h.tirIn()
	tir.Ctx().SetDispType(tirDirect)
	tir.Ctx().SetInlineRQN(s.rqn)
	mac := macOf(i)
	s.flow = h.flowTo(mac, h.made(tir))
	for range 8 {
		s.refill()
	}
	return s
}

// flowTo makes the root table send frames for a MAC address to a TIR. It returns
// the command that changes the flow.
func (h *host) flowTo(mac [6]byte, tir uint32) mlx5.SetFTEIn {
	table := h.made(h.tableIn(3))
	group := h.groupIn(0, 3)
	group.SetTableID(table)
	for i := range macBytes {
		group.MatchCriteria()[matchDMAC+i] = 0xff
	}
	f := h.flowIn(0, toTIR, tir)
	f.SetTableID(table)
	f.FlowContext().SetGroupID(h.made(group))
	copy(f.FlowContext().MatchValue()[matchDMAC:], mac[:])
	h.must(f)
	root := mlx5.SetFlowTableRootIn(build(mlx5.OpSetFlowTableRoot, 0))
	root.SetTableID(table)
	h.must(root)
	mlx5.PutHeader(f, mlx5.OpSetFlowTableEntry, 1)
	f.SetModifyEnableMask(flowModifyAction | flowModifyDests)
	return f
}

func (s *station) refill() {
	b := append(segment(stationEntry, s.key, s.mem+uint64(s.posted%16*stationEntry)), segment(0, lkeyEnd, 0)...)
	_ = s.host.mem.WriteDMA(s.rq+uint64(s.posted%16*32), b)
	s.posted++
	s.host.mem.put32(s.record, s.posted)
}

// send sends a frame; its first headers bytes stand in the request.
func (s *station) send(op, flags byte, mss int, frame []byte, headers int) {
	at := s.mem + 0xc000
	_ = s.host.mem.WriteDMA(at, frame[headers:])
	b := make([]byte, segBytes+ethInlineHdr)
	b[3], b[11] = op, wqeCompletion
	b[segBytes+ethFlags] = flags
	binary.BigEndian.PutUint16(b[segBytes+ethMSS:], uint16(mss))
	binary.BigEndian.PutUint16(b[segBytes+ethInline:], uint16(headers))
	b = append(b, frame[:headers]...)
	b = append(b, make([]byte, -len(b)&15)...)
	if len(frame) > headers {
		b = append(b, segment(len(frame)-headers, s.key, at)...)
	}
	binary.BigEndian.PutUint32(b[4:], s.sq<<8|uint32(len(b)/16))
	for ; len(b) > 0; b = b[min(wqeBlock, len(b)):] {
		_ = s.host.mem.WriteDMA(s.sqAt+uint64(s.sent%16)*wqeBlock, b[:min(wqeBlock, len(b))])
		s.sent++
	}
	s.host.mem.put32(s.sqRecord+4, s.sent)
	s.h.Ring(s.sq)
	s.n.run(time.Millisecond)
}

// got returns the next frame that arrived, and its completion.
func (s *station) got() ([]byte, *cqe) {
	var c cqe
	_ = s.host.mem.ReadDMA(s.cqAt+uint64(s.ci%64)*cqeSize, c[:])
	n := binary.BigEndian.Uint32(c[cqeBytes:])
	if n == 0 || c[cqeOpcode]&1 != byte(s.ci>>6)&1 {
		return nil, nil
	}
	b := make([]byte, n)
	_ = s.host.mem.ReadDMA(s.mem+uint64(s.ci%16*stationEntry), b)
	s.ci++
	s.host.mem.put32(s.cqRecord, s.ci)
	return b, &c
}

// tcpFrame is a frame of TCP over IPv4 with wrong checksums.
func tcpFrame(from, to int, payload int, vlan bool) []byte {
	src, dst := macOf(from), macOf(to)
	f := append(append([]byte(nil), dst[:]...), src[:]...)
	if vlan {
		f = append(f, 0x81, 0, 0x20, 5)
	}
	f = append(f, 8, 0)
	ip := make([]byte, ipv4Bytes)
	ip[0], ip[8], ip[9] = 0x45, 64, protoTCP
	binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Bytes+tcpBytes+payload))
	copy(ip[12:], []byte{10, 0, 0, byte(from + 1)})
	copy(ip[16:], []byte{10, 0, 0, byte(to + 1)})
	tcp := make([]byte, tcpBytes)
	binary.BigEndian.PutUint32(tcp[4:], 1000)
	tcp[12], tcp[13] = 5<<4, 0x18|tcpFIN
	f = append(append(f, ip...), tcp...)
	for i := range payload {
		f = append(f, byte(i*7))
	}
	return f
}

// Frames go by the flow tables to a receive queue, with checksums that the
// devices made and checked; those for others, and those without room, do not.
func TestEthernet(t *testing.T) {
	n := newNet(t)
	a, b := n.station(0), n.station(1)
	frame := tcpFrame(0, 1, 100, false)
	a.send(opSend, ethL3Sum|ethL4Sum, 0, frame, 18)
	got, c := b.got()
	if got == nil || c[cqeGood] != goodL2|goodL3|goodL4 || len(got) != len(frame) || !bytes.Equal(got[54:], frame[54:]) {
		t.Fatalf("%x, completion %x", got, c)
	}
	if sum := binary.BigEndian.Uint16(c[cqeSum:]); sum != onesSum(0, got[14:]) {
		t.Errorf("sum %#x", sum)
	}
	a.send(opSend, 0, 0, frame, 18)
	if _, c := b.got(); c == nil || c[cqeGood] != goodL2 {
		t.Errorf("wrong checksums: %x", c)
	}
	a.send(opSend, ethL3Sum|ethL4Sum, 0, tcpFrame(0, 1, 100, true), 18)
	if got, c := b.got(); got == nil || c[cqeLayers]&layerVLAN == 0 || binary.BigEndian.Uint16(c[cqeVLAN:]) != 0x2005 || len(got) != len(frame) || c[cqeGood]&goodL4 == 0 {
		t.Errorf("VLAN: %x, %x", got, c)
	}
	a.send(opSend, 0, 0, tcpFrame(0, 5, 100, false), 18)
	if got, _ := b.got(); got != nil {
		t.Error("a frame for somebody else")
	}
	short := append(append([]byte(nil), frame[:12]...), 0x88, 0xb5, 1, 2)
	a.send(opSend, 0, 0, short, 16)
	if got, _ := b.got(); len(got) != leastFrame {
		t.Errorf("a short frame of %d bytes", len(got))
	}
	for range 10 {
		a.send(opSend, 0, 0, frame, 18)
	}
	for range 4 {
		if got, _ := b.got(); got == nil {
			t.Error("fewer frames than there was room for")
		}
	}
	sum := func(h *host, list func(mlx5.QueryVPortCounterOut) []byte) (packets, octets uint64) {
		c := list(mlx5.QueryVPortCounterOut(h.must(build(mlx5.OpQueryVPortCounter, 0))))
		return binary.BigEndian.Uint64(c), binary.BigEndian.Uint64(c[8:])
	}
	sent, sentBytes := sum(n.host[0], mlx5.QueryVPortCounterOut.TransmittedEthUnicast)
	came, cameBytes := sum(n.host[1], mlx5.QueryVPortCounterOut.ReceivedEthUnicast)
	if sent != 15 || came != sent-1 || cameBytes != sentBytes-154+4*came { // one was for somebody else
		t.Errorf("sent %d, %d bytes; received %d, %d bytes", sent, sentBytes, came, cameBytes)
	}
	if got, _ := b.got(); got != nil || n.host[1].h.port.stats.dropped.Load() != 6 {
		t.Errorf("%d frames dropped", n.host[1].h.port.stats.dropped.Load())
	}
}

// A long TCP packet leaves as segments, whose sequence numbers, flags and
// checksums are right.
func TestLSO(t *testing.T) {
	n := newNet(t)
	a, b := n.station(0), n.station(1)
	frame := tcpFrame(0, 1, 2500, false)
	a.send(opLSO, ethL3Sum|ethL4Sum, 1000, frame, 54)
	seq, payload := uint32(1000), []byte(nil)
	for i := range 3 {
		got, c := b.got()
		if got == nil || c[cqeGood] != goodL2|goodL3|goodL4 {
			t.Fatalf("segment %d: %x", i, c)
		}
		if s := binary.BigEndian.Uint32(got[38:]); s != seq {
			t.Errorf("segment %d: sequence %d, want %d", i, s, seq)
		}
		if fin := got[47]&tcpFIN != 0; fin != (i == 2) {
			t.Errorf("segment %d: FIN %v", i, fin)
		}
		payload = append(payload, got[54:]...)
		seq += uint32(len(got) - 54)
	}
	if !bytes.Equal(payload, frame[54:]) {
		t.Error("other data")
	}
	if got, _ := b.got(); got != nil {
		t.Error("more segments")
	}
}

// A request that makes no sense ends the queue with an error completion.
func TestBadFrameRequest(t *testing.T) {
	n := newNet(t)
	a := n.station(0)
	a.send(opLSO, 0, 0, tcpFrame(0, 1, 100, false), 54) // no segment size
	var c cqe
	_ = a.host.mem.ReadDMA(a.host.cqAt, c[:])
	if c[cqeOpcode]>>4 != cqeRequestErr || c[cqeSyndrome] != 0x02 || c[cqeVendor] != 0x68 {
		t.Errorf("completion %x", c)
	}
}

// The smallest segments that a request may ask for are sent, and each turn ends
// with the request; smaller ones would be frames without end.
func TestLeastSegments(t *testing.T) {
	n := newNet(t)
	a := n.station(0)
	a.send(opLSO, 0, minMSS, tcpFrame(0, 1, 16000, false), 54)
	if got := n.host[0].h.port.stats.tx[trafficUnicast].packets.Load(); got != 16000/minMSS {
		t.Errorf("%d frames", got)
	}
	a.send(opLSO, 0, minMSS-1, tcpFrame(0, 1, 16000, false), 54)
	var c cqe
	_ = a.host.mem.ReadDMA(a.host.cqAt+cqeSize, c[:])
	if got := n.host[0].h.port.stats.tx[trafficUnicast].packets.Load(); got != 16000/minMSS || c[cqeOpcode]>>4 != cqeRequestErr {
		t.Errorf("segments of %d bytes: %d frames, completion %x", minMSS-1, got, c)
	}
}

// outCounts makes the root table of what is sent count, and drop if that is
// asked, what has the host's own source address; it returns the counter.
func (h *host) outCounts(from int, action uint16) uint32 {
	id := h.made(build(mlx5.OpAllocFlowCounter, 0))
	in := h.outFlow(0, 0)
	in.FlowContext().SetAction(action)
	in.FlowContext().SetDestinationListSize(0)
	mac := macOf(from)
	copy(in.FlowContext().MatchValue()[matchSMAC:], mac[:])
	h.must(counted(in[:mlx5.SetFTEInSize], id))
	root := mlx5.SetFlowTableRootIn(build(mlx5.OpSetFlowTableRoot, 0))
	root.SetTableType(uint8(wayOut))
	root.SetTableID(in.TableID())
	h.must(root)
	return id
}

// counted reads a flow counter.
func (h *host) counted(id uint32, clear bool) (packets, octets uint64) {
	h.t.Helper()
	out := make([]byte, mlx5.QueryFlowCounterOutSize+trafficCounterBytes)
	h.h.Exec(h.counterQuery(id, clear), out)
	if status, syndrome := mlx5.StatusOf(out); status != mlx5.StatusOK {
		h.t.Fatalf("QUERY_FLOW_COUNTER: %v, %s", status, reason(syndrome))
	}
	c := mlx5.QueryFlowCounterOut(out).FlowStatistics()
	return binary.BigEndian.Uint64(c), binary.BigEndian.Uint64(c[8:])
}

// What a port sends goes through flow tables too: they count it, and drop it.
// What they do not match goes out.
func TestFlowsOut(t *testing.T) {
	n := newNet(t)
	a, b := n.station(0), n.station(1)
	frame := tcpFrame(0, 1, 100, false)
	other := append(append([]byte(nil), frame[:6]...), append([]byte{2, 9, 9, 9, 9, 9}, frame[12:]...)...)
	counter := a.outCounts(0, flowAllow)
	for range 2 {
		a.send(opSend, 0, 0, frame, 18)
	}
	a.send(opSend, 0, 0, other, 18)
	for i := range 3 {
		if got, _ := b.got(); got == nil {
			t.Errorf("frame %d has not arrived", i)
		}
	}
	if p, o := a.counted(counter, true); p != 2 || o != uint64(2*len(frame)) {
		t.Errorf("%d packets, %d bytes", p, o)
	}
	if p, o := a.counted(counter, false); p != 0 || o != 0 {
		t.Errorf("%d packets, %d bytes after they were cleared", p, o)
	}
	drops := a.outCounts(0, flowDrop)
	a.send(opSend, 0, 0, frame, 18)
	a.send(opSend, 0, 0, other, 18)
	got, _ := b.got()
	if again, _ := b.got(); got == nil || !bytes.Equal(got[6:12], other[6:12]) || again != nil {
		t.Errorf("arrived: %x, then %x", got, again)
	}
	if p, _ := a.counted(drops, false); p != 1 {
		t.Errorf("%d packets dropped", p)
	}
	if p, _ := a.counted(counter, false); p != 0 {
		t.Errorf("%d packets in the table that is no longer the root", p)
	}
}

// What arrives is counted by the entry that it matches.
func TestFlowCounter(t *testing.T) {
	n := newNet(t)
	a, b := n.station(0), n.station(1)
	id := b.made(build(mlx5.OpAllocFlowCounter, 0))
	b.must(counted(b.flow, id))
	frame := tcpFrame(0, 1, 100, false)
	a.send(opSend, 0, 0, frame, 18)
	a.send(opSend, 0, 0, tcpFrame(0, 5, 100, false), 18)
	if got, _ := b.got(); got == nil {
		t.Error("no frame")
	}
	if p, o := b.counted(id, false); p != 1 || o != uint64(len(frame)) {
		t.Errorf("%d packets, %d bytes", p, o)
	}
}

// The hash is Microsoft's, by their own example (RSS verification suite,
// 66.9.149.187:2794 to 161.142.100.80:1766).
func TestToeplitz(t *testing.T) {
	key := []byte{
		0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
		0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
	}
	in := []byte{66, 9, 149, 187, 161, 142, 100, 80, 2794 >> 8, 2794 & 0xff, 1766 >> 8, 1766 & 0xff}
	if got := toeplitz(key, in); got != 0x51ccc178 {
		t.Errorf("%#x", got)
	}
	if got := toeplitz(key, in[:8]); got != 0x323e8fc2 {
		t.Errorf("addresses only: %#x", got)
	}
}
