// SPDX-License-Identifier: BSD-2-Clause

package calibrate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"devxlab.example/devx"
	"devxlab.example/emu/fw"
	"devxlab.example/emu/uverbs"
	"devxlab.example/internal/leaktest"
	"devxlab.example/internal/race"
	"devxlab.example/mlx5"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const us = time.Microsecond

// spread are latencies that vary: most within a fifth of the median, a few much
// longer.
func spread(median time.Duration) fw.Dist {
	return fw.Dist{Points: []fw.Point{
		{Q: 0.01, Latency: median * 8 / 10}, {Q: 0.25, Latency: median * 95 / 100}, {Q: 0.5, Latency: median}, {Q: 0.75, Latency: median * 105 / 100},
		{Q: 0.95, Latency: median * 12 / 10}, {Q: 0.99, Latency: 2 * median}, {Q: 0.999, Latency: 10 * median},
	}}
}

func fixed(d time.Duration) fw.Dist { return fw.Dist{Fixed: d} }

// hidden is a profile whose commands take different times, each of the form that
// dist gives it.
func hidden(threads, slots int, submit time.Duration, dist func(time.Duration) fw.Dist) *fw.Profile {
	p := &fw.Profile{Name: "hidden", Source: "test", Threads: threads, Slots: slots, Submit: fixed(submit), Default: dist(300 * us), Ops: map[mlx5.Op]fw.Dist{}}
	for op, d := range map[mlx5.Op]time.Duration{
		mlx5.OpCreateQP: 491, mlx5.OpDestroyQP: 260, mlx5.OpRST2INIT: 175, mlx5.OpINIT2RTR: 190, mlx5.OpRTR2RTS: 180, mlx5.OpRTS2RTS: 150, mlx5.Op2ERR: 140,
		mlx5.Op2RST: 220, mlx5.OpQueryQP: 120, mlx5.OpCreateCQ: 350, mlx5.OpDestroyCQ: 250, mlx5.OpAllocPD: 160, mlx5.OpDeallocPD: 130, mlx5.OpCreateMKey: 243,
		mlx5.OpDestroyMKey: 163, mlx5.OpNOP: 60, mlx5.OpQueryHCACap: 1773,
	} {
		p.Ops[op] = dist(d * us)
	}
	return p
}

// device returns the name of an emulated device of that profile.
func device(t testing.TB, p *fw.Profile, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hidden.json")
	if err := WriteProfile(file, p, false); err != nil {
		t.Fatal(err)
	}
	return "emu:clock=virtual,profile=" + file + more
}

