// SPDX-License-Identifier: BSD-2-Clause

package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"devxlab.example/cm/roce"
	"devxlab.example/internal/labcapture"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func follow(t testing.TB, r io.Reader) (*Follower, error) {
	t.Helper()
	c, err := NewReader(r)
	if err != nil {
		return nil, err
	}
	f := NewFollower()
	for {
		p, err := c.Next()
		if errors.Is(err, io.EOF) {
			return f, nil
		}
		if err != nil {
			return f, err
		}
		f.Add(p)
	}
}

func states(f *Follower) map[string]int {
	n := map[string]int{}
	for _, c := range f.Connections() {
		n[c.State()]++
	}
	return n
}

func TestMixed(t *testing.T) {
	f, err := follow(t, bytes.NewReader(labcapture.Mixed(t)))
	must(t, err)
	rejected := func(r roce.RejectReason) string { return "rejected by the server: " + r.String() }
	if n := states(f); n["disconnected"] != 21 || n["service found"] != 3 || n[rejected(roce.RejectInvalidServiceID)] != 3 || n[rejected(roce.RejectConsumerDefined)] != 1 || len(n) != 4 {
		t.Errorf("%v", n)
	}
	if want := (Counts{Frames: 2002, RoCE: 1966, CM: 121}); f.Counts != want || len(f.Notes) != 0 {
		t.Errorf("%+v, %q", f.Counts, f.Notes)
	}
	for _, c := range f.Connections() {
		if c.Established() && (c.ClientQPN == 0 || c.ServerQPN == 0 || c.REP.Time.Before(c.REQ.Time) || c.RTU.Time.Before(c.REP.Time) || c.Repeats() != 0 || c.Copies() != 0) {
			t.Errorf("%+v", c)
		}
	}
	if c := f.Connections()[0]; Name(c.Service) != "tcp/7174" || c.Client.String() != "192.168.7.1" {
		t.Errorf("%+v", c)
	}
}

// wire makes packets of a conversation between two addresses.
type wire struct {
	t   testing.TB
	now time.Time
	psn uint32
	out []Frame
	v1  bool
}

var (
	client = roce.GID{10: 0xff, 0xff, 10, 0, 0, 1}
	server = roce.GID{10: 0xff, 0xff, 10, 0, 0, 2}
)

func (w *wire) send(from, to roce.GID, trans uint64, attr roce.Attribute, m gopacket.SerializableLayer) {
	w.t.Helper()
	w.now = w.now.Add(time.Millisecond)
	w.psn++
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	in := []gopacket.SerializableLayer{eth}
	if w.v1 {
		eth.EthernetType = roce.EtherType
		in = append(in, &roce.GRH{IPVer: 6, NextHeader: roce.NextHeaderBTH, SGID: from, DGID: to})
	} else {
		ip := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
		udp := &layers.UDP{SrcPort: 0xc000, DstPort: roce.UDPPort}
		must(w.t, udp.SetNetworkLayerForChecksum(ip))
		in = append(in, ip, udp)
	}
	in = append(in, &roce.BTH{Opcode: roce.UD | roce.SendOnly, DestQP: roce.GSI, PKey: 0xffff, PSN: w.psn}, &roce.DETH{QKey: 0x80010000, SrcQP: roce.GSI},
		&roce.MAD{BaseVersion: 1, MgmtClass: roce.ClassCM, ClassVersion: roce.CMVersion, Method: 3, TransactionID: trans, AttributeID: attr}, m)
	buf := gopacket.NewSerializeBuffer()
	must(w.t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, in...))
	must(w.t, roce.SetICRC(buf.Bytes()[14:]))
	w.out = append(w.out, Frame{Time: w.now, Data: bytes.Clone(buf.Bytes()), First: layers.LayerTypeEthernet})
}

// again has the last packet come a second time.
func (w *wire) again() { w.out = append(w.out, w.out[len(w.out)-1]) }

func (w *wire) follow() *Follower {
	f := NewFollower()
	for _, p := range w.out {
		f.Add(p)
	}
	return f
}

const (
	cid = 0x1111
	sid = 0x2222
)

