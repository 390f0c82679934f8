// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"encoding/binary"
	"errors"
	"math/bits"

	"devxlab.example/mlx5"
)

// What follows is as much of a data path as lets a program see that a queue pair
// works: the memory of the queues, whose contents package mlx5 encodes, and the
// stores and loads that have to be in order between it and the device. Indexes,
// room and completions are the program's affair: this is no verbs library. A send
// queue, a receive queue and a completion queue are each for one goroutine at a
// time: an index that is stored late would take back a later one.

// Queues is the memory of a queue pair's queues. It must not be used after Close
// of the queue pair or the device.
type Queues struct {
	Send       []byte // a ring of units of mlx5.WQEBB
	Recv       []byte // a ring of entries; nil: none
	RecvStride int    // bytes of an entry
	record     []byte // doorbell record: the receive counter, then the send counter, big endian
}

var errNoQueues = errors.New("devx: the queue was made by verbs: its memory is not for programs to post in; make it by NewQP or CQ")

// Offsets in a queue pair's doorbell record (MLX5_RCV_DBR and MLX5_SND_DBR in
// linux/mlx5/qp.h), and in that of a CQ (MLX5_CQ_SET_CI and MLX5_CQ_ARM_DB in
// linux/mlx5/cq.h).
const (
	recordRecv = 0
	recordSend = 4
	recordCI   = 0
	recordArm  = 4
)

// Queues returns the memory of the queues of a queue pair that NewQP made; of
// one that verbs made, none.
func (q *QP) Queues() Queues {
	if q.verbs != nil {
		return Queues{}
	}
	b := q.mem.umem.Bytes()[q.mem.at:][:q.size]
	w := Queues{record: b[q.size-dbrSize:], RecvStride: int(q.stride)}
	recv := q.stride * q.recvs
	if recv > 0 {
		w.Recv = b[:recv:recv]
	}
	w.Send = b[recv : recv+q.send : recv+q.send]
	return w
}

// Post tells the device that work requests have been written up to the producer
// index pi, and rings the doorbell: the first 8 bytes of the last one, as
// mlx5.SendWQE.Encode returns them. Everything that was written before is visible
// to the device when it looks.
func (q *QP) Post(pi uint16, doorbell uint64) error {
	if err := q.produced(recordSend, pi); err != nil {
		return err
	}
	return q.uar.Ring(mlx5.DoorbellSend, doorbell)
}

// PostRecv tells the device that receive entries have been written up to the
// producer index pi. No doorbell is rung for them.
func (q *QP) PostRecv(pi uint16) error { return q.produced(recordRecv, pi) }

// produced stores a producer index in the doorbell record.
func (q *QP) produced(at int, pi uint16) error {
	if err := q.obj.use(); err != nil {
		return err
	}
	defer q.obj.unuse()
	w := q.Queues()
	if w.record == nil {
		return errNoQueues
	}
	storeBig(w.record[at:], uint32(pi))
	return nil
}

// Log returns log2 of the number of entries of a queue that Device.CQ made.
func (c *CQ) Log() int { return bits.Len(uint(c.entries())) - 1 }

func (c *CQ) entries() int { return (c.size - dbrSize) / cqeSize }

// Entry returns the completion at the consumer index ci, if the device has written
// it; what the device wrote before is then visible, data that was received among
// it. It is a view of the queue: the device uses it again after Consume. Of a queue
// that verbs made there is none. It must not be called after Close of the queue or
// the device.
func (c *CQ) Entry(ci uint32) (mlx5.CQE, bool) {
	if c.mem.umem == nil {
		return nil, false
	}
	n := c.entries()
	e := mlx5.CQE(c.mem.umem.Bytes()[c.mem.at+int(ci)&(n-1)*cqeSize:][:cqeSize])
	var last [4]byte // as it was loaded: loading it again would be no order at all
	binary.NativeEndian.PutUint32(last[:], loadWord(e[cqeSize-4:]))
	if !mlx5.CQEOwned(last[3], ci, bits.Len(uint(n))-1) {
		return nil, false
	}
	return e, true
}

// Consume gives the entries before the consumer index ci back to the device.
func (c *CQ) Consume(ci uint32) error { return c.tell(recordCI, ci&cqIndexMask) }

// Arm makes the device report an event (mlx5.EventComp) for the next completion
// behind the consumer index ci, or for the next solicited one. rounds counts the
// events that came, modulo 4.
func (c *CQ) Arm(ci uint32, solicited bool, rounds uint32) error {
	word := rounds%4<<28 | ci&cqIndexMask
	if solicited {
		word |= cqSolicited
	}
	if err := c.tell(recordArm, word); err != nil {
		return err
	}
	return c.uar.Ring(mlx5.DoorbellCQ, uint64(word)<<32|uint64(c.Number()))
}

// Consumer indexes have 24 bits; cqSolicited is MLX5_CQ_DB_REQ_NOT_SOL
// (linux/mlx5/cq.h).
const (
	cqIndexMask = 1<<24 - 1
	cqSolicited = 1 << 24
)

// tell writes a word of the doorbell record.
func (c *CQ) tell(at int, v uint32) error {
	if err := c.obj.use(); err != nil {
		return err
	}
	defer c.obj.unuse()
	if c.mem.umem == nil {
		return errNoQueues
	}
	storeBig(c.mem.umem.Bytes()[c.mem.at+c.size-dbrSize+at:], v)
	return nil
}
