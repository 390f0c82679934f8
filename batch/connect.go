// SPDX-License-Identifier: BSD-2-Clause

package batch

import (
	"cmp"
	"context"
	"errors"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// Endpoint is a queue pair in RESET and what it takes to bring it to RTS.
type Endpoint struct {
	QP   *devx.QP
	INIT mlx5.RST2INIT
	RTR  mlx5.INIT2RTR
	RTS  mlx5.RTR2RTS
}

// Reached is how far a queue pair came.
type Reached struct {
	QP    *devx.QP
	State mlx5.State // after the last transition that is known to be done
	Err   error      // why it came no further (see Result.Err); nil in RTS
}

// ToRTS brings queue pairs from RESET to RTS, state by state: all that can go
// to INIT, then all that are there to RTR, then to RTS. One that fails stays
// where it is and does not hold up the others. The batch must be empty, and is
// empty afterwards; its options apply, StopOnError to each of the three steps.
//
// The result has one element for each endpoint, in their order. The error is
// the context's, or says that the batch is closed; failures of queue pairs are
// in the result.
func (b *Batch) ToRTS(ctx context.Context, eps []Endpoint) ([]Reached, error) {
	if b.Len() > 0 {
		return nil, errors.New("batch: ToRTS needs an empty batch: Reset it first")
	}
	out := make([]Reached, len(eps))
	for i := range eps {
		out[i] = Reached{QP: eps[i].QP, State: mlx5.StateRST}
	}
	defer b.Reset()
	var stopped error
	for _, step := range []struct {
		to  mlx5.State
		add func(e *Endpoint, tag uint64) error
	}{
		{mlx5.StateInit, func(e *Endpoint, tag uint64) error { return Add(b, e.QP, e.INIT, tag) }},
		{mlx5.StateRTR, func(e *Endpoint, tag uint64) error { return Add(b, e.QP, e.RTR, tag) }},
		{mlx5.StateRTS, func(e *Endpoint, tag uint64) error { return Add(b, e.QP, e.RTS, tag) }},
	} {
		b.Reset()
		for i := range eps {
			if out[i].Err == nil {
				out[i].Err = step.add(&eps[i], uint64(i))
			}
		}
		err := b.Run(ctx)
		for r := range b.Results() {
			if r.Outcome == Done {
				out[r.Tag].State = step.to
			} else {
				out[r.Tag].Err = cmp.Or(r.Err, err) // err alone if it did not run
			}
		}
		var partial *Error
		switch {
		case err == nil || stopped != nil:
		case !errors.As(err, &partial):
			stopped = err
		case partial.NotSent > 0 && ctx.Err() != nil:
			stopped = context.Cause(ctx)
		}
	}
	return out, stopped
}
