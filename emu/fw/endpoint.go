// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"devxlab.example/mlx5"
)

// serviceKind is what a queue pair's work requests look like.
type serviceKind uint8

const (
	kindConnected serviceKind = iota // RC, UC
	kindXRC
	kindUD  // and GSI
	kindReg // UMR only
)

// endpoint is what of a queue pair moves data: its lock is the queue pair's.
// While it is held nothing is sent: frames wait in out until it is released.
type endpoint struct {
	q        *qp
	kind     serviceKind
	st       mlx5.ServiceType
	who      user
	kernel   bool // its UMR work requests may change any key, and name pages
	state    mlx5.State
	sq       *sendQueue // nil: none
	rq       *recvQueue // nil: none
	recvCQ   *cqRing
	recvIdx  uint32 // the driver's own number, for completions
	counters *counterSet
	route    route
	mtu      int
	remote   uint32

	req requester
	rsp responder

	out     [][]byte
	cnp     []byte        // to be sent at once
	cnpNext time.Duration // not before

	loop  bool         // it hears its own multicasts
	wait  bool         // queued at the port, under the port's lock
	last  atomic.Int32 // lane of the frame that was sent last; before the first, of the path
	quiet atomic.Bool  // it sends nothing: it is in RESET, or only flushes
	polls int          // looks at the receive queue since it went to ERR, while they become more seldom
	poll  background
}

func (e *endpoint) queued() *bool { return &e.wait }

// lane is that of the path, or of the last frame; none of a queue pair that sends
// nothing.
func (e *endpoint) lane() lane {
	if e.quiet.Load() {
		return noLane
	}
	return lane(e.last.Load())
}

// current reports whether this is still the queue pair's data path. What a dead
// queue pair has is being changed by whoever makes it the next one.
func (e *endpoint) current() bool { return e.q.live.Load() && e.q.ep == e }

// turn does a part of what there is to do.
func (e *endpoint) turn(h *HCA) (more bool) {
	e.q.mu.Lock()
	if !e.current() {
		e.q.mu.Unlock()
		return false
	}
	more = e.respond(h)
	switch {
	case e.state == mlx5.StateErr:
		more = e.flush(h) || more
	case e.state == mlx5.StateSQER && e.recovers():
		more = e.flushSends(h) || more
	case e.sq == nil || e.sq.broken:
	case e.state == mlx5.StateRTS || e.state == mlx5.StateSQD:
		switch e.kind {
		case kindUD:
			more = e.sendDatagrams(h) || more
		default:
			more = e.request(h) || more
		}
	}
	e.send(h)
	return more
}

// send unlocks the queue pair and sends what waits.
func (e *endpoint) send(h *HCA) {
	out, loop, cnp := e.out, e.loop, e.cnp
	e.out, e.cnp = nil, nil
	e.q.mu.Unlock()
	if cnp != nil {
		h.transmit(cnp, true, false)
	}
	for _, f := range out {
		e.last.Store(int32(h.transmit(f, true, loop)))
	}
}

// deliver gives a packet to the queue pair that it is for, or for a multicast
// to those that have joined.
func (h *HCA) deliver(k *packet) {
	if k.dmac[0]&groupBit != 0 {
		if k.transportOf() == transportUD && k.qpn == multicastQPN {
			h.deliverMulticast(k)
		}
		return
	}
	q := h.qps.get(k.qpn)
	if k.qpn == gsiQPN {
		q = h.gsi.Load()
	}
	if k.op == pktCNP {
		h.notified(q, k)
		return
	}
	if q == nil {
		return
	}
	h.deliverTo(q, k)
}

// notified takes a CNP.
func (h *HCA) notified(q *qp, k *packet) {
	count := &h.cong.ignored
	if q != nil {
		q.mu.Lock()
		if q.live.Load() && q.ep != nil && q.ep.sending() && q.ep.connected() && q.ep.fromPeer(k) {
			count = &h.cong.handled
		}
		q.mu.Unlock()
	}
	count.Add(1)
}

