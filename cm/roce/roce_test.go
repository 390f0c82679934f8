// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"devxlab.example/internal/labcapture"
)

// capture returns the frames of a run in the lab.
func capture(t testing.TB) (frames [][]byte) {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(labcapture.Mixed(t)), pcapgo.DefaultNgReaderOptions)
	must(t, err)
	for {
		data, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return frames
		}
		must(t, err)
		frames = append(frames, data)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// packet decodes a frame, all of it.
func packet(t testing.TB, frame []byte) gopacket.Packet {
	t.Helper()
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		t.Fatalf("%v\n%s", e.Error(), hex.Dump(frame))
	}
	return p
}

// packets returns those frames of the capture that are RoCE.
func packets(t testing.TB) (frames [][]byte) {
	t.Helper()
	for _, f := range capture(t) {
		if packet(t, f).Layer(LayerTypeBTH) != nil {
			frames = append(frames, f)
		}
	}
	return frames
}

// Each frame of the capture is decoded to its end, its checksum is right, and
// what its layers serialise to is the frame again.
func TestCapture(t *testing.T) {
	seen := map[gopacket.LayerType]int{}
	opcodes := map[Opcode]int{}
	for i, frame := range capture(t) {
		p := packet(t, frame)
		b, ok := p.Layer(LayerTypeBTH).(*BTH)
		if !ok {
			continue
		}
		opcodes[b.Opcode]++
		var out []gopacket.SerializableLayer
		for _, l := range p.Layers() {
			seen[l.LayerType()]++
			if s, ok := l.(gopacket.SerializableLayer); ok {
				out = append(out, s)
			} else {
				out = append(out, gopacket.Payload(l.LayerContents()))
			}
		}
		l3 := frame[14:]
		if right, err := CheckICRC(l3); err != nil || !right {
			t.Fatalf("frame %d: ICRC is right: %v, %v", i, right, err)
		}
		buf := gopacket.NewSerializeBuffer()
		must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{}, out...))
		if got := buf.Bytes(); !bytes.Equal(got, frame[:len(got)]) || len(got) < len(frame) && len(frame) != 60 {
			t.Fatalf("frame %d, %v: serialised again:\n%swas\n%s", i, p, hex.Dump(got), hex.Dump(frame))
		}
	}
	for _, lt := range []gopacket.LayerType{LayerTypeRETH, LayerTypeDETH, LayerTypeAETH, LayerTypeAtomicETH, LayerTypeAtomicAckETH, LayerTypeMAD,
		LayerTypeREQ, LayerTypeMRA, LayerTypeREP, LayerTypeRTU, LayerTypeREJ, LayerTypeDREQ, LayerTypeDREP, LayerTypeSIDRReq, LayerTypeSIDRRep,
		LayerTypeGRH, LayerTypeCNP, LayerTypeImmDt, LayerTypeIETH, layers.LayerTypeIPv4, layers.LayerTypeIPv6} {
		if seen[lt] == 0 {
			t.Errorf("the capture has no %v: %v", lt, seen)
		}
	}
	for _, o := range []Opcode{RC | SendFirst, RC | SendLast, RC | SendOnly, RC | WriteFirst, RC | ReadRequest, RC | ReadFirst, RC | AtomicAck, RC | CompareSwap,
		RC | FetchAdd, UC | SendFirst, UC | SendLast, UD | SendOnly} {
		if opcodes[o] == 0 {
			t.Errorf("the capture has no %v", o)
		}
	}
}