func calibrate(t testing.TB, o Options) *Result {
	t.Helper()
	r, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func near(a, b time.Duration, share float64) bool {
	return math.Abs(float64(a-b)) <= share*float64(b)
}

// profiles are hidden ones. Slots can be told (known) if commands are at times
// submitted too slowly to keep all threads busy.
var profiles = []struct {
	threads, slots int
	submit         time.Duration
	known          bool // slots, where times do not vary
}{
	{1, 31, 10 * us, false}, {1, 7, 40 * us, false}, {2, 5, 2 * us, false}, {2, 15, 30 * us, false}, {3, 31, 40 * us, true}, {4, 7, 5 * us, true},
	{4, 31, 2 * us, false}, {8, 31, 37 * us, true}, {8, 15, 3 * us, true}, {8, 5, 10 * us, true}, {8, 7, 40 * us, true}, {16, 31, 4 * us, true},
	{31, 31, 2 * us, true}, {64, 31, 5 * us, true},
}

// checkThreads compares with the truth; more threads than slots cannot be seen.
func checkThreads(t *testing.T, r *Result, threads, slots int, sure Confidence) {
	t.Helper()
	f := r.Figure("threads")
	if threads < slots {
		if f.Value != int64(threads) || f.Low != f.High || f.Confidence != sure {
			t.Errorf("threads %+v, want %d", *f, threads)
		}
	} else if f.Value != int64(slots) || f.Low != f.Value || f.High != maxThreads || f.Confidence != NotIdentifiable || !strings.Contains(f.Note, "at least") {
		t.Errorf("threads %+v, want at least %d", *f, slots)
	}
	if r.Profile.Threads != int(f.Value) {
		t.Errorf("the profile has %d threads", r.Profile.Threads)
	}
}

// Where times do not vary, all is found to the nanosecond, or said not to be
// identifiable with the truth in the range.
func TestHiddenFixed(t *testing.T) {
	for i, c := range profiles {
		if race.Enabled && i%4 != 0 { // it looks at how, not at what
			continue
		}
		p := hidden(c.threads, c.slots, c.submit, fixed)
		r := calibrate(t, Options{Device: device(t, p, ""), Samples: 100})
		checkThreads(t, r, c.threads, c.slots, Exact)
		s := r.Figure("slots")
		switch {
		case c.known && (s.Value != int64(c.slots) || s.Low != s.High || s.Confidence != Exact):
			t.Errorf("%+v: slots %+v", c, *s)
		case !c.known && (s.Confidence != NotIdentifiable || s.Low > int64(c.slots) || s.High < int64(c.slots) || !strings.Contains(s.Note, "not identifiable: ")):
			t.Errorf("%+v: slots %+v", c, *s)
		case !c.known && (s.Value != 31 || !strings.Contains(s.Note, "the driver's limit of 31 is taken")):
			t.Errorf("%+v: slots %+v, want the driver's limit", c, *s)
		}
		if r.Profile.Slots != int(s.Value) || r.Profile.SlotsFrom.Note == "" {
			t.Errorf("%+v: the profile has %d slots, %+v", c, r.Profile.Slots, r.Profile.SlotsFrom)
		}
		if u := r.Figure("submit"); u.Value != int64(c.submit) || u.Low != u.High || u.Confidence != Exact || r.Profile.Submit.Fixed != c.submit {
			t.Errorf("%+v: submit %+v", c, *u)
		}
		for op, d := range p.Ops {
			if l := r.Op(op); l.Value != int64(d.Fixed) || l.Confidence != Exact || l.N != 100 || r.Profile.Ops[op].Fixed != d.Fixed {
				t.Errorf("%+v: %v: %+v, want %v", c, op, *l, d.Fixed)
			}
		}
		if len(r.Ops) != len(steps) || len(r.Notes) > 0 {
			t.Errorf("%d opcodes, %v", len(r.Ops), r.Notes)
		}
	}
}

// Where times vary, and some are very long, threads are found all the same; the
// other intervals cover the truth, and the distribution is that of the profile.
func TestHiddenTails(t *testing.T) {
	for i, c := range profiles {
		if i%2 == 0 || race.Enabled && i > 1 { // half of them: each takes a second
			continue
		}
		p := hidden(c.threads, c.slots, c.submit, spread)
		r := calibrate(t, Options{Device: device(t, p, ",seed=3")})
		checkThreads(t, r, c.threads, c.slots, Estimated)
		if s := r.Figure("slots"); s.Low > int64(c.slots) || s.High < int64(c.slots) || s.Confidence == Exact || s.Low == s.High && s.Confidence != Estimated {
			t.Errorf("%+v: slots %+v", c, *s)
		}
		// The interval is one of 95 %, so one in twenty need not cover it.
		u := r.Figure("submit")
		if by := u.High - u.Low; u.Confidence != Estimated || u.Low-by/2 > int64(c.submit) || u.High+by/2 < int64(c.submit) || by > int64(5*us) {
			t.Errorf("%+v: submit %+v", c, *u)
		}
		for op, d := range p.Ops {
			l, got := r.Op(op), r.Profile.Ops[op]
			if !near(time.Duration(l.Value), d.At(0.5), 0.1) || l.Low > l.Value || l.High < l.Value {
				t.Errorf("%+v: %v: %+v, want %v", c, op, *l, d.At(0.5))
			}
			for _, q := range []float64{0.1, 0.25, 0.5, 0.75, 0.9} {
				if !near(got.At(q), d.At(q), 0.1) {
					t.Errorf("%+v: %v: quantile %v is %v, want %v", c, op, q, got.At(q), d.At(q))
				}
			}
			if last := got.Points[len(got.Points)-1]; last.Q != 0.99 {
				t.Errorf("%+v: %v: 1000 samples carry quantile %v", c, op, last.Q)
			}
		}
	}
}

// What was found, run as a profile and measured again, is found again.
func TestAgain(t *testing.T) {
	for _, dist := range []func(time.Duration) fw.Dist{fixed, spread} {
		if race.Enabled {
			break
		}
		first := calibrate(t, Options{Device: device(t, hidden(4, 7, 5*us, dist), "")})
		second := calibrate(t, Options{Device: device(t, first.Profile, ",seed=9")})
		for _, name := range []string{"threads", "slots"} {
			if a, b := first.Figure(name), second.Figure(name); a.Value != b.Value && (a.Low > b.High || b.Low > a.High) {
				t.Errorf("%+v, then %+v", *a, *b)
			}
		}
		if a, b := first.Figure("submit"), second.Figure("submit"); (time.Duration(a.Value - b.Value)).Abs() > us {
			t.Errorf("%+v, then %+v", *a, *b)
		}
		for _, a := range first.Ops {
			op, _ := mlx5.ParseOp(a.Name)
			if b := second.Op(op); !near(time.Duration(b.Value), time.Duration(a.Value), 0.05) {
				t.Errorf("%v: %d, then %d", op, a.Value, b.Value)
			}
		}
	}
}

// The same device measured twice gives the same figures.
func TestRepeats(t *testing.T) {
	name := device(t, hidden(4, 15, 20*us, spread), ",seed=5")
	a, b := calibrate(t, Options{Device: name, Samples: 200}), calibrate(t, Options{Device: name, Samples: 200})
	if !reflect.DeepEqual(a.Figures, b.Figures) || !reflect.DeepEqual(a.Ops, b.Ops) {
		t.Errorf("%+v, then\n%+v", a.Figures, b.Figures)
	}
}

// What cannot be told is not made up.
func TestNotIdentifiable(t *testing.T) {
	for _, c := range []struct {
		what, options    string
		threads, slots   [2]int64 // what it may be
		submit           [2]time.Duration
		name, note       string // of the figure whose note says so
		valueInProfile   int
		threadsConfident Confidence
	}{
		{"free submission: slots or threads, who knows", "latency=200us,threads=8", [2]int64{8, 64}, [2]int64{8, 31}, [2]time.Duration{}, "threads", "at least 8", 8, NotIdentifiable},
		{"free submission, few slots", "latency=200us,threads=8,slots=5", [2]int64{5, 64}, [2]int64{5, 31}, [2]time.Duration{}, "threads", "at least 5", 5, NotIdentifiable},
		{"one thread or slow submission", "latency=200us,threads=1,submit=10us", [2]int64{1, 1}, [2]int64{2, 31}, [2]time.Duration{10 * us, 10 * us}, "submit", "implausible", 1, Estimated},
		{"one slot: when it was submitted is the same to all", "latency=200us,threads=8,slots=1,submit=10us", [2]int64{1, 64}, [2]int64{1, 31}, [2]time.Duration{0, 210 * us}, "submit", "not identifiable: anything from", 1, NotIdentifiable},
		// Here what is taken for implausible is the truth, and the note says so.
		{"submission slower than commands", "latency=20us,threads=8,submit=100us", [2]int64{1, 1}, [2]int64{2, 31}, [2]time.Duration{20 * us, 20 * us}, "threads", "a submit cost of 100µs and any number of threads would explain the same times", 1, Estimated},
		{"nothing takes time", "", [2]int64{1, 64}, [2]int64{1, 31}, [2]time.Duration{}, "threads", "at least 1", 1, NotIdentifiable},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := calibrate(t, Options{Device: strings.TrimSuffix("emu:clock=virtual,"+c.options, ","), Samples: 100})
			th, s, u := r.Figure("threads"), r.Figure("slots"), r.Figure("submit")
			if th.Low != c.threads[0] || th.High != c.threads[1] || c.threadsConfident != "" && th.Confidence != c.threadsConfident || r.Profile.Threads != c.valueInProfile {
				t.Errorf("threads %+v, want %v", *th, c.threads)
			}
			if s.Low != c.slots[0] || s.High != c.slots[1] || s.Confidence != NotIdentifiable || r.Profile.Slots != 31 {
				t.Errorf("slots %+v, want %v", *s, c.slots)
			}
			if u.Low > int64(c.submit[0]) || u.High < int64(c.submit[1]) {
				t.Errorf("submit %+v, want %v", *u, c.submit)
			}
			if f := r.Figure(c.name); !strings.Contains(f.Note, c.note) {
				t.Errorf("%s: the note is %q, want %q in it", c.name, f.Note, c.note)
			}
		})
	}
}

