// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/ebpf"
	"devxlab.example/mlx5"
)

func TestTraceOptions(t *testing.T) {
	c := traceCmd{PID: []int{7}, Device: "mlx5_0", Op: "rtr2rts", QPN: 9}
	o, err := c.options(nil)
	if want := (ebpf.Filter{Processes: []int{7}, Device: "mlx5_0", Op: mlx5.OpRTR2RTS, QPN: 9}); err != nil || !slices.Equal(o.Processes, want.Processes) ||
		o.Device != want.Device || o.Op != want.Op || o.QPN != want.QPN || o.Records != 0 {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := c.options([]string{"true"}); err == nil {
		t.Error("a process and a program to run")
	}
	o, err = (&traceCmd{Chrome: "x"}).options([]string{"true"})
	if err != nil || !slices.Equal(o.Processes, []int{os.Getpid()}) || o.Records == 0 {
		t.Errorf("%+v, %v", o, err)
	}
	code, _, errOut := devxlab("", "trace", "--op", "JUMP")
	if code != exitUsage || !strings.Contains(errOut, "RTR2RTS_QP is one") {
		t.Errorf("%d, %s", code, errOut)
	}
}

func TestTraceWords(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", 999: "999ns", 1234: "1.23µs", 123456789: "123ms", 1999999999: "2s"} {
		if got := short(d); got != want {
			t.Errorf("%d ns: %s, want %s", d, got, want)
		}
	}
	for _, c := range []struct {
		status mlx5.Status
		errno  unix.Errno
		want   string
	}{{0, 0, "ok"}, {8, 0, "limits exceeded"}, {0, unix.ETIMEDOUT, "no answer: connection timed out"}} {
		if got := outcome(c.status, c.errno); got != c.want {
			t.Errorf("%v, %v: %s", c.status, c.errno, got)
		}
	}
}

// A program's name for itself does nothing to the terminal.
func TestPrintable(t *testing.T) {
	if got := printable("a\x1b[2J ü\n"); got != "a?[2J ü?" {
		t.Errorf("%q", got)
	}
}
