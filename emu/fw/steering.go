// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"slices"
	"sync/atomic"

	"devxlab.example/mlx5"
)

// span is a range of flow indexes of a table, both ends included.
type span struct {
	table      *resource
	first, end uint32
}

// flow is an entry of a flow table.
type flow struct {
	ctx   []byte
	dests []byte
	held  []*entry
	cost  int

	counters []uint32
}

// flowCounter counts the frames of the flow entries that name it.
type flowCounter struct {
	entry
	packets, octets atomic.Uint64
}

// direction is which frames a flow table is for (fs_flow_table_type in the
// driver's fs_core.h: FS_FT_NIC_RX, FS_FT_NIC_TX).
type direction uint8

const (
	wayIn         direction = 0 // what arrives at the port
	wayOut        direction = 1 // what send queues of frames send
	numDirections           = 2
)

// What an entry may do (MLX5_FLOW_CONTEXT_ACTION_*), and where it may send
// (MLX5_IFC_FLOW_DESTINATION_TYPE_*).
const (
	flowAllow   = 0x1
	flowDrop    = 0x2
	flowForward = 0x4
	flowCount   = 0x8

	toFlowTable = 0x1
	toTIR       = 0x2
)

// What happens to what matches nothing (MLX5_FLOW_TABLE_MISS_ACTION_*).
const (
	missDefault = 0
	missTable   = 1
)

// steer checks what all steering commands begin with.
func steer(other bool, vport uint16, tableType uint8) check {
	switch {
	case other || vport != 0:
		return badVPort
	case tableType >= numDirections:
		return badTableType
	}
	return ok
}

// tableOf returns a flow table of a direction, nil if there is none: a number
// names it together with its type.
func (h *HCA) tableOf(id uint32, way direction) *resource {
	if t := h.fts.get(id); t != nil && t.live.Load() && t.way == way {
		return t
	}
	return nil
}

func (u *holding) miss(h *HCA, ctx mlx5.FlowTableContext, way direction) {
	switch ctx.TableMissAction() {
	case missDefault:
	case missTable:
		u.hold(entryOf(h.tableOf(ctx.TableMissID(), way)), true, badTable)
	default:
		u.want(false, badMiss)
	}
}

func (h *HCA) createFlowTable(c command) check {
	in := mlx5.CreateFlowTableIn(c.in)
	ctx := in.FlowTableContext()
	u := holding{uid: c.uid, refused: steer(in.OtherVPort(), in.VPortNumber(), in.TableType())}
	u.want(!ctx.ReformatEn() && !ctx.DecapEn() && !ctx.SwOwner() && !ctx.TerminationTable(), badOffload)
	u.want(ctx.LogSize() <= logMaxFlowTable && ctx.Level() <= maxFlowLevel, badTableSize)
	u.miss(h, ctx, direction(in.TableType()))
	return h.make(c, h.fts, &u, ctx, func(_ uint32, r *resource) { r.flows, r.way = map[uint32]*flow{}, direction(in.TableType()) })
}

// MODIFY_FLOW_TABLE's fields (MLX5_MODIFY_FLOW_TABLE_*).
const modifyMiss = 1

func (h *HCA) modifyFlowTable(c command) check {
	in := mlx5.ModifyFlowTableIn(c.in)
	if refused := steer(in.OtherVPort(), in.VPortNumber(), in.TableType()); refused != ok {
		return refused
	}
	if in.ModifyFieldSelect() != modifyMiss {
		return badFieldSelect
	}
	r := h.tableOf(in.TableID(), direction(in.TableType()))
	if r == nil || !r.own(c.uid) {
		return badTable
	}
	src, dst := in.FlowTableContext(), mlx5.FlowTableContext(r.ctx)
	r.mu.Unlock() // its miss table may be itself; the objects lock keeps it
	u := holding{uid: c.uid}
	u.want(src.TableMissAction() != missTable || src.TableMissID() != in.TableID(), badMiss)
	u.miss(h, src, r.way)
	if u.refused != ok {
		return u.refused
	}
	unuseAll(r.held)
	r.held = u.held
	dst.SetTableMissAction(src.TableMissAction())
	dst.SetTableMissID(src.TableMissID())
	return ok
}

// destroyFlowTable refuses one that has groups: they use it. The root may go;
// then there is none.
func (h *HCA) destroyFlowTable(c command) check {
	in := mlx5.DestroyFlowTableIn(c.in)
	if refused := steer(in.OtherVPort(), in.VPortNumber(), in.TableType()); refused != ok {
		return refused
	}
	if h.tableOf(in.TableID(), direction(in.TableType())) == nil {
		return badTable
	}
	refused := destroy(h, c, h.fts, in.TableID(), badTable, func(h *HCA, r *resource) {
		unuseAll(r.held)
		r.held, r.ctx, r.flows = nil, nil, nil
	})
	if refused == inUse {
		return tableInUse // not what other objects answer
	}
	if root := &h.rootTable[in.TableType()]; refused == ok && *root == in.TableID() {
		*root = 0
	}
	return refused
}

