// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"devxlab.example/mlx5"
)

// otherPD gives a key a protection domain of its own.
func otherPD(h *host) func(mlx5.MKC) {
	pd := h.made(build(mlx5.OpAllocPD, 0))
	return func(m mlx5.MKC) { m.SetPD(pd) }
}

// What each right, bound and state of a memory key forbids, on both sides of a
// connection, with the completions that real cards gave.
func TestKeyRights(t *testing.T) {
	failed := func(syndrome, vendor, op byte) done {
		return done{op: cqeRequestErr, syndrome: syndrome, vendor: vendor, wqe: op}
	}
	local := func(op byte) done { return failed(0x04, 0x52, op) }
	access := func(op byte) done { return failed(0x13, 0x88, op) }
	always := func(h *host) func(mlx5.MKC) { return func(mlx5.MKC) {} }
	for _, c := range []struct {
		name   string
		op     byte
		remote bool                          // the key is the responder's
		change func(h *host) func(mlx5.MKC)  // of the key
		use    func(key uint32, w work) work // another way of using it
		want   done
	}{
		{name: "SEND, another domain", op: opSend, change: otherPD, want: local(opSend)},
		{name: "WRITE, another domain", op: opWrite, change: otherPD, want: local(opWrite)},
		{name: "READ, another domain", op: opRead, change: otherPD, want: local(opRead)},
		{name: "READ into what may not be written", op: opRead, change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetLw(false) } }, want: local(opRead)},
		{name: "atomic into what may not be written", op: opFetchAdd, change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetLw(false) } }, want: local(opFetchAdd)},
		{name: "SEND, variant", op: opSend, change: always, use: func(key uint32, w work) work { w.lkey = key ^ 1; return w }, want: local(opSend)},
		{name: "SEND, a byte beyond", op: opSend, change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetLen(7) } }, want: local(opSend)},
		{name: "SEND, free key", op: opSend, change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetFree(true) } }, want: local(opSend)},
		{name: "SEND, another queue pair's", op: opSend, change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetQPN(1) } }, want: local(opSend)},
		{name: "SEND, reserved key", op: opSend, change: always, use: func(_ uint32, w work) work { w.lkey = reservedLkey; return w }, want: local(opSend)},

		{name: "remote: another domain", op: opWrite, remote: true, change: otherPD, want: access(opWrite)},
		{name: "remote: WRITE", op: opWrite, remote: true, change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetRw(false) } }, want: access(opWrite)},
		{name: "remote: READ", op: opRead, remote: true, change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetRr(false) } }, want: access(opRead)},
		{name: "remote: atomic", op: opCAS, remote: true, change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetA(false) } }, want: access(opCAS)},
		{name: "remote: another queue pair's", op: opRead, remote: true, change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetQPN(1) } }, want: access(opRead)},
		{name: "remote: free key", op: opWrite, remote: true, change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetFree(true) } }, want: access(opWrite)},
		{name: "remote: variant", op: opFetchAdd, remote: true, change: always, use: func(key uint32, w work) work { w.rkey = key ^ 1; return w }, want: access(opFetchAdd)},
		{name: "remote: reserved key", op: opWrite, remote: true, change: always, use: func(_ uint32, w work) work { w.rkey = reservedLkey; return w }, want: access(opWrite)},
		{name: "remote: before", op: opRead, remote: true, change: always, use: func(_ uint32, w work) work { w.va--; return w }, want: access(opRead)},
		{name: "remote: round the end of addresses", op: opWrite, remote: true, change: always, use: func(_ uint32, w work) work { w.va = 1<<64 - 4; return w }, want: access(opWrite)},
		{name: "remote: atomic of 8 bytes at 1", op: opCAS, remote: true, change: always, use: func(_ uint32, w work) work { w.va++; return w }, want: failed(0x12, 0x8a, opCAS)},
		{name: "remote: atomic of 8 bytes at 4", op: opFetchAdd, remote: true, change: always, use: func(_ uint32, w work) work { w.va += 4; return w }, want: failed(0x12, 0x8a, opFetchAdd)},
		{name: "atomic of 4 bytes", op: opCAS, change: always, use: func(_ uint32, w work) work { w.n = 4; return w }, want: failed(0x01, 0x69, opCAS)},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, a, b := newPair(t, mlx5.STRC, usual)
			owner := a
			if c.remote {
				owner = b
			}
			b.recv(0x8000, 64)
			key, at := owner.memoryKey(pageSize, c.change(owner.host))
			mine, theirs := a.fill(0, pageSize, 1), b.fill(0, pageSize, 2)
			guarded := bytes.Repeat([]byte{0x3c}, pageSize)
			_ = owner.host.mem.WriteDMA(at, guarded)
			w := work{op: c.op, n: 8, va: b.mem, rkey: b.key}
			switch {
			case c.remote:
				w.va, w.rkey = at, key
			default:
				w.lkey, w.off = key, int(at)-int(a.mem)
			}
			if c.use != nil {
				w = c.use(key, w)
			}
			a.post(w)
			n.run(time.Millisecond)
			a.expect("requester", c.want)
			if a.state() != mlx5.StateErr || (b.state() == mlx5.StateErr) != (c.want.syndrome == 0x13 || c.want.syndrome == 0x12) {
				t.Errorf("states %v, %v", a.state(), b.state())
			}
			got := make([]byte, pageSize)
			_ = owner.host.mem.ReadDMA(at, got)
			if !bytes.Equal(got, guarded) || !bytes.Equal(a.at(0, pageSize), mine) || !bytes.Equal(b.at(0, pageSize), theirs) {
				t.Error("memory was written")
			}
		})
	}
}

