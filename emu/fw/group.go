// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"slices"
	"sync"

	"devxlab.example/mlx5"
)

// groups is which queue pairs have joined which multicast groups.
type groups struct {
	mu      sync.RWMutex
	members map[[16]byte][]*qp
	total   int
}

// maxMembers bounds what a driver can make the device remember.
const maxMembers = 1 << 16

func (g *groups) join(gid [16]byte, q *qp) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if slices.Contains(g.members[gid], q) {
		return true
	}
	if g.total >= maxMembers {
		return false
	}
	if g.members == nil {
		g.members = map[[16]byte][]*qp{}
	}
	// A new list: who delivers goes through the old one.
	g.members[gid] = append(slices.Clone(g.members[gid]), q)
	g.total++
	return true
}

func (g *groups) leave(gid [16]byte, q *qp) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.members[gid], q)
	if i < 0 {
		return false
	}
	left := slices.Delete(slices.Clone(g.members[gid]), i, i+1)
	if g.members[gid] = left; len(left) == 0 {
		delete(g.members, gid)
	}
	g.total--
	return true
}

func (g *groups) leaveAll(q *qp) {
	g.mu.RLock()
	var in [][16]byte
	for gid, members := range g.members {
		if slices.Contains(members, q) {
			in = append(in, gid)
		}
	}
	g.mu.RUnlock()
	for _, gid := range in {
		g.leave(gid, q)
	}
}

func (g *groups) clear() {
	g.mu.Lock()
	g.members, g.total = nil, 0
	g.mu.Unlock()
}

func (h *HCA) attachMcg(c command) check {
	in := mlx5.AttachToMcgIn(c.in)
	q := h.qps.get(in.QPN())
	if q == nil || !q.own(c.uid) {
		return badQPN
	}
	defer q.mu.Unlock()
	gid := [16]byte(in.MulticastGID())
	if gid[0] != multicastByte && !mappedGroup(&gid) {
		return badGroupGID
	}
	if !h.groups.join(gid, q) {
		return objectLimit
	}
	return ok
}

// mappedGroup reports whether a GID is that of an IPv4 multicast address.
func mappedGroup(g *[16]byte) bool {
	return zero(g[:10]) && g[10] == 0xff && g[11] == 0xff && g[12]>>4 == 0xe
}

func (h *HCA) detachMcg(c command) check {
	in := mlx5.DetachFromMcgIn(c.in)
	q := h.qps.get(in.QPN())
	if q == nil || !q.own(c.uid) {
		return badQPN
	}
	defer q.mu.Unlock()
	if !h.groups.leave([16]byte(in.MulticastGID()), q) {
		return badGroupGID
	}
	return ok
}