// What live queue pairs add, and how many contexts fit.
func TestQPs(t *testing.T) {
	for _, dist := range []func(time.Duration) fw.Dist{fixed, spread} {
		p := hidden(8, 31, 37*us, dist)
		p.Per1000QPs = 20 * us
		p.ContextCache = &fw.ContextCache{QueuePairs: 777, Miss: fixed(300 * us)}
		r := calibrate(t, Options{Device: device(t, p, ""), QPs: 4000})
		checkThreads(t, r, 8, 31, map[bool]Confidence{true: Exact, false: Estimated}[r.Op(mlx5.OpNOP).Min == r.Op(mlx5.OpNOP).Max])
		grow, size, miss := r.Figure("per_1000_qps"), r.Figure("cache"), r.Figure("miss")
		if grow.Low > int64(20*us) || grow.High < int64(20*us) || !near(time.Duration(grow.Value), 20*us, 0.1) {
			t.Errorf("%+v", *grow)
		}
		if size.Value != 777 || size.Low != size.High {
			t.Errorf("%+v", *size)
		}
		if miss.Low > int64(300*us) || miss.High < int64(300*us) || !near(time.Duration(miss.Value), 300*us, 0.05) {
			t.Errorf("%+v", *miss)
		}
		q := r.Profile
		if q.Per1000QPs != time.Duration(grow.Value) || q.ContextCache.QueuePairs != 777 || q.ContextCache.Miss.Fixed != time.Duration(miss.Value) {
			t.Errorf("profile %+v", q)
		}
		for _, op := range []mlx5.Op{mlx5.OpQueryQP, mlx5.OpDestroyQP, mlx5.OpNOP} { // the 64 that were alive are not in it
			d := p.Ops[op]
			if l := r.Op(op); !near(time.Duration(l.Value), d.At(0.5), 0.03) {
				t.Errorf("%v: %+v, want %v", op, *l, d.At(0.5))
			}
		}
	}
	r := calibrate(t, Options{Device: device(t, hidden(8, 31, 37*us, fixed), ""), QPs: 1000, Samples: 100})
	if f := r.Figure("per_1000_qps"); f.Confidence != NotIdentifiable || f.Value != 0 {
		t.Errorf("%+v", *f)
	}
	if f := r.Figure("cache"); f.Confidence != NotIdentifiable || f.Low != 1000 || r.Figure("miss") != nil || r.Profile.ContextCache != nil {
		t.Errorf("%+v, %+v", *f, r.Profile.ContextCache)
	}
}

