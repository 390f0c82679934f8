// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"testing"

	"devxlab.example/mlx5"
)

// memory is a host's memory of 64 MiB from address 0 on.
type memory struct {
	mu      sync.Mutex
	b       []byte
	next    uint64 // of the pages that nobody has taken
	written []bool // by page
}

func newMemory(bytes int) *memory {
	return &memory{b: make([]byte, bytes), next: 1 << 20, written: make([]bool, bytes/pageSize)}
}

// renew makes the memory as it was, for another device: a new one for each of
// many short runs takes longer than the run.
func (m *memory) renew() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, w := range m.written {
		if w {
			clear(m.b[i*pageSize : (i+1)*pageSize])
			m.written[i] = false
		}
	}
	m.next = 1 << 20
}

var errNoMemory = errors.New("no memory there")

func (m *memory) ReadDMA(addr uint64, b []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if addr > uint64(len(m.b)) || uint64(len(b)) > uint64(len(m.b))-addr {
		return errNoMemory
	}
	copy(b, m.b[addr:])
	return nil
}

func (m *memory) WriteDMA(addr uint64, b []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if addr > uint64(len(m.b)) || uint64(len(b)) > uint64(len(m.b))-addr {
		return errNoMemory
	}
	copy(m.b[addr:], b)
	for at := addr / pageSize; at*pageSize < addr+uint64(len(b)); at++ {
		m.written[at] = true
	}
	return nil
}

func (m *memory) be32(addr uint64) uint32 {
	var b [4]byte
	_ = m.ReadDMA(addr, b[:])
	return binary.BigEndian.Uint32(b[:])
}

func (m *memory) put32(addr uint64, v uint32) {
	_ = m.WriteDMA(addr, binary.BigEndian.AppendUint32(nil, v))
}

// pages takes n pages and returns them as a list, and the first one's address.
func (m *memory) pages(n int) (list []byte, first uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first = m.next
	for range n {
		list = binary.BigEndian.AppendUint64(list, m.next)
		m.next += pageSize
	}
	return list, first
}

// host is a device whose driver has brought it up, with one object of each kind.
type host struct {
	rig
	mem      *memory
	mu       sync.Mutex
	signals  map[int]int // interrupts by vector
	asyncEQ  uint32
	eqAt     uint64 // of the completion event queue
	asyncAt  uint64
	cqAt     uint64
	record   uint64 // of the CQ
	td, tis  uint32
	rq, sq   uint32
	sqAt     uint64
	sqRecord uint64
	rqt, tir uint32
	xrcd     uint32
	rmp, xsq uint32
	ft, ft2  uint32
	fg       uint32
}

func (h *host) interrupt(vector int) {
	h.mu.Lock()
	h.signals[vector]++
	h.mu.Unlock()
}

func (h *host) signalled(vector int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.signals[vector]
}

// newUnbooted returns a device that no driver has touched.
func newUnbooted(t testing.TB, c Config) *host {
	t.Helper()
	h := &host{signals: map[int]int{}}
	if h.mem, _ = c.Memory.(*memory); h.mem == nil {
		h.mem = newMemory(64 << 20)
	}
	c.Memory, c.Interrupt, c.Vectors = h.mem, h.interrupt, 8
	h.rig = rig{t: t, h: newHCA(t, c)}
	return h
}

func (h *host) pagesOf(op uint16) int {
	h.t.Helper()
	in := mlx5.QueryPagesIn(build(mlx5.OpQueryPages, 0))
	mlx5.PutHeader(in, mlx5.OpQueryPages, op)
	return int(int32(mlx5.QueryPagesOut(h.must(in)).NumPages()))
}

// give returns a MANAGE_PAGES that gives n pages.
func (h *host) give(n int) mlx5.ManagePagesIn {
	list, _ := h.mem.pages(n)
	in := mlx5.ManagePagesIn(append(build(mlx5.OpManagePages, 0), list...))
	mlx5.PutHeader(in, mlx5.OpManagePages, pagesGive)
	in.SetInputNumEntries(uint32(n))
	return in
}

