// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// twoGuests boots two machines whose cards are on one wire, and runs a program
// in each; the second has the card with the address 192.168.7.2.
func twoGuests(t *testing.T, o Options, wire, first, second string) (outFirst, outSecond string) {
	t.Helper()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	emu := exec.CommandContext(ctx, o.Devxlab, "emu", "--socket", a, "--socket", b, "--wire", wire, "--tap", filepath.Join(dir, "tap.pcapng"))
	var said bytes.Buffer
	emu.Stdout, emu.Stderr = &said, &said
	if err := emu.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = emu.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	}()
	for end := time.Now().Add(20 * time.Second); !exists(a) || !exists(b); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no sockets: %s", said.String())
		}
	}
	type ended struct {
		out string
		err error
	}
	start := func(socket, script string) chan ended {
		c := make(chan ended, 1)
		go func() {
			o := o
			var out bytes.Buffer
			o.Sockets, o.Args, o.Stdout, o.Stderr = []string{socket}, []string{"sh", "-c", script}, &out, &out
			_, err := Run(ctx, o)
			c <- ended{out.String(), err}
		}()
		return c
	}
	server := start(b, second)
	client := <-start(a, first)
	if client.err != nil {
		cancel()
	}
	s := <-server
	if client.err != nil || s.err != nil {
		t.Fatalf("%v\n%s\nthe other guest: %v\n%s", client.err, client.out, s.err, s.out)
	}
	return client.out, s.out
}

// Two guests talk over a link: the kernel's own traffic, and RDMA that each
// kernel's connection manager set up.
func TestLabTwoGuests(t *testing.T) {
	o := realLabOf(t, "lab-full", ImageFull)
	client, server := twoGuests(t, o, "delay=100us",
		`for i in $(seq 100); do ping -c 1 -W 1 192.168.7.2 > /dev/null && break; done; ping -c 1 192.168.7.2 > /dev/null && echo ping
for i in $(seq 30); do ibv_rc_pingpong -g 3 -n 100 192.168.7.2 | grep '^100 iters' && break; sleep 1; done
for i in $(seq 30); do rping -c -a 192.168.7.2 -C 3 && echo rping && break; sleep 1; done`,
		`ibv_rc_pingpong -g 3 -n 100 | grep '^100 iters'; timeout 60 rping -s -C 3 && echo rping`)
	for _, want := range []string{"ping\n", "100 iters in ", "rping\n"} {
		if !strings.Contains(client, want) {
			t.Errorf("the client has no %q: %s", want, client)
		}
	}
	for _, want := range []string{"100 iters in ", "rping\n"} {
		if !strings.Contains(server, want) {
			t.Errorf("the server has no %q: %s", want, server)
		}
	}
}
