// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import (
	"runtime"
	"testing"
	"time"

	"devxlab.example/devx"
	"devxlab.example/internal/race"
)

// pendingBytes is what a pending transition may take.
const pendingBytes = 128

// Bytes of heap for one of 100,000 pending transitions, of the kind with the most
// attributes.
func TestMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector has memory of its own")
	}
	const n = 100_000
	r := newRig(t, 1, Options{})
	q, err := r.qps[0].Device().NewQP(devx.QPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r.in(time.Hour, 0, 0)
	before := heapBytes()
	for i := range n {
		if _, err := Defer(r.Scheduler, q, everything, r.timer.Now().Add(time.Hour+time.Duration(i*7919%n))); err != nil {
			t.Fatal(err)
		}
	}
	per := float64(heapBytes()-before) / n
	t.Logf("%.1f bytes", per)
	if per > pendingBytes {
		t.Errorf("%.1f bytes for one, more than %d", per, pendingBytes)
	}
	if c := r.Counts(); c.Pending != n+1 {
		t.Errorf("%+v", c)
	}
}

func heapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Deferring and cancelling allocate nothing once there was room for as many.
func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	r := newRig(t, 1, Options{})
	for i := range 1000 {
		r.Cancel(r.in(time.Hour, 0, i))
	}
	if n := testing.AllocsPerRun(1000, func() { r.Cancel(r.in(time.Hour, 0, 1)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
