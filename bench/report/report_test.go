// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"devxlab.example/bench"
)

var update = flag.Bool("update", false, "write the golden file and the run that it is made of")

const hostile = "x\"'><script>alert(1)</script><img src=//evil.example/x onerror=alert(1)></style></svg><!-- \x1b[31m\u202e javascript:alert(1)"

// run is a small run that has something of everything. Its experiments are none
// of the real ones, whose texts change.
func run() []*bench.Result {
	nan := bench.Float(math.NaN())
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	prov := bench.Provenance{
		Place: bench.PlaceEmu, Device: "emu:", Profile: "zero", Kernel: "6.1.0", Stack: "none: emulated in the process", CPU: "AMD EPYC",
		CPUs: 2, Arch: "amd64", GOMAXPROCS: 2, Go: "go1.26.0", Commit: "2d114f3", Load: 0.5, Steal: 0.0123,
	}
	samples := func(v float64) (s bench.Samples) {
		for i := range 25 {
			s = append(s, v*(1+0.01*float64(i%7)))
		}
		return s
	}
	series := func(name, what string, v float64) bench.Series {
		s := bench.Series{Name: name, What: what, GOMAXPROCS: 2, Ops: 1000, Samples: samples(v)}
		s.Summary = bench.Summarize(s.Samples)
		return s
	}
	timed := func(name string, n int, base, tail float64) bench.Series {
		h := hdrhistogram.New(1, 120e9, 3)
		for i := range n {
			q := (float64(i) + 0.5) / float64(n)
			_ = h.RecordValue(int64(base * (1 + 0.1*q + tail*math.Pow(q, 200))))
		}
		return bench.Series{Name: name, What: "one connection, from the wish to RTS", GOMAXPROCS: 2, Ops: 1, Log: name, Histogram: h,
			Samples: bench.Samples{}, Summary: bench.Summary{N: h.TotalCount(), Min: h.Min(), P50: h.ValueAtQuantile(50), P90: h.ValueAtQuantile(90), P99: h.ValueAtQuantile(99), P999: h.ValueAtQuantile(99.9), Max: h.Max()}}
	}
	ratio := func(m float64, a bench.Answer) bench.Ratio {
		return bench.Ratio{Pairs: 25, Median: bench.Float(m), Low: bench.Float(m * 0.93), High: bench.Float(m * 1.06), Answer: a}
	}

	third := &bench.Result{
		Format: bench.Format, Experiment: "third", Question: "Does RTR to RTS get slower above 32,768 queue pairs?", Method: "A sweep over live queue pairs, interleaved passes.",
		Params: bench.Params{"timeout": 14, "live": []int{1024, 65536}}, Provenance: prov, Command: "devxlab bench third --device emu: --quick", Started: began, Took: 4321 * time.Millisecond,
		Series: []bench.Series{timed("setup/pool=cold", 20000, 41e3, 9), timed("setup/pool=warm", 20000, 9e3, 30), series("own", "one modify", 812)},
		Verdicts: []bench.Verdict{
			{Claim: "C1", Answer: bench.OnlyBreakEven, Why: "A knee shows if a command costs 3.1 ns more for each live queue pair.", Where: "make bench DEV=mlx5_0"},
			{Claim: "C7", Answer: bench.Supported, Why: "Cold 41 µs, warm 9 µs."}, {Claim: "C10", Answer: bench.Refuted, Why: "The formula wastes 38 %."},
		},
		Comparisons: []bench.Comparison{},
		Findings:    []string{"The hash table was resized three times."},
		BreakEven:   []bench.BreakEven{{Command: 5 * time.Microsecond, P: 2, PFavour: 2, PAgainst: 3}, {Command: 500, P: 0, PFavour: 4}},
		Memory:      &bench.Memory{QueuePairs: 65536, Heap: 384.4, Sys: 398, Resident: 375, QP: 56, Mapped: 4096},
	}
	knee := bench.Sweep{Name: "rtr2rts", What: "time of one transition", X: "live queue pairs", Log: true, Device: "emu:",
		Knee: &bench.Knee{Found: true, At: 32768, Low: 16384, High: 46000, Model: "two lines", Plain: "one line", Evidence: 23.4, Rise: 1.6, Why: "Two lines fit better than one (BIC 23.4 less)."}}
	flat := bench.Sweep{Name: "serial", What: "time of one transition", X: "workers", Device: "emu:name=flat", Void: "steal was 12 %",
		Knee: &bench.Knee{At: nan, Low: nan, High: nan, Evidence: -3, Rise: nan, Why: "One line fits as well."}}
	for i, x := range []float64{1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17} {
		y := bench.Float(800 + 10*float64(i) + 160*math.Max(0, float64(i-5)))
		p := bench.Point{X: x, N: 25, Median: y, Low: y * 0.96, High: y * 1.05}
		if i == 2 {
			p.Void = "0.8 of 1.0 in flight"
		}
		knee.Points = append(knee.Points, p)
		flat.Points = append(flat.Points, bench.Point{X: float64(i + 1), N: 25, Median: 5e6 + bench.Float(i*i)*1e4, Low: nan, High: nan})
	}
	third.Sweeps = []bench.Sweep{knee, flat, {Name: "nothing", What: "time", X: "live queue pairs", Device: "emu:", Points: []bench.Point{{X: 1, Median: nan, Low: nan, High: nan}}}}

	hw := prov
	hw.Place, hw.Device, hw.Profile, hw.Firmware, hw.Stack, hw.Steal = bench.PlaceHW, "mlx5_0", "", "22.36.1010", "inbox", nan
	void := series("device/workers=64/how=batched", "one transition", 12e3)
	void.Depth, void.InFlight, void.Possible, void.Void = 64, 9, 16, "9.0 of 16.0 in flight"
	second := &bench.Result{
		Format: bench.Format, Experiment: "second", Question: "Is modifying queue pairs in batches of 32 faster than one by one?", Method: "One by one against batched.",
		Params: bench.Params{}, Provenance: hw, Command: "devxlab bench second --device mlx5_0", Started: began.Add(5 * time.Second), Took: time.Minute,
		Verdicts: []bench.Verdict{}, Findings: []string{},
		Series: []bench.Series{series("device/workers=31/how=batched", "one transition", 21e3), series("device/workers=31/how=serial", "one transition", 300e3), void, series("device/workers=64/how=serial", "one transition", 299e3)},
		Comparisons: []bench.Comparison{
			{A: "device/workers=31/how=batched", B: "device/workers=31/how=serial", Ratio: ratio(0.07, bench.Better)},
			{A: "device/workers=64/how=batched", B: "device/workers=64/how=serial", Ratio: ratio(0.04, bench.Better), Void: "9.0 of 16.0 in flight"},
			{A: "device/workers=1/how=batched", B: "device/workers=1/how=serial", Ratio: ratio(1.3, bench.Worse)},
			{A: "device/workers=2/how=batched", B: "device/workers=2/how=serial", Ratio: ratio(1.01, bench.Inconclusive)},
			{A: "none", B: "none", Ratio: bench.Ratio{Median: nan, Low: nan, High: nan, Answer: bench.Inconclusive}},
		},
		Error: "bench: second: " + strings.TrimSuffix(hostile, "javascript:alert(1)"),
	}
	first := &bench.Result{
		Format: bench.Format, Experiment: "first", Question: "What do the parts cost?", Method: "In turn.", Params: bench.Params{}, Provenance: prov,
		Verdicts: []bench.Verdict{}, Findings: []string{}, Comparisons: []bench.Comparison{}, Series: []bench.Series{series("getpid", "one getpid", 1010)}, Interrupted: true, Started: began, Took: time.Second,
	}
	return []*bench.Result{first, second, third}
}

