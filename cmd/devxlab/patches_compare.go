// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"devxlab.example/bench"
	"devxlab.example/internal/atomicfile"
	"devxlab.example/lab"
	"devxlab.example/patches"
)

type patchesCompareCmd struct {
	Linux      string        `arg:"" help:"Source tree of a kernel."`
	Kbuild     string        `help:"Where it was configured and built, or the headers package of a packaged kernel; default: the tree." placeholder:"DIR"`
	Kernel     string        `env:"DEVXLAB_KERNEL" help:"The kernel to boot; default: vmlinux of the tree." placeholder:"FILE"`
	Modules    string        `env:"DEVXLAB_MODULES" help:"Its lib/modules/RELEASE; default: the one in the directory modules beside the tree." placeholder:"DIR"`
	Rounds     int           `default:"20" help:"How often each kernel is booted. Fewer than 20 decide nothing."`
	Only       []string      `help:"Only what is about these: C2, C3, C6, outbox (patches 1 to 4)." placeholder:"CLAIM,…"`
	Latency    time.Duration `default:"100us" help:"What each command of the emulated device takes."`
	SMP        int           `name:"smp" default:"1" help:"Virtual CPUs."`
	KernelCost bool          `default:"true" negatable:"" help:"Also follow RTR2RTS_QP through the kernel in the first five rounds, after what is timed."`
	Built      string        `default:"results/compare-modules" help:"Directory that keeps what is built: a later run takes it from there." placeholder:"DIR"`
	Out        string        `default:"results" help:"Directory for the results; each run gets one of its own below it." placeholder:"DIR"`
	Write      string        `help:"Also put the section of this kernel into a document of all kernels, unless the run is interrupted." placeholder:"FILE"`
}

const patchesCompareHelp = `Each round boots the stock kernel, one with each patch alone and one with all of them, in another order each time, in the lab.
A round takes as many times 10 to 45 s as there are kernels, on a machine that does nothing else: 20 rounds take about 40 minutes.
What is built is kept in --built. Ctrl-C keeps the boots that are complete; a boot that fails does not count, and the others go on.`

// Help is what the command's --help adds.
func (patchesCompareCmd) Help() string { return patchesCompareHelp }

// bootTimeout is the limit for one boot: a storm of stale connections waits up to a
// minute and a half.
const bootTimeout = 10 * time.Minute

// costRounds is in how many rounds commands are followed through the kernel: to attach
// takes a guest longer than all else that it measures.
const costRounds = 5

// comparison is a run of patchesCompareCmd.
type comparison struct {
	cmd   *patchesCompareCmd
	e     *env
	tree  *patches.Tree
	all   []patches.Patch
	parts []string
	how   bench.PatchRounds
	dir   string // of the results
}

func (c *patchesCompareCmd) Run(e *env) error {
	x, err := c.prepare(e)
	if err != nil {
		return err
	}
	modules, err := x.build()
	if err != nil {
		return err
	}
	if x.dir, err = runDir(c.Out, time.Now()); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(x.dir, "boots"), 0o755); err != nil {
		return err
	}
	var last *bench.Result
	boots := rounds(e.ctx, x.how.Variants, c.Rounds, func(round int, v bench.PatchVariant) bench.PatchBoot {
		return x.boot(round, v, modules[v.Name])
	}, func(boots []bench.PatchBoot) {
		x.progress(boots)
		last = x.result(boots)
		err = errors.Join(err, last.WriteFiles(x.dir))
	})
	if len(boots) == 0 {
		return errors.Join(err, e.ctx.Err())
	}
	return errors.Join(err, x.finish(last))
}

