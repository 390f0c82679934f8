// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"slices"

	"devxlab.example/mlx5"
)

// matchTable is a flow table as frames meet it. The tables are made anew when a
// command changes one, so that frames need no lock.
type matchTable struct {
	entries []matchEntry // by index
	miss    *matchTable
}

type matchEntry struct {
	mask, value []byte
	action      uint16
	tables      []*matchTable
	tirs        []*resource
	counters    []*flowCounter
}

// maxHops ends a way through tables that goes round.
const maxHops = maxFlowLevel

// Layout of struct mlx5_ifc_fte_match_set_lyr_2_4_bits, in bytes. It is the
// first part of struct mlx5_ifc_fte_match_param_bits.
const (
	matchBytes     = 64
	matchSMAC      = 0
	matchEtherType = 6
	matchDMAC      = 8
	matchVLAN      = 14
	matchProto     = 16
	matchClass     = 17
	matchBits      = 18 // cvlan_tag, svlan_tag, frag, ip_version, tcp_flags
	matchTCP       = 20 // ports
	matchTTL       = 27
	matchUDP       = 28 // ports
	matchSrc       = 32
	matchDst       = 48

	matchTagged = 1 << 15
	matchFrag   = 1 << 13
	matchIPBit  = 9
)

// resteer makes the tables anew. The objects lock is held.
func (h *HCA) resteer() {
	made := map[*resource]*matchTable{}
	var build func(t *resource) *matchTable
	build = func(t *resource) *matchTable {
		if t == nil || !t.live.Load() {
			return nil
		}
		if m := made[t]; m != nil {
			return m
		}
		m := &matchTable{}
		made[t] = m
		ctx := mlx5.FlowTableContext(t.ctx)
		if ctx.TableMissAction() == missTable {
			m.miss = build(h.fts.get(ctx.TableMissID()))
		}
		indexes := make([]uint32, 0, len(t.flows))
		for i := range t.flows {
			indexes = append(indexes, i)
		}
		slices.Sort(indexes)
		for _, i := range indexes {
			f := t.flows[i]
			c := mlx5.FlowContext(f.ctx)
			e := matchEntry{value: c.MatchValue(), action: c.Action()}
			if g := h.fgs.get(c.GroupID()); g != nil {
				e.mask = g.ctx
			}
			for d := f.dests; len(d) >= destBytes; d = d[destBytes:] {
				switch to := mlx5.DestFormatStruct(d[:destBytes:destBytes]); to.DestinationType() {
				case toFlowTable:
					if next := build(h.fts.get(to.DestinationID())); next != nil {
						e.tables = append(e.tables, next)
					}
				case toTIR:
					if tir := h.tirs.get(to.DestinationID()); tir != nil {
						e.tirs = append(e.tirs, tir)
					}
				}
			}
			for _, id := range f.counters {
				e.counters = append(e.counters, h.flowCounters.get(id))
			}
			m.entries = append(m.entries, e)
		}
		return m
	}
	for way, id := range h.rootTable {
		var root *matchTable
		if id != 0 {
			root = build(h.fts.get(id))
		}
		h.steering[way].Store(root)
	}
}

// steerFrame takes a frame through the flow tables to its receive queues; one
// that the device itself sent to those of users only.
func (h *HCA) steerFrame(f []byte, own bool) {
	h.steering[wayIn].Load().walk(f, func(tir *resource) { h.deliverTIR(tir, f, own) })
}

// passes reports whether the flow tables of what the port sends let a frame out.
// What matches nothing goes out.
func (h *HCA) passes(f []byte) bool {
	return !h.steering[wayOut].Load().walk(f, func(*resource) {})
}

// walk takes a frame through tables, counts it, and calls to with each TIR that
// it comes to. It reports whether the frame was dropped on the way.
func (root *matchTable) walk(f []byte, to func(tir *resource)) (dropped bool) {
	if root == nil {
		return false
	}
	key := matchKey(f)
	hops := 0
	var visit func(t *matchTable)
	visit = func(t *matchTable) {
		for ; t != nil && hops < maxHops; t = t.miss {
			hops++
			for i := range t.entries {
				e := &t.entries[i]
				if !e.matches(&key) {
					continue
				}
				for _, c := range e.counters {
					c.packets.Add(1)
					c.octets.Add(uint64(len(f)))
				}
				if e.action&flowDrop != 0 {
					dropped = true
					return
				}
				for _, tir := range e.tirs {
					to(tir)
				}
				for _, next := range e.tables {
					visit(next)
				}
				return
			}
		}
	}
	visit(root)
	return dropped
}

