// SPDX-License-Identifier: BSD-2-Clause

package wire_test

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"

	"devxlab.example/emu/wire"
)

func times(got []arrival) (at []time.Duration) {
	for _, a := range got {
		at = append(at, a.at)
	}
	return at
}

func psns(got []arrival) (n []int) {
	for _, a := range got {
		n = append(n, psn(a.data))
	}
	return n
}

// (4096 + 24) · 8 bits at 100 Gbit/s are 329.6 ns. The parts of a nanosecond
// add up: five frames are 1648 ns, not 5 · 330.
func TestTimesAreExact(t *testing.T) {
	r := newRig(t)
	l := r.link("rate=100G,delay=5us", "", 1)
	for range 6 {
		l.A.Send(sized(1, 2, 4096))
	}
	r.to(20 * time.Microsecond)
	l.A.Send(sized(1, 2, 4096)) // after a pause they begin anew
	r.to(40 * time.Microsecond)
	want := []time.Duration{5330, 5660, 5989, 6319, 6648, 6978, 25331}
	if got := times(r.got); !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	conserved(t, l.A.Stats(wire.Out))
	r.end(l.Close)
}

// A frame shorter than 60 bytes takes the wire as long as one of 60.
func TestShortFrame(t *testing.T) {
	r := newRig(t)
	l := r.link("rate=1G", "", 1)
	l.A.Send(make([]byte, 14))
	l.A.Send(make([]byte, 60))
	l.A.Send(make([]byte, 61))
	r.to(time.Millisecond)
	if got, want := times(r.got), []time.Duration{672, 1344, 2024}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	r.end(l.Close)
}

// Both ways are independent, and a receiver may answer.
func TestPingPong(t *testing.T) {
	r := newRig(t)
	l := r.link("delay=1us", "delay=3us", 1)
	rounds := 0
	l.B.Connect(func(b []byte) { l.B.Send(b) })
	var at []time.Duration
	l.A.Connect(func(b []byte) {
		at = append(at, r.clock.Now())
		if rounds++; rounds < 3 {
			l.A.Send(b)
		}
	})
	l.A.Send(sized(1, 2, 100))
	r.to(time.Millisecond)
	if want := []time.Duration{4000, 8000, 12000}; !slices.Equal(at, want) {
		t.Errorf("%v, not %v", at, want)
	}
	r.end(l.Close)
}

func TestChangeWhileRunning(t *testing.T) {
	r := newRig(t)
	l := r.link("rate=1G,delay=10us", "", 1)
	for range 3 {
		l.A.Send(sized(1, 2, 1226)) // 10 µs each
	}
	r.to(5 * time.Microsecond)
	set(t, l.A, wire.Out, "rate=10G,delay=1us") // the first has begun, and has the old delay; the others wait behind it
	r.to(time.Millisecond)
	if got, want := times(r.got), []time.Duration{20000, 20000, 20000}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v: frames must not overtake each other for a change", got, want)
	}
	l.A.Send(sized(1, 2, 1226))
	r.to(2 * time.Millisecond)
	if got, want := r.got[3].at, time.Millisecond+1+2*time.Microsecond; got != want {
		t.Errorf("after the change: %v, not %v", got, want)
	}
	if err := l.A.SetParams(wire.Out, wire.Params{Loss: 2}); err == nil {
		t.Error("a probability of 2 was accepted")
	}
	r.end(l.Close)
}

// Who disconnects in the midst of it gets nothing more; what comes then has no
// receiver, and is connected again later.
func TestDisconnect(t *testing.T) {
	r := newRig(t)
	l := r.link("", "", 1)
	got := 0
	l.B.Connect(func([]byte) {
		got++
		l.B.Connect(nil)
	})
	for range 5 {
		l.A.Send(sized(1, 2, 100))
	}
	l.B.Send(sized(2, 1, 100))
	r.to(1)
	s := l.A.Stats(wire.Out)
	if got != 1 || s.Dropped[wire.NoReceiver] != 4 || len(r.got) != 1 || s.Flying != 0 {
		t.Errorf("%d arrived, and %d the other way; %+v", got, len(r.got), s)
	}
	if wire.NoReceiver.String() != "no receiver" {
		t.Error(wire.NoReceiver)
	}
	r.connect(1, l.B)
	l.A.Send(sized(1, 2, 100))
	r.to(2)
	if len(r.got) != 2 {
		t.Errorf("connected again: %d arrived", len(r.got))
	}
	conserved(t, l.A.Stats(wire.Out))
	r.end(l.Close)
}

