// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
)

// expected is what one transition takes on one transport, by the names of the
// struct's members. Required and optional members are IBTA volume 1, table 96,
// as ib_core's qp_state_table has it; those that verbs have no bit for
// (LogMsgMax, CounterSetID, LAGTXAffinity, AtomicMode, and PMState in RST2INIT)
// are optional where mlx5_ib's __mlx5_ib_modify_qp sets them. mask is mlx5_ib's
// opt_mask, without the bits that no member stands for.
type expected struct {
	op                 Op
	st                 ServiceType
	required, optional string
	mask               uint32
}

const (
	bitRRE     = 1 << 1
	bitRAE     = 1 << 2
	bitRWE     = 1 << 3
	bitPkey    = 1 << 4
	bitQKey    = 1 << 5
	bitRNR     = 1 << 6
	bitPM      = 1 << 10
	bitLAG     = 1 << 15
	bitPort    = 1 << 16
	bitSRQN    = 1 << 18
	bitCQN     = 1 << 19
	bitAltPath = 1 << 0
)

var table = []expected{
	{OpRST2INIT, STRC, "PkeyIndex Port Access", "CounterSetID LAGTXAffinity PMState AtomicMode", 0},
	{OpRST2INIT, STUC, "PkeyIndex Port Access", "CounterSetID LAGTXAffinity PMState", 0},
	{OpRST2INIT, STUD, "PkeyIndex Port QKey", "CounterSetID LAGTXAffinity PMState", 0},
	{OpINIT2INIT, STRC, "", "PkeyIndex Port Access LAGTXAffinity AtomicMode", bitRRE | bitRAE | bitRWE | bitPkey | bitPort | bitLAG},
	{OpINIT2INIT, STUC, "", "PkeyIndex Port Access LAGTXAffinity", bitRWE | bitPkey | bitPort | bitLAG},
	{OpINIT2INIT, STUD, "", "PkeyIndex Port QKey", bitPkey | bitQKey | bitPort},
	{OpINIT2RTR, STRC, "Path MTU RemoteQPN NextRcvPSN LogRRAMax MinRNRNak", "Access PkeyIndex LogMsgMax LAGTXAffinity AtomicMode",
		bitAltPath | bitRRE | bitRAE | bitRWE | bitPkey | bitLAG},
	{OpINIT2RTR, STUC, "Path MTU RemoteQPN NextRcvPSN", "Access PkeyIndex LogMsgMax LAGTXAffinity", bitAltPath | bitRWE | bitPkey | bitLAG},
	{OpINIT2RTR, STUD, "", "PkeyIndex QKey MTU LogMsgMax", bitPkey | bitQKey},
	{OpRTR2RTS, STRC, "AckTimeout RetryCount RNRRetry NextSendPSN LogSRAMax", "Access MinRNRNak PMState AtomicMode",
		bitAltPath | bitRRE | bitRAE | bitRWE | bitPM | bitRNR},
	{OpRTR2RTS, STUC, "NextSendPSN", "Access PMState", bitAltPath | bitRWE | bitPM},
	{OpRTR2RTS, STUD, "NextSendPSN", "QKey", bitQKey},
	{OpRTS2RTS, STRC, "", "Access PMState MinRNRNak AtomicMode", bitRRE | bitRAE | bitRWE | bitRNR | bitPM | bitAltPath},
	{OpRTS2RTS, STUC, "", "Access PMState", bitRWE | bitPM | bitAltPath},
	{OpRTS2RTS, STUD, "", "QKey", bitQKey | bitSRQN | bitCQN},
	{OpSQERR2RTS, STRC, "", "Access MinRNRNak AtomicMode", bitRNR | bitRWE | bitRAE | bitRRE}, // mlx5_ib only: no such row in ib_core
	{OpSQERR2RTS, STUC, "", "Access", bitRWE},
	{OpSQERR2RTS, STUD, "", "QKey", bitQKey},
	{Op2ERR, STRC, "", "", 0}, {Op2ERR, STUC, "", "", 0}, {Op2ERR, STUD, "", "", 0},
	{Op2RST, STRC, "", "", 0}, {Op2RST, STUC, "", "", 0}, {Op2RST, STUD, "", "", 0},
}

// member is what the test knows about a member of a transition.
type member struct {
	attr AttrID
	name string // in mlx5_ifc.h
	good int64
	bits uint32 // of opt_param_mask, where the transition has them
}

