// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"

	"devxlab.example/mlx5"
)

// use counts one more user of an object. It refuses an object that does not
// exist, or that has another uid; shared objects (uid 0) are everyone's where
// the caller says so.
func (e *entry) use(uid uint16, shared bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.live || e.uid != uid && !(shared && e.uid == 0) {
		return false
	}
	e.refs++
	return true
}

// holder is a pointer to any object.
type holder interface{ object() *entry }

func (e *entry) object() *entry { return e }

func (e *entry) unuse() {
	e.mu.Lock()
	e.refs--
	e.mu.Unlock()
}

// drop marks an object destroyed.
func (e *entry) drop(uid uint16, missing check) check {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !e.live || e.uid != uid:
		return missing
	case e.refs > 0:
		return inUse
	}
	e.live = false
	return ok
}

// born makes an object visible under the caller's uid. fill, which may be nil,
// writes the rest of it.
func (h *HCA) born(c *command, id uint32, e *entry, fill func()) check {
	if c.uid != 0 {
		u := h.uctxs.get(uint32(c.uid))
		u.mu.Lock()
		u.refs++
		u.mu.Unlock()
	}
	e.mu.Lock()
	if fill != nil {
		fill()
	}
	e.live, e.uid, e.refs = true, c.uid, 0
	e.mu.Unlock()
	// The index stands in the same place of every answer.
	binary.BigEndian.PutUint32(c.out[8:], id)
	return ok
}

// gone gives the index of a dropped object back.
func gone[T any](h *HCA, c *command, t *table[T], id uint32) check {
	if c.uid != 0 {
		h.uctxs.get(uint32(c.uid)).unuse()
	}
	t.release(id)
	return ok
}

// id24 returns the index that the command is about: most have it in the same
// 24 bits, and narrower ones in the lower bits of those.
func id24(c *command) uint32 { return binary.BigEndian.Uint32(c.in[8:]) & 0xffffff }

func (h *HCA) createUCTX(c *command) check {
	id, u, room := h.uctxs.alloc()
	if !room || h.logMaxUC == 0 {
		if room {
			h.uctxs.release(id)
		}
		return objectLimit
	}
	root := command{out: c.out} // a context belongs to no context
	refused := h.born(&root, 0, &u.entry, nil)
	mlx5.CreateUCTXOut(c.out).SetUID(uint16(id))
	return refused
}

func (h *HCA) destroyUCTX(c *command) check {
	id := uint32(mlx5.DestroyUCTXIn(c.in).UID())
	u := h.uctxs.get(id)
	if u == nil {
		return badUCTX
	}
	refused := u.drop(0, badUCTX)
	if refused == inUse {
		return uctxInUse
	}
	if refused == ok {
		h.uctxs.release(id)
	}
	return refused
}

func (h *HCA) allocPD(c *command) check {
	id, p, room := h.pds.alloc()
	if !room {
		return objectLimit
	}
	return h.born(c, id, &p.entry, nil)
}

func (h *HCA) deallocPD(c *command) check {
	return destroy(h, c, h.pds, id24(c), badPD)
}

// destroy drops an object that uses no other, and gives its index back.
func destroy[T any, P interface {
	*T
	holder
}](h *HCA, c *command, t *table[T], id uint32, missing check) check {
	p := P(t.get(id))
	if p == nil {
		return missing
	}
	if refused := p.object().drop(c.uid, missing); refused != ok {
		return refused
	}
	return gone(h, c, t, id)
}

func (h *HCA) allocUAR(c *command) check {
	id, u, room := h.uars.alloc()
	if !room {
		return objectLimit
	}
	return h.born(c, id, &u.entry, nil)
}

func (h *HCA) deallocUAR(c *command) check {
	return destroy(h, c, h.uars, id24(c), badUAR)
}

func (h *HCA) allocQCounter(c *command) check {
	id, s, room := h.counters.alloc()
	if !room {
		return objectLimit
	}
	return h.born(c, id, &s.entry, nil)
}

func (h *HCA) deallocQCounter(c *command) check {
	return destroy(h, c, h.counters, id24(c), badCounterSet)
}

// queryQCounter answers zeros: without packets, no counter has moved.
func (h *HCA) queryQCounter(c *command) check {
	s := h.counters.get(uint32(mlx5.QueryQCounterIn(c.in).CounterSetID()))
	if s == nil || !s.use(c.uid, true) {
		return badCounterSet
	}
	s.unuse()
	return ok
}

func (h *HCA) createUmem(c *command) check {
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
	return h.born(c, id, &u.entry, func() { u.bytes = n<<shift - uint64(ctx.PageOffset()) })
}

func (h *HCA) destroyUmem(c *command) check {
	return destroy(h, c, h.umems, id24(c), badUmem)
}

// useUmem counts a user of n bytes of user memory.
func (h *HCA) useUmem(uid uint16, id uint32, offset, n, align uint64) check {
	u := h.umems.get(id)
	if u == nil || !u.use(uid, false) {
		return badUmem
	}
	refused := ok
	if offset%align != 0 {
		refused = umemUnaligned
	} else if offset > u.bytes || n > u.bytes-offset {
		refused = umemTooSmall
	}
	if refused != ok {
		u.unuse()
	}
	return refused
}