// A receive entry whose key forbids it fails at the receiver, which tells the
// sender that it could not.
func TestReceiveKeyRights(t *testing.T) {
	for name, change := range map[string]func(h *host) func(mlx5.MKC){
		"another domain":       otherPD,
		"may not be written":   func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetLw(false) } },
		"another queue pair's": func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetQPN(1) } },
		"too short":            func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetLen(8) } },
	} {
		n, a, b := newPair(t, mlx5.STRC, usual)
		key, at := b.memoryKey(pageSize, change(b.host))
		b.recvKey(int(at)-int(b.mem), 64, key)
		a.post(work{op: opSend, n: 16})
		n.run(time.Millisecond)
		a.expect(name, done{op: cqeRequestErr, syndrome: 0x14, vendor: 0x89, wqe: opSend})
		b.expect(name, done{op: cqeRecvErr, syndrome: 0x04, vendor: 0x56})
	}
}

// The dwords that real cards wrote into error completions, as they were
// recorded: hardware syndrome, type, vendor's and IBTA's syndrome (and the opcode
// of the work request).
func TestErrorCompletionsAsRecorded(t *testing.T) {
	for _, r := range []struct {
		source string
		f      *failure
		dword  uint32
	}{
		{"RNR retries used up", &failRNR, 0x00008716},
		{"ofiwg/libfabric #4283, openucx/ucx #1569", &failRemoteAccess, 0x00008813},
		{"openucx/ucx #1770, charm #2532", &failRemoteInval, 0x00008a12},
		{"spdk/spdk #961", &failProtection, 0x93005204},
		{"linux-rdma e2930e9e090d", &failReceive, 0xa9005604},
		{"openucx/ucx #857", &failOperation, 0x01006102},
		{"linux-rdma 67d8bb279930", &failBind, 0x0f007806},
		{"linux-rdma 7f55c8605a7c", &failFrame, 0x01006802},
		{"UCX #2434", &failRetry, 0x00008115},
		{"openucx/ucx #5472", &failRemoteOp, 0x00008914},
		{"dLSM #7, nvme-cli #3268", &failFlush, 0x0000f905},
	} {
		c := r.f.completion(cqeRequestErr)
		if got := binary.BigEndian.Uint32(c[cqeHardware:]); got != r.dword {
			t.Errorf("%s: %#08x, want %#08x", r.source, got, r.dword)
		}
	}
}

