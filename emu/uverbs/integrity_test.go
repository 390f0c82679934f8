// SPDX-License-Identifier: BSD-2-Clause

package uverbs_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"devxlab.example/emu/fw"
	"devxlab.example/emu/wire"
	"devxlab.example/mlx5"
)

// integrityBytes is how much each part of TestIntegrity moves.
var integrityBytes = flag.Int64("integrity", 16<<20, "payload `bytes` that each part of TestIntegrity moves")

const (
	slots     = 16        // operations of a stream that may be under way
	slotBytes = 256 << 10 // the longest message, with its guard
	canary    = 64        // bytes behind each slot that nobody may touch
	stride    = slotBytes + canary
	areaBytes = slots * stride
	// Of each stream: where it sends from and reads to, where it writes to and reads
	// from, where the other end receives, results of atomics, and the word that they
	// are about.
	streamBytes = 3*areaBytes + 4096
)

// fill writes what only this message has.
func fill(b []byte, stream, seq uint64) {
	x := stream<<56 ^ seq*0x9e3779b97f4a7c15
	for ; len(b) >= 8; b = b[8:] {
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		binary.LittleEndian.PutUint64(b, z^z>>31)
	}
	for i := range b {
		b[i] = byte(x >> (8 * i))
	}
}

// op is an operation under way.
type op struct {
	wqe      mlx5.WQEOp
	seq      uint64
	n        int
	index    uint16 // of its work request
	units    int
	signaled bool
	sent     bool // complete at the requester
	waits    bool // for the receiver's completion
	imm      uint32
	before   uint64 // what an atomic has to return
}

func (o *op) receives() bool { return o.wqe != mlx5.WQEWrite && !o.answered() }
func (o *op) answered() bool {
	return o.wqe == mlx5.WQERead || o.wqe == mlx5.WQEFetchAdd || o.wqe == mlx5.WQECmpSwap
}

// stream is the traffic of one end to the other: everything that it sends is
// checked against what only it can be, and in its order.
type stream struct {
	t        *testing.T
	id       uint64
	from, to *end
	local    int // of its memory in from's
	remote   int // and in to's
	rng      *rand.Rand

	seq      uint64
	ops      [slots]op
	free     [slots]bool
	pending  []int // slots whose requests are not complete, in order
	expected []int // slots that the receiver has to hear of, in order
	units    int   // of the send queue in use
	posted   uint16
	received uint16
	quiet    int    // requests since the last that was signaled
	ending   bool   // all are
	word     uint64 // what atomics made of it

	moved, done int64
	count       map[mlx5.WQEOp]int
	scratch     []byte
}

const (
	sendArea = 0
	farArea  = areaBytes
	recvArea = 2 * areaBytes
	results  = 3 * areaBytes
	wordAt   = results + 8*slots
)

func newStream(t *testing.T, id int, from, to *end, local, remote int) *stream {
	s := &stream{
		t: t, id: uint64(id), from: from, to: to, local: local, remote: remote, rng: rand.New(rand.NewPCG(uint64(id), 77)),
		count: map[mlx5.WQEOp]int{}, scratch: make([]byte, slotBytes),
	}
	for i := range slots {
		s.free[i] = true
		s.post()
		for _, at := range []int{local + sendArea, remote + farArea, remote + recvArea} {
			for _, n := range []*node{from.node, to.node} {
				fill(n.at(at+i*stride+slotBytes, canary), 0, 0)
			}
		}
	}
	return s
}

// post posts the next receive entry.
func (s *stream) post() {
	s.to.recv(s.to.sge(s.remote+recvArea+int(s.posted%slots)*stride, slotBytes))
	s.posted++
}

func (s *stream) near(slot, n int) []byte {
	return s.from.at(s.local+sendArea+slot*stride, n)
}
func (s *stream) far(slot, n int) []byte {
	return s.to.at(s.remote+farArea+slot*stride, n)
}

// is compares memory with a message.
func (s *stream) is(b []byte, o *op, what string) {
	want := s.scratch[:o.n]
	fill(want, s.id, o.seq)
	if !bytes.Equal(b[:o.n], want) {
		at := 0
		for b[at] == want[at] {
			at++
		}
		s.t.Fatalf("stream %d, operation %d (%#x, %d bytes): %s differs from byte %d on", s.id, o.seq, o.wqe, o.n, what, at)
	}
}

