// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/cm/abi"
	"devxlab.example/cm/roce"
	"devxlab.example/devx"
)

// EventType is what has happened to an ID (enum rdma_cm_event_type in the kernel's
// rdma/rdma_cm.h; rdma_get_cm_event(3)).
type EventType uint32

// Events.
const (
	AddrResolved    EventType = abi.RDMA_CM_EVENT_ADDR_RESOLVED
	AddrError       EventType = abi.RDMA_CM_EVENT_ADDR_ERROR
	RouteResolved   EventType = abi.RDMA_CM_EVENT_ROUTE_RESOLVED
	RouteError      EventType = abi.RDMA_CM_EVENT_ROUTE_ERROR
	ConnectRequest  EventType = abi.RDMA_CM_EVENT_CONNECT_REQUEST
	ConnectResponse EventType = abi.RDMA_CM_EVENT_CONNECT_RESPONSE // a REP came
	ConnectError    EventType = abi.RDMA_CM_EVENT_CONNECT_ERROR
	Unreachable     EventType = abi.RDMA_CM_EVENT_UNREACHABLE // no answer, after all repeats
	Rejected        EventType = abi.RDMA_CM_EVENT_REJECTED
	Established     EventType = abi.RDMA_CM_EVENT_ESTABLISHED // a RTU came, or of a datagram service its queue pair
	Disconnected    EventType = abi.RDMA_CM_EVENT_DISCONNECTED
	DeviceRemoval   EventType = abi.RDMA_CM_EVENT_DEVICE_REMOVAL
	MulticastJoin   EventType = abi.RDMA_CM_EVENT_MULTICAST_JOIN
	MulticastError  EventType = abi.RDMA_CM_EVENT_MULTICAST_ERROR
	AddrChange      EventType = abi.RDMA_CM_EVENT_ADDR_CHANGE   // the network device has another MAC address
	TimewaitExit    EventType = abi.RDMA_CM_EVENT_TIMEWAIT_EXIT // the queue pair's number may be used again
)

var eventNames = [...]string{
	AddrResolved: "ADDR_RESOLVED", AddrError: "ADDR_ERROR", RouteResolved: "ROUTE_RESOLVED", RouteError: "ROUTE_ERROR",
	ConnectRequest: "CONNECT_REQUEST", ConnectResponse: "CONNECT_RESPONSE", ConnectError: "CONNECT_ERROR", Unreachable: "UNREACHABLE",
	Rejected: "REJECTED", Established: "ESTABLISHED", Disconnected: "DISCONNECTED", DeviceRemoval: "DEVICE_REMOVAL",
	MulticastJoin: "MULTICAST_JOIN", MulticastError: "MULTICAST_ERROR", AddrChange: "ADDR_CHANGE", TimewaitExit: "TIMEWAIT_EXIT",
}

// String returns the name behind RDMA_CM_EVENT_.
func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("event %d", uint32(t))
}

// Event is one event of an ID.
type Event struct {
	Type EventType
	At   time.Time // when this program read it

	// What went wrong: a negative errno; of Rejected the reason (Reason); of an
	// answer to SIDR its status.
	Status int32

	Param Param // of ConnectRequest, ConnectResponse, Established of a datagram service, Rejected (private data only)

	id uint32 // the kernel's number of it; of ConnectRequest that of the new one
}

// Reason is why the peer rejected. It is of Rejected only.
func (e Event) Reason() roce.RejectReason { return roce.RejectReason(e.Status) }

// Param is what the two ends tell each other. Of a peer, Private is padded with
// zeros to the length that the message has room for (in REQ 56 bytes, REP 196, REJ
// 148; SIDR 180 and 136): the messages do not carry the length.
type Param struct {
	QPN         uint32 // the sender's queue pair, 24 bits
	SRQ         bool   // it receives through a shared receive queue
	Responder   uint8  // RDMA reads and atomics that it serves at once
	Initiator   uint8  // that it has outstanding at once
	FlowControl bool   // end to end; mlx5 has none to turn off
	Retry       uint8  // 0 to 7: retries when an acknowledgement does not come
	RNRRetry    uint8  // 0 to 7; 7: for ever
	Private     []byte

	QKey uint32      // datagram services only. Not sent: the connection manager has its own, 0x01234567 (RDMA_UDP_QKEY)
	AV   devx.AHAttr // datagram services only: how to reach the queue pair. Not sent.
}

// eventOf reads what the kernel has written for an ID of a datagram service or of
// a connected one.
func eventOf(r *abi.EventResp, datagram bool, at time.Time) Event {
	e := Event{Type: EventType(r.Event), At: at, Status: int32(r.Status), id: r.ID}
	if u := &r.UD; datagram {
		e.Param = Param{QPN: u.QPNum, QKey: u.QKey, AV: devx.AHAttrOf(&u.AH), Private: bytes.Clone(u.PrivateData[:u.PrivateDataLen])}
		return e
	}
	c := conn(r)
	e.Param = Param{
		QPN: c.QPNum, SRQ: c.SRQ != 0, Responder: c.ResponderResources, Initiator: c.InitiatorDepth, FlowControl: c.FlowControl != 0,
		Retry: c.RetryCount, RNRRetry: c.RNRRetryCount, Private: bytes.Clone(c.PrivateData[:c.PrivateDataLen]),
	}
	return e
}

// put writes the parameters into a request.
func (p *Param) put(c *abi.ConnParam) {
	c.QPNum, c.ResponderResources, c.InitiatorDepth = p.QPN, p.Responder, p.Initiator
	c.RetryCount, c.RNRRetryCount, c.Valid = p.Retry, p.RNRRetry, 1
	c.SRQ, c.FlowControl = flag(p.SRQ), flag(p.FlowControl)
	c.PrivateDataLen = uint8(copy(c.PrivateData[:], p.Private))
}

func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// check reports what the kernel would refuse without a word, or cut off.
func (p *Param) check(message string, room int) error {
	switch {
	case p.QPN >= 1<<24:
		return fmt.Errorf("cm: %s: queue pair number %#x has more than 24 bits", message, p.QPN)
	case p.Retry > 7 || p.RNRRetry > 7:
		return fmt.Errorf("cm: %s: %d retries, %d after RNR NAKs: the message has 3 bits for each, 0 to 7", message, p.Retry, p.RNRRetry)
	}
	return checkPrivate(message, p.Private, room)
}

func checkPrivate(message string, private []byte, room int) error {
	if len(private) > room {
		return fmt.Errorf("cm: %s has room for %d bytes of private data, not %d", message, room, len(private))
	}
	return nil
}

// Room for private data, in bytes (InfiniBand Architecture Specification, volume 1,
// 12.6; in a request the connection manager's own header takes 36, annex A11).
const (
	RoomREQ     = 56
	RoomREP     = 196
	RoomREJ     = 148
	RoomSIDRReq = 180
	RoomSIDRRep = 136
)

// failure returns the error that an event stands for, or nil.
func (e Event) failure() error {
	switch e.Type {
	case Rejected:
		return &RejectError{Reason: e.Reason(), Private: e.Param.Private}
	case AddrError, RouteError, ConnectError, Unreachable, Disconnected, DeviceRemoval, MulticastError:
		f := &EventError{Event: e.Type}
		switch {
		case e.Status < 0:
			f.Errno = unix.Errno(-e.Status)
		case e.Type == Unreachable: // cma_sidr_rep_handler
			f.SIDR = SIDRStatus(e.Status)
		}
		return f
	}
	return nil
}
