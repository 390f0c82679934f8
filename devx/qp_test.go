// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/emu/fw"
	"devxlab.example/internal/testdev"
	"devxlab.example/mlx5"
)

// step brings q through a transition that is expected to succeed, and returns
// the context that the device has then.
func step[T mlx5.Transition](t *testing.T, q *devx.QP, tr T, to mlx5.State) mlx5.QPC {
	t.Helper()
	if err := devx.Modify(q, tr); err != nil {
		t.Fatalf("%v: %v", tr.Op(), err)
	}
	qpc, err := q.Query()
	must(t, err)
	if s := mlx5.State(qpc.State()); s != to {
		t.Fatalf("%v: in state %v, want %v", tr.Op(), s, to)
	}
	return qpc
}

// fields compares fields of a QP context with what was set. The keys are the
// names in mlx5_ifc.h.
func fields(t *testing.T, op mlx5.Op, qpc mlx5.QPC, want map[string]uint64) {
	t.Helper()
	layout := mlx5.LayoutOf("qpc")
	for name, v := range want {
		f := layout.Field(name)
		if f == nil {
			t.Fatalf("qpc has no field %s", name)
		}
		if got, ok := f.Bits(qpc); !ok || got != v {
			t.Errorf("after %v: %s is %#x, want %#x", op, name, got, v)
		}
	}
}

// counterSet allocates a Q counter set, for the attribute that names one.
func counterSet(t *testing.T, d *devx.Device) *devx.Object {
	t.Helper()
	in, out := make([]byte, mlx5.AllocQCounterInSize), make([]byte, mlx5.AllocQCounterOutSize)
	mlx5.PutHeader(in, mlx5.OpAllocQCounter, 0)
	o, err := d.Create(in, out)
	must(t, err)
	return o
}

// In the tests below every attribute has a value of its own, and none is what
// the device would have without it.