// take runs a MANAGE_PAGES that takes up to n pages, and returns them.
func (h *host) take(n int) (pages []uint64) {
	h.t.Helper()
	in := mlx5.ManagePagesIn(build(mlx5.OpManagePages, 0))
	mlx5.PutHeader(in, mlx5.OpManagePages, pagesTake)
	in.SetInputNumEntries(uint32(n))
	out := mlx5.ManagePagesOut(make([]byte, mlx5.ManagePagesOutSize+n*pasBytes))
	h.h.Exec(in, out)
	if status, syndrome := mlx5.StatusOf(out); status != mlx5.StatusOK {
		h.t.Fatalf("MANAGE_PAGES: %v, %s", status, reason(syndrome))
	}
	for i := range int(out.OutputNumEntries()) {
		pages = append(pages, binary.BigEndian.Uint64(out.PAS()[i*pasBytes:]))
	}
	return pages
}

func (h *host) boot() {
	h.t.Helper()
	h.must(build(mlx5.OpEnableHCA, 0))
	issi := mlx5.SetISSIIn(build(mlx5.OpSetISSI, 0))
	issi.SetCurrentISSI(1)
	h.must(issi)
	h.must(h.give(h.pagesOf(queryBoot)))
	caps := mlx5.SetHCACapIn(build(mlx5.OpSetHCACap, 0))
	copy(caps.Capability(), mlx5.QueryHCACapOut(h.must(capQuery(mlx5.QueryHCACapOpMod(mlx5.CapGeneral, true)))).Capability())
	h.must(caps)
	h.must(h.give(h.pagesOf(queryInit)))
	h.must(build(mlx5.OpInitHCA, 0))
}

const hostVector = 3

func (h *host) eqIn(log uint8, mask ...mlx5.EventType) (in mlx5.CreateEQIn, at uint64) {
	list, at := h.mem.pages((eqeSize<<log + pageSize - 1) / pageSize)
	in = append(build(mlx5.OpCreateEQ, 0), list...)
	in.EQContextEntry().SetLogEQSize(log)
	in.EQContextEntry().SetUARPage(h.uar)
	in.EQContextEntry().SetIntr(hostVector)
	for _, t := range mask {
		in.EventBitmask()[7-t/8] |= 1 << (t % 8)
	}
	return in, at
}

func (h *host) cqIn(log uint8) (in mlx5.CreateCQIn, at, record uint64) {
	list, at := h.mem.pages((cqeSize<<log + pageSize - 1) / pageSize)
	_, record = h.mem.pages(1)
	in = append(build(mlx5.OpCreateCQ, 0), list...)
	c := in.CQContext()
	c.SetLogCQSize(log)
	c.SetUARPage(h.uar)
	c.SetCEQNOrApuElement(h.eq)
	c.SetDBRAddr(record)
	return in, at, record
}

func (h *host) qpIn(st mlx5.ServiceType) (in mlx5.CreateQPIn, at, record uint64) {
	list, at := h.mem.pages(1)
	_, record = h.mem.pages(1)
	in = append(build(mlx5.OpCreateQP, 0), list...)
	q := in.QPC()
	q.SetSt(uint8(st))
	q.SetPMState(3)
	q.SetPD(h.pd)
	q.SetUARPage(h.uar)
	q.SetCQNSnd(h.cqn)
	q.SetCQNRcv(h.cqn)
	q.SetLogSQSize(4)
	q.SetRQType(mlx5.RQNone)
	q.SetDBRAddr(record)
	if st == mlx5.STXRC {
		q.SetXRCD(h.xrcd)
	}
	return in, at, record
}

func (h *host) wq(wq mlx5.WQ, stride, log uint8) (list []byte, at, record uint64) {
	list, at = h.mem.pages(1)
	_, record = h.mem.pages(1)
	wq.SetWQType(wqCyclic)
	wq.SetPD(h.pd)
	wq.SetUARPage(h.uar)
	wq.SetLogWQStride(stride)
	wq.SetLogWQSz(log)
	wq.SetDBRAddr(record)
	return list, at, record
}

