// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// PatchesName is the name of a comparison of kernels with and without the patches of
// patches/, and of its files.
const PatchesName = "patches"

// Kernels of a comparison; a patch alone is called by its number, "0001".
const (
	PatchStock = "stock" // without patches
	PatchAll   = "all"   // with all of them
)

// PatchRounds says how a comparison of kernels was made. Each round boots each kernel
// once, and what is compared are boots of the same round.
type PatchRounds struct {
	Rounds   int            `json:"rounds"` // asked for
	Variants []PatchVariant `json:"variants"`
	Tree     string         `json:"tree"`    // version of the source that the patches were applied to: "5.15.178"
	Latency  time.Duration  `json:"latency"` // of each command of the emulated device, by its profile
	QEMU     string         `json:"qemu"`
	KVM      bool           `json:"kvm"`
	SMP      int            `json:"smp"`
	Kbuild   string         `json:"kbuild,omitempty"` // name of the directory where the kernel was built, or of its headers package; "": the tree

	NoKernelCost bool `json:"no_kernel_cost,omitempty"` // commands were not followed through the kernel

	Boots    []PatchBoot     `json:"boots"` // in the order in which they were made
	Storms   []PatchStorms   `json:"storms,omitempty"`
	Failures []PatchFailures `json:"failures,omitempty"`

	NotVisible map[string]string `json:"not_visible,omitempty"` // stages of package ebpf, and why
}

// PatchVariant is one of the kernels.
type PatchVariant struct {
	Name    string   `json:"name"`    // PatchStock, "0001", PatchAll
	Patches []string `json:"patches"` // their names
	Parts   []string `json:"parts"`   // what is measured there, as of Patched
}

// PatchBoot is one boot.
type PatchBoot struct {
	Round   int           `json:"round"` // from 1
	Variant string        `json:"variant"`
	Took    time.Duration `json:"took_ns"`         // of the machine, to its end
	Error   string        `json:"error,omitempty"` // why it does not count

	Result *Result `json:"-"` // what the guest measured
}

// PatchStorms are the storms of one kernel: counts of a storm, on the average.
type PatchStorms struct {
	Variant  string  `json:"variant"`
	How      string  `json:"how"`
	Storms   int     `json:"storms"`
	Requests int     `json:"requests"` // conflicts of one
	REJ      float64 `json:"rej"`
	DREQ     float64 `json:"dreq"`
	Retries  float64 `json:"retries"`
}

// PatchFailures are the answers to a command that is refused, in so many boots.
type PatchFailures struct {
	Variant string `json:"variant"`
	FailedModif
	Boots int `json:"boots"`
}

// patchOf are the patches that the parts of a boot are about, by number.
var patchOf = map[string]int{PatchedRTS: 1, PatchedStale: 2, PatchedBatch: 3, PatchedOutbox: 4}

// PatchVariants returns the kernels of a comparison: stock, each patch alone, all. With
// parts, those that are about them only. A patch alone is measured where it can make
// a difference; stock and all everywhere. Stock alone is returned where no patch is about
// them.
func PatchVariants(names []string, number func(name string) int, parts []string) []PatchVariant {
	if len(parts) == 0 {
		parts = PatchedParts()
	}
	alone := map[int][]string{}
	for _, part := range parts {
		alone[patchOf[part]] = append(alone[patchOf[part]], part)
	}
	if slices.Contains(parts, PatchedBatch) && alone[4] != nil { // what 0004 costs, if off
		alone[4] = append(alone[4], PatchedBatch)
	}
	out := []PatchVariant{{Name: PatchStock, Parts: parts}}
	var used []string
	for _, n := range names {
		if of := alone[number(n)]; of != nil {
			used = append(used, n)
			out = append(out, PatchVariant{Name: fmt.Sprintf("%04d", number(n)), Patches: []string{n}, Parts: of})
		}
	}
	if used == nil {
		return out
	}
	return append(out, PatchVariant{Name: PatchAll, Patches: used, Parts: parts})
}

// byRound are the medians of a series, by round; NaN where there is none.
type byRound []float64

func newByRound(rounds int) byRound {
	b := make(byRound, rounds)
	for i := range b {
		b[i] = math.NaN()
	}
	return b
}

// patchSums collects the boots of a comparison.
type patchSums struct {
	*Result
	rounds int
	names  []string // of series, in the order in which they came
	what   map[string]Series
	values map[string]byRound
	first  map[string][]string // by the kernel, its series in order
}

