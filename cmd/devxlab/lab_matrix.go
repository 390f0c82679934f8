// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"devxlab.example/internal/atomicfile"
	"devxlab.example/lab"
)

// machineFlags are those of a guest whose program is not the user's.
type machineFlags struct {
	Kernel  string        `help:"Path of a kernel, or 5.10, 6.1, 6.12, newest, or a release of Debian's." placeholder:"KERNEL"`
	Modules string        `help:"Directory lib/modules/RELEASE of a kernel that is a path." placeholder:"DIR"`
	SMP     int           `name:"smp" default:"1" help:"Virtual CPUs."`
	Accel   string        `default:"auto" enum:"auto,kvm,tcg" help:"auto, kvm or tcg."`
	HCA     string        `name:"hca" env:"DEVXLAB_HCA" help:"Program, with arguments, to start as the HCA instead of devxlab emu; it gets --socket PATH." placeholder:"COMMAND"`
	Timeout time.Duration `placeholder:"TIME" help:"Limit for each machine, from its start."`
	Console bool          `help:"Show the guest's console on standard error."`
}

func (f machineFlags) options(e *env) lab.Options {
	o := lab.Options{Kernel: f.Kernel, Modules: f.Modules, SMP: f.SMP, Accel: f.Accel, HCA: strings.Fields(f.HCA), Timeout: f.Timeout, Stderr: e.err, Progress: e.err}
	if f.Console {
		o.Console = e.err
	}
	return o
}

type labMatrixCmd struct {
	machineFlags
}

const labMatrixHelp = `Each kernel is booted once, with one emulated HCA. There "devxlab lab check" looks for the uverbs device, takes a queue
pair through its life with DevX, takes mlx5_ib and mlx5_core out and puts them in again, repeats that, and reads the kernel's
log: any line of the driver or of the RDMA subsystem at warning level or worse fails it. Without --kernel: 5.10, 6.1, 6.12 and
the newest one that Debian packages. --kernel and --modules try one of your own (docs/kernel-5.15.md).

Columns: init, probe and port active are when process 1 began, when mlx5_core first spoke and when the port was active, by the
guest's clock since the kernel's start; off is from QEMU's start until the machine was off, by the host's.

Exit codes: 0 every kernel was well, 1 one was not, 2 wrong command line.`

// Help is what the command's --help adds.
func (labMatrixCmd) Help() string { return labMatrixHelp }

func (c labMatrixCmd) Run(e *env) error {
	kernels := lab.KernelNames()
	if c.Kernel != "" {
		kernels = []string{c.Kernel}
	}
	rows := [][]string{lab.MatrixHeader}
	var tries []lab.KernelTry
	var failed error
	for _, k := range kernels {
		o := c.options(e)
		o.Kernel = k
		t := lab.TryKernel(e.ctx, o)
		if errors.Is(t.Err, lab.ErrOptions) {
			return usageError{t.Err}
		}
		if e.ctx.Err() != nil {
			return t.Err
		}
		if t.Err != nil {
			failed = errors.Join(failed, fmt.Errorf("kernel %s: %w", k, t.Err))
		}
		tries, rows = append(tries, t), append(rows, t.Row())
	}
	var err error
	if e.asJSON {
		err = e.json(matrixJSON(tries))
	} else {
		err = e.table(rows)
	}
	return errors.Join(err, failed)
}

// kernelJSON is one kernel's row as JSON.
type kernelJSON struct {
	Kernel  string           `json:"kernel"`
	Release string           `json:"release,omitempty"`
	InitNS  time.Duration    `json:"init_ns"`
	ReadyNS time.Duration    `json:"ready_ns"`
	TotalNS time.Duration    `json:"total_ns"`
	Check   *lab.DriverCheck `json:"check,omitempty"`
	Error   string           `json:"error,omitempty"`
}

