// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"testing"
	"time"

	"devxlab.example/cm/timeout"
	"devxlab.example/mlx5"
)

var (
	retriesOver = done{op: cqeRequestErr, syndrome: 0x15, vendor: 0x81, wqe: opSend}
	rnrOver     = done{op: cqeRequestErr, syndrome: 0x16, vendor: 0x87, wqe: opSend}
)

// dead returns a pair whose second end hears nothing.
func dead(t *testing.T, o options, profile *AckTimeout) (*net, *end) {
	t.Helper()
	n := newNet(t)
	a, b := n.end(0, mlx5.STRC), n.end(1, mlx5.STRC)
	p := *n.host[0].h.profile
	p.AckTimeout = profile
	n.host[0].h.profile = &p
	n.connect(a, b, o)
	n.link[0].set(func([]byte) []time.Duration { return nil })
	return n, a
}

// An error comes at the instant that package timeout computes by the formula, and
// with a profile at that of its floor and percentage. Where there is no time-out,
// none comes in a year.
func TestComputedAckTimeouts(t *testing.T) {
	profile := publishedAckTimeout(t)
	for _, n := range []int{0, 1, 4, 8, 10, 14, 16, 17, 20, 24, 31} {
		for _, retries := range []int{0, 1, 3, 7} {
			formula, err := timeout.QP{AckTimeout: n, RetryCount: retries}.NoAck()
			if err != nil {
				t.Fatal(err)
			}
			longer := time.Duration(retries+1) * (timeout.Exp(max(n, profile.Floor)) * time.Duration(profile.Percent) / 100)
			for p, want := range map[*AckTimeout]time.Duration{nil: formula.Least, profile: longer} {
				o := usual
				o.timeout, o.retries = uint8(n), uint8(retries)
				net, a := dead(t, o, p)
				start := net.clock.Now()
				a.post(work{op: opSend, n: 10})
				if formula.Forever {
					net.run(365 * 24 * time.Hour)
					a.expect("for ever")
					continue
				}
				a.until("dead peer", start+want)
				a.expect("dead peer", retriesOver)
			}
		}
	}
}

func publishedAckTimeout(t *testing.T) *AckTimeout {
	t.Helper()
	p, err := ProfileByName("published")
	if err != nil {
		t.Fatal(err)
	}
	return p.AckTimeout
}

// The profile has time-outs that are equally long, which those of the card are not:
// with 7 retries it is within 3 % of what was measured.
func TestProfileIsNearTheCard(t *testing.T) {
	profile := publishedAckTimeout(t)
	for n := 8; n <= 20; n++ {
		card, err := timeout.QP{AckTimeout: n, RetryCount: 7}.NoAckOf(timeout.Cards[0])
		if err != nil {
			t.Fatal(err)
		}
		if ratio := float64(8*profile.after(uint8(n))) / float64(card.Least); ratio < 0.97 || ratio > 1.03 {
			t.Errorf("%d: %.3f times the card's", n, ratio)
		}
	}
}

// And so it is with a peer that is not ready, after a round trip for each try.
func TestComputedRNRTimes(t *testing.T) {
	for _, code := range []int{0, 1, 12, 14, 31} {
		for _, retries := range []int{0, 1, 6, 7} {
			want, err := timeout.QP{RNRRetry: retries, MinRNRTimer: code}.NotReady()
			if err != nil {
				t.Fatal(err)
			}
			o := usual
			o.rnr, o.minRNR, o.timeout = uint8(retries), uint8(code), 31
			n, a, _ := newPair(t, mlx5.STRC, o)
			start := n.clock.Now()
			a.post(work{op: opSend, n: 10})
			if want.Forever {
				n.run(1000 * timeout.RNRDelay(code))
				a.expect("for ever")
				continue
			}
			a.until("not ready", start+want.Least+time.Duration(retries+1)*roundTrip)
			a.expect("not ready", rnrOver)
		}
	}
}
