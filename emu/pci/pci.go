// SPDX-License-Identifier: BSD-2-Clause

// Package pci is the emulated HCA as a function on a PCI bus: configuration
// space, BAR 0 with the initialisation segment, the command queue, doorbell
// pages and the MSI-X table. Behind it executes package fw; who carries its
// accesses to a virtual machine (package vfiouser) is not its affair.
//
// It is strict to its driver and robust against a hostile one: what a
// descriptor says is checked before use, the device reads and writes memory only
// through its Host, and no access blocks.
//
//	f, err := pci.New(pci.Config{})
//	f.Attach(host)
//	f.WriteBAR(0, 0x18, doorbell) // the host's driver, from now on
package pci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"devxlab.example/emu/fw"
)

// Host is what the function is plugged into: memory, which may be accessed at
// the same time, and interrupts, which must not block. It is an alias, so that
// whoever carries accesses need not know this package.
type Host = interface {
	ReadDMA(addr uint64, b []byte) error
	WriteDMA(addr uint64, b []byte) error
	Interrupt(vector int)
}

// Config says what function to make. Its zero value is a ConnectX-6 Dx with the
// profile "zero".
type Config struct {
	// Profile is what commands cost; nil: "zero". Its Submit is left out: that is
	// the time of the driver's worker, and here a real driver takes it. Its Slots
	// decide how many commands the queue holds: 2^n - 1 of them, and one for pages.
	Profile  *fw.Profile
	MAC      [6]byte // of the port; zero: DefaultMAC
	LogMaxQP int     // as in fw.Config
	Seed     uint64  // as in fw.Config

	// CommandTimeout is how long the driver is told to wait for a command, and
	// HealthPoll how often to look at the health buffer, both in milliseconds; 0:
	// what it does by itself, 60 s and 2 s. Linux 5.16 and later heed them.
	CommandTimeout time.Duration
	HealthPoll     time.Duration

	Faults []Fault // armed each time that the function is plugged in
	Kill   func()  // ends the process that the device is, for FaultKill; nil: it is none

	// Trace gets each command when it is done; in and out must not be kept.
	Trace func(in, out []byte, took time.Duration)
	// Log gets what a driver should not do, and resets. It must not block.
	Log func(format string, args ...any)
}

const (
	vectors  = 64
	barSize  = 32 << 20
	uarPage  = 4096
	firstUAR = 6
)

// DefaultMAC is a port's address if none is given.
var DefaultMAC = [6]byte{0x0c, 0x42, 0xa1, 0, 0, 1}

// Function is one PCI function. Its methods may be called at the same time.
type Function struct {
	config Config
	logCmd uint8 // log2 of the command queue's entries

	mu      sync.Mutex
	host    Host // nil: none
	space   space
	dev     *device
	wire    fw.Wire      // of the port; nil: none
	gone    bool         // it does not answer on the bus: FaultUnplug
	running atomic.Int32 // commands, those of devices that were reset included
	buffers atomic.Int64 // bytes that they take

	faults sync.Mutex // of armed; taken last
	armed  []*armed
	timers map[*time.Timer]struct{} // of what happens after a time
	stay   int                      // how often it was plugged in or pulled out
}

// New makes a function that is plugged into nothing.
func New(c Config) (*Function, error) {
	if c.Profile == nil {
		p, err := fw.ProfileByName("zero")
		if err != nil {
			return nil, err
		}
		c.Profile = p
	}
	p := *c.Profile
	p.Submit = fw.Dist{}
	if err := p.Compile(); err != nil {
		return nil, err
	}
	c.Profile = &p
	if c.MAC == [6]byte{} {
		c.MAC = DefaultMAC
	}
	if c.CommandTimeout < 0 || c.CommandTimeout > fw.MaxTimeout {
		return nil, fmt.Errorf("pci: command time-out %v is not within 0 to %v", c.CommandTimeout, fw.MaxTimeout)
	}
	for _, x := range c.Faults {
		if err := x.check(); err != nil {
			return nil, fmt.Errorf("%w %v: %w", ErrFault, x, err)
		}
		if x.Kind == FaultKill && c.Kill == nil {
			return nil, fmt.Errorf("%w %v: this device is no process of its own", ErrFault, x)
		}
	}
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	f := &Function{config: c, timers: map[*time.Timer]struct{}{}}
	for f.logCmd = 1; 1<<f.logCmd-1 < p.Slots; f.logCmd++ {
	}
	f.space.init(c.MAC)
	dev, err := f.newDevice(nowhere{})
	if err != nil {
		return nil, err
	}
	f.dev = dev
	return f, nil
}

// nowhere is the host of a function that is plugged into nothing.
type nowhere struct{}

var errNowhere = errors.New("pci: the function is plugged into nothing")

