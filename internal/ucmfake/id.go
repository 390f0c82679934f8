// SPDX-License-Identifier: BSD-2-Clause

package ucmfake

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/cm"
	"devxlab.example/cm/abi"
	"devxlab.example/cm/roce"
	"devxlab.example/devx"
	uverbs "devxlab.example/devx/abi"
	"devxlab.example/mlx5"
)

// state is enum rdma_cm_state.
type state int

const (
	idle state = iota
	addrBound
	addrResolved
	routeResolved
	connecting // RDMA_CM_CONNECT, until it is over
	disconnected
	listening
)

// link is enum ib_cm_state, as far as a connection has one.
type link int

const (
	unlinked link = iota
	reqSent
	reqRcvd
	repSent
	repRcvd
	established
	dreqSent
	dreqRcvd
	timewait
)

// id is a struct ucma_context with its rdma_cm_id and ib_cm_id.
type id struct {
	k        *Kernel
	num      uint32
	file     *File
	uid      uint64
	space    uint16
	src, dst abi.Sockaddr
	at       netip.AddrPort // src
	device   bool
	removed  bool
	state    state
	link     link
	peer     *id
	param    abi.ConnParam // its own
	backlog  uint32
	reported uint32

	reuse, afOnly bool
	tos           uint8
	ackTimeout    *uint8
}

// Room for private data that an event has (IB_CM_*_PRIVATE_DATA_SIZE in rdma/ib_cm.h;
// of requests without the connection manager's header of 36 bytes).
var privateRoom = map[cm.EventType][2]int{ // of a connection, of a datagram service
	cm.ConnectRequest: {92 - 36, 216 - 36}, cm.ConnectResponse: {196, 0}, cm.Rejected: {148, 0}, cm.Established: {0, 136}, cm.Unreachable: {0, 136},
}

// told queues an event that is about the ID alone. The kernel has none for an ID
// without a uid (ucma_event_handler).
func (i *id) told(e Event) {
	i.tell(e.Type, e.Status, func(r *abi.EventResp) {
		if i.space == abi.RDMA_PS_UDP {
			r.UD.PrivateDataLen = uint8(copy(r.UD.PrivateData[:privateRoom[e.Type][1]], e.Private))
			return
		}
		putConn(r, &abi.ConnParam{PrivateDataLen: uint8(privateRoom[e.Type][0]), PrivateData: private(e.Private)})
	})
}

func private(b []byte) (p [abi.RDMA_MAX_PRIVATE_DATA]uint8) {
	copy(p[:], b)
	return p
}

func (i *id) tell(t cm.EventType, status int32, fill func(*abi.EventResp)) {
	if i.uid == 0 {
		return
	}
	e := &event{of: i, resp: abi.EventResp{UID: i.uid, ID: i.num, Event: uint32(t), Status: uint32(status)}}
	if fill != nil {
		fill(&e.resp)
	}
	i.send(t, e)
}

// send queues an event, at once or late. One of an ID that is gone by then is none.
func (i *id) send(t cm.EventType, e *event) {
	if i.k.Latency != nil {
		if d := i.k.Latency(t); d > 0 {
			time.AfterFunc(d, func() {
				i.k.mu.Lock()
				defer i.k.mu.Unlock()
				if i.k.ids[i.num] == i {
					i.file.queue(e)
				}
			})
			return
		}
	}
	i.file.queue(e)
}

// putConn writes the other member of the event's union (ucma_copy_conn_event).
func putConn(r *abi.EventResp, c *abi.ConnParam) {
	b, _ := binary.Append(nil, binary.NativeEndian, c)
	b = append(b, make([]byte, binary.Size(r.UD)-len(b))...)
	_, _ = binary.Decode(b, binary.NativeEndian, &r.UD)
}

// peerParam is what a message tells the peer: the private data are padded to the
// message's room.
func (i *id) peerParam(t cm.EventType) *abi.ConnParam {
	p := i.param
	p.QKey, p.Valid = 0, 0
	p.PrivateData = private(p.PrivateData[:p.PrivateDataLen])
	p.PrivateDataLen = uint8(privateRoom[t][0])
	return &p
}

