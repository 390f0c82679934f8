// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"devxlab.example/ebpf"
)

// patchTable is a part of what a comparison says, for text and for Markdown.
type patchTable struct {
	title, about string
	align        string
	head         []string
	rows         [][]string
}

// median is that of a series of boots, for a table.
func (r *Result) median(name string) string {
	if s := r.SeriesOf(name); s != nil {
		return nanos(Median(s.Samples))
	}
	return "-"
}

// patchTables are all of them; one without rows is left out.
func patchTables(r *Result) (all []patchTable) {
	for _, t := range []patchTable{patchRTSTable(r), patchRTSRatios(r), patchStormTable(r), patchStormRatios(r), patchBatchTable(r), patchFailureTable(r), patchOffTable(r), patchCostTable(r), patchBootTable(r)} {
		if len(t.rows) > 0 {
			all = append(all, t)
		}
	}
	return all
}

// variants are the kernels that measured a series, stock first.
func (r *Result) variants(series string) (names []string) {
	for _, v := range r.Patches.Variants {
		if r.SeriesOf(v.Name+"/"+series) != nil {
			names = append(names, v.Name)
		}
	}
	return names
}

var rtsHows = []struct{ how, words string }{{howOff, "off"}, {howOnMS, "on, 1 ms"}, {howOnNow, "on, no delay"}}

func patchRTSTable(r *Result) patchTable {
	t := patchTable{
		title: "RTR→RTS by verbs (C2, patch 0001)", about: fmt.Sprintf("Medians of boots; %d queue pairs, one after the other. With the patch on, its threshold is one queue pair.", c6Group),
		align: "llrrrr", head: []string{"kernel", "deferral", "the call returns after", "calls a second", "a query answers RTS after", "a transition, RESET to RTS and back"},
	}
	for _, x := range rtsHows {
		for _, v := range r.variants(rtsName(x.how, "call")) {
			s := r.SeriesOf(v + "/" + rtsName(x.how, "call"))
			words := x.words
			if v == PatchStock {
				words = "none"
			}
			t.rows = append(t.rows, []string{v, words, r.median(s.Name), count(int(1e9 / Median(s.Samples))), r.median(v + "/" + rtsName(x.how, "seen")), r.median(v + "/" + rtsName(x.how, "way"))})
		}
	}
	return t
}

// onRatios are the rows of a table of comparisons within boots.
func onRatios(r *Result, patch int, words func(a, b string) string) (rows [][]string) {
	for _, p := range onPairs {
		if p.patch != patch {
			continue
		}
		if c := on(r, patch, p.a, p.b); c != nil {
			rows = append(rows, []string{words(p.a, p.b), c.Ratio.interval(), strconv.Itoa(c.Ratio.Pairs), answerOf(c)})
		}
	}
	return rows
}

// answerOf is what a comparison says of its first series.
func answerOf(c *Comparison) string {
	if c.Ratio.Pairs < MinPairs {
		return "too few rounds to say"
	}
	return string(c.Ratio.Answer)
}

var ratioHead = []string{"what", "on / off [95 %]", "rounds", "on is"}

func patchRTSRatios(r *Result) patchTable {
	return patchTable{
		title: "Patch 0001 on against off, in the same boot", align: "llrl", head: ratioHead,
		rows: onRatios(r, 1, func(a, _ string) string {
			delay, what, _ := strings.Cut(strings.TrimPrefix(a, PatchedRTS+"/on-"), "/")
			return map[string]string{"call": "the call", "seen": "until a query answers RTS", "way": "the whole way and back"}[what] + ", delay " + map[string]string{"1000us": "1 ms", "0us": "0"}[delay]
		}),
	}
}

