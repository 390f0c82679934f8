// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"devxlab.example/internal/require"
	"devxlab.example/internal/testdev"
)

// The committed objects are what clang 14 of Debian 12 makes of the sources.
func TestGenerated(t *testing.T) {
	root := testdev.Sources(t)
	_, err := exec.LookPath("clang-14")
	_, err2 := exec.LookPath("llvm-strip-14")
	_, err3 := os.Stat("/usr/include/bpf/bpf_helpers.h")
	if err := errors.Join(err, err2, err3); err != nil {
		require.Have(t, "clang", fmt.Errorf("%w: Debian 12: apt-get install clang llvm libbpf-dev", err))
	}
	dir := t.TempDir()
	for _, d := range []string{"ebpf/bpf", "tools"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, pattern := range []string{"go.mod", "go.sum", "tools/*", "ebpf/ebpf.go", "ebpf/bpf/*"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			to, _ := filepath.Rel(root, f)
			if err := os.WriteFile(filepath.Join(dir, to), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	generate := exec.Command("go", "generate", "./ebpf.go")
	generate.Dir = filepath.Join(dir, "ebpf")
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, arch := range []string{"x86", "arm64"} {
		for _, kind := range []string{"go", "o"} {
			name := "command_" + arch + "_bpfel." + kind
			made, err := os.ReadFile(filepath.Join(dir, "ebpf", name))
			committed, err2 := os.ReadFile(filepath.Join(root, "ebpf", name))
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(made, committed) {
				t.Errorf("%s is not what the sources give: make bpf", name)
			}
		}
	}
}
