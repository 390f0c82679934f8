// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/cm/abi"
	"devxlab.example/cm/roce"
	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// Port spaces of an ID.
const (
	Connected = roce.PortSpaceTCP // a reliable connection (RC)
	Datagram  = roce.PortSpaceUDP // a queue pair of a datagram service (UD), found by SIDR
)

// DefaultTimeout is how long address and route may take if the context has no
// deadline. It is what most programs of rdma-core ask for.
const DefaultTimeout = 2 * time.Second

// ID is one end of a connection, or a listener (struct rdma_cm_id). Close it.
//
// A step that was given up because its context ended leaves the ID where it was:
// only Close is of use then. Events for which no step waits stay for Event.
type ID struct {
	c     *Channel
	space roce.PortSpace
	uid   uint64
	id    uint32 // the kernel's number

	// Held for reading by each command, for writing by Close: the kernel gives the lowest
	// free number to the next ID (xa_alloc in ucma.c), so a command that came after
	// Close would be about a stranger.
	number sync.RWMutex

	mu      sync.Mutex
	queue   []Event
	changed chan struct{} // closed, and made anew, when something changes
	backlog int           // requests that a listener keeps; 0: it does not listen
	apart   *Event        // the connection has ended, or the device of a listener is gone
	closed  bool
}

// NewID makes an ID in this port space, Connected or Datagram, in the network
// namespace of the calling thread.
func (c *Channel) NewID(space roce.PortSpace) (*ID, error) {
	id := &ID{c: c, space: space, changed: make(chan struct{})}
	c.add(id)
	err := c.with(func(s *slab) error {
		r := request[abi.CreateID](s, abi.RDMA_USER_CM_CMD_CREATE_ID, sizeOf[abi.CreateIDResp]())
		r.UID, r.Response, r.PS = id.uid, s.answerAddr(), uint16(space)
		err := c.call(s)
		id.id = answer[abi.CreateIDResp](s).ID
		return refused("rdma_create_id", "", err)
	})
	if err != nil {
		c.remove(id)
		return nil, err
	}
	return id, nil
}

// refused makes an errno an error that names the call.
func refused(call, on string, err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return &CallError{Call: call, On: on, Errno: errno}
	}
	return err
}

var errIDClosed = fmt.Errorf("cm: ID: %w", ErrClosed)

// with calls f with memory for one command about the ID, unless it is closed.
func (id *ID) with(f func(s *slab) error) error {
	id.number.RLock()
	defer id.number.RUnlock()
	id.mu.Lock()
	closed := id.closed
	id.mu.Unlock()
	if closed {
		return errIDClosed
	}
	return id.c.with(f)
}

// Close destroys the ID, when calls that are under way have returned: a connection
// is ended with a DREQ whose answer nobody waits for, a request that came is
// rejected, what a listener has in its backlog too. The queue pair is the caller's.
// A second call does nothing; all other methods return ErrClosed from then on.
func (id *ID) Close() error {
	id.mu.Lock()
	if id.closed {
		id.mu.Unlock()
		return nil
	}
	id.closed = true
	left := id.queue
	id.queue = nil
	close(id.changed)
	id.mu.Unlock()
	id.c.remove(id)
	for _, e := range left {
		if e.Type == ConnectRequest {
			_ = id.c.destroy(e.id) // as in sweep
		}
	}
	id.number.Lock()
	defer id.number.Unlock()
	err := refused("rdma_destroy_id", "", id.c.destroy(id.id))
	if errors.Is(err, ErrClosed) { // the channel's Close has done it
		return nil
	}
	return err
}

// deliver takes an event, unless the ID is closed or its backlog full.
func (id *ID) deliver(e Event) bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.closed || e.Type == ConnectRequest && len(id.queue) >= id.backlog {
		return false
	}
	id.queue = append(id.queue, e)
	if e.Type == Disconnected || e.Type == DeviceRemoval {
		id.apart = &e
	}
	close(id.changed)
	id.changed = make(chan struct{})
	return true
}

