// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"slices"
	"sync"

	"devxlab.example/mlx5"
)

const capBytes = 4096 // of a capability page (union hca_cap_union)

// Capability pages beyond those of package mlx5 (enum mlx5_cap_type in
// linux/mlx5/device.h).
const (
	capEth       mlx5.CapType = 1
	capAtomic    mlx5.CapType = 3
	capFlowTable mlx5.CapType = 7
	capQoS       mlx5.CapType = 0xc
	capDevMem    mlx5.CapType = 0xf
)

// capPage is what the device can do and what it was told to.
type capPage struct {
	layout    string
	max, cur  []byte
	adaptable []string // fields that SET_HCA_CAP may change, to at most their maximum
}

// driverCaps are the pages of a function with a driver.
type driverCaps struct {
	mu    sync.Mutex
	pages map[mlx5.CapType]*capPage
}

// Limits that only a driver meets. Those that ibv_devinfo -v shows are the
// reference card's.
const (
	logMaxSRQ         = 23
	logMaxSRQSize     = 15
	logMaxXRCD        = 10
	logMaxTD          = 8
	logMaxTIS         = 10
	logMaxTIR         = 10
	logMaxSQ          = 13
	logMaxRQ          = 23
	logMaxRQT         = 19
	logMaxRQTSize     = 11
	logMaxUCList      = 7
	logMaxMCList      = 11
	logMaxVLANList    = 12
	maxTISPerSQ       = 1
	logMaxFlowTables  = 12
	logMaxFlowTable   = 20
	maxFlowLevel      = 128 // Linux 6.12 goes up to 66
	logMaxDestination = 8
	logMaxFlow        = 20
	maxFlowCounters   = 1 << 15
	meterRegister     = 1 << 3 // metadata registers that flow meters would colour, were there any
	logMaxFlowCounter = 2      // of an entry
	maxWQSize         = 15
	logMaxKLMList     = 16

	// The timer's frequency: it counts nanoseconds.
	frequencyKHz = 1000000
)

func newDriverCaps(h *HCA) *driverCaps {
	d := &driverCaps{pages: map[mlx5.CapType]*capPage{}}
	page := func(t mlx5.CapType, layout string, adaptable ...string) []byte {
		p := &capPage{layout: layout, max: make([]byte, capBytes), adaptable: adaptable}
		d.pages[t] = p
		return p.max
	}
	h.driverGeneralCaps(mlx5.HCACap(page(mlx5.CapGeneral, "cmd_hca_cap",
		"log_max_qp", "log_uar_page_sz", "roce", "pkey_table_size", "log_max_current_uc_list", "cmdif_checksum")))
	roceCaps(mlx5.RoCECap(page(mlx5.CapRoCE, "roce_cap")))
	ethCaps(mlx5.PerProtocolNetworkingOffloadCaps(page(capEth, "per_protocol_networking_offload_caps")))
	atomicCaps(mlx5.AtomicCaps(page(capAtomic, "atomic_caps")))
	flowTableCaps(mlx5.FlowTableNICCap(page(capFlowTable, "flow_table_nic_cap")))
	// Of device memory the device has none, and says so: rdma-core asks whether or
	// not the general page has a bit for it (dr_devx.c, dr_devx_query_device).
	page(capDevMem, "device_mem_cap")
	mlx5.QosCap(page(capQoS, "qos_cap")).SetFlowMeterRegID(meterRegister)
	for _, p := range d.pages {
		p.cur = bytes.Clone(p.max)
	}
	return d
}

func (h *HCA) driverGeneralCaps(p mlx5.HCACap) {
	h.generalCaps(p)
	p.SetUAR4k(false) // for hosts with larger pages, which would want num_of_uars_per_page too
	p.SetLogMaxEQSz(logMaxEQSize)
	p.SetLogMaxSRQ(logMaxSRQ)
	p.SetLogMaxSRQSz(logMaxSRQSize)
	p.SetLogMaxXRCD(logMaxXRCD)
	p.SetLogMaxRMP(logMaxSRQ)
	p.SetLogMaxTransportDomain(logMaxTD)
	p.SetLogMaxTIS(logMaxTIS)
	p.SetLogMaxTIR(logMaxTIR)
	p.SetLogMaxSQ(logMaxSQ)
	p.SetLogMaxRQ(logMaxRQ)
	p.SetLogMaxWQSz(maxWQSize)
	p.SetMaxFlowCounter150(maxFlowCounters)
	p.SetLogMaxRQT(logMaxRQT)
	p.SetLogMaxRQTSize(logMaxRQTSize)
	p.SetLogMaxTISPerSQ(maxTISPerSQ)
	p.SetLogMaxCurrentUCList(logMaxUCList)
	p.SetLogMaxCurrentMcList(logMaxMCList)
	p.SetLogMaxVLANList(logMaxVLANList)
	p.SetLogMaxKLMListSize(logMaxKLMList)
	p.SetUMRModifyEntitySizeDisabled(true) // no memory keys in stock at probe
	p.SetImaicl(true)                      // memory windows
	p.SetXRC(true)
	p.SetEthNetOffloads(true)
	p.SetNICFlowTable(true)
	p.SetCQModeration(true)
	p.SetCQResize(true)
	p.SetCompactAddressVector(true)
	p.SetBlockLbMc(true)
	p.SetVPortCounters(true)
	p.SetOutOfSeqCnt(true)
	p.SetRetransmissionQCounters(true)
	p.SetEnhancedErrorQCounters(true)
	p.SetRoCEAccl(true)
	p.SetPcamReg(true)
	p.SetMcamReg(true)
	p.SetDeviceFrequencyKhz(frequencyKHz)
	p.SetLogPgSz(12)
	p.SetFastTeardown(true) // how a driver that is shut down lets go: it waits for no command
	p.SetForceTeardown(true)
	p.SetUARSz(5) // MiB, as log2: BAR 0 has 32
	p.SetLogBfRegSize(9)
}

