// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The device's part of the break-even, measured on the virtual clock, is the
// number of waves.
func TestGroupTimes(t *testing.T) {
	for _, cost := range []time.Duration{time.Nanosecond, 500 * time.Nanosecond, 200 * time.Microsecond} {
		r := &Run{}
		got, err := r.groupTimes(context.Background(), cost)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 31 {
			t.Fatalf("%d times, want 31", len(got))
		}
		for i, g := range got {
			p := i + 1
			waves := time.Duration((32 + p - 1) / p)
			if g != waves*cost {
				t.Errorf("32 commands of %v, %d at once: %v, want %v", cost, p, g, waves*cost)
			}
		}
	}
}

// breakEven against a formula that knows nothing of how it is computed.
func TestBreakEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cost := rapid.IntRange(1, 1_000_000).Draw(t, "cost")
		serial := rapid.IntRange(0, 5_000).Draw(t, "serial")
		batched := rapid.IntRange(0, 50_000).Draw(t, "batched")
		wins := func(p int) bool { return (32+p-1)/p*cost+32*batched < 32*(cost+serial) }
		want := 0
		for p := 31; p >= 1 && wins(p); p-- {
			want = p
		}
		var group []time.Duration
		for p := 1; p <= 31; p++ {
			group = append(group, time.Duration((32+p-1)/p*cost))
		}
		if got := breakEven(group, time.Duration(cost), float64(serial), float64(batched)); got != want {
			t.Fatalf("p* = %d, want %d", got, want)
		}
	})
}

// "From p* on" means every larger number as well.
func TestBreakEvenHoldsOn(t *testing.T) {
	group := []time.Duration{100, 10, 100, 10, 10}
	if got := breakEven(group, 1, 0, 0); got != 4 {
		t.Errorf("p* = %d, want 4: with 3 it is slower", got)
	}
	if got := breakEven([]time.Duration{10, 100}, 1, 0, 0); got != 0 {
		t.Errorf("p* = %d, want none", got)
	}
	if got := breakEven([]time.Duration{32}, 1, 0, 0); got != 0 {
		t.Errorf("p* = %d, want none: as fast is not faster", got)
	}
}

func TestC6EmuVerdict(t *testing.T) {
	for _, c := range []struct {
		points []BreakEven
		want   string
	}{
		{[]BreakEven{{Command: 5000, P: 2, PAgainst: 2}, {Command: 50000, P: 2, PAgainst: 3}}, "It depends on how many commands the firmware executes at once, which no emulated device can know. Break-even: with 3 or more, a batch is faster for commands of 5µs and longer."},
		{[]BreakEven{{Command: 500, P: 5}, {Command: 5000, P: 2, PAgainst: 2}}, "It depends on how many commands the firmware executes at once, which no emulated device can know. Break-even: with 2 or more, a batch is faster for commands of 5µs and longer."},
		{[]BreakEven{{Command: 500, P: 4, PAgainst: 4}, {Command: 5000, P: 2}}, "It depends on how many commands the firmware executes at once, which no emulated device can know."},
		{nil, "It depends on how many commands the firmware executes at once, which no emulated device can know."},
	} {
		want := NotDecidable
		if strings.Contains(c.want, "Break-even") {
			want = OnlyBreakEven
		}
		if v := c6EmuVerdict(c.points); v.Answer != want || v.Where != "make bench DEV=mlx5_0" || v.Claim != "C6" || v.Why != c.want {
			t.Errorf("%+v: %+v", c.points, v)
		}
	}
}

// Without the own cost there is no break-even.
func TestBreakEvenNeedsOwnCost(t *testing.T) {
	r := &Run{}
	if err := r.c6BreakEven(context.Background()); err == nil || len(r.BreakEven) > 0 {
		t.Errorf("error %v, %d points", err, len(r.BreakEven))
	}
}
