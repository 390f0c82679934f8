// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"fmt"
	"strings"
)

// Where what the lab leaves open can be decided.
const (
	onCard      = "make bench DEV=mlx5_0, on a machine that has one"
	onCardPatch = "devxlab bench c6 --device mlx5_0, on a machine with a card and the modules of patch 0003 (patches/README.md)"
)

// patchVerdicts are those on the claims that patches are about. None is decided here: what
// boots of a lab find out about the kernel's part of a time, which is real there, is
// why. A part that was not measured has no verdict.
func patchVerdicts(r *Result) (v []Verdict) {
	for _, of := range []func(*Result) *Verdict{patchC2, patchC3, patchC6} {
		if x := of(r); x != nil {
			v = append(v, *x)
		}
	}
	return v
}

// on returns the comparison of a patch on with itself off.
func on(r *Result, patch int, a, b string) *Comparison {
	return r.ComparisonOf(withPatch(patch, a), withPatch(patch, b))
}

// tooFew says that there are not enough rounds, or nothing.
func tooFew(cs ...*Comparison) string {
	for _, c := range cs {
		if c.Ratio.Pairs < MinPairs {
			return fmt.Sprintf(" Rounds that count: %d; fewer than %d decide nothing.", c.Ratio.Pairs, MinPairs)
		}
	}
	return ""
}

func patchC2(r *Result) *Verdict {
	call, seen := on(r, 1, rtsName(howOnMS, "call"), rtsName(howOff, "call")), on(r, 1, rtsName(howOnMS, "seen"), rtsName(howOff, "seen"))
	now := on(r, 1, rtsName(howOnNow, "call"), rtsName(howOff, "call"))
	if call == nil || seen == nil || now == nil {
		return nil
	}
	v := &Verdict{Claim: "C2", Answer: NotDecidable, Where: onCard}
	v.Why = fmt.Sprintf("The kernel's part: with the bookkeeping deferred by 1 ms RTR→RTS by verbs takes %s of what it takes otherwise, with a delay of 0 %s; until a query answers RTS, %s. "+
		"The firmware's command is the same, comes first either way, and cannot be deferred by this: the difference is the driver's alone.%s",
		call.Ratio.interval(), now.Ratio.interval(), seen.Ratio.interval(), deferringSays(call, seen))
	v.Why += fmt.Sprintf(" That is with %d queue pairs, and a threshold of one: how much of a call this is on a card, and what 30,000 queue pairs do to its firmware, only a card shows.", c6Group)
	return v
}

// deferringSays is what 0001 does to who calls, and to who asks for the state.
func deferringSays(call, seen *Comparison) string {
	if few := tooFew(call, seen); few != "" {
		return few
	}
	says := ""
	switch c, s := call.Ratio.Answer, seen.Ratio.Answer; {
	case c == Better && s == Worse:
		return " One gains and the other loses: the call is shorter, and a query answers RTS later."
	case c == Worse && s == Better:
		return " One gains and the other loses: the call is longer, and a query answers RTS sooner."
	case c == Better:
		return " Deferring makes the call shorter."
	case c == Worse:
		return " Deferring makes the call longer: it costs a timer and a work item more, and saves a few assignments."
	case s == Better:
		says = " A query answers RTS sooner."
	case s == Worse:
		says = " A query answers RTS later."
	}
	says += " The interval of the call does not tell which is faster"
	if call.Ratio.Low < 1 && call.Ratio.High > 1 {
		says += fmt.Sprintf("; that deferring leaves less than %s of it is ruled out", times(call.Ratio.Low))
	}
	return says + "."
}

func patchC3(r *Result) *Verdict {
	most, half := on(r, 2, stormName(howOn, "max"), stormName(howOff, "max")), on(r, 2, stormName(howOn, "p50"), stormName(howOff, "p50"))
	innocent := on(r, 2, stormName(howOn, "innocent"), stormName(howOff, "innocent"))
	if most == nil || half == nil || innocent == nil {
		return nil
	}
	v := &Verdict{Claim: "C3", Answer: NotDecidable, Where: "devxlab bench c3 --device mlx5_0 --peer ADDRESS --congest COMMAND, between two machines with cards, on the stock kernel and on one with patch 0002"}
	v.Why = fmt.Sprintf("The kernel's part: with a window of HZ/10 the last of %d conflicts is refused after %s times as long, the middle one after %s times as long, and a connection without a conflict takes %s of its time in the same storm. "+
		"No firmware is in these times: a refusal that is kept back is asked for again by a timer of the kernel.%s",
		stormRequests, most.Ratio.interval(), half.Ratio.interval(), innocent.Ratio.interval(), windowSays(most, innocent))
	v.Why += fmt.Sprintf(" Storms of %d conflicts are not the tail of 100,000 set-ups: whether conflicts are what makes that under congestion is bench c3's question.", stormRequests)
	return v
}

