// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"devxlab.example/devx"
)

// scale asks whether our own code slows down with the number of live queue
// pairs: what firmware and kernel do with it is not in emu.
var scale = Experiment{
	Name:     "scale",
	Question: "Does a modify cost more with 1,000,000 live queue pairs than with 1,000, in our own code?",
	EmuOnly:  true,
	run:      runScale,
	text:     scaleText,
}

const (
	scaleMany  = 1_000_000
	scaleFew   = 1_000
	scalePairs = 40
	scaleSweep = 5 // passes over the working set in one sample
)

// Memory is what live queue pairs of an emulated device take, in bytes for one.
type Memory struct {
	QueuePairs int   `json:"queue_pairs"`
	Heap       Float `json:"heap"`     // Go heap after a collection: emulated context, handle, and the program's devx.QP
	Sys        Float `json:"sys"`      // what the Go runtime took from the system more
	Resident   Float `json:"resident"` // VmRSS, the memory returned that could be
	QP         int   `json:"devx_qp"`  // size of devx.QP, the program's part of Heap
	Mapped     int   `json:"mapped"`   // address space of its queues and doorbell record: never touched here, so not resident
}

// herd is a bed with many queue pairs.
type herd struct {
	bed
	all []*devx.QP // in random order
}

// pick returns k queue pairs, every stride-th from the one at first on.
func (h *herd) pick(k, first, stride int) []*devx.QP {
	var set []*devx.QP
	for i := range k {
		set = append(set, h.qps[first+i*stride])
	}
	return set
}

func runScale(ctx context.Context, r *Run) (err error) {
	many, few := scaleMany, scaleFew
	if r.small {
		many, few = 3000, 10
	}
	r.Method = fmt.Sprintf("Two emulated devices, one with %s queue pairs and one with %s; RTR to RTS (devx.Modify), interleaved pairs.", count(many), count(few))
	r.Params["live"], r.Params["live_few"] = many, few
	before := readMemory()
	big, err := newHerd(ctx, r, "emu:log_max_qp=20,name=scale-many", many)
	if err != nil {
		return err
	}
	defer closed(&err, big.d)
	r.Memory = readMemory().since(before, many)
	small, err := newHerd(ctx, r, "emu:log_max_qp=20,name=scale-few", few)
	if err != nil {
		return err
	}
	defer closed(&err, small.d)
	pairs := r.pairs(scalePairs)
	runtime.GC() // so that none falls into a sample: a modify allocates nothing
	for _, x := range []struct {
		kind string
		set  []*devx.QP
	}{
		{"neighbours", big.pick(few, many/2, 1)},
		{"spread", big.pick(few, 0, many/few)},
	} {
		if err := r.against(ctx, pairs, big.workingSet(x.kind, x.set), small.workingSet(x.kind, small.qps)); err != nil {
			return err
		}
	}
	slice := many / (pairs + 1)
	rng := rand.New(rand.NewPCG(r.seed, 0x7363616c))
	a, err := big.everyOne(ctx, r, slice, rng)
	if err != nil {
		return err
	}
	b, err := small.everyOne(ctx, r, slice, rng)
	if err != nil {
		return err
	}
	if err := r.against(ctx, pairs, a, b); err != nil {
		return err
	}
	r.Verdicts = append(r.Verdicts, scaleVerdict(&r.Result))
	return nil
}

func newHerd(ctx context.Context, r *Run, name string, n int) (*herd, error) {
	bd, err := r.newBed(name, 0)
	if err != nil {
		return nil, err
	}
	h := &herd{bed: *bd}
	h.qps = make([]*devx.QP, 0, n)
	if err := h.grow(ctx, n, func(i int) { r.progress("%s of %s queue pairs made", count(i), count(n)) }); err != nil {
		return nil, errors.Join(err, h.d.Close())
	}
	return h, nil
}

// step brings queue pairs through one step of their cycle.
func (h *herd) step(qps []*devx.QP, step int) error {
	for _, q := range qps {
		if err := h.c.modify(q, step); err != nil {
			return err
		}
	}
	return nil
}

// rts is the step that is timed: RTR to RTS.
const rts = 2

// timed brings queue pairs from RTR to RTS.
func (h *herd) timed(qps []*devx.QP) (time.Duration, error) {
	start := time.Now()
	err := h.step(qps, rts)
	return time.Since(start), err
}

// pass is the cycle of queue pairs, and the time of its one step.
func (h *herd) pass(qps []*devx.QP) (took time.Duration, err error) {
	for step := range stepsPerCycle {
		if step == rts {
			took, err = h.timed(qps)
		} else {
			err = h.step(qps, step)
		}
		if err != nil {
			return 0, err
		}
	}
	return took, nil
}

// workingSet cycles a few queue pairs again and again.
func (h *herd) workingSet(kind string, set []*devx.QP) *contender {
	return &contender{
		Series: Series{
			Name: scaleName(kind, len(h.qps)), What: "RTR to RTS of one queue pair of a working set",
			Ops: scaleSweep * len(set), Device: h.d.Name(), Profile: "zero",
		},
		sample: func(context.Context) (sample, error) { return h.passes(set, scaleSweep) },
	}
}

// passes is the cycle of a set, n times, and the time of its one step.
func (h *herd) passes(set []*devx.QP, n int) (sample, error) {
	var sum time.Duration
	for range n {
		took, err := h.pass(set)
		if err != nil {
			return sample{}, err
		}
		sum += took
	}
	return sample{ns: perOp(sum, n*len(set))}, nil
}

