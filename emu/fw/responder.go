// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"slices"

	"devxlab.example/mlx5"
)

// responder is the receiving half of an RC or UC queue pair (IBTA
// specification, volume 1, 9.7.4, 9.7.5 and 9.8).
type responder struct {
	psn   uint32 // expected
	msn   uint32 // messages that were completed
	heard bool   // something has arrived
	nak   bool   // a NAK or RNR NAK for psn is out: what comes behind it is dropped
	fatal bool   // a NAK that ends the connection is to be sent

	in    part // the message under way: isSend, isWrite or 0
	queue *recvQueue
	who   user // whose keys requests name
	recv  receive
	holds bool // recv was taken and not completed
	got   uint64
	va    uint64 // of a WRITE
	key   uint32
	total uint64

	rwe, rre, rae bool
	minRNR        byte
	most          int // READs and atomics that the other end may have outstanding
	kept          []answer
	keepAt        int
	jobs          []job
}

// answer is what a READ or atomic was answered, which may be asked for again.
type answer struct {
	first, packets uint32
	atomic         bool
	original       uint64
}

// job is a response to be sent. They leave in the order of their requests.
type job struct {
	kind     jobKind
	psn, msn uint32
	syndrome byte
	original uint64
	va, left uint64
	key      uint32
	who      user
	begun    bool
	repeat   bool // of something that was asked for again
}

type jobKind uint8

const (
	jobAck jobKind = iota
	jobNak
	jobAtomic
	jobRead
)

func (p *responder) start(c mlx5.QPC) {
	p.reset()
	p.psn = c.NextRcvPSN()
}

func (p *responder) reset() {
	*p = responder{recv: receive{sges: p.recv.sges[:0]}, kept: p.kept[:0], jobs: p.jobs[:0]}
}

func (p *responder) limits(c mlx5.QPC) {
	p.rwe, p.rre, p.rae, p.minRNR = c.RWE(), c.RRE(), c.RAE() && c.AtomicMode() != 0, c.MinRNRNak()
	p.most = 1 << c.LogRRAMax()
}

// silence drops the responses that wait: a queue pair that was put into ERR sends
// none (IBTA specification, volume 1, 10.3.1.7), but for the NAK that ended the
// connection, so that the other end hears why.
func (p *responder) silence() {
	p.jobs = slices.DeleteFunc(p.jobs, func(j job) bool { return !p.fatal || j.kind != jobNak })
}

// maxJobs bounds the responses that wait: beyond what READs, atomics and the
// acknowledgements between them can be, the other end sends faster than is right.
const maxJobs = 512

// outcome is what a packet came to.
type outcome uint8

const (
	fine outcome = iota
	noEntry
	badRequest // NAK: invalid request
	badAccess  // NAK: remote access error
	badMemory  // NAK: remote operational error
)

// requested takes a request of RC.
func (e *endpoint) requested(h *HCA, k *packet) {
	p := &e.rsp
	if p.fatal || len(p.jobs) >= maxJobs {
		return // as if it had been lost: the other end sends it again
	}
	switch d := psnDiff(k.psn, p.psn); {
	case d > 0:
		e.count(ctrOutOfSequence)
		if !p.nak {
			p.nak = true
			p.push(job{kind: jobNak, psn: p.psn, syndrome: aethNakSeq})
		}
		return
	case d < 0:
		e.count(ctrDuplicate)
		e.again(h, k)
		return
	}
	e.established(h)
	msn := p.msn
	switch e.accept(h, k) {
	case fine:
		p.nak = false
		if p.msn != msn || k.parts&(isSend|isWrite) != 0 {
			if k.ack && k.parts&(isSend|isWrite) != 0 {
				p.acknowledge(k.psn)
			}
		}
	case noEntry:
		e.count(ctrOutOfBuffer)
		p.nak = true
		p.push(job{kind: jobNak, psn: k.psn, syndrome: aethRNR | p.minRNR})
	case badRequest:
		e.count(ctrRespRemoteInvalid)
		e.refuse(h, k, aethNakInvalid, mlx5.EventWQInvalReqError)
	case badAccess:
		e.count(ctrRespRemoteAccess)
		e.refuse(h, k, aethNakAccess, mlx5.EventWQAccessError)
	case badMemory:
		e.refuse(h, k, aethNakOp, mlx5.EventWQCatasError)
	}
}

// established tells the driver of the first packet, which may come before it
// knows that the other end is ready.
func (e *endpoint) established(h *HCA) {
	if !e.rsp.heard && e.state == mlx5.StateRTR {
		e.report(h, mlx5.EventCommEst)
	}
	e.rsp.heard = true
}