var guard = []byte{0xde, 0xad, 0xbe, 0xef, 0xde, 0xad, 0xbe, 0xef}

// start begins an operation if there is room for it.
func (s *stream) start() bool {
	slot := int(s.seq % slots)
	if !s.free[slot] || s.units > endSends-8 {
		return false
	}
	s.free[slot] = false
	o := &s.ops[slot]
	*o = op{seq: s.seq, imm: uint32(s.seq)}
	s.seq++
	all := []mlx5.WQEOp{mlx5.WQESend, mlx5.WQESendImm, mlx5.WQEWrite, mlx5.WQEWriteImm, mlx5.WQERead, mlx5.WQEFetchAdd, mlx5.WQECmpSwap}
	o.wqe = all[s.rng.IntN(len(all))]
	o.n = min(s.rng.IntN(1<<s.rng.IntN(19)), slotBytes-len(guard)) // half of them short
	w := mlx5.SendWQE{Op: o.wqe, Imm: o.imm, Fence: s.rng.IntN(16) == 0, RKey: s.to.key.Key(), RemoteAddr: s.to.mem.Addr() + uint64(s.remote+farArea+slot*stride)}
	switch o.wqe {
	case mlx5.WQEFetchAdd, mlx5.WQECmpSwap:
		o.n = 0
		o.before = s.word
		w.RemoteAddr = s.to.mem.Addr() + uint64(s.remote+wordAt)
		w.SwapAdd = s.rng.Uint64()
		w.Data = []mlx5.SGE{s.from.sge(s.local+results+8*slot, 8)}
		switch {
		case o.wqe == mlx5.WQEFetchAdd:
			s.word += w.SwapAdd
		case s.rng.IntN(2) == 0: // one that fails
			w.Compare = s.word + 1
		default:
			w.Compare, s.word = s.word, w.SwapAdd
		}
	case mlx5.WQERead:
		fill(s.far(slot, o.n), s.id, o.seq)
		copy(s.near(slot, o.n+8)[o.n:], guard)
		w.Data = s.pieces(slot, o.n)
	default:
		fill(s.near(slot, o.n), s.id, o.seq)
		copy(s.far(slot, o.n+8)[o.n:], guard)
		w.Data = s.pieces(slot, o.n)
	}
	if s.quiet++; s.quiet >= 4 || s.ending || s.rng.IntN(2) == 0 {
		w.Signaled, o.signaled, s.quiet = true, true, 0
	}
	if o.receives() {
		o.waits = true
		s.expected = append(s.expected, slot)
	}
	o.index = s.from.spi
	s.from.post(w)
	o.units = int(s.from.spi - o.index)
	s.units += o.units
	s.pending = append(s.pending, slot)
	s.count[o.wqe]++
	return true
}

// pieces divides a slot's first n bytes.
func (s *stream) pieces(slot, n int) (list []mlx5.SGE) {
	at := s.local + sendArea + slot*stride
	for k := s.rng.IntN(3); k > 0 && n > 1; k-- {
		part := 1 + s.rng.IntN(n-1)
		list = append(list, s.from.sge(at, part))
		at, n = at+part, n-part
	}
	return append(list, s.from.sge(at, n))
}

// completed takes a completion of the requester: it is of the last of those that
// are complete now.
func (s *stream) completed(c mlx5.CQE) {
	for last := false; !last; {
		if len(s.pending) == 0 {
			s.t.Fatalf("stream %d: a completion of request %#x too many", s.id, c.WQECounter())
		}
		slot := s.pending[0]
		o := &s.ops[slot]
		s.pending = s.pending[1:]
		s.units -= o.units
		last = o.index == c.WQECounter()
		if last != o.signaled {
			s.t.Fatalf("stream %d, operation %d (signaled: %v): completion of request %#x, this is %#x", s.id, o.seq, o.signaled, c.WQECounter(), o.index)
		}
		switch o.wqe {
		case mlx5.WQEWrite:
			s.is(s.far(slot, o.n), o, "what was written")
			s.guarded(s.far(slot, o.n+8), o)
		case mlx5.WQERead:
			s.is(s.near(slot, o.n), o, "what was read")
			s.guarded(s.near(slot, o.n+8), o)
			if last && c.Bytes() != uint32(o.n) {
				s.t.Fatalf("stream %d: READ of %d bytes, %d complete", s.id, o.n, c.Bytes())
			}
		case mlx5.WQEFetchAdd, mlx5.WQECmpSwap:
			if got := binary.LittleEndian.Uint64(s.from.at(s.local+results+8*slot, 8)); got != o.before {
				s.t.Fatalf("stream %d, operation %d (%#x): returned %#x, want %#x", s.id, o.seq, o.wqe, got, o.before)
			}
		}
		o.sent = true
		s.release(slot)
	}
}

