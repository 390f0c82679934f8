// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"compress/gzip"
	"fmt"
	"io"
	"math/bits"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"devxlab.example/internal/require"
)

// theirs are tshark's names of fields, the layer that has them, and what we have.
// tshark decodes neither MRA, LAP, APR nor SIDR, and gives RETH's names to the
// address and key of an AtomicETH. Of the word with flow label and packet rate
// Wireshark 4.0 reads three bytes of four: it shows 12 bits of 20 of the label, and
// what it shows as the rate is none.
var theirs = []struct {
	field string
	in    gopacket.LayerType
	ours  func(*Stack) any
}{
	{"infiniband.bth.opcode", LayerTypeBTH, func(s *Stack) any { return s.BTH.Opcode }},
	{"infiniband.bth.se", LayerTypeBTH, func(s *Stack) any { return s.BTH.Solicited }},
	{"infiniband.bth.m", LayerTypeBTH, func(s *Stack) any { return s.BTH.MigReq }},
	{"infiniband.bth.padcnt", LayerTypeBTH, func(s *Stack) any { return s.BTH.Pad }},
	{"infiniband.bth.tver", LayerTypeBTH, func(s *Stack) any { return s.BTH.TVer }},
	{"infiniband.bth.p_key", LayerTypeBTH, func(s *Stack) any { return s.BTH.PKey }},
	{"infiniband.bth.destqp", LayerTypeBTH, func(s *Stack) any { return s.BTH.DestQP }},
	{"infiniband.bth.a", LayerTypeBTH, func(s *Stack) any { return s.BTH.AckReq }},
	{"infiniband.bth.psn", LayerTypeBTH, func(s *Stack) any { return s.BTH.PSN }},
	{"infiniband.deth.q_key", LayerTypeDETH, func(s *Stack) any { return s.DETH.QKey }},
	{"infiniband.deth.srcqp", LayerTypeDETH, func(s *Stack) any { return s.DETH.SrcQP }},
	{"infiniband.reth.va", LayerTypeRETH, func(s *Stack) any { return s.RETH.VA }},
	{"infiniband.reth.r_key", LayerTypeRETH, func(s *Stack) any { return s.RETH.RKey }},
	{"infiniband.reth.dmalen", LayerTypeRETH, func(s *Stack) any { return s.RETH.DMALen }},
	{"infiniband.reth.va", LayerTypeAtomicETH, func(s *Stack) any { return s.AtomicETH.VA }},
	{"infiniband.reth.r_key", LayerTypeAtomicETH, func(s *Stack) any { return s.AtomicETH.RKey }},
	{"infiniband.atomiceth.swapdt", LayerTypeAtomicETH, func(s *Stack) any { return s.AtomicETH.SwapAdd }},
	{"infiniband.atomiceth.cmpdt", LayerTypeAtomicETH, func(s *Stack) any { return s.AtomicETH.Compare }},
	{"infiniband.aeth.syndrome", LayerTypeAETH, func(s *Stack) any { return s.AETH.Syndrome }},
	{"infiniband.aeth.msn", LayerTypeAETH, func(s *Stack) any { return s.AETH.MSN }},
	{"infiniband.atomicacketh.origremdt", LayerTypeAtomicAckETH, func(s *Stack) any { return s.AtomicAckETH.Original }},
	{"infiniband.immdt", LayerTypeImmDt, func(s *Stack) any { return fmt.Sprintf("%08x", s.ImmDt.Data) }},
	{"infiniband.mad.baseversion", LayerTypeMAD, func(s *Stack) any { return s.MAD.BaseVersion }},
	{"infiniband.mad.mgmtclass", LayerTypeMAD, func(s *Stack) any { return s.MAD.MgmtClass }},
	{"infiniband.mad.classversion", LayerTypeMAD, func(s *Stack) any { return s.MAD.ClassVersion }},
	{"infiniband.mad.method", LayerTypeMAD, func(s *Stack) any { return s.MAD.Method }},
	{"infiniband.mad.status", LayerTypeMAD, func(s *Stack) any { return s.MAD.Status }},
	{"infiniband.mad.classspecific", LayerTypeMAD, func(s *Stack) any { return s.MAD.ClassSpecific }},
	{"infiniband.mad.transactionid", LayerTypeMAD, func(s *Stack) any { return s.MAD.TransactionID }},
	{"infiniband.mad.attributeid", LayerTypeMAD, func(s *Stack) any { return s.MAD.AttributeID }},
	{"infiniband.mad.attributemodifier", LayerTypeMAD, func(s *Stack) any { return s.MAD.AttributeModifier }},
	{"infiniband.cm.req", LayerTypeREQ, func(s *Stack) any { return s.REQ.LocalCommID }},
	{"infiniband.cm.req.serviceid.dport", LayerTypeREQ, func(s *Stack) any { return uint16(s.REQ.ServiceID) }},
	{"infiniband.cm.req.localcaguid", LayerTypeREQ, func(s *Stack) any { return s.REQ.LocalCAGUID }},
	{"infiniband.cm.req.localqkey", LayerTypeREQ, func(s *Stack) any { return s.REQ.LocalQKey }},
	{"infiniband.cm.req.localqpn", LayerTypeREQ, func(s *Stack) any { return s.REQ.LocalQPN }},
	{"infiniband.cm.req.responderres", LayerTypeREQ, func(s *Stack) any { return s.REQ.ResponderResources }},
	{"infiniband.cm.req.localeecn", LayerTypeREQ, func(s *Stack) any { return s.REQ.LocalEECN }},
	{"infiniband.cm.req.initdepth", LayerTypeREQ, func(s *Stack) any { return s.REQ.InitiatorDepth }},
	{"infiniband.cm.req.remoteeecn", LayerTypeREQ, func(s *Stack) any { return s.REQ.RemoteEECN }},
	{"infiniband.cm.req.remoteresptout", LayerTypeREQ, func(s *Stack) any { return s.REQ.RemoteCMResponseTimeout }},
	{"infiniband.cm.req.transpsvctype", LayerTypeREQ, func(s *Stack) any { return s.REQ.TransportServiceType }},
	{"infiniband.cm.req.e2eflowctrl", LayerTypeREQ, func(s *Stack) any { return s.REQ.EndToEndFlowControl }},
	{"infiniband.cm.req.startpsn", LayerTypeREQ, func(s *Stack) any { return s.REQ.StartingPSN }},
	{"infiniband.cm.req.localresptout", LayerTypeREQ, func(s *Stack) any { return s.REQ.LocalCMResponseTimeout }},
	{"infiniband.cm.req.retrcount", LayerTypeREQ, func(s *Stack) any { return s.REQ.RetryCount }},
	{"infiniband.cm.req.pkey", LayerTypeREQ, func(s *Stack) any { return s.REQ.PartitionKey }},
	{"infiniband.cm.req.pppmtu", LayerTypeREQ, func(s *Stack) any { return s.REQ.PathPacketPayloadMTU }},
	{"infiniband.cm.req.rdcexist", LayerTypeREQ, func(s *Stack) any { return s.REQ.RDCExists }},
	{"infiniband.cm.req.rnrretrcount", LayerTypeREQ, func(s *Stack) any { return s.REQ.RNRRetryCount }},
	{"infiniband.cm.req.maxcmretr", LayerTypeREQ, func(s *Stack) any { return s.REQ.MaxCMRetries }},
	{"infiniband.cm.req.srq", LayerTypeREQ, func(s *Stack) any { return s.REQ.SRQ }},
	{"infiniband.cm.req.ext_transport", LayerTypeREQ, func(s *Stack) any { return s.REQ.ExtendedTransportType }},
	{"infiniband.cm.req.prim_locallid", LayerTypeREQ, func(s *Stack) any { return s.REQ.PrimaryLocalPortLID }},
	{"infiniband.cm.req.prim_remotelid", LayerTypeREQ, func(s *Stack) any { return s.REQ.PrimaryRemotePortLID }},
	{"infiniband.cm.req.prim_localgid", LayerTypeREQ, func(s *Stack) any { return addr6(s.REQ.PrimaryLocalPortGID) }},
	{"infiniband.cm.req.prim_remotegid", LayerTypeREQ, func(s *Stack) any { return addr6(s.REQ.PrimaryRemotePortGID) }},
	{"infiniband.cm.req.prim_localgid_ipv4", LayerTypeREQ, func(s *Stack) any { return addr4(s.REQ.PrimaryLocalPortGID) }},
	{"infiniband.cm.req.prim_flowlabel", LayerTypeREQ, func(s *Stack) any { return s.REQ.PrimaryFlowLabel }},
	{"infiniband.cm.req.prim_tfcclass", LayerTypeREQ, func(s *Stack) any { return s.REQ.PrimaryTrafficClass }},
	{"infiniband.cm.req.prim_hoplim", LayerTypeREQ, func(s *Stack) any { return s.REQ.PrimaryHopLimit }},
	{"infiniband.cm.req.prim_sl", LayerTypeREQ, func(s *Stack) any { return s.REQ.PrimarySL }},
	{"infiniband.cm.req.prim_subnetlocal", LayerTypeREQ, func(s *Stack) any { return s.REQ.PrimarySubnetLocal }},
	{"infiniband.cm.req.prim_localacktout", LayerTypeREQ, func(s *Stack) any { return s.REQ.PrimaryLocalAckTimeout }},
	{"infiniband.cm.req.ip_cm.sport", LayerTypeREQ, func(s *Stack) any { h, _, _ := CMA(s.REQ.PrivateData); return h.Port }},
	{"infiniband.cm.rep", LayerTypeREP, func(s *Stack) any { return s.REP.LocalCommID }},
	{"infiniband.cm.rep.remotecommid", LayerTypeREP, func(s *Stack) any { return s.REP.RemoteCommID }},
	{"infiniband.cm.rep.localqpn", LayerTypeREP, func(s *Stack) any { return s.REP.LocalQPN }},
	{"infiniband.cm.rep.startpsn", LayerTypeREP, func(s *Stack) any { return s.REP.StartingPSN }},
	{"infiniband.cm.rep.respres", LayerTypeREP, func(s *Stack) any { return s.REP.ResponderResources }},
	{"infiniband.cm.rep.initdepth", LayerTypeREP, func(s *Stack) any { return s.REP.InitiatorDepth }},
	{"infiniband.cm.rep.tgtackdelay", LayerTypeREP, func(s *Stack) any { return s.REP.TargetAckDelay }},
	{"infiniband.cm.rep.failoveracc", LayerTypeREP, func(s *Stack) any { return s.REP.FailoverAccepted }},
	{"infiniband.cm.rep.e2eflowctrl", LayerTypeREP, func(s *Stack) any { return s.REP.EndToEndFlowControl }},
	{"infiniband.cm.rep.rnrretrcount", LayerTypeREP, func(s *Stack) any { return s.REP.RNRRetryCount }},
	{"infiniband.cm.rep.srq", LayerTypeREP, func(s *Stack) any { return s.REP.SRQ }},
	{"infiniband.cm.rep.localcaguid", LayerTypeREP, func(s *Stack) any { return s.REP.LocalCAGUID }},
	{"infiniband.cm.rtu.localcommid", LayerTypeRTU, func(s *Stack) any { return s.RTU.LocalCommID }},
	{"infiniband.cm.rtu.remotecommid", LayerTypeRTU, func(s *Stack) any { return s.RTU.RemoteCommID }},
	{"infiniband.cm.rej.localcommid", LayerTypeREJ, func(s *Stack) any { return s.REJ.LocalCommID }},
	{"infiniband.cm.rej.remotecommid", LayerTypeREJ, func(s *Stack) any { return s.REJ.RemoteCommID }},
	{"infiniband.cm.rej.msgrej", LayerTypeREJ, func(s *Stack) any { return s.REJ.MessageRejected }},
	{"infiniband.cm.rej.rejinfolen", LayerTypeREJ, func(s *Stack) any { return s.REJ.RejectedInfoLength }},
	{"infiniband.cm.rej.reason", LayerTypeREJ, func(s *Stack) any { return uint16(s.REJ.Reason) }},
	{"infiniband.cm.dreq.localcommid", LayerTypeDREQ, func(s *Stack) any { return s.DREQ.LocalCommID }},
	{"infiniband.cm.dreq.remotecommid", LayerTypeDREQ, func(s *Stack) any { return s.DREQ.RemoteCommID }},
	{"infiniband.cm.req.remoteqpneecn", LayerTypeDREQ, func(s *Stack) any { return s.DREQ.RemoteQPNEECN }},
	{"infiniband.cm.drsp.localcommid", LayerTypeDREP, func(s *Stack) any { return s.DREP.LocalCommID }},
	{"infiniband.cm.drsp.remotecommid", LayerTypeDREP, func(s *Stack) any { return s.DREP.RemoteCommID }},
	{"infiniband.invariant.crc", LayerTypeBTH, func(s *Stack) any { return bits.ReverseBytes32(s.BTH.ICRC) }},
}

