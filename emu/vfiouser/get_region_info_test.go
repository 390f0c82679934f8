// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestGetRegionInfo(t *testing.T) {
	c := connect(t)
	const both = regionCanRead | regionCanWrite
	for i, want := range []regionInfo{
		{Flags: both, Size: 64 << 10}, {}, {Flags: both, Size: 16}, {}, {}, {}, // BARs
		{}, {Flags: both, Size: 4096}, {}, // ROM, configuration space, VGA
	} {
		want.Argsz, want.Index = regionInfoSize, uint32(i)
		got := decode[regionInfo](c.ok(cmdGetRegionInfo, pack(regionInfo{Argsz: 32, Index: uint32(i)})))
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	for _, m := range []regionInfo{
		{Argsz: 32, Index: 9}, {Argsz: 32, Index: 1 << 31}, {Argsz: 31}, {Argsz: 32, Flags: 1}, {Argsz: 32, CapOffset: 32},
		{Argsz: 32, Size: 1}, {Argsz: 32, Offset: 1},
	} {
		c.fails(unix.EINVAL, cmdGetRegionInfo, pack(m))
	}
}
