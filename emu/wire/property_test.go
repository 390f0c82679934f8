// SPDX-License-Identifier: BSD-2-Clause

package wire_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"devxlab.example/emu/wire"
)

// drawParams makes parameters of which any may be absent.
func drawParams(t *rapid.T, label string, hurts bool) wire.Params {
	maybe := func(name string) bool { return rapid.Bool().Draw(t, label+name) }
	p := func(name string) float64 { return float64(rapid.IntRange(1, 50).Draw(t, label+name)) / 100 }
	ns := func(name string, most int) time.Duration {
		return time.Duration(rapid.IntRange(1, most).Draw(t, label+name))
	}
	var w wire.Params
	if maybe("rate?") {
		w.Rate = uint64(rapid.IntRange(1, 400).Draw(t, label+"rate")) * 1e9
	}
	if maybe("delay?") {
		w.Delay = ns("delay", 20_000)
	}
	if maybe("jitter?") {
		w.Jitter = wire.Jitter{Scale: ns("jitter", 5000), Dist: wire.Distribution(rapid.IntRange(0, 2).Draw(t, label+"dist"))}
	}
	if maybe("ecn?") {
		w.ECN = wire.ECN{Min: 1000, Max: rapid.IntRange(1000, 9000).Draw(t, label+"ecn"), P: p("ecnP")}
	}
	if maybe("pfc?") {
		w.PFC = wire.PFC{Priorities: uint8(rapid.IntRange(1, 255).Draw(t, label+"pfc")), XOFF: 4000, XON: 2000}
	}
	if !hurts {
		return w
	}
	if maybe("loss?") {
		w.Loss = p("loss")
	}
	if maybe("burst?") {
		w.Burst = wire.Burst{Begin: p("begin"), End: p("end"), Loss: p("lossBad")}
	}
	if maybe("dup?") {
		w.Duplicate = p("dup")
	}
	if maybe("reorder?") {
		w.Reorder, w.ReorderDelay = p("reorder"), ns("late", 5000)
	}
	if maybe("queue?") {
		w.Queue = rapid.IntRange(1, 5000).Draw(t, label+"queue")
	}
	if maybe("flight?") {
		w.Flight = rapid.IntRange(1, 20_000).Draw(t, label+"flight")
	}
	if w.PFC.Priorities != 0 && maybe("headroom?") {
		w.PFC.Headroom = rapid.IntRange(1, 2000).Draw(t, label+"headroom")
	}
	return w
}

// network is a link or a switch of the property tests.
type network struct {
	ports []*wire.Port
	close func()
}

func drawNetwork(t *rapid.T, r *rig, hurts bool) network {
	seed := rapid.Uint64().Draw(t, "seed")
	n := rapid.IntRange(2, 5).Draw(t, "ports")
	var net network
	if n == 2 {
		l, err := wire.NewLink(r.clock, drawParams(t, "ab.", hurts), drawParams(t, "ba.", hurts), seed)
		if err != nil {
			t.Fatal(err)
		}
		net = network{[]*wire.Port{l.A, l.B}, l.Close}
	} else {
		s, err := wire.NewSwitch(r.clock, n, drawParams(t, "all.", hurts), seed)
		if err != nil {
			t.Fatal(err)
		}
		net.close = s.Close
		for i := range n {
			p := s.Port(i)
			if err := p.SetParams(wire.Out, drawParams(t, fmt.Sprint("out", i, "."), hurts)); err != nil {
				t.Fatal(err)
			}
			net.ports = append(net.ports, p)
		}
	}
	for i, p := range net.ports {
		r.connect(i, p)
	}
	return net
}

func (n network) conserved(t *rapid.T) (sum wire.Stats) {
	for _, p := range n.ports {
		for _, w := range []wire.Way{wire.Out, wire.In} {
			s := p.Stats(w)
			conserved(t, s)
			sum.Queued += s.Queued
			sum.Flying += s.Flying
			for r, c := range s.Dropped {
				sum.Dropped[r] += c
			}
		}
	}
	return sum
}

