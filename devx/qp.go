// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"fmt"
	"math/bits"

	"devxlab.example/mlx5"
)

// QPConfig says what queue pair to make. The zero value is an RC queue pair
// with room for one work request in each direction, on the context's shared
// protection domain, completion queue and doorbell page: right for control-path
// work.
type QPConfig struct {
	Transport   mlx5.ServiceType // STRC, STUC or STUD
	PD          *PD              // nil: one that the context shares
	SendCQ      *CQ              // nil: one that the context shares, 64 entries
	RecvCQ      *CQ              // nil: the same as SendCQ
	UAR         *UAR             // nil: one that the context shares
	SendWQEBBs  int              // send queue in units of 64 bytes, rounded up to a power of two; 0: 1
	RecvWQEs    int              // receive queue entries, rounded up to a power of two and to 64 bytes; 0: 1
	RecvSGEs    int              // scatter entries of each, rounded up to a power of two; 0: 1
	NoRecvQueue bool
}

const wqeBB = 64 // the unit of a send queue in bytes (MLX5_SEND_WQE_BB)

// QP is a queue pair made through DevX, or one made by verbs as DevX knows it
// (VerbsQP.DevX). It starts in RESET.
type QP struct {
	obj  Object
	mem  ref
	size int
	uar  *UAR
	qpn  uint32

	send   int32 // bytes of the send queue
	recvs  int32 // receive entries, of
	stride int32 // so many bytes

	st    mlx5.ServiceType
	verbs *VerbsQP // nil: made through DevX
}

// NewQP makes a queue pair: one buffer of user memory, the receive queue first,
// and the doorbell record behind it.
func (d *Device) NewQP(c QPConfig) (*QP, error) {
	logSQ, logRQ, logSGE, err := c.sizes()
	if err != nil {
		return nil, err
	}
	if !d.enter() { // Close unmaps the memory that is written below
		return nil, d.closedError()
	}
	defer d.exit()
	if err := d.fill(&c); err != nil {
		return nil, err
	}
	if err := c.UAR.use(); err != nil {
		return nil, err
	}
	q := &QP{st: c.Transport, uar: c.UAR}
	cmd := mlx5.CreateQP{
		ST: c.Transport, PD: c.PD.Number(), UARPage: c.UAR.PageID(),
		CQNSend: c.SendCQ.Number(), CQNRecv: c.RecvCQ.Number(),
		LogSQSize: uint8(logSQ), TsFormat: 1,
	}
	q.send = wqeBB << logSQ
	if c.NoRecvQueue {
		cmd.RQType = mlx5.RQNone
	} else {
		cmd.LogRQSize, cmd.LogRQStride = uint8(logRQ), uint8(logSGE)+4
		q.recvs, q.stride = 1<<logRQ, 16<<logSGE
	}
	queues := int(q.send + q.recvs*q.stride)
	queues = (queues + dbrSize - 1) &^ (dbrSize - 1)
	q.size = queues + dbrSize
	if q.mem, err = d.parts.arena.carve(d, q.size); err != nil {
		q.uar.unuse()
		return nil, err
	}
	cmd.Buf = mlx5.UmemRef{ID: q.mem.umem.ID(), Offset: uint64(q.mem.at)}
	cmd.DoorbellRecord = mlx5.UmemRef{ID: q.mem.umem.ID(), Offset: uint64(q.mem.at + queues)}
	var in [mlx5.CreateQPInSize]byte
	var out [mlx5.CreateQPOutSize]byte
	if _, err = cmd.Encode(in[:]); err == nil {
		err = d.create(&q.obj, in[:], out[:])
	}
	if err != nil {
		q.giveBack(d, err)
		return nil, err
	}
	q.qpn = q.obj.id
	return q, nil
}

// giveBack ends the queue pair's use of memory and page, after its destruction
// or a create that failed with err. If it is unknown whether the queue pair
// exists, both stay with it until the device is closed.
func (q *QP) giveBack(d *Device, err error) {
	if Unknown(err) {
		return
	}
	if q.verbs != nil {
		d.parts.pool.giveBack(q.verbs.mem)
	} else {
		d.parts.arena.release(q.mem, q.size)
	}
	q.uar.unuse()
}

