// SPDX-License-Identifier: BSD-2-Clause

package capture

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"devxlab.example/cm/roce"
)

// Message is when a message of a connection passed, and how often.
type Message struct {
	Time    time.Time // of the first; zero if none was seen, or the capture has no times
	Repeats int       // sent again, because no answer came
	Copies  int       // the same packet again: duplicated on the way

	seen      bool
	psn, icrc uint32 // of the last
}

// Seen reports whether the message passed at all.
func (m Message) Seen() bool { return m.seen }

func (m *Message) add(at time.Time, b *roce.BTH) {
	switch {
	case !m.seen:
		m.seen, m.Time = true, at
	case m.psn == b.PSN && m.icrc == b.ICRC:
		m.Copies++
	default:
		m.Repeats++
	}
	m.psn, m.icrc = b.PSN, b.ICRC
}

// Connection is one attempt to connect, and what became of it.
type Connection struct {
	Client, Server         netip.Addr // addresses of the packets; of RoCEv1, GIDs
	Service                uint64     // see roce.Service
	ClientID, ServerID     uint32     // communication ids
	ClientQPN, ServerQPN   uint32
	Datagram               bool // SIDR: a service is asked for, nothing is connected
	REQ, MRA, REP, RTU     Message
	REJ                    Message
	RejectedBy             string // "client" or "server"
	Reason                 roce.RejectReason
	SIDRStatus             uint8   // of a datagram service's answer; 0 is success
	ServiceTimeout         uint8   // of the MRA: the time that its sender asked for is 4.096 µs · 2 to it
	LAP, APR               Message // an alternate path, proposed and answered
	APRStatus              uint8   // 0: it is loaded
	DREQ, DREP             Message
	DREQ2, DREP2           Message // if both sides disconnect at once, those of the second
	transaction, dreqTrans uint64
}

// Established reports whether all three messages passed.
func (c *Connection) Established() bool { return c.REQ.Seen() && c.REP.Seen() && c.RTU.Seen() }

// Repeats and Copies add up those of all messages.
func (c *Connection) Repeats() (n int) {
	for _, m := range c.messages() {
		n += m.Repeats
	}
	return n
}

// Copies is how many packets came twice.
func (c *Connection) Copies() (n int) {
	for _, m := range c.messages() {
		n += m.Copies
	}
	return n
}

func (c *Connection) messages() [11]Message {
	return [...]Message{c.REQ, c.MRA, c.REP, c.RTU, c.REJ, c.LAP, c.APR, c.DREQ, c.DREP, c.DREQ2, c.DREP2}
}

// Remarks says in words what happened besides.
func (c *Connection) Remarks() (r []string) {
	if c.MRA.Seen() {
		r = append(r, fmt.Sprintf("MRA: asked for %.3g s", mraUnit.Seconds()*float64(uint64(1)<<c.ServiceTimeout)))
	}
	switch {
	case c.APR.Seen() && c.APRStatus == 0:
		r = append(r, "LAP: alternate path loaded")
	case c.APR.Seen():
		r = append(r, fmt.Sprintf("LAP: alternate path refused, APR status %d", c.APRStatus))
	case c.LAP.Seen():
		r = append(r, "LAP: no answer")
	}
	if c.DREQ2.Seen() {
		r = append(r, "both sides disconnected at once")
	}
	return r
}

// mraUnit is what a service time-out of 0 stands for (specification, 12.7.32).
const mraUnit = 4096 * time.Nanosecond

// State says in words what became of the connection.
func (c *Connection) State() string {
	switch {
	case c.Datagram && !c.REP.Seen():
		return "no answer"
	case c.Datagram && c.SIDRStatus != 0:
		return fmt.Sprintf("refused: SIDR status %d", c.SIDRStatus)
	case c.Datagram:
		return "service found"
	case c.REJ.Seen():
		return fmt.Sprintf("rejected by the %s: %v", c.RejectedBy, c.Reason)
	case c.Established() && (c.DREP.Seen() || c.DREP2.Seen()):
		return "disconnected"
	case c.Established() && c.DREQ.Seen():
		return "disconnecting: no DREP"
	case c.Established():
		return "established"
	case c.REP.Seen() && c.DREQ.Seen():
		return "disconnected without RTU"
	case c.REP.Seen():
		return "accepted, no RTU"
	}
	return "no answer"
}

