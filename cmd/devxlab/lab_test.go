// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"devxlab.example/lab"
)

func TestLabCommandLine(t *testing.T) {
	t.Setenv("DEVXLAB_CACHE", t.TempDir())
	t.Setenv("DEVXLAB_QEMU", "/not/there")
	for _, c := range []struct {
		args  []string
		flags string // DEVXLAB_LAB_FLAGS
		code  int
		err   string
	}{
		{args: []string{"lab", "init"}, code: 1, err: "run devxlab lab"},
		{args: []string{"lab", "init", "x", "y=z"}, code: 1, err: "run devxlab lab"},
		{args: []string{"lab", "run"}, code: 2, err: "<cmd>"},
		{args: []string{"lab", "run", "--"}, code: 2, err: "which program"},
		{args: []string{"lab", "run", "--smp", "0", "true"}, code: 2, err: "--smp"},
		{args: []string{"lab", "run", "--smp", "65", "true"}, code: 2, err: "65 CPUs"},
		{args: []string{"lab", "run", "--image", "huge", "true"}, code: 2, err: `image "huge"`},
		{args: []string{"lab", "run", "--get", "out", "true"}, code: 2, err: `"out" in the guest`},
		{args: []string{"lab", "run", "--put", "/not/there", "true"}, code: 2, err: "no such file"},
		{args: []string{"lab", "run", "--timeout", "never", "true"}, code: 2, err: "--timeout"},
		{args: []string{"lab", "run", "--timeout=-1s", "true"}, code: 2, err: "time limit -1s"},
		{args: []string{"lab", "run", "true"}, code: exitLab, err: "$DEVXLAB_QEMU must name"},
		{args: []string{"lab", "fetch"}, code: 1, err: "$DEVXLAB_QEMU must name"},
		{args: []string{"lab", "check"}, code: 2, err: "devxlab lab matrix"},
		{args: []string{"lab", "conformance", "--limit", "1ms"}, code: 2, err: "--limit 1ms"},
		{args: []string{"lab", "conformance", "--smp", "65"}, code: 2, err: "65 CPUs"},
		{args: []string{"lab", "conformance"}, code: 1, err: "$DEVXLAB_QEMU must name"},
		{args: []string{"lab", "matrix", "--smp", "65"}, code: 2, err: "65 CPUs"},
		{args: []string{"lab", "matrix", "--kernel", "6.1"}, code: 1, err: "kernel 6.1: "},
		{args: []string{"lab", "exec"}, code: 2, err: "<cmd>"},
		{args: []string{"lab", "exec", "true", "-test.v"}, code: exitLab, err: "$DEVXLAB_QEMU must name"},
		{args: []string{"lab", "exec", "true"}, flags: "--no-such-flag", code: 2, err: "DEVXLAB_LAB_FLAGS: unknown flag"},
		{args: []string{"lab", "exec", "true"}, flags: "--mem 1", code: 2, err: "1 MiB"},
	} {
		t.Setenv("DEVXLAB_LAB_FLAGS", c.flags)
		if code, _, errOut := devxlab("", c.args...); code != c.code || !strings.Contains(errOut, c.err) {
			t.Errorf("%q: exit code %d, %q; want %d, %q", c.args, code, errOut, c.code, c.err)
		}
	}
}

// The exit status of the guest's program is devxlab's, and nothing is said about
// it.
func TestStatusError(t *testing.T) {
	for _, err := range []error{statusError(42), fmt.Errorf("wrapped: %w", statusError(42))} {
		if code := exitCode(t.Context(), err); code != 42 {
			t.Errorf("%v: exit code %d", err, code)
		}
	}
}

func TestLabFlags(t *testing.T) {
	var f labFlags
	if err := parseFlags(&f, strings.Fields("--kernel 6.12 --smp 2 --timeout 90s --param mlx5_core=debug_mask=1 --module siw --put a,b:/c --put /d --get /x/y --get /z:here --env A=1,2 --devices 2")); err != nil {
		t.Fatal(err)
	}
	o, err := f.options(&env{})
	if err != nil {
		t.Fatal(err)
	}
	if o.Kernel != "6.12" || o.SMP != 2 || o.Timeout != 90*time.Second || o.Params["mlx5_core"] != "debug_mask=1" || !slices.Equal(o.ExtraModules, []string{"siw"}) ||
		!slices.Equal(o.Put, []lab.Copy{{From: "a,b", To: "/c"}, {From: "/d", To: "/d"}}) || !slices.Equal(o.Get, []lab.Copy{{From: "/x/y", To: "y"}, {From: "/z", To: "here"}}) ||
		!slices.Equal(o.Env, []string{"A=1,2"}) || o.Devices != 2 {
		t.Errorf("%+v", o)
	}
}

// A test binary takes its directory along and brings its profiles back.
func TestLabExecFiles(t *testing.T) {
	dir := t.TempDir()
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	t.Chdir(dir)
	for _, d := range []string{"testdata", "other", "cover"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"x_test.go", "pkg.test"} {
		if err := os.WriteFile(f, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	in := func(n string) string { return filepath.Join(dir, n) }
	o := lab.Options{Args: []string{"./pkg.test", "-test.v=true", "-test.coverprofile=c.out", "-test.gocoverdir=" + in("cover"), "-other=x"}}
	if err := bring(&o); err != nil {
		t.Fatal(err)
	}
	if err := here(&o); err != nil {
		t.Fatal(err)
	}
	var put, get []string
	for _, c := range o.Put {
		put = append(put, c.To)
	}
	for _, c := range o.Get {
		get = append(get, c.From)
		if !c.Optional {
			t.Errorf("%s must be there", c.From)
		}
	}
	if o.Args[0] != in("pkg.test") || o.Dir != dir || !slices.Equal(get, []string{in("c.out"), in("cover")}) ||
		!slices.Equal(put, []string{in("pkg.test"), in("pkg.test"), in("testdata"), in("x_test.go"), in("cover")}) {
		t.Errorf("%q\nput %q\nget %q", o.Args, put, get)
	}
	o = lab.Options{Args: []string{"/bin/sh"}}
	if err := bring(&o); err != nil || len(o.Put) > 0 {
		t.Errorf("the host's shell was put into the guest: %v, %v", o.Put, err)
	}
}

func TestKernelLog(t *testing.T) {
	for text, want := range map[string]record{
		"4,123,4567890,-;mlx5_core 0000:01:00.0: it fails\n SUBSYSTEM=pci\n": {4, 4567890 * time.Microsecond, "mlx5_core 0000:01:00.0: it fails"},
		"30,1,0,c;systemd: hello\n": {6, 0, "systemd: hello"},
	} {
		if got, ok := parseRecord(text); !ok || got != want || got.driver() != strings.Contains(text, "mlx5") {
			t.Errorf("%q: %+v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "no record", "x,1,2,-;text", "4,1;text"} {
		if got, ok := parseRecord(text); ok {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
