// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"slices"

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
}

// Steering tables that the device has (fs_flow_table_type in the driver's
// fs_core.h): what arrives at the port.
const tableNICRX = 0

// What an entry may do (MLX5_FLOW_CONTEXT_ACTION_*), and where it may send
// (MLX5_IFC_FLOW_DESTINATION_TYPE_*).
const (
	flowAllow   = 0x1
	flowDrop    = 0x2
	flowForward = 0x4

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
	case tableType != tableNICRX:
		return badTableType
	}
	return ok
}

func (u *holding) miss(h *HCA, ctx mlx5.FlowTableContext) {
	switch ctx.TableMissAction() {
	case missDefault:
	case missTable:
		u.hold(entryOf(h.fts.get(ctx.TableMissID())), true, badTable)
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
	u.miss(h, ctx)
	return h.make(c, h.fts, &u, ctx, func(_ uint32, r *resource) { r.flows = map[uint32]*flow{} })
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
	r := find(h.fts, in.TableID(), kindPlain, c.uid)
	if r == nil {
		return badTable
	}
	src, dst := in.FlowTableContext(), mlx5.FlowTableContext(r.ctx)
	r.mu.Unlock() // its miss table may be itself; the objects lock keeps it
	u := holding{uid: c.uid}
	u.want(src.TableMissAction() != missTable || src.TableMissID() != in.TableID(), badMiss)
	u.miss(h, src)
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
	refused := destroy(h, c, h.fts, in.TableID(), badTable, func(h *HCA, r *resource) {
		unuseAll(r.held)
		r.held, r.ctx, r.flows = nil, nil, nil
	})
	if refused == inUse {
		return tableInUse // not what other objects answer
	}
	if refused == ok && h.rootTable == in.TableID() {
		h.rootTable = 0
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
		if r := find(h.fts, in.TableID(), kindPlain, c.uid); r == nil {
			return badTable
		} else {
			r.mu.Unlock()
		}
		if in.UnderlayQPN() == 0 {
			h.rootTable = in.TableID()
		}
	case 1: // reset
		h.rootTable = 0
	default:
		return badOpMod
	}
	return ok
}

func (h *HCA) createFlowGroup(c command) check {
	in := mlx5.CreateFlowGroupIn(c.in)
	u := holding{uid: c.uid, refused: steer(in.OtherVPort(), in.VPortNumber(), in.TableType())}
	u.want(in.GroupType() == 0, badOffload)
	t := h.fts.get(in.TableID())
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
	if g == nil || !g.live.Load() || g.group.table != h.fts.get(in.TableID()) {
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
	t := h.fts.get(in.TableID())
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
	u.want(ctx.Action() != 0 && ctx.Action()&^(flowAllow|flowDrop|flowForward) == 0 && !ctx.ExtendedDestination() && ctx.FlowCounterListSize() == 0, badFlowAction)
	h.destinations(&u, t, in, c.in[mlx5.SetFTEInSize:])
	if u.refused != ok {
		unuseAll(u.held)
		return u.refused
	}
	if old != nil {
		unuseAll(old.held)
		h.reserve(-old.cost)
	}
	t.flows[in.FlowIndex()] = &flow{slices.Clone([]byte(ctx)), slices.Clone(c.in[mlx5.SetFTEInSize:][:int(ctx.DestinationListSize())*destBytes]), u.held, cost(c.in)}
	return ok
}

// destinations collects where an entry sends. A table must lie on a higher
// level, so that nothing goes round, unless the driver says that it knows.
func (h *HCA) destinations(u *holding, t *resource, in mlx5.SetFTEIn, list []byte) {
	ctx := in.FlowContext()
	n := int(ctx.DestinationListSize())
	u.want(n <= 1<<logMaxDestination && n*destBytes <= len(list), badFlowAction)
	u.want(n > 0 == (ctx.Action()&flowForward != 0), badFlowAction)
	for i := 0; i < n && u.refused == ok; i++ {
		d := mlx5.DestFormatStruct(list[i*destBytes:])
		switch d.DestinationType() {
		case toFlowTable:
			next := h.fts.get(d.DestinationID())
			u.hold(entryOf(next), true, badTable)
			if u.refused == ok && !in.IgnoreFlowLevel() {
				u.want(mlx5.FlowTableContext(next.ctx).Level() > mlx5.FlowTableContext(t.ctx).Level(), badFlowLevel)
			}
		case toTIR:
			u.holdAny(entryOf(h.tirs.get(d.DestinationID())), badTIRN) // a raw packet queue pair's (mlx5_ib fs.c)
		default:
			u.want(false, badFlowAction)
		}
	}
}

func (h *HCA) deleteFlow(c command) check {
	in := mlx5.DeleteFTEIn(c.in)
	if refused := steer(in.OtherVPort(), in.VPortNumber(), in.TableType()); refused != ok {
		return refused
	}
	t := h.fts.get(in.TableID())
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