// Counts is what a Follower met.
type Counts struct {
	Frames    int `json:"frames"`
	RoCE      int `json:"roce"`      // that are RoCE
	CM        int `json:"cm"`        // of those, messages of the CM
	Truncated int `json:"truncated"` // cut off by the snap length before the end of their headers
	BadICRC   int `json:"bad_icrc"`  // whole packets with a wrong checksum; they count like others
	Damaged   int `json:"damaged"`   // their headers make no sense
	Unmatched int `json:"unmatched"` // CM messages of connections whose REQ was not captured
	Left      int `json:"left"`      // REQs of connections that are too many to be followed
	Unread    int `json:"unread"`    // management datagrams that are no CM message of a known version
}

// maxConnections is how many are followed: some 400 bytes each.
const maxConnections = 1 << 20

// Follower follows connections, a million at most.
type Follower struct {
	Counts Counts
	// Notes says, once for each kind, why a packet was not understood.
	Notes []string

	stack   *roce.Stack
	parsers map[gopacket.LayerType]*gopacket.DecodingLayerParser
	sll     layers.LinuxSLL
	decoded []gopacket.LayerType
	all     []*Connection
	open    map[key]*Connection // by the client's id
	noted   map[string]bool
}

type key struct {
	client, server netip.Addr
	id             uint32
	datagram       bool
}

// NewFollower returns one that has seen nothing.
func NewFollower() *Follower {
	return &Follower{stack: roce.NewStack(), parsers: map[gopacket.LayerType]*gopacket.DecodingLayerParser{}, open: map[key]*Connection{}, noted: map[string]bool{}}
}

// parser returns that of packets which begin with a layer; nil if none is read here.
func (f *Follower) parser(first gopacket.LayerType) *gopacket.DecodingLayerParser {
	p := f.parsers[first]
	if p == nil {
		switch first {
		case layers.LayerTypeEthernet, layers.LayerTypeIPv4, layers.LayerTypeIPv6, layers.LayerTypeLinuxSLL:
			p = f.stack.Parser(first, &f.sll)
			f.parsers[first] = p
		}
	}
	return p
}

// Connections returns them in the order of their REQs.
func (f *Follower) Connections() []*Connection { return f.all }

// Add looks at one packet.
func (f *Follower) Add(p Frame) {
	f.Counts.Frames++
	first := p.First
	if first == layers.LayerTypeIPv4 && len(p.Data) > 0 && p.Data[0]>>4 == 6 {
		first = layers.LayerTypeIPv6
	}
	parser := f.parser(first)
	if parser == nil {
		f.Counts.Damaged++
		if p.Why != nil {
			f.note(p.Why.Error())
		} else {
			f.note(fmt.Sprintf("a packet begins with %v, which this does not read", first))
		}
		return
	}
	err := parser.DecodeLayers(p.Data, &f.decoded)
	var has [32]bool
	l3 := -1 // where the IP header or GRH begins
	at := 0
	for _, l := range f.decoded {
		switch l {
		case layers.LayerTypeEthernet:
			at += len(f.stack.Ethernet.Contents)
		case layers.LayerTypeDot1Q:
			at += len(f.stack.VLAN.Contents)
		case layers.LayerTypeLinuxSLL:
			at += len(f.sll.Contents)
		case layers.LayerTypeIPv4, layers.LayerTypeIPv6, roce.LayerTypeGRH:
			if l3 < 0 {
				l3 = at
			}
		}
		if n := l - roce.LayerTypeGRH; n >= 0 && int(n) < len(has) {
			has[n] = true
		}
	}
	is := func(l gopacket.LayerType) bool { return has[l-roce.LayerTypeGRH] }
	if slices.Contains(f.decoded, layers.LayerTypeUDP) && f.stack.UDP.DstPort != roce.UDPPort {
		return // it comes from that port, and gopacket takes it for RoCE too
	}
	if !is(roce.LayerTypeBTH) {
		if err != nil && f.isRoCE() {
			f.damaged(p, err)
		}
		return
	}
	f.Counts.RoCE++
	if err != nil {
		f.damaged(p, err)
		return
	}
	switch right, err := roce.CheckICRC(p.Data[l3:]); {
	case err == nil && !right:
		f.Counts.BadICRC++
	case err != nil && !p.Cut:
		f.Counts.Damaged++
		f.note("the length in a packet's IP header or GRH is not that of the packet")
	}
	if !is(roce.LayerTypeMAD) {
		return
	}
	if why := f.stack.MAD.Unread(); why != "" {
		f.Counts.Unread++
		f.note(why)
		return
	}
	f.Counts.CM++
	src, dst := f.addresses(is(roce.LayerTypeGRH))
	f.message(p.Time, src, dst)
}

