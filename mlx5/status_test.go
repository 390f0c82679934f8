// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// statuses is the driver's table, with numbers for names: status, words, errno.
var statuses = map[uint8]struct {
	text  string
	errno int
}{
	0x00: {"OK", 0},
	0x01: {"internal error", 5},
	0x02: {"bad operation", 22},
	0x03: {"bad parameter", 22},
	0x04: {"bad system state", 5},
	0x05: {"bad resource", 22},
	0x06: {"resource busy", 16},
	0x08: {"limits exceeded", 12},
	0x09: {"bad resource state", 22},
	0x0a: {"bad index", 22},
	0x0f: {"no resources", 11},
	0x10: {"bad QP state", 22},
	0x30: {"bad packet (discarded)", 22},
	0x40: {"bad size too many outstanding CQEs", 22},
	0x50: {"bad input length", 5},
	0x51: {"bad output length", 5},
}

func TestStatus(t *testing.T) {
	for i := range 256 {
		s := Status(i)
		want, known := statuses[uint8(i)]
		if !known {
			want.text, want.errno = "unknown status", 5
		}
		if s.Text() != want.text || s.Errno() != unix.Errno(want.errno) {
			t.Errorf("status %#x: %q, errno %d; want %q, %d", i, s.Text(), s.Errno(), want.text, want.errno)
		}
		if parsed, ok := ParseStatus("  " + strings.ToUpper(want.text) + "\n"); ok != known || known && parsed != s {
			t.Errorf("ParseStatus(%q) = %s, %v", want.text, parsed, ok)
		}
		if named := !strings.HasPrefix(s.String(), "Status("); named != known {
			t.Errorf("status %#x has the name %s", i, s)
		}
	}
	for _, text := range []string{"", "bad", "bad resource state ?"} {
		if s, ok := ParseStatus(text); ok {
			t.Errorf("ParseStatus(%q) = %s", text, s)
		}
	}
}

func TestParseOp(t *testing.T) {
	named := 0
	for i := range 0x10000 {
		op := Op(i)
		name := op.String()
		if strings.HasPrefix(name, "Op(") {
			continue
		}
		named++
		short := strings.TrimSuffix(name, "_QP") // as people name transitions
		if !strings.Contains(short, "2") {
			short = name
		}
		for _, text := range []string{name, strings.ToLower(name), " " + name + "\t", short} {
			if got, ok := ParseOp(text); !ok || got != op {
				t.Errorf("ParseOp(%q) = %s, %v; want %s", text, got, ok, op)
			}
		}
	}
	if named < 150 {
		t.Errorf("only %d opcodes have names", named)
	}
	for name, want := range map[string]Op{
		"CREATE_QP": 0x500, "DESTROY_QP": 0x501, "RST2INIT": 0x502, "init2rtr": 0x503, "RTR2RTS": 0x504, "RTS2RTS_QP": 0x505, "SQERR2RTS": 0x506,
		"2ERR": 0x507, "2RST_QP": 0x50a, "QUERY_QP": 0x50b, "INIT2INIT": 0x50e,
	} {
		if got, ok := ParseOp(name); !ok || got != want {
			t.Errorf("ParseOp(%s) = %#x, %v; want %#x", name, uint16(got), ok, uint16(want))
		}
	}
	for _, name := range []string{"", "_QP", "QP", "CREATE", "CREATE_QP_QP", "2", "0x500", "Op(0x1)"} {
		if got, ok := ParseOp(name); ok {
			t.Errorf("ParseOp(%q) = %s", name, got)
		}
	}
}

func TestCommandError(t *testing.T) {
	for _, c := range []struct {
		err  CommandError
		want string
	}{
		{CommandError{Op: OpRTR2RTS, QPN: 0x40121, Status: StatusBadQPState, Syndrome: 0x65b500, HasOutbox: true, Errno: unix.EREMOTEIO},
			"RTR2RTS_QP(0x504) op_mod(0x0) on QP 0x40121 failed, status bad QP state(0x10), syndrome (0x65b500): remote I/O error (errno 121); see: devxlab explain --op RTR2RTS_QP --status 0x10 --syndrome 0x65b500"},
		{CommandError{Op: OpCreateQP, OpMod: 3, Errno: unix.ENOMEM},
			"CREATE_QP(0x500) op_mod(0x3) failed: cannot allocate memory (errno 12); the kernel passed no firmware answer on: it refused the command itself, or it is older than Linux 5.18. For the firmware's reason there: echo 'module mlx5_core +p' >/sys/kernel/debug/dynamic_debug/control, try again, and look at dmesg"},
		{CommandError{Op: 0xfff, Status: 0x7f, HasOutbox: true},
			"Op(0xfff)(0xfff) op_mod(0x0) failed, status unknown status(0x7f), syndrome (0x0); see: devxlab explain --op Op(0xfff) --status 0x7f --syndrome 0x0"},
	} {
		wrapped := fmt.Errorf("devx: mlx5_0: %w", &c.err)
		if got, want := wrapped.Error(), "devx: mlx5_0: "+c.want; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		var cmd *CommandError
		if !errors.As(wrapped, &cmd) || *cmd != c.err {
			t.Errorf("errors.As gives %+v", cmd)
		}
		for _, errno := range []unix.Errno{unix.EREMOTEIO, unix.ENOMEM, unix.EINVAL} {
			if got := errors.Is(wrapped, errno); got != (errno == c.err.Errno) {
				t.Errorf("%s: errors.Is(%s) = %v", c.err.Op, errno, got)
			}
		}
		if (errors.Unwrap(&c.err) == nil) != (c.err.Errno == 0) {
			t.Errorf("Unwrap gives %v", errors.Unwrap(&c.err))
		}
	}
}

// Names and values that the wire has; the rest of the enumerations follows from
// the headers.
func TestEnums(t *testing.T) {
	for got, want := range map[fmt.Stringer]string{
		STRC: "RC", STUC: "UC", STUD: "UD", STXRC: "XRC", ServiceType(200): "ServiceType(0xc8)",
		StateRST: "RST", StateInit: "INIT", StateRTR: "RTR", StateRTS: "RTS", StateSQER: "SQER", StateErr: "ERR", State(15): "State(0xf)",
		Op2ERR: "2ERR_QP", OpSQDRTS: "SQD_RTS_QP", Op(1): "Op(0x1)", StatusLIM: "LIM", StatusBadParam: "BAD_PARAM",
		EventType(0xffff): "EventType(0xffff)",
	} {
		if got.String() != want {
			t.Errorf("%#v is called %s, want %s", got, got, want)
		}
	}
}