func (h *host) sqIn() (in mlx5.CreateSQIn, at, record uint64) {
	in = build(mlx5.OpCreateSQ, 0)
	c := in.Ctx()
	c.SetCQN(h.cqn)
	c.SetTISLstSz(1)
	c.SetTISNum0(h.tis)
	list, at, record := h.wq(c.WQ(), 6, 4)
	return append(in, list...), at, record
}

func (h *host) rqIn() mlx5.CreateRQIn {
	in := mlx5.CreateRQIn(build(mlx5.OpCreateRQ, 0))
	in.Ctx().SetCQN(h.cqn)
	list, _, _ := h.wq(in.Ctx().WQ(), 5, 4)
	return append(in, list...)
}

func (h *host) rmpIn() mlx5.CreateRMPIn {
	in := mlx5.CreateRMPIn(build(mlx5.OpCreateRMP, 0))
	in.Ctx().SetState(wqReady)
	list, _, _ := h.wq(in.Ctx().WQ(), 5, 4)
	return append(in, list...)
}

func (h *host) xrcSRQIn() mlx5.CreateXRCSRQIn {
	in := mlx5.CreateXRCSRQIn(build(mlx5.OpCreateXRCSRQ, 0))
	c := in.XRCSRQContextEntry()
	c.SetXRCD(h.xrcd)
	c.SetPD(h.pd)
	c.SetCQN(h.cqn)
	c.SetLogXRCSRQSize(3)
	list, first := h.mem.pages(2)
	c.SetDbRecordAddrL(uint32(first >> 2))
	return append(in, list...)
}

func (h *host) rqtIn(rqs ...uint32) mlx5.CreateRQTIn {
	in := mlx5.CreateRQTIn(build(mlx5.OpCreateRQT, 0))
	in.RQTContext().SetRQTMaxSize(4)
	in.RQTContext().SetRQTActualSize(uint16(len(rqs)))
	for _, rq := range rqs {
		in = binary.BigEndian.AppendUint32(in, rq)
	}
	return in
}

func (h *host) tirIn() mlx5.CreateTIRIn {
	in := mlx5.CreateTIRIn(build(mlx5.OpCreateTIR, 0))
	in.Ctx().SetDispType(tirIndirect)
	in.Ctx().SetIndirectTable(h.rqt)
	in.Ctx().SetTransportDomain(h.td)
	return in
}

func (h *host) tisIn() mlx5.CreateTISIn {
	in := mlx5.CreateTISIn(build(mlx5.OpCreateTIS, 0))
	in.Ctx().SetTransportDomain(h.td)
	return in
}

func (h *host) tableIn(level uint8) mlx5.CreateFlowTableIn {
	in := mlx5.CreateFlowTableIn(build(mlx5.OpCreateFlowTable, 0))
	in.FlowTableContext().SetLevel(level)
	in.FlowTableContext().SetLogSize(4)
	return in
}

func (h *host) groupIn(first, end uint32) mlx5.CreateFlowGroupIn {
	in := mlx5.CreateFlowGroupIn(build(mlx5.OpCreateFlowGroup, 0))
	in.SetTableID(h.ft)
	in.SetStartFlowIndex(first)
	in.SetEndFlowIndex(end)
	return in
}

// flowIn returns a flow to one destination.
func (h *host) flowIn(index uint32, kind uint8, id uint32) mlx5.SetFTEIn {
	in := mlx5.SetFTEIn(make([]byte, mlx5.SetFTEInSize+destBytes))
	mlx5.PutHeader(in, mlx5.OpSetFlowTableEntry, 0)
	in.SetTableID(h.ft)
	in.SetFlowIndex(index)
	c := in.FlowContext()
	c.SetGroupID(h.fg)
	c.SetAction(flowForward)
	c.SetDestinationListSize(1)
	d := mlx5.DestFormatStruct(in[mlx5.SetFTEInSize:])
	d.SetDestinationType(kind)
	d.SetDestinationID(id)
	return in
}