// isRoCE reports whether a packet whose base transport header was not read has
// one nevertheless.
func (f *Follower) isRoCE() bool {
	last := gopacket.LayerTypeZero
	if n := len(f.decoded); n > 0 {
		last = f.decoded[n-1]
	}
	return last == roce.LayerTypeGRH || last == layers.LayerTypeUDP && f.stack.UDP.DstPort == roce.UDPPort
}

func (f *Follower) damaged(p Frame, err error) {
	if p.Cut {
		f.Counts.Truncated++
		f.note(fmt.Sprintf("packets were cut off when they were captured: capture with a snap length of 400 at least (tcpdump -s 0): %v", err))
		return
	}
	f.Counts.Damaged++
	f.note(err.Error())
}

const maxNotes = 20

func (f *Follower) note(why string) {
	if !f.noted[why] && len(f.noted) < maxNotes {
		f.noted[why] = true
		f.Notes = append(f.Notes, why)
	}
}

func (f *Follower) addresses(v1 bool) (src, dst netip.Addr) {
	s := f.stack
	switch {
	case v1:
		return netip.AddrFrom16(s.GRH.SGID), netip.AddrFrom16(s.GRH.DGID)
	case slices.Contains(f.decoded, layers.LayerTypeIPv4):
		src, _ = netip.AddrFromSlice(s.IPv4.SrcIP)
		dst, _ = netip.AddrFromSlice(s.IPv4.DstIP)
	default:
		src, _ = netip.AddrFromSlice(s.IPv6.SrcIP)
		dst, _ = netip.AddrFromSlice(s.IPv6.DstIP)
	}
	return src, dst
}

