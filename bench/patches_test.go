// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var patchNames = []string{"0001-a.patch", "0002-b.patch", "0003-c.patch", "0004-d.patch"}

func patchNumber(name string) int { return int(name[3] - '0') }

// How the made-up kernels of a test behave: what a figure is against its plain value.
type patchEffect map[string]float64 // by "variant/series"; missing: 1

// madeBoot is a boot of a made-up kernel, noisy by a percent from round to round.
func madeBoot(round int, v PatchVariant, e patchEffect) PatchBoot {
	r := &Result{Format: Format, Experiment: PatchedName, PatchedBoot: &PatchedBoot{}, Started: time.Unix(1e9, 0).UTC()}
	r.Provenance = Provenance{Place: PlaceLab, Device: "mlx5_0", Firmware: "22.1", Kernel: "5.15.178-test", CPU: "a CPU", Commit: "abc"}
	has := func(patch int) bool { return v.Name == PatchAll || v.Name == fmt.Sprintf("%04d", patch) }
	add := func(name string, plain float64) {
		f := e[v.Name+"/"+name]
		if f == 0 {
			f = 1
		}
		x := plain * f * (1 + 0.01*float64(round%5-2))
		r.Series = append(r.Series, Series{Name: name, What: name, Ops: 1, Samples: Samples{x * 0.9, x, x * 1.5}})
	}
	for _, part := range v.Parts {
		switch part {
		case PatchedRTS:
			for _, how := range []string{howOff, howOnMS, howOnNow} {
				if how == howOff || has(1) {
					add(rtsName(how, "call"), 200e3)
					add(rtsName(how, "seen"), 400e3)
					add(rtsName(how, "way"), 300e3)
				}
			}
			add(costName(rtsName(howOff, "call"), "command"), 150e3)
		case PatchedStale:
			add(setupName, 3e6)
			for _, how := range []string{howPlain, howOff, howOn} {
				if how != howPlain && !has(2) {
					continue
				}
				add(stormName(how, "p50"), 10e6)
				add(stormName(how, "max"), 12e6)
				add(stormName(how, "innocent"), 11e6)
				r.PatchedBoot.Storms = append(r.PatchedBoot.Storms, StaleStorm{How: how, Refused: []time.Duration{1, 2, 3}, REJ: 3, Retries: map[string]int64{howOn: 1}[how]})
			}
		case PatchedBatch:
			add(PatchedBatch+"/"+waySerial, 200e3)
			add(PatchedBatch+"/"+wayBatched, 20e3)
			if has(3) {
				add(PatchedBatch+"/"+wayKernel, 15e3)
			}
		case PatchedOutbox:
			r.PatchedBoot.Failures = append(r.PatchedBoot.Failures, FailedModif{How: howOff, Errno: "22"})
			if has(4) {
				r.PatchedBoot.Failures = append(r.PatchedBoot.Failures, FailedModif{How: howOn, Outbox: true, Status: "BAD_QP_STATE", Syndrome: 0x25b161, Errno: "121"})
			}
		}
	}
	return PatchBoot{Round: round, Variant: v.Name, Took: 20 * time.Second, Result: r}
}

// made is a comparison of made-up kernels.
func made(rounds int, e patchEffect, change func(b *PatchBoot), parts ...string) *Result {
	how := PatchRounds{Rounds: rounds, Variants: PatchVariants(patchNames, patchNumber, parts), Tree: "5.15.178", Latency: 100 * time.Microsecond, QEMU: "11.1.3", SMP: 1}
	var boots []PatchBoot
	for round := 1; round <= rounds; round++ {
		for _, v := range how.Variants {
			b := madeBoot(round, v, e)
			if change != nil {
				change(&b)
			}
			boots = append(boots, b)
		}
	}
	return ComparePatches(how, boots)
}

// slower is what the patches really do: deferring costs, the limit delays.
var slower = patchEffect{
	"0001/c2/on-1000us/call": 1.1, "all/c2/on-1000us/call": 1.1, "0001/c2/on-0us/call": 1.2, "all/c2/on-0us/call": 1.2,
	"0001/c2/on-1000us/seen": 1.05, "all/c2/on-1000us/seen": 1.05,
	"0002/c3/on/max": 1000, "all/c3/on/max": 1000, "0002/c3/on/p50": 500, "all/c3/on/p50": 500,
}

