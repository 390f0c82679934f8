// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"devxlab.example/bench"
	"devxlab.example/patches"
)

// kernelTree is what a comparison looks for: a source tree, a kernel, its modules.
func kernelTree(t *testing.T) (dir string, write func(path, text string)) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "linux")
	write = func(path, text string) {
		t.Helper()
		file := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("Makefile", "VERSION = 5\nPATCHLEVEL = 15\nSUBLEVEL = 178\n")
	write("drivers/infiniband/hw/mlx5/mlx5_ib.h", "/* */\n")
	for _, d := range []string{"net/ethernet/mellanox/mlx5/core", "net/ethernet/mellanox/mlxfw", "infiniband/core"} {
		write("drivers/"+d+"/Makefile", "\n")
	}
	return dir, write
}

// What is wrong is said before anything is built, booted or made.
func TestPatchesCompareArguments(t *testing.T) {
	t.Setenv("DEVXLAB_KERNEL", "")
	t.Setenv("DEVXLAB_MODULES", "")
	dir, write := kernelTree(t)
	out, built := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "built")
	try := func(want string, status int, args ...string) {
		t.Helper()
		var said, wrong strings.Builder
		args = append([]string{"patches", "compare", "--out", out, "--built", built}, args...)
		if code := run(args, strings.NewReader(""), &said, &wrong); code != status || said.String() != "" || !strings.Contains(wrong.String(), want) {
			t.Errorf("%v: %d, want %d and %q: %s%s", args, code, status, want, said.String(), wrong.String())
		}
	}
	try("--rounds: 1 or more", exitUsage, "--rounds", "0", dir)
	try("--latency -1s: 0 or more", exitUsage, "--latency=-1s", dir)
	try("--smp: 1 or more", exitUsage, "--smp", "0", dir)
	try("--only C9: c2, c6, outbox, c3", exitUsage, "--only", "C2,C9", dir)
	try("not a Linux source tree", exitFailed, t.TempDir())
	try("name the one to boot with --kernel", exitUsage, dir)
	write("vmlinux", "")
	try("name its lib/modules/RELEASE with --modules", exitUsage, dir)
	try("is no lib/modules/RELEASE", exitUsage, "--modules", dir, dir)
	write("../modules/lib/modules/5.15.178-test/modules.builtin", "")
	try("Module.symvers", exitFailed, dir) // found, and not built
	write("Module.symvers", "")
	for _, cost := range []bool{true, false} { // what the document's command needs is recorded
		c := patchesCompareCmd{Linux: dir, Kbuild: dir, Rounds: 3, SMP: 2, KernelCost: cost}
		x, err := c.prepare(&env{ctx: t.Context()})
		if err != nil || x.how.Kbuild != "linux" || x.how.NoKernelCost == cost || x.how.Rounds != 3 || x.how.SMP != 2 {
			t.Errorf("%v, %+v", err, x)
		}
	}
	try("modules of kernel 0001: 0001-", exitFailed, dir) // does not apply
	write("Makefile", "VERSION = 6\nPATCHLEVEL = 1\nSUBLEVEL = 192\n")
	try("--only outbox: no patch for 6.1 is about that", exitUsage, "--only", "outbox", dir)
	write("Makefile", "VERSION = 5\nPATCHLEVEL = 10\nSUBLEVEL = 1\n")
	try("no patches for this version", exitFailed, dir)
	for _, d := range []string{out, filepath.Join(built, "lib")} {
		if _, err := os.Stat(d); err == nil {
			t.Errorf("%s was made", d)
		}
	}
}

func variantsNamed(names ...string) (v []bench.PatchVariant) {
	for _, n := range names {
		v = append(v, bench.PatchVariant{Name: n})
	}
	return v
}