// flowGone returns the deletion of a flow.
func (h *host) flowGone(index uint32) mlx5.DeleteFTEIn {
	in := mlx5.DeleteFTEIn(make([]byte, mlx5.LayoutOf("delete_fte_in").Bytes))
	mlx5.PutHeader(in, mlx5.OpDeleteFlowTableEntry, 0)
	in.SetTableID(h.ft)
	in.SetFlowIndex(index)
	return in
}

func newHost(t testing.TB, c Config) *host {
	t.Helper()
	h := newUnbooted(t, c)
	h.boot()
	h.uar = h.made(build(mlx5.OpAllocUAR, 0))
	async, at := h.eqIn(4, mlx5.EventCmd, mlx5.EventPageRequest, mlx5.EventPortChange, mlx5.EventCQError, mlx5.EventWQCatasError)
	async.EQContextEntry().SetIntr(0)
	h.asyncEQ, h.asyncAt = h.made(async), at
	eq, at := h.eqIn(4)
	h.eq, h.eqAt = h.made(eq), at
	h.pd = h.made(build(mlx5.OpAllocPD, 0))
	cq, at, record := h.cqIn(4)
	h.cqn, h.cqAt, h.record = h.made(cq), at, record
	h.td = h.made(build(mlx5.OpAllocTransportDomain, 0))
	h.tis = h.made(h.tisIn())
	h.rq = h.made(h.rqIn())
	sq, at, record := h.sqIn()
	h.sq, h.sqAt, h.sqRecord = h.made(sq), at, record
	h.rqt = h.made(h.rqtIn(h.rq))
	h.tir = h.made(h.tirIn())
	h.xrcd = h.made(build(mlx5.OpAllocXRCD, 0))
	h.rmp = h.made(h.rmpIn())
	h.xsq = h.made(h.xrcSRQIn())
	h.ft, h.ft2 = h.made(h.tableIn(1)), h.made(h.tableIn(2))
	h.fg = h.made(h.groupIn(4, 7))
	h.must(h.flowIn(4, toTIR, h.tir))
	return h
}

// The driver brings the function up and down again, twice, and has all its
// pages back.
func TestBoot(t *testing.T) {
	h := newUnbooted(t, Config{})
	for range 2 {
		h.boot()
		if got := len(h.take(1000)); got != 0 {
			t.Errorf("%d pages back while the function runs", got)
		}
		h.must(build(mlx5.OpAllocPD, 0))
		h.must(build(mlx5.OpTeardownHCA, 0))
		if n := h.h.pds.count(); n != 0 {
			t.Errorf("%d PDs after the teardown", n)
		}
		seen := map[uint64]bool{}
		for got := h.take(100); len(got) > 0; got = h.take(100) {
			for _, p := range got {
				if seen[p] {
					t.Fatalf("page %#x came back twice", p)
				}
				seen[p] = true
			}
		}
		if len(seen) != bootPages+initPages {
			t.Errorf("%d pages back, %d given", len(seen), bootPages+initPages)
		}
		h.must(build(mlx5.OpDisableHCA, 0))
	}
}