// connected reports whether it has one other end.
func (e *endpoint) connected() bool { return e.kind == kindConnected || e.kind == kindXRC }

func (h *HCA) deliverTo(q *qp, k *packet) {
	q.mu.Lock()
	if !q.live.Load() || q.ep == nil || q.ep.state == mlx5.StateRST || q.ep.state == mlx5.StateInit || q.ep.state == mlx5.StateErr {
		q.mu.Unlock()
		return
	}
	e := q.ep
	t := k.transportOf()
	if e.connected() && k.marked() && e.fromPeer(k) {
		e.congested(h)
	}
	switch {
	case e.kind == kindUD && t == transportUD:
		e.datagram(h, k)
	case !e.connected() || !e.fromPeer(k):
	case e.st == mlx5.STRC && t == transportRC, e.st == mlx5.STXRC && t == transportXRC:
		if k.parts&isResponse != 0 {
			e.answered(h, k)
		} else {
			e.requested(h, k)
		}
	case e.st == mlx5.STUC && t == transportUC && k.parts&isResponse == 0:
		e.unreliable(h, k)
	}
	e.send(h)
	h.wake(e)
}

// fromPeer reports whether a packet comes from the address that the queue pair
// is connected to.
func (e *endpoint) fromPeer(k *packet) bool {
	return k.v2 == e.route.v2 && k.sgid == e.route.dgid && k.dgid == e.route.sgid
}

// follow makes the data path follow its queue pair's state. The queue pair is
// locked.
func (h *HCA) follow(q *qp, to mlx5.State) {
	e := q.ep
	if e == nil {
		return
	}
	was := e.state
	e.state = to
	more := false
	c := mlx5.QPC(q.qpc[:])
	switch to {
	case mlx5.StateRST:
		e.restart(h)
	case mlx5.StateErr:
		if was != mlx5.StateErr {
			more = e.fail(h)
		} else {
			e.rsp.silence()
		}
	case mlx5.StateSQER:
		if e.recovers() {
			more = e.flushSends(h)
		}
	case mlx5.StateRTR:
		if was != mlx5.StateRTR {
			e.rsp.start(c)
		}
		if e.st == mlx5.STQp1 {
			h.gsi.Store(q)
		}
	case mlx5.StateRTS:
		if was == mlx5.StateRTR {
			e.req.start(c, h.profile.AckTimeout)
		}
	}
	switch {
	case to == mlx5.StateRST || to == mlx5.StateErr || to == mlx5.StateSQER:
		e.quiet.Store(true)
		h.unpark(e)
	case to == mlx5.StateRTR || to == mlx5.StateRTS:
		e.connect(h, c)
		if was != to {
			e.last.Store(int32(h.laneOf(e)))
		}
		e.quiet.Store(false)
	}
	e.counters = h.counters.get(uint32(c.CounterSetID()))
	if c.CounterSetID() == 0 {
		e.counters = nil
	}
	if more || e.busy(h) {
		h.wake(e)
	}
}

// busy reports whether there are requests in a state that was just entered. Most
// transitions find none, and must not cost a turn.
func (e *endpoint) busy(h *HCA) bool {
	if e.sq == nil || e.state != mlx5.StateRTS && e.state != mlx5.StateSQD {
		return false
	}
	n, good := h.posted(e.sq)
	return n > 0 || !good || len(e.req.work) > 0
}

