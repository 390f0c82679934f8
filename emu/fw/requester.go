// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"devxlab.example/mlx5"
)

// requester is the sending half of an RC or UC queue pair (IBTA specification,
// volume 1, 9.7.3 to 9.7.7).
type requester struct {
	work []*request // in the queue's order: those that are not complete, then at most one that has not begun
	next int        // of work: what is sent next
	off  uint32     // and which of its packets

	psn  uint32 // of the next request that begins
	una  uint32 // the oldest that is not acknowledged
	sent uint32 // behind the highest that was sent

	timeout  time.Duration // 0: none
	retryMax uint8
	rnrMax   uint8
	reads    int // RDMA READs and atomics that may be outstanding
	msgMax   uint64

	retries  uint8 // left
	rnrs     uint8 // left
	deadline time.Duration
	rnrUntil time.Duration
	implied  bool // una was asked for again because a later response came
	timer    timer
}

// request is a work request between its begin and its completion.
type request struct {
	wqe
	first   uint32   // PSN
	packets uint32   // PSNs that it takes; 0: it has not begun
	done    uint32   // of a READ or atomic: responses that have come
	fail    *failure // why it will not be sent
}

// requestPool is what the work requests of all queue pairs that have begun are
// kept in: more than 1 KiB each, where the driver's queue may have 64 bytes. So
// their number is bounded; beyond it a queue pair has one at a time. What nobody
// uses is the garbage collector's.
type requestPool struct {
	idle sync.Pool
	out  atomic.Int64
	most int64
}

// maxRequests is how many may be out before queue pairs have one at a time.
const maxRequests = 1 << 16

// get returns a request, nil if too many are out and the caller can wait.
func (p *requestPool) get(must bool) *request {
	if p.out.Add(1) > p.most && !must {
		p.out.Add(-1)
		return nil
	}
	if w, ok := p.idle.Get().(*request); ok {
		return w
	}
	return new(request)
}

func (p *requestPool) put(w *request) {
	p.out.Add(-1)
	p.idle.Put(w)
}

// answered reports whether the request is complete by what comes back rather
// than by an acknowledgement.
func (r *request) answered() bool { return r.op == opRead || r.op == opCAS || r.op == opFetchAdd }

const (
	// window is how many packets may be on their way without acknowledgement.
	window = 512
	// ackEvery is how often a long message asks for an acknowledgement, in packets.
	ackEvery = 32
	// ackUnit is the unit of the local ACK time-out: 4.096 µs · 2^n.
	ackUnit    = 4096 * time.Nanosecond
	rnrForever = 7
)

