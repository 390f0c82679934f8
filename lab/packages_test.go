// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// mayskip are the reasons for which a test of a package may be skipped in the
// guest: it is about the emulated device inside the process, reads sources or
// headers, or asks for a patched kernel.
var mayskip = regexp.MustCompile(`: (emulation|sources|headers|modify-batch): `)

// labPackages are those whose tests take DEV.
var labPackages = []string{"devx", "batch", "timerfix", "verify"}

// The tests of packages that talk to a device, compiled here, ask a real kernel.
func TestLabPackages(t *testing.T) {
	o := realLab(t)
	o.Devices, o.HCA, o.Timeout = 1, []string{o.Devxlab, "emu"}, 15*time.Minute
	o.Env = []string{"DEV=mlx5_0"}
	script := "cd /srv\n"
	for _, p := range labPackages {
		o.Put = append(o.Put, Copy{From: testBinary(t, p), To: "/srv/" + p + ".test"})
		script += "./" + p + ".test -test.v -test.timeout 10m && echo 'PACKAGE " + p + "'\n"
	}
	o.Args = []string{"sh", "-c", script}
	var out bytes.Buffer
	o.Stdout, o.Stderr = &out, &out
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, tail(out.String()))
	}
	said := out.String()
	for _, p := range labPackages {
		if !strings.Contains(said, "\nPACKAGE "+p+"\n") {
			t.Errorf("%s has failed in the guest", p)
		}
	}
	for _, name := range []string{"TestRCToRTS", "TestErrorOfThisKernel", "TestCloseUnderUse", "TestToRTSWithFailures", "TestRealTimer", "TestSameAnswers"} {
		if !strings.Contains(said, "--- PASS: "+name+" (") {
			t.Errorf("%s has not passed in the guest", name)
		}
	}
	running, may := "", map[string]bool{}
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "=== RUN   "); ok {
			running = name
		} else if mayskip.MatchString(line) {
			may[running] = true
		} else if name, ok := strings.CutPrefix(line, "--- SKIP: "); ok && !may[strings.Fields(name)[0]] {
			t.Errorf("%s, without a reason that is known", line)
		}
	}
	if t.Failed() {
		t.Log(tail(said))
	}
	t.Logf("kernel %s: %d passed, %d skipped, off after %v", r.Release, strings.Count(said, "\n--- PASS: "), strings.Count(said, "\n--- SKIP: "), r.Total)
}

// testBinary compiles the tests of a package for the guest.
func testBinary(t *testing.T, pkg string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), filepath.Base(pkg)+".test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", file, "../"+pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}

// tail is the end of a long text, and what failed.
func tail(s string) string {
	var failed strings.Builder
	for line := range strings.Lines(s) {
		if strings.Contains(line, "FAIL") || strings.Contains(line, "_test.go:") && !mayskip.MatchString(line) || strings.Contains(line, "panic:") {
			failed.WriteString(line)
		}
	}
	return failed.String() + "[…]\n" + s[max(0, len(s)-4000):]
}
