// SPDX-License-Identifier: BSD-2-Clause

package pci

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"devxlab.example/emu/fw"
	"devxlab.example/mlx5"
)

// faultTexts are faults of each kind with what they can say.
var faultTexts = []string{
	"silent:op=RTR2RTS_QP,nth=3", "silent:op=RTR2RTS_QP,user,done", "silent:times=2,for=1500ms", "silent",
	"status:op=CREATE_QP,nth=2,times=3,status=LIM,syndrome=0x1234", "status:status=0xfe",
	"delivery:status=token", "delivery:op=NOP,status=signature", "delivery:status=firmware",
	"health:syndrome=0x10", "health:syndrome=0", "health:after=3s,syndrome=0x1,fatal=true", "health:op=QUERY_QP,syndrome=1,fatal",
	"eq:queue=cmd", "eq:queue=async,after=1s", "eq:queue=pages,op=CREATE_QP",
	"pages:pages=64,refuse=true", "pages:pages=1", "reset", "reset:after=1m", "unplug", "unplug:for=5s,user", "kill:op=RTR2RTS_QP,nth=100", "kill",
}

func TestParseFault(t *testing.T) {
	for _, text := range faultTexts {
		f, err := ParseFault(text)
		if err != nil {
			t.Error(err)
			continue
		}
		if again, err := ParseFault(f.String()); err != nil || again != f {
			t.Errorf("%q is %q, and that %+v, %v", text, f, again, err)
		}
	}
	for text, want := range map[string]string{
		"":                             "none of silent, status",
		"explode":                      "none of silent, status",
		"silent:op=EXPLODE":            "no such opcode",
		"silent:nth=0":                 "a number, 1 to",
		"silent:nth=9999999999":        "a number, 1 to",
		"silent:status=LIM":            `silent has no "status"; it has op, user, nth, times, done, for`,
		"silent:after=1s":              `silent has no "after"`,
		"silent:nth=1,nth=2":           "nth twice",
		"silent:done,for=1s":           "done or for",
		"silent:for=-1s":               "a time above 0",
		"silent:done=maybe":            "true or false",
		"silent:,":                     `has no ""`,
		"status":                       "which status",
		"status:status=OK":             "a status such as",
		"status:status=LIM,syndrome=x": "32 bits",
		"delivery":                     "which status",
		"delivery:status=LIM":          "one of block, descriptor",
		"health:syndrome=0x100":        "8 bits",
		"health:fatal":                 "fatal without a syndrome",
		"health:after=1s,nth=2":        "either after a time",
		"health:after=48h":             "at most 24h",
		"eq":                           "which queue",
		"eq:queue=comp":                "cmd, async or pages",
		"pages":                        "how many",
		"pages:pages=1000000":          "1 to 65536",
	} {
		if f, err := ParseFault(text); !errors.Is(err, ErrFault) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want %q", text, f, err, want)
		}
	}
}