// Access modes of a memory key (linux/mlx5/mlx5_ifc.h, mkc access_mode_1_0).
const accessMTT = 1

func (h *HCA) createMKey(c *command) check {
	in := mlx5.CreateMKeyIn(c.in)
	ctx := in.MemoryKeyMKeyEntry()
	switch {
	case ctx.AccessMode10() != accessMTT || ctx.AccessMode42() != 0:
		return mkeyMode
	case !in.MKeyUmemValid():
		return noUmem
	case in.TranslationsOctwordActualSize() == 0 || ctx.Len() == 0 && !ctx.Length64():
		return mkeyZeroLen
	case ctx.LogPageSize() < 12 || ctx.LogPageSize() > maxPageShift:
		return mkeyPageSize
	}
	p := h.pds.get(ctx.PD())
	if p == nil || !p.use(c.uid, false) {
		return badPD
	}
	need := uint64(ctx.Len())
	if refused := h.useUmem(c.uid, in.MKeyUmemID(), in.MKeyUmemOffset(), need, 1); refused != ok {
		p.unuse()
		if refused == umemTooSmall {
			return mkeyRange
		}
		return refused
	}
	id, m, room := h.mkeys.alloc()
	if !room {
		p.unuse()
		h.umems.get(in.MKeyUmemID()).unuse()
		return objectLimit
	}
	return h.born(c, id, &m.entry, func() {
		copy(m.ctx[:], ctx)
		m.pd, m.umem, m.umemOffset = ctx.PD(), in.MKeyUmemID(), in.MKeyUmemOffset()
	})
}

func (h *HCA) queryMKey(c *command) check {
	m := h.mkeys.get(id24(c))
	if m == nil || !m.use(c.uid, false) {
		return badMKey
	}
	copy(mlx5.QueryMKeyOut(c.out).MemoryKeyMKeyEntry(), m.ctx[:])
	m.unuse()
	return ok
}

func (h *HCA) destroyMKey(c *command) check {
	m := h.mkeys.get(id24(c))
	if m == nil {
		return badMKey
	}
	if refused := m.drop(c.uid, badMKey); refused != ok {
		return refused
	}
	h.pds.get(m.pd).unuse()
	h.umems.get(m.umem).unuse()
	return gone(h, c, h.mkeys, id24(c))
}

func (h *HCA) createEQ(c *command) check {
	if mlx5.CreateEQIn(c.in).EQContextEntry().LogEQSize() > logMaxEQSize {
		return badEQSize
	}
	id, e, room := h.eqs.alloc()
	if !room {
		return objectLimit
	}
	return h.born(c, id, &e.entry, nil)
}

func (h *HCA) destroyEQ(c *command) check {
	return destroy(h, c, h.eqs, id24(c)&0xff, badEQN) // eq_number has 8 bits
}

func (h *HCA) createCQ(c *command) check {
	in := mlx5.CreateCQIn(c.in)
	ctx := in.CQContext()
	switch {
	case ctx.LogCQSize() > logMaxCQSize:
		return badCQSize
	case ctx.CQESz() > 1:
		return badCQESize
	case !in.CQUmemValid() || !ctx.DBRUmemValid():
		return noUmem
	}
	e := h.eqs.get(ctx.CEQNOrApuElement())
	if e == nil || !e.use(c.uid, true) {
		return badEQN
	}
	u := h.uars.get(ctx.UARPage())
	if u == nil || !u.use(c.uid, true) {
		e.unuse()
		return badUAR
	}
	bytes := uint64(64) << ctx.CQESz() << ctx.LogCQSize()
	refused := h.useUmem(c.uid, in.CQUmemID(), in.CQUmemOffset(), bytes, 64)
	if refused == ok {
		if refused = h.useUmem(c.uid, ctx.DBRUmemID(), ctx.DBRAddr(), 8, 8); refused != ok {
			h.umems.get(in.CQUmemID()).unuse()
		}
	}
	if refused != ok {
		e.unuse()
		u.unuse()
		return refused
	}
	id, q, room := h.cqs.alloc()
	if !room {
		e.unuse()
		u.unuse()
		h.umems.get(in.CQUmemID()).unuse()
		h.umems.get(ctx.DBRUmemID()).unuse()
		return objectLimit
	}
	return h.born(c, id, &q.entry, func() {
		copy(q.ctx[:], ctx)
		q.buf, q.dbr, q.uar, q.eqn = in.CQUmemID(), ctx.DBRUmemID(), ctx.UARPage(), ctx.CEQNOrApuElement()
	})
}

func (h *HCA) queryCQ(c *command) check {
	q := h.cqs.get(id24(c))
	if q == nil || !q.use(c.uid, false) {
		return badCQN
	}
	copy(mlx5.QueryCQOut(c.out).CQContext(), q.ctx[:])
	q.unuse()
	return ok
}

func (h *HCA) destroyCQ(c *command) check {
	q := h.cqs.get(id24(c))
	if q == nil {
		return badCQN
	}
	if refused := q.drop(c.uid, badCQN); refused != ok {
		return refused
	}
	h.umems.get(q.buf).unuse()
	h.umems.get(q.dbr).unuse()
	h.uars.get(q.uar).unuse()
	h.eqs.get(q.eqn).unuse()
	return gone(h, c, h.cqs, id24(c))
}
