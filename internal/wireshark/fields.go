// SPDX-License-Identifier: BSD-2-Clause

package wireshark

import (
	"math/bits"
	"net/netip"

	"github.com/google/gopacket"

	"devxlab.example/cm/roce"
)

// fields are tshark's names, the layer that has them, and what we have. nil is no
// value. tshark decodes neither MRA, LAP, APR nor SIDR, and gives RETH's names to the
// address and key of an AtomicETH.
var fields = []struct {
	name string
	in   gopacket.LayerType
	ours func(*roce.Stack) any
}{
	{"infiniband.grh.ipver", roce.LayerTypeGRH, func(s *roce.Stack) any { return s.GRH.IPVer }},
	{"infiniband.grh.tclass", roce.LayerTypeGRH, func(s *roce.Stack) any { return s.GRH.TrafficClass }},
	{"infiniband.grh.flowlabel", roce.LayerTypeGRH, func(s *roce.Stack) any { return s.GRH.FlowLabel }},
	{"infiniband.grh.paylen", roce.LayerTypeGRH, func(s *roce.Stack) any { return s.GRH.PayLen }},
	{"infiniband.grh.nxthdr", roce.LayerTypeGRH, func(s *roce.Stack) any { return s.GRH.NextHeader }},
	{"infiniband.grh.hoplmt", roce.LayerTypeGRH, func(s *roce.Stack) any { return s.GRH.HopLimit }},
	{"infiniband.grh.sgid", roce.LayerTypeGRH, func(s *roce.Stack) any { return netip.AddrFrom16(s.GRH.SGID) }},
	{"infiniband.grh.dgid", roce.LayerTypeGRH, func(s *roce.Stack) any { return netip.AddrFrom16(s.GRH.DGID) }},
	{"infiniband.bth.opcode", roce.LayerTypeBTH, func(s *roce.Stack) any { return s.BTH.Opcode }},
	{"infiniband.bth.se", roce.LayerTypeBTH, func(s *roce.Stack) any { return s.BTH.Solicited }},
	{"infiniband.bth.m", roce.LayerTypeBTH, func(s *roce.Stack) any { return s.BTH.MigReq }},
	{"infiniband.bth.padcnt", roce.LayerTypeBTH, func(s *roce.Stack) any { return s.BTH.Pad }},
	{"infiniband.bth.tver", roce.LayerTypeBTH, func(s *roce.Stack) any { return s.BTH.TVer }},
	{"infiniband.bth.p_key", roce.LayerTypeBTH, func(s *roce.Stack) any { return s.BTH.PKey }},
	{"infiniband.bth.destqp", roce.LayerTypeBTH, func(s *roce.Stack) any { return s.BTH.DestQP }},
	{"infiniband.bth.a", roce.LayerTypeBTH, func(s *roce.Stack) any { return s.BTH.AckReq }},
	{"infiniband.bth.psn", roce.LayerTypeBTH, func(s *roce.Stack) any { return s.BTH.PSN }},
	{"infiniband.deth.q_key", roce.LayerTypeDETH, func(s *roce.Stack) any { return s.DETH.QKey }},
	{"infiniband.deth.srcqp", roce.LayerTypeDETH, func(s *roce.Stack) any { return s.DETH.SrcQP }},
	{"infiniband.reth.va", roce.LayerTypeRETH, func(s *roce.Stack) any { return s.RETH.VA }},
	{"infiniband.reth.r_key", roce.LayerTypeRETH, func(s *roce.Stack) any { return s.RETH.RKey }},
	{"infiniband.reth.dmalen", roce.LayerTypeRETH, func(s *roce.Stack) any { return s.RETH.DMALen }},
	{"infiniband.reth.va", roce.LayerTypeAtomicETH, func(s *roce.Stack) any { return s.AtomicETH.VA }},
	{"infiniband.reth.r_key", roce.LayerTypeAtomicETH, func(s *roce.Stack) any { return s.AtomicETH.RKey }},
	{"infiniband.atomiceth.swapdt", roce.LayerTypeAtomicETH, func(s *roce.Stack) any { return s.AtomicETH.SwapAdd }},
	{"infiniband.atomiceth.cmpdt", roce.LayerTypeAtomicETH, func(s *roce.Stack) any { return s.AtomicETH.Compare }},
	{"infiniband.aeth.syndrome", roce.LayerTypeAETH, func(s *roce.Stack) any { return s.AETH.Syndrome }},
	{"infiniband.aeth.syndrome.credit_count", roce.LayerTypeAETH, func(s *roce.Stack) any { return when(s.AETH.Syndrome.ACK(), s.AETH.Syndrome) }},
	{"infiniband.aeth.syndrome.timer", roce.LayerTypeAETH, func(s *roce.Stack) any { timer, ok := s.AETH.Syndrome.RNR(); return when(ok, timer) }},
	{"infiniband.aeth.msn", roce.LayerTypeAETH, func(s *roce.Stack) any { return s.AETH.MSN }},
	{"infiniband.atomicacketh.origremdt", roce.LayerTypeAtomicAckETH, func(s *roce.Stack) any { return s.AtomicAckETH.Original }},
	{"infiniband.immdt", roce.LayerTypeImmDt, func(s *roce.Stack) any { return s.ImmDt.Contents }},
	{"infiniband.ieth", roce.LayerTypeIETH, func(s *roce.Stack) any { return s.IETH.Contents }},
	{"infiniband.mad.baseversion", roce.LayerTypeMAD, func(s *roce.Stack) any { return s.MAD.BaseVersion }},
	{"infiniband.mad.mgmtclass", roce.LayerTypeMAD, func(s *roce.Stack) any { return s.MAD.MgmtClass }},
	{"infiniband.mad.classversion", roce.LayerTypeMAD, func(s *roce.Stack) any { return s.MAD.ClassVersion }},
	{"infiniband.mad.method", roce.LayerTypeMAD, func(s *roce.Stack) any { return s.MAD.Method }},
	{"infiniband.mad.status", roce.LayerTypeMAD, func(s *roce.Stack) any { return s.MAD.Status }},
	{"infiniband.mad.classspecific", roce.LayerTypeMAD, func(s *roce.Stack) any { return s.MAD.ClassSpecific }},
	{"infiniband.mad.transactionid", roce.LayerTypeMAD, func(s *roce.Stack) any { return s.MAD.TransactionID }},
	{"infiniband.mad.attributeid", roce.LayerTypeMAD, func(s *roce.Stack) any { return s.MAD.AttributeID }},
	{"infiniband.mad.attributemodifier", roce.LayerTypeMAD, func(s *roce.Stack) any { return s.MAD.AttributeModifier }},
	{"infiniband.cm.req", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.LocalCommID }},
	{"infiniband.cm.req.serviceid.protocol", roce.LayerTypeREQ, func(s *roce.Stack) any { return uint8(s.REQ.ServiceID >> 16) }},
	{"infiniband.cm.req.serviceid.dport", roce.LayerTypeREQ, func(s *roce.Stack) any { return uint16(s.REQ.ServiceID) }},
	{"infiniband.cm.req.localcaguid", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.LocalCAGUID }},
	{"infiniband.cm.req.localqkey", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.LocalQKey }},
	{"infiniband.cm.req.localqpn", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.LocalQPN }},
	{"infiniband.cm.req.responderres", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.ResponderResources }},
	{"infiniband.cm.req.localeecn", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.LocalEECN }},
	{"infiniband.cm.req.initdepth", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.InitiatorDepth }},
	{"infiniband.cm.req.remoteeecn", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.RemoteEECN }},
	{"infiniband.cm.req.remoteresptout", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.RemoteCMResponseTimeout }},
	{"infiniband.cm.req.transpsvctype", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.TransportServiceType }},
	{"infiniband.cm.req.e2eflowctrl", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.EndToEndFlowControl }},
	{"infiniband.cm.req.startpsn", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.StartingPSN }},
	{"infiniband.cm.req.localresptout", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.LocalCMResponseTimeout }},
	{"infiniband.cm.req.retrcount", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.RetryCount }},
	{"infiniband.cm.req.pkey", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.PartitionKey }},
	{"infiniband.cm.req.pppmtu", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.PathPacketPayloadMTU }},
	{"infiniband.cm.req.rdcexist", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.RDCExists }},
	{"infiniband.cm.req.rnrretrcount", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.RNRRetryCount }},
	{"infiniband.cm.req.maxcmretr", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.MaxCMRetries }},
	{"infiniband.cm.req.srq", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.SRQ }},
	{"infiniband.cm.req.ext_transport", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.ExtendedTransportType }},
	{"infiniband.cm.req.prim_locallid", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.PrimaryLocalPortLID }},
	{"infiniband.cm.req.prim_remotelid", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.PrimaryRemotePortLID }},
	{"infiniband.cm.req.prim_localgid", roce.LayerTypeREQ, func(s *roce.Stack) any { return netip.AddrFrom16(s.REQ.PrimaryLocalPortGID) }},
	{"infiniband.cm.req.prim_remotegid", roce.LayerTypeREQ, func(s *roce.Stack) any { return netip.AddrFrom16(s.REQ.PrimaryRemotePortGID) }},
	{"infiniband.cm.req.prim_localgid_ipv4", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.PrimaryLocalPortGID.Addr() }},
	{"infiniband.cm.req.prim_remotegid_ipv4", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.PrimaryRemotePortGID.Addr() }},
	{"infiniband.cm.req.prim_flowlabel", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.PrimaryFlowLabel }},
	{"infiniband.cm.req.prim_tfcclass", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.PrimaryTrafficClass }},
	{"infiniband.cm.req.prim_hoplim", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.PrimaryHopLimit }},
	{"infiniband.cm.req.prim_sl", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.PrimarySL }},
	{"infiniband.cm.req.prim_subnetlocal", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.PrimarySubnetLocal }},
	{"infiniband.cm.req.prim_localacktout", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.PrimaryLocalAckTimeout }},
	{"infiniband.cm.req.alt_locallid", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.AlternateLocalPortLID }},
	{"infiniband.cm.req.alt_remotelid", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.AlternateRemotePortLID }},
	{"infiniband.cm.req.alt_localgid", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.AlternateLocalPortGID[:] }},
	{"infiniband.cm.req.alt_remotegid", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.AlternateRemotePortGID[:] }},
	{"infiniband.cm.req.alt_tfcclass", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.AlternateTrafficClass }},
	{"infiniband.cm.req.alt_hoplim", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.AlternateHopLimit }},
	{"infiniband.cm.req.alt_localacktout", roce.LayerTypeREQ, func(s *roce.Stack) any { return s.REQ.AlternateLocalAckTimeout }},
	{"infiniband.cm.req.ip_cm.sport", roce.LayerTypeREQ, func(s *roce.Stack) any { h, _, _ := roce.CMA(s.REQ.PrivateData); return h.Port }},
	{"infiniband.cm.req.ip_cm.sip4", roce.LayerTypeREQ, func(s *roce.Stack) any { return ip(s, false, true) }},
	{"infiniband.cm.req.ip_cm.dip4", roce.LayerTypeREQ, func(s *roce.Stack) any { return ip(s, false, false) }},
	{"infiniband.cm.req.ip_cm.sip6", roce.LayerTypeREQ, func(s *roce.Stack) any { return ip(s, true, true) }},
	{"infiniband.cm.req.ip_cm.dip6", roce.LayerTypeREQ, func(s *roce.Stack) any { return ip(s, true, false) }},
	{"infiniband.cm.req.ip_cm.private", roce.LayerTypeREQ, func(s *roce.Stack) any { _, rest, _ := roce.CMA(s.REQ.PrivateData); return rest }},
	{"infiniband.cm.rep", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.LocalCommID }},
	{"infiniband.cm.rep.remotecommid", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.RemoteCommID }},
	{"infiniband.cm.rep.localqpn", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.LocalQPN }},
	{"infiniband.cm.rep.startpsn", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.StartingPSN }},
	{"infiniband.cm.rep.respres", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.ResponderResources }},
	{"infiniband.cm.rep.initdepth", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.InitiatorDepth }},
	{"infiniband.cm.rep.tgtackdelay", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.TargetAckDelay }},
	{"infiniband.cm.rep.failoveracc", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.FailoverAccepted }},
	{"infiniband.cm.rep.e2eflowctrl", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.EndToEndFlowControl }},
	{"infiniband.cm.rep.rnrretrcount", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.RNRRetryCount }},
	{"infiniband.cm.rep.srq", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.SRQ }},
	{"infiniband.cm.rep.localcaguid", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.LocalCAGUID }},
	{"infiniband.cm.rep.localqkey", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.LocalQKey }},
	{"infiniband.cm.rep.localeecn", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.LocalEEContextNumber }},
	{"infiniband.cm.rep.private", roce.LayerTypeREP, func(s *roce.Stack) any { return s.REP.PrivateData }},
	{"infiniband.cm.rtu.localcommid", roce.LayerTypeRTU, func(s *roce.Stack) any { return s.RTU.LocalCommID }},
	{"infiniband.cm.rtu.remotecommid", roce.LayerTypeRTU, func(s *roce.Stack) any { return s.RTU.RemoteCommID }},
	{"infiniband.cm.rtu.private", roce.LayerTypeRTU, func(s *roce.Stack) any { return s.RTU.PrivateData }},
	{"infiniband.cm.rej.localcommid", roce.LayerTypeREJ, func(s *roce.Stack) any { return s.REJ.LocalCommID }},
	{"infiniband.cm.rej.remotecommid", roce.LayerTypeREJ, func(s *roce.Stack) any { return s.REJ.RemoteCommID }},
	{"infiniband.cm.rej.msgrej", roce.LayerTypeREJ, func(s *roce.Stack) any { return s.REJ.MessageRejected }},
	{"infiniband.cm.rej.rejinfolen", roce.LayerTypeREJ, func(s *roce.Stack) any { return s.REJ.RejectedInfoLength }},
	{"infiniband.cm.rej.reason", roce.LayerTypeREJ, func(s *roce.Stack) any { return uint16(s.REJ.Reason) }},
	{"infiniband.cm.rej.ari", roce.LayerTypeREJ, func(s *roce.Stack) any { return s.REJ.ARI }},
	{"infiniband.cm.rej.private", roce.LayerTypeREJ, func(s *roce.Stack) any { return s.REJ.PrivateData }},
	{"infiniband.cm.dreq.localcommid", roce.LayerTypeDREQ, func(s *roce.Stack) any { return s.DREQ.LocalCommID }},
	{"infiniband.cm.dreq.remotecommid", roce.LayerTypeDREQ, func(s *roce.Stack) any { return s.DREQ.RemoteCommID }},
	{"infiniband.cm.req.remoteqpneecn", roce.LayerTypeDREQ, func(s *roce.Stack) any { return s.DREQ.RemoteQPNEECN }},
	{"infiniband.cm.dreq.private", roce.LayerTypeDREQ, func(s *roce.Stack) any { return s.DREQ.PrivateData }},
	{"infiniband.cm.drsp.localcommid", roce.LayerTypeDREP, func(s *roce.Stack) any { return s.DREP.LocalCommID }},
	{"infiniband.cm.drsp.remotecommid", roce.LayerTypeDREP, func(s *roce.Stack) any { return s.DREP.RemoteCommID }},
	{"infiniband.cm.drsp.private", roce.LayerTypeDREP, func(s *roce.Stack) any { return s.DREP.PrivateData }},
	{"infiniband.invariant.crc", roce.LayerTypeBTH, func(s *roce.Stack) any {
		return when(known(s.BTH.Opcode), bits.ReverseBytes32(s.BTH.ICRC))
	}},
}

// known reports whether tshark knows what follows the BTH; of XRC and CNP Wireshark
// 4.0 knows nothing.
func known(o roce.Opcode) bool { return o.Transport() != roce.XRC && o != roce.CongestionNote }

// when is a value, or none.
func when(has bool, v any) any {
	if !has {
		return nil
	}
	return v
}

// twins are two forms of one value, of which tshark shows that which the packet's
// own header suggests.
var twins = map[string]string{
	"infiniband.cm.req.prim_localgid": "infiniband.cm.req.prim_localgid_ipv4", "infiniband.cm.req.prim_localgid_ipv4": "infiniband.cm.req.prim_localgid",
	"infiniband.cm.req.prim_remotegid": "infiniband.cm.req.prim_remotegid_ipv4", "infiniband.cm.req.prim_remotegid_ipv4": "infiniband.cm.req.prim_remotegid",
}

// ip is an address that a REQ's private data begins with.
func ip(s *roce.Stack, v6, src bool) any {
	h, _, ok := roce.CMA(s.REQ.PrivateData)
	if src {
		return when(ok && h.IPv6 == v6, h.Src)
	}
	return when(ok && h.IPv6 == v6, h.Dst)
}