// Every round has every kernel once, and rounds differ in their order.
func TestPatchesCompareRounds(t *testing.T) {
	all := variantsNamed(bench.PatchStock, "0001", "0002", "0003", "0004", bench.PatchAll)
	done := 0
	boots := rounds(t.Context(), all, 20, func(round int, v bench.PatchVariant) bench.PatchBoot {
		return bench.PatchBoot{Round: round, Variant: v.Name}
	}, func(b []bench.PatchBoot) { done = len(b) })
	if len(boots) != 120 || done != 120 {
		t.Fatalf("%d boots, %d done", len(boots), done)
	}
	first, orders := map[string]int{}, map[string]bool{}
	for i := 0; i < len(boots); i += len(all) {
		seen := map[string]bool{}
		var order []string
		for _, b := range boots[i : i+len(all)] {
			if b.Round != i/len(all)+1 {
				t.Errorf("boot %d is of round %d", i, b.Round)
			}
			seen[b.Variant] = true
			order = append(order, b.Variant)
		}
		if len(seen) != len(all) {
			t.Errorf("round %d: %v", i/len(all)+1, order)
		}
		first[order[0]]++
		orders[strings.Join(order, " ")] = true
	}
	if len(orders) < 10 || slices.Max(slices.Collect(maps.Values(first))) > 10 {
		t.Errorf("%d orders; first came %v", len(orders), first)
	}
}

// A boot that fails counts as that, and the next one is made; the one that Ctrl-C
// ends is none.
func TestPatchesCompareInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	boots := rounds(ctx, variantsNamed(bench.PatchStock, "0001"), 5, func(round int, v bench.PatchVariant) bench.PatchBoot {
		b := bench.PatchBoot{Round: round, Variant: v.Name}
		switch n++; n {
		case 2:
			b.Error = "it does not boot"
		case 4:
			cancel()
			b.Error = "context canceled"
		}
		return b
	}, func([]bench.PatchBoot) {})
	if len(boots) != 3 || boots[1].Error == "" || n != 4 {
		t.Errorf("%d boots, %+v", n, boots)
	}
}

// What is built is found again only for the same sources, kernel and patches.
func TestPatchesCompareKey(t *testing.T) {
	dir, write := kernelTree(t)
	write("Module.symvers", "a")
	write("modules/modules.builtin", "b")
	tree, err := patches.OpenTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	all, err := patches.Series(tree.Version)
	if err != nil {
		t.Fatal(err)
	}
	x := &comparison{cmd: &patchesCompareCmd{Modules: filepath.Join(dir, "modules")}, tree: tree, all: all}
	key := func(n ...int) string {
		t.Helper()
		k, err := x.key(n)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	one := key(1)
	if !strings.HasPrefix(one, "5.15.178-1-") || key(1) != one || key(2) == one || !strings.HasPrefix(key(1, 2), "5.15.178-1-2-") {
		t.Errorf("%s %s %s %s", one, key(1), key(2), key(1, 2))
	}
	for _, f := range []string{"Module.symvers", ".config", "include/generated/compile.h", "drivers/infiniband/hw/mlx5/mlx5_ib.h", "modules/modules.builtin", "modules/modules.dep", "modules/kernel/x.ko"} {
		write(f, "other, "+f)
		two := key(1)
		if two == one {
			t.Errorf("another %s, and the same key", f)
		}
		one = two
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "modules/kernel/x.ko"), later, later); err != nil {
		t.Fatal(err)
	}
	if two := key(1); two == one {
		t.Error("a module that was written again, and the same key")
	} else {
		one = two
	}
	write("drivers/infiniband/hw/mlx5/mlx5_ib.o", "what make left")
	if key(1) != one {
		t.Error("what is not compiled is in the key")
	}
	all[0].Files[0].Hunks[0].New = append(slices.Clone(all[0].Files[0].Hunks[0].New), "more")
	if two := key(1); two == one || key(2) == two {
		t.Error("another patch, and the same key")
	}
}

