// SPDX-License-Identifier: BSD-2-Clause

package wire

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is what a link or a switch takes its time from. For the emulated HCA's
// virtual clock it is
//
//	type virtualClock struct{ *fw.VirtualClock }
//
//	func (c virtualClock) NewAlarm() (wire.Alarm, error) { return c.VirtualClock.NewAlarm(), nil }
type Clock interface {
	// Now returns the time since the clock's beginning. It never goes back.
	Now() time.Duration
	// NewAlarm returns an alarm that is not set.
	NewAlarm() (Alarm, error)
}

// Alarm is an alarm of a clock. One goroutine waits for it; any may set it,
// also while that waits.
type Alarm interface {
	// Set sets the alarm, in the place of an earlier setting. A time that is
	// past rings at once.
	Set(at time.Duration)
	// Wait returns when the alarm has rung, which unsets it. It may return for
	// no reason.
	Wait()
	// Close frees the alarm, which nobody waits for any more.
	Close()
}

// never is a time that does not come.
const never = time.Duration(math.MaxInt64)

// RealClock is CLOCK_MONOTONIC. Its alarms are timerfds whose reader blocks in
// the kernel: the runtime's own timers may round up to a millisecond.
type RealClock struct{ start time.Time }

// NewRealClock returns a clock that starts at 0.
func NewRealClock() *RealClock { return &RealClock{time.Now()} }

// Now returns the time since NewRealClock.
func (c *RealClock) Now() time.Duration { return time.Since(c.start) }

// NewAlarm returns an alarm that occupies a file descriptor, and a thread while
// somebody waits for it.
func (c *RealClock) NewAlarm() (Alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("wire: no alarm: timerfd_create: %w: close some files, or raise ulimit -n", err)
	}
	return &timerfd{c, fd}, nil
}

type timerfd struct {
	c  *RealClock
	fd int
}

// Set uses a relative time: Go does not tell what its monotonic clock's zero
// is, and the call is short against the timer's own lateness.
func (t *timerfd) Set(at time.Duration) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(int64(at-t.c.Now()), 1))} // 0 would disarm
	// Cannot fail: the descriptor is ours and the time is not negative.
	_ = unix.TimerfdSettime(t.fd, 0, &spec, nil)
}

func (t *timerfd) Wait() {
	var expirations [8]byte
	// It fails only where a signal interrupts it (Go preempts by signal), and
	// Wait may return for no reason.
	_, _ = unix.Read(t.fd, expirations[:])
}

func (t *timerfd) Close() { _ = unix.Close(t.fd) }
