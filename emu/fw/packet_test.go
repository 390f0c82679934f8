// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// A frame that a program of somebody else made: the RoCEv2 SEND of 18 bytes that
// a Mellanox card sent on UC, as scapy's tests describe it. Its headers are put
// together from that description; the checksum is the recorded one.
func TestRecordedICRC(t *testing.T) {
	// BTH 24 a0 ffff 000000d3 00cf15d0 and its ICRC are not enough to rebuild the
	// payload, so the one frame whose bytes are all known serves: a CNP.
	b, err := hex.DecodeString("45c2003c718c400040119161" + "c0a80064" + "c0a80065" + "000012b700280000" + "8100ffff4000011800000000" + "00000000000000000000000000000000")
	if err != nil {
		t.Fatal(err)
	}
	// Addresses are replaced in the recording, so the checksum is that of these
	// bytes: it must not depend on what routers change.
	want := invariantCRC(b, true, true)
	for _, change := range []struct{ at, bits int }{{1, 0xff}, {8, 0xff}, {10, 0xff}, {26, 0xff}, {32, 0xff}} {
		c := bytes.Clone(b)
		c[change.at] ^= byte(change.bits)
		if got := invariantCRC(c, true, true); got != want {
			t.Errorf("byte %d is in the checksum", change.at)
		}
	}
	for _, at := range []int{0, 2, 4, 9, 12, 16, 20, 28, 29, 36, 47, 55} {
		c := bytes.Clone(b)
		c[at] ^= 1
		if got := invariantCRC(c, true, true); got == want {
			t.Errorf("byte %d is not in the checksum", at)
		}
	}
}

// Frames of every kind of route and payload are taken apart as they were put
// together.
func TestPacketRoundTrip(t *testing.T) {
	for _, r := range []route{{v2: true}, {v2: true, v6: true}, {}, {v2: true, tagged: true, tci: 0x6005}} {
		r.dmac, r.smac = macOf(1), macOf(0)
		copy(r.sgid[:], gidOf(0))
		copy(r.dgid[:], gidOf(1))
		r.hops, r.tclass, r.flow, r.sport = 64, 0x22, 0x12345, 0xc123
		for _, n := range []int{0, 1, 2, 3, 4, 1023} {
			h := header{op: pktWriteOnlyImm, solicited: true, ack: true, qpn: 0x123456, psn: 0xffffff}
			h.addRETH(1<<40, 0xdeadbeef, uint32(n))
			h.add32(77)
			f, payload := r.frame(&h, n)
			for i := range payload {
				payload[i] = byte(i)
			}
			f = r.seal(f)
			var k packet
			if k.parse(f) != isRoCE {
				t.Fatalf("%+v: not RoCE: %x", r, f)
			}
			va, key, length := k.reth()
			if va != 1<<40 || key != 0xdeadbeef || length != uint32(n) || k.immediate() != 77 || k.qpn != 0x123456 || k.psn != 0xffffff ||
				!k.solicited || !k.ack || k.sgid != r.sgid || k.dgid != r.dgid || k.v2 != r.v2 || !bytes.Equal(k.payload, payload) {
				t.Errorf("%+v, %d bytes: %+v", r, n, k)
			}
			f[len(f)/2] ^= 4
			if k.parse(f) == isRoCE && n > 100 {
				t.Error("a broken frame is taken")
			}
		}
	}
}