// A work request that makes or changes a key (which is what a bind of a memory
// window is) keeps to what the key allows; refused, it changes nothing.
func TestBindRules(t *testing.T) {
	const fields = umrLen | umrStart | umrKey | umrFree | umrRW
	for _, c := range []struct {
		name   string
		change func(h *host) func(mlx5.MKC)
		key    byte // variant; 0: the key's own
		flags  byte
		mask   uint64
		good   bool
	}{
		{name: "a free key", change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetFree(true) } }, flags: umrMustBeFree, mask: fields, good: true},
		{name: "a key in use", flags: umrMustBeFree, mask: fields},
		{name: "a key in use that may be", mask: fields, good: true},
		{name: "to be used, but free", change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetFree(true) } }, flags: umrMustBeUsed, mask: fields},
		{name: "another queue pair's", change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetQPN(1) } }, flags: umrMustBeMine, mask: fields},
		{name: "not made for it", change: func(*host) func(mlx5.MKC) { return func(m mlx5.MKC) { m.SetUMREn(false) } }, mask: fields},
		{name: "another domain", change: otherPD, mask: fields},
		{name: "variant that is not changed", key: 0x77, mask: fields &^ umrKey},
		{name: "variant that is changed", key: 0x77, mask: fields, good: true},
		{name: "a field that there is not", mask: fields | 1<<60},
		{name: "into another domain", mask: fields | umrPD},
	} {
		n, a, _ := newPair(t, mlx5.STRC, usual)
		h := a.host
		in := h.keysIn(accessKLM, 0, 4)
		m := in.MemoryKeyMKeyEntry()
		m.SetMKey70(0x11)
		m.SetLen(64)
		m.SetUMREn(true)
		if c.change != nil {
			c.change(h)(m)
		}
		index := h.made(in)
		before := bytes.Clone(mlx5.QueryMKeyOut(h.must(about(mlx5.OpQueryMKey, 0, index))).MemoryKeyMKeyEntry())
		key := index<<8 | 0x11
		if c.key != 0 {
			key = index<<8 | uint32(c.key)
		}
		seg := make([]byte, umrCtrlBytes+umrSegBytes)
		seg[0] = umrInline | c.flags
		binary.BigEndian.PutUint64(seg[8:], c.mask)
		mlx5.MKC(seg[umrCtrlBytes:]).SetLen(100)
		mlx5.MKC(seg[umrCtrlBytes:]).SetRw(true)
		mlx5.MKC(seg[umrCtrlBytes:]).SetMKey70(0x22)
		a.post(work{op: opUMR, imm: key, seg: seg})
		n.run(time.Millisecond)
		if c.good {
			a.expect(c.name, done{wqe: opUMR})
		} else {
			a.expect(c.name, done{op: cqeRequestErr, syndrome: 0x06, vendor: 0x78, wqe: opUMR})
		}
		after := mlx5.QueryMKeyOut(h.must(about(mlx5.OpQueryMKey, 0, index))).MemoryKeyMKeyEntry()
		if c.good && mlx5.MKC(after).MKey70() != 0x22 { // that of the context, not of the key that names it
			t.Errorf("%s: variant %#x", c.name, mlx5.MKC(after).MKey70())
		}
		if bytes.Equal(before, after) == c.good {
			t.Errorf("%s: the key is %x, was %x", c.name, after, before)
		}
	}
}

// klmEntry is a KLM entry, and stridedEntry one of a repeated block.
func klmEntry(n int, va uint64) []byte { return segment(n, 7, va) }
func stridedEntry(n, stride int, va uint64) []byte {
	return segment(stride<<16|n, 7, va)
}

