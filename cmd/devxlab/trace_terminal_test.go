// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"devxlab.example/ebpf"
	"devxlab.example/internal/require"
	"devxlab.example/internal/testdev"
	"devxlab.example/mlx5"
)

// Whatever is drawn, and whatever was there, the terminal shows the beginning of each
// line that fits, nothing else, and nothing has scrolled.
func TestScreen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows, columns := rapid.IntRange(2, 12).Draw(t, "rows"), rapid.IntRange(2, 20).Draw(t, "columns")
		v := newVT(rows, columns)
		for range 2 {
			lines := rapid.SliceOfN(rapid.StringOfN(rapid.RuneFrom([]rune("abµ…─ ")), 0, 30, -1), 1, 20).Draw(t, "lines")
			text := strings.Join(lines, "\n")
			if err := v.write(screen(text, rows, columns)); err != nil {
				t.Fatal(err)
			}
			shown := strings.Split(strings.TrimRight(text, "\n"), "\n")
			got := strings.Split(v.text(), "\n")
			for i := range rows {
				want := ""
				switch {
				case len(shown) > rows && i == rows-1:
					want = fmt.Sprintf("… %d more lines: a taller terminal, or --summary", len(shown)-rows+1)
				case i < len(shown):
					want = shown[i]
				}
				if r := []rune(want); len(r) > columns {
					want = string(r[:columns-1]) + "…"
				}
				if want = strings.TrimRight(want, " "); got[i] != want {
					t.Fatalf("line %d: %q, want %q", i, got[i], want)
				}
			}
			if v.scrolled != 0 || v.pending != "" {
				t.Fatalf("%d lines have scrolled, %q is left", v.scrolled, v.pending)
			}
		}
	})
}

// A frame begins with what changes, and ends with where it comes from.
func TestTraceFrame(t *testing.T) {
	var b strings.Builder
	s := &ebpf.Snapshot{Counts: []ebpf.Count{{Stage: ebpf.Command, Op: mlx5.Op2RST, N: 5}},
		Times:    []ebpf.Times{{Part: ebpf.Whole, Op: mlx5.Op2RST, Status: 8}},
		Failures: []ebpf.Failure{{Op: mlx5.Op2RST, Status: 8, Syndrome: 0x1234, N: 3}},
		Endings:  []ebpf.Ending{{Outcome: ebpf.Rejected, Passive: true, Reason: 28, N: 4}},
		Lost:     ebpf.Lost{Records: 2}}
	v := &traceView{&env{out: &b}, []ebpf.Coverage{{Stage: ebpf.Command, Where: "x"}, {Stage: ebpf.Awake, Why: "no symbol"}}, s, 6, 2 * time.Second}
	if err := v.frame(); err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, want := range []string{"2s of tracing", "command", "2RST_QP  limits exceeded", "failed", "2RST_QP  3      1.5         0x1234    limits exceeded", "connections open: 6",
		"rejected: 28, refused by the program  passive  4      2.0", "not seen", "2  records", "stage", "command  5            2.5", "awake    not visible  no symbol"} {
		i := strings.Index(b.String()[at:], want)
		if i < 0 {
			t.Fatalf("no %q behind the %dth byte of\n%s", want, at, b.String())
		}
		at += i
	}
}

// terminal is a pseudo terminal with a program on it.
type terminal struct {
	t     *testing.T
	ptm   *os.File
	pts   *os.File
	shows *vt
	all   strings.Builder
}

func newTerminal(t *testing.T, rows, columns int) *terminal {
	t.Helper()
	ptm, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ptm.Fd()), unix.TIOCGPTN)
	if err = errors.Join(err, unix.IoctlSetPointerInt(int(ptm.Fd()), unix.TIOCSPTLCK, 0), unix.SetNonblock(int(ptm.Fd()), true)); err != nil {
		t.Fatal(err)
	}
	pts, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := &terminal{t: t, ptm: ptm, pts: pts, shows: newVT(rows, columns)}
	t.Cleanup(func() { _ = errors.Join(ptm.Close(), pts.Close()) })
	m.resize(rows, columns)
	return m
}

