// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"devxlab.example/mlx5"
)

// Each operation of RC, on messages of nothing, of one packet and of many, over
// each version of RoCE.
func TestRC(t *testing.T) {
	for gid := range uint8(3) {
		for _, size := range []int{0, 1, 255, 256, 257, 5000} {
			o := usual
			o.gidIndex = gid
			n, a, b := newPair(t, mlx5.STRC, o)
			data := a.fill(0, size, byte(size))
			va := b.mem + 0x8000
			b.recv(0, 8192)
			a.post(work{op: opSend, n: size})
			n.run(time.Millisecond)
			b.expect("SEND", done{op: cqeRecvSend, n: uint32(size)})
			if !bytes.Equal(b.at(0, size), data) {
				t.Errorf("SEND of %d bytes: other data", size)
			}
			b.recv(0, 8192)
			a.post(work{op: opSendImm, n: size, imm: 0xdeadbeef})
			b.recv(0, 8192)
			a.post(work{op: opWrite, n: size, va: va, rkey: b.key}, work{op: opWriteImm, n: size, va: va, rkey: b.key, imm: 7})
			n.run(time.Millisecond)
			b.expect("SEND and WRITE with immediate", done{op: cqeRecvSendImm, n: uint32(size), imm: 0xdeadbeef}, done{op: cqeRecvImm, n: uint32(size), imm: 7})
			if !bytes.Equal(b.at(0x8000, size), data) {
				t.Errorf("WRITE of %d bytes: other data", size)
			}
			a.post(work{op: opRead, off: 0x4000, n: size, va: va, rkey: b.key})
			n.run(time.Millisecond)
			if !bytes.Equal(a.at(0x4000, size), data) {
				t.Errorf("READ of %d bytes: other data", size)
			}
			a.expect("requests", done{wqe: opSend}, done{wqe: opSendImm}, done{wqe: opWrite}, done{wqe: opWriteImm}, done{wqe: opRead, n: uint32(size)})
			if a.state() != mlx5.StateRTS || b.state() != mlx5.StateRTS {
				t.Errorf("states %v, %v", a.state(), b.state())
			}
		}
	}
}

// Atomics return what was there, and change it.
func TestAtomics(t *testing.T) {
	n, a, b := newPair(t, mlx5.STRC, usual)
	put := func(v uint64) { _ = b.host.mem.WriteDMA(b.mem, binary.LittleEndian.AppendUint64(nil, v)) }
	put(40)
	a.post(work{op: opFetchAdd, off: 0, n: 8, va: b.mem, rkey: b.key, a: 2},
		work{op: opCAS, off: 8, n: 8, va: b.mem, rkey: b.key, a: 100, b: 42},
		work{op: opCAS, off: 16, n: 8, va: b.mem, rkey: b.key, a: 200, b: 42})
	n.run(time.Millisecond)
	a.expect("atomics", done{wqe: opFetchAdd, n: 8}, done{wqe: opCAS, n: 8}, done{wqe: opCAS, n: 8})
	for i, want := range []uint64{40, 42, 100} {
		if got := binary.LittleEndian.Uint64(a.at(8*i, 8)); got != want {
			t.Errorf("atomic %d returned %d, want %d", i, got, want)
		}
	}
	if got := binary.LittleEndian.Uint64(b.at(0, 8)); got != 100 {
		t.Errorf("%d at the end", got)
	}
	if got := b.counter(mlx5.QueryQCounterOut.RXAtomicRequests); got != 3 {
		t.Errorf("rx_atomic_requests %d", got)
	}
}

// A dead peer: the request fails exactly after the documented time-outs, and
// everything behind it is flushed.
func TestRetryExceeded(t *testing.T) {
	for _, retries := range []uint8{0, 1, 7} {
		o := usual
		o.retries, o.timeout = retries, 10
		n, a, _ := newPair(t, mlx5.STRC, o)
		n.link[0].set(func([]byte) []time.Duration { return nil })
		a.recv(0, 64)
		start := n.clock.Now()
		a.post(work{op: opSend, n: 10, no: true}, work{op: opSend, n: 10}, work{op: opSend, n: 10, no: true})
		end := time.Duration(retries+1) * (ackUnit << 10)
		n.clock.SleepUntil(start + end - 1)
		if got := a.poll(); len(got) != 0 || a.state() != mlx5.StateRTS {
			t.Fatalf("%d retries: %v, %v too early", retries, got, a.state())
		}
		n.run(time.Microsecond)
		flushed := done{op: cqeRequestErr, syndrome: 0x05, vendor: 0xf9, wqe: opSend}
		a.expect("dead peer", done{op: cqeRequestErr, syndrome: 0x15, vendor: 0x81, wqe: opSend}, flushed, flushed,
			done{op: cqeRecvErr, syndrome: 0x05, vendor: 0xf9})
		if a.state() != mlx5.StateErr {
			t.Errorf("state %v", a.state())
		}
		if got := a.counter(mlx5.QueryQCounterOut.LocalAckTimeoutErr); got != uint32(retries)+1 {
			t.Errorf("%d retries: local_ack_timeout_err %d", retries, got)
		}
		if got := a.counter(mlx5.QueryQCounterOut.ReqCQEFlushError); got != 2 {
			t.Errorf("req_cqe_flush_error %d", got)
		}
	}
}

