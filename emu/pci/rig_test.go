// SPDX-License-Identifier: BSD-2-Clause

package pci

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"testing"

	"devxlab.example/mlx5"
)

// memory is a host with 64 MiB from address 0 on.
type memory struct {
	mu      sync.Mutex
	b       []byte
	signals map[int]int
	used    int // accesses since it was plugged out
	out     bool
	written map[uint64]bool // pages, by number
	over    int             // writes over what a driver writes into the first entry of the queue
}

func newMemory(bytes int) *memory {
	return &memory{b: make([]byte, bytes), signals: map[int]int{}, written: map[uint64]bool{}}
}

// renew clears what was written with WriteDMA.
func (m *memory) renew() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for p := range m.written {
		clear(m.b[p<<logPage : (p+1)<<logPage])
	}
	clear(m.written)
}

var errNoMemory = errors.New("no memory there")

func (m *memory) at(addr uint64, n int) ([]byte, error) {
	if m.out {
		m.used++
	}
	if addr > uint64(len(m.b)) || uint64(n) > uint64(len(m.b))-addr {
		return nil, errNoMemory
	}
	return m.b[addr : addr+uint64(n)], nil
}

func (m *memory) ReadDMA(addr uint64, b []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, err := m.at(addr, len(b))
	copy(b, p)
	return err
}

func (m *memory) WriteDMA(addr uint64, b []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, err := m.at(addr, len(b))
	for at := addr; err == nil && len(b) > 0 && at>>logPage <= (addr+uint64(len(b))-1)>>logPage; at += 1 << logPage {
		m.written[at>>logPage] = true
	}
	if addr < queueAt+atOut && addr+uint64(len(b)) > queueAt {
		m.over++
	}
	copy(p, b)
	return err
}

func (m *memory) Interrupt(vector int) {
	m.mu.Lock()
	m.signals[vector]++
	m.mu.Unlock()
}

func (m *memory) signalled(vector int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.signals[vector]
}

// Where the driver of the tests has its things.
const (
	queueAt = 0x1000
	boxesAt = 0x100000 // of slot n at + n * boxesEach
	boxEach = 1024
	eqAt    = 0x40000
	logEQ   = 7
	pagesAt = 0x400000

	boxesEach = 0x10000

	logPage = 12
)

// driver is what mlx5_core does, in small.
type driver struct {
	t testing.TB
	f *Function
	m *memory

	token  byte
	events bool
	ci     uint32
	eqn    uint32
	pages  map[uint64]bool
	next   uint64
}

func newDriver(t testing.TB, c Config) *driver {
	t.Helper()
	f, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	d := &driver{t: t, f: f, m: newMemory(64 << 20), pages: map[uint64]bool{}, next: pagesAt}
	f.Attach(d.m)
	t.Cleanup(f.Detach)
	return d
}

func (d *driver) write32(off int64, v uint32) {
	d.f.WriteBAR(0, off, binary.BigEndian.AppendUint32(nil, v))
}

func (d *driver) read32(off int64) uint32 {
	var b [4]byte
	d.f.ReadBAR(0, off, b[:])
	return binary.BigEndian.Uint32(b[:])
}

// enable tells the device where the command queue is.
func (d *driver) enable() {
	d.write32(regCmdqHigh, 0)
	d.write32(regCmdqLow, queueAt)
}

