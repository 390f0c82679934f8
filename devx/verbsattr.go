// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"fmt"
	"math/bits"
	"strings"

	"devxlab.example/devx/abi"
	"devxlab.example/mlx5"
)

// AttrMask says which members of a QPAttr count: attr_mask of ibv_modify_qp
// (enum ib_qp_attr_mask in rdma/ib_verbs.h).
type AttrMask uint32

// Bits of AttrMask. MaskAltPath, MaskSQDNotify and MaskCap have no members in
// QPAttr to set: RoCE has no alternate paths, and mlx5 neither drains send queues
// on request nor resizes them.
const (
	MaskState AttrMask = 1 << iota
	MaskCurState
	MaskSQDNotify
	MaskAccessFlags
	MaskPkeyIndex
	MaskPort
	MaskQKey
	MaskAV
	MaskPathMTU
	MaskTimeout
	MaskRetryCnt
	MaskRNRRetry
	MaskRQPSN
	MaskMaxQPRdAtomic
	MaskAltPath
	MaskMinRNRTimer
	MaskSQPSN
	MaskMaxDestRdAtomic
	MaskPathMigState
	MaskCap
	MaskDestQPN
	MaskRateLimit AttrMask = 1 << 25 // goes by EX_MODIFY_QP
)

// maskNames are the names behind IB_QP_ and IBV_QP_, by bit.
var maskNames = [32]string{
	"STATE", "CUR_STATE", "EN_SQD_ASYNC_NOTIFY", "ACCESS_FLAGS", "PKEY_INDEX", "PORT", "QKEY", "AV", "PATH_MTU", "TIMEOUT", "RETRY_CNT",
	"RNR_RETRY", "RQ_PSN", "MAX_QP_RD_ATOMIC", "ALT_PATH", "MIN_RNR_TIMER", "SQ_PSN", "MAX_DEST_RD_ATOMIC", "PATH_MIG_STATE", "CAP", "DEST_QPN",
	25: "RATE_LIMIT",
}

// String returns the names of the bits that are set, joined with "|".
func (m AttrMask) String() string {
	var names []string
	for left := uint32(m); left != 0; left &= left - 1 {
		bit := bits.TrailingZeros32(left)
		if n := maskNames[bit]; n != "" {
			names = append(names, n)
		} else {
			names = append(names, fmt.Sprintf("%#x", uint32(1)<<bit))
		}
	}
	if names == nil {
		return "0"
	}
	return strings.Join(names, "|")
}

// QPAttr is the attributes of a queue pair as verbs have them (struct
// ibv_qp_attr). Which of them count says an AttrMask.
type QPAttr struct {
	State           mlx5.State
	CurState        mlx5.State // what the driver is to take for the present state; else it takes what it remembers
	Access          mlx5.Access
	PkeyIndex       uint16
	Port            uint8 // from 1
	QKey            uint32
	AV              AHAttr
	PathMTU         mlx5.MTU
	Timeout         uint8 // local ACK time-out, 4.096 µs · 2^n; 0: none
	RetryCnt        uint8 // 0 to 7: the kernel checks neither this nor Timeout, the driver masks them
	RNRRetry        uint8 // 0 to 7; 7: for ever
	RQPSN           uint32
	MaxRdAtomic     uint8 // reads and atomics outstanding at once, a number and no logarithm
	MinRNRTimer     uint8 // index into the RNR timer table
	SQPSN           uint32
	MaxDestRdAtomic uint8
	PathMigState    uint8 // MigMigrated, MigRearm or MigArmed
	DestQPN         uint32
	RateLimit       uint32 // kbit/s

	SQDraining bool  // Query only
	Cap        QPCap // Query only
}

// Values of QPAttr.PathMigState (enum ib_mig_state). The QP context counts
// otherwise.
const (
	MigMigrated uint8 = iota
	MigRearm
	MigArmed
)

// AHAttr is an address vector. On an Ethernet port (RoCE) it needs DGID and
// SGIDIndex; the kernel resolves the MAC address and chooses the UDP source port.
type AHAttr struct {
	DGID         [16]byte // zero: an address without a global part, which RoCE refuses
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	DLID         uint16
	SL           uint8
	StaticRate   uint8
	Port         uint8 // the port that the queue pair was given in INIT
}

// QPCap is what a queue pair has room for.
type QPCap struct {
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInlineData uint32
}

// verbsState are the states in the order of enum ib_qp_state: 4 and 5 are the
// other way round in the QP context.
var verbsState = [...]mlx5.State{mlx5.StateRST, mlx5.StateInit, mlx5.StateRTR, mlx5.StateRTS, mlx5.StateSQD, mlx5.StateSQER, mlx5.StateErr}

