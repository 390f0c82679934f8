// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"slices"

	"devxlab.example/mlx5"
)

// own locks an object, if it exists and is the uid's. The caller unlocks it.
func (e *entry) own(uid uint16) bool {
	e.mu.Lock()
	if e.live.Load() && (e.uid == uid || e.uid == sharedUID && uid == 0) {
		return true
	}
	e.mu.Unlock()
	return false
}

// see is own for a query, which the kernel makes of everyone's objects with its
// own uid, 0 (mlx5_ib qpc.c, mlx5_core_qp_query; mlx5_core transobj.c,
// mlx5_core_query_sq): ibv_query_qp of any queue pair.
func (e *entry) see(uid uint16) bool {
	if uid != 0 {
		return e.own(uid)
	}
	e.mu.Lock()
	if e.live.Load() {
		return true
	}
	e.mu.Unlock()
	return false
}

// use counts one more user of an object, if it exists and the uid may use it.
// An object of the kernel (uid 0) is everyone's where the caller says so.
func (e *entry) use(uid uint16, kernels bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.live.Load() || e.uid != uid && e.uid != sharedUID && !(kernels && e.uid == 0) {
		return false
	}
	e.refs++
	return true
}

// useAny counts one more user of an object, whosever it is.
func (e *entry) useAny() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.live.Load() {
		return false
	}
	e.refs++
	return true
}

func (e *entry) unuse() {
	e.mu.Lock()
	e.refs--
	e.mu.Unlock()
}

// drop marks an object destroyed.
func (e *entry) drop(uid uint16, missing check) check {
	if !e.own(uid) {
		return missing
	}
	defer e.mu.Unlock()
	if e.refs > 0 {
		return inUse
	}
	e.live.Store(false)
	return ok
}

// holder is a pointer to any object.
type holder interface{ object() *entry }

func (e *entry) object() *entry { return e }

// born makes an object that is otherwise ready visible under the caller's uid.
func (h *HCA) born(c command, id uint32, e *entry) check {
	if u := h.uctxs.get(uint32(c.uid)); u != nil { // there is none for uid 0 and the shared one
		u.mu.Lock()
		u.refs++
		u.mu.Unlock()
	}
	e.mu.Lock()
	e.uid, e.refs, e.cost = c.uid, 0, int32(cost(c.in))
	e.live.Store(true)
	e.mu.Unlock()
	// The index stands in the same place of every answer.
	binary.BigEndian.PutUint32(c.out[8:], id)
	return ok
}

// create makes an object that uses no other and needs nothing said.
func create[T any, P interface {
	*T
	holder
}](h *HCA, c command, t *table[T]) check {
	id, p, room := t.alloc()
	if !room {
		return objectLimit
	}
	return h.born(c, id, P(p).object())
}

// destroy drops an object and gives its index back. unuse, which may be nil,
// takes the object back as a user of others.
func destroy[T any, P interface {
	*T
	holder
}](h *HCA, c command, t *table[T], id uint32, missing check, unuse func(*HCA, P)) check {
	p := P(t.get(id))
	if p == nil {
		return missing
	}
	e := p.object()
	if refused := e.drop(c.uid, missing); refused != ok {
		return refused
	}
	if unuse != nil {
		unuse(h, p)
	}
	if u := h.uctxs.get(uint32(e.uid)); u != nil {
		u.unuse()
	}
	t.release(id)
	if h.driver != nil {
		h.reserve(-int(e.cost))
	}
	return ok
}

// id24 returns the index that the command is about: most have it in the same
// 24 bits, and narrower ones in the lower bits of those.
func id24(c command) uint32 { return binary.BigEndian.Uint32(c.in[8:]) & 0xffffff }

func (h *HCA) createUCTX(c command) check {
	id, u, room := h.uctxs.alloc()
	if !room {
		return objectLimit
	}
	refused := h.born(command{in: c.in, out: c.out}, 0, &u.entry) // a context belongs to no context
	mlx5.CreateUCTXOut(c.out).SetUID(uint16(id))
	return refused
}

func (h *HCA) destroyUCTX(c command) check {
	id := uint32(mlx5.DestroyUCTXIn(c.in).UID())
	refused := destroy[uctx](h, command{}, h.uctxs, id, badUCTX, nil)
	if refused == inUse {
		return uctxInUse
	}
	return refused
}

