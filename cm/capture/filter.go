// SPDX-License-Identifier: BSD-2-Clause

package capture

import (
	"golang.org/x/net/bpf"

	"devxlab.example/cm/roce"
)

// Offsets in an Ethernet frame without VLAN tag, which the kernel strips, in bytes.
const (
	atEtherType = 12
	atIPv4Frag  = 14 + 6
	atIPv4Proto = 14 + 9
	atIPv4      = 14
	atUDPPort   = 14 + 2 // behind an IPv4 header, whose length is added
	atIPv6Next  = 14 + 6
	atIPv6Port  = 14 + 40 + 2

	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	protoUDP  = 17
	fragment  = 0x1fff // offset of a fragment that is not the first
	snapAll   = 1 << 18
)

// Filter is a program of the kernel's packet filter that passes RoCEv1 and
// RoCEv2 in Ethernet frames, whole.
func Filter() ([]bpf.RawInstruction, error) {
	return bpf.Assemble([]bpf.Instruction{
		0:  bpf.LoadAbsolute{Off: atEtherType, Size: 2},
		1:  bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(roce.EtherType), SkipTrue: 14},
		2:  bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherIPv6, SkipTrue: 8},
		3:  bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherIPv4, SkipTrue: 11},
		4:  bpf.LoadAbsolute{Off: atIPv4Proto, Size: 1},
		5:  bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protoUDP, SkipTrue: 9},
		6:  bpf.LoadAbsolute{Off: atIPv4Frag, Size: 2},
		7:  bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: fragment, SkipTrue: 7},
		8:  bpf.LoadMemShift{Off: atIPv4},
		9:  bpf.LoadIndirect{Off: atUDPPort, Size: 2},
		10: bpf.Jump{Skip: 3},
		11: bpf.LoadAbsolute{Off: atIPv6Next, Size: 1},
		12: bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protoUDP, SkipTrue: 2},
		13: bpf.LoadAbsolute{Off: atIPv6Port, Size: 2},
		14: bpf.JumpIf{Cond: bpf.JumpEqual, Val: roce.UDPPort, SkipTrue: 1},
		15: bpf.RetConstant{Val: 0},
		16: bpf.RetConstant{Val: snapAll},
	})
}
