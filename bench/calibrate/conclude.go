// SPDX-License-Identifier: BSD-2-Clause

package calibrate

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	"devxlab.example/emu/fw"
	"devxlab.example/mlx5"
)

// maxThreads is the most that a profile can say.
const maxThreads = 64

// conclude makes figures of the explanations that are left.
func (r *run) conclude(gs []guess, long int) {
	// A submit that takes longer than the longest command, and any number of
	// threads, looks like one thread whose commands take that long.
	swapped := func(g guess) bool { return g.submit > r.usual(long)/2 }
	implausible := time.Duration(0)
	if slices.ContainsFunc(gs, func(g guess) bool { return !swapped(g) }) {
		gs = slices.DeleteFunc(gs, func(g guess) bool {
			if swapped(g) {
				implausible = max(implausible, g.submit)
			}
			return swapped(g)
		})
	}
	n := 0
	for _, t := range r.fit.trials {
		n += len(t)
	}
	best := gs[0]
	gs, spread := r.fit.judge(gs, r.alone)
	threads, slots := map[int]bool{}, map[int]bool{}
	limited := false // as many threads as slots: there may be more threads
	low, high := best.submit, best.submit
	for _, g := range gs {
		threads[g.threads], slots[g.slots] = true, true
		limited = limited || g.threads == g.slots
	}
	for i, g := range gs[:min(len(gs), 4)] { // the others are hardly different
		if i == 0 || g.threads != best.threads {
			l, h := r.fit.interval(g, r.usual(long))
			low, high = min(low, l), max(high, h)
		}
	}

	// Three deviations: what is known of the times alone is smoothed, and where
	// they are skewed two covered the truth of hidden profiles too seldom.
	low, high = max(min(low, best.submit-3*spread), 0), max(high, best.submit+3*spread)

	t := Figure{Name: "threads", Value: int64(best.threads), Confidence: r.certain(), N: n}
	span(&t, threads)
	switch {
	case limited:
		t.Value, t.High, t.Confidence = t.Low, maxThreads, NotIdentifiable
		t.Note = fmt.Sprintf("at least %d: as many commands as the device takes at once, so that more threads would look the same", t.Low)
	case t.Low != t.High && t.High-t.Low <= max(1, t.Value/4):
		t.Confidence = Estimated
		t.Note = fmt.Sprintf("%d to %d explain the times nearly as well", t.Low, t.High)
	case t.Low != t.High:
		t.Value, t.Confidence = t.Low, NotIdentifiable
		t.Note = fmt.Sprintf("not identifiable: %d to %d threads explain the times; commands are submitted too slowly to keep more busy, or times vary too much", t.Low, t.High)
	}

	s := Figure{Name: "slots", Value: int64(best.slots), Confidence: r.certain(), N: n}
	span(&s, slots)
	if s.Low != s.High {
		s.Value, s.Confidence = s.High, NotIdentifiable
		s.Note = fmt.Sprintf("not identifiable: %d to %d slots explain the times, since a command in a slot waits for a thread anyway", s.Low, s.High)
		if s.High == maxSlots {
			s.Note += "; the driver's limit of 31 is taken"
		}
	}

	u := Figure{Name: "submit", Unit: "ns", Value: int64(best.submit), Low: int64(low), High: int64(high), Confidence: Exact, N: n}
	switch {
	case high-low > max(r.usual(long)/4, time.Microsecond):
		u.Confidence = NotIdentifiable
		u.Note = fmt.Sprintf("not identifiable: anything from %v to %v explains the times", low, high)
	case high > low || !r.team.virtual:
		u.Confidence = Estimated
	}
	if implausible > 0 {
		note := fmt.Sprintf("a submit cost of %v and any number of threads would explain the same times; taken for implausible, as commands take %v", implausible, r.usual(long))
		for _, f := range []*Figure{&t, &u} {
			f.Note = join(f.Note, note)
			if f.Confidence == Exact {
				f.Confidence = Estimated
			}
		}
	}
	// Does the model explain what was seen at all?
	if _, strange := r.fit.score(r.fit.trials, best); strange*10 > n {
		note := fmt.Sprintf("the model (slots, one that submits, threads) leaves %d of %d commands with a time that none took alone: times under load differ, or the device works otherwise", strange, n)
		r.roughly(&t, &s, &u, long, note)
	}
	figures := []Figure{t, s, u}
	if r.fit.real {
		figures = append(figures, Figure{
			Name: "return", Unit: "ns", Value: int64(best.after), High: int64(r.usual(long)), N: n, Confidence: NotIdentifiable,
			Note: "from the answer until the call has returned, as it fits best: it holds no firmware thread, and is in the latencies all the same",
		})
	}
	r.Figures = append(figures, r.Figures...)
}

