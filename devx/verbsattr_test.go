// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"bytes"
	"strings"
	"testing"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// encoded returns a transition's command.
func encoded[T mlx5.Transition](t *testing.T, tr T, st mlx5.ServiceType) []byte {
	t.Helper()
	cmd := make([]byte, mlx5.TransitionSize)
	n, err := tr.Encode(cmd, 0x42, st)
	must(t, err)
	return cmd[:n]
}

// What each transition requires and takes is qp_state_table of
// drivers/infiniband/core/verbs.c, read by hand; the rows that mlx5 has no
// attribute for (ALT_PATH, EN_SQD_ASYNC_NOTIFY) are left out.
func TestVerbsMasks(t *testing.T) {
	const path = "AV|PATH_MTU|RQ_PSN|DEST_QPN"
	for _, c := range []struct {
		op                 mlx5.Op
		st                 mlx5.ServiceType
		required, optional string
	}{
		{mlx5.OpRST2INIT, mlx5.STRC, "STATE|ACCESS_FLAGS|PKEY_INDEX|PORT", "0"},
		{mlx5.OpRST2INIT, mlx5.STUC, "STATE|ACCESS_FLAGS|PKEY_INDEX|PORT", "0"},
		{mlx5.OpRST2INIT, mlx5.STUD, "STATE|PKEY_INDEX|PORT|QKEY", "0"},
		{mlx5.OpINIT2INIT, mlx5.STRC, "STATE", "ACCESS_FLAGS|PKEY_INDEX|PORT"},
		{mlx5.OpINIT2INIT, mlx5.STUD, "STATE", "PKEY_INDEX|PORT|QKEY"},
		{mlx5.OpINIT2RTR, mlx5.STRC, "STATE|AV|PATH_MTU|RQ_PSN|MIN_RNR_TIMER|MAX_DEST_RD_ATOMIC|DEST_QPN", "ACCESS_FLAGS|PKEY_INDEX"},
		{mlx5.OpINIT2RTR, mlx5.STUC, "STATE|" + path, "ACCESS_FLAGS|PKEY_INDEX"},
		{mlx5.OpRTR2RTS, mlx5.STRC, "STATE|TIMEOUT|RETRY_CNT|RNR_RETRY|MAX_QP_RD_ATOMIC|SQ_PSN", "CUR_STATE|ACCESS_FLAGS|MIN_RNR_TIMER|PATH_MIG_STATE"},
		{mlx5.OpRTR2RTS, mlx5.STUC, "STATE|SQ_PSN", "CUR_STATE|ACCESS_FLAGS|PATH_MIG_STATE"},
		{mlx5.OpRTR2RTS, mlx5.STUD, "STATE|SQ_PSN", "CUR_STATE|QKEY"},
		{mlx5.OpRTS2RTS, mlx5.STRC, "STATE", "CUR_STATE|ACCESS_FLAGS|MIN_RNR_TIMER|PATH_MIG_STATE"},
		{mlx5.OpSQERR2RTS, mlx5.STRC, "STATE", "0"},
		{mlx5.OpSQERR2RTS, mlx5.STUC, "STATE", "CUR_STATE|ACCESS_FLAGS"},
		{mlx5.OpSQERR2RTS, mlx5.STUD, "STATE", "CUR_STATE|QKEY"},
		{mlx5.Op2ERR, mlx5.STRC, "STATE", "0"},
		{mlx5.Op2RST, mlx5.STUD, "STATE", "0"},
	} {
		required, optional := devx.VerbsMasks(mlx5.RuleOf(c.op, c.st))
		if required.String() != c.required || optional.String() != c.optional {
			t.Errorf("%s (%s): %s and %s, want %s and %s", c.op, c.st, required, optional, c.required, c.optional)
		}
	}
}