// On a real clock each call has its own cost, which the profile admits.
func TestRealClock(t *testing.T) {
	procs := runtime.GOMAXPROCS(0)
	r := calibrate(t, Options{Device: "emu:latency=20us", Samples: 100})
	if n := runtime.GOMAXPROCS(0); n != procs {
		t.Errorf("GOMAXPROCS is %d, was %d", n, procs)
	}
	if f := r.Figure("refused call"); f == nil || f.Value <= 0 || f.N != calls {
		t.Errorf("%+v", f)
	}
	for _, name := range []string{"threads", "slots", "submit", "return"} {
		if f := r.Figure(name); f == nil || f.Confidence == Exact {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if r.Clock != "CLOCK_MONOTONIC" || r.Place != "emu" || !strings.Contains(r.Profile.Note, "nothing was subtracted for them. A call that the kernel refuses took") {
		t.Errorf("%s, %s: %s", r.Clock, r.Place, r.Profile.Note)
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "calibrate: no device: name one (mlx5_0), or the emulated one (emu:)"},
		{Options{Device: "emu:", Samples: 99}, "calibrate: 99 samples are out of range: 100 to 1000000"},
		{Options{Device: "emu:", Samples: -1}, "calibrate: -1 samples are out of range"},
		{Options{Device: "emu:", QPs: 999}, "calibrate: 999 queue pairs are out of range: 1000 to 2097152, or 0 for not looking"},
		{Options{Device: "emu:log_max_qp=6"}, "calibrate: this makes 65 queue pairs, and emu:log_max_qp=6 has log_max_qp 6: at most 64, as the device offers no more"},
		{Options{Device: "emu:log_max_qp=10", QPs: 1000}, "calibrate: this makes 1065 queue pairs"},
		{Options{Device: "emu:log_max_qp=6,name=hw", asHardware: true}, "at most 44, as a run on hardware stops at 70 % of what the device offers"},
	} {
		r, err := Run(context.Background(), c.o)
		if !errors.Is(err, ErrOptions) || r != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v\nwant %s", c.o, err, c.want)
		}
	}
	if _, err := Run(context.Background(), Options{Device: "mlx5_not_there"}); !errors.Is(err, devx.ErrNoDevice) {
		t.Error(err)
	}
	if _, err := Run(context.Background(), Options{Device: "emu:devx=off"}); !errors.Is(err, devx.ErrNoDevX) {
		t.Error(err)
	}
}