// VerbsState returns the number of a state in verbs (enum ib_qp_state); one that they do not have is
// left as it is, for the kernel to refuse.
func VerbsState(s mlx5.State) uint8 {
	for i, v := range verbsState {
		if v == s {
			return uint8(i)
		}
	}
	return uint8(s)
}

func fromVerbsState(n uint8) mlx5.State {
	if int(n) < len(verbsState) {
		return verbsState[n]
	}
	return mlx5.State(n)
}

// accessFlags are the bits of ib_uverbs_access_flags. Local write is always
// allowed: the receive queue needs it.
var accessFlags = [...]struct {
	verbs uint32
	is    mlx5.Access
}{{abi.IB_UVERBS_ACCESS_REMOTE_WRITE, mlx5.RemoteWrite}, {abi.IB_UVERBS_ACCESS_REMOTE_READ, mlx5.RemoteRead}, {abi.IB_UVERBS_ACCESS_REMOTE_ATOMIC, mlx5.RemoteAtomic}}

func toVerbsAccess(a mlx5.Access) uint32 {
	v := uint32(abi.IB_UVERBS_ACCESS_LOCAL_WRITE)
	for _, f := range accessFlags {
		if a&f.is != 0 {
			v |= f.verbs
		}
	}
	return v
}

func fromVerbsAccess(v uint32) (a mlx5.Access) {
	for _, f := range accessFlags {
		if v&f.verbs != 0 {
			a |= f.is
		}
	}
	return a
}

// put writes the attributes into a request.
func (a *QPAttr) put(m *abi.ModifyQP, handle uint32, mask AttrMask) {
	*m = abi.ModifyQP{
		QPHandle: handle, AttrMask: uint32(mask), QKey: a.QKey, RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPNum: a.DestQPN,
		QPAccessFlags: toVerbsAccess(a.Access), PkeyIndex: a.PkeyIndex, QPState: VerbsState(a.State), CurQPState: VerbsState(a.CurState),
		PathMTU: uint8(a.PathMTU), PathMigState: a.PathMigState, MaxRdAtomic: a.MaxRdAtomic, MaxDestRdAtomic: a.MaxDestRdAtomic,
		MinRNRTimer: a.MinRNRTimer, PortNum: a.Port, Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry,
		Dest: abi.QPDest{
			DGID: a.AV.DGID, FlowLabel: a.AV.FlowLabel, DLID: a.AV.DLID, SGIDIndex: a.AV.SGIDIndex, HopLimit: a.AV.HopLimit,
			TrafficClass: a.AV.TrafficClass, SL: a.AV.SL, StaticRate: a.AV.StaticRate, PortNum: a.AV.Port,
		},
	}
	if a.AV.DGID != [16]byte{} {
		m.Dest.IsGlobal = 1
	}
}

// attrOf reads the answer to a query.
func attrOf(r *abi.QueryQPResp) QPAttr {
	return QPAttr{
		State: fromVerbsState(r.QPState), CurState: fromVerbsState(r.CurQPState), Access: fromVerbsAccess(r.QPAccessFlags), PkeyIndex: r.PkeyIndex,
		Port: r.PortNum, QKey: r.QKey, PathMTU: mlx5.MTU(r.PathMTU), Timeout: r.Timeout, RetryCnt: r.RetryCnt, RNRRetry: r.RNRRetry, RQPSN: r.RQPSN,
		MaxRdAtomic: r.MaxRdAtomic, MinRNRTimer: r.MinRNRTimer, SQPSN: r.SQPSN, MaxDestRdAtomic: r.MaxDestRdAtomic, PathMigState: r.PathMigState,
		DestQPN: r.DestQPNum, SQDraining: r.SQDraining != 0,
		AV: AHAttr{
			DGID: r.Dest.DGID, FlowLabel: r.Dest.FlowLabel, SGIDIndex: r.Dest.SGIDIndex, HopLimit: r.Dest.HopLimit, TrafficClass: r.Dest.TrafficClass,
			DLID: r.Dest.DLID, SL: r.Dest.SL, StaticRate: r.Dest.StaticRate, Port: r.Dest.PortNum,
		},
		Cap: QPCap{r.MaxSendWR, r.MaxRecvWR, r.MaxSendSGE, r.MaxRecvSGE, r.MaxInlineData},
	}
}