// example has a packet of an opcode with each header that belongs to it.
func example(o Opcode, qp uint32, payload []byte) []gopacket.SerializableLayer {
	b := &BTH{Opcode: o, Solicited: true, MigReq: true, PKey: 0xffff, DestQP: qp, AckReq: true, PSN: 0xabcdef, BECN: o == CongestionNote}
	out := []gopacket.SerializableLayer{b}
	for h := nextHeader[o][noHeader]; h != noHeader; h = nextHeader[o][h] {
		var l gopacket.SerializableLayer
		switch h {
		case hXRCETH:
			l = &XRCETH{XRCSRQ: 0x123456}
		case hDETH:
			l = &DETH{QKey: 0x80010000, SrcQP: 0x654321}
		case hRETH:
			l = &RETH{VA: 0x1122334455667788, RKey: 0x99aabbcc, DMALen: 4096}
		case hAETH:
			l = &AETH{Syndrome: NAKSequence, MSN: 0xfedcba}
		case hAtomicETH:
			l = &AtomicETH{VA: 0x1122334455667788, RKey: 1, SwapAdd: 2, Compare: 3}
		case hAtomicAckETH:
			l = &AtomicAckETH{Original: 0xdeadbeef}
		case hImmDt:
			l = &ImmDt{Data: 0x01020304}
		case hIETH:
			l = &IETH{RKey: 0x05060708}
		case hCNP:
			l = &CNP{}
		}
		out = append(out, l)
	}
	return append(out, gopacket.Payload(payload))
}

var (
	mac1, mac2 = net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	fix        = gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
)

// carriers are what RoCE goes over.
func carriers() map[string]func() []gopacket.SerializableLayer {
	return map[string]func() []gopacket.SerializableLayer{
		"IPv4": func() []gopacket.SerializableLayer {
			ip := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, TOS: 2, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 0, 0, 1}, DstIP: net.IP{10, 0, 0, 2}}
			udp := &layers.UDP{SrcPort: 0xc000, DstPort: UDPPort}
			_ = udp.SetNetworkLayerForChecksum(ip)
			return []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: mac1, DstMAC: mac2, EthernetType: layers.EthernetTypeIPv4}, ip, udp}
		},
		"VLAN and IPv6": func() []gopacket.SerializableLayer {
			ip := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolUDP, HopLimit: 1, FlowLabel: 0x12345, SrcIP: net.ParseIP("fe80::1"), DstIP: net.ParseIP("fe80::2")}
			udp := &layers.UDP{SrcPort: 0xc000, DstPort: UDPPort}
			_ = udp.SetNetworkLayerForChecksum(ip)
			return []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: mac1, DstMAC: mac2, EthernetType: layers.EthernetTypeDot1Q},
				&layers.Dot1Q{VLANIdentifier: 7, Type: layers.EthernetTypeIPv6}, ip, udp}
		},
		"RoCEv1": func() []gopacket.SerializableLayer {
			return []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: mac1, DstMAC: mac2, EthernetType: EtherType},
				&GRH{IPVer: 6, NextHeader: NextHeaderBTH, HopLimit: 64, FlowLabel: 0xfffff, TrafficClass: 3, SGID: GID{0xfe, 0x80, 15: 1}, DGID: GID{0xfe, 0x80, 15: 2}}}
		},
	}
}

// Every opcode comes out as it went in, over every carrier, with a payload that
// needs padding.
func TestEveryOpcode(t *testing.T) {
	for name, carrier := range carriers() {
		for n := range 256 {
			o := Opcode(n)
			if strings.HasPrefix(o.String(), "opcode") {
				continue
			}
			in := append(carrier(), example(o, 0x42, []byte("seven b"))...)
			buf := gopacket.NewSerializeBuffer()
			must(t, gopacket.SerializeLayers(buf, fix, in...))
			frame := buf.Bytes()
			l3 := frame[14:]
			if name == "VLAN and IPv6" {
				l3 = frame[18:]
			}
			if right, err := CheckICRC(l3); err != nil || right {
				t.Fatalf("%s, %v: without a checksum: %v, %v", name, o, right, err)
			}
			must(t, SetICRC(l3))
			p := packet(t, frame)
			if right, err := CheckICRC(l3); err != nil || !right {
				t.Fatalf("%s, %v: %v, %v", name, o, right, err)
			}
			got := p.Layers()
			if len(got) != len(in) {
				t.Fatalf("%s, %v: %v", name, o, p)
			}
			for i, l := range got {
				if w, g := fields(in[i]), fields(l); !reflect.DeepEqual(w, g) {
					t.Errorf("%s, %v: %+v, want %+v", name, o, g, w)
				}
			}
		}
	}
}

// fields returns the exported fields of a layer of this package, but for the
// checksum, which is set last.
func fields(l any) map[string]any {
	m := map[string]any{}
	v := reflect.ValueOf(l)
	if v.Kind() != reflect.Pointer || v.Elem().Type().PkgPath() != reflect.TypeFor[BTH]().PkgPath() {
		return m
	}
	v = v.Elem()
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() && !f.Anonymous && f.Name != "ICRC" {
			m[f.Name] = v.Field(i).Interface()
		}
	}
	return m
}

