// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat"
)

// tracedRecord is a line of devxlab trace --records -o json, and tracedWhole its
// last.
type tracedRecord struct {
	Op      string           `json:"op"`
	UID     int              `json:"uid"`
	PartsNS map[string]int64 `json:"parts_ns"`
}

type tracedWhole struct {
	Counts []struct {
		Stage, Op string
		N         int
	}
	Failures []struct {
		Op               string
		Status, Syndrome int
		Errno, N         int
	}
	Lost map[string]int
}

// traced runs a program under devxlab trace in a guest.
func traced(t *testing.T, o Options, flags, program string) (records []tracedRecord, whole tracedWhole) {
	t.Helper()
	var out, errOut bytes.Buffer
	o.Devices, o.Stdout, o.Stderr = 1, &out, &errOut
	o.Args = strings.Fields("devxlab trace -o json --records " + flags + " -- " + program)
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), errOut.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for _, line := range lines[:len(lines)-1] {
		var rec tracedRecord
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		records = append(records, rec)
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &whole); err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), errOut.String())
	}
	t.Logf("kernel %s, status %d: %s", r.Release, r.Status, lines[len(lines)-1])
	return records, whole
}

// noLoss fails for whatever was not seen, except commands that nobody waits for.
func noLoss(t *testing.T, w tracedWhole) {
	t.Helper()
	for what, n := range w.Lost {
		if n != 0 && what != "async" {
			t.Errorf("%d %s were lost", n, what)
		}
	}
}

// One command that fails is one failure, with its syndrome.
func TestLabTraceFailure(t *testing.T) {
	o := realLab(t)
	o.HCA = []string{o.Devxlab, "emu", "--fault", "status:status=LIM,syndrome=0x1234,op=RTR2RTS_QP,user,nth=3"}
	_, w := traced(t, o, "", "devxlab qp batch mlx5_0 --qps 5")
	noLoss(t, w)
	if len(w.Failures) == 0 || w.Failures[0].Op != "RTR2RTS_QP" || w.Failures[0].Status != 8 || w.Failures[0].Syndrome != 0x1234 || w.Failures[0].N != 1 || w.Failures[0].Errno != 0 {
		t.Errorf("failures: %+v", w.Failures)
	}
	for _, f := range w.Failures[min(1, len(w.Failures)):] {
		if f.Syndrome == 0x1234 {
			t.Errorf("the syndrome belongs to another failure too: %+v", f)
		}
	}
}

// commandLog is a line of the emulated HCA's log: opcode, uid, time.
var commandLog = regexp.MustCompile(`^\S+ (\S+) op_mod=\S+ uid=(\d+) in=\d+ out=\d+ (\S+): OK`)

// logged returns how long the HCA says that a program's commands took, by opcode.
func logged(t *testing.T, file string) map[string][]float64 {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	took := map[string][]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		m := commandLog.FindStringSubmatch(lines.Text())
		if m == nil || m[2] == "0" {
			continue
		}
		d, err := time.ParseDuration(m[3])
		if err != nil {
			t.Fatal(err)
		}
		took[m[1]] = append(took[m[1]], d.Seconds())
	}
	return took
}

// What the kernel calls the firmware's time grows with what the HCA spends, one for
// one: the HCA's own log of the same commands says how long each took.
func TestLabTraceTimes(t *testing.T) {
	const n = 100
	want := map[string]time.Duration{"RST2INIT_QP": 0, "INIT2RTR_QP": 500 * time.Microsecond, "RTR2RTS_QP": 2 * time.Millisecond, "2RST_QP": 8 * time.Millisecond}
	dir := t.TempDir()
	profile := map[string]any{"name": "constant", "source": "this test", "slots": 31, "threads": 31, "submit": map[string]any{"fixed": "0s"}, "default": map[string]any{"fixed": "0s"}}
	ops := map[string]any{}
	for op, d := range want {
		ops[op] = map[string]any{"fixed": d.String()}
	}
	profile["ops"] = ops
	b, err := json.Marshal(profile)
	if err != nil {
		t.Fatal(err)
	}
	file, log := filepath.Join(dir, "profile.json"), filepath.Join(dir, "log")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	o := realLab(t)
	o.HCA = []string{o.Devxlab, "emu", "--profile", file, "--log", log}
	records, w := traced(t, o, "", fmt.Sprintf("devxlab qp batch mlx5_0 --qps 1 --rounds %d", n))
	noLoss(t, w)
	theirs := logged(t, log)
	ours := map[string][]float64{}
	for _, r := range records {
		if d, seen := r.PartsNS["firmware"]; seen && r.UID != 0 {
			ours[r.Op] = append(ours[r.Op], float64(d)/1e9)
		}
	}
	var x, y []float64
	for op := range want {
		if len(theirs[op]) != n || len(ours[op]) != n {
			t.Errorf("%s: %d commands in the log, %d traced, want %d", op, len(theirs[op]), len(ours[op]), n)
			continue
		}
		// One thread sends one after the other, so both lists are in the same order. What the
		// kernel sees more is the way there and back; a busy host only ever adds to it.
		more := make([]float64, n)
		for i := range more {
			if more[i] = ours[op][i] - theirs[op][i]; more[i] < 0 {
				t.Errorf("%s: the HCA took %v s, and the kernel saw %v", op, theirs[op][i], ours[op][i])
			}
		}
		slices.Sort(more)
		slices.Sort(theirs[op])
		x, y = append(x, theirs[op][n/10]), append(y, theirs[op][n/10]+more[n/10])
	}
	intercept, slope := stat.LinearRegression(x, y, nil, false)
	t.Logf("HCA's log %v, kernel %v: slope %.4f, intercept %.0f µs", x, y, slope, intercept*1e6)
	if slope < 0.98 || slope > 1.02 {
		t.Errorf("slope %.4f, want 1.00 ± 0.02", slope)
	}
}

// guestTest builds the tests of a package of this module.
func guestTest(t *testing.T, pkg string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), filepath.Base(pkg)+".test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", file, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}

// The tests of package ebpf that need a driver pass on each kernel, with one CPU and
// with two.
func TestLabTraceKernels(t *testing.T) {
	o := realLab(t)
	test := guestTest(t, "devxlab.example/ebpf")
	for _, kernel := range KernelNames() {
		t.Run(kernel, func(t *testing.T) {
			o := o
			var out bytes.Buffer
			o.Kernel, o.SMP, o.Append, o.Devices, o.HCA, o.Stdout, o.Stderr = kernel, 2, "tsc=reliable", 1, []string{o.Devxlab, "emu"}, &out, &out
			o.Put, o.Env = []Copy{{From: test, To: "/tmp/ebpf.test"}}, []string{"DEV=mlx5_0", "DEVXLAB_REQUIRE=kernel-device"}
			o.Args = []string{"/tmp/ebpf.test", "-test.v", "-test.run", "^TestOn"}
			r, err := Run(t.Context(), o)
			t.Log(out.String())
			if err != nil {
				t.Fatal(err)
			}
			if r.Status != 0 || !strings.Contains(out.String(), "PASS: TestOnModify") {
				t.Errorf("exit status %d", r.Status)
			}
		})
	}
}