var members = map[string]member{
	"Port":          {AttrPort, "vhca_port_num", 1, bitPort},
	"PkeyIndex":     {AttrPkeyIndex, "pkey_index", 0, bitPkey},
	"Access":        {AttrAccess, "rre/rwe/rae", int64(RemoteWrite), bitRRE | bitRAE | bitRWE},
	"QKey":          {AttrQKey, "q_key", 0xffffffff, bitQKey},
	"CounterSetID":  {AttrCounterSetID, "counter_set_id", 255, 1 << 25},
	"LAGTXAffinity": {AttrLAGTXAffinity, "lag_tx_port_affinity", 2, bitLAG},
	"PMState":       {AttrPMState, "pm_state", 3, bitPM},
	"AtomicMode":    {AttrAtomicMode, "atomic_mode", 8, 0},
	"MTU":           {AttrMTU, "mtu", 5, 0},
	"LogMsgMax":     {AttrLogMsgMax, "log_msg_max", 0, 0},
	"RemoteQPN":     {AttrRemoteQPN, "remote_qpn", 0xffffff, 0},
	"NextRcvPSN":    {AttrNextRcvPSN, "next_rcv_psn", 0xffffff, 0},
	"LogRRAMax":     {AttrLogRRAMax, "log_rra_max", 7, 1 << 9},
	"MinRNRNak":     {AttrMinRNRNak, "min_rnr_nak", 31, bitRNR},
	"AckTimeout":    {AttrAckTimeout, "ack_timeout", 31, 1 << 14},
	"RetryCount":    {AttrRetryCount, "retry_count", 7, 1 << 12},
	"RNRRetry":      {AttrRNRRetry, "rnr_retry", 7, 1 << 13},
	"NextSendPSN":   {AttrNextSendPSN, "next_send_psn", 0, 0},
	"LogSRAMax":     {AttrLogSRAMax, "log_sra_max", 0, 1 << 8},
}

func rocePath() Path {
	return Path{RGID: [16]byte{0: 0xfe, 1: 0x80, 15: 1}, RMAC: [6]byte{2, 0, 0, 0, 0, 1}, SrcAddrIndex: Set(3)}
}

// zeroOf returns a pointer to an empty transition.
func zeroOf(op Op) reflect.Value {
	for _, t := range []Transition{RST2INIT{}, INIT2INIT{}, INIT2RTR{}, RTR2RTS{}, RTS2RTS{}, SQERR2RTS{}, ToERR{}, ToRST{}} {
		if t.Op() == op {
			return reflect.New(reflect.TypeOf(t))
		}
	}
	panic(op)
}

// put sets a member to a good value.
func put(t reflect.Value, name string) {
	if name == "Path" {
		t.Elem().FieldByName(name).Set(reflect.ValueOf(rocePath()))
		return
	}
	t.Elem().FieldByName(name).Set(reflect.ValueOf(Set(members[name].good)))
}

// good returns a transition with the required members.
func (x expected) good() reflect.Value {
	t := zeroOf(x.op)
	for _, name := range strings.Fields(x.required) {
		put(t, name)
	}
	return t
}

func (x expected) String() string { return fmt.Sprintf("%s (%s)", x.op, x.st) }

// encode calls Encode and checks what holds for every call: a failure returns 0
// and leaves the buffer zero.
func encode(t *testing.T, tr Transition, qpn uint32, st ServiceType) ([]byte, error) {
	t.Helper()
	dst := make([]byte, TransitionSize+8)
	n, err := tr.Encode(dst, qpn, st)
	if err != nil && (n != 0 || !allZero(dst)) {
		t.Errorf("%#v: after an error n = %d, dst = %x", tr, n, dst)
	}
	if err == nil && !allZero(dst[n:]) {
		t.Errorf("%#v: wrote beyond its %d bytes", tr, n)
	}
	return dst[:n], err
}

func (x expected) encode(t *testing.T, v reflect.Value) ([]byte, error) {
	t.Helper()
	return encode(t, v.Elem().Interface().(Transition), 0x123456, x.st)
}

// size returns the length of the command.
func (x expected) size() int {
	if x.op == Op2ERR || x.op == Op2RST {
		return 16
	}
	return 272
}

func TestRequiredAndOptional(t *testing.T) {
	if len(table) != 3*len(Transitions()) {
		t.Fatalf("the table has %d rows for %d transitions", len(table), len(Transitions()))
	}
	for _, x := range table {
		cmd, err := x.encode(t, x.good())
		if err != nil {
			t.Errorf("%s with what it requires: %v", x, err)
			continue
		}
		if len(cmd) != x.size() {
			t.Errorf("%s has %d bytes, want %d", x, len(cmd), x.size())
		}
		if got, want := hex.EncodeToString(cmd[:16]), fmt.Sprintf("%04x00000000000000123456%08x", uint16(x.op), 0); got != want {
			t.Errorf("%s begins %s, want %s", x, got, want)
		}
		takes := x.takes()
		typ := zeroOf(x.op).Elem().Type()
		for i := range typ.NumField() {
			x.checkMember(t, typ.Field(i).Name, takes)
		}
	}
}