// prepare checks what the command line says, before minutes are spent.
func (c *patchesCompareCmd) prepare(e *env) (*comparison, error) {
	x := &comparison{cmd: c, e: e}
	switch {
	case c.Rounds < 1:
		return nil, usageError{errors.New("--rounds: 1 or more")}
	case c.Latency < 0:
		return nil, usageError{fmt.Errorf("--latency %v: 0 or more", c.Latency)}
	case c.SMP < 1:
		return nil, usageError{errors.New("--smp: 1 or more")}
	}
	for _, o := range c.Only {
		part := strings.ToLower(o)
		if !slices.Contains(bench.PatchedParts(), part) {
			return nil, usageError{fmt.Errorf("--only %s: %s", o, strings.Join(bench.PatchedParts(), ", "))}
		}
		x.parts = append(x.parts, part)
	}
	var err error
	if x.tree, err = patches.OpenTree(c.Linux); err != nil {
		return nil, err
	}
	if x.all, err = patches.Series(x.tree.Version); err != nil {
		return nil, fmt.Errorf("%s is Linux %s: %w", x.tree.Dir, x.tree.Full, err)
	}
	if err := c.find(x.tree.Dir); err != nil {
		return nil, usageError{err}
	}
	var names []string
	for i := range x.all {
		names = append(names, x.all[i].Name)
	}
	x.how = bench.PatchRounds{Rounds: c.Rounds, Tree: x.tree.Full, Kbuild: c.kbuildName(), Latency: c.Latency, SMP: c.SMP, NoKernelCost: !c.KernelCost, Variants: bench.PatchVariants(names, func(name string) int {
		return x.all[slices.Index(names, name)].Number()
	}, x.parts)}
	if len(x.how.Variants) == 1 {
		return nil, usageError{fmt.Errorf("--only %s: no patch for %s is about that", strings.Join(c.Only, ","), x.tree.Version)}
	}
	return x, nil
}

// builtinName is a file that every lib/modules/RELEASE has, also one that depmod has not
// seen.
const builtinName = "modules.builtin"

// find fills in where kernel and modules are, if nobody has said it.
func (c *patchesCompareCmd) find(tree string) error {
	if c.Kernel == "" {
		c.Kernel = filepath.Join(tree, "vmlinux")
	}
	if fi, err := os.Stat(c.Kernel); err != nil || !fi.Mode().IsRegular() {
		return fmt.Errorf("no kernel %s: name the one to boot with --kernel, the vmlinux of the tree or a package's vmlinuz", c.Kernel)
	}
	if c.Modules == "" {
		found, _ := filepath.Glob(filepath.Join(tree, "../modules/lib/modules/*"))
		if len(found) != 1 {
			return fmt.Errorf("no modules of the kernel, or several, in %s: name its lib/modules/RELEASE with --modules", filepath.Join(tree, "../modules/lib/modules"))
		}
		c.Modules = found[0]
	}
	if _, err := os.Stat(filepath.Join(c.Modules, builtinName)); err != nil {
		return fmt.Errorf("--modules %s is no lib/modules/RELEASE: %w", c.Modules, err)
	}
	return nil
}

// build builds the modules of each kernel that are not there yet, and returns the
// directories of all of them by the kernel's name.
func (x *comparison) build() (map[string]string, error) {
	out := map[string]string{bench.PatchStock: x.cmd.Modules}
	for _, v := range x.how.Variants {
		if v.Name == bench.PatchStock {
			continue
		}
		var numbers []int
		for i := range x.all {
			if slices.Contains(v.Patches, x.all[i].Name) {
				numbers = append(numbers, x.all[i].Number())
			}
		}
		dir, err := x.buildOne(numbers)
		if err != nil {
			return nil, fmt.Errorf("modules of kernel %s: %w", v.Name, err)
		}
		out[v.Name] = dir
	}
	return out, nil
}

// doneName is the file that is there when a directory of modules is whole.
const doneName = "whole"

func (x *comparison) buildOne(numbers []int) (string, error) {
	key, err := x.key(numbers)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(x.cmd.Built, key)
	modules := filepath.Join(dir, "lib/modules", filepath.Base(filepath.Clean(x.cmd.Modules)))
	if _, err := os.Stat(filepath.Join(dir, doneName)); err == nil {
		return modules, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	fmt.Fprintf(x.e.err, "devxlab: building the modules of patches %v in %s\n", numbers, dir)
	var said bytes.Buffer
	_, err = patches.Build(x.e.ctx, x.tree, patches.BuildOptions{
		Numbers: numbers, Kbuild: x.cmd.Kbuild, Out: dir, Modules: x.cmd.Modules, Log: &said, Jobs: runtime.NumCPU(), Cache: x.cmd.Built,
	})
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, tailOf(said.String()))
	}
	return modules, os.WriteFile(filepath.Join(dir, doneName), nil, 0o666)
}