// ComparePatches puts the boots of a comparison together: medians of each boot, boot
// against boot of the same round, and what that says about C2, C3 and C6. A boot that
// failed counts nowhere. There is nothing to compare, and no verdict, without a
// boot that was measured.
func ComparePatches(how PatchRounds, boots []PatchBoot) *Result {
	r := &Result{
		Format: Format, Experiment: PatchesName, Patches: &how, Params: Params{"rounds": how.Rounds, "latency": how.Latency.String(), "smp": how.SMP},
		Question: "What do the kernel patches change, each alone and all together, off and on, against the stock kernel?",
		Method: fmt.Sprintf("Each round boots every kernel once, in another order each time, in the lab: QEMU %s, %s, %d CPU, an emulated device whose commands take %v each. "+
			"A boot's figure is the median of its samples. A patch that is off is compared with the stock kernel of the same round; a patch that is on, with itself off in the same boot. "+
			"Boots of one round are not independent: where the patch alone and all together were measured, the round counts once, by the geometric mean of both ratios. Fewer than %d rounds decide nothing.", how.QEMU, accelerator(how.KVM), how.SMP, how.Latency, MinPairs),
	}
	how.Boots = boots
	s := &patchSums{Result: r, rounds: how.Rounds, what: map[string]Series{}, values: map[string]byRound{}, first: map[string][]string{}}
	for _, b := range boots {
		s.Took += b.Took
		if b.Error == "" && b.Result != nil {
			s.add(b)
		}
	}
	for _, name := range s.names {
		s.keep(name)
	}
	s.compareOff(how.Variants)
	s.compareOn(how.Variants)
	s.count(boots)
	r.Findings = patchFindings(r)
	r.Verdicts = patchVerdicts(r)
	return r
}

func accelerator(kvm bool) string {
	if kvm {
		return "KVM"
	}
	return "TCG"
}

// add takes the figures of a boot.
func (s *patchSums) add(b PatchBoot) {
	if s.Provenance.Place == "" {
		s.Provenance, s.Started = b.Result.Provenance, b.Result.Started
	}
	if s.Patches.NotVisible == nil && b.Result.PatchedBoot != nil {
		s.Patches.NotVisible = b.Result.PatchedBoot.NotVisible
	}
	for _, x := range b.Result.Series {
		s.put(b.Variant+"/"+x.Name, x, b.Round, Median(x.Samples))
	}
}

func (s *patchSums) put(name string, x Series, round int, v float64) {
	if s.values[name] == nil {
		s.names = append(s.names, name)
		s.values[name], s.what[name] = newByRound(s.rounds), x
		variant, _, _ := strings.Cut(name, "/")
		s.first[variant] = append(s.first[variant], strings.TrimPrefix(name, variant+"/"))
	}
	if round >= 1 && round <= s.rounds {
		s.values[name][round-1] = v
	}
}

// keep makes a series of the rounds that there are.
func (s *patchSums) keep(name string) {
	x := Series{Name: name, What: s.what[name].What, GOMAXPROCS: s.what[name].GOMAXPROCS, Ops: s.what[name].Ops}
	for _, v := range s.values[name] {
		if Float(v).finite() {
			x.Samples = append(x.Samples, v)
		}
	}
	x.Summary = Summarize(x.Samples)
	if len(x.Samples) > 0 {
		s.Series = append(s.Series, x)
	}
}

func (s *patchSums) compare(a, b string, va, vb byRound) {
	if r := CompareCosts(va, vb, 1); r.Pairs > 0 {
		s.Comparisons = append(s.Comparisons, Comparison{A: a, B: b, Ratio: r})
	}
}

// compareOff compares what is measured without a patch being on with the stock kernel.
func (s *patchSums) compareOff(variants []PatchVariant) {
	for _, v := range variants {
		if v.Name == PatchStock {
			continue
		}
		for _, x := range s.first[v.Name] {
			stock := s.values[PatchStock+"/"+x]
			if stock != nil && !strings.HasPrefix(x, costPrefix) {
				s.compare(v.Name+"/"+x, PatchStock+"/"+x, s.values[v.Name+"/"+x], stock)
			}
		}
	}
}