// roughly makes figures of how long bursts took as a whole, where what single
// commands took cannot be explained.
func (r *run) roughly(t, s, u *Figure, long int, note string) {
	took, each := time.Duration(0), time.Duration(math.MaxInt64)
	for _, tr := range r.fit.trials {
		if len(tr) != flight {
			continue
		}
		last := slices.MaxFunc(tr, func(a, b event) int { return cmp.Compare(a.end, b.end) }).end - tr[0].start
		each = min(each, last/flight)
		if tr[0].step == long && tr[flight-1].step == long && (took == 0 || last < took) {
			took = last
		}
	}
	// The least of some bursts, of commands whose own time, without the call
	// around it, is up to a fifth less than what the call took.
	usual, might := r.usual(long), map[int]bool{}
	best := 1
	off := func(p int) time.Duration { return (wholeBurst(p, usual*9/10) - took).Abs() }
	for p := 1; p <= maxSlots; p++ {
		if took >= wholeBurst(p, usual*8/10) && took <= wholeBurst(p, usual)*21/20 {
			might[p] = true
		}
		if off(p) < off(best) {
			best = p
		}
	}
	u.Value, u.Low, u.High = 0, 0, int64(each)
	s.Value, s.Low, s.High = maxSlots, 1, maxSlots
	t.Value, t.Low, t.High = int64(best), 1, maxThreads
	for _, f := range []*Figure{t, s, u} {
		f.Confidence, f.Note = NotIdentifiable, "not identifiable: "+note
	}
	s.Note += "; the driver's limit of 31 is taken"
	u.Note += "; 0 is taken, so that a latency is all of its command's time"
	if len(might) > 0 {
		span(t, might)
		s.Low = t.Low
		t.Confidence, t.Note = Estimated, fmt.Sprintf("from how long %d %v at once took, %v, if each takes %v to %v, because %s", flight, steps[long].op, took, usual*8/10, usual, note)
	}
}

// wholeBurst is how long a burst takes on so many threads.
func wholeBurst(threads int, each time.Duration) time.Duration {
	return each * time.Duration((flight+threads-1)/threads)
}

// certain is the confidence of a number that nothing else explains: where times
// vary it still rests on samples.
func (r *run) certain() Confidence {
	if r.team.virtual && r.fit.exact() {
		return Exact
	}
	return Estimated
}