func (nowhere) ReadDMA(uint64, []byte) error  { return errNowhere }
func (nowhere) WriteDMA(uint64, []byte) error { return errNowhere }
func (nowhere) Interrupt(int)                 {}

// Attach plugs the function in, as new.
func (f *Function) Attach(h Host) {
	f.mu.Lock()
	f.host = h
	f.gone = false
	f.renew("attached")
	f.disarm()
	f.mu.Unlock()
	for _, x := range f.config.Faults {
		if err := f.Inject(x); err != nil {
			f.config.Log("%v", err)
		}
	}
}

// Detach pulls it out. When it returns, the host's methods are no longer
// called.
func (f *Function) Detach() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.host = nil
	f.disarm()
	f.renew("detached")
}

// Reset is a reset of the function: nothing survives but the port's address.
func (f *Function) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.renew("reset")
}

// renew puts a new device in the place of the old one, whose commands end
// without anybody noticing.
func (f *Function) renew(why string) {
	f.config.Log("%s", why)
	f.space.init(f.config.MAC)
	f.replace()
}

func (f *Function) replace() {
	host := f.host
	if host == nil || f.gone {
		host = nowhere{}
	}
	f.dev.end()
	dev, err := f.newDevice(host)
	if err != nil {
		panic(err) // the same configuration was taken before
	}
	f.dev = dev
}

// Vectors returns the number of interrupts.
func (f *Function) Vectors() int { return vectors }

// BARSize returns the size of a base address register's memory, 0 for none.
func (f *Function) BARSize(bar int) int64 {
	if bar == 0 {
		return barSize
	}
	return 0
}

func (f *Function) device() *device {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dev
}

// Stats returns what the device has done since it was last reset.
func (f *Function) Stats() fw.Stats { return f.device().hca.Stats() }

// HCA returns the firmware of the device, until it is reset.
func (f *Function) HCA() *fw.HCA { return f.device().hca }

// Connect gives the port a wire, which resets do not take away; nil does.
func (f *Function) Connect(w fw.Wire) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wire = w
	f.dev.hca.Connect(w)
}

// Receive takes a frame that arrives at the port. It does not block, and the
// frame belongs to the function from then on.
func (f *Function) Receive(frame []byte) { f.device().hca.Receive(frame) }

// RaiseHealth makes the device report a syndrome in its health buffer, 0 to
// clear it. With fatal it asks for a reset and executes nothing until it gets
// one.
func (f *Function) RaiseHealth(syndrome uint8, fatal bool) {
	d := f.device()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.syndrome, d.fatal = syndrome, fatal
}

// ReadConfig reads configuration space; beyond its end are ones.
func (f *Function) ReadConfig(off int, b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone {
		ones(b)
		return
	}
	f.space.read(off, b)
}

// ones is what a bus reads where nobody answers.
func ones(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}

// WriteConfig writes configuration space: what can be written of it.
func (f *Function) WriteConfig(off int, b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.gone && f.space.write(off, b) {
		f.renew("function level reset")
	}
}

// ReadBAR reads the memory of BAR 0; outside are ones.
func (f *Function) ReadBAR(bar int, off int64, b []byte) {
	if bar != 0 || off < 0 || off > barSize-int64(len(b)) {
		ones(b)
		return
	}
	f.mu.Lock()
	d := f.dev
	if f.gone {
		f.mu.Unlock()
		ones(b)
		return
	}
	if off < tableEnd && off+int64(len(b)) > tableAt {
		f.space.readTable(off, b) // MSI-X survives resets of the firmware only
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	var dword [4]byte
	for i := range b {
		at := off + int64(i)
		if i == 0 || at%4 == 0 {
			binary.BigEndian.PutUint32(dword[:], d.read(at&^3))
		}
		b[i] = dword[at%4]
	}
}

// WriteBAR writes the memory of BAR 0. Registers take aligned accesses of 4 and
// 8 bytes; others do nothing.
func (f *Function) WriteBAR(bar int, off int64, b []byte) {
	if bar != 0 || off < 0 || off > barSize-int64(len(b)) {
		return
	}
	if off < tableEnd && off+int64(len(b)) > tableAt {
		f.mu.Lock()
		f.space.writeTable(off, b)
		f.mu.Unlock()
		return
	}
	if len(b) != 4 && len(b) != 8 || off%int64(len(b)) != 0 {
		f.config.Log("BAR 0: %d bytes written to %#x are ignored", len(b), off)
		return
	}
	d := f.device()
	if off >= firstUAR*uarPage {
		d.doorbell(off, b)
		return
	}
	for ; len(b) > 0; off, b = off+4, b[4:] {
		if d.write(off, binary.BigEndian.Uint32(b)) {
			f.softReset(d)
		}
	}
}

// softReset is the reset that the driver asks for through nic_interface: it
// leaves configuration space alone.
func (f *Function) softReset(d *device) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dev == d {
		f.config.Log("software reset")
		f.replace()
	}
}
