// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"fmt"
	"math/bits"
	"strings"
)

// Attr is the value of one attribute of a transition, or its absence: the
// zero Attr. Presence is part of the type because 0 is a meaningful value of
// most attributes (ack_timeout 0 means no time-out, min_rnr_nak 0 the longest
// one). Make one with Set.
type Attr struct {
	value   int64
	present bool
}

// Set returns a present attribute. Encode refuses a value that its field
// cannot hold.
func Set[T ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32](v T) Attr {
	return Attr{int64(v), true}
}

// Get returns the value and whether it is present.
func (a Attr) Get() (value int64, present bool) { return a.value, a.present }

// Access is a set of the remote operations that a queue pair allows.
type Access uint8

// Bits of Access. The device has one bit of each in the QP context: rwe, rre
// and rae.
const (
	RemoteWrite Access = 1 << iota
	RemoteRead
	RemoteAtomic
)

// AttrID names an attribute of a queue pair transition.
type AttrID uint8

// Attributes, in the order of their place in the QP context.
const (
	AttrLAGTXAffinity AttrID = iota
	AttrPMState
	AttrMTU
	AttrLogMsgMax
	AttrCounterSetID
	AttrRemoteQPN
	AttrPkeyIndex
	AttrPort
	AttrRLID
	AttrSL
	AttrSrcAddrIndex
	AttrHopLimit
	AttrTClass
	AttrFlowLabel
	AttrRGID
	AttrRMAC
	AttrUDPSport
	AttrStatRate
	AttrAckTimeout
	AttrLogSRAMax
	AttrRetryCount
	AttrRNRRetry
	AttrNextSendPSN
	AttrLogRRAMax
	AttrAtomicMode
	AttrAccess
	AttrMinRNRNak
	AttrNextRcvPSN
	AttrQKey
	numAttrs
)

// attrInfo is where an attribute stands and what it may be.
type attrInfo struct {
	name      string // the field's name in mlx5_ifc.h
	field     string // its path below qpc in the layout, "" if it needs more than one field
	opt       OptPar // the bit that makes it count where it is optional
	min, max  int64  // max 0: what the field's width allows
	hint      string // added to the error for a value out of range
	dwordAt   int    // byte of the dword that holds it, in the QP context
	shift     int
	width     int
	verbsName string // ibv_modify_qp's attr_mask bit, "" if there is none
}

const ads = "primary_address_path."

var attrs = [numAttrs]attrInfo{
	AttrLAGTXAffinity: {name: "lag_tx_port_affinity", field: "lag_tx_port_affinity", opt: OptParLAGTXAff},
	AttrPMState:       {name: "pm_state", field: "pm_state", opt: OptParPMState, hint: "0 armed, 1 rearm, 3 migrated", verbsName: "IBV_QP_PATH_MIG_STATE"},
	AttrMTU:           {name: "mtu", field: "mtu", min: 1, max: 5, hint: "1 to 5 stand for 256 to 4096 bytes: use mlx5.MTU256 … mlx5.MTU4096 or MTUOf", verbsName: "IBV_QP_PATH_MTU"},
	AttrLogMsgMax:     {name: "log_msg_max", field: "log_msg_max", max: 30, hint: "the largest message is 2^30 bytes"},
	AttrCounterSetID:  {name: "counter_set_id", field: "counter_set_id", opt: OptParCounterSetID},
	AttrRemoteQPN:     {name: "remote_qpn", field: "remote_qpn", verbsName: "IBV_QP_DEST_QPN"},
	AttrPkeyIndex:     {name: "pkey_index", field: ads + "pkey_index", opt: OptParPkeyIndex, verbsName: "IBV_QP_PKEY_INDEX"},
	AttrPort:          {name: "vhca_port_num", field: ads + "vhca_port_num", opt: OptParPriPort, min: 1, hint: "ports count from 1", verbsName: "IBV_QP_PORT"},
	AttrRLID:          {name: "rlid", field: ads + "rlid"},
	AttrSL:            {name: "sl", field: "", width: 4, hint: "on Ethernet it is the priority, 0 to 7"},
	AttrSrcAddrIndex:  {name: "src_addr_index", field: ads + "src_addr_index", verbsName: "IBV_QP_AV"},
	AttrHopLimit:      {name: "hop_limit", field: ads + "hop_limit"},
	AttrTClass:        {name: "tclass", field: ads + "tclass"},
	AttrFlowLabel:     {name: "flow_label", field: ads + "flow_label"},
	AttrRGID:          {name: "rgid_rip", field: "", verbsName: "IBV_QP_AV"},
	AttrRMAC:          {name: "rmac", field: "", verbsName: "IBV_QP_AV"},
	AttrUDPSport:      {name: "udp_sport", field: ads + "udp_sport"},
	AttrStatRate:      {name: "stat_rate", field: ads + "stat_rate"},
	AttrAckTimeout:    {name: "ack_timeout", field: ads + "ack_timeout", opt: OptParAckTimeout, hint: "the time is 4.096 µs · 2^n; 14 is 67 ms, 0 is no time-out", verbsName: "IBV_QP_TIMEOUT"},
	AttrLogSRAMax:     {name: "log_sra_max", field: "log_sra_max", opt: OptParSRAMax, hint: "a logarithm: 4 allows 16 outstanding reads", verbsName: "IBV_QP_MAX_QP_RD_ATOMIC"},
	AttrRetryCount:    {name: "retry_count", field: "retry_count", opt: OptParRetryCount, verbsName: "IBV_QP_RETRY_CNT"},
	AttrRNRRetry:      {name: "rnr_retry", field: "rnr_retry", opt: OptParRNRRetry, hint: "7 means for ever", verbsName: "IBV_QP_RNR_RETRY"},
	AttrNextSendPSN:   {name: "next_send_psn", field: "next_send_psn", hint: "a PSN has 24 bits", verbsName: "IBV_QP_SQ_PSN"},
	AttrLogRRAMax:     {name: "log_rra_max", field: "log_rra_max", opt: OptParRRAMax, hint: "a logarithm: 4 allows 16 outstanding reads", verbsName: "IBV_QP_MAX_DEST_RD_ATOMIC"},
	AttrAtomicMode:    {name: "atomic_mode", field: "atomic_mode", hint: "0 none, 1 as in the IB specification, 2 to 8: MLX5_QPC_ATOMIC_MODE_* in mlx5_ifc.h"},
	AttrAccess:        {name: "rre/rwe/rae", field: "", width: 3, verbsName: "IBV_QP_ACCESS_FLAGS"},
	AttrMinRNRNak:     {name: "min_rnr_nak", field: "min_rnr_nak", opt: OptParRNRTimeout, hint: "an index into the RNR timer table; 0 is the longest, 655.36 ms", verbsName: "IBV_QP_MIN_RNR_TIMER"},
	AttrNextRcvPSN:    {name: "next_rcv_psn", field: "next_rcv_psn", hint: "a PSN has 24 bits", verbsName: "IBV_QP_RQ_PSN"},
	AttrQKey:          {name: "q_key", field: "q_key", opt: OptParQKey, verbsName: "IBV_QP_QKEY"},
}

