// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// builder makes a result as an experiment does, from samples that are given.
type builder struct{ Run }

func build(e Experiment, place string) *builder {
	b := &builder{Run{seed: 1}}
	b.Result = Result{
		Experiment: e.Name, Question: e.Question, Params: Params{}, Took: 4321 * time.Millisecond,
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Provenance: Provenance{
			Place: place, Device: "emu:", Profile: "zero", Kernel: "6.1.0-49-amd64", Stack: "none", CPU: "AMD EPYC 9654 96-Core Processor",
			CPUs: 2, Arch: "amd64", GOMAXPROCS: 2, Go: "go1.26.0", Commit: "2d114f3", Load: 0.5, Steal: 0.0123,
		},
	}
	if place == PlaceHW {
		p := &b.Provenance
		p.Device, p.Profile, p.Firmware, p.Stack, p.Steal = "mlx5_0", "", "22.36.1010", "inbox", Float(nan)
	}
	return b
}

// add keeps a series of n samples that rise from v by a tenth.
func (b *builder) add(s Series, v float64, n int) *contender {
	c := &contender{Series: s}
	for i := range n {
		c.Samples = append(c.Samples, v*(1+0.1*float64(i)/float64(n)))
		c.inFlight, c.possible = append(c.inFlight, s.InFlight), append(c.possible, s.Possible)
	}
	b.keep(c)
	return c
}

func (b *builder) duelOf(prefix string, workers int, serial, batched float64, n int, s Series) {
	nameB, nameS := c6Names(prefix, workers)
	s.Ops, s.GOMAXPROCS = 3072, workers+2
	plain := s
	plain.Name, plain.Depth = nameS, 0
	s.Name = nameB
	b.compare(b.add(s, batched, n), b.add(plain, serial, n))
}

// synthetic returns results with every shape that a text has.
func synthetic() map[string]*Result {
	all := map[string]*Result{}

	m := build(micro, PlaceEmu)
	m.Method = "One sample of each part in turn."
	getpid := m.add(Series{Name: "getpid", What: "one getpid system call: the yardstick", Ops: 20000}, 1000, 50)
	for _, x := range []struct {
		name, what string
		v          float64
	}{{"encode", "encoding", 59}, {"modify", "a whole modify", 1234}} {
		m.compare(m.add(Series{Name: x.name, What: x.what, Ops: 2000}, x.v, 50), getpid)
	}
	m.Findings = []string{"a finding that is long enough to be wrapped, because it goes on and on until the line of a hundred and ten columns is full and another begins"}
	all["micro"] = &m.Result

	c := build(c6, PlaceEmu)
	for _, w := range c6Workers {
		c.duelOf("own", w, 400, 350+20*float64(w), 40, Series{})
	}
	for i, cost := range c6Costs {
		c.BreakEven = append(c.BreakEven, BreakEven{Command: cost, P: (4 - i) % 4, PFavour: 1, PAgainst: (4 - i) % 4})
	}
	for _, w := range c6Workers {
		reached := float64(min(w, 31)) * 0.97
		enough := c.add(Series{Name: flightName(w, w+2), Depth: w, InFlight: float64(w) * 0.97, Possible: float64(w), GOMAXPROCS: w + 2}, 1e6/reached, 20)
		few := c.add(Series{Name: flightName(w, 2), Depth: w, InFlight: min(float64(w), 13.4), Possible: float64(w), GOMAXPROCS: 2}, 1.1e6/min(float64(w), 13.4), 20)
		c.compare(enough, few)
	}
	c.Verdicts = []Verdict{c6EmuVerdict(c.BreakEven)}
	all["c6"] = &c.Result

	h := build(c6, PlaceHW)
	h.Method = "One by one against batched."
	for _, w := range c6Workers {
		flight := float64(min(w, 16))
		if w == 64 {
			flight = 9
		}
		h.duelOf("device", w, 300e3, 310e3/float64(min(w, 16)), 20, Series{Depth: w, InFlight: flight, Possible: float64(min(w, 16))})
		last := &h.Comparisons[len(h.Comparisons)-1]
		last.Void = h.SeriesOf(last.A).Void
	}
	h.Verdicts = []Verdict{c6Verdict(h.ComparisonOf(c6Names("device", 31)))}
	all["c6-hw"] = &h.Result

	s := build(scale, PlaceEmu)
	s.Method = "Two emulated devices."
	s.Params["live"], s.Params["live_few"] = 1_000_000, 1_000
	for kind, v := range map[string]float64{"neighbours": 404, "spread": 600, "all": 1500} {
		s.compare(s.add(Series{Name: scaleName(kind, 1_000_000), Ops: 5000}, v, 40), s.add(Series{Name: scaleName(kind, 1_000), Ops: 5000}, 400, 40))
	}
	s.Memory = &Memory{QueuePairs: 1_000_000, Heap: 384.4, Sys: 398, Resident: 375, QP: 56, Mapped: 4096}
	s.Verdicts = []Verdict{scaleVerdict(&s.Result)}
	all["scale"] = &s.Result

	i := build(c6, PlaceEmu)
	for _, w := range []int{1, 2} {
		i.duelOf("own", w, 400, 500, 40, Series{})
	}
	i.duelOf("own", 4, 400, 500, 7, Series{}) // cut short
	i.Interrupted = true
	all["interrupted"] = &i.Result

	f := build(micro, PlaceEmu)
	f.add(Series{Name: "getpid", What: "one getpid system call: the yardstick", Ops: 20000}, 1000, 3)
	f.Error = "bench: micro: modify: devx: emu:: device gone"
	all["failed"] = &f.Result

	e := build(micro, PlaceEmu)
	e.Interrupted = true
	all["nothing"] = &e.Result
	return all
}