func (h *HCA) setFlowTableRoot(c command) check {
	in := mlx5.SetFlowTableRootIn(c.in)
	if refused := steer(in.OtherVPort() || in.TableOfOtherVPort(), in.VPortNumber(), in.TableType()); refused != ok {
		return refused
	}
	switch in.OpMod() {
	case 0: // set
		if r := h.tableOf(in.TableID(), direction(in.TableType())); r == nil || !r.own(c.uid) {
			return badTable
		} else {
			r.mu.Unlock()
		}
		if in.UnderlayQPN() == 0 {
			h.rootTable[in.TableType()] = in.TableID()
		}
	case 1: // reset
		h.rootTable[in.TableType()] = 0
	default:
		return badOpMod
	}
	return ok
}

func (h *HCA) createFlowGroup(c command) check {
	in := mlx5.CreateFlowGroupIn(c.in)
	u := holding{uid: c.uid, refused: steer(in.OtherVPort(), in.VPortNumber(), in.TableType())}
	u.want(in.GroupType() == 0, badOffload)
	t := h.tableOf(in.TableID(), direction(in.TableType()))
	u.hold(entryOf(t), false, badTable)
	s := span{t, in.StartFlowIndex(), in.EndFlowIndex()}
	if u.refused == ok {
		u.want(s.first <= s.end && s.end < 1<<mlx5.FlowTableContext(t.ctx).LogSize(), badFlowRange)
		u.want(!h.overlaps(s), badFlowRange)
	}
	return h.make(c, h.fgs, &u, in.MatchCriteria(), func(id uint32, r *resource) { r.group = s })
}

// overlaps reports whether a group of the same table has some of a range.
func (h *HCA) overlaps(s span) bool {
	found := false
	h.fgs.each(func(_ uint32, g *resource) {
		found = found || g.live.Load() && g.group.table == s.table && g.group.first <= s.end && s.first <= g.group.end
	})
	return found
}

func (h *HCA) destroyFlowGroup(c command) check {
	in := mlx5.DestroyFlowGroupIn(c.in)
	if refused := steer(in.OtherVPort(), in.VPortNumber(), in.TableType()); refused != ok {
		return refused
	}
	g := h.fgs.get(in.GroupID())
	if g == nil || !g.live.Load() || g.group.table != h.tableOf(in.TableID(), direction(in.TableType())) {
		return badGroup
	}
	for i := range g.group.table.flows {
		if i >= g.group.first && i <= g.group.end {
			return inUse
		}
	}
	return destroy(h, c, h.fgs, in.GroupID(), badGroup, func(h *HCA, r *resource) {
		unuseAll(r.held)
		r.held, r.ctx, r.group = nil, nil, span{}
	})
}

// Fields of an entry that SET_FLOW_TABLE_ENTRY modifies
// (MLX5_SET_FTE_MODIFY_ENABLE_MASK_*).
const (
	flowModifyAction = 1 << 0
	flowModifyTag    = 1 << 1
	flowModifyDests  = 1 << 2
)

const destBytes = mlx5.DestFormatStructSize

func (h *HCA) setFlow(c command) check {
	in := mlx5.SetFTEIn(c.in)
	ctx := in.FlowContext()
	if refused := steer(in.OtherVPort(), in.VPortNumber(), in.TableType()); refused != ok {
		return refused
	}
	t := h.tableOf(in.TableID(), direction(in.TableType()))
	if t == nil || !t.own(c.uid) {
		return badTable
	}
	t.mu.Unlock() // the objects lock keeps it
	old := t.flows[in.FlowIndex()]
	switch {
	case in.OpMod() > 1:
		return badOpMod
	case in.OpMod() == 1 && old == nil, in.OpMod() == 0 && old != nil:
		return badFlow
	case in.OpMod() == 1 && in.ModifyEnableMask()&^(flowModifyAction|flowModifyTag|flowModifyDests) != 0:
		return badFieldSelect
	}
	g := h.fgs.get(ctx.GroupID())
	if g == nil || !g.live.Load() || g.group.table != t {
		return badGroup
	}
	if i := in.FlowIndex(); i < g.group.first || i > g.group.end {
		return badFlowRange
	}
	u := holding{uid: c.uid}
	u.want(ctx.Action()&(flowAllow|flowDrop|flowForward) != 0 && ctx.Action()&^(flowAllow|flowDrop|flowForward|flowCount) == 0 && !ctx.ExtendedDestination(), badFlowAction)
	list := h.destinations(&u, t, in, c.in[mlx5.SetFTEInSize:])
	counters := h.counted(&u, ctx, list)
	if u.refused != ok {
		unuseAll(u.held)
		return u.refused
	}
	if old != nil {
		unuseAll(old.held)
		h.reserve(-old.cost)
	}
	t.flows[in.FlowIndex()] = &flow{slices.Clone([]byte(ctx)), slices.Clone(c.in[mlx5.SetFTEInSize:][:int(ctx.DestinationListSize())*destBytes]), u.held, cost(c.in), counters}
	return ok
}