// A receiver that is not ready: the sender tries as often as it may, with the
// receiver's delay between, or for ever.
func TestRNR(t *testing.T) {
	o := usual
	o.rnr, o.minRNR = 1, 14 // 1.28 ms
	n, a, b := newPair(t, mlx5.STRC, o)
	start := n.clock.Now()
	a.post(work{op: opSend, n: 10})
	n.run(5 * time.Millisecond)
	a.expect("RNR", done{op: cqeRequestErr, syndrome: 0x16, vendor: 0x87, wqe: opSend})
	if got := a.counter(mlx5.QueryQCounterOut.RNRNakRetryErr); got != 2 {
		t.Errorf("rnr_nak_retry_err %d", got)
	}
	if got := b.counter(mlx5.QueryQCounterOut.OutOfBuffer); got != 2 {
		t.Errorf("out_of_buffer %d", got)
	}
	if len(n.link[0].sent(t)) != 2 {
		t.Errorf("%d packets sent", len(n.link[0].sent(t)))
	}
	_ = start

	o.rnr = 7
	n, a, b = newPair(t, mlx5.STRC, o)
	a.post(work{op: opSend, n: 10}, work{op: opSend, n: 20})
	n.run(time.Second)
	a.expect("waiting")
	if a.state() != mlx5.StateRTS {
		t.Fatalf("state %v", a.state())
	}
	if got := a.counter(mlx5.QueryQCounterOut.RNRNakRetryErr); got < 700 || got > 782 {
		t.Errorf("%d RNR NAKs in a second at 1.28 ms", got)
	}
	b.recv(0, 100)
	b.recv(100, 100)
	n.run(2 * time.Millisecond)
	a.expect("ready", done{wqe: opSend}, done{wqe: opSend})
	b.expect("ready", done{op: cqeRecvSend, n: 10}, done{op: cqeRecvSend, n: 20})
}

// What the other end refuses, and what both ends are told.
func TestRemoteErrors(t *testing.T) {
	failed := func(syndrome, vendor, op byte) done {
		return done{op: cqeRequestErr, syndrome: syndrome, vendor: vendor, wqe: op}
	}
	for _, c := range []struct {
		name    string
		o       func(*options)
		prepare func(b *end)
		w       func(b *end) work
		want    done
		peer    []done
		same    bool // the peer stays in RTS
	}{
		{name: "rkey", w: func(b *end) work { return work{op: opWrite, n: 8, va: b.mem, rkey: b.key + 1} }, want: failed(0x13, 0x88, opWrite)},
		{name: "range", w: func(b *end) work { return work{op: opWrite, n: 8, va: b.mem + endMemory - 7, rkey: b.key} }, want: failed(0x13, 0x88, opWrite)},
		{name: "READ before", w: func(b *end) work { return work{op: opRead, n: 8, va: b.mem - 1, rkey: b.key} }, want: failed(0x13, 0x88, opRead)},
		{name: "atomic rkey", w: func(b *end) work { return work{op: opFetchAdd, n: 8, va: b.mem, rkey: 0} }, want: failed(0x13, 0x88, opFetchAdd)},
		{name: "atomic unaligned", w: func(b *end) work { return work{op: opFetchAdd, n: 8, va: b.mem + 4, rkey: b.key} }, want: failed(0x12, 0x8a, opFetchAdd)},
		{name: "no write", o: func(o *options) { o.noWrite = true }, w: func(b *end) work { return work{op: opWrite, n: 8, va: b.mem, rkey: b.key} }, want: failed(0x12, 0x8a, opWrite)},
		{name: "no read", o: func(o *options) { o.noRead = true }, w: func(b *end) work { return work{op: opRead, n: 8, va: b.mem, rkey: b.key} }, want: failed(0x12, 0x8a, opRead)},
		{name: "too long", prepare: func(b *end) { b.recv(0, 7) }, w: func(b *end) work { return work{op: opSend, n: 8} }, want: failed(0x12, 0x8a, opSend),
			peer: []done{{op: cqeRecvErr, syndrome: 0x01, vendor: 0x69}}},
		{name: "receive lkey", prepare: func(b *end) { b.recvKey(0, 64, b.key^0xff); b.recv(0, 64) }, w: func(b *end) work { return work{op: opSend, n: 8} }, want: failed(0x14, 0x89, opSend),
			peer: []done{{op: cqeRecvErr, syndrome: 0x04, vendor: 0x56}, {op: cqeRecvErr, syndrome: 0x05, vendor: 0xf9}}},
		{name: "lkey", w: func(b *end) work { return work{op: opSend, n: 8, lkey: b.key + 0x100000} }, want: failed(0x04, 0x52, opSend), same: true},
		{name: "opcode", w: func(b *end) work { return work{op: 0x77, n: 8} }, want: failed(0x02, 0x61, 0x77), same: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := usual
			if c.o != nil {
				c.o(&o)
			}
			n, a, b := newPair(t, mlx5.STRC, o)
			if c.prepare != nil {
				c.prepare(b)
			}
			a.post(c.w(b), work{op: opNOP})
			n.run(time.Millisecond)
			a.expect("requester", c.want, failed(0x05, 0xf9, opNOP))
			b.expect("responder", c.peer...)
			if a.state() != mlx5.StateErr || (b.state() == mlx5.StateRTS) != c.same {
				t.Errorf("states %v, %v", a.state(), b.state())
			}
		})
	}
}