func verdictOf(r *Result, claim string) Verdict {
	for _, v := range r.Verdicts {
		if v.Claim == claim {
			return v
		}
	}
	return Verdict{}
}

// Each patch alone is measured where it can make a difference.
func TestPatchVariants(t *testing.T) {
	for _, c := range []struct {
		parts []string
		want  string
	}{
		{nil, "stock[c2 c6 outbox c3] 0001[c2] 0002[c3] 0003[c6] 0004[outbox c6] all[c2 c6 outbox c3]"},
		{[]string{"c2"}, "stock[c2] 0001[c2] all[c2]"},
		{[]string{"outbox", "c3"}, "stock[outbox c3] 0002[c3] 0004[outbox] all[outbox c3]"},
	} {
		var got []string
		for _, v := range PatchVariants(patchNames, patchNumber, c.parts) {
			got = append(got, fmt.Sprint(v.Name, v.Parts))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%v: %s, want %s", c.parts, s, c.want)
		}
	}
	all := PatchVariants(patchNames[:3], patchNumber, []string{"c3"})
	if got := all[len(all)-1].Patches; !slices.Equal(got, []string{"0002-b.patch"}) { // 6.1 has no 0004, and c3 is about 0002 only
		t.Errorf("all together: %v", got)
	}
	if got := PatchVariants(patchNames[:3], patchNumber, []string{"outbox"}); len(got) != 1 || got[0].Name != PatchStock {
		t.Errorf("nothing is about it: %v", got)
	}
}

// A round is one pair, also where two of its boots have a patch.
func TestComparePatchesPairs(t *testing.T) {
	r := made(10, slower, nil)
	for _, c := range []struct {
		a, b   string
		pairs  int
		median float64
	}{
		{"0001/c2/off/call", "stock/c2/off/call", 10, 1},
		{"0001/c2/on-1000us/call", "0001/c2/off/call", 10, 1.1},
		{"with-0001/c2/on-1000us/call", "with-0001/c2/off/call", 10, 1.1},
		{"with-0002/c3/on/max", "with-0002/c3/off/max", 10, 1000},
		{"with-0003/c6/kernel", "with-0003/c6/serial", 10, 0.075},
		{"0004/c6/serial", "stock/c6/serial", 10, 1},
		{"0002/c3/plain/max", "stock/c3/plain/max", 10, 1},
	} {
		x := r.ComparisonOf(c.a, c.b)
		if x == nil || x.Ratio.Pairs != c.pairs || float64(x.Ratio.Median)/c.median < 0.999 || float64(x.Ratio.Median)/c.median > 1.001 {
			t.Errorf("%s / %s: %+v", c.a, c.b, x)
		}
	}
	for _, how := range []string{howOff, howOn} { // storms after one with the limit are compared within the boot only
		if x := r.ComparisonOf("0002/"+stormName(how, "max"), "stock/"+stormName(how, "max")); x != nil {
			t.Errorf("%s: %+v", how, x)
		}
	}
	if x := r.ComparisonOf("0001/c2/off/call", "stock/c2/off/call"); x != nil && x.Ratio.Answer != Inconclusive {
		t.Errorf("ten pairs decide: %v", x.Ratio)
	}
	if r.SeriesOf("stock/cost/c2/off/call/command") == nil || r.ComparisonOf("0001/cost/c2/off/call/command", "stock/cost/c2/off/call/command") != nil {
		t.Error("parts of a command are shown, and not compared")
	}
	if r.Took != 10*6*20*time.Second || r.Provenance.Kernel != "5.15.178-test" {
		t.Errorf("%v, %+v", r.Took, r.Provenance)
	}
}

