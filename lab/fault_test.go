// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"devxlab.example/internal/require"
)

// step is one fault: what the guest does, and what of the output has to be there
// afterwards. A word that begins with ! must not be.
type step struct {
	name   string
	script string
	want   []string
}

// faultLib are the guest's words for steps. fault SPEC has the host arm a fault;
// prog runs a program, which is ended after a while if it hangs, and says how it ended;
// news shows what the kernel has said since; works waits until the device works
// again. rescan takes the driver off and puts a new one on, since one recovers by
// itself only once in a while (health.c, MLX5_REPORTER_FW_GRACEFUL_PERIOD).
const faultLib = `
N=$(dmesg | wc -l)
BDF=$(ls /sys/bus/pci/drivers/mlx5_core | grep :)
PCI=/sys/bus/pci/devices/$BDF
fault() { echo "@fault $1"; read -r answer; echo "armed: $answer"; }
ended() { echo "exit $1: $(tail -n 1 /tmp/out) $(cat /tmp/err)"; }
prog() { timeout -s KILL ${LIMIT:-40} "$@" >/tmp/out 2>/tmp/err; ended $?; }
count() { cat /sys/kernel/debug/mlx5/$BDF/commands/RTR2RTS_QP/n; }
begin() { C=$(count); timeout -s KILL ${LIMIT:-40} "$@" >/tmp/out 2>/tmp/err & P=$!
  until [ $(count) -gt $((C+300)) ]; do kill -0 $P || return; sleep 0.1; done; echo "under way"; }
end() { wait $P; ended $?; }
news() { dmesg | sed "1,${N}d" | sed 's/^/dmesg: /'; N=$(dmesg | wc -l); }
works() { i=0
  until devxlab qp rts mlx5_0 >/dev/null 2>/tmp/err; do i=$((i+1)); [ $i -gt 50 ] && { echo "dead: $(cat /tmp/err)"; return; }; sleep 0.2; done
  echo "works again"; }
rescan() { echo 1 > $PCI/remove; echo 1 > /sys/bus/pci/rescan; works; }
`

// driversWords are those of the driver, and of what it makes the kernel say about
// its netdev and its function.
var driversWords = regexp.MustCompile(`mlx5_core|infiniband|mlx5_ib|\bpci(eport)? 0000:|IPv6: ADDRCONF|hrtimer: interrupt took|clocksource: |audit:|rcu: INFO: rcu_.*expedited`)

// batchOf is a program whose transitions a fault meets: 256 a round.
const batchOf = "devxlab qp batch mlx5_0 --rounds 2000"

// controller arms what lines of the guest's output ask for.
type controller struct {
	t      testing.TB
	path   string
	answer *io.PipeWriter
	line   []byte
	all    bytes.Buffer
}

