// SPDX-License-Identifier: BSD-2-Clause

package batch

import (
	"errors"
	"fmt"
	"time"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// Outcome is what became of an entry.
type Outcome uint8

const (
	Pending Outcome = iota // Run has not come to it
	Done                   // the firmware said OK
	Failed                 // the firmware or the kernel refused it
	NotSent                // it never reached the kernel
	Unknown                // it was sent and the answer was lost: the device went away or timed out
)

var outcomeNames = [...]string{"pending", "done", "failed", "not sent", "unknown"}

func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Result is what became of one entry.
type Result struct {
	Tag      uint64 // what Add was given
	QP       *devx.QP
	Op       mlx5.Op
	Outcome  Outcome
	Err      error         // nil if Done; of Failed and Unknown, a *devx.CommandError or *devx.VerbsError inside; of NotSent, ErrNotSent and why
	Sent     time.Time     // when the call began; zero if not sent
	Took     time.Duration // until it returned, in real time also where the device's clock is virtual
	InFlight int           // calls under way when it was sent, itself included; 0 if not sent
}

// ErrNotSent is in the error of every entry that never reached the kernel.
var ErrNotSent = errors.New("batch: not sent")

// Why an entry was not sent, if neither a context nor devx.ErrClosed is to blame.
var (
	errStopped = errors.New("an earlier transition failed and Options.StopOnError is set")
	errKernel  = errors.New("the kernel sends no more: the device did not answer in time, and gets no batch until its driver is loaded anew, or the process is being killed")
	errLost    = errors.New("an earlier transition of its queue pair ended unknown: query the state first")
	errLeftOut = errors.New("the strategy left it out")
)

type notSentError struct{ why error }

func (e *notSentError) Error() string        { return ErrNotSent.Error() + ": " + e.why.Error() }
func (e *notSentError) Is(target error) bool { return target == ErrNotSent }
func (e *notSentError) Unwrap() error        { return e.why }

// settle notes what a call returned.
func (r *Result) settle(err error) {
	if err == nil {
		r.Outcome = Done
		return
	}
	var c *devx.CommandError
	var v *devx.VerbsError
	switch {
	case devx.Unknown(err):
		r.Outcome, r.Err = Unknown, err
	case errors.As(err, &c), errors.As(err, &v):
		r.Outcome, r.Err = Failed, err
	default: // no command was issued: device or queue pair are closed, or it is none for verbs
		r.Outcome, r.Err = NotSent, &notSentError{err}
		r.Sent, r.Took, r.InFlight = time.Time{}, 0, 0
	}
}

// Error says that not every entry was done. errors.Is and errors.As see the
// first failure and the reason for not sending.
type Error struct {
	Failed, NotSent, Unknown int
	First                    error // of the first entry that failed or whose answer was lost
	Cause                    error // why entries were not sent, nil if all were: the context's cause, devx.ErrClosed, …
	Waited                   int   // commands that were in flight when the context ended
}

func (e *Error) Error() string {
	why := ""
	if e.Cause != nil {
		why = fmt.Sprintf(" (%v)", e.Cause)
	}
	s := fmt.Sprintf("batch: %d failed, %d not sent%s, %d unknown", e.Failed, e.NotSent, why, e.Unknown)
	if e.Waited > 0 {
		s += fmt.Sprintf("; %d in flight were waited for, since a firmware command cannot be recalled", e.Waited)
	}
	if e.First != nil {
		s += fmt.Sprintf("; first: %v", e.First)
	}
	return s
}

// Unwrap returns First and Cause.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.First != nil {
		errs = append(errs, e.First)
	}
	if e.Cause != nil {
		errs = append(errs, e.Cause)
	}
	return errs
}
