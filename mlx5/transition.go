// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"fmt"
)

// Transition is a QP state transition. Its implementations are RST2INIT,
// INIT2INIT, INIT2RTR, RTR2RTS, RTS2RTS, SQERR2RTS, ToERR and ToRST; another
// package may add one to send what these refuse.
//
// Functions that take one are generic, because a plain struct passed as an
// interface would allocate.
type Transition interface {
	// Op returns the opcode.
	Op() Op
	// Encode writes the whole command into dst, which must have room for
	// TransitionSize bytes and be zero, and returns its length.
	Encode(dst []byte, qpn uint32, st ServiceType) (n int, err error)
}

// TransitionSize is the length of the longest transition: 24 bytes of header,
// a QP context and 16 reserved bytes. ToERR and ToRST have 16.
const TransitionSize = RST2INITQPInSize

// AttrError says which attribute of a transition was refused, and why.
type AttrError struct {
	Op     Op
	ST     ServiceType
	Attr   AttrID
	Reason string
}

func (e *AttrError) Error() string {
	return fmt.Sprintf("mlx5: %s (%s): %s %s", e.Op, e.ST, e.Attr, e.Reason)
}

// Path is the address vector of a connected queue pair. On an Ethernet port
// (RoCE) it needs RGID, RMAC and SrcAddrIndex; on Infiniband RLID.
type Path struct {
	Port         Attr     // physical port, from 1; default 1, the only one that today's functions have
	RGID         [16]byte // remote GID; zero: absent
	RMAC         [6]byte  // remote MAC address; zero: absent. DevX resolves none
	SrcAddrIndex Attr     // index of the own GID
	HopLimit     Attr     // 0 is accepted
	TClass       Attr     // traffic class; its upper six bits are the DSCP
	FlowLabel    Attr     // 20 bits
	UDPSport     Attr     // source port, RoCE v2 only
	SL           Attr     // service level; on Ethernet the priority, 0 to 7
	StatRate     Attr
	RLID         Attr // InfiniBand only
}

func (p *Path) roce() bool { return p.RGID != [16]byte{} || p.RMAC != [6]byte{} }

// RST2INIT brings a queue pair from RESET to INIT. RC and UC require Port,
// PkeyIndex and Access; UD requires QKey in the place of Access.
type RST2INIT struct {
	Port          Attr // physical port, from 1
	PkeyIndex     Attr // 0 on Ethernet
	Access        Attr // an Access
	QKey          Attr // UD only
	CounterSetID  Attr // Q counter set
	LAGTXAffinity Attr
	PMState       Attr // 3 is migrated, the default
	AtomicMode    Attr // RC only; goes with RemoteAtomic, where its default is 1
}

// INIT2INIT changes a queue pair in INIT.
type INIT2INIT struct {
	Port, PkeyIndex, Access, QKey, LAGTXAffinity, AtomicMode Attr
}

// INIT2RTR brings a queue pair from INIT to RTR. RC requires MTU, RemoteQPN,
// NextRcvPSN, LogRRAMax, MinRNRNak and a Path; UC requires MTU, RemoteQPN,
// NextRcvPSN and a Path; UD requires nothing.
type INIT2RTR struct {
	MTU           Attr // an MTU
	LogMsgMax     Attr // longest message, log2 bytes; default 30, UD: 12 (as mlx5_ib sets it)
	RemoteQPN     Attr
	NextRcvPSN    Attr // first PSN to expect, 24 bits
	LogRRAMax     Attr // log2 of the reads and atomics served at once
	MinRNRNak     Attr // index into the RNR timer table
	Path          Path
	Access        Attr
	PkeyIndex     Attr
	QKey          Attr // UD only
	LAGTXAffinity Attr
	AtomicMode    Attr // RC only; goes with RemoteAtomic, where its default is 1
}

// RTR2RTS brings a queue pair from RTR to RTS. RC requires the first five, UC
// and UD NextSendPSN.
type RTR2RTS struct {
	AckTimeout  Attr // local ACK time-out, 4.096 µs · 2^n; 0: none
	RetryCount  Attr // 0 to 7
	RNRRetry    Attr // 0 to 7; RNRRetryForever
	NextSendPSN Attr // first PSN to send, 24 bits
	LogSRAMax   Attr // log2 of the reads and atomics outstanding at once
	Access      Attr
	MinRNRNak   Attr
	PMState     Attr
	QKey        Attr // UD only
	AtomicMode  Attr // RC only; goes with RemoteAtomic, where its default is 1
}