// maskBit is the bit that stands for an attribute of a transition, 0 if verbs
// have none for it alone.
var maskBit = func() (t [mlx5.AttrQKey + 1]AttrMask) {
	for id := range t {
		name := strings.TrimPrefix(mlx5.AttrID(id).VerbsName(), "IBV_QP_")
		for bit, n := range maskNames {
			if n == name && n != "" {
				t[id] = 1 << bit
			}
		}
	}
	return t
}()

func maskOf(s mlx5.AttrSet) (m AttrMask) {
	for ; s != 0; s &= s - 1 {
		m |= maskBit[bits.TrailingZeros64(uint64(s))]
	}
	return m
}

// verbsMasks are the bits that a transition requires and those that it takes
// besides (qp_state_table in drivers/infiniband/core/verbs.c).
func verbsMasks(r *mlx5.Rule) (required, optional AttrMask) {
	required, optional = MaskState|maskOf(r.Required), maskOf(r.Optional)
	if r.Op == mlx5.OpINIT2RTR && r.ST != mlx5.STUD {
		required |= MaskAV
		optional &^= MaskPort // in the address vector
	}
	if r.Op == mlx5.OpRST2INIT {
		optional &^= MaskPathMigState
	}
	switch {
	case r.Op == mlx5.OpSQERR2RTS && r.ST == mlx5.STRC:
		optional = 0 // the driver's table has attributes here, the kernel's has none, not even CUR_STATE
	case r.Op == mlx5.OpRTR2RTS || r.Op == mlx5.OpRTS2RTS || r.Op == mlx5.OpSQERR2RTS:
		optional |= MaskCurState
	}
	return required, optional &^ required
}

// optional are the bits of opt_param_mask that verbs have too.
var optional = [...]struct {
	opt  mlx5.OptPar
	mask AttrMask
}{
	{mlx5.OptParRRE | mlx5.OptParRWE | mlx5.OptParRAE, MaskAccessFlags},
	{mlx5.OptParPkeyIndex, MaskPkeyIndex},
	{mlx5.OptParPriPort, MaskPort},
	{mlx5.OptParQKey, MaskQKey},
	{mlx5.OptParRNRTimeout, MaskMinRNRTimer},
	{mlx5.OptParPMState, MaskPathMigState},
}

// verbsAttrs translates an encoded transition (mlx5.Transition) into what verbs
// call the same: the attributes that its rule requires, and the optional ones
// that its opt_param_mask names. What verbs choose themselves is left out
// (destination MAC, UDP source port, atomic mode); what they cannot express is
// refused.
func verbsAttrs(cmd []byte, st mlx5.ServiceType) (a QPAttr, mask AttrMask, err error) {
	op := mlx5.OpOf(cmd)
	r := mlx5.RuleOf(op, st)
	if r == nil {
		return a, 0, fmt.Errorf("devx: %s (%s) is no transition", op, st)
	}
	a.State = r.To
	mask, takes := verbsMasks(r)
	if op == mlx5.OpSQERR2RTS && takes&MaskCurState != 0 {
		// The device entered SQER by itself: the driver still remembers RTS, and would send RTS2RTS.
		mask |= MaskCurState
		a.CurState = mlx5.StateSQER
	}
	takes |= mask
	switch {
	case op == mlx5.Op2ERR || op == mlx5.Op2RST:
		return a, mask, nil
	case len(cmd) < mlx5.TransitionSize:
		return a, 0, fmt.Errorf("devx: %s (%s) has %d bytes, not %d", op, st, mlx5.TransitionSize, len(cmd))
	}
	in := mlx5.RST2INITQPIn(cmd)
	opt := mlx5.OptPar(in.OptParamMask())
	for _, o := range optional {
		if bits := o.opt & r.OptMask; opt&bits != 0 && o.mask&takes != 0 {
			mask |= o.mask
			opt &^= bits
		}
	}
	q := in.QPC()
	if what := verbsLack(q, r, opt); what != "" {
		return a, 0, fmt.Errorf("devx: %s (%s): %s: verbs have no attribute for it; send it through DevX", op, st, what)
	}
	a.fromQPC(q)
	return a, mask, nil
}

