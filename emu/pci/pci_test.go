// SPDX-License-Identifier: BSD-2-Clause

package pci

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"devxlab.example/emu/fw"
	"devxlab.example/mlx5"
)

// A driver boots the function by polling, goes over to events, and takes it
// down again with all pages back; twice, and after a reset once more.
func TestBoot(t *testing.T) {
	d := newDriver(t, Config{})
	for round := range 3 {
		if d.read32(regInit)>>31 != 0 {
			t.Fatal("the firmware is still initialising")
		}
		if got := d.read32(regFWRev); got != 36<<16|22 {
			t.Errorf("firmware %#x", got)
		}
		if got := d.read32(regCmdifRev); got != 5<<16|1010 {
			t.Errorf("command interface %#x", got)
		}
		if got := d.read32(regCmdqLow) & 0xff; got != 5<<4|6 {
			t.Errorf("command queue: log_sz, log_stride %#x", got)
		}
		d.boot()
		for range 300 { // more than the event queue holds
			d.must(build(mlx5.OpNOP, 0))
		}
		d.settle() // an event is seen before its interrupt comes
		if n := d.m.signalled(1); n != 300*(round+1) {
			t.Errorf("%d interrupts after %d events", n, 300*(round+1))
		}
		d.shutdown()
		if round == 1 {
			d.f.Reset()
		}
	}
}

// Commands of many slots run at once: each waits for all.
func TestInFlight(t *testing.T) {
	const n = 31
	var hold atomic.Bool
	arrived, release := make(chan bool, n), make(chan bool)
	d := newDriver(t, Config{Trace: func(_, _ []byte, _ time.Duration) {
		if hold.Load() {
			arrived <- true
			<-release
		}
	}})
	d.boot()
	hold.Store(true)
	bell := uint32(0)
	for slot := range n {
		e := d.entry(slot, build(mlx5.OpAllocPD, 0), mlx5.AllocPDOutSize)
		e[atSig] = ^sum(e[:])
		_ = d.m.WriteDMA(queueAt+uint64(slot)<<logEntry, e[:])
		bell |= 1 << slot
	}
	d.write32(regDoorbell, bell)
	d.write32(regDoorbell, bell) // once more changes nothing
	for range n {
		<-arrived
	}
	if got := d.f.Stats(); got.MostInFlight != n {
		t.Errorf("%d in flight", got.MostInFlight)
	}
	// The last slot is the page commands'; it is not held up.
	hold.Store(false)
	d.post(n, d.entry(n, build(mlx5.OpQueryPages, 3), mlx5.QueryPagesOutSize))
	if typ, data := d.event(); typ != mlx5.EventCmd || binary.BigEndian.Uint32(data[:]) != 1<<n {
		t.Errorf("event %v %x", typ, data)
	}
	close(release)
	seen := uint32(0)
	for range n {
		_, data := d.event()
		seen |= binary.BigEndian.Uint32(data[:])
	}
	if seen != 1<<n-1 {
		t.Errorf("completed: slots %#x", seen)
	}
	pds := map[uint32]bool{}
	for slot := range n {
		out, delivery := d.answer(d.done(slot))
		pds[mlx5.AllocPDOut(out).PD()] = true
		if status, _ := mlx5.StatusOf(out); status != mlx5.StatusOK || delivery != DeliveryOK {
			t.Errorf("slot %d: %v, delivery %#x", slot, status, delivery)
		}
	}
	if len(pds) != n {
		t.Errorf("%d different PDs", len(pds))
	}
}

