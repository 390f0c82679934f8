// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"devxlab.example/mlx5"
)

// av is the address vector of an end, with a Q_Key.
func (e *end) av(qkey uint32, qpn uint32, gid int) []byte {
	b := make([]byte, avBytes)
	binary.BigEndian.PutUint32(b[avQKey:], qkey)
	binary.BigEndian.PutUint32(b[avQPN:], 1<<31|qpn)
	mac := macOf(e.index())
	copy(b[avMAC:], mac[:])
	binary.BigEndian.PutUint32(b[avFlow:], 1<<30|uint32(gid)<<20)
	copy(b[avGID:], gidAt(e.index(), gid))
	return b
}

// Datagrams arrive behind a GRH or what stands in its place, and their
// completions say from whom. A wrong Q_Key, or no room, drops them.
func TestUD(t *testing.T) {
	n, a, b := newPair(t, mlx5.STUD, usual)
	for gid, l3 := range []uint32{l3IPv4, l3GRH, l3IPv6} {
		b.recv(0, 1024)
		data := a.fill(0, 200, byte(gid))
		a.post(work{op: opSendImm, n: 200, imm: 9, av: b.av(0x1234, b.qpn, gid)})
		n.run(time.Millisecond)
		got := b.poll()
		if len(got) != 1 {
			t.Fatalf("GID %d: %v", gid, got)
		}
		if got[0].op != cqeRecvSendImm || got[0].n != 240 || got[0].imm != 9 || got[0].flags != 1<<28|l3<<24|a.qpn {
			t.Fatalf("GID %d: %v, flags %#x", gid, got, got[0].flags)
		}
		if !bytes.Equal(b.at(grhBytes, 200), data) {
			t.Error("other data")
		}
		if l3 == l3IPv4 && (onesSum(0, b.at(20, 20)) != 0xffff || !zero(b.at(0, 20))) {
			t.Errorf("IPv4 header %x", b.at(0, 40))
		}
		if l3 != l3IPv4 && !bytes.Equal(b.at(24, 16), gidAt(1, gid)) {
			t.Errorf("GRH %x", b.at(0, 40))
		}
	}
	a.poll()
	b.recv(0, 1024)
	a.post(work{op: opSend, n: 10, av: b.av(0x1235, b.qpn, 0)}, work{op: opSend, n: 10, av: b.av(1<<31, b.qpn, 0)})
	n.run(time.Millisecond)
	b.expect("own Q_Key only", done{op: cqeRecvSend, n: 50, imm: wholePkey})
	a.post(work{op: opSend, n: 10, av: b.av(0x1234, b.qpn, 0)})
	n.run(time.Millisecond)
	b.expect("no room")
	if got := b.counter(mlx5.QueryQCounterOut.OutOfBuffer); got != 1 {
		t.Errorf("out_of_buffer %d", got)
	}
	a.expect("sent", done{wqe: opSend}, done{wqe: opSend}, done{wqe: opSend})
}

// A multicast reaches those who joined, the sender's own device among them.
func TestMulticast(t *testing.T) {
	n, a, b := newPair(t, mlx5.STUD, usual)
	c := n.end(0, mlx5.STUD)
	n.connect(c, n.end(1, mlx5.STUD), usual)
	group := []byte{0: 0xff, 1: 0x0e, 15: 7}
	join := func(e *end, op mlx5.Op) {
		in := mlx5.AttachToMcgIn(about(op, 0, e.qpn))
		copy(in.MulticastGID(), group)
		e.must(in)
	}
	join(b, mlx5.OpAttachToMcg)
	join(c, mlx5.OpAttachToMcg)
	v := b.av(0x1234, multicastQPN, 2)
	copy(v[avMAC:], []byte{0x33, 0x33, 0, 0, 0, 7})
	copy(v[avGID:], group)
	send := func(want int) {
		t.Helper()
		for _, e := range []*end{a, b, c} {
			e.recv(0, 1024)
		}
		a.post(work{op: opSend, n: 10, av: v})
		n.run(time.Millisecond)
		if got := len(b.poll()) + len(c.poll()); got != want {
			t.Errorf("%d deliveries, want %d", got, want)
		}
	}
	send(2)
	join(b, mlx5.OpDetachFromMcg)
	send(1)
	c.must(about(mlx5.Op2RST, 0, c.qpn))
	c.must(about(mlx5.OpDestroyQP, 0, c.qpn))
	send(0)
	if n.host[0].h.groups.total != 0 {
		t.Error("a destroyed queue pair is still a member")
	}
}

