// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"sync"

	"devxlab.example/mlx5"
)

// recvQueue is a receive queue in the host's memory, with entries in a ring or,
// if it is shared, in a chain.
type recvQueue struct {
	mu     sync.Mutex
	number uint32 // of a shared one
	buf    buffer
	log    uint8
	stride uint64
	skip   uint64 // bytes in front of the data segments
	record uint64
	rec    [4]byte // what was read there last
	count  uint32  // entries that were taken
	mask   uint32  // of the record's counter
	shared bool
	head   uint16 // of the chain
	limit  uint16 // that raises an event; 0: none
	broken bool
	user   user // whose keys a shared queue's entries name
	cq     *cqRing
	index  uint32 // the driver's own, of an XRC SRQ
	dead   bool
	raw    []byte // of an entry, once there was one
}

// receive is an entry that was taken.
type receive struct {
	index uint16
	sges  []sge
	room  uint64
}

// What taking an entry came to.
type taking uint8

const (
	took taking = iota
	tookNone
	tookBroken
)

// maxRQEntry is the largest entry of a receive queue (max_wqe_sz_rq).
const maxRQEntry = 512

// take takes the next entry.
func (h *HCA) take(q *recvQueue, r *receive) taking {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead || q.broken {
		return tookBroken
	}
	left, good := h.waiting(q)
	switch {
	case !good:
		q.broken = true
		return tookBroken
	case left == 0:
		return tookNone
	}
	at := uint64(q.count) & (1<<q.log - 1)
	if q.shared {
		at = uint64(q.head) & (1<<q.log - 1)
	}
	if q.raw == nil {
		q.raw = make([]byte, min(q.stride, maxRQEntry))
	}
	raw := q.raw
	if q.buf.read(h.mem, at*q.stride, raw) != nil {
		q.broken = true
		return tookBroken
	}
	r.index = uint16(q.count)
	if q.shared {
		r.index, q.head = uint16(at), binary.BigEndian.Uint16(raw[2:])
	}
	q.count++
	r.sges, r.room = appendReceives(r.sges[:0], raw[q.skip:])
	if q.shared {
		h.limitReached(q, left-1)
	}
	return took
}

// appendReceives takes the data segments of a receive entry apart.
func appendReceives(s []sge, b []byte) (_ []sge, room uint64) {
	for ; len(b) >= segBytes; b = b[segBytes:] {
		n, key := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		if key == lkeyEnd {
			break
		}
		if n &^= inlineBit; n > 0 {
			s = append(s, sge{n: n, key: key, va: binary.BigEndian.Uint64(b[8:])})
			room += uint64(n)
		}
	}
	return s, room
}

// waiting returns how many entries the driver has posted that nobody took. The
// queue is locked.
func (h *HCA) waiting(q *recvQueue) (n uint32, good bool) {
	if h.mem.ReadDMA(q.record, q.rec[:]) != nil {
		return 0, false
	}
	n = (binary.BigEndian.Uint32(q.rec[:]) - q.count) & q.mask
	return n, n <= 1<<q.log
}

// limitReached tells the driver that fewer entries than its limit are left; it
// has to arm the limit anew.
func (h *HCA) limitReached(q *recvQueue, left uint32) {
	if q.limit == 0 || left >= uint32(q.limit) {
		return
	}
	q.limit = 0
	var data eventBytes // struct mlx5_eqe_qp_srq
	binary.BigEndian.PutUint32(data[24:], q.number)
	h.report(mlx5.EventSRQRQLimit, 0, &data)
}

// arm sets the limit of a shared queue.
func (h *HCA) arm(q *recvQueue, limit uint16) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limit = limit
	if left, good := h.waiting(q); good {
		h.limitReached(q, left)
	}
}

// kill ends a queue: when it returns, nothing is taken from it any more.
func (q *recvQueue) kill() {
	q.mu.Lock()
	q.dead = true
	q.mu.Unlock()
}

// restart forgets how far a queue came.
func (q *recvQueue) restart() {
	q.mu.Lock()
	q.count, q.head, q.broken = 0, 0, false
	q.mu.Unlock()
}

const counter16 = 1<<16 - 1

// sharedQueueOf returns the queue of a shared receive queue in an XRC domain.
func (h *HCA) sharedQueueOf(id uint32, k queueKind, xrcd uint32) *recvQueue {
	r := h.srqs.get(id)
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.live.Load() || r.kind != k || mlx5.XRCSRQC(r.ctx).XRCD() != xrcd {
		return nil
	}
	return r.recv
}