// ethCaps is the least that the driver makes a netdev from (mlx5e_probe and
// is_eth_supported in dev.c). Frames have nowhere to go yet.
func ethCaps(p mlx5.PerProtocolNetworkingOffloadCaps) {
	p.SetCsumCap(true)
	p.SetVLANCap(true)
	p.SetWQEVLANInsert(true)
	p.SetSelfLbEnModifiable(true)
	p.SetMaxLSOCap(18) // max_tso 262144
	p.SetWQEInlineMode(2)
	p.SetRSSIndTblCap(logMaxRQTSize)
}

// atomicCaps is compare-and-swap and fetch-and-add of 8 bytes.
func atomicCaps(p mlx5.AtomicCaps) {
	p.SetAtomicOperations(3)
	p.SetAtomicSizeQP(8)
	p.SetAtomicReq8bEndiannessMode(1)
}

func flowTableCaps(p mlx5.FlowTableNICCap) {
	for _, d := range []mlx5.FlowTablePropLayout{p.FlowTablePropertiesNICReceive(), p.FlowTablePropertiesNICTransmit()} {
		directionCaps(d)
	}
}

// directionCaps is what flow tables of one direction can do.
func directionCaps(d mlx5.FlowTablePropLayout) {
	d.SetFtSupport(true)
	d.SetFlowCounter(true)
	d.SetFlowModifyEn(true)
	d.SetModifyRoot(true)
	d.SetIdentifiedMissTableMode(true)
	d.SetFlowTableModify(true)
	d.SetIgnoreFlowLevel(true)
	d.SetLogMaxFtSize(logMaxFlowTable)
	d.SetMaxFtLevel(maxFlowLevel)
	d.SetLogMaxFtNum(logMaxFlowTables)
	d.SetLogMaxFlowCounter(logMaxFlowCounter)
	d.SetLogMaxDestination(logMaxDestination)
	d.SetLogMaxFlow(logMaxFlow)
	for _, f := range []mlx5.FlowTableFieldsSupported{d.FtFieldSupport(), d.FtFieldBitmaskSupport()} {
		f.SetOuterDMAC(true)
		f.SetOuterSMAC(true)
		f.SetOuterEtherType(true)
		f.SetOuterIPVersion(true)
		f.SetOuterFirstVid(true)
		f.SetOuterSIP(true)
		f.SetOuterDIP(true)
		f.SetOuterIPProtocol(true)
		f.SetOuterTCPDport(true)
		f.SetOuterTCPSport(true)
		f.SetOuterUDPDport(true)
		f.SetOuterUDPSport(true)
	}
}

// query copies a page, as it is or as it could be.
func (d *driverCaps) query(in mlx5.QueryHCACapIn, out []byte) check {
	if in.OtherFunction() || in.FunctionID() != 0 {
		return badFunction
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pages[mlx5.CapType(in.OpMod()>>1)]
	if p == nil {
		return badCapPage
	}
	if in.OpMod()&1 != 0 {
		copy(out, p.cur)
	} else {
		copy(out, p.max)
	}
	return ok
}

func (h *HCA) setHCACap(c command) check {
	in := mlx5.SetHCACapIn(c.in)
	if in.OtherFunction() || in.FunctionID() != 0 {
		return badFunction
	}
	if h.phaseNow() != phaseEnabled {
		return badPhase
	}
	d := h.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pages[mlx5.CapType(in.OpMod()>>1)]
	if p == nil || in.OpMod()&1 != 0 {
		return badCapPage
	}
	set := in.Capability()
	for _, f := range mlx5.LayoutOf(p.layout).Fields {
		now, plain := f.Bits(p.cur)
		want, _ := f.Bits(set)
		most, _ := f.Bits(p.max)
		if plain && want != now && (want > most || !slices.Contains(p.adaptable, f.Name)) {
			return badCapValue
		}
	}
	copy(p.cur, set)
	if p.layout == "cmd_hca_cap" {
		h.qps.restrict(1 << mlx5.HCACap(p.cur).LogMaxQP())
	}
	return ok
}
