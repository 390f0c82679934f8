// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRegionWrite(t *testing.T) {
	c := connect(t)
	page := strings.Repeat("page", 1024)
	var want []access
	for _, x := range []struct {
		a    regionAccess
		data string
		want access
	}{
		{regionAccess{4, regionConfig, 2}, "\x06\x01", access{"config", 0, 4, "\x06\x01"}},
		{regionAccess{0x18, 0, 4}, "door", access{"bar", 0, 0x18, "door"}},
		{regionAccess{0xfff8, 0, 8}, "doorbell", access{"bar", 0, 0xfff8, "doorbell"}},
		{regionAccess{15, 2, 1}, "x", access{"bar", 2, 15, "x"}},
		{regionAccess{0, 0, 4096}, page, access{"bar", 0, 0, page}},
	} {
		if got := c.ok(cmdRegionWrite, pack(x.a, x.data)); !bytes.Equal(got, pack(x.a)) {
			t.Errorf("reply %x to %+v", got, x.a)
		}
		want = append(want, x.want)
	}
	if got := c.dev.done(); !slices.Equal(got, want) {
		t.Errorf("the device saw %+v, want %+v", got, want)
	}
}

// QEMU's writes to BARs want no reply. They are done in order, before a read that
// comes later; one that is wrong is not heard of.
func TestRegionWritePosted(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	for i := range 100 {
		c.post(cmdRegionWrite, pack(regionAccess{8, 0, 4}, uint32(i)))
	}
	c.post(cmdRegionWrite, pack(regionAccess{1 << 40, 0, 4}, uint32(0)))
	if got := c.ok(cmdRegionRead, pack(regionAccess{8, 0, 4})); !bytes.Equal(got[regionAccessSize:], pack(uint32(99))) {
		t.Errorf("read %x after 100 writes", got)
	}
	if n := len(c.dev.done()); n != 100 {
		t.Errorf("the device saw %d writes", n)
	}
	const want = "vfio-user: REGION_WRITE, message 102, refused: 4 bytes at 0x10000000000 of region 0, which has 0x10000: invalid argument"
	if got := r.refused(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRegionWriteRefused(t *testing.T) {
	c := connect(t)
	for _, a := range wrongAccesses {
		c.fails(unix.EINVAL, cmdRegionWrite, pack(a, make([]byte, min(a.Count, 8))))
	}
	for _, n := range []int{0, 1, 3, 5, 4096} {
		c.fails(unix.EINVAL, cmdRegionWrite, pack(regionAccess{0, 0, 4}, make([]byte, n)))
	}
	if got := c.dev.done(); len(got) != 0 {
		t.Errorf("the device saw %+v", got)
	}
}
