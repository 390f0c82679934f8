// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"devxlab.example/mlx5"
)

// The list against a slice in the order of use, across the border of a chunk.
func TestLRUModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 8).Draw(t, "most")
		l := newLRU(most)
		var model []uint32 // the last used first
		place := rapid.SampledFrom([]uint32{0, 1, 2, 3, 4, 5, 6, 7, 254, 255, 256, 257, 1000, 1<<22 - 1})
		t.Repeat(map[string]func(*rapid.T){
			"use": func(t *rapid.T) {
				p := place.Draw(t, "place")
				at := slices.Index(model, p)
				if at >= 0 {
					model = slices.Delete(model, at, at+1)
				}
				model = slices.Insert(model, 0, p)
				model = model[:min(len(model), most)]
				if hit := l.use(p); hit != (at >= 0) {
					t.Fatalf("use(%d) is %v, was at %d", p, hit, at)
				}
			},
			"drop": func(t *rapid.T) {
				p := place.Draw(t, "place")
				l.drop(p)
				model = slices.DeleteFunc(model, func(x uint32) bool { return x == p })
			},
			"": func(t *rapid.T) {
				if l.n != len(model) {
					t.Fatalf("%d remembered, want %d", l.n, len(model))
				}
				forth, back := uint32(0), uint32(0)
				for i, p := range model {
					if forth = l.at(forth).next; forth != p+1 {
						t.Fatalf("number %d is %d, want %v", i, int(forth)-1, model)
					}
				}
				for i := len(model) - 1; i >= 0; i-- {
					if back = l.at(back).prev; back != model[i]+1 {
						t.Fatalf("backwards, number %d is %d, want %v", i, int(back)-1, model)
					}
				}
				if l.at(forth).next != 0 || l.at(back).prev != 0 {
					t.Fatal("the ring does not close")
				}
			},
		})
	})
}

func TestLinkSize(t *testing.T) {
	if n := reflect.TypeFor[link]().Size(); n > 8 {
		t.Errorf("a link has %d bytes", n)
	}
}

// timed is a rig whose commands take time, each on its own.
type timed struct{ *rig }

func newTimed(t testing.TB, p *Profile) timed {
	t.Helper()
	if err := p.Compile(); err != nil {
		t.Fatal(err)
	}
	return timed{newRig(t, Config{Profile: p, Clock: &VirtualClock{}})}
}

// took runs a command, whatever the answer, and returns its time.
func (r timed) took(in []byte) time.Duration {
	start := r.h.clock.Now()
	r.exec(in)
	return r.h.clock.Now() - start
}

func (r timed) want(what string, got, want time.Duration) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s takes %v, want %v", what, got, want)
	}
}

// commands returns one of each kind about a queue pair; the last destroys it.
func (r timed) commands(qpn uint32) [][]byte {
	return [][]byte{
		r.modify(mlx5.OpRST2INIT, qpn), r.modify(mlx5.OpINIT2INIT, qpn), r.modify(mlx5.OpINIT2RTR, qpn), r.modify(mlx5.OpRTR2RTS, qpn),
		r.modify(mlx5.OpRTS2RTS, qpn), about(mlx5.OpQueryQP, r.uid, qpn), about(mlx5.Op2ERR, r.uid, qpn), about(mlx5.Op2RST, r.uid, qpn),
		r.modify(mlx5.OpSQERR2RTS, qpn), // refused for the state: the context was looked at
		about(mlx5.OpDestroyQP, r.uid, qpn),
	}
}