// connect takes over what the context says about the other end.
func (e *endpoint) connect(h *HCA, c mlx5.QPC) {
	if e.mtu = 128 << c.MTU(); e.mtu > 4096 || e.mtu < 256 {
		e.mtu = 4096
	}
	e.remote = c.RemoteQPN()
	e.req.limits(c, h.profile.AckTimeout)
	e.rsp.limits(c)
	a := c.PrimaryAddressPath()
	r, _ := h.routeFrom(a.SrcAddrIndex())
	binary.BigEndian.PutUint16(r.dmac[:], a.RMAC4732())
	binary.BigEndian.PutUint32(r.dmac[2:], a.RMAC310())
	copy(r.dgid[:], a.RGIDRip())
	r.tclass, r.flow, r.sport = a.Tclass(), a.FlowLabel(), a.UDPSport()
	if r.hops = a.HopLimit(); r.hops == 0 {
		r.hops = roceHopLimit
	}
	if r.sport < sportFirst {
		r.sport = sportFirst | uint16(e.who.qpn^e.remote)
	}
	if r.tagged {
		r.tci |= uint16(a.EthPrio()) << 13
	}
	e.route = r
}

// restart forgets everything: the queue pair is in RESET.
func (e *endpoint) restart(h *HCA) {
	h.timers.stop(&e.req.timer)
	h.timers.stopBackground(&e.poll)
	e.req.reset(h)
	e.rsp.reset()
	e.out, e.polls, e.cnp, e.cnpNext = nil, 0, nil, 0
	if e.sq != nil {
		e.sq.cc, e.sq.broken = 0, false
	}
	if e.rq != nil && !e.rq.shared {
		e.rq.restart()
	}
}

// setState puts the queue pair itself into a state, as errors do.
func (e *endpoint) setState(h *HCA, s mlx5.State) {
	mlx5.QPC(e.q.qpc[:]).SetState(uint8(s))
	h.follow(e.q, s)
}

// failure is why a work request failed: what its completion says
// (MLX5_CQE_SYNDROME_* and the vendor's numbers, as real cards gave them).
type failure struct {
	syndrome, vendor, hardware, kind byte
}

var (
	failLength       = failure{0x01, 0x69, 0, 0}
	failOperation    = failure{0x02, 0x61, 0x01, 0}
	failProtection   = failure{0x04, 0x52, 0x93, 0}
	failReceive      = failure{0x04, 0x56, 0xa9, 0}
	failFlush        = failure{0x05, 0xf9, 0, 0}
	failBind         = failure{0x06, 0x78, 0x0f, 0}
	failResponse     = failure{0x10, 0x68, 0, 0}
	failRemoteInval  = failure{0x12, 0x8a, 0, 0}
	failRemoteAccess = failure{0x13, 0x88, 0, 0}
	failRemoteOp     = failure{0x14, 0x89, 0, 0}
	failRetry        = failure{0x15, 0x81, 0, 0}
	failRNR          = failure{0x16, 0x87, 0, 0}
)

// Offsets in a completion (struct mlx5_cqe64, struct mlx5_err_cqe).
const (
	cqeFlags    = 0x18 // flags_rqpn
	cqeIndex    = 0x20 // srqn_uidx
	cqeImm      = 0x24
	cqeBytes    = 0x2c
	cqeHardware = 0x34
	cqeKind     = 0x35
	cqeVendor   = 0x36
	cqeSyndrome = 0x37
	cqeQPN      = 0x38 // sop_drop_qpn
	cqeCounter  = 0x3c
	cqeOpcode   = 0x3f
)

// Opcodes of completions (linux/mlx5/device.h, MLX5_CQE_*).
const (
	cqeRequest     = 0
	cqeRecvImm     = 1 // RDMA WRITE with immediate
	cqeRecvSend    = 2
	cqeRecvSendImm = 3
	cqeRecvInval   = 4
	cqeResize      = 5
	cqeRequestErr  = 13
	cqeRecvErr     = 14
)

func (f *failure) completion(opcode byte) *cqe {
	e := &cqe{cqeOpcode: opcode << 4, cqeHardware: f.hardware, cqeKind: f.kind, cqeVendor: f.vendor, cqeSyndrome: f.syndrome}
	return e
}