// udParam is what a message of SIDR tells (ucma_copy_ud_event).
func (i *id) udParam(t cm.EventType) abi.UDParam {
	return abi.UDParam{QPNum: i.param.QPNum, QKey: i.qkey(), AH: i.ah(), PrivateData: private(i.param.PrivateData[:i.param.PrivateDataLen]),
		PrivateDataLen: uint8(privateRoom[t][1])}
}

// qkey is RDMA_UDP_QKEY, as cma_set_default_qkey has it: what the request says
// counts for AF_IB only (ucma_copy_conn_param).
func (i *id) qkey() uint32 { return 0x01234567 }

func (i *id) ah() uverbs.AHAttr {
	a := uverbs.AHAttr{IsGlobal: 1, PortNum: 1, SL: i.tos >> 5}
	a.GRH.TrafficClass, a.GRH.HopLimit, a.GRH.SGIDIndex = i.tos, 64, 3
	ip := netip.AddrFrom4([4]byte(i.dst[4:8])).As16()
	if binary.NativeEndian.Uint16(i.dst[:2]) == unix.AF_INET6 {
		copy(ip[:], i.dst[8:24])
	}
	a.GRH.DGID = ip
	return a
}

func resolveAddr(r *request, in *abi.ResolveAddr) error {
	i := r.id
	dst, err := sockaddr(&in.DstAddr, in.DstSize)
	if err != nil || in.Reserved != 0 || i.state != idle && i.state != addrBound {
		return unix.EINVAL
	}
	if i.state == idle {
		src, own := in.SrcAddr, netip.AddrPort{}
		if in.SrcSize != 0 {
			if own, err = sockaddr(&src, in.SrcSize); err != nil {
				return err
			}
		} else { // as if this machine had no other
			src, own = in.DstAddr, netip.AddrPortFrom(dst.Addr(), 0)
			clear(src[2:4])
		}
		if err := i.claim(src, own); err != nil {
			return err
		}
		i.state = addrBound
	}
	if i.dst = in.DstAddr; r.lost {
		return nil
	}
	i.state, i.device = addrResolved, true
	i.tell(cm.AddrResolved, 0, nil)
	return nil
}

func resolveRoute(r *request, in *abi.ResolveRoute) error {
	i := r.id
	if !i.device || in.TimeoutMS == 0 || i.state != addrResolved {
		return unix.EINVAL
	}
	if !r.lost {
		i.state = routeResolved
		i.tell(cm.RouteResolved, 0, nil)
	}
	return nil
}

// listener finds who listens where an ID wants to go.
func (i *id) listener() *id {
	to, _ := sockaddr(&i.dst, map[uint16]uint16{unix.AF_INET: unix.SizeofSockaddrInet4, unix.AF_INET6: unix.SizeofSockaddrInet6}[binary.NativeEndian.Uint16(i.dst[:2])])
	for _, l := range i.k.ids {
		if l.state != listening || l.space != i.space || l.at.Port() != to.Port() {
			continue
		}
		any6 := l.at.Addr() == netip.IPv6Unspecified() && !(l.afOnly && to.Addr().Is4())
		if l.at.Addr() == to.Addr() || any6 || l.at.Addr() == netip.IPv4Unspecified() && to.Addr().Is4() {
			return l
		}
	}
	return nil
}

func connect(r *request, in *abi.Connect) error {
	i := r.id
	if in.Param.Valid == 0 || !i.device || i.state != routeResolved {
		return unix.EINVAL
	}
	i.param = in.Param
	i.state, i.link = connecting, reqSent
	if r.lost {
		return nil
	}
	l := i.listener()
	datagram := i.space == abi.RDMA_PS_UDP
	switch {
	case l == nil && datagram:
		i.told(Event{cm.Unreachable, 1, nil}) // IB_SIDR_UNSUPPORTED
	case l == nil:
		i.link = unlinked
		i.told(Event{cm.Rejected, int32(roce.RejectInvalidServiceID), nil})
	case l.backlog > 0: // else the request is dropped, for the client to repeat: cm_destroy_id after ENOMEM
		l.backlog--
		i.ask(l, datagram)
	}
	return nil
}

