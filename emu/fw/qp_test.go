// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"devxlab.example/mlx5"
)

// value is what a field of the QP context is given: another than it had.
type value struct {
	field string
	v     uint64
}

const path = "primary_address_path."

// given lists what each command sets, for each service type. It is written from
// the driver (mlx5_ib qp.c) and not from this package's code.
var given = map[mlx5.ServiceType]map[mlx5.Op][]value{
	mlx5.STRC: {
		mlx5.OpCreateQP: created,
		mlx5.OpRST2INIT: initialised,
		mlx5.OpINIT2RTR: slices.Concat(addressed, []value{{"log_rra_max", 4}, {"min_rnr_nak", 12}}),
		mlx5.OpRTR2RTS: {
			{"next_send_psn", 0x654321}, {path + "ack_timeout", 14}, {"retry_count", 7}, {"rnr_retry", 6}, {"log_sra_max", 3},
		},
		mlx5.OpRTS2RTS: {{"rre", 0}, {"rwe", 0}, {"rae", 0}, {"atomic_mode", 2}, {"min_rnr_nak", 31}, {"pm_state", 0}},
	},
	mlx5.STUC: {
		mlx5.OpCreateQP: created,
		mlx5.OpRST2INIT: initialised,
		mlx5.OpINIT2RTR: addressed,
		mlx5.OpRTR2RTS:  {{"next_send_psn", 0x654321}},
		mlx5.OpRTS2RTS:  {{"rwe", 0}, {"pm_state", 0}},
	},
	mlx5.STUD: {
		mlx5.OpCreateQP: created,
		mlx5.OpRST2INIT: initialised,
		mlx5.OpINIT2RTR: {{"mtu", 5}, {"log_msg_max", 12}},
		mlx5.OpRTR2RTS:  {{"next_send_psn", 0x654321}},
		mlx5.OpRTS2RTS:  {{"q_key", 0x87654321}},
	},
}

var created = []value{
	{"pm_state", 3}, {"user_index", 0xabcdef}, {"log_rq_size", 2}, {"log_rq_stride", 2}, {"log_sq_size", 3}, {"log_page_size", 5},
	{"ts_format", 1}, {"rlky", 1}, {"end_padding_mode", 1}, {"block_lb_mc", 1}, {"cs_req", 0x11}, {"cs_res", 0x22},
	{"log_ack_req_freq", 8}, {"dbr_addr", 0x3000},
}

var initialised = []value{
	{path + "vhca_port_num", 1}, {"pm_state", 1}, {"rre", 1}, {"rwe", 1}, {"rae", 1}, {"atomic_mode", 1},
	{"q_key", 0x12345678}, {"lag_tx_port_affinity", 2}, {"counter_set_id", 1},
}

var addressed = []value{
	{path + "vhca_port_num", 1},
	{"mtu", 4}, {"log_msg_max", 29}, {"remote_qpn", 0xfedcba}, {"next_rcv_psn", 0x123456},
	{path + "rlid", 0x5678}, {path + "grh", 1}, {path + "src_addr_index", 254}, {path + "hop_limit", 64}, {path + "tclass", 0x60},
	{path + "flow_label", 0xabcde}, {path + "rmac_47_32", 0x0200}, {path + "rmac_31_0", 0xdeadbeef}, {path + "udp_sport", 0xc123},
	{path + "stat_rate", 5}, {path + "sl", 3}, {path + "eth_prio", 3}, {path + "dscp", 24}, {path + "mlid", 0x41},
}

// asked is the opt_param_mask for what RTS2RTS sets.
var asked = map[mlx5.ServiceType]mlx5.OptPar{
	mlx5.STRC: mlx5.OptParRRE | mlx5.OptParRWE | mlx5.OptParRAE | mlx5.OptParRNRTimeout | mlx5.OptParPMState,
	mlx5.STUC: mlx5.OptParRWE | mlx5.OptParPMState,
	mlx5.STUD: mlx5.OptParQKey,
}

var rgid = [16]byte{0xfe, 0x80, 15: 0x2a}

func field(name string) *mlx5.LayoutField {
	f := mlx5.LayoutOf("qpc").Field(name)
	if f == nil {
		panic("no field " + name)
	}
	return f
}

