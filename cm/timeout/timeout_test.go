// SPDX-License-Identifier: BSD-2-Clause

package timeout

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// wait is a Wait in microseconds, at least and at most.
func wait(least, most int64) Wait {
	return Wait{Least: time.Duration(least) * time.Microsecond, Most: time.Duration(most) * time.Microsecond}
}

var forever = Wait{Forever: true}

// 8 · 4.096 µs · 2^14 and the like, worked out by hand.
func TestNoAck(t *testing.T) {
	for q, want := range map[QP]Wait{
		{AckTimeout: 1, RetryCount: 0}:  {Least: 8192, Most: 4 * 8192},
		{AckTimeout: 8, RetryCount: 1}:  {Least: 2_097_152, Most: 8_388_608},
		{AckTimeout: 14, RetryCount: 0}: {Least: 67_108_864, Most: 268_435_456},
		{AckTimeout: 14, RetryCount: 7}: {Least: 536_870_912, Most: 2_147_483_648},
		{AckTimeout: 20, RetryCount: 7}: {Least: 34_359_738_368, Most: 137_438_953_472},
		{AckTimeout: 31, RetryCount: 7}: {Least: 8 * 8_796_093_022_208, Most: 32 * 8_796_093_022_208},
		{AckTimeout: 0, RetryCount: 7}:  forever,
		{AckTimeout: 0, RetryCount: 0}:  forever,
	} {
		if w, err := q.NoAck(); err != nil || w != want {
			t.Errorf("%+v: %+v, %v, want %+v", q, w, err, want)
		}
	}
}

// What was measured of the card is what is computed of it: medians, to a
// millisecond, and ranges.
func TestCards(t *testing.T) {
	asItComes, noFloor := Cards[0], Cards[1]
	for q, ms := range map[QP]float64{
		{AckTimeout: 14, RetryCount: 7}: 3661.8, {AckTimeout: 16, RetryCount: 7}: 3661.8, {AckTimeout: 17, RetryCount: 7}: 7151.7,
		{AckTimeout: 18, RetryCount: 7}: 14667.8, {AckTimeout: 19, RetryCount: 7}: 29700.8, {AckTimeout: 20, RetryCount: 7}: 59766.3,
		{AckTimeout: 14, RetryCount: 1}: 440.6, {AckTimeout: 14, RetryCount: 2}: 977.6, {AckTimeout: 14, RetryCount: 3}: 1514.3, {AckTimeout: 14, RetryCount: 4}: 2051.4,
		{AckTimeout: 14, RetryCount: 5}: 2588.2, {AckTimeout: 14, RetryCount: 6}: 3124.8, {AckTimeout: 14, RetryCount: 0}: 2050.7,
	} {
		w, err := q.NoAckOf(asItComes)
		if got := w.Least.Seconds() * 1000; err != nil || w.Least != w.Most || math.Abs(got-ms) > 1 {
			t.Errorf("%+v: %v, %v, measured %v ms", q, w.Least, err, ms)
		}
	}
	for q, ms := range map[QP][2]float64{
		{AckTimeout: 8, RetryCount: 0}: {2.17, 2.34}, {AckTimeout: 8, RetryCount: 3}: {5.16, 5.59}, {AckTimeout: 8, RetryCount: 7}: {9.33, 9.74},
		{AckTimeout: 10, RetryCount: 7}: {37.87, 38.10}, {AckTimeout: 12, RetryCount: 0}: {29.12, 29.90}, {AckTimeout: 12, RetryCount: 7}: {146.65, 149.68},
		{AckTimeout: 14, RetryCount: 0}: {104.98, 119.36}, {AckTimeout: 14, RetryCount: 7}: {574.69, 604.34}, {AckTimeout: 16, RetryCount: 7}: {2319.30, 2333.41},
		{AckTimeout: 17, RetryCount: 7}: {4571.05, 4735.71}, {AckTimeout: 18, RetryCount: 7}: {9140.50, 9299.25}, {AckTimeout: 20, RetryCount: 7}: {37587.71, 38290.33},
	} {
		w, err := q.NoAckOf(noFloor)
		if least, most := w.Least.Seconds()*1000, w.Most.Seconds()*1000; err != nil || ms[0] < least || ms[1] > most || most-least > 0.7*Exp(q.AckTimeout).Seconds()*1000+1.3 {
			t.Errorf("%+v: %+v, %v, measured %v ms", q, w, err, ms)
		}
	}
	for _, c := range Cards {
		if w, err := (QP{RetryCount: 7}).NoAckOf(c); err != nil || w != forever || c.Why == "" || c.Measured == "" {
			t.Errorf("%s, 0: %+v, %v", c.Name, w, err)
		}
	}
}