// addr6 and addr4 are the two forms that tshark has of a GID: it shows one.
func addr6(g GID) any {
	if g.Addr().Is4() {
		return nil
	}
	return netip.AddrFrom16(g)
}

func addr4(g GID) any {
	if a := g.Addr(); a.Is4() {
		return a
	}
	return nil
}

// number brings a value of tshark's and one of ours into one form.
func number(v string) string {
	if a, err := netip.ParseAddr(v); err == nil {
		return a.String()
	}
	switch v {
	case "true", "True":
		return "1"
	case "false", "False":
		return "0"
	}
	if n, err := strconv.ParseUint(v, 0, 64); err == nil {
		return strconv.FormatUint(n, 10)
	}
	return v
}

// tshark agrees about every field of every packet.
func TestTshark(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		require.Have(t, "tshark", err)
	}
	file := filepath.Join(t.TempDir(), "mixed.pcapng")
	unzip(t, "testdata/mixed.pcapng.gz", file)
	args := []string{"-r", file, "-T", "fields", "-E", "separator=|", "-E", "occurrence=l"}
	column := map[string]int{}
	for _, f := range theirs {
		if _, twice := column[f.field]; !twice {
			column[f.field] = len(column)
			args = append(args, "-e", f.field)
		}
	}
	out, err := exec.Command("tshark", args...).Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	frames := capture(t)
	if len(lines) != len(frames) {
		t.Fatalf("%d lines for %d frames", len(lines), len(frames))
	}
	s := NewStack()
	parser := s.Parser(layers.LayerTypeEthernet)
	var decoded []gopacket.LayerType
	compared := map[string]int{}
	for i, frame := range frames {
		must(t, parser.DecodeLayers(frame, &decoded))
		has := map[gopacket.LayerType]bool{}
		for _, l := range decoded {
			has[l] = true
		}
		columns := strings.Split(lines[i], "|")
		for _, f := range theirs {
			if !has[f.in] {
				continue
			}
			v := columns[column[f.field]]
			want := f.ours(s)
			if want == nil && v == "" {
				continue
			}
			a, b := number(v), number(plain(want))
			if f.in == LayerTypeImmDt {
				a, b = v, want.(string)
			}
			if f.field == "infiniband.cm.req.prim_flowlabel" && a != b {
				b = number(plain(want.(uint32) >> 8))
			}
			if a != b {
				t.Fatalf("frame %d, %v: tshark has %s %q, we %v", i+1, s.BTH.Opcode, f.field, v, want)
			}
			compared[f.field+f.in.String()]++
		}
	}
	total := 0
	for _, f := range theirs {
		n := compared[f.field+f.in.String()]
		if n == 0 {
			t.Logf("the capture has no %s", f.field)
		}
		total += n
	}
	if total < 10*len(frames) {
		t.Errorf("%d values compared in %d frames", total, len(frames))
	}
	t.Logf("%d values of %d frames", total, len(frames))
}

// plain prints a number without the words of its type.
func plain(v any) string {
	switch v := v.(type) {
	case Opcode:
		return fmt.Sprint(uint8(v))
	case Syndrome:
		return fmt.Sprint(uint8(v))
	case Attribute:
		return fmt.Sprint(uint16(v))
	}
	return fmt.Sprint(v)
}

func unzip(t testing.TB, from, to string) {
	t.Helper()
	f, err := os.Open(from)
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(t, err)
	b, err := io.ReadAll(z)
	must(t, err)
	must(t, os.WriteFile(to, b, 0o600))
}
