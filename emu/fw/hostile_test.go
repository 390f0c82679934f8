// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"testing"
	"time"

	"devxlab.example/mlx5"
)

// What was on its way when a queue pair came to SQD is completed there, sent
// again if it was lost; what was posted later does not begin.
func TestDrain(t *testing.T) {
	n, a, b := newPair(t, mlx5.STRC, usual)
	lost := 0
	n.link[0].set(func([]byte) []time.Duration {
		if lost++; lost == 1 {
			return nil
		}
		return []time.Duration{0}
	})
	a.post(work{op: opWrite, n: 100, va: b.mem, rkey: b.key})
	n.run(100 * time.Nanosecond) // its only packet is lost
	if !n.host[0].h.Fault(a.qpn, mlx5.StateSQD) {
		t.Fatal("no SQD")
	}
	a.post(work{op: opWrite, n: 100, va: b.mem, rkey: b.key})
	n.run(time.Second)
	a.expect("in SQD", done{wqe: opWrite})
	a.must(a.modify(mlx5.Op2ERR, a.qpn))
	a.expect("in ERR", done{op: cqeRequestErr, syndrome: 0x05, vendor: 0xf9, wqe: opWrite})
}

// poster is a driver that posts as fast as the device looks: the record at an
// address moves on with each read.
type poster struct {
	Memory
	at    uint64
	reads int
	most  int // then it stops
}

func (p *poster) ReadDMA(addr uint64, b []byte) error {
	if addr != p.at {
		return p.Memory.ReadDMA(addr, b)
	}
	p.reads = min(p.reads+1, p.most)
	binary.BigEndian.PutUint32(b, uint32(p.reads))
	return nil
}

// A driver that posts as fast as the device flushes does not keep it from all
// else: a command to the queue pair comes in between.
func TestFlushEnds(t *testing.T) {
	for _, recv := range []bool{false, true} {
		n := newNet(t)
		e := n.end(0, mlx5.STRC)
		other := n.end(1, mlx5.STRC)
		n.connect(e, other, usual)
		q := e.h.qps.get(e.qpn)
		q.mu.Lock()
		e.h.cqs.get(e.cqn).ring.Load().ignore = true
		at := e.record
		if !recv {
			at += 4
			for i := range uint64(1 << endSQLog) { // a NOP in each place
				_ = e.host.mem.WriteDMA(e.sq+i*wqeBlock, []byte{0, 0, 0, 0, 0, 0, 0, 1})
			}
		}
		const most = 10000
		p := &poster{Memory: e.h.mem, at: at, most: most}
		e.h.mem = p
		q.ep.state = mlx5.StateErr
		more := q.ep.flush(e.h)
		reads := p.reads
		e.h.mem = p.Memory
		q.ep.state = mlx5.StateRTS
		q.mu.Unlock()
		if limit := 1<<endSQLog + 2; !more || reads > limit {
			t.Errorf("receive %v: looked %d times, want at most %d; more %v", recv, reads, limit, more)
		}
	}
}

// A sender that is told again and again that there is no receive entry does not
// make the device remember all that it has to say.
func TestResponsesBounded(t *testing.T) {
	n, a, b := newPair(t, mlx5.STRC, usual)
	_ = a
	q := b.h.qps.get(b.qpn)
	q.mu.Lock()
	defer q.mu.Unlock()
	k := &packet{op: pktSendOnly, parts: packetParts[pktSendOnly], psn: q.ep.rsp.psn}
	for range 100 * maxJobs {
		q.ep.requested(n.host[1].h, k)
	}
	if got := len(q.ep.rsp.jobs); got > maxJobs {
		t.Errorf("%d responses wait, want at most %d", got, maxJobs)
	}
}