// onPairs are the ways that are compared within a boot, by the patch: a against b.
var onPairs = []struct {
	patch int
	a, b  string
}{
	{1, rtsName(howOnMS, "call"), rtsName(howOff, "call")},
	{1, rtsName(howOnMS, "seen"), rtsName(howOff, "seen")},
	{1, rtsName(howOnMS, "way"), rtsName(howOff, "way")},
	{1, rtsName(howOnNow, "call"), rtsName(howOff, "call")},
	{1, rtsName(howOnNow, "seen"), rtsName(howOff, "seen")},
	{1, rtsName(howOnNow, "way"), rtsName(howOff, "way")},
	{2, stormName(howOn, "p50"), stormName(howOff, "p50")},
	{2, stormName(howOn, "max"), stormName(howOff, "max")},
	{2, stormName(howOn, "innocent"), stormName(howOff, "innocent")},
	{3, PatchedBatch + "/" + wayKernel, PatchedBatch + "/" + waySerial},
	{3, PatchedBatch + "/" + wayKernel, PatchedBatch + "/" + wayBatched},
}

// withPatch is the name, in a comparison, of all boots with a patch.
func withPatch(patch int, series string) string { return fmt.Sprintf("with-%04d/%s", patch, series) }

// compareOn compares the ways of a patch within boots: of the patch alone, of all, and of
// both together, where a round is one value.
func (s *patchSums) compareOn(variants []PatchVariant) {
	for _, p := range onPairs {
		var all []byRound
		for _, v := range variants {
			if v.Name != PatchAll && v.Name != fmt.Sprintf("%04d", p.patch) {
				continue
			}
			va, vb := s.values[v.Name+"/"+p.a], s.values[v.Name+"/"+p.b]
			if va != nil && vb != nil {
				s.compare(v.Name+"/"+p.a, v.Name+"/"+p.b, va, vb)
				all = append(all, ratios(va, vb))
			}
		}
		mean, one := meanRatios(s.rounds, all)
		s.compare(withPatch(p.patch, p.a), withPatch(p.patch, p.b), mean, one)
	}
}

// ratios are those of a to b, round by round.
func ratios(a, b byRound) byRound {
	r := make(byRound, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return r
}

// meanRatios returns the geometric mean of what each round has of ratios, NaN where it
// has none, and as many ones to compare them with.
func meanRatios(rounds int, all []byRound) (mean, one byRound) {
	mean, one = newByRound(rounds), make(byRound, rounds)
	for i := range mean {
		one[i] = 1
		sum, n := 0.0, 0
		for _, r := range all {
			if x := math.Log(r[i]); Float(x).finite() {
				sum, n = sum+x, n+1
			}
		}
		if n > 0 {
			mean[i] = math.Exp(sum / float64(n))
		}
	}
	return mean, one
}

// count puts storms and refused commands together.
func (s *patchSums) count(boots []PatchBoot) {
	for _, v := range s.Patches.Variants {
		storms := map[string]*PatchStorms{}
		var order []*PatchStorms
		for _, b := range boots {
			if b.Variant != v.Name || b.Error != "" || b.Result == nil || b.Result.PatchedBoot == nil {
				continue
			}
			for _, x := range b.Result.PatchedBoot.Storms {
				if storms[x.How] == nil {
					storms[x.How] = &PatchStorms{Variant: v.Name, How: x.How, Requests: len(x.Refused)}
					order = append(order, storms[x.How])
				}
				t := storms[x.How]
				t.Storms++
				t.REJ, t.DREQ, t.Retries = t.REJ+float64(x.REJ), t.DREQ+float64(x.DREQ), t.Retries+float64(x.Retries)
			}
			for _, f := range b.Result.PatchedBoot.Failures {
				s.failed(PatchFailures{Variant: v.Name, FailedModif: f, Boots: 1})
			}
		}
		for _, t := range order {
			n := float64(t.Storms)
			t.REJ, t.DREQ, t.Retries = t.REJ/n, t.DREQ/n, t.Retries/n
			s.Patches.Storms = append(s.Patches.Storms, *t)
		}
	}
}

func (s *patchSums) failed(f PatchFailures) {
	for i := range s.Patches.Failures {
		x := &s.Patches.Failures[i]
		if x.Variant == f.Variant && x.FailedModif == f.FailedModif {
			x.Boots++
			return
		}
	}
	s.Patches.Failures = append(s.Patches.Failures, f)
}

// Failed are the boots that do not count.
func (p *PatchRounds) Failed() (failed []PatchBoot) {
	for _, b := range p.Boots {
		if b.Error != "" {
			failed = append(failed, b)
		}
	}
	return failed
}