// put writes a field bit by bit, independent of the setters.
func put(b []byte, name string, v uint64) {
	f := field(name)
	if v>>f.Width != 0 {
		panic(fmt.Sprintf("%s does not hold %#x", name, v))
	}
	for i := range f.Width {
		at := f.Offset + f.Width - 1 - i
		b[at/8] = b[at/8]&^(0x80>>(at%8)) | byte(v>>i&1)<<(7-at%8)
	}
}

// QUERY_QP gives back what each command has set, and nothing else; 2RST takes
// back what transitions have set, and nothing else.
func TestQueryQP(t *testing.T) {
	for st, commands := range given {
		t.Run(strings.TrimPrefix(st.String(), "ST"), func(t *testing.T) {
			r := newRig(t, Config{})
			counter := r.made(build(mlx5.OpAllocQCounter, r.uid))
			if counter != 1 {
				t.Fatalf("the counter set has id %d", counter)
			}
			create := r.qp(st)
			for _, v := range commands[mlx5.OpCreateQP] {
				put(create.QPC(), v.field, v.v)
			}
			want := slices.Clone(create.QPC())
			fresh := slices.Clone(want)
			qpn := r.made(create)
			for i, op := range []mlx5.Op{mlx5.OpCreateQP, mlx5.OpRST2INIT, mlx5.OpINIT2RTR, mlx5.OpRTR2RTS, mlx5.OpRTS2RTS} {
				if op != mlx5.OpCreateQP {
					in := mlx5.RST2INITQPIn(about(op, r.uid, qpn))
					set := func(b []byte) {
						for _, v := range commands[op] {
							put(b, v.field, v.v)
						}
						if op == mlx5.OpINIT2RTR && st != mlx5.STUD {
							copy(mlx5.QPC(b).PrimaryAddressPath().RGIDRip(), rgid[:])
						}
					}
					if op == mlx5.OpRTS2RTS {
						in.SetOptParamMask(uint32(asked[st]))
					}
					set(in.QPC())
					r.must(in)
					set(want)
				}
				put(want, "state", min(uint64(i), uint64(mlx5.StateRTS)))
				diff(t, op.String(), r.qpc(qpn), want)
			}
			r.must(about(mlx5.Op2ERR, r.uid, qpn))
			put(want, "state", uint64(mlx5.StateErr))
			diff(t, "2ERR", r.qpc(qpn), want)
			r.must(about(mlx5.Op2RST, r.uid, qpn))
			diff(t, "2RST", r.qpc(qpn), fresh)
			r.must(about(mlx5.OpDeallocQCounter, r.uid, counter)) // no longer in use
		})
	}
}

// send encodes a transition as a program does, and runs it.
func send[T mlx5.Transition](r *rig, qpn uint32, st mlx5.ServiceType, tr T) {
	r.t.Helper()
	in := make([]byte, mlx5.TransitionSize)
	n, err := tr.Encode(in, qpn, st)
	if err != nil {
		r.t.Fatal(err)
	}
	binary.BigEndian.PutUint16(in[2:], r.uid)
	r.must(in[:n])
}

