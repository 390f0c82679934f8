// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"

	"devxlab.example/bench/calibrate"
)

type calibrateCmd struct {
	Device  string `arg:"" help:"Device name. Nothing but its own objects is touched; no work request is posted."`
	Write   string `help:"Write the profile here, for emu:profile=FILE." placeholder:"FILE"`
	Force   bool   `help:"Replace the file if it is there."`
	Samples int    `default:"1000" help:"How often each command is measured alone, 100 to 1000000. P99.9 needs 10000."`
	QPs     int    `name:"qps" default:"0" help:"Grow to so many queue pairs, 1000 to 2097152, to see what they add to a command and how many contexts are kept at hand; 0: do not."`
}

func (c calibrateCmd) Run(e *env) error {
	if c.Samples < 1 { // to the package 0 is the default
		return usageError{fmt.Errorf("--samples %d: 100 to 1000000", c.Samples)}
	}
	if c.Write != "" {
		if err := calibrate.Writable(c.Write, c.Force); err != nil {
			if errors.Is(err, calibrate.ErrExists) {
				err = usageError{err}
			}
			return err
		}
	}
	o := calibrate.Options{Device: c.Device, Samples: c.Samples, QPs: c.QPs, Announce: e.out}
	if e.asJSON {
		o.Announce = e.err
	}
	if isTerminal(e.err) {
		o.Progress = e.err
	}
	r, err := calibrate.Run(e.ctx, o)
	switch {
	case err != nil && e.ctx.Err() != nil:
		return errors.New("interrupted: nothing was written")
	case errors.Is(err, calibrate.ErrOptions):
		return usageError{err}
	case err != nil:
		return openError(c.Device, err)
	}
	if c.Write != "" {
		err = calibrate.WriteProfile(c.Write, r.Profile, c.Force)
	}
	if e.asJSON {
		return errors.Join(err, e.json(r))
	}
	if textErr := r.WriteText(e.out); textErr != nil {
		return errors.Join(err, textErr)
	}
	if c.Write != "" && err == nil {
		_, err = fmt.Fprintf(e.out, "\nprofile: %s; run it as emu:profile=%s\n", c.Write, c.Write)
	}
	return err
}