func patchStormTable(r *Result) patchTable {
	t := patchTable{
		title: "A storm of stale connections (C3, patch 0002)",
		about: fmt.Sprintf("%d connections at once for the queue pair of a live one, and one for another queue pair. Every conflict was refused. Messages are those of both ends while a storm lasts; DREQs also repeat, for connections of earlier storms too. "+
			"Off and on come in turn within a boot, off first in every second round; off since boot comes before, and is what the stock kernel is compared with.", stormRequests),
		align: "llrrrrrr", head: []string{"kernel", "limit", "middle conflict refused after", "last one", "the innocent one is there after", "REJ sent", "DREQ received", "REQ repeated"},
	}
	for _, s := range r.Patches.Storms {
		limit := s.How
		switch {
		case s.Variant == PatchStock:
			limit = "none"
		case s.How == howPlain:
			limit = "off since boot"
		}
		of := func(what string) string { return r.median(s.Variant + "/" + stormName(s.How, what)) }
		n := func(x float64) string { return strconv.FormatFloat(x, 'f', 1, 64) }
		t.rows = append(t.rows, []string{s.Variant, limit, of("p50"), of("max"), of("innocent"), n(s.REJ), n(s.DREQ), n(s.Retries)})
	}
	for i := range t.rows {
		if t.rows[i][1] == "none" {
			t.about += fmt.Sprintf(" Without any conflict a set-up takes %s on the stock kernel.", r.median(PatchStock+"/"+setupName))
			break
		}
	}
	return t
}

func patchStormRatios(r *Result) patchTable {
	return patchTable{
		title: "Patch 0002 on against off, in the same boot", align: "llrl", head: ratioHead,
		rows: onRatios(r, 2, func(a, _ string) string {
			return map[string]string{"p50": "the middle conflict is refused", "max": "the last conflict is refused", "innocent": "the innocent one is there"}[strings.TrimPrefix(a, PatchedStale+"/"+howOn+"/")]
		}),
	}
}

func patchBatchTable(r *Result) patchTable {
	t := patchTable{
		title: "One ioctl for 32 (C6, patch 0003)", about: "Medians of boots, one transition of queue pairs made through DevX; ratios within the boot; a round counts once.",
		align: "lrrrll", head: []string{"kernel", "one by one", fmt.Sprintf("over %d threads", c6Claimed), "one ioctl", "one ioctl / one by one [95 %]", "one ioctl / threads [95 %]"},
	}
	name := func(how string) string { return PatchedBatch + "/" + how }
	for _, v := range r.variants(name(waySerial)) {
		cells := []string{v, r.median(v + "/" + name(waySerial)), r.median(v + "/" + name(wayBatched)), r.median(v + "/" + name(wayKernel)), "-", "-"}
		for i, how := range []string{waySerial, wayBatched} {
			if c := r.ComparisonOf(v+"/"+name(wayKernel), v+"/"+name(how)); c != nil {
				cells[4+i] = c.Ratio.interval()
			}
		}
		t.rows = append(t.rows, cells)
	}
	row := []string{"all with 0003", "", "", ""}
	for _, how := range []string{waySerial, wayBatched} {
		if c := on(r, 3, name(wayKernel), name(how)); c != nil {
			row = append(row, fmt.Sprintf("%s, %s, %d rounds", c.Ratio.interval(), answerOf(c), c.Ratio.Pairs))
		}
	}
	if len(row) == len(t.head) {
		t.rows = append(t.rows, row)
	}
	return t
}

func patchFailureTable(r *Result) patchTable {
	t := patchTable{
		title: "A command that the firmware refuses (patch 0004)", about: "What a program is told of RTR2RTS_QP for a queue pair in RESET, through DevX.",
		align: "lllllr", head: []string{"kernel", "patch 0004", "errno", "status", "syndrome", "boots"},
	}
	there := map[string]bool{} // not in all of 6.1
	for _, v := range r.Patches.Variants {
		there[v.Name] = slices.ContainsFunc(v.Patches, func(name string) bool { return strings.HasPrefix(name, "0004") })
	}
	for _, f := range r.Patches.Failures {
		how, status, syndrome := f.How, "not told", "not told"
		if !there[f.Variant] {
			how = "none"
		}
		if f.Outbox {
			status, syndrome = f.Status, fmt.Sprintf("%#x", f.Syndrome)
		}
		t.rows = append(t.rows, []string{f.Variant, how, f.Errno, status, syndrome, strconv.Itoa(f.Boots)})
	}
	return t
}

