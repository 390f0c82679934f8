// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"devxlab.example/mlx5"
)

// fate is what a wire does to a frame: one copy for each element, late by that
// much.
type fate func(frame []byte) []time.Duration

// cable is a wire in one direction, on the virtual clock.
type cable struct {
	timers timers
	to     *HCA
	mu     sync.Mutex
	fate   fate
	frames [][]byte // that were sent
}

const linkDelay = time.Microsecond

func (l *cable) Send(f []byte) {
	l.mu.Lock()
	l.frames = append(l.frames, f)
	late := []time.Duration{0}
	if l.fate != nil {
		late = l.fate(f)
	}
	l.mu.Unlock()
	for _, d := range late {
		g := bytes.Clone(f)
		l.timers.set(&timer{ring: func() { l.to.Receive(g) }}, l.timers.clock.Now()+linkDelay+d)
	}
}

func (l *cable) set(f fate) {
	l.mu.Lock()
	l.fate = f
	l.mu.Unlock()
}

// sent returns the packets that went over the link.
func (l *cable) sent(t testing.TB) (out []packet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.frames {
		var k packet
		if k.parse(f) != isRoCE {
			t.Fatalf("not RoCE: %x", f)
		}
		out = append(out, k)
	}
	return out
}

// net is devices with a wire between them.
type net struct {
	t     testing.TB
	clock *VirtualClock
	host  [2]*host
	link  [2]*cable // from each
}

func newNet(t testing.TB) *net { return newNetOf(t, 2) }

// newNetOf returns a net of two devices, or of one that talks to itself.
func newNetOf(t testing.TB, devices int) *net {
	n := &net{t: t, clock: &VirtualClock{}}
	n.clock.Busy(1) // the test itself
	t.Cleanup(func() { n.clock.Busy(-1) })
	for i := range devices {
		n.host[i] = newHost(t, Config{Clock: n.clock, MAC: macOf(i), Memory: newMemory(8 << 20)})
		n.host[i].address(i)
	}
	for i := 0; i < devices && devices > 1; i++ {
		n.link[i] = &cable{timers: timers{clock: n.clock}, to: n.host[1-i].h}
		n.host[i].h.Connect(n.link[i])
	}
	return n
}

func macOf(i int) [6]byte { return [6]byte{0x0c, 0x42, 0xa1, 0, 0, byte(i + 1)} }
func gidOf(i int) []byte  { return []byte{10: 0xff, 11: 0xff, 12: 10, 15: byte(i + 1)} }

// address enables RoCE and gives the port its addresses: RoCEv2 over IPv4 first,
// RoCEv1 second, RoCEv2 over IPv6 third.
func (h *host) address(i int) {
	in := mlx5.ModifyNICVPortContextIn(build(mlx5.OpModifyNICVPortContext, 0))
	in.FieldSelect().SetRoCEEn(true)
	in.NICVPortContext().SetRoCEEn(true)
	h.must(in)
	for index, kind := range []struct{ version, l3 uint8 }{{2, 0}, {0, 0}, {2, 1}} {
		set := mlx5.SetRoCEAddressIn(build(mlx5.OpSetRoCEAddress, 0))
		set.SetRoCEAddressIndex(uint16(index))
		a := mlx5.RoCEAddrLayout(set.RoCEAddress())
		copy(a.SourceL3Address(), gidAt(i, index))
		mac := macOf(i)
		a.SetSourceMAC4732(binary.BigEndian.Uint16(mac[:]))
		a.SetSourceMAC310(binary.BigEndian.Uint32(mac[2:]))
		a.SetRoCEVersion(kind.version)
		a.SetRoCEL3Type(kind.l3)
		h.must(set)
	}
}

func gidAt(i, index int) []byte {
	if index == 0 {
		return gidOf(i)
	}
	return []byte{0xfe, 0x80, 15: byte(i + 1)}
}

// end is a queue pair with its queues and memory.
type end struct {
	*host
	n        *net
	st       mlx5.ServiceType
	qpn      uint32
	sq, rq   uint64
	record   uint64
	spi, rpi uint32
	cqn      uint32
	cqAt     uint64
	cqRecord uint64
	ci       uint32
	mem      uint64 // of what the keys cover
	key      uint32
	set      uint32 // Q counters
}

const (
	endSQLog  = 6
	endRQLog  = 4
	endCQLog  = 8
	endStride = 64
	endMemory = 64 << 10
)