// RTS2RTS changes a queue pair in RTS. An address vector cannot be changed
// there.
type RTS2RTS struct {
	Access, MinRNRNak, PMState, QKey, AtomicMode Attr
}

// SQERR2RTS brings a queue pair whose send queue failed back to RTS.
type SQERR2RTS struct {
	Access, MinRNRNak, QKey, AtomicMode Attr
}

// ToERR (2ERR) brings a queue pair from any state to ERR. On a device that is in
// its error state, Linux 5.15 answers it, 2RST and each destroy with success,
// without asking the hardware (mlx5_internal_err_ret_value in mlx5_core cmd.c).
type ToERR struct{}

// ToRST (2RST) brings a queue pair from any state to RESET; see ToERR for what
// success means on a device in its error state.
type ToRST struct{}

// Op returns OpRST2INIT.
func (RST2INIT) Op() Op { return OpRST2INIT }

// Op returns OpINIT2INIT.
func (INIT2INIT) Op() Op { return OpINIT2INIT }

// Op returns OpINIT2RTR.
func (INIT2RTR) Op() Op { return OpINIT2RTR }

// Op returns OpRTR2RTS.
func (RTR2RTS) Op() Op { return OpRTR2RTS }

// Op returns OpRTS2RTS.
func (RTS2RTS) Op() Op { return OpRTS2RTS }

// Op returns OpSQERR2RTS.
func (SQERR2RTS) Op() Op { return OpSQERR2RTS }

// Op returns Op2ERR.
func (ToERR) Op() Op { return Op2ERR }

// Op returns Op2RST.
func (ToRST) Op() Op { return Op2RST }

// encoder writes one transition. It stays on the caller's stack.
type encoder struct {
	rule *Rule
	qpc  QPC
	have AttrSet
	mask OptPar
	err  error
}

func newEncoder(dst []byte, op Op, qpn uint32, st ServiceType) encoder {
	e := encoder{rule: RuleOf(op, st)}
	switch {
	case e.rule == nil:
		e.err = fmt.Errorf("mlx5: no %s for %s: RC, UC and UD QPs are supported", op, st)
	case len(dst) < TransitionSize:
		e.err = fmt.Errorf("mlx5: %s needs a buffer of %d bytes, not %d", op, TransitionSize, len(dst))
	case qpn > 1<<24-1:
		e.err = fmt.Errorf("mlx5: %s: a QPN has 24 bits: %#x", op, qpn)
	}
	if e.err != nil {
		return e
	}
	in := RST2INITQPIn(dst) // the six with a context share one layout
	in.SetOpcode(uint16(op))
	in.SetQPN(qpn)
	e.qpc = in.QPC()
	return e
}

func (e *encoder) fail(id AttrID, format string, args ...any) {
	if e.err == nil {
		e.err = &AttrError{e.rule.Op, e.rule.ST, id, fmt.Sprintf(format, args...)}
	}
}

// admit checks that the transition takes the attribute and that its value is
// in range.
func (e *encoder) admit(id AttrID, v int64) bool {
	if e.err != nil {
		return false
	}
	if !(e.rule.Required | e.rule.Optional).Has(id) {
		e.fail(id, "does not apply; it takes: %s", e.rule.Required|e.rule.Optional)
		return false
	}
	a := &attrs[id]
	if v < a.min || v > a.max || id == AttrPMState && v == 2 {
		hint := ""
		if a.hint != "" {
			hint = " (" + a.hint + ")"
		}
		e.fail(id, "%d is out of range: %d to %d%s", v, a.min, a.max, hint)
		return false
	}
	e.have |= 1 << id
	return true
}

func (e *encoder) attr(id AttrID, v Attr) {
	if !v.present || !e.admit(id, v.value) {
		return
	}
	a := &attrs[id]
	put32(e.qpc[a.dwordAt:], a.shift, a.width, uint32(v.value))
	e.mask |= a.opt & e.rule.OptMask
}

// access writes the access bits and atomic_mode, which mlx5_ib sets together
// with rae (set_qpc_atomic_flags in qp.c).
func (e *encoder) access(v, mode Attr) {
	e.attr(AttrAtomicMode, mode)
	if !v.present || !e.admit(AttrAccess, v.value) {
		return
	}
	a := Access(v.value)
	if a&RemoteRead != 0 && e.rule.ST != STRC || a&RemoteAtomic != 0 && e.rule.ST != STRC {
		e.fail(AttrAccess, "asks for remote read or atomic, which only RC has")
		return
	}
	e.qpc.SetRRE(a&RemoteRead != 0)
	e.qpc.SetRWE(a&RemoteWrite != 0)
	e.qpc.SetRAE(a&RemoteAtomic != 0)
	if a&RemoteAtomic != 0 && !mode.present {
		e.qpc.SetAtomicMode(1)
	}
	e.mask |= (OptParRRE | OptParRWE | OptParRAE) & e.rule.OptMask
}