func TestText(t *testing.T) {
	for name, r := range synthetic() {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := r.WriteText(&b); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", b.String())
			for i, l := range strings.Split(b.String(), "\n") {
				if n := utf8.RuneCountInString(l); n > 120 || strings.TrimRight(l, " ") != l {
					t.Errorf("line %d is %d columns wide, or ends in a space: %q", i+1, n, l)
				}
			}
		})
	}
}

// Every table says where its figures come from.
func TestTablesNameThePlace(t *testing.T) {
	for name, r := range synthetic() {
		p := new(page)
		if e := experiment(r.Experiment); len(r.Series) > 0 {
			e.text(r, p)
		}
		sections := strings.Split(p.b.String(), "\n\n")
		for _, s := range sections {
			title, _, _ := strings.Cut(strings.TrimPrefix(s, "\n"), "\n")
			if title != "" && !strings.HasPrefix(title, " ") && !strings.Contains(title, "("+r.Provenance.Place) {
				t.Errorf("%s: the section %q names no place", name, title)
			}
		}
	}
}

func TestFormats(t *testing.T) {
	for _, c := range []struct {
		ns   float64
		want string
	}{{0, "0 ns"}, {59.4, "59 ns"}, {999.4, "999 ns"}, {999.9, "1 µs"}, {1234, "1.23 µs"}, {999.9e3, "1 ms"}, {1.5e6, "1.5 ms"}, {2.5e9, "2.5 s"}, {nan, "-"}, {inf, "-"}} {
		if got := nanos(c.ns); got != c.want {
			t.Errorf("nanos(%v) = %q, want %q", c.ns, got, c.want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -999: "-999"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q, want %q", n, got, want)
		}
	}
	if got := fmt.Sprint(CompareCosts(repeat(1, 20), repeat(2, 20), 1)); got != "0.500 [0.500, 0.500], better (20 pairs)" {
		t.Error(got)
	}
	for x, want := range map[Float]string{0.01234: "0.0123", 0.1: "0.100", 1.0004: "1.000", 1.0006: "1.001", 9.9994: "9.999", 12.34: "12.3", 1234567: "1,234,567"} {
		if got := times(x); got != want {
			t.Errorf("times(%v) = %q, want %q", x, got, want)
		}
	}
	if got := fmt.Sprint(CompareCosts(nil, nil, 1)); got != "no pairs, inconclusive (0 pairs)" {
		t.Error(got)
	}
}