func TestVerbsAttrs(t *testing.T) {
	all := mlx5.Set(mlx5.RemoteWrite)
	rtr := mlx5.INIT2RTR{MTU: mlx5.Set(mlx5.MTU256), RemoteQPN: mlx5.Set(1), NextRcvPSN: mlx5.Set(2), Path: mlx5.Path{RLID: mlx5.Set(7), SL: mlx5.Set(9)}}
	for _, c := range []struct {
		what string
		cmd  []byte
		st   mlx5.ServiceType
		mask string
		ok   func(a devx.QPAttr) bool
	}{
		{"UD to INIT", encoded(t, mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(3), QKey: mlx5.Set(uint32(0x80000001))}, mlx5.STUD), mlx5.STUD, "STATE|PKEY_INDEX|PORT|QKEY",
			func(a devx.QPAttr) bool {
				return a.State == mlx5.StateInit && a.QKey == 0x80000001 && a.PkeyIndex == 3 && a.Port == 1
			}},
		{"INIT2INIT", encoded(t, mlx5.INIT2INIT{Port: mlx5.Set(1), Access: all}, mlx5.STRC), mlx5.STRC, "STATE|ACCESS_FLAGS|PORT",
			func(a devx.QPAttr) bool { return a.State == mlx5.StateInit && a.Access == mlx5.RemoteWrite }},
		{"UC by LID", encoded(t, rtr, mlx5.STUC), mlx5.STUC, "STATE|AV|PATH_MTU|RQ_PSN|DEST_QPN",
			func(a devx.QPAttr) bool {
				return a.AV.DLID == 7 && a.AV.SL == 9 && a.AV.DGID == [16]byte{} && a.RQPSN == 2 && a.PathMTU == mlx5.MTU256
			}},
		{"UD to RTR", encoded(t, mlx5.INIT2RTR{QKey: mlx5.Set(5)}, mlx5.STUD), mlx5.STUD, "STATE|QKEY", func(a devx.QPAttr) bool { return a.QKey == 5 }},
		{"RTS2RTS", encoded(t, mlx5.RTS2RTS{PMState: mlx5.Set(0)}, mlx5.STRC), mlx5.STRC, "STATE|PATH_MIG_STATE", func(a devx.QPAttr) bool { return a.PathMigState == devx.MigArmed }},
		{"SQERR2RTS", encoded(t, mlx5.SQERR2RTS{QKey: mlx5.Set(uint32(3))}, mlx5.STUD), mlx5.STUD, "STATE|CUR_STATE|QKEY",
			func(a devx.QPAttr) bool {
				return a.QKey == 3 && a.CurState == mlx5.StateSQER && a.State == mlx5.StateRTS
			}},
		{"SQERR2RTS of an RC QP", encoded(t, mlx5.SQERR2RTS{}, mlx5.STRC), mlx5.STRC, "STATE", func(a devx.QPAttr) bool { return a.State == mlx5.StateRTS && a.CurState == 0 }},
		{"2RST", encoded(t, mlx5.ToRST{}, mlx5.STRC), mlx5.STRC, "STATE", func(a devx.QPAttr) bool { return a == devx.QPAttr{} }},
	} {
		a, mask, err := devx.VerbsAttrs(c.cmd, c.st)
		if err != nil || mask.String() != c.mask || !c.ok(a) {
			t.Errorf("%s: %s, %+v, %v; want %s", c.what, mask, a, err, c.mask)
		}
	}
}

