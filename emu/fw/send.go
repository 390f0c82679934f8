// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"devxlab.example/mlx5"
)

const wqeBlock = 64 // bytes of a send queue's unit, WQEBB

// Opcodes of work requests (linux/mlx5/device.h, MLX5_OPCODE_*).
const (
	opNOP     = 0x00
	opSend    = 0x0a
	opSendImm = 0x0b
	opLSO     = 0x0e
)

// sendQueue is a send queue in the host's memory: that of a queue pair, or an
// SQ of its own.
type sendQueue struct {
	mu      sync.Mutex
	number  uint32
	index   uint32 // the driver's own, which completions carry
	cq      *cqRing
	buf     buffer
	at      uint64 // of the first block in buf, behind a receive queue
	log     uint8
	record  uint64
	cc      uint16
	running bool // its state lets it work
	lossy   bool // what it sends leaves without an answer: raw packets, datagrams
	broken  bool

	pending atomic.Int32 // doorbells that nobody has looked at
}

// Ring takes a doorbell of a send queue. It returns at once; the queue works
// on a goroutine of its own.
func (h *HCA) Ring(number uint32) {
	h.doorbells.Add(1)
	if q := h.sendQueueOf(number); q != nil {
		h.kick(q)
	}
}

// kick makes the queue look for work; one goroutine at most does.
func (h *HCA) kick(q *sendQueue) {
	if q.pending.Add(1) != 1 {
		return
	}
	go func() {
		for n := q.pending.Load(); ; n = q.pending.Load() {
			h.work(q)
			if q.pending.CompareAndSwap(n, 0) {
				return
			}
		}
	}()
}

func (h *HCA) sendQueueOf(number uint32) *sendQueue {
	if number >= firstSQN {
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

// work executes what is between the queue's counter and the driver's. The
// device has no wire yet: what needs the other end stays where it is.
func (h *HCA) work(q *sendQueue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.running || q.broken {
		return
	}
	var rec [4]byte
	if h.mem.ReadDMA(q.record+4, rec[:]) != nil {
		h.breakQueue(q)
		return
	}
	for pi := uint16(binary.BigEndian.Uint32(rec[:])); q.cc != pi; {
		var w [16]byte // the control segment, which no block splits
		at := q.at + uint64(q.cc)&(1<<q.log-1)*wqeBlock
		blocks := uint16(0)
		if q.buf.read(h.mem, at, w[:]) == nil {
			blocks = uint16((binary.BigEndian.Uint32(w[4:])&0x3f*16 + wqeBlock - 1) / wqeBlock)
		}
		if blocks == 0 || blocks > pi-q.cc {
			h.breakQueue(q)
			return
		}
		op := w[3]
		switch {
		case op == opNOP, q.lossy && (op == opSend || op == opSendImm || op == opLSO):
		default:
			return
		}
		if w[11]&0x08 != 0 { // fm_ce_se: a completion is wanted
			e := cqe{cqeSize - 1: cqeRequest << 4}
			binary.BigEndian.PutUint32(e[0x20:], q.index)
			binary.BigEndian.PutUint32(e[0x38:], uint32(op)<<24|q.number)
			binary.BigEndian.PutUint16(e[0x3c:], q.cc)
			if !h.complete(q.cq, &e, false) {
				q.broken = true
				return
			}
		}
		q.cc += blocks
	}
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

// run starts or stops a queue; reset forgets how far it came.
func (h *HCA) run(q *sendQueue, running, reset bool) {
	q.mu.Lock()
	q.running = running
	if reset {
		q.cc, q.broken = 0, false
	}
	q.mu.Unlock()
	if running {
		h.kick(q)
	}
}