// everyOne times n queue pairs a sample, all of them in random order; if there
// are fewer, the same ones again.
func (h *herd) everyOne(ctx context.Context, r *Run, n int, rng *rand.Rand) (*contender, error) {
	h.all = slices.Clone(h.qps)
	rng.Shuffle(len(h.all), func(i, j int) { h.all[i], h.all[j] = h.all[j], h.all[i] })
	c := &contender{Series: Series{
		Name: scaleName("all", len(h.qps)), What: "RTR to RTS of one queue pair, all of them in random order",
		Ops: n, Device: h.d.Name(), Profile: "zero",
	}}
	if len(h.all) < 2*n { // fewer than two samples
		passes := max(n/len(h.all), 1)
		c.Ops = passes * len(h.all)
		c.sample = func(context.Context) (sample, error) { return h.passes(h.all, passes) }
		return c, nil
	}
	// Everything to RTR before, in the order in which it was made, so that a
	// sample meets each queue pair for the first time in a long while.
	for at := 0; at < len(h.qps); at += 1024 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r.progress("%s of %s queue pairs in RTR", count(at), count(len(h.qps)))
		part := h.qps[at:min(at+1024, len(h.qps))]
		if err := errors.Join(h.step(part, 0), h.step(part, 1)); err != nil {
			return nil, err
		}
	}
	at := 0
	c.sample = func(context.Context) (sample, error) {
		if at+n > len(h.all) {
			return sample{}, errors.New("every queue pair is in RTS already")
		}
		took, err := h.timed(h.all[at : at+n])
		at += n
		return sample{ns: perOp(took, n)}, err
	}
	return c, nil
}

func scaleName(kind string, live int) string { return fmt.Sprintf("%s/live=%d", kind, live) }

// scaleNames are the series of a comparison.
func scaleNames(kind string, r *Result) (many, few string) {
	return fmt.Sprintf("%s/live=%v", kind, r.Params["live"]), fmt.Sprintf("%s/live=%v", kind, r.Params["live_few"])
}

// scaleVerdict says what our own code does, and from where on that of others
// would show.
func scaleVerdict(r *Result) Verdict {
	v := Verdict{Claim: "C1", Answer: NotDecidable, Why: "The kernel's queue pair table and the firmware are not in emu."}
	many, few := scaleNames("all", r)
	a, b, c := r.SeriesOf(many), r.SeriesOf(few), r.ComparisonOf(scaleNames("neighbours", r))
	if a != nil && b != nil && c != nil {
		own := nanos(max(Median(a.Samples)-Median(b.Samples), 1))
		v.Why += fmt.Sprintf(" Our own table: ratio %s. Break-even: with all queue pairs at work, this module's own cache misses take %s a modify more; what kernel or firmware add shows if it is more than that.", c.Ratio.interval(), own)
	}
	v.Where = "make bench DEV=mlx5_0"
	return v
}

// memory is what the process has.
type memory struct{ heap, sys, resident float64 }

func readMemory() memory {
	debug.FreeOSMemory() // a collection, and back with what is free
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{float64(m.HeapAlloc), float64(m.Sys), float64(resident())}
}

// resident returns VmRSS in bytes, 0 if it cannot be read (proc_pid_statm(5)).
func resident() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

func (m memory) since(before memory, n int) *Memory {
	per := func(now, before float64) Float { return Float((now - before) / float64(n)) }
	return &Memory{
		QueuePairs: n,
		Heap:       per(m.heap, before.heap), Sys: per(m.sys, before.sys), Resident: per(m.resident, before.resident),
		QP: int(reflect.TypeFor[devx.QP]().Size()), Mapped: os.Getpagesize(),
	}
}

func scaleText(r *Result, p *page) {
	var rows [][]string
	n, _ := r.Params["live_few"].(int)
	for _, x := range []struct{ kind, what string }{
		{"neighbours", count(n) + " that were made one after the other"},
		{"spread", count(n) + " spread over all"},
		{"all", "all, in random order"},
	} {
		many, few := scaleNames(x.kind, r)
		a, b := r.SeriesOf(many), r.SeriesOf(few)
		if a == nil || b == nil {
			continue
		}
		ratio, answer, pairs := r.ratioCells(many, few)
		rows = append(rows, []string{x.what, nanos(Median(a.Samples)), nanos(Median(b.Samples)), ratio, pairs, answer})
	}
	if rows != nil {
		head := func(key string) string {
			if n, ok := r.Params[key].(int); ok {
				return count(n) + " live"
			}
			return key
		}
		p.section(fmt.Sprintf("RTR to RTS, one modify (%s, profile zero: our own code)", r.Provenance.Place),
			r.Method+" The first row compares the tables: as many queue pairs at work on both devices, and as close to each other. In the second, those of the first device lie on pages of their own; the third has every cache miss.")
		p.table("lrrlrl", []string{"queue pairs at work", head("live"), head("live_few"), "ratio [95 %]", "pairs", "more live is"}, rows...)
	}
	if m := r.Memory; m != nil {
		p.section(fmt.Sprintf("Memory for one live queue pair (%s, mean of %s)", r.Provenance.Place, count(m.QueuePairs)), "")
		p.table("rl",
			[]string{fmt.Sprintf("%.0f B", m.Heap), fmt.Sprintf("Go heap: emulated context, handle, and the program's devx.QP (%d B) and pointer to it", m.QP)},
			[]string{fmt.Sprintf("%.0f B", m.Sys), "taken from the system by the Go runtime"},
			[]string{fmt.Sprintf("%.0f B", m.Resident), "resident (VmRSS), after what is free was given back"},
			[]string{fmt.Sprintf("%d B", m.Mapped), "address space for its queues and doorbell record, untouched and so not resident"})
	}
}
