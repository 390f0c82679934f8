// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"runtime"

	"devxlab.example/patches"
)

type patchesCmd struct {
	Check   patchesCheckCmd   `cmd:"" help:"Say whether the patches apply to a kernel's source, in order and in reverse. Nothing is changed."`
	Build   patchesBuildCmd   `cmd:"" help:"Build the modules that the patches change, from copies of their directories. The tree is not changed."`
	Compare patchesCompareCmd `cmd:"" help:"Boot the stock kernel, and one with each patch and with all, in turn in the lab, and compare what they measure."`

	Measure patchesMeasureCmd `cmd:"" hidden:"" help:"In a guest: measure what this kernel's patches change, off and on."`
}

type patchesCheckCmd struct {
	Linux string `arg:"" help:"Source tree of a kernel."`
}

func (c *patchesCheckCmd) Run(e *env) error {
	t, err := patches.OpenTree(c.Linux)
	if err != nil {
		return err
	}
	all, err := patches.Series(t.Version)
	if err != nil {
		return fmt.Errorf("%s is Linux %s: %w", t.Dir, t.Full, err)
	}
	for i := range all { // each alone
		if _, err := t.Apply(all[i : i+1]); err != nil {
			return err
		}
	}
	if _, err := t.Apply(all); err != nil {
		return err
	}
	for _, p := range all {
		fmt.Fprintf(e.out, "%04d %s\n", p.Number(), p.Subject)
	}
	fmt.Fprintf(e.out, "%d patches apply to Linux %s without fuzz, each alone and in order, and can be undone; nothing was changed\n", len(all), t.Full)
	return nil
}

type patchesBuildCmd struct {
	Linux   string `arg:"" help:"Source tree of a kernel."`
	Kbuild  string `help:"Where it was configured and built, or the headers package of a packaged kernel; default: the tree." placeholder:"DIR"`
	Out     string `required:"" help:"Directory that gets the modules." placeholder:"DIR"`
	Modules string `help:"lib/modules/RELEASE of the kernel: also copied to --out, with the patched modules in it, as lab run --modules takes it." placeholder:"DIR"`
	Patch   []int  `help:"Only the patches with these numbers, such as 3,4." placeholder:"N,…"`
}

func (c *patchesBuildCmd) Run(e *env) error {
	t, err := patches.OpenTree(c.Linux)
	if err != nil {
		return err
	}
	made, err := patches.Build(e.ctx, t, patches.BuildOptions{
		Numbers: c.Patch, Kbuild: c.Kbuild, Out: c.Out, Modules: c.Modules, Log: e.err, Jobs: runtime.NumCPU(),
	})
	for _, m := range made {
		fmt.Fprintln(e.out, m)
	}
	return err
}