// end makes a queue pair in RESET on a host. Its memory has all rights.
func (n *net) end(i int, st mlx5.ServiceType) *end {
	h := n.host[i]
	e := &end{host: h, n: n, st: st}
	cq, at, record := h.cqIn(endCQLog)
	e.cqn, e.cqAt, e.cqRecord = h.made(cq), at, record
	pages := (endStride<<endRQLog + wqeBlock<<endSQLog + pageSize - 1) / pageSize
	list, at := h.mem.pages(pages)
	_, e.record = h.mem.pages(1)
	in := mlx5.CreateQPIn(append(build(mlx5.OpCreateQP, 0), list...))
	q := in.QPC()
	q.SetSt(uint8(st))
	q.SetPMState(3)
	q.SetPD(h.pd)
	q.SetUARPage(h.uar)
	q.SetCQNSnd(e.cqn)
	q.SetCQNRcv(e.cqn)
	q.SetLogSQSize(endSQLog)
	q.SetLogRQSize(endRQLog)
	q.SetLogRQStride(2)
	q.SetDBRAddr(e.record)
	q.SetUserIndex(uint32(0x100 + i))
	if st == mlx5.STXRC {
		q.SetXRCD(h.xrcd)
	}
	e.qpn = h.made(in)
	e.rq, e.sq = at, at+endStride<<endRQLog
	e.key, e.mem = h.memoryKey(endMemory, nil)
	e.set = h.made(build(mlx5.OpAllocQCounter, 0))
	return e
}

// memoryKey makes a key of so many bytes of new memory, with all rights but for
// what change says. Its address is the memory's own.
func (h *host) memoryKey(n int, change func(mlx5.MKC)) (key uint32, at uint64) {
	list, at := h.mem.pages(n / pageSize)
	if len(list)%16 != 0 {
		list = append(list, make([]byte, 8)...)
	}
	in := mlx5.CreateMKeyIn(append(build(mlx5.OpCreateMKey, 0), list...))
	in.SetTranslationsOctwordActualSize(uint32(len(list) / 16))
	m := in.MemoryKeyMKeyEntry()
	m.SetAccessMode10(accessMTT)
	m.SetPD(h.pd)
	m.SetQPN(anyQPN)
	m.SetMKey70(0x5a)
	m.SetStartAddr(at)
	m.SetLen(uint64(n))
	m.SetLogPageSize(12)
	m.SetLr(true)
	m.SetLw(true)
	m.SetRr(true)
	m.SetRw(true)
	m.SetA(true)
	if change != nil {
		change(m)
	}
	return h.made(in)<<8 | 0x5a, at
}

// options of a connection.
type options struct {
	mtu               uint8 // 1: 256 bytes
	timeout           uint8
	retries, rnr      uint8
	minRNR            uint8
	psn               [2]uint32
	noWrite, noRead   bool
	gidIndex          uint8
	logReads, logResp uint8
}

var usual = options{mtu: 1, timeout: 8, retries: 7, rnr: 7, minRNR: 12, psn: [2]uint32{0xfffff0, 0x10}, logReads: 2, logResp: 2}

// connect brings two ends to RTS.
func (n *net) connect(a, b *end, o options) {
	for i, e := range []*end{a, b} {
		other := []*end{b, a}[i]
		in := e.modify(mlx5.OpRST2INIT, e.qpn)
		in.QPC().SetRWE(!o.noWrite)
		in.QPC().SetRRE(!o.noRead)
		in.QPC().SetRAE(true)
		in.QPC().SetAtomicMode(1)
		in.QPC().SetQKey(0x1234)
		in.QPC().SetCounterSetID(uint8(e.set))
		e.must(in)
		in = e.modify(mlx5.OpINIT2RTR, e.qpn)
		q, p := in.QPC(), in.QPC().PrimaryAddressPath()
		q.SetMTU(o.mtu)
		q.SetRemoteQPN(other.qpn)
		q.SetNextRcvPSN(o.psn[1-i])
		q.SetMinRNRNak(o.minRNR)
		q.SetLogRRAMax(o.logResp)
		p.SetSrcAddrIndex(o.gidIndex)
		mac := macOf(other.index())
		p.SetRMAC4732(binary.BigEndian.Uint16(mac[:]))
		p.SetRMAC310(binary.BigEndian.Uint32(mac[2:]))
		copy(p.RGIDRip(), gidAt(other.index(), int(o.gidIndex)))
		e.must(in)
	}
	for i, e := range []*end{a, b} {
		in := e.modify(mlx5.OpRTR2RTS, e.qpn)
		q := in.QPC()
		q.SetNextSendPSN(o.psn[i])
		q.SetRetryCount(o.retries)
		q.SetRNRRetry(o.rnr)
		q.SetLogSRAMax(o.logReads)
		q.PrimaryAddressPath().SetAckTimeout(o.timeout)
		e.must(in)
	}
}

func (e *end) index() int {
	if e.n.host[1] == e.host {
		return 1
	}
	return 0
}

// fill writes a pattern into an end's memory, and returns it.
func (e *end) fill(off, n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i) + byte(i>>8)
	}
	_ = e.host.mem.WriteDMA(e.mem+uint64(off), b)
	return b
}

func (e *end) at(off, n int) []byte {
	b := make([]byte, n)
	_ = e.host.mem.ReadDMA(e.mem+uint64(off), b)
	return b
}

// recv posts a receive entry of n bytes at an offset.
func (e *end) recv(off, n int) {
	e.recvKey(off, n, e.key)
}

func (e *end) recvKey(off, n int, key uint32) {
	b := segment(n, key, e.mem+uint64(off))
	b = append(b, segment(0, lkeyEnd, 0)...)
	_ = e.host.mem.WriteDMA(e.rq+uint64(e.rpi%(1<<endRQLog))*endStride, b)
	e.rpi++
	e.host.mem.put32(e.record, e.rpi&counter16)
}