// A boot that failed, or whose round was not ended, is in no pair, and no other boot
// takes its place.
func TestComparePatchesFailedBoots(t *testing.T) {
	e := patchEffect{}
	r := made(12, e, func(b *PatchBoot) {
		switch {
		case b.Round == 3 && b.Variant == "0001":
			b.Result, b.Error = nil, "the guest's kernel reports trouble:\n  WARNING"
		case b.Round == 5 && b.Variant == PatchStock:
			b.Error = "time limit reached"
		case b.Round == 7: // three times as slow, all of it: only true pairs do not see it
			for i := range b.Result.Series {
				for j := range b.Result.Series[i].Samples {
					b.Result.Series[i].Samples[j] *= 3
				}
			}
		}
	})
	c := r.ComparisonOf("0001/c2/off/call", "stock/c2/off/call")
	if c == nil || c.Ratio.Pairs != 10 || c.Ratio.Low < 0.999 || c.Ratio.High > 1.001 {
		t.Errorf("%+v", c)
	}
	if c := r.ComparisonOf("with-0001/c2/on-0us/call", "with-0001/c2/off/call"); c == nil || c.Ratio.Pairs != 12 {
		t.Errorf("%+v", c)
	}
	said := strings.Join(r.Findings, "\n")
	for _, want := range []string{"Round 3, 0001: the boot does not count: the guest's kernel reports trouble:", "Round 5, stock: the boot does not count: time limit reached"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in %s", want, said)
		}
	}
	if len(r.Patches.Failed()) != 2 || len(r.Patches.Boots) != 72 {
		t.Errorf("%d of %d boots failed", len(r.Patches.Failed()), len(r.Patches.Boots))
	}
	if empty := ComparePatches(PatchRounds{Rounds: 1, Variants: PatchVariants(patchNames, patchNumber, nil)}, []PatchBoot{{Round: 1, Variant: PatchStock, Error: "no"}}); len(empty.Verdicts) != 0 || len(empty.Series) != 0 {
		t.Errorf("%+v", empty)
	}
}

// Two boots of a round are one value: their geometric mean, or the one that counts.
func TestMeanRatios(t *testing.T) {
	nan := math.NaN()
	mean, one := meanRatios(5, []byRound{{2, 3, nan, math.Inf(1), 0}, {8, nan, nan, 5, 7}})
	for i, want := range []float64{4, 3, nan, 5, 7} {
		if x := mean[i]; one[i] != 1 || math.IsNaN(want) != math.IsNaN(x) || math.Abs(x-want) > 1e-9 {
			t.Errorf("round %d: %v to %v, want %v", i+1, x, one[i], want)
		}
	}
	if r := CompareCosts(mean, one, 1); r.Pairs != 4 {
		t.Errorf("%+v", r)
	}
	r := made(20, patchEffect{"0001/c2/on-0us/call": 0.5, "all/c2/on-0us/call": 2}, nil, PatchedRTS)
	if c := on(r, 1, rtsName(howOnNow, "call"), rtsName(howOff, "call")); c == nil || c.Ratio.Pairs != 20 || math.Abs(float64(c.Ratio.Median)-1) > 1e-9 {
		t.Errorf("%+v", c)
	}
}

// Boots of a lab decide no claim; what they find out is why.
func TestPatchVerdicts(t *testing.T) {
	with := func(factors ...any) patchEffect {
		e := patchEffect{}
		for i := 0; i < len(factors); i += 2 {
			for _, v := range []string{"0001", "0002", "0003", PatchAll} {
				e[v+"/"+factors[i].(string)] = factors[i+1].(float64)
			}
		}
		return e
	}
	for _, c := range []struct {
		name   string
		rounds int
		e      patchEffect
		claim  string
		part   string
		never  string
	}{
		{"deferring costs", 20, slower, "C2", "1.100 [1.100, 1.100] of what it takes otherwise", "ruled out"},
		{"deferring costs", 20, slower, "C2", "the call longer: it costs a timer", "does not tell"},
		{"deferring helps", 20, with("c2/on-1000us/call", 0.9), "C2", "Deferring makes the call shorter.", "longer"},
		{"the call gains and the reader loses", 20, with("c2/on-1000us/call", 0.9, "c2/on-1000us/seen", 1.1), "C2", "One gains and the other loses: the call is shorter", "does not tell"},
		{"the reader gains and the call loses", 20, with("c2/on-1000us/call", 1.1, "c2/on-1000us/seen", 0.9), "C2", "One gains and the other loses: the call is longer", "does not tell"},
		{"the reader alone loses", 20, with("c2/on-1000us/seen", 1.1), "C2", "A query answers RTS later. The interval of the call does not tell", "ruled out"},
		{"deferring changes nothing, exactly", 20, nil, "C2", "does not tell which is faster.", "ruled out"},
		{"nineteen rounds", 19, slower, "C2", "Rounds that count: 19; fewer than 20 decide nothing", "longer"},
		{"the tail is longer", 20, slower, "C3", "longer, and no gain shows for others", "nobody"},
		{"and the innocent gain", 20, with("c3/on/max", 1000.0, "c3/on/innocent", 0.5), "C3", "One gains and the other loses: the window is worse for the last", "no gain"},
		{"and the innocent lose", 20, with("c3/on/max", 1000.0, "c3/on/innocent", 2.0), "C3", "longer, and that of others, too", "no gain"},
		{"the tail is shorter", 20, with("c3/on/max", 0.5), "C3", "shorter, and no loss shows for others", "longer,"},
		{"the tail is the same, others lose", 20, with("c3/on/innocent", 2.0), "C3", "does not tell; the window is worse for others", "shorter"},
		{"nothing differs", 20, nil, "C3", "The intervals do not tell.", "shorter"},
		{"nineteen rounds", 19, slower, "C3", "count: 19;", "longer,"},
		{"the ioctl is faster", 20, nil, "C6", "a card decides", "worse"},
		{"the ioctl is slower", 20, with("c6/kernel", 100.0), "C6", "worse", "better"},
	} {
		v := verdictOf(made(c.rounds, c.e, nil, strings.ToLower(c.claim)), c.claim)
		if v.Answer != NotDecidable || !strings.Contains(v.Why, c.part) || strings.Contains(v.Why, c.never) || v.Where == "" {
			t.Errorf("%s: %s: %+v", c.name, c.claim, v)
		}
		if c.claim != "C6" && !strings.HasPrefix(v.Why, "The kernel's part: ") {
			t.Errorf("%s: %s", c.name, v.Why)
		}
	}
}