// Each conversation, and what is said of it.
func TestConversations(t *testing.T) {
	req := func(w *wire) {
		w.send(client, server, 1, roce.AttrREQ, &roce.REQ{LocalCommID: cid, ServiceID: roce.ServiceID(roce.PortSpaceTCP, 18515), LocalQPN: 7})
	}
	rep := func(w *wire) {
		w.send(server, client, 1, roce.AttrREP, &roce.REP{LocalCommID: sid, RemoteCommID: cid, LocalQPN: 8})
	}
	rtu := func(w *wire) {
		w.send(client, server, 1, roce.AttrRTU, &roce.RTU{LocalCommID: cid, RemoteCommID: sid})
	}
	for name, c := range map[string]struct {
		talk          func(w *wire)
		state         string
		again, copies int
		unmatched     int
	}{
		"whole": {func(w *wire) {
			req(w)
			rep(w)
			rtu(w)
			w.send(client, server, 2, roce.AttrDREQ, &roce.DREQ{LocalCommID: cid, RemoteCommID: sid})
			w.send(server, client, 2, roce.AttrDREP, &roce.DREP{LocalCommID: sid, RemoteCommID: cid})
		}, "disconnected", 0, 0, 0},
		"open":   {func(w *wire) { req(w); rep(w); rtu(w) }, "established", 0, 0, 0},
		"no REP": {func(w *wire) { req(w); req(w); req(w) }, "no answer", 2, 0, 0},
		"REQ lost after the first": {func(w *wire) {
			req(w)
			w.again()
			req(w)
			rep(w)
			w.again()
			rtu(w)
		}, "established", 1, 2, 0},
		"no RTU": {func(w *wire) { req(w); rep(w); rep(w) }, "accepted, no RTU", 1, 0, 0},
		"MRA": {func(w *wire) {
			req(w)
			w.send(server, client, 1, roce.AttrMRA, &roce.MRA{LocalCommID: sid, RemoteCommID: cid})
			rep(w)
			rtu(w)
		}, "established", 0, 0, 0},
		"refused": {func(w *wire) {
			req(w)
			w.send(server, client, 1, roce.AttrREJ, &roce.REJ{RemoteCommID: cid, Reason: uint16(roce.RejectConsumerDefined)})
		}, "rejected by the server: 28, refused by the program", 0, 0, 0},
		"given up": {func(w *wire) {
			req(w)
			rep(w)
			w.send(client, server, 1, roce.AttrREJ, &roce.REJ{LocalCommID: cid, RemoteCommID: sid, Reason: uint16(roce.RejectTimeout), MessageRejected: 1})
		}, "rejected by the client: 4, time-out: the peer heard no answer", 0, 0, 0},
		"both disconnect": {func(w *wire) {
			req(w)
			rep(w)
			rtu(w)
			w.send(client, server, 2, roce.AttrDREQ, &roce.DREQ{LocalCommID: cid, RemoteCommID: sid})
			w.send(server, client, 3, roce.AttrDREQ, &roce.DREQ{LocalCommID: sid, RemoteCommID: cid})
			w.send(server, client, 2, roce.AttrDREP, &roce.DREP{LocalCommID: sid, RemoteCommID: cid})
			w.send(server, client, 3, roce.AttrDREQ, &roce.DREQ{LocalCommID: sid, RemoteCommID: cid})
			w.again()
			w.send(client, server, 3, roce.AttrDREP, &roce.DREP{LocalCommID: cid, RemoteCommID: sid})
		}, "disconnected", 1, 1, 0},
		"no DREP": {func(w *wire) {
			req(w)
			rep(w)
			rtu(w)
			w.send(client, server, 2, roce.AttrDREQ, &roce.DREQ{LocalCommID: cid, RemoteCommID: sid})
			w.send(client, server, 2, roce.AttrDREQ, &roce.DREQ{LocalCommID: cid, RemoteCommID: sid})
		}, "disconnecting: no DREP", 1, 0, 0},
		"disconnected by the server before the RTU": {func(w *wire) {
			req(w)
			rep(w)
			w.send(server, client, 2, roce.AttrDREQ, &roce.DREQ{LocalCommID: sid, RemoteCommID: cid})
		}, "disconnected without RTU", 0, 0, 0},
		"captured from its middle on": {func(w *wire) { rep(w); rtu(w) }, "", 0, 0, 2},
		"SIDR": {func(w *wire) {
			w.send(client, server, 1, roce.AttrSIDRReq, &roce.SIDRReq{RequestID: 5, ServiceID: roce.ServiceID(roce.PortSpaceUDP, 1)})
			w.send(server, client, 1, roce.AttrSIDRRep, &roce.SIDRRep{RequestID: 5, QPN: 9, Status: 1})
		}, "refused: SIDR status 1", 0, 0, 0},
	} {
		for _, v1 := range []bool{false, true} {
			w := &wire{t: t, now: time.Unix(1, 0), v1: v1}
			c.talk(w)
			f := w.follow()
			all := f.Connections()
			if c.state == "" {
				if len(all) != 0 || f.Counts.Unmatched != c.unmatched {
					t.Errorf("%s: %d connections, %+v", name, len(all), f.Counts)
				}
				continue
			}
			if len(all) != 1 {
				t.Fatalf("%s: %d connections", name, len(all))
			}
			if k := all[0]; k.State() != c.state || k.Repeats() != c.again || k.Copies() != c.copies || f.Counts.CM != len(w.out) || f.Counts.BadICRC != 0 || f.Counts.Unmatched != 0 {
				t.Errorf("%s: %s, %d again, %d copies; %+v", name, k.State(), k.Repeats(), k.Copies(), f.Counts)
			}
		}
	}
}