// NOPs in an SQ complete in order, one event is signalled for each arming, and
// the queue starts where it stopped.
func TestSendNOP(t *testing.T) {
	h := newHost(t, Config{})
	ready := mlx5.ModifySQIn(build(mlx5.OpModifySQ, 0))
	ready.SetSqn(h.sq)
	ready.Ctx().SetState(wqReady)
	nop := func(i int) {
		var w [wqeBlock]byte
		binary.BigEndian.PutUint32(w[4:], h.sq<<8|1)
		w[11] = 8
		_ = h.mem.WriteDMA(h.sqAt+uint64(i%16)*wqeBlock, w[:])
		h.mem.put32(h.sqRecord+4, uint32(i+1))
	}
	for i := range 3 {
		nop(i)
	}
	h.h.Ring(h.sq) // not ready: nothing
	h.h.ArmCQ(h.cqn, 0, false)
	h.h.UpdateEQ(uint8(h.eq), 0, true)
	h.must(ready)
	h.settle(h.sq)
	for i := range 20 {
		if i >= 3 {
			nop(i)
			h.h.Ring(h.sq)
			h.settle(h.sq)
		}
		var e cqe
		_ = h.mem.ReadDMA(h.cqAt+uint64(i%16)*cqeSize, e[:])
		if got := binary.BigEndian.Uint16(e[0x3c:]); e[63] != byte(i/16) || got != uint16(i) || binary.BigEndian.Uint32(e[0x38:]) != h.sq {
			t.Fatalf("completion %d: %x", i, e)
		}
		h.mem.put32(h.record, uint32(i+1))
	}
	if n := h.signalled(hostVector); n != 1 {
		t.Errorf("%d interrupts for one arming", n)
	}
	var e [eqeSize]byte
	_ = h.mem.ReadDMA(h.eqAt, e[:])
	if binary.BigEndian.Uint32(e[0x38:]) != h.cqn || e[63] != 0 || e[1] != 0 {
		t.Errorf("event %x", e)
	}
	h.h.UpdateEQ(uint8(h.eq), 1, true)
	h.h.ArmCQ(h.cqn, 17, false) // three behind: at once
	if n := h.signalled(hostVector); n != 2 {
		t.Errorf("%d interrupts after arming late", n)
	}
	h.h.UpdateEQ(uint8(h.eq), 1, true) // the event of just now was not consumed
	if n := h.signalled(hostVector); n != 3 {
		t.Errorf("%d interrupts after arming an event queue late", n)
	}
}

// settle waits until the device has done what it was told of.
func (h *host) settle(uint32) {
	for !h.h.port.idle() {
		runtime.Gosched()
	}
}

// A queue pair works in RTS only, and a completion queue that is full fails and
// says so.
func TestCQOverflow(t *testing.T) {
	h := newHost(t, Config{})
	in, at, record := h.qpIn(mlx5.STRC)
	qpn := h.made(in)
	for i := range 16 {
		var w [wqeBlock]byte
		binary.BigEndian.PutUint32(w[4:], qpn<<8|1)
		w[11] = 8
		_ = h.mem.WriteDMA(at+uint64(i)*wqeBlock, w[:])
	}
	h.mem.put32(record+4, 16)
	h.h.Ring(qpn)
	h.bring(qpn, mlx5.StateRTS)
	h.settle(qpn)
	if e := h.mem.be32(h.cqAt + 15*cqeSize + 0x38); e != qpn {
		t.Fatalf("the last completion is of %#x", e)
	}
	h.h.UpdateEQ(uint8(h.asyncEQ), 0, true)
	h.mem.put32(record+4, 17)
	h.h.Ring(qpn)
	h.settle(qpn)
	var e [eqeSize]byte
	_ = h.mem.ReadDMA(h.asyncAt, e[:])
	if mlx5.EventType(e[1]) != mlx5.EventCQError || binary.BigEndian.Uint32(e[0x20:]) != h.cqn || e[0x2b] != 1 || h.signalled(0) != 1 {
		t.Errorf("event %x, %d interrupts", e, h.signalled(0))
	}
	if c := mlx5.QueryCQOut(h.must(about(mlx5.OpQueryCQ, 0, h.cqn))).CQContext(); c.Status() != cqOverflow || c.ProducerCounter() != 16 {
		t.Errorf("CQ status %#x, producer %d", c.Status(), c.ProducerCounter())
	}
	h.must(about(mlx5.Op2RST, 0, qpn))
	h.must(about(mlx5.OpDestroyQP, 0, qpn))
	h.h.Ring(qpn) // gone
}