func write1(t *testing.T, results []*bench.Result, broken ...error) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, results, broken); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The report of the run in testdata is the one beside it, byte for byte. That
// run is what run returns, written and loaded.
func TestGolden(t *testing.T) {
	dir, golden := filepath.Join("testdata", "run"), filepath.Join("testdata", "report.html")
	if *update {
		for _, r := range run() {
			if err := r.WriteFiles(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	results, broken := bench.LoadDir(dir)
	if len(broken) > 0 {
		t.Fatal(broken)
	}
	got := write1(t, results, errors.New("bench: testdata/c9.json: ends in the middle, after 4096 bytes"))
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		a, b := strings.Split(got, "\n"), strings.Split(string(want), "\n")
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Fatalf("%s, line %d (go test -update writes it): got\n%s\nwant\n%s", golden, i+1, a[i], b[i])
			}
		}
		t.Fatalf("%s: %d lines, want %d", golden, len(a), len(b))
	}
	for range 3 {
		if again := write1(t, results, errors.New("bench: testdata/c9.json: ends in the middle, after 4096 bytes")); again != got {
			t.Fatal("the same results make another file")
		}
	}
}

// hostileRun has a hostile text wherever a text can stand.
func hostileRun() []*bench.Result {
	rs := run()
	for _, r := range rs {
		r.Question, r.Method, r.Command, r.Error = hostile, hostile, hostile, hostile
		r.Params = bench.Params{hostile: hostile}
		r.Provenance.Device, r.Provenance.Profile, r.Provenance.CPU, r.Provenance.Kernel, r.Provenance.Commit = hostile, hostile, hostile, hostile, hostile
		r.Findings = []string{hostile}
		r.Verdicts = append(r.Verdicts, bench.Verdict{Claim: hostile, Answer: hostile, Why: hostile, Where: hostile})
		for i := range r.Series {
			r.Series[i].Name, r.Series[i].What, r.Series[i].Void, r.Series[i].Device = fmt.Sprint(i, hostile), hostile, hostile, hostile
			if r.Series[i].Histogram != nil {
				r.Series[i].Void = ""
			}
		}
		for i := range r.Comparisons {
			r.Comparisons[i].A, r.Comparisons[i].B, r.Comparisons[i].Void = hostile, hostile, hostile
		}
		for i := range r.Sweeps {
			s := &r.Sweeps[i]
			s.Name, s.What, s.X, s.Device, s.Void = hostile, hostile, hostile, hostile, hostile
			s.Knee = &bench.Knee{Found: true, At: 4096, Low: 1, High: bench.Float(math.Inf(1)), Why: hostile}
		}
	}
	return rs
}