// What happened besides is said.
func TestRemarks(t *testing.T) {
	w := &wire{t: t, now: time.Unix(1, 0)}
	w.send(client, server, 1, roce.AttrREQ, &roce.REQ{LocalCommID: cid})
	w.send(server, client, 1, roce.AttrMRA, &roce.MRA{LocalCommID: sid, RemoteCommID: cid, ServiceTimeout: 24})
	w.send(server, client, 1, roce.AttrREP, &roce.REP{LocalCommID: sid, RemoteCommID: cid})
	w.send(client, server, 1, roce.AttrRTU, &roce.RTU{LocalCommID: cid, RemoteCommID: sid})
	w.send(client, server, 1, roce.AttrLAP, &roce.LAP{LocalCommID: cid, RemoteCommID: sid})
	w.send(client, server, 1, roce.AttrLAP, &roce.LAP{LocalCommID: cid, RemoteCommID: sid})
	const mra = "MRA: asked for 68.7 s" // the 24 of rdma_cm
	check := func(want ...string) {
		t.Helper()
		f := w.follow()
		if k := f.Connections()[0]; !slices.Equal(k.Remarks(), want) || k.State() != "established" || k.Repeats() != 1 || f.Counts.Unmatched != 0 {
			t.Errorf("%q, want %q; %+v", k.Remarks(), want, f.Counts)
		}
	}
	check(mra, "LAP: no answer")
	w.send(server, client, 1, roce.AttrAPR, &roce.APR{LocalCommID: sid, RemoteCommID: cid})
	check(mra, "LAP: alternate path loaded")
	w.out = w.out[:len(w.out)-1]
	w.send(server, client, 1, roce.AttrAPR, &roce.APR{LocalCommID: sid, RemoteCommID: cid, ARStatus: 3})
	check(mra, "LAP: alternate path refused, APR status 3")
}

// kinds returns a whole packet of each kind: of the lab's capture each opcode and
// message, over each carrier, and those that no kernel sends.
func kinds(t testing.TB) map[string]Frame {
	t.Helper()
	all := map[string]Frame{}
	r, err := NewReader(bytes.NewReader(labcapture.Mixed(t)))
	must(t, err)
	s := roce.NewStack()
	parser := s.Parser(layers.LayerTypeEthernet)
	var decoded []gopacket.LayerType
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		must(t, parser.DecodeLayers(p.Data, &decoded))
		name := ""
		for _, l := range decoded {
			name += " " + l.String()
		}
		if slices.Contains(decoded, roce.LayerTypeBTH) {
			if name += " " + s.BTH.Opcode.String(); all[name].Data == nil {
				p.Data = bytes.Clone(p.Data)
				all[name] = p
			}
		}
	}
	for _, v1 := range []bool{false, true} {
		w := &wire{t: t, now: time.Unix(1, 0), v1: v1}
		w.send(client, server, 1, roce.AttrLAP, &roce.LAP{})
		w.send(client, server, 1, roce.AttrAPR, &roce.APR{})
		all[fmt.Sprint("LAP ", v1)], all[fmt.Sprint("APR ", v1)] = w.out[0], w.out[1]
	}
	return all
}

