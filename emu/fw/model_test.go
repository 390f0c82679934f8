// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"

	"devxlab.example/mlx5"
	"pgregory.net/rapid"
)

// The model of this file knows of the device what a user can know of it. Its
// rules are written from the driver (opt_mask and __mlx5_ib_modify_qp in
// mlx5_ib qp.c), not from package mlx5's.

type kind int

const (
	kPD kind = iota
	kUAR
	kUmem
	kMKey
	kEQ
	kCQ
	kQP
	kCounter
	numKinds
)

var makes = [numKinds]mlx5.Op{mlx5.OpAllocPD, mlx5.OpAllocUAR, mlx5.OpCreateUmem, mlx5.OpCreateMKey, mlx5.OpCreateEQ,
	mlx5.OpCreateCQ, mlx5.OpCreateQP, mlx5.OpAllocQCounter}

var destroys = [numKinds]mlx5.Op{mlx5.OpDeallocPD, mlx5.OpDeallocUAR, mlx5.OpDestroyUmem, mlx5.OpDestroyMKey, mlx5.OpDestroyEQ,
	mlx5.OpDestroyCQ, mlx5.OpDestroyQP, mlx5.OpDeallocQCounter}

// ofKernel says of which kinds everyone may use what the kernel (uid 0) made.
var ofKernel = [numKinds]bool{kUAR: true, kEQ: true, kCounter: true}

// thing is an object of the model.
type thing struct {
	kind  kind
	id    uint32
	uid   uint16
	uses  []*thing
	users int
	bytes uint64 // of a umem
	first uint64 // byte of it in its first page

	st      uint8 // of a QP, and below
	state   mlx5.State
	fresh   []byte // context in RESET
	context []byte
	counter *thing
}

type model struct {
	h        *HCA
	contexts map[uint16]int // objects of each live context
	things   [numKinds]map[uint32]*thing
	gone     [numKinds][]uint32 // indexes that were in use once
	goneUIDs []uint16
	tally    map[string]int // answers, by opcode and status
}

const (
	modelLogMaxQP = 3
	modelLogMaxUC = 2
)

func (m *model) usable(k kind, id uint32, uid uint16) *thing {
	if o := m.things[k][id]; o != nil && (o.uid == uid || o.uid == 0xffff || o.uid == 0 && ofKernel[k]) {
		return o
	}
	return nil
}

func (m *model) owned(k kind, id uint32, uid uint16) *thing {
	if o := m.things[k][id]; o != nil && (o.uid == uid || o.uid == 0xffff && uid == 0) {
		return o
	}
	return nil
}

// knows reports whether a command with the uid is looked at.
func (m *model) knows(uid uint16) bool {
	_, ok := m.contexts[uid]
	return ok || uid == 0 || uid == 0xffff
}

// run executes a command and compares its status with what the model finds
// wrong with it. Where that is more than one thing, any of their statuses will
// do. It reports whether the command succeeded.
func (m *model) run(t *rapid.T, in []byte, wrong ...mlx5.Status) ([]byte, bool) {
	_, l := mlx5.OpOf(in).Layouts()
	out := make([]byte, l.Bytes)
	m.h.Exec(in, out)
	status, syndrome := mlx5.StatusOf(out)
	if len(wrong) == 0 {
		wrong = []mlx5.Status{mlx5.StatusOK}
	}
	if !slices.Contains(wrong, status) {
		t.Fatalf("%v: %v (%s), want one of %v\n%x", mlx5.OpOf(in), status, reason(syndrome), wrong, in)
	}
	m.tally[fmt.Sprintf("%v %v", mlx5.OpOf(in), status)]++
	return out, status == mlx5.StatusOK
}

// Draws. Most are valid, so that sequences get somewhere.

// often is true in seven of eight cases. (Integers are drawn small by preference,
// so a range would not do.)
func often(t *rapid.T, what string) bool {
	for range 3 {
		if !rapid.Bool().Draw(t, what) {
			return true
		}
	}
	return false
}

func (m *model) uid(t *rapid.T) uint16 {
	uids := slices.Sorted(maps.Keys(m.contexts))
	if len(uids) > 0 && often(t, "live uid") {
		return rapid.SampledFrom(uids).Draw(t, "uid")
	}
	return rapid.SampledFrom(append([]uint16{0, 0, 0xffff, 0xfffe, 300}, m.goneUIDs...)).Draw(t, "other uid")
}