func (e *encoder) path(p *Path) {
	if e.err != nil {
		return
	}
	if e.rule.ST == STUD {
		if *p != (Path{}) {
			e.fail(AttrRGID, "does not apply: a UD QP takes its address from each work request")
		}
		return
	}
	if p.roce() {
		if p.RGID == [16]byte{} {
			e.fail(AttrRGID, "is missing: RoCE needs the remote GID")
		}
		if p.RMAC == [6]byte{} {
			e.fail(AttrRMAC, "is missing: RoCE needs the remote MAC address, and DevX resolves none")
		}
		if !p.SrcAddrIndex.present {
			e.fail(AttrSrcAddrIndex, "is missing: RoCE needs the index of the own GID")
		}
		if p.RLID.present {
			e.fail(AttrRLID, "does not apply: RoCE has no LIDs")
		}
		if p.SL.present && (p.SL.value < 0 || p.SL.value > 7) {
			e.fail(AttrSL, "%d is out of range: 0 to 7 (on Ethernet it is the priority)", p.SL.value)
		}
		if e.err != nil {
			return
		}
		ads := e.qpc.PrimaryAddressPath()
		copy(ads.RGIDRip(), p.RGID[:])
		ads.SetRMAC4732(uint16(p.RMAC[0])<<8 | uint16(p.RMAC[1]))
		ads.SetRMAC310(uint32(p.RMAC[2])<<24 | uint32(p.RMAC[3])<<16 | uint32(p.RMAC[4])<<8 | uint32(p.RMAC[5]))
		e.have |= Attrs(AttrRGID, AttrRMAC)
	} else if !p.RLID.present {
		e.fail(AttrRGID, "is missing: give Path.RGID, RMAC and SrcAddrIndex (RoCE) or Path.RLID (InfiniBand)")
		return
	} else if p.UDPSport.present {
		e.fail(AttrUDPSport, "does not apply: InfiniBand has no UDP ports")
		return
	}
	if p.SL.present && e.admit(AttrSL, p.SL.value) {
		if ads := e.qpc.PrimaryAddressPath(); p.roce() {
			ads.SetEthPrio(uint8(p.SL.value))
		} else {
			ads.SetSL(uint8(p.SL.value))
		}
	}
	port := p.Port
	if !port.present {
		port = Set(1)
	}
	e.attr(AttrPort, port)
	e.attr(AttrRLID, p.RLID)
	e.attr(AttrSrcAddrIndex, p.SrcAddrIndex)
	e.attr(AttrHopLimit, p.HopLimit)
	e.attr(AttrTClass, p.TClass)
	e.attr(AttrFlowLabel, p.FlowLabel)
	e.attr(AttrUDPSport, p.UDPSport)
	e.attr(AttrStatRate, p.StatRate)
	if p.roce() && p.TClass.present && e.err == nil {
		e.qpc.PrimaryAddressPath().SetDSCP(uint8(p.TClass.value >> 2))
	}
}

func (e *encoder) done(dst []byte) (int, error) {
	if e.err == nil {
		if missing := e.rule.Required &^ e.have; missing != 0 {
			id := missing.IDs()[0]
			hint := ""
			if v := id.VerbsName(); v != "" {
				hint = " (ibv_modify_qp: " + v + ")"
			}
			e.fail(id, "is missing%s; required: %s", hint, e.rule.Required)
		}
	}
	if e.err != nil {
		clear(dst)
		return 0, e.err
	}
	RST2INITQPIn(dst).SetOptParamMask(uint32(e.mask))
	return TransitionSize, nil
}

// Encode writes the 272-byte command.
func (t RST2INIT) Encode(dst []byte, qpn uint32, st ServiceType) (int, error) {
	e := newEncoder(dst, OpRST2INIT, qpn, st)
	if e.err == nil && !t.PMState.present {
		e.qpc.SetPMState(3)
	}
	e.attr(AttrPort, t.Port)
	e.attr(AttrPkeyIndex, t.PkeyIndex)
	e.access(t.Access, t.AtomicMode)
	e.attr(AttrQKey, t.QKey)
	e.attr(AttrCounterSetID, t.CounterSetID)
	e.attr(AttrLAGTXAffinity, t.LAGTXAffinity)
	e.attr(AttrPMState, t.PMState)
	return e.done(dst)
}

