// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// DriverSteps are what "devxlab lab check" does in a guest, in its order.
var DriverSteps = []string{"uverbs", "devx", "unload", "reload", "devx again", "dmesg"}

// DriverCheck is what "devxlab lab check" found out in a guest.
type DriverCheck struct {
	// When mlx5_core first spoke, in seconds since the kernel's start.
	Probe float64 `json:"probe"`
	// Of the device's general capabilities: log_max_qp and the like.
	Limits map[string]uint64 `json:"limits"`
	Steps  []DriverStep      `json:"steps"`
}

// DriverStep is one step. After one that failed the rest are not tried, but for
// the last one.
type DriverStep struct {
	Name  string  `json:"name"`
	Error string  `json:"error,omitempty"`
	Took  float64 `json:"took"` // seconds
}

// Step returns a step, or nil if it was not tried.
func (c DriverCheck) Step(name string) *DriverStep {
	for i := range c.Steps {
		if c.Steps[i].Name == name {
			return &c.Steps[i]
		}
	}
	return nil
}

// KernelTry is what became of one kernel.
type KernelTry struct {
	Kernel string // as it was asked for
	Result *Result
	Check  *DriverCheck
	Err    error // nil: every step was well
}

// TryKernel boots a kernel with an emulated HCA and lets "devxlab lab check" look
// at it: whether the driver takes the device, whether a queue pair lives its life
// through DevX, whether the driver lets go of the device and takes it again, and
// whether it is silent meanwhile.
func TryKernel(ctx context.Context, o Options) KernelTry {
	k := KernelTry{Kernel: o.Kernel}
	var out bytes.Buffer
	o.Devices, o.Stdout = 1, &out
	o.Args = []string{"devxlab", "lab", "check"}
	k.Result, k.Err = Run(ctx, o)
	var c DriverCheck
	if err := json.Unmarshal(out.Bytes(), &c); err != nil {
		if k.Err == nil {
			k.Err = fmt.Errorf("devxlab lab check says %q (exit status %d): %w", out.String(), k.Result.Status, err)
		}
		return k
	}
	k.Check = &c
	for _, name := range DriverSteps {
		switch s := c.Step(name); {
		case s == nil:
			k.Err = errors.Join(k.Err, fmt.Errorf("%s: not tried", name))
		case s.Error != "":
			k.Err = errors.Join(k.Err, fmt.Errorf("%s: %s", name, s.Error))
		}
	}
	return k
}

// Row returns the kernel's row of the matrix; MatrixHeader has the heads of its
// columns. Times are of the guest's clock, but for the last.
func (k KernelTry) Row() []string {
	row := make([]string, len(MatrixHeader))
	for i := range row {
		row[i] = "-"
	}
	row[0] = k.Kernel
	if r := k.Result; r != nil {
		row[1], row[2], row[4], row[len(row)-2] = r.Release, r.Init.String(), r.Ready.String(), r.Total.Round(10*time.Millisecond).String()
	}
	if c := k.Check; c != nil {
		row[3] = (time.Duration(c.Probe*1000) * time.Millisecond).Round(10 * time.Millisecond).String()
		for i, names := range [][]string{{"uverbs"}, {"devx"}, {"unload", "reload", "devx again"}, {"dmesg"}} {
			row[5+i] = c.verdict(names)
		}
		row[9] = fmt.Sprintf("2^%d, 2^%d, 2^%d", c.Limits["log_max_qp"], c.Limits["log_max_cq"], c.Limits["log_max_mkey"])
	}
	if row[len(row)-1] = "ok"; k.Err != nil {
		row[len(row)-1] = "FAILED"
	}
	return row
}

// MatrixHeader are the heads of the matrix's columns.
var MatrixHeader = []string{"kernel", "release", "init", "probe", "port active", "uverbs0", "DevX QP", "unload+reload", "dmesg", "QPs, CQs, MKEYs", "off", "result"}

func (c DriverCheck) verdict(names []string) string {
	for _, n := range names {
		switch s := c.Step(n); {
		case s == nil:
			return "not tried"
		case s.Error != "":
			return "failed"
		}
	}
	return "ok"
}
