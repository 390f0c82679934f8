// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDMAUnmap(t *testing.T) {
	c := connect(t)
	fd := memfd(t, 4*pageSize)
	c.ok(cmdDMAMap, mapping(0x10000, 2*pageSize, 0, readWrite), fd)
	c.ok(cmdDMAMap, mapping(0x20000, pageSize, 0, dmaMapRead))
	request := unmapping(0x10000, 2*pageSize, 0)
	if reply := c.ok(cmdDMAUnmap, request); !bytes.Equal(reply, request) {
		t.Errorf("reply %x to %x", reply, request)
	}
	if err := c.host.ReadDMA(0x10000, make([]byte, 8)); !errors.Is(err, ErrUnmapped) {
		t.Errorf("read after unmapping: %v", err)
	}
	if left := mappings(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	c.ok(cmdDMAUnmap, unmapping(0x20000, pageSize, 0)) // the one without a file

	// QEMU does this several times while firmware boots.
	for range 10 {
		c.ok(cmdDMAMap, mapping(0x10000, 2*pageSize, 0, readWrite), fd)
		c.ok(cmdDMAUnmap, request)
	}
}

// What was unmapped does not count any more against what a client may map.
func TestDMAUnmapCounts(t *testing.T) {
	c := connect(t)
	huge := memfd(t, maxMapped)
	for range 2 {
		c.ok(cmdDMAMap, mapping(0, maxMapped, 0, readWrite), huge)
		c.fails(unix.ENOMEM, cmdDMAMap, mapping(maxMapped, pageSize, 0, readWrite), huge)
		c.ok(cmdDMAMap, mapping(maxMapped, pageSize, 0, readWrite)) // no file, no address space
		c.ok(cmdDMAUnmap, unmapping(0, maxMapped, 0))
		c.ok(cmdDMAUnmap, unmapping(maxMapped, pageSize, 0))
	}
}

func TestDMAUnmapAll(t *testing.T) {
	c := connect(t)
	fd := memfd(t, 4*pageSize)
	for i := range uint64(3) {
		c.ok(cmdDMAMap, mapping(i*2*pageSize, pageSize, i*pageSize, readWrite), fd)
	}
	c.ok(cmdDMAMap, mapping(1<<40, pageSize, 0, readWrite))
	c.ok(cmdDMAUnmap, unmapping(0, 0, dmaUnmapAll))
	if left := mappings(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	c.ok(cmdDMAUnmap, unmapping(0, 0, dmaUnmapAll)) // nothing is there
	c.ok(cmdDMAMap, mapping(0, 4*pageSize, 0, readWrite), fd)
}

func TestDMAUnmapRefused(t *testing.T) {
	c := connect(t)
	fd := memfd(t, 4*pageSize)
	c.ok(cmdDMAMap, mapping(0x10000, 2*pageSize, 0, readWrite), fd)
	c.ok(cmdDMAMap, mapping(0x12000, 2*pageSize, 2*pageSize, readWrite), fd)
	for _, x := range []struct {
		what    string
		errno   unix.Errno
		payload []byte
	}{
		{"a part", unix.ENOENT, unmapping(0x10000, pageSize, 0)},
		{"another part", unix.ENOENT, unmapping(0x11000, pageSize, 0)},
		{"two", unix.ENOENT, unmapping(0x10000, 4*pageSize, 0)},
		{"nothing", unix.ENOENT, unmapping(0x10000, 0, 0)},
		{"below", unix.ENOENT, unmapping(0, 2*pageSize, 0)},
		{"above", unix.ENOENT, unmapping(0x14000, pageSize, 0)},
		{"dirty bitmap", unix.EINVAL, unmapping(0x10000, 2*pageSize, 1)},
		{"unknown flag", unix.EINVAL, unmapping(0x10000, 2*pageSize, 4)},
		{"all, at an address", unix.EINVAL, unmapping(0x10000, 0, dmaUnmapAll)},
		{"all, with a size", unix.EINVAL, unmapping(0, 2*pageSize, dmaUnmapAll)},
		{"argsz", unix.EINVAL, pack(dmaUnmap{23, 0, 0x10000, 2 * pageSize})},
	} {
		t.Run(x.what, func(t *testing.T) { c.fails(x.errno, cmdDMAUnmap, x.payload) })
	}
	c.fails(unix.EINVAL, cmdDMAUnmap, unmapping(0x10000, 2*pageSize, 0), fd)
	if n := holders(t, fd); n != 1 {
		t.Errorf("%d descriptors of the memory", n)
	}
	if err := c.host.ReadDMA(0x10000, make([]byte, 4*pageSize)); err != nil {
		t.Errorf("what was not unmapped: %v", err)
	}
}