func (c *controller) Write(p []byte) (int, error) {
	c.all.Write(p)
	c.line = append(c.line, p...)
	for {
		line, rest, ok := bytes.Cut(c.line, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		c.line = rest
		if spec, ok := bytes.CutPrefix(line, []byte("@fault ")); ok {
			answer := c.arm(string(spec))
			go func() { _, _ = io.WriteString(c.answer, answer) }() // the guest may be gone
		}
	}
}

func (c *controller) arm(spec string) string {
	conn, err := net.Dial("unix", c.path)
	if err != nil {
		return fmt.Sprintf("no control socket: %v\n", err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, spec+"\n"); err != nil {
		return err.Error() + "\n"
	}
	b := make([]byte, 4096)
	n, _ := conn.Read(b) // nothing, if the device ended of it
	return string(b[:n])
}

// faultRun runs steps in one guest and checks each. hca are flags of the device.
func faultRun(t *testing.T, o Options, hca string, steps []step) {
	t.Helper()
	faultRunWarns(t, o, hca, steps, false)
}

// warning is the line of a kernel's warning that names its place.
var warning = regexp.MustCompile(`WARNING: .*|BUG: .*|Oops.*`)

// onlyDestroy reports whether the kernel warns of objects of a program that it could
// not destroy in the device (rdma_core.c uverbs_destroy_ufile_hw), and of nothing
// else.
func onlyDestroy(text string) bool {
	for _, w := range warning.FindAllString(text, -1) {
		if !strings.Contains(w, "uverbs_destroy_ufile_hw") {
			return false
		}
	}
	return true
}

// faultRunWarns is faultRun; with warns the kernel may warn of what it could not
// destroy.
func faultRunWarns(t *testing.T, o Options, hca string, steps []step, warns bool) {
	t.Helper()
	dir := t.TempDir()
	in, answer := io.Pipe()
	defer answer.Close()
	c := &controller{t: t, path: filepath.Join(dir, "control"), answer: answer}
	o.Devices, o.ForceOff, o.Stdin, o.Stdout, o.Stderr = 1, true, in, c, c
	o.HCA = append([]string{o.Devxlab, "emu", "--control", c.path, "--log", filepath.Join(dir, "log")}, strings.Fields(hca)...)
	script := faultLib
	for _, s := range steps {
		script += fmt.Sprintf("echo '== %s'\n%s\nnews\n", s.name, s.script)
	}
	o.Args = []string{"sh", "-c", script}
	r, err := Run(t.Context(), o)
	var k *KernelError
	warned := warns && errors.As(err, &k) && onlyDestroy(c.all.String())
	if err != nil && !warned {
		t.Errorf("%v\n%s", err, c.all.String())
	}
	if r != nil {
		t.Logf("kernel %s, %d CPUs: program after %v, off after %v", r.Release, max(o.SMP, 1), r.Boot, r.Total)
	}
	parts := strings.Split("\n"+c.all.String(), "\n== ")[1:]
	if len(parts) != len(steps) {
		t.Errorf("%d of %d steps were begun", len(parts), len(steps))
	}
	for i, text := range parts[:min(len(parts), len(steps))] {
		checkStep(t, steps[i], text, warned)
	}
}

// slowHost is what a guest's kernel says if the host gave it no time.
var slowHost = regexp.MustCompile(`(?m)^dmesg: .*(hrtimer: interrupt took|clocksource: timekeeping watchdog|workqueue: .* hogged CPU).*\n`)

// checkStep checks the output of a step. warns says that the kernel's own warning
// may be in it.
func checkStep(t *testing.T, s step, text string, warns bool) {
	t.Run(s.name, func(t *testing.T) {
		t.Log(text)
		text := slowHost.ReplaceAllString(text, "")
		for _, w := range s.want {
			not, word := strings.HasPrefix(w, "!"), strings.TrimPrefix(w, "!")
			if regexp.MustCompile(word).MatchString(text) == not {
				t.Errorf("%q: found %v", word, !not)
			}
		}
		if regexp.MustCompile(`exit (137|143|2|-)`).MatchString(text) {
			t.Error("a program hung, or crashed")
		}
		for line := range strings.Lines(text) {
			if said, ok := strings.CutPrefix(line, "dmesg: "); ok && !warns && !driversWords.MatchString(said) {
				t.Errorf("not the driver's: %s", line)
			}
			checkOutcomes(t, line)
		}
	})
}

var outcomesLine = regexp.MustCompile(`(\d+) transitions of .* rounds: (\d+) done, (\d+) failed, (\d+) not sent, (\d+) unknown`)

// checkOutcomes holds the sum of a batch's outcomes against its entries.
func checkOutcomes(t *testing.T, line string) {
	m := outcomesLine.FindStringSubmatch(line)
	if m == nil {
		return
	}
	var n [5]int
	for i := range n {
		if _, err := fmt.Sscan(m[i+1], &n[i]); err != nil {
			t.Fatal(err)
		}
	}
	if n[0] != n[1]+n[2]+n[3]+n[4] {
		t.Errorf("an entry without an outcome, or with two: %s", line)
	}
}

// allFaults skips the tests that take minutes where they are not asked for.
func allFaults(t *testing.T) {
	t.Helper()
	require.Long(t, "faults", "make lab-faults")
}

// longFaults skips those that take longest: the driver's own time-out of 60 s, and
// each kernel.
func longFaults(t *testing.T) {
	t.Helper()
	require.Long(t, "long-faults", "make lab-faults")
}

// quick makes the driver wait 1 s and look at the device's health 5 times a second
// (Linux 5.16 and later).
const quick = "--command-timeout 1s --health-poll 200ms"

// Steps that every kernel takes the same way, but for numbers of errors.
var (
	stepLate = step{"late", "fault silent:op=RTR2RTS_QP,user,for=8s\nprog devxlab qp rts mlx5_0\nsleep 3\nworks",
		[]string{"exit 5: .*errno 110", "RTR2RTS_QP.*No done completion", "Will cause a leak of a command resource", "Command completion arrived after timeout", "works again"}}
	stepHealth = step{"health", "fault health:syndrome=0x1,fatal,op=RTR2RTS_QP,user,nth=300\nprog " + batchOf + "\nworks",
		[]string{"exit 3: ", "device gone", " [1-9][0-9]* unknown", "Fatal error 5 detected", "synd 0x1: firmware internal error", "health recovery succeeded|device recovered", "works again"}}
	stepFLR = step{"flr", "begin " + batchOf + "\necho 1 > $PCI/reset\nend\nworks",
		[]string{"under way", "exit 3: ", "device gone", "Fatal error 3 detected", "health recovery succeeded|device recovered", "works again"}}
)

// steps of a guest whose driver can recover from all of them.
var recoverable = []step{
	stepLate,
	{"token", "fault delivery:status=token,op=RTR2RTS_QP,user\nprog devxlab qp rts mlx5_0\nworks", []string{"exit 4: .*RTR2RTS_QP.*errno 53", "works again", "!dmesg: "}},
	{"signature", "fault delivery:status=signature,op=RTR2RTS_QP,user\nprog devxlab qp rts mlx5_0\nworks", []string{"exit 4: .*RTR2RTS_QP.*errno 53", "works again", "!dmesg: "}},
	{"status", "fault status:status=LIM,syndrome=0x1234,op=RTR2RTS_QP,user,nth=10,times=5\nprog devxlab qp batch mlx5_0\nworks",
		[]string{"exit 4: ", " 251 done, 5 failed, 0 not sent, 0 unknown", `limits exceeded\(0x8\), syndrome \(0x1234\)`, "works again", "!dmesg: "}},
	{"pages", "fault pages:pages=64,op=CREATE_QP,user\nprog devxlab qp rts mlx5_0", []string{"exit 0: ", "!dmesg: "}},
	{"pages-refused", "fault pages:pages=64,refuse,op=CREATE_QP,user\nprog devxlab qp rts mlx5_0\nworks", []string{"exit 4: .*no resources", "works again", "!dmesg: "}},
	// The guest has 16 MiB through which its devices' memory has to go.
	{"pages-cannot-give", "fault pages:pages=9000,op=CREATE_QP,user\nprog devxlab qp rts mlx5_0\nworks",
		[]string{"exit 4: .*no resources", "failed dma mapping page", "give fail -12", "works again"}},
	stepHealth,
	{"grace", "fault health:syndrome=0x1,fatal,op=RTR2RTS_QP,user,nth=300\nprog " + batchOf + "\nsleep 2\nprog devxlab qp rts mlx5_0\necho 1 > $PCI/reset\nrescan",
		[]string{"exit 3: .* unknown", "exit 3: .*no RDMA device", "Driver is in error state. Unloading", "works again"}},
	stepFLR,
	{"rescan", "begin " + batchOf + "\necho 1 > $PCI/remove\nend\nprog devxlab qp rts mlx5_0\necho 1 > /sys/bus/pci/rescan\nworks",
		[]string{"under way", "exit 3: .* unknown", "exit 3: .*no RDMA device", "works again"}},
	{"reset", "fault reset:op=RTR2RTS_QP,user,nth=300\nprog " + batchOf + "\nworks",
		[]string{"exit 3: ", "device gone", "Fatal error 3 detected", "health recovery succeeded|device recovered", "works again"}},
	{"unplug", "rescan\nfault unplug:op=RTR2RTS_QP,user,nth=300,for=3s\nprog " + batchOf + "\nworks",
		[]string{"exit 3: ", "device gone", "Fatal error 1 detected", "health recovery succeeded|device recovered", "works again"}},
}

// TestLabFaults is every fault from which an unmodified driver recovers, one after
// the other in one guest.
func TestLabFaults(t *testing.T) {
	o := realLab(t)
	o.Append = "swiotlb=8192,force"
	faultRun(t, o, quick, recoverable)
}

// TestLabFaultSilent is a command that is never answered: its program gets an error
// and ends, others work on. The driver has lost a slot for good, and for that never
// comes down.
func TestLabFaultSilent(t *testing.T) {
	faultRun(t, realLab(t), quick, []step{
		{"silent", "fault silent:op=RTR2RTS_QP,user,nth=20\nprog devxlab qp batch mlx5_0\nworks",
			[]string{"exit 5: ", " 1 unknown", "ETIMEDOUT 1 times", "No done completion", "works again"}},
		{"silent-done", "fault silent:op=RTR2RTS_QP,user,done\nprog devxlab qp rts mlx5_0\nworks", []string{"exit 5: .*errno 110", "works again"}},
	})
}

// TestLabFaultReload is devlink's reload, and its view of the device's health.
func TestLabFaultReload(t *testing.T) {
	o := realLab(t)
	o.Image = ImageFull
	faultRun(t, o, quick, []step{
		{"reload", "begin " + batchOf + "\ndevlink dev reload pci/$BDF; echo reload $?\nend\nworks", []string{"under way", "exit 3: ", "reload 0", "works again"}},
		{"reporter", "fault health:syndrome=0x10\nsleep 1\ndevlink health diagnose pci/$BDF reporter fw\nfault health:syndrome=0\nworks", []string{"Syndrome: 16", "works again"}},
		// At the end, and no removal after it: the driver's reporter may be at work, which it waits for only after it has
		// taken its devlink back, and the kernel warns (6.1: remove_one, devlink_recover_notify).
		{"eq-async", "fault eq:queue=async\nip link set $(ls $PCI/net) down\nip link set $(ls $PCI/net) up\nsleep 1\nprog devxlab qp rts mlx5_0\ndevlink health diagnose pci/$BDF reporter fw\nworks",
			[]string{"exit 0: ", "Syndrome: 12", "Link down", "!Link up", "works again"}},
	})
}

// TestLabFaultKilled is a device whose process ends in mid-command.
func TestLabFaultKilled(t *testing.T) {
	faultRun(t, realLab(t), "--command-timeout 30s --health-poll 200ms", []step{
		// The commands under way are held first, so that QEMU is not in the middle of a
		// store when the device goes: 11.1.3 then aborts (see docs/faults.md).
		{"kill", "fault silent:op=RTR2RTS_QP,user,times=64\nfault kill:after=4s\nprog devxlab qp batch mlx5_0\nprog devxlab qp rts mlx5_0", []string{"exit 3: ", "device gone", "Fatal error 1 detected"}},
	})
}

// TestLabFaultMinute is the driver's own patience, 60 s and 5 more.
func TestLabFaultMinute(t *testing.T) {
	longFaults(t)
	s := stepLate
	s.script = "LIMIT=90\nfault silent:op=RTR2RTS_QP,user,for=70s\n" + s.script[strings.Index(s.script, "\n")+1:] + "\nsleep 4"
	faultRun(t, realLab(t), "", []step{s})
}

// TestLabFaultsTwoCPUs is all of them where the driver's work and the program's run
// at the same time.
func TestLabFaultsTwoCPUs(t *testing.T) {
	allFaults(t)
	o := realLab(t)
	o.Append, o.SMP = "swiotlb=8192,force", 2
	faultRun(t, o, quick, recoverable)
}

// TestLabFaultCommandEQ is a driver that hears of no completed command.
func TestLabFaultCommandEQ(t *testing.T) {
	allFaults(t)
	// The kernel warns because it hears of no destruction either.
	faultRunWarns(t, realLab(t), quick, []step{
		{"eq-cmd", "LIMIT=120\nfault eq:queue=cmd,op=RTR2RTS_QP,user\nprog devxlab qp rts mlx5_0", []string{"exit 5: .*errno 110", "No done completion"}},
	}, true)
}

// TestLabFaultKernels is a command that is answered late, health and FLR on each
// kernel. Before Linux 5.16 none can be told to wait less.
func TestLabFaultKernels(t *testing.T) {
	longFaults(t)
	for _, kernel := range KernelNames() {
		t.Run(kernel, func(t *testing.T) {
			o := realLab(t)
			o.Kernel, o.Timeout = kernel, 6*time.Minute
			steps := []step{stepLate, stepHealth, {name: "rescan", script: "rescan", want: []string{"works again"}}, stepFLR}
			if kernel == "5.10" {
				steps[0].script = "LIMIT=90\nfault silent:op=RTR2RTS_QP,user,for=70s\n" + stepLate.script[strings.Index(stepLate.script, "\n")+1:] + "\nsleep 4"
			}
			faultRunWarns(t, o, quick, steps, kernel == "5.10") // that one leaves objects of a device in its error state
		})
	}
}