// A factor is ruled out only where both are possible.
func TestDeferringRulesOut(t *testing.T) {
	of := func(low, high Float, a Answer) *Comparison {
		return &Comparison{Ratio: Ratio{Pairs: MinPairs, Median: 1, Low: low, High: high, Answer: a}}
	}
	same := of(0.9, 1.1, Inconclusive)
	if s := deferringSays(of(0.95, 1.02, Inconclusive), same); !strings.Contains(s, "leaves less than 0.950 of it is ruled out") {
		t.Error(s)
	}
	for _, c := range []*Comparison{of(1, 1.02, Inconclusive), of(0.95, 1, Inconclusive), of(1.1, 1.2, Worse), of(0.8, 0.9, Better)} {
		if s := deferringSays(c, same); strings.Contains(s, "ruled out") {
			t.Errorf("%+v: %s", c.Ratio, s)
		}
	}
}

// What is off is compared with stock only where there are pairs enough.
func TestPatchFindings(t *testing.T) {
	few, many := strings.Join(made(10, nil, nil).Findings, "\n"), strings.Join(made(20, patchEffect{"0001/c2/off/call": 1.2}, nil).Findings, "\n")
	for _, c := range []struct{ said, want string }{
		{few, "Patch 0002, off, against the stock kernel: rounds that count: 10; fewer than 20 decide nothing."},
		{few, "All patches together, off"},
		{many, "Patch 0001, off, against the stock kernel: c2/off/call is worse (1.200 [1.200, 1.200]) (20 rounds)."},
		{many, "Patch 0003, off: no difference to the stock kernel shows in c6/serial, c6/batched (20 rounds)."},
		{many, "0004, on: status BAD_QP_STATE, syndrome 0x25b161, errno 121 (20 boots)"},
		{many, "stock, off: errno 22 and nothing else (20 boots)"},
	} {
		if !strings.Contains(c.said, c.want) {
			t.Errorf("no %q in\n%s", c.want, c.said)
		}
	}
}