// A packet of any kind may be cut off anywhere, and any bit of it may be changed:
// nothing crashes, and no change behind the Ethernet header goes by as a sound
// packet, unless a router may make it.
func TestEachKindDamaged(t *testing.T) {
	packets, flips, cuts := kinds(t), 0, 0
	for name, whole := range packets {
		sound := NewFollower()
		sound.Add(whole)
		if want := (Counts{Frames: 1, RoCE: 1, CM: sound.Counts.CM, Unmatched: sound.Counts.Unmatched}); sound.Counts != want {
			t.Fatalf("%s: %+v", name, sound.Counts)
		}
		f := NewFollower()
		_, end, _ := invariant(whole.Data)
		for n := range etherBytes + end {
			for _, cut := range []bool{true, false} { // by the snap length, or on the wire
				before := f.Counts
				p := whole
				p.Data, p.Cut = whole.Data[:n:n], cut
				f.Add(p)
				cuts++
				if !cut && f.Counts.RoCE > before.RoCE && f.Counts.Damaged == before.Damaged && f.Counts.BadICRC == before.BadICRC {
					t.Fatalf("%s: the first %d of %d bytes are a sound packet", name, n, len(whole.Data))
				}
			}
		}
		for bit := range len(whole.Data) * 8 {
			before := f.Counts
			p := whole
			p.Data = bytes.Clone(whole.Data)
			p.Data[bit/8] ^= 1 << (bit % 8)
			f.Add(p)
			flips++
			unnoticed := f.Counts.RoCE > before.RoCE && f.Counts.Damaged == before.Damaged && f.Counts.BadICRC == before.BadICRC
			if unnoticed && !mayChange(whole.Data, bit) {
				t.Errorf("%s: bit %d of byte %d is changed, and the packet sound", name, bit%8, bit/8)
			}
		}
		for _, c := range f.Connections() {
			_ = c.State() + Name(c.Service) + strings.Join(c.Remarks(), "")
		}
	}
	t.Logf("%d kinds, %d cut off, %d bits changed", len(packets), cuts, flips)
}

const etherBytes = 14

// invariant returns where, from the header of IP or the GRH on, the base transport
// header begins, the packet ends, and which bytes before the former routers change.
func invariant(frame []byte) (bth, end int, changes []int) {
	ip := frame[etherBytes:]
	switch kind := binary.BigEndian.Uint16(frame[12:]); kind {
	case etherIPv4:
		return 28, int(binary.BigEndian.Uint16(ip[2:])), []int{1, 8, 10, 11, 26, 27}
	case etherIPv6:
		return 48, 40 + int(binary.BigEndian.Uint16(ip[4:])), []int{1, 2, 3, 7, 46, 47}
	}
	return 40, 40 + int(binary.BigEndian.Uint16(ip[4:])), []int{1, 2, 3, 7}
}

// mayChange reports whether the checksum leaves a bit out: all of Ethernet, what
// routers change in IP, UDP's checksum, FECN and BECN, and what Ethernet adds to a
// short frame.
func mayChange(frame []byte, bit int) bool {
	at := bit/8 - etherBytes
	bth, end, changes := invariant(frame)
	trafficClass := at == 0 && bth != 28 && bit%8 < 4
	return at < 0 || at >= end || trafficClass || at == bth+4 || slices.Contains(changes, at)
}

// An id that is used again begins a new connection.
func TestIDUsedAgain(t *testing.T) {
	w := &wire{t: t, now: time.Unix(1, 0)}
	for trans := range uint64(3) {
		w.send(client, server, trans, roce.AttrREQ, &roce.REQ{LocalCommID: cid})
		w.send(server, client, trans, roce.AttrREP, &roce.REP{LocalCommID: sid, RemoteCommID: cid})
	}
	if n := states(w.follow()); n["accepted, no RTU"] != 3 || len(n) != 1 {
		t.Errorf("%v", n)
	}
}