func patchOffTable(r *Result) patchTable {
	t := patchTable{
		title: "What a patch costs those who do not use it", about: "The patched kernel with everything off, against the stock kernel of the same round. By chance alone one of twenty rows shows a difference.",
		align: "lllrl", head: []string{"kernel", "what", "patched, off / stock [95 %]", "rounds", "patched is"},
	}
	for i := range r.Comparisons {
		c := &r.Comparisons[i]
		variant, series, _ := strings.Cut(c.A, "/")
		if c.B != PatchStock+"/"+series {
			continue
		}
		what := series
		if s := r.SeriesOf(c.A); s != nil {
			what = cmp.Or(offWords[series], s.What)
		}
		t.rows = append(t.rows, []string{variant, what, c.Ratio.interval(), strconv.Itoa(c.Ratio.Pairs), answerOf(c)})
	}
	return t
}

// offWords are shorter than what a series says of itself.
var offWords = map[string]string{
	rtsName(howOff, "call"): "RTR→RTS by verbs, the call", rtsName(howOff, "seen"): "RTR→RTS by verbs, until a query answers RTS", rtsName(howOff, "way"): "a transition by verbs, RESET to RTS and back",
	PatchedBatch + "/" + waySerial: "a transition through DevX, one by one", PatchedBatch + "/" + wayBatched: "a transition through DevX, over threads",
	setupName: "a connection set-up", stormName(howPlain, "p50"): "the middle conflict is refused", stormName(howPlain, "max"): "the last conflict is refused", stormName(howPlain, "innocent"): "the innocent one is there, in a storm",
}

func patchCostTable(r *Result) patchTable {
	t := patchTable{
		title: "What the kernel spends on RTR2RTS_QP", align: "ll",
		about: "Medians of boots, each the median of a boot, of those that were watched, which costs each command something; docs/ebpf.md says what the parts are. A command of the one ioctl has no caller that waits for it, and is not followed.",
		head:  []string{"kernel", "way"},
	}
	for _, p := range ebpf.Parts() {
		t.head, t.align = append(t.head, p.String()), t.align+"r"
	}
	ways := []struct{ series, words string }{{PatchedBatch + "/" + waySerial, "DevX, one by one"}, {PatchedBatch + "/" + wayBatched, "DevX, over threads"}}
	for i, x := range rtsHows {
		ways = slices.Insert(ways, i, struct{ series, words string }{rtsName(x.how, "call"), "verbs, 0001 " + x.words})
	}
	for _, w := range ways {
		for _, v := range r.variants(costName(w.series, ebpf.Whole.String())) {
			row := []string{v, w.words}
			for _, p := range ebpf.Parts() {
				row = append(row, r.median(v+"/"+costName(w.series, p.String())))
			}
			t.rows = append(t.rows, row)
		}
	}
	return t
}

func patchBootTable(r *Result) patchTable {
	t := patchTable{title: "Boots", align: "llrrr", head: []string{"kernel", "patches", "measured", "failed", "median time of a boot"}}
	for _, v := range r.Patches.Variants {
		var took []float64
		failed := 0
		for _, b := range r.Patches.Boots {
			switch {
			case b.Variant != v.Name:
			case b.Error != "":
				failed++
			default:
				took = append(took, float64(b.Took))
			}
		}
		t.rows = append(t.rows, []string{v.Name, cmp.Or(strings.Join(v.Patches, " "), "none"), strconv.Itoa(len(took)), strconv.Itoa(failed), nanos(Median(took))})
	}
	return t
}

// patchesAbout says what nobody may read out of the figures.
const patchesAbout = "The kernels are real and run in a virtual machine; the NIC is emulated, and what a command takes is what it was told. " +
	"So ratios of the kernel's own work may be judged, and nothing about a card may."

func patchesText(r *Result, p *page) {
	if r.Patches == nil {
		return
	}
	p.para(r.Method, indent)
	for _, t := range patchTables(r) {
		p.section(t.title+" ("+r.Provenance.Place+")", t.about)
		p.table(t.align, t.head, t.rows...)
	}
}

// patchedText is of one boot: medians of what it measured.
func patchedText(r *Result, p *page) {
	var rows [][]string
	for _, s := range r.Series {
		rows = append(rows, []string{s.Name, nanos(Median(s.Samples)), strconv.Itoa(len(s.Samples)), s.What})
	}
	p.section("One boot ("+r.Provenance.Place+")", "Medians. It is a part of a comparison, which decides more: devxlab patches compare.")
	p.table("lrrl", []string{"series", "median", "samples", "what"}, rows...)
}