// walk parses a page strictly: every element is closed and every attribute
// quoted, so that nothing of it can be read in two ways.
func walk(t *testing.T, html string, element func(xml.StartElement), words func(string)) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(html))
	in := ""
	for {
		switch tok, err := d.Token(); x := tok.(type) {
		case nil:
			if err != io.EOF {
				t.Fatal(err)
			}
			return
		case xml.StartElement:
			in = x.Name.Local
			element(x)
		case xml.EndElement:
			in = ""
		case xml.CharData:
			if in == "style" {
				words(string(x))
			}
		}
	}
}

var (
	known = map[string]bool{}
	urls  = regexp.MustCompile(`(?i)url\(\s*['"]?([^)'"]*)`)
)

func init() {
	for _, s := range strings.Fields(`html head meta title style body header main section h1 h2 h3 p strong span code ul li table thead tbody tr th td
		div figure figcaption details summary pre br s svg g path text desc`) {
		known[s] = true
	}
}

// Nothing in the page can make a request, run, or lead away, whatever stands in
// the results.
func TestStandsAlone(t *testing.T) {
	for name, page := range map[string]string{
		"run": write1(t, run()), "hostile": write1(t, hostileRun(), errors.New(hostile)), "empty": write1(t, nil), "broken": write1(t, nil, errors.New("x")),
	} {
		policy := false
		ids := map[string]bool{}
		var refer []string
		inert := func(s string) {
			for _, m := range urls.FindAllStringSubmatch(s, -1) {
				if !strings.HasPrefix(m[1], "data:") && !strings.HasPrefix(m[1], "#") {
					t.Errorf("%s: url(%s)", name, m[1])
				}
			}
			if strings.Contains(strings.ToLower(s), "@import") {
				t.Errorf("%s: @import", name)
			}
		}
		walk(t, page, func(e xml.StartElement) {
			if !known[e.Name.Local] {
				t.Errorf("%s: an element %s", name, e.Name.Local)
			}
			for _, a := range e.Attr {
				switch key := strings.ToLower(a.Name.Local); {
				case key == "src", key == "href", key == "srcset", key == "action", key == "data", key == "poster", key == "background", key == "ping", key == "formaction", key == "cite", key == "manifest":
					if !strings.HasPrefix(a.Value, "data:") && !strings.HasPrefix(a.Value, "#") {
						t.Errorf("%s: %s %s=%q", name, e.Name.Local, key, a.Value)
					}
				case strings.HasPrefix(key, "on"):
					t.Errorf("%s: %s %s=%q", name, e.Name.Local, key, a.Value)
				case key == "style":
					inert(a.Value)
				case key == "http-equiv" && a.Value == "refresh":
					t.Errorf("%s: it loads something else", name)
				case key == "content" && a.Value == "default-src 'none'; style-src 'unsafe-inline'; img-src data:":
					policy = true
				case key == "id":
					if ids[a.Value] || strings.ContainsAny(a.Value, " <>\"'") {
						t.Errorf("%s: id %q twice, or none", name, a.Value)
					}
					ids[a.Value] = true
				case key == "aria-labelledby":
					refer = append(refer, strings.Fields(a.Value)...)
				}
			}
		}, inert)
		if !policy {
			t.Errorf("%s: no content security policy", name)
		}
		for _, id := range refer {
			if !ids[id] {
				t.Errorf("%s: nothing has the id %s", name, id)
			}
		}
		if strings.ContainsAny(page, "\x1b\x00\u202e") {
			t.Errorf("%s: a control character", name)
		}
	}
}