func (s *stream) guarded(b []byte, o *op) {
	if !bytes.Equal(b[o.n:], guard) {
		s.t.Fatalf("stream %d, operation %d (%#x): it went beyond its %d bytes", s.id, o.seq, o.wqe, o.n)
	}
}

// heard takes a completion of the receiver.
func (s *stream) heard(c mlx5.CQE) {
	if len(s.expected) == 0 {
		s.t.Fatalf("stream %d: a message too many", s.id)
	}
	slot := s.expected[0]
	o := &s.ops[slot]
	s.expected = s.expected[1:]
	want := map[mlx5.WQEOp]mlx5.CQEOp{mlx5.WQESend: mlx5.CQERecvSend, mlx5.WQESendImm: mlx5.CQERecvSendImm, mlx5.WQEWriteImm: mlx5.CQERecvWriteImm}[o.wqe]
	if c.Opcode() != want || c.Bytes() != uint32(o.n) || c.WQECounter() != s.received || o.wqe != mlx5.WQESend && c.Imm() != o.imm {
		s.t.Fatalf("stream %d, operation %d (%#x, %d bytes), entry %d: completion %d of %d bytes, entry %d, immediate %#x",
			s.id, o.seq, o.wqe, o.n, s.received, c.Opcode(), c.Bytes(), c.WQECounter(), c.Imm())
	}
	if o.wqe == mlx5.WQEWriteImm {
		s.is(s.far(slot, o.n), o, "what was written")
		s.guarded(s.far(slot, o.n+8), o)
	} else {
		s.is(s.to.at(s.remote+recvArea+int(s.received%slots)*stride, o.n), o, "what was received")
	}
	s.received++
	s.post()
	o.waits = false
	s.release(slot)
}

// release frees a slot when both ends are done with it.
func (s *stream) release(slot int) {
	if o := &s.ops[slot]; o.sent && !o.waits {
		s.free[slot] = true
		s.moved += int64(o.n)
		s.done++
	}
}

// intact checks what is left at the end.
func (s *stream) intact() {
	want := make([]byte, canary)
	fill(want, 0, 0)
	for i := range slots {
		for _, b := range [][]byte{s.near(i, stride), s.far(i, stride), s.to.at(s.remote+recvArea+i*stride, stride)} {
			if !bytes.Equal(b[slotBytes:], want) {
				s.t.Errorf("stream %d: somebody wrote behind slot %d", s.id, i)
			}
		}
	}
	if got := binary.LittleEndian.Uint64(s.to.at(s.remote+wordAt, 8)); got != s.word {
		s.t.Errorf("stream %d: atomics made %#x, want %#x", s.id, got, s.word)
	}
	for _, e := range []*end{s.from, s.to} {
		if state, err := e.q.State(); state != mlx5.StateRTS || err != nil {
			s.t.Errorf("stream %d: %v, %v", s.id, state, err)
		}
	}
}

// Everything that RC does, mixed, in both directions of several queue pairs, over
// wires that lose, double, delay, reorder and corrupt: nothing is lost, doubled,
// torn or out of order. By default it moves little; -integrity=10000000000 moves
// 10 GB in each part.
func TestIntegrity(t *testing.T) {
	for _, c := range []struct{ name, wire string }{
		{"loopback", ""},
		{"ideal", "delay=1us"},
		{"loss", "delay=2us,loss=0.5%"},
		{"all", "delay=5us,jitter=2us,loss=0.3%,burst=0.01%:20%,dup=0.5%,reorder=0.5%:20us,corrupt=0.1%"},
	} {
		t.Run(c.name, func(t *testing.T) { integrity(t, c.wire) })
	}
}

