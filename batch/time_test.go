// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/emu/uverbs"
	"devxlab.example/mlx5"
)

// slots is the number of commands that the device takes at once.
const slots = 31

// took runs b on a virtual clock and returns what that says.
func took(t *testing.T, b *batch.Batch, e *uverbs.Device) time.Duration {
	t.Helper()
	start := e.HCA().Clock().Now()
	if err := b.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	return e.HCA().Clock().Now() - start
}

// rounds returns how long n commands take, p at once.
func rounds(n, p int) time.Duration { return time.Duration((n+p-1)/p) * latency }

// A group of n transitions of distinct queue pairs at depth d on p firmware
// threads takes exactly ceil(n / min(p, d, 31)) · 200 µs.
func TestGroupTakesItsRounds(t *testing.T) {
	for p := 1; p <= 64; p++ {
		dev, e := emulate(t, fmt.Sprintf("clock=virtual,latency=200us,threads=%d", p))
		qps := newQPs(t, dev, 64)
		for _, depth := range []int{64, 1, 5, 16, 30, 31, 32} {
			step := 1
			if depth != 64 {
				if p%10 > 2 { // 1, 2, 10, …, 30, 31, 32, …
					continue
				}
				step = 9
			}
			b := newBatch(t, dev, batch.Options{Group: 64, Depth: depth})
			for n := 1; n <= 64; n += step {
				b.Reset()
				addToERR(t, b, qps[:n])
				if got, want := took(t, b, e), rounds(n, min(p, depth, slots)); got != want {
					t.Errorf("%d transitions on %d threads at depth %d took %v, not %v", n, p, depth, got, want)
				}
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A larger batch takes the sum over its groups: none begins before the one
// before it has ended.
func TestBatchTakesTheSumOfItsGroups(t *testing.T) {
	const p = 64
	d, e := emulate(t, virtual)
	qps := newQPs(t, d, 300)
	for _, o := range []batch.Options{{}, {Group: 1}, {Group: 2, Depth: 64}, {Group: 5, Depth: 3}, {Group: 31}, {Group: 33, Depth: 33}, {Group: 64}} {
		b := newBatch(t, d, o)
		group, depth := o.Group, o.Depth
		if group == 0 {
			group = 32
		}
		if depth == 0 {
			depth = min(group, slots)
		}
		for _, n := range []int{0, 1, 31, 32, 33, 64, 65, 97, 300} {
			var want time.Duration
			for left := n; left > 0; left -= group {
				want += rounds(min(left, group), min(p, depth, slots))
			}
			b.Reset()
			addToERR(t, b, qps[:n])
			if got := took(t, b, e); got != want {
				t.Errorf("%+v: %d transitions took %v, not %v", o, n, got, want)
			}
		}
	}
}

func TestSerialTakesTurns(t *testing.T) {
	d, e := emulate(t, virtual)
	qps := newQPs(t, d, 100)
	b := newBatch(t, d, batch.Options{Strategy: batch.Serial()})
	for _, n := range []int{1, 2, 32, 33, 100} {
		b.Reset()
		addToERR(t, b, qps[:n])
		if got, want := took(t, b, e), time.Duration(n)*latency; got != want {
			t.Errorf("%d transitions took %v, not %v", n, got, want)
		}
		if _, most := b.InFlight(); most != 1 {
			t.Errorf("%d in flight", most)
		}
	}
}

// The default depth is what the device takes at once.
func TestDefaultDepth(t *testing.T) {
	d, _ := emulate(t, virtual)
	qps := newQPs(t, d, 64)
	for group, want := range map[int]int{0: slots, 7: 7, 64: slots} {
		b := newBatch(t, d, batch.Options{Group: group})
		addToERR(t, b, qps)
		if err := b.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, most := b.InFlight(); most != want {
			t.Errorf("group %d: %d in flight, not %d", group, most, want)
		}
	}
}

// Transitions of one queue pair take turns, those of different ones do not.
func TestChainsRunBesideEachOther(t *testing.T) {
	d, e := emulate(t, virtual)
	qps := newQPs(t, d, 8)
	b := newBatch(t, d, batch.Options{Group: 64})
	for i := range 64 {
		add(t, b, qps[i%8], mlx5.ToERR{}, uint64(i))
	}
	if got, want := took(t, b, e), 8*latency; got != want {
		t.Errorf("8 chains of 8 took %v, not %v", got, want)
	}
	b.Reset()
	for i := range 10 { // a long chain beside short ones
		add(t, b, qps[0], mlx5.ToERR{}, uint64(i))
	}
	addToERR(t, b, qps[1:])
	if got, want := took(t, b, e), 10*latency; got != want {
		t.Errorf("a chain of 10 beside 7 of 1 took %v, not %v", got, want)
	}
}

// Two batches on one device share its threads.
func TestTwoBatchesShareADevice(t *testing.T) {
	d, e := emulate(t, "clock=virtual,latency=200us,threads=4")
	qps := newQPs(t, d, 8)
	// One clock has to know of both before either goes on.
	e.HCA().Clock().Busy(1)
	start := e.HCA().Clock().Now()
	errs := make(chan error)
	for range 2 {
		b := newBatch(t, d, batch.Options{Depth: 8})
		addToERR(t, b, qps) // the same queue pairs in both
		go func() { errs <- b.Run(context.Background()) }()
	}
	until(t, "16 commands in flight", func() bool { return e.HCA().Stats().InFlight == 16 })
	e.HCA().Clock().Busy(-1)
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got, want := e.HCA().Clock().Now()-start, rounds(16, 4); got != want {
		t.Errorf("took %v, not %v", got, want)
	}
}

// What a result says about time and concurrency.
func TestResultsTellTheDepth(t *testing.T) {
	d, e := emulate(t, virtual)
	qps := newQPs(t, d, 6)
	b := newBatch(t, d, batch.Options{Depth: 4})
	addToERR(t, b, qps)
	from := time.Now()
	h := hold(context.Background(), t, b, e, 4)
	if n, err := h.end(); err != nil || n != 6 {
		t.Fatal(err, n)
	}
	seen := map[int]int{}
	for i, r := range results(b) {
		seen[r.InFlight]++
		if r.Outcome != batch.Done || r.Err != nil || r.Tag != uint64(i) || r.QP != qps[i] || r.Op != mlx5.Op2ERR {
			t.Errorf("entry %d: %+v", i, r)
		}
		if r.Sent.Before(from) || r.Took <= 0 || r.Sent.Add(r.Took).After(time.Now()) {
			t.Errorf("entry %d: sent %v, took %v", i, r.Sent.Sub(from), r.Took)
		}
	}
	// The first four as they go out, then one more each time that one is back.
	if want := (map[int]int{1: 1, 2: 1, 3: 1, 4: 3}); !maps.Equal(seen, want) {
		t.Errorf("in flight: %v, not %v", seen, want)
	}
	mean, most := b.InFlight()
	if most != 4 || mean <= 0 || mean > 4 || b.Elapsed() <= 0 {
		t.Errorf("mean %v, most %d, elapsed %v", mean, most, b.Elapsed())
	}
}

// A Carrier of someone else's gets chains, each of which it may send anywhere.
func TestOwnStrategy(t *testing.T) {
	d, _ := emulate(t, virtual)
	qps := newQPs(t, d, 3)
	s := &halfStrategy{}
	b := newBatch(t, d, batch.Options{Strategy: s})
	for i := range 6 {
		add(t, b, qps[i%3], mlx5.ToERR{}, uint64(i))
	}
	err := b.Run(context.Background())
	text(t, err, "batch: 0 failed, 4 not sent (the strategy left it out), 0 unknown")
	if got := outcomes(b); got != "DNNDNN" || s.chains != 3 || s.groups != 1 {
		t.Errorf("%s, %d chains, %d groups", got, s.chains, s.groups)
	}
	b.Reset()
	addToERR(t, b, qps)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if partial(t, b.Run(ctx)); s.groups != 1 {
		t.Error("it got a group to carry although the context had ended")
	}
}

// halfStrategy sends the first chain only.
type halfStrategy struct {
	s              *devx.Submitter
	groups, chains int
}

func (h *halfStrategy) Name() string { return "half" }
func (h *halfStrategy) Close() error { return h.s.Close() }
func (h *halfStrategy) Start(d *devx.Device) (c batch.Carrier, err error) {
	h.s, err = d.NewSubmitter()
	return h, err
}
func (h *halfStrategy) Carry(g *batch.Group) {
	h.groups, h.chains = h.groups+1, g.Chains()
	g.Send(0, h.s)
}