// ask brings a request to a listener (ucma_connect_event_handler).
func (i *id) ask(l *id, datagram bool) {
	p := i.k.newID(l.file)
	p.space, p.src, p.dst, p.at, p.device, p.tos = l.space, i.dst, i.src, netip.AddrPort{}, true, i.tos
	p.state, p.link, p.peer, i.peer = connecting, reqRcvd, i, p
	e := &event{of: l, request: p, resp: abi.EventResp{UID: l.uid, ID: p.num, Event: uint32(cm.ConnectRequest)}}
	if datagram {
		e.resp.UD = i.udParam(cm.ConnectRequest)
		e.resp.UD.QPNum, e.resp.UD.QKey = 0, 0
	} else {
		c := i.peerParam(cm.ConnectRequest)
		c.ResponderResources, c.InitiatorDepth = c.InitiatorDepth, c.ResponderResources // cm_format_req_event
		putConn(&e.resp, c)
	}
	l.send(cm.ConnectRequest, e)
}

// accept is REP, RTU and SIDR_REP (rdma_accept).
func accept(r *request, in *abi.Accept) error {
	i := r.id
	switch {
	case !i.device || i.state != connecting:
		return unix.EINVAL
	case in.Param.Valid == 0: // RTU
		if i.link != repRcvd {
			return unix.EINVAL
		}
		if i.link = established; !r.lost && i.peer != nil && i.peer.link == repSent {
			i.peer.link = established
			i.peer.tell(cm.Established, 0, nil)
		}
		return nil
	case i.link != reqRcvd:
		return unix.EINVAL
	}
	i.param, i.uid, i.link = in.Param, in.UID, repSent
	if i.space == abi.RDMA_PS_UDP {
		i.link = unlinked
	}
	c := i.peer
	if r.lost || c == nil || c.link != reqSent {
		return nil
	}
	if i.space == abi.RDMA_PS_UDP {
		c.link = unlinked
		c.tell(cm.Established, 0, func(e *abi.EventResp) { e.UD = i.udParam(cm.Established) })
		return nil
	}
	c.link = repRcvd
	c.tell(cm.ConnectResponse, 0, func(e *abi.EventResp) { putConn(e, i.peerParam(cm.ConnectResponse)) })
	return nil
}

func reject(r *request, in *abi.Reject) error {
	i := r.id
	if !i.device || i.link != reqRcvd && i.link != repSent && i.link != repRcvd {
		return unix.EINVAL
	}
	if i.link = unlinked; !r.lost {
		i.rejects(roce.RejectConsumerDefined, in.PrivateData[:in.PrivateDataLen])
	}
	return nil
}

// rejects tells the peer (cm_rej_handler).
func (i *id) rejects(why roce.RejectReason, what []byte) {
	p := i.peer
	if p == nil || p.link == unlinked || p.link == timewait {
		return
	}
	p.link = unlinked
	if i.space == abi.RDMA_PS_UDP {
		p.told(Event{cm.Unreachable, 2, what}) // IB_SIDR_REJECT
		return
	}
	p.told(Event{cm.Rejected, int32(why), what})
}

func disconnect(r *request, _ *abi.Disconnect) error {
	i := r.id
	if !i.device || i.state != connecting && i.state != disconnected {
		return unix.EINVAL
	}
	if !r.lost {
		i.part()
	}
	return nil
}

// part sends a DREQ, or the DREP that answers one (rdma_disconnect). A peer that is
// gone answers all the same: cm_issue_drep.
func (i *id) part() {
	p := i.peer
	switch {
	case i.link == dreqRcvd:
		i.link = timewait
		if p != nil && p.link == dreqSent {
			p.apart()
		}
	case i.link != established:
	case p == nil:
		i.apart()
	case p.link == established || p.link == repSent:
		i.link = dreqSent
		p.link, p.state = dreqRcvd, disconnected
		p.tell(cm.Disconnected, 0, nil)
	case p.link == dreqSent: // both at a time
		p.apart()
		i.apart()
	}
}