func (h *HCA) allocPD(c command) check { return create(h, c, h.pds) }

func (h *HCA) deallocPD(c command) check {
	return destroy[pd](h, c, h.pds, id24(c), badPD, nil)
}

func (h *HCA) allocUAR(c command) check { return create(h, c, h.uars) }

func (h *HCA) deallocUAR(c command) check {
	return destroy[uar](h, c, h.uars, id24(c), badUAR, nil)
}

func (h *HCA) allocQCounter(c command) check { return create(h, c, h.counters) }

func (h *HCA) deallocQCounter(c command) check {
	return destroy[counterSet](h, c, h.counters, id24(c)&0xff, badCounterSet, nil)
}

func (h *HCA) queryQCounter(c command) check {
	s := h.counters.get(uint32(mlx5.QueryQCounterIn(c.in).CounterSetID()))
	if s == nil || !s.see(c.uid) {
		return badCounterSet
	}
	s.values.read(mlx5.QueryQCounterOut(c.out), mlx5.QueryQCounterIn(c.in).Clear())
	s.mu.Unlock()
	return ok
}

func (h *HCA) createUmem(c command) check {
	in := mlx5.CreateUmemIn(c.in)
	ctx := in.Umem()
	n := ctx.NumOfMTT()
	room := uint64(len(c.in)-mlx5.CreateUmemInSize) / 8
	shift := uint(ctx.LogPageSize()) + 12
	if n == 0 || n > room || shift > maxPageShift || uint64(ctx.PageOffset()) >= 1<<shift {
		return badUmemPages
	}
	id, u, ok := h.umems.alloc()
	if !ok {
		return objectLimit
	}
	u.bytes, u.offset = n<<shift-uint64(ctx.PageOffset()), uint64(ctx.PageOffset())
	if h.mem != nil {
		u.buf, _ = bufferOf(c.in[mlx5.CreateUmemInSize:], uint8(shift), uint64(ctx.PageOffset()), u.bytes) // n entries are there
	}
	return h.born(c, id, &u.entry)
}

func (h *HCA) destroyUmem(c command) check {
	return destroy[umem](h, c, h.umems, id24(c), badUmem, nil)
}

// part returns a part of user memory as a buffer of its own.
func (u *umem) part(offset uint64) buffer {
	b := u.buf
	b.offset += offset
	return b
}

// uses collects what an object under construction uses, in order, until one is
// refused.
type uses struct {
	uid     uint16
	any     bool // whosever they are
	n       int
	held    [6]*entry
	refused check
}

func (u *uses) hold(e *entry, kernels bool, missing check) {
	switch {
	case u.refused != ok:
	case e == nil || u.any && !e.useAny() || !u.any && !e.use(u.uid, kernels):
		u.refused = missing
	default:
		u.held[u.n] = e
		u.n++
	}
}

// umem holds n bytes of user memory, which the device finds aligned: by their
// place in the first page, not only in the user memory.
func (u *uses) umem(h *HCA, id uint32, offset, n, align uint64) {
	m := h.umems.get(id)
	u.hold(entryOf(m), false, badUmem)
	switch {
	case u.refused != ok:
	case (m.offset+offset)%align != 0:
		u.refused = umemUnaligned
	case offset > m.bytes || n > m.bytes-offset:
		u.refused = umemTooSmall
	}
}

// release takes everything back.
func (u *uses) release() {
	for _, e := range u.held[:u.n] {
		e.unuse()
	}
}

// entryOf returns an object's entry, nil for nil.
func entryOf[T any, P interface {
	*T
	holder
}](p P) *entry {
	if p == nil {
		return nil
	}
	return p.object()
}

// Access modes of a memory key (linux/mlx5/mlx5_ifc.h, mkc access_mode_1_0).
const (
	accessPA  = 0
	accessMTT = 1
	accessKLM = 2
	accessKSM = 3
)

