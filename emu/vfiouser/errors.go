// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A RequestError is a command that was refused. The client got Errno, if it
// wanted a reply.
type RequestError struct {
	Command string // as in vfio-user.rst, without VFIO_USER_
	ID      uint16
	Errno   unix.Errno
	Why     string
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("vfio-user: %s, message %d, refused: %s: %v", e.Command, e.ID, e.Why, e.Errno)
}

func (e *RequestError) Unwrap() error { return e.Errno }

// refuse makes the error that a command's handler returns.
func refuse(errno unix.Errno, format string, args ...any) *RequestError {
	return &RequestError{Errno: errno, Why: fmt.Sprintf(format, args...)}
}

// Why guest memory could not be accessed.
var (
	ErrUnmapped   = errors.New("the client has mapped no memory there")
	ErrPermission = errors.New("the client does not allow it")
	ErrNoFile     = errors.New("the client has mapped it without a file descriptor")
	ErrFault      = errors.New("the client has truncated the file behind it")
)

// A DMAError is an access to guest memory that failed.
type DMAError struct {
	Write bool
	Addr  uint64 // of the access
	Len   int
	At    uint64 // the first address that cannot be accessed; with ErrFault, of the mapping's part
	Err   error  // ErrUnmapped, ErrPermission, ErrNoFile or ErrFault
}

func (e *DMAError) Error() string {
	what := "read"
	if e.Write {
		what = "write"
	}
	return fmt.Sprintf("DMA %s of %d bytes at %#x: at %#x: %v", what, e.Len, e.Addr, e.At, e.Err)
}

func (e *DMAError) Unwrap() error { return e.Err }