// What is wrong with a descriptor or a mailbox is said in the delivery status,
// and nothing is executed.
func TestDelivery(t *testing.T) {
	d := newDriver(t, Config{})
	d.boot()
	const first = boxesAt // of the input; the output's follow
	big := build(mlx5.OpCreateMKey, 0)
	inBoxes := (len(big) - inline + blockData - 1) / blockData
	long := make([]byte, 4*blockData)
	mlx5.PutHeader(long, mlx5.OpNOP, 0)
	box := func(at uint64, off uint64, v ...byte) func(*[entryBytes]byte) {
		return func(*[entryBytes]byte) { _ = d.m.WriteDMA(at+blockData+off, v) }
	}
	out := uint64(first + inBoxes*boxEach)
	for _, tt := range []struct {
		what  string
		in    []byte
		spoil func(e *[entryBytes]byte)
		want  Delivery
	}{
		{"nothing", big, func(*[entryBytes]byte) {}, DeliveryOK},
		{"type", big, func(e *[entryBytes]byte) { e[atType] = 1 }, DeliveryDescriptor},
		{"reserved", big, func(e *[entryBytes]byte) { e[2] = 1 }, DeliveryReserved},
		{"reserved at the end", big, func(e *[entryBytes]byte) { e[atReserved] = 1 }, DeliveryReserved},
		{"token of the entry", big, func(e *[entryBytes]byte) { e[atToken]++ }, DeliveryToken},
		{"token of the input", big, box(first, blockToken, 0xff), DeliveryToken},
		{"token of the output", big, box(out, blockToken, 0xff), DeliveryToken},
		{"block number", big, box(first, blockNumber+3, 1), DeliveryBlockNumber},
		{"input that loops", long, box(first, blockNext, 0, 0, 0, 0, byte(first>>24), byte(first>>16), byte(first>>8&0xff), 0), DeliveryBlockNumber},
		{"input pointer", big, func(e *[entryBytes]byte) { e[atInPtr+7] = 8 }, DeliveryInAlign},
		{"output pointer", big, func(e *[entryBytes]byte) { e[atOutPtr+7] = 8 }, DeliveryOutAlign},
		{"next of the input", long, box(first, blockNext+7, 0x10), DeliveryInAlign},
		{"input outside memory", big, func(e *[entryBytes]byte) { e[atInPtr] = 1 }, DeliveryFirmware},
		{"output outside memory", big, func(e *[entryBytes]byte) { e[atOutPtr] = 1 }, DeliveryFirmware},
		{"input at the end of memory", big, func(e *[entryBytes]byte) { binary.BigEndian.PutUint64(e[atInPtr:], 64<<20-blockData) }, DeliveryFirmware},
		{"length of the input", big, func(e *[entryBytes]byte) { e[atInLen] = 0xff }, DeliveryInLength},
		{"length of the output", big, func(e *[entryBytes]byte) { e[atOutLen] = 0xff }, DeliveryOutLength},
	} {
		n := d.f.Stats().Commands
		e := d.entry(0, tt.in, 600)
		tt.spoil(&e)
		d.post(0, e)
		d.event()
		if got := Delivery(d.done(0)[atOwner] >> 1); got != tt.want {
			t.Errorf("%s: delivery status %#x, want %#x", tt.what, got, tt.want)
		}
		if ran := d.f.Stats().Commands - n; (ran == 0) != (tt.want != DeliveryOK) {
			t.Errorf("%s: %d commands executed", tt.what, ran)
		}
	}
	e := d.entry(0, build(mlx5.OpNOP, 0), 16)
	e[atSig] = ^sum(e[:]) ^ 1
	_ = d.m.WriteDMA(queueAt, e[:])
	d.write32(regDoorbell, 1)
	if got := Delivery(d.done(0)[atOwner] >> 1); got != DeliverySignature {
		t.Errorf("signature: delivery status %#x", got)
	}
	d.event()
	d.must(build(mlx5.OpNOP, 0)) // it goes on
}

// No doorbell does anything before the device knows a queue, nor for an entry
// that is the driver's, nor beyond the queue.
func TestDoorbellIgnored(t *testing.T) {
	d := newDriver(t, Config{})
	d.post(0, d.entry(0, build(mlx5.OpEnableHCA, 0), 16))
	d.write32(regCmdqHigh, 0)
	d.write32(regCmdqLow, queueAt|nicDisabled<<nicShift)
	d.write32(regDoorbell, 1)
	d.f.WriteBAR(0, regDoorbell+1, []byte{0xff, 0xff, 0xff, 0xff})
	d.f.WriteBAR(0, regDoorbell, []byte{0xff})
	d.f.WriteBAR(3, regDoorbell, []byte{0xff, 0xff, 0xff, 0xff})
	d.f.WriteBAR(0, barSize-2, []byte{0xff, 0xff, 0xff, 0xff})
	d.f.WriteBAR(0, -4, []byte{0xff, 0xff, 0xff, 0xff})
	if n := d.f.Stats().Commands; n != 0 {
		t.Errorf("%d commands executed", n)
	}
	d.boot()
	d.events = false
	n := d.f.Stats().Commands
	d.write32(regDoorbell, 1) // its entry is the driver's
	d.must(build(mlx5.OpNOP, 0))
	for d.f.device().busy.Load() != 0 {
		runtime.Gosched()
	}
	if ran := d.f.Stats().Commands - n; ran != 1 {
		t.Errorf("%d commands executed, not 1", ran)
	}
}

