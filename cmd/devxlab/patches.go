// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"devxlab.example/lab"
	"devxlab.example/patches"
)

type patchesCmd struct {
	Check   patchesCheckCmd   `cmd:"" help:"Say whether the patches apply to a kernel's source, in order and in reverse. Nothing is changed."`
	Build   patchesBuildCmd   `cmd:"" help:"Build the modules that the patches change, from copies of their directories. The tree is not changed."`
	Compare patchesCompareCmd `cmd:"" help:"Boot the stock kernel, and one with each patch and with all, in turn in the lab, and compare what they measure."`
	Lint    patchesLintCmd    `cmd:"" help:"Compile the sources that the patches change with and without them, at W=1 and with sparse: do they add a warning? The tree is not changed."`

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
	Linux    string   `arg:"" optional:"" help:"Source tree of a kernel."`
	Packaged bool     `help:"Build from Debian's packages linux-source-6.1 and linux-headers-…, of one version, and also put the kernel that the modules fit into --out: vmlinux, lib/modules/RELEASE with the patched modules, and stock, its own."`
	Kbuild   string   `help:"Where it was configured and built, or the headers package of a packaged kernel; default: the tree." placeholder:"DIR"`
	Out      string   `required:"" help:"Directory that gets the modules." placeholder:"DIR"`
	Modules  string   `help:"lib/modules/RELEASE of the kernel: also copied to --out, with the patched modules in it, as lab run --modules takes it." placeholder:"DIR"`
	Patch    []int    `help:"Only the patches with these numbers, such as 3,4." placeholder:"N,…"`
	Also     []string `sep:"none" help:"A further diff, applied after the patches; may be repeated." placeholder:"FILE"`
	DryRun   bool     `help:"Only says what it would be built from, or what is missing."`
}

func (c *patchesBuildCmd) Run(e *env) error {
	if (c.Linux == "") != c.Packaged {
		return usageError{errors.New("patches build: either the source tree of a kernel, or --packaged")}
	}
	o := patches.BuildOptions{Numbers: c.Patch, Also: c.Also, Kbuild: c.Kbuild, Out: c.Out, Modules: c.Modules, Log: e.err, Jobs: runtime.NumCPU()}
	if c.Packaged {
		return c.packaged(e, o)
	}
	t, err := patches.OpenTree(c.Linux)
	if err != nil {
		return err
	}
	if c.DryRun {
		fmt.Fprintf(e.err, "devxlab: the patches would be built from %s, Linux %s\n", c.Linux, t.Full)
		return nil
	}
	return buildPatches(e, t, o)
}

type patchesLintCmd struct {
	Linux  string `arg:"" help:"Source tree of a kernel."`
	Kbuild string `help:"As for build." placeholder:"DIR"`
}

func (c *patchesLintCmd) Run(e *env) error {
	t, err := patches.OpenTree(c.Linux)
	if err != nil {
		return err
	}
	had, err := patches.Lint(e.ctx, t, patches.BuildOptions{Kbuild: c.Kbuild, Log: e.err, Jobs: runtime.NumCPU()})
	if err != nil {
		return err
	}
	fmt.Fprintf(e.out, "Linux %s: gcc (W=1) and sparse have %d warnings about the files that the patches change, and the patches add none\n", t.Full, had)
	return nil
}

func buildPatches(e *env, t *patches.Tree, o patches.BuildOptions) error {
	made, err := patches.Build(e.ctx, t, o)
	for _, m := range made {
		fmt.Fprintln(e.out, m)
	}
	return err
}

// packaged builds from packages alone, and brings the kernel that belongs to them.
func (c *patchesBuildCmd) packaged(e *env, o patches.BuildOptions) error {
	if c.Kbuild != "" || c.Modules != "" {
		return usageError{errors.New("patches build --packaged: it finds headers and modules itself")}
	}
	p, err := patches.FindPackages(e.ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.err, "devxlab: the patches are built from the packages of %s, for Linux %s\n", p.Version, p.Release)
	if c.DryRun {
		return nil
	}
	_, k, err := lab.Fetch(e.ctx, lab.Options{Kernel: p.Release, Progress: e.err})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "devxlab-source-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t, err := p.Unpack(e.ctx, dir)
	if err != nil {
		return err
	}
	o.Kbuild, o.Modules, o.Release = p.Headers, k.Modules, k.Release
	if err := buildPatches(e, t, o); err != nil {
		return err
	}
	for name, target := range map[string]string{"vmlinux": k.Image, "stock": k.Modules} {
		link := filepath.Join(c.Out, name)
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(target, link); err != nil {
			return err
		}
	}
	fmt.Fprintln(e.out, filepath.Join(c.Out, "vmlinux"))
	return nil
}
