// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"testing"

	"devxlab.example/mlx5"
)

// read1 reads a register.
func (h *host) read1(id uint16, data ...byte) []byte {
	h.t.Helper()
	in := register1(id, regRead, data...)
	out := make([]byte, h.outSize(in))
	h.h.Exec(in, out)
	if status, syndrome := mlx5.StatusOf(out); status != mlx5.StatusOK {
		h.t.Fatalf("register %#x: %v, %s", id, status, reason(syndrome))
	}
	return mlx5.AccessRegisterOut(out).RegisterData()
}

// The masks of registers name those that the device has, at the bits where the
// kernel's header has them, and no other.
func TestRegisterMasks(t *testing.T) {
	h := newHost(t, Config{})
	count := func(mask []byte) (n int) { return onesIn(mask) }
	mcam := mlx5.McamReg(h.read1(regMCAM))
	for _, name := range []string{"mcqi", "mcqs"} {
		if v, _ := mlx5.LayoutOf("mcam_reg").Field("mng_access_reg_cap_mask.access_regs." + name).Bits(mcam); v != 1 {
			t.Errorf("MCAM does not have %s", name)
		}
	}
	if n := count(mcam.MngAccessRegCapMask()); n != 3 { // and MCAM
		t.Errorf("MCAM has %d registers", n)
	}
	if n := count(mcam.MngFeatureCapMask()); n != 0 {
		t.Errorf("MCAM has %d features", n)
	}
	if n := count(mlx5.McamReg(h.read1(regMCAM, 0, 0, 0, 2)).MngAccessRegCapMask()); n != 0 {
		t.Errorf("MCAM has %d registers from 0x9100 on", n)
	}
	for _, id := range []uint16{regMCAM, regPCAM} { // groups that the device does not know
		if other := mlx5.McamReg(h.read1(id, 0, 7, 0, 0x60)); count(other.MngAccessRegCapMask())+count(other.MngFeatureCapMask()) != 0 {
			t.Errorf("register %#x has something in unknown groups: %x", id, other)
		}
	}
	pcam := mlx5.PcamReg(h.read1(regPCAM))
	if v, _ := mlx5.LayoutOf("pcam_reg").Field("feature_cap_mask.enhanced_features.rx_icrc_encapsulated_counter").Bits(pcam); v != 1 || count(pcam.FeatureCapMask()) != 1 {
		t.Errorf("PCAM's features %x", pcam.FeatureCapMask())
	}
	for id := range registers {
		if n := int(id) - portGroup; n >= 0 && n < maskBits && pcam.PortAccessRegCapMask()[15-n/8]>>(n%8)&1 == 0 {
			t.Errorf("PCAM does not have register %#x", id)
		}
	}
}

// The driver's way to the firmware's version (mlx5_fw_version_query): the boot
// image is found, nothing is pending, and the version reads as BAR 0 has it.
func TestFirmwareVersion(t *testing.T) {
	h := newHost(t, Config{})
	mcqs := mlx5.McqsReg(h.read1(regMCQS))
	if !mcqs.LastIndexFlag() || mcqs.Identifier() != identifierBoot || mcqs.ComponentUpdateState() != updateIdle {
		t.Errorf("MCQS %x", mcqs)
	}
	in := make([]byte, mlx5.McqiRegSize)
	mlx5.McqiReg(in).SetInfoType(infoVersion)
	mlx5.McqiReg(in).SetDataSize(mlx5.McqiVersionSize)
	mcqi := mlx5.McqiReg(h.read1(regMCQI, in...))
	v := mlx5.McqiVersion(mcqi.Data())
	if v.Version() != 22<<24|36<<16|1010 || string(v.VersionString()[:v.VersionStringLength()]) != "22.36.1010" || mcqi.DataSize() != mlx5.McqiVersionSize {
		t.Errorf("MCQI %x", mcqi[:60])
	}
	mlx5.McqiReg(in).SetOffset(4)
	mlx5.McqiReg(in).SetDataSize(4)
	if part := mlx5.McqiReg(h.read1(regMCQI, in...)); part.DataSize() != 4 || mlx5.McqiReg(part).Data()[0] != 22 {
		t.Errorf("a part of it %x", part[:32])
	}
	mlx5.McqiReg(in).SetOffset(1 << 31)
	if none := mlx5.McqiReg(h.read1(regMCQI, in...)); none.DataSize() != 0 {
		t.Errorf("%d bytes beyond its end", none.DataSize())
	}
}

func TestCongestionStatistics(t *testing.T) {
	h := newHost(t, Config{})
	if out := h.must(build(mlx5.OpQueryCongStatistics, 0)); onesIn(out) != 0 {
		t.Errorf("%x", out)
	}
}

// The kernel sends flows to whosever TIR it is, and uses it; a user only to its
// own.
func TestFlowToUsersTIR(t *testing.T) {
	h := newHost(t, Config{})
	alice, bob := mlx5.CreateUCTXOut(h.must(build(mlx5.OpCreateUCTX, 0))).UID(), mlx5.CreateUCTXOut(h.must(build(mlx5.OpCreateUCTX, 0))).UID()
	tir := h.h.tirs.get(h.tir)
	tir.mu.Lock()
	tir.uid = alice
	before := tir.refs
	tir.mu.Unlock()
	h.must(h.flowIn(5, toTIR, h.tir))
	if tir.refs != before+1 {
		t.Errorf("%d users, %d before the flow", tir.refs, before)
	}
	defer func() { tir.uid = 0 }() // the books are checked at the end
	u := holding{uid: bob}
	if u.holdAny(&tir.entry, badTIRN); u.refused != badTIRN {
		t.Error("one user's flow goes to another one's TIR")
	}
}

// The kernel queries everyone's objects with its own uid, as ibv_query_qp of a
// user's queue pair makes it do; a user only its own.
func TestKernelQueriesAll(t *testing.T) {
	h := newHost(t, Config{})
	alice, bob := mlx5.CreateUCTXOut(h.must(build(mlx5.OpCreateUCTX, 0))).UID(), mlx5.CreateUCTXOut(h.must(build(mlx5.OpCreateUCTX, 0))).UID()
	pd := h.must(build(mlx5.OpAllocPD, alice))
	id := mlx5.AllocPDOut(pd).PD()
	create, _, _ := h.qpIn(mlx5.STUD)
	qpn := h.made(create)
	qp := h.h.qps.get(qpn)
	for _, e := range []struct {
		entry   *entry
		op      mlx5.Op
		id      uint32
		missing check
	}{
		{&qp.entry, mlx5.OpQueryQP, qpn, badQPN},
		{&h.h.cqs.get(h.cqn).entry, mlx5.OpQueryCQ, h.cqn, badCQN},
		{&h.h.sqs.get(h.sq).entry, mlx5.OpQuerySQ, h.sq, badSQN},
		{&h.h.rqs.get(h.rq).entry, mlx5.OpQueryRQ, h.rq, badRQN},
		{&h.h.tirs.get(h.tir).entry, mlx5.OpQueryTIR, h.tir, badTIRN},
	} {
		e.entry.uid = alice
		h.must(about(e.op, 0, e.id))
		h.must(about(e.op, alice, e.id))
		in := about(e.op, bob, e.id)
		out := make([]byte, h.outSize(in))
		h.h.Exec(in, out)
		if _, syndrome := mlx5.StatusOf(out); syndrome != checks[e.missing].Syndrome() {
			t.Errorf("%v by another user: %s", e.op, reason(syndrome))
		}
		e.entry.uid = 0
	}
	h.must(about(mlx5.OpDeallocPD, alice, id))
}
