// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"bytes"
	"math"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRegionRead(t *testing.T) {
	c := connect(t)
	for _, x := range []struct {
		a    regionAccess
		want []byte
	}{
		{regionAccess{0, regionConfig, 4096}, c.dev.config[:]}, // QEMU's first
		{regionAccess{4094, regionConfig, 2}, c.dev.config[4094:]},
		{regionAccess{0, 0, 1}, c.dev.bar0[:1]},
		{regionAccess{0x1234, 0, 8}, c.dev.bar0[0x1234:0x123c]},
		{regionAccess{0, 0, 64 << 10}, c.dev.bar0[:]},
		{regionAccess{0xffff, 0, 1}, c.dev.bar0[0xffff:]},
		{regionAccess{0, 2, 16}, make([]byte, 16)}, // which the device leaves as it is: not another reply's bytes
	} {
		reply := c.ok(cmdRegionRead, pack(x.a))
		if got := decode[regionAccess](reply); got != x.a {
			t.Errorf("%+v, want %+v", got, x.a)
		}
		if got := reply[regionAccessSize:]; !bytes.Equal(got, x.want) {
			t.Errorf("%+v: %x, want %x", x.a, got[:min(16, len(got))], x.want[:min(16, len(x.want))])
		}
	}
}

// wrongAccesses are those that no region has.
var wrongAccesses = []regionAccess{
	{0, 0, 0},
	{0, 1, 4},
	{0, 6, 4},
	{0, 8, 4},
	{0, 9, 4},
	{0, math.MaxUint32, 4},
	{64 << 10, 0, 1},
	{64<<10 - 3, 0, 4},
	{math.MaxUint64, 0, 1},
	{math.MaxUint64 - 1, 0, 4},
	{0, 0, 64<<10 + 1},
	{0, 0, math.MaxUint32},
	{1, 0, math.MaxUint32},
	{4096, regionConfig, 1},
	{4093, regionConfig, 4},
	{8, 2, 9},
}

func TestRegionReadRefused(t *testing.T) {
	c := connect(t)
	for _, a := range wrongAccesses {
		c.fails(unix.EINVAL, cmdRegionRead, pack(a))
	}
}

// What the client can take bounds a reply.
func TestRegionReadXfer(t *testing.T) {
	r := newRig(t)
	c := r.dial()
	c.ok(cmdVersion, pack(version{}, `{"capabilities":{"max_data_xfer_size":4}}`+"\x00"))
	<-r.dev.attached
	c.ok(cmdRegionRead, pack(regionAccess{0, 0, 4}))
	c.fails(unix.EINVAL, cmdRegionRead, pack(regionAccess{0, 0, 5}))
	c.fails(unix.EINVAL, cmdRegionWrite, pack(regionAccess{0, 0, 5}, "12345"))
}
