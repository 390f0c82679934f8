// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// c1 asks for a knee in the time of a transition against the number of live
// queue pairs.
var c1 = Experiment{
	Name:     "c1",
	Question: "Does RTR to RTS become slower, and out of proportion, above 32,768 live queue pairs?",
	Default:  true,
	many:     true,
	run:      runC1,
	text:     c1Text,
	plan: func(r *Run) string {
		most := r.c1Most()
		n, too := r.c1Commands(c1Sizes(most)), ""
		if r.verbs {
			n, too = len(c1Kinds)*n, " Then the same with queue pairs made by verbs."
		}
		return fmt.Sprintf("makes up to %s queue pairs of its own through DevX, destroys them, and does both %d times; meanwhile resets them, up to 31 at once, and moves %d at a time from RESET to RTS.%s That is about %s commands, %v at most if each takes half a millisecond, and %s MiB of locked memory. No work request, no packet.",
			count(most), c1Cycles, r.c1Timed(), too, count(n), (time.Duration(n) * time.Millisecond / 2).Round(time.Minute), count(most*pinnedPerQP>>20))
	},
}

const (
	c1Knee    = 32768 // where the claim has it
	c1First   = 1024
	c1Emu     = 1_000_000
	c1Quick   = 1 << 17
	c1Cycles  = 2    // up and down; each size is visited twice in each
	c1Timed   = 1000 // transitions timed at a visit
	c1TimedHW = 300

	recordsPerPage = 64 // doorbell records of queue pairs made by verbs (devx.NewVerbsQP), besides a page for the queues
)

// c1Most is the largest number of queue pairs.
func (r *Run) c1Most() int {
	most := c1Emu
	switch {
	case !r.emulated():
		most = r.offered * permille / 1000
	case r.Quick:
		most = c1Quick
	}
	most = min(most, r.offered)
	if q := r.Options.QP; q != nil {
		most = min(most, q.MaxQP)
	}
	return most
}

// c1Timed is how many transitions are timed at a visit.
func (r *Run) c1Timed() int {
	if !r.emulated() {
		return c1TimedHW
	}
	return r.repeats(c1Timed)
}

// c1Commands is how many commands visits to these sizes take, with one kind of
// queue pair.
func (r *Run) c1Commands(sizes []int) int {
	const visits = 2 * c1Cycles
	n := visits * sizes[len(sizes)-1] // made and destroyed
	for _, live := range sizes {
		n += visits * (live + (stepsPerCycle-1)*min(r.c1Timed(), live))
	}
	return n
}

// c1Sizes are the numbers of live queue pairs, in half octaves, and the last one.
func c1Sizes(most int) (sizes []int) {
	for i := range 64 {
		n := int(math.Round(c1First * math.Exp2(float64(i)/2)))
		if float64(n) > 0.9*float64(most) {
			break
		}
		sizes = append(sizes, n)
	}
	return append(sizes, most)
}

// c1Kind is a kind of queue pair, by how it is made. Those made through DevX have
// no entry in the driver's table and none in debugfs; those made by verbs have.
type c1Kind struct {
	sweep string // its name
	what  string
	verbs bool
}

var c1Kinds = []c1Kind{
	{"rtr2rts", "RTR to RTS of one queue pair", false},
	{"verbs/rtr2rts", "RTR to RTS of one queue pair made by verbs, through verbs", true},
}

// crowd is a device with a changing number of queue pairs.
type crowd struct {
	bed
	modify func(q *devx.QP, step int) error
	watch  stopwatch
	rng    *rand.Rand
	batch  *batch.Batch // touches them, where there is a kernel; nil: one after the other
	timed  int
}

func runC1(ctx context.Context, r *Run) error {
	sizes := c1Sizes(r.c1Most())
	if r.small && r.Options.QP == nil {
		sizes = sizes[:min(3, len(sizes))]
	}
	r.Params["queue_pairs"], r.Params["timed"] = sizes, r.c1Timed()
	r.Method = fmt.Sprintf("One device; %d times the number of live queue pairs goes up and down again, and at each number, each time: %d random queue pairs are brought to RTR, every other live one is reset once, and then the transition of those to RTS is timed, one by one. A point is the median of the visits' medians.",
		c1Cycles, r.c1Timed())
	pages := sizes[len(sizes)-1]
	if r.verbs {
		pages += pages/recordsPerPage + 1
	}
	if err := r.lockable(pages); err != nil {
		return err
	}
	var verdicts []Verdict
	for _, kind := range c1Kinds {
		if kind.verbs && r.emulated() {
			break
		}
		series, err := r.c1Sweep(ctx, kind, sizes)
		if err != nil {
			return err
		}
		if series != nil {
			verdicts = append(verdicts, r.c1Conclude(kind, sizes, series))
		}
	}
	r.Verdicts = append(r.Verdicts, c1Together(verdicts))
	return nil
}