// FuzzParseFault reads any text: what is taken can be written and read again as
// the same, and armed.
func FuzzParseFault(f *testing.F) {
	for _, text := range faultTexts {
		f.Add(text)
	}
	f.Add("silent:op=RTR2RTS_QP,nth=3,nth=4")
	f.Add("health:syndrome=0x,fatal=")
	f.Add(strings.Repeat("silent:", 1000))
	f.Fuzz(func(t *testing.T, text string) {
		x, err := ParseFault(text)
		if err != nil {
			if !errors.Is(err, ErrFault) {
				t.Error(err)
			}
			return
		}
		if again, err := ParseFault(x.String()); err != nil || again != x {
			t.Errorf("%q: %+v is %q, which is %+v, %v", text, x, x, again, err)
		}
		if _, err := New(Config{Faults: []Fault{x}, Kill: func() {}}); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}

func mustFault(t *testing.T, text string) Fault {
	t.Helper()
	f, err := ParseFault(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// inject arms a fault.
func (d *driver) inject(text string) {
	d.t.Helper()
	if err := d.f.Inject(mustFault(d.t.(*testing.T), text)); err != nil {
		d.t.Fatal(err)
	}
}

// owned reports whether the entry in a slot is still the device's.
func (d *driver) owned(slot int) bool {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return d.m.b[queueAt+slot<<logEntry+atOwner]&ownedHW != 0
}

// ring posts a command in a slot and waits until the device has done with it.
func (d *driver) ring(slot int, in []byte) {
	d.post(slot, d.entry(slot, in, mlx5.CmdOutSize))
	d.settle()
}

// try runs a command whatever comes of it.
func (d *driver) try(in []byte) (out []byte, delivery Delivery) {
	d.post(0, d.entry(0, in, mlx5.CmdOutSize))
	if typ, _ := d.event(); typ != mlx5.EventCmd {
		d.t.Errorf("event %v", typ)
	}
	return d.answer(d.done(0))
}

func TestFaultSilent(t *testing.T) {
	d := newDriver(t, Config{})
	d.boot()
	d.inject("silent:op=ALLOC_PD,nth=2")
	n := d.f.Stats().Commands
	d.must(build(mlx5.OpAllocPD, 0))
	d.ring(3, build(mlx5.OpAllocPD, 0))
	if !d.owned(3) || d.f.Stats().Commands != n+1 {
		t.Errorf("the second: owned by the device %v, %d commands executed", d.owned(3), d.f.Stats().Commands-n)
	}
	d.must(build(mlx5.OpAllocPD, 0)) // once only
	d.inject("silent:op=ALLOC_PD,done")
	d.ring(4, build(mlx5.OpAllocPD, 0))
	if !d.owned(4) || d.f.Stats().Commands != n+3 {
		t.Errorf("done: owned by the device %v, %d commands executed", d.owned(4), d.f.Stats().Commands-n)
	}
	d.inject("silent:op=NOP,for=1ms")
	d.must(build(mlx5.OpNOP, 0)) // late, but answered
	d.inject("silent:op=NOP,for=24h")
	d.post(5, d.entry(5, build(mlx5.OpNOP, 0), mlx5.CmdOutSize))
	d.f.Reset() // ends the wait
	d.settle()
}

func TestFaultAnswers(t *testing.T) {
	d := newDriver(t, Config{})
	d.boot()
	d.inject("status:op=ALLOC_PD,status=LIM,syndrome=0x1234,times=2")
	for i := range 3 {
		out, delivery := d.try(build(mlx5.OpAllocPD, 0))
		status, syndrome := mlx5.StatusOf(out)
		want, wantSyndrome := mlx5.StatusLIM, uint32(0x1234)
		if i == 2 {
			want, wantSyndrome = mlx5.StatusOK, 0
		}
		if delivery != DeliveryOK || status != want || syndrome != wantSyndrome {
			t.Errorf("command %d: delivery %#x, %v, syndrome %#x", i, delivery, status, syndrome)
		}
	}
	n := d.f.Stats().Commands
	d.inject("delivery:status=token")
	if _, delivery := d.try(build(mlx5.OpNOP, 0)); delivery != DeliveryToken || d.f.Stats().Commands != n {
		t.Errorf("delivery %#x, %d executed", delivery, d.f.Stats().Commands-n)
	}
	// A command of the driver itself is not a program's.
	d.inject("status:user,status=LIM")
	d.must(build(mlx5.OpNOP, 0))
}

func TestFaultDevice(t *testing.T) {
	killed := 0
	d := newDriver(t, Config{Kill: func() { killed++ }})
	d.boot()
	d.inject("health:op=NOP,nth=2,syndrome=0x7,fatal")
	d.must(build(mlx5.OpNOP, 0))
	d.ring(0, build(mlx5.OpNOP, 0))
	if got := d.read32(healthSyn) >> 16; got != 7 || d.read32(healthRFR) != rfr || !d.owned(0) {
		t.Errorf("syndrome %#x, rfr %#x, owned by the device %v", got, d.read32(healthRFR), d.owned(0))
	}
	d.write32(regCmdqLow, nicReset<<nicShift) // as the driver does
	if got := d.read32(healthSyn); got != 0 || d.read32(regCmdqLow)>>nicShift&nicMask != nicDisabled {
		t.Errorf("after the reset: syndrome %#x, queue %#x", got, d.read32(regCmdqLow))
	}
	again := func() {
		d.f.Reset()
		clear(d.m.b)
		d.events, d.ci, d.next = false, 0, pagesAt
		clear(d.pages)
		d.boot()
	}
	again()
	d.inject("reset")
	if got := d.read32(regCmdqLow) >> nicShift & nicMask; got != nicDisabled {
		t.Errorf("after a reset by itself: interface %d", got)
	}
	d.inject("unplug")
	var id [4]byte
	d.f.ReadConfig(0, id[:])
	if got := d.read32(regFWRev); got != 1<<32-1 || id != [4]byte{0xff, 0xff, 0xff, 0xff} {
		t.Errorf("unplugged: %#x, %x", got, id)
	}
	d.f.replug()
	if got := d.read32(regFWRev); got != fw.VersionMinor<<16|fw.VersionMajor {
		t.Errorf("plugged in again: %#x", got)
	}
	again()
	d.inject("kill:op=NOP")
	d.ring(0, build(mlx5.OpNOP, 0))
	if killed != 1 || !d.owned(0) {
		t.Errorf("killed %d times, owned by the device %v", killed, d.owned(0))
	}
}

func TestFaultConfig(t *testing.T) {
	if _, err := New(Config{Faults: []Fault{{Kind: FaultKill}}}); !errors.Is(err, ErrFault) {
		t.Errorf("a device in this process ends: %v", err)
	}
	if _, err := New(Config{Faults: []Fault{{Kind: FaultEQ}}}); !errors.Is(err, ErrFault) {
		t.Error(err)
	}
	f, err := New(Config{Faults: []Fault{mustFault(t, "silent")}})
	if err != nil {
		t.Fatal(err)
	}
	m := newMemory(1 << 20)
	for range 2 { // armed each time, and not twice
		f.Attach(m)
		if len(f.armed) != 1 {
			t.Errorf("%d armed", len(f.armed))
		}
	}
	if err := f.Inject(mustFault(t, "eq:queue=cmd")); !errors.Is(err, ErrFault) {
		t.Errorf("an event queue before there is a driver: %v", err)
	}
	if err := f.Inject(Fault{Kind: FaultHealth, After: time.Nanosecond, Nth: 1}); !errors.Is(err, ErrFault) {
		t.Error(err)
	}
}

// The end of a fast teardown (driver, fw.c mlx5_cmd_fast_teardown_hca): the command
// is answered with an event, and then the interface disabled.
func TestFastTeardown(t *testing.T) {
	d := newDriver(t, Config{})
	d.boot()
	in := build(mlx5.OpTeardownHCA, 0)
	mlx5.TeardownHCAIn(in).SetProfile(2)
	d.must(in)
	d.write32(regCmdqLow, nicDisabled<<nicShift)
	if got := d.read32(regCmdqLow) >> nicShift & nicMask; got != nicDisabled {
		t.Errorf("interface %d", got)
	}
}

// What the driver is told to wait (lib/tout.c): it reads the register only if
// cmdq_init_to is not 0, and a field of 0 would be no time.
func TestTimeouts(t *testing.T) {
	d := newDriver(t, Config{})
	if got := d.read32(regInitTime); got != 0 {
		t.Errorf("cmdq_init_to %d of a device that tells nothing", got)
	}
	d = newDriver(t, Config{HealthPoll: 300 * time.Millisecond})
	d.boot()
	if init, cmd := d.read32(regInitTime), d.read32(regCmdTime); init != 2000 || cmd != 60000 {
		t.Errorf("cmdq_init_to %d, cmd_exec_to %d", init, cmd)
	}
	const dtor, header = 0xc00e, 16
	in := append(make([]byte, header), make([]byte, mlx5.DtorRegSize)...)
	mlx5.PutHeader(in, mlx5.OpAccessReg, 1)
	mlx5.AccessRegisterIn(in).SetRegisterID(dtor)
	out := d.exec(in, len(in))
	r := mlx5.DtorReg(out[header:])
	if status, _ := mlx5.StatusOf(out); status != mlx5.StatusOK || r.HealthPollTo().ToValue() != 300 || r.HealthPollTo().ToMultiplier() != 0 {
		t.Errorf("%v, health poll %d, unit %d", status, r.HealthPollTo().ToValue(), r.HealthPollTo().ToMultiplier())
	}
	for name, f := range map[string]mlx5.DefaultTimeout{"pcie_toggle": r.PcieToggleTo(), "fw_reset": r.FwResetTo(), "tear_down": r.TearDownTo(),
		"reclaim_pages": r.ReclaimPagesTo(), "flush_on_err": r.FlushOnErrTo(), "full_crdump": r.FullCrdumpTo()} {
		if f.ToValue() == 0 {
			t.Errorf("%s is 0", name)
		}
	}
	if r.ResetUnloadTo() == 0 {
		t.Error("reset_unload is 0")
	}
	if _, err := New(Config{HealthPoll: time.Microsecond}); err == nil {
		t.Error("a health poll of less than a millisecond")
	}
}

// What was to happen after a time does not happen to a function that was pulled
// out, nor early to one that was plugged in again, and leaves no timer.
func TestDetachDisarms(t *testing.T) {
	var killed atomic.Int32
	d := newDriver(t, Config{Kill: func() { killed.Add(1) }, Faults: []Fault{mustFault(t, "kill:after=1h")}})
	d.inject("unplug:for=1h")
	d.inject("health:syndrome=1,after=1h")
	timers := func() int {
		d.f.faults.Lock()
		defer d.f.faults.Unlock()
		return len(d.f.timers)
	}
	if got := timers(); got != 3 {
		t.Errorf("%d timers, want 3", got)
	}
	d.f.Attach(d.m)
	if got := timers(); got != 1 {
		t.Errorf("%d timers after the function was plugged in again, want 1", got)
	}
	d.inject("kill:op=NOP")
	d.f.Detach()
	if got := timers(); got != 0 || len(d.f.armed) != 0 || killed.Load() != 0 {
		t.Errorf("%d timers and %d faults after it was pulled out, killed %d times", got, len(d.f.armed), killed.Load())
	}
}