// The general service interface is queue pair 1 on the wire, whatever its number
// is.
func TestGSI(t *testing.T) {
	n, a, b := newPair(t, mlx5.STQp1, usual)
	b.recv(0, 1024)
	a.post(work{op: opSend, n: 256, av: b.av(gsiQKey, gsiQPN, 0)})
	n.run(time.Millisecond)
	got := b.poll()
	if len(got) != 1 || got[0].n != 296 || got[0].flags&0xffffff != gsiQPN || got[0].imm != wholePkey {
		t.Fatalf("%v", got)
	}
	if k := n.link[0].sent(t)[0]; k.qpn != gsiQPN || len(k.ip)+udpBytes+bthBytes+len(k.ext)+len(k.payload)+icrcBytes != 20+288 {
		t.Errorf("packet to %d of %d bytes", k.qpn, len(k.payload))
	}
}

// srq posts an entry of a shared receive queue: a chain that goes round.
func (h *host) srqPost(at, record uint64, stride int, i int, n int, key uint32, va uint64) {
	b := make([]byte, segBytes)
	binary.BigEndian.PutUint16(b[2:], uint16((i+1)%16))
	b = append(b, segment(n, key, va)...)
	if stride > 32 {
		b = append(b, segment(0, lkeyEnd, 0)...)
	}
	_ = h.mem.WriteDMA(at+uint64(i%16*stride), b)
	h.mem.put32(record, uint32(i+1))
}

// Two queue pairs take from one shared receive queue; its limit is told once.
func TestSRQ(t *testing.T) {
	n := newNet(t)
	a, b := n.end(0, mlx5.STRC), n.end(1, mlx5.STRC)
	h := n.host[1]
	in := mlx5.CreateRMPIn(build(mlx5.OpCreateRMP, 0))
	in.Ctx().SetState(wqReady)
	list, at, record := h.wq(in.Ctx().WQ(), 5, 4)
	in.Ctx().WQ().SetLwm(2)
	rmp := h.made(append(in, list...))
	qp := mlx5.CreateQPIn(append(build(mlx5.OpCreateQP, 0), list...))
	q := qp.QPC()
	q.SetPMState(3)
	q.SetPD(h.pd)
	q.SetUARPage(h.uar)
	q.SetCQNSnd(b.cqn)
	q.SetCQNRcv(b.cqn)
	q.SetRQType(mlx5.RQShared)
	q.SetSRQNRMPNXRQN(rmp)
	q.SetNoSQ(true)
	_, rec := h.mem.pages(1)
	q.SetDBRAddr(rec)
	q.SetUserIndex(0x77)
	b.qpn = h.made(qp)
	n.connect(a, b, usual)
	eq, eqAt := h.eqIn(4, mlx5.EventSRQRQLimit, mlx5.EventSRQLastWQE)
	h.made(eq)
	for i := range 4 {
		h.srqPost(at, record, 32, i, 64, b.key, b.mem+uint64(i*64))
	}
	for range 3 {
		a.post(work{op: opSend, n: 10})
	}
	n.run(time.Millisecond)
	got := b.poll()
	if len(got) != 3 || got[2].counter != 2 {
		t.Fatalf("%v", got)
	}
	event := func(i int) (mlx5.EventType, uint32) {
		var e [eqeSize]byte
		_ = h.mem.ReadDMA(eqAt+uint64(i*eqeSize), e[:])
		return mlx5.EventType(e[1]), binary.BigEndian.Uint32(e[0x38:])
	}
	if typ, id := event(0); typ != mlx5.EventSRQRQLimit || id != rmp {
		t.Errorf("event %v of %#x", typ, id)
	}
	h.must(about(mlx5.Op2ERR, 0, b.qpn))
	if typ, id := event(1); typ != mlx5.EventSRQLastWQE || id != b.qpn {
		t.Errorf("event %v of %#x", typ, id)
	}
}