func (f *Follower) message(at time.Time, src, dst netip.Addr) {
	s := f.stack
	b := &s.BTH
	switch s.MAD.AttributeID {
	case roce.AttrREQ:
		f.begin(key{src, dst, s.REQ.LocalCommID, false}, at, s.REQ.ServiceID, s.REQ.LocalQPN)
	case roce.AttrSIDRReq:
		f.begin(key{src, dst, s.SIDRReq.RequestID, true}, at, s.SIDRReq.ServiceID, 0)
	case roce.AttrSIDRRep:
		if c := f.open[key{dst, src, s.SIDRRep.RequestID, true}]; f.matched(c != nil) {
			c.REP.add(at, b)
			c.SIDRStatus, c.ServerQPN = s.SIDRRep.Status, s.SIDRRep.QPN
		}
	case roce.AttrREP:
		if c := f.open[key{dst, src, s.REP.RemoteCommID, false}]; f.matched(c != nil) {
			c.REP.add(at, b)
			c.ServerID, c.ServerQPN = s.REP.LocalCommID, s.REP.LocalQPN
		}
	case roce.AttrRTU:
		if c, _ := f.find(src, dst, s.RTU.LocalCommID, s.RTU.RemoteCommID); f.matched(c != nil) {
			c.RTU.add(at, b)
		}
	case roce.AttrMRA:
		if c, _ := f.find(src, dst, s.MRA.LocalCommID, s.MRA.RemoteCommID); f.matched(c != nil) {
			c.MRA.add(at, b)
			c.ServiceTimeout = s.MRA.ServiceTimeout
		}
	case roce.AttrLAP:
		if c, _ := f.find(src, dst, s.LAP.LocalCommID, s.LAP.RemoteCommID); f.matched(c != nil) {
			c.LAP.add(at, b)
		}
	case roce.AttrAPR:
		if c, _ := f.find(src, dst, s.APR.LocalCommID, s.APR.RemoteCommID); f.matched(c != nil) {
			c.APR.add(at, b)
			c.APRStatus = s.APR.ARStatus
		}
	case roce.AttrREJ:
		if c, by := f.find(src, dst, s.REJ.LocalCommID, s.REJ.RemoteCommID); f.matched(c != nil) {
			if !c.REJ.Seen() {
				c.RejectedBy, c.Reason = by, roce.RejectReason(s.REJ.Reason)
			}
			c.REJ.add(at, b)
		}
	case roce.AttrDREQ:
		if c, _ := f.find(src, dst, s.DREQ.LocalCommID, s.DREQ.RemoteCommID); f.matched(c != nil) {
			// Both sides may ask at once: the second is no repetition.
			if c.DREQ.Seen() && c.dreqTrans != s.MAD.TransactionID {
				c.DREQ2.add(at, b)
				return
			}
			c.dreqTrans = s.MAD.TransactionID
			c.DREQ.add(at, b)
		}
	case roce.AttrDREP:
		if c, _ := f.find(src, dst, s.DREP.LocalCommID, s.DREP.RemoteCommID); f.matched(c != nil) {
			if c.DREQ.Seen() && c.dreqTrans != s.MAD.TransactionID {
				c.DREP2.add(at, b)
				return
			}
			c.DREP.add(at, b)
		}
	}
}

func (f *Follower) matched(yes bool) bool {
	if !yes {
		f.Counts.Unmatched++
	}
	return yes
}

// begin is a REQ: a new connection, or the same again.
func (f *Follower) begin(k key, at time.Time, service uint64, qpn uint32) {
	c := f.open[k]
	if c == nil || c.transaction != f.stack.MAD.TransactionID {
		if len(f.all) >= maxConnections {
			f.Counts.Left++
			f.note(fmt.Sprintf("more than %d connections: the others are only counted", maxConnections))
			return
		}
		c = &Connection{Client: k.client, Server: k.server, Service: service, ClientID: k.id, ClientQPN: qpn, Datagram: k.datagram, transaction: f.stack.MAD.TransactionID}
		f.all = append(f.all, c)
		f.open[k] = c
	}
	c.REQ.add(at, &f.stack.BTH)
}

// find returns the connection of a message with both ids, and which side sent it.
// A REJ to a REQ has no id of its own sender.
func (f *Follower) find(src, dst netip.Addr, local, remote uint32) (c *Connection, by string) {
	// Between two programs of one address both could fit: the ids of the server decide.
	client, server := f.open[key{src, dst, local, false}], f.open[key{dst, src, remote, false}]
	switch {
	case client != nil && (server == nil || client.ServerID == remote && server.ServerID != local):
		return client, "client"
	case server != nil:
		return server, "server"
	}
	return nil, ""
}

// Name writes port space and port of a service id as people say it.
func Name(service uint64) string {
	space, port := roce.Service(service)
	switch space {
	case roce.PortSpaceTCP:
		return fmt.Sprintf("tcp/%d", port)
	case roce.PortSpaceUDP:
		return fmt.Sprintf("udp/%d", port)
	case roce.PortSpaceIPoIB:
		return fmt.Sprintf("ipoib/%d", port)
	case roce.PortSpaceIB:
		return fmt.Sprintf("ib/%d", port)
	}
	return fmt.Sprintf("%#x", service)
}