func integrity(t *testing.T, text string) {
	const pairs = 3
	bytesOfNode := 2 * pairs * streamBytes // as sender, and as receiver
	clock := "clock=virtual:" + t.Name()
	a := newNode(t, bytesOfNode, clock)
	a.d.Busy(1)
	defer a.d.Busy(-1)
	b, l := a, (*wire.Link)(nil)
	if text != "" {
		b = newNode(t, bytesOfNode, clock, "addr=2")
		p, err := wire.Parse(text)
		must(t, err)
		l = wireOf(t, a, b, p, p, 1)
	}
	var all []*stream
	byQP := map[*end][2]*stream{} // those that it sends and receives
	for i := range pairs {
		x, y := a.end(mlx5.STRC), b.end(mlx5.STRC)
		connect(x, y, link{mlx5.MTU(1 + 2*i), 12, 7}) // 256, 1024, 4096 bytes
		// The memory of both directions lies apart, also in loopback.
		to := newStream(t, 2*i+1, x, y, 2*i*streamBytes, 2*i*streamBytes)
		back := newStream(t, 2*i+2, y, x, (2*i+1)*streamBytes, (2*i+1)*streamBytes)
		byQP[x], byQP[y] = [2]*stream{to, back}, [2]*stream{back, to}
		all = append(all, to, back)
	}
	start := time.Now()
	virtual := a.hca.Clock().Now()
	moved := run(t, a.hca.Clock(), all, byQP, *integrityBytes)
	took, passed := time.Since(start), a.hca.Clock().Now()-virtual
	a.hca.Clock().SleepUntil(a.hca.Clock().Now() + time.Second) // what is still on its way
	done := int64(0)
	for e := range byQP {
		if c, more := e.poll(); more {
			t.Errorf("a completion too many: %x", []byte(c))
		}
	}
	for _, s := range all {
		s.intact()
		done += s.done
		for _, o := range []mlx5.WQEOp{mlx5.WQESend, mlx5.WQESendImm, mlx5.WQEWrite, mlx5.WQEWriteImm, mlx5.WQERead, mlx5.WQEFetchAdd, mlx5.WQECmpSwap} {
			if s.count[o] == 0 {
				t.Errorf("stream %d did no operation %#x", s.id, o)
			}
		}
	}
	t.Logf("%d operations, %d bytes in %v; %v of virtual time", done, moved, took.Round(time.Millisecond), passed)
	if l != nil {
		p := l.A.Params(wire.Out)
		for _, port := range []*wire.Port{l.A, l.B} {
			st := port.Stats(wire.Out)
			t.Logf("wire: %+v", st)
			if p.Loss > 0 && st.Dropped[wire.Lost] == 0 || p.Duplicate > 0 && st.Duplicated == 0 || p.Reorder > 0 && st.Reordered == 0 || p.Corrupt > 0 && st.Corrupted == 0 {
				t.Error("the wire was better than it should be")
			}
		}
	}
}

// run lets streams move so many bytes, and then drains them.
func run(t *testing.T, clock fw.Clock, all []*stream, byQP map[*end][2]*stream, want int64) (moved int64) {
	const patience = time.Minute // of virtual time in which nothing happens
	for idle := time.Duration(0); ; {
		busy := false
		moved = 0
		for _, s := range all {
			moved += s.moved
		}
		waiting := false
		for _, s := range all {
			for moved < want && s.start() {
				busy = true
			}
			if moved >= want && s.quiet > 0 {
				s.ending = true
				busy = s.start() || busy
			}
			waiting = waiting || len(s.pending)+len(s.expected) > 0
		}
		for e, s := range byQP {
			for c, ok := e.poll(); ok; c, ok = e.poll() {
				busy = true
				switch {
				case c.Failed():
					t.Fatalf("QP %#x: syndrome %#x/%#x, opcode %#x", c.QPN(), c.Syndrome(), c.VendorSyndrome(), c.WQEOpcode())
				case c.Opcode() == mlx5.CQERequest:
					s[0].completed(c)
				default:
					s[1].heard(c)
				}
			}
		}
		switch {
		case busy:
			idle = 0
			continue
		case moved >= want && !waiting:
			return moved
		case idle > patience:
			t.Fatalf("nothing happens: %d of %d bytes", moved, want)
		}
		const step = time.Microsecond
		clock.SleepUntil(clock.Now() + step)
		idle += step
	}
}