func TestFilterDropsTheNth(t *testing.T) {
	r := newRig(t)
	l := r.link("rate=10G,delay=1us", "", 1)
	isACK := func(b []byte) bool { return b[42] == rcACK }
	l.A.SetFilter(wire.Out, wire.DropNth(2, isACK))
	for i := range uint32(6) {
		op := byte(rcSendOnly)
		if i%2 == 1 {
			op = rcACK
		}
		l.A.Send(roce{src: 1, dst: 2, vlan: -1, psn: i, opcode: op}.frame())
	}
	r.to(time.Millisecond)
	if got, want := psns(r.got), []int{0, 1, 2, 4, 5}; !slices.Equal(got, want) {
		t.Errorf("PSNs %v, not %v", got, want)
	}
	s := l.A.Stats(wire.Out)
	if s.Dropped[wire.Filtered] != 1 || s.Dropped.Total() != 1 {
		t.Errorf("%+v", s.Dropped)
	}
	conserved(t, s)
	r.end(l.Close)
}

func TestVerdicts(t *testing.T) {
	r := newRig(t)
	l := r.link("delay=1us", "", 1)
	verdicts := map[int]wire.Verdict{1: {Delay: 500}, 2: {Copies: 2}, 3: {Corrupt: true}}
	l.A.SetFilter(wire.Out, func(f wire.Frame) wire.Verdict {
		if f.Priority != 3 {
			t.Errorf("priority %d", f.Priority)
		}
		return verdicts[psn(f.Data)]
	})
	var sent [][]byte
	for i := range uint32(4) {
		b := roce{src: 1, dst: 2, vlan: -1, psn: i, tos: 26 << 2, payload: 64}.frame() // DSCP 26: priority 3
		sent = append(sent, bytes.Clone(b))
		l.A.Send(b)
	}
	r.to(time.Millisecond)
	s := l.A.Stats(wire.Out)
	if s.Duplicated != 2 || s.Reordered != 1 || s.Corrupted != 1 || s.Delivered != 6 {
		t.Errorf("%+v", s)
	}
	if got, want := times(r.got), []time.Duration{1000, 1000, 1000, 1000, 1000, 1500}; !slices.Equal(got, want) {
		t.Fatalf("%v", got)
	}
	for i, n := range []int{0, 2, 2, 2, -3, 1} { // -3: changed in one bit
		wrong := 0
		for k, b := range r.got[i].data {
			for x := b ^ sent[max(n, -n)][k]; x != 0; x &= x - 1 {
				wrong++
			}
		}
		if wrong != 0 && n >= 0 || wrong != 1 && n < 0 {
			t.Errorf("arrival %d: %d bits differ from frame %d", i, wrong, n)
		}
	}
	if &r.got[1].data[0] == &r.got[2].data[0] {
		t.Error("two copies share their memory")
	}
	conserved(t, s)
	r.end(l.Close)
}

// For a fixed seed the number of lost frames is a fixed number; it is in the
// interval that holds a binomial variable except with probability 1e-9
// (Hoeffding: n·t² = ln(2/1e-9)/2).
func TestLossIsBinomial(t *testing.T) {
	const n = 20_000
	bound := math.Sqrt(n * math.Log(2e9) / 2)
	for _, c := range []struct {
		text   string
		p      float64
		reason wire.Reason
		of     func(wire.Stats) uint64
	}{
		{"loss=1%", 0.01, wire.Lost, nil},
		{"loss=30%", 0.3, wire.Lost, nil},
		{"loss=100%", 1, wire.Lost, nil},
		{"burst=1%:100%", 0.01 / 1.01, wire.BurstLost, nil}, // two states; bad for 1/101 of the time
		{"burst=10%:30%:50%", 0.25 * 0.5, wire.BurstLost, nil},
		{"dup=7%", 0.07, 0, func(s wire.Stats) uint64 { return s.Duplicated }},
		{"corrupt=7%", 0.07, 0, func(s wire.Stats) uint64 { return s.Corrupted }},
		{"reorder=7%:1us", 0.07, 0, func(s wire.Stats) uint64 { return s.Reordered }},
	} {
		r := newRig(t)
		l := r.link(c.text, "", 42)
		l.B.Connect(func([]byte) {})
		for range n {
			l.A.Send(make([]byte, 64))
			r.to(r.clock.Now())
		}
		r.to(r.clock.Now() + time.Second)
		s := l.A.Stats(wire.Out)
		got := s.Dropped[c.reason]
		if c.of != nil {
			got = c.of(s)
		} else if s.Dropped.Total() != got {
			t.Errorf("%s: drops for other reasons: %v", c.text, s.Dropped)
		}
		if d := math.Abs(float64(got) - n*c.p); d > bound || c.p == 1 && got != n {
			t.Errorf("%s: %d of %d: %.0f from the mean, of %.0f", c.text, got, n, d, bound)
		}
		if s.Flying != 0 || s.Queued != 0 {
			t.Errorf("%s: %d and %d are still there", c.text, s.Flying, s.Queued)
		}
		conserved(t, s)
		r.end(l.Close)
	}
}