// onWrite calls a function with what is written.
type onWrite func(string) error

func (f onWrite) Write(b []byte) (int, error) { return len(b), f(string(b)) }

// What is done to hardware is said before the first queue pair, and an end to
// that ends the run.
func TestAnnounce(t *testing.T) {
	const name = "emu:clock=virtual,latency=1us,name=hw"
	stop := errors.New("stop")
	said := ""
	_, err := Run(context.Background(), Options{Device: name, QPs: 2000, asHardware: true, Announce: onWrite(func(s string) error {
		said = s
		if d, ok := uverbs.Lookup(name); !ok || d.HCA().Stats().QPs != 0 {
			t.Error("queue pairs were made before")
		}
		return stop
	})})
	if !errors.Is(err, stop) {
		t.Error(err)
	}
	for _, want := range []string{"calibrate, on " + name, "65 queue pairs", "up to 64 at once", "Grows to 2064 queue pairs", "No work request"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q has no %q", said, want)
		}
	}
	calibrate(t, Options{Device: name, Samples: 100, Announce: onWrite(func(string) error { t.Error("announced, and is emulated"); return nil })})
}

// An end of the context ends every part, with nothing left behind.
func TestInterrupted(t *testing.T) {
	const name = "emu:clock=virtual,latency=1us,name=ends"
	for _, part := range []string{"one by one", "at once", "queue pairs", "going round"} {
		ctx, cancel := context.WithCancel(context.Background())
		o := Options{Device: name, Samples: 100, QPs: 1000}
		o.step = func(s string) {
			if strings.Contains(s, part) {
				cancel()
			}
		}
		r, err := Run(ctx, o)
		if !errors.Is(err, context.Canceled) || r != nil {
			t.Errorf("%s: %v, %v", part, r, err)
		}
		if _, open := uverbs.Lookup(name); open {
			t.Errorf("%s: the device is open", part)
		}
		cancel()
	}
}

// A device that is pulled out is an error.
func TestUnplugged(t *testing.T) {
	const name = "emu:clock=virtual,latency=1us,name=unplugged"
	for _, part := range []string{"one by one", "at once"} {
		o := Options{Device: name, Samples: 100}
		o.step = func(s string) {
			if d, ok := uverbs.Lookup(name); ok && strings.Contains(s, part) {
				d.Unplug()
			}
		}
		if r, err := Run(context.Background(), o); !errors.Is(err, devx.ErrDeviceGone) || r != nil {
			t.Errorf("%s: %v, %v", part, r, err)
		}
	}
}