// entry returns an entry and writes its mailboxes. change may spoil both before
// the entry is signed.
func (d *driver) entry(slot int, in []byte, outLen int) (e [entryBytes]byte) {
	d.token++
	e[atType], e[atToken], e[atOwner] = typePCI, d.token, ownedHW
	binary.BigEndian.PutUint32(e[atInLen:], uint32(len(in)))
	binary.BigEndian.PutUint32(e[atOutLen:], uint32(outLen))
	copy(e[atIn:atOut], in)
	next := uint64(boxesAt + slot*boxesEach)
	chain := func(n int) (first uint64) {
		if n <= 0 {
			return 0
		}
		first = next
		for i := 0; n > 0; i, n = i+1, n-blockData {
			var tail [blockTail]byte
			if n > blockData {
				binary.BigEndian.PutUint64(tail[blockNext:], next+boxEach)
			}
			binary.BigEndian.PutUint32(tail[blockNumber:], uint32(i))
			tail[blockToken] = d.token
			_ = d.m.WriteDMA(next+blockData, tail[:])
			next += boxEach
		}
		return first
	}
	binary.BigEndian.PutUint64(e[atInPtr:], chain(len(in)-inline))
	for i, at := inline, uint64(boxesAt+slot*boxesEach); i < len(in); i, at = i+blockData, at+boxEach {
		_ = d.m.WriteDMA(at, in[i:min(i+blockData, len(in))])
	}
	binary.BigEndian.PutUint64(e[atOutPtr:], chain(outLen-inline))
	return e
}

func (d *driver) post(slot int, e [entryBytes]byte) {
	e[atSig] = ^sum(e[:])
	_ = d.m.WriteDMA(queueAt+uint64(slot)<<logEntry, e[:])
	d.write32(regDoorbell, 1<<slot)
}

// done waits until the device has given an entry back.
func (d *driver) done(slot int) (e [entryBytes]byte) {
	for {
		_ = d.m.ReadDMA(queueAt+uint64(slot)<<logEntry, e[:])
		if e[atOwner]&ownedHW == 0 {
			return e
		}
		runtime.Gosched()
	}
}

// settle waits until the device has done with every command that it began.
func (d *driver) settle() {
	for d.f.running.Load() != 0 {
		runtime.Gosched()
	}
}

// answer returns a command's answer and the status of its delivery.
func (d *driver) answer(e [entryBytes]byte) ([]byte, Delivery) {
	d.t.Helper()
	if sum(e[:]) != goodSum {
		d.t.Errorf("the device signed an entry wrongly: %x", e)
	}
	n := int(binary.BigEndian.Uint32(e[atOutLen:]))
	out := append([]byte(nil), e[atOut:atOut+inline]...)
	for next := binary.BigEndian.Uint64(e[atOutPtr:]); len(out) < n; {
		var box [blockData + blockTail]byte
		_ = d.m.ReadDMA(next, box[:])
		out = append(out, box[:min(blockData, n-len(out))]...)
		next = binary.BigEndian.Uint64(box[blockData+blockNext:])
	}
	return out, Delivery(e[atOwner] >> 1)
}

// event returns the next event, waiting for it.
func (d *driver) event() (t mlx5.EventType, data [28]byte) {
	at := eqAt + uint64(d.ci)%(1<<logEQ)*64
	for {
		var e [64]byte
		_ = d.m.ReadDMA(at, e[:])
		if e[63]&1 == byte(d.ci>>logEQ)&1 {
			d.ci++
			copy(data[:], e[0x20:])
			d.write32(firstUAR*uarPage+bellEQArm, d.eqn<<24|d.ci&0xffffff)
			return mlx5.EventType(e[1]), data
		}
		runtime.Gosched()
	}
}

// exec runs a command and waits for it, by polling or by its event.
func (d *driver) exec(in []byte, outLen int) []byte {
	d.t.Helper()
	d.post(0, d.entry(0, in, outLen))
	if d.events {
		if typ, data := d.event(); typ != mlx5.EventCmd || binary.BigEndian.Uint32(data[:]) != 1 {
			d.t.Fatalf("%v: event %v %x", mlx5.OpOf(in), typ, data)
		}
	}
	out, delivery := d.answer(d.done(0))
	if delivery != DeliveryOK {
		d.t.Fatalf("%v: delivery status %#x", mlx5.OpOf(in), delivery)
	}
	return out
}

func (d *driver) must(in []byte) []byte {
	d.t.Helper()
	n := mlx5.CmdOutSize
	if _, l := mlx5.OpOf(in).Layouts(); l != nil {
		n = l.Bytes
	}
	out := d.exec(in, n)
	if status, syndrome := mlx5.StatusOf(out); status != mlx5.StatusOK {
		d.t.Fatalf("%v: %v, syndrome %#x", mlx5.OpOf(in), status, syndrome)
	}
	return out
}