func TestRCToRTS(t *testing.T) {
	d := open(t, name(t))
	q, set := newQP(t, d, mlx5.STRC), counterSet(t, d)
	qpc := step(t, q, mlx5.RST2INIT{
		Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(mlx5.RemoteRead | mlx5.RemoteWrite | mlx5.RemoteAtomic),
		CounterSetID: mlx5.Set(set.ID()), LAGTXAffinity: mlx5.Set(2), PMState: mlx5.Set(1), AtomicMode: mlx5.Set(2),
	}, mlx5.StateInit)
	fields(t, mlx5.OpRST2INIT, qpc, map[string]uint64{
		"st": uint64(mlx5.STRC), "primary_address_path.vhca_port_num": 1, "primary_address_path.pkey_index": 0,
		"rre": 1, "rwe": 1, "rae": 1, "counter_set_id": uint64(set.ID()), "lag_tx_port_affinity": 2, "pm_state": 1, "atomic_mode": 2,
	})
	qpc = step(t, q, mlx5.INIT2INIT{Access: mlx5.Set(mlx5.RemoteWrite), LAGTXAffinity: mlx5.Set(1)}, mlx5.StateInit)
	fields(t, mlx5.OpINIT2INIT, qpc, map[string]uint64{"rre": 0, "rwe": 1, "rae": 0, "lag_tx_port_affinity": 1, "pm_state": 1})
	qpc = step(t, q, mlx5.INIT2RTR{
		MTU: mlx5.Set(mlx5.MTU2048), LogMsgMax: mlx5.Set(29), RemoteQPN: mlx5.Set(0xabcdef), NextRcvPSN: mlx5.Set(0x654321),
		LogRRAMax: mlx5.Set(3), MinRNRNak: mlx5.Set(12), Access: mlx5.Set(mlx5.RemoteRead),
		Path: mlx5.Path{
			RGID: [16]byte{0xfe, 0x80, 15: 9}, RMAC: [6]byte{2, 3, 4, 5, 6, 7}, SrcAddrIndex: mlx5.Set(3), HopLimit: mlx5.Set(64),
			TClass: mlx5.Set(0x68), FlowLabel: mlx5.Set(0x12345), UDPSport: mlx5.Set(0xc123), SL: mlx5.Set(5), StatRate: mlx5.Set(2),
		},
	}, mlx5.StateRTR)
	fields(t, mlx5.OpINIT2RTR, qpc, map[string]uint64{
		"mtu": 4, "log_msg_max": 29, "remote_qpn": 0xabcdef, "next_rcv_psn": 0x654321, "log_rra_max": 3, "min_rnr_nak": 12,
		"rre": 1, "rwe": 0, "primary_address_path.src_addr_index": 3, "primary_address_path.hop_limit": 64,
		"primary_address_path.tclass": 0x68, "primary_address_path.dscp": 0x68 >> 2, "primary_address_path.flow_label": 0x12345,
		"primary_address_path.udp_sport": 0xc123, "primary_address_path.eth_prio": 5, "primary_address_path.stat_rate": 2,
		"primary_address_path.rmac_47_32": 0x0203, "primary_address_path.rmac_31_0": 0x04050607, "primary_address_path.vhca_port_num": 1,
	})
	if gid := hex.EncodeToString(qpc.PrimaryAddressPath().RGIDRip()); gid != "fe800000000000000000000000000009" {
		t.Errorf("rgid_rip is %s", gid)
	}
	qpc = step(t, q, mlx5.RTR2RTS{
		AckTimeout: mlx5.Set(14), RetryCount: mlx5.Set(6), RNRRetry: mlx5.Set(5), NextSendPSN: mlx5.Set(0x123456), LogSRAMax: mlx5.Set(2),
		Access: mlx5.Set(mlx5.RemoteWrite), MinRNRNak: mlx5.Set(13), PMState: mlx5.Set(3),
	}, mlx5.StateRTS)
	fields(t, mlx5.OpRTR2RTS, qpc, map[string]uint64{
		"primary_address_path.ack_timeout": 14, "retry_count": 6, "rnr_retry": 5, "next_send_psn": 0x123456, "log_sra_max": 2,
		"rre": 0, "rwe": 1, "min_rnr_nak": 13, "pm_state": 3, "mtu": 4, "next_rcv_psn": 0x654321,
	})
	qpc = step(t, q, mlx5.RTS2RTS{Access: mlx5.Set(mlx5.RemoteRead), MinRNRNak: mlx5.Set(14), PMState: mlx5.Set(1)}, mlx5.StateRTS)
	fields(t, mlx5.OpRTS2RTS, qpc, map[string]uint64{"rre": 1, "rwe": 0, "min_rnr_nak": 14, "pm_state": 1, "next_send_psn": 0x123456})
}

func TestUCToRTS(t *testing.T) {
	d := open(t, name(t))
	q := newQP(t, d, mlx5.STUC)
	path, err := d.OwnPath(-1)
	must(t, err)
	step(t, q, mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(mlx5.RemoteWrite)}, mlx5.StateInit)
	step(t, q, mlx5.INIT2RTR{MTU: mlx5.Set(mlx5.MTU256), RemoteQPN: mlx5.Set(q.Number()), NextRcvPSN: mlx5.Set(7), Path: path}, mlx5.StateRTR)
	qpc := step(t, q, mlx5.RTR2RTS{NextSendPSN: mlx5.Set(0xfffffe)}, mlx5.StateRTS)
	fields(t, mlx5.OpRTR2RTS, qpc, map[string]uint64{
		"st": uint64(mlx5.STUC), "rwe": 1, "rre": 0, "mtu": 1, "log_msg_max": 30, "remote_qpn": uint64(q.Number()), "next_rcv_psn": 7,
		"next_send_psn": 0xfffffe, "primary_address_path.hop_limit": 64,
	})
}