func (m *model) id(t *rapid.T, k kind, uid uint16) uint32 {
	ids := slices.Sorted(maps.Keys(m.things[k]))
	if mine := slices.DeleteFunc(slices.Clone(ids), func(id uint32) bool { return m.usable(k, id, uid) == nil }); len(mine) > 0 && often(t, "own") {
		return rapid.SampledFrom(mine).Draw(t, "id")
	}
	return rapid.SampledFrom(append(append(ids, 0, 1, 0xff, 0xffffff), m.gone[k]...)).Draw(t, "other id") & (1<<idBits(k) - 1)
}

// pick draws an object and a uid for a command about it: mostly one that is
// there and its owner's.
func (m *model) pick(t *rapid.T, k kind) (uint16, uint32) {
	if ids := slices.Sorted(maps.Keys(m.things[k])); len(ids) > 0 && often(t, "there") {
		id := rapid.SampledFrom(ids).Draw(t, "id")
		return owner(m.things[k][id]), id
	}
	uid := m.uid(t)
	return uid, m.id(t, k, uid)
}

// owner returns who may destroy an object.
func owner(o *thing) uint16 {
	if o.uid == 0xffff {
		return 0
	}
	return o.uid
}

func idBits(k kind) int {
	if k == kEQ || k == kCounter {
		return 8
	}
	return 24
}

// sometimes replaces a field by random bits.
func (m *model) sometimes(t *rapid.T, b []byte, l *mlx5.Layout, names ...string) {
	if often(t, "as it is") {
		return
	}
	name := rapid.SampledFrom(names).Draw(t, "field")
	f := l.Field(name)
	v := rapid.Uint64Range(0, 1<<min(f.Width, 63)-1).Draw(t, name)
	for i := range f.Width {
		at := f.Offset + f.Width - 1 - i
		b[at/8] = b[at/8]&^(0x80>>(at%8)) | byte(v>>i&1)<<(7-at%8)
	}
}

// add puts what a command made into the model.
func (m *model) add(t *rapid.T, o *thing, out []byte) {
	o.id = binary.BigEndian.Uint32(out[8:])
	if m.things[o.kind][o.id] != nil {
		t.Fatalf("%v: index %#x is in use", makes[o.kind], o.id)
	}
	m.things[o.kind][o.id] = o
	for _, u := range o.uses {
		u.users++
	}
	if _, ok := m.contexts[o.uid]; ok {
		m.contexts[o.uid]++
	}
}

func (m *model) createContext(t *rapid.T) {
	var wrong []mlx5.Status
	if len(m.contexts) >= 1<<modelLogMaxUC {
		wrong = append(wrong, mlx5.StatusLIM)
	}
	if out, ok := m.run(t, build(mlx5.OpCreateUCTX, 0), wrong...); ok {
		m.contexts[mlx5.CreateUCTXOut(out).UID()] = 0
	}
}

func (m *model) destroyContext(t *rapid.T) { m.closeContext(t, m.uid(t)) }

func (m *model) closeContext(t *rapid.T, uid uint16) {
	in := mlx5.DestroyUCTXIn(build(mlx5.OpDestroyUCTX, 0))
	in.SetUID(uid)
	var wrong []mlx5.Status
	if n, live := m.contexts[uid]; !live {
		wrong = append(wrong, mlx5.StatusBadParam)
	} else if n > 0 {
		wrong = append(wrong, mlx5.StatusBadResState)
	}
	if _, ok := m.run(t, in, wrong...); ok {
		delete(m.contexts, uid)
		m.goneUIDs = append(m.goneUIDs, uid)
	}
}

// using finds the objects that a new one uses, and what is wrong with them.
type using struct {
	m     *model
	o     *thing
	wrong []mlx5.Status
}

func (u *using) ref(k kind, id uint32) *thing {
	o := u.m.usable(k, id, u.o.uid)
	if o == nil {
		u.wrong = append(u.wrong, mlx5.StatusBadRes)
		return nil
	}
	u.o.uses = append(u.o.uses, o)
	return o
}

func (u *using) memory(id uint32, offset, bytes, align uint64) {
	if o := u.ref(kUmem, id); o != nil {
		u.refuseIf((o.first+offset)%align != 0 || offset > o.bytes || o.bytes-offset < bytes, mlx5.StatusBadParam)
	}
}

func (u *using) refuseIf(wrong bool, s mlx5.Status) {
	if wrong {
		u.wrong = append(u.wrong, s)
	}
}

