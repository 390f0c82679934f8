// SPDX-License-Identifier: BSD-2-Clause

package fw

import "devxlab.example/mlx5"

// queryHCACap answers with as much of the page as there is room for: programs
// know shorter ones (rdma-core's tests ask for 2048 bytes).
func (h *HCA) queryHCACap(c command) check {
	whole := command{in: c.in, out: make([]byte, capAnswer+capBytes), uid: c.uid}
	refused := h.queryCapPage(whole)
	if refused == ok {
		copy(c.out, whole.out)
	}
	return refused
}

const capAnswer = 16 // of QUERY_HCA_CAP, in front of the page

func (h *HCA) queryCapPage(c command) check {
	if h.driver != nil {
		return h.driver.query(mlx5.QueryHCACapIn(c.in), mlx5.QueryHCACapOut(c.out).Capability())
	}
	switch t := mlx5.CapType(mlx5.QueryHCACapIn(c.in).OpMod() >> 1); {
	case t == mlx5.CapGeneral:
		h.generalCaps(mlx5.HCACap(mlx5.QueryHCACapOut(c.out).Capability()))
	case t == mlx5.CapRoCE:
		roceCaps(mlx5.RoCECap(mlx5.QueryHCACapOut(c.out).Capability()))
	case t == capAtomic && h.mem != nil:
		atomicCaps(mlx5.AtomicCaps(mlx5.QueryHCACapOut(c.out).Capability()))
	default:
		return badCapPage
	}
	return ok
}

// generalCaps advertises what the device implements and nothing else.
func (h *HCA) generalCaps(p mlx5.HCACap) {
	p.SetLogMaxQP(h.logMaxQP)
	p.SetLogMaxQPSz(logMaxQPSize)
	p.SetLogMaxCQ(logMaxCQ)
	p.SetLogMaxCQSz(logMaxCQSize)
	p.SetLogMaxEQ(6)
	p.SetMaxNumEQS(64)
	p.SetLogMaxPD(logMaxPD)
	p.SetLogMaxMKey(logMaxMKey)
	p.SetLogMaxUmem(logMaxUmem)
	p.SetLogMaxUCTX(h.logMaxUC)
	p.SetLogMaxMsg(logMaxMsg)
	p.SetLogMaxRaReqQP(logMaxRA)
	p.SetLogMaxRaResQP(logMaxRA)
	p.SetMaxWQESzSQ(1024)
	p.SetMaxWQESzRQ(512)
	p.SetMaxQPCnt(maxCounters)
	p.SetAtomic(h.mem != nil)
	p.SetCCQueryAllowed(true)
	p.SetLocalCaAckDelay(16)
	p.SetNumPorts(numPorts)
	p.SetPortType(1) // Ethernet
	p.SetRoCE(true)
	p.SetRC(true)
	p.SetUC(true)
	p.SetCQEVersion(1)
	p.SetUAR4k(true)
	p.SetLogUARPageSz(0)
}

func roceCaps(p mlx5.RoCECap) {
	p.SetL3Type(6) // IPv4 and IPv6
	p.SetRoCEVersion(5)
	p.SetRRoCEDestUDPPort(4791)
	p.SetRRoCEMinSrcUDPPort(0xc000)
	p.SetRRoCEMaxSrcUDPPort(0xffff)
	p.SetRoCEAddressTableSize(roceTableSize)
}

// queryAdapter answers with the identity of the reference card, a ConnectX-6
// Dx MCX623106AN-CDA.
func (h *HCA) queryAdapter(c command) check {
	p := mlx5.QueryAdapterOut(c.out).QueryAdapterStruct()
	p.SetIeeeVendorID(0x2c9)
	p.SetVSDVendorID(0x15b3)
	copy(p.VSDContdPSID(), "MT_0000000359")
	return ok
}

func (h *HCA) queryISSI(c command) check {
	o := mlx5.QueryISSIOut(c.out)
	o.SetCurrentISSI(1)
	if h.driver != nil {
		h.boot.mu.Lock()
		o.SetCurrentISSI(h.boot.issi)
		h.boot.mu.Unlock()
	}
	o.SetSupportedISSIDw0(3) // ISSI 0 and 1
	return ok
}

func (h *HCA) setRoCEAddress(c command) check {
	in := mlx5.SetRoCEAddressIn(c.in)
	if int(in.RoCEAddressIndex()) >= roceTableSize {
		return badRoCEIndex
	}
	h.roceMu.Lock()
	copy(h.roce[in.RoCEAddressIndex()][:], in.RoCEAddress())
	h.roceUsed = max(h.roceUsed, int(in.RoCEAddressIndex())+1)
	h.roceMu.Unlock()
	return ok
}

func (h *HCA) queryRoCEAddress(c command) check {
	in := mlx5.QueryRoCEAddressIn(c.in)
	if int(in.RoCEAddressIndex()) >= roceTableSize {
		return badRoCEIndex
	}
	h.roceMu.Lock()
	copy(mlx5.QueryRoCEAddressOut(c.out).RoCEAddress(), h.roce[in.RoCEAddressIndex()][:])
	h.roceMu.Unlock()
	return ok
}
