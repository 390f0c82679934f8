// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// A CNP that a ConnectX-4 Lx sent (secdev/scapy, test/contrib/roce.uts): its
// checksum is the device's, and does not depend on what routers change.
func TestRecordedICRC(t *testing.T) {
	b, err := hex.DecodeString("45c2003c718c4000401191610a0011010a001201" + "000012b700280000" + "8100ffff4000011800000000" + "00000000000000000000000000000000")
	if err != nil {
		t.Fatal(err)
	}
	const recorded = 0x2a00fd82 // 82 fd 00 2a on the wire
	if got := invariantCRC(b, true, true); got != recorded {
		t.Errorf("%#x, recorded %#x", got, recorded)
	}
	for at, in := range map[int]bool{1: false, 8: false, 10: false, 11: false, 26: false, 27: false, 32: false,
		0: true, 2: true, 4: true, 9: true, 12: true, 16: true, 20: true, 28: true, 29: true, 36: true, 47: true, 55: true} {
		c := bytes.Clone(b)
		c[at] ^= 0x10
		if got := invariantCRC(c, true, true); (got != recorded) != in {
			t.Errorf("byte %d in the checksum: %v", at, !in)
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
