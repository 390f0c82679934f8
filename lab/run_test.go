// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"devxlab.example/lab/guest"
)

// fakeLab returns options whose QEMU is the test binary.
func fakeLab(t *testing.T, what string) Options {
	t.Helper()
	clean(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := map[string][]byte{"vmlinux": fakeVmlinux(), "bb": elfFile(2, ".text", nil), "devxlab": elfFile(2, ".text", nil)}
	for n, b := range fakeModules() {
		files["modules/6.1.0-fake/"+n] = b
	}
	writeFiles(t, dir, files)
	t.Setenv("DEVXLAB_QEMU", script(t, fmt.Sprintf("exec env %s=%s %s \"$@\"\n", fakeQEMUVar, what, quote([]string{self}))))
	t.Setenv("DEVXLAB_BUSYBOX", filepath.Join(dir, "bb"))
	return Options{Kernel: filepath.Join(dir, "vmlinux"), Modules: filepath.Join(dir, "modules/6.1.0-fake"), Devxlab: filepath.Join(dir, "devxlab"),
		Accel: AccelTCG, Progress: io.Discard, Timeout: time.Minute}
}

func TestRun(t *testing.T) {
	for _, what := range []string{"ok", "serial"} {
		o := fakeLab(t, what)
		var out, errOut, console bytes.Buffer
		dir := t.TempDir()
		o.Args, o.Stdin, o.Stdout, o.Stderr, o.Console = []string{"prog", "a b"}, strings.NewReader("hello"), &out, &errOut, &console
		o.Append = "loglevel=7"
		o.Get = []Copy{{From: "/tmp/file", To: filepath.Join(dir, "one")}, {From: "/tmp/two", To: dir}, {From: "/tmp/dir", To: filepath.Join(dir, "new")}}
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(what, err)
		}
		if r.Status != 3 || out.String() != "HELLO" || errOut.String() != "prog a b" || r.Release != "6.1.0-fake" || r.Init != 1500*time.Millisecond || r.Boot <= 0 {
			t.Errorf("%s: %+v, %q, %q", what, r, out.String(), errOut.String())
		}
		kept, err := os.ReadFile(r.Console)
		if err != nil || !bytes.Equal(kept, console.Bytes()) || !strings.Contains(console.String(), "loglevel=7 -- lab init") {
			t.Errorf("%s: console %q, %q, %v", what, kept, console.String(), err)
		}
		for name, want := range map[string]string{"one": "/tmp/file", "two": "/tmp/two", "new/a/b": "/tmp/dir"} {
			if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != "contents of "+want {
				t.Errorf("%s: %s: %q, %v", what, name, b, err)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "devxlab-lab-*")); slices.ContainsFunc(left, func(p string) bool { return strings.Contains(strings.Join(r.Command, " "), p+"/") }) {
			t.Errorf("left: %v", left)
		}
	}
}

func TestRunFails(t *testing.T) {
	for what, want := range map[string]string{
		"die":     "could not start",
		"early":   "before its program began",
		"noexit":  "before its program ended",
		"garbage": guest.ErrFrame.Error(),
		"trouble": "WARNING: CPU: 0 PID: 9 at x.c:1",
		"fault":   "module mlx5_core.ko: no such device",
	} {
		o := fakeLab(t, what)
		r, err := Run(t.Context(), o)
		var e *RunError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
			continue
		}
		var k *KernelError
		if errors.As(err, &k) != (what == "trouble") {
			t.Errorf("%s: kernel error %v", what, k)
		}
		if (r != nil) != (what == "trouble" || what == "fault") {
			t.Errorf("%s: result %+v", what, r)
		}
		if !strings.Contains(err.Error(), "QEMU: "+os.Getenv("DEVXLAB_QEMU")+" -nodefaults") || !exists(e.Console) {
			t.Errorf("%s: no command line or console in %v", what, err)
		}
	}
}