func (c *QPConfig) sizes() (logSQ, logRQ, logSGE int, err error) {
	log := func(name string, n, most int) int {
		n = max(n, 0)
		if n > most && err == nil {
			err = fmt.Errorf("devx: QPConfig.%s %d: at most %d", name, n, most)
		}
		return bits.Len(uint(max(n, 1) - 1))
	}
	if c.Transport > mlx5.STUD {
		return 0, 0, 0, fmt.Errorf("devx: QPConfig.Transport %v: RC, UC or UD", c.Transport)
	}
	if c.SendWQEBBs < 0 || c.RecvWQEs < 0 || c.RecvSGEs < 0 {
		return 0, 0, 0, fmt.Errorf("devx: QPConfig has a negative size")
	}
	logSQ, logRQ, logSGE = log("SendWQEBBs", c.SendWQEBBs, 1<<15), log("RecvWQEs", c.RecvWQEs, 1<<15), log("RecvSGEs", c.RecvSGEs, 32)
	// The send queue follows in units of 64 bytes, so the receive queue has at
	// least as many (set_rq_size in the driver).
	logRQ = max(logRQ, 2-logSGE)
	return logSQ, logRQ, logSGE, err
}

// fill takes shared parts for those that the caller gave none.
func (d *Device) fill(c *QPConfig) (err error) {
	if c.PD == nil {
		if c.PD, err = d.parts.sharedPD(d); err != nil {
			return err
		}
	}
	if c.UAR == nil {
		if c.UAR, err = d.parts.sharedUAR(d); err != nil {
			return err
		}
	}
	if c.SendCQ == nil {
		if c.SendCQ, err = d.parts.sharedCQ(d); err != nil {
			return err
		}
	}
	if c.RecvCQ == nil {
		c.RecvCQ = c.SendCQ
	}
	if c.PD.obj.d != d || c.UAR.d != d || c.SendCQ.obj.d != d || c.RecvCQ.obj.d != d {
		return fmt.Errorf("devx: QPConfig: a part %w than %s", ErrForeign, d.info.Name)
	}
	return nil
}

// Number returns the QPN, 24 bits.
func (q *QP) Number() uint32 { return q.qpn }

// Transport returns the service type.
func (q *QP) Transport() mlx5.ServiceType { return q.st }

// Device returns the context that the queue pair belongs to.
func (q *QP) Device() *Device { return q.obj.d }

// Modify brings q through one transition and waits for the firmware's answer.
// It is a function because a transition passed as an interface would allocate;
// it allocates nothing if the command succeeds. A missing or unencodable
// attribute is an *mlx5.AttrError and nothing is sent; a refused command is a
// *CommandError.
func Modify[T mlx5.Transition](q *QP, t T) error {
	if err := q.obj.use(); err != nil {
		return err
	}
	defer q.obj.unuse()
	s, err := q.obj.d.take()
	if err != nil {
		return err
	}
	defer q.obj.d.put(s)
	clear(s.in[:mlx5.TransitionSize])
	n, err := t.Encode(s.in[:mlx5.TransitionSize], q.qpn, q.st)
	if err != nil {
		return err
	}
	return s.modify(&q.obj, q.qpn, n, mlx5.CmdOutSize)
}

// Query reads the QP context as the firmware has it, 232 bytes.
func (q *QP) Query() (mlx5.QPC, error) {
	var in [mlx5.QueryQPInSize]byte
	out := make([]byte, mlx5.QueryQPOutSize)
	mlx5.PutHeader(in[:], mlx5.OpQueryQP, 0)
	mlx5.QueryQPIn(in[:]).SetQPN(q.qpn)
	if err := q.obj.Query(in[:], out); err != nil {
		return nil, err
	}
	return mlx5.QueryQPOut(out).QPC(), nil
}

// State reads the queue pair's state from the firmware.
func (q *QP) State() (mlx5.State, error) {
	c, err := q.Query()
	if err != nil {
		return 0, err
	}
	return mlx5.State(c.State()), nil
}

// Close destroys the queue pair. A second call does nothing.
func (q *QP) Close() error {
	done, err := q.obj.close()
	if done {
		q.giveBack(q.obj.d, nil)
	}
	return err
}