func span(f *Figure, values map[int]bool) {
	all := slices.Sorted(maps.Keys(values))
	f.Low, f.High = int64(all[0]), int64(all[len(all)-1])
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// onQP reports whether a command is one of those that Per1000QPs and
// ContextCache are about.
func onQP(op mlx5.Op) bool {
	return op == mlx5.OpCreateQP || op == mlx5.OpDestroyQP || op == mlx5.OpQueryQP || slices.Contains(mlx5.Transitions(), op)
}

// profile makes the profile of the figures.
func (r *run) profile() error {
	source := fmt.Sprintf("devxlab calibrate: %s, firmware %s, %s, %d commands", r.Device, orUnknown(r.Firmware), r.Started.Format(time.DateOnly), r.Commands)
	what := "Measured on CLOCK_MONOTONIC around each call: the system call, and what package devx does, are included, and nothing was subtracted for them."
	if r.Place == "emu" {
		source += ". The device is emulated, so this is what its profile was told"
		if r.team.virtual {
			what = "Measured on the device's virtual clock, which a call costs nothing."
		}
	}
	if f := r.Figure("refused call"); f != nil {
		what += fmt.Sprintf(" A call that the kernel refuses took %v (median of %d).", time.Duration(f.Value), f.N)
	}
	note := fmt.Sprintf("%s Latencies are those of commands alone, less submit, so that submit and latency add up to what was seen.", what)
	p := &fw.Profile{
		Name: name(r.Device), Source: source, Note: strings.Join(append([]string{note}, r.Notes...), " "),
		Card: r.Card, Firmware: r.Firmware, Ops: map[mlx5.Op]fw.Dist{},
	}
	evidence := func(f *Figure) fw.Evidence {
		rng := ""
		if f.Low != f.High {
			rng = fmt.Sprintf(", %s to %s", f.text(f.Low), f.text(f.High))
		}
		return fw.Evidence{Note: join(fmt.Sprintf("%s%s, from %d commands", f.Confidence, rng, f.N), f.Note)}
	}
	threads, slots, submit := r.Figure("threads"), r.Figure("slots"), r.Figure("submit")
	p.Threads, p.ThreadsFrom = int(threads.Value), evidence(threads)
	p.Slots, p.SlotsFrom = int(slots.Value), evidence(slots)
	p.Submit = fw.Dist{Fixed: time.Duration(submit.Value), Evidence: evidence(submit)}
	grown := time.Duration(0)
	if f := r.Figure("per_1000_qps"); f != nil {
		p.Per1000QPs, p.Per1000QPsFrom = time.Duration(f.Value), evidence(f)
		grown = p.Per1000QPs * flight / 1000
	}
	if size, miss := r.Figure("cache"), r.Figure("miss"); miss != nil {
		p.ContextCache = &fw.ContextCache{QueuePairs: int(size.Value), Evidence: evidence(size)}
		p.ContextCache.Miss = fw.Dist{Fixed: time.Duration(miss.Value), Evidence: evidence(miss)}
	}
	for i, s := range steps {
		if len(r.alone[i]) == 0 {
			continue
		}
		less := p.Submit.Fixed
		if onQP(s.op) {
			less += grown
		}
		l, d := latency(s.op, r.alone[i], less)
		r.Ops = append(r.Ops, l)
		p.Ops[s.op] = d
	}
	p.Default = fw.Dist{Fixed: r.typical(), Evidence: fw.Evidence{Note: "assumed of all commands not named: the median of the medians of those that were measured"}}
	if err := p.Compile(); err != nil {
		return err
	}
	r.Profile = p
	return nil
}

// latency makes the figure and the distribution of sorted times of a command,
// less what else is in them.
func latency(op mlx5.Op, sorted []time.Duration, less time.Duration) (Latency, fw.Dist) {
	rest := make([]time.Duration, len(sorted))
	for i, x := range sorted {
		rest[i] = max(x-less, 0)
	}
	n := len(rest)
	l := Latency{Figure: medianFigure(op.String(), rest), Min: int64(rest[0]), Max: int64(rest[n-1])}
	for _, q := range grid {
		if !carried(q, n) {
			continue
		}
		x := quantile(rest, q)
		l.Quantiles = append(l.Quantiles, fw.Point{Q: q, Latency: x})
		switch q {
		case 0.9:
			l.P90 = int64(x)
		case 0.99:
			l.P99 = int64(x)
		case 0.999:
			l.P999 = int64(x)
		}
	}
	note := fmt.Sprintf("median %v, bootstrap 95 %% %v to %v, of %d commands; least %v, most %v", rest[(n-1)/2], time.Duration(l.Low), time.Duration(l.High), n, rest[0], rest[n-1])
	d := fw.Dist{Evidence: fw.Evidence{Note: note}}
	if last := len(l.Quantiles) - 1; l.Quantiles[0].Latency == l.Quantiles[last].Latency {
		d.Fixed = l.Quantiles[0].Latency
	} else {
		d.Points = l.Quantiles
	}
	return l, d
}

// typical is the median of the commands' medians.
func (r *run) typical() time.Duration {
	var all []time.Duration
	for _, l := range r.Ops {
		all = append(all, time.Duration(l.Value))
	}
	return median(all)
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// name is the profile's: one line, and not too long for more options behind it.
func name(device string) string {
	n := []rune("calibrated " + device)
	return strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return '_'
		}
		return c
	}, string(n[:min(len(n), 64)]))
}

// text is a value of the figure for people.
func (f *Figure) text(v int64) string {
	if f.Unit == "ns" {
		return time.Duration(v).String()
	}
	return fmt.Sprint(v)
}