func segment(n int, key uint32, va uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(n))
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, key), va)
}

// work is a work request.
type work struct {
	op   byte
	off  int // local
	n    int
	va   uint64 // remote
	rkey uint32
	imm  uint32
	a, b uint64 // operands of an atomic
	av   []byte // of a datagram
	seg  []byte // of anything else
	lkey uint32 // 0: the end's
	se   bool
	no   bool // no completion
}

// post posts work requests and rings once.
func (e *end) post(ws ...work) {
	for _, w := range ws {
		b := []byte{0, 0, 0, w.op}
		b = append(b, make([]byte, 12)...)
		binary.BigEndian.PutUint32(b[12:], w.imm)
		if !w.no {
			b[11] = wqeCompletion
		}
		if w.se {
			b[11] |= wqeSolicited
		}
		b = append(b, w.av...)
		switch w.op {
		case opWrite, opWriteImm, opRead, opCAS, opFetchAdd:
			b = binary.BigEndian.AppendUint64(b, w.va)
			b = binary.BigEndian.AppendUint32(b, w.rkey)
			b = append(b, 0, 0, 0, 0)
		}
		if w.op == opCAS || w.op == opFetchAdd {
			b = binary.BigEndian.AppendUint64(b, w.a)
			b = binary.BigEndian.AppendUint64(b, w.b)
		}
		key := w.lkey
		if key == 0 {
			key = e.key
		}
		if w.n > 0 {
			b = append(b, segment(w.n, key, e.mem+uint64(w.off))...)
		}
		e.postRaw(append(b, w.seg...))
	}
	e.h.Ring(e.qpn)
}

func (e *end) postRaw(b []byte) {
	binary.BigEndian.PutUint32(b[4:], e.qpn<<8|uint32(len(b)/16))
	for ; len(b) > 0; b = b[min(wqeBlock, len(b)):] {
		_ = e.host.mem.WriteDMA(e.sq+uint64(e.spi%(1<<endSQLog))*wqeBlock, b[:min(wqeBlock, len(b))])
		e.spi++
	}
	e.host.mem.put32(e.record+4, e.spi&counter16)
}

// done is a completion.
type done struct {
	op       byte // of the completion
	syndrome byte
	vendor   byte
	n        uint32
	imm      uint32
	wqe      byte
	counter  uint16
	flags    uint32
}

func (d done) String() string {
	return fmt.Sprintf("{op %d, syndrome %#x/%#x, %d bytes, imm %#x, wqe %#x, counter %d}", d.op, d.syndrome, d.vendor, d.n, d.imm, d.wqe, d.counter)
}

// poll takes the completions that there are.
func (e *end) poll() (out []done) {
	for {
		var c cqe
		_ = e.host.mem.ReadDMA(e.cqAt+uint64(e.ci%(1<<endCQLog))*cqeSize, c[:])
		if owner := byte(e.ci>>endCQLog) & 1; c[cqeOpcode]&1 != owner || e.ci>>endCQLog == 0 && c[cqeQPN+1] == 0 && c[cqeQPN+2] == 0 && c[cqeQPN+3] == 0 {
			return out
		}
		d := done{op: c[cqeOpcode] >> 4, n: binary.BigEndian.Uint32(c[cqeBytes:]), imm: binary.BigEndian.Uint32(c[cqeImm:]),
			wqe: c[cqeQPN], counter: binary.BigEndian.Uint16(c[cqeCounter:]), flags: binary.BigEndian.Uint32(c[cqeFlags:])}
		if d.op == cqeRequestErr || d.op == cqeRecvErr {
			d.syndrome, d.vendor = c[cqeSyndrome], c[cqeVendor]
		}
		out = append(out, d)
		e.ci++
		e.host.mem.put32(e.cqRecord, e.ci&counterMask)
	}
}

// run lets time pass.
func (n *net) run(d time.Duration) { n.clock.SleepUntil(n.clock.Now() + d) }

func (e *end) state() mlx5.State { return mlx5.State(e.qpc(e.qpn).State()) }

func (e *end) counter(get func(mlx5.QueryQCounterOut) uint32) uint32 {
	in := mlx5.QueryQCounterIn(build(mlx5.OpQueryQCounter, 0))
	in.SetCounterSetID(uint8(e.set))
	return get(mlx5.QueryQCounterOut(e.must(in)))
}

// expect compares completions.
func (e *end) expect(what string, want ...done) {
	e.t.Helper()
	got := e.poll()
	for i := range got {
		got[i].counter = 0
		got[i].flags = 0
		if i < len(want) && want[i].wqe == anyWQE {
			got[i].wqe = anyWQE
		}
	}
	if len(got) != len(want) {
		e.t.Fatalf("%s: completions %v, want %v", what, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			e.t.Errorf("%s: completion %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

const anyWQE = 0xee

// pair is a connection between two devices.
func newPair(t testing.TB, st mlx5.ServiceType, o options) (*net, *end, *end) {
	n := newNet(t)
	a, b := n.end(0, st), n.end(1, st)
	n.connect(a, b, o)
	return n, a, b
}