// takes spells out the attributes that a transition takes, as messages do.
func (x expected) takes() string {
	var names []string
	for id := range numAttrs {
		for name, m := range members {
			if m.attr == id && strings.Contains(" "+x.required+" "+x.optional+" ", " "+name+" ") {
				names = append(names, m.name)
			}
		}
		if strings.Contains(x.required, "Path") && pathAttrs.Has(id) {
			names = append(names, id.String())
		}
	}
	return strings.Join(names, " ")
}

func (x expected) checkMember(t *testing.T, name, takes string) {
	v, m := x.good(), members[name]
	var attr *AttrError
	switch in := func(list string) bool { return strings.Contains(" "+list+" ", " "+name+" ") }; {
	case in(x.required):
		f := v.Elem().FieldByName(name)
		f.SetZero()
		_, err := x.encode(t, v)
		if name == "Path" {
			m = member{attr: AttrRGID, name: "rgid_rip"}
		}
		if !errors.As(err, &attr) || attr.Op != x.op || attr.ST != x.st || attr.Attr != m.attr {
			t.Errorf("%s without %s: %v", x, name, err)
		} else if want := fmt.Sprintf("mlx5: %s: %s is missing", x, m.name); !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s without %s: %v, want %s…", x, name, err, want)
		}
	case in(x.optional):
		put(v, name)
		cmd, err := x.encode(t, v)
		if err != nil {
			t.Errorf("%s with %s: %v", x, name, err)
			return
		}
		if got, want := RST2INITQPIn(cmd).OptParamMask(), m.bits&x.mask; got != want {
			t.Errorf("%s with %s has opt_param_mask %#x, want %#x", x, name, got, want)
		}
	case name == "Path":
		put(v, name)
		_, err := x.encode(t, v)
		want := fmt.Sprintf("mlx5: %s: rgid_rip does not apply: a UD QP takes its address from each work request", x)
		if err == nil || err.Error() != want {
			t.Errorf("%s with a path: %v, want %s", x, err, want)
		}
	default:
		put(v, name)
		_, err := x.encode(t, v)
		if want := fmt.Sprintf("mlx5: %s: %s does not apply; it takes: %s", x, m.name, takes); err == nil || err.Error() != want {
			t.Errorf("%s with %s: %v, want %s", x, name, err, want)
		}
	}
}

// The rules that other packages read agree with the table, too.
func TestRules(t *testing.T) {
	states := map[Op]struct {
		from []State
		to   State
	}{
		OpRST2INIT: {[]State{0}, 1}, OpINIT2INIT: {[]State{1}, 1}, OpINIT2RTR: {[]State{1}, 2}, OpRTR2RTS: {[]State{2}, 3},
		OpRTS2RTS: {[]State{3}, 3}, OpSQERR2RTS: {[]State{4}, 3}, Op2ERR: {nil, 6}, Op2RST: {nil, 0},
	}
	for _, x := range table {
		r := RuleOf(x.op, x.st)
		if r == nil {
			t.Errorf("no rule for %s", x)
			continue
		}
		set := func(names string) (s AttrSet) {
			for _, n := range strings.Fields(names) {
				if n != "Path" {
					s |= Attrs(members[n].attr)
				}
			}
			return s
		}
		optional := set(x.optional)
		if strings.Contains(x.required, "Path") {
			optional |= pathAttrs // which of them is required depends on the port's type
		}
		if r.Op != x.op || r.ST != x.st || r.Required != set(x.required) || r.Optional != optional || uint32(r.OptMask) != x.mask {
			t.Errorf("%s: the rule is %+v", x, r)
		}
		want := states[x.op]
		for s := State(0); s < 16; s++ {
			accepts := want.from == nil
			for _, f := range want.from {
				accepts = accepts || f == s
			}
			if r.AcceptsFrom(s) != accepts {
				t.Errorf("%s from %s: %v", x, s, !accepts)
			}
		}
		if r.To != want.to {
			t.Errorf("%s leads to %s", x, r.To)
		}
	}
	for op := range 0x1000 {
		for st := range 256 {
			r := RuleOf(Op(op), ServiceType(st))
			known := st < 3 && (op >= 0x502 && op <= 0x507 || op == 0x50a || op == 0x50e)
			if (r != nil) != known {
				t.Fatalf("RuleOf(%#x, %d) = %v", op, st, r)
			}
		}
	}
}