// Commands on queue pairs take longer by what is alive when they arrive, to the
// nanosecond; no others do.
func TestPer1000QPs(t *testing.T) {
	p := fixedProfile(t, 31, 8, 0, 100*us)
	p.Per1000QPs = 1500 * time.Nanosecond // 1.5 ns each
	r := newTimed(t, p)
	extra := func(live int) time.Duration { return 1500 * time.Duration(live) / 1000 }
	first := uint32(0)
	for live := range 2001 {
		start := r.h.clock.Now()
		qpn := r.made(r.qp(mlx5.STRC))
		r.want("CREATE_QP", r.h.clock.Now()-start, 100*us+extra(live))
		if live == 0 {
			first = qpn
		}
	}
	for _, in := range r.commands(first) {
		r.want(mlx5.OpOf(in).String(), r.took(in), 100*us+extra(2001))
	}
	r.want("QUERY_QP after a DESTROY_QP", r.took(about(mlx5.OpQueryQP, r.uid, first+1)), 100*us+extra(2000))
	for what, in := range map[string][]byte{
		"a command on no queue pair":              build(mlx5.OpNOP, 0),
		"CREATE_CQ":                               r.cq(),
		"a queue pair that is gone":               about(mlx5.OpQueryQP, r.uid, first),
		"a queue pair that never was":             about(mlx5.Op2ERR, r.uid, 0xffffff),
		"somebody else's queue pair":              about(mlx5.OpDestroyQP, 0, first+1),
		"a transition that is too short":          r.modify(mlx5.OpRST2INIT, first+1)[:16],
		"a command without an object's number":    {5, 1},
		"no command at all":                       {},
		"a command that the device does not have": {0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
	} {
		r.want(what, r.took(in), 100*us)
	}
}

// However much comes together, a command takes MaxLatency at most.
func TestLongestCommand(t *testing.T) {
	p := fixedProfile(t, 1, 1, 0, MaxLatency)
	p.Per1000QPs, p.ContextCache = MaxLatency, &ContextCache{QueuePairs: 1, Miss: Dist{Fixed: MaxLatency}}
	r := newTimed(t, p)
	a := r.made(r.qp(mlx5.STRC))
	r.made(r.qp(mlx5.STRC))
	r.want("QUERY_QP", r.took(about(mlx5.OpQueryQP, r.uid, a)), MaxLatency)
}

// Whoever goes round over as many contexts as fit never waits; one more, and
// every command does.
func TestContextCache(t *testing.T) {
	const fits = 300 // more than a chunk
	p := fixedProfile(t, 31, 8, 0, 100*us)
	p.ContextCache = &ContextCache{QueuePairs: fits, Miss: Dist{Fixed: 7 * us}}
	r := newTimed(t, p)
	var qpns []uint32
	create := func() {
		start := r.h.clock.Now()
		qpns = append(qpns, r.made(r.qp(mlx5.STRC)))
		r.want("CREATE_QP", r.h.clock.Now()-start, 100*us)
	}
	query := func(qpn uint32) time.Duration { return r.took(about(mlx5.OpQueryQP, r.uid, qpn)) }
	for range fits {
		create()
	}
	for range 3 {
		for _, qpn := range qpns {
			r.want("a hit", query(qpn), 100*us)
		}
	}
	create()
	for range 3 {
		for _, qpn := range qpns {
			r.want("a miss", query(qpn), 107*us)
		}
	}
	for _, qpn := range qpns[1:] { // those of the last round
		r.want("a hit", query(qpn), 100*us)
	}

	// What is not there touches nothing, nor does a stranger.
	stranger := r.context()
	for _, in := range [][]byte{
		about(mlx5.OpQueryQP, r.uid, 0), about(mlx5.OpQueryQP, r.uid, 0xffffff), about(mlx5.OpQueryQP, stranger, qpns[0]),
		about(mlx5.Op2ERR, 0, qpns[0]), r.modify(mlx5.OpRST2INIT, qpns[0])[:16],
	} {
		r.want("a refused command", r.took(in), 100*us)
	}
	for _, qpn := range qpns[1:] {
		r.want("a hit", query(qpn), 100*us)
	}

	// Each kind of command pays, once, and DESTROY_QP makes room.
	other := qpns[0]
	for i, in := range r.commands(other) {
		want := 100 * us
		if i == 0 {
			want = 107 * us
		}
		r.want(mlx5.OpOf(in).String(), r.took(in), want)
	}
	if r.h.contexts.n != fits-1 {
		t.Errorf("%d contexts at hand after a DESTROY_QP, want %d", r.h.contexts.n, fits-1)
	}
	r.want("a miss", query(qpns[1]), 107*us) // was the first to go
	r.want("a hit", query(qpns[2]), 100*us)
	for _, qpn := range qpns[1:] {
		r.must(about(mlx5.OpDestroyQP, r.uid, qpn))
	}
	if r.h.contexts.n != 0 {
		t.Errorf("%d contexts at hand, and no queue pair", r.h.contexts.n)
	}
}

// A miss is known when the command arrives: the second of two that arrive
// together finds what the first brings in. The schedule is by hand: submit
// 10 µs, one thread.
func TestContextCacheAtArrival(t *testing.T) {
	p := fixedProfile(t, 31, 1, 10*us, 100*us)
	p.ContextCache = &ContextCache{QueuePairs: 1, Miss: Dist{Fixed: 5 * us}}
	r := newTimed(t, p)
	a := r.made(r.qp(mlx5.STRC))
	r.made(r.qp(mlx5.STRC)) // puts a's out
	clock := r.h.clock
	start := clock.Now()
	var ends [2]time.Duration
	var wg sync.WaitGroup
	clock.Busy(2)
	for i := range ends {
		wg.Go(func() {
			defer clock.Busy(-1)
			r.h.Exec(about(mlx5.OpQueryQP, r.uid, a), make([]byte, mlx5.QueryQPOutSize))
			ends[i] = clock.Now() - start
		})
	}
	wg.Wait()
	slices.Sort(ends[:])
	if want := [2]time.Duration{115 * us, 215 * us}; ends != want {
		t.Errorf("done at %v, want %v", ends, want)
	}
}

// Without misses that cost something there is no list.
func TestContextCacheAbsent(t *testing.T) {
	p := fixedProfile(t, 31, 8, 0, 100*us)
	if r := newTimed(t, p); r.h.contexts != nil {
		t.Error("a list without a cache")
	}
	p.ContextCache = &ContextCache{QueuePairs: 1}
	if r := newTimed(t, p); r.h.contexts != nil {
		t.Error("a list for misses that are free")
	}
}

// The list takes 8 bytes for each queue pair, and the rest of a chunk.
func TestContextCacheMemory(t *testing.T) {
	p := fixedProfile(t, 31, 8, 0, 1)
	p.ContextCache = &ContextCache{QueuePairs: 100, Miss: Dist{Fixed: 1}}
	if err := p.Compile(); err != nil {
		t.Fatal(err)
	}
	const n = 10_000
	r := newRig(t, Config{Profile: p, Clock: &VirtualClock{}, LogMaxQP: logOf(n)})
	r.populate(n)
	if got := len(r.h.contexts.chunks) * chunkLen * 8; got > (n+2*chunkLen)*8 {
		t.Errorf("%d bytes for %d queue pairs", got, n)
	}
}

// Commands from many goroutines, with queue pairs that come and go, leave no
// context of one that is gone.
func TestContextCacheRace(t *testing.T) {
	p := fixedProfile(t, 31, 8, 0, 1)
	p.ContextCache = &ContextCache{QueuePairs: 5, Miss: Dist{Fixed: 1}}
	r := newTimed(t, p)
	var wg sync.WaitGroup
	r.h.clock.Busy(8)
	for range 8 {
		wg.Go(func() {
			defer r.h.clock.Busy(-1)
			out := make([]byte, mlx5.QueryQPOutSize)
			for range 200 {
				r.h.Exec(r.qp(mlx5.STRC), out)
				qpn := binary.BigEndian.Uint32(out[8:])
				for _, id := range []uint32{qpn, qpn - 1, qpn + 1} {
					r.h.Exec(about(mlx5.OpQueryQP, r.uid, id), out)
				}
				r.h.Exec(about(mlx5.OpDestroyQP, r.uid, qpn), out)
			}
		})
	}
	wg.Wait()
	if r.h.contexts.n != 0 || r.h.Stats().QPs != 0 {
		t.Errorf("%d contexts of %d queue pairs", r.h.contexts.n, r.h.Stats().QPs)
	}
}

func TestContextCacheAllocatesNothing(t *testing.T) {
	p := fixedProfile(t, 31, 8, 0, 0)
	p.Per1000QPs, p.ContextCache = 1, &ContextCache{QueuePairs: 1, Miss: Dist{Fixed: 1}}
	if err := p.Compile(); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Config{Profile: p})
	a, b := r.made(r.qp(mlx5.STRC)), r.made(r.qp(mlx5.STRC))
	out := make([]byte, mlx5.QueryQPOutSize)
	cycle := [][]byte{about(mlx5.OpQueryQP, r.uid, a), about(mlx5.OpQueryQP, r.uid, b)}
	if n := testing.AllocsPerRun(100, func() {
		for _, in := range cycle {
			r.h.Exec(in, out)
		}
	}); n != 0 {
		t.Errorf("two misses allocate %v times", n)
	}
}
