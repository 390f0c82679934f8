// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"devxlab.example/internal/require"
)

// patchedLab returns options for a guest with patched modules, which the user has
// made (patches/README.md): there is no patched kernel anywhere to fetch.
func patchedLab(t *testing.T, feature, image string) Options {
	t.Helper()
	kernel, modules := os.Getenv("DEVXLAB_PATCHED_KERNEL"), os.Getenv("DEVXLAB_PATCHED_MODULES")
	var err error
	if kernel == "" || modules == "" {
		err = errors.New("no patched kernel is named: DEVXLAB_PATCHED_KERNEL=vmlinux DEVXLAB_PATCHED_MODULES=DIR, the lib/modules/RELEASE that devxlab patches build --modules makes")
	}
	require.Have(t, "patched", err)
	o := realLabOf(t, feature, image)
	o.Kernel, o.Modules = kernel, modules
	o.Devices, o.HCA, o.SMP, o.Params = 1, []string{o.Devxlab, "emu"}, 2, map[string]string{}
	return o
}

// runPatched runs a script, and returns what it said.
func runPatched(t *testing.T, o Options, script string) string {
	t.Helper()
	var out, wrong bytes.Buffer
	o.Args, o.Stdout, o.Stderr = []string{"sh", "-c", script}, &out, &wrong
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, tail(out.String()), tail(wrong.String()))
	}
	if r.Status != 0 {
		t.Errorf("exit status %d: %s\n%s", r.Status, tail(out.String()), tail(wrong.String()))
	}
	t.Logf("kernel %s: %s", r.Release, out.String())
	return out.String()
}

// Verbs queue pairs are changed, queried and destroyed while the bookkeeping of
// their RTR2RTS waits for its timer: TestOnDeviceAfterRTS of devx. And each of the
// delays has been used: the work that ends it ran.
func TestLabPatchedDeferredRTS(t *testing.T) {
	o := patchedLab(t, "lab", ImageBasic)
	o.Params["mlx5_ib"], o.Env = "rts_defer_qps=1", []string{"DEV=mlx5_0", "DEVXLAB_REQUIRE=device"}
	o.Put = append(o.Put, Copy{From: testBinary(t, "devx"), To: "/srv/devx.test"})
	said := runPatched(t, o, `set -e
mount -t tracefs none /sys/kernel/tracing 2>/dev/null || true
cd /sys/kernel/tracing
echo 'p:deferred deferred_rts_work' > kprobe_events
echo 1 > events/kprobes/enable
for us in 1000 50 0; do
	echo $us > /sys/module/mlx5_ib/parameters/rts_defer_us
	/srv/devx.test -test.run 'OnDevice(AfterRTS|Life)' > /dev/null
	awk '{ print $1, $2 }' kprobe_profile
done`)
	var before string
	for n, line := range strings.Split(strings.TrimSpace(said), "\n") {
		if line == before || !strings.HasPrefix(line, "deferred ") || line == "deferred 0" || n > 2 {
			t.Errorf("delay %d: %q, before that %q", n, line, before)
		}
		before = line
	}
}

// A storm of requests for a queue pair that a live connection has: each one is
// refused, and another peer gets its connection; with the limit, those that are
// not answered have to ask again.
func TestLabPatchedStaleConnections(t *testing.T) {
	const requests = 4
	for _, limited := range []bool{false, true} {
		o := patchedLab(t, "lab-full", ImageFull)
		script, err := filepath.Abs("testdata/stale.py")
		if err != nil {
			t.Fatal(err)
		}
		if o.Put = append(o.Put, Copy{From: script, To: "/srv/stale.py"}); limited {
			o.Params["ib_cm"] = "limit_stale_conn=1"
		}
		var got struct {
			Refused, Accepted int
			Other             string
			Retries           int `json:"cm_tx_retries_req"`
			REJ               int `json:"cm_tx_msgs_rej"`
		}
		if err := json.Unmarshal([]byte(runPatched(t, o, "python3 /srv/stale.py 192.168.7.1 4")), &got); err != nil {
			t.Fatal(err)
		}
		if got.Refused != requests || got.Accepted != 1 || got.Other != "ESTABLISHED" || got.REJ != requests {
			t.Errorf("limited %v: %+v", limited, got)
		}
		// One is answered at once, and then one after each repetition of the rest.
		if least := requests - 1; limited && got.Retries < least || !limited && got.Retries != 0 {
			t.Errorf("limited %v: %d requests were repeated, want 0 without the limit and at least %d with it", limited, got.Retries, least)
		}
	}
}