// completeSend posts the completion of a request.
func (e *endpoint) completeSend(h *HCA, w *wqe, c *cqe) {
	binary.BigEndian.PutUint32(c[cqeIndex:], e.sq.index)
	binary.BigEndian.PutUint32(c[cqeQPN:], uint32(w.op)<<24|e.who.qpn)
	binary.BigEndian.PutUint16(c[cqeCounter:], w.index)
	if !h.complete(e.sq.cq, c, false) {
		e.sq.broken = true
	}
}

// completeRecv posts the completion of a receive entry.
func (e *endpoint) completeRecv(h *HCA, index uint16, c *cqe, solicited bool) {
	number, ring := e.recvIdx, e.recvCQ
	if q := e.rsp.queue; q != nil && q.cq != nil {
		number, ring = q.index, q.cq
	}
	binary.BigEndian.PutUint32(c[cqeIndex:], number)
	binary.BigEndian.PutUint32(c[cqeQPN:], e.who.qpn)
	binary.BigEndian.PutUint16(c[cqeCounter:], index)
	if ring != nil {
		h.complete(ring, c, solicited)
	}
}

// recovers reports whether an error of the send queue leaves the receive queue
// alone: the queue pair is then in SQER, from where the driver brings it back
// (IBTA specification, volume 1, 10.3.1.6: services other than RC; the kernel's
// mad.c, mad_error_handler, does that for the GSI).
func (e *endpoint) recovers() bool { return e.kind == kindUD || e.st == mlx5.STUC }

// failSend completes the oldest request with an error and brings the queue pair
// to ERR, or to SQER.
func (e *endpoint) failSend(h *HCA, w *wqe, f *failure) {
	e.count(ctrReqCQEError)
	switch f {
	case &failRemoteInval:
		e.count(ctrReqRemoteInvalid)
	case &failRemoteAccess:
		e.count(ctrReqRemoteAccess)
	case &failRemoteOp:
		e.count(ctrReqRemoteOp)
	case &failRetry:
		e.count(ctrReqRetries)
	case &failProtection:
		e.count(ctrReqProtection)
	case &failBind:
		e.count(ctrReqBind)
	case &failOperation:
		e.count(ctrLocalOperation)
	case &failLength:
		e.count(ctrReqLength)
	case &failResponse:
		e.count(ctrReqBadResponse)
	}
	e.completeSend(h, w, f.completion(cqeRequestErr))
	e.req.pop(h)
	if e.recovers() {
		e.setState(h, mlx5.StateSQER)
		return
	}
	e.setState(h, mlx5.StateErr)
}

// fail is the way into ERR: what was posted is flushed. It reports whether there
// may be more.
func (e *endpoint) fail(h *HCA) (more bool) {
	h.timers.stop(&e.req.timer)
	e.req.rnrUntil = 0
	if !e.rsp.fatal {
		e.rsp.silence()
	}
	more = e.flush(h)
	if e.rq != nil && e.rq.shared && e.kind != kindXRC {
		e.report(h, mlx5.EventSRQLastWQE)
	}
	if e.rq != nil && !e.rq.shared && (h.driver != nil || e.rq.count > 0) {
		e.polls = 0
		e.pollLater(h)
	}
	return more
}

// flush completes everything that is posted with an error, but no more than
// queues hold at once: a driver that posts as fast must not keep the device from
// all else. It reports whether there may be more.
func (e *endpoint) flush(h *HCA) (more bool) {
	more = e.flushSends(h)
	flushed := func(index uint16) {
		e.count(ctrRespFlush)
		e.count(ctrRespCQEError)
		e.completeRecv(h, index, failFlush.completion(cqeRecvErr), false)
	}
	if e.rsp.holds {
		e.rsp.holds = false
		flushed(e.rsp.recv.index)
	}
	if e.rq == nil || e.rq.shared {
		return more
	}
	for range 1 << e.rq.log {
		if h.take(e.rq, &e.rsp.recv) != took {
			return more
		}
		flushed(e.rsp.recv.index)
	}
	return true
}