// destinations collects where an entry sends. A table must lie on a higher
// level, so that nothing goes round, unless the driver says that it knows. It
// returns what follows them in the list.
func (h *HCA) destinations(u *holding, t *resource, in mlx5.SetFTEIn, list []byte) (rest []byte) {
	ctx := in.FlowContext()
	n := int(ctx.DestinationListSize())
	u.want(n <= 1<<logMaxDestination && n*destBytes <= len(list), badFlowAction)
	u.want(n > 0 == (ctx.Action()&flowForward != 0), badFlowAction)
	for i := 0; i < n && u.refused == ok; i++ {
		d := mlx5.DestFormatStruct(list[i*destBytes:])
		switch d.DestinationType() {
		case toFlowTable:
			next := h.tableOf(d.DestinationID(), t.way)
			u.hold(entryOf(next), true, badTable)
			if u.refused == ok && !in.IgnoreFlowLevel() {
				u.want(mlx5.FlowTableContext(next.ctx).Level() > mlx5.FlowTableContext(t.ctx).Level(), badFlowLevel)
			}
		case toTIR:
			u.want(t.way == wayIn, badFlowAction)
			u.holdAny(entryOf(h.tirs.get(d.DestinationID())), badTIRN) // a raw packet queue pair's (mlx5_ib fs.c)
		default:
			u.want(false, badFlowAction)
		}
	}
	return list[min(n*destBytes, len(list)):]
}

// counted collects the flow counters of an entry, which stand behind its
// destinations (mlx5_cmd_set_fte).
func (h *HCA) counted(u *holding, ctx mlx5.FlowContext, list []byte) (ids []uint32) {
	n := int(ctx.FlowCounterListSize())
	u.want(n <= 1<<logMaxFlowCounter && n*mlx5.FlowCounterListSize <= len(list), badFlowAction)
	u.want(n > 0 == (ctx.Action()&flowCount != 0), badFlowAction)
	for i := 0; i < n && u.refused == ok; i++ {
		id := mlx5.FlowCounterList(list[i*mlx5.FlowCounterListSize:]).FlowCounterID()
		u.holdAny(entryOf(h.flowCounters.get(id)), badFlowCounter) // a user's, in the kernel's entry (mlx5_ib fs.c)
		ids = append(ids, id)
	}
	return ids
}

func (h *HCA) allocFlowCounter(c command) check {
	in := mlx5.AllocFlowCounterIn(c.in)
	if in.FlowCounterBulk() != 0 || in.FlowCounterBulkLogSize() != 0 {
		return badOffload
	}
	id, f, room := h.flowCounters.alloc()
	if !room {
		return objectLimit
	}
	f.packets.Store(0)
	f.octets.Store(0)
	return h.born(c, id, &f.entry)
}

func (h *HCA) deallocFlowCounter(c command) check {
	return destroy[flowCounter](h, c, h.flowCounters, mlx5.DeallocFlowCounterIn(c.in).FlowCounterID(), badFlowCounter, nil)
}

// trafficCounterBytes is the size of a struct mlx5_ifc_traffic_counter_bits.
const trafficCounterBytes = 16

func (h *HCA) queryFlowCounter(c command) check {
	in := mlx5.QueryFlowCounterIn(c.in)
	f := h.flowCounters.get(in.FlowCounterID())
	if f == nil || !f.see(c.uid) {
		return badFlowCounter
	}
	defer f.mu.Unlock()
	out := mlx5.QueryFlowCounterOut(c.out).FlowStatistics()
	switch {
	case in.NumOfCounters() > 1:
		return badOffload
	case len(out) < trafficCounterBytes:
		return shortOut
	}
	read := (*atomic.Uint64).Load
	if in.Clear() {
		read = func(v *atomic.Uint64) uint64 { return v.Swap(0) }
	}
	binary.BigEndian.PutUint64(out, read(&f.packets))
	binary.BigEndian.PutUint64(out[8:], read(&f.octets))
	return ok
}

func (h *HCA) deleteFlow(c command) check {
	in := mlx5.DeleteFTEIn(c.in)
	if refused := steer(in.OtherVPort(), in.VPortNumber(), in.TableType()); refused != ok {
		return refused
	}
	t := h.tableOf(in.TableID(), direction(in.TableType()))
	if t == nil || !t.own(c.uid) {
		return badTable
	}
	t.mu.Unlock()
	f := t.flows[in.FlowIndex()]
	if f == nil {
		return badFlow
	}
	unuseAll(f.held)
	h.reserve(-f.cost)
	delete(t.flows, in.FlowIndex())
	return ok
}
