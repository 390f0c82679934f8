// SPDX-License-Identifier: BSD-2-Clause

package patches

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fixture writes a tree that has what the patches of a version expect, and
// nothing else of a kernel: each file is the old sides of its hunks, with lines of
// the test's own between them.
func fixture(t *testing.T, version string) string {
	t.Helper()
	all, err := Series(version)
	if err != nil {
		t.Fatal(err)
	}
	hunks := map[string][]Hunk{}
	for _, p := range all {
		for _, f := range p.Files {
			hunks[f.Path] = append(hunks[f.Path], f.Hunks...)
		}
	}
	dir := t.TempDir()
	major, minor, _ := strings.Cut(version, ".")
	put(t, dir, "Makefile", "# SPDX\nVERSION = "+major+"\nPATCHLEVEL = "+minor+"\nSUBLEVEL = 999\nEXTRAVERSION =\n")
	for path, list := range hunks {
		slices.SortStableFunc(list, func(a, b Hunk) int { return a.Line - b.Line })
		var lines []string
		for _, h := range list {
			for len(lines) < h.Line-1 {
				lines = append(lines, "/* here the kernel has something else */")
			}
			// Hunks of two patches may share a line of context.
			lines = append(lines, h.Old[max(0, len(lines)-(h.Line-1)):]...)
		}
		put(t, dir, path, strings.Join(lines, "\n")+"\n")
	}
	return dir
}

func put(t *testing.T, dir, path, text string) {
	t.Helper()
	to := filepath.Join(dir, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o777), os.WriteFile(to, []byte(text), 0o666)); err != nil {
		t.Fatal(err)
	}
}

// contents returns what is in a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.Walk(dir, func(path string, i os.FileInfo, err error) error {
		if err != nil || i.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		m[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func openTree(t *testing.T, dir string) (*Tree, []Patch) {
	t.Helper()
	tree, err := OpenTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	all, err := Series(tree.Version)
	if err != nil {
		t.Fatal(err)
	}
	return tree, all
}

func TestSeries(t *testing.T) {
	if got := Versions(); !slices.Equal(got, []string{"5.15", "6.1"}) {
		t.Fatal(got)
	}
	for _, v := range Versions() {
		all, err := Series(v)
		if err != nil {
			t.Fatal(v, err)
		}
		for i, p := range all {
			if p.Number() != i+1 || p.Subject == "" || strings.HasPrefix(p.Subject, "[") {
				t.Errorf("%s %s: number %d, %q", v, p.Name, p.Number(), p.Subject)
			}
		}
	}
	if _, err := Series("5.10"); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "5.15, 6.1") {
		t.Error(err)
	}
}

// Each description says what, at what risk and how it was measured; and the diff
// has no more of the kernel than a line of context around each change.
func TestDescriptions(t *testing.T) {
	for _, v := range Versions() {
		names, _ := filepath.Glob(filepath.Join(v, "*.patch"))
		if len(names) == 0 {
			t.Fatal("no patches")
		}
		for _, n := range names {
			b, err := os.ReadFile(n)
			if err != nil {
				t.Fatal(err)
			}
			head, diff, _ := strings.Cut(string(b), "\n---\n")
			for _, want := range []string{"\nRisk: ", "\nHow it was measured: ", "\nSigned-off-by: "} {
				if !strings.Contains(head, want) {
					t.Errorf("%s: no %q", n, want)
				}
			}
			if m := regexp.MustCompile(`(?m)^ .*\n .*\n .*\n `).FindString(diff[strings.Index(diff, "@@"):]); m != "" {
				t.Errorf("%s: more context than is needed:\n%s", n, m)
			}
		}
	}
}

func TestApply(t *testing.T) {
	for _, v := range Versions() {
		dir := fixture(t, v)
		before := contents(t, dir)
		tree, all := openTree(t, dir)
		if tree.Full != v+".999" {
			t.Error(tree.Full)
		}
		for i := range all {
			if _, err := tree.Apply(all[i : i+1]); err != nil {
				t.Errorf("%s, alone: %v", v, err)
			}
		}
		changed, err := tree.Apply(all)
		if err != nil {
			t.Fatalf("%s: %v", v, err)
		}
		for path, b := range changed {
			for _, p := range all {
				for _, f := range p.Files {
					for _, h := range f.Hunks {
						if f.Path == path && !strings.Contains(string(b), strings.Join(h.New, "\n")) {
							t.Errorf("%s: %s lacks hunk %s of %s", v, path, h.Header, p.Name)
						}
					}
				}
			}
		}
		if !maps.Equal(before, contents(t, dir)) {
			t.Errorf("%s: the tree was changed", v)
		}
	}
}

