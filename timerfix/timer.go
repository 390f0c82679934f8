// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Instant is a point in time: nanoseconds of CLOCK_MONOTONIC, or of whatever a
// Timer counts.
type Instant int64

// Never is the last instant there is: a transition that is due then is pending
// until it is cancelled or the scheduler is stopped.
const Never Instant = math.MaxInt64

// Add returns i + d; beyond the ends it is the end.
func (i Instant) Add(d time.Duration) Instant {
	sum := i + Instant(d)
	switch {
	case d > 0 && sum < i:
		return Never
	case d < 0 && sum > i:
		return math.MinInt64
	}
	return sum
}

// Sub returns i - j; what no Duration holds is the longest or the shortest one.
func (i Instant) Sub(j Instant) time.Duration {
	d := time.Duration(i - j)
	switch {
	case i > j && d < 0:
		return math.MaxInt64
	case i < j && d > 0:
		return math.MinInt64
	}
	return d
}

// Timer is a clock and one alarm. A scheduler owns its timer: it calls Wait
// from one goroutine, and Arm and Now also while that waits.
type Timer interface {
	// Now returns the time, which is not negative.
	Now() Instant
	// Arm sets the alarm in the place of an earlier setting. An instant that is
	// past rings at once; Never does not ring.
	Arm(at Instant)
	// Wait returns when the alarm has rung. It may return for no reason.
	Wait() error
	// Close frees the timer, which nobody waits for any more.
	Close() error
}

// clock reads CLOCK_MONOTONIC without a system call.
type clock struct {
	start time.Time
	at    Instant // of start, or a moment before
}

// newClock ties Go's monotonic clock, which is CLOCK_MONOTONIC but does not
// show its value, to that value. What it reads is never ahead of the kernel's
// clock: start is taken after the system call. The closest of a few pairs is
// kept; it is behind by less than the time of one system call.
func newClock() clock {
	var c clock
	best := time.Duration(math.MaxInt64)
	for range 32 {
		before := time.Now()
		var ts unix.Timespec
		// Cannot fail: CLOCK_MONOTONIC exists on every Linux.
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
		start := time.Now()
		if took := start.Sub(before); took < best {
			best = took
			c = clock{start, Instant(ts.Nano())}
		}
	}
	return c
}

func (c clock) Now() Instant { return c.of(time.Now()) }

func (c clock) of(t time.Time) Instant { return c.at.Add(t.Sub(c.start)) }

// timerfd is the kernel's high-resolution timer as a file (timerfd_create(2)),
// set to absolute times of CLOCK_MONOTONIC. Its reader blocks in the kernel:
// the runtime's own timers and its poller round, and wake through another
// thread.
type timerfd struct {
	clock
	fd int
}

func newTimerFD() (*timerfd, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfix: no timer: timerfd_create: %w%s", err, remedy(err))
	}
	return &timerfd{newClock(), fd}, nil
}

func remedy(err error) string {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return ": too many files are open: close some, or raise ulimit -n"
	}
	return ""
}

func (t *timerfd) Arm(at Instant) {
	var spec unix.ItimerSpec // zero disarms
	if at != Never {
		// 0 would disarm, and before it there is nothing.
		spec.Value = unix.NsecToTimespec(max(int64(at), 1))
	}
	// Cannot fail: the descriptor is ours and the time is not negative.
	_ = unix.TimerfdSettime(t.fd, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

func (t *timerfd) Wait() error {
	var expirations [8]byte
	n, err := unix.Read(t.fd, expirations[:])
	switch {
	case err == unix.EINTR: // Go preempts by signal
		return nil
	case err != nil:
		return fmt.Errorf("timerfix: reading the timer: %w", err)
	case n != len(expirations) || binary.NativeEndian.Uint64(expirations[:]) == 0:
		return fmt.Errorf("timerfix: the timer returned %d bytes", n)
	}
	return nil
}

func (t *timerfd) Close() error { return unix.Close(t.fd) }