// What verbs cannot say is refused, by its name.
func TestVerbsLack(t *testing.T) {
	init, rtr, _ := rcTransitions()
	counters, lag, pm := init, init, init
	counters.CounterSetID, lag.LAGTXAffinity, pm.PMState = mlx5.Set(7), mlx5.Set(1), mlx5.Set(0)
	short, rate := rtr, rtr
	short.LogMsgMax, rate.Path.StatRate = mlx5.Set(20), mlx5.Set(7)
	foreign := encoded(t, mlx5.RTS2RTS{}, mlx5.STRC)
	mlx5.RST2INITQPIn(foreign).SetOptParamMask(uint32(mlx5.OptParAltAddrPath))
	misplaced := encoded(t, mlx5.RTS2RTS{}, mlx5.STUD)
	mlx5.RST2INITQPIn(misplaced).SetOptParamMask(uint32(mlx5.OptParPMState))
	noTransition := make([]byte, mlx5.TransitionSize)
	mlx5.PutHeader(noTransition, mlx5.OpQueryQP, 0)
	for _, c := range []struct {
		cmd  []byte
		st   mlx5.ServiceType
		part string
	}{
		{encoded(t, counters, mlx5.STRC), mlx5.STRC, "counter_set_id"},
		{encoded(t, lag, mlx5.STRC), mlx5.STRC, "lag_tx_port_affinity"},
		{encoded(t, pm, mlx5.STRC), mlx5.STRC, "pm_state in RST2INIT"},
		{encoded(t, short, mlx5.STRC), mlx5.STRC, "log_msg_max other than 30"},
		{encoded(t, rate, mlx5.STRC), mlx5.STRC, "stat_rate"},
		{encoded(t, mlx5.INIT2RTR{MTU: mlx5.Set(mlx5.MTU1024)}, mlx5.STUD), mlx5.STUD, "mtu of a UD"},
		{foreign, mlx5.STRC, "opt_param_mask"},
		{misplaced, mlx5.STUD, "opt_param_mask"},
		{encoded(t, mlx5.SQERR2RTS{MinRNRNak: mlx5.Set(3)}, mlx5.STRC), mlx5.STRC, "opt_param_mask"},
		{encoded(t, init, mlx5.STRC)[:100], mlx5.STRC, "has 272 bytes, not 100"},
		{noTransition, mlx5.STRC, "is no transition"},
	} {
		if _, _, err := devx.VerbsAttrs(c.cmd, c.st); err == nil || !strings.Contains(err.Error(), c.part) {
			t.Errorf("%v, want %s", err, c.part)
		}
	}
}

// Whatever the bytes are, what comes out has what the transition requires and
// nothing that it does not take.
func FuzzVerbsAttrs(f *testing.F) {
	init, rtr, rts := rcTransitions()
	seed := func(encode func(dst []byte, qpn uint32, st mlx5.ServiceType) (int, error)) {
		cmd := make([]byte, mlx5.TransitionSize)
		n, err := encode(cmd, 1, mlx5.STRC)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(cmd[:n], uint8(mlx5.STRC))
	}
	seed(init.Encode)
	seed(rtr.Encode)
	seed(rts.Encode)
	seed(mlx5.ToERR{}.Encode)
	for _, op := range mlx5.Transitions() {
		cmd := make([]byte, mlx5.TransitionSize)
		mlx5.PutHeader(cmd, op, 0)
		mlx5.RST2INITQPIn(cmd).SetOptParamMask(1<<32 - 1)
		for _, o := range []mlx5.OptPar{mlx5.OptParPMState, mlx5.OptParPriPort, mlx5.OptParQKey, mlx5.OptParRNRTimeout, mlx5.OptParRRE} {
			one := bytes.Clone(cmd)
			mlx5.RST2INITQPIn(one).SetOptParamMask(uint32(o))
			f.Add(one, uint8(mlx5.STUD))
		}
		f.Add(cmd, uint8(mlx5.STRC))
	}
	f.Fuzz(func(t *testing.T, cmd []byte, st uint8) {
		if len(cmd) < 16 {
			return // no command is shorter: the submitter refuses it
		}
		a, mask, err := devx.VerbsAttrs(cmd, mlx5.ServiceType(st))
		if err != nil {
			return
		}
		r := mlx5.RuleOf(mlx5.OpOf(cmd), mlx5.ServiceType(st))
		required, optional := devx.VerbsMasks(r)
		if mask&required != required || a.State != r.To {
			t.Errorf("%s: %s to %v, required %s", r.Op, mask, a.State, required)
		}
		if extra := mask &^ (required | optional); extra != 0 {
			t.Errorf("%s (%s): %s does not apply", r.Op, r.ST, extra)
		}
	})
}
