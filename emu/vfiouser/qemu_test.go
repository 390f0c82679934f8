// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"encoding/hex"
	"testing"
)

// sent is a message of QEMU: the command, what comes with it, the payload.
type sent struct {
	command uint16
	with    int
	flags   uint32
	payload string
}

const withNothing, withMemory, withEventFD = 0, 1, 2

// recorded is what QEMU 11.1.3 sent after VERSION, in its order: with -machine
// q35, 128 MB of memory-backend-memfd and SeaBIOS until it looks at the PCI bus;
// then, of a run with Linux 6.1, how mlx5_core enables MSI-X and gives it up.
var recorded = []sent{
	{cmdDMAMap, withMemory, 0, "2000000003000000000000000000000000000000000000000000000800000000"},
	{cmdDMAMap, withNothing, 0, "200000000100000000000000000000000000fcff000000000000040000000000"},
	{cmdGetInfo, withNothing, 0, "10000000000000000000000000000000"},
	{cmdGetRegionInfo, withNothing, 0, "2000000000000000000000000000000000000000000000000000000000000000"},
	{cmdGetRegionInfo, withNothing, 0, "2000000000000000010000000000000000000000000000000000000000000000"},
	{cmdGetRegionInfo, withNothing, 0, "2000000000000000020000000000000000000000000000000000000000000000"},
	{cmdGetRegionInfo, withNothing, 0, "2000000000000000030000000000000000000000000000000000000000000000"},
	{cmdGetRegionInfo, withNothing, 0, "2000000000000000040000000000000000000000000000000000000000000000"},
	{cmdGetRegionInfo, withNothing, 0, "2000000000000000050000000000000000000000000000000000000000000000"},
	{cmdGetRegionInfo, withNothing, 0, "2000000000000000070000000000000000000000000000000000000000000000"},
	{cmdGetIRQInfo, withNothing, 0, "10000000000000000300000000000000"},
	{cmdRegionRead, withNothing, 0, "00000000000000000700000000100000"},
	{cmdRegionRead, withNothing, 0, "30000000000000000700000004000000"},
	{cmdRegionWrite, withNothing, 0, "3000000000000000070000000400000000f8ffff"},
	{cmdRegionRead, withNothing, 0, "30000000000000000700000004000000"},
	{cmdRegionWrite, withNothing, 0, "3000000000000000070000000400000000000000"},
	{cmdRegionRead, withNothing, 0, "10000000000000000700000004000000"},
	{cmdRegionRead, withNothing, 0, "9e000000000000000700000002000000"},
	{cmdRegionRead, withNothing, 0, "a0000000000000000700000004000000"},
	{cmdRegionRead, withNothing, 0, "a4000000000000000700000004000000"},
	{cmdGetIRQInfo, withNothing, 0, "10000000000000000200000000000000"},
	{cmdRegionRead, withNothing, 0, "3d000000000000000700000001000000"},
	{cmdRegionRead, withNothing, 0, "04000000000000000700000002000000"},
	{cmdRegionWrite, withNothing, 0, "040000000000000007000000020000000000"},
	{cmdReset, withNothing, 0, ""},
	{cmdRegionRead, withNothing, 0, "3d000000000000000700000001000000"},
	{cmdRegionWrite, withNothing, 0, "1000000000000000070000000400000000000000"},
	{cmdRegionWrite, withNothing, 0, "1400000000000000070000000400000000000000"},
	{cmdRegionWrite, withNothing, 0, "1800000000000000070000000400000000000000"},
	{cmdRegionWrite, withNothing, 0, "1c00000000000000070000000400000000000000"},
	{cmdRegionWrite, withNothing, 0, "2000000000000000070000000400000000000000"},
	{cmdRegionWrite, withNothing, 0, "2400000000000000070000000400000000000000"},
	{cmdDMAUnmap, withNothing, 0, "180000000000000000000000000000000000000800000000"},
	{cmdDMAMap, withMemory, 0, "20000000030000000000000000000000000000000000000000000c0000000000"},
	{cmdDMAMap, withNothing, 0, "2000000001000000000000000000000000000c00000000000000020000000000"},
	{cmdDMAMap, withNothing, 0, "2000000001000000000000000000000000000e00000000000000020000000000"},
	{cmdDMAMap, withMemory, 0, "2000000003000000000010000000000000001000000000000000f00700000000"},
	{cmdDMAUnmap, withNothing, 0, "1800000000000000000000000000000000000c0000000000"},
	{cmdDMAUnmap, withNothing, 0, "180000000000000000000c00000000000000020000000000"},
	{cmdDMAUnmap, withNothing, 0, "180000000000000000000e00000000000000020000000000"},
	{cmdDMAUnmap, withNothing, 0, "180000000000000000001000000000000000f00700000000"},
	{cmdDMAMap, withMemory, 0, "20000000030000000000000000000000000000000000000000800d0000000000"},
	{cmdDMAMap, withNothing, 0, "2000000001000000000000000000000000800d00000000000080000000000000"},
	{cmdDMAMap, withNothing, 0, "2000000001000000000000000000000000000e00000000000000010000000000"},
	{cmdDMAMap, withMemory, 0, "200000000300000000000f000000000000000f00000000000000f10700000000"},
	{cmdDMAUnmap, withNothing, 0, "1800000000000000000000000000000000800d0000000000"},
	{cmdDMAUnmap, withNothing, 0, "180000000000000000800d00000000000080000000000000"},
	{cmdDMAUnmap, withNothing, 0, "180000000000000000000e00000000000000010000000000"},
	{cmdDMAUnmap, withNothing, 0, "180000000000000000000f00000000000000f10700000000"},
	{cmdDMAMap, withMemory, 0, "2000000003000000000000000000000000000000000000000000000800000000"},
	{cmdSetIRQs, withNothing, 0, "1400000024000000020000000000000001000000"},
	{cmdSetIRQs, withEventFD, 0, "1400000024000000020000000100000001000000"},
	{cmdSetIRQs, withEventFD, 0, "1400000024000000020000000100000001000000"},
	{cmdRegionWrite, withNothing, flagNoReply, "1800000000000000000000000400000080000000"},
	{cmdSetIRQs, withNothing, 0, "1400000021000000020000000000000000000000"},
}

func (s sent) bytes() []byte {
	b, err := hex.DecodeString(s.payload)
	if err != nil {
		panic(err)
	}
	return b
}

// All that QEMU sends is taken, and its next start finds nothing of the last one.
func TestQEMU(t *testing.T) {
	r := newRig(t)
	ram, e := memfd(t, 128<<20), eventFD(t)
	for range 2 {
		c := r.connect()
		for _, m := range recorded {
			fds := map[int][]int{withMemory: {ram}, withEventFD: {e}}[m.with]
			if m.flags&flagNoReply != 0 {
				c.post(m.command, m.bytes())
			} else {
				c.ok(m.command, m.bytes(), fds...)
			}
			if m.command == cmdSetIRQs && m.with == withEventFD {
				if c.host.Interrupt(1); signals(t, e) != 1 {
					t.Error("vector 1 was not signalled once")
				}
			}
		}
		if err := c.host.WriteDMA(128<<20-8, make([]byte, 8)); err != nil {
			t.Errorf("the end of RAM: %v", err)
		}
		c.close()
	}
	select {
	case err := <-r.log:
		t.Errorf("logged: %v", err)
	default:
	}
}
