// SPDX-License-Identifier: BSD-2-Clause

package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"devxlab.example/emu/wire"
)

func ports(got []arrival) (n []int) {
	for _, a := range got {
		n = append(n, a.port)
	}
	slices.Sort(n)
	return n
}

func TestSwitchLearns(t *testing.T) {
	r := newRig(t)
	s := r.sw(4, "rate=100G,delay=1us", 1)
	send := func(port int, b []byte) []int {
		r.got = nil
		s.Port(port).Send(b)
		r.to(r.clock.Now() + time.Millisecond)
		return ports(r.got)
	}
	broadcast := sized(0, 1, 100)
	copy(broadcast, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	multicast := sized(0, 1, 100)
	copy(multicast, []byte{0x01, 0x00, 0x5e, 0, 0, 1})
	lldp := sized(0, 1, 100)
	copy(lldp, []byte{0x01, 0x80, 0xc2, 0, 0, 0x0e})
	tagged := roce{src: 0, dst: 1, vlan: 7, payload: 64}.frame()
	for _, c := range []struct {
		what string
		port int
		b    []byte
		want []int
	}{
		{"unknown", 0, sized(0, 1, 100), []int{1, 2, 3}},
		{"learned by the answer", 1, sized(1, 0, 100), []int{0}},
		{"known now", 0, sized(0, 1, 100), []int{1}},
		{"another VLAN", 0, tagged, []int{1, 2, 3}},
		{"broadcast", 0, broadcast, []int{1, 2, 3}},
		{"multicast", 0, multicast, []int{1, 2, 3}},
		{"link-local", 0, lldp, nil},
		{"to where it came from", 0, sized(9, 0, 100), nil},
		{"moved", 3, sized(0, 1, 100), []int{1}},
		{"moved with it", 1, sized(1, 0, 100), []int{3}},
	} {
		if got := send(c.port, c.b); !slices.Equal(got, c.want) {
			t.Errorf("%s: at %v, not %v", c.what, got, c.want)
		}
	}
	if d := s.Port(0).Stats(wire.Out).Dropped; d[wire.NotForwarded] != 2 || d.Total() != 2 {
		t.Errorf("%v", d)
	}
	r.to(r.clock.Now() + 301*time.Second)
	if got := send(0, sized(0, 1, 100)); !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("after 301 s the address is still known: %v", got)
	}
	for i := range s.Ports() {
		conserved(t, s.Port(i).Stats(wire.Out))
		conserved(t, s.Port(i).Stats(wire.In))
	}
	r.end(s.Close)
}

// A switch knows so many addresses and no more; others are flooded until those
// are old.
func TestSwitchTableIsBounded(t *testing.T) {
	r := newRig(t)
	s := r.sw(3, "", 1)
	send := func(port int, src, dst uint32) []int {
		b := sized(0, 0, 100)
		binary.BigEndian.PutUint32(b[2:], dst)
		binary.BigEndian.PutUint32(b[8:], src)
		r.got = nil
		s.Port(port).Send(b)
		r.to(r.clock.Now())
		return ports(r.got)
	}
	for i := range uint32(4096) {
		send(0, 1000+i, 1)
	}
	send(1, 7, 1)
	if got := send(2, 8, 1000+4095); !slices.Equal(got, []int{0}) {
		t.Errorf("to the last that was learned: %v", got)
	}
	if got := send(2, 8, 7); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("to one more than there is room for: %v", got)
	}
	r.to(r.clock.Now() + 301*time.Second)
	send(1, 7, 1) // makes room
	send(1, 7, 1)
	if got := send(2, 8, 7); !slices.Equal(got, []int{1}) {
		t.Errorf("when the others are old: %v", got)
	}
	s.SetPriority(nil)
	r.end(s.Close)
}

// A switch stores and forwards: two cables, each with its own time.
func TestSwitchTimes(t *testing.T) {
	r := newRig(t)
	s := r.sw(3, "rate=100G,delay=1us", 1)
	set(t, s.Port(2), wire.In, "rate=10G,delay=2us")
	s.Port(2).Send(sized(2, 0, 100))
	r.to(time.Millisecond)
	r.got = nil
	start := r.clock.Now()
	s.Port(0).Send(sized(0, 2, 1226)) // 100 ns at 100 Gbit/s
	s.Port(1).Send(sized(1, 2, 1226))
	r.to(2 * time.Millisecond)
	if got, want := times(r.got), []time.Duration{start + 4100, start + 5100}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	r.end(s.Close)
}

