// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"devxlab.example/mlx5"
)

// zeroProfile spares each test the reading of the built-in one.
var zeroProfile = sync.OnceValue(func() *Profile {
	p, err := ProfileByName("zero")
	if err != nil {
		panic(err)
	}
	return p
})

// newHCA returns a device that is audited when the test ends.
func newHCA(t testing.TB, c Config) *HCA {
	t.Helper()
	if c.Profile == nil {
		c.Profile = zeroProfile()
	}
	h, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := audit(h); err != nil {
			t.Error(err)
		}
	})
	return h
}

// rig is a device with one user context and everything that a queue pair needs.
type rig struct {
	t                      testing.TB
	h                      *HCA
	uid                    uint16
	eq, uar, pd, umem, cqn uint32
}

func newRig(t testing.TB, c Config) *rig {
	t.Helper()
	r := &rig{t: t, h: newHCA(t, c)}
	r.eq = r.made(build(mlx5.OpCreateEQ, 0))
	r.uid = r.context()
	r.uar = r.made(build(mlx5.OpAllocUAR, r.uid))
	r.pd = r.made(build(mlx5.OpAllocPD, r.uid))
	r.umem = r.made(umemOf(r.uid, 4))
	r.cqn = r.made(r.cq())
	return r
}

// build returns a command of the least length, zero but for its header.
func build(op mlx5.Op, uid uint16) []byte { return about(op, uid, 0) }

// about returns the same for a command about an object.
func about(op mlx5.Op, uid uint16, id uint32) []byte {
	l, _ := op.Layouts()
	in := make([]byte, l.Bytes)
	mlx5.PutHeader(in, op, 0)
	binary.BigEndian.PutUint16(in[2:], uid)
	binary.BigEndian.PutUint32(in[8:], id)
	return in
}

// umemOf returns a CREATE_UMEM of some pages of 4 KiB.
func umemOf(uid uint16, pages int) []byte {
	in := mlx5.CreateUmemIn(append(build(mlx5.OpCreateUmem, uid), make([]byte, 8*pages)...))
	in.Umem().SetNumOfMTT(uint64(pages))
	return in
}

// The builders below return commands that the device accepts.

func (r *rig) cq() mlx5.CreateCQIn {
	in := mlx5.CreateCQIn(build(mlx5.OpCreateCQ, r.uid))
	in.SetCQUmemValid(true)
	in.SetCQUmemID(r.umem)
	c := in.CQContext()
	c.SetDBRUmemValid(true)
	c.SetDBRUmemID(r.umem)
	c.SetUARPage(r.uar)
	c.SetCEQNOrApuElement(r.eq)
	return in
}

func (r *rig) qp(st mlx5.ServiceType) mlx5.CreateQPIn {
	in := mlx5.CreateQPIn(build(mlx5.OpCreateQP, r.uid))
	in.SetWQUmemValid(true)
	in.SetWQUmemID(r.umem)
	q := in.QPC()
	q.SetSt(uint8(st))
	q.SetPMState(3)
	q.SetPD(r.pd)
	q.SetUARPage(r.uar)
	q.SetCQNSnd(r.cqn)
	q.SetCQNRcv(r.cqn)
	q.SetDBRUmemValid(true)
	q.SetDBRUmemID(r.umem)
	return in
}

func (r *rig) mkey() mlx5.CreateMKeyIn {
	in := mlx5.CreateMKeyIn(build(mlx5.OpCreateMKey, r.uid))
	in.SetMKeyUmemValid(true)
	in.SetMKeyUmemID(r.umem)
	in.SetTranslationsOctwordActualSize(1)
	m := in.MemoryKeyMKeyEntry()
	m.SetAccessMode10(accessMTT)
	m.SetPD(r.pd)
	m.SetLen(4096)
	m.SetLogPageSize(12)
	return in
}

// modify returns a transition with the least that the device wants, whatever
// the service type. Its opt_param_mask, st, pd, cqn and hop_limit are zero, as
// real drivers leave them.
func (r *rig) modify(op mlx5.Op, qpn uint32) mlx5.RST2INITQPIn {
	in := mlx5.RST2INITQPIn(about(op, r.uid, qpn))
	switch op {
	case mlx5.OpRST2INIT:
		in.QPC().PrimaryAddressPath().SetVHCAPortNum(1)
	case mlx5.OpINIT2RTR:
		in.QPC().SetMTU(3)
		in.QPC().SetLogMsgMax(30)
		in.QPC().PrimaryAddressPath().SetVHCAPortNum(1)
		in.QPC().PrimaryAddressPath().SetRMAC310(1)
		in.QPC().PrimaryAddressPath().RGIDRip()[15] = 1
	}
	return in
}

