// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"devxlab.example/mlx5"
)

// engine is the device's schedule: a command waits for a free slot of the
// command queue, then for the one worker that submits, then for a firmware
// thread, and then takes its latency. Since each wait is first come, first
// served, the end of a command is known when it arrives.
type engine struct {
	mu      sync.Mutex
	profile *Profile
	rng     *rand.Rand
	slots   []time.Duration // when each becomes free
	threads []time.Duration
	worker  time.Duration

	commands atomic.Uint64
	inFlight atomic.Int64
	most     atomic.Int64
}

func newEngine(p *Profile, seed uint64) *engine {
	return &engine{
		profile: p,
		rng:     rand.New(rand.NewPCG(seed, 0x6d6c7835)),
		slots:   make([]time.Duration, p.Slots),
		threads: make([]time.Duration, p.Threads),
	}
}

// reserve returns when a command that arrives now will be done. extra and miss
// are what it takes on account of the queue pairs that there are.
func (e *engine) reserve(now time.Duration, op mlx5.Op, extra time.Duration, miss bool) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	slot, thread := earliest(e.slots), earliest(e.threads)
	start := max(now, e.slots[slot], e.worker)
	start += e.profile.Submit.At(e.rng.Float64())
	e.worker = start
	took := e.profile.Latency(op, e.rng.Float64()) + extra
	if miss {
		took += e.profile.ContextCache.Miss.At(e.rng.Float64())
	}
	end := max(start, e.threads[thread]) + min(took, MaxLatency)
	e.slots[slot], e.threads[thread] = end, end
	return end
}

func earliest(free []time.Duration) int {
	at := 0
	for i, t := range free {
		if t < free[at] {
			at = i
		}
	}
	return at
}

func (e *engine) enter() {
	e.commands.Add(1)
	n := e.inFlight.Add(1)
	for m := e.most.Load(); n > m && !e.most.CompareAndSwap(m, n); m = e.most.Load() {
	}
}

func (e *engine) leave() { e.inFlight.Add(-1) }

// Stats is what a device has done since it was made.
type Stats struct {
	Commands     uint64 // commands executed, refused ones included
	InFlight     int64  // commands in the device now: executing or waiting
	MostInFlight int64
	QPs          int64 // live queue pairs
	Doorbells    uint64
}
