// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What a killed devxlab has left goes at the next start; what a living one has,
// what is just being made, and what is something else stays.
func TestWorkDir(t *testing.T) {
	parent := t.TempDir()
	t.Setenv("TMPDIR", parent)
	living, remove, err := workDir()
	if err != nil {
		t.Fatal(err)
	}
	in := func(n string) string { return filepath.Join(parent, n) }
	writeFiles(t, parent, map[string][]byte{
		workPrefix + "killed/lock":     nil,
		workPrefix + "killed/hca.sock": nil,
		workPrefix + "early/initrd":    nil, // killed before its lock was there
		workPrefix + "young/lock":      nil,
		workPrefix + "file":            nil,
		"other/lock":                   nil,
	})
	old := time.Now().Add(-2 * workYoung)
	for _, d := range []string{filepath.Base(living), workPrefix + "killed", workPrefix + "early", workPrefix + "file", "other"} {
		if err := os.Chtimes(in(d), old, old); err != nil {
			t.Fatal(err)
		}
	}
	again, removeAgain, err := workDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{workPrefix + "killed", workPrefix + "early"} {
		if exists(in(d)) {
			t.Errorf("%s is still there", d)
		}
	}
	for _, d := range []string{filepath.Base(living), filepath.Base(again), workPrefix + "young", workPrefix + "file", "other"} {
		if !exists(in(d)) {
			t.Errorf("%s is gone", d)
		}
	}
	remove()
	removeAgain()
	if exists(living) || exists(again) {
		t.Error("a run's own directory outlives it")
	}
}