// A result comes back from its file, and says the same.
func TestComparePatchesText(t *testing.T) {
	r := made(20, slower, nil)
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "patches.txt", b.String())
	dir := t.TempDir()
	if err := r.WriteFiles(dir); err != nil {
		t.Fatal(err)
	}
	again, err := Load(filepath.Join(dir, PatchesName+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var c strings.Builder
	if err := again.WriteText(&c); err != nil || c.String() != b.String() {
		t.Errorf("%v: the file says\n%s", err, c.String())
	}
	if results, broken := LoadDir(dir); len(results) != 1 || len(broken) != 0 {
		t.Errorf("%d results, %v", len(results), broken)
	}
}

// The document has a section for each kernel, and one run changes one of them.
func TestPatchesDoc(t *testing.T) {
	of := func(kernel string) *Result {
		r := made(20, slower, nil, PatchedStale)
		r.Provenance.Kernel = kernel
		return r
	}
	doc := func(old []byte, r *Result) []byte {
		t.Helper()
		b, err := PatchesDoc(old, r)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one := doc(nil, of("5.15.178-test"))
	golden(t, "patches-compare.md", string(one))
	both := doc(doc(nil, of("6.1.0-57-amd64")), of("5.15.178-test"))
	if a, b := strings.Index(string(both), "## Linux 5.15"), strings.Index(string(both), "## Linux 6.1"); a < 0 || b < a {
		t.Errorf("sections at %d and %d", a, b)
	}
	if again := doc(both, of("5.15.178-test")); string(again) != string(both) {
		t.Errorf("writing it again changes it:\n%s", again)
	}
	if c := strings.Count(string(doc(both, of("5.15.179"))), "\n## Linux "); c != 2 {
		t.Errorf("%d sections", c)
	}
	if _, err := PatchesDoc([]byte("<!-- kernel 5.15 -->\nno end"), of("6.1")); err == nil || !strings.Contains(err.Error(), "has no end") {
		t.Errorf("%v", err)
	}
	if _, err := PatchesDoc(nil, ComparePatches(PatchRounds{}, nil)); err == nil {
		t.Error("a document of nothing")
	}
}

// The command in the document has all that makes a difference.
func TestPatchesMakeLine(t *testing.T) {
	how := PatchRounds{Rounds: 20, Variants: PatchVariants(patchNames, patchNumber, nil), Tree: "6.1.192", Latency: 100 * time.Microsecond, SMP: 1}
	const begin = "make patches-compare LINUX=linux-6.1.192"
	if got, want := how.makeLine(), begin+` KERNEL=FILE MODULES=DIR ROUNDS=20 COMPAREFLAGS="--latency 100µs --smp 1"`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	how.Kbuild, how.NoKernelCost, how.Variants = "linux-headers-6.1.0-57-amd64", true, PatchVariants(patchNames, patchNumber, []string{PatchedRTS})
	if got, want := how.makeLine(), begin+` KBUILD=linux-headers-6.1.0-57-amd64 KERNEL=FILE MODULES=DIR ROUNDS=20 COMPAREFLAGS="--latency 100µs --smp 1 --only c2 --no-kernel-cost"`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// The boots' figures are not in the file twice: each is in the file of its boot.
func TestComparePatchesJSON(t *testing.T) {
	b, err := json.Marshal(made(2, nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Patches struct{ Boots []map[string]any }
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Patches.Boots) != 12 || got.Patches.Boots[0]["Result"] != nil || got.Patches.Boots[3]["variant"] != "0003" {
		t.Errorf("%v", got.Patches.Boots)
	}
}

// A round of real boots, as a lab has recorded them: Linux 5.15.178, TCG. It shows that
// what guests write is understood; one round decides nothing.
func TestComparePatchesRecorded(t *testing.T) {
	how := PatchRounds{Rounds: 1, Variants: PatchVariants(patchNames, patchNumber, nil), Tree: "5.15.178", Latency: 100 * time.Microsecond, QEMU: "11.1.3", SMP: 1}
	var boots []PatchBoot
	for _, v := range how.Variants {
		r, err := Load(filepath.Join("testdata/boots", "01-"+v.Name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		boots = append(boots, PatchBoot{Round: 1, Variant: v.Name, Took: r.Took, Result: r})
	}
	r := ComparePatches(how, boots)
	for _, v := range r.Verdicts {
		if v.Answer != NotDecidable {
			t.Errorf("one round decides: %+v", v)
		}
	}
	if len(r.Verdicts) != 3 || r.Provenance.Place != PlaceLab || !strings.HasPrefix(r.Provenance.Kernel, "5.15.") {
		t.Errorf("%d verdicts, %+v", len(r.Verdicts), r.Provenance)
	}
	seen := map[string]int{}
	for _, s := range r.Patches.Storms {
		if seen[s.How]++; s.REJ != stormRequests || s.How != howOn && s.Retries != 0 || s.How == howOn && s.Retries < 1 {
			t.Errorf("%+v", s)
		}
	}
	if seen[howPlain] != 3 || seen[howOff] != 2 || seen[howOn] != 2 { // stock, 0002 and all; those two
		t.Errorf("storms of %v", seen)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "patches-recorded.txt", b.String())
}