// UMR fills a key with pages or other keys, changes its rights and frees it; a
// SEND with invalidate frees it from afar.
func TestUMR(t *testing.T) {
	n, a, b := newPair(t, mlx5.STRC, usual)
	h := n.host[1]
	in := mlx5.CreateMKeyIn(build(mlx5.OpCreateMKey, 0))
	m := in.MemoryKeyMKeyEntry()
	m.SetAccessMode10(accessKLM)
	m.SetFree(true)
	m.SetUMREn(true)
	m.SetPD(h.pd)
	m.SetQPN(anyQPN)
	m.SetTranslationsOctwordSize(4)
	index := h.made(in)
	key := index<<8 | 0x11
	umr := func(flags byte, mask uint64, change func(mlx5.MKC), klms ...[]byte) {
		seg := make([]byte, umrCtrlBytes+umrSegBytes)
		seg[0] = umrInline | flags
		binary.BigEndian.PutUint16(seg[4:], uint16((len(klms)+3)/4*4))
		binary.BigEndian.PutUint64(seg[8:], mask)
		change(mlx5.MKC(seg[umrCtrlBytes:]))
		for _, k := range klms {
			seg = append(seg, k...)
		}
		seg = append(seg, make([]byte, -len(seg)&63)...)
		b.post(work{op: opUMR, imm: key, seg: seg})
		n.run(10 * time.Microsecond)
	}
	const all = umrLen | umrStart | umrKey | umrFree | umrRW | umrLW | umrLR | umrRinval
	fillIn := func(c mlx5.MKC) {
		c.SetMKey70(0x11)
		c.SetLen(300)
		c.SetStartAddr(0x1000)
		c.SetRw(true)
		c.SetLw(true)
		c.SetLr(true)
		c.SetEnRinval(true)
	}
	umr(umrMustBeFree, all, fillIn, segment(100, b.key, b.mem+0x500), segment(200, b.key, b.mem+0x100))
	b.expect("UMR", done{wqe: opUMR})
	data := a.fill(0, 300, 5)
	a.post(work{op: opWrite, n: 300, va: 0x1000, rkey: key})
	n.run(time.Millisecond)
	a.expect("WRITE", done{wqe: opWrite})
	if !bytes.Equal(b.at(0x500, 100), data[:100]) || !bytes.Equal(b.at(0x100, 200), data[100:]) {
		t.Error("other data")
	}
	b.recv(0, 64)
	a.post(work{op: opSendInval, n: 4, imm: key}, work{op: opWrite, n: 1, va: 0x1000, rkey: key})
	n.run(time.Millisecond)
	b.expect("SEND with invalidate", done{op: cqeRecvInval, n: 4, imm: key})
	a.expect("invalidated", done{wqe: opSendInval}, done{op: cqeRequestErr, syndrome: 0x13, vendor: 0x88, wqe: opWrite})
	if c := mlx5.QueryMKeyOut(h.must(about(mlx5.OpQueryMKey, 0, index))).MemoryKeyMKeyEntry(); !c.Free() || c.Len() != 300 || c.MKey70() != 0x11 {
		t.Errorf("free %v, length %d, variant %#x", c.Free(), c.Len(), c.MKey70())
	}

	// More entries than the key was made for.
	n, _, b = newPair(t, mlx5.STRC, usual)
	h = n.host[1]
	key = h.made(in)<<8 | 0x11
	umr(umrMustBeFree, all, fillIn, segment(1, b.key, b.mem), segment(1, b.key, b.mem), segment(1, b.key, b.mem), segment(1, b.key, b.mem), segment(1, b.key, b.mem))
	b.expect("too long", done{op: cqeRequestErr, syndrome: 0x06, vendor: 0x78, wqe: opUMR})
}

// XRC: the receive queue is the one that the packet names, in its domain.
func TestXRC(t *testing.T) {
	n, a, b := newPair(t, mlx5.STXRC, usual)
	h := n.host[1]
	in := mlx5.CreateXRCSRQIn(build(mlx5.OpCreateXRCSRQ, 0))
	c := in.XRCSRQContextEntry()
	c.SetXRCD(h.xrcd)
	c.SetPD(h.pd)
	c.SetCQN(b.cqn)
	c.SetLogXRCSRQSize(4)
	c.SetLogRQStride(1)
	c.SetUserIndex(0x99)
	list, at := h.mem.pages(2)
	_, record := h.mem.pages(1)
	c.SetDbRecordAddrL(uint32(record >> 2))
	srq := h.made(append(in, list...))
	h.srqPost(at, record, 32, 0, 512, b.key, b.mem)
	xrc := binary.BigEndian.AppendUint32(nil, srq)
	data := a.fill(0, 500, 8)
	a.post(work{op: opSend, av: append(xrc, make([]byte, 12)...), n: 500})
	n.run(time.Millisecond)
	a.expect("SEND", done{wqe: opSend})
	b.expect("SEND", done{op: cqeRecvSend, n: 500})
	if !bytes.Equal(b.at(0, 500), data) {
		t.Error("other data")
	}
	a.post(work{op: opWrite, av: append(xrc, make([]byte, 12)...), n: 500, va: b.mem + 0x1000, rkey: b.key})
	n.run(time.Millisecond)
	a.expect("WRITE", done{wqe: opWrite})
	if !bytes.Equal(b.at(0x1000, 500), data) {
		t.Error("WRITE: other data")
	}
	bad := binary.BigEndian.AppendUint32(nil, srq+1)
	a.post(work{op: opSend, av: append(bad, make([]byte, 12)...), n: 5})
	n.run(time.Millisecond)
	a.expect("no such queue", done{op: cqeRequestErr, syndrome: 0x12, vendor: 0x8a, wqe: opSend})
}