func TestNotReady(t *testing.T) {
	for q, want := range map[QP]Wait{
		{RNRRetry: 0, MinRNRTimer: 0}:  wait(0, 0),
		{RNRRetry: 1, MinRNRTimer: 12}: wait(640, 0),
		{RNRRetry: 6, MinRNRTimer: 0}:  wait(6*655_360, 0),
		{RNRRetry: 6, MinRNRTimer: 1}:  wait(60, 0),
		{RNRRetry: 3, MinRNRTimer: 31}: wait(3*491_520, 0),
		{RNRRetry: 7, MinRNRTimer: 1}:  forever,
	} {
		if w, err := q.NotReady(); err != nil || w != want {
			t.Errorf("%+v: %+v, %v, want %+v", q, w, err, want)
		}
	}
	if RNRDelay(14) != 1280*time.Microsecond || RNRDelay(0) <= RNRDelay(31) {
		t.Error(RNRDelay(14), RNRDelay(0), RNRDelay(31))
	}
	for n := 2; n <= MaxExponent; n++ {
		if RNRDelay(n) <= RNRDelay(n-1) {
			t.Errorf("%d: %v after %v", n, RNRDelay(n), RNRDelay(n-1))
		}
	}
}

func TestRefused(t *testing.T) {
	for want, check := range map[string]func() error{
		"timeout 32: it is 0 to 31; of a greater value the mlx5 driver takes the low 5 bits": QP{AckTimeout: 32}.Check,
		"timeout -1: it is 0 to 31":                            QP{AckTimeout: -1}.Check,
		"retry_cnt 8: it is 0 to 7":                            QP{RetryCount: 8}.Check,
		"rnr_retry 8: it is 0 to 7":                            QP{RNRRetry: 8}.Check,
		"min_rnr_timer 32: it is 0 to 31; it is a code":        QP{MinRNRTimer: 32}.Check,
		"CM response time-out 32: it is 0 to 31":               CM{ResponseTimeout: 32}.Check,
		"max_cm_retries 16: it is 0 to 15":                     CM{Retries: 16}.Check,
		"packet life time 32: it is 0 to 31":                   CM{Lifetime: 32}.Check,
		"local_ca_ack_delay 32: it is 0 to 31":                 CM{AckDelay: 32}.Check,
		"service time-out of an MRA -1: it is 0 to 31":         CM{ServiceTimeout: -1}.Check,
		"timeout 99: it is 0 to 31; of a greater":              func() error { _, err := QP{AckTimeout: 99}.NoAck(); return err },
		"timeout 98: it is 0 to 31":                            func() error { _, err := QP{AckTimeout: 98}.NoAckOf(Cards[0]); return err },
		"retry_cnt 9: it is 0 to 7":                            func() error { _, err := QP{RetryCount: 9}.NotReady(); return err },
		"packet life time 40: it is 0 to 31; the message has ": func() error { _, err := CM{Lifetime: 40}.Phases(); return err },
	} {
		var r *RangeError
		if err := check(); !errors.As(err, &r) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// What the kernel waits, by its own numbers. 16 · 6144 ms are 98.3 s.
func TestPhases(t *testing.T) {
	newer := CMA
	newer.Lifetime = CMALifetimeNew
	once := CMA
	once.Retries = 0
	for c, want := range map[CM]string{
		CMA:   "6144·16=98304 67584·16=1019904 4096·16=65536 6144·16=98304 4096·16=65536 4096·16=65536 2048·1=2048",
		newer: "4608·16=73728 66048·16=995328 4096·16=65536 4608·16=73728 4096·16=65536 4096·16=65536 1024·1=1024",
		once:  "6144·1=6144 67584·1=6144 4096·1=4096 6144·1=6144 4096·1=4096 4096·1=4096 2048·1=2048",
	} {
		phases, err := c.Phases()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range phases {
			got = append(got, fmt.Sprintf("%d·%d=%d", p.Each.Milliseconds(), p.Tries, p.Total.Milliseconds()))
			if p.Name == "" || p.Event == "" || p.From == "" {
				t.Errorf("%+v", p)
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%+v:\n%s, want\n%s", c, s, want)
		}
	}
}

// cm_ack_timeout of the kernel, worked out by hand.
func TestAckTimeout(t *testing.T) {
	for in, want := range map[[2]int]int{ // delay, life time
		{16, 18}: 19, {18, 18}: 20, {19, 18}: 20, {16, 16}: 18, {15, 16}: 17, {20, 18}: 21, {21, 18}: 21, {0, 0}: 2, {31, 31}: 31, {0, 31}: 31,
	} {
		if got := (CM{AckDelay: in[0], Lifetime: in[1]}).AckTimeout(); got != want {
			t.Errorf("delay %d, life time %d: %d, want %d", in[0], in[1], got, want)
		}
	}
	if KernelMS(0) != time.Millisecond || KernelMS(8) != time.Millisecond || KernelMS(20) != 4096*time.Millisecond {
		t.Error(KernelMS(0), KernelMS(8), KernelMS(20))
	}
}