// A resize knows of the completions of everything that was rung for before it,
// also of what has not had its turn.
func TestResizeAfterDoorbell(t *testing.T) {
	for range 50 {
		h := newHost(t, Config{})
		in, at, record := h.qpIn(mlx5.STRC)
		qpn := h.made(in)
		h.bring(qpn, mlx5.StateRTS)
		for i := range 5 {
			var w [wqeBlock]byte
			binary.BigEndian.PutUint32(w[4:], qpn<<8|1)
			w[11] = 8
			_ = h.mem.WriteDMA(at+uint64(i)*wqeBlock, w[:])
		}
		h.mem.put32(record+4, 5)
		small := h.resizeCQ(2)
		h.h.Ring(qpn)
		if status, syndrome, _ := h.exec(small); syndrome != checks[badCQSize].Syndrome() {
			t.Fatalf("five completions in a queue of four: %v, %s", status, reason(syndrome))
		}
		h.must(h.resizeCQ(3))
	}
}

// A resize takes a place: its own completion is the last in the old buffer, and
// what follows goes one place further on in the new one, behind the completions
// that the driver copies.
func TestResizeTakesAPlace(t *testing.T) {
	h := newHost(t, Config{})
	in, at, record := h.qpIn(mlx5.STRC)
	qpn := h.made(in)
	h.bring(qpn, mlx5.StateRTS)
	posted := uint32(0)
	post := func(n int) {
		for range n {
			var w [wqeBlock]byte
			binary.BigEndian.PutUint32(w[4:], qpn<<8|1)
			w[11] = 8
			_ = h.mem.WriteDMA(at+uint64(posted%16)*wqeBlock, w[:])
			posted++
		}
		h.mem.put32(record+4, posted)
		h.h.Ring(qpn)
		h.settle(qpn)
	}
	post(3)
	wide := h.resizeCQ(5)
	h.must(wide)
	if op := h.mem.be32(h.cqAt+3*cqeSize+0x3c) >> 4 & 0xf; op != cqeResize {
		t.Errorf("the old buffer ends with a completion of kind %d", op)
	}
	post(1)
	fresh := binary.BigEndian.Uint64(wide.PAS())
	for i, want := range []uint32{0, 0, 0, 0, qpn, 0} {
		if got := h.mem.be32(fresh + uint64(i)*cqeSize + cqeQPN); got != want {
			t.Errorf("the new buffer has a completion of %#x at %d, want %#x", got, i, want)
		}
	}
	if c := mlx5.QueryCQOut(h.must(about(mlx5.OpQueryCQ, 0, h.cqn))).CQContext(); c.ProducerCounter() != 5 {
		t.Errorf("producer counter %d", c.ProducerCounter())
	}
}

// An event queue that overflows takes no more, and says so when asked.
func TestEQOverflow(t *testing.T) {
	h := newHost(t, Config{})
	for i := range 20 {
		h.h.CommandsDone(1 << (i % 32))
	}
	c := mlx5.QueryEQOut(h.must(about(mlx5.OpQueryEQ, 0, h.asyncEQ))).EQContextEntry()
	if c.Status() != eqWriteFailure || c.ProducerCounter() != 16 {
		t.Errorf("status %#x, producer %d", c.Status(), c.ProducerCounter())
	}
	if got := h.mem.be32(h.asyncAt + 15*eqeSize + 0x20); got != 1<<15 {
		t.Errorf("the last event is of slots %#x", got)
	}
}