// refuse sends a NAK that ends the connection.
func (e *endpoint) refuse(h *HCA, k *packet, syndrome byte, event mlx5.EventType) {
	p := &e.rsp
	p.fatal = true
	p.push(job{kind: jobNak, psn: k.psn, syndrome: syndrome})
	if !p.holds && k.parts&isSend == 0 {
		e.report(h, event) // a receive completion says it otherwise
	}
	e.setState(h, mlx5.StateErr)
}

func (p *responder) push(j job) {
	j.msn = p.msn
	p.jobs = append(p.jobs, j)
}

// acknowledge acknowledges a PSN, together with those before it.
func (p *responder) acknowledge(psn uint32) {
	if n := len(p.jobs); n > 0 && p.jobs[n-1].kind == jobAck {
		p.jobs[n-1].psn, p.jobs[n-1].msn = psn, p.msn
		return
	}
	p.push(job{kind: jobAck, psn: psn, syndrome: aethAck})
}

// again answers a request that was answered before.
func (e *endpoint) again(h *HCA, k *packet) {
	p := &e.rsp
	if k.parts&(isSend|isWrite) != 0 {
		if k.ack || k.parts&isLast != 0 {
			p.acknowledge((p.psn - 1) & psnMask)
		}
		return
	}
	if !e.domain(h, k) {
		return
	}
	for i := range p.kept {
		x := &p.kept[i]
		d := psnDiff(k.psn, x.first)
		if d < 0 || d >= int(x.packets) || p.pending(true) >= p.most {
			continue
		}
		switch {
		case x.atomic && k.parts&hasAtomicETH != 0:
			p.push(job{kind: jobAtomic, psn: k.psn, original: x.original, repeat: true})
		case !x.atomic && k.parts&hasRETH != 0:
			va, key, n := k.reth()
			if uint64(n) <= uint64(int(x.packets)-d)*uint64(e.mtu) && (n == 0 || h.allows(&p.who, key, va, uint64(n), remoteRead)) {
				p.push(job{kind: jobRead, psn: k.psn, va: va, key: key, left: uint64(n), who: p.who, repeat: true})
			}
		}
		return
	}
}

// pending counts the READs and atomics that are being answered: for the first
// time, or again.
func (p *responder) pending(again bool) (n int) {
	for i := range p.jobs {
		if p.jobs[i].kind >= jobAtomic && p.jobs[i].repeat == again {
			n++
		}
	}
	return n
}

// keep remembers a READ or atomic.
func (p *responder) keep(r answer) {
	if len(p.kept) < p.most {
		p.kept = append(p.kept, r)
		return
	}
	p.kept[p.keepAt%len(p.kept)] = r
	p.keepAt++
}

// accept executes the request that is expected.
func (e *endpoint) accept(h *HCA, k *packet) outcome {
	p := &e.rsp
	kind := k.parts & (isSend | isWrite)
	switch {
	case k.parts&isResponse != 0:
		return badRequest
	case k.parts&isFirst != 0 && p.in != 0, k.parts&isFirst == 0 && p.in != kind:
		return badRequest
	case kind != 0 && !e.rightLength(k):
		return badRequest
	}
	if !e.domain(h, k) {
		return badRequest
	}
	switch {
	case kind == isSend:
		return e.acceptSend(h, k)
	case kind == isWrite:
		return e.acceptWrite(h, k)
	case k.parts&hasAtomicETH != 0:
		return e.acceptAtomic(h, k)
	case k.parts&hasRETH != 0:
		return e.acceptRead(h, k)
	}
	return badRequest
}

// domain finds out whose keys a request may name: those of the queue pair's
// domain or, with XRC, of the domain of the receive queue that it names.
func (e *endpoint) domain(h *HCA, k *packet) bool {
	e.rsp.who = e.who
	if e.kind != kindXRC {
		return true
	}
	q := h.sharedQueueOf(k.word(0)&0xffffff, kindXRCSRQ, mlx5.QPC(e.q.qpc[:]).XRCD())
	if q == nil {
		return false
	}
	e.rsp.who.pd = q.user.pd
	return true
}

// rightLength reports whether a packet of a message is as long as its place in
// that wants.
func (e *endpoint) rightLength(k *packet) bool {
	n := len(k.payload)
	switch {
	case k.parts&isLast == 0:
		return n == e.mtu
	case k.parts&isFirst == 0:
		return n >= 1 && n <= e.mtu
	}
	return n <= e.mtu
}

// receiver finds the receive queue for a message.
func (e *endpoint) receiver(h *HCA, k *packet) bool {
	e.rsp.queue = e.rq
	if e.kind == kindXRC {
		e.rsp.queue = h.sharedQueueOf(k.word(0)&0xffffff, kindXRCSRQ, mlx5.QPC(e.q.qpc[:]).XRCD())
	}
	return e.rsp.queue != nil
}