func (h *HCA) createMKey(c command) check {
	in := mlx5.CreateMKeyIn(c.in)
	ctx := in.MemoryKeyMKeyEntry()
	if h.driver != nil && !in.MKeyUmemValid() {
		return h.createHostMKey(c, in)
	}
	switch {
	case ctx.AccessMode10() != accessMTT || ctx.AccessMode42() != 0:
		return mkeyMode
	case !in.MKeyUmemValid():
		return noUmem
	case in.TranslationsOctwordActualSize() == 0 || ctx.Len() == 0 && !ctx.Length64():
		return mkeyZeroLen
	case ctx.LogPageSize() < 12:
		return mkeyPageSize
	}
	u := uses{uid: c.uid}
	u.hold(entryOf(h.pds.get(ctx.PD())), false, badPD)
	u.umem(h, in.MKeyUmemID(), in.MKeyUmemOffset(), ctx.Len(), 1)
	if u.refused == umemTooSmall {
		u.refused = mkeyRange
	}
	if u.refused != ok {
		u.release()
		return u.refused
	}
	id, m, room := h.mkeys.alloc()
	if !room {
		u.release()
		return objectLimit
	}
	copy(m.ctx[:], ctx)
	m.umem, m.umr, m.at = in.MKeyUmemID(), 0, translation{}
	if h.mem != nil {
		m.at.buf = h.umems.get(m.umem).part(in.MKeyUmemOffset())
	}
	return h.born(c, id, &m.entry)
}

// createHostMKey makes a memory key whose translation stands in the command: of
// physical addresses, pages, or other keys. One that is free or for UMR may be
// filled in later.
func (h *HCA) createHostMKey(c command, in mlx5.CreateMKeyIn) check {
	ctx := in.MemoryKeyMKeyEntry()
	mode := ctx.AccessMode10() | ctx.AccessMode42()<<2
	entries := uint64(in.TranslationsOctwordActualSize()) // of 16 bytes
	later := ctx.Free() || ctx.UMREn()
	switch {
	case mode > accessKSM:
		return mkeyMode
	case mode != accessPA && !later && (entries == 0 || ctx.Len() == 0 && !ctx.Length64()):
		return mkeyZeroLen
	case entries > uint64(len(in.KLMPASMTT())/16):
		return badPAS
	case mode == accessMTT && !later && ctx.LogPageSize() < 12, mode == accessKSM && !later && ctx.LogPageSize() < minKSMShift:
		return mkeyPageSize
	case mode == accessKLM && max(entries, uint64(ctx.TranslationsOctwordSize())) > 1<<logMaxKLMList:
		return mkeyListSize
	}
	if mode == accessMTT && !later {
		if _, fits := bufferOf(in.KLMPASMTT()[:entries*16], ctx.LogPageSize(), ctx.StartAddr()&(1<<ctx.LogPageSize()-1), ctx.Len()); !fits {
			return mkeyRange
		}
	}
	// The kernel makes keys in the PDs of its users, under its own uid (mlx5_ib
	// mr.c sets none).
	if pd := h.pds.get(ctx.PD()); pd == nil || !(c.uid == 0 && pd.useAny() || c.uid != 0 && pd.use(c.uid, false)) {
		return badPD
	}
	id, m, room := h.mkeys.alloc()
	if !room {
		h.pds.get(ctx.PD()).unuse()
		return objectLimit
	}
	copy(m.ctx[:], ctx)
	m.umem, m.umr = 0, 0
	m.translate(ctx, in.KLMPASMTT()[:entries*16])
	return h.born(c, id, &m.entry)
}

func (h *HCA) queryMKey(c command) check {
	m := h.mkeys.get(id24(c))
	if m == nil || !m.see(c.uid) {
		return badMKey
	}
	defer m.mu.Unlock()
	copy(mlx5.QueryMKeyOut(c.out).MemoryKeyMKeyEntry(), m.ctx[:])
	return ok
}

func (h *HCA) destroyMKey(c command) check {
	return destroy(h, c, h.mkeys, id24(c), badMKey, func(h *HCA, m *mkey) {
		h.pds.get(mlx5.MKC(m.ctx[:]).PD()).unuse()
		if m.umem != 0 {
			h.umems.get(m.umem).unuse()
		}
		m.mu.Lock()
		h.umrBytes.Add(int64(-m.umr))
		m.at, m.umr = translation{}, 0
		m.mu.Unlock()
	})
}