// What a reader must not miss is there, and a place beside every figure and
// table.
func TestSays(t *testing.T) {
	page := write1(t, run(), errors.New("c9.json: is empty"))
	for _, w := range []string{
		"never a result", "Could not be read:</strong> c9.json: is empty", "INTERRUPTED.", "ERROR:</strong>", "✗ refuted", "✓ supported", "⇄ break-even",
		"No verdict:</strong> first: interrupted", "No result here speaks about C2, C3, C4, C5, C6, C8, C9, C11, C12.", "The results do not come from the same place",
		"devxlab bench third --device emu: --quick", "knee 32Ki", "Void: steal was 12 %", "The vertical axis does not begin at zero", "void: 9.0 of 16.0 in flight", "P99.9", "<s>",
		"device (differs)", "timeout = <code>14</code>", "The hash table was resized", "384 B", "Who takes less: device: how=batched / how=serial.",
	} {
		if !strings.Contains(page, w) {
			t.Errorf("no %q", w)
		}
	}
	if a, b := strings.Index(page, `id="verdicts"`), strings.Index(page, `id="provenance"`); a < 0 || b < a {
		t.Error("the verdicts are not first")
	}
	for _, m := range regexp.MustCompile(`(?s)<figcaption>.*?</figcaption>|<p class="cap">.*?</p>`).FindAllString(page, -1) {
		if !strings.Contains(m, "place: ") {
			t.Errorf("no place in %s", m)
		}
	}
	if c1, c7, c10 := strings.Index(page, `<span class="id">C1</span>`), strings.Index(page, `<span class="id">C7</span>`), strings.Index(page, `<span class="id">C10</span>`); c1 < 0 || c7 < c1 || c10 < c7 {
		t.Error("the claims are not in their order")
	}
	// The alternative text has the numbers of the picture.
	if !strings.Contains(page, "workers=31: how=batched / how=serial: 0.07 [0.0651, 0.0742], better") {
		t.Error("a figure's description has no numbers")
	}
}