// What package mlx5 encodes arrives: each attribute of its structs, given another
// value in each transition that takes it.
func TestEncodedAttributes(t *testing.T) {
	set := func(v int) mlx5.Attr { return mlx5.Set(v) }
	const rw, none = mlx5.RemoteRead | mlx5.RemoteWrite | mlx5.RemoteAtomic, mlx5.Access(0)
	address := mlx5.Path{RGID: rgid, RMAC: [6]byte{2, 0, 0xde, 0xad, 0xbe, 0xef}, SrcAddrIndex: set(3), HopLimit: set(64), TClass: set(0x60),
		FlowLabel: set(0xabcde), UDPSport: set(0xc123), SL: set(5), StatRate: set(7)}
	addressed := []value{{path + "rmac_47_32", 0x0200}, {path + "rmac_31_0", 0xdeadbeef}, {path + "src_addr_index", 3}, {path + "hop_limit", 64},
		{path + "tclass", 0x60}, {path + "dscp", 0x18}, {path + "flow_label", 0xabcde}, {path + "udp_sport", 0xc123}, {path + "eth_prio", 5},
		{path + "stat_rate", 7}}
	for _, tt := range []struct {
		st    mlx5.ServiceType
		steps []func(r *rig, qpn uint32)
		want  [][]value // by step
	}{
		{mlx5.STRC, []func(*rig, uint32){
			func(r *rig, q uint32) {
				send(r, q, mlx5.STRC, mlx5.RST2INIT{Port: set(1), PkeyIndex: set(0), Access: mlx5.Set(rw), CounterSetID: set(1), LAGTXAffinity: set(2),
					PMState: set(1), AtomicMode: set(2)})
			},
			func(r *rig, q uint32) {
				send(r, q, mlx5.STRC, mlx5.INIT2INIT{Port: set(1), PkeyIndex: set(0), Access: mlx5.Set(none), LAGTXAffinity: set(1)})
			},
			func(r *rig, q uint32) {
				send(r, q, mlx5.STRC, mlx5.INIT2RTR{MTU: set(4), LogMsgMax: set(29), RemoteQPN: set(0xfedcba), NextRcvPSN: set(0x123456), LogRRAMax: set(4),
					MinRNRNak: set(12), Path: address, Access: mlx5.Set(rw), PkeyIndex: set(0), LAGTXAffinity: set(3), AtomicMode: set(3)})
			},
			func(r *rig, q uint32) {
				send(r, q, mlx5.STRC, mlx5.RTR2RTS{AckTimeout: set(14), RetryCount: set(7), RNRRetry: set(6), NextSendPSN: set(0x654321), LogSRAMax: set(3),
					Access: mlx5.Set(mlx5.RemoteRead), MinRNRNak: set(13), PMState: set(0)})
			},
			func(r *rig, q uint32) {
				send(r, q, mlx5.STRC, mlx5.RTS2RTS{Access: mlx5.Set(rw), MinRNRNak: set(14), PMState: set(3)})
			},
			func(r *rig, q uint32) {
				r.h.Fault(q, mlx5.StateSQER)
				send(r, q, mlx5.STRC, mlx5.SQERR2RTS{Access: mlx5.Set(mlx5.RemoteWrite), MinRNRNak: set(15)})
			},
		}, [][]value{
			{{"state", 1}, {path + "vhca_port_num", 1}, {"rre", 1}, {"rwe", 1}, {"rae", 1}, {"counter_set_id", 1}, {"lag_tx_port_affinity", 2}, {"pm_state", 1}, {"atomic_mode", 2}},
			{{"rre", 0}, {"rwe", 0}, {"rae", 0}, {"atomic_mode", 0}, {"lag_tx_port_affinity", 1}},
			append([]value{{"state", 2}, {"mtu", 4}, {"log_msg_max", 29}, {"remote_qpn", 0xfedcba}, {"next_rcv_psn", 0x123456}, {"log_rra_max", 4},
				{"min_rnr_nak", 12}, {"rre", 1}, {"rwe", 1}, {"rae", 1}, {"lag_tx_port_affinity", 3}, {"atomic_mode", 3}}, addressed...),
			{{"state", 3}, {path + "ack_timeout", 14}, {"retry_count", 7}, {"rnr_retry", 6}, {"next_send_psn", 0x654321}, {"log_sra_max", 3},
				{"rwe", 0}, {"rae", 0}, {"atomic_mode", 0}, {"min_rnr_nak", 13}, {"pm_state", 0}},
			{{"rre", 1}, {"rwe", 1}, {"rae", 1}, {"atomic_mode", 1}, {"min_rnr_nak", 14}, {"pm_state", 3}},
			{{"rre", 0}, {"rwe", 1}, {"rae", 0}, {"atomic_mode", 0}, {"min_rnr_nak", 15}},
		}},
		{mlx5.STUC, []func(*rig, uint32){
			func(r *rig, q uint32) {
				send(r, q, mlx5.STUC, mlx5.RST2INIT{Port: set(1), PkeyIndex: set(0), Access: mlx5.Set(mlx5.RemoteWrite), LAGTXAffinity: set(2)})
			},
			func(r *rig, q uint32) {
				send(r, q, mlx5.STUC, mlx5.INIT2RTR{MTU: set(1), RemoteQPN: set(5), NextRcvPSN: set(6), Path: address})
			},
			func(r *rig, q uint32) {
				send(r, q, mlx5.STUC, mlx5.RTR2RTS{NextSendPSN: set(7), Access: mlx5.Set(none), PMState: set(1)})
			},
			func(r *rig, q uint32) {
				send(r, q, mlx5.STUC, mlx5.RTS2RTS{Access: mlx5.Set(mlx5.RemoteWrite), PMState: set(3)})
			},
		}, [][]value{
			{{"state", 1}, {path + "vhca_port_num", 1}, {"rwe", 1}, {"lag_tx_port_affinity", 2}, {"pm_state", 3}},
			append([]value{{"state", 2}, {"mtu", 1}, {"log_msg_max", 30}, {"remote_qpn", 5}, {"next_rcv_psn", 6}}, addressed...),
			{{"state", 3}, {"next_send_psn", 7}, {"rwe", 0}, {"pm_state", 1}},
			{{"rwe", 1}, {"pm_state", 3}},
		}},
		{mlx5.STUD, []func(*rig, uint32){
			func(r *rig, q uint32) {
				send(r, q, mlx5.STUD, mlx5.RST2INIT{Port: set(1), PkeyIndex: set(0), QKey: set(0x11), CounterSetID: set(1)})
			},
			func(r *rig, q uint32) { send(r, q, mlx5.STUD, mlx5.INIT2INIT{QKey: set(0x22)}) },
			func(r *rig, q uint32) { send(r, q, mlx5.STUD, mlx5.INIT2RTR{QKey: set(0x33)}) },
			func(r *rig, q uint32) { send(r, q, mlx5.STUD, mlx5.RTR2RTS{NextSendPSN: set(9), QKey: set(0x44)}) },
			func(r *rig, q uint32) { send(r, q, mlx5.STUD, mlx5.RTS2RTS{QKey: set(0x55)}) },
		}, [][]value{
			{{"state", 1}, {path + "vhca_port_num", 1}, {"q_key", 0x11}, {"counter_set_id", 1}},
			{{"q_key", 0x22}},
			{{"state", 2}, {"q_key", 0x33}, {"mtu", 5}, {"log_msg_max", 12}},
			{{"state", 3}, {"next_send_psn", 9}, {"q_key", 0x44}},
			{{"q_key", 0x55}},
		}},
	} {
		r := newRig(t, Config{})
		r.made(build(mlx5.OpAllocQCounter, r.uid))
		qpn := r.made(r.qp(tt.st))
		want := slices.Clone(r.qpc(qpn))
		fresh := slices.Clone(want)
		for i, step := range tt.steps {
			step(r, qpn)
			for _, v := range tt.want[i] {
				put(want, v.field, v.v)
			}
			if mlx5.QPC(want).State() == uint8(mlx5.StateRTR) && tt.st != mlx5.STUD {
				copy(mlx5.QPC(want).PrimaryAddressPath().RGIDRip(), rgid[:])
			}
			diff(t, fmt.Sprintf("%v, step %d", tt.st, i), r.qpc(qpn), want)
		}
		send(r, qpn, tt.st, mlx5.ToERR{})
		send(r, qpn, tt.st, mlx5.ToRST{})
		diff(t, fmt.Sprintf("%v, 2RST", tt.st), r.qpc(qpn), fresh)
	}
}