// create makes one object of a kind.
func (m *model) create(t *rapid.T, k kind, uid uint16) {
	o := &thing{kind: k, uid: uid}
	u := &using{m: m, o: o}
	u.refuseIf(!m.knows(uid), mlx5.StatusBadRes)
	in := build(makes[k], uid)
	valid := often(t, "umem valid")
	switch k {
	case kUmem:
		pages := rapid.IntRange(1, 3).Draw(t, "pages")
		c := mlx5.CreateUmemIn(umemOf(uid, pages))
		ctx := c.Umem()
		m.sometimes(t, ctx, mlx5.LayoutOf("umem"), "num_of_mtt", "log_page_size", "page_offset")
		size := uint64(1) << (12 + ctx.LogPageSize())
		u.refuseIf(ctx.NumOfMTT() == 0 || ctx.NumOfMTT() > uint64(pages) || ctx.LogPageSize() > 19 || uint64(ctx.PageOffset()) >= size, mlx5.StatusBadParam)
		o.bytes, o.first = ctx.NumOfMTT()*size-uint64(ctx.PageOffset()), uint64(ctx.PageOffset())
		in = c
	case kMKey:
		c := mlx5.CreateMKeyIn(in)
		c.SetMKeyUmemID(m.id(t, kUmem, uid))
		c.SetMKeyUmemValid(valid)
		c.SetTranslationsOctwordActualSize(1)
		ctx := c.MemoryKeyMKeyEntry()
		ctx.SetAccessMode10(1)
		ctx.SetLogPageSize(12)
		ctx.SetLen(rapid.Uint64Range(1, 5000).Draw(t, "len"))
		ctx.SetPD(m.id(t, kPD, uid))
		m.sometimes(t, ctx, mlx5.LayoutOf("mkc"), "access_mode_1_0", "access_mode_4_2", "log_page_size", "len", "length64")
		u.refuseIf(ctx.AccessMode10() != 1 || ctx.AccessMode42() != 0 || !valid || ctx.LogPageSize() < 12 || ctx.Len() == 0 && !ctx.Length64(), mlx5.StatusBadParam)
		u.ref(kPD, ctx.PD())
		u.memory(c.MKeyUmemID(), c.MKeyUmemOffset(), ctx.Len(), 1)
	case kCQ:
		c := mlx5.CreateCQIn(in)
		c.SetCQUmemID(m.id(t, kUmem, uid))
		c.SetCQUmemOffset(64 * rapid.Uint64Range(0, 70).Draw(t, "offset"))
		c.SetCQUmemValid(valid)
		ctx := c.CQContext()
		ctx.SetDBRUmemValid(true)
		ctx.SetDBRUmemID(m.id(t, kUmem, uid))
		ctx.SetUARPage(m.id(t, kUAR, uid))
		ctx.SetCEQNOrApuElement(m.id(t, kEQ, uid))
		m.sometimes(t, ctx, mlx5.LayoutOf("cqc"), "log_cq_size", "cqe_sz", "dbr_addr", "dbr_umem_valid", "c_eqn_or_apu_element")
		u.refuseIf(ctx.LogCQSize() > 22 || ctx.CQESz() > 1 || !valid || !ctx.DBRUmemValid(), mlx5.StatusBadParam)
		u.ref(kEQ, ctx.CEQNOrApuElement())
		u.ref(kUAR, ctx.UARPage())
		u.memory(c.CQUmemID(), c.CQUmemOffset(), 64<<min(ctx.CQESz(), 1)<<ctx.LogCQSize(), 64)
		u.memory(ctx.DBRUmemID(), ctx.DBRAddr(), 8, 8)
	case kQP:
		c := mlx5.CreateQPIn(in)
		c.SetWQUmemID(m.id(t, kUmem, uid))
		c.SetWQUmemOffset(64 * rapid.Uint64Range(0, 20).Draw(t, "offset"))
		c.SetWQUmemValid(valid)
		q := c.QPC()
		q.SetSt(rapid.Uint8Range(0, 2).Draw(t, "st"))
		q.SetPMState(3)
		q.SetRQType(rapid.SampledFrom([]uint8{0, 3}).Draw(t, "rq_type"))
		q.SetPD(m.id(t, kPD, uid))
		q.SetCQNSnd(m.id(t, kCQ, uid))
		q.SetCQNRcv(m.id(t, kCQ, uid))
		q.SetUARPage(m.id(t, kUAR, uid))
		q.SetDBRUmemValid(true)
		q.SetDBRUmemID(m.id(t, kUmem, uid))
		q.SetUserIndex(rapid.Uint32Range(0, 1<<24-1).Draw(t, "user_index"))
		m.sometimes(t, q, mlx5.LayoutOf("qpc"), "st", "rq_type", "log_rq_size", "log_rq_stride", "log_sq_size", "no_sq", "pm_state",
			"dbr_addr", "dbr_umem_valid", "cs_req", "state", "remote_qpn", "counter_set_id", "mtu")
		u.refuseIf(q.St() > 2 || q.RQType() != 0 && q.RQType() != 1 && q.RQType() != 3 || q.PMState() == 2 || !valid || !q.DBRUmemValid(), mlx5.StatusBadParam)
		u.refuseIf(q.RQType() == 1, mlx5.StatusBadRes)
		u.ref(kPD, q.PD())
		u.ref(kCQ, q.CQNSnd())
		u.ref(kCQ, q.CQNRcv())
		if !q.NoSQ() || q.UARPage() != 0 {
			u.ref(kUAR, q.UARPage())
		}
		need := uint64(0)
		if q.RQType() == 0 {
			need += 16 << q.LogRQStride() << q.LogRQSize()
		}
		if !q.NoSQ() {
			need += 64 << q.LogSQSize()
		}
		u.memory(c.WQUmemID(), c.WQUmemOffset(), need, 64)
		u.memory(q.DBRUmemID(), q.DBRAddr(), 8, 8)
		u.refuseIf(len(m.things[kQP]) >= 1<<modelLogMaxQP, mlx5.StatusLIM)
		o.st, o.fresh = q.St(), slices.Clone(q)
		for _, name := range slices.Concat(transitionFields, []string{"state"}) {
			if name != "pm_state" {
				put(o.fresh, name, 0)
			}
		}
		clear(mlx5.QPC(o.fresh).PrimaryAddressPath())
		o.context = slices.Clone(o.fresh)
	}
	if out, ok := m.run(t, in, u.wrong...); ok {
		m.add(t, o, out)
	}
}