// exec runs a command with as much room for output as it has to have.
func (r *rig) exec(in []byte) (mlx5.Status, uint32, []byte) {
	n := mlx5.CmdOutSize
	if hd := r.h.handler(mlx5.OpOf(in)); hd != nil && mlx5.OpOf(in) != mlx5.OpQueryHCACap {
		n = hd.out
	} else if _, l := mlx5.OpOf(in).Layouts(); l != nil {
		n = l.Bytes
	}
	out := make([]byte, n)
	r.h.Exec(in, out)
	status, syndrome := mlx5.StatusOf(out)
	return status, syndrome, out
}

// must runs a command that has to succeed.
func (r *rig) must(in []byte) []byte {
	r.t.Helper()
	status, syndrome, out := r.exec(in)
	if status != mlx5.StatusOK || syndrome != 0 {
		r.t.Fatalf("%v: %v: %s", mlx5.OpOf(in), status, reason(syndrome))
	}
	return out
}

// made runs a command that makes an object, and returns its index.
func (r *rig) made(in []byte) uint32 {
	r.t.Helper()
	return binary.BigEndian.Uint32(r.must(in)[8:])
}

func (r *rig) context() uint16 {
	r.t.Helper()
	return mlx5.CreateUCTXOut(r.must(build(mlx5.OpCreateUCTX, 0))).UID()
}

func (r *rig) closeContext(uid uint16) []byte {
	in := mlx5.DestroyUCTXIn(build(mlx5.OpDestroyUCTX, 0))
	in.SetUID(uid)
	return in
}

func reason(syndrome uint32) string {
	if c := CheckOf(syndrome); c != nil {
		return c.Refuses
	}
	return fmt.Sprintf("syndrome %#x", syndrome)
}

// qpc returns the context of a queue pair.
func (r *rig) qpc(qpn uint32) mlx5.QPC {
	r.t.Helper()
	return mlx5.QueryQPOut(r.must(about(mlx5.OpQueryQP, r.uid, qpn))).QPC()
}

// inState returns a new queue pair in a state.
func (r *rig) inState(st mlx5.ServiceType, s mlx5.State) uint32 {
	r.t.Helper()
	qpn := r.made(r.qp(st))
	r.bring(qpn, s)
	return qpn
}

// bring takes a queue pair that is in RESET to a state.
func (r *rig) bring(qpn uint32, s mlx5.State) {
	r.t.Helper()
	way := []mlx5.Op{mlx5.OpRST2INIT, mlx5.OpINIT2RTR, mlx5.OpRTR2RTS}
	if s < mlx5.StateRTS {
		way = way[:s]
	}
	for _, op := range way {
		r.must(r.modify(op, qpn))
	}
	if s > mlx5.StateRTS && !r.h.Fault(qpn, s) {
		r.t.Fatalf("no fault brings QP %#x to %v", qpn, s)
	}
}

// each calls f with every place of a table that was ever in use.
func each[T any](t *table[T], f func(id uint32, p *T)) {
	for id := t.first; id < t.next; id++ {
		f(id, t.get(id))
	}
}

