// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"devxlab.example/emu/fw"
)

// The server makes its socket, takes a client, and ends with it, or when it is
// interrupted.
func TestEmu(t *testing.T) {
	dir := t.TempDir()
	serve := func(ctx context.Context, c emuCmd) (string, chan error) {
		if len(c.Socket) == 0 {
			c.Socket = []string{filepath.Join(dir, "s")}
		}
		c.Profile = "zero"
		r, w := io.Pipe()
		done := make(chan error, 1)
		go func() {
			done <- c.Run(&env{ctx: ctx, out: w, err: io.Discard})
			_ = w.Close()
		}()
		line := make([]byte, 200)
		n, _ := r.Read(line)
		return string(line[:n]), done
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if line, done := serve(ctx, emuCmd{Once: true, Log: filepath.Join(dir, "log")}); !strings.Contains(line, "31 commands in flight, profile zero") {
		t.Fatalf("%q, %v", line, <-done)
	} else {
		c, err := net.Dial("unix", filepath.Join(dir, "s"))
		if err != nil {
			t.Fatal(err)
		}
		// VFIO_USER_VERSION, 0.0, without capabilities: only then is it a client.
		if _, err := c.Write([]byte{0, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 16)); n != 16 || err != nil {
			t.Fatalf("the reply to VERSION: %d bytes, %v", n, err)
		}
		_ = c.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	_, done := serve(ctx, emuCmd{})
	other := emuCmd{Socket: []string{filepath.Join(dir, "s")}, Profile: "zero"}
	if err := other.Run(&env{ctx: ctx, out: io.Discard, err: io.Discard}); err == nil || !strings.Contains(err.Error(), "another process serves there") {
		t.Errorf("a socket that is in use: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Faults are armed through the control socket, and what is wrong with one is its
// answer.
func TestEmuControl(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan error, 1)
	c := emuCmd{Socket: []string{filepath.Join(dir, "s")}, Control: filepath.Join(dir, "c"), Profile: "zero", Fault: []string{"silent:op=NOP"}, HealthPoll: time.Second}
	go func() { done <- c.Run(&env{ctx: ctx, out: w, err: io.Discard}) }()
	if _, err := r.Read(make([]byte, 200)); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", c.Control)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for _, tt := range []struct{ line, want string }{
		{"health:syndrome=0x8", "ok\n"},
		{"nonsense", "error: fault \"nonsense\": "},
		{"eq:queue=cmd", "error: fault eq:queue=cmd: the driver has no such queue now\n"},
		{"1 health:syndrome=0x8", "ok\n"},
		{"2 health:syndrome=0x8", "error: card \"2\": 1 to 1\n"},
		{"wire loss=1%", "error: a card alone has no wire\n"},
		{"lose REP", "error: a card alone has no wire\n"},
		{"silent:op=RTR2RTS_QP,user", "ok\n"},
	} {
		if _, err := io.WriteString(conn, tt.line+"\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := answers.ReadString('\n'); err != nil || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %q, %v, want %q", tt.line, got, err, tt.want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// With --once a client that comes back keeps the cards of both alive.
func TestEmuOnce(t *testing.T) {
	dir := t.TempDir()
	c := emuCmd{Socket: []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}, Profile: "zero", Once: true, Log: filepath.Join(dir, "log")}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- c.Run(&env{ctx: t.Context(), out: w, err: io.Discard}) }()
	if _, err := r.Read(make([]byte, 200)); err != nil {
		t.Fatal(err)
	}
	first := client(t, c.Socket[0])
	_ = first.Close()
	second, other := client(t, c.Socket[0]), client(t, c.Socket[1]) // the server takes one after the other
	if err := exchange(second); err != nil {                        // it is counted, which its first answer does not say
		t.Fatal(err)
	}
	_ = other.Close()
	other = client(t, c.Socket[1]) // so the server has seen that its first one is gone
	_ = other.Close()
	if err := exchange(second); err != nil {
		t.Errorf("a client that came back lost its card: %v", err)
	}
	_ = second.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// client is one that the server has answered.
func client(t *testing.T, socket string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err == nil {
		// VFIO_USER_VERSION, 0.0, without capabilities: only then is it a client.
		_, err = c.Write([]byte{0, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	}
	if err == nil {
		_, err = c.Read(make([]byte, 64))
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// exchange asks for the device's properties (VFIO_USER_DEVICE_GET_INFO).
func exchange(c net.Conn) error {
	ask := make([]byte, 32)
	copy(ask, []byte{1, 0, 4, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16})
	_, err := c.Write(ask)
	if err == nil {
		_, err = c.Read(make([]byte, 64))
	}
	return err
}

func TestEmuErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"emu", exitUsage, "--socket"},
		{"emu --socket " + file + " --profile nosuch", exitUsage, "nosuch"},
		{"emu --socket " + file + " --mac ff:ff:ff:ff:ff:ff", exitUsage, "unicast"},
		{"emu --socket " + file + " --mac x", exitUsage, "unicast"},
		{"emu --socket " + file + " --fault silent:nth=0", exitUsage, "a number, 1 to"},
		{"emu --socket " + file + " --wire loss=1%", exitUsage, "give a second --socket"},
		{"emu --socket " + file + " --tap " + file + "/x", exitFailed, "not a directory"},
		{"emu --socket " + file + " --socket y --wire loss=2", exitUsage, "loss"},
		{"emu --socket " + file + "2 --socket " + file + "2", exitUsage, "twice"},
		{"emu --socket " + file + " --latency 2h", exitUsage, "above 1m5s"},
		{"emu --socket " + file, exitFailed, "address already in use"},
		{"emu --socket " + file + "/x --log " + file + "/y", exitFailed, "not a directory"},
	} {
		var out, errOut bytes.Buffer
		if code := run(strings.Fields(tt.args), nil, &out, &errOut); code != tt.code || !strings.Contains(errOut.String(), tt.says) {
			t.Errorf("%s: exit code %d, want %d: %s", tt.args, code, tt.code, errOut.String())
		}
	}
}

func TestCommandLine(t *testing.T) {
	ok := commandLine([]byte{8, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 16), time.Millisecond)
	if want := "ALLOC_PD op_mod=0x0 uid=3 in=16 out=16 1ms: OK"; ok != want {
		t.Errorf("%q, want %q", ok, want)
	}
	check := fw.Checks()[0]
	refused := commandLine([]byte{0xff, 0xff}, []byte{byte(check.Status), 0, 0, 0, 0xde, 0, 0, 1}, 0)
	if !strings.Contains(refused, check.Refuses) {
		t.Error(refused)
	}
}

// Several cards count up from the first one's address, also into the next byte,
// and never to an address that is no card's.
func TestCardAddresses(t *testing.T) {
	got, err := cardAddresses([6]byte{0x0c, 0x42, 0xa1, 0, 0, 0xff}, 2)
	if err != nil || len(got) != 2 || got[1] != [6]byte{0x0c, 0x42, 0xa1, 0, 1, 0} {
		t.Errorf("%x, %v", got, err)
	}
	for _, first := range [][6]byte{{0x0c, 0xff, 0xff, 0xff, 0xff, 0xff}, {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff}} {
		if got, err := cardAddresses(first, 1); err != nil || len(got) != 1 {
			t.Errorf("%x, %v", got, err)
		}
		if got, err := cardAddresses(first, 2); err == nil || !strings.Contains(err.Error(), "begin lower") {
			t.Errorf("%x, %v", got, err)
		}
	}
	err = emuCmd{Socket: []string{"a", "b"}, Profile: "zero", MAC: "0c:ff:ff:ff:ff:ff"}.Run(&env{ctx: t.Context(), out: io.Discard, err: io.Discard})
	if u := (usageError{}); !errors.As(err, &u) {
		t.Errorf("%v", err)
	}
}
