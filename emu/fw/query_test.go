// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"testing"

	"devxlab.example/mlx5"
)

// What the capabilities say is what the device does.
func TestCapabilities(t *testing.T) {
	r := newRig(t, Config{LogMaxQP: 9, LogMaxUC: 5})
	for _, current := range []bool{false, true} {
		out := r.must(capQuery(mlx5.QueryHCACapOpMod(mlx5.CapGeneral, current)))
		c := mlx5.HCACap(mlx5.QueryHCACapOut(out).Capability())
		for _, tt := range []struct {
			what      string
			got, want int
		}{
			{"log_max_qp", int(c.LogMaxQP()), logOf(int(r.h.qps.limit))},
			{"log_max_uctx", int(c.LogMaxUCTX()), logOf(int(r.h.uctxs.limit))},
			{"log_max_pd", int(c.LogMaxPD()), logOf(int(r.h.pds.limit))},
			{"log_max_umem", int(c.LogMaxUmem()), logOf(int(r.h.umems.limit))},
			{"log_max_mkey", int(c.LogMaxMKey()), logOf(int(r.h.mkeys.limit))},
			{"log_max_cq", int(c.LogMaxCQ()), logOf(int(r.h.cqs.limit))},
			{"max_num_eqs", int(c.MaxNumEQS()), int(r.h.eqs.limit)},
			{"log_max_eq", int(c.LogMaxEQ()), logOf(int(r.h.eqs.limit))},
			{"max_qp_cnt", int(c.MaxQPCnt()), int(r.h.counters.limit)},
			{"num_ports", int(c.NumPorts()), 1},
			{"log_max_qp_sz", int(c.LogMaxQPSz()), 15},
			{"log_max_cq_sz", int(c.LogMaxCQSz()), 22},
			{"log_max_msg", int(c.LogMaxMsg()), 30},
			{"log_max_ra_req_qp", int(c.LogMaxRaReqQP()), 4},
			{"log_max_ra_res_qp", int(c.LogMaxRaResQP()), 4},
		} {
			if tt.got != tt.want {
				t.Errorf("%s is %d, want %d", tt.what, tt.got, tt.want)
			}
		}
		if !c.RC() || !c.UC() || c.XRC() || !c.RoCE() || c.Atomic() {
			t.Error("transports: RC, UC, RoCE; no XRC, no atomics")
		}
		out = r.must(capQuery(mlx5.QueryHCACapOpMod(mlx5.CapRoCE, current)))
		roce := mlx5.RoCECap(mlx5.QueryHCACapOut(out).Capability())
		if roce.RoCEAddressTableSize() != roceTableSize || roce.RRoCEDestUDPPort() != 4791 || roce.RoCEVersion() != 5 {
			t.Errorf("RoCE: %d addresses, UDP port %d, versions %#x", roce.RoCEAddressTableSize(), roce.RRoCEDestUDPPort(), roce.RoCEVersion())
		}
	}
	adapter := mlx5.QueryAdapterOut(r.must(build(mlx5.OpQueryAdapter, 0))).QueryAdapterStruct()
	if adapter.IeeeVendorID() != 0x2c9 { // rdma-core's tests skip themselves otherwise
		t.Errorf("vendor %#x", adapter.IeeeVendorID())
	}
	if issi := mlx5.QueryISSIOut(r.must(build(mlx5.OpQueryISSI, 0))); issi.CurrentISSI() != 1 || issi.SupportedISSIDw0() != 3 {
		t.Errorf("ISSI %d of %#x", issi.CurrentISSI(), issi.SupportedISSIDw0())
	}
}

func TestRoCEAddress(t *testing.T) {
	r := newRig(t, Config{})
	for _, index := range []uint16{0, 7, roceTableSize - 1} {
		set := mlx5.SetRoCEAddressIn(build(mlx5.OpSetRoCEAddress, 0))
		set.SetRoCEAddressIndex(index)
		for i := range set.RoCEAddress() {
			set.RoCEAddress()[i] = byte(i) + byte(index)
		}
		query := mlx5.QueryRoCEAddressIn(build(mlx5.OpQueryRoCEAddress, 0))
		query.SetRoCEAddressIndex(index)
		if was := mlx5.QueryRoCEAddressOut(r.must(query)).RoCEAddress(); !bytes.Equal(was, make([]byte, len(was))) {
			t.Errorf("address %d before it is set: %x", index, was)
		}
		r.must(set)
		if got := mlx5.QueryRoCEAddressOut(r.must(query)).RoCEAddress(); !bytes.Equal(got, set.RoCEAddress()) {
			t.Errorf("address %d: %x, want %x", index, got, set.RoCEAddress())
		}
	}
}

// The contexts of CQs and memory keys come back as they were given.
func TestQueryContexts(t *testing.T) {
	r := newRig(t, Config{})
	cq := r.cq()
	cq.CQContext().SetCQPeriod(17)
	if got := mlx5.QueryCQOut(r.must(about(mlx5.OpQueryCQ, r.uid, r.made(cq)))).CQContext(); !bytes.Equal(got, cq.CQContext()) {
		t.Errorf("CQ context %x, want %x", got, cq.CQContext())
	}
	mkey := r.mkey()
	mkey.MemoryKeyMKeyEntry().SetStartAddr(0x123456789000)
	if got := mlx5.QueryMKeyOut(r.must(about(mlx5.OpQueryMKey, r.uid, r.made(mkey)))).MemoryKeyMKeyEntry(); !bytes.Equal(got, mkey.MemoryKeyMKeyEntry()) {
		t.Errorf("memory key context %x, want %x", got, mkey.MemoryKeyMKeyEntry())
	}
	set := r.made(build(mlx5.OpAllocQCounter, r.uid))
	query := mlx5.QueryQCounterIn(build(mlx5.OpQueryQCounter, r.uid))
	query.SetCounterSetID(uint8(set))
	if out := r.must(query); !bytes.Equal(out, make([]byte, len(out))) {
		t.Errorf("counters that moved without packets: %x", out)
	}
}
