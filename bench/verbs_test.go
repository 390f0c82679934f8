// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"strings"
	"testing"
)

// The verdict on C6 needs both kinds of one by one.
func TestC6Against(t *testing.T) {
	of := func(answer Answer, void string) *Comparison {
		return &Comparison{Ratio: Ratio{Median: 0.5, Low: 0.4, High: 0.6, Pairs: 20, Answer: answer}, Void: void}
	}
	for _, c := range []struct {
		name  string
		devx  *Comparison
		verbs *Comparison
		want  string
		part  string
	}{
		{"both faster", of(Better, ""), of(Better, ""), Supported, "one by one through verbs takes, 95 % interval"},
		{"both slower", of(Worse, ""), of(Worse, ""), Refuted, "20 pairs."},
		{"they differ", of(Worse, ""), of(Better, ""), NotDecidable, "do not agree"},
		{"verbs do not tell", of(Better, ""), of(Inconclusive, ""), NotDecidable, "does not tell which is faster"},
		{"void", of(Better, ""), of(Better, "9.0 of 31.0 in flight"), NotDecidable, "but only 9.0 of 31.0 in flight"},
		{"no verbs", of(Better, ""), nil, Supported, ""},
	} {
		before := c6Verdict(c.devx)
		v := c6Against(before, c.verbs)
		if v.Claim != "C6" || v.Answer != c.want || !strings.Contains(v.Why, c.part) || !strings.HasPrefix(v.Why, before.Why) {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
}

// On C1 those made by verbs decide, if there are any.
func TestC1Together(t *testing.T) {
	v := func(answer string) Verdict {
		return Verdict{Claim: "C1", Answer: answer, Why: "Because of " + answer + "."}
	}
	for _, c := range []struct {
		kinds []Verdict
		want  string
		part  string
	}{
		{[]Verdict{v(Supported)}, Supported, "has none of them"},
		{[]Verdict{v(NotDecidable)}, NotDecidable, "Because of not decidable here."},
		{[]Verdict{v(Refuted), v(Supported)}, Supported, "it is the kernel's"},
		{[]Verdict{v(Supported), v(Supported)}, Supported, "not the driver's table"},
		{[]Verdict{v(Supported), v(Refuted)}, Refuted, "Made by verbs, so that the driver's table has them: Because of refuted."},
		{[]Verdict{v(Refuted), v(NotDecidable)}, NotDecidable, "Made through DevX, so that it has none: Because of refuted."},
	} {
		if got := c1Together(c.kinds); got.Answer != c.want || got.Claim != "C1" || !strings.Contains(got.Why, c.part) {
			t.Errorf("%+v: %+v", c.kinds, got)
		}
	}
}
