// SPDX-License-Identifier: BSD-2-Clause

package mlx5

// Rule is what one transition takes on one transport.
type Rule struct {
	Op       Op
	ST       ServiceType
	From     []State // states that the transition presumes; nil: any
	To       State
	Required AttrSet // Encode refuses a struct without these
	Optional AttrSet
	OptMask  OptPar // bits of opt_param_mask that the driver knows for it
}

// pathAttrs are the members of an address vector.
var pathAttrs = Attrs(AttrPort, AttrRLID, AttrSL, AttrSrcAddrIndex, AttrHopLimit, AttrTClass, AttrFlowLabel, AttrRGID, AttrRMAC, AttrUDPSport, AttrStatRate)

// rules is the state machine as data. Required and optional attributes are
// those of qp_state_table in drivers/infiniband/core/verbs.c, which follows
// the IBTA specification, volume 1, table 96; an attribute that verbs do not
// have is optional where mlx5_ib sets it (drivers/infiniband/hw/mlx5/qp.c,
// __mlx5_ib_modify_qp). OptMask is opt_mask of that file. Which address an
// Ethernet port needs is checked by Encode: see Path.
var rules = buildRules()

func buildRules() (t [numTransitions][3]Rule) {
	access := OptParRRE | OptParRAE | OptParRWE
	type set = [3]AttrSet // by RC, UC, UD
	type mask = [3]OptPar
	add := func(op Op, from []State, to State, required, optional set, opt mask) {
		for st := range 3 {
			t[transitionIndex(op)][st] = Rule{op, ServiceType(st), from, to, required[st], optional[st], opt[st]}
		}
	}
	every := func(s AttrSet) set { return set{s, s, s} }
	none := set{}

	add(OpRST2INIT, []State{StateRST}, StateInit,
		set{
			Attrs(AttrPkeyIndex, AttrPort, AttrAccess),
			Attrs(AttrPkeyIndex, AttrPort, AttrAccess),
			Attrs(AttrPkeyIndex, AttrPort, AttrQKey),
		},
		set{
			Attrs(AttrCounterSetID, AttrLAGTXAffinity, AttrPMState, AttrAtomicMode),
			Attrs(AttrCounterSetID, AttrLAGTXAffinity, AttrPMState),
			Attrs(AttrCounterSetID, AttrLAGTXAffinity, AttrPMState),
		}, mask{})
	add(OpINIT2INIT, []State{StateInit}, StateInit, none,
		set{
			Attrs(AttrPkeyIndex, AttrPort, AttrAccess, AttrLAGTXAffinity, AttrAtomicMode),
			Attrs(AttrPkeyIndex, AttrPort, AttrAccess, AttrLAGTXAffinity),
			Attrs(AttrPkeyIndex, AttrPort, AttrQKey),
		},
		mask{
			access | OptParPkeyIndex | OptParPriPort | OptParLAGTXAff,
			OptParRWE | OptParPkeyIndex | OptParPriPort | OptParLAGTXAff,
			OptParPkeyIndex | OptParQKey | OptParPriPort,
		})
	add(OpINIT2RTR, []State{StateInit}, StateRTR,
		set{
			Attrs(AttrMTU, AttrRemoteQPN, AttrNextRcvPSN, AttrLogRRAMax, AttrMinRNRNak),
			Attrs(AttrMTU, AttrRemoteQPN, AttrNextRcvPSN),
			0,
		},
		set{
			pathAttrs | Attrs(AttrLogMsgMax, AttrAccess, AttrPkeyIndex, AttrLAGTXAffinity, AttrAtomicMode),
			pathAttrs | Attrs(AttrLogMsgMax, AttrAccess, AttrPkeyIndex, AttrLAGTXAffinity),
			Attrs(AttrMTU, AttrLogMsgMax, AttrPkeyIndex, AttrQKey),
		},
		mask{
			OptParAltAddrPath | access | OptParPkeyIndex | OptParLAGTXAff,
			OptParAltAddrPath | OptParRWE | OptParPkeyIndex | OptParLAGTXAff,
			OptParPkeyIndex | OptParQKey,
		})
	add(OpRTR2RTS, []State{StateRTR}, StateRTS,
		set{
			Attrs(AttrAckTimeout, AttrRetryCount, AttrRNRRetry, AttrNextSendPSN, AttrLogSRAMax),
			Attrs(AttrNextSendPSN),
			Attrs(AttrNextSendPSN),
		},
		set{
			Attrs(AttrAccess, AttrMinRNRNak, AttrPMState, AttrAtomicMode),
			Attrs(AttrAccess, AttrPMState),
			Attrs(AttrQKey),
		},
		mask{
			OptParAltAddrPath | access | OptParPMState | OptParRNRTimeout,
			OptParAltAddrPath | OptParRWE | OptParPMState,
			OptParQKey,
		})
	add(OpRTS2RTS, []State{StateRTS}, StateRTS, none,
		set{
			Attrs(AttrAccess, AttrMinRNRNak, AttrPMState, AttrAtomicMode),
			Attrs(AttrAccess, AttrPMState),
			Attrs(AttrQKey),
		},
		mask{
			access | OptParRNRTimeout | OptParPMState | OptParAltAddrPath,
			OptParRWE | OptParPMState | OptParAltAddrPath,
			OptParQKey | OptParSRQN | OptParCQNRcv,
		})
	// verbs.c has no RC here, but opt_mask of qp.c does.
	add(OpSQERR2RTS, []State{StateSQER}, StateRTS, none,
		set{
			Attrs(AttrAccess, AttrMinRNRNak, AttrAtomicMode),
			Attrs(AttrAccess),
			Attrs(AttrQKey),
		},
		mask{
			access | OptParRNRTimeout,
			OptParRWE,
			OptParQKey,
		})
	add(Op2ERR, nil, StateErr, none, every(0), mask{})
	add(Op2RST, nil, StateRST, none, every(0), mask{})
	return t
}

const numTransitions = 8

// transitionIndex numbers the transitions that DevX lets through
// (devx_is_obj_modify_cmd in drivers/infiniband/hw/mlx5/devx.c), or -1.
// SQD2RTS is not among them.
func transitionIndex(op Op) int {
	switch op {
	case OpRST2INIT:
		return 0
	case OpINIT2RTR:
		return 1
	case OpRTR2RTS:
		return 2
	case OpRTS2RTS:
		return 3
	case OpSQERR2RTS:
		return 4
	case Op2ERR:
		return 5
	case Op2RST:
		return 6
	case OpINIT2INIT:
		return 7
	}
	return -1
}

// RuleOf returns the rule of a transition on a transport, or nil if there is
// none: op is not one of the eight transitions that DevX accepts, or st is not
// STRC, STUC or STUD. The result must not be changed.
func RuleOf(op Op, st ServiceType) *Rule {
	i := transitionIndex(op)
	if i < 0 || int(st) >= len(rules[i]) {
		return nil
	}
	return &rules[i][st]
}

// AcceptsFrom reports whether the transition may start in state s.
func (r *Rule) AcceptsFrom(s State) bool {
	if r.From == nil {
		return true
	}
	for _, f := range r.From {
		if f == s {
			return true
		}
	}
	return false
}