func (m *terminal) resize(rows, columns int) {
	m.t.Helper()
	if err := unix.IoctlSetWinsize(int(m.pts.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(columns)}); err != nil {
		m.t.Fatal(err)
	}
	m.shows.resize(rows, columns)
}

// until reads output until the terminal shows something, or what was written ends.
func (m *terminal) until(what string, done func() bool) {
	m.t.Helper()
	end := time.Now().Add(4 * time.Minute)
	b := make([]byte, 1<<16)
	for !done() {
		poll := []unix.PollFd{{Fd: int32(m.ptm.Fd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, 1000); err != nil && !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			m.t.Fatalf("%s: %v: the terminal shows\n%s", what, err, m.shows.text())
		} else if n <= 0 {
			continue
		}
		n, err := unix.Read(int(m.ptm.Fd()), b)
		if err != nil {
			m.t.Fatalf("%s: %v: the terminal shows\n%s", what, err, m.shows.text())
		}
		m.all.Write(b[:n])
		if err := m.shows.write(string(b[:n])); err != nil {
			m.t.Fatal(err)
		}
	}
}

// kernelDevice is the one that tests run on; TestMain takes it from the environment,
// because all others are about emulated ones.
var kernelDevice = testdev.Kernel()

// On a terminal the table is drawn every second in the place of the last one, cut to
// its size as it is now. Ctrl-C ends it with the whole, and the terminal is as it was.
func TestOnTerminal(t *testing.T) {
	if kernelDevice == "" {
		require.Have(t, "kernel-device", errors.New("there is nothing to trace without a driver"))
	}
	m := newTerminal(t, 12, 60)
	before, err := unix.IoctlGetTermios(int(m.pts.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "devxlab", "trace")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = m.pts, m.pts, m.pts
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	shows := func(words ...string) func() bool {
		return func() bool {
			for _, w := range words {
				if !strings.Contains(m.shows.text(), w) {
					return false
				}
			}
			return true
		}
	}
	m.until("a small terminal", shows("of tracing", "more lines"))
	load := exec.CommandContext(ctx, "devxlab", "qp", "batch", kernelDevice, "--qps", "50", "--rounds", "1000000")
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	m.until("commands", shows("RTR2RTS_QP", "per second", "more lines"))
	t.Logf("12 lines of 60:\n%s", m.shows.text())
	if m.shows.scrolled != 0 {
		t.Errorf("%d lines have scrolled", m.shows.scrolled)
	}
	m.resize(120, 200)
	m.until("a large terminal", shows("RTR2RTS_QP", "per second", "call", "CM end"))
	if s := m.shows.text(); strings.Contains(s, "more lines") && !strings.Contains(s[strings.Index(s, "CM end"):], "more lines") {
		t.Errorf("lines are hidden above the last:\n%s", s)
	}
	if m.shows.scrolled != 0 {
		t.Errorf("%d lines have scrolled", m.shows.scrolled)
	}
	_ = load.Process.Kill()
	_ = load.Wait()
	m.all.Reset()
	if _, err := m.ptm.WriteString("\x03"); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	ended := false
	var status error
	m.until("the whole", func() bool {
		select {
		case status = <-exited:
			ended = true
		default:
		}
		return ended
	})
	for n := 1; n > 0; { // what is left
		poll := []unix.PollFd{{Fd: int32(m.ptm.Fd()), Events: unix.POLLIN}}
		if n, _ = unix.Poll(poll, 0); n > 0 {
			b := make([]byte, 1<<16)
			n, _ = unix.Read(int(m.ptm.Fd()), b)
			m.all.Write(b[:max(n, 0)])
		}
	}
	var exit *exec.ExitError
	if status != nil && (!errors.As(status, &exit) || exit.ExitCode() != exitInterrupted) {
		t.Errorf("ended with %v", status)
	}
	last := m.all.String()
	if i := strings.LastIndex(last, clearScreen); i < 0 {
		t.Errorf("the last frame is still there: %q", last)
	} else {
		last = last[i:]
	}
	for _, want := range []string{"uverbs modify", "CM end", "RTR2RTS_QP"} {
		if !strings.Contains(last, want) {
			t.Errorf("the whole has no %q: %s", want, last)
		}
	}
	after, err := unix.IoctlGetTermios(int(m.pts.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal was %+v, and is %+v, %v", before, after, err)
	}
}
