// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"devxlab.example/cm/roce"
)

var (
	// ErrClosed: the channel or the ID was closed by this program.
	ErrClosed = errors.New("closed")
	// ErrNoCM: the kernel's connection manager has no node here.
	ErrNoCM = errors.New("no connection manager")
	// ErrNoPermission: the node may not be opened.
	ErrNoPermission = errors.New("no permission")
)

func openError(path string, err error) error {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("cm: open %s: %w: %w; ask root: rdma-core's udev rules make it 0666", path, ErrNoPermission, err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return fmt.Errorf("cm: open %s: %w: %w; load it: modprobe rdma_ucm (and is /dev/infiniband there in this container?)", path, ErrNoCM, err)
	}
	return fmt.Errorf("cm: open %s: %w", path, err)
}

// CallError is a call that the kernel refused at once. Unwrap gives the errno.
type CallError struct {
	Call  string // as rdma_cm(7) calls it: "rdma_bind_addr"
	On    string // what it was about: an address, or empty
	Errno error
}

// Error says what to look at.
func (e *CallError) Error() string {
	on := ""
	if e.On != "" {
		on = " " + e.On
	}
	return fmt.Sprintf("cm: %s%s: %v%s", e.Call, on, e.Errno, e.hint())
}

// Unwrap returns the errno.
func (e *CallError) Unwrap() error { return e.Errno }

// hint is what an errno usually means (drivers/infiniband/core/cma.c, ucma.c).
func (e *CallError) hint() string {
	switch e.Errno {
	case unix.ENODEV:
		return ": no RDMA device has this address: rdma link, ip addr"
	case unix.EADDRNOTAVAIL:
		return ": the address is of no network interface in this network namespace, or the port is not free: ip addr"
	case unix.EADDRINUSE:
		return ": another listener has this port (rdma res show cm_id), or wait until it is gone; SetReuse shares it"
	case unix.EINVAL:
		return ": not in this state, or the peer has given up meanwhile"
	case unix.ENETUNREACH, unix.EHOSTUNREACH:
		return ": no route there: ip route get"
	case unix.ENOMEM:
		return ": no memory, or no memory for the queue pair's address (ARP)"
	case unix.EACCES:
		return ": ports below 1024 need CAP_NET_BIND_SERVICE"
	}
	return ""
}

// EventError is an event that says that a step failed. Unwrap gives the errno, if
// the event has one.
type EventError struct {
	Event EventType
	Errno error // nil: none
}

// eventHints says what to look at, for events and errnos.
var eventHints = map[EventType]string{
	AddrError:     "the address is not resolved: no route, or no answer to ARP or neighbour discovery (ip route get, ip neigh)",
	RouteError:    "no path there: on InfiniBand the subnet manager answers; on RoCE the network device is not up",
	ConnectError:  "the connection could not be completed",
	Unreachable:   "nobody answers: is the port the right one, does the peer's machine answer to ping, does UDP port 4791 get through (devxlab capture)?",
	Disconnected:  "the peer disconnected",
	DeviceRemoval: "the RDMA device was removed: close everything that uses it",
}

// Error says what to look at.
func (e *EventError) Error() string {
	text := fmt.Sprintf("cm: event %s", e.Event)
	if e.Errno != nil {
		text += ": " + e.Errno.Error()
	}
	h := eventHints[e.Event]
	if e.Event == Disconnected && e.Errno != nil {
		h = "the peer did not answer the DREQ; the connection has ended here all the same"
	}
	if h != "" {
		text += ": " + h
	}
	return text
}

// Unwrap returns the errno.
func (e *EventError) Unwrap() error { return e.Errno }

// RejectError says that the peer, or its connection manager, has refused.
type RejectError struct {
	Reason  roce.RejectReason
	Private []byte // what the peer said besides, 148 bytes, padded with zeros
}

// rejectHints says what to do about the reasons that a user meets.
var rejectHints = map[roce.RejectReason]string{
	roce.RejectInvalidServiceID: "start the server there, or name its port",
	roce.RejectStaleConnection:  "it has been told to end that one: try again, best with a new queue pair",
	roce.RejectConsumerDefined:  "the program there refused, or ended before it accepted",
	roce.RejectInvalidGID:       "the peer has no such GID: has its address changed?",
	roce.RejectNoResources:      "the peer has no room for another connection",
}

// Error has the reason in words.
func (e *RejectError) Error() string {
	text := fmt.Sprintf("cm: rejected: %s", e.Reason)
	if h := rejectHints[e.Reason]; h != "" {
		text += ": " + h
	}
	return text
}

// Is makes errors.Is(err, &RejectError{Reason: r}) ask for the reason.
func (e *RejectError) Is(target error) bool {
	t, ok := target.(*RejectError)
	return ok && t.Reason == e.Reason
}