// fill gives each field a value that shows its place and width.
func fill(t testing.TB, m any, widths map[string]int) {
	t.Helper()
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		f, sf := v.Field(i), v.Type().Field(i)
		if sf.Anonymous {
			continue
		}
		switch f.Kind() {
		case reflect.Bool:
			f.SetBool(i%2 == 0)
		case reflect.Slice:
			f.SetBytes(bytes.Repeat([]byte{byte(i)}, widths[sf.Name]))
		case reflect.Array:
			for j := range f.Len() {
				f.Index(j).SetUint(uint64(i + j))
			}
		default:
			f.SetUint(0x0123456789abcdef * uint64(i+1) & (1<<widths[sf.Name] - 1))
		}
	}
}

// messages are the CM's, each with its type and attribute.
func messages() map[Attribute]layer {
	return map[Attribute]layer{
		AttrREQ: &REQ{}, AttrMRA: &MRA{}, AttrREJ: &REJ{}, AttrREP: &REP{}, AttrRTU: &RTU{}, AttrDREQ: &DREQ{}, AttrDREP: &DREP{},
		AttrSIDRReq: &SIDRReq{}, AttrSIDRRep: &SIDRRep{}, AttrLAP: &LAP{}, AttrAPR: &APR{},
	}
}

// Each field of each message has a place of its own, and a value that is too
// large for it is refused.
func TestMessages(t *testing.T) {
	for attr, m := range messages() {
		widths := fieldWidths(t, m)
		fill(t, m, widths)
		mad := &MAD{BaseVersion: 1, MgmtClass: ClassCM, ClassVersion: CMVersion, Method: 3, TransactionID: 0x1234, AttributeID: attr, AttributeModifier: 9, Status: 7, ClassSpecific: 8}
		in := append(carriers()["IPv4"](), &BTH{Opcode: UD | SendOnly, DestQP: GSI, PKey: 0xffff}, &DETH{QKey: 0x80010000, SrcQP: 1}, mad, m)
		buf := gopacket.NewSerializeBuffer()
		must(t, gopacket.SerializeLayers(buf, fix, in...))
		p := packet(t, buf.Bytes())
		last := p.Layers()[len(p.Layers())-1]
		if last.LayerType() != m.LayerType() || attr.String() != m.LayerType().String() {
			t.Fatalf("%v: %v", attr, p)
		}
		if w, g := fields(m), fields(last); !reflect.DeepEqual(w, g) {
			t.Errorf("%v: %+v\nwant %+v", attr, g, w)
		}
		v := reflect.ValueOf(m).Elem()
		for name, w := range widths {
			f := v.FieldByName(name)
			old := reflect.New(f.Type()).Elem()
			old.Set(f)
			switch {
			case f.Kind() == reflect.Slice:
				f.SetBytes(make([]byte, w+1))
			case f.Type().Bits() > w:
				f.SetUint(1 << w)
			default:
				continue
			}
			var size *SizeError
			if err := m.SerializeTo(gopacket.NewSerializeBuffer(), fix); !errors.As(err, &size) || !strings.Contains(err.Error(), name) {
				t.Errorf("%v with %s too large: %v", attr, name, err)
			}
			f.Set(old)
		}
	}
}

// fieldWidths finds out how many bits of each number, and bytes of each slice,
// a message of ones has.
func fieldWidths(t testing.TB, m layer) map[string]int {
	t.Helper()
	must(t, m.DecodeFromBytes(bytes.Repeat([]byte{0xff}, cmBytes), gopacket.NilDecodeFeedback))
	widths := map[string]int{}
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		switch f, name := v.Field(i), v.Type().Field(i).Name; f.Kind() {
		case reflect.Slice:
			widths[name] = f.Len()
		case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			for x := f.Uint(); x > 0; x >>= 1 {
				widths[name]++
			}
		}
	}
	return widths
}

