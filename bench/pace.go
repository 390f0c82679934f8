// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// pace is open-loop load: operation i is meant to begin at i/rate, whether or
// not the ones before have ended. What is late begins at once, and its latency
// counts from when it was meant to begin.
type pace struct {
	watch stopwatch
	start time.Duration
	every time.Duration
}

// Rates of open-loop load, a second: once an hour, and what no device does one
// after the other.
const (
	LeastRate = 1.0 / 3600
	MostRate  = 1_000_000.0
)

func newPace(w stopwatch, rate float64) *pace {
	return &pace{watch: w, start: w.now(), every: time.Duration(float64(time.Second) / rate)}
}

// wait returns when operation i is meant to begin, and that instant.
func (p *pace) wait(ctx context.Context, i int) (meant time.Duration, err error) {
	meant = p.start + time.Duration(i)*p.every
	return meant, p.watch.until(ctx, meant)
}

// longestSleep is how long an interrupt may be overlooked.
const longestSleep = 50 * time.Millisecond

// until returns when the time is t, or ctx has ended. On the machine's clock it
// blocks the thread: time.Sleep would round up to a millisecond.
func (w *stopwatch) until(ctx context.Context, t time.Duration) error {
	if w.virtual != nil {
		w.virtual.SleepUntil(t)
		return ctx.Err()
	}
	for {
		left := t - w.now()
		if err := ctx.Err(); err != nil || left <= 0 {
			return err
		}
		spec := unix.NsecToTimespec(min(left, longestSleep).Nanoseconds())
		_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &spec, nil) // a signal ends it early
	}
}