// tailOf is the end of what a compiler says.
func tailOf(s string) string {
	const most = 4096
	return s[max(0, len(s)-most):]
}

// key names a set of modules by what they are made from: the patches, all that
// patches.WriteInputs says, and the kernel's own modules beside which they stand.
func (x *comparison) key(numbers []int) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, filepath.Base(x.cmd.Modules))
	var name strings.Builder
	name.WriteString(x.tree.Full)
	for i := range x.all {
		if p := &x.all[i]; slices.Contains(numbers, p.Number()) {
			fmt.Fprintf(h, "%+v\n", *p)
			fmt.Fprintf(&name, "-%d", p.Number())
		}
	}
	if err := patches.WriteInputs(h, x.tree, x.cmd.Kbuild); err != nil {
		return "", fmt.Errorf("%w: build the kernel first, or name a headers package with --kbuild", err)
	}
	if err := writeModules(h, x.cmd.Modules); err != nil {
		return "", err
	}
	const digits = 10
	return name.String() + "-" + hex.EncodeToString(h.Sum(nil))[:digits], nil
}

// writeModules writes what a tree of modules holds, to be hashed: its lists in full, of
// each file path, size and time of change.
func writeModules(w io.Writer, dir string) error {
	dir, err := filepath.EvalSymlinks(dir) // a walk does not follow the one that it begins at
	if err != nil {
		return err
	}
	for _, name := range []string{builtinName, "modules.dep"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && (name == builtinName || !errors.Is(err, fs.ErrNotExist)) {
			return err
		}
		fmt.Fprintf(w, "%s %d\n%s", name, len(b), b)
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() { // build and source lead out of it
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		fmt.Fprintf(w, "%s %d %d\n", rel, fi.Size(), fi.ModTime().UnixNano())
		return err
	})
}

// rounds boots all kernels in each round, in another order each time, and calls done
// after each boot with all of them so far. The one that ctx ends does not count.
func rounds(ctx context.Context, variants []bench.PatchVariant, n int, boot func(round int, v bench.PatchVariant) bench.PatchBoot, done func([]bench.PatchBoot)) (boots []bench.PatchBoot) {
	for round := 1; round <= n; round++ {
		for _, i := range rand.New(rand.NewPCG(1, uint64(round))).Perm(len(variants)) {
			if ctx.Err() != nil {
				return boots
			}
			b := boot(round, variants[i])
			if ctx.Err() != nil && b.Error != "" {
				return boots
			}
			boots = append(boots, b)
			done(boots)
		}
	}
	return boots
}

// boot boots one kernel and has it measured.
func (x *comparison) boot(round int, v bench.PatchVariant, modules string) bench.PatchBoot {
	b := bench.PatchBoot{Round: round, Variant: v.Name}
	start := time.Now()
	self, err := os.Executable()
	if err != nil {
		b.Error = err.Error()
		return b
	}
	var out, said bytes.Buffer
	r, err := lab.Run(x.e.ctx, lab.Options{
		Args: measureArgs(round, v, x.cmd.KernelCost), Stdout: &out, Stderr: &said, Progress: x.e.err, Kernel: x.cmd.Kernel, Modules: modules, Timeout: bootTimeout,
		Devices: 1, HCA: []string{self, "emu", "--latency", x.cmd.Latency.String()}, SMP: x.cmd.SMP,
	})
	b.Took = time.Since(start)
	if r != nil {
		x.how.QEMU, x.how.KVM = r.QEMU, r.KVM
	}
	switch {
	case err != nil:
		b.Error = strings.TrimSpace(err.Error() + "\n" + said.String())
	case r.Status != 0:
		b.Error = fmt.Sprintf("exit status %d: %s", r.Status, strings.TrimSpace(said.String()))
	default:
		file := filepath.Join(x.dir, "boots", fmt.Sprintf("%02d-%s.json", round, v.Name))
		err := atomicfile.Write(file, func(w io.Writer) error { _, err := w.Write(out.Bytes()); return err })
		if err == nil {
			b.Result, err = bench.Load(file)
		}
		if err != nil {
			b.Error = err.Error()
		}
	}
	return b
}

