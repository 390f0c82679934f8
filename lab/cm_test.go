// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"devxlab.example/internal/require"
)

// cmtimePairs is how many pairs of runs there are: enough for an interval around a
// median that covers 95 %.
const cmtimePairs = 20

// TestLabCmtime holds devxlab cm bench beside rdma-core's cmtime in the same guest,
// 1,000 connections each time, and logs the table of docs/cm.md. It asserts only that
// each run gave its figures: what they are depends on the machine.
func TestLabCmtime(t *testing.T) {
	require.Long(t, "cmtime", "DEVXLAB_REQUIRE=lab-full,cmtime go test ./lab -run TestLabCmtime -timeout 2h -v")
	o := trafficOptions(t)
	var out bytes.Buffer
	o.Timeout, o.Devices, o.Stdout, o.Stderr = 2*time.Hour, 2, &out, &out
	o.HCA, o.Args = []string{o.Devxlab, "emu"}, []string{"sh", guestScripts + "cmtime.sh", strconv.Itoa(cmtimePairs), "1000"}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Logf("%d pairs\n%s", cmtimePairs, pairTable(t, r.Release, out.String(), "devxlab", "cmtime", cmtimePairs))
}

// Set-ups through DevX, and idle and congested ones: bench c3, on a small scale. The third card's traffic and
// the requests share the way to the second one.
func TestLabSetups(t *testing.T) {
	require.Long(t, "long-wire", "make lab-wire") // the wire is made busy 21 times
	o := trafficOptions(t)
	var out bytes.Buffer
	o.SMP, o.Append, o.Devices, o.Stdout, o.Stderr = 2, "tsc=reliable", 3, &out, &out
	o.HCA = []string{o.Devxlab, "emu", "--wire", "rate=50M,queue=64K,delay=10us"}
	o.Args = []string{"sh", guestScripts + "setups.sh", "--connections", "100"}
	r, err := Run(t.Context(), o)
	said := out.String()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	t.Log(said)
	if r.Status != 0 {
		t.Errorf("exit status %d", r.Status)
	}
	for _, want := range []string{"\n20 connections in ", "idle: 100 connections", "congested: 100 connections", "P99.9 needs 10,000 congested connections, and there are 100", "rejected 0"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(said, "LISTEN") || strings.Contains(said, "CONNECT ps") {
		t.Error("an ID is left over")
	}
}

// kernelTests are those of package cm that ask a kernel.
var kernelTests = []string{"PrivateData", "Rejects", "LostMessages", "PeerRestarts", "LinkFlap", "PeerChangesMAC"}

// Package cm makes connections between two cards of a guest, through the kernel's
// connection manager: its tests, compiled here, lose messages on the wire, restart a
// peer, take the link down.
func TestLabConnections(t *testing.T) {
	o := trafficOptions(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "cm.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", file, "../cm")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	o.Put = append(o.Put, Copy{From: file, To: "/srv/cm.test"})
	want := kernelTests
	o.Env = append(o.Env, "CM_FAR=1", "GOMAXPROCS=8")
	if require.Named("long-wire") {
		want = append(want, "Unreachable")
		o.Env = append(o.Env, "CM_LONG=1")
	}
	in, answer := io.Pipe()
	defer answer.Close()
	c := &controller{t: t, path: filepath.Join(dir, "control"), answer: answer}
	o.Devices, o.Tap, o.Stdin, o.Stdout, o.Stderr = 2, filepath.Join(dir, "tap.pcapng"), in, c, c
	o.HCA = []string{o.Devxlab, "emu", "--control", c.path}
	o.Args = []string{"sh", "-c", "sh " + guestScripts + "apart.sh && cd /srv && exec ./cm.test -test.v -test.run '^TestKernel(" + strings.Join(kernelTests, "|") + "|Unreachable)$' -test.timeout 12m"}
	r, err := Run(t.Context(), o)
	said := c.all.String()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	t.Log(said)
	if r.Status != 0 {
		t.Errorf("exit status %d", r.Status)
	}
	for _, name := range want {
		if !strings.Contains(said, "--- PASS: TestKernel"+name+" (") {
			t.Errorf("TestKernel%s has not passed", name)
		}
	}
	out, err := exec.Command(o.Devxlab, "pcap", o.Tap).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Log(string(out))
	for what, n := range map[string]int{
		"rejected by the server: 8,": 1, "rejected by the server: 28,": 2, "rejected by the server: 10,": 2, "rejected by the client: 4,": 2,
	} {
		if got := strings.Count(string(out), what) - 1; got != n { // once more in the totals
			t.Errorf("on the wire %d connections were %s of %d", got, what, n)
		}
	}
	checkTap(t, o.Tap, "ARP/RARP") // the far card has two MAC addresses in turn
}
