// SPDX-License-Identifier: BSD-2-Clause

package verify

import (
	"errors"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// closer is an object that can be closed.
type closer interface{ Close() error }

// tried notes whether an object can be made, and closes it.
func tried[T closer](a *asker, make func() (T, error), question string, args ...any) error {
	o, err := make()
	said := words(err)
	if err == nil {
		if cerr := o.Close(); cerr != nil {
			said += ", close: " + words(cerr)
		}
	}
	a.note(said, question, args...)
	if a.gone(err) {
		return err
	}
	return nil
}

// objects: sizes and limits, and what must not be destroyed yet.
func (a *asker) objects() error {
	d := a.d
	var failed error
	note := func(err error) { failed = errors.Join(failed, err) }
	for _, n := range []int{1, 64, 1 << 16} {
		note(tried(a, func() (*devx.CQ, error) { return d.CQ(n) }, "a CQ of %d entries", n))
	}
	for _, c := range []devx.QPConfig{
		{}, {SendWQEBBs: 1 << 15}, {RecvWQEs: 1 << 15}, {RecvSGEs: 32}, {NoRecvQueue: true}, {Transport: mlx5.STUD, NoRecvQueue: true},
	} {
		note(tried(a, func() (*devx.QP, error) { return d.NewQP(c) }, "a QP: %v, send %d, receive %d × %d, without receive queue %v",
			c.Transport, c.SendWQEBBs, c.RecvWQEs, c.RecvSGEs, c.NoRecvQueue))
	}
	for _, n := range []int{1, 4096, 1 << 20} {
		for _, access := range []mlx5.Access{0, mlx5.RemoteRead, mlx5.RemoteWrite, mlx5.RemoteRead | mlx5.RemoteWrite, mlx5.RemoteAtomic} {
			note(tried(a, func() (*devx.Umem, error) { return d.Umem(n, access) }, "a umem of %d bytes, access %#x", n, uint8(access)))
		}
	}
	for _, vector := range []int{0, 1, 5, 64, 1 << 20} {
		_, err := d.EQN(vector)
		a.note(words(err), "the EQ of completion vector %d", vector)
	}
	return errors.Join(failed, a.inUse(), a.commands())
}

// inUse: what another object needs stays.
func (a *asker) inUse() error {
	pd, err := a.d.PD()
	if err != nil {
		return err
	}
	cq, err := a.d.CQ(4)
	if err != nil {
		return errors.Join(err, pd.Close())
	}
	q, err := a.d.NewQP(devx.QPConfig{PD: pd, SendCQ: cq})
	if err != nil {
		return errors.Join(err, cq.Close(), pd.Close())
	}
	a.note(words(cq.Close()), "destroying a CQ that a QP uses")
	a.note(words(pd.Close()), "freeing a PD that a QP uses")
	return errors.Join(q.Close(), cq.Close(), pd.Close())
}

// commands: objects made from bytes that are wrong.
func (a *asker) commands() error {
	q, err := a.d.NewQP(devx.QPConfig{})
	if err != nil {
		return err
	}
	defer q.Close()
	for _, c := range []struct {
		what string
		op   mlx5.Op
		len  int
		set  func(in []byte)
	}{
		{"ALLOC_PD", mlx5.OpAllocPD, mlx5.AllocPDInSize, nil},
		{"ALLOC_PD with op_mod 3", mlx5.OpAllocPD, mlx5.AllocPDInSize, func(in []byte) { mlx5.AllocPDIn(in).SetOpMod(3) }},
		{"ALLOC_PD of 512 bytes", mlx5.OpAllocPD, 512, nil},
		{"CREATE_QP of zeros", mlx5.OpCreateQP, mlx5.CreateQPInSize, nil},
		{"CREATE_CQ of zeros", mlx5.OpCreateCQ, mlx5.CreateCQInSize, nil},
		{"CREATE_CQ with EQ 200", mlx5.OpCreateCQ, mlx5.CreateCQInSize, func(in []byte) { mlx5.CreateCQIn(in).CQContext().SetCEQNOrApuElement(200) }},
		{"CREATE_MKEY of zeros", mlx5.OpCreateMKey, mlx5.CreateMKeyInSize, nil},
		{"ALLOC_Q_COUNTER", mlx5.OpAllocQCounter, mlx5.AllocQCounterInSize, nil},
		{"QUERY_QP, which makes nothing", mlx5.OpQueryQP, mlx5.QueryQPInSize, nil},
		{"CREATE_EQ", mlx5.OpCreateEQ, mlx5.CreateEQInSize, nil},
		{"ALLOC_UAR", mlx5.OpAllocUAR, mlx5.AllocUARInSize, nil},
		{"CREATE_UCTX", mlx5.OpCreateUCTX, mlx5.CreateUCTXInSize, nil},
		{"CREATE_UMEM", mlx5.OpCreateUmem, mlx5.CreateUmemInSize, nil},
	} {
		in, out := make([]byte, c.len), make([]byte, 16)
		mlx5.PutHeader(in, c.op, 0)
		if c.set != nil {
			c.set(in)
		}
		if err := tried(a, func() (*devx.Object, error) { return a.d.Create(in, out) }, "making an object by %s", c.what); err != nil {
			return err
		}
	}
	return nil
}

// Opcodes that DEVX_OTHER passes on whatever they mean: a device may carry
// them out, so they are not tried.
const (
	firstGeneral = 0xb00
	lastGeneral  = 0xcff
)

// opcodes: which commands get through outside of an object. They are zeros
// beside their opcode, and all that get through are queries.
func (a *asker) opcodes() error {
	in, out := make([]byte, 512), make([]byte, 4096)
	for op := mlx5.Op(0x100); op < 0xe00; op++ {
		if op >= firstGeneral && op <= lastGeneral {
			continue
		}
		clear(in)
		mlx5.PutHeader(in, op, 0)
		n := 64
		if l, _ := op.Layouts(); l != nil {
			n = max(16, min(l.Bytes, len(in)))
		}
		err := a.d.Exec(in[:n], out)
		a.note(words(err), "opcode %#x %v outside of an object", uint16(op), op)
		if a.gone(err) {
			return err
		}
	}
	return nil
}

// events: which can be subscribed to.
func (a *asker) events() error {
	q, err := a.d.NewQP(devx.QPConfig{})
	if err != nil {
		return err
	}
	defer q.Close()
	c, err := a.d.EventChannel()
	if err != nil {
		return err
	}
	defer c.Close()
	for typ := range mlx5.EventType(0x40) {
		for _, s := range []struct {
			of    string
			about devx.Subject
		}{{"the device", nil}, {"a QP", q}} {
			err := c.Subscribe(1, s.about, typ)
			a.note(words(err), "events of type %#x of %s", int(typ), s.of)
			if a.gone(err) {
				return err
			}
		}
	}
	return nil
}