func (m *model) destroy(t *rapid.T, k kind, uid uint16, id uint32) {
	o := m.owned(k, id, uid)
	var wrong []mlx5.Status
	switch {
	case !m.knows(uid) || o == nil:
		wrong = append(wrong, mlx5.StatusBadRes)
	case o.users > 0:
		wrong = append(wrong, mlx5.StatusBadResState)
	}
	if _, ok := m.run(t, about(destroys[k], uid, id), wrong...); !ok {
		return
	}
	delete(m.things[k], id)
	m.gone[k] = append(m.gone[k], id)
	for _, u := range o.uses {
		u.users--
	}
	if o.counter != nil {
		o.counter.users--
	}
	if _, ok := m.contexts[o.uid]; ok {
		m.contexts[o.uid]--
	}
}

// Bits of opt_param_mask (enum mlx5_qp_optpar), and the fields that each is for.
const (
	bALT, bRRE, bRAE, bRWE, bPKEY, bQKEY, bRNR, bPM, bLAG, bPORT, bSRQN, bCQN, bSET = 0, 1, 2, 3, 4, 5, 6, 10, 15, 16, 18, 19, 25
)

var bitFields = map[int][]string{
	bRRE: {"rre"}, bRAE: {"rae", "atomic_mode"}, bRWE: {"rwe"}, bPKEY: {path + "pkey_index"}, bQKEY: {"q_key"}, bRNR: {"min_rnr_nak"},
	bPM: {"pm_state"}, bLAG: {"lag_tx_port_affinity"}, bPORT: {path + "vhca_port_num"}, bSET: {"counter_set_id"},
}

// legal is the state machine: where a transition starts (-1: anywhere) and ends,
// and what it takes always, and if a bit asks for it, by service type.
type legal struct {
	from, to int
	always   [3][]string
	bits     [3][]int
}

var addressFields = []string{
	path + "fl", path + "free_ar", path + "grh", path + "mlid", path + "rlid", path + "src_addr_index", path + "stat_rate",
	path + "hop_limit", path + "tclass", path + "flow_label", path + "f_dscp", path + "f_ecn", path + "f_eth_prio", path + "ecn",
	path + "dscp", path + "udp_sport", path + "dei_cfi", path + "eth_prio", path + "sl", path + "rmac_47_32", path + "rmac_31_0",
}

