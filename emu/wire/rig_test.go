// SPDX-License-Identifier: BSD-2-Clause

package wire_test

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"
	"time"

	"devxlab.example/emu/fw"
	"devxlab.example/emu/wire"
	"devxlab.example/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// virtualClock is the emulated HCA's virtual clock as a wire's.
type virtualClock struct{ *fw.VirtualClock }

func (c virtualClock) NewAlarm() (wire.Alarm, error) { return c.VirtualClock.NewAlarm(), nil }

// rig is a virtual clock on which the test is the one announced goroutine, and
// what the wire has delivered.
type rig struct {
	testing.TB
	clock virtualClock
	got   []arrival
}

type arrival struct {
	port int
	at   time.Duration
	data []byte
}

func newRig(t testing.TB) *rig {
	r := &rig{TB: t, clock: virtualClock{&fw.VirtualClock{}}}
	r.clock.Busy(1)
	return r
}

// end lets the wires' goroutines go.
func (r *rig) end(close func()) {
	close()
	r.clock.Busy(-1)
}

// to lets time pass up to and including t.
func (r *rig) to(t time.Duration) { r.clock.SleepUntil(t + 1) }

// connect records what arrives at a port. Records need no lock: the clock lets
// one goroutine run at a time.
func (r *rig) connect(number int, p *wire.Port) {
	p.Connect(func(b []byte) { r.got = append(r.got, arrival{number, r.clock.Now(), b}) })
}

func (r *rig) link(ab, ba string, seed uint64) *wire.Link {
	r.Helper()
	l, err := wire.NewLink(r.clock, params(r, ab), params(r, ba), seed)
	if err != nil {
		r.Fatal(err)
	}
	r.connect(0, l.A)
	r.connect(1, l.B)
	return l
}

func (r *rig) sw(ports int, text string, seed uint64) *wire.Switch {
	r.Helper()
	s, err := wire.NewSwitch(r.clock, ports, params(r, text), seed)
	if err != nil {
		r.Fatal(err)
	}
	for i := range ports {
		r.connect(i, s.Port(i))
	}
	return s
}

func params(t testing.TB, text string) wire.Params {
	t.Helper()
	p, err := wire.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func set(t testing.TB, p *wire.Port, w wire.Way, text string) {
	t.Helper()
	if err := p.SetParams(w, params(t, text)); err != nil {
		t.Fatal(err)
	}
}

// conserved checks that no frame is unaccounted for.
func conserved(t interface{ Errorf(string, ...any) }, s wire.Stats) {
	in := s.Sent + s.Duplicated
	out := s.Delivered + s.Control + s.Dropped.Total() + uint64(s.Queued) + uint64(s.Flying)
	if in != out || s.Queued < 0 || s.Flying < 0 {
		t.Errorf("sent and copied %d, ended or on their way %d: %+v", in, out, s)
	}
}

// roce is a RoCEv2 frame: RC SEND only, from one host to another.
type roce struct {
	src, dst byte // the last byte of addresses
	vlan     int  // PCP and VID, or -1
	v6       bool
	tos      byte
	psn      uint32
	payload  int // a multiple of 4
	opcode   byte
}

const (
	ecn0       = 2 // ECT(0)
	rocePort   = 4791
	bthSize    = 12
	udpSize    = 8
	rcSendOnly = 4
	rcACK      = 17
)

func mac(host byte) []byte { return []byte{0x02, 0, 0, 0, 0, host} }

func (r roce) frame() []byte {
	b := append(slices.Clone(mac(r.dst)), mac(r.src)...)
	if r.vlan >= 0 {
		b = append(b, 0x81, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(r.vlan))
	}
	opcode, aeth := r.opcode, 0
	if opcode == 0 {
		opcode = rcSendOnly
	}
	if opcode == rcACK {
		aeth = 4
	}
	udp := udpSize + bthSize + aeth + r.payload + 4
	if r.v6 {
		b = append(b, 0x86, 0xdd, 0x60|r.tos>>4, r.tos<<4, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(udp))
		b = append(b, 17, 64)
		b = append(b, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, r.src)
		b = append(b, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, r.dst)
	} else {
		b = append(b, 0x08, 0x00)
		at := len(b)
		b = append(b, 0x45, r.tos)
		b = binary.BigEndian.AppendUint16(b, uint16(20+udp))
		b = append(b, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, r.src, 192, 0, 2, r.dst)
		binary.BigEndian.PutUint16(b[at+10:], ipChecksum(b[at:]))
	}
	b = binary.BigEndian.AppendUint16(b, 0xc000)
	b = binary.BigEndian.AppendUint16(b, rocePort)
	b = binary.BigEndian.AppendUint16(b, uint16(udp))
	b = append(b, 0, 0)
	b = append(b, opcode, 0, 0xff, 0xff, 0, 0, 0, 0x12)
	b = binary.BigEndian.AppendUint32(b, r.psn&0xffffff)
	b = append(b, make([]byte, aeth)...)
	for i := range r.payload {
		b = append(b, byte(i))
	}
	return binary.LittleEndian.AppendUint32(b, icrc(b, r.vlan >= 0, r.v6))
}

// sized is a frame of n bytes, all told.
func sized(src, dst byte, n int) []byte {
	return roce{src: src, dst: dst, vlan: -1, payload: n - 14 - 20 - udpSize - bthSize - 4}.frame()
}

func ipChecksum(header []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// icrc is the invariant CRC of a frame that lacks it: a CRC-32 over 8 bytes of
// ones in the place of an LRH and the packet from the IP header on, with what
// the network may change set to ones (InfiniBand Architecture Specification,
// annex A17).
func icrc(b []byte, tagged, v6 bool) uint32 {
	at := 14
	if tagged {
		at += 4
	}
	p := slices.Clone(b[at:])
	ip := 20
	if v6 {
		ip = 40
		p[0] |= 0x0f
		p[1], p[2], p[3], p[7] = 0xff, 0xff, 0xff, 0xff
	} else {
		p[1], p[8], p[10], p[11] = 0xff, 0xff, 0xff, 0xff
	}
	p[ip+6], p[ip+7] = 0xff, 0xff
	p[ip+udpSize+4] = 0xff
	crc := crc32.ChecksumIEEE([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	return crc32.Update(crc, crc32.IEEETable, p)
}

// icrcRight checks a frame's own ICRC.
func icrcRight(b []byte, tagged, v6 bool) bool {
	n := len(b) - 4
	return binary.LittleEndian.Uint32(b[n:]) == icrc(b[:n], tagged, v6)
}

func psn(b []byte) int { return int(binary.BigEndian.Uint32(b[14+20+udpSize+8:]) & 0xffffff) }
