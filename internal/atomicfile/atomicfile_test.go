// SPDX-License-Identifier: BSD-2-Clause

package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// names returns what is in dir, temporary files too.
func names(t *testing.T, dir string) string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var s []string
	for _, e := range all {
		s = append(s, e.Name())
	}
	return strings.Join(s, " ")
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	for _, text := range []string{"one", "", strings.Repeat("long", 100_000)} {
		if err := Write(path, func(w io.Writer) error { _, err := io.WriteString(w, text); return err }); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("%d bytes, %v, want %d", len(b), err, len(text))
		}
	}
	// Readable as every file is that a program makes.
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	a, errA := os.Stat(path)
	b, errB := os.Stat(plain)
	if errA != nil || errB != nil || a.Mode() != b.Mode() {
		t.Errorf("mode %v and %v, %v, %v", a.Mode(), b.Mode(), errA, errB)
	}
	if got := names(t, dir); got != "a.json plain" {
		t.Errorf("left %s", got)
	}
}

// What fails in the middle leaves the old file and nothing beside it.
func TestFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	err := Write(path, func(w io.Writer) error {
		_, err := io.WriteString(w, strings.Repeat("half", 100_000))
		return errors.Join(err, full)
	})
	if !errors.Is(err, full) {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "old" || names(t, dir) != "a.json" {
		t.Errorf("%q, %v, left %s", b, err, names(t, dir))
	}
	// A directory of that name stays, too.
	if err := Write(dir, func(io.Writer) error { return nil }); err == nil {
		t.Error("a directory was replaced")
	}
	if err := Write(filepath.Join(dir, "not", "there"), func(io.Writer) error { return nil }); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// A device is written to, and stays one.
func TestDevice(t *testing.T) {
	some := func(w io.Writer) error { _, err := io.WriteString(w, "x"); return err }
	if err := Write("/dev/full", some); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	if err := Write("/dev/null", some); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"/dev/full", "/dev/null"} {
		if fi, err := os.Stat(name); err != nil || fi.Mode()&os.ModeCharDevice == 0 {
			t.Errorf("%s is %v, %v", name, fi.Mode(), err)
		}
	}
}

// Create makes a file, and leaves one that is there alone.
func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	text := func(s string) func(io.Writer) error {
		return func(w io.Writer) error {
			_, err := io.WriteString(w, s)
			return err
		}
	}
	if err := Create(path, text("first")); err != nil {
		t.Fatal(err)
	}
	if err := Create(path, text("second")); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	// One that comes while it is being written.
	other := path + "2"
	err := Create(other, func(io.Writer) error { return os.WriteFile(other, []byte("meanwhile"), 0o600) })
	if !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	for file, want := range map[string]string{path: "first", other: "meanwhile"} {
		if b, err := os.ReadFile(file); err != nil || string(b) != want {
			t.Errorf("%s has %q, %v", file, b, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