// diff names the fields that differ.
func diff(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for _, f := range mlx5.LayoutOf("qpc").Fields {
		if g, ok := f.Bits(got); ok {
			if w, _ := f.Bits(want); g != w {
				t.Errorf("%s: %s is %#x, want %#x", what, f.Name, g, w)
			}
		}
	}
	t.Errorf("%s: context\n%x, want\n%x", what, got, want)
}

// noise returns a context with every bit set that a transition may be sent, in
// range where the device looks.
func noise() mlx5.QPC {
	q := mlx5.QPC(bytes.Repeat([]byte{0xff}, mlx5.QPCSize))
	q.SetMTU(5)
	q.SetLogMsgMax(30)
	q.SetLogRRAMax(4)
	q.SetLogSRAMax(4)
	q.SetCounterSetID(0)
	ads := q.PrimaryAddressPath()
	ads.SetVHCAPortNum(1)
	ads.SetPkeyIndex(0)
	ads.SetSrcAddrIndex(0)
	return q
}

// opt_param_mask: each bit that a transition knows makes it take its own fields
// and no others; a bit that it does not know, and no bit, take nothing.
func TestOptParamMask(t *testing.T) {
	access := map[mlx5.OptPar][]string{
		mlx5.OptParRRE: {"rre"}, mlx5.OptParRWE: {"rwe"}, mlx5.OptParRAE: {"rae", "atomic_mode"},
	}
	type test struct {
		st    mlx5.ServiceType
		op    mlx5.Op
		in    mlx5.State
		takes map[mlx5.OptPar][]string
	}
	plus := func(m map[mlx5.OptPar][]string, more map[mlx5.OptPar][]string) map[mlx5.OptPar][]string {
		sum := map[mlx5.OptPar][]string{}
		for _, x := range []map[mlx5.OptPar][]string{m, more} {
			for k, v := range x {
				sum[k] = v
			}
		}
		return sum
	}
	type takes = map[mlx5.OptPar][]string
	rwe := takes{mlx5.OptParRWE: {"rwe"}}
	qkey := takes{mlx5.OptParQKey: {"q_key"}}
	lag := takes{mlx5.OptParLAGTXAff: {"lag_tx_port_affinity"}}
	rnr := takes{mlx5.OptParRNRTimeout: {"min_rnr_nak"}}
	pm := takes{mlx5.OptParPMState: {"pm_state"}}
	for _, tt := range []test{
		{mlx5.STRC, mlx5.OpINIT2INIT, mlx5.StateInit, plus(access, lag)},
		{mlx5.STUC, mlx5.OpINIT2INIT, mlx5.StateInit, plus(rwe, lag)},
		{mlx5.STUD, mlx5.OpINIT2INIT, mlx5.StateInit, qkey},
		{mlx5.STRC, mlx5.OpRTS2RTS, mlx5.StateRTS, plus(plus(access, rnr), pm)},
		{mlx5.STUC, mlx5.OpRTS2RTS, mlx5.StateRTS, plus(rwe, pm)},
		{mlx5.STUD, mlx5.OpRTS2RTS, mlx5.StateRTS, qkey},
		{mlx5.STRC, mlx5.OpSQERR2RTS, mlx5.StateSQER, plus(access, rnr)},
		{mlx5.STUC, mlx5.OpSQERR2RTS, mlx5.StateSQER, rwe},
		{mlx5.STUD, mlx5.OpSQERR2RTS, mlx5.StateSQER, qkey},
	} {
		t.Run(fmt.Sprintf("%v/%v", tt.st, tt.op), func(t *testing.T) {
			r := newRig(t, Config{})
			for b := range 33 { // 32: none
				mask := mlx5.OptPar(1 << b)
				if mask == mlx5.OptParAltAddrPath || mask == mlx5.OptParSRQN || mask == mlx5.OptParCQNRcv {
					continue // refused, see TestChecks, or not known
				}
				qpn := r.inState(tt.st, tt.in)
				want := slices.Clone(r.qpc(qpn))
				in := r.modify(tt.op, qpn)
				in.SetOptParamMask(uint32(mask))
				copy(in.QPC(), noise())
				r.must(in)
				for _, name := range tt.takes[mask] {
					v, _ := field(name).Bits(in.QPC())
					put(want, name, v)
				}
				if tt.op == mlx5.OpSQERR2RTS {
					put(want, "state", uint64(mlx5.StateRTS))
				}
				diff(t, mask.String(), r.qpc(qpn), want)
			}
		})
	}
}

