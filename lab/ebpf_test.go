// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat"

	"devxlab.example/internal/require"
)

// tracedRecord is a line of devxlab trace --records -o json, and tracedWhole its
// last.
type tracedRecord struct {
	Type    string           `json:"type"` // command
	Op      string           `json:"op"`
	UID     int              `json:"uid"`
	PartsNS map[string]int64 `json:"parts_ns"`
}

type tracedWhole struct {
	Stages   []tracedStage
	Counts   []tracedCount
	Failures []struct {
		Op               string
		Status, Syndrome int
		Errno, N         int
	}
	Lost map[string]int
}

type tracedStage struct{ Stage, Where, Why string }

type tracedCount struct {
	Stage, Op string
	N         int
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
		if rec.Type == "command" {
			records = append(records, rec)
		}
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
	require.Long(t, "trace", "make lab-trace") // and two clocks are compared
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

// stagesDoc has a table of what is seen where: a line for each stage, a column for
// each kernel.
const stagesDoc = "../docs/ebpf-stages.md"

// userKernel names a kernel that no distribution packages, as IMAGE:MODULES.
const userKernel = "DEVXLAB_TRACE_KERNEL"

// The tests of package ebpf that need a driver pass on each kernel, with two CPUs,
// and stages are seen where docs/ebpf-stages.md says.
func TestLabTraceKernels(t *testing.T) {
	o := realLab(t)
	test := testBinary(t, "ebpf")
	seen := map[string][]string{} // by kernel, for each stage
	stages := []string{}
	kernels := KernelNames()
	if k := os.Getenv(userKernel); k != "" {
		kernels = append(kernels, k)
	}
	for _, kernel := range kernels {
		t.Run(kernel, func(t *testing.T) {
			if kernel != DefaultKernel {
				require.Long(t, "trace", "make lab-trace")
			}
			o := o
			var out bytes.Buffer
			o.Kernel, o.Modules, _ = strings.Cut(kernel, ":")
			o.SMP, o.Append, o.Devices, o.HCA, o.Stdout, o.Stderr = 2, "tsc=reliable", 1, []string{o.Devxlab, "emu"}, &out, &out
			o.Timeout = 20 * time.Minute // each attachment takes seconds under emulation
			o.Put, o.Env = []Copy{{From: test, To: "/tmp/ebpf.test"}}, []string{"DEV=mlx5_0", "DEVXLAB_REQUIRE=kernel-device"}
			file := filepath.Join(t.TempDir(), "stages")
			o.Get = []Copy{{From: "/tmp/stages", To: file}}
			o.Args = []string{"sh", "-c", "devxlab trace --stages -o json > /tmp/stages && /tmp/ebpf.test -test.v -test.run ^TestOn"}
			r, err := Run(t.Context(), o)
			t.Log(out.String())
			if err != nil {
				t.Fatal(err)
			}
			if r.Status != 0 || !strings.Contains(out.String(), "PASS: TestOnModify") {
				t.Errorf("exit status %d", r.Status)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var all []tracedStage
			if err := json.Unmarshal(b, &all); err != nil {
				t.Fatal(err)
			}
			series := regexp.MustCompile(`^\d+\.\d+`).FindString(r.Release)
			stages = stages[:0]
			for _, s := range all {
				stages = append(stages, s.Stage)
				seen[series] = append(seen[series], s.Where+s.Why)
			}
		})
	}
	want, err := os.ReadFile(stagesDoc)
	if *update {
		if err := os.WriteFile(stagesDoc, []byte(stagesTable(stages, seen)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for series, places := range seen {
		for i, place := range places {
			if line := fmt.Sprintf("| %s | %s | %s |\n", stages[i], series, place); !strings.Contains(string(want), line) {
				t.Errorf("%s does not have: %s", stagesDoc, line)
			}
		}
	}
}

// tracedConnection is a line of a connection.
type tracedConnection struct {
	Type, Outcome, Device, Name string
	Passive                     bool
	LocalID                     uint32 `json:"local_id"`
	RemoteID                    uint32 `json:"remote_id"`
	LocalQPN                    uint32 `json:"local_qpn"`
	RemoteQPN                   uint32 `json:"remote_qpn"`
	PID                         int
}

// One connection of rdma_cm is one REQ, REP and RTU, out and in, and two records that are
// each other's.
func TestLabTraceCM(t *testing.T) {
	o := realLabOf(t, "lab-full", ImageFull)
	var out, errOut bytes.Buffer
	o.Devices, o.HCA, o.Stdout, o.Stderr = 1, []string{o.Devxlab, "emu"}, &out, &errOut
	o.Args = []string{"devxlab", "trace", "--records", "-o", "json", "--", "sh", "-c", "rping -s -C 1 & sleep 1; rping -c -a 192.168.7.1 -C 1; wait"}
	if r, err := Run(t.Context(), o); err != nil || r.Status != 0 {
		t.Fatalf("%+v, %v\n%s", r, err, errOut.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	sides := map[bool]tracedConnection{}
	for _, line := range lines[:len(lines)-1] {
		var c tracedConnection
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if c.Type != "connection" {
			continue
		}
		if _, twice := sides[c.Passive]; twice || c.Outcome != "established" || c.Device != "mlx5_0" || c.Name != "rping" {
			t.Errorf("%+v", c)
		}
		sides[c.Passive] = c
	}
	if a, p := sides[false], sides[true]; len(sides) != 2 || a.LocalID == 0 || a.LocalID != p.RemoteID || a.RemoteID != p.LocalID || a.LocalQPN != p.RemoteQPN || a.RemoteQPN != p.LocalQPN || a.PID == p.PID {
		t.Errorf("active %+v, passive %+v", a, p)
	}
	var w tracedWhole
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &w); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	noLoss(t, w)
	got := map[string]int{}
	for _, c := range w.Counts {
		if stage, ok := strings.CutPrefix(c.Stage, "CM "); ok {
			got[stage] = c.N
		}
	}
	// Both sides disconnect, so how many DREQs there are is a race between them.
	for stage, n := range map[string]int{"send REQ": 1, "send REP": 1, "send RTU": 1, "receive REQ": 1, "receive REP": 1, "receive RTU": 1,
		"remote id": 2, "remote QPN": 2, "duplicate": 0, "stale": 0, "reject": 0, "time-wait": 2, "end": 2} {
		if got[stage] != n {
			t.Errorf("%s: %d, want %d", stage, got[stage], n)
		}
	}
	t.Log(got)
}

// A tracer that is killed leaves nothing attached, and the next one removes the
// definitions that are left.
func TestLabTraceKilled(t *testing.T) {
	o := realLab(t)
	var out bytes.Buffer
	o.Devices, o.HCA, o.Stdout, o.Stderr = 1, []string{o.Devxlab, "emu"}, &out, &out
	o.Args = []string{"sh", "-c", `armed() { grep -v DISABLED /sys/kernel/debug/kprobes/list; }
probes() { echo "$1: $(armed | wc -l) probes, $(grep -c devxlab_ /sys/kernel/tracing/kprobe_events) definitions"; }
probes before
devxlab trace --duration 100s > /dev/null & P=$!
until armed | grep -q ib_uverbs_modify_qp; do kill -0 $P || exit 9; sleep 0.2; done
kill -9 $P
while armed | grep -q .; do sleep 0.2; done
probes killed | sed 's/ [1-9][0-9]* definitions/ some definitions/'
devxlab trace --duration 10ms > /dev/null
probes after`}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if want := "before: 0 probes, 0 definitions\nkilled: 0 probes, some definitions\nafter: 0 probes, 0 definitions\n"; r.Status != 0 || !strings.HasSuffix(out.String(), want) {
		t.Errorf("exit status %d\n%s\nwant %s", r.Status, out.String(), want)
	}
}

// A driver that is not loaded yet is waited for, and one that is unloaded is said to be.
func TestLabTraceModules(t *testing.T) {
	o := realLab(t)
	dir := t.TempDir()
	var out bytes.Buffer
	o.Devices, o.HCA, o.Stdout, o.Stderr = 1, []string{o.Devxlab, "emu"}, &out, &out
	o.Get = []Copy{{From: "/tmp/waited", To: filepath.Join(dir, "waited")}, {From: "/tmp/unloaded", To: filepath.Join(dir, "unloaded")}}
	o.Args = []string{"sh", "-c", `rmmod mlx5_ib; rmmod mlx5_core
devxlab trace --stages; echo "without: $?"
devxlab trace --wait -o json --op 2RST_QP -- devxlab qp batch mlx5_0 --qps 7 > /tmp/waited & P=$!
modprobe mlx5_ib; wait $P; echo "waited: $?"
devxlab trace -o json -- rmmod mlx5_ib > /tmp/unloaded; echo "unloaded: $?"
modprobe mlx5_ib`}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"the driver is not loaded: mlx5_core: modprobe mlx5_ib", "without: 3", "waited: 0", "unloaded: 0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s\nwant %s", out.String(), want)
		}
	}
	for name, check := range map[string]func(w tracedWhole) bool{
		"waited": func(w tracedWhole) bool {
			return slices.ContainsFunc(w.Counts, func(c tracedCount) bool { return c.Stage == "awake" && c.Op == "2RST_QP" && c.N == 7 })
		},
		"unloaded": func(w tracedWhole) bool {
			return slices.ContainsFunc(w.Stages, func(s tracedStage) bool {
				return s.Stage == "DevX modify" && strings.HasPrefix(s.Why, "module mlx5_ib was unloaded meanwhile") && s.Where == ""
			}) && slices.ContainsFunc(w.Stages, func(s tracedStage) bool { return s.Stage == "command" && s.Why == "" })
		},
	} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		var w tracedWhole
		if err := json.Unmarshal(b, &w); err != nil || !check(w) {
			t.Errorf("%s: %v\n%s", name, err, b)
		}
	}
}

// seriesNumber makes a kernel's series a number, so that 5.15 comes behind 5.10 and 5.9
// before.
func seriesNumber(series string) int {
	var major, minor int
	_, _ = fmt.Sscanf(series, "%d.%d", &major, &minor)
	return major<<16 + minor
}

// stagesTable is the document.
func stagesTable(stages []string, seen map[string][]string) string {
	var b strings.Builder
	b.WriteString(`# Where each stage is seen

Taken in the lab from each kernel itself (` + "`devxlab trace --stages`" + `): Debian's packages, and a 5.15 built with a small configuration and
without BTF of its modules. To take it again: ` + "`" + userKernel + `=IMAGE:MODULES DEVXLAB_REQUIRE=lab,trace go test ./lab -run TestLabTraceKernels -update` + "`" + `.

| stage | kernel | seen at, or why not |
|---|---|---|
`)
	kernels := slices.SortedFunc(maps.Keys(seen), func(a, b string) int { return seriesNumber(a) - seriesNumber(b) })
	for i, stage := range stages {
		for _, k := range kernels {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", stage, k, seen[k][i])
		}
	}
	return b.String()
}

// On a terminal, which the test makes in the guest, the table fits and ends well; a
// timeline is one that Perfetto takes.
func TestLabTraceTerminal(t *testing.T) {
	o := realLab(t)
	var out bytes.Buffer
	o.SMP, o.Devices, o.HCA, o.Stdout, o.Stderr = 2, 1, []string{o.Devxlab, "emu"}, &out, &out
	o.Put, o.Env = []Copy{{From: testBinary(t, "cmd/devxlab"), To: "/tmp/cmd.test"}}, []string{"DEV=mlx5_0", "DEVXLAB_REQUIRE=kernel-device"}
	o.Args = []string{"/tmp/cmd.test", "-test.v", "-test.run", "^TestOn"}
	r, err := Run(t.Context(), o)
	t.Log(out.String())
	if err != nil || r.Status != 0 || !strings.Contains(out.String(), "PASS: TestOnTerminal") || !strings.Contains(out.String(), "PASS: TestOnTimeline") {
		t.Errorf("%+v, %v", r, err)
	}
}

// bench --kernel-cost shows the split of what it issued.
func TestLabTraceBench(t *testing.T) {
	o := realLab(t)
	var out bytes.Buffer
	o.Devices, o.HCA, o.Stdout, o.Stderr = 1, []string{o.Devxlab, "emu"}, &out, &out
	o.Args = strings.Fields("devxlab bench --quick --kernel-cost --dir= --device mlx5_0 micro")
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Log(out.String())
	if !regexp.MustCompile(`(?s)What the kernel spent.*2RST_QP +[1-9][0-9,]*  .* µs / `).MatchString(out.String()) || strings.Contains(out.String(), "not visible") {
		t.Error("no split of 2RST_QP, or a stage is not visible")
	}
}

// Ten minutes at full rate leave nothing behind: TestTracedForLong of ebpf.
func TestLabTraceLong(t *testing.T) {
	require.Long(t, "trace", "make lab-trace")
	o := realLab(t)
	var out bytes.Buffer
	o.SMP, o.Append, o.Devices, o.HCA, o.Stdout, o.Stderr = 2, "tsc=reliable", 1, []string{o.Devxlab, "emu"}, &out, &out
	o.Timeout = 20 * time.Minute
	o.Put, o.Env = []Copy{{From: testBinary(t, "ebpf"), To: "/tmp/ebpf.test"}}, []string{"DEV=mlx5_0", "DEVXLAB_REQUIRE=kernel-device"}
	o.Args = strings.Fields("/tmp/ebpf.test -test.v -test.run ^TestTracedForLong$ -traced 10m")
	r, err := Run(t.Context(), o)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != 0 || !strings.Contains(out.String(), "--- PASS: TestTracedForLong (") {
		t.Errorf("exit status %d", r.Status)
	}
}