// Losses of a burst come together: with End 50% a bad wire lasts two frames on
// average, so two of three losses or so follow another one.
func TestBurstsAreBursts(t *testing.T) {
	r := newRig(t)
	l := r.link("burst=1%:50%", "", 7)
	const n = 20_000
	lost := make([]bool, n)
	for i := range n {
		before := l.A.Stats(wire.Out).Dropped[wire.BurstLost]
		l.A.Send(make([]byte, 64))
		lost[i] = l.A.Stats(wire.Out).Dropped[wire.BurstLost] > before
	}
	after, all := 0, 0
	for i := 1; i < n; i++ {
		if lost[i-1] {
			all++
			if lost[i] {
				after++
			}
		}
	}
	if all < 200 || float64(after) < 0.4*float64(all) || float64(after) > 0.6*float64(all) {
		t.Errorf("%d of %d losses are followed by another, not half of them", after, all)
	}
	r.end(l.Close)
}

func TestJitter(t *testing.T) {
	for _, c := range []struct {
		text         string
		least, most  time.Duration
		mean, within float64
	}{
		{"delay=10us,jitter=8us", 10000, 18000, 14000, 300},
		{"delay=10us,jitter=1us:normal", 6000, 14000, 10000, 150},
		{"delay=10us,jitter=1us:exp", 10000, 18000, 11000, 150},
		{"delay=1us,jitter=1us:normal", 0, 5000, 1083, 150}, // cut at 0
	} {
		r := newRig(t)
		l := r.link(c.text, "", 3)
		const n = 2000
		var sum float64
		for range n {
			start := r.clock.Now()
			l.A.Send(make([]byte, 64))
			r.to(start + time.Millisecond)
			took := r.got[len(r.got)-1].at - start
			if took < c.least || took > c.most {
				t.Fatalf("%s: %v", c.text, took)
			}
			sum += float64(took)
		}
		if mean := sum / n; math.Abs(mean-c.mean) > c.within {
			t.Errorf("%s: a mean of %.0f ns, not %.0f", c.text, mean, c.mean)
		}
		r.end(l.Close)
	}
}

// Jitter alone changes no order; reordering does, by what it says.
func TestOrder(t *testing.T) {
	const n = 500
	run := func(text string) []int {
		r := newRig(t)
		l := r.link(text, "", 5)
		for i := range uint32(n) {
			l.A.Send(roce{src: 1, dst: 2, vlan: -1, psn: i}.frame())
		}
		r.to(time.Second)
		conserved(t, l.A.Stats(wire.Out))
		r.end(l.Close)
		return psns(r.got)
	}
	if got := run("rate=10G,delay=1us,jitter=50us:exp"); len(got) != n || !slices.IsSorted(got) {
		t.Errorf("%d frames, in order: %v", len(got), slices.IsSorted(got))
	}
	got := run("rate=10G,delay=1us,reorder=5%:10us")
	late := 0
	for i := 1; i < len(got); i++ {
		if got[i] < got[i-1] {
			late++
		}
	}
	if len(got) != n || late < 5 || late > 60 {
		t.Errorf("%d frames, %d of them late", len(got), late)
	}
}

func TestSameSeedSameRun(t *testing.T) {
	run := func(seed uint64) []arrival {
		r := newRig(t)
		l := r.link("rate=10G,delay=2us,jitter=1us,loss=5%,dup=5%,reorder=5%:3us,corrupt=5%", "", seed)
		for i := range uint32(300) {
			l.A.Send(roce{src: 1, dst: 2, vlan: -1, psn: i, payload: int(i) * 4}.frame())
		}
		r.to(time.Second)
		r.end(l.Close)
		return r.got
	}
	same := func(a, b arrival) bool { return a.at == b.at && bytes.Equal(a.data, b.data) }
	a, b, c := run(1), run(1), run(2)
	if !slices.EqualFunc(a, b, same) {
		t.Error("the same seed gave another run")
	}
	if slices.EqualFunc(a, c, same) {
		t.Error("another seed gave the same run")
	}
}