// After a reset, whichever, the device says that it is disabled, does nothing of
// what it was doing, and works again when the driver enables it.
func TestResetMidCommand(t *testing.T) {
	for name, reset := range map[string]func(d *driver){
		"FLR":      func(d *driver) { d.f.WriteConfig(devCtl, []byte{0x10, 0x28 | initiateFLR}) },
		"device":   func(d *driver) { d.f.Reset() },
		"software": func(d *driver) { d.write32(regCmdqLow, queueAt|nicReset<<nicShift) },
		"unplug": func(d *driver) {
			d.f.Detach()
			d.m.mu.Lock()
			d.m.out = true
			d.m.mu.Unlock()
		},
	} {
		t.Run(name, func(t *testing.T) {
			var hold atomic.Bool
			arrived, release := make(chan bool), make(chan bool)
			d := newDriver(t, Config{Trace: func(_, _ []byte, _ time.Duration) {
				if hold.Load() {
					arrived <- true
					<-release
				}
			}})
			d.boot()
			hold.Store(true)
			d.post(3, d.entry(3, build(mlx5.OpAllocPD, 0), 16))
			<-arrived
			reset(d)
			hold.Store(false)
			signals := d.m.signalled(1)
			close(release)
			d.settle()
			var e [entryBytes]byte
			copy(e[:], d.m.b[queueAt+3<<logEntry:])
			if e[atOwner]&ownedHW == 0 || d.m.signalled(1) != signals {
				t.Errorf("the command completed: %x", e)
			}
			if d.m.used != 0 {
				t.Errorf("%d accesses to a host that is gone", d.m.used)
			}
			if nic := d.read32(regCmdqLow) >> nicShift & nicMask; nic != nicDisabled {
				t.Errorf("nic_interface %d", nic)
			}
			d.write32(regDoorbell, 1<<3)
			if n := d.f.Stats().Commands; n != 0 {
				t.Errorf("%d commands while disabled", n)
			}
			if name == "unplug" {
				return
			}
			d.events, d.pages, d.ci = false, map[uint64]bool{}, 0
			d.boot()
			d.must(build(mlx5.OpAllocPD, 0))
			d.shutdown()
		})
	}
}

// A driver that resets for ever cannot pile up commands.
func TestResetStorm(t *testing.T) {
	var hold atomic.Bool
	release := make(chan bool)
	d := newDriver(t, Config{Trace: func(_, _ []byte, _ time.Duration) {
		if hold.Load() {
			<-release
		}
	}})
	hold.Store(true)
	for range 100 {
		for slot := range 32 {
			e := d.entry(slot, build(mlx5.OpNOP, 0), 16)
			e[atSig] = ^sum(e[:])
			_ = d.m.WriteDMA(queueAt+uint64(slot)<<logEntry, e[:])
		}
		d.enable()
		d.write32(regDoorbell, 1<<32-1)
		d.f.Reset()
	}
	if n := d.f.running.Load(); n > maxRunning {
		t.Errorf("%d commands", n)
	}
	hold.Store(false)
	close(release)
	for d.f.running.Load() != 0 {
		runtime.Gosched()
	}
	d.boot()
}

// Long commands that are still executing when their device is reset take no more
// memory, again and again, than all slots of one device do: what is too much fails.
func TestLongCommandsBounded(t *testing.T) {
	var hold atomic.Bool
	release := make(chan bool)
	d := newDriver(t, Config{Trace: func(_, _ []byte, _ time.Duration) {
		if hold.Load() {
			<-release
		}
	}})
	d.boot()
	hold.Store(true)
	const out = 256 << 10 // of a NOP
	e := d.entry(0, build(mlx5.OpNOP, 0), out)
	for round := range maxBuffers/out + 8 {
		e[atOwner], e[atSig] = ownedHW, 0
		e[atSig] = ^sum(e[:])
		_ = d.m.WriteDMA(queueAt, e[:])
		d.write32(regDoorbell, 1)
		for d.f.Stats().Commands == 0 { // it executes, or has failed
			var got [entryBytes]byte
			if _ = d.m.ReadDMA(queueAt, got[:]); got[atOwner]&ownedHW == 0 {
				break
			}
			runtime.Gosched()
		}
		if got := d.f.buffers.Load(); got > maxBuffers {
			t.Fatalf("%d bytes in round %d", got, round)
		}
		var got [entryBytes]byte
		if _ = d.m.ReadDMA(queueAt, got[:]); got[atOwner]&ownedHW == 0 {
			if status := Delivery(got[atOwner] >> 1); status != DeliveryFirmware || round < maxBuffers/(out+64) {
				t.Errorf("round %d: delivery status %#x", round, status)
			}
			break
		}
		d.f.Reset()
		d.enable()
	}
	if d.f.buffers.Load() < maxBuffers-out-64 {
		t.Errorf("only %d bytes were ever taken", d.f.buffers.Load())
	}
	hold.Store(false)
	close(release)
	for d.f.running.Load() != 0 {
		runtime.Gosched()
	}
	if got := d.f.buffers.Load(); got != 0 {
		t.Errorf("%d bytes are still taken", got)
	}
}