// Encode writes the 272-byte command.
func (t INIT2INIT) Encode(dst []byte, qpn uint32, st ServiceType) (int, error) {
	e := newEncoder(dst, OpINIT2INIT, qpn, st)
	e.attr(AttrPort, t.Port)
	e.attr(AttrPkeyIndex, t.PkeyIndex)
	e.access(t.Access, t.AtomicMode)
	e.attr(AttrQKey, t.QKey)
	e.attr(AttrLAGTXAffinity, t.LAGTXAffinity)
	return e.done(dst)
}

// Encode writes the 272-byte command.
func (t INIT2RTR) Encode(dst []byte, qpn uint32, st ServiceType) (int, error) {
	e := newEncoder(dst, OpINIT2RTR, qpn, st)
	if e.err == nil {
		e.qpc.SetLogMsgMax(30)
		if st == STUD { // as mlx5_ib does
			e.qpc.SetMTU(uint8(MTU4096))
			e.qpc.SetLogMsgMax(12)
		}
	}
	e.attr(AttrMTU, t.MTU)
	e.attr(AttrLogMsgMax, t.LogMsgMax)
	e.attr(AttrRemoteQPN, t.RemoteQPN)
	e.attr(AttrNextRcvPSN, t.NextRcvPSN)
	e.attr(AttrLogRRAMax, t.LogRRAMax)
	e.attr(AttrMinRNRNak, t.MinRNRNak)
	e.path(&t.Path)
	e.access(t.Access, t.AtomicMode)
	e.attr(AttrPkeyIndex, t.PkeyIndex)
	e.attr(AttrQKey, t.QKey)
	e.attr(AttrLAGTXAffinity, t.LAGTXAffinity)
	return e.done(dst)
}

// Encode writes the 272-byte command.
func (t RTR2RTS) Encode(dst []byte, qpn uint32, st ServiceType) (int, error) {
	e := newEncoder(dst, OpRTR2RTS, qpn, st)
	e.attr(AttrAckTimeout, t.AckTimeout)
	e.attr(AttrRetryCount, t.RetryCount)
	e.attr(AttrRNRRetry, t.RNRRetry)
	e.attr(AttrNextSendPSN, t.NextSendPSN)
	e.attr(AttrLogSRAMax, t.LogSRAMax)
	e.access(t.Access, t.AtomicMode)
	e.attr(AttrMinRNRNak, t.MinRNRNak)
	e.attr(AttrPMState, t.PMState)
	e.attr(AttrQKey, t.QKey)
	return e.done(dst)
}

// Encode writes the 272-byte command.
func (t RTS2RTS) Encode(dst []byte, qpn uint32, st ServiceType) (int, error) {
	e := newEncoder(dst, OpRTS2RTS, qpn, st)
	e.access(t.Access, t.AtomicMode)
	e.attr(AttrMinRNRNak, t.MinRNRNak)
	e.attr(AttrPMState, t.PMState)
	e.attr(AttrQKey, t.QKey)
	return e.done(dst)
}

// Encode writes the 272-byte command.
func (t SQERR2RTS) Encode(dst []byte, qpn uint32, st ServiceType) (int, error) {
	e := newEncoder(dst, OpSQERR2RTS, qpn, st)
	e.access(t.Access, t.AtomicMode)
	e.attr(AttrMinRNRNak, t.MinRNRNak)
	e.attr(AttrQKey, t.QKey)
	return e.done(dst)
}

// Encode writes the 16-byte command.
func (ToERR) Encode(dst []byte, qpn uint32, st ServiceType) (int, error) {
	return encodeShort(dst, Op2ERR, qpn, st)
}

// Encode writes the 16-byte command.
func (ToRST) Encode(dst []byte, qpn uint32, st ServiceType) (int, error) {
	return encodeShort(dst, Op2RST, qpn, st)
}

func encodeShort(dst []byte, op Op, qpn uint32, st ServiceType) (int, error) {
	e := newEncoder(dst, op, qpn, st)
	if e.err != nil {
		return 0, e.err
	}
	return ToRSTQPInSize, nil
}

// Transitions returns the opcodes of the transitions that DevX accepts.
func Transitions() []Op {
	return []Op{OpRST2INIT, OpINIT2INIT, OpINIT2RTR, OpRTR2RTS, OpRTS2RTS, OpSQERR2RTS, Op2ERR, Op2RST}
}