// c1Sweep measures one kind of queue pair; nil if the device does not have it.
func (r *Run) c1Sweep(ctx context.Context, kind c1Kind, sizes []int) (series []*contender, err error) {
	open := func() (*bed, error) { return r.newBed(r.Device, 0) }
	if kind.verbs {
		open = func() (*bed, error) { return r.newVerbsBed(r.Device) }
	}
	bd, err := open()
	if err != nil || bd == nil {
		return nil, err
	}
	defer closed(&err, bd.d)
	c := &crowd{bed: *bd, watch: stopwatchOf(r.Device), rng: rand.New(rand.NewPCG(r.seed, 0x6331)), timed: r.c1Timed()}
	c.modify = c.c.modify
	if kind.verbs {
		c.modify = c.c.modifyVerbs
		r.Method += " The second sweep is of queue pairs made by verbs: the transitions go through verbs, the resets of the others through DevX, since from RESET to RESET verbs send nothing."
	}
	if !r.emulated() {
		if c.batch, err = batch.New(bd.d, batch.Options{OnWait: r.onWait}); err != nil {
			return nil, err
		}
		defer closed(&err, c.batch)
		runtime.GOMAXPROCS(procsFor(bd.d.Slots())) // Do sets it back
	}
	series = make([]*contender, len(sizes))
	for i, n := range sizes {
		series[i] = &contender{Series: Series{
			Name: c1Name(kind.sweep, n), What: kind.what, Ops: c.timed,
			GOMAXPROCS: runtime.GOMAXPROCS(0), Log: c1Name(kind.sweep, n), Histogram: newHistogram(),
		}}
	}
	err = c.upAndDown(ctx, r, sizes, series)
	for _, s := range series {
		r.keep(s)
	}
	return series, err
}

// upAndDown visits the sizes, several times.
func (c *crowd) upAndDown(ctx context.Context, r *Run, sizes []int, series []*contender) error {
	visit := func(i int) error {
		r.progress("%s live queue pairs", count(sizes[i]))
		return c.visit(ctx, sizes[i], series[i])
	}
	for range c1Cycles {
		for i := range sizes {
			if err := visit(i); err != nil {
				return err
			}
		}
		for i := len(sizes) - 1; i >= 0; i-- {
			if err := visit(i); err != nil {
				return err
			}
		}
	}
	return nil
}

func c1Name(sweep string, live int) string { return fmt.Sprintf("%s/live=%d", sweep, live) }

// visit brings the number of live queue pairs to n and measures there.
func (c *crowd) visit(ctx context.Context, n int, s *contender) error {
	if err := c.grow(ctx, n, nil); err != nil {
		return err
	}
	for len(c.qps) > n {
		if len(c.qps)%256 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		last := c.qps[len(c.qps)-1]
		c.qps = c.qps[:len(c.qps)-1]
		if err := last.Close(); err != nil {
			return err
		}
	}
	chosen := c.choose()
	for _, i := range chosen {
		for step := range rts {
			if err := c.modify(c.qps[i], step); err != nil {
				return err
			}
		}
	}
	if err := c.touchOthers(ctx, chosen); err != nil {
		return err
	}
	c.rng.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	took := make([]float64, 0, len(chosen))
	for _, i := range chosen {
		if err := ctx.Err(); err != nil {
			return err
		}
		start := c.watch.now()
		err := c.modify(c.qps[i], rts)
		ns := float64((c.watch.now() - start).Nanoseconds())
		if err != nil {
			return err
		}
		took = append(took, ns)
		_ = s.Histogram.RecordValue(int64(min(max(ns, 1), longest)))
	}
	for _, i := range chosen {
		if err := c.modify(c.qps[i], rts+1); err != nil {
			return err
		}
	}
	s.Samples = append(s.Samples, Median(took))
	return nil
}