// Emulated devices may differ; anything else is said.
func TestDiffer(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*bench.Provenance)
		alarm  bool
	}{
		"device": {func(p *bench.Provenance) { p.Device = "emu:x" }, false}, "load": {func(p *bench.Provenance) { p.Load, p.Steal = 9, 0.5 }, false},
		"commit": {func(p *bench.Provenance) { p.Commit = "x" }, true}, "place": {func(p *bench.Provenance) { p.Place, p.Device = bench.PlaceHW, "mlx5_0" }, true},
	} {
		rs := []*bench.Result{run()[0], run()[2]}
		c.change(&rs[1].Provenance)
		if page := write1(t, rs); strings.Contains(page, "do not come from the same place") != c.alarm {
			t.Errorf("%s: alarm is not %v", what, c.alarm)
		}
	}
}

func TestWriteFails(t *testing.T) {
	full := errors.New("full")
	if err := Write(failing{full}, run(), nil); !errors.Is(err, full) {
		t.Error(err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// Odd sweeps and ratios draw something, or nothing, and do not panic.
func TestOddFigures(t *testing.T) {
	inf, nan := bench.Float(math.Inf(1)), bench.Float(math.NaN())
	for _, s := range []bench.Sweep{
		{}, {Log: true, Points: []bench.Point{{X: 0, Median: 1}, {X: -1, Median: 1}}}, {Log: true, Points: []bench.Point{{X: 1, Median: 0}}},
		{Points: []bench.Point{{X: 0, Median: 0}}}, {Points: []bench.Point{{X: 1, Median: -5, Low: -9, High: nan}, {X: 1, Median: -5}}},
		{Points: []bench.Point{{X: 1, Median: 1e300, Low: 1, High: inf}, {X: 1e300, Median: 1e-300}}, Knee: &bench.Knee{Found: true, At: inf}},
		{Points: []bench.Point{{X: math.Inf(1), Median: 1}, {X: 2, Median: nan}}}, {Log: true, Points: []bench.Point{{X: 1e-300, Median: 1}, {X: 1e300, Median: 2}}},
	} {
		sweepPlot("x", "x", &s)
	}
	for _, r := range []bench.Ratio{{Median: 1e-300, Low: 1e-300, High: 1e-300}, {Median: 1e300, Low: 1e300, High: 1e300}, {Median: 1, Low: 1, High: 1}, {}, {Median: 1, Low: nan}, {Median: 2, Low: 3, High: 1}} {
		forestPlot("x", "x", []string{"a / b"}, []bench.Comparison{{A: "a", B: "b", Ratio: r}})
	}
	for _, v := range []int64{0, 1, 5, 120e9} {
		h := hdrhistogram.New(1, 120e9, 3)
		_ = h.RecordValue(v)
		tailPlot("x", "x", []*bench.Series{{Name: "", Histogram: h}, {Name: strings.Repeat("long/", 50), Histogram: h}})
	}
}

func TestPair(t *testing.T) {
	for _, c := range [][3]string{
		{"own/workers=1/how=batched", "own/workers=1/how=serial", "own/workers=1: how=batched / how=serial"},
		{"encode", "getpid", "encode / getpid"}, {"a/b", "c/d", "a/b / c/d"}, {"a/b", "a/b", "a/b / a/b"}, {"a", "a/b", "a / a/b"},
	} {
		if got := pair(c[0], c[1]); got != c[2] {
			t.Errorf("%q, want %q", got, c[2])
		}
	}
}