func TestUDToRTS(t *testing.T) {
	d := open(t, name(t))
	q := newQP(t, d, mlx5.STUD)
	qpc := step(t, q, mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), QKey: mlx5.Set(uint32(0x11111111))}, mlx5.StateInit)
	fields(t, mlx5.OpRST2INIT, qpc, map[string]uint64{"q_key": 0x11111111})
	qpc = step(t, q, mlx5.INIT2INIT{QKey: mlx5.Set(uint32(0x22222222))}, mlx5.StateInit)
	fields(t, mlx5.OpINIT2INIT, qpc, map[string]uint64{"q_key": 0x22222222})
	qpc = step(t, q, mlx5.INIT2RTR{}, mlx5.StateRTR)
	fields(t, mlx5.OpINIT2RTR, qpc, map[string]uint64{"mtu": uint64(mlx5.MTU4096), "log_msg_max": 12})
	qpc = step(t, q, mlx5.RTR2RTS{NextSendPSN: mlx5.Set(0x42), QKey: mlx5.Set(uint32(0x33333333))}, mlx5.StateRTS)
	fields(t, mlx5.OpRTR2RTS, qpc, map[string]uint64{"st": uint64(mlx5.STUD), "next_send_psn": 0x42, "q_key": 0x33333333})
}

// A send queue in error goes on, once it is told to.
func TestSendQueueError(t *testing.T) {
	d := open(t, name(t))
	q := rts(t, d)
	if !emulated(t, d).HCA().Fault(q.Number(), mlx5.StateSQER) {
		t.Fatal("no fault")
	}
	qpc := step(t, q, mlx5.SQERR2RTS{MinRNRNak: mlx5.Set(15)}, mlx5.StateRTS)
	fields(t, mlx5.OpSQERR2RTS, qpc, map[string]uint64{"min_rnr_nak": 15})
}

// The transitions that leave the way to RTS.
func TestErrorResetRecovery(t *testing.T) {
	d := open(t, name(t))
	q := rts(t, d)
	step(t, q, mlx5.ToERR{}, mlx5.StateErr)
	step(t, q, mlx5.ToERR{}, mlx5.StateErr)
	qpc := step(t, q, mlx5.ToRST{}, mlx5.StateRST)
	fields(t, mlx5.Op2RST, qpc, map[string]uint64{"mtu": 0, "next_send_psn": 0, "retry_count": 0, "st": uint64(mlx5.STRC)})
	step(t, q, rcInit, mlx5.StateInit)
}

func TestWrongState(t *testing.T) {
	d := open(t, name(t))
	q := newQP(t, d, mlx5.STRC)
	for _, send := range []func() error{
		func() error { return devx.Modify(q, mlx5.INIT2INIT{}) },
		func() error { return devx.Modify(q, rcRTR(t, d, 1)) },
		func() error { return devx.Modify(q, rcRTS) },
		func() error { return devx.Modify(q, mlx5.RTS2RTS{}) },
		func() error { return devx.Modify(q, mlx5.SQERR2RTS{}) },
	} {
		var c *devx.CommandError
		if err := send(); !errors.As(err, &c) || c.Status != mlx5.StatusBadQPState {
			t.Errorf("in RESET: %v", err)
		}
	}
	err := devx.Modify(q, rcRTS)
	contains(t, err, "devx: "+d.Name()+": ", "RTR2RTS_QP(0x504)", fmt.Sprintf("on QP %#x failed", q.Number()),
		"status bad QP state(0x10)", "syndrome (0xde", "errno 121", "explain")
	if devx.Unknown(err) || !errors.Is(err, unix.EREMOTEIO) {
		t.Errorf("Unknown: %v, %v", devx.Unknown(err), err)
	}
	var c *devx.CommandError
	if !errors.As(err, &c) || c.QPN != q.Number() || c.Op != mlx5.OpRTR2RTS || !c.HasOutbox || fw.CheckOf(c.Syndrome) == nil {
		t.Errorf("%+v", c)
	}
	if s, err := q.State(); s != mlx5.StateRST || err != nil {
		t.Errorf("state %v, %v after refused transitions", s, err)
	}
}

