// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestVoidDepth(t *testing.T) {
	for _, c := range []struct {
		achieved, asked float64
		want            string
	}{
		{31, 31, ""},
		{27.9, 31, ""},
		{27.8, 31, "27.8 of 31.0 in flight"},
		{0.9, 1, ""},
		{0.89, 1, "0.9 of 1.0 in flight"},
		{0, 16, "0.0 of 16.0 in flight"},
		{nan, 16, "NaN of 16.0 in flight"},
	} {
		if got := voidDepth(c.achieved, c.asked); got != c.want {
			t.Errorf("voidDepth(%v, %v) = %q, want %q", c.achieved, c.asked, got, c.want)
		}
	}
}

func TestMostBusy(t *testing.T) {
	for _, c := range []struct {
		name  string
		depth int
		ends  []time.Duration
		want  time.Duration
	}{
		{"31 and one", 31, append(slices.Repeat([]time.Duration{10}, 31), 20), 31*10 + 1*10},
		{"a device that takes one at a time: at the end less is left than two", 2, []time.Duration{10, 20, 30}, 2*10 + 2*10 + 10},
		{"two waves", 2, []time.Duration{10, 10, 20, 20}, 40},
		{"nothing", 4, nil, 0},
	} {
		if got := mostBusy(c.depth, c.ends); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		var ends []time.Duration
		var sum time.Duration
		for _, e := range rapid.SliceOfN(rapid.IntRange(1, 1000), 1, 64).Draw(t, "ends") {
			ends = append(ends, time.Duration(e))
			sum += time.Duration(e)
		}
		slices.Sort(ends)
		last := ends[len(ends)-1]
		depth := rapid.IntRange(1, 64).Draw(t, "depth")
		got := mostBusy(depth, ends)
		if got > time.Duration(depth)*last || got > sum {
			t.Fatalf("%v: more than %d at once, or than all at once", got, depth)
		}
		if mostBusy(1, ends) != last || mostBusy(len(ends), ends) != sum {
			t.Fatalf("one at once: %v of %v; all at once: %v of %v", mostBusy(1, ends), last, mostBusy(len(ends), ends), sum)
		}
	})
}