// Addresses outside the host's memory break the queue that has them, and
// nothing else.
func TestOutsideMemory(t *testing.T) {
	h := newHost(t, Config{})
	for name, spoil := range map[string]func(in mlx5.CreateQPIn, at, record uint64){
		"queue":  func(in mlx5.CreateQPIn, _, _ uint64) { binary.BigEndian.PutUint64(in.PAS(), 1<<50) },
		"record": func(in mlx5.CreateQPIn, _, _ uint64) { in.QPC().SetDBRAddr(1 << 60) },
		"length": func(in mlx5.CreateQPIn, at, _ uint64) { h.mem.put32(at+4, 0x3f) },
		"empty":  func(in mlx5.CreateQPIn, at, _ uint64) { h.mem.put32(at+4, 0) },
	} {
		in, at, record := h.qpIn(mlx5.STRC)
		h.mem.put32(at+4, 1)
		h.mem.put32(record+4, 1)
		spoil(in, at, record)
		qpn := h.made(in)
		h.bring(qpn, mlx5.StateRTS)
		h.settle(qpn)
		if q := h.h.sendQueueOf(qpn); !q.broken {
			t.Errorf("%s: the queue goes on", name)
		}
	}
	eq, _ := h.eqIn(4, mlx5.EventPortChange)
	binary.BigEndian.PutUint64(eq.PAS(), 1<<63)
	eqn := h.made(eq)
	h.h.report(mlx5.EventPortChange, 0, &eventBytes{})
	if c := mlx5.QueryEQOut(h.must(about(mlx5.OpQueryEQ, 0, eqn))).EQContextEntry(); c.Status() != eqWriteFailure {
		t.Errorf("EQ status %#x", c.Status())
	}
}

// Objects beyond what the first pages hold wait for the driver to give more,
// fail if it refuses, and the device gives back what it no longer needs.
func TestPageRequests(t *testing.T) {
	h := newHost(t, Config{})
	free := freeObjects - int(h.h.alive.Load())
	for range free {
		h.must(build(mlx5.OpAllocPD, 0))
	}
	made := make(chan mlx5.Status)
	create := func() {
		status, _, _ := h.exec(build(mlx5.OpAllocPD, 0))
		made <- status
	}
	asked := func(slot int) int32 {
		for h.mem.be32(h.asyncAt+uint64(slot)*eqeSize+0x24) == 0 {
			select {
			case s := <-made:
				t.Fatalf("the command did not wait: %v", s)
			default:
			}
		}
		return int32(h.mem.be32(h.asyncAt + uint64(slot)*eqeSize + 0x24))
	}
	go create()
	if n := asked(0); n != pageChunk {
		t.Errorf("asked for %d pages", n)
	}
	refuse := build(mlx5.OpManagePages, 0)
	h.must(refuse)
	if s := <-made; s != mlx5.StatusNoRes {
		t.Errorf("refused pages: %v", s)
	}
	go create()
	h.must(h.give(int(asked(1))))
	if s := <-made; s != mlx5.StatusOK {
		t.Errorf("given pages: %v", s)
	}
	// Teardown gives everything back.
	h.must(build(mlx5.OpTeardownHCA, 0))
	if got := len(h.take(10000)); got != bootPages+initPages+pageChunk {
		t.Errorf("%d pages back", got)
	}
}

// The capabilities that a driver sets are what it reads afterwards.
func TestSetHCACap(t *testing.T) {
	h := newUnbooted(t, Config{})
	h.must(build(mlx5.OpEnableHCA, 0))
	query := capQuery(mlx5.QueryHCACapOpMod(mlx5.CapGeneral, true))
	set := mlx5.SetHCACapIn(build(mlx5.OpSetHCACap, 0))
	copy(set.Capability(), mlx5.QueryHCACapOut(h.must(query)).Capability())
	mlx5.HCACap(set.Capability()).SetLogMaxQP(3)
	h.must(set)
	if got := mlx5.QueryHCACapOut(h.must(query)).Capability(); !bytes.Equal(got, set.Capability()) {
		t.Error("the current capabilities are not those set")
	}
	most := mlx5.HCACap(mlx5.QueryHCACapOut(h.must(capQuery(0))).Capability())
	if most.LogMaxQP() != 17 {
		t.Errorf("log_max_qp can be %d", most.LogMaxQP())
	}
	if h.h.qps.limit != 8 {
		t.Errorf("%d queue pairs", h.h.qps.limit)
	}
}