func (i *id) apart() {
	i.link, i.state = timewait, disconnected
	i.tell(cm.Disconnected, 0, nil)
}

// destroy is cm_destroy_id and ucma_destroy_private_ctx.
func (i *id) destroy() {
	delete(i.k.ids, i.num)
	switch i.link {
	case reqSent:
		if i.space == abi.RDMA_PS_TCP {
			i.rejects(roce.RejectTimeout, nil)
		}
	case reqRcvd, repSent, repRcvd:
		i.rejects(roce.RejectConsumerDefined, nil)
	case established, dreqRcvd:
		i.part()
	}
	if p := i.peer; p != nil {
		if p.peer = nil; p.link == dreqSent {
			p.apart()
		}
	}
	keep := i.file.events[:0]
	var asked []*id
	for _, e := range i.file.events {
		switch {
		case e.of != i:
			keep = append(keep, e)
		case e.request != nil:
			asked = append(asked, e.request)
		}
	}
	i.file.events = keep
	for _, a := range asked {
		a.destroy()
	}
}

// Bits of enum ib_qp_attr_mask that cm_init_qp_*_attr and cma_ib_init_qp_attr set.
const (
	maskInit = devx.MaskState | devx.MaskPkeyIndex | devx.MaskPort
	maskRTR  = devx.MaskState | devx.MaskAV | devx.MaskPathMTU | devx.MaskDestQPN | devx.MaskRQPSN | devx.MaskMaxDestRdAtomic | devx.MaskMinRNRTimer
	maskRTS  = devx.MaskState | devx.MaskSQPSN | devx.MaskTimeout | devx.MaskRetryCnt | devx.MaskRNRRetry | devx.MaskMaxQPRdAtomic | devx.MaskPathMigState
)

// What the fake says of every connection.
const (
	RQPSN      = 0x123456
	SQPSN      = 0x654321
	ACKTimeout = 19 // CMA_IBOE_PACKET_LIFETIME + 1
)

// initQPAttr is ucma_init_qp_attr.
func initQPAttr(r *request, in *abi.InitQPAttr) error {
	i := r.id
	if !i.device || in.QPState > uint32(devx.VerbsState(mlx5.StateErr)) {
		return unix.EINVAL
	}
	a := uverbs.QPAttr{State: in.QPState, PortNum: 1}
	datagram := i.space == abi.RDMA_PS_UDP
	known := i.link == reqRcvd || i.link == repRcvd || i.link == repSent || i.link == established
	switch mask := devx.MaskState; {
	case in.QPState == 1 && datagram:
		a.QKey, a.AttrMask = i.qkey(), uint32(maskInit|devx.MaskQKey)
	case in.QPState == 1:
		a.AccessFlags, a.AttrMask = uverbs.IB_UVERBS_ACCESS_REMOTE_WRITE|uverbs.IB_UVERBS_ACCESS_REMOTE_READ, uint32(maskInit|devx.MaskAccessFlags)
	case datagram && in.QPState == 3:
		a.AttrMask = uint32(mask | devx.MaskSQPSN)
	case datagram:
		a.AttrMask = uint32(mask)
	case !known || i.peer == nil && i.link != established:
		return unix.EINVAL
	case in.QPState == 2:
		a.AH, a.PathMTU, a.DestQPNum, a.RQPSN, a.AttrMask = i.ah(), 3, i.other().QPNum, RQPSN, uint32(maskRTR)
		a.MaxDestRdAtomic = i.other().InitiatorDepth
	case in.QPState == 3:
		a.SQPSN, a.Timeout, a.RetryCnt, a.RNRRetry, a.AttrMask = SQPSN, ACKTimeout, i.param.RetryCount, i.param.RNRRetryCount, uint32(maskRTS)
		if a.MaxRdAtomic = i.param.InitiatorDepth; i.ackTimeout != nil {
			a.Timeout = *i.ackTimeout
		}
	default:
		return unix.EINVAL
	}
	return answer(in.Response, r.out, a)
}

func (i *id) other() *abi.ConnParam {
	if i.peer == nil {
		return &abi.ConnParam{}
	}
	return &i.peer.param
}