// Damage is counted and said, and what is whole counts.
func TestDamage(t *testing.T) {
	w := &wire{t: t, now: time.Unix(1, 0)}
	w.send(client, server, 1, roce.AttrREQ, &roce.REQ{LocalCommID: cid})
	whole := w.out[0]
	change := func(f func(p *Frame)) Frame {
		p := whole
		p.Data = bytes.Clone(p.Data)
		f(&p)
		return p
	}
	const mad = 14 + 20 + 8 + 12 + 8
	f := NewFollower()
	for _, p := range []Frame{
		whole,
		change(func(p *Frame) { p.Data[len(p.Data)-1]++ }),
		change(func(p *Frame) { p.Data, p.Cut = p.Data[:96], true }),
		change(func(p *Frame) { p.Data, p.Cut = p.Data[:44], true }),
		change(func(p *Frame) { p.Data = p.Data[:100] }),
		change(func(p *Frame) { p.Data[mad+2] = 9 }),
		change(func(p *Frame) { p.Data[mad+17] = 0x55 }),
		change(func(p *Frame) { p.Data[mad] = 7 }),
		change(func(p *Frame) { p.Data[mad+3] = 0x83 }),
		change(func(p *Frame) { p.Data[17]++ }),
		change(func(p *Frame) { p.First = roce.LayerTypeBTH }),
		change(func(p *Frame) { // from the port: no RoCE
			p.Data[34], p.Data[35], p.Data[36], p.Data[37] = 0x12, 0xb7, 0, 53
		}),
		{Data: []byte{1, 2, 3}, First: layers.LayerTypeEthernet},
		{Data: whole.Data[14:], First: layers.LayerTypeIPv4},
	} {
		f.Add(p)
	}
	if want := (Counts{Frames: 14, RoCE: 11, CM: 4, Truncated: 2, BadICRC: 1, Damaged: 3, Unread: 4}); f.Counts.CM != want.CM || f.Counts.Truncated != want.Truncated || f.Counts.Damaged != want.Damaged || f.Counts.Unread != want.Unread {
		t.Errorf("%+v, want %+v", f.Counts, want)
	}
	notes := strings.Join(f.Notes, "\n")
	for _, want := range []string{"snap length of 400", "class version 9", "attribute id 0x55", "base version 7", "method 0x83", "MAD of", "is not that of the packet"} {
		if !strings.Contains(notes, want) {
			t.Errorf("no %q in\n%s", want, notes)
		}
	}
}

// Both formats, and what is neither.
func TestReader(t *testing.T) {
	w := &wire{t: t, now: time.Unix(1, 500)}
	w.send(client, server, 1, roce.AttrREQ, &roce.REQ{LocalCommID: cid})
	frame := w.out[0].Data
	classic := func(link layers.LinkType, data []byte, snap int) []byte {
		var b bytes.Buffer
		p := pcapgo.NewWriterNanos(&b)
		must(t, p.WriteFileHeader(uint32(snap), link))
		n := min(len(data), snap)
		must(t, p.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, 500), CaptureLength: n, Length: len(data)}, data[:n]))
		return b.Bytes()
	}
	sll := append([]byte{0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0}, frame[14:]...)
	for name, c := range map[string]struct {
		file []byte
		conn int
		err  string
	}{
		"Ethernet":      {classic(layers.LinkTypeEthernet, frame, 65536), 1, ""},
		"raw IP":        {classic(layers.LinkTypeRaw, frame[14:], 65536), 1, ""},
		"cooked":        {classic(layers.LinkTypeLinuxSLL, sll, 65536), 1, ""},
		"snap length":   {classic(layers.LinkTypeEthernet, frame, 96), 0, ""},
		"InfiniBand":    {classic(linkInfiniBand, frame, 65536), 0, "native InfiniBand"},
		"Bluetooth":     {classic(201, frame, 65536), 0, "link type 201"},
		"cut off":       {classic(layers.LinkTypeEthernet, frame, 65536)[:200], 0, "packet 1: unexpected EOF: the file is cut off"},
		"empty":         {nil, 0, "neither pcap nor pcapng: it ends after 0"},
		"text":          {[]byte("hello world"), 0, "it begins with 68 65 6c 6c"},
		"only a header": {classic(layers.LinkTypeEthernet, frame, 65536)[:24], 0, ""},
		"half a header": {classic(layers.LinkTypeEthernet, frame, 65536)[:20], 0, "pcap"},
		"half pcapng":   {labcapture.Mixed(t)[:20], 0, "unexpected EOF"},
		"false length":  {append(bytes.Clone(labcapture.Mixed(t)[:4]), 0xff, 0xff, 0xff, 0x7c, 0x4d, 0x3c, 0x2b, 0x1a), 0, "length 2097151999"},
		"byte order":    {append(bytes.Clone(labcapture.Mixed(t)[:8]), 1, 2, 3, 4), 0, "byte order 01 02 03 04"},
	} {
		f, err := follow(t, bytes.NewReader(c.file))
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", name, err, c.err)
			continue
		}
		if err == nil && len(f.Connections()) != c.conn {
			t.Errorf("%s: %d connections, %+v, %q", name, len(f.Connections()), f.Counts, f.Notes)
		}
		if name == "snap length" && f.Counts.Truncated != 1 {
			t.Errorf("%+v", f.Counts)
		}
	}
}

