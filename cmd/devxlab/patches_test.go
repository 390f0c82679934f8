// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A wrong tree is refused in words, and stays as it is.
func TestPatchesWrongTree(t *testing.T) {
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ file, text, want string }{
		{"README", "no kernel", "not a Linux source tree"},
		{"Makefile", "VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 3\n", "no drivers/infiniband/hw/mlx5"},
		{"drivers/infiniband/hw/mlx5/mlx5_ib.h", "/* another one */\n", "is Linux 6.12.3: no patches for this version: 6.12; there are some for 5.15, 6.1"},
		{"Makefile", "VERSION = 5\nPATCHLEVEL = 15\nSUBLEVEL = 3\n", "0001-RDMA-mlx5-Defer-the-bookkeeping-of-RTR-to-RTS-by-a-t.patch does not apply: drivers/infiniband/hw/mlx5/mlx5_ib.h, hunk @@"},
	} {
		write(c.file, c.text)
		for _, args := range [][]string{{"patches", "check", dir}, {"patches", "build", "--out", filepath.Join(dir, "out"), dir}} {
			var out, errOut strings.Builder
			if code := run(args, strings.NewReader(""), &out, &errOut); code != exitFailed || out.String() != "" {
				t.Errorf("%v: %d, %q", args, code, out.String())
			}
			if args[1] == "check" && !strings.Contains(errOut.String(), c.want) {
				t.Errorf("%s is not in %s", c.want, errOut.String())
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "out")); err == nil {
		t.Error("it has made something")
	}
}

// A dry run says what it would be built from, or what is wrong with that, and makes
// nothing.
func TestPatchesBuildDryRun(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	for _, c := range []struct {
		makefile, want string
		code           int
	}{
		{"", "not a Linux source tree", exitFailed},
		{"VERSION = 5\nPATCHLEVEL = 15\nSUBLEVEL = 3\n", "would be built from " + dir + ", Linux 5.15.3\n", exitOK},
	} {
		if err := os.WriteFile(filepath.Join(dir, "Makefile"), []byte(c.makefile), 0o666); err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{"drivers/infiniband/hw/mlx5", "drivers/infiniband/core"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o777); err != nil {
				t.Fatal(err)
			}
		}
		var said, errOut strings.Builder
		if code := run([]string{"patches", "build", "--dry-run", "--out", out, dir}, strings.NewReader(""), &said, &errOut); code != c.code || !strings.Contains(errOut.String(), c.want) || said.String() != "" {
			t.Errorf("%d, %q, %q, want %d and %q", code, said.String(), errOut.String(), c.code, c.want)
		}
		if _, err := os.Stat(out); err == nil {
			t.Error("it has made something")
		}
	}
}

// Where it is built from must be said, once.
func TestPatchesBuildUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"--packaged", "linux"}, {"--packaged", "--kbuild", "x"}, {"--packaged", "--modules", "x"}} {
		var out, errOut strings.Builder
		if code := run(append([]string{"patches", "build", "--out", "never-made"}, args...), strings.NewReader(""), &out, &errOut); code != exitUsage || !strings.Contains(errOut.String(), "--packaged") {
			t.Errorf("%v: %d, %s", args, code, errOut.String())
		}
	}
}
