// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/emu/uverbs"
)

// fake is a contender whose samples are given; it notes when it is asked.
func fake(name string, log *[]string, samples ...float64) *contender {
	i := 0
	return &contender{Series: Series{Name: name, Ops: 1}, sample: func(context.Context) (sample, error) {
		*log = append(*log, name)
		if i == len(samples) {
			return sample{}, errors.New("no more samples")
		}
		i++
		return sample{ns: samples[i-1]}, nil
	}}
}

// Samples are taken in turn, and nobody always goes first.
func TestInTurn(t *testing.T) {
	for _, c := range []struct{ n, rounds int }{{1, 3}, {2, 3}, {3, 6}} {
		var log []string
		r := &Run{}
		var cs []*contender
		for i := range c.n {
			cs = append(cs, fake(fmt.Sprint(i), &log, 1000, 1, 2, 3, 4, 5, 6)) // the first is the warm-up
		}
		if err := r.inTurn(context.Background(), c.rounds, cs...); err != nil {
			t.Fatal(err)
		}
		first := map[string]int{}
		for round := range slices.Chunk(log, c.n) {
			first[round[0]]++
			slices.Sort(round)
			if len(slices.Compact(round)) != c.n {
				t.Errorf("a round of %d is %v", c.n, round)
			}
		}
		for name, n := range first {
			if n > c.rounds/c.n+1 || n < (c.rounds+1)/c.n {
				t.Errorf("of %d rounds %s went first in %d", c.rounds+1, name, n)
			}
		}
		for i, s := range r.Series {
			if want := []float64{1, 2, 3, 4, 5, 6}[:c.rounds]; !slices.Equal(s.Samples, want) || s.Name != fmt.Sprint(i) || s.GOMAXPROCS != runtime.GOMAXPROCS(0) {
				t.Errorf("series %d is %+v, want samples %v", i, s, want)
			}
		}
	}
}

// GOMAXPROCS is the contender's while it is sampled, and recorded, and then
// what it was.
func TestProcs(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	var saw []int
	at := func(n int) *contender {
		return &contender{Series: Series{Name: fmt.Sprint(n), Ops: 1}, procs: n, sample: func(context.Context) (sample, error) {
			saw = append(saw, runtime.GOMAXPROCS(0))
			return sample{ns: 1}, nil
		}}
	}
	r := &Run{}
	if err := r.against(context.Background(), 2, at(before+3), at(before+5)); err != nil {
		t.Fatal(err)
	}
	a, b := before+3, before+5
	if want := []int{a, b, b, a, a, b}; !slices.Equal(saw, want) {
		t.Errorf("GOMAXPROCS was %v, want %v", saw, want)
	}
	if r.Series[0].GOMAXPROCS != a || r.Series[1].GOMAXPROCS != b {
		t.Errorf("recorded %d and %d, want %d and %d", r.Series[0].GOMAXPROCS, r.Series[1].GOMAXPROCS, a, b)
	}
	if now := runtime.GOMAXPROCS(0); now != before {
		t.Errorf("GOMAXPROCS is %d afterwards, was %d", now, before)
	}
}

// What was measured before a failure is kept, and compared pair by pair.
func TestPartialIsKept(t *testing.T) {
	var log []string
	r := &Run{}
	err := r.against(context.Background(), 30, fake("a", &log, 9, 1, 1, 1, 1), fake("b", &log, 9, 2, 2, 2))
	if err == nil || !strings.Contains(err.Error(), "b: no more samples") {
		t.Errorf("error %v", err)
	}
	a, b := r.SeriesOf("a"), r.SeriesOf("b")
	if a == nil || b == nil || len(a.Samples) != 4 && len(a.Samples) != 3 || len(b.Samples) != 3 {
		t.Fatalf("kept %+v and %+v", a, b)
	}
	if c := r.ComparisonOf("a", "b"); c == nil || c.Ratio.Pairs != 3 || c.Ratio.Median != 0.5 || c.Ratio.Answer != Inconclusive {
		t.Errorf("comparison %+v", c)
	}
}