// A packet is read when it is there, not when the pipe ends.
func TestPipe(t *testing.T) {
	r, w := io.Pipe()
	defer r.Close()
	b := labcapture.Mixed(t)
	go func() {
		_, _ = w.Write(b[:len(b)/2]) // then it stays open
	}()
	c, err := NewReader(r)
	must(t, err)
	for range 100 {
		_, err := c.Next()
		must(t, err)
	}
}

// A snap length that is less than what the packets have is said, and they are read.
func TestBadSnapLength(t *testing.T) {
	w := &wire{t: t, now: time.Unix(1, 0)}
	w.send(client, server, 1, roce.AttrREQ, &roce.REQ{LocalCommID: cid})
	frame := w.out[0].Data
	o := binary.LittleEndian
	for snap, want := range map[uint32]string{0: "", 1: "the file says that it has 1 bytes of a packet at most (snap length), but packet 1 has 322", 322: "", 1 << 31: ""} {
		var pcap bytes.Buffer
		p := pcapgo.NewWriter(&pcap)
		must(t, p.WriteFileHeader(snap, layers.LinkTypeEthernet))
		must(t, p.WritePacket(gopacket.CaptureInfo{Timestamp: w.now, CaptureLength: len(frame), Length: len(frame)}, frame))
		described := o.AppendUint32([]byte{blockInterface, 1, 0, 0, 0}, snap)
		enhanced := []byte{blockEnhanced}
		for _, v := range []uint32{0, 0, 0, uint32(len(frame)), uint32(len(frame))} {
			enhanced = o.AppendUint32(enhanced, v)
		}
		for name, file := range map[string][]byte{"pcap": pcap.Bytes(), "pcapng": ng(o, described, append(enhanced, frame...))} {
			r, err := NewReader(bytes.NewReader(file))
			must(t, err)
			if f, err := r.Next(); err != nil || !bytes.Equal(f.Data, frame) || !strings.HasPrefix(r.Note(), want) || (want == "") != (r.Note() == "") {
				t.Errorf("%s, snap length %d: %v, %q", name, snap, err, r.Note())
			}
		}
	}
}

func TestName(t *testing.T) {
	for id, want := range map[uint64]string{
		roce.ServiceID(roce.PortSpaceTCP, 1): "tcp/1", roce.ServiceID(roce.PortSpaceUDP, 2): "udp/2", roce.ServiceID(roce.PortSpaceIPoIB, 3): "ipoib/3",
		roce.ServiceID(roce.PortSpaceIB, 4): "ib/4", 0x10000000000: "0x10000000000", 0x1000117501061234: "0x1000117501061234", 0: "0x0",
	} {
		if got := Name(id); got != want {
			t.Errorf("%#x: %q, want %q", id, got, want)
		}
	}
}

