// SPDX-License-Identifier: BSD-2-Clause

package wire

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// Limits of a switch.
const (
	MaxPorts  = 128
	maxMACs   = 4096              // that it knows at once; frames to others are flooded
	ageingMAC = 300 * time.Second // IEEE 802.1Q, table 8-6, recommended default
)

// Switch is a learning bridge that stores and forwards. Each of its ports has a
// cable; the queue in front of the cable's In direction is the port's egress
// queue, that of Out the endpoint's own.
type Switch struct {
	e     *engine
	ports []*Port
	macs  map[uint64]learned // by VLAN and address
	aged  time.Duration      // when the table was last searched for old entries
	free  *debit
}

type learned struct {
	port int
	at   time.Duration
}

// NewSwitch makes a switch with so many ports, all with the same parameters in
// both directions; SetParams of a port changes them. Close ends it.
func NewSwitch(clock Clock, ports int, params Params, seed uint64) (*Switch, error) {
	if ports < 2 || ports > MaxPorts {
		return nil, fmt.Errorf("wire: a switch with %d ports: it has 2 to %d", ports, MaxPorts)
	}
	if err := validate(params); err != nil {
		return nil, err
	}
	e, err := newEngine(clock, seed)
	if err != nil {
		return nil, err
	}
	s := &Switch{e: e, macs: map[uint64]learned{}}
	for i := range ports {
		up, down := e.add(params), e.add(params)
		up.sw, up.index = s, i
		s.ports = append(s.ports, newPort(e, up, down))
	}
	go e.run()
	return s, nil
}

// Ports returns how many there are.
func (s *Switch) Ports() int { return len(s.ports) }

// Port returns one, from 0 on.
func (s *Switch) Port(i int) *Port { return s.ports[i] }

// SetPriority replaces Priority as the function that tells a frame's priority, 0
// to 7; nil puts it back. It is called with locks held.
func (s *Switch) SetPriority(f func(frame []byte) int) { s.e.setPriority(f) }

// Close drops what is on its way. No receiver runs when it returns, and none is
// called any more; frames that are sent are dropped. It must not be called from
// a receiver. The goroutine ends when the clock lets it: a virtual one when its
// other goroutines wait.
func (s *Switch) Close() { s.e.close() }

func macKey(b []byte, vid uint16) uint64 {
	return uint64(vid)<<48 | uint64(binary.BigEndian.Uint16(b))<<32 | uint64(binary.BigEndian.Uint32(b[2:]))
}

const groupBit = 1 // of an address's first byte

// forward takes a frame that has come in.
func (s *Switch) forward(d *direction, f *frame, now time.Duration) {
	data := f.data
	vid := vlan(data)
	s.learn(macKey(data[6:], vid), d.index, now)
	to, known := s.lookup(data, vid, now)
	copies := 1
	if !known {
		copies = len(s.ports) - 1
	}
	if linkLocal(data) || known && to == d.index {
		s.reject(d, f, NotForwarded, now)
		return
	}
	b, ok := d.charge(f, copies, now)
	if !ok {
		s.reject(d, f, NoHeadroom, now)
		return
	}
	d.landed(f)
	d.stats.Delivered++
	d.stats.DeliveredBytes += uint64(len(data))
	d.e.recycle(f)
	if known {
		s.ports[to].ways[In].send(data, b, now)
		return
	}
	for i, p := range s.ports {
		if i == d.index {
			continue
		}
		out := data
		if copies--; copies > 0 { // the last one takes the frame itself
			out = slices.Clone(data)
		}
		p.ways[In].send(out, b, now)
	}
}

func (s *Switch) reject(d *direction, f *frame, r Reason, now time.Duration) {
	d.stats.Flying--
	d.drop(f, r, now)
}

func (s *Switch) learn(key uint64, port int, now time.Duration) {
	if key>>40&groupBit != 0 {
		return
	}
	if _, known := s.macs[key]; known || len(s.macs) < maxMACs {
		s.macs[key] = learned{port, now}
	} else {
		s.age(now)
	}
}

// age makes room in a full table, if anything is old enough. It looks once a
// second, so that a flood of addresses costs no more.
func (s *Switch) age(now time.Duration) {
	if now-s.aged < time.Second {
		return
	}
	s.aged = now
	for k, l := range s.macs {
		if now-l.at > ageingMAC {
			delete(s.macs, k)
		}
	}
}

func (s *Switch) lookup(data []byte, vid uint16, now time.Duration) (port int, known bool) {
	if data[0]&groupBit != 0 {
		return 0, false
	}
	l, known := s.macs[macKey(data, vid)]
	return l.port, known && now-l.at <= ageingMAC
}

// linkLocal are the group addresses that no bridge forwards (IEEE 802.1Q, 8.6.3).
func linkLocal(b []byte) bool {
	return binary.BigEndian.Uint32(b) == 0x0180c200 && b[4] == 0 && b[5] < 0x10
}

func (s *Switch) newDebit() *debit {
	b := s.free
	if b == nil {
		return &debit{}
	}
	s.free = b.next
	return b
}

func (s *Switch) freeDebit(b *debit) {
	*b = debit{next: s.free}
	s.free = b
}