// until waits until ready says so. It is called with the ID locked.
func (id *ID) until(ctx context.Context, ready func() bool) error {
	for {
		id.mu.Lock()
		ok, changed, closed := ready(), id.changed, id.closed
		id.mu.Unlock()
		switch {
		case ok:
			return nil
		case closed:
			return errIDClosed
		}
		if err := id.c.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// await takes the first event that is wanted, whenever it comes.
func (id *ID) await(ctx context.Context, wanted func(Event) bool) (e Event, err error) {
	err = id.until(ctx, func() (ok bool) {
		e, ok = id.pick(wanted)
		return ok
	})
	return e, err
}

// pick takes the first event that is wanted, if it is there. It is called with the
// ID locked.
func (id *ID) pick(wanted func(Event) bool) (e Event, ok bool) {
	i := slices.IndexFunc(id.queue, wanted)
	if i < 0 {
		return Event{}, false
	}
	e = id.queue[i]
	id.queue = slices.Delete(id.queue, i, i+1)
	return e, true
}

// step waits for an event of this type, or for one that says that it will not
// come.
func (id *ID) step(ctx context.Context, want EventType) (Event, error) {
	e, err := id.await(ctx, func(e Event) bool { return e.Type == want || e.failure() != nil })
	if errors.Is(err, context.DeadlineExceeded) {
		return e, fmt.Errorf("cm: no %s until the context's deadline: %w: %s", want, err, eventHints[failureOf[want]])
	}
	if err == nil && e.Type != want {
		err = e.failure()
	} else if err == nil && e.Status != 0 {
		err = &EventError{Event: e.Type, Errno: unix.Errno(max(-e.Status, e.Status))}
	}
	return e, err
}

// Event returns the next event for which no step has waited: a Disconnected of a
// peer that ends the connection, an AddrChange, a DeviceRemoval, a TimewaitExit.
func (id *ID) Event(ctx context.Context) (Event, error) {
	return id.await(ctx, func(Event) bool { return true })
}

// Events are those that Event returns, until there is an error, which comes last.
func (id *ID) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			e, err := id.Event(ctx)
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// command carries out a command that answers nothing.
func command[T any](id *ID, call, on string, cmd uint32, fill func(*T)) error {
	return id.with(func(s *slab) error {
		fill(request[T](s, cmd, 0))
		return refused(call, on, id.c.call(s))
	})
}

// Bind gives the ID an address of its own, and a port: 0 lets the kernel choose
// one. The address may be unspecified (0.0.0.0 or ::), for a listener on all
// devices.
func (id *ID) Bind(addr netip.AddrPort) error {
	if err := usable(callBind, addr); err != nil {
		return err
	}
	return command(id, callBind, addr.String(), abi.RDMA_USER_CM_CMD_BIND, func(r *abi.Bind) {
		r.ID, r.AddrSize = id.id, sockaddr(&r.Addr, addr)
	})
}

// usable refuses what the kernel would refuse with EINVAL alone.
func usable(call string, a netip.AddrPort) error {
	switch {
	case !a.IsValid():
		return fmt.Errorf("cm: %s: the zero netip.AddrPort is no address; netip.IPv6Unspecified() stands for all", call)
	case a.Addr().Zone() != "" && !isInterface(scopeOf(a.Addr())):
		return fmt.Errorf("cm: %s %s: no network interface %s in this network namespace (ip link)", call, a, a.Addr().Zone())
	}
	return nil
}

// ResolveAddr finds the device and the neighbour for a destination: ARP or
// neighbour discovery, if the kernel does not know it. src may be the zero value.
// The kernel gets nine tenths of the time until the context's deadline, so that its
// event, which says more, comes first; without a deadline DefaultTimeout.
func (id *ID) ResolveAddr(ctx context.Context, src, dst netip.AddrPort) error {
	if err := usable(callResolveAddr, dst); err != nil {
		return err
	}
	if src.IsValid() {
		if err := usable(callResolveAddr, src); err != nil {
			return err
		}
		if src.Addr().Unmap().Is4() != dst.Addr().Unmap().Is4() { // resolve_prepare_src in cma.c
			return fmt.Errorf("cm: %s: source %s and destination %s are of two families: both IPv4 or both IPv6", callResolveAddr, src, dst)
		}
	}
	err := command(id, callResolveAddr, dst.String(), abi.RDMA_USER_CM_CMD_RESOLVE_ADDR, func(r *abi.ResolveAddr) {
		r.ID, r.TimeoutMS = id.id, timeoutMS(ctx)
		if src.IsValid() {
			r.SrcSize = sockaddr(&r.SrcAddr, src)
		}
		r.DstSize = sockaddr(&r.DstAddr, dst)
	})
	if err == nil {
		_, err = id.step(ctx, AddrResolved)
	}
	return err
}

// ResolveRoute finds the path to the destination. On RoCE nothing is asked for it.
func (id *ID) ResolveRoute(ctx context.Context) error {
	err := command(id, "rdma_resolve_route", "", abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, func(r *abi.ResolveRoute) {
		r.ID, r.TimeoutMS = id.id, timeoutMS(ctx)
	})
	if err == nil {
		_, err = id.step(ctx, RouteResolved)
	}
	return err
}

// Connect sends a request (REQ; of a datagram service SIDR_REQ) and returns what
// the peer answers (REP; SIDR_REP). The kernel repeats a request 15 times
// (CMA_MAX_CM_RETRIES in cma.c): a context that ends earlier is of use. Before a REQ
// is repeated it waits for two packet life times and 4.096 s (ib_send_cm_req in cm.c,
// CMA_CM_RESPONSE_TIMEOUT): on RoCE 6.144 s in Linux 5.15 and 6.1 (a life time of
// 4.096 µs · 2^18, counted as 1.024 s), 4.608 s in newer ones (2^16); SetACKTimeout
// changes that. A SIDR_REQ, like REP, is repeated after 4.096 s.
//
// A connection is complete only after Establish.
func (id *ID) Connect(ctx context.Context, p Param) (Param, error) {
	message, room, want := "REQ", RoomREQ, ConnectResponse
	if id.space == Datagram {
		message, room, want = "SIDR_REQ", RoomSIDRReq, Established
	}
	err := p.check(message, room)
	if err == nil {
		err = command(id, "rdma_connect", "", abi.RDMA_USER_CM_CMD_CONNECT, func(r *abi.Connect) {
			r.ID = id.id
			p.put(&r.Param)
		})
	}
	if err != nil {
		return Param{}, err
	}
	e, err := id.step(ctx, want)
	return e.Param, err
}

// Establish tells the peer that the queue pair is ready (RTU), after Connect.
func (id *ID) Establish() error {
	return command(id, "rdma_establish", "", abi.RDMA_USER_CM_CMD_ACCEPT, func(r *abi.Accept) { r.ID = id.id })
}

// Listen makes the ID a listener, which keeps up to backlog requests until Request
// takes them; more are rejected (reason 28). Requests that this program has not
// read yet the kernel keeps, up to net.rdma_ucm.max_backlog (1024), and drops more
// without a word: their clients repeat them, seconds later (Connect says when).
func (id *ID) Listen(backlog int) error {
	if backlog < 1 {
		return fmt.Errorf("cm: backlog %d: 1 or more", backlog)
	}
	id.mu.Lock()
	id.backlog = backlog
	id.mu.Unlock()
	return command(id, "rdma_listen", "", abi.RDMA_USER_CM_CMD_LISTEN, func(r *abi.Listen) { r.ID = id.id }) // backlog 0: its maximum
}

// Request waits for the next request of a peer and returns its ID and what the
// peer says. The ID has to be accepted, rejected or closed. Until it is accepted it
// has no events: a peer that gives up meanwhile shows when QPAttr or Answer fails.
func (id *ID) Request(ctx context.Context) (*ID, Param, error) {
	var e Event
	err := id.until(ctx, func() bool {
		var ok bool
		if e, ok = id.pick(func(e Event) bool { return e.Type == ConnectRequest }); !ok && id.apart != nil {
			e, ok = *id.apart, true // for all that wait
		}
		return ok
	})
	if err != nil {
		return nil, Param{}, err
	}
	if e.Type != ConnectRequest {
		return nil, Param{}, e.failure()
	}
	peer := &ID{c: id.c, space: id.space, id: e.id, changed: make(chan struct{})}
	id.c.add(peer)
	return peer, e.Param, nil
}

// Answer accepts a request (REP; of a datagram service SIDR_REP). The queue pair has
// to be in RTS, or at least in RTR with receives posted.
func (id *ID) Answer(p Param) error {
	message, room := "REP", RoomREP
	if id.space == Datagram {
		message, room = "SIDR_REP", RoomSIDRRep
	}
	if err := p.check(message, room); err != nil {
		return err
	}
	return command(id, "rdma_accept", "", abi.RDMA_USER_CM_CMD_ACCEPT, func(r *abi.Accept) {
		r.ID, r.UID = id.id, id.uid
		p.put(&r.Param)
	})
}

// Established waits until the peer has completed a connection (RTU), after
// Answer. The peer's first packet does not stand for it: mlx5_ib reports that
// (IB_EVENT_COMM_EST) to the queue pair's owner, and user space would have to pass it
// on with RDMA_USER_CM_CMD_NOTIFY, which this package does not.
func (id *ID) Established(ctx context.Context) error {
	_, err := id.step(ctx, Established)
	return err
}

// Reject refuses a request, for a reason of the program's own (REJ with reason 28,
// and up to 148 bytes).
func (id *ID) Reject(private []byte) error {
	if err := checkPrivate("REJ", private, RoomREJ); err != nil {
		return err
	}
	return command(id, "rdma_reject", "", abi.RDMA_USER_CM_CMD_REJECT, func(r *abi.Reject) {
		r.ID, r.PrivateDataLen = id.id, uint8(copy(r.PrivateData[:], private))
	})
}

// Disconnect ends a connection: DREQ, whose answer it waits for; or DREP, if the
// peer has sent a DREQ. Of an ID whose connection was never complete nothing comes:
// the context ends that (rdma_disconnect in cma.c). The queue pair should be in ERR by then, as rdma-core has
// it: nothing else ends its traffic.
func (id *ID) Disconnect(ctx context.Context) error {
	err := command(id, "rdma_disconnect", "", abi.RDMA_USER_CM_CMD_DISCONNECT, func(r *abi.Disconnect) { r.ID = id.id })
	if err != nil {
		return err
	}
	if err := id.until(ctx, func() bool { return id.apart != nil }); err != nil {
		return err
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.apart.Status != 0 || id.apart.Type == DeviceRemoval {
		return id.apart.failure()
	}
	return nil
}

// Route is what the kernel knows of an ID's address and path.
type Route struct {
	Src, Dst netip.AddrPort
	NodeGUID uint64 // of the device; 0: the ID has none yet
	Port     uint8  // of the device, from 1
}

// Route returns what ResolveAddr found, or a request brought.
func (id *ID) Route() (Route, error) {
	var r Route
	err := id.with(func(s *slab) error {
		q := request[abi.Query](s, abi.RDMA_USER_CM_CMD_QUERY, sizeOf[abi.QueryAddrResp]())
		q.Response, q.ID, q.Option = s.answerAddr(), id.id, abi.RDMA_USER_CM_QUERY_ADDR
		if err := id.c.call(s); err != nil {
			return refused("rdma_query", "", err)
		}
		a := answer[abi.QueryAddrResp](s)
		var guid [8]byte
		binary.NativeEndian.PutUint64(guid[:], a.NodeGUID)
		r = Route{Src: addrOf(&a.SrcAddr), Dst: addrOf(&a.DstAddr), NodeGUID: binary.BigEndian.Uint64(guid[:]), Port: a.PortNum}
		return nil
	})
	return r, err
}

// QPAttr returns what the connection manager wants the queue pair to be in the
// state INIT, RTR or RTS (rdma_init_qp_attr(3)): for devx.VerbsQP.Modify. RTR and
// RTS it knows only when the peer has answered, or has asked.
//
// Of a connection the minimal RNR NAK timer is 0 there, which is the longest, 655
// ms (cm_init_qp_rtr_attr in cm.c).
func (id *ID) QPAttr(state mlx5.State) (a devx.QPAttr, mask devx.AttrMask, err error) {
	err = id.with(func(s *slab) error {
		r := request[abi.InitQPAttr](s, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR, sizeOf[attrAnswer]())
		r.Response, r.ID, r.QPState = s.answerAddr(), id.id, uint32(devx.VerbsState(state))
		if err := id.c.call(s); err != nil {
			return refused("rdma_init_qp_attr", state.String(), err)
		}
		a, mask = devx.QPAttrOf(answer[attrAnswer](s))
		return nil
	})
	return a, mask, err
}

// setOption sets an option of the level RDMA_OPTION_ID.
func setOption[T uint8 | int32](id *ID, name uint32, v T) error {
	return id.with(func(s *slab) error {
		r := request[abi.SetOption](s, abi.RDMA_USER_CM_CMD_SET_OPTION, 0)
		r.OptVal, r.ID, r.Level, r.OptName, r.OptLen = s.answerAddr(), id.id, abi.RDMA_OPTION_ID, name, uint32(sizeOf[T]())
		*answer[T](s) = v
		return refused("rdma_set_option", "", id.c.call(s))
	})
}

// SetTOS sets the type of service: on RoCE the traffic class of what is sent, and by
// the network device's map its priority. Before ResolveRoute.
func (id *ID) SetTOS(tos uint8) error { return setOption(id, abi.RDMA_OPTION_ID_TOS, tos) }

// SetACKTimeout sets the queue pair's local ACK time-out, 0 to 31: 4.096 µs · 2^n,
// and 0 for none at all. Before ResolveRoute; without it the kernel computes one
// from the path's packet life time. On RoCE n also sets that life time, to
// 4.096 µs · 2^(n-1) (n above 0; cma_resolve_iboe_route in cma.c), and with it how
// long the kernel waits until it repeats a REQ (Connect), and how long the queue
// pair's number stays in time wait after the end (cm_enter_timewait in cm.c).
func (id *ID) SetACKTimeout(n uint8) error {
	if n > 31 {
		return fmt.Errorf("cm: local ACK time-out %d: 0 to 31, for 4.096 µs · 2^n", n)
	}
	return setOption(id, abi.RDMA_OPTION_ID_ACK_TIMEOUT, n)
}

// SetReuse lets IDs share an address and port that are not listening. Before Bind.
func (id *ID) SetReuse(on bool) error {
	return setOption(id, abi.RDMA_OPTION_ID_REUSEADDR, int32(flag(on)))
}

// SetAFOnly keeps a listener on :: from taking IPv4. Before Bind.
func (id *ID) SetAFOnly(on bool) error {
	return setOption(id, abi.RDMA_OPTION_ID_AFONLY, int32(flag(on)))
}

// timeoutMS is the time-out that the kernel gets, in ms.
func timeoutMS(ctx context.Context) uint32 {
	d := DefaultTimeout
	if t, ok := ctx.Deadline(); ok {
		d = time.Until(t)
		d -= d / 10
	}
	return uint32(min(max(d.Milliseconds(), 1), math.MaxInt32))
}

// sockaddr writes a socket address and returns its size.
func sockaddr(to *abi.Sockaddr, a netip.AddrPort) uint16 {
	binary.BigEndian.PutUint16(to[2:], a.Port())
	if ip := a.Addr().Unmap(); ip.Is4() {
		binary.NativeEndian.PutUint16(to[:], unix.AF_INET)
		b := ip.As4()
		copy(to[4:], b[:])
		return unix.SizeofSockaddrInet4
	}
	binary.NativeEndian.PutUint16(to[:], unix.AF_INET6)
	b := a.Addr().As16()
	copy(to[8:], b[:])
	binary.NativeEndian.PutUint32(to[24:], scopeOf(a.Addr()))
	return unix.SizeofSockaddrInet6
}

// addrOf reads a socket address; the zero value if it is of another family.
func addrOf(s *abi.Sockaddr) netip.AddrPort {
	port := binary.BigEndian.Uint16(s[2:])
	switch binary.NativeEndian.Uint16(s[:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s[4:])), port)
	case unix.AF_INET6:
		ip := netip.AddrFrom16([16]byte(s[8:]))
		if scope := binary.NativeEndian.Uint32(s[24:]); scope != 0 {
			ip = ip.WithZone(zoneOf(scope))
		}
		return netip.AddrPortFrom(ip, port)
	}
	return netip.AddrPort{}
}
