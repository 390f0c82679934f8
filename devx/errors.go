// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"devxlab.example/mlx5"
)

var (
	// ErrClosed: the device, or the object, was closed by this program.
	ErrClosed = errors.New("closed")
	// ErrNoPermission: the uverbs node may not be opened.
	ErrNoPermission = errors.New("no permission")
	// ErrNoDevX: kernel or firmware has no DevX.
	ErrNoDevX = errors.New("no DevX")
	// ErrDeviceGone: the device disappeared or is in its error state. What it
	// was doing is unknown.
	ErrDeviceGone = errors.New("device gone")
	// ErrNoVerbs: the file answers no verbs commands.
	ErrNoVerbs = errors.New("no verbs")
	// ErrForeign: an object of another context was passed.
	ErrForeign = errors.New("belongs to another context")
)

// CommandError is a firmware command that failed.
type CommandError = mlx5.CommandError

// openError explains why the file could not be opened.
func openError(name, path string, err error) error {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("devx: open %s (%s): %w: %w; join the node's group or ask root: rdma-core's udev rules make it 0666", name, path, ErrNoPermission, err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return fmt.Errorf("devx: open %s (%s): %w: %w; is ib_uverbs loaded, and is /dev/infiniband there in this container?", name, path, ErrNoUverbs, err)
	}
	return fmt.Errorf("devx: open %s (%s): %w", name, path, err)
}

// contextError explains why the kernel gave no DevX context. plain is what it
// answered to a request for a context without DevX.
func contextError(name string, err, plain unix.Errno) error {
	switch {
	case err == unix.EPROTONOSUPPORT || err == unix.ENOTTY:
		return fmt.Errorf("devx: %s: %w: the file knows no ioctl that opens a context (%w); it came with Linux 5.6, and a uverbs node has it", name, ErrNoDevX, err)
	case plain == 0:
		return fmt.Errorf("devx: %s: %w: a context opens without it, but not with it (%w); the firmware needs log_max_uctx > 0, and a free user context", name, ErrNoDevX, err)
	case err == unix.EIO || err == unix.ENXIO || err == unix.ENODEV || err == unix.ENOLINK ||
		err == unix.EAGAIN: // mlx5_ib's main.c, mlx5_ib_alloc_ucontext: the device is not active
		return goneError(name, err)
	case err == unix.ETIMEDOUT:
		return fmt.Errorf("devx: %s: no context: %w; the firmware did not answer in time: see dmesg", name, err)
	case err == unix.ENOMEM:
		return fmt.Errorf("devx: %s: no context: %w; user contexts may be used up: look for processes that hold /dev/infiniband/uverbs* open", name, err)
	}
	return fmt.Errorf("devx: %s: no context: %w", name, err)
}

func goneError(name string, err error) error {
	or := ""
	if errors.Is(err, unix.EIO) {
		or = " (before Linux 5.18 a firmware internal error or a wrong length reads the same)"
	}
	return fmt.Errorf("devx: %s: %w: %w; it was unplugged, reset, or its driver unloaded%s: see dmesg, and open it again when it is back", name, ErrDeviceGone, err, or)
}

// lostAnswer reports whether an errno leaves it open what the command did: it
// may have reached the device, and nobody heard the answer.
func lostAnswer(e unix.Errno) bool {
	switch e {
	case unix.EIO, unix.ENXIO, unix.ENODEV, unix.ENOLINK, unix.ETIMEDOUT:
		return true
	}
	return false
}

// Unknown reports whether err leaves it open whether the command was carried
// out: the device went away or timed out, and there was no answer. Before Linux
// 5.18 the firmware's own internal error reads the same (EIO).
func Unknown(err error) bool {
	var c *CommandError
	if errors.As(err, &c) {
		return !c.HasOutbox && lostAnswer(c.Errno)
	}
	var v *VerbsError
	if errors.As(err, &v) {
		return v.unknown()
	}
	return errors.Is(err, ErrDeviceGone)
}
