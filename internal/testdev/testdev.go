// SPDX-License-Identifier: BSD-2-Clause

// Package testdev says which device a test runs on. Without the environment
// variable DEV it is an emulated one of the test's own, inside the process. With
// DEV=mlx5_0 it is that device of this machine, so the same test asks the kernel
// and, in the lab, its driver:
//
//	DEV=mlx5_0 go test -exec "devxlab lab exec" ./devx ./batch ./timerfix
//
// A test that looks into the emulated device, or needs one with options, has
// nothing to ask a kernel and is skipped there.
//
// The package is for tests only.
package testdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"devxlab.example/internal/require"
)

// Kernel returns the name of the kernel's device that tests shall run on; ""
// means an emulated one.
func Kernel() string {
	if dev := os.Getenv("DEV"); !strings.Contains(dev, ":") {
		return dev
	}
	return ""
}

// Name returns the kernel's device if there is one, else emulated, the name of a
// device in this process.
func Name(emulated string) string {
	if k := Kernel(); k != "" {
		return k
	}
	return emulated
}

// Emulated skips a test that is about the emulated device if it would run on
// the kernel's. Where DEVXLAB_REQUIRE lists "emulation" it fails instead.
func Emulated(t testing.TB) {
	t.Helper()
	if k := Kernel(); k != "" {
		require.Have(t, "emulation", errors.New("the test looks into the emulated device, and DEV="+k+" is the kernel's"))
	}
}

// Sources returns the directory of this module. A test that reads its files, or
// has the go command build some, is skipped where they are not, as in the lab's
// guest. Where DEVXLAB_REQUIRE lists "sources" it fails instead.
func Sources(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, found := os.Stat(filepath.Join(dir, "go.mod")); found == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			err = fmt.Errorf("the test reads this module's files, and no directory above it has a go.mod")
		}
	}
	require.Have(t, "sources", err)
	return ""
}