// windowSays is what 0002 does to those in conflict, and to others.
func windowSays(most, innocent *Comparison) string {
	if few := tooFew(most, innocent); few != "" {
		return few
	}
	switch m, i := most.Ratio.Answer, innocent.Ratio.Answer; {
	case m == Worse && i == Better, m == Better && i == Worse:
		return fmt.Sprintf(" One gains and the other loses: the window is %s for the last of those in conflict, and %s for others.", m, i)
	case m == Worse && i == Worse:
		return " The window makes the wait of the last in conflict longer, and that of others, too."
	case m == Worse:
		return " The window makes the wait of the last in conflict longer, and no gain shows for others."
	case m == Better && i == Better:
		return " The window makes the wait of the last in conflict shorter, and that of others, too."
	case m == Better:
		return " The window makes the wait of the last in conflict shorter, and no loss shows for others."
	case i != Inconclusive:
		return fmt.Sprintf(" The interval of the last in conflict does not tell; the window is %s for others.", i)
	}
	return " The intervals do not tell."
}

func patchC6(r *Result) *Verdict {
	serial, batched := on(r, 3, PatchedBatch+"/"+wayKernel, PatchedBatch+"/"+waySerial), on(r, 3, PatchedBatch+"/"+wayKernel, PatchedBatch+"/"+wayBatched)
	if serial == nil || batched == nil {
		return nil
	}
	v := &Verdict{Claim: "C6", Answer: NotDecidable, Where: onCardPatch}
	v.Why = fmt.Sprintf("With %v a command, which the emulated device was told, a transition by one ioctl for %d takes %s of what it takes one by one (%s), and %s of what it takes in a batch over threads (%s). "+
		"What a batch wins is what the firmware does at once, and this one is emulated: a card decides.",
		r.Patches.Latency, c6Group, serial.Ratio.interval(), serial.Ratio.Answer, batched.Ratio.interval(), batched.Ratio.Answer)
	v.Why += tooFew(serial, batched)
	return v
}

// patchFindings are the facts besides the claims: what a patch costs those who do not
// use it, what a refused command shows, which boots failed.
func patchFindings(r *Result) (f []string) {
	for _, v := range r.Patches.Variants {
		if v.Name != PatchStock {
			if s := offFinding(r, v.Name); s != "" {
				f = append(f, s)
			}
		}
	}
	if s := failureFinding(r.Patches.Failures); s != "" {
		f = append(f, s)
	}
	for _, b := range r.Patches.Failed() {
		f = append(f, fmt.Sprintf("Round %d, %s: the boot does not count: %s", b.Round, b.Variant, firstLineOf(b.Error)))
	}
	return f
}

// offFinding says where a kernel whose patches are off differs from stock.
func offFinding(r *Result, variant string) string {
	var same, differ []string
	pairs := 0
	for _, c := range r.Comparisons {
		series, ok := strings.CutPrefix(c.A, variant+"/")
		if !ok || c.B != PatchStock+"/"+series {
			continue
		}
		pairs = max(pairs, c.Ratio.Pairs)
		if c.Ratio.Answer == Inconclusive {
			same = append(same, series)
			continue
		}
		differ = append(differ, fmt.Sprintf("%s is %s (%s)", series, c.Ratio.Answer, c.Ratio.interval()))
	}
	name := "Patch " + variant
	if variant == PatchAll {
		name = "All patches together"
	}
	switch {
	case pairs == 0:
		return ""
	case pairs < MinPairs:
		return fmt.Sprintf("%s, off, against the stock kernel: rounds that count: %d; fewer than %d decide nothing.", name, pairs, MinPairs)
	case differ == nil:
		return fmt.Sprintf("%s, off: no difference to the stock kernel shows in %s (%d rounds).", name, strings.Join(same, ", "), pairs)
	}
	return fmt.Sprintf("%s, off, against the stock kernel: %s (%d rounds).", name, strings.Join(differ, "; "), pairs)
}

func failureFinding(all []PatchFailures) string {
	var says []string
	for _, f := range all {
		what := "errno " + f.Errno + " and nothing else"
		if f.Outbox {
			what = fmt.Sprintf("status %s, syndrome %#x, errno %s", f.Status, f.Syndrome, f.Errno)
		}
		says = append(says, fmt.Sprintf("%s, %s: %s (%d boots)", f.Variant, f.How, what, f.Boots))
	}
	if says == nil {
		return ""
	}
	return "What a program is told of RTR2RTS_QP that the firmware refuses: " + strings.Join(says, "; ") + "."
}

func firstLineOf(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
