// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"devxlab.example/internal/require"
)

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
	o.Args = []string{"sh", "-c", "sh " + guestScripts + "apart.sh && cd /srv && exec ./cm.test -test.v -test.run '^TestKernel' -test.timeout 12m"}
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