// Work that is posted in ERR is flushed: a doorbell tells of requests, and of
// receive entries the device finds out by itself.
func TestFlushInErr(t *testing.T) {
	n, a, b := newPair(t, mlx5.STRC, usual)
	a.must(about(mlx5.Op2ERR, 0, a.qpn))
	a.post(work{op: opSend, n: 8})
	n.run(10 * time.Microsecond)
	a.expect("request", done{op: cqeRequestErr, syndrome: 0x05, vendor: 0xf9, wqe: opSend})
	a.recv(0, 8)
	n.run(3 * time.Millisecond)
	a.expect("receive entry", done{op: cqeRecvErr, syndrome: 0x05, vendor: 0xf9})

	// RESET forgets all, and the queue pair is as new.
	for _, e := range []*end{a, b} {
		e.recv(0, 8)
		e.must(about(mlx5.Op2RST, 0, e.qpn))
		e.spi, e.rpi = 0, 0
		e.host.mem.put32(e.record, 0)
		e.host.mem.put32(e.record+4, 0)
	}
	n.run(time.Second)
	a.expect("RESET")
	n.connect(a, b, usual)
	b.recv(0, 8)
	a.post(work{op: opSend, n: 8})
	n.run(time.Millisecond)
	a.expect("again", done{wqe: opSend})
	b.expect("again", done{op: cqeRecvSend, n: 8})
}

// One lost packet of a long message: the receiver says once which, and the
// sender goes on from there.
func TestLostPacket(t *testing.T) {
	n, a, b := newPair(t, mlx5.STRC, usual)
	lost := false
	n.link[0].set(func(f []byte) []time.Duration {
		var k packet
		if k.parse(f) == isRoCE && k.psn == (usual.psn[0]+5)&psnMask && !lost {
			lost = true
			return nil
		}
		return []time.Duration{0}
	})
	data := a.fill(0, 5000, 3)
	b.recv(0, 8192)
	a.post(work{op: opSend, n: 5000})
	n.run(100 * time.Microsecond) // less than the time-out
	a.expect("SEND", done{wqe: opSend})
	b.expect("SEND", done{op: cqeRecvSend, n: 5000})
	if !bytes.Equal(b.at(0, 5000), data) {
		t.Error("other data")
	}
	if got := a.counter(mlx5.QueryQCounterOut.PacketSeqErr); got != 1 {
		t.Errorf("packet_seq_err %d", got)
	}
	if got := b.counter(mlx5.QueryQCounterOut.OutOfSequence); got == 0 {
		t.Error("out_of_sequence did not move")
	}
}

// A lost response of an atomic: it is asked for again and executed once.
func TestAtomicOnce(t *testing.T) {
	n, a, b := newPair(t, mlx5.STRC, usual)
	lost := 0
	n.link[1].set(func([]byte) []time.Duration {
		if lost++; lost <= 3 {
			return nil
		}
		return []time.Duration{0}
	})
	a.post(work{op: opFetchAdd, n: 8, va: b.mem, rkey: b.key, a: 1})
	n.run(100 * time.Millisecond)
	a.expect("atomic", done{wqe: opFetchAdd, n: 8})
	if got := binary.LittleEndian.Uint64(b.at(0, 8)); got != 1 {
		t.Errorf("added %d times", got)
	}
	if got := b.counter(mlx5.QueryQCounterOut.DuplicateRequest); got != 3 {
		t.Errorf("duplicate_request %d", got)
	}
}