func matrixJSON(tries []lab.KernelTry) (all []kernelJSON) {
	for _, t := range tries {
		k := kernelJSON{Kernel: t.Kernel, Check: t.Check}
		if r := t.Result; r != nil {
			k.Release, k.InitNS, k.ReadyNS, k.TotalNS = r.Release, r.Init, r.Ready, r.Total
		}
		if t.Err != nil {
			k.Error = t.Err.Error()
		}
		all = append(all, k)
	}
	return all
}

type labConformanceCmd struct {
	machineFlags
	RDMACore []string      `name:"rdma-core" default:"bookworm" help:"Suites of Debian whose rdma-core is tested, each in a machine of its own, and on which kernel if it is not --kernel." placeholder:"SUITE[@KERNEL]"`
	Limit    time.Duration `default:"60s" help:"Time that one test may take."`
	Write    string        `placeholder:"FILE" help:"Write the report as Markdown."`
	Files    []string      `arg:"" optional:"" help:"Files of tests: test_device. Default: all."`
}

const labConformanceHelp = `rdma-core's own Python tests, as Debian packages them, run in a guest against the emulated HCA; each file in a process of its
own. A test that hangs or takes its process down has failed, and the rest go on.

Exit codes: 0 every test had an outcome, whatever it was; 1 not, or the guest's kernel reported a bug; 2 wrong command line.
What failed stands in the report.`

// Help is what the command's --help adds.
func (labConformanceCmd) Help() string { return labConformanceHelp }

func (c labConformanceCmd) Run(e *env) error {
	if c.Limit < time.Second {
		return usageError{fmt.Errorf("--limit %v: a second or more", c.Limit)}
	}
	var reports []*lab.Conformance
	var complaints error
	for _, what := range c.RDMACore {
		suite, kernel, _ := strings.Cut(what, "@")
		o := c.options(e)
		o.Image, o.Kernel, o.Timeout = lab.ImageFull+":"+suite, cmp.Or(kernel, c.Kernel, lab.DefaultKernel), cmp.Or(c.Timeout, time.Hour)
		r, err := lab.Conform(e.ctx, o, c.Limit, c.Files...)
		if errors.Is(err, lab.ErrOptions) {
			return usageError{err}
		}
		if r == nil || errors.Is(err, lab.ErrConformance) {
			return err
		}
		reports, complaints = append(reports, r), errors.Join(complaints, err)
	}
	err := complaints
	if c.Write != "" { // also where the guest's kernel complained: that is for whoever reads it to judge
		err = errors.Join(err, atomicfile.Write(c.Write, func(w io.Writer) error { _, err := io.WriteString(w, lab.ConformanceMarkdown(reports...)); return err }))
	}
	if e.asJSON {
		return errors.Join(err, e.json(reports))
	}
	for _, r := range reports {
		if len(reports) > 1 {
			fmt.Fprintf(e.out, "rdma-core %s on Linux %s\n", r.RDMACore, r.Kernel)
		}
		err = errors.Join(err, e.table(conformanceTable(r)))
	}
	return err
}

func conformanceTable(r *lab.Conformance) [][]string {
	rows := [][]string{{"file", lab.TestPassed, lab.TestSkipped, lab.TestFailed, "which failed"}}
	for _, f := range r.Files {
		var which []string
		for _, t := range f.Tests {
			if t.Outcome == lab.TestFailed {
				_, method, _ := strings.Cut(t.Test, ".")
				which = append(which, method)
			}
		}
		rows = append(rows, []string{f.File, fmt.Sprint(f.Count(lab.TestPassed)), fmt.Sprint(f.Count(lab.TestSkipped)), fmt.Sprint(f.Count(lab.TestFailed)), strings.Join(which, ", ")})
	}
	return append(rows, []string{"all", fmt.Sprint(r.Count(lab.TestPassed)), fmt.Sprint(r.Count(lab.TestSkipped)), fmt.Sprint(r.Count(lab.TestFailed)), ""})
}