// flushSends is flush of the send queue.
func (e *endpoint) flushSends(h *HCA) (more bool) {
	if e.sq == nil {
		return false
	}
	for left := len(e.req.work) + 1<<e.sq.log; !e.sq.broken; left-- {
		if left == 0 {
			return true
		}
		r := e.oldest(h)
		if r == nil {
			return false
		}
		e.count(ctrReqFlush)
		e.count(ctrReqCQEError)
		e.completeSend(h, &r.wqe, failFlush.completion(cqeRequestErr))
		e.req.pop(h)
	}
	return false
}

// Receive entries that are posted in ERR must be flushed too, and no doorbell
// tells of them: the device looks whenever the queue pair has a turn, soon after
// it went to ERR and then ever more seldom, but for as long as it is there.
const (
	firstPoll = time.Millisecond
	maxPolls  = 10 // that double the time to the next: 1 s at the end
)

func (e *endpoint) pollLater(h *HCA) {
	h.timers.setBackground(&e.poll, h.clock.Now()+firstPoll<<e.polls)
	e.polls = min(e.polls+1, maxPolls)
}

func (h *HCA) pollFlush(e *endpoint) {
	e.q.mu.Lock()
	defer e.q.mu.Unlock()
	if e.current() && e.state == mlx5.StateErr {
		if e.flush(h) {
			h.wake(e)
		}
		e.pollLater(h)
	}
}

// report tells the driver of something about the queue pair (struct
// mlx5_eqe_qp_srq).
func (e *endpoint) report(h *HCA, t mlx5.EventType) {
	var data eventBytes
	data[20] = rscQP
	binary.BigEndian.PutUint32(data[24:], e.who.qpn)
	h.report(t, 0, &data)
}

// newEndpoint makes the data path of a queue pair that is about to exist.
func (h *HCA) newEndpoint(q *qp, id uint32, uid uint16, s *sendQueue, r *recvQueue) *endpoint {
	c := mlx5.QPC(q.qpc[:])
	// The driver gives the reserved key to each of the kernel's queue pairs
	// (mlx5_ib qp.c, create_kernel_qp) and never to those of programs, of which it
	// makes some under its own uid.
	kernel := uid == 0 && c.Rlky()
	e := &endpoint{
		q: q, st: mlx5.ServiceType(c.St()), sq: s, rq: r, recvIdx: c.UserIndex(), kernel: kernel,
		who: user{pd: c.PD(), qpn: id, reserved: kernel}, loop: !c.BlockLbMc(),
	}
	e.quiet.Store(true)
	switch e.st {
	case mlx5.STXRC:
		e.kind = kindXRC
	case mlx5.STUD, mlx5.STQp1:
		e.kind = kindUD
	case mlx5.STRegUMR:
		e.kind = kindReg
	}
	if cq := h.cqs.get(c.CQNRcv()); cq != nil {
		e.recvCQ = cq.ring.Load()
	}
	e.req.timer.ring = func() { h.expire(e) }
	e.poll.ring = func() { h.pollFlush(e) }
	return e
}

// endEndpoint ends the data path of a queue pair that was destroyed.
func (h *HCA) endEndpoint(q *qp) {
	q.queue.Store(nil)
	q.mu.Lock()
	e := q.ep
	q.ep = nil
	if e != nil {
		e.req.reset(h)
	}
	q.mu.Unlock()
	if e == nil {
		return
	}
	h.timers.stop(&e.req.timer)
	h.timers.stopBackground(&e.poll)
	h.gsi.CompareAndSwap(q, nil)
	h.groups.leaveAll(q)
}

// describe fills in what moves by itself in a queue pair's context.
func (e *endpoint) describe(c mlx5.QPC) {
	switch e.state {
	case mlx5.StateRTS, mlx5.StateSQD:
		c.SetNextSendPSN(e.req.psn)
		c.SetLastAckedPSN((e.req.una - 1) & psnMask)
		fallthrough
	case mlx5.StateRTR:
		c.SetNextRcvPSN(e.rsp.psn)
		c.SetRMSN(e.rsp.msn)
	}
}