// A guest cannot write outside the directory that a directory of it goes to.
func TestRunEscape(t *testing.T) {
	o := fakeLab(t, "escape")
	dir := t.TempDir()
	o.Get = []Copy{{From: "/tmp/dir", To: filepath.Join(dir, "a/b/c")}}
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "escapes") {
		t.Error(err)
	}
	if exists(filepath.Join(dir, "a/escaped")) {
		t.Error("it has written outside")
	}
}

func TestRunLimits(t *testing.T) {
	o := fakeLab(t, "hang")
	o.Timeout = 300 * time.Millisecond
	began := time.Now()
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "--timeout") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Timeout, o.Console = time.Hour, &first{word: "Linux version", then: cancel}
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) { // before anything was started
		t.Error(err)
	}
	// Output that nobody takes.
	o = fakeLab(t, "ok")
	o.Timeout = time.Second
	r, w := io.Pipe()
	o.Stdin, o.Stdout = strings.NewReader("x"), w
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrTimeout) {
		t.Error(err)
	}
	_ = r.Close()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the limit did not hold: %v", took)
	}
}

func TestHCA(t *testing.T) {
	o := fakeLab(t, "ok")
	o.Devices, o.Profile, o.Faults = 2, "p", []string{"silent:op=NOP,nth=2", "reset"}
	// It makes its socket, says with what it was started, and stays.
	with := filepath.Join(t.TempDir(), "with")
	o.HCA = []string{script(t, "echo \"$@\" > "+with+"; : > \"$2\"; : > \"$4\"; exec sleep 1000")}
	r, err := Run(t.Context(), o)
	if b, err := os.ReadFile(with); err != nil || !strings.HasSuffix(string(b), " --profile p --fault silent:op=NOP,nth=2 --fault reset\n") {
		t.Errorf("started with %q, %v", b, err)
	}
	if err != nil || strings.Count(strings.Join(r.Command, " "), "vfio-user-pci") != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	o.Devices = 1
	o.HCA = []string{script(t, "echo no such profile >&2; exit 2")}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no such profile") || !strings.Contains(err.Error(), "exit status 2") {
		t.Errorf("one that ends at once: %v", err)
	}
	o = fakeLab(t, "fault")
	o.Devices = 1
	o.HCA = []string{script(t, ": > \"$2\"; echo out of memory >&2; exit 9")}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "out of memory") || !strings.Contains(err.Error(), "exit status 9") {
		t.Errorf("one that ends later: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"CPUs":           {SMP: -1},
		"memory":         {MemMB: 16},
		"devices":        {Devices: 9},
		"time limit":     {Timeout: -1},
		"that serves":    {Sockets: []string{"/not/there"}, Wire: "loss=1%"},
		"accelerator":    {Accel: "xen"},
		"image":          {Image: "huge"},
		"of Debian, and": {Packages: []string{"-o=x"}},
		"image full":     {Packages: []string{"bpftrace"}, Image: ImageBasic},
		"without --":     {Append: "quiet -- sh"},
		"at most 1500":   {Append: strings.Repeat("x", 1501)},
		"directory":      {Dir: "work"},
		"NAME=value":     {Env: []string{"=x"}},
		"zero byte":      {Args: []string{"a\x00b"}},
		"put into":       {Put: []Copy{{From: "/not/there", To: "/x"}}},
		"path that":      {Get: []Copy{{From: "x", To: "y"}}},
		"where to":       {Get: []Copy{{From: "/x", To: ""}}},
	} {
		if _, err := Run(t.Context(), o); !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	o := fakeLab(t, "ok")
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, 300<<20); err != nil {
		t.Fatal(err)
	}
	o.Put = []Copy{{From: big, To: "/big"}}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "larger than the 146 MiB") {
		t.Error(err)
	}
}

// A guest may be cut off where what it waits for may never come: faults, and
// cards that another program serves.
func TestForceOff(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want bool
	}{{Options{Devices: 1}, false}, {Options{ForceOff: true}, true}, {Options{Devices: 1, Faults: []string{"x"}}, true}, {Options{Sockets: []string{"a"}}, true}} {
		if got := c.o.forceOff(); got != c.want {
			t.Errorf("%+v: %v", c.o, got)
		}
	}
}