// audit counts the users of every object anew and compares. Nothing may run on
// the device meanwhile.
func audit(h *HCA) error {
	users := map[*entry]int32{}
	each(h.qps, func(_ uint32, q *qp) {
		if !q.live.Load() {
			return
		}
		c := mlx5.QPC(q.qpc[:])
		pd := entryOf(h.pds.get(c.PD()))
		if mlx5.ServiceType(c.St()) == mlx5.STRegUMR {
			pd = nil
		}
		for _, e := range []*entry{
			pd, entryOf(h.uars.get(c.UARPage())), entryOf(h.cqs.get(c.CQNSnd())),
			entryOf(h.cqs.get(c.CQNRcv())), entryOf(h.umems.get(q.wqUmem)), entryOf(h.umems.get(c.DBRUmemID())),
			entryOf(h.counters.get(uint32(c.CounterSetID()))), // nil for 0
		} {
			users[e]++
		}
	})
	each(h.cqs, func(_ uint32, q *cq) {
		if !q.live.Load() {
			return
		}
		c := mlx5.CQC(q.ctx[:])
		users[entryOf(h.uars.get(c.UARPage()))]++
		users[entryOf(h.eqs.get(c.CEQNOrApuElement()))]++
		users[entryOf(h.umems.get(q.buf))]++
		users[entryOf(h.umems.get(c.DBRUmemID()))]++
	})
	each(h.mkeys, func(_ uint32, m *mkey) {
		if m.live.Load() {
			users[entryOf(h.pds.get(mlx5.MKC(m.ctx[:]).PD()))]++
			users[entryOf(h.umems.get(m.umem))]++
		}
	})
	if h.mem != nil {
		hostUsers(h, users)
	}
	delete(users, nil)
	owned := func(e *entry) {
		if u := h.uctxs.get(uint32(e.uid)); e.live.Load() && u != nil {
			users[&u.entry]++
		}
	}
	for _, tableOwned := range []func(){
		func() { eachEntry(h.pds, owned) }, func() { eachEntry(h.uars, owned) }, func() { eachEntry(h.umems, owned) },
		func() { eachEntry(h.mkeys, owned) }, func() { eachEntry(h.eqs, owned) }, func() { eachEntry(h.cqs, owned) },
		func() { eachEntry(h.qps, owned) }, func() { eachEntry(h.counters, owned) },
	} {
		tableOwned()
	}
	for i, t := range h.resources() {
		eachEntry(t, owned)
		if err := auditTable(fmt.Sprint("resource ", i), t, users); err != nil {
			return err
		}
	}
	for _, err := range []error{
		auditTable("PD", h.pds, users), auditTable("UAR", h.uars, users), auditTable("umem", h.umems, users),
		auditTable("mkey", h.mkeys, users), auditTable("EQ", h.eqs, users), auditTable("CQ", h.cqs, users),
		auditTable("QP", h.qps, users), auditTable("counter set", h.counters, users), auditTable("context", h.uctxs, users),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// hostUsers counts what only a driver's objects use.
func hostUsers(h *HCA, users map[*entry]int32) {
	held := func(list []*entry) {
		for _, e := range list {
			users[e]++
		}
	}
	for _, t := range h.resources() {
		each(t, func(_ uint32, r *resource) {
			if r.live.Load() {
				held(r.held)
				for _, f := range r.flows {
					held(f.held)
				}
			}
		})
	}
	each(h.qps, func(_ uint32, q *qp) {
		if q.live.Load() {
			held(q.held)
		}
	})
	each(h.eqs, func(_ uint32, e *eq) {
		if e.live.Load() {
			users[entryOf(h.uars.get(mlx5.EQC(e.ctx).UARPage()))]++
		}
	})
}

func eachEntry[T any, P interface {
	*T
	holder
}](t *table[T], f func(*entry)) {
	each(t, func(_ uint32, p *T) { f(P(p).object()) })
}

// locks takes an object's lock. One whose holder has not let go after a while is
// held for good; one of the port's goroutine, which may still have a turn, is not.
func locks(e *entry) bool {
	for end := time.Now().Add(10 * time.Second); !e.mu.TryLock(); runtime.Gosched() {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func auditTable[T any, P interface {
	*T
	holder
}](kind string, t *table[T], users map[*entry]int32) (err error) {
	live := 0
	each(t, func(id uint32, p *T) {
		e := P(p).object()
		switch want := users[e]; {
		case !locks(e):
			err = fmt.Errorf("%s %#x is locked", kind, id)
			return
		case e.refs != want || !e.live.Load() && want != 0:
			err = fmt.Errorf("%s %#x (live %v): %d users counted, %d there are", kind, id, e.live.Load(), e.refs, want)
		}
		e.mu.Unlock()
		if e.live.Load() {
			live++
		}
	})
	free := map[uint32]bool{}
	for _, id := range t.free[t.freeHead:] {
		if p := t.get(id); free[id] || p == nil || P(p).object().live.Load() {
			return fmt.Errorf("%s %#x is free twice, or free and live", kind, id)
		}
		free[id] = true
	}
	if err == nil && (live != t.live || live+len(free) != int(t.next-t.first)) {
		err = fmt.Errorf("%s: %d live, %d counted, %d free, %d places", kind, live, t.live, len(free), t.next-t.first)
	}
	return err
}