// A tree that has moved lines is patched all the same, one that has changed them
// is not: the error names hunk and what is there.
func TestApplyMovedAndChanged(t *testing.T) {
	dir := fixture(t, "5.15")
	tree, all := openTree(t, dir)
	file := all[0].Files[0]
	path := filepath.Join(dir, file.Path)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, file.Path, strings.Repeat("/* more */\n", 17)+string(b))
	if _, err := tree.Apply(all); err != nil {
		t.Fatalf("17 lines further down: %v", err)
	}
	old := file.Hunks[1].Old
	changed := strings.Replace(string(b), strings.Join(old, "\n"), old[0]+"\nsomething_else();\n"+strings.Join(old[1:], "\n"), 1)
	put(t, dir, file.Path, changed)
	_, err = tree.Apply(all)
	var h *HunkError
	if !errors.As(err, &h) || h.Patch != all[0].Name || h.File != file.Path || h.Hunk.Header != file.Hunks[1].Header || h.Applied ||
		!slices.Contains(h.Have, "something_else();") || h.At == 0 {
		t.Fatalf("%+v", err)
	}
	for _, want := range []string{all[0].Name, file.Path, file.Hunks[1].Header, "wanted:", "the tree has, from line", "something_else();"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Apply(all); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
}

func TestApplyTwice(t *testing.T) {
	for _, v := range Versions() {
		dir := fixture(t, v)
		tree, all := openTree(t, dir)
		changed, err := tree.Apply(all)
		if err != nil {
			t.Fatal(err)
		}
		for path, b := range changed {
			put(t, dir, path, string(b))
		}
		_, err = tree.Apply(all)
		var h *HunkError
		if !errors.As(err, &h) || !h.Applied || h.Patch != all[0].Name || !strings.Contains(err.Error(), "already") {
			t.Errorf("%s: %v", v, err)
		}
	}
}