// rnrDelays are the values of an RNR NAK's timer, in units of 10 µs (IBTA
// specification, volume 1, table 45).
var rnrDelays = [32]time.Duration{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

func rnrDelay(code byte) time.Duration { return rnrDelays[code&0x1f] * 10 * time.Microsecond }

func (r *requester) start(c mlx5.QPC, a *AckTimeout) {
	r.limits(c, a)
	r.psn = c.NextSendPSN()
	r.una, r.sent = r.psn, r.psn
	r.retries, r.rnrs = r.retryMax, r.rnrMax
}

// limits takes over what a transition may change.
func (r *requester) limits(c mlx5.QPC, a *AckTimeout) {
	r.timeout = 0
	if n := c.PrimaryAddressPath().AckTimeout(); n > 0 {
		r.timeout = a.after(n)
	}
	r.retryMax, r.rnrMax = c.RetryCount(), c.RNRRetry()
	r.reads = 1 << c.LogSRAMax()
	r.msgMax = 1 << min(c.LogMsgMax(), logMaxMsg)
	if c.LogMsgMax() == 0 {
		r.msgMax = 1 << logMaxMsg // DevX programs leave it
	}
}

func (r *requester) reset(h *HCA) {
	for _, w := range r.work {
		h.requests.put(w)
	}
	r.work, r.next, r.off = nil, 0, 0
	r.deadline, r.rnrUntil, r.implied = 0, 0, false
}

// pop forgets the oldest request.
func (r *requester) pop(h *HCA) {
	h.requests.put(r.work[0])
	n := copy(r.work, r.work[1:])
	r.work[n] = nil
	if r.work = r.work[:n]; n == 0 && cap(r.work) > turnPackets {
		r.work = nil // a queue that was long once
	}
	r.implied = false
	if r.next > 0 {
		r.next--
	} else {
		r.off = 0
	}
	if len(r.work) > 0 && r.work[0].packets > 0 {
		r.una = r.work[0].first
	} else {
		r.una = r.psn
	}
}

// outstanding reports whether something was sent that is not acknowledged.
func (r *requester) outstanding() bool {
	return len(r.work) > 0 && r.work[0].packets > 0 && r.sent != r.una
}

// pendingReads counts the READs and atomics that have begun.
func (r *requester) pendingReads() (n int) {
	for _, w := range r.work {
		if w.packets > 0 && w.answered() {
			n++
		}
	}
	return n
}

// back makes a PSN the next to be sent.
func (r *requester) back(psn uint32) {
	for i, w := range r.work {
		if w.packets == 0 {
			break
		}
		if d := psnDiff(psn, w.first); d >= 0 && d < int(w.packets) {
			r.next, r.off = i, uint32(d)
			if w.answered() {
				r.off = w.done
			}
			return
		}
	}
}

// oldest returns the oldest request that is not complete, from the queue if
// none was taken from there.
func (e *endpoint) oldest(h *HCA) *request {
	if len(e.req.work) > 0 {
		return e.req.work[0]
	}
	return e.fetch(h)
}

// fetch takes the next request from the queue; nil if there is none.
func (e *endpoint) fetch(h *HCA) *request {
	r := &e.req
	w := h.requests.get(len(r.work) == 0)
	if w == nil {
		return nil // those that are out come first
	}
	ds := h.next(e.sq, &w.wqe)
	if ds == 0 {
		h.requests.put(w)
		if e.sq.broken && e.state != mlx5.StateErr {
			e.setState(h, mlx5.StateErr)
		}
		return nil
	}
	w.packets, w.done, w.fail = 0, 0, nil
	if !w.parse(ds, e.kind) {
		w.fail = &failOperation
	}
	r.work = append(r.work, w)
	return w
}

// sending reports whether requests are on their way: in SQD those that have begun
// are completed (IBTA specification, volume 1, 10.3.1.5).
func (e *endpoint) sending() bool { return e.state == mlx5.StateRTS || e.state == mlx5.StateSQD }

// request sends up to a turn's packets.
func (e *endpoint) request(h *HCA) (more bool) {
	r := &e.req
	for budget := turnPackets; budget > 0; {
		if r.rnrUntil != 0 || e.sq.broken || !e.sending() {
			return false
		}
		if e.state == mlx5.StateSQD && (r.next == len(r.work) || r.work[r.next].packets == 0) {
			return false // nothing begins
		}
		var w *request
		if r.next < len(r.work) {
			w = r.work[r.next]
		} else if w = e.fetch(h); w == nil {
			return false
		}
		if w.packets == 0 && w.fail == nil && !e.begin(h, w) {
			if len(r.work) == 0 {
				budget--
				continue // it was one that is done at once
			}
			if w.fail == nil {
				return false
			}
		}
		if w.fail == nil && !w.answered() && psnDiff(w.first+r.off, r.una) >= window {
			return false
		}
		fail := w.fail
		if fail == nil {
			fail = e.sendPacket(h, w) // w may be another's afterwards
			budget--
		}
		if fail != nil {
			if r.next == 0 {
				e.failSend(h, &w.wqe, fail)
			}
			return false // those before it complete first
		}
	}
	return true
}

// begin prepares a request. It returns false if it cannot be sent: not now, not
// at all (then it says why), or because it is done and gone.
func (e *endpoint) begin(h *HCA, w *request) bool {
	r := &e.req
	if w.op == opNOP || w.op == opUMR {
		// Requests before it may still be sent again with the keys as they are.
		if r.next == 0 {
			e.local(h, w)
		}
		return false
	}
	need, answered := localRead, w.answered()
	if answered {
		need = localWrite
	}
	switch {
	case e.kind == kindReg, e.st == mlx5.STUC && (answered || w.op == opSendInval):
		w.fail = &failOperation
	case w.bytes > r.msgMax, w.op != opRead && answered && w.bytes != 8:
		w.fail = &failLength
	case !h.allowed(&e.who, w.sges, need):
		w.fail = &failProtection
	}
	if w.fail != nil {
		return false
	}
	on := psnDiff(r.psn, r.una)
	packets := uint32(max(1, (w.bytes+uint64(e.mtu)-1)/uint64(e.mtu)))
	if w.op == opCAS || w.op == opFetchAdd {
		packets = 1
	}
	switch {
	case answered && on > 0 && on+int(packets) > window,
		(answered || w.fence) && r.pendingReads() >= r.reads, w.fence && r.pendingReads() > 0:
		return false
	}
	w.first, w.packets = r.psn, packets
	r.psn = (r.psn + packets) & psnMask
	return true
}

// local executes a request that sends nothing.
func (e *endpoint) local(h *HCA, w *request) *failure {
	if w.op == opUMR && !h.updateKey(&e.who, e.kernel, w.imm, w.seg) {
		w.fail = &failBind
		return w.fail
	}
	e.finish(h, w, 0)
	return nil
}

// finish completes the oldest request.
func (e *endpoint) finish(h *HCA, w *request, n uint64) {
	if w.signalled {
		c := &cqe{cqeOpcode: cqeRequest << 4}
		binary.BigEndian.PutUint32(c[cqeBytes:], uint32(n))
		e.completeSend(h, &w.wqe, c)
	}
	e.req.pop(h)
}

// sendPacket sends the next packet of a request, or says why it cannot.
func (e *endpoint) sendPacket(h *HCA, w *request) *failure {
	r := &e.req
	psn := (w.first + r.off) & psnMask
	at := uint64(r.off) * uint64(e.mtu)
	hd := header{qpn: e.remote, psn: psn}
	last := r.off == w.packets-1
	n := int(min(uint64(e.mtu), w.bytes-at))
	switch e.st {
	case mlx5.STUC:
		hd.op = transportUC
	case mlx5.STXRC:
		hd.op = transportXRC
		hd.add32(w.srqn)
	}
	switch w.op {
	case opRead:
		hd.op |= pktReadRequest
		hd.addRETH(w.va+at, w.key, uint32(w.bytes-at))
		last, n = true, 0
	case opCAS, opFetchAdd:
		swap, compare := w.swap, w.compare
		hd.op |= pktCompareSwap
		if w.op == opFetchAdd {
			hd.op += pktFetchAdd - pktCompareSwap
			compare = 0
		}
		hd.add64(w.va)
		hd.add32(w.key)
		hd.add64(swap)
		hd.add64(compare)
		last, n = true, 0
	default:
		hd.op |= e.opcode(w, r.off == 0, last)
		if r.off == 0 && (w.op == opWrite || w.op == opWriteImm) {
			hd.addRETH(w.va, w.key, uint32(w.bytes))
		}
		if last && (w.op == opSendImm || w.op == opWriteImm || w.op == opSendInval) {
			hd.add32(w.imm)
		}
	}
	hd.solicited = last && w.solicited && w.op != opWrite
	hd.ack = e.st != mlx5.STUC && (last || r.off%ackEvery == ackEvery-1)
	frame, payload := e.route.frame(&hd, n)
	if n > 0 && !h.gather(&e.who, w.sges, at, payload) {
		w.fail = &failProtection
		return w.fail
	}
	e.out = append(e.out, e.route.seal(frame))
	if w.answered() {
		r.off = w.packets
	} else {
		r.off++
	}
	if end := (w.first + r.off) & psnMask; psnDiff(end, r.sent) > 0 {
		r.sent = end
	}
	if r.off == w.packets {
		r.next, r.off = r.next+1, 0
		if e.st == mlx5.STUC {
			e.finish(h, w, 0)
			return nil
		}
	}
	if e.st != mlx5.STUC && r.deadline == 0 {
		e.restartTimer(h)
	}
	return nil
}

// opcode returns the lower bits of a SEND's or WRITE's packet.
func (e *endpoint) opcode(w *request, first, last bool) byte {
	write, with := w.op == opWrite || w.op == opWriteImm, w.op == opSendImm || w.op == opWriteImm
	base := byte(pktSendFirst)
	if write {
		base = pktWriteFirst
	}
	switch {
	case !last && first:
		return base
	case !last:
		return base + pktSendMiddle
	case w.op == opSendInval && first:
		return pktSendOnlyInv
	case w.op == opSendInval:
		return pktSendLastInv
	case first && with:
		return base + pktSendOnlyImm
	case first:
		return base + pktSendOnly
	case with:
		return base + pktSendLastImm
	}
	return base + pktSendLast
}

// restartTimer begins the local ACK time-out anew.
func (e *endpoint) restartTimer(h *HCA) {
	r := &e.req
	r.deadline = 0
	if r.timeout == 0 || !r.outstanding() {
		return
	}
	r.deadline = h.clock.Now() + r.timeout
	h.timers.ensure(&r.timer, r.deadline)
}

// expire is the timer: of a time-out, or of the wait after an RNR NAK.
func (h *HCA) expire(e *endpoint) {
	e.q.mu.Lock()
	if !e.current() || !e.sending() {
		e.q.mu.Unlock()
		return
	}
	r, now := &e.req, h.clock.Now()
	switch {
	case r.rnrUntil > now:
		h.timers.ensure(&r.timer, r.rnrUntil)
	case r.rnrUntil != 0:
		r.rnrUntil = 0
		e.restartTimer(h)
	case r.deadline == 0 || !r.outstanding():
	case r.deadline > now:
		h.timers.ensure(&r.timer, r.deadline)
	default:
		e.count(ctrAckTimeout)
		if e.retry(h) {
			r.back(r.una)
			e.restartTimer(h)
		}
	}
	e.send(h)
	h.wake(e)
}

// retry uses up one retry, or fails.
func (e *endpoint) retry(h *HCA) bool {
	if e.req.retries == 0 {
		e.failSend(h, &e.req.work[0].wqe, &failRetry)
		return false
	}
	e.req.retries--
	return true
}

// progress is called when the other end has taken something more.
func (e *endpoint) progress(h *HCA) {
	r := &e.req
	r.retries, r.rnrs, r.implied = r.retryMax, r.rnrMax, false
	e.restartTimer(h)
}

// acknowledge completes what lies in front of a PSN. It stops at a READ or
// atomic, which is complete by its responses only, and returns true if the
// acknowledgement went beyond it.
func (e *endpoint) acknowledge(h *HCA, end uint32) (gap bool) {
	r := &e.req
	moved := false
	for len(r.work) > 0 && r.work[0].packets > 0 && e.sending() {
		w := r.work[0]
		if w.answered() {
			gap = psnDiff(end, w.first) > 0
			break
		}
		if psnDiff(end, w.first+w.packets) < 0 {
			if psnDiff(end, r.una) > 0 {
				r.una, moved = end, true
			}
			break
		}
		if r.next == 0 { // acknowledged before it was sent again as a whole
			r.next, r.off = 1, 0
		}
		e.finish(h, w, 0)
		moved = true
	}
	if moved {
		e.progress(h)
		// What is acknowledged need not be sent again.
		if r.next == 0 && len(r.work) > 0 && r.work[0].packets > 0 && !r.work[0].answered() {
			r.off = max(r.off, uint32(max(psnDiff(r.una, r.work[0].first), 0)))
		}
	}
	return gap
}

// answered takes a response.
func (e *endpoint) answered(h *HCA, k *packet) {
	r := &e.req
	if !e.sending() || !r.outstanding() || psnDiff(k.psn, r.una) < 0 || psnDiff(k.psn, r.sent) >= 0 {
		return
	}
	switch k.op &^ transportMask {
	case pktAck:
		e.ack(h, k)
	case pktAtomicAck, pktReadFirst, pktReadMiddle, pktReadLast, pktReadOnly:
		e.data(h, k)
	}
}

func (e *endpoint) ack(h *HCA, k *packet) {
	syndrome, _ := k.aeth()
	if syndrome&aethKind == aethKindAck {
		if e.acknowledge(h, (k.psn+1)&psnMask) {
			e.implied(h)
		}
		return
	}
	if e.acknowledge(h, k.psn) {
		w := e.req.work[0]
		if psnDiff(k.psn, w.first+w.packets) >= 0 || syndrome == aethNakSeq || syndrome&aethKind == aethKindRNR {
			e.implied(h) // responses are missing
			return
		}
	}
	r := &e.req
	if !r.outstanding() {
		return
	}
	switch {
	case syndrome&aethKind == aethKindRNR:
		e.notReady(h, k.psn, syndrome)
	case syndrome == aethNakSeq:
		e.count(ctrPacketSeq)
		if e.retry(h) {
			r.back(k.psn)
			e.restartTimer(h)
		}
	case syndrome == aethNakInvalid:
		e.failSend(h, &r.work[0].wqe, &failRemoteInval)
	case syndrome == aethNakAccess:
		e.failSend(h, &r.work[0].wqe, &failRemoteAccess)
	case syndrome == aethNakOp:
		e.failSend(h, &r.work[0].wqe, &failRemoteOp)
	}
}

// notReady waits as an RNR NAK says.
func (e *endpoint) notReady(h *HCA, psn uint32, syndrome byte) {
	r := &e.req
	if r.rnrUntil != 0 {
		return
	}
	e.count(ctrRNR)
	if r.rnrMax != rnrForever {
		if r.rnrs == 0 {
			e.failSend(h, &r.work[0].wqe, &failRNR)
			return
		}
		r.rnrs--
	}
	r.back(psn)
	r.deadline = 0
	r.rnrUntil = h.clock.Now() + rnrDelay(syndrome)
	h.timers.ensure(&r.timer, r.rnrUntil)
}

// implied sends a READ or atomic again whose responses are missing, once until
// they come or the time-out does.
func (e *endpoint) implied(h *HCA) {
	r := &e.req
	if r.implied {
		return
	}
	e.count(ctrImpliedNak)
	if e.retry(h) {
		r.implied = true
		r.back(r.una)
		e.restartTimer(h)
	}
}

// data takes a response that carries what was asked for.
func (e *endpoint) data(h *HCA, k *packet) {
	e.acknowledge(h, k.psn)
	r := &e.req
	if !r.outstanding() {
		return
	}
	w := r.work[0]
	if !w.answered() {
		return
	}
	switch d := psnDiff(k.psn, w.first+w.done); {
	case d < 0:
		return
	case d > 0:
		e.implied(h)
		return
	}
	at := uint64(w.done) * uint64(e.mtu)
	b := k.payload
	var original [8]byte
	if k.op&^transportMask == pktAtomicAck {
		binary.LittleEndian.PutUint64(original[:], k.original())
		b = original[:]
	}
	switch {
	case (w.op == opRead) == (k.op&^transportMask == pktAtomicAck) || uint64(len(b)) != min(uint64(e.mtu), w.bytes-at):
		e.failSend(h, &w.wqe, &failResponse)
		return
	case !h.scatter(&e.who, w.sges, at, b):
		e.failSend(h, &w.wqe, &failProtection)
		return
	}
	w.done++
	r.una = (w.first + w.done) & psnMask
	if r.next == 0 && r.off < w.done {
		r.off = w.done
	}
	if w.done == w.packets {
		if r.next == 0 {
			r.next, r.off = 1, 0
		}
		e.finish(h, w, w.bytes)
	}
	e.progress(h)
}
