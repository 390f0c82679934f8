// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"encoding/binary"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"

	"github.com/google/gopacket"
)

// vectors are frames that others published, with the checksum that they have, as
// the four bytes stand on the wire.
var vectors = []struct {
	name, source string
	frame        string
	opcode       Opcode
	qpn, psn     uint32
	pad          uint8
	icrc         string
}{
	{"CNP of a ConnectX-4 Lx", "secdev/scapy 05c24f8f, test/contrib/roce.uts",
		`e41d2dab2bc2 7cfe90643b32 0800 45c2003c718c40004011 9161 0a001101 0a001201 0000 12b7 0028 0000
		 8100ffff 40000118 00000000 00000000000000000000000000000000 82fd002a`, CongestionNote, 0x118, 0, 0, "82fd002a"},
	{"UC SEND of a Mellanox card", "secdev/scapy 05c24f8f, test/contrib/roce.uts",
		`248a07a8fa22 248a07a8fa22 0800 450100400478 4000 4011 b4d5 c0a80007 c0a80007 c000 12b7 002c aca2
		 2460ffff 000000d3 00cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3`, UC | SendOnly, 211, 13571856, 2, "78f353f3"},
	{"ACK of a card that is not Mellanox's", "oferby/proxy ffbad139, roce.pcap",
		`183d5ebf4371 183d5ebf5192 0800 4502003000004000 4011 2d60 c0a84606 c0a84604 0048 12b7 001c 0000
		 1140ffff 00000045 00000000 06000001 259cc216`, RC | Acknowledge, 0x45, 0, 0, "259cc216"},
	{"SEND with immediate of the same", "oferby/proxy ffbad139, roce.pcap",
		`183d5ebf4371 183d5ebf5192 0800 4502003400004000 4011 2d5c c0a84606 c0a84604 0048 12b7 0020 0000
		 0540ffff 10000045 80000042 00000000 00000001 3716801d`, RC | SendOnlyImm, 0x45, 0x42, 0, "3716801d"},
}

// Frames that were seen elsewhere are read, and their checksums are right: those of
// two vendors' cards agree with ours.
func TestVectors(t *testing.T) {
	for _, v := range vectors {
		frame, err := hex.DecodeString(strings.Join(strings.Fields(v.frame), ""))
		must(t, err)
		b, ok := packet(t, frame).Layer(LayerTypeBTH).(*BTH)
		if !ok {
			t.Errorf("%s: no BTH", v.name)
			continue
		}
		if b.Opcode != v.opcode || b.DestQP != v.qpn || b.PSN != v.psn || b.Pad != v.pad {
			t.Errorf("%s (%s): %+v", v.name, v.source, b)
		}
		if got := hex.EncodeToString(frame[len(frame)-icrcBytes:]); got != v.icrc {
			t.Errorf("%s: ends with %s", v.name, got)
		}
		if right, err := CheckICRC(frame[etherBytes:]); err != nil || !right {
			c, _ := ICRC(frame[etherBytes:])
			t.Errorf("%s (%s): ICRC right: %v, %v; computed %08x", v.name, v.source, right, err, c)
		}
		for bit := range (len(frame) - etherBytes) * 8 { // each bit counts, but for those that routers change
			at := etherBytes + bit/8
			frame[at] ^= 1 << (bit % 8)
			right, err := CheckICRC(frame[etherBytes:])
			if covered := !variant[at-etherBytes]; right == covered && (err == nil || !covered) {
				t.Errorf("%s: bit %d of byte %d changed: right %v, %v", v.name, bit%8, at, right, err)
			}
			frame[at] ^= 1 << (bit % 8)
		}
	}
}

const etherBytes = 14

// variant are bytes from an IPv4 header on that the checksum leaves out (annex
// A17.3): type of service, time to live, header checksum; checksum of UDP; the byte
// of the BTH with FECN and BECN.
var variant = map[int]bool{1: true, 8: true, 10: true, 11: true, 26: true, 27: true, 32: true}