// RTS2RTS moves the Q counter set, as mlx5_ib asks it to.
func TestOptParamCounterSet(t *testing.T) {
	r := newRig(t, Config{})
	own := uint8(r.made(build(mlx5.OpAllocQCounter, r.uid)))
	shared := uint8(r.made(build(mlx5.OpAllocQCounter, sharedUID)))
	for st := mlx5.STRC; st <= mlx5.STUD; st++ {
		qpn := r.inState(st, mlx5.StateRTS)
		for _, id := range []uint8{own, shared, 0, own} {
			in := r.modify(mlx5.OpRTS2RTS, qpn)
			in.QPC().SetCounterSetID(id)
			r.must(in) // not asked for
			was := r.qpc(qpn).CounterSetID()
			in.SetOptParamMask(uint32(mlx5.OptParCounterSetID))
			r.must(in)
			if now := r.qpc(qpn).CounterSetID(); now != id || was == id {
				t.Fatalf("counter set %d, then %d, want %d", was, now, id)
			}
			if err := audit(r.h); err != nil {
				t.Fatal(err)
			}
		}
		r.must(about(mlx5.OpDestroyQP, r.uid, qpn))
	}
	r.must(about(mlx5.OpDeallocQCounter, r.uid, uint32(own)))
	r.must(about(mlx5.OpDeallocQCounter, 0, uint32(shared)))
}