func TestResult(t *testing.T) {
	r := calibrate(t, Options{Device: device(t, hidden(4, 7, 5*us, fixed), ""), Samples: 100})
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"place: emu, clock: virtual", "all of this is what its profile was told", "threads", "exact", "RTR2RTS_QP", "180µs", "bootstrap"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Result
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back.Profile, r.Profile) || !reflect.DeepEqual(back.Figures, r.Figures) || back.Op(mlx5.OpNOP).Value != r.Op(mlx5.OpNOP).Value {
		t.Errorf("%s", text)
	}
	if r.Op(mlx5.OpSQERR2RTS) != nil || r.Figure("miss") != nil {
		t.Error("figures of what was not measured")
	}
	broken := errors.New("broken")
	if err := r.WriteText(onWrite(func(string) error { return broken })); !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestWriteProfile(t *testing.T) {
	p := hidden(4, 7, 5*us, spread)
	if err := p.Compile(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "p.json")
	if err := WriteProfile(file, p, false); err != nil {
		t.Fatal(err)
	}
	q, err := fw.ProfileByName(file)
	if err != nil || !reflect.DeepEqual(p, q) {
		t.Errorf("%v, read back %+v", err, q)
	}
	was, _ := os.ReadFile(file)
	if err := WriteProfile(file, p, false); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "--force") {
		t.Error(err)
	}
	bad := *p
	bad.Source = ""
	if err := WriteProfile(file, &bad, true); err == nil || !strings.Contains(err.Error(), "source is empty") {
		t.Error(err)
	}
	if now, _ := os.ReadFile(file); !bytes.Equal(now, was) {
		t.Error("a refusal changed the file")
	}
	p.Threads = 5
	if err := WriteProfile(file, p, true); err != nil {
		t.Error(err)
	}
	if q, err := fw.ProfileByName(file); err != nil || q.Threads != 5 {
		t.Errorf("%v, %+v", err, q)
	}
	if err := WriteProfile(filepath.Join(dir, "no", "p.json"), p, false); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := WriteProfile(dir, p, true); err == nil || !strings.Contains(err.Error(), "is a directory: name a file") {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// A profile's name is one printable line that leaves room for options.
func TestName(t *testing.T) {
	for device, want := range map[string]string{
		"mlx5_0":                  "calibrated mlx5_0",
		"emu:name=a\nb\xff":       "calibrated emu:name=a_b\ufffd",
		strings.Repeat("é", 1000): "calibrated " + strings.Repeat("é", 53),
	} {
		if got := name(device); got != want {
			t.Errorf("%q: %q, want %q", device, got, want)
		}
	}
}

// A quantile needs ten samples beyond it.
func TestCarried(t *testing.T) {
	for _, c := range []struct {
		q    float64
		n    int
		want bool
	}{{0.5, 1, true}, {0.99, 999, false}, {0.99, 1000, true}, {0.999, 9999, false}, {0.999, 10000, true}, {0.9, 100, true}, {0.9, 90, false}, {0.01, 999, false}, {0.01, 1000, true}} {
		if carried(c.q, c.n) != c.want {
			t.Errorf("%d samples, quantile %v: %v", c.n, c.q, !c.want)
		}
	}
}

// The interval is what many resamples give.
func TestMedianInterval(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 10, 101, 300} {
		xs := make([]time.Duration, n)
		for i := range xs {
			xs[i] = time.Duration(1000 * rng.ExpFloat64())
		}
		slices.Sort(xs)
		medians := make([]time.Duration, 10000)
		drawn := make([]time.Duration, n)
		for i := range medians {
			for j := range drawn {
				drawn[j] = xs[rng.IntN(n)]
			}
			medians[i] = median(drawn)
		}
		slices.Sort(medians)
		low, high := medianInterval(xs)
		at := func(x time.Duration) (float64, float64) { // shares of medians below, and not above
			a, _ := slices.BinarySearch(medians, x)
			b, _ := slices.BinarySearch(medians, x+1)
			return float64(a) / 10000, float64(b) / 10000
		}
		if a, b := at(low); a > 0.03 || b < 0.02 {
			t.Errorf("n %d: low %v is at %v to %v", n, low, a, b)
		}
		if a, b := at(high); a > 0.98 || b < 0.97 {
			t.Errorf("n %d: high %v is at %v to %v", n, high, a, b)
		}
	}
}

// Whatever command takes longest, and so is what bursts are made of: it ends, and
// finds the same.
func TestAnyCommandLongest(t *testing.T) {
	for i := range steps {
		if race.Enabled && i%6 != 3 {
			continue
		}
		p := hidden(4, 31, 5*us, fixed)
		p.Ops[steps[i].op] = fixed(5 * time.Millisecond)
		r := calibrate(t, Options{Device: device(t, p, ""), Samples: 100})
		if f := r.Figure("threads"); f.Value != 4 {
			t.Errorf("%v: threads %+v", steps[i].op, *f)
		}
	}
}