// The layers of a Stack see what NewPacket sees, and allocate nothing. Nor does the
// checksum.
func TestStack(t *testing.T) {
	frames := packets(t)
	s := NewStack()
	parser := s.Parser(layers.LayerTypeEthernet)
	var decoded []gopacket.LayerType
	for i, frame := range frames {
		must(t, parser.DecodeLayers(frame, &decoded))
		p := packet(t, frame)
		var want []gopacket.LayerType
		for _, l := range p.Layers() {
			want = append(want, l.LayerType())
		}
		if !reflect.DeepEqual(want, decoded) {
			t.Fatalf("frame %d: %v, want %v", i, decoded, want)
		}
	}
	if n := testing.AllocsPerRun(10, func() {
		for _, frame := range frames {
			_ = parser.DecodeLayers(frame, &decoded)
			_, _ = CheckICRC(frame[etherBytes:])
			_ = SetICRC(frame[etherBytes:])
		}
	}); n != 0 {
		t.Errorf("%v allocations for %d frames", n, len(frames))
	}
}

// What is cut off or unknown says so.
func TestDamaged(t *testing.T) {
	for name, c := range map[string]struct {
		l    layer
		n    int
		want string
	}{
		"BTH": {&BTH{}, 15, "BTH and ICRC of 15 bytes: it has 16"}, "RETH": {&RETH{}, 15, "RETH of 15 bytes"}, "MAD": {&MAD{}, 255, "snap length"},
		"REQ": {&REQ{}, 231, "REQ of 231 bytes: it has 232"}, "GRH": {&GRH{}, 39, "GRH of 39"}, "CNP": {&CNP{}, 15, "CNP of 15"}, "none": {&DETH{}, 0, "DETH of 0"},
	} {
		var size *SizeError
		if err := c.l.DecodeFromBytes(make([]byte, c.n), gopacket.NilDecodeFeedback); !errors.As(err, &size) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	padded := make([]byte, 16)
	padded[1] = 3 << 4
	if err := new(BTH).DecodeFromBytes(padded, gopacket.NilDecodeFeedback); err == nil {
		t.Error("three bytes of padding in none")
	}
	for want, m := range map[string]MAD{
		"base version 2":        {BaseVersion: 2, MgmtClass: ClassCM, ClassVersion: CMVersion, AttributeID: AttrREQ},
		"management class 0x1,": {BaseVersion: 1, MgmtClass: 1, ClassVersion: CMVersion, AttributeID: AttrREQ},
		"class version 1,":      {BaseVersion: 1, MgmtClass: ClassCM, ClassVersion: 1, AttributeID: AttrREQ},
		"method 0x83,":          {BaseVersion: 1, MgmtClass: ClassCM, ClassVersion: CMVersion, Method: 0x83, AttributeID: AttrREQ},
		"attribute id 0x1b":     {BaseVersion: 1, MgmtClass: ClassCM, ClassVersion: CMVersion, Method: MethodSend, AttributeID: 0x1b},
	} {
		if why := m.Unread(); !strings.Contains(why, want) || m.NextLayerType() != gopacket.LayerTypePayload {
			t.Errorf("%q, want %q", why, want)
		}
	}
	for _, p := range [][]byte{nil, make([]byte, 60), {0: 0x45, 9: protoUDP, 60: 0}, {0: 0x60, 6: protoUDP, 60: 0}, {0: 0x41, 3: 60, 9: protoUDP, 60: 0}, {0: 0x60, 6: 59, 60: 0}} {
		if _, err := CheckICRC(p); !errors.Is(err, ErrNoRoCE) {
			t.Errorf("%x: %v", p, err)
		}
		if err := SetICRC(p); !errors.Is(err, ErrNoRoCE) {
			t.Errorf("%x: %v", p, err)
		}
	}
}

func TestWords(t *testing.T) {
	for got, want := range map[string]string{
		(RC | SendOnly).String():                  "RC SEND only",
		CongestionNote.String():                   "CNP",
		Opcode(0xff).String():                     "opcode 0xff",
		(UC | ReadRequest).String():               "opcode 0x2c",
		(UD | WriteOnly).String():                 "opcode 0x6a",
		NAKAccess.String():                        "NAK: remote access error",
		Syndrome(0x2c).String():                   "RNR NAK, timer code 12",
		Syndrome(0x1f).String():                   "ACK",
		Syndrome(0x03).String():                   "ACK, credit code 3",
		Syndrome(0x7f).String():                   "syndrome 0x7f",
		RejectStaleConnection.String():            "10, stale connection: the peer still has one with this queue pair number",
		RejectReason(99).String():                 "99, a reason that the specification does not have",
		AttrDREQ.String():                         "CM DREQ",
		Attribute(1).String():                     "attribute 0x1",
		GID{10: 0xff, 0xff, 10, 0, 0, 1}.String(): "10.0.0.1",
		GID{0xfe, 0x80, 15: 7}.String():           "fe80:0000:0000:0000:0000:0000:0000:0007",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The header of rdma_cm in front of private data.
func TestCMA(t *testing.T) {
	var found [2]int
	for _, frame := range capture(t) {
		r, ok := packet(t, frame).Layer(LayerTypeREQ).(*REQ)
		if !ok {
			continue
		}
		h, rest, ok := CMA(r.PrivateData)
		space, port := Service(r.ServiceID)
		if !ok || len(rest) != 56 || space != PortSpaceTCP || port == 0 || ServiceID(space, port) != r.ServiceID || h.Dst != r.PrimaryRemotePortGID.Addr() {
			t.Fatalf("%+v, %d bytes, %v, port %d of %#x", h, len(rest), ok, port, space)
		}
		found[int(bit(h.IPv6, 1))]++
	}
	if found[0] == 0 || found[1] == 0 {
		t.Errorf("%d over IPv4, %d over IPv6", found[0], found[1])
	}
	v6 := make([]byte, 92)
	v6[1], v6[3], v6[4], v6[35] = 0x60, 9, 0xfe, 1
	if h, rest, ok := CMA(v6); !ok || !h.IPv6 || h.Port != 9 || h.Src.String() != "fe00::" || h.Dst.String() != "::1" || len(rest) != 56 {
		t.Errorf("%+v, %d, %v", h, len(rest), ok)
	}
	for _, b := range [][]byte{nil, make([]byte, 35), make([]byte, 92), {0: 1, 1: 0x40, 91: 0}} {
		if _, _, ok := CMA(b); ok {
			t.Errorf("%x has a header", b)
		}
	}
}

// FuzzPacket decodes whatever comes, serialises it, and decodes that again.
func FuzzPacket(f *testing.F) {
	for i, frame := range capture(f) {
		if i%40 == 0 {
			f.Add(frame, true)
		}
	}
	for _, c := range carriers() {
		buf := gopacket.NewSerializeBuffer()
		must(f, gopacket.SerializeLayers(buf, fix, append(c(), example(XRC|WriteOnlyImm, 1, []byte("x"))...)...))
		f.Add(buf.Bytes(), false)
	}
	s := NewStack()
	parser := s.Parser(layers.LayerTypeEthernet)
	var decoded []gopacket.LayerType
	f.Fuzz(func(t *testing.T, frame []byte, ether bool) {
		first := layers.LayerTypeEthernet
		if !ether {
			first = LayerTypeBTH
		}
		p := gopacket.NewPacket(frame, first, gopacket.Default)
		_ = p.String()
		_ = parser.DecodeLayers(frame, &decoded)
		_, _ = CheckICRC(frame)
		_ = SetICRC(bytes.Clone(frame))
		for _, l := range p.Layers() {
			ours, ok := l.(layer) // or one of gopacket itself
			if !ok || l.LayerType() < firstType {
				continue
			}
			if m, ok := l.(*REQ); ok {
				_, _, _ = CMA(m.PrivateData)
			}
			buf := gopacket.NewSerializeBuffer()
			must(t, ours.SerializeTo(buf, gopacket.SerializeOptions{}))
			if l.LayerType() == LayerTypeBTH {
				continue // has its end behind the payload
			}
			again := reflect.New(reflect.TypeOf(l).Elem()).Interface().(layer)
			if err := again.DecodeFromBytes(append(buf.Bytes(), make([]byte, madBytes)...), gopacket.NilDecodeFeedback); err != nil || !reflect.DeepEqual(fields(l), fields(again)) {
				t.Fatalf("%+v\nagain %+v, %v", fields(l), fields(again), err)
			}
		}
	})
}
