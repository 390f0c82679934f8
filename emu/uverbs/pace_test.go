// SPDX-License-Identifier: BSD-2-Clause

package uverbs_test

import (
	"testing"
	"time"

	"devxlab.example/emu/wire"
	"devxlab.example/mlx5"
)

// A link with a rate: queue pairs that have more to send than it takes neither
// lose a frame at it nor fill it without bound, and use the whole of it.
func TestPacedWire(t *testing.T) {
	const (
		pairs    = 24 // first turns that are more than a wire holds
		messages = 6
		size     = 64 << 10
		held     = 512 << 10 // what waits at most: half of the queue that a wire has by default
		rate     = 10_000_000_000
	)
	a, b := newNode(t, size, "clock=virtual:paced"), newNode(t, size, "clock=virtual:paced", "addr=2")
	clock := a.hca.Clock()
	a.d.Busy(1)
	defer a.d.Busy(-1)
	l := wireOf(t, a, b, wire.Params{Rate: rate, Delay: 5 * time.Microsecond}, wire.Params{Delay: 5 * time.Microsecond}, 1)
	var from []*end
	for range pairs {
		x, y := a.end(mlx5.STRC), b.end(mlx5.STRC)
		connect(x, y, link{mlx5.MTU4096, 14, 7})
		from = append(from, x)
	}
	start := clock.Now()
	for _, x := range from {
		for range messages {
			x.post(mlx5.SendWQE{Op: mlx5.WQEWrite, Signaled: true, RemoteAddr: b.mem.Addr(), RKey: b.key.Key(), Data: []mlx5.SGE{a.sge(0, size)}})
		}
	}
	for _, x := range from {
		for range messages {
			x.completes(mlx5.CQERequest, 0)
		}
	}
	took := clock.Now() - start
	st := l.A.Stats(wire.Out)
	const packets = pairs * messages * size / 4096
	if st.Sent != packets || st.Delivered != packets {
		t.Errorf("%d frames sent and %d delivered, %d needed", st.Sent, st.Delivered, packets)
	}
	if st.MaxQueuedBytes > held {
		t.Errorf("%d bytes waited, want at most %d", st.MaxQueuedBytes, held)
	}
	onWire := time.Duration((st.SentBytes + 24*st.Sent) * 8 * uint64(time.Second) / rate)
	if took < onWire || took > onWire+onWire/20 {
		t.Errorf("it took %v; the link needs %v", took, onWire)
	}
	t.Logf("%d bytes in %v, %v of them on the wire; at most %d waited", st.SentBytes, took, onWire, st.MaxQueuedBytes)
}

// A priority that is paused holds its own queue pairs and no others, and goes on
// where it was.
func TestPacedPriorities(t *testing.T) {
	const size = 64 << 10
	a, b := newNode(t, size, "clock=virtual:pfc"), newNode(t, size, "clock=virtual:pfc", "addr=2")
	clock := a.hca.Clock()
	a.d.Busy(1)
	defer a.d.Busy(-1)
	p := wire.Params{Rate: 10_000_000_000, PFC: wire.PFC{Priorities: 1 << 3}}
	l := wireOf(t, a, b, p, p, 1)
	const pausedDSCP = 3 << 5
	ends := map[uint8]*end{}
	for _, class := range []uint8{0, pausedDSCP} {
		x, y := a.end(mlx5.STRC), b.end(mlx5.STRC)
		a.path.TClass, b.path.TClass = mlx5.Set(int(class)), mlx5.Set(int(class))
		connect(x, y, link{mlx5.MTU1024, 22, 7}) // 17 s: nothing is sent again
		ends[class] = x
	}
	write := mlx5.SendWQE{Op: mlx5.WQEWrite, Signaled: true, RemoteAddr: b.mem.Addr(), RKey: b.key.Key(), Data: []mlx5.SGE{a.sge(0, size)}}
	pause := func(quanta uint16) {
		f := make([]byte, 60)
		copy(f, []byte{0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0x08, 0x01, 0x01, 0, 1 << 3})
		f[18+6], f[18+7] = byte(quanta>>8), byte(quanta)
		l.B.Send(f)
	}
	for range 20 {
		pause(0xffff) // 3.3 ms of it
		clock.SleepUntil(clock.Now() + time.Millisecond)
		ends[0].post(write)
		ends[pausedDSCP].post(write)
		ends[0].completes(mlx5.CQERequest, 0)
	}
	// Nor those that are new, or that talk with the device itself.
	pause(0xffff)
	clock.SleepUntil(clock.Now() + time.Millisecond)
	a.path.TClass, b.path.TClass = mlx5.Set(0), mlx5.Set(0)
	x, y := a.end(mlx5.STRC), b.end(mlx5.STRC)
	connect(x, y, link{mlx5.MTU1024, 22, 7})
	x.post(write)
	x.completes(mlx5.CQERequest, 0)
	own, other := a.end(mlx5.STRC), a.end(mlx5.STRC)
	connect(own, other, link{mlx5.MTU1024, 22, 7})
	own.post(mlx5.SendWQE{Op: mlx5.WQEWrite, Signaled: true, RemoteAddr: a.mem.Addr(), RKey: a.key.Key(), Data: write.Data})
	own.completes(mlx5.CQERequest, 0)
	if c, ok := ends[pausedDSCP].poll(); ok {
		t.Fatalf("a completion although its priority was paused: %x", []byte(c))
	}
	if n := l.A.Backlog(3); n < 128<<10 || n > 384<<10 {
		t.Errorf("%d bytes wait", n)
	}
	pause(0)
	for range 20 {
		ends[pausedDSCP].completes(mlx5.CQERequest, 0)
	}
	if st := l.A.Stats(wire.Out); st.Dropped != [len(st.Dropped)]uint64{} || st.Sent != (2*20+1)*64 {
		t.Errorf("%+v", st)
	}
}