// What a direction holds is bounded, and what is dropped for that is counted.
func TestBounds(t *testing.T) {
	r := newRig(t)
	l := r.link("rate=1G,delay=1ms,queue=10K,flight=20K", "", 1)
	for range 100 {
		l.A.Send(sized(1, 2, 1000))
	}
	s := l.A.Stats(wire.Out)
	if s.Queued != 10 || s.Flying != 1 || s.Dropped[wire.QueueFull] != 89 || s.MaxQueuedBytes != 10000 {
		t.Errorf("a queue of 10 K holds %d, on the wire %d, dropped %d, at most %d bytes", s.Queued, s.Flying, s.Dropped[wire.QueueFull], s.MaxQueuedBytes)
	}
	set(t, l.A, wire.Out, "delay=1s,flight=20K")
	for range 100 {
		l.A.Send(sized(1, 2, 1000))
	}
	s = l.A.Stats(wire.Out)
	if s.Queued != 10+8 || s.Flying != 1 || s.Dropped[wire.FlightFull] != 92 {
		t.Errorf("20 K in flight are %d and %d frames, dropped %d", s.Queued, s.Flying, s.Dropped[wire.FlightFull])
	}
	l.A.Send(make([]byte, 13))
	l.A.Send(make([]byte, wire.MaxFrame+1))
	l.A.Send(nil)
	l.B.Connect(nil)
	r.to(time.Minute)
	s = l.A.Stats(wire.Out)
	if s.Dropped[wire.Malformed] != 3 || s.Dropped[wire.NoReceiver] != 19 || s.Flying != 0 || s.Delivered != 0 {
		t.Errorf("%+v", s)
	}
	conserved(t, s)
	r.end(l.Close)
	l.A.Send(sized(1, 2, 100))
	if s := l.A.Stats(wire.Out); s.Dropped[wire.WireClosed] != 1 {
		t.Errorf("after Close: %+v", s.Dropped)
	}
}

// An endpoint that minds the backlog loses nothing in front of a slow wire.
func TestRoom(t *testing.T) {
	r := newRig(t)
	l := r.link("rate=1G,queue=5K", "", 1)
	left := 200
	fill := func(prio int) {
		for left > 0 && l.A.Backlog(prio)+1000 <= 5000 {
			left--
			l.A.Send(sized(1, 2, 1000))
		}
	}
	l.A.OnRoom(2000, func(prio int) {
		if waiting := l.A.Backlog(prio); waiting > 2000 {
			t.Errorf("there is room: %d bytes wait", waiting)
		}
		fill(prio)
	})
	fill(0)
	r.to(time.Second)
	s := l.A.Stats(wire.Out)
	if s.Delivered != 200 || s.Dropped.Total() != 0 {
		t.Errorf("%+v", s)
	}
	if got, want := r.got[199].at, 200*8192*time.Nanosecond; got != want {
		t.Errorf("the last arrives after %v, not %v: the wire was idle", got, want)
	}
	r.end(l.Close)
}

// Close drops what is on its way, whatever state it is in, and counts it.
func TestCloseInFlight(t *testing.T) {
	r := newRig(t)
	l := r.link("rate=1G,delay=1ms,dup=50%", "", 1)
	for range 50 {
		l.A.Send(sized(1, 2, 1000))
	}
	r.to(100 * time.Microsecond)
	l.Close()
	l.Close()
	s := l.A.Stats(wire.Out)
	if s.Queued != 0 || s.Flying != 0 || s.Delivered != 0 || s.Dropped[wire.WireClosed] != 50+s.Duplicated {
		t.Errorf("%+v", s)
	}
	conserved(t, s)
	r.to(time.Second)
	if len(r.got) != 0 {
		t.Errorf("%d frames after Close", len(r.got))
	}
	r.clock.Busy(-1)
}

// What happens one way says nothing about the other, and a filter sees PAUSE
// frames too.
func TestWaysAreIndependent(t *testing.T) {
	r := newRig(t)
	l := r.link("loss=50%", "loss=50%", 1)
	for i := range uint32(64) {
		l.A.Send(roce{src: 1, dst: 2, vlan: -1, psn: i}.frame())
		l.B.Send(roce{src: 2, dst: 1, vlan: -1, psn: i}.frame())
	}
	r.to(1)
	var got [2][]arrival
	for _, a := range r.got {
		got[a.port] = append(got[a.port], a)
	}
	if slices.Equal(psns(got[0]), psns(got[1])) {
		t.Error("both ways lost the same frames")
	}
	l.A.SetFilter(wire.Out, func(f wire.Frame) wire.Verdict {
		if f.Priority != wire.Priorities-1 {
			t.Errorf("a PAUSE frame of priority %d", f.Priority)
		}
		return wire.Verdict{Drop: true}
	})
	l.A.Send(pause(1, 1))
	if s := l.A.Stats(wire.Out); s.Dropped[wire.Filtered] != 1 || s.Control != 0 {
		t.Errorf("%+v", s)
	}
	r.end(l.Close)
}