// FuzzFile reads whatever comes to its end.
func FuzzFile(f *testing.F) {
	b := labcapture.Mixed(f)
	f.Add(b[:8192])
	w := &wire{t: f, now: time.Unix(1, 0)}
	w.send(client, server, 1, roce.AttrREQ, &roce.REQ{LocalCommID: cid})
	var p bytes.Buffer
	pw := pcapgo.NewWriter(&p)
	must(f, pw.WriteFileHeader(65536, layers.LinkTypeEthernet))
	must(f, pw.WritePacket(gopacket.CaptureInfo{Timestamp: w.now, CaptureLength: len(w.out[0].Data), Length: len(w.out[0].Data)}, w.out[0].Data))
	f.Add(p.Bytes())
	f.Fuzz(func(t *testing.T, file []byte) {
		fl, _ := follow(t, bytes.NewReader(file))
		if fl == nil {
			return
		}
		for _, c := range fl.Connections() {
			_ = c.State() + Name(c.Service)
		}
	})
}

// FuzzFollow follows whatever three packets come, in whatever order.
func FuzzFollow(f *testing.F) {
	var last []byte
	all := kinds(f)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p := all[name]
		f.Add(p.Data, last, p.Data, byte(0))
		last = p.Data
	}
	w := &wire{t: f, now: time.Unix(1, 0)}
	w.send(client, server, 1, roce.AttrREQ, &roce.REQ{LocalCommID: cid})
	w.send(server, client, 1, roce.AttrREP, &roce.REP{LocalCommID: sid, RemoteCommID: cid})
	w.send(client, server, 1, roce.AttrRTU, &roce.RTU{LocalCommID: cid, RemoteCommID: sid})
	f.Add(w.out[0].Data, w.out[1].Data, w.out[2].Data, byte(0x10))
	firsts := []gopacket.LayerType{layers.LayerTypeEthernet, layers.LayerTypeIPv4, layers.LayerTypeLinuxSLL, layers.LayerTypeIPv6}
	f.Fuzz(func(t *testing.T, a, b, c []byte, how byte) {
		fl := NewFollower()
		for i, data := range [][]byte{a, b, c, a} {
			fl.Add(Frame{Time: time.Unix(int64(i), 0), Data: data, Cut: how&(0x10<<i) != 0, Wire: len(data), First: firsts[how&3]})
		}
		n := fl.Counts
		if n.Frames != 4 || n.RoCE > n.Frames || n.CM+n.Unread > n.RoCE || len(fl.Connections())+n.Unmatched > n.CM || n.Damaged+n.Truncated+n.BadICRC > n.Frames {
			t.Errorf("%+v, %d connections", n, len(fl.Connections()))
		}
		for _, k := range fl.Connections() {
			if k.State() == "" || k.REQ.Repeats+k.REQ.Copies > 3 {
				t.Errorf("%+v", k)
			}
			_ = Name(k.Service) + strings.Join(k.Remarks(), "")
		}
	})
}

// ng has the blocks of a section, of either byte order.
func ng(order binary.AppendByteOrder, blocks ...[]byte) (file []byte) {
	block := func(kind uint32, body []byte) {
		body = append(bytes.Clone(body), make([]byte, -len(body)&3)...)
		n := uint32(len(body) + blockFrame)
		file = order.AppendUint32(order.AppendUint32(file, kind), n)
		file = order.AppendUint32(append(file, body...), n)
	}
	block(blockSection, append(order.AppendUint32(nil, byteOrderMagic), 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255))
	for _, b := range blocks {
		block(uint32(b[0]), b[1:])
	}
	return file
}