// choose returns the indexes of some queue pairs, each once.
func (c *crowd) choose() []int {
	n := min(c.timed, len(c.qps))
	taken := make(map[int]bool, n)
	chosen := make([]int, 0, n)
	for len(chosen) < n {
		if i := c.rng.IntN(len(c.qps)); !taken[i] {
			taken[i] = true
			chosen = append(chosen, i)
		}
	}
	return chosen
}

// touchOthers resets every queue pair that was not chosen, so that the chosen
// ones' contexts are the ones that were not used for longest.
func (c *crowd) touchOthers(ctx context.Context, chosen []int) error {
	skip := make(map[int]bool, len(chosen))
	for _, i := range chosen {
		skip[i] = true
	}
	if c.batch != nil {
		c.batch.Reset()
		defer c.batch.Reset()
	}
	for i, q := range c.qps {
		if i%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		switch {
		case skip[i]:
		case c.batch == nil:
			if err := devx.Modify(q, mlx5.ToRST{}); err != nil {
				return err
			}
		default:
			if err := batch.Add(c.batch, q, mlx5.ToRST{}, 0); err != nil {
				return err
			}
			if c.batch.Len() == 1024 {
				if err := c.batch.Run(ctx); err != nil {
					return err
				}
				c.batch.Reset()
			}
		}
	}
	if c.batch == nil || c.batch.Len() == 0 {
		return nil
	}
	return c.batch.Run(ctx)
}

// c1Conclude makes the sweep, looks for a knee, and says what follows.
func (r *Run) c1Conclude(kind c1Kind, sizes []int, series []*contender) Verdict {
	xs, visits := make([]float64, len(sizes)), make([][]float64, len(sizes))
	for i, n := range sizes {
		xs[i], visits[i] = float64(n), series[i].Samples
	}
	k := FitKnee(xs, visits, r.seed)
	r.sweepOver(Sweep{Name: kind.sweep, What: kind.what, X: "live queue pairs", Log: true, Device: r.Device, Knee: &k}, sizes, func(n int) string { return c1Name(kind.sweep, n) })
	if len(xs) < kneeSizes {
		return Verdict{Claim: "C1", Answer: NotDecidable, Why: k.Why + ".", Where: "a run with more queue pairs"}
	}
	last := &r.Sweeps[len(r.Sweeps)-1]
	if xs[len(xs)-1] >= 2*c1Knee && !k.Found {
		last.Knee.Least = leastKnee(xs, visits, r.seed)
	}
	return r.c1Verdict(xs, visits, *last.Knee)
}

// c1Together makes one verdict of what the kinds of queue pairs say, DevX first.
// The claim blames the driver's table, so those made by verbs decide; the others
// tell whether the table has to do with it.
func c1Together(kinds []Verdict) Verdict {
	if len(kinds) < 2 {
		v := kinds[0]
		if v.Answer == Supported || v.Answer == Refuted {
			v.Why += " These are DevX queue pairs: the driver's own table, which the claim blames, has none of them."
		}
		return v
	}
	devx, v := kinds[0], kinds[1]
	v.Why = "Made by verbs, so that the driver's table has them: " + v.Why + " Made through DevX, so that it has none: " + devx.Why
	switch {
	case v.Answer == Supported && devx.Answer == Refuted:
		v.Why += " So it is the kernel's, whichever part."
	case v.Answer == Supported && devx.Answer == Supported:
		v.Why += " So it is not the driver's table."
	}
	return v
}

