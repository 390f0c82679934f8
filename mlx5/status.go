// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// statusInfo is what the driver makes of a status: cmd_status_str and
// cmd_status_to_err in drivers/net/ethernet/mellanox/mlx5/core/cmd.c.
var statusInfo = map[Status]struct {
	text  string
	errno unix.Errno
}{
	StatusOK:              {"OK", 0},
	StatusInt:             {"internal error", unix.EIO},
	StatusBadOp:           {"bad operation", unix.EINVAL},
	StatusBadParam:        {"bad parameter", unix.EINVAL},
	StatusBadSysState:     {"bad system state", unix.EIO},
	StatusBadRes:          {"bad resource", unix.EINVAL},
	StatusResBusy:         {"resource busy", unix.EBUSY},
	StatusLIM:             {"limits exceeded", unix.ENOMEM},
	StatusBadResState:     {"bad resource state", unix.EINVAL},
	StatusIX:              {"bad index", unix.EINVAL},
	StatusNoRes:           {"no resources", unix.EAGAIN},
	StatusBadInpLen:       {"bad input length", unix.EIO},
	StatusBadOutpLen:      {"bad output length", unix.EIO},
	StatusBadQPState:      {"bad QP state", unix.EINVAL},
	StatusBadPkt:          {"bad packet (discarded)", unix.EINVAL},
	StatusBadSizeOutsCqes: {"bad size too many outstanding CQEs", unix.EINVAL},
}

// Text returns the words that the driver prints for a status, or "unknown
// status".
func (v Status) Text() string {
	if i, ok := statusInfo[v]; ok {
		return i.text
	}
	return "unknown status"
}

// Errno returns the error number that the driver maps a status to where it
// passes no output on: every failure before Linux 5.18, and UMEM_REG, object
// destroy and context creation on later ones. StatusOK gives 0; a status that
// the driver does not know gives EIO.
func (v Status) Errno() unix.Errno {
	if i, ok := statusInfo[v]; ok {
		return i.errno
	}
	return unix.EIO
}

// ParseStatus finds a status by the words that the driver prints ("limits
// exceeded").
func ParseStatus(text string) (Status, bool) {
	for s, i := range statusInfo {
		if strings.EqualFold(i.text, strings.TrimSpace(text)) {
			return s, true
		}
	}
	return 0, false
}

// ParseOp finds an opcode by the name that the driver prints ("CREATE_QP").
func ParseOp(name string) (Op, bool) {
	name = strings.ToUpper(strings.TrimSpace(name))
	for _, op := range ops {
		if s := op.String(); s == name || s == name+"_QP" && strings.ContainsRune(name, '2') {
			return op, true
		}
	}
	return 0, false
}

// CommandError is a firmware command that failed. errors.As finds it, and
// errors.Is sees the error number underneath.
type CommandError struct {
	Op        Op
	OpMod     uint16
	QPN       uint32     // the queue pair it was about, 0 if none
	Status    Status     // valid only with HasOutbox
	Syndrome  uint32     // valid only with HasOutbox; firmware-internal
	HasOutbox bool       // the kernel passed the firmware's answer on
	Errno     unix.Errno // what the system call returned, 0 if it succeeded
}

func (e *CommandError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s(%#x) op_mod(%#x)", e.Op, uint16(e.Op), e.OpMod)
	if e.QPN != 0 {
		fmt.Fprintf(&b, " on QP %#x", e.QPN)
	}
	b.WriteString(" failed")
	if e.HasOutbox {
		fmt.Fprintf(&b, ", status %s(%#x), syndrome (%#x)", e.Status.Text(), uint8(e.Status), e.Syndrome)
	}
	if e.Errno != 0 {
		fmt.Fprintf(&b, ": %s (errno %d)", e.Errno.Error(), int(e.Errno))
	}
	if e.HasOutbox {
		fmt.Fprintf(&b, "; see: devxlab explain --op %s --status %#x --syndrome %#x", e.Op, uint8(e.Status), e.Syndrome)
	} else {
		b.WriteString(noOutboxHint(e.Errno))
	}
	return b.String()
}

// Unwrap returns the error number, or nil if the system call itself succeeded.
func (e *CommandError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// noOutboxHint says what to do where the kernel passed no firmware answer on.
func noOutboxHint(errno unix.Errno) string {
	switch errno {
	case unix.EINVAL, unix.EIO, unix.EBUSY, unix.ENOMEM, unix.EAGAIN: // what a status is mapped to
		return "; the kernel passed no firmware answer on: it refused the command itself, or it is older than Linux 5.18. " +
			"For the firmware's reason there: echo 'module mlx5_core +p' >/sys/kernel/debug/dynamic_debug/control, try again, and look at dmesg"
	case unix.EBADR: // cmd.c deliv_status_to_err, from Linux 5.18 on
		return "; the device found the command's descriptor wrong (token, signature, length) and did not execute it: look for what spoils memory or DMA"
	case unix.ETIMEDOUT:
		return "; there was no answer in time, and whether the command was carried out is unknown: look at dmesg"
	}
	return ""
}