// published are a REQ, a REP, an RTU and an ACK of native InfiniBand, from the base
// transport header on, without the zeros at the end of private data: two Mellanox
// HCAs that connect for IPoIB (Wireshark's sample capture infiniband.pcap, packets
// 7, 8, 9 and 11; srinivaskoritala/rdma-softroce-demo a27eb5cb has a copy). What they
// have is as Wireshark 4.0 shows it.
var published = []struct {
	packet, icrc string
	n            int
}{
	{`6400ffff0000000100002f198001000000000001 010702030000000000000010278648e90010000000000000
	  e94886270000000010000000000004040002c9020024f63400000000000000008704080400000000000000a0000000a0ffff40f800040001fe80000000000000
	  0002c9020024f636fe800000000000000002c9020020b4dd00000003000008980000000000000000000000000000000000000000000000000000000000000000
	  000000000000000000000000000004050000fff4`, "397ce862", 20 + madBytes},
	{`6400ffff00000001000ef3518001000000000001 010702030000000000000010278648e90013000000000000
	  f9024539e948862700000000fc04070000000000d40a5500000078100002c9020020b4dc000004040000fff4`, "d34885d7", 20 + madBytes},
	{`6400ffff0000000100002f1a8001000000000001 010702030000000000000010278648e90014000000000000
	  e9488627f9024539`, "f7bc8269", 20 + madBytes},
	{`1140ffff0087040800d40a55 1f000001`, "a8035550", 16},
}

// A connection of real HCAs is read as Wireshark reads it.
func TestPublishedConnection(t *testing.T) {
	var frames [4]gopacket.Packet
	for i, v := range published {
		head, err := hex.DecodeString(strings.Join(strings.Fields(v.packet), ""))
		must(t, err)
		end, err := hex.DecodeString(v.icrc)
		must(t, err)
		frames[i] = gopacket.NewPacket(append(append(head, make([]byte, v.n-len(head))...), end...), LayerTypeBTH, gopacket.Default)
		if e := frames[i].ErrorLayer(); e != nil {
			t.Fatalf("%d: %v", i, e.Error())
		}
		if c := frames[i].Layer(LayerTypeBTH).(*BTH).ICRC; c != binary.LittleEndian.Uint32(end) {
			t.Errorf("%d: ICRC %08x, want the bytes %s", i, c, v.icrc)
		}
	}
	gid := func(low uint64) (g GID) {
		binary.BigEndian.PutUint64(g[:], 0xfe80<<48)
		binary.BigEndian.PutUint64(g[8:], low)
		return g
	}
	private := func(n int, begin ...byte) []byte { return append(begin, make([]byte, n-len(begin))...) }
	for i, want := range []layer{
		&REQ{LocalCommID: 0xe9488627, ServiceID: 0x1000000000000404, LocalCAGUID: 0x0002c9020024f634, LocalQPN: 0x870408, ResponderResources: 4,
			RemoteCMResponseTimeout: 20, LocalCMResponseTimeout: 20, PartitionKey: 0xffff, PathPacketPayloadMTU: 4, MaxCMRetries: 15, SRQ: true,
			PrimaryLocalPortLID: 4, PrimaryRemotePortLID: 1, PrimaryLocalPortGID: gid(0x0002c9020024f636), PrimaryRemotePortGID: gid(0x0002c9020020b4dd),
			PrimaryPacketRate: 3, PrimarySubnetLocal: true, PrimaryLocalAckTimeout: 19, PrivateData: private(92, 0, 0, 4, 5, 0, 0, 0xff, 0xf4)},
		&REP{LocalCommID: 0xf9024539, RemoteCommID: 0xe9488627, LocalQPN: 0xfc0407, StartingPSN: 0xd40a55, TargetAckDelay: 15, SRQ: true,
			LocalCAGUID: 0x0002c9020020b4dc, PrivateData: private(196, 0, 0, 4, 4, 0, 0, 0xff, 0xf4)},
		&RTU{LocalCommID: 0xe9488627, RemoteCommID: 0xf9024539, PrivateData: private(224)},
		&AETH{Syndrome: unlimitedCredits, MSN: 1},
	} {
		got := frames[i].Layer(want.LayerType())
		if got == nil || !reflect.DeepEqual(fields(got), fields(want)) {
			t.Errorf("%v: %+v\nwant %+v", want.LayerType(), got, want)
		}
	}
	for i := range 3 {
		if m := frames[i].Layer(LayerTypeMAD).(*MAD); m.TransactionID != 0x10278648e9 || m.Method != MethodSend || m.MgmtClass != ClassCM || m.ClassVersion != CMVersion || m.BaseVersion != 1 {
			t.Errorf("%d: %+v", i, m)
		}
		if d := frames[i].Layer(LayerTypeDETH).(*DETH); d.QKey != 0x80010000 || d.SrcQP != GSI {
			t.Errorf("%d: %+v", i, d)
		}
	}
}