// c1Verdict applies the rules of what may be said where.
func (r *Run) c1Verdict(xs []float64, visits [][]float64, k Knee) Verdict {
	v := Verdict{Claim: "C1"}
	last := len(xs) - 1
	covers, least := xs[last] >= 2*c1Knee, k.Least
	here := func() string {
		switch {
		case k.Found:
			return fmt.Sprintf("there is %s", k.Why)
		case least > 0:
			return fmt.Sprintf("there is %s; a cache that is full at %s and costs %.0f %% more would have been found", k.Why, count(c1Knee), 100*(least-1))
		}
		return "there is " + k.Why
	}()
	if r.emulated() {
		v.Answer, v.Where = NotDecidable, "make bench DEV=mlx5_0"
		if r.Provenance.Profile != "zero" {
			v.Why = fmt.Sprintf("The device's time is what profile %s was told; in it, %s.", r.Provenance.Profile, here)
			return v
		}
		v.Why = fmt.Sprintf("Kernel and firmware are not in emu. In our own code, up to %s queue pairs, %s.", count(int(xs[last])), here)
		if at, _ := slices.BinarySearch(xs, c1Knee); covers && at <= last {
			// Our own code's memory is in no cache either, with so many.
			own := max(Median(visits[last])-Median(visits[at]), Median(visits[at])*(least-1), 1)
			v.Answer = OnlyBreakEven
			v.Why += fmt.Sprintf(" Break-even: a knee of kernel or firmware at %s shows if commands take more than %s longer behind it; less is lost in what our own code takes for the memory of so many.", count(c1Knee), nanos(own))
		}
		return v
	}
	near := k.Found && float64(k.Low) <= c1Knee*math.Sqrt2 && float64(k.High) >= c1Knee/math.Sqrt2
	switch {
	case near && k.High/k.Low <= 4:
		v.Answer, v.Why = Supported, fmt.Sprintf("Up to %s queue pairs, %s.", count(int(xs[last])), here)
	case !covers:
		v.Answer, v.Where = NotDecidable, "a run with more queue pairs, on a device or function that offers them"
		v.Why = fmt.Sprintf("This run has %s queue pairs at most, which is not twice %s; so far, %s.", count(int(xs[last])), count(c1Knee), here)
	case k.Found:
		v.Answer, v.Where = NotDecidable, "a run whose sizes begin behind that knee, or on another device"
		v.Why = fmt.Sprintf("Up to %s queue pairs, %s: whether there is one at %s besides, a fit with one knee cannot tell.", count(int(xs[last])), here, count(c1Knee))
	case least > 0 && least <= 1.25:
		v.Answer, v.Why = Refuted, fmt.Sprintf("Not at %s: up to %s queue pairs, %s.", count(c1Knee), count(int(xs[last])), here)
	default:
		v.Answer, v.Where = NotDecidable, "a run without --quick, on a quiet machine"
		v.Why = fmt.Sprintf("The noise is too great: %s.", here)
	}
	return v
}

// leastKnee returns the smallest factor by which a full cache at 32,768 would
// have to slow commands down to be found in measurements like these; 0 if not
// even 8 were.
func leastKnee(xs []float64, visits [][]float64, seed uint64) float64 {
	seen := func(factor float64) bool {
		bent := make([][]float64, len(visits))
		for i, v := range visits {
			bent[i] = slices.Clone(v)
			for j := range v {
				bent[i][j] *= 1 + (factor-1)*max(0, 1-c1Knee/xs[i])
			}
		}
		k := FitKnee(xs, bent, seed)
		return k.Found && float64(k.Low) <= c1Knee && float64(k.High) >= c1Knee
	}
	low, high := 1.0, 8.0
	if !seen(high) {
		return 0
	}
	for range 8 {
		if mid := math.Sqrt(low * high); seen(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	return high
}

func c1Text(r *Result, p *page) {
	for i, s := range r.Sweeps {
		method := ""
		if i == 0 {
			method = r.Method
		}
		p.section(fmt.Sprintf("%s, against live queue pairs (%s, %s)", s.What, r.Provenance.Place, s.Device), method)
		var rows [][]string
		for _, pt := range s.Points {
			n := int(pt.X)
			p90, p99 := "-", "-"
			if t := r.SeriesOf(c1Name(s.Name, n)); t != nil {
				p90 = nanos(float64(t.Summary.P90))
				if t.Summary.P99 > 0 {
					p99 = nanos(float64(t.Summary.P99))
				}
			}
			rows = append(rows, []string{count(n), nanos(float64(pt.Median)), fmt.Sprintf("[%s, %s]", nanos(float64(pt.Low)), nanos(float64(pt.High))), p90, p99, fmt.Sprint(pt.N)})
		}
		p.table("rrlrrr", []string{"live", "median", "95 %", "P90", "P99", "visits"}, rows...)
		if k := s.Knee; k != nil {
			p.para(k.Why+".", indent)
		}
	}
}
