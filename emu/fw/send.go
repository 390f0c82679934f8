// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"sync"

	"devxlab.example/mlx5"
)

const wqeBlock = 64 // bytes of a send queue's unit, WQEBB

// sendQueue is a send queue in the host's memory: that of a queue pair, whose
// lock guards it, or an SQ of its own.
type sendQueue struct {
	mu     sync.Mutex // of an SQ
	ep     *endpoint  // of a queue pair
	number uint32
	index  uint32 // the driver's own, which completions carry
	cq     *cqRing
	buf    buffer
	at     uint64 // of the first block in buf, behind a receive queue
	log    uint8
	record uint64
	rec    [4]byte // what was read there last
	cc     uint16  // what was taken
	broken bool

	// The rest is of an SQ.
	running bool // its state lets it work
	wait    bool // queued at the port, under the port's lock
	who     user
	wqe     *wqe
	last    lane // of the last frame
}

// Ring takes a doorbell of a send queue. It returns at once; the queue works
// on the port's goroutine.
func (h *HCA) Ring(number uint32) {
	h.doorbells.Add(1)
	switch q := h.sendQueueOf(number); {
	case q == nil:
	case q.ep != nil:
		h.wake(q.ep)
	default:
		h.wake(q)
	}
}

func (h *HCA) sendQueueOf(number uint32) *sendQueue {
	if number >= firstSQN {
		if h.sqs == nil {
			return nil
		}
		if s := h.sqs.get(number); s != nil {
			return s.queue.Load()
		}
		return nil
	}
	if q := h.qps.get(number); q != nil {
		return q.queue.Load()
	}
	return nil
}

// Doorbells within a UAR page (linux/mlx5/cq.h, doorbell.h).
const (
	bellCQ        = 0x20
	bellSend      = 0x800 // two buffers, bellStep apart, of which a page has two pairs
	bellStep      = 0x100
	bellSolicited = 1 << 24
)

// Doorbell takes a store of 8 bytes to a doorbell page: of the first of a work
// request, or of what arms a completion queue. There is nothing anywhere else.
func (h *HCA) Doorbell(uar uint32, offset int, v uint64) {
	first, second := uint32(v>>32), uint32(v)
	switch {
	case offset == bellCQ:
		h.ArmCQ(second&counterMask, first&counterMask, first&bellSolicited != 0)
	case offset >= bellSend && offset%bellStep == 0:
		h.Ring(second >> 8)
	}
}

// posted returns how many blocks the program has posted that were not taken.
func (h *HCA) posted(q *sendQueue) (n uint16, good bool) {
	if h.mem.ReadDMA(q.record+4, q.rec[:]) != nil {
		return 0, false
	}
	return uint16(binary.BigEndian.Uint32(q.rec[:])) - q.cc, true
}

// next reads the next work request and returns how many units of 16 bytes it
// has; 0 if there is none, or if the queue makes no sense. That breaks it.
func (h *HCA) next(q *sendQueue, w *wqe) (ds int) {
	posted, good := h.posted(q)
	if !good {
		h.breakQueue(q)
		return 0
	}
	if posted == 0 {
		return 0
	}
	blocks := uint16(0)
	if h.readBlock(q, 0, w.raw[:segBytes]) {
		ds = int(binary.BigEndian.Uint32(w.raw[4:]) & 0x3f)
		blocks = uint16((ds*segBytes + wqeBlock - 1) / wqeBlock)
	}
	if blocks == 0 || blocks > posted || int(posted) > 1<<q.log {
		h.breakQueue(q)
		return 0
	}
	for i := range blocks {
		end := min(int(i+1)*wqeBlock, ds*segBytes)
		if !h.readBlock(q, i, w.raw[int(i)*wqeBlock:end]) {
			h.breakQueue(q)
			return 0
		}
	}
	w.index, w.blocks = q.cc, blocks
	q.cc += blocks
	return ds
}

// readBlock reads from the beginning of a block of the ring.
func (h *HCA) readBlock(q *sendQueue, i uint16, b []byte) bool {
	at := q.at + uint64(q.cc+i)&(1<<q.log-1)*wqeBlock
	return q.buf.read(h.mem, at, b) == nil
}

// breakQueue ends a queue whose memory or work makes no sense.
func (h *HCA) breakQueue(q *sendQueue) {
	q.broken = true
	var data eventBytes // struct mlx5_eqe_qp_srq
	data[20] = rscQP
	if q.number >= firstSQN {
		data[20] = rscSQ
	}
	binary.BigEndian.PutUint32(data[24:], q.number)
	h.report(mlx5.EventWQCatasError, 0, &data)
}

// Kinds of queues in events (MLX5_EVENT_QUEUE_TYPE_* in linux/mlx5/device.h).
const (
	rscQP = 0
	rscRQ = 1
	rscSQ = 2
)

// run starts or stops an SQ; reset forgets how far it came.
func (h *HCA) run(q *sendQueue, running, reset bool) {
	q.mu.Lock()
	q.running = running
	if reset {
		q.cc, q.broken = 0, false
	}
	q.mu.Unlock()
	if running {
		h.wake(q)
	}
}

func (q *sendQueue) queued() *bool { return &q.wait }
func (q *sendQueue) lane() lane    { return q.last }

// turn sends up to a turn's frames of an SQ, or those of one request.
func (q *sendQueue) turn(h *HCA) (more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	sent := uint64(0)
	for budget := turnPackets; budget > 0 && sent < turnBytes; {
		if !q.running || q.broken {
			return false
		}
		ds := h.next(q, q.wqe)
		if ds == 0 {
			return false
		}
		w := q.wqe
		w.op, w.bytes = w.raw[3], 0
		frames := 1
		if w.op != opNOP {
			frames = h.sendFrames(q, w, ds)
		}
		if frames == 0 {
			h.failSQ(q, w)
			return false
		}
		budget -= frames
		sent += w.bytes
		if w.raw[11]&wqeCompletion != 0 {
			h.completeSQ(q, w, &cqe{cqeOpcode: cqeRequest << 4})
		}
	}
	return true
}

func (h *HCA) completeSQ(q *sendQueue, w *wqe, e *cqe) {
	binary.BigEndian.PutUint32(e[cqeIndex:], q.index)
	binary.BigEndian.PutUint32(e[cqeQPN:], uint32(w.op)<<24|q.number)
	binary.BigEndian.PutUint16(e[cqeCounter:], w.index)
	if !h.complete(q.cq, e, false) {
		q.broken = true
	}
}

// failSQ ends an SQ with an error completion, which the driver recovers from by
// a reset of the queue (mlx5e_tx_err_cqe_work).
func (h *HCA) failSQ(q *sendQueue, w *wqe) {
	h.completeSQ(q, w, failFrame.completion(cqeRequestErr))
	q.broken = true
}

// failFrame is what a real card said of a corrupt work request of an SQ.
var failFrame = failure{0x02, 0x68, 0x01, 0}