func build(op mlx5.Op, mod uint16) []byte {
	l, _ := op.Layouts()
	in := make([]byte, l.Bytes)
	mlx5.PutHeader(in, op, mod)
	return in
}

// give gives the pages that the device wants: op 1 is for boot, 2 for init.
func (d *driver) give(op uint16) {
	d.t.Helper()
	n := mlx5.QueryPagesOut(d.must(build(mlx5.OpQueryPages, op))).NumPages()
	in := mlx5.ManagePagesIn(build(mlx5.OpManagePages, 1))
	in.SetInputNumEntries(n)
	for range n {
		in = binary.BigEndian.AppendUint64(in, d.next)
		d.pages[d.next] = true
		d.next += 4096
	}
	d.must(in)
}

// boot is mlx5_function_setup and mlx5_load, up to the event queue of commands.
func (d *driver) boot() {
	d.t.Helper()
	d.enable()
	d.must(build(mlx5.OpEnableHCA, 0))
	issi := mlx5.SetISSIIn(build(mlx5.OpSetISSI, 0))
	issi.SetCurrentISSI(1)
	d.must(issi)
	d.give(1)
	caps := mlx5.SetHCACapIn(build(mlx5.OpSetHCACap, 0))
	copy(caps.Capability(), mlx5.QueryHCACapOut(d.must(build(mlx5.OpQueryHCACap, 1))).Capability())
	d.must(caps)
	d.give(2)
	d.must(build(mlx5.OpInitHCA, 0))
	uar := mlx5.AllocUAROut(d.must(build(mlx5.OpAllocUAR, 0))).UAR()
	if uar != firstUAR {
		d.t.Fatalf("the first UAR is %d", uar)
	}
	ring := make([]byte, 64<<logEQ)
	for i := range ring {
		ring[i] = 1 // owned by the device
	}
	_ = d.m.WriteDMA(eqAt, ring)
	eq := mlx5.CreateEQIn(build(mlx5.OpCreateEQ, 0))
	eq.EQContextEntry().SetLogEQSize(logEQ)
	eq.EQContextEntry().SetUARPage(uar)
	eq.EQContextEntry().SetIntr(1)
	eq.EventBitmask()[7-uint(mlx5.EventCmd)/8] |= 1 << (mlx5.EventCmd % 8)
	for i := range uint64(2) {
		eq = binary.BigEndian.AppendUint64(eq, eqAt+i*4096)
	}
	d.eqn = uint32(mlx5.CreateEQOut(d.must(eq)).EQNumber())
	d.write32(firstUAR*uarPage+bellEQArm, d.eqn<<24)
	d.events, d.ci = true, 0
}

// shutdown is mlx5_unload and mlx5_function_teardown.
func (d *driver) shutdown() {
	d.t.Helper()
	d.events = false
	eq := mlx5.DestroyEQIn(build(mlx5.OpDestroyEQ, 0))
	eq.SetEQNumber(uint8(d.eqn))
	d.must(eq)
	d.must(build(mlx5.OpTeardownHCA, 0))
	for len(d.pages) > 0 {
		in := mlx5.ManagePagesIn(build(mlx5.OpManagePages, 2))
		in.SetInputNumEntries(300)
		out := mlx5.ManagePagesOut(d.exec(in, mlx5.ManagePagesOutSize+300*8))
		n := int(out.OutputNumEntries())
		if n == 0 {
			d.t.Fatalf("%d pages do not come back", len(d.pages))
		}
		for i := range n {
			page := binary.BigEndian.Uint64(out.PAS()[i*8:])
			if !d.pages[page] {
				d.t.Fatalf("page %#x was never given, or came back before", page)
			}
			delete(d.pages, page)
		}
	}
	d.must(build(mlx5.OpDisableHCA, 0))
}
