// SPDX-License-Identifier: BSD-2-Clause

package calibrate

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// The model is that of the emulated device (emu/fw, engine): a command waits
// for a slot, then for the one worker that submits, then for a firmware thread,
// first come, first served, and then takes its latency. With it, and with when
// each command of a trial began and ended, the latency of each follows; the
// right threads, slots and submit are those that give the latencies that
// commands have alone.

const (
	maxSlots = 31 // the driver's limit; more threads than slots cannot be seen

	// likely is how much worse than the best, in natural logarithms of the
	// likelihood, an explanation may be: 4 is 1 in 55. Those within hopeful are
	// looked at closely. within is for the 95 % interval of one figure (half of
	// chi square with one degree of freedom).
	likely  = 4
	hopeful = 100
	closely = 12 // of them, the best
	within  = 1.92
)

// guess is one explanation.
type guess struct {
	threads, slots int
	submit         time.Duration
	after          time.Duration // from the firmware's answer until the call has returned: it holds no thread
	fit            float64       // logarithm of the likelihood; only differences count
}

// fitter compares explanations of what was seen.
type fitter struct {
	trials [][]event
	alone  []*density // by step; nil: not in a trial
	real   bool       // a call takes time of its own
}

// score returns the logarithm of the likelihood that these trials went as they
// did, and how many commands took a time that was never seen alone.
func (f *fitter) score(trials [][]event, g guess) (sum float64, strange int) {
	for _, t := range trials {
		var slot, thread [maxSlots]time.Duration // when each becomes free
		worker := time.Duration(0)
		for _, e := range t {
			i, j := earliest(slot[:g.slots]), earliest(thread[:g.threads])
			worker = max(e.start, slot[i], worker) + g.submit
			alone := e.end - max(worker, thread[j]) + g.submit
			slot[i], thread[j] = e.end-g.after, e.end-g.after
			d := f.alone[e.step]
			p := d.at(alone)
			sum += math.Log(p)
			if p < 2*d.floor {
				strange++
			}
		}
	}
	return sum, strange
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

// submits are worth trying. Of two commands that come together, the second ends
// later by submit if there are threads for both; with one thread it is the
// latency, so submit is what is left of the time of one alone.
func (f *fitter) submits() []time.Duration {
	out := []time.Duration{0}
	later := map[int][]time.Duration{}
	for _, t := range f.trials {
		if len(t) == 2 && t[0].step == t[1].step {
			later[t[0].step] = append(later[t[0].step], t[1].end-t[0].end)
		}
	}
	add := func(x, alone time.Duration) { out = append(out, x, alone-x) }
	for step, xs := range later {
		d := f.alone[step]
		add(median(xs), d.middle())
		if x, ok := mode(xs); ok { // both took a time that comes again and again
			for _, a := range d.atoms {
				add(x, a)
			}
		}
	}
	for i, x := range out {
		out[i] = max(x, 0)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// middle is the median of what was seen alone.
func (d *density) middle() time.Duration {
	sum := 0.0
	i := 0
	for j, a := range d.atoms {
		for ; i < len(d.rest) && d.rest[i] < a; i++ {
			if sum += 1 / d.n; sum >= 0.5 {
				return d.rest[i]
			}
		}
		if sum += d.mass[j]; sum >= 0.5 {
			return a
		}
	}
	for ; i < len(d.rest); i++ {
		if sum += 1 / d.n; sum >= 0.5 {
			return d.rest[i]
		}
	}
	return 0
}

// afters are worth trying for what a call takes after the answer.
func (f *fitter) afters() []time.Duration {
	if !f.real {
		return []time.Duration{0}
	}
	return []time.Duration{0, 20 * time.Microsecond, 60 * time.Microsecond, 120 * time.Microsecond}
}

// solve returns the explanations that may be, the best first. Threads are at
// most as many as slots: more cannot be told from as many.
func (f *fitter) solve() []guess {
	// First a few trials, to be rid of what is far off.
	kinds := map[[3]int]int{}
	var few [][]event
	for _, t := range f.trials {
		kind := [3]int{len(t), t[0].step, t[len(t)-1].step}
		if kinds[kind]++; kinds[kind] <= 2 {
			few = append(few, t)
		}
	}
	submits := f.submits()
	var gs []guess
	for slots := 1; slots <= maxSlots; slots++ {
		for threads := 1; threads <= slots; threads++ {
			best := guess{fit: math.Inf(-1)}
			for _, s := range submits {
				for _, a := range f.afters() {
					g := guess{threads, slots, s, a, 0}
					if g.fit, _ = f.score(few, g); g.fit > best.fit {
						best = g
					}
				}
			}
			gs = append(gs, best)
		}
	}
	// Where slots or submission limit, the fit is as sharp as nanoseconds: around
	// the best, each guess gets its own submit before it is compared.
	if !f.exact() {
		best := slices.MaxFunc(gs, func(a, b guess) int { return cmp.Compare(a.fit, b.fit) })
		sketch := fitter{few, f.alone, f.real}
		for i, g := range gs {
			if g.threads >= best.threads-1 && g.threads <= best.threads+1 {
				gs[i] = sketch.refine(g)
				if h := sketch.refine(guess{g.threads, g.slots, best.submit, best.after, 0}); h.fit > gs[i].fit {
					gs[i] = h
				}
			}
		}
	}
	gs = keep(gs, hopeful)
	for i := range gs {
		gs[i].fit, _ = f.score(f.trials, gs[i])
	}
	gs = keep(gs, hopeful)
	// The submit that fits best goes with the number of threads.
	refined := map[int]guess{}
	for i, g := range gs {
		if _, ok := refined[g.threads]; !ok {
			refined[g.threads] = f.refine(g)
		}
		better := refined[g.threads]
		better.slots = g.slots
		if better.fit, _ = f.score(f.trials, better); better.fit > g.fit {
			gs[i] = better
		}
	}
	gs = keep(gs, hopeful)
	if !f.exact() { // among the best, a few nanoseconds of submit make a difference
		for i := range gs[:min(len(gs), closely)] {
			gs[i] = f.refine(gs[i])
		}
	}
	return keep(gs, hopeful)
}

// keep sorts the best to the front, and drops what is worse by more.
func keep(gs []guess, by float64) []guess {
	slices.SortStableFunc(gs, func(a, b guess) int { return cmp.Compare(b.fit, a.fit) })
	for i := range gs {
		if gs[i].fit < gs[0].fit-by {
			return gs[:i]
		}
	}
	return gs
}

// refine looks for a better submit nearby, and on a real clock for what a call
// takes after the answer.
func (f *fitter) refine(g guess) guess {
	g.fit, _ = f.score(f.trials, g)
	try := func(submit, after time.Duration) bool {
		if submit < 0 || after < 0 {
			return false
		}
		h := guess{g.threads, g.slots, submit, after, 0}
		if h.fit, _ = f.score(f.trials, h); h.fit > g.fit {
			g = h
			return true
		}
		return false
	}
	for by := max(g.submit/4, time.Microsecond); by > 0; by /= 2 {
		for try(g.submit-by, g.after) || try(g.submit+by, g.after) || f.real && (try(g.submit, g.after-by) || try(g.submit, g.after+by)) {
		}
	}
	return g
}

// resamples is how often guesses are judged anew to see what chance does.
const resamples = 25

// judge returns those of some guesses, the best first, that are likely, and the
// standard deviation of the best one's submit, by the bootstrap: other trials
// and other times alone, drawn from those that were seen. The likelihood by
// itself would be too sure, since what is known of the times alone is a sample.
func (f *fitter) judge(gs []guess, alone [][]time.Duration) (likelies []guess, spread time.Duration) {
	if f.exact() {
		return keep(gs, likely), 0
	}
	rng := rand.New(rand.NewPCG(1, uint64(len(f.trials))))
	worse := make([]moments, len(gs)) // than the best
	var moved moments
	for range resamples {
		b := fitter{alone: make([]*density, len(f.alone)), real: f.real}
		for i, d := range f.alone {
			if d == nil {
				continue
			}
			xs := make([]time.Duration, len(alone[i]))
			for j := range xs {
				xs[j] = alone[i][rng.IntN(len(xs))]
			}
			slices.Sort(xs)
			b.alone[i] = newDensity(xs)
		}
		for range f.trials {
			b.trials = append(b.trials, f.trials[rng.IntN(len(f.trials))])
		}
		best := b.refine(gs[0])
		moved.add(float64(best.submit - gs[0].submit))
		for i, g := range gs {
			fit, _ := b.score(b.trials, g)
			worse[i].add(best.fit - fit)
		}
	}
	for i, g := range gs {
		if gs[0].fit-g.fit <= max(likely, 3*worse[i].deviation()) {
			likelies = append(likelies, g)
		}
	}
	return likelies, time.Duration(moved.deviation())
}

// moments sum up numbers.
type moments struct{ n, sum, squares float64 }

func (m *moments) add(x float64) {
	m.n++
	m.sum += x
	m.squares += x * x
}

func (m *moments) deviation() float64 {
	mean := m.sum / m.n
	return math.Sqrt(max(m.squares/m.n-mean*mean, 0))
}

// exact reports whether no command of a trial varies.
func (f *fitter) exact() bool {
	return !slices.ContainsFunc(f.alone, func(d *density) bool { return d != nil && len(d.rest) > 0 })
}

// interval returns how far submit may lie to either side of a guess's.
func (f *fitter) interval(g guess, most time.Duration) (low, high time.Duration) {
	fits := func(s time.Duration) bool {
		h := g
		h.submit = s
		fit, _ := f.score(f.trials, h)
		return fit >= g.fit-within
	}
	edge := func(end time.Duration) time.Duration {
		in, out := g.submit, end
		if fits(out) {
			return out
		}
		for in-out > 1 || out-in > 1 {
			if mid := (in + out) / 2; fits(mid) {
				in = mid
			} else {
				out = mid
			}
		}
		return in
	}
	return edge(0), edge(max(most, g.submit))
}