func TestBadAttributeSendsNothing(t *testing.T) {
	d := open(t, name(t))
	q := newQP(t, d, mlx5.STRC)
	must(t, devx.Modify(q, rcInit))
	bad := rcRTR(t, d, 1)
	c := count(d)
	bad.RemoteQPN = mlx5.Attr{}
	err := devx.Modify(q, bad)
	contains(t, err, "INIT2RTR", "remote_qpn is missing", "IBV_QP_DEST_QPN")
	var a *mlx5.AttrError
	if !errors.As(err, &a) || a.Attr != mlx5.AttrRemoteQPN {
		t.Errorf("%#v", err)
	}
	bad.RemoteQPN = mlx5.Set(1 << 24)
	contains(t, devx.Modify(q, bad), "remote_qpn 16777216 is out of range")
	contains(t, devx.Modify(q, mlx5.INIT2INIT{QKey: mlx5.Set(1)}), "q_key does not apply")
	c.commands(t, 0, 0)
}

func TestNewQPSizes(t *testing.T) {
	d := open(t, name(t))
	for _, c := range []struct {
		c      devx.QPConfig
		fields map[string]uint64
	}{
		{devx.QPConfig{}, map[string]uint64{"log_sq_size": 0, "log_rq_size": 2, "log_rq_stride": 0, "rq_type": 0}}, // 64 bytes at least
		{devx.QPConfig{RecvWQEs: 1, RecvSGEs: 4}, map[string]uint64{"log_rq_size": 0, "log_rq_stride": 2}},
		{devx.QPConfig{SendWQEBBs: 100, RecvWQEs: 33, RecvSGEs: 3}, map[string]uint64{"log_sq_size": 7, "log_rq_size": 6, "log_rq_stride": 2}},
		{devx.QPConfig{SendWQEBBs: 1 << 15, NoRecvQueue: true}, map[string]uint64{"log_sq_size": 15, "rq_type": mlx5.RQNone}},
	} {
		q, err := d.NewQP(c.c)
		must(t, err)
		qpc, err := q.Query()
		must(t, err)
		fields(t, mlx5.OpCreateQP, qpc, c.fields)
		must(t, q.Close())
	}
	for _, c := range []struct {
		c    devx.QPConfig
		part string
	}{
		{devx.QPConfig{SendWQEBBs: 1<<15 + 1}, "SendWQEBBs 32769: at most 32768"},
		{devx.QPConfig{RecvWQEs: 1 << 20}, "RecvWQEs"},
		{devx.QPConfig{RecvSGEs: 33}, "RecvSGEs 33: at most 32"},
		{devx.QPConfig{RecvWQEs: -1}, "negative"},
		{devx.QPConfig{Transport: 3}, "RC, UC or UD"},
	} {
		_, err := d.NewQP(c.c)
		contains(t, err, c.part)
	}
}

// Of several calls of Close at once one gives the memory back, so two queue
// pairs never share any.
func TestQPMemoryIsOwn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16)) // calls in one another's way, also on a small machine
	d := open(t, name(t))
	rounds := 5000
	if testdev.Kernel() != "" {
		rounds = 200
	}
	for range rounds {
		q := newQP(t, d, mlx5.STUD)
		var ready, done sync.WaitGroup
		start := make(chan struct{})
		for range 4 {
			ready.Add(1)
			done.Go(func() {
				ready.Done()
				<-start
				if err := q.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		ready.Wait()
		close(start)
		done.Wait()
	}
	used := map[[2]uint64]bool{}
	for range rounds {
		qpc, err := newQP(t, d, mlx5.STUD).Query()
		must(t, err)
		at := [2]uint64{uint64(qpc.DBRUmemID()), qpc.DBRAddr()}
		if used[at] {
			t.Fatalf("two queue pairs have the doorbell record at %#x", at)
		}
		used[at] = true
	}
}

// Registrations of user memory grow with the memory, not with the queue pairs.
func TestManyQPsFewRegistrations(t *testing.T) {
	testdev.Emulated(t) // the kernel does not count
	d := open(t, name(t))
	hca := emulated(t, d).HCA()
	before := hca.Stats().Commands
	const n = 60000
	for range n {
		newQP(t, d, mlx5.STUD)
	}
	if extra := hca.Stats().Commands - before - n; extra > 100 {
		t.Errorf("%d commands beside %d CREATE_QP", extra, n)
	}
}
