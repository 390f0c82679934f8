// SPDX-License-Identifier: BSD-2-Clause

package wire_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"devxlab.example/emu/wire"
	"devxlab.example/internal/race"
)

// On the real clock each frame arrives once and not before its time, and close
// ends everything (TestMain looks for what is left).
func TestRealClock(t *testing.T) {
	clock := wire.NewRealClock()
	const delay = 200 * time.Microsecond
	l, err := wire.NewLink(clock, params(t, "rate=1G,delay=200us"), wire.Params{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const n = 50
	sent := make([]time.Duration, n)
	got := make(chan int, n)
	l.B.Connect(func(b []byte) {
		i := psn(b)
		if at, least := clock.Now(), sent[i]+8192*time.Nanosecond+delay; at < least {
			t.Errorf("frame %d is there at %v, %v too early", i, at, least-at)
		}
		got <- i
	})
	for i := range n {
		b := sized(1, 2, 1000)
		b[14+20+udpSize+11] = byte(i)
		sent[i] = clock.Now()
		l.A.Send(b)
		if i%2 == 1 && (<-got != i-1 || <-got != i) { // two at once
			t.Errorf("frames %d and %d are not in order", i-1, i)
		}
	}
	if s := l.A.Stats(wire.Out); s.Delivered != n || s.Dropped.Total() != 0 {
		t.Errorf("%+v", s)
	}
}

// Everything at once, from many goroutines, until it is closed under way. The
// race detector watches; every frame is accounted for.
func TestConcurrentUse(t *testing.T) {
	clock := wire.NewRealClock()
	s, err := wire.NewSwitch(clock, 4, params(t, "rate=10G,delay=10us,jitter=5us,loss=1%,dup=1%,reorder=1%:20us,ecn=5K:20K:10%,pfc=3,xoff=20K,xon=10K"), 1)
	if err != nil {
		t.Fatal(err)
	}
	tap := wire.NewTap(devNull{}, wire.TapOptions{Drops: true})
	var received, closed atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range s.Ports() {
		p := s.Port(i)
		if err := p.Tap(tap, "port"); err != nil {
			t.Fatal(err)
		}
		p.Connect(func(b []byte) {
			if closed.Load() != 0 {
				t.Error("a receiver is called after Close")
			}
			b[0] = 0xff // it is the receiver's
			if received.Add(1) == 5000 {
				close(stop)
			}
			if b[11] != byte(i) && b[14+20+udpSize] == rcSendOnly {
				p.Send(roce{src: byte(i), dst: b[11], vlan: -1, opcode: rcACK}.frame())
			}
		})
		for range 2 {
			wg.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					if p.Backlog(3) < 20_000 {
						p.Send(roce{src: byte(i), dst: byte((i + 1 + n%3) % 4), vlan: -1, tos: 26<<2 | ecn0, payload: 512}.frame())
					} else {
						time.Sleep(10 * time.Microsecond) // let it drain
					}
					switch n % 64 {
					case 0:
						conserved(t, p.Stats(wire.Way(n/64%2)))
					case 1:
						if err := p.SetParams(wire.In, p.Params(wire.Out)); err != nil {
							t.Error(err)
						}
					case 2:
						p.SetFilter(wire.Out, wire.DropNth(5, nil))
					}
				}
			})
		}
	}
	<-stop
	s.Close()
	closed.Store(1)
	wg.Wait()
	for i := range s.Ports() {
		for _, w := range []wire.Way{wire.Out, wire.In} {
			if s := s.Port(i).Stats(w); s.Queued+s.Flying != 0 {
				t.Errorf("left: %+v", s)
			}
			conserved(t, s.Port(i).Stats(w))
		}
	}
	if err := tap.Close(); err != nil {
		t.Error(err)
	}
}

type devNull struct{}

func (devNull) Write(b []byte) (int, error) { return len(b), nil }

// A receiver that is running when Close is called has finished when it returns.
func TestCloseWaitsForReceiver(t *testing.T) {
	l, err := wire.NewLink(wire.NewRealClock(), wire.Params{}, wire.Params{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	begun, goOn := make(chan struct{}), make(chan struct{})
	var finished atomic.Bool
	l.B.Connect(func([]byte) {
		close(begun)
		<-goOn
		for range 1000 {
			runtime.Gosched() // time for a Close that does not wait
		}
		finished.Store(true)
	})
	l.A.Send(sized(1, 2, 100))
	<-begun
	done := make(chan bool)
	go func() {
		l.Close()
		done <- finished.Load()
	}()
	for l.A.Stats(wire.Out).Dropped[wire.WireClosed] == 0 { // until Close is under way
		l.B.Connect(nil)
		l.A.Send(sized(1, 2, 100))
	}
	close(goOn)
	if !<-done {
		t.Error("Close returned while a receiver was running")
	}
}

// In the steady state a frame costs no allocation, neither on a link nor through
// a switch with queues, marks, jitter, PFC and a tap.
func TestNoAllocation(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for _, ports := range []int{2, 4} {
		a, z, end := pair(t, wire.NewRealClock(), "rate=400G,delay=1us,jitter=1us,ecn=1K:4K:10%,pfc,xoff=100K,xon=50K", ports)
		tap := wire.NewTap(devNull{}, wire.TapOptions{Buffer: 1 << 16})
		if err := z.Tap(tap, "z"); err != nil {
			t.Fatal(err)
		}
		back := make(chan []byte, 8)
		z.Connect(func(b []byte) { back <- b })
		a.SetFilter(wire.Out, func(f wire.Frame) wire.Verdict { return wire.Verdict{Drop: len(f.Data) > 2000} })
		var window [8][]byte
		for i := range window {
			window[i] = roce{src: 0, dst: 1, vlan: -1, tos: 26<<2 | ecn0, payload: 1024}.frame()
		}
		got := testing.AllocsPerRun(500, func() {
			for _, b := range window {
				a.Send(b)
			}
			for i := range window {
				window[i] = <-back
			}
		})
		if got >= 1 {
			t.Errorf("%d ports: %v allocations for %d frames", ports, got, len(window))
		}
		end()
		if err := tap.Close(); err != nil {
			t.Error(err)
		}
	}
}