// flooded copies are each their receiver's own.
func TestFloodCopies(t *testing.T) {
	r := newRig(t)
	s := r.sw(3, "", 1)
	s.Port(0).Send(sized(0, 1, 100))
	r.to(1)
	if len(r.got) != 2 || &r.got[0].data[0] == &r.got[1].data[0] || !bytes.Equal(r.got[0].data, r.got[1].data) {
		t.Errorf("%d arrivals, which are not equal or share memory", len(r.got))
	}
	r.end(s.Close)
}

// Of two priorities that wait, the higher one goes first.
func TestStrictPriority(t *testing.T) {
	r := newRig(t)
	l := r.link("rate=1G", "", 1)
	for i, tos := range []byte{0, 0, 26 << 2, 48 << 2} { // the first is on the wire before the others come
		l.A.Send(roce{src: 1, dst: 2, vlan: -1, tos: tos, psn: uint32(i)}.frame())
	}
	r.to(time.Millisecond)
	if got, want := psns(r.got), []int{0, 3, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	l.SetPriority(func([]byte) int { return 5 })
	for i, tos := range []byte{0, 0, 26 << 2, 48 << 2} {
		l.A.Send(roce{src: 1, dst: 2, vlan: -1, tos: tos, psn: uint32(i)}.frame())
	}
	r.to(2 * time.Millisecond)
	if got, want := psns(r.got[4:]), []int{0, 1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("all of one priority: %v", got)
	}
	r.end(l.Close)
}

func TestPriority(t *testing.T) {
	for _, c := range []struct {
		what string
		b    []byte
		want int
	}{
		{"IPv4", roce{vlan: -1, tos: 26 << 2}.frame(), 3},
		{"IPv6", roce{vlan: -1, v6: true, tos: 46<<2 | 1}.frame(), 5},
		{"tag", roce{vlan: 6<<13 | 1, tos: 26 << 2}.frame(), 6},
		{"ARP", append(make([]byte, 12), 8, 6), 0},
		{"short IPv4", append(make([]byte, 12), 8, 0, 0x45, 0xff), 0},
		{"short tag", append(make([]byte, 12), 0x81, 0, 0xe0), 0},
	} {
		if got := wire.Priority(c.b); got != c.want {
			t.Errorf("%s: %d, not %d", c.what, got, c.want)
		}
	}
}

// fill sends frames of n bytes all at once into a link that is slow, and tells
// which arrived with CE.
func fill(t *testing.T, text string, frames []roce) (ce []bool, s wire.Stats) {
	r := newRig(t)
	l := r.link(text, "", 11)
	for _, f := range frames {
		l.A.Send(f.frame())
	}
	r.to(10 * time.Second)
	for i, a := range r.got {
		f := frames[i]
		at := 14
		if f.vlan >= 0 {
			at += 4
		}
		tos := a.data[at+1]
		if f.v6 {
			tos = a.data[at]<<4 | a.data[at+1]>>4
		}
		if tos&^3 != f.tos&^3 {
			t.Errorf("the DSCP has changed: %#x, was %#x", tos, f.tos)
		}
		if !f.v6 && ipChecksum(a.data[at:]) != 0 { // the sum of a header with its checksum
			t.Errorf("frame %d: the IPv4 header checksum is wrong", i)
		}
		if !icrcRight(a.data, f.vlan >= 0, f.v6) {
			t.Errorf("frame %d: the ICRC is wrong", i)
		}
		ce = append(ce, tos&3 == 3)
	}
	s = l.A.Stats(wire.Out)
	conserved(t, s)
	r.end(l.Close)
	return ce, s
}

// The marks are of the kind and number that the thresholds say; the checksum
// and the ICRC are right with and without.
func TestECN(t *testing.T) {
	frames := func(n int, f roce) (list []roce) {
		for i := range n {
			f.psn = uint32(i)
			list = append(list, f)
		}
		return list
	}
	for _, c := range []struct {
		what string
		f    roce
	}{
		{"IPv4", roce{vlan: -1, tos: 26<<2 | ecn0}},
		{"IPv4 ECT(1)", roce{vlan: -1, tos: 26<<2 | 1}},
		{"IPv6", roce{vlan: -1, v6: true, tos: 26<<2 | ecn0}},
		{"VLAN", roce{vlan: 3<<13 | 5, tos: 26<<2 | ecn0}},
	} {
		c.f.payload = 1024
		size := len(c.f.frame())
		ce, s := fill(t, "rate=1G,ecn=20000:20000:100%", frames(50, c.f))
		for i, got := range ce {
			// Of frame i, i - 1 wait, and one is on the wire.
			if want := (i-1)*size > 20000; got != want {
				t.Errorf("%s: frame %d marked: %v", c.what, i, got)
			}
		}
		if marked := count(ce); s.Marked != uint64(marked) || marked < 20 {
			t.Errorf("%s: %d marked, %d counted", c.what, marked, s.Marked)
		}
	}
	for _, tos := range []byte{0, 3} { // not able to; marked before
		_, s := fill(t, "rate=1G,ecn=1:1:100%", frames(50, roce{vlan: -1, tos: tos, payload: 1024}))
		if s.Marked != 0 || s.Delivered != 50 {
			t.Errorf("ECN bits %d: %d marked, %d delivered", tos, s.Marked, s.Delivered)
		}
	}
	// Above the upper threshold all are marked, however small the probability there.
	long := frames(60, roce{vlan: -1, tos: ecn0, payload: 1024})
	size := len(long[0].frame())
	ce, _ := fill(t, "rate=1G,ecn=10000:20000:0.0001%", long)
	for i, got := range ce {
		if want := (i-1)*size > 20000; got != want {
			t.Errorf("above or below 20000: frame %d marked: %v", i, got)
		}
	}
	// A queue of always about the same length is in the middle of the ramp.
	r := newRig(t)
	l := r.link("rate=1G,ecn=0:20000:50%", "", 3)
	f := roce{vlan: -1, tos: ecn0, payload: 1024 - 14 - 20 - 8 - 12 - 4}
	for range 11 {
		l.A.Send(f.frame())
	}
	before := l.A.Stats(wire.Out).Marked
	const n = 4000
	for range n {
		r.to(r.clock.Now() + 8384 - 1) // one leaves, one comes: 9 wait
		l.A.Send(f.frame())
	}
	marked := float64(l.A.Stats(wire.Out).Marked - before)
	p := 0.5 * 9 * 1024 / 20000
	if bound := math.Sqrt(n * math.Log(2e9) / 2); math.Abs(marked-n*p) > bound {
		t.Errorf("%.0f of %d marked, not %.0f ± %.0f", marked, n, n*p, bound)
	}
	r.end(l.Close)
}

// A frame of a real ConnectX-4 Lx, a CNP (scapy, test/contrib/roce.uts), proves
// the ICRC that these tests compute, and that a mark leaves it right.
func TestMarkKeepsARealICRC(t *testing.T) {
	cnp, err := hex.DecodeString("e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b70028000081" +
		"00ffff40000118" + strings.Repeat("00", 20) + "82fd002a")
	if err != nil || len(cnp) != 74 {
		t.Fatal(err, len(cnp))
	}
	if !icrcRight(cnp, false, false) {
		t.Fatal("the ICRC of a real card's frame is wrong here")
	}
	r := newRig(t)
	l := r.link("rate=1G,ecn=1:1:100%", "", 1)
	for range 3 {
		l.A.Send(bytes.Clone(cnp))
	}
	r.to(time.Millisecond)
	last := r.got[2].data
	if last[15] != 0xc3 || !icrcRight(last, false, false) || ipChecksum(last[14:]) != 0 {
		t.Errorf("TOS %#x, ICRC right: %v", last[15], icrcRight(last, false, false))
	}
	r.end(l.Close)
}

func count(b []bool) (n int) {
	for _, x := range b {
		if x {
			n++
		}
	}
	return n
}

func pause(prios uint8, quanta uint16) []byte {
	b := append([]byte{0x01, 0x80, 0xc2, 0, 0, 1}, mac(9)...)
	b = append(b, 0x88, 0x08, 0x01, 0x01, 0, prios)
	for range 8 {
		b = binary.BigEndian.AppendUint16(b, quanta)
	}
	return append(b, make([]byte, 60-len(b))...)
}

// A link's end obeys PAUSE for the priorities that it has PFC for, to the
// nanosecond, and the endpoint does not see it.
func TestPauseIsObeyed(t *testing.T) {
	r := newRig(t)
	l := r.link("rate=1G,pfc=3", "", 1)
	l.B.Send(pause(1<<3|1<<4, 100)) // 100 · 512 bit times: 51.2 µs
	r.to(0)
	l.A.Send(roce{src: 1, dst: 2, vlan: -1, tos: 26 << 2, psn: 3}.frame())
	l.A.Send(roce{src: 1, dst: 2, vlan: -1, tos: 34 << 2, psn: 4}.frame())
	r.to(40 * time.Microsecond)
	if got := psns(r.got); !slices.Equal(got, []int{4}) {
		t.Errorf("while 3 is paused: %v", got)
	}
	r.to(time.Second)
	if len(r.got) != 2 || r.got[1].at != 51200+(60+24)*8 { // 58 bytes are sent as 60
		t.Errorf("after the pause: %v", times(r.got))
	}
	l.B.Send(pause(1<<3, 0xffff))
	r.to(time.Second + 100)
	l.A.Send(roce{src: 1, dst: 2, vlan: -1, tos: 26 << 2, psn: 5}.frame())
	r.to(time.Second + 200)
	l.B.Send(pause(1<<3, 0))
	r.to(time.Second + 2000)
	if len(r.got) != 3 {
		t.Errorf("after XON: %v", times(r.got))
	}
	a, b := l.A.Stats(wire.Out), l.B.Stats(wire.Out)
	if want := 51200*time.Nanosecond + 200; a.Paused[3] != want || a.Paused[4] != 0 {
		t.Errorf("paused for %v", a.Paused)
	}
	if b.Control != 3 || b.Delivered != 0 {
		t.Errorf("%+v", b)
	}
	conserved(t, a)
	conserved(t, b)
	r.end(l.Close)
}

// Two senders into one port: without PFC the switch drops, with it nothing is
// lost, whatever the queue, and headroom is what a round trip needs.
func TestPFCLosesNothing(t *testing.T) {
	const n = 2000
	run := func(text string) (sum wire.Stats, got []arrival, order bool) {
		r := newRig(t)
		s := r.sw(3, text, 1)
		s.Port(2).Send(sized(2, 9, 100)) // to be known
		r.to(time.Millisecond)
		r.got = nil
		for i := range 2 {
			left, p := uint32(n), s.Port(i)
			more := func(int) {
				for left > 0 && p.Backlog(3) < 10000 {
					p.Send(roce{src: byte(i), dst: 2, vlan: -1, tos: 26<<2 | ecn0, psn: n - left, payload: 1000}.frame())
					left--
				}
			}
			p.OnRoom(5000, more)
			more(3)
		}
		r.to(time.Second)
		last := [2]int{-1, -1}
		order = true
		for _, a := range r.got {
			src := a.data[11]
			order = order && psn(a.data) > last[src]
			last[src] = psn(a.data)
		}
		for i := range 3 {
			for _, w := range []wire.Way{wire.Out, wire.In} {
				s := s.Port(i).Stats(w)
				conserved(t, s)
				for r, n := range s.Dropped {
					sum.Dropped[r] += n
				}
				sum.PausesSent += s.PausesSent
				sum.Marked += s.Marked
				sum.MaxHeadroom = max(sum.MaxHeadroom, s.MaxHeadroom)
				sum.Paused[3] += s.Paused[3]
			}
		}
		r.end(s.Close)
		return sum, r.got, order
	}
	const base = "rate=10G,delay=2us,queue=50K"
	s, got, _ := run(base)
	if lost := s.Dropped[wire.QueueFull]; lost == 0 || len(got)+int(lost) != 2*n {
		t.Errorf("without PFC: %d arrived, %d were dropped", len(got), lost)
	}
	s, got, order := run(base + ",pfc=3,xoff=30K,xon=20K")
	if len(got) != 2*n || s.Dropped.Total() != 0 || !order || s.PausesSent < 4 || s.Paused[3] == 0 {
		t.Errorf("with PFC: %d arrived in order %v; %+v", len(got), order, s)
	}
	// Each port's account moves by 10 K at least between two PAUSE frames, which
	// must not be one for each frame.
	if most := uint64(2 * n * 1058 / 10_000 * 11 / 10); s.PausesSent > most {
		t.Errorf("%d PAUSE frames, more than %d", s.PausesSent, most)
	}
	// What comes after XOFF: a round trip of 4 µs at 10 Gbit/s, 5000 bytes, and
	// the frames that both ends must finish, and the PAUSE itself.
	if s.MaxHeadroom < 3000 || s.MaxHeadroom > 5000+3*(1058+24)+84 {
		t.Errorf("%d bytes of headroom", s.MaxHeadroom)
	}
	s, got, _ = run(base + ",pfc=3,xoff=30K,xon=20K,headroom=3K")
	if lost := s.Dropped[wire.NoHeadroom]; lost == 0 || len(got)+int(s.Dropped.Total()) != 2*n || s.MaxHeadroom > 3000 {
		t.Errorf("with 3 K of headroom: %d arrived, %d were dropped, %d bytes used", len(got), lost, s.MaxHeadroom)
	}
	s, got, _ = run(base + ",pfc=5,xoff=30K,xon=20K") // not theirs
	if s.Dropped[wire.QueueFull] == 0 || s.PausesSent != 0 {
		t.Errorf("with PFC for another priority: %d arrived, %+v", len(got), s)
	}
	s, _, _ = run(base + ",pfc=3,xoff=30K,xon=20K,ecn=5K:20K:100%")
	if s.Marked == 0 || s.Dropped.Total() != 0 {
		t.Errorf("with ECN below XOFF: %+v", s)
	}
}

// A pause outlasts what one PAUSE frame can say: the switch repeats it. Its
// receiver is paused for a second, by an endpoint that repeats as well.
func TestPauseIsRepeated(t *testing.T) {
	r := newRig(t)
	s := r.sw(2, "rate=10G,pfc,xoff=10K,xon=5K", 1)
	s.Port(1).Send(sized(1, 9, 100))
	r.to(time.Millisecond)
	r.got = nil
	const quanta = 0xffff * 512 / 10 * time.Nanosecond
	for i := range 50 {
		s.Port(0).Send(roce{src: 0, dst: 1, vlan: -1, psn: uint32(i), payload: 1000}.frame())
	}
	for range 10 {
		s.Port(1).Send(pause(0xff, 0xffff))
		r.to(r.clock.Now() + quanta - 2000)
	}
	out := s.Port(0).Stats(wire.Out)
	if out.Queued < 35 || out.PausesSent < 15 || len(r.got) != 0 {
		t.Errorf("%d wait at the sender, %d PAUSE frames, %d arrived", out.Queued, out.PausesSent, len(r.got))
	}
	r.to(r.clock.Now() + time.Second)
	if len(r.got) != 50 {
		t.Errorf("%d arrived", len(r.got))
	}
	// PFC that is switched off while it pauses lets everything go.
	for range 10 {
		s.Port(1).Send(pause(0xff, 0xffff))
	}
	for i := range 50 {
		s.Port(0).Send(roce{src: 0, dst: 1, vlan: -1, psn: uint32(i), payload: 1000}.frame())
	}
	r.to(r.clock.Now() + 100*time.Microsecond)
	for i := range 2 {
		for _, w := range []wire.Way{wire.Out, wire.In} {
			set(t, s.Port(i), w, "rate=10G")
		}
	}
	r.to(r.clock.Now() + 100*time.Microsecond)
	if len(r.got) != 100 {
		t.Errorf("after PFC was switched off: %d arrived", len(r.got)-50)
	}
	r.end(s.Close)
}

func TestNewErrors(t *testing.T) {
	r := newRig(t)
	bad := wire.Params{Delay: -1}
	if _, err := wire.NewLink(r.clock, wire.Params{}, bad, 0); err == nil {
		t.Error("NewLink took a negative delay")
	}
	if _, err := wire.NewSwitch(r.clock, 3, bad, 0); err == nil {
		t.Error("NewSwitch took a negative delay")
	}
	for _, n := range []int{-1, 1, wire.MaxPorts + 1} {
		if _, err := wire.NewSwitch(r.clock, n, wire.Params{}, 0); err == nil {
			t.Errorf("a switch with %d ports", n)
		}
	}
	r.clock.Busy(-1)
}