// Real firmware takes what rdma-core and the kernel send: modifications whose
// opt_param_mask, st, pd, cqn and hop_limit are zero (r.modify), or have the
// values of another queue pair, and 2ERR and 2RST in every state.
func TestAccepts(t *testing.T) {
	for st := mlx5.STRC; st <= mlx5.STUD; st++ {
		r := newRig(t, Config{})
		for _, s := range []mlx5.State{mlx5.StateRST, mlx5.StateInit, mlx5.StateRTR, mlx5.StateRTS, mlx5.StateSQER, mlx5.StateSQD, mlx5.StateErr} {
			qpn := r.inState(st, s)
			for _, op := range []mlx5.Op{mlx5.Op2ERR, mlx5.Op2ERR, mlx5.Op2RST, mlx5.Op2RST} {
				r.must(about(op, r.uid, qpn))
			}
			r.bring(qpn, s)
			r.must(about(mlx5.Op2RST, r.uid, qpn))
			if got := mlx5.State(r.qpc(qpn).State()); got != mlx5.StateRST {
				t.Errorf("%v from %v: 2RST leads to %v", st, s, got)
			}
		}
		qpn := r.made(r.qp(st))
		for _, op := range []mlx5.Op{mlx5.OpRST2INIT, mlx5.OpINIT2INIT, mlx5.OpINIT2RTR, mlx5.OpRTR2RTS, mlx5.OpRTS2RTS} {
			in := r.modify(op, qpn)
			copy(in.QPC(), noise())
			r.must(in)
		}
		q := r.qpc(qpn)
		if q.St() != uint8(st) || q.PD() != r.pd || q.CQNSnd() != r.cqn || q.CQNRcv() != r.cqn || q.UARPage() != r.uar {
			t.Errorf("%v: a modification changed what CREATE_QP had set: %x", st, q)
		}
		if st != mlx5.STUD { // half of a MAC address is one
			r.must(about(mlx5.Op2RST, r.uid, qpn))
			r.bring(qpn, mlx5.StateInit)
			in := r.modify(mlx5.OpINIT2RTR, qpn)
			in.QPC().PrimaryAddressPath().SetRMAC310(0)
			in.QPC().PrimaryAddressPath().SetRMAC4732(0x0200)
			r.must(in)
		}
		// UC and UD have no reads: what a command says about them is not looked at.
		if st != mlx5.STRC {
			r.must(about(mlx5.Op2RST, r.uid, qpn))
			r.bring(qpn, mlx5.StateInit)
			in := r.modify(mlx5.OpINIT2RTR, qpn)
			in.QPC().SetLogRRAMax(7)
			r.must(in)
			in = r.modify(mlx5.OpRTR2RTS, qpn)
			in.QPC().SetLogSRAMax(7)
			r.must(in)
		}
	}
}