// take takes a receive entry for a message, unless it has one.
func (e *endpoint) take(h *HCA, k *packet) outcome {
	p := &e.rsp
	if p.holds {
		return fine
	}
	if !e.receiver(h, k) {
		return badRequest
	}
	switch h.take(p.queue, &p.recv) {
	case tookNone:
		return noEntry
	case tookBroken:
		return badMemory
	}
	p.holds = true
	return fine
}

// failRecv completes the receive entry of a message with an error.
func (e *endpoint) failRecv(h *HCA, f *failure) {
	e.count(ctrRespCQEError)
	e.rsp.holds = false
	e.completeRecv(h, e.rsp.recv.index, f.completion(cqeRecvErr), false)
}

// receiverUser is whose keys a receive entry names.
func (e *endpoint) receiverUser() *user {
	if q := e.rsp.queue; q != nil && q.shared {
		return &q.user
	}
	return &e.who
}

func (e *endpoint) acceptSend(h *HCA, k *packet) outcome {
	p := &e.rsp
	if o := e.take(h, k); o != fine {
		return o
	}
	if k.parts&isFirst != 0 {
		p.got = 0
	}
	if p.got+uint64(len(k.payload)) > p.recv.room {
		e.count(ctrRespLength)
		e.failRecv(h, &failLength)
		return badRequest
	}
	if !h.scatter(e.receiverUser(), p.recv.sges, p.got, k.payload) {
		e.count(ctrRespProtection)
		e.failRecv(h, &failReceive)
		return badMemory
	}
	if k.parts&hasIETH != 0 && !h.invalidate(&e.rsp.who, k.immediate()) {
		e.failRecv(h, &failReceive)
		return badAccess
	}
	p.got += uint64(len(k.payload))
	p.advance(k, isSend, 1)
	if k.parts&isLast == 0 {
		return fine
	}
	op := byte(cqeRecvSend)
	switch {
	case k.parts&hasImm != 0:
		op = cqeRecvSendImm
	case k.parts&hasIETH != 0:
		op = cqeRecvInval
	}
	e.received(h, k, op, p.got)
	return fine
}

// received completes a receive entry.
func (e *endpoint) received(h *HCA, k *packet, op byte, n uint64) {
	c := &cqe{cqeOpcode: op << 4}
	if k.parts&(hasImm|hasIETH) != 0 {
		binary.BigEndian.PutUint32(c[cqeImm:], k.immediate())
	}
	binary.BigEndian.PutUint32(c[cqeBytes:], uint32(n))
	e.rsp.holds = false
	e.completeRecv(h, e.rsp.recv.index, c, k.solicited)
}

// advance takes over that a packet was executed.
func (p *responder) advance(k *packet, kind part, packets uint32) {
	p.psn = (p.psn + packets) & psnMask
	p.in = kind
	if k.parts&isLast != 0 {
		p.in = 0
		p.msn = (p.msn + 1) & psnMask
	}
}

func (e *endpoint) acceptWrite(h *HCA, k *packet) outcome {
	p := &e.rsp
	va, key, total, got := p.va, p.key, p.total, p.got
	if k.parts&isFirst != 0 {
		var n uint32
		va, key, n = k.reth()
		total, got = uint64(n), 0
		switch {
		case !p.rwe || total > 1<<31:
			return badRequest
		case total > 0 && !h.allows(&p.who, key, va, total, remoteWrite):
			return badAccess
		}
	}
	n := uint64(len(k.payload))
	if got+n > total || k.parts&isLast != 0 && got+n != total {
		return badRequest
	}
	if k.parts&hasImm != 0 {
		if o := e.take(h, k); o != fine {
			return o
		}
	}
	if !h.dma(&p.who, key, va+got, k.payload, remoteWrite, true) {
		return badAccess
	}
	if k.parts&isFirst != 0 {
		e.count(ctrRXWrite)
	}
	p.va, p.key, p.total, p.got = va, key, total, got+n
	p.advance(k, isWrite, 1)
	if k.parts&hasImm != 0 {
		e.received(h, k, cqeRecvImm, total)
	}
	return fine
}

func (e *endpoint) acceptRead(h *HCA, k *packet) outcome {
	p := &e.rsp
	va, key, n := k.reth()
	switch {
	case !p.rre || n > 1<<31 || len(k.payload) > 0 || p.pending(false) >= p.most:
		return badRequest
	case n > 0 && !h.allows(&p.who, key, va, uint64(n), remoteRead):
		return badAccess
	}
	packets := max(1, (n+uint32(e.mtu)-1)/uint32(e.mtu))
	e.count(ctrRXRead)
	p.keep(answer{first: k.psn, packets: packets})
	p.advance(k, 0, packets)
	p.push(job{kind: jobRead, psn: k.psn, va: va, key: key, left: uint64(n), who: p.who})
	return fine
}

const atomicBytes = 8