func TestWrongTrees(t *testing.T) {
	if _, err := OpenTree(t.TempDir()); !errors.Is(err, ErrNotALinuxTree) {
		t.Error(err)
	}
	dir := t.TempDir()
	put(t, dir, "Makefile", "all:\n\techo hello\n")
	if _, err := OpenTree(dir); !errors.Is(err, ErrNotALinuxTree) {
		t.Error(err)
	}
	for _, v := range []string{"5.10", "6.12"} {
		dir := fixture(t, "5.15")
		major, minor, _ := strings.Cut(v, ".")
		put(t, dir, "Makefile", "VERSION = "+major+"\nPATCHLEVEL = "+minor+"\nSUBLEVEL = 1\n")
		tree, err := OpenTree(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Series(tree.Version); !errors.Is(err, ErrVersion) {
			t.Error(err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"0001-x.txt":    "Subject: x\n+++ b/a\n@@ -1 +1 @@\n-a\n+b\n",
		"0002-x.patch":  "+++ b/a\n@@ -1 +1 @@\n-a\n+b\n",
		"0003-x.patch":  "Subject: x\n",
		"0004-x.patch":  "Subject: x\n@@ -1 +1 @@\n-a\n+b\n",
		"0005-x.patch":  "Subject: x\n+++ b/a\n@@ nonsense\n-a\n+b\n",
		"nothing.patch": "Subject: x\n+++ b/a\n@@ -1 +1 @@\n-a\n+b\n",
	} {
		if p, err := parsePatch(name, text); err == nil {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// A build without what it needs fails before it copies or runs anything.
func TestBuildRefuses(t *testing.T) {
	dir := fixture(t, "5.15")
	tree, _ := openTree(t, dir)
	out := filepath.Join(t.TempDir(), "out")
	for want, o := range map[string]BuildOptions{
		"was not built": {},
		"named twice":   {Numbers: []int{3, 9}},
		"no-such.diff":  {Also: []string{"no-such.diff"}},
		"no subject":    {Also: []string{"patches.go"}},
	} {
		o.Out = out
		if _, err := Build(t.Context(), tree, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("it has made something")
	}
}

// A module is found again only if all that it is compiled from is the same.
func TestKept(t *testing.T) {
	const core, cm, beside = "drivers/net/ethernet/mellanox/mlx5/core/cmd.c", "drivers/infiniband/core/cm.c", "drivers/net/ethernet/mellanox/mlxfw/mlxfw.h"
	dir := t.TempDir()
	for _, m := range modules {
		for _, d := range m.dirs() {
			put(t, dir, d+"/Makefile", "obj-m := x.o\n")
		}
	}
	files := []string{core, beside, "Module.symvers", ".config", "include/config/auto.conf", "include/generated/compile.h"}
	for _, f := range append([]string{cm}, files...) {
		put(t, dir, f, "one")
	}
	tree := &Tree{Dir: dir, Version: "5.15", Full: "5.15.178"}
	o := BuildOptions{Kbuild: dir, Cache: "built"}
	changed := map[string][]byte{core: []byte("patched")}
	key := func() string {
		t.Helper()
		k, err := o.kept(tree, modules[0], changed)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	all := func() string {
		t.Helper()
		var b strings.Builder
		if err := WriteInputs(&b, tree, ""); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	one, inputs := key(), all()
	if !strings.HasPrefix(one, "built/mlx5_core-5.15.178-") || key() != one {
		t.Errorf("%s, %s", one, key())
	}
	for _, f := range files {
		put(t, dir, f, "two")
		if key() == one || all() == inputs {
			t.Errorf("another %s, and the same key", f)
		}
		put(t, dir, f, "one")
	}
	put(t, dir, filepath.Dir(core)+"/cmd.o", "what make left")
	put(t, dir, filepath.Dir(core)+"/mlx5_core.mod.c", "and this")
	if key() != one || all() != inputs {
		t.Error("what is not copied is in the key")
	}
	put(t, dir, cm, "two") // of another module
	if key() != one || all() == inputs {
		t.Errorf("%s, of ib_cm only", key())
	}
	changed[cm] = []byte("patched")
	if key() != one {
		t.Error("a patch of ib_cm changes the key of mlx5_core")
	}
	changed["include/uapi/rdma/x.h"] = []byte("patched")
	if key() == one {
		t.Error("a patched header, and the same key")
	}
	if err := os.Remove(filepath.Join(dir, "Module.symvers")); err != nil {
		t.Fatal(err)
	}
	if k, err := o.kept(tree, modules[0], changed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("not built: %s, %v", k, err)
	}
}

// What cannot be kept whole is not kept.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	to := filepath.Join(dir, "built", "x.ko")
	put(t, dir, "built/x.ko.part", "half, of a run that was ended")
	if err := keep(filepath.Join(dir, "none.ko"), to); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if left := contents(t, filepath.Dir(to)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	put(t, dir, "x.ko", "whole")
	if err := keep(filepath.Join(dir, "x.ko"), to); err != nil {
		t.Fatal(err)
	}
	if left := contents(t, filepath.Dir(to)); len(left) != 1 || left[to] != "whole" {
		t.Errorf("%v", left)
	}
	if err := os.MkdirAll(filepath.Join(dir, "built/y.ko"), 0o777); err != nil { // in the way of the rename
		t.Fatal(err)
	}
	if err := keep(filepath.Join(dir, "x.ko"), filepath.Join(dir, "built/y.ko")); err == nil {
		t.Error("renamed to a directory")
	}
	if _, err := os.Stat(filepath.Join(dir, "built/y.ko.part")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a part is left")
	}
}

// The patched modules take the place of a kernel's own, compressed or not, also where
// that kernel's directory is named by a symbolic link.
func TestReplace(t *testing.T) {
	from, to, link := t.TempDir(), filepath.Join(t.TempDir(), "6.1.0-x"), filepath.Join(t.TempDir(), "stock")
	if err := os.Symlink(from, link); err != nil {
		t.Fatal(err)
	}
	put(t, from, "kernel/a/mlx5_ib.ko.xz", "old")
	put(t, from, "kernel/b/ib_cm.ko", "old")
	put(t, from, "kernel/b/ib_core.ko", "stays")
	put(t, from, "modules.dep", "kernel/a/mlx5_ib.ko.xz:")
	made := t.TempDir()
	put(t, made, "mlx5_ib.ko", "new ib")
	put(t, made, "ib_cm.ko", "new cm")
	if err := replace(link, to, []string{filepath.Join(made, "mlx5_ib.ko"), filepath.Join(made, "ib_cm.ko")}); err != nil {
		t.Fatal(err)
	}
	got := contents(t, to)
	want := map[string]string{"kernel/a/mlx5_ib.ko": "new ib", "kernel/b/ib_cm.ko": "new cm", "kernel/b/ib_core.ko": "stays", "modules.dep": "kernel/a/mlx5_ib.ko.xz:"}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
	for path, text := range want {
		if got[filepath.Join(to, path)] != text {
			t.Errorf("%s: %q, want %q", path, got[filepath.Join(to, path)], text)
		}
	}
}

// A warning counts wherever it stands now, and as often as it is there.
func TestAddedWarnings(t *testing.T) {
	const had = "  CC [M]  x.o\n/tmp/devxlab-patches-1/drivers/a/x.c:10:2: warning: incorrect type in argument 1\n/tmp/devxlab-patches-1/drivers/a/x.c:11: warning: unused\n"
	const moved = "/tmp/devxlab-patches-22/drivers/a/x.c:34:2: warning: incorrect type in argument 1\n"
	if added, n := addedWarnings(had, moved); len(added) != 0 || n != 2 {
		t.Errorf("%q, %d", added, n)
	}
	added, _ := addedWarnings(had, moved+moved+"/tmp/devxlab-patches-22/drivers/a/y.c:1:1: error: directive in macro\n")
	want := []string{"drivers/a/x.c: warning: incorrect type in argument 1", "drivers/a/y.c: error: directive in macro"}
	if !slices.Equal(added, want) {
		t.Errorf("%q", added)
	}
}