// A queue that ends with its user memory fits; 64 bytes further on it does not.
func TestQueueSizes(t *testing.T) {
	r := newRig(t, Config{})
	umem := r.made(r.umemWith(2, func(u mlx5.UmemContext) { u.SetPageOffset(64) }))
	const size = 2*4096 - 64
	for _, tt := range []struct {
		what                       string
		rqSize, stride, sqSize, rq uint8
		noSQ                       bool
		need                       uint64
	}{
		{"smallest", 0, 0, 0, mlx5.RQNormal, false, 16 + 64},
		{"receive queue", 3, 0, 0, mlx5.RQNormal, false, 16<<3 + 64},
		{"wide entries", 3, 2, 0, mlx5.RQNormal, false, 64<<3 + 64},
		{"send queue", 0, 2, 4, mlx5.RQNormal, false, 64 + 64<<4},
		{"no receive queue", 7, 7, 4, mlx5.RQNone, false, 64 << 4},
		{"no send queue", 2, 2, 15, mlx5.RQNormal, true, 64 << 2},
		{"all of it", 5, 3, 6, mlx5.RQNormal, true, 128 << 5},
	} {
		in := r.qp(mlx5.STRC)
		q := in.QPC()
		q.SetLogRQSize(tt.rqSize)
		q.SetLogRQStride(tt.stride)
		q.SetLogSQSize(tt.sqSize)
		q.SetRQType(tt.rq)
		q.SetNoSQ(tt.noSQ)
		in.SetWQUmemID(umem)
		in.SetWQUmemOffset((size - tt.need) &^ 63)
		r.must(in)
		in.SetWQUmemOffset((size-tt.need)&^63 + 64)
		if status, syndrome, _ := r.exec(in); status != mlx5.StatusBadParam || syndrome != checks[umemTooSmall].Syndrome() {
			t.Errorf("%s: %v, %s", tt.what, status, reason(syndrome))
		}
	}
	for _, cqe128 := range []uint8{0, 1} {
		in := r.cq()
		in.SetCQUmemID(umem)
		in.CQContext().SetCQESz(cqe128)
		in.CQContext().SetLogCQSize(5)
		need := uint64(64) << 5 << cqe128
		in.SetCQUmemOffset(size - need)
		r.must(in)
		in.SetCQUmemOffset(size - need + 64)
		if status, syndrome, _ := r.exec(in); status != mlx5.StatusBadParam || syndrome != checks[umemTooSmall].Syndrome() {
			t.Errorf("CQ: %v, %s", status, reason(syndrome))
		}
	}
}

// No index outgrows the field that it is returned in.
func TestIndexWidths(t *testing.T) {
	h := newHCA(t, Config{LogMaxQP: 22, LogMaxUC: 15})
	if h.uctxs.first+h.uctxs.limit > sharedUID {
		t.Error("a context may get the shared uid")
	}
	for what, over := range map[string]bool{
		"PD": over(h.pds, 24), "UAR": over(h.uars, 24), "umem": over(h.umems, 24), "mkey": over(h.mkeys, 24), "CQ": over(h.cqs, 24),
		"QP": over(h.qps, 24), "EQ": over(h.eqs, 8), "counter set": over(h.counters, 8), "context": over(h.uctxs, 16),
	} {
		if over {
			t.Errorf("%s", what)
		}
	}
}

func over[T any](t *table[T], bits int) bool { return uint64(t.first)+uint64(t.limit) > 1<<bits }

// What belongs to whom: the shared uid's objects are everyone's, the kernel's
// UARs and event queues too, and only owners destroy.
func TestUID(t *testing.T) {
	r := newRig(t, Config{})
	uar, eq, sharedEQ := r.made(build(mlx5.OpAllocUAR, 0)), r.made(build(mlx5.OpCreateEQ, 0)), r.made(build(mlx5.OpCreateEQ, sharedUID))
	cq := r.made(r.cqWith(func(c mlx5.CQC) { c.SetUARPage(uar); c.SetCEQNOrApuElement(eq) }))
	other := r.made(r.cqWith(func(c mlx5.CQC) { c.SetCEQNOrApuElement(sharedEQ) }))
	for _, tt := range []struct {
		op   mlx5.Op
		uid  uint16
		id   uint32
		want check
	}{
		{mlx5.OpDeallocUAR, r.uid, uar, badUAR}, {mlx5.OpDeallocUAR, 0, uar, inUse},
		{mlx5.OpDestroyEQ, r.uid, eq, badEQN}, {mlx5.OpDestroyEQ, r.uid, sharedEQ, badEQN}, {mlx5.OpDestroyEQ, 0, sharedEQ, inUse},
		{mlx5.OpDestroyCQ, r.uid, cq, ok}, {mlx5.OpDestroyCQ, r.uid, other, ok},
		{mlx5.OpDeallocUAR, 0, uar, ok}, {mlx5.OpDestroyEQ, 0, eq, ok}, {mlx5.OpDestroyEQ, 0, sharedEQ, ok},
		{mlx5.OpDestroyEQ, 0, sharedEQ, badEQN},
	} {
		status, syndrome, _ := r.exec(about(tt.op, tt.uid, tt.id))
		if want := checks[tt.want]; status != want.Status || syndrome != 0 && syndrome != want.Syndrome() {
			t.Errorf("%v of %#x by uid %d: %v, %s", tt.op, tt.id, tt.uid, status, reason(syndrome))
		}
	}
}