func (e *matchEntry) matches(key *[matchBytes]byte) bool {
	for i, m := range e.mask {
		switch {
		case m == 0:
		case i >= len(e.value):
			return false
		case i < matchBytes && (key[i]^e.value[i])&m != 0, i >= matchBytes && e.value[i]&m != 0:
			return false
		}
	}
	return true
}

// matchKey is what tables look at of a frame.
func matchKey(f []byte) (k [matchBytes]byte) {
	var v layers
	ip := v.parse(f)
	copy(k[matchSMAC:], f[macBytes:2*macBytes])
	copy(k[matchDMAC:], f[:macBytes])
	binary.BigEndian.PutUint16(k[matchEtherType:], v.kind)
	bits := uint16(0)
	if v.vlan {
		bits |= matchTagged
		binary.BigEndian.PutUint16(k[matchVLAN:], v.tci)
	}
	if ip {
		h := f[v.l3:]
		k[matchProto] = v.proto
		if v.v6 {
			bits |= 6 << matchIPBit
			k[matchClass], k[matchTTL] = byte(binary.BigEndian.Uint16(h)>>4), h[7]
			copy(k[matchSrc:], h[8:24])
			copy(k[matchDst:], h[24:40])
		} else {
			bits |= 4 << matchIPBit
			k[matchClass], k[matchTTL] = h[1], h[8]
			copy(k[matchSrc+12:], h[12:16])
			copy(k[matchDst+12:], h[16:20])
		}
		if v.frag {
			bits |= matchFrag
		}
		if l4 := f[v.l4:]; !v.frag && len(l4) >= 4 {
			switch v.proto {
			case protoTCP:
				copy(k[matchTCP:matchTCP+4], l4)
				if len(l4) >= tcpBytes {
					bits |= binary.BigEndian.Uint16(l4[12:]) & 0x1ff
				}
			case protoUDP:
				copy(k[matchUDP:matchUDP+4], l4)
			}
		}
	}
	binary.BigEndian.PutUint16(k[matchBits:], bits)
	return k
}

// deliverTIR gives a frame to a TIR's receive queue.
func (h *HCA) deliverTIR(t *resource, f []byte, own bool) {
	t.mu.Lock()
	if !t.live.Load() || own && t.uid == 0 {
		t.mu.Unlock()
		return
	}
	c := mlx5.TIRC(t.ctx)
	var rq *resource
	var table *resource
	hash := uint32(0)
	switch c.DispType() {
	case tirDirect:
		rq = h.rqs.get(c.InlineRQN())
	case tirIndirect:
		table, hash = h.rqts.get(c.IndirectTable()), spread(c, f)
	}
	t.mu.Unlock()
	if table != nil {
		table.mu.Lock()
		if n := len(table.targets); table.live.Load() && n > 0 {
			rq = table.targets[hash%uint32(n)]
		}
		table.mu.Unlock()
	}
	if rq != nil {
		h.receiveOn(rq, f)
	}
}

// Hash functions and fields of a TIR (MLX5_RX_HASH_FN_*,
// MLX5_HASH_FIELD_SEL_*).
const (
	hashToeplitz = 2

	hashSrcIP = 1 << iota >> 1
	hashDstIP
	hashSport
	hashDport

	hashFields = 1<<30 - 1
)

// spread is the hash by which a TIR chooses among queues.
func spread(c mlx5.TIRC, f []byte) uint32 {
	var v layers
	if c.RXHashFn() != hashToeplitz || !v.parse(f) {
		return 0
	}
	sel := binary.BigEndian.Uint32(c.RXHashFieldSelectorOuter()) & hashFields
	var in []byte
	src, dst := f[v.l3+12:v.l3+16], f[v.l3+16:v.l3+20]
	if v.v6 {
		src, dst = f[v.l3+8:v.l3+24], f[v.l3+24:v.l3+40]
	}
	add := func(field uint32, b []byte) {
		if sel&field != 0 {
			in = append(in, b...)
		}
	}
	add(hashSrcIP, src)
	add(hashDstIP, dst)
	if !v.frag && (v.proto == protoTCP || v.proto == protoUDP) && len(f) >= v.l4+4 {
		add(hashSport, f[v.l4:v.l4+2])
		add(hashDport, f[v.l4+2:v.l4+4])
	}
	return toeplitz(c.RXHashToeplitzKey(), in)
}

func toeplitz(key, in []byte) (hash uint32) {
	if len(key) < len(in)+8 {
		return 0
	}
	w := binary.BigEndian.Uint64(key)
	for i, b := range in {
		for bit := 7; bit >= 0; bit-- {
			if b>>bit&1 != 0 {
				hash ^= uint32(w >> 32)
			}
			w <<= 1
		}
		w |= uint64(key[i+8])
	}
	return hash
}