func TestHealth(t *testing.T) {
	d := newDriver(t, Config{CommandTimeout: 1500 * time.Millisecond})
	d.boot()
	if got := d.read32(regCmdTime); got != 1500 {
		t.Errorf("command time-out %d ms", got)
	}
	d.f.RaiseHealth(0x8, false)
	if got := d.read32(healthSyn); got != 8<<16 {
		t.Errorf("syndrome %#x", got)
	}
	d.must(build(mlx5.OpNOP, 0))
	d.f.RaiseHealth(0xd, true)
	if got := d.read32(healthRFR); got>>31 != 1 {
		t.Errorf("severity %#x", got)
	}
	n := d.f.Stats().Commands
	d.post(0, d.entry(0, build(mlx5.OpNOP, 0), 16))
	if d.f.Stats().Commands != n {
		t.Error("a failed device executes commands")
	}
	d.write32(regCmdqLow, queueAt|nicReset<<nicShift)
	if d.read32(healthSyn) != 0 || d.read32(healthRFR) != 0 {
		t.Error("the syndrome outlives the reset")
	}
}

// The number of entries follows from the profile's slots.
func TestSlots(t *testing.T) {
	for slots, want := range map[int]uint32{1: 1, 3: 2, 4: 3, 7: 3, 15: 4, 16: 5, 31: 5} {
		p, err := fw.ProfileByName("zero")
		if err != nil {
			t.Fatal(err)
		}
		p.Slots = slots
		d := newDriver(t, Config{Profile: p})
		if got := d.read32(regCmdqLow) >> 4 & 0xf; got != want {
			t.Errorf("%d slots: log_sz %d, want %d", slots, got, want)
		}
	}
}

// Doorbells of 8 bytes may come in two halves.
func TestDoorbells(t *testing.T) {
	const bellCQ, bellSend = 0x20, 0x800
	d := newDriver(t, Config{})
	d.boot()
	const page = firstUAR * uarPage
	n := d.f.Stats().Doorbells
	d.write32(page+bellCQ, 1)
	d.write32(page+bellSend+4, 2) // not the other half of that
	d.write32(page+bellCQ+4, 3)
	if got := d.f.Stats().Doorbells - n; got != 0 {
		t.Errorf("%d doorbells of halves that do not belong together", got)
	}
	d.write32(page+bellCQ, 1)
	d.write32(page+bellCQ+4, 3)
	d.f.WriteBAR(0, page+bellSend, make([]byte, 8))
	d.f.WriteBAR(0, page+bellSend+0x100, make([]byte, 8))
	d.f.WriteBAR(0, page+0x500, make([]byte, 8)) // nothing is there
	if got := d.f.Stats().Doorbells - n; got != 3 {
		t.Errorf("%d doorbells, want 3", got)
	}
}

func TestReadBAR(t *testing.T) {
	d := newDriver(t, Config{})
	var whole [8]byte
	d.f.ReadBAR(0, regFWRev, whole[:])
	for off := range 8 {
		for n := 1; off+n <= 8; n++ {
			b := make([]byte, n)
			d.f.ReadBAR(0, int64(off), b)
			if string(b) != string(whole[off:off+n]) {
				t.Errorf("%d bytes at %d: %x of %x", n, off, b, whole)
			}
		}
	}
	was := d.read32(regTimerLow)
	for d.read32(regTimerLow) == was {
	}
	was = d.read32(regHeartbeat)
	for d.read32(regHeartbeat) == was {
	}
	for _, at := range []int64{-1, barSize - 3, barSize, 1 << 62} {
		b := make([]byte, 4)
		d.f.ReadBAR(0, at, b)
		if string(b) != "\xff\xff\xff\xff" {
			t.Errorf("at %#x: %x", at, b)
		}
	}
	// The MSI-X table is memory, and its vectors are masked at first.
	if got := d.read32(tableAt + 12); got != 1<<24 {
		t.Errorf("vector control %#x", got)
	}
	d.write32(tableAt+16, 0x12345678)
	if got := d.read32(tableAt + 16); got != 0x12345678 {
		t.Errorf("table %#x", got)
	}
	if got := d.read32(pbaAt); got != 0 {
		t.Errorf("pending %#x", got)
	}
}

func TestNewErrors(t *testing.T) {
	for _, c := range []Config{{CommandTimeout: -1}, {CommandTimeout: time.Hour}, {LogMaxQP: 40}, {Profile: &fw.Profile{}}} {
		if f, err := New(c); err == nil || f != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	var log strings.Builder
	f, err := New(Config{Log: func(format string, args ...any) { fmt.Fprintf(&log, format+"\n", args...) }})
	if err != nil || f.Vectors() != 64 || f.BARSize(0) != 32<<20 || f.BARSize(1) != 0 {
		t.Errorf("%v", err)
	}
	f.Reset()
	f.WriteBAR(0, regDoorbell, []byte{0, 0, 0, 1})
	if log.String() != "reset\ncommand doorbell 0x1 ignored: no queue\n" {
		t.Errorf("log: %s", log.String())
	}
}