// run does a whole experiment with few queue pairs and pairs.
func run(t *testing.T, ctx context.Context, e Experiment, o Options) (*Result, string) {
	t.Helper()
	o.Dir, o.Quick, o.small = t.TempDir(), true, true
	r, err := Do(ctx, e, o)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(o.Dir, e.Name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var back Result
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	if back.Interrupted != r.Interrupted || len(back.Series) != len(r.Series) || len(back.Comparisons) != len(r.Comparisons) || len(back.Verdicts) != len(r.Verdicts) {
		t.Errorf("the file has %d series, %d comparisons, %d verdicts, interrupted %v; the result %d, %d, %d, %v", len(back.Series), len(back.Comparisons), len(back.Verdicts),
			back.Interrupted, len(r.Series), len(r.Comparisons), len(r.Verdicts), r.Interrupted)
	}
	lines, err := os.ReadFile(filepath.Join(o.Dir, e.Name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(lines), "# interrupted\n") != r.Interrupted {
		t.Errorf("interrupted %v; the benchmark lines are\n%s", r.Interrupted, lines)
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	return r, text.String()
}

// Ctrl-C in the middle of every part: what was measured is kept and written,
// and nothing is claimed.
func TestInterrupted(t *testing.T) {
	for _, c := range []struct {
		e       Experiment
		at      []string
		kept    []string // series, in this order
		partial int      // so many of the last are cut short
		even    int      // break-even points
	}{
		{e: micro, at: []string{"getpid, round 0"}},
		{e: micro, at: []string{"modify, round 5 "}, kept: []string{"getpid", "encode", "refused", "modify"}, partial: 4},
		{e: c6, at: []string{"own/workers=2/", "round 3 "}, partial: 2,
			kept: []string{"own/workers=1/how=batched", "own/workers=1/how=serial", "own/workers=2/how=batched", "own/workers=2/how=serial"}},
		{e: c6, at: []string{"break-even, 50µs", "7 at once"}, even: 2, kept: ownSeries()},
		{e: c6, at: []string{"flight/workers=2/", "round 4 "}, even: 5, partial: 2,
			kept: append(ownSeries(), "flight/workers=1/procs=3", "flight/workers=1/procs=2", "flight/workers=2/procs=4", "flight/workers=2/procs=2")},
		{e: scale, at: []string{"1,024 of 3,000 queue pairs made"}},
		{e: scale, at: []string{"spread/", "round 2 "}, partial: 2,
			kept: []string{"neighbours/live=3000", "neighbours/live=10", "spread/live=3000", "spread/live=10"}},
		{e: scale, at: []string{"2,048 of 3,000 queue pairs in RTR"},
			kept: []string{"neighbours/live=3000", "neighbours/live=10", "spread/live=3000", "spread/live=10"}},
	} {
		t.Run(fmt.Sprint(c.e.Name, c.at), func(t *testing.T) {
			ctx, step := cancelAt(t, c.at...)
			r, text := run(t, ctx, c.e, Options{step: step})
			if !r.Interrupted || r.Error != "" {
				t.Errorf("interrupted %v, error %q", r.Interrupted, r.Error)
			}
			if len(r.Verdicts)+len(r.Findings) > 0 {
				t.Errorf("verdicts %v, findings %v", r.Verdicts, r.Findings)
			}
			var names []string
			for i, s := range r.Series {
				names = append(names, s.Name)
				full := len(s.Samples) == MinPairs
				if cut := i >= len(r.Series)-c.partial; full == cut || s.Summary.N != int64(len(s.Samples)) {
					t.Errorf("%s has %d samples, in its summary %d", s.Name, len(s.Samples), s.Summary.N)
				}
			}
			if !slices.Equal(names, c.kept) || len(r.BreakEven) != c.even {
				t.Errorf("kept %q and %d points of the break-even, want %q and %d", names, len(r.BreakEven), c.kept, c.even)
			}
			if !strings.Contains(text, "\nINTERRUPTED: ") {
				t.Errorf("the text does not say so:\n%s", text)
			}
		})
	}
}

func ownSeries() (names []string) {
	for _, w := range c6Workers {
		batched, serial := c6Names("own", w)
		names = append(names, batched, serial)
	}
	return names
}

// A context that has ended before anything began.
func TestInterruptedAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, e := range Experiments() {
		if e.Name == c3.Name {
			continue // it begins with a kernel's connection manager: TestLabSetups
		}
		r, _ := run(t, ctx, e, Options{Rival: []string{"cat"}, asHardware: e.Name == rival.Name || e.Name == tracing.Name})
		if !r.Interrupted || len(r.Series) > 0 {
			t.Errorf("%s: interrupted %v, %d series", e.Name, r.Interrupted, len(r.Series))
		}
	}
}

// A whole micro run, and its provenance.
func TestMicro(t *testing.T) {
	r, text := run(t, context.Background(), micro, Options{})
	if r.Interrupted || len(r.Series) != 4 || len(r.Comparisons) != 3 || len(r.Verdicts) != 0 {
		t.Errorf("%+v", r)
	}
	for _, s := range r.Series {
		if len(s.Samples) != MinPairs || s.Ops == 0 || s.What == "" || s.GOMAXPROCS != runtime.GOMAXPROCS(0) {
			t.Errorf("series %+v", s)
		}
	}
	p := r.Provenance
	if p.Place != PlaceEmu || p.Device != "emu:" || p.Profile != "zero" || p.CPUs != runtime.NumCPU() || p.Arch != runtime.GOARCH ||
		p.GOMAXPROCS != runtime.GOMAXPROCS(0) || p.Go != runtime.Version() || p.Kernel == "" || p.CPU == "" || p.Commit == "" || p.Stack == "" {
		t.Errorf("provenance %+v", p)
	}
	if p.Steal.finite() && (p.Steal < 0 || p.Steal > 1) {
		t.Errorf("steal %v", p.Steal)
	}
	if r.Started.IsZero() || r.Took <= 0 || r.Method == "" || r.Question == "" {
		t.Errorf("%+v", r)
	}
	for _, w := range []string{"place: emu (emu:, profile zero)", "GOMAXPROCS", "The parts (emu)", "In emu neither refused nor modify enters a kernel"} {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
	r, text = run(t, context.Background(), micro, Options{Device: "emu:latency=1us"})
	if r.Provenance.Profile != "zero+latency=1µs" || !strings.Contains(text, "latency that the profile was told") {
		t.Errorf("profile %s:\n%s", r.Provenance.Profile, text)
	}
}

// A whole c6 run answers with a condition.
func TestC6(t *testing.T) {
	r, text := run(t, context.Background(), c6, Options{})
	if len(r.Verdicts) != 1 || r.Verdicts[0].Answer != OnlyBreakEven || r.Verdicts[0].Claim != "C6" || r.Verdicts[0].Where == "" {
		t.Errorf("verdicts %+v", r.Verdicts)
	}
	if len(r.BreakEven) != len(c6Costs) || len(r.Series) != 4*len(c6Workers) || len(r.Comparisons) != 2*len(c6Workers) {
		t.Errorf("%d points, %d series, %d comparisons", len(r.BreakEven), len(r.Series), len(r.Comparisons))
	}
	for _, c := range r.Comparisons {
		if c.Ratio.Pairs != MinPairs {
			t.Errorf("%s against %s: %d pairs", c.A, c.B, c.Ratio.Pairs)
		}
	}
	for _, w := range c6Workers {
		batched, serial := c6Names("own", w)
		for name, want := range map[string]struct {
			procs, depth int
			device       string
		}{
			batched: {max(runtime.GOMAXPROCS(0), w+2), 0, c6OwnDevice}, serial: {max(runtime.GOMAXPROCS(0), w+2), 0, c6OwnDevice},
			flightName(w, w+2): {w + 2, w, c6FlightDevice}, flightName(w, 2): {2, w, c6FlightDevice},
		} {
			s := r.SeriesOf(name)
			if s == nil {
				t.Fatalf("no series %s", name)
			}
			if s.GOMAXPROCS != want.procs || s.Depth != want.depth || s.Device != want.device {
				t.Errorf("%s: GOMAXPROCS %d, depth %d, device %s; want %+v", name, s.GOMAXPROCS, s.Depth, s.Device, want)
			}
			if s.Depth > 0 && (s.InFlight <= 0 || s.InFlight > s.Possible*1.001 || s.Possible > float64(w)*1.001 || (s.Void == "") != (s.InFlight >= 0.9*s.Possible-1e-9)) {
				t.Errorf("%s: %v of %v in flight, void %q", name, s.InFlight, s.Possible, s.Void)
			}
		}
	}
	for _, w := range []string{"\n1. Own cost (emu", "\n2. Break-even (emu", "\n3. In flight (emu", "\nC6: break-even. ", "→"} {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

// A whole scale run, small.
func TestScale(t *testing.T) {
	r, text := run(t, context.Background(), scale, Options{})
	if len(r.Series) != 6 || len(r.Comparisons) != 3 || len(r.Verdicts) != 1 || r.Verdicts[0].Answer != NotDecidable {
		t.Errorf("%d series, %d comparisons, verdicts %+v", len(r.Series), len(r.Comparisons), r.Verdicts)
	}
	// 142 of the 3,000 queue pairs in each of 21 samples, each of them once.
	if s := r.SeriesOf("all/live=3000"); s == nil || s.Ops != 142 || len(s.Samples) != MinPairs {
		t.Errorf("%+v", s)
	}
	if s := r.SeriesOf("all/live=10"); s == nil || s.Ops != 140 {
		t.Errorf("%+v", s)
	}
	if m := r.Memory; m == nil || m.QueuePairs != 3000 || m.Heap < 232 || m.Heap > 4096 || m.QP < 16 {
		t.Errorf("memory %+v: the context alone has 232 bytes", m)
	}
	for _, w := range []string{"3,000 live", "10 live", "all, in random order", "Memory for one live queue pair (emu, mean of 3,000)"} {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

// asHardware runs c6 as on hardware, on a device that is one only by name, and
// returns what was announced and, from the same moment, the queue pairs alive.
func asHardware(t *testing.T, device string) (r *Result, announced string, before bool, most int64, err error) {
	t.Helper()
	keep, err := devx.Open(device) // so that its statistics stay
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	emu, _ := uverbs.Lookup(device)
	var out bytes.Buffer
	o := Options{Device: device, Quick: true, asHardware: true, Announce: &out}
	o.step = func(string) {
		before = before || announced == "" && out.Len() > 0
		announced = out.String()
		most = max(most, emu.HCA().Stats().QPs)
	}
	r, err = Do(context.Background(), c6, o)
	return r, announced, before, most, err
}

// On hardware c6 says what it will do, does no more than that, and answers.
func TestC6OnHardware(t *testing.T) {
	r, announced, before, most, err := asHardware(t, "emu:threads=31,log_max_qp=6,name=hw")
	if err != nil {
		t.Fatal(err)
	}
	if !before || !strings.HasPrefix(announced, "c6, on emu:threads=31,log_max_qp=6,name=hw: makes 32 queue pairs of its own") {
		t.Errorf("announced %q, before the first modify: %v", announced, before)
	}
	if most != 32 {
		t.Errorf("%d queue pairs, announced 32", most)
	}
	commands := 0
	for _, s := range r.Series {
		if s.Histogram == nil { // else it is part of another
			commands += s.Ops * (len(s.Samples) + 1) // and the warm-up
		}
	}
	if want := "with " + count(commands) + " modify commands"; !strings.Contains(announced, want) {
		t.Errorf("announced %q, but it was %s", announced, want)
	}
	if r.Provenance.Place != PlaceHW || len(r.Series) != 3*len(c6Workers) || len(r.Sweeps) != 2 || len(r.BreakEven) > 0 {
		t.Errorf("place %s, %d series, %d points", r.Provenance.Place, len(r.Series), len(r.BreakEven))
	}
	if len(r.Findings) != 2 || !strings.Contains(r.Findings[0], "made by verbs were not measured") || !strings.Contains(r.Findings[1], "this kernel has none") {
		t.Errorf("findings %q", r.Findings)
	}
	if len(r.Verdicts) != 1 || r.Verdicts[0] != c6Verdict(r.ComparisonOf(c6Names("device", 31))) {
		t.Errorf("verdicts %+v", r.Verdicts)
	}
	for _, c := range r.Comparisons {
		if c.Void != r.SeriesOf(c.A).Void {
			t.Errorf("%s: void %q, its series %q", c.A, c.Void, r.SeriesOf(c.A).Void)
		}
	}
}

// 70 % of 32 queue pairs are 22.
func TestRoomOnHardware(t *testing.T) {
	r, _, _, most, err := asHardware(t, "emu:log_max_qp=5,name=small")
	const want = "bench: this makes 32 queue pairs, and a run on hardware stops at 70 % of what the device offers: emu:log_max_qp=5,name=small has 32, so at most 22"
	if r != nil || err == nil || err.Error() != want || most != 0 {
		t.Errorf("result %v, %d queue pairs, error %v", r, most, err)
	}
}

// In the lab the firmware is emulated: nothing is decided that rests on it, and
// the place is named.
func TestLabDecidesNothingOfFirmware(t *testing.T) {
	t.Setenv(placeVariable, PlaceLab)
	if p := provenance(devx.Info{Name: "mlx5_0"}, ""); p.Place != PlaceLab {
		t.Errorf("a device in the lab is at place %s", p.Place)
	}
	if p := provenance(devx.Info{Name: "emu:", Emulated: true}, "zero"); p.Place != PlaceEmu {
		t.Errorf("an emulated device in the lab is at place %s", p.Place)
	}
	r := &Run{Result: Result{Provenance: Provenance{Place: PlaceLab}, Verdicts: []Verdict{{Claim: "C1", Answer: Supported, Why: "x"}, {Claim: "C6", Answer: Refuted, Why: "y"}, {Claim: "C8", Answer: NotDecidable, Why: "z"}}}}
	r.labVerdicts()
	for _, v := range r.Verdicts {
		if v.Answer != NotDecidable {
			t.Errorf("%+v", v)
		}
	}
	if v := r.Verdicts[0]; !strings.Contains(v.Why, "firmware is emulated") || v.Where == "" {
		t.Errorf("%+v", v)
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "place: lab (") {
		t.Errorf("%v\n%s", err, text.String())
	}
	r.Provenance.Place, r.Verdicts[0].Answer = PlaceHW, Supported
	if r.labVerdicts(); r.Verdicts[0].Answer != Supported {
		t.Error("on hardware it is decided")
	}
}

// A limit of 8 MiB, as is usual, is 2,048 pages.
func TestLockError(t *testing.T) {
	if err := lockError(2048, 8<<20); err != nil {
		t.Error(err)
	}
	if err := lockError(2049, 8<<20); err == nil || !strings.Contains(err.Error(), "ulimit -l 8196") {
		t.Error(err)
	}
}

// A queue pair takes 6 KiB of the machine's memory.
func TestMemoryError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "meminfo")
	if err := os.WriteFile(file, []byte("MemTotal:  9 kB\nMemAvailable:     6144 kB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	free, known := memAvailable(file)
	if free != 6<<20 || !known {
		t.Errorf("%d bytes, %v", free, known)
	}
	if _, known := memAvailable(file + "x"); known {
		t.Error("a file that is not there says how much is free")
	}
	if err := memoryError(1024, free); err != nil {
		t.Error(err)
	}
	if err := memoryError(1025, free); err == nil || !strings.Contains(err.Error(), "--max-qp 1008") {
		t.Error(err)
	}
}

// The three answers.
func TestC6Verdict(t *testing.T) {
	scattered := func() (s []float64) {
		for i := range 20 {
			s = append(s, []float64{80, 130}[i%2])
		}
		return s
	}
	for _, c := range []struct {
		name    string
		batched []float64
		void    string
		want    string
		why     string
	}{
		{"faster", repeat(25, 20), "", Supported, "A transition batched over 31 workers takes 0.250 of what it takes one by one, 95 % interval 0.250 to 0.250, 20 pairs."},
		{"slower", repeat(150, 20), "", Refuted, "A transition batched over 31 workers takes 1.500 of what it takes one by one, 95 % interval 1.500 to 1.500, 20 pairs."},
		{"either", scattered(), "", NotDecidable, "A transition batched over 31 workers takes 1.050 of what it takes one by one, 95 % interval 0.800 to 1.300, 20 pairs: the interval does not tell which is faster."},
		{"too few", repeat(25, 19), "", NotDecidable, "A transition batched over 31 workers takes 0.250 of what it takes one by one, 95 % interval 0.250 to 0.250, 19 pairs: the interval does not tell which is faster."},
		{"void", repeat(25, 20), "9.0 of 16.0 in flight", NotDecidable, "A transition batched over 31 workers takes 0.250 of what it takes one by one, 95 % interval 0.250 to 0.250, 20 pairs; but only 9.0 of 16.0 in flight: this machine did not keep up, so the figure says nothing about the device."},
	} {
		r := &Run{seed: 1}
		r.compare(&contender{Series: Series{Name: "a", Samples: c.batched}}, &contender{Series: Series{Name: "b", Samples: repeat(100, len(c.batched))}})
		r.Comparisons[0].Void = c.void
		if v := c6Verdict(&r.Comparisons[0]); v.Claim != "C6" || v.Answer != c.want || v.Why != c.why {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
	if v := c6Verdict(nil); v.Answer != NotDecidable {
		t.Errorf("without a comparison: %+v", v)
	}
}

// scale is about the emulated device, and opens no other.
func TestScaleRefusesHardware(t *testing.T) {
	for _, o := range []Options{{Device: "mlx5_0"}, {Device: "emu:", asHardware: true}} {
		r, err := Do(context.Background(), scale, o)
		if r != nil || !errors.Is(err, ErrEmuOnly) {
			t.Errorf("%+v: result %v, error %v", o, r, err)
		}
	}
}

// What cannot be written is said before anything is measured.
func TestUnwritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	measured := false
	r, err := Do(context.Background(), micro, Options{Dir: filepath.Join(file, "below"), step: func(string) { measured = true }})
	if r != nil || err == nil || !strings.Contains(err.Error(), file) || measured {
		t.Errorf("result %v, measured %v, error %v", r, measured, err)
	}
}

func TestNoDevice(t *testing.T) {
	for _, c := range []struct {
		device string
		want   error
	}{{"mlx5_that_is_not_there", devx.ErrNoDevice}, {"emu:devx=off", devx.ErrNoDevX}} {
		r, err := Do(context.Background(), micro, Options{Device: c.device})
		if r != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: result %v, error %v", c.device, r, err)
		}
	}
}

// A device that goes away in the middle is an error; what was measured stays.
func TestDeviceGone(t *testing.T) {
	for _, c := range []struct {
		e            Experiment
		at           string
		device, emu  string
		measuredMore int
	}{
		{micro, "getpid, round 4 ", "emu:name=gone", "emu:name=gone", 1},
		{c6, "own/workers=4/how=batched, round 2 ", "emu:", c6OwnDevice, 4},
	} {
		dir := t.TempDir()
		r, err := Do(context.Background(), c.e, Options{Device: c.device, Dir: dir, Quick: true, small: true, step: func(label string) {
			if strings.Contains(label, c.at) {
				if emu, ok := uverbs.Lookup(c.emu); ok {
					emu.Unplug()
				}
			}
		}})
		if r == nil || !errors.Is(err, devx.ErrDeviceGone) {
			t.Fatalf("%s: result %v, error %v", c.e.Name, r, err)
		}
		if r.Interrupted || r.Error == "" || len(r.Verdicts)+len(r.Findings) > 0 || len(r.Series) < c.measuredMore {
			t.Errorf("%s: interrupted %v, error %q, verdicts %v, %d series", c.e.Name, r.Interrupted, r.Error, r.Verdicts, len(r.Series))
		}
		b, err := os.ReadFile(filepath.Join(dir, c.e.Name+".json"))
		if err != nil || !bytes.Contains(b, []byte(`"error": "bench: `)) {
			t.Errorf("%s: %v, %s", c.e.Name, err, b[:min(len(b), 300)])
		}
	}
}

// Interrupted and failed at the same time is not only interrupted.
func TestFailedWhileInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	e := Experiment{Name: "x", run: func(context.Context, *Run) error {
		cancel()
		return errors.New("something else")
	}}
	r, err := Do(ctx, e, Options{})
	if r == nil || err == nil || !r.Interrupted || r.Error != "something else" {
		t.Errorf("%+v, error %v", r, err)
	}
	// Nor is anything claimed that was found before.
	e.run = func(ctx context.Context, r *Run) error {
		r.Verdicts, r.Findings = []Verdict{{Claim: "X"}}, []string{"x"}
		return ctx.Err()
	}
	r, err = Do(ctx, e, Options{})
	if err != nil || !r.Interrupted || r.Error != "" || len(r.Verdicts)+len(r.Findings) > 0 {
		t.Errorf("%+v, error %v", r, err)
	}
	// Done before the context ended is done.
	ctx2, cancel2 := context.WithCancel(context.Background())
	e.run = func(_ context.Context, r *Run) error {
		cancel2()
		r.Verdicts = []Verdict{{Claim: "X"}}
		return nil
	}
	r, err = Do(ctx2, e, Options{})
	if err != nil || r.Interrupted || len(r.Verdicts) != 1 {
		t.Errorf("%+v, error %v", r, err)
	}
}

func TestOnlyEnded(t *testing.T) {
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	other := errors.New("other")
	for _, c := range []struct {
		err  error
		want bool
	}{
		{context.Canceled, true},
		{why, true},
		{fmt.Errorf("bench: %w", why), true},
		{&batch.Error{NotSent: 3, Cause: why}, true},
		{errors.Join(fmt.Errorf("x: %w", context.Canceled), why), true},
		{other, false},
		{fmt.Errorf("bench: %w", other), false},
		{&batch.Error{Failed: 1, First: other, NotSent: 3, Cause: why}, false},
		{errors.Join(why, other), false}, // it ended, and then closing failed
	} {
		if got := onlyEnded(ctx, c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}

// Progress goes to where it was asked to, in one line, not faster than people
// read.
func TestProgress(t *testing.T) {
	var out bytes.Buffer
	r := &Run{Options: Options{Progress: &out}}
	r.Experiment = "x"
	for i := range 1000 {
		r.progress("step %d", i)
	}
	if got := out.String(); !strings.HasPrefix(got, "\r\x1b[Kx: step 0") || strings.Contains(got, "\n") || strings.Count(got, "step") > 900 {
		t.Errorf("%d bytes: %.100q", out.Len(), got)
	}
}

func TestExperiments(t *testing.T) {
	var byDefault []string
	for _, e := range Experiments() {
		if e.Default {
			byDefault = append(byDefault, e.Name)
		}
		if !e.EmuOnly && (e.plan == nil || !e.many && (e.queuePairs < 1 || e.queuePairs > 64)) {
			t.Errorf("%s may run on hardware, and does not say what it does there, or makes %d queue pairs", e.Name, e.queuePairs)
		}
		if e.text == nil || e.Question == "" || experiment(e.Name).Name != e.Name {
			t.Errorf("%+v", e)
		}
	}
	if !slices.Equal(byDefault, []string{"micro", "c1", "c2", "c6", "c8", "timer"}) {
		t.Errorf("by default %v", byDefault)
	}
}

func TestSteal(t *testing.T) {
	const line = "cpu  100 1 20 300 5 0 4 70 11 22\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
	if got, want := parseCPUTime([]byte(line)), (cpuTime{500, 70}); got != want {
		t.Errorf("%+v, want %+v: without guest time, which is in user time", got, want)
	}
	for _, bad := range []string{"", "cpu", "cpu 1 2 3", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8 9"} {
		if got := parseCPUTime([]byte(bad)); got != (cpuTime{}) {
			t.Errorf("%q: %+v", bad, got)
		}
	}
	for _, c := range []struct {
		before, now cpuTime
		want        Float
	}{
		{cpuTime{500, 70}, cpuTime{600, 95}, 0.25},
		{cpuTime{500, 70}, cpuTime{600, 70}, 0},
		{cpuTime{500, 70}, cpuTime{500, 70}, Float(nan)}, // no tick has passed
		{cpuTime{500, 70}, cpuTime{600, 60}, Float(nan)}, // after a migration it may go back
		{cpuTime{}, cpuTime{600, 60}, Float(nan)},
		{cpuTime{500, 70}, cpuTime{}, Float(nan)},
	} {
		if got := stealBetween(c.before, c.now); got != c.want && (got.finite() || c.want.finite()) {
			t.Errorf("%+v to %+v: %v, want %v", c.before, c.now, got, c.want)
		}
	}
}

func TestRevision(t *testing.T) {
	set := func(kv ...string) (s []debug.BuildSetting) {
		for i := 0; i < len(kv); i += 2 {
			s = append(s, debug.BuildSetting{Key: kv[i], Value: kv[i+1]})
		}
		return s
	}
	for _, c := range []struct {
		settings []debug.BuildSetting
		want     string
	}{
		{nil, "unknown"},
		{set("GOARCH", "amd64"), "unknown"},
		{set("vcs.revision", "abc", "vcs.modified", "false"), "abc"},
		{set("vcs.modified", "true", "vcs.revision", "abc"), "abc+changes"},
	} {
		if got := revisionOf(c.settings); got != c.want {
			t.Errorf("%v: %q, want %q", c.settings, got, c.want)
		}
	}
}