func init() {
	qpc := LayoutOf("qpc")
	for i := range attrs {
		a := &attrs[i]
		if a.field != "" {
			f := qpc.Field(a.field)
			a.dwordAt = f.Offset / 32 * 4
			a.width = f.Width
			a.shift = 31 - (f.Offset+f.Width-1)%32
		}
		if a.max == 0 && a.width > 0 {
			a.max = 1<<a.width - 1
		}
	}
}

// String returns the field's name in mlx5_ifc.h.
func (a AttrID) String() string {
	if a < numAttrs {
		return attrs[a].name
	}
	return fmt.Sprintf("AttrID(%d)", uint8(a))
}

// VerbsName returns the attr_mask bit of ibv_modify_qp that stands for the
// attribute, or "".
func (a AttrID) VerbsName() string {
	if a < numAttrs {
		return attrs[a].verbsName
	}
	return ""
}

// Range returns the least and the greatest value of the attribute; both are 0
// for an address (rgid_rip, rmac).
func (a AttrID) Range() (min, max int64) {
	if a < numAttrs {
		return attrs[a].min, attrs[a].max
	}
	return 0, 0
}

// AttrSet is a set of attributes, one bit each.
type AttrSet uint64

// Attrs returns the set of the given attributes.
func Attrs(ids ...AttrID) AttrSet {
	var s AttrSet
	for _, id := range ids {
		s |= 1 << id
	}
	return s
}

// Has reports whether the attribute is in the set.
func (s AttrSet) Has(id AttrID) bool { return s>>id&1 != 0 }

// IDs returns the members in their order.
func (s AttrSet) IDs() []AttrID {
	var ids []AttrID
	for ; s != 0; s &= s - 1 {
		ids = append(ids, AttrID(bits.TrailingZeros64(uint64(s))))
	}
	return ids
}

func (s AttrSet) String() string {
	var n []string
	for _, id := range s.IDs() {
		n = append(n, id.String())
	}
	return strings.Join(n, " ")
}

// String returns the names of the bits that are set, joined with "|".
func (v OptPar) String() string {
	var n []string
	for _, p := range optParNames {
		if v&p.bit != 0 {
			n = append(n, p.name)
			v &^= p.bit
		}
	}
	if v != 0 || len(n) == 0 {
		n = append(n, fmt.Sprintf("%#x", uint32(v)))
	}
	return strings.Join(n, "|")
}