var all3 = func(s ...string) [3][]string { return [3][]string{s, s, s} }

var machine = map[mlx5.Op]legal{
	mlx5.Op2ERR: {from: -1, to: 6},
	mlx5.Op2RST: {from: -1, to: 0},
	mlx5.OpRST2INIT: {from: 0, to: 1, always: all3(path+"vhca_port_num", path+"pkey_index", "pm_state", "q_key", "rre", "rwe", "rae",
		"atomic_mode", "lag_tx_port_affinity", "counter_set_id")},
	mlx5.OpINIT2INIT: {from: 1, to: 1, bits: [3][]int{
		{bRRE, bRAE, bRWE, bPKEY, bPORT, bLAG}, {bRWE, bPKEY, bPORT, bLAG}, {bPKEY, bQKEY, bPORT}}},
	mlx5.OpINIT2RTR: {from: 1, to: 2,
		always: [3][]string{
			slices.Concat([]string{"mtu", "log_msg_max", "remote_qpn", "next_rcv_psn", "log_rra_max", "min_rnr_nak"}, addressFields),
			slices.Concat([]string{"mtu", "log_msg_max", "remote_qpn", "next_rcv_psn"}, addressFields),
			{"mtu", "log_msg_max"}},
		bits: [3][]int{{bALT, bRRE, bRAE, bRWE, bPKEY, bLAG}, {bALT, bRWE, bPKEY, bLAG}, {bPKEY, bQKEY}}},
	mlx5.OpRTR2RTS: {from: 2, to: 3,
		always: [3][]string{{"next_send_psn", path + "ack_timeout", "retry_count", "rnr_retry", "log_sra_max"}, {"next_send_psn"}, {"next_send_psn"}},
		bits:   [3][]int{{bALT, bRRE, bRAE, bRWE, bPM, bRNR}, {bALT, bRWE, bPM}, {bQKEY}}},
	mlx5.OpRTS2RTS: {from: 3, to: 3, bits: [3][]int{
		{bALT, bRRE, bRAE, bRWE, bPM, bRNR, bSET}, {bALT, bRWE, bPM, bSET}, {bQKEY, bSRQN, bCQN, bSET}}},
	mlx5.OpSQERR2RTS: {from: 4, to: 3, bits: [3][]int{{bRRE, bRAE, bRWE, bRNR}, {bRWE}, {bQKEY}}},
}