// Each value in its place: the positions are counted in mlx5_ifc.h by hand.
func TestEncodedBytes(t *testing.T) {
	roce := Path{
		RGID: [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, RMAC: [6]byte{0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5},
		SrcAddrIndex: Set(0xc1), HopLimit: Set(0x40), TClass: Set(0xb5), FlowLabel: Set(0x54321), UDPSport: Set(0xc123), SL: Set(5), StatRate: Set(9),
	}
	for _, c := range []struct {
		name  string
		tr    Transition
		st    ServiceType
		bytes map[int]string // at, hexadecimal; the rest is zero
	}{
		{"RST2INIT RC", RST2INIT{Port: Set(2), PkeyIndex: Set(0x1234), Access: Set(RemoteWrite | RemoteRead | RemoteAtomic), CounterSetID: Set(0x7f),
			LAGTXAffinity: Set(0xb), PMState: Set(1), AtomicMode: Set(3)}, STRC,
			map[int]string{0: "0502", 8: "00abcdef", 24: "0b0008", 36: "7f", 50: "1234", 85: "02", 169: "03e0"}},
		{"RST2INIT, defaults", RST2INIT{Port: Set(1), PkeyIndex: Set(0), Access: Set(RemoteAtomic)}, STRC,
			map[int]string{0: "0502", 8: "00abcdef", 26: "18", 85: "01", 169: "0120"}},
		{"RST2INIT UD", RST2INIT{Port: Set(1), PkeyIndex: Set(0), QKey: Set(uint32(0xfedcba98))}, STUD,
			map[int]string{0: "0502", 8: "00abcdef", 26: "18", 85: "01", 192: "fedcba98"}},
		{"INIT2INIT RC", INIT2INIT{Port: Set(1), PkeyIndex: Set(1), Access: Set(RemoteRead), LAGTXAffinity: Set(1)}, STRC,
			map[int]string{0: "050e", 8: "00abcdef", 16: "0001801e", 24: "01", 50: "0001", 85: "01", 170: "80"}},
		{"INIT2RTR RC, RoCE", INIT2RTR{MTU: Set(MTU1024), RemoteQPN: Set(0x876543), NextRcvPSN: Set(0x9abcde), LogRRAMax: Set(4), MinRNRNak: Set(12), Path: roce}, STRC,
			map[int]string{0: "0503", 8: "00abcdef", 32: "7e", 45: "876543", 57: "c109400b554321", 64: "000102030405060708090a0b0c0d0e0f",
				81: "2dc1235001a0a1a2a3a4a5", 169: "80", 172: "0c9abcde"}},
		{"INIT2RTR UC, InfiniBand", INIT2RTR{MTU: Set(MTU4096), LogMsgMax: Set(7), RemoteQPN: Set(1), NextRcvPSN: Set(2), Path: Path{RLID: Set(0xbeef), SL: Set(13), StatRate: Set(2), Port: Set(1)}, Access: Set(0)}, STUC,
			map[int]string{0: "0503", 8: "00abcdef", 16: "00000008", 32: "a7", 45: "000001", 54: "beef", 58: "02", 84: "0d01", 173: "000002"}},
		{"INIT2RTR UD", INIT2RTR{}, STUD, map[int]string{0: "0503", 8: "00abcdef", 32: "ac"}},
		{"RTR2RTS RC", RTR2RTS{AckTimeout: Set(14), RetryCount: Set(6), RNRRetry: Set(RNRRetryForever), NextSendPSN: Set(0x345678), LogSRAMax: Set(5), MinRNRNak: Set(31),
			PMState: Set(0), Access: Set(RemoteWrite)}, STRC,
			map[int]string{0: "0504", 8: "00abcdef", 16: "0000044e", 56: "70", 137: "a6e0", 145: "345678", 170: "40", 172: "1f"}},
		{"RTS2RTS UD", RTS2RTS{QKey: Set(1)}, STUD, map[int]string{0: "0505", 8: "00abcdef", 16: "00000020", 195: "01"}},
		{"SQERR2RTS RC", SQERR2RTS{Access: Set(RemoteAtomic), AtomicMode: Set(2), MinRNRNak: Set(1)}, STRC,
			map[int]string{0: "0506", 8: "00abcdef", 16: "0000004e", 169: "0220", 172: "01"}},
		{"2ERR", ToERR{}, STUC, map[int]string{0: "0507", 8: "00abcdef"}},
		{"2RST", ToRST{}, STUD, map[int]string{0: "050a", 8: "00abcdef"}},
	} {
		got, err := encode(t, c.tr, 0xabcdef, c.st)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		want := make([]byte, len(got))
		for at, text := range c.bytes {
			b, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			copy(want[at:], b)
		}
		if !bytes.Equal(got, want) {
			var dump strings.Builder
			if err := WriteDump(&dump, got, nil); err != nil {
				t.Fatal(err)
			}
			t.Errorf("%s:\n got %x\nwant %x\n%s", c.name, got, want, dump.String())
		}
	}
}

func TestOutOfRange(t *testing.T) {
	rts := func(change func(*RTR2RTS)) Transition {
		r := RTR2RTS{AckTimeout: Set(14), RetryCount: Set(7), RNRRetry: Set(7), NextSendPSN: Set(0), LogSRAMax: Set(0)}
		change(&r)
		return r
	}
	rtr := func(change func(*INIT2RTR)) Transition {
		r := INIT2RTR{MTU: Set(MTU1024), RemoteQPN: Set(1), NextRcvPSN: Set(0), LogRRAMax: Set(0), MinRNRNak: Set(0), Path: rocePath()}
		change(&r)
		return r
	}
	init := func(change func(*RST2INIT)) Transition {
		r := RST2INIT{Port: Set(1), PkeyIndex: Set(0), Access: Set(0)}
		change(&r)
		return r
	}
	ib := func(p *Path, change func(*Path)) { *p = Path{RLID: Set(1)}; change(p) }
	for _, c := range []struct {
		tr   Transition
		want string
	}{
		{rts(func(r *RTR2RTS) { r.RetryCount = Set(15) }), "retry_count 15 is out of range: 0 to 7"},
		{rts(func(r *RTR2RTS) { r.RetryCount = Set(-1) }), "retry_count -1 is out of range: 0 to 7"},
		{rts(func(r *RTR2RTS) { r.RNRRetry = Set(8) }), "rnr_retry 8 is out of range: 0 to 7 (7 means for ever)"},
		{rts(func(r *RTR2RTS) { r.AckTimeout = Set(32) }), "ack_timeout 32 is out of range: 0 to 31 (the time is 4.096 µs · 2^n; 14 is 67 ms, 0 is no time-out)"},
		{rts(func(r *RTR2RTS) { r.NextSendPSN = Set(PSN(1 << 24)) }), "next_send_psn 16777216 is out of range: 0 to 16777215 (a PSN has 24 bits)"},
		{rts(func(r *RTR2RTS) { r.NextSendPSN = Set(int64(math.MinInt64)) }), "next_send_psn -9223372036854775808 is out of range: 0 to 16777215 (a PSN has 24 bits)"},
		{rts(func(r *RTR2RTS) { r.LogSRAMax = Set(8) }), "log_sra_max 8 is out of range: 0 to 7 (a logarithm: 4 allows 16 outstanding reads)"},
		{rts(func(r *RTR2RTS) { r.PMState = Set(2) }), "pm_state 2 is out of range: 0 to 3 (0 armed, 1 rearm, 3 migrated)"},
		{rts(func(r *RTR2RTS) { r.PMState = Set(4) }), "pm_state 4 is out of range: 0 to 3 (0 armed, 1 rearm, 3 migrated)"},
		{rts(func(r *RTR2RTS) { r.Access = Set(8) }), "rre/rwe/rae 8 is out of range: 0 to 7"},
		{rts(func(r *RTR2RTS) { r.AtomicMode = Set(16) }), "atomic_mode 16 is out of range: 0 to 15 (0 none, 1 as in the IB specification, 2 to 8: MLX5_QPC_ATOMIC_MODE_* in mlx5_ifc.h)"},
		{rtr(func(r *INIT2RTR) { r.MTU = Set(0) }), "mtu 0 is out of range: 1 to 5 (1 to 5 stand for 256 to 4096 bytes: use mlx5.MTU256 … mlx5.MTU4096 or MTUOf)"},
		{rtr(func(r *INIT2RTR) { r.MTU = Set(6) }), "mtu 6 is out of range: 1 to 5 (1 to 5 stand for 256 to 4096 bytes: use mlx5.MTU256 … mlx5.MTU4096 or MTUOf)"},
		{rtr(func(r *INIT2RTR) { r.LogMsgMax = Set(31) }), "log_msg_max 31 is out of range: 0 to 30 (the largest message is 2^30 bytes)"},
		{rtr(func(r *INIT2RTR) { r.NextRcvPSN = Set(uint(math.MaxUint)) }), "next_rcv_psn -1 is out of range: 0 to 16777215 (a PSN has 24 bits)"},
		{rtr(func(r *INIT2RTR) { r.RemoteQPN = Set(1 << 24) }), "remote_qpn 16777216 is out of range: 0 to 16777215"},
		{rtr(func(r *INIT2RTR) { r.LogRRAMax = Set(8) }), "log_rra_max 8 is out of range: 0 to 7 (a logarithm: 4 allows 16 outstanding reads)"},
		{rtr(func(r *INIT2RTR) { r.MinRNRNak = Set(32) }), "min_rnr_nak 32 is out of range: 0 to 31 (an index into the RNR timer table; 0 is the longest, 655.36 ms)"},
		{rtr(func(r *INIT2RTR) { r.Path.SL = Set(8) }), "sl 8 is out of range: 0 to 7 (on Ethernet it is the priority)"},
		{rtr(func(r *INIT2RTR) { r.Path.SL = Set(-1) }), "sl -1 is out of range: 0 to 7 (on Ethernet it is the priority)"},
		{rtr(func(r *INIT2RTR) { ib(&r.Path, func(p *Path) { p.SL = Set(16) }) }), "sl 16 is out of range: 0 to 15 (on Ethernet it is the priority, 0 to 7)"},
		{rtr(func(r *INIT2RTR) { ib(&r.Path, func(p *Path) { p.RLID = Set(1 << 16) }) }), "rlid 65536 is out of range: 0 to 65535"},
		{rtr(func(r *INIT2RTR) { r.Path.UDPSport = Set(1 << 16) }), "udp_sport 65536 is out of range: 0 to 65535"},
		{rtr(func(r *INIT2RTR) { r.Path.SrcAddrIndex = Set(256) }), "src_addr_index 256 is out of range: 0 to 255"},
		{rtr(func(r *INIT2RTR) { r.Path.HopLimit = Set(256) }), "hop_limit 256 is out of range: 0 to 255"},
		{rtr(func(r *INIT2RTR) { r.Path.TClass = Set(256) }), "tclass 256 is out of range: 0 to 255"},
		{rtr(func(r *INIT2RTR) { r.Path.FlowLabel = Set(1 << 20) }), "flow_label 1048576 is out of range: 0 to 1048575"},
		{rtr(func(r *INIT2RTR) { r.Path.StatRate = Set(16) }), "stat_rate 16 is out of range: 0 to 15"},
		{init(func(r *RST2INIT) { r.Port = Set(0) }), "vhca_port_num 0 is out of range: 1 to 255 (ports count from 1)"},
		{init(func(r *RST2INIT) { r.Port = Set(256) }), "vhca_port_num 256 is out of range: 1 to 255 (ports count from 1)"},
		{init(func(r *RST2INIT) { r.PkeyIndex = Set(1 << 16) }), "pkey_index 65536 is out of range: 0 to 65535"},
		{init(func(r *RST2INIT) { r.CounterSetID = Set(256) }), "counter_set_id 256 is out of range: 0 to 255"},
		{init(func(r *RST2INIT) { r.LAGTXAffinity = Set(16) }), "lag_tx_port_affinity 16 is out of range: 0 to 15"},
	} {
		_, err := encode(t, c.tr, 1, STRC)
		if want := fmt.Sprintf("mlx5: %s (RC): %s", c.tr.Op(), c.want); err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
	_, err := encode(t, RTS2RTS{QKey: Set(int64(1) << 32)}, 1, STUD)
	if want := "mlx5: RTS2RTS_QP (UD): q_key 4294967296 is out of range: 0 to 4294967295"; err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestPathAndTransport(t *testing.T) {
	rtr := func(change func(*Path)) Transition {
		r := INIT2RTR{MTU: Set(MTU1024), RemoteQPN: Set(1), NextRcvPSN: Set(0), LogRRAMax: Set(0), MinRNRNak: Set(0), Path: rocePath()}
		change(&r.Path)
		return r
	}
	const either = "rgid_rip is missing: give Path.RGID, RMAC and SrcAddrIndex (RoCE) or Path.RLID (InfiniBand)"
	for _, c := range []struct {
		tr   Transition
		st   ServiceType
		want string
	}{
		{rtr(func(p *Path) { p.RMAC = [6]byte{} }), STRC, "rmac is missing: RoCE needs the remote MAC address, and DevX resolves none"},
		{rtr(func(p *Path) { p.RGID = [16]byte{} }), STRC, "rgid_rip is missing: RoCE needs the remote GID"},
		{rtr(func(p *Path) { p.SrcAddrIndex = Attr{} }), STRC, "src_addr_index is missing: RoCE needs the index of the own GID"},
		{rtr(func(p *Path) { p.RLID = Set(0) }), STRC, "rlid does not apply: RoCE has no LIDs"},
		{rtr(func(p *Path) { *p = Path{} }), STRC, either},
		{rtr(func(p *Path) { *p = Path{SrcAddrIndex: Set(0), SL: Set(0)} }), STRC, either},
		{rtr(func(p *Path) { *p = Path{RLID: Set(0), UDPSport: Set(0xc000)} }), STRC, "udp_sport does not apply: InfiniBand has no UDP ports"},
		{INIT2RTR{Path: Path{TClass: Set(0)}}, STUD, "rgid_rip does not apply: a UD QP takes its address from each work request"},
		{RTR2RTS{NextSendPSN: Set(0), Access: Set(RemoteRead)}, STUC, "rre/rwe/rae asks for remote read or atomic, which only RC has"},
		{RTS2RTS{Access: Set(RemoteWrite | RemoteAtomic)}, STUC, "rre/rwe/rae asks for remote read or atomic, which only RC has"},
		{RTR2RTS{NextSendPSN: Set(0), RetryCount: Set(0)}, STUD, "retry_count does not apply; it takes: next_send_psn q_key"},
	} {
		_, err := encode(t, c.tr, 1, c.st)
		if want := fmt.Sprintf("mlx5: %s (%s): %s", c.tr.Op(), c.st, c.want); err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
	_, err := encode(t, RTR2RTS{RetryCount: Set(7), RNRRetry: Set(7), NextSendPSN: Set(0), LogSRAMax: Set(0)}, 1, STRC)
	if want := "mlx5: RTR2RTS_QP (RC): ack_timeout is missing (ibv_modify_qp: IBV_QP_TIMEOUT); required: ack_timeout log_sra_max retry_count rnr_retry next_send_psn"; err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// What is not about an attribute: the buffer, the number, the transport.
func TestEncodeRefuses(t *testing.T) {
	for _, x := range table {
		tr := x.good().Elem().Interface().(Transition)
		for _, n := range []int{0, 15, 271} {
			dst := bytes.Repeat([]byte{0}, n)
			_, err := tr.Encode(dst, 1, x.st)
			if want := fmt.Sprintf("mlx5: %s needs a buffer of 272 bytes, not %d", x.op, n); err == nil || err.Error() != want || !allZero(dst) {
				t.Errorf("%d bytes: %v, want %s", n, err, want)
			}
		}
		if _, err := encode(t, tr, 1<<24-1, x.st); err != nil {
			t.Errorf("the greatest QPN: %v", err)
		}
		_, err := encode(t, tr, 1<<24, x.st)
		if want := fmt.Sprintf("mlx5: %s: a QPN has 24 bits: 0x1000000", x.op); err == nil || err.Error() != want {
			t.Errorf("QPN of 25 bits: %v, want %s", err, want)
		}
		for st := STXRC; st != 0; st++ { // up to 255
			_, err = encode(t, tr, 1, st)
			if want := fmt.Sprintf("mlx5: no %s for %s: RC, UC and UD QPs are supported", x.op, st); err == nil || err.Error() != want {
				t.Fatalf("st %d: %v, want %s", st, err, want)
			}
		}
	}
}

func TestAttr(t *testing.T) {
	if v, ok := (Attr{}).Get(); v != 0 || ok {
		t.Errorf("the zero Attr is %d, %v", v, ok)
	}
	for v, a := range map[int64]Attr{
		0: Set(0), 5: Set(MTU4096), -3: Set(int8(-3)), 255: Set(uint8(255)), -1: Set(uint(math.MaxUint)), 1 << 24: Set(PSN(1 << 24)), 7: Set(RemoteRead | RemoteWrite | RemoteAtomic),
	} {
		if got, ok := a.Get(); got != v || !ok {
			t.Errorf("Set(%d).Get() = %d, %v", v, got, ok)
		}
	}
	for id := range numAttrs {
		min, max := id.Range()
		switch id {
		case AttrRGID, AttrRMAC:
			if min != 0 || max != 0 {
				t.Errorf("%s has the range %d to %d", id, min, max)
			}
		default:
			if min > max {
				t.Errorf("%s has the range %d to %d", id, min, max)
			}
		}
		if s := Attrs(id); !s.Has(id) || s.String() != id.String() || len(s.IDs()) != 1 || s.IDs()[0] != id {
			t.Errorf("the set of %s is %v", id, s)
		}
	}
	if min, max := AttrRetryCount.Range(); min != 0 || max != 7 {
		t.Errorf("retry_count has the range %d to %d", min, max)
	}
	if min, max := numAttrs.Range(); min != 0 || max != 0 || numAttrs.VerbsName() != "" || numAttrs.String() != fmt.Sprintf("AttrID(%d)", numAttrs) {
		t.Errorf("an unknown attribute: %s, %q, %d to %d", numAttrs, numAttrs.VerbsName(), min, max)
	}
	if got, want := Attrs(AttrQKey, AttrMTU).String(), "mtu q_key"; got != want {
		t.Errorf("set: %s, want %s", got, want)
	}
}

func TestOptParString(t *testing.T) {
	for v, want := range map[OptPar]string{
		0:                        "0x0",
		OptParRRE:                "RRE",
		OptParQKey | OptParRWE:   "RWE|Q_KEY",
		1<<31 | OptParPMState:    "PM_STATE|0x80000000",
		1 << 11:                  "0x800",
		OptParPriPort | 1<<11:    "PRI_PORT|0x800",
		OptParCounterSetID:       "COUNTER_SET_ID",
		OptParLAGTXAff | 1<<0:    "ALT_ADDR_PATH|LAG_TX_AFF",
		OptParSRQN | OptParDCKey: "SRQN|DC_KEY",
	} {
		if got := v.String(); got != want {
			t.Errorf("%#x: %s, want %s", uint32(v), got, want)
		}
	}
}

// encodeGeneric is how package devx calls Encode.
func encodeGeneric[T Transition](tr T, dst []byte, st ServiceType) error {
	_, err := tr.Encode(dst, 1, st)
	return err
}

// No allocation: a transition that allocates is garbage on the path that the
// experiments measure.
func TestEncodeAllocatesNothing(t *testing.T) {
	dst := make([]byte, TransitionSize)
	init := RST2INIT{Port: Set(1), PkeyIndex: Set(0), Access: Set(RemoteWrite), CounterSetID: Set(1), PMState: Set(3)}
	rtr := INIT2RTR{MTU: Set(MTU1024), RemoteQPN: Set(1), NextRcvPSN: Set(0), LogRRAMax: Set(0), MinRNRNak: Set(0), Path: rocePath(), Access: Set(RemoteAtomic)}
	rts := RTR2RTS{AckTimeout: Set(14), RetryCount: Set(7), RNRRetry: Set(7), NextSendPSN: Set(0), LogSRAMax: Set(0)}
	for name, f := range map[string]func() error{
		"RST2INIT":           func() error { _, err := init.Encode(dst, 1, STRC); return err },
		"INIT2INIT":          func() error { _, err := INIT2INIT{Port: Set(1)}.Encode(dst, 1, STUD); return err },
		"INIT2RTR":           func() error { _, err := rtr.Encode(dst, 1, STRC); return err },
		"RTR2RTS":            func() error { _, err := rts.Encode(dst, 1, STRC); return err },
		"RTS2RTS":            func() error { _, err := RTS2RTS{QKey: Set(1)}.Encode(dst, 1, STUD); return err },
		"SQERR2RTS":          func() error { _, err := SQERR2RTS{Access: Set(0)}.Encode(dst, 1, STUC); return err },
		"ToERR":              func() error { _, err := ToERR{}.Encode(dst, 1, STRC); return err },
		"ToRST":              func() error { _, err := ToRST{}.Encode(dst, 1, STRC); return err },
		"RST2INIT, generic":  func() error { return encodeGeneric(init, dst, STRC) },
		"INIT2INIT, generic": func() error { return encodeGeneric(INIT2INIT{Port: Set(1)}, dst, STUD) },
		"INIT2RTR, generic":  func() error { return encodeGeneric(rtr, dst, STRC) },
		"RTR2RTS, generic":   func() error { return encodeGeneric(rts, dst, STRC) },
		"RTS2RTS, generic":   func() error { return encodeGeneric(RTS2RTS{QKey: Set(1)}, dst, STUD) },
		"SQERR2RTS, generic": func() error { return encodeGeneric(SQERR2RTS{Access: Set(0)}, dst, STUC) },
		"ToERR, generic":     func() error { return encodeGeneric(ToERR{}, dst, STRC) },
		"ToRST, generic":     func() error { return encodeGeneric(ToRST{}, dst, STRC) },
	} {
		var err error
		allocs := testing.AllocsPerRun(100, func() {
			clear(dst)
			if e := f(); e != nil {
				err = e
			}
		})
		if err != nil || allocs != 0 {
			t.Errorf("%s: %v allocations, %v", name, allocs, err)
		}
	}
}

func BenchmarkEncodeRTR2RTS(b *testing.B) {
	dst := make([]byte, TransitionSize)
	rts := RTR2RTS{AckTimeout: Set(14), RetryCount: Set(7), RNRRetry: Set(7), NextSendPSN: Set(0), LogSRAMax: Set(0)}
	b.ReportAllocs()
	for b.Loop() {
		clear(dst)
		if err := encodeGeneric(rts, dst, STRC); err != nil {
			b.Fatal(err)
		}
	}
}
