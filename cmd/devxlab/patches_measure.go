// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"

	"devxlab.example/bench"
)

// patchesMeasureCmd runs in the guest of a comparison: one boot of it.
type patchesMeasureCmd struct {
	Part       []string `help:"What to measure; default: all." placeholder:"PART,…"`
	Device     string   `default:"mlx5_0" help:"Where to measure."`
	Address    string   `default:"192.168.7.1" help:"Own address on that device, for connections to itself."`
	OnFirst    bool     `help:"Where a patch's on and off come in turn, on begins."`
	KernelCost bool     `default:"true" negatable:"" help:"Follow RTR2RTS_QP through the kernel, after what is timed."`
}

func (c *patchesMeasureCmd) Run(e *env) error {
	to, err := address(c.Address, false)
	if err != nil {
		return usageError{err}
	}
	x, err := bench.Patched(c.Part, c.OnFirst)
	if err != nil {
		return usageError{err}
	}
	r, err := bench.Do(e.ctx, x, bench.Options{Device: c.Device, Peer: to.String(), KernelCost: c.KernelCost})
	if r == nil {
		return openError(c.Device, err)
	}
	return errors.Join(err, e.json(r))
}
