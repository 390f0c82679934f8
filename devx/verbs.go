// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"

	"devxlab.example/devx/abi"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

// VerbsPD allocates a protection domain by verbs. Queue pairs of both kinds may
// be in it; those made by verbs, and an MR, must be.
func (d *Device) VerbsPD() (*PD, error) {
	p := new(PD)
	err := d.with(func(s *Submitter) error {
		m := s.beginWrite(abi.IB_USER_VERBS_CMD_ALLOC_PD)
		if err := s.verbs(m); err != nil {
			return err
		}
		p.obj.byVerbs(d, mlx5.OpAllocPD, abi.IB_USER_VERBS_CMD_DEALLOC_PD, response[abi.AllocPDResp](s).PDHandle, driverResponse[abi.MLX5AllocPDResp](s, m).PDN)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// byVerbs makes o an object that verbs have made. Its handle is one of the same
// table, so DevX takes it for queries and changes.
func (o *Object) byVerbs(d *Device, op mlx5.Op, drop abi.WriteCmd, handle, id uint32) {
	o.d, o.op, o.drop, o.handle, o.id = d, op, drop, handle, id
}

// verbsDestroy destroys an object. The handle is the first member of the
// request, or follows the address of the answer.
func (d *Device) verbsDestroy(c abi.WriteCmd, handle uint32) error {
	err := d.with(func(s *Submitter) error {
		m := s.beginWrite(c)
		if m.Resp == 0 {
			*request[uint32](s, m) = handle
		} else {
			request[abi.DestroyQP](s, m).QPHandle = handle // as in DESTROY_CQ
		}
		return s.verbs(m)
	})
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// VerbsCQ makes a completion queue by verbs, of at least n entries of 64 bytes,
// whose events go to completion vector 0. Queue pairs of both kinds may use it.
func (d *Device) VerbsCQ(n int) (*CQ, error) {
	const most = 1 << 22
	if n < 1 || n > most {
		return nil, fmt.Errorf("devx: a CQ of %d entries: 1 to %d", n, most)
	}
	if !d.HasVerbs() {
		return nil, d.noVerbs("CREATE_CQ")
	}
	if !d.enter() { // Close unmaps the memory that is written below
		return nil, d.closedError()
	}
	defer d.exit()
	uar, err := d.parts.sharedUAR(d)
	if err != nil {
		return nil, err
	}
	if uar.PageID() > math.MaxUint16 {
		return nil, fmt.Errorf("devx: %s: CREATE_CQ has 16 bits for the doorbell page, and this one's number is %#x", d.info.Name, uar.PageID())
	}
	if err := uar.use(); err != nil {
		return nil, err
	}
	c := &CQ{uar: uar}
	entries := 1 << bits.Len(uint(n-1))
	if c.verbs, err = d.parts.pool.queue(entries * cqeSize); err != nil {
		uar.unuse()
		return nil, fmt.Errorf("devx: %s: %w", d.info.Name, err)
	}
	markCQEs(c.verbs.buf.b)
	err = d.with(func(s *Submitter) error {
		m := s.beginWrite(abi.IB_USER_VERBS_CMD_CREATE_CQ)
		*request[abi.CreateCQ](s, m) = abi.CreateCQ{CQE: uint32(entries - 1), CompChannel: -1} // the driver rounds one more up
		*driverRequest[abi.MLX5CreateCQ](s, m) = abi.MLX5CreateCQ{
			BufAddr: c.verbs.buf.addr, DBAddr: c.verbs.dbr.addr, CQESize: cqeSize,
			Flags: abi.MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX, UARPageIndex: uint16(uar.PageID()),
		}
		if err := s.verbs(m); err != nil {
			return err
		}
		c.obj.byVerbs(d, mlx5.OpCreateCQ, abi.IB_USER_VERBS_CMD_DESTROY_CQ, response[abi.CreateCQResp](s).CQHandle, driverResponse[abi.MLX5CreateCQResp](s, m).CQN)
		return nil
	})
	if err != nil {
		c.giveBack(d, err)
		return nil, err
	}
	return c, nil
}

// MR is memory outside the Go heap that is registered by verbs.
type MR struct {
	obj        Object
	mem        *usermem.Region
	lkey, rkey uint32
}

// MR maps n zeroed bytes, rounded up to whole pages, and registers them by
// verbs. p was made by VerbsPD.
func (d *Device) MR(p *PD, n int, access mlx5.Access) (*MR, error) {
	if err := p.obj.isVerbs(d, "protection domain", "VerbsPD"); err != nil {
		return nil, err
	}
	mem, err := usermem.Alloc(n)
	if err != nil {
		return nil, fmt.Errorf("devx: %s: %w", d.info.Name, err)
	}
	r := &MR{mem: mem}
	err = d.with(func(s *Submitter) error {
		m := s.beginWrite(abi.IB_USER_VERBS_CMD_REG_MR)
		*request[abi.RegMR](s, m) = abi.RegMR{
			Start: mem.Addr(), Length: uint64(len(mem.Bytes())), HCAVA: mem.Addr(), PDHandle: p.obj.handle, AccessFlags: toVerbsAccess(access),
		}
		if err := s.verbs(m); err != nil {
			return err
		}
		resp := response[abi.RegMRResp](s)
		r.lkey, r.rkey = resp.LKey, resp.RKey
		r.obj.byVerbs(d, mlx5.OpCreateMKey, abi.IB_USER_VERBS_CMD_DEREG_MR, resp.MRHandle, resp.LKey>>8)
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, mem.Free())
	}
	return r, nil
}

// LKey returns the local key.
func (r *MR) LKey() uint32 { return r.lkey }

// RKey returns the remote key.
func (r *MR) RKey() uint32 { return r.rkey }

// Bytes returns the memory. It must not be used after Close.
func (r *MR) Bytes() []byte { return r.mem.Bytes() }

// Addr returns the address of the first byte.
func (r *MR) Addr() uint64 { return r.mem.Addr() }

// Close takes the registration back and unmaps the memory. A second call does
// nothing.
func (r *MR) Close() error {
	closed, err := r.obj.close()
	if !closed { // also by a call that is under way: the memory is still registered
		return err
	}
	return r.mem.Free()
}

// isVerbs reports an error unless verbs know the object and it is one of d's.
func (o *Object) isVerbs(d *Device, what, maker string) error {
	switch {
	case o.d != d:
		return fmt.Errorf("devx: %s %w than %s", what, ErrForeign, d.info.Name)
	case o.drop == 0:
		return fmt.Errorf("devx: %s %#x was made through DevX, and the driver does not know it: make it with %s", what, o.id, maker)
	}
	return nil
}

// VerbsQP is a queue pair made by verbs: the driver has an entry of it in its
// table and in debugfs, and remembers its state. It starts in RESET.
type VerbsQP struct {
	qp    QP
	mem   queueMem
	state atomic.Uint32 // that the driver remembers, as far as verbs calls of this program tell
}

// NewVerbsQP makes a queue pair by verbs. Protection domain and completion
// queues must be made by verbs, too; the zero QPConfig shares them.
func (d *Device) NewVerbsQP(c QPConfig) (*VerbsQP, error) {
	logSQ, logRQ, logSGE, err := c.sizes()
	if err != nil {
		return nil, err
	}
	if !d.HasVerbs() {
		return nil, d.noVerbs("CREATE_QP")
	}
	if !d.enter() { // Close unmaps the memory that is named below
		return nil, d.closedError()
	}
	defer d.exit()
	if err := d.fillVerbs(&c); err != nil {
		return nil, err
	}
	if err := c.UAR.use(); err != nil {
		return nil, err
	}
	v := &VerbsQP{qp: QP{st: c.Transport, uar: c.UAR}}
	v.qp.verbs = v
	core := abi.CreateQP{
		PDHandle: c.PD.obj.handle, SendCQHandle: c.SendCQ.obj.handle, RecvCQHandle: c.RecvCQ.obj.handle,
		MaxSendWR: 1 << logSQ, MaxSendSGE: 1, QPType: qpTypes[c.Transport],
	}
	driver := abi.MLX5CreateQP{SQWQECount: 1 << logSQ, Flags: abi.MLX5_QP_FLAG_UAR_PAGE_INDEX, BFRegIndex: c.UAR.PageID()}
	size := wqeBB << logSQ
	if !c.NoRecvQueue {
		core.MaxRecvWR, core.MaxRecvSGE = 1<<logRQ, 1<<logSGE
		driver.RQWQECount, driver.RQWQEShift = 1<<logRQ, uint32(logSGE)+4
		size += 16 << logSGE << logRQ
	}
	if v.mem, err = d.parts.pool.queue(size); err != nil {
		c.UAR.unuse()
		return nil, fmt.Errorf("devx: %s: %w", d.info.Name, err)
	}
	driver.BufAddr, driver.DBAddr = v.mem.buf.addr, v.mem.dbr.addr
	err = d.with(func(s *Submitter) error {
		m := s.beginWrite(abi.IB_USER_VERBS_CMD_CREATE_QP)
		*request[abi.CreateQP](s, m), *driverRequest[abi.MLX5CreateQP](s, m) = core, driver
		if err := s.verbs(m); err != nil {
			return err
		}
		resp := response[abi.CreateQPResp](s)
		v.qp.qpn = resp.QPN
		v.qp.obj.byVerbs(d, mlx5.OpCreateQP, abi.IB_USER_VERBS_CMD_DESTROY_QP, resp.QPHandle, resp.QPN)
		return nil
	})
	if err != nil {
		v.qp.giveBack(d, err)
		return nil, err
	}
	return v, nil
}

// qpTypes are the numbers of the transports in verbs.
var qpTypes = [...]uint8{mlx5.STRC: abi.IB_UVERBS_QPT_RC, mlx5.STUC: abi.IB_UVERBS_QPT_UC, mlx5.STUD: abi.IB_UVERBS_QPT_UD}

// fillVerbs takes shared parts for those that the caller gave none.
func (d *Device) fillVerbs(c *QPConfig) (err error) {
	if c.PD == nil {
		if c.PD, err = d.parts.sharedVerbsPD(d); err != nil {
			return err
		}
	}
	if c.UAR == nil {
		if c.UAR, err = d.parts.sharedUAR(d); err != nil {
			return err
		}
	}
	if c.SendCQ == nil {
		if c.SendCQ, err = d.parts.sharedVerbsCQ(d); err != nil {
			return err
		}
	}
	if c.RecvCQ == nil {
		c.RecvCQ = c.SendCQ
	}
	if c.UAR.d != d {
		return fmt.Errorf("devx: QPConfig.UAR %w than %s", ErrForeign, d.info.Name)
	}
	return errors.Join(
		c.PD.obj.isVerbs(d, "protection domain", "VerbsPD"),
		c.SendCQ.obj.isVerbs(d, "completion queue", "VerbsCQ"),
		c.RecvCQ.obj.isVerbs(d, "completion queue", "VerbsCQ"),
	)
}

// Number returns the QPN, 24 bits.
func (v *VerbsQP) Number() uint32 { return v.qp.qpn }

// Transport returns the service type.
func (v *VerbsQP) Transport() mlx5.ServiceType { return v.qp.st }

// Device returns the context that the queue pair belongs to.
func (v *VerbsQP) Device() *Device { return v.qp.obj.d }

// DevX returns the queue pair as DevX knows it, by the same handle: Modify,
// Query and State of it, and everything that takes a *QP (as rdma-core's
// mlx5dv_devx_qp_modify does).
//
// A change through DevX goes to the firmware and nowhere else. It skips, of what
// the driver does for ibv_modify_qp:
//
//   - qp->mutex: nothing keeps it apart from a verbs call on the same queue pair,
//     nor from another DevX call. The firmware gets both, in either order.
//   - the driver's state, qp->state: it stays as it was. Query (not DevX's) brings
//     it up to date; a Modify before that starts from the old one, unless its mask
//     has MaskCurState, which is only allowed in RTR, RTS, SQD and SQE.
//   - the resolution of the destination's MAC address, and the hold on the GID
//     entry that keeps it from being deleted.
//   - pkey security, the check of the attribute mask, and of values against the
//     device's limits.
//   - rdma counters that bind to a queue pair when it goes to INIT.
//   - on the way to RESET: taking the queue pair's completions out of its CQs, and
//     setting its doorbell record to zero.
func (v *VerbsQP) DevX() *QP { return &v.qp }

// Verbs returns the queue pair as verbs know it, or nil if it was made through
// DevX: then they do not.
func (q *QP) Verbs() *VerbsQP { return q.verbs }

// Modify is ibv_modify_qp: the driver checks the mask against the state that it
// remembers, resolves the destination's MAC address on the way to RTR (RoCE),
// and issues the command. It waits for the firmware's answer, and allocates
// nothing if the command succeeds. A failure is a *VerbsError.
//
// From RESET to RESET mlx5 answers with success and does nothing. From RESET to
// ERR verbs have no transition, while DevX has one (2ERR).
func (v *VerbsQP) Modify(a QPAttr, mask AttrMask) error {
	s, err := v.begin()
	if err != nil {
		return err
	}
	defer v.end(s)
	return s.modifyVerbs(v, &a, mask)
}

func (v *VerbsQP) begin() (*Submitter, error) {
	if err := v.qp.obj.use(); err != nil {
		return nil, err
	}
	s, err := v.qp.obj.d.take()
	if err != nil {
		v.qp.obj.unuse()
	}
	return s, err
}

func (v *VerbsQP) end(s *Submitter) {
	v.qp.obj.d.put(s)
	v.qp.obj.unuse()
}

// ModifyVerbs brings v through one transition by verbs: the one that
// Modify(v.DevX(), t) brings it through by DevX, with the same attributes. What
// the driver chooses itself in verbs is not taken from t: the destination's MAC
// address, the UDP source port, the atomic mode. What verbs cannot express is
// refused, and nothing is sent. It allocates nothing if the command succeeds.
func ModifyVerbs[T mlx5.Transition](v *VerbsQP, t T) error {
	s, err := v.begin()
	if err != nil {
		return err
	}
	defer v.end(s)
	// The answers' buffer: a write command without one does not touch it.
	cmd := s.out[len(s.out)-mlx5.TransitionSize:]
	clear(cmd)
	n, err := t.Encode(cmd, v.qp.qpn, v.qp.st)
	if err != nil {
		return err
	}
	return s.sendVerbs(v, cmd[:n])
}

// SendVerbs carries an encoded transition out by verbs (see ModifyVerbs). A queue
// pair that was made through DevX is refused. It allocates nothing if the
// command succeeds.
func (s *Submitter) SendVerbs(q *QP, cmd []byte) error {
	switch {
	case q.obj.d != s.d:
		return fmt.Errorf("devx: QP %#x %w than %s", q.qpn, ErrForeign, s.d.info.Name)
	case s.in == nil:
		return fmt.Errorf("devx: submitter: %w", ErrClosed)
	case q.verbs == nil:
		return fmt.Errorf("devx: QP %#x was made through DevX, and the driver does not know it: make it with NewVerbsQP", q.qpn)
	}
	if err := q.obj.use(); err != nil {
		return fmt.Errorf("devx: QP %#x: %w", q.qpn, ErrClosed)
	}
	defer q.obj.unuse()
	return s.sendVerbs(q.verbs, cmd)
}

func (s *Submitter) sendVerbs(v *VerbsQP, cmd []byte) error {
	a, mask, err := verbsAttrs(cmd, v.qp.st)
	if err != nil {
		return err
	}
	return s.modifyVerbs(v, &a, mask)
}

func (s *Submitter) modifyVerbs(v *VerbsQP, a *QPAttr, mask AttrMask) error {
	c := abi.WriteCmd(abi.IB_USER_VERBS_CMD_MODIFY_QP)
	if mask&MaskRateLimit != 0 {
		c = abi.EX_MODIFY_QP
	}
	return s.modifyBy(c, v, a, mask)
}

func (s *Submitter) modifyBy(c abi.WriteCmd, v *VerbsQP, a *QPAttr, mask AttrMask) error {
	m := s.beginWrite(c)
	a.put(request[abi.ModifyQP](s, m), v.qp.obj.handle, mask)
	if c.Extended() {
		request[abi.ExModifyQP](s, m).RateLimit = a.RateLimit
	}
	errno, err := s.write(m)
	if err != nil {
		return err
	}
	from := mlx5.State(v.state.Load())
	if mask&MaskCurState != 0 {
		from = a.CurState
	}
	to := from
	if mask&MaskState != 0 {
		to = a.State
	}
	if errno != 0 {
		return s.d.verbsError(&VerbsError{Cmd: m.Name, QPN: v.qp.qpn, Errno: errno, Mask: mask, Transport: v.qp.st, From: from, To: to})
	}
	v.state.Store(uint32(to))
	return nil
}

// Query is ibv_query_qp. The driver asks the firmware, answers with what that
// says, and remembers the state: after a change through DevX this is what brings
// it up to date. mlx5 returns every attribute, whatever the mask.
func (v *VerbsQP) Query(mask AttrMask) (QPAttr, error) {
	s, err := v.begin()
	if err != nil {
		return QPAttr{}, err
	}
	defer v.end(s)
	m := s.beginWrite(abi.IB_USER_VERBS_CMD_QUERY_QP)
	*request[abi.QueryQP](s, m) = abi.QueryQP{QPHandle: v.qp.obj.handle, AttrMask: uint32(mask)}
	errno, err := s.write(m)
	switch {
	case err != nil:
		return QPAttr{}, err
	case errno != 0:
		return QPAttr{}, s.d.verbsError(&VerbsError{Cmd: m.Name, QPN: v.qp.qpn, Errno: errno})
	}
	a := attrOf(response[abi.QueryQPResp](s))
	v.state.Store(uint32(a.State))
	return a, nil
}

// Close destroys the queue pair. A second call does nothing.
func (v *VerbsQP) Close() error { return v.qp.Close() }