// Each kind of block with a packet, resolutions of time, both byte orders.
func TestPcapng(t *testing.T) {
	for _, o := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		u16 := func(v uint16) []byte { return o.AppendUint16(nil, v) }
		u32 := func(v uint32) []byte { return o.AppendUint32(nil, v) }
		join := func(kind byte, parts ...[]byte) []byte { return append([]byte{kind}, bytes.Join(parts, nil)...) }
		described := func(snap uint32, options ...[]byte) []byte {
			return join(blockInterface, u16(1), u16(0), u32(snap), bytes.Join(options, nil))
		}
		option := func(code uint16, v ...byte) []byte {
			return append(append(u16(code), u16(uint16(len(v)))...), append(v, make([]byte, -len(v)&3)...)...)
		}
		offset := o.AppendUint64(nil, 5)
		packet := func(id, stamp uint32) []byte {
			return join(blockEnhanced, u32(id), u32(0), u32(stamp), u32(2), u32(3), []byte{8, 9})
		}
		file := ng(o,
			described(0), packet(0, 1_500_000),
			described(0, option(optionResolution, 9), option(optionOffset, offset...), option(optionEnd)), packet(1, 1_500_000_000),
			described(0, option(optionResolution, 0x81)), packet(2, 3),
			join(blockPacket, u16(0), u16(0), u32(0), u32(2_000_000), u32(2), u32(2), []byte{8, 9}),
			join(99, []byte{1, 2, 3}),
			described(2), join(blockSimple, u32(2), []byte{8, 9}))
		r, err := NewReader(bytes.NewReader(file))
		must(t, err)
		for i, want := range []time.Time{time.UnixMilli(1500), time.UnixMilli(6500), time.UnixMilli(1500), time.UnixMilli(2000), {}} {
			f, err := r.Next()
			if err != nil || !f.Time.Equal(want) || !bytes.Equal(f.Data, []byte{8, 9}) || f.Cut != (i < 3) {
				t.Errorf("packet %d: %+v, %v, want %v", i, f, err, want)
			}
		}
		if _, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		for name, bad := range map[string][]byte{
			"no interface":       ng(o, packet(0, 0)),
			"short interface":    ng(o, join(blockInterface, u16(1))),
			"short packet":       ng(o, described(0), join(blockEnhanced, u32(0))),
			"longer than it is":  ng(o, described(0), join(blockEnhanced, u32(0), u32(0), u32(0), u32(9), u32(9), []byte{8})),
			"no second length":   append(ng(o, described(0)), ng(o)[:24]...),
			"one of two lengths": append(bytes.Clone(file[:len(file)-1]), 7),
		} {
			r, err := NewReader(bytes.NewReader(bad))
			must(t, err)
			for err == nil {
				_, err = r.Next()
			}
			if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// Packets without times are followed nevertheless, and an interface that is not
// Ethernet is passed over.
func TestWithoutTimes(t *testing.T) {
	o := binary.LittleEndian
	w := &wire{t: t, now: time.Unix(1, 0)}
	w.send(client, server, 1, roce.AttrREQ, &roce.REQ{LocalCommID: cid})
	w.send(server, client, 1, roce.AttrREP, &roce.REP{LocalCommID: sid, RemoteCommID: cid})
	w.send(client, server, 1, roce.AttrRTU, &roce.RTU{LocalCommID: cid, RemoteCommID: sid})
	blocks := [][]byte{append([]byte{blockInterface}, 1, 0, 0, 0, 0, 0, 0, 0), append([]byte{blockInterface}, 189, 0, 0, 0, 0, 0, 0, 0)}
	for _, p := range w.out {
		blocks = append(blocks, append(o.AppendUint32([]byte{blockSimple}, uint32(len(p.Data))), p.Data...))
	}
	other := []byte{blockEnhanced}
	for _, v := range []uint32{1, 0, 0, 1, 1} {
		other = o.AppendUint32(other, v)
	}
	f, err := follow(t, bytes.NewReader(ng(o, append(blocks, append(other, 7))...)))
	must(t, err)
	if all := f.Connections(); len(all) != 1 || all[0].State() != "established" || !all[0].RTU.Time.IsZero() {
		t.Errorf("%d connections, %+v", len(all), f.Counts)
	}
	if f.Counts.Damaged != 1 || !strings.Contains(strings.Join(f.Notes, ""), "link type 189") {
		t.Errorf("%+v, %q", f.Counts, f.Notes)
	}
}

// A time stamp that is none is no time.
func TestTimeStamps(t *testing.T) {
	for _, i := range []ngInterface{{perSec: 1}, {perSec: 1e6, offset: 1 << 60}, {perSec: 1e6, offset: math.MinInt64}, {perSec: 1e9, offset: -1 << 50}, {perSec: math.Inf(1), offset: -5}} {
		if at := i.at(1<<64 - 1); !at.IsZero() {
			t.Errorf("%+v: %v", i, at)
		}
	}
}
