// SPDX-License-Identifier: BSD-2-Clause

package pci

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"devxlab.example/emu/fw"
)

// Registers of the initialisation segment (struct mlx5_init_seg in
// linux/mlx5/device.h).
const (
	regFWRev     = 0x0000
	regCmdifRev  = 0x0004
	regCmdqHigh  = 0x0010
	regCmdqLow   = 0x0014
	regDoorbell  = 0x0018
	regInit      = 0x01fc
	regHealth    = 0x0200
	regHealthEnd = 0x0240
	regCmdTime   = 0x0ff8
	regInitTime  = 0x0ffc
	regTimerHigh = 0x1000
	regTimerLow  = 0x1004
	regHeartbeat = 0x1010
)

const (
	cmdifRev  = 5
	healthFW  = regHealth + 0x30
	healthRFR = regHealth + 0x38
	healthSyn = regHealth + 0x3c

	rfr = 1 << 31 // the device asks for a reset

	// The driver may reset the firmware through nic_interface (health.c
	// reset_fw_if_needed, MLX5_FW_RESET_SUPPORTED_OFFSET).
	resetSupported = 1 << 30
)

// States of the interface to the driver, in bits 8 to 10 of regCmdqLow
// (MLX5_NIC_IFC_*).
const (
	nicFull     = 0
	nicDisabled = 1
	nicReset    = 7
	nicShift    = 8
	nicMask     = 7
)

const (
	beat = 10 * time.Millisecond // of the health counter: the driver looks every 2 s

	// What the driver has by itself (lib/tout.c, tout_def_sw_val).
	defaultCommandTime = time.Minute
	defaultInitTime    = 2 * time.Second
)

func milliseconds(t, orElse time.Duration) uint32 { return uint32(cmp.Or(t, orElse).Milliseconds()) }

// device is a function between two resets.
type device struct {
	f     *Function
	host  *gated
	hca   *fw.HCA
	start time.Time

	mu       sync.Mutex
	high     uint32
	low      uint32 // without what the device itself has there
	nic      uint32
	syndrome uint8
	fatal    bool

	queue atomic.Uint64 // address of the command queue; 0: none, doorbells are ignored
	busy  atomic.Uint32 // slots whose commands are executing

	ended chan struct{} // closed when the host was taken away

	half [2]uint32 // an 8-byte doorbell of which 4 came: where, and what
}

// gated is a host that can be taken away.
type gated struct {
	mu   sync.RWMutex
	host Host
}

func (g *gated) ReadDMA(addr uint64, b []byte) error {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.host.ReadDMA(addr, b)
}

func (g *gated) WriteDMA(addr uint64, b []byte) error {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.host.WriteDMA(addr, b)
}

func (g *gated) Interrupt(vector int) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	g.host.Interrupt(vector)
}

func (f *Function) newDevice(host Host) (*device, error) {
	d := &device{f: f, host: &gated{host: host}, start: time.Now(), nic: nicDisabled, ended: make(chan struct{})}
	hca, err := fw.New(fw.Config{
		Profile:   f.config.Profile,
		LogMaxQP:  f.config.LogMaxQP,
		Seed:      f.config.Seed,
		Memory:    d.host,
		Interrupt: d.host.Interrupt,
		Vectors:   vectors,
		UARs:      barSize/uarPage - firstUAR,
		MAC:       f.config.MAC,

		HealthPoll: f.config.HealthPoll,
		Overflow:   d.overflowed,
	})
	if err != nil {
		return nil, err
	}
	hca.Trace(f.config.Trace)
	hca.Connect(f.wire)
	d.hca = hca
	return d, nil
}

// end takes the host away: when it returns, nothing of the device reaches it.
func (d *device) end() {
	d.queue.Store(0)
	d.host.mu.Lock()
	d.host.host = nowhere{}
	d.host.mu.Unlock()
	close(d.ended)
	d.hca.Shut()
}

func (d *device) read(off int64) uint32 {
	switch off {
	case regFWRev:
		return fw.VersionMinor<<16 | fw.VersionMajor
	case regCmdifRev:
		return cmdifRev<<16 | fw.VersionSub
	case regCmdTime:
		return milliseconds(d.f.config.CommandTimeout, defaultCommandTime)
	case regInit:
		return resetSupported // and not initialising
	case regInitTime:
		// That it is not 0 makes the driver read regCmdTime and the register DTOR.
		if d.f.config.CommandTimeout == 0 && d.f.config.HealthPoll == 0 {
			return 0
		}
		return milliseconds(0, defaultInitTime)
	case regTimerHigh:
		return uint32(time.Since(d.start).Nanoseconds() >> 32)
	case regTimerLow:
		return uint32(time.Since(d.start).Nanoseconds())
	case regHeartbeat:
		return uint32(time.Since(d.start) / beat)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch off {
	case regCmdqHigh:
		return d.high
	case regCmdqLow:
		return d.low | d.nic<<nicShift | uint32(d.f.logCmd)<<4 | logEntry
	case healthFW:
		return fw.VersionMajor<<24 | fw.VersionMinor<<16 | fw.VersionSub
	case healthRFR:
		if d.fatal {
			return rfr
		}
	case healthSyn:
		return uint32(d.syndrome) << 16
	}
	return 0
}

// write writes a register and reports whether it is a software reset.
func (d *device) write(off int64, v uint32) (reset bool) {
	switch off {
	case regDoorbell:
		d.ring(v)
		return false
	case regCmdqHigh, regCmdqLow:
	default:
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if off == regCmdqHigh {
		d.high = v
		return false
	}
	before := d.nic
	d.low, d.nic = v&^0xfff, v>>nicShift&nicMask
	if d.nic == nicReset || d.nic == nicDisabled && before != nicDisabled { // the latter ends a fast teardown
		return true
	}
	d.queue.Store(0)
	if d.nic == nicFull {
		d.queue.Store(uint64(d.high)<<32 | uint64(d.low))
	}
	return false
}

// ring takes the command doorbell: one bit for each slot.
func (d *device) ring(slots uint32) {
	queue := d.queue.Load()
	if queue == 0 || d.failed() {
		d.f.config.Log("command doorbell %#x ignored: no queue", slots)
		return
	}
	slots &= uint32(uint64(1)<<(1<<d.f.logCmd) - 1)
	slots &^= d.busy.Or(slots) // one that is executing is not looked at again
	for ; slots != 0; slots &= slots - 1 {
		if !d.f.enter() {
			d.busy.And(^slots)
			return
		}
		go d.command(queue, bits.TrailingZeros32(slots))
	}
}

func (d *device) failed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fatal
}

// Doorbells of event queues within a UAR page (driver, eq.c).
const (
	bellEQArm = 0x40
	bellEQ    = 0x48
)

// doorbell takes a store to a UAR page.
func (d *device) doorbell(off int64, b []byte) {
	at := off % uarPage
	v := binary.BigEndian.Uint32(b)
	if at == bellEQArm || at == bellEQ {
		d.hca.UpdateEQ(uint8(v>>24), v&0xffffff, at == bellEQArm)
		return
	}
	// 8 bytes, which a host of 32 bits stores in two halves.
	if len(b) == 4 {
		d.mu.Lock()
		first := d.half
		d.half = [2]uint32{uint32(off), v}
		d.mu.Unlock()
		if at%8 == 0 || int64(first[0]) != off-4 {
			return
		}
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, first[1]), v)
		at -= 4
	}
	d.hca.Doorbell(uint32(off/uarPage), int(at), binary.BigEndian.Uint64(b))
}