func (h *HCA) createEQ(c command) check {
	if mlx5.CreateEQIn(c.in).EQContextEntry().LogEQSize() > logMaxEQSize {
		return badEQSize
	}
	if h.driver == nil {
		return create(h, c, h.eqs)
	}
	in := mlx5.CreateEQIn(c.in)
	uar := entryOf(h.uars.get(in.EQContextEntry().UARPage()))
	if uar == nil || !uar.use(c.uid, true) {
		return badUAR
	}
	r, refused := h.createRing(in)
	id, e, room := uint32(0), (*eq)(nil), false
	if refused == ok {
		if id, e, room = h.eqs.alloc(); !room {
			refused = objectLimit
		}
	}
	if refused != ok {
		uar.unuse()
		return refused
	}
	e.ctx = slices.Clone([]byte(in.EQContextEntry()))
	e.ring.Store(r)
	h.route(r)
	return h.born(c, id, &e.entry)
}

func (h *HCA) destroyEQ(c command) check {
	return destroy(h, c, h.eqs, id24(c)&0xff, badEQN, func(h *HCA, e *eq) {
		if r := e.ring.Swap(nil); r != nil {
			h.unroute(r)
			h.uars.get(mlx5.EQC(e.ctx).UARPage()).unuse()
		}
	})
}

func (h *HCA) createCQ(c command) check {
	in := mlx5.CreateCQIn(c.in)
	ctx := in.CQContext()
	switch {
	case ctx.LogCQSize() > logMaxCQSize:
		return badCQSize
	case ctx.CQESz() > 1:
		return badCQESize
	case in.CQUmemValid() != ctx.DBRUmemValid() || h.driver == nil && !in.CQUmemValid():
		return noUmem
	}
	bytes := uint64(64) << ctx.CQESz() << ctx.LogCQSize()
	u := uses{uid: c.uid}
	e := h.eqs.get(ctx.CEQNOrApuElement())
	u.hold(entryOf(e), true, badEQN)
	u.hold(entryOf(h.uars.get(ctx.UARPage())), true, badUAR)
	if in.CQUmemValid() {
		u.umem(h, in.CQUmemID(), in.CQUmemOffset(), bytes, 64)
		u.umem(h, ctx.DBRUmemID(), ctx.DBRAddr(), 8, 8)
	}
	var r *cqRing
	if u.refused == ok && h.mem != nil {
		r, u.refused = h.createCQRing(in, e)
	}
	if u.refused != ok {
		u.release()
		return u.refused
	}
	id, q, room := h.cqs.alloc()
	if !room {
		u.release()
		return objectLimit
	}
	copy(q.ctx[:], ctx)
	q.buf = 0
	if in.CQUmemValid() {
		q.buf = in.CQUmemID()
	}
	if r != nil {
		r.cqn = id
		q.ring.Store(r)
	}
	return h.born(c, id, &q.entry)
}

// createCQRing makes the ring of a completion queue, in physical pages or in
// user memory.
func (h *HCA) createCQRing(in mlx5.CreateCQIn, e *eq) (*cqRing, check) {
	ctx := in.CQContext()
	if !in.CQUmemValid() {
		r, refused := h.ringOf(ctx, in.PAS())
		if refused == ok {
			r.eq = e.ring.Load()
		}
		return r, refused
	}
	r := &cqRing{log: ctx.LogCQSize(), stride: cqeSize << ctx.CQESz(), ignore: ctx.Oi(), eq: e.ring.Load()}
	r.buf = h.umems.get(in.CQUmemID()).part(in.CQUmemOffset())
	record := h.umems.get(ctx.DBRUmemID()).part(ctx.DBRAddr())
	r.record, _, _ = record.at(0)
	return r, ok
}

func (h *HCA) queryCQ(c command) check {
	q := h.cqs.get(id24(c))
	if q == nil || !q.see(c.uid) {
		return badCQN
	}
	defer q.mu.Unlock()
	out := mlx5.QueryCQOut(c.out).CQContext()
	copy(out, q.ctx[:])
	if r := q.ring.Load(); r != nil {
		r.describe(out)
	}
	return ok
}

func (h *HCA) destroyCQ(c command) check {
	return destroy(h, c, h.cqs, id24(c), badCQN, func(h *HCA, q *cq) {
		ctx := mlx5.CQC(q.ctx[:])
		if r := q.ring.Swap(nil); r != nil {
			r.kill()
		}
		h.eqs.get(ctx.CEQNOrApuElement()).unuse()
		h.uars.get(ctx.UARPage()).unuse()
		if q.buf != 0 {
			h.umems.get(q.buf).unuse()
			h.umems.get(ctx.DBRUmemID()).unuse()
		}
	})
}
