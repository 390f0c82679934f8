// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"devxlab.example/mlx5"
)

// VerbsError is a verbs command that failed. errors.Is sees the errno, which is
// what ibv_modify_qp returns: the kernel passes no firmware answer on here, on
// any version.
type VerbsError struct {
	Cmd   string // MODIFY_QP, CREATE_QP, …
	QPN   uint32 // the queue pair it was about, 0 if none
	Errno unix.Errno

	// Of a modify:
	Mask      AttrMask
	Transport mlx5.ServiceType
	From, To  mlx5.State // From as this program last saw it by verbs, or Mask has MaskCurState
}

func (e *VerbsError) Error() string {
	var b strings.Builder
	b.WriteString(e.Cmd)
	if e.QPN != 0 {
		fmt.Fprintf(&b, " on QP %#x", e.QPN)
	}
	if e.Mask != 0 {
		fmt.Fprintf(&b, " (%s, %s to %s, %s)", e.Transport, e.From, e.To, e.Mask)
	}
	fmt.Fprintf(&b, " failed: %s (errno %d)", e.Errno.Error(), int(e.Errno))
	if h := e.hint(); h != "" {
		b.WriteString("; " + h)
	}
	return b.String()
}

// Unwrap returns the error number.
func (e *VerbsError) Unwrap() error { return e.Errno }

// unknown reports whether the command may have been carried out nevertheless. A
// modify that waits for a MAC address in vain has sent nothing, but its ETIMEDOUT
// cannot be told from the firmware's.
func (e *VerbsError) unknown() bool { return lostAnswer(e.Errno) && !e.noInterface() }

// noInterface reports whether ENODEV is about the network interface of a GID.
func (e *VerbsError) noInterface() bool { return e.Errno == unix.ENODEV && e.Mask&MaskAV != 0 }

// hint is the next thing to look at.
func (e *VerbsError) hint() string {
	switch e.Errno {
	case unix.ETIMEDOUT:
		if e.Mask&MaskAV != 0 {
			return "either the kernel got no MAC address for the destination within a second (ip neigh; ping it), or the firmware did not answer (dmesg)"
		}
		return "the firmware did not answer, and whether the command was carried out is unknown: look at dmesg"
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENODEV:
		if e.Mask&MaskAV != 0 {
			return "the kernel found no way from the own GID to the destination: ip route get, and is the interface of that GID up?"
		}
	case unix.EINVAL:
		return e.invalid()
	case unix.EOPNOTSUPP:
		return "the driver does not take this, or the mask has a bit that it does not know"
	case unix.EPROTONOSUPPORT:
		return "the kernel does not have this command"
	case unix.EACCES:
		return "the kernel refuses write(2) after a change of credentials: use INVOKE_WRITE"
	case unix.EPERM:
		return "it needs a capability: a Q_Key with its highest bit set needs CAP_NET_RAW"
	case unix.EBUSY:
		return "something still uses it: close that first"
	case unix.ENOMEM:
		return "the kernel's memory, the memory that may be locked (ulimit -l), or the firmware's limit for these objects is used up"
	case unix.EIO:
		return "the firmware's internal error, or the device is gone: look at dmesg"
	}
	return ""
}

const whyFirmware = "for the firmware's reason, if it was the firmware: echo 'module mlx5_core +p' >/sys/kernel/debug/dynamic_debug/control, try again, and look at dmesg"

// invalid says what EINVAL may be about.
func (e *VerbsError) invalid() string {
	if e.Mask == 0 {
		return "the kernel refused a value, or the firmware did; " + whyFirmware
	}
	r := ruleBetween(e.From, e.To, e.Transport)
	if r == nil {
		return fmt.Sprintf("there is no transition from %s to %s; the driver goes by the state that it remembers, which DevX does not change: Query brings it up to date", e.From, e.To)
	}
	required, optional := verbsMasks(r)
	if missing := required &^ e.Mask; missing != 0 {
		return fmt.Sprintf("%s is missing; required: %s", missing, required)
	}
	if extra := e.Mask &^ (required | optional); extra != 0 {
		return fmt.Sprintf("%s does not apply; it takes: %s", extra, required|optional)
	}
	look := []string{"another state than this program knows of (Query tells)"}
	if e.Mask&(MaskPort|MaskAV) != 0 {
		look = append(look, "the port")
	}
	if e.Mask&MaskPkeyIndex != 0 {
		look = append(look, "the pkey index (0 on Ethernet)")
	}
	if e.Mask&MaskAV != 0 {
		look = append(look, "a destination GID (RoCE needs one)", "an own GID at SGIDIndex")
	}
	if e.Mask&(MaskMaxQPRdAtomic|MaskMaxDestRdAtomic) != 0 {
		look = append(look, "more reads at once than the device has")
	}
	return "the mask is right for this transition; it may be: " + strings.Join(look, "; ") + "; " + whyFirmware
}

// ruleBetween returns the rule of the transition between two states, or nil. From
// RESET to ERR verbs know no way, while DevX has one (2ERR).
func ruleBetween(from, to mlx5.State, st mlx5.ServiceType) *mlx5.Rule {
	if from == mlx5.StateRST && to == mlx5.StateErr {
		return nil
	}
	for _, op := range mlx5.Transitions() {
		if r := mlx5.RuleOf(op, st); r != nil && r.To == to && r.AcceptsFrom(from) {
			return r
		}
	}
	return nil
}

// verbsError says which device it was, and whether that is gone.
func (d *Device) verbsError(e *VerbsError) error {
	if e.Errno != unix.ETIMEDOUT && e.unknown() {
		return goneError(d.info.Name, e)
	}
	return fmt.Errorf("devx: %s: %w", d.info.Name, e)
}

func (d *Device) noVerbs(cmd string) error {
	return fmt.Errorf("devx: %s: %s: %w: verbs need a kernel's driver behind the file, in the lab (devxlab lab) or on hardware; this device answers DevX only", d.info.Name, cmd, ErrNoVerbs)
}