// measureArgs is what a guest runs. On and off take turns in who begins, from round to
// round.
func measureArgs(round int, v bench.PatchVariant, kernelCost bool) []string {
	args := []string{"devxlab", "patches", "measure", "--part", strings.Join(v.Parts, ",")}
	if round%2 == 1 {
		args = append(args, "--on-first")
	}
	if !kernelCost || round > costRounds {
		args = append(args, "--no-kernel-cost")
	}
	return args
}

// progress says what the last boot did.
func (x *comparison) progress(boots []bench.PatchBoot) {
	b := boots[len(boots)-1]
	what := "measured"
	if b.Error != "" {
		what = "FAILED, and does not count: " + b.Error
	}
	left := time.Duration(0)
	for _, b := range boots {
		left += b.Took
	}
	all := x.cmd.Rounds * len(x.how.Variants)
	left = left / time.Duration(len(boots)) * time.Duration(all-len(boots))
	fmt.Fprintf(x.e.err, "devxlab: boot %d of %d, round %d, kernel %s: %s in %v; about %v left\n", len(boots), all, b.Round, b.Variant, what, b.Took.Round(100*time.Millisecond), left.Round(time.Second))
}

// result is what the boots say so far.
func (x *comparison) result(boots []bench.PatchBoot) *bench.Result {
	r := bench.ComparePatches(x.how, boots)
	r.Command = x.cmd.again()
	if len(boots) < x.cmd.Rounds*len(x.how.Variants) {
		r.Interrupted, r.Verdicts = true, nil // as long as it goes on
	}
	return r
}

// again is the command line that makes the comparison again.
func (c *patchesCompareCmd) again() string {
	words := []string{"devxlab", "patches", "compare", quote(c.Linux)}
	for _, f := range []struct{ name, value string }{{"--kbuild", c.Kbuild}, {"--kernel", c.Kernel}, {"--modules", c.Modules}, {"--only", strings.Join(c.Only, ",")}} {
		if f.value != "" {
			words = append(words, f.name, quote(f.value))
		}
	}
	words = append(words, "--rounds", fmt.Sprint(c.Rounds), "--latency", c.Latency.String(), "--smp", fmt.Sprint(c.SMP))
	if !c.KernelCost {
		words = append(words, "--no-kernel-cost")
	}
	return strings.Join(words, " ")
}

// kbuildName is the name of --kbuild, without where it is on this machine.
func (c *patchesCompareCmd) kbuildName() string {
	if c.Kbuild == "" {
		return ""
	}
	return filepath.Base(filepath.Clean(c.Kbuild))
}

// finish prints and writes what the comparison says.
func (x *comparison) finish(r *bench.Result) error {
	report, err := benchReport(x.dir, []*bench.Result{r})
	if x.cmd.Write != "" && !r.Interrupted {
		err = errors.Join(err, writeDoc(x.cmd.Write, r))
	}
	if x.e.asJSON {
		err = errors.Join(err, x.e.json(r))
	} else {
		out := &plain{x.e.out}
		err = errors.Join(err, r.WriteText(out), bench.WriteVerdicts(out, []*bench.Result{r}))
		fmt.Fprintf(out, "\nresults: %s\nreport, for a browser: %s\n", x.dir, report)
	}
	if n := len(r.Patches.Failed()); n > 0 {
		failed := map[string]bool{}
		for _, b := range r.Patches.Failed() {
			failed[b.Variant] = true
		}
		err = errors.Join(err, fmt.Errorf("%d of %d boots failed and do not count, of %s: why is above, and in %s", n, len(r.Patches.Boots),
			strings.Join(slices.Sorted(maps.Keys(failed)), ", "), filepath.Join(x.dir, bench.PatchesName+".json")))
	}
	return err
}

// writeDoc puts the section of a kernel into a document.
func writeDoc(file string, r *bench.Result) error {
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := bench.PatchesDoc(old, r)
	if err != nil {
		return fmt.Errorf("%s is not written: %w", file, err)
	}
	return atomicfile.Write(file, func(w io.Writer) error { _, err := w.Write(text); return err })
}
