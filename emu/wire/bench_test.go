// SPDX-License-Identifier: BSD-2-Clause

package wire_test

import (
	"testing"
	"time"

	"devxlab.example/emu/fw"
	"devxlab.example/emu/wire"
)

// pair is two ports of a link, or of a switch that knows address 1 at the second.
func pair(t testing.TB, clock wire.Clock, text string, ports int) (a, z *wire.Port, end func()) {
	p := params(t, text)
	if ports == 2 {
		l, err := wire.NewLink(clock, p, p, 1)
		if err != nil {
			t.Fatal(err)
		}
		return l.A, l.B, l.Close
	}
	s, err := wire.NewSwitch(clock, ports, p, 1)
	if err != nil {
		t.Fatal(err)
	}
	flooded := make(chan []byte, ports)
	s.Port(0).Connect(func(b []byte) { flooded <- b })
	s.Port(1).Send(sized(1, 0, 1100))
	if c, virtual := clock.(virtualClock); virtual {
		c.SleepUntil(c.Now() + time.Millisecond)
	}
	<-flooded
	return s.Port(0), s.Port(1), s.Close
}

// onVirtual sends frames round: what has arrived is sent again, so that none is
// made. What allocates here is the virtual clock.
func onVirtual(b *testing.B, text string, ports int) {
	clock := virtualClock{&fw.VirtualClock{}}
	clock.Busy(1)
	a, z, end := pair(b, clock, text, ports)
	const batch = 64
	frames := make([][]byte, 0, batch)
	z.Connect(func(f []byte) { frames = append(frames, f) })
	for len(frames) < batch {
		frames = append(frames, roce{src: 0, dst: 1, vlan: -1, tos: 26<<2 | ecn0, payload: 1024}.frame())
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += batch {
		for _, f := range frames {
			a.Send(f)
		}
		frames = frames[:0]
		clock.SleepUntil(clock.Now() + 20*time.Microsecond)
		if len(frames) != batch {
			b.Fatalf("%d of %d frames are back", len(frames), batch)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "frames/s")
	end()
	clock.Busy(-1)
}

// onReal has one goroutine that sends, and no more in flight than the window.
func onReal(b *testing.B, text string, ports int) {
	a, z, end := pair(b, wire.NewRealClock(), text, ports)
	defer end()
	back := make(chan []byte, 256)
	z.Connect(func(f []byte) { back <- f })
	for range cap(back) {
		back <- roce{src: 0, dst: 1, vlan: -1, tos: 26<<2 | ecn0, payload: 1024}.frame()
	}
	b.ReportAllocs()
	for b.Loop() {
		a.Send(<-back)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "frames/s")
}

const (
	plain = "rate=400G,delay=1us"
	full  = plain + ",jitter=1us,ecn=10K:400K:10%,pfc"
)

func BenchmarkLinkVirtual(b *testing.B)   { onVirtual(b, plain, 2) }
func BenchmarkSwitchVirtual(b *testing.B) { onVirtual(b, full, 4) }
func BenchmarkLink(b *testing.B)          { onReal(b, plain, 2) }
func BenchmarkLinkFull(b *testing.B)      { onReal(b, full, 2) }
func BenchmarkSwitch(b *testing.B)        { onReal(b, plain, 4) }
func BenchmarkSwitchFull(b *testing.B)    { onReal(b, full, 32) }
