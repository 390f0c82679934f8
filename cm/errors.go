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
	text := fmt.Sprintf("cm: %s%s: %v", e.Call, on, e.Errno)
	if h := e.hint(); h != "" {
		text += ": " + h
	}
	return text
}

// Unwrap returns the errno.
func (e *CallError) Unwrap() error { return e.Errno }

// Calls whose errnos mean something else than those of others.
const (
	callBind        = "rdma_bind_addr"
	callResolveAddr = "rdma_resolve_addr"
)

// hint is what an errno usually means (drivers/infiniband/core/cma.c, ucma.c).
func (e *CallError) hint() string {
	addressed := e.Call == callBind || e.Call == callResolveAddr
	switch {
	case e.Errno == unix.ENODEV:
		return "no RDMA device has this address: rdma link, ip addr"
	case e.Errno == unix.EADDRNOTAVAIL:
		return "the address is of no network interface in this network namespace, or no port is free: ip addr"
	case e.Errno == unix.EADDRINUSE:
		return "another ID has this port (rdma res show cm_id): end it, or take another port; SetReuse shares one"
	case e.Errno == unix.EINVAL && addressed: // cma_check_linklocal; state
		return "an ID gets an address once, and a link-local one needs its zone: fe80::1%eth0"
	case e.Errno == unix.EINVAL:
		return "not in this state, or the peer has given up meanwhile"
	case e.Errno == unix.ENETUNREACH, e.Errno == unix.EHOSTUNREACH:
		return "no route there: ip route get"
	case e.Errno == unix.ENOMEM:
		return "the kernel has no memory for it"
	case e.Errno == unix.EACCES && e.Call == callBind: // cma_get_port
		return "ports below 1024 need CAP_NET_BIND_SERVICE"
	case e.Errno == unix.EACCES: // ib_safe_file_access
		return "this process has other credentials than when it opened the channel: open it after the change"
	case e.Errno == unix.ENOSYS:
		return "this kernel has no such option or query"
	case e.Errno == unix.ENXIO: // ucma_get_ctx
		return "the RDMA device was removed: close the ID"
	}
	return ""
}

// EventError is an event that says that a step failed. Unwrap gives the errno, if
// the event has one.
type EventError struct {
	Event EventType  // AddrError, RouteError, ConnectError, Unreachable, Disconnected, DeviceRemoval; with an errno also what was waited for
	Errno error      // nil: none
	SIDR  SIDRStatus // of Unreachable of a datagram service: what the peer answered; 0: nothing
}

// SIDRStatus is how a peer answers a request for a datagram service (enum
// ib_cm_sidr_status in the kernel's rdma/ib_cm.h).
type SIDRStatus uint32

// What a user meets.
const (
	SIDRUnsupported SIDRStatus = 1 // nobody listens there
	SIDRReject      SIDRStatus = 2
)

var sidrWords = map[SIDRStatus]string{
	SIDRUnsupported: "nobody listens there: start the server, or name its port", SIDRReject: "the program there refused, or ended before it accepted",
	3: "no queue pair", 4: "redirect", 5: "another version",
}

// String returns the number and what it means.
func (s SIDRStatus) String() string {
	if w := sidrWords[s]; w != "" {
		return fmt.Sprintf("%d, %s", uint32(s), w)
	}
	return fmt.Sprintf("%d, a status that the specification does not have", uint32(s))
}

// eventHints says what to look at, for events and errnos.
var eventHints = map[EventType]string{
	AddrError:     "the address is not resolved: no route, or no answer to ARP or neighbour discovery (ip route get, ip neigh)",
	RouteError:    "no path there: on InfiniBand the subnet manager answers; on RoCE the network device is not up",
	ConnectError:  "the connection could not be completed",
	Unreachable:   "nobody answers: is the port the right one, does the peer's machine answer to ping, does UDP port 4791 get through? devxlab cm causes UNREACHABLE has the whole list",
	Disconnected:  "the peer disconnected",
	DeviceRemoval: "the RDMA device was removed: close everything that uses it",
}

// failureOf says which event would have said that one will not come.
var failureOf = map[EventType]EventType{
	AddrResolved: AddrError, RouteResolved: RouteError, ConnectResponse: Unreachable, Established: Unreachable,
}

// Error says what to look at.
func (e *EventError) Error() string {
	text := fmt.Sprintf("cm: event %s", e.Event)
	if e.Errno != nil {
		text += ": " + e.Errno.Error()
	}
	if e.SIDR != 0 {
		return text + ": SIDR status " + e.SIDR.String()
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
	roce.RejectTimeout:          "the peer gave up: it had no answer in time (devxlab capture shows what is lost)",
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