// What has ended early has no verdict; boots that failed end the command with an
// error that names their kernels, after all is written.
func TestPatchesCompareFinish(t *testing.T) {
	var out, wrong bytes.Buffer
	cmd := &patchesCompareCmd{Linux: "linux", Kernel: "vmlinux", Rounds: 1, Latency: time.Millisecond, SMP: 1, KernelCost: true}
	x := &comparison{cmd: cmd, e: &env{ctx: t.Context(), out: &out, err: &wrong}, dir: t.TempDir()}
	x.how = bench.PatchRounds{Rounds: 1, Variants: variantsNamed(bench.PatchStock, "0001")}
	measured := &bench.Result{Provenance: bench.Provenance{Place: bench.PlaceLab, Kernel: "5.15.1"}, Series: []bench.Series{{Name: "c2/off/call", Samples: bench.Samples{1, 2, 3}}}}
	boots := []bench.PatchBoot{{Round: 1, Variant: bench.PatchStock, Result: measured}, {Round: 1, Variant: "0001", Error: "trouble\n  WARNING: at x.c"}}
	x.progress(boots)
	if s := wrong.String(); !strings.Contains(s, "boot 2 of 2, round 1, kernel 0001: FAILED, and does not count: trouble\n  WARNING: at x.c") {
		t.Error(s)
	}
	if r := x.result(boots[:1]); !r.Interrupted || r.Verdicts != nil {
		t.Errorf("%+v", r)
	}
	r := x.result(boots)
	if r.Interrupted || r.Command != "devxlab patches compare linux --kernel vmlinux --rounds 1 --latency 1ms --smp 1" {
		t.Errorf("%v, %s", r.Interrupted, r.Command)
	}
	for _, c := range []struct {
		cmd        patchesCompareCmd
		name, want string
	}{
		{patchesCompareCmd{Kbuild: "a/linux-headers/", KernelCost: true}, "linux-headers", "devxlab patches compare linux --kbuild a/linux-headers/ --rounds 0 --latency 0s --smp 0"},
		{patchesCompareCmd{Only: []string{"C2"}}, "", "devxlab patches compare linux --only C2 --rounds 0 --latency 0s --smp 0 --no-kernel-cost"},
	} {
		c.cmd.Linux = "linux"
		if name, again := c.cmd.kbuildName(), c.cmd.again(); name != c.name || again != c.want {
			t.Errorf("%q, %s, want %q, %s", name, again, c.name, c.want)
		}
	}
	cmd.Write = filepath.Join(x.dir, "doc.md")
	if err := x.finish(r); err == nil || !strings.Contains(err.Error(), "1 of 2 boots failed and do not count, of 0001") {
		t.Error(err)
	}
	for file, want := range map[string]string{"doc.md": "## Linux 5.15", reportName: "Patch"} {
		b, err := os.ReadFile(filepath.Join(x.dir, file))
		if err != nil || !strings.Contains(string(b), want) && file == "doc.md" {
			t.Errorf("%s: %v\n%s", file, err, b)
		}
	}
	if !strings.Contains(out.String(), "Round 1, 0001: the boot does not count: trouble") {
		t.Error(out.String())
	}
}

// A guest is told which way begins, every second round the other one, and follows
// commands in the first rounds only.
func TestPatchesCompareMeasureArgs(t *testing.T) {
	v := bench.PatchVariant{Name: "0002", Parts: []string{"c2", "c3"}}
	const plain = "devxlab patches measure --part c2,c3"
	for _, c := range []struct {
		round int
		cost  bool
		want  string
	}{{1, true, plain + " --on-first"}, {2, true, plain}, {5, true, plain + " --on-first"}, {6, true, plain + " --no-kernel-cost"}, {7, true, plain + " --on-first --no-kernel-cost"}, {2, false, plain + " --no-kernel-cost"}} {
		if got := strings.Join(measureArgs(c.round, v, c.cost), " "); got != c.want {
			t.Errorf("round %d: %s, want %s", c.round, got, c.want)
		}
	}
}

// The part of a guest refuses what is no kernel's.
func TestPatchesMeasureArguments(t *testing.T) {
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"--part c9", exitUsage, `no part "c9": c2, c6, outbox, c3`},
		{"--address 192.0.2.300", exitUsage, "192.0.2.300"},
		{"--device emu:", exitUsage, "needs a device of the kernel's"},
		{"--device emu: --no-kernel-cost --on-first", exitFailed, "is about the kernel's driver"},
	} {
		var wrong strings.Builder
		args := append([]string{"patches", "measure"}, strings.Fields(c.args)...)
		if code := run(args, strings.NewReader(""), io.Discard, &wrong); code != c.status || !strings.Contains(wrong.String(), c.want) {
			t.Errorf("%s: %d, %s", c.args, code, wrong.String())
		}
	}
}