func (e *endpoint) acceptAtomic(h *HCA, k *packet) outcome {
	p := &e.rsp
	va, key, swap, compare := k.atomicETH()
	switch {
	case !p.rae || va%atomicBytes != 0 || len(k.payload) > 0 || p.pending(false) >= p.most:
		return badRequest
	case !h.allows(&p.who, key, va, atomicBytes, remoteAtomic):
		return badAccess
	}
	var b [atomicBytes]byte
	if !h.dma(&p.who, key, va, b[:], remoteAtomic, false) {
		return badAccess
	}
	// The host is little endian.
	was := binary.LittleEndian.Uint64(b[:])
	now := swap
	if k.op&^transportMask == pktFetchAdd {
		now = was + swap
	} else if was != compare {
		now = was
	}
	binary.LittleEndian.PutUint64(b[:], now)
	if now != was && !h.dma(&p.who, key, va, b[:], remoteAtomic, true) {
		return badAccess
	}
	e.count(ctrRXAtomic)
	p.keep(answer{first: k.psn, packets: 1, atomic: true, original: was})
	p.advance(k, 0, 1)
	p.push(job{kind: jobAtomic, psn: k.psn, original: was})
	return fine
}

// respond sends up to a turn's responses.
func (e *endpoint) respond(h *HCA) (more bool) {
	p := &e.rsp
	for budget := turnPackets; budget > 0 && len(p.jobs) > 0; budget-- {
		if e.reply(h, &p.jobs[0]) {
			p.jobs = append(p.jobs[:0], p.jobs[1:]...)
		}
	}
	if p.fatal && len(p.jobs) == 0 {
		p.fatal = e.state == mlx5.StateErr // until it is reset
	}
	return len(p.jobs) > 0
}

// reply sends a packet of a response and reports whether it was the last.
func (e *endpoint) reply(h *HCA, j *job) (done bool) {
	hd := header{qpn: e.remote, psn: j.psn, op: pktAck}
	if e.st == mlx5.STXRC {
		hd.op |= transportXRC
	}
	switch j.kind {
	case jobAck, jobNak:
		hd.addAETH(j.syndrome, j.msn)
	case jobAtomic:
		hd.op += pktAtomicAck - pktAck
		hd.addAETH(aethAck, j.msn)
		hd.add64(j.original)
	case jobRead:
		return e.replyRead(h, j, &hd)
	}
	frame, _ := e.route.frame(&hd, 0)
	e.out = append(e.out, e.route.seal(frame))
	return true
}

func (e *endpoint) replyRead(h *HCA, j *job, hd *header) (done bool) {
	n := min(uint64(e.mtu), j.left)
	done = n == j.left
	op := byte(pktReadMiddle)
	switch {
	case done && !j.begun:
		op = pktReadOnly
	case done:
		op = pktReadLast
	case !j.begun:
		op = pktReadFirst
	}
	hd.op = hd.op&transportMask | op
	if op != pktReadMiddle {
		hd.addAETH(aethAck, j.msn)
	}
	frame, payload := e.route.frame(hd, int(n))
	if !h.dma(&j.who, j.key, j.va, payload, remoteRead, false) {
		// The key went away, or the memory behind it.
		j.kind, j.syndrome = jobNak, aethNakAccess
		e.rsp.jobs = e.rsp.jobs[:1] // nothing is answered behind that
		if !e.rsp.fatal && e.state != mlx5.StateErr {
			e.count(ctrRespRemoteAccess)
			e.rsp.fatal = true
			e.report(h, mlx5.EventWQAccessError)
			e.setState(h, mlx5.StateErr)
		}
		return false
	}
	e.out = append(e.out, e.route.seal(frame))
	j.begun, j.psn = true, (j.psn+1)&psnMask
	j.va, j.left = j.va+n, j.left-n
	return done
}

// unreliable takes a packet of UC: what does not fit is dropped with its
// message, and nobody is told.
func (e *endpoint) unreliable(h *HCA, k *packet) {
	p := &e.rsp
	if k.parts&(isSend|isWrite) == 0 || k.parts&hasIETH != 0 {
		return
	}
	if k.parts&isFirst != 0 {
		p.in, p.psn = 0, k.psn // what was under way is lost; its receive entry serves the next
	} else if k.psn != p.psn || p.in == 0 {
		p.in, p.psn = 0, (k.psn+1)&psnMask
		return
	}
	e.established(h)
	o := e.accept(h, k)
	if o == fine {
		return
	}
	p.in, p.psn = 0, (k.psn+1)&psnMask
	switch {
	case o == noEntry:
		e.count(ctrOutOfBuffer)
	case !p.holds && k.parts&isSend != 0 && (o == badMemory || o == badRequest) && p.queue != nil:
		e.setState(h, mlx5.StateErr) // a receive entry completed with an error
	}
}
