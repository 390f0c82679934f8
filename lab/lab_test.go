// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"devxlab.example/internal/require"
)

// realLab returns options for a real guest. Where the lab is required it may be
// downloaded; elsewhere only what is there is used.
func realLab(t *testing.T) Options { return realLabOf(t, "lab", ImageBasic) }

func realLabOf(t *testing.T, feature, image string) Options {
	t.Helper()
	o := Options{Offline: !require.Named(feature), Image: image, Timeout: 5 * time.Minute, Progress: io.Discard}
	_, _, err := Fetch(t.Context(), o)
	if err == nil || errors.Is(err, ErrMissing) {
		require.Have(t, feature, err)
	} else {
		t.Fatal(err)
	}
	o.Devxlab = filepath.Join(t.TempDir(), "devxlab")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", o.Devxlab, "../cmd/devxlab")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return o
}

// A distribution's kernel boots, and what goes in and comes out of the guest is
// what it should be.
func TestLab(t *testing.T) {
	o := realLab(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "in"), []byte("from the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	o.Args = []string{"sh", "-c", "uname -r; ls /sys/class/infiniband || true; cat; cat /srv/in > /tmp/out; head -c 3000000 /dev/zero > /tmp/big; pwd >&2; echo $WHO; exit 42"}
	o.Stdin, o.Stdout, o.Stderr = strings.NewReader("through standard input\n"), &out, &errOut
	o.Dir, o.Env = "/srv/here", []string{"WHO=me"}
	o.Put = []Copy{{From: filepath.Join(dir, "in"), To: "/srv/in"}}
	o.Get = []Copy{{From: "/tmp/out", To: filepath.Join(dir, "out")}, {From: "/tmp/big", To: filepath.Join(dir, "big")}}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("kernel %s, QEMU %s, KVM %v: process 1 after %v, program after %v, off after %v", r.Release, r.QEMU, r.KVM, r.Init, r.Boot, r.Total)
	if want := r.Release + "\nthrough standard input\nme\n"; r.Status != 42 || out.String() != want || errOut.String() != "/srv/here\n" {
		t.Errorf("status %d, %q, want %q, %q", r.Status, out.String(), want, errOut.String())
	}
	if b, err := os.ReadFile(filepath.Join(dir, "out")); err != nil || string(b) != "from the host" {
		t.Errorf("%q, %v", b, err)
	}
	if fi, err := os.Stat(filepath.Join(dir, "big")); err != nil || fi.Size() != 3000000 {
		t.Errorf("a big file: %v, %v", fi, err)
	}
}

// The kernel's own driver takes the device that devxlab emu is.
func TestLabDevice(t *testing.T) {
	o := realLab(t)
	var out bytes.Buffer
	o.Devices, o.HCA, o.Stdout = 1, []string{o.Devxlab, "emu"}, &out
	o.Args = []string{"sh", "-c", "ls /sys/class/infiniband; cat /sys/class/infiniband/mlx5_0/ports/1/state; devxlab info mlx5_0 | head -n 1"}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(out.String()); !slices.Equal(got, []string{"mlx5_0", "4:", "ACTIVE", "device", "mlx5_0"}) {
		t.Errorf("%q", out.String())
	}
}

// Programs of an unmodified rdma-core move data through the device, from one
// process to another.
func TestLabTraffic(t *testing.T) {
	o := realLabOf(t, "lab-full", ImageFull)
	var out bytes.Buffer
	o.Devices, o.HCA, o.Stdout, o.Tap = 1, []string{o.Devxlab, "emu"}, &out, filepath.Join(t.TempDir(), "tap.pcapng")
	o.Args = []string{"sh", "-c", `for t in rc uc ud srq; do
	ibv_${t}_pingpong -e -g 1 -n 100 > /dev/null & sleep 1
	ibv_${t}_pingpong -e -g 1 -n 100 localhost | grep -q '^100 iters' && wait $! && echo $t
done
rping -s -C 3 & sleep 1; rping -c -a 192.168.7.1 -C 3 && echo rping
ib_atomic_bw -n 100 -x 1 > /dev/null & sleep 1; ib_atomic_bw -n 100 -x 1 localhost > /dev/null && echo atomic
cat /sys/class/infiniband/mlx5_0/ports/1/hw_counters/rx_atomic_requests`}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(out.String())
	got = slices.DeleteFunc(got, func(s string) bool {
		return !slices.Contains([]string{"rc", "uc", "ud", "srq", "rping", "atomic", "100"}, s)
	})
	if !slices.Equal(got, []string{"rc", "uc", "ud", "srq", "rping", "atomic", "100"}) {
		t.Errorf("%q", out.String())
	}
	checkTap(t, o.Tap)
}

// What the kernel says about itself fails a run whose program does not mind.
func TestLabTrouble(t *testing.T) {
	o := realLab(t)
	o.Args = []string{"sh", "-c", "echo '<4>WARNING: CPU: 0 PID: 1 at lab_test.c:1' > /dev/kmsg; exit 0"}
	o.Get = []Copy{{From: "/not/there", To: filepath.Join(t.TempDir(), "x")}}
	r, err := Run(t.Context(), o)
	var k *KernelError
	if r == nil || !errors.As(err, &k) || !strings.Contains(err.Error(), "lab_test.c:1") || !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "/not/there") {
		t.Errorf("%+v, %v", r, err)
	}
}
