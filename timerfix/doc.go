// SPDX-License-Identifier: BSD-2-Clause

// Package timerfix runs queue pair transitions later, from one high-resolution
// timer.
//
// A deferred transition has a due time on CLOCK_MONOTONIC. It is never sent
// before, may be cancelled until it is sent, and has a barrier, Wait, that tells
// its queue pair's owner when it is real. What is due together goes out as a
// batch (package batch, groups of 32), in the order of due times. Two transitions
// of one queue pair that are due at the same instant keep the order in which they
// were deferred, and so do those whose due time is past already. How late each
// was sent is recorded.
//
//	s, err := timerfix.New(d, timerfix.Options{})
//	policy := timerfix.Article()
//	due, _ := policy.Due(live, s.Now())
//	t, err := timerfix.Defer(s, qp, mlx5.RTR2RTS{…}, due)
//	…
//	result, err := s.Wait(ctx, t)
//
// Exactly one thing becomes of every deferred transition: it is done, failed or
// unknown as in a batch, it is cancelled, or it is not sent, and its result says
// why. What is pending when the scheduler is stopped is not sent, and Stop returns
// it.
//
// Deferring does not make a transition cheaper: the firmware's command takes
// what it takes, only later, and until then the queue pair cannot send. What it
// can win is that transitions which come in one by one go out as a batch.
//
// It is not a general timer, and it does not limit how many queue pairs change
// at once beyond what a batch does.
package timerfix