// What a list of keys refers to, byte by byte, is what the pieces say, for any
// offset and length; entries of no bytes do not count.
func TestPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		entries, times := r.IntN(6), 1
		repeated := r.IntN(2) == 0
		var list, body []byte
		var bytesAt []uint64
		var sizes, strides []int
		for i := range entries {
			n, stride := r.IntN(4), r.IntN(20)
			sizes, strides = append(sizes, n), append(strides, stride)
			if repeated {
				body = append(body, stridedEntry(n, stride, uint64(i)<<32)...)
			} else {
				body = append(body, klmEntry(n, uint64(i)<<32)...)
			}
		}
		round := 0
		for _, n := range sizes {
			round += n
		}
		if repeated {
			times = r.IntN(4)
			list = append(list, make([]byte, klmBytes)...)
			binary.BigEndian.PutUint32(list, uint32(round))
			binary.BigEndian.PutUint32(list[4:], repeatBlock)
			binary.BigEndian.PutUint32(list[8:], uint32(times))
			binary.BigEndian.PutUint16(list[14:], uint16(entries))
		}
		list = append(list, body...)
		for i := range times {
			for e, n := range sizes {
				at := uint64(e) << 32
				if repeated {
					at += uint64(i * strides[e])
				}
				for b := range n {
					bytesAt = append(bytesAt, at+uint64(b))
				}
			}
		}
		for off := range len(bytesAt) + 2 {
			for n := 1; n < len(bytesAt)+2; n++ {
				pieces, fits := klmsOf(list).pieces(uint64(off), uint64(n))
				if fits != (off+n <= len(bytesAt)) {
					t.Fatalf("%x: %d bytes at %d fit %v, there are %d", list, n, off, fits, len(bytesAt))
				}
				var got []uint64
				for _, p := range pieces {
					for i := range p.n {
						got = append(got, p.va+i)
					}
				}
				for i, va := range got {
					if fits && va != bytesAt[off+i] {
						t.Fatalf("%x: byte %d of %d at %d is at %#x, want %#x", list, i, n, off, va, bytesAt[off+i])
					}
				}
				if fits && len(got) != n {
					t.Fatalf("%x: %d bytes of %d", list, len(got), n)
				}
			}
		}
	}
	if p, fits := klmsOf(append(append(segment(2, repeatBlock, 1<<32|1), stridedEntry(1, 1, 0)...), stridedEntry(2, 1, 0)...)).pieces(0, 1); fits {
		t.Errorf("a round that has not the bytes of its header: %v", p)
	}
}

// Lists that a program makes to cost time do not: a thousand entries of no bytes
// are not looked at again, and KSM entries are found by their number.
func TestPiecesAreFound(t *testing.T) {
	var list []byte
	for range 1 << 15 {
		list = append(list, klmEntry(0, 0)...)
	}
	list = append(list, klmEntry(8, 0x1000)...)
	k := klmsOf(list)
	if len(k.list) != 1 {
		t.Errorf("%d entries are looked at", len(k.list))
	}
	if p, fits := k.pieces(3, 5); !fits || len(p) != 1 || p[0] != (piece{7, 0x1003, 5}) {
		t.Errorf("%v, %v", p, fits)
	}
	ksm := append(segment(0, 7, 0x10000), segment(0, 8, 0x20000)...)
	if p, fits := blocks(ksm, 12, 4090, 10); !fits || len(p) != 2 || p[0] != (piece{7, 0x10000 + 4090, 6}) || p[1] != (piece{8, 0x20000, 4}) {
		t.Errorf("%v, %v", p, fits)
	}
	for _, c := range []struct {
		shift  uint8
		off, n uint64
	}{{0, 0, 1}, {12, 8192, 1}, {12, 8191, 2}, {63, 1<<64 - 1, 2}, {12, 1<<64 - 1, 1}} {
		if p, fits := blocks(ksm, c.shift, c.off, c.n); fits {
			t.Errorf("2^%d: %d bytes at %#x: %v", c.shift, c.n, c.off, p)
		}
	}
}

// Keys of keys of keys go as deep as the device follows, and no deeper.
func TestKeysNest(t *testing.T) {
	n, a, b := newPair(t, mlx5.STRC, usual)
	h := b.host
	key := b.key
	for depth := 1; depth <= maxKeyDepth+1; depth++ {
		in := mlx5.CreateMKeyIn(append(build(mlx5.OpCreateMKey, 0), segment(64, key, b.mem)...))
		in.SetTranslationsOctwordActualSize(1)
		m := in.MemoryKeyMKeyEntry()
		m.SetAccessMode10(accessKLM)
		m.SetPD(h.pd)
		m.SetQPN(anyQPN)
		m.SetStartAddr(b.mem)
		m.SetLen(64)
		m.SetLw(true)
		m.SetRw(true)
		key = h.made(in) << 8
		a.post(work{op: opWrite, n: 8, va: b.mem, rkey: key})
		n.run(time.Millisecond)
		if depth <= maxKeyDepth {
			a.expect("nested", done{wqe: opWrite})
			continue
		}
		a.expect("too deep", done{op: cqeRequestErr, syndrome: 0x13, vendor: 0x88, wqe: opWrite})
	}
}