// One ioctl for many queue pairs does what one by one does, and what it must not
// take it refuses: the tests of devx and batch that ask for the ioctl.
func TestLabPatchedBatch(t *testing.T) {
	o := patchedLab(t, "lab", ImageBasic)
	o.Env = []string{"DEV=mlx5_0", "DEVXLAB_REQUIRE=modify-batch"}
	o.Put = append(o.Put, Copy{From: testBinary(t, "devx"), To: "/srv/devx.test"}, Copy{From: testBinary(t, "batch"), To: "/srv/batch.test"})
	said := runPatched(t, o, "cd /srv; ./devx.test -test.v -test.run ModifyBatch && ./batch.test -test.v -test.run KernelStrategy")
	for _, name := range []string{"TestModifyBatchOfThisKernel", "TestModifyBatchBadOneInTheMiddle", "TestModifyBatchChecks", "TestModifyBatchTwoContexts", "TestKernelStrategyOfThisKernel"} {
		if !strings.Contains(said, "--- PASS: "+name+" (") {
			t.Errorf("%s has not passed", name)
		}
	}
}

// A process is killed in the middle of a batch, two work at once, and the network
// device goes on meanwhile.
func TestLabPatchedBatchKilled(t *testing.T) {
	o := patchedLab(t, "lab", ImageBasic)
	script, err := filepath.Abs("testdata/batch.sh")
	if err != nil {
		t.Fatal(err)
	}
	o.HCA = append(o.HCA, "--latency", (50 * time.Millisecond).String())
	o.Put = append(o.Put, Copy{From: script, To: "/srv/batch.sh"})
	said := runPatched(t, o, "sh /srv/batch.sh")
	for _, want := range []string{"killed 137\n", `"done": 128`, "mtu 1400 meanwhile\n", `/tmp/one:    "done": 512`, `/tmp/two:    "done": 512`} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is missing", want)
		}
	}
}

// The device dies in the middle of a batch of 2RST, which Linux 5.15 then answers
// itself: the call returns. The guest is not switched off before the driver has
// the device back: 5.15 does not survive that, with or without the patches.
func TestLabPatchedBatchDeviceDies(t *testing.T) {
	o := patchedLab(t, "lab", ImageBasic)
	o.Faults = []string{"health:syndrome=0x1,fatal,op=2RST_QP,user,nth=40"}
	said := runPatched(t, o, `devxlab qp batch --kernel-batch --qps 32 --group 64 --rounds 20 mlx5_0; echo "exit $?"
until dmesg | grep -q 'health recovery succeeded'; do sleep 0.2; done`)
	if !strings.Contains(said, "exit 3\n") {
		t.Errorf("not what a device that is gone gives")
	}
}

// A failed command shows status and syndrome as from Linux 5.18 on, if asked to,
// and otherwise answers as ever. Later kernels have no such parameter.
func TestLabPatchedOutbox(t *testing.T) {
	o := patchedLab(t, "lab", ImageBasic)
	o.SMP = 1 // one completion vector, as the emulated device that it is compared with
	said := runPatched(t, o, `p=/sys/module/mlx5_ib/parameters/devx_outbox_on_error
test -e $p || { echo none; devxlab verify mlx5_0; exit; }
cat $p
devxlab verify mlx5_0 && echo Y > $p && devxlab verify --against emu:kernel=5.18 mlx5_0`)
	asked := strings.Count(said, ": 0 answered differently by mlx5_0 and ")
	if off, rest, _ := strings.Cut(said, "\n"); off == "N" && (asked != 2 || !strings.Contains(rest, "kernel=5.18")) || off == "none" && asked != 1 || off != "N" && off != "none" {
		t.Errorf("%d comparisons without a difference", asked)
	}
}