// An index is not used again before reuseAfter others, or the table is full.
func TestIndexReuse(t *testing.T) {
	r := newRig(t, Config{LogMaxQP: 1})
	a, b := r.made(r.qp(mlx5.STRC)), r.made(r.qp(mlx5.STRC))
	r.must(about(mlx5.OpDestroyQP, r.uid, b))
	r.must(about(mlx5.OpDestroyQP, r.uid, a))
	if c := r.made(r.qp(mlx5.STRC)); c != b {
		t.Errorf("got QP %#x, want %#x, which has been free for longest", c, b)
	}
	first := r.made(build(mlx5.OpAllocPD, r.uid))
	last := first
	for n := uint32(0); ; n++ {
		r.must(about(mlx5.OpDeallocPD, r.uid, last))
		if last = r.made(build(mlx5.OpAllocPD, r.uid)); last == first {
			if n != reuseAfter {
				t.Errorf("PD %#x was used again after %d others", first, n)
			}
			break
		}
		if n > 2*reuseAfter {
			t.Fatalf("PD %#x was never used again", first)
		}
	}
	for range 5 * reuseAfter {
		r.must(about(mlx5.OpDeallocPD, r.uid, last))
		last = r.made(build(mlx5.OpAllocPD, r.uid))
	}
	if n := r.h.pds.next - r.h.pds.first; n > reuseAfter+3 {
		t.Errorf("2 PDs at once took %d places", n)
	}
}

func TestFault(t *testing.T) {
	r := newRig(t, Config{})
	for _, s := range []mlx5.State{mlx5.StateRST, mlx5.StateInit, mlx5.StateRTR, mlx5.StateSQD, mlx5.StateErr} {
		if qpn := r.inState(mlx5.STUC, s); r.h.Fault(qpn, mlx5.StateSQER) || mlx5.State(r.qpc(qpn).State()) != s {
			t.Errorf("a queue pair in %v failed", s)
		}
	}
	qpn := r.inState(mlx5.STUC, mlx5.StateRTS)
	for _, s := range []mlx5.State{mlx5.StateRST, mlx5.StateInit, mlx5.StateRTR, mlx5.StateRTS, mlx5.StateSQDraining, 15} {
		if r.h.Fault(qpn, s) || mlx5.State(r.qpc(qpn).State()) != mlx5.StateRTS {
			t.Errorf("a fault leads to %v", s)
		}
	}
	if !r.h.Fault(qpn, mlx5.StateSQER) || mlx5.State(r.qpc(qpn).State()) != mlx5.StateSQER {
		t.Error("no fault leads to SQER")
	}
	r.must(r.modify(mlx5.OpSQERR2RTS, qpn))
	r.must(about(mlx5.OpDestroyQP, r.uid, qpn))
	if r.h.Fault(qpn, mlx5.StateErr) || r.h.Fault(0, mlx5.StateErr) || r.h.Fault(^uint32(0), mlx5.StateErr) {
		t.Error("a queue pair that does not exist failed")
	}
}

// The driver asks about its users' queues under its own uid.
func TestKernelQueriesItsUsersQueues(t *testing.T) {
	r := newRig(t, Config{})
	if got := mlx5.QueryQPOut(r.must(about(mlx5.OpQueryQP, 0, r.made(r.qp(mlx5.STRC))))).QPC().CQNSnd(); got != r.cqn {
		t.Errorf("QUERY_QP: CQ %#x, want %#x", got, r.cqn)
	}
	if got := mlx5.QueryCQOut(r.must(about(mlx5.OpQueryCQ, 0, r.cqn))).CQContext().CEQNOrApuElement(); uint32(got) != r.eq {
		t.Errorf("QUERY_CQ: EQ %#x, want %#x", got, r.eq)
	}
}
