// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"sync/atomic"
	"time"

	"devxlab.example/mlx5"
)

// Congestion notification of RoCEv2 (annex A17.9.3 of the InfiniBand Architecture
// Specification; Zhu et al., Congestion Control for Large-Scale RDMA Deployments,
// SIGCOMM 2015): who receives packets that a switch has marked tells their sender,
// in a CNP. A card then sends less; the emulated device counts and sends on, since
// what its rate does is not public in enough detail to be asserted.
const (
	pktCNP = 0x81
	// cnpInterval is the least time between two CNPs of a queue pair (section 3.1 of
	// the paper; NICs have it as min_time_between_cnps).
	cnpInterval = 50 * time.Microsecond
	// cnpClass is what a ConnectX-4 Lx had in a CNP: DSCP 48, ECT(0). Its UDP source
	// port was 0.
	cnpClass = 0xc2
	cnpBytes = 16 // behind the BTH, reserved
	bthBECN  = 0x40
	ecnMask  = 3
	ecnCE    = 3
)

// congestion is what QUERY_CONG_STATISTICS reports.
type congestion struct {
	marked  atomic.Uint64 // packets that came with CE, for a queue pair that is connected
	sent    atomic.Uint64 // CNPs
	handled atomic.Uint64 // CNPs that came for such a queue pair
	ignored atomic.Uint64 // and others
}

// marked reports whether a switch has marked a packet.
func (p *packet) marked() bool {
	switch {
	case !p.v2:
		return false
	case p.v4:
		return p.ip[1]&ecnMask == ecnCE
	}
	return p.ip[1]>>4&ecnMask == ecnCE
}

// congested takes a marked packet: the sender hears of it, but not too often.
func (e *endpoint) congested(h *HCA) {
	h.cong.marked.Add(1)
	now := h.clock.Now()
	if e.cnpNext > now {
		return
	}
	e.cnpNext = now + cnpInterval
	h.cong.sent.Add(1)
	r := e.route
	r.tclass, r.sport = cnpClass, 0
	hd := header{op: pktCNP, qpn: e.remote, becn: true}
	frame, _ := r.frame(&hd, cnpBytes)
	e.cnp = r.seal(frame)
}

func (h *HCA) queryCongStatistics(c command) check {
	o, s := mlx5.QueryCongStatisticsOut(c.out), &h.cong
	read := func(v *atomic.Uint64) (high, low uint32) {
		n := v.Load()
		if mlx5.QueryCongStatisticsIn(c.in).Clear() {
			n = v.Swap(0)
		}
		return uint32(n >> 32), uint32(n)
	}
	for _, x := range []struct {
		value     *atomic.Uint64
		high, low func(uint32)
	}{
		{&s.marked, o.SetNpECNMarkedRoCEPacketsHigh, o.SetNpECNMarkedRoCEPacketsLow},
		{&s.sent, o.SetNpCNPSentHigh, o.SetNpCNPSentLow},
		{&s.handled, o.SetRpCNPHandledHigh, o.SetRpCNPHandledLow},
		{&s.ignored, o.SetRpCNPIgnoredHigh, o.SetRpCNPIgnoredLow},
	} {
		high, low := read(x.value)
		x.high(high)
		x.low(low)
	}
	return ok
}