// Requests of many queue pairs that nobody answers take no more of the device
// than is agreed; each queue pair has one, they go on when others are done, and
// with the queue pairs all are given back.
func TestRequestsBounded(t *testing.T) {
	n := newNet(t)
	h := n.host[0].h
	h.requests.most = 8
	n.link[0].set(func([]byte) []time.Duration { return nil }) // lost
	var ends []*end
	o := usual
	o.timeout = 0 // for ever
	for range 6 {
		a, b := n.end(0, mlx5.STRC), n.end(1, mlx5.STRC)
		n.connect(a, b, o)
		a.post(work{op: opWrite, n: 8, va: b.mem, rkey: b.key}, work{op: opWrite, n: 8, va: b.mem, rkey: b.key}, work{op: opWrite, n: 8, va: b.mem, rkey: b.key})
		ends = append(ends, a)
	}
	n.run(time.Millisecond)
	if got := h.requests.out.Load(); got < 8 || got > 8+6 {
		t.Errorf("%d requests are kept", got)
	}
	for _, a := range ends {
		a.must(about(mlx5.Op2ERR, 0, a.qpn))
		flushed := done{op: cqeRequestErr, syndrome: 0x05, vendor: 0xf9, wqe: opWrite}
		a.expect("in ERR", flushed, flushed, flushed)
	}
	n.link[0].set(nil)
	a, b := n.end(0, mlx5.STRC), n.end(1, mlx5.STRC)
	h.requests.most = 1
	n.connect(a, b, usual)
	a.post(work{op: opWrite, n: 8, va: b.mem, rkey: b.key}, work{op: opWrite, n: 8, va: b.mem, rkey: b.key}, work{op: opWrite, n: 8, va: b.mem, rkey: b.key})
	n.run(time.Millisecond)
	a.expect("one at a time", done{wqe: opWrite}, done{wqe: opWrite}, done{wqe: opWrite})
	n.link[0].set(func([]byte) []time.Duration { return nil })
	a.post(work{op: opWrite, n: 8, va: b.mem, rkey: b.key})
	n.run(time.Microsecond)
	a.must(about(mlx5.OpDestroyQP, 0, a.qpn))
	if got := h.requests.out.Load(); got != 0 {
		t.Errorf("%d requests are still kept", got)
	}
}

// An error of a send queue of UD or UC leaves the queue pair in SQER: what was
// posted is flushed, it goes on receiving, and SQERR2RTS lets it send again.
func TestSendQueueError(t *testing.T) {
	for _, st := range []mlx5.ServiceType{mlx5.STUC, mlx5.STUD} {
		n, a, b := newPair(t, st, usual)
		send := work{op: opSend, n: 8}
		reply, got, room := work{op: opSend, n: 8}, uint32(8), 64
		if st == mlx5.STUD {
			send.av, reply.av = b.av(0x1234, b.qpn, 0), a.av(0x1234, a.qpn, 0)
			got, room = grhBytes+8, 64+grhBytes
		}
		a.recv(0x100, room)
		b.recv(0x100, room)
		bad := send
		bad.lkey = a.key ^ 0x100
		a.post(bad, send)
		n.run(time.Millisecond)
		flushed := done{op: cqeRequestErr, syndrome: 0x05, vendor: 0xf9, wqe: opSend}
		a.expect("bad key", done{op: cqeRequestErr, syndrome: 0x04, vendor: 0x52, wqe: opSend}, flushed)
		if a.state() != mlx5.StateSQER {
			t.Fatalf("%v: state %v", st, a.state())
		}
		a.post(send)
		b.post(reply)
		n.run(time.Millisecond)
		b.expect("to SQER", done{wqe: opSend})
		completions := a.poll()
		if len(completions) != 2 || completions[0].syndrome+completions[1].syndrome != 0x05 || completions[0].n+completions[1].n != got {
			t.Errorf("%v: in SQER: %v", st, completions)
		}
		a.must(a.modify(mlx5.OpSQERR2RTS, a.qpn))
		a.post(send)
		n.run(time.Millisecond)
		a.expect("again", done{wqe: opSend})
		if got := b.poll(); len(got) != 1 || got[0].op != cqeRecvSend {
			t.Errorf("%v: received %v", st, got)
		}
	}
}