// verbsLack names what a QP context asks for that verbs cannot.
func verbsLack(q mlx5.QPC, r *mlx5.Rule, opt mlx5.OptPar) string {
	const migrated = 3
	messages := uint8(30) // what mlx5_ib sends by itself
	if r.ST == mlx5.STUD {
		messages = 12
	}
	switch {
	case opt != 0:
		return fmt.Sprintf("opt_param_mask %s", opt)
	case q.LAGTXPortAffinity() != 0:
		return mlx5.AttrLAGTXAffinity.String()
	case q.CounterSetID() != 0:
		return mlx5.AttrCounterSetID.String()
	case q.PrimaryAddressPath().StatRate() != 0:
		return mlx5.AttrStatRate.String()
	case r.Op == mlx5.OpRST2INIT && q.PMState() != migrated:
		return mlx5.AttrPMState.String() + " in RST2INIT"
	case r.Op == mlx5.OpINIT2RTR && q.LogMsgMax() != messages:
		return fmt.Sprintf("%s other than %d", mlx5.AttrLogMsgMax, messages)
	case r.Op == mlx5.OpINIT2RTR && r.ST == mlx5.STUD && q.MTU() != uint8(mlx5.MTU4096):
		return mlx5.AttrMTU.String() + " of a UD queue pair"
	}
	return ""
}

// migStates are the values of pm_state in the order of enum ib_mig_state
// (__mlx5_ib_modify_qp in the driver's qp.c maps them so).
var migStates = [...]uint8{MigMigrated: 3, MigRearm: 1, MigArmed: 0}

func (a *QPAttr) fromQPC(q mlx5.QPC) {
	p := q.PrimaryAddressPath()
	for mig, pm := range migStates {
		if pm == q.PMState() {
			a.PathMigState = uint8(mig)
		}
	}
	if q.RWE() {
		a.Access |= mlx5.RemoteWrite
	}
	if q.RRE() {
		a.Access |= mlx5.RemoteRead
	}
	if q.RAE() {
		a.Access |= mlx5.RemoteAtomic
	}
	a.PkeyIndex, a.Port, a.QKey, a.PathMTU = p.PkeyIndex(), p.VHCAPortNum(), q.QKey(), mlx5.MTU(q.MTU())
	a.Timeout, a.RetryCnt, a.RNRRetry, a.MinRNRTimer = p.AckTimeout(), q.RetryCount(), q.RNRRetry(), q.MinRNRNak()
	a.RQPSN, a.SQPSN, a.DestQPN = q.NextRcvPSN(), q.NextSendPSN(), q.RemoteQPN()
	a.MaxRdAtomic, a.MaxDestRdAtomic = 1<<q.LogSRAMax(), 1<<q.LogRRAMax()
	a.AV = AHAttr{
		DGID: [16]byte(p.RGIDRip()), FlowLabel: p.FlowLabel(), SGIDIndex: p.SrcAddrIndex(), HopLimit: p.HopLimit(), TrafficClass: p.Tclass(),
		DLID: p.RLID(), SL: p.SL(), Port: p.VHCAPortNum(),
	}
	if a.AV.DGID != [16]byte{} {
		a.AV.SL = p.EthPrio()
	}
}

// AHAttrOf reads an address vector as the connection manager's file answers with it
// (struct ib_uverbs_ah_attr).
func AHAttrOf(a *abi.AHAttr) AHAttr {
	v := AHAttr{DLID: a.DLID, SL: a.SL, StaticRate: a.StaticRate, Port: a.PortNum}
	if g := &a.GRH; a.IsGlobal != 0 {
		v.DGID, v.FlowLabel, v.SGIDIndex, v.HopLimit, v.TrafficClass = g.DGID, g.FlowLabel, g.SGIDIndex, g.HopLimit, g.TrafficClass
	}
	return v
}

// QPAttrOf reads the attributes that the connection manager wants a queue pair to
// have (struct ib_uverbs_qp_attr), and which of them count.
func QPAttrOf(a *abi.QPAttr) (QPAttr, AttrMask) {
	return QPAttr{
		State: fromVerbsState(uint8(a.State)), CurState: fromVerbsState(uint8(a.CurState)), Access: fromVerbsAccess(a.AccessFlags), PkeyIndex: a.PkeyIndex,
		Port: a.PortNum, QKey: a.QKey, AV: AHAttrOf(&a.AH), PathMTU: mlx5.MTU(a.PathMTU), Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry,
		RQPSN: a.RQPSN, MaxRdAtomic: a.MaxRdAtomic, MinRNRTimer: a.MinRNRTimer, SQPSN: a.SQPSN, MaxDestRdAtomic: a.MaxDestRdAtomic,
		PathMigState: uint8(a.PathMigState), DestQPN: a.DestQPNum, SQDraining: a.SQDraining != 0,
		Cap: QPCap{a.MaxSendWR, a.MaxRecvWR, a.MaxSendSGE, a.MaxRecvSGE, a.MaxInlineData},
	}, AttrMask(a.AttrMask)
}