// Only the kernel's own queue pairs may use the reserved key, which is all of the
// host's memory, and write pages into a key: neither those of a program that
// asks for it nor those that the driver makes for programs under its own uid.
func TestPhysicalMemoryIsTheKernels(t *testing.T) {
	for _, c := range []struct {
		uid     uint16
		rlky    bool
		allowed bool
	}{{0, true, true}, {0, false, false}, {1, true, false}, {1, false, false}} {
		n := newNetOf(t, 1)
		h := n.host[0].h
		var q qp
		qpc := mlx5.QPC(q.qpc[:])
		qpc.SetSt(uint8(mlx5.STRC))
		qpc.SetPD(n.host[0].pd)
		qpc.SetRlky(c.rlky)
		e := h.newEndpoint(&q, firstQPN, c.uid, nil, nil)
		if got := h.allows(&e.who, reservedLkey, 0, 8, localWrite); got != c.allowed {
			t.Errorf("uid %d, rlky %v: reserved key allowed %v", c.uid, c.rlky, got)
		}
		key, _ := n.host[0].memoryKey(pageSize, func(m mlx5.MKC) {
			m.SetUMREn(true)
			m.SetTranslationsOctwordSize(4)
		})
		seg := make([]byte, umrCtrlBytes+umrSegBytes+umrSegBytes)
		seg[0] = umrInline
		binary.BigEndian.PutUint16(seg[4:], 4)
		if got := h.updateKey(&e.who, e.kernel, key, seg); got != c.allowed {
			t.Errorf("uid %d, rlky %v: pages written %v", c.uid, c.rlky, got)
		}
		clear(seg[:6])
		binary.BigEndian.PutUint64(seg[8:], umrPageSize)
		mlx5.MKC(seg[umrCtrlBytes:]).SetLogPageSize(30)
		if got := h.updateKey(&e.who, e.kernel, key, seg[:umrCtrlBytes+umrSegBytes]); got != c.allowed {
			t.Errorf("uid %d, rlky %v: page size changed %v", c.uid, c.rlky, got)
		}
	}
}

// A UMR work request that is refused leaves the uses of domains as they are.
func TestRefusedUMRMovesNothing(t *testing.T) {
	n := newNetOf(t, 1)
	h := n.host[0]
	other := h.made(build(mlx5.OpAllocPD, 0))
	key, _ := h.memoryKey(pageSize, func(m mlx5.MKC) {
		m.SetUMREn(true)
		m.SetTranslationsOctwordSize(1)
	})
	seg := make([]byte, umrCtrlBytes+umrSegBytes+2*umrSegBytes)
	seg[0] = umrInline
	binary.BigEndian.PutUint16(seg[4:], 8) // more than the key was made for
	binary.BigEndian.PutUint64(seg[8:], umrPD)
	mlx5.MKC(seg[umrCtrlBytes:]).SetPD(other)
	before, to := h.h.pds.get(h.pd).refs, h.h.pds.get(other).refs
	if h.h.updateKey(&user{pd: h.pd, qpn: 1}, true, key, seg) {
		t.Fatal("not refused")
	}
	if a, b := h.h.pds.get(h.pd).refs, h.h.pds.get(other).refs; a != before || b != to {
		t.Errorf("uses %d and %d, want %d and %d", a, b, before, to)
	}
}

// sender is a queue that sends a turn's frames to the device itself, once.
type sender struct{ wait bool }

func (s *sender) queued() *bool { return &s.wait }
func (s *sender) lane() lane    { return noLane }

func (s *sender) turn(h *HCA) bool {
	for range turnPackets {
		h.Receive(make([]byte, leastFrame))
	}
	return false
}

// However many queues send to the device itself, each is heard before the next
// has its turn: no frame is dropped.
func TestLoopbackOutrunsNobody(t *testing.T) {
	n := newNetOf(t, 1)
	h := n.host[0].h
	h.port.mu.Lock()
	for range 2 * maxWaiting / turnPackets {
		h.port.run = append(h.port.run, &sender{wait: true})
	}
	h.start()
	n.run(time.Millisecond)
	if got := h.port.stats.dropped.Load(); got != 0 || !h.port.idle() {
		t.Errorf("%d frames dropped, idle %v", got, h.port.idle())
	}
}