var transitionFields = func() []string {
	set := map[string]bool{}
	for _, l := range machine {
		for st := range 3 {
			for _, f := range l.always[st] {
				set[f] = true
			}
			for _, b := range l.bits[st] {
				for _, f := range bitFields[b] {
					set[f] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}()

// limits are the ranges of fields that a transition checks if it takes them.
var limits = map[string]struct {
	least, most uint64
	status      mlx5.Status
}{
	path + "vhca_port_num":  {1, 1, mlx5.StatusBadParam},
	path + "pkey_index":     {0, 0, mlx5.StatusIX},
	path + "src_addr_index": {0, 254, mlx5.StatusBadParam},
	"mtu":                   {1, 5, mlx5.StatusBadParam},
	"log_msg_max":           {0, 30, mlx5.StatusBadParam},
	"log_rra_max":           {0, 4, mlx5.StatusBadParam},
	"log_sra_max":           {0, 4, mlx5.StatusBadParam},
}

var modifyOps = slices.Sorted(maps.Keys(machine))

func (m *model) modify(t *rapid.T) {
	uid, id := m.pick(t, kQP)
	o := m.owned(kQP, id, uid)
	op := rapid.SampledFrom(modifyOps).Draw(t, "op")
	if o != nil && often(t, "legal") { // and if there is a choice, onwards
		for _, x := range []mlx5.Op{mlx5.OpRST2INIT, mlx5.OpINIT2RTR, mlx5.OpRTR2RTS, mlx5.OpRTS2RTS, mlx5.OpSQERR2RTS} {
			if machine[x].from == int(o.state) {
				op = x
			}
		}
		if o.state == mlx5.StateInit && rapid.Bool().Draw(t, "stay") {
			op = mlx5.OpINIT2INIT
		}
	}
	l := machine[op]
	in := about(op, uid, id)
	var wrong []mlx5.Status
	switch {
	case !m.knows(uid) || o == nil:
		wrong = append(wrong, mlx5.StatusBadRes)
	case l.from >= 0 && l.from != int(o.state):
		wrong = append(wrong, mlx5.StatusBadQPState)
	}
	var taken []string
	var set *thing
	if len(in) > 16 {
		c := mlx5.RST2INITQPIn(in)
		q := c.QPC()
		fill := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "noise")
		for i := range q {
			q[i] = fill[i%4]
		}
		for name, r := range limits {
			put(q, name, min(max(uint64(fill[0]), r.least), r.most))
		}
		put(q, "pm_state", uint64(fill[1]&1))
		put(q, "counter_set_id", 0)
		if rapid.Bool().Draw(t, "counter set") {
			put(q, "counter_set_id", uint64(m.id(t, kCounter, uid)))
		}
		m.sometimes(t, q, mlx5.LayoutOf("qpc"), slices.Concat(slices.Sorted(maps.Keys(limits)), []string{"pm_state", path + "rmac_31_0", "st", "pd", "cqn_rcv", "state"})...)
		mask := rapid.SampledFrom([]uint32{0, 0xffffffff &^ (1<<bALT | 1<<bSRQN | 1<<bCQN), rapid.Uint32().Draw(t, "bits")}).Draw(t, "mask")
		c.SetOptParamMask(mask)
		if o != nil {
			taken = slices.Clone(l.always[o.st])
			for _, b := range l.bits[o.st] {
				if mask>>b&1 == 0 {
					continue
				}
				taken = append(taken, bitFields[b]...)
				if b == bALT || b == bSRQN || b == bCQN {
					wrong = append(wrong, mlx5.StatusBadParam)
				}
			}
			for _, name := range taken {
				v, _ := field(name).Bits(q)
				if r, ok := limits[name]; ok && (v < r.least || v > r.most) {
					wrong = append(wrong, r.status)
				}
				if name == "pm_state" && v == 2 {
					wrong = append(wrong, mlx5.StatusBadParam)
				}
				if name == "counter_set_id" && v != 0 {
					if set = m.usable(kCounter, uint32(v), uid); set == nil {
						wrong = append(wrong, mlx5.StatusBadRes)
					}
				}
			}
			if op == mlx5.OpINIT2RTR && o.st != 2 {
				ads := q.PrimaryAddressPath()
				if ads.VHCAPortNum() != 1 {
					wrong = append(wrong, mlx5.StatusBadParam)
				}
				if ads.RMAC4732() == 0 && ads.RMAC310() == 0 || slices.Max(ads.RGIDRip()) == 0 {
					wrong = append(wrong, mlx5.StatusBadParam)
				}
			}
		}
	}
	if _, ok := m.run(t, in, wrong...); !ok {
		return
	}
	if slices.Contains(taken, "counter_set_id") || l.to == 0 {
		if o.counter != nil {
			o.counter.users--
		}
		if o.counter = set; set != nil {
			set.users++
		}
	}
	if l.to == 0 {
		copy(o.context, o.fresh)
	}
	if op == mlx5.OpINIT2RTR && o.st != 2 { // fields without a name, and those of 128 bits
		ads := mlx5.QPC(o.context).PrimaryAddressPath()
		pkey, timeout := ads.PkeyIndex(), ads.AckTimeout()
		copy(ads, mlx5.RST2INITQPIn(in).QPC().PrimaryAddressPath())
		ads.SetPkeyIndex(pkey)
		ads.SetAckTimeout(timeout)
	}
	for _, name := range taken {
		v, _ := field(name).Bits(mlx5.RST2INITQPIn(in).QPC())
		put(o.context, name, v)
	}
	o.state = mlx5.State(l.to)
	put(o.context, "state", uint64(l.to))
}

func (m *model) query(t *rapid.T, uid uint16, id uint32) {
	o := m.owned(kQP, id, uid)
	if uid == 0 {
		o = m.things[kQP][id] // the kernel sees all
	}
	var wrong []mlx5.Status
	if !m.knows(uid) || o == nil {
		wrong = append(wrong, mlx5.StatusBadRes)
	}
	out, ok := m.run(t, about(mlx5.OpQueryQP, uid, id), wrong...)
	if !ok {
		return
	}
	got := mlx5.QueryQPOut(out).QPC()
	for _, f := range mlx5.LayoutOf("qpc").Fields {
		g, _ := f.Bits(got)
		if w, _ := f.Bits(o.context); g != w {
			t.Fatalf("QP %#x: %s is %#x, want %#x", id, f.Name, g, w)
		}
	}
	if string(got) != string(o.context) {
		t.Fatalf("QP %#x: context\n%x, want\n%x", id, got, o.context)
	}
}

func (m *model) fault(t *rapid.T) {
	_, id := m.pick(t, kQP)
	s := rapid.SampledFrom([]mlx5.State{mlx5.StateSQER, mlx5.StateSQER, mlx5.StateSQD, mlx5.StateErr, mlx5.StateRTR}).Draw(t, "state")
	o := m.things[kQP][id]
	want := o != nil && o.state == mlx5.StateRTS && s != mlx5.StateRTR
	if got := m.h.Fault(id, s); got != want {
		t.Fatalf("Fault(%#x, %v) = %v", id, s, got)
	}
	if want {
		o.state = s
		put(o.context, "state", uint64(s))
	}
}

// check compares what every command leaves alone.
func (m *model) check(t *rapid.T) {
	if err := audit(m.h); err != nil {
		t.Fatal(err)
	}
	want := [9]int64{}
	for k := range numKinds {
		at := map[kind]int{kPD: 0, kUAR: 1, kUmem: 2, kMKey: 3, kEQ: 4, kCQ: 5, kQP: 6, kCounter: 7}[k]
		want[at] = int64(len(m.things[k]))
	}
	want[8] = int64(len(m.contexts))
	if got := snapshot(m.h); got != want {
		t.Fatalf("%v objects, want %v", got, want)
	}
	for id, o := range m.things[kQP] {
		m.query(t, o.uid, id)
	}
}

// tearDown destroys everything, users first, and looks for what is left.
func (m *model) tearDown(t *rapid.T) {
	for _, k := range []kind{kQP, kCQ, kMKey, kUmem, kPD, kUAR, kEQ, kCounter} {
		for _, id := range slices.Sorted(maps.Keys(m.things[k])) {
			m.destroy(t, k, owner(m.things[k][id]), id)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(m.contexts)) {
		m.closeContext(t, uid)
	}
	if got := snapshot(m.h); got != [9]int64{} {
		t.Fatalf("left: %v", got)
	}
	if err := audit(m.h); err != nil {
		t.Fatal(err)
	}
}

func newModel(t *rapid.T, tally map[string]int) *model {
	h, err := New(Config{Profile: zeroProfile(), LogMaxQP: modelLogMaxQP, LogMaxUC: modelLogMaxUC})
	if err != nil {
		t.Fatal(err)
	}
	m := &model{h: h, contexts: map[uint16]int{}, tally: tally}
	for k := range m.things {
		m.things[k] = map[uint32]*thing{}
	}
	m.create(t, kEQ, 0)
	for range 2 {
		m.createContext(t)
	}
	for _, uid := range slices.Sorted(maps.Keys(m.contexts)) {
		for _, k := range []kind{kPD, kUAR, kUmem, kCounter, kCQ, kQP} {
			m.create(t, k, uid)
		}
	}
	return m
}

// Random sequences of commands: the device and the model agree on each status,
// on every QP context after each command, and in the end nothing is left.
func TestModel(t *testing.T) {
	if err := flag.Set("rapid.steps", "150"); err != nil { // 30 do not get far
		t.Fatal(err)
	}
	tally := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t, tally)
		actions := map[string]func(*rapid.T){
			"":                m.check,
			"create context":  m.createContext,
			"destroy context": m.destroyContext,
			"fault":           m.fault,
			"query": func(t *rapid.T) {
				uid, id := m.pick(t, kQP)
				m.query(t, uid, id)
			},
		}
		for k := range numKinds {
			actions[fmt.Sprint("create ", makes[k])] = func(t *rapid.T) { m.create(t, k, m.uid(t)) }
			actions[fmt.Sprint("destroy ", makes[k])] = func(t *rapid.T) {
				uid, id := m.pick(t, k)
				m.destroy(t, k, uid, id)
			}
		}
		for i := range 24 { // half of what happens
			actions[fmt.Sprint("modify ", i)] = m.modify
		}
		for i := range 6 {
			actions[fmt.Sprint("create a QP ", i)] = func(t *rapid.T) { m.create(t, kQP, m.uid(t)) }
		}
		t.Repeat(actions)
		m.tearDown(t)
	})
	for _, answer := range slices.Sorted(maps.Keys(tally)) {
		t.Log(answer, tally[answer])
	}
}