// Unless parameters say so, no frame is lost, doubled or overtaken by another of
// its priority from the same port.
func TestNothingUnlessSaid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRig(nil)
		net := drawNetwork(t, r, false)
		for i, p := range net.ports { // so that the switch knows all of them
			p.Send(roce{src: byte(i), dst: 99, vlan: -1}.frame())
		}
		r.to(time.Second)
		r.got = nil
		type stream struct{ from, to, prio int }
		sent := map[stream][]int{}
		total := rapid.IntRange(1, 200).Draw(t, "frames")
		for i := range total {
			from := rapid.IntRange(0, len(net.ports)-1).Draw(t, "from")
			to := (from + rapid.IntRange(1, len(net.ports)-1).Draw(t, "to")) % len(net.ports)
			prio := rapid.IntRange(0, 7).Draw(t, "prio")
			net.ports[from].Send(roce{src: byte(from), dst: byte(to), vlan: -1, tos: byte(prio<<5 | ecn0), psn: uint32(i),
				payload: 4 * rapid.IntRange(0, 256).Draw(t, "words")}.frame())
			key := stream{from, to, prio}
			sent[key] = append(sent[key], i)
			r.to(r.clock.Now() + time.Duration(rapid.IntRange(0, 500).Draw(t, "gap")))
		}
		r.to(r.clock.Now() + time.Second)
		got := map[stream][]int{}
		for _, a := range r.got {
			key := stream{int(a.data[11]), int(a.data[5]), int(a.data[15] >> 5)}
			if key.to != a.port {
				t.Errorf("a frame to %d is at %d", key.to, a.port)
			}
			got[key] = append(got[key], psn(a.data))
		}
		for key, want := range sent {
			if !slices.Equal(got[key], want) {
				t.Errorf("%+v: %v, not %v", key, got[key], want)
			}
		}
		if sum := net.conserved(t); len(r.got) != total || sum.Dropped.Total() != 0 || sum.Queued+sum.Flying != 0 {
			t.Errorf("%d of %d arrived; %+v", len(r.got), total, sum)
		}
		r.end(net.close)
	})
}

// Whatever happens, at each moment each frame is somewhere: parameters change,
// endpoints send PAUSE, frames flood, and the wire is closed in the midst of it.
func TestConservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRig(nil)
		net := drawNetwork(t, r, true)
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			from := rapid.IntRange(0, len(net.ports)-1).Draw(t, "from")
			p := net.ports[from]
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				if err := p.SetParams(wire.Way(rapid.IntRange(0, 1).Draw(t, "way")), drawParams(t, "new.", true)); err != nil {
					t.Fatal(err)
				}
			case 1:
				p.Send(pause(uint8(rapid.IntRange(0, 255).Draw(t, "classes")), uint16(rapid.IntRange(0, 0xffff).Draw(t, "quanta"))))
			case 2:
				p.Send(rapid.SliceOfN(rapid.Byte(), 0, 80).Draw(t, "bytes"))
			default:
				p.Send(roce{src: byte(from), dst: byte(rapid.IntRange(0, 5).Draw(t, "to")), vlan: -1, tos: byte(rapid.IntRange(0, 255).Draw(t, "tos")),
					payload: 4 * rapid.IntRange(0, 256).Draw(t, "words")}.frame())
			}
			r.to(r.clock.Now() + time.Duration(rapid.IntRange(0, 3000).Draw(t, "gap")))
			net.conserved(t)
		}
		if rapid.Bool().Draw(t, "drain") {
			r.to(r.clock.Now() + 10*time.Second)
			if sum := net.conserved(t); sum.Queued+sum.Flying != 0 {
				t.Errorf("after 10 s there is still %+v", sum)
			}
		}
		r.end(net.close)
		if sum := net.conserved(t); sum.Queued+sum.Flying != 0 {
			t.Errorf("after Close there is still %+v", sum)
		}
	})
}
