// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"bytes"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDMAMap(t *testing.T) {
	c := connect(t)
	fd := memfd(t, 64<<10)
	if reply := c.ok(cmdDMAMap, mapping(0x10000, 0x8000, 0x4000, readWrite), fd); len(reply) != 0 {
		t.Errorf("reply %x", reply)
	}
	if n := holders(t, fd); n != 1 {
		t.Errorf("%d descriptors of the memory after it was mapped; only ours is needed", n)
	}
	put := []byte("written by the device")
	if err := c.host.WriteDMA(0x10123, put); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(put))
	if _, err := unix.Pread(fd, got, 0x4123); err != nil || !bytes.Equal(got, put) {
		t.Errorf("in the client's memory %q, %v", got, err)
	}
	put = []byte("written by the client")
	if _, err := unix.Pwrite(fd, put, 0x4000+0x8000-int64(len(put))); err != nil {
		t.Fatal(err)
	}
	if err := c.host.ReadDMA(0x18000-uint64(len(put)), got); err != nil || !bytes.Equal(got, put) {
		t.Errorf("the device read %q, %v", got, err)
	}
	if err := c.host.ReadDMA(0, nil); err != nil {
		t.Errorf("nothing, nowhere: %v", err)
	}
}

// 1, 2, 4 and 8 bytes, aligned and not: some go another way.
func TestDMASizes(t *testing.T) {
	c := connect(t)
	fd := memfd(t, pageSize)
	c.ok(cmdDMAMap, mapping(0, pageSize, 0, readWrite), fd)
	for n := 1; n <= 17; n++ {
		for off := range uint64(9) {
			put, got, file := []byte("0123456789abcdefg")[:n], make([]byte, n), make([]byte, n+2)
			if err := c.host.WriteDMA(64+off, put); err != nil {
				t.Fatal(err)
			}
			if err := c.host.ReadDMA(64+off, got); err != nil || !bytes.Equal(got, put) {
				t.Fatalf("%d bytes at %d: %q, %v", n, off, got, err)
			}
			_, _ = unix.Pread(fd, file, int64(63+off))
			if want := "\x00" + string(put) + "\x00"; string(file) != want {
				t.Fatalf("%d bytes at %d: the file has %q, want %q", n, off, file, want)
			}
			_ = c.host.WriteDMA(64+off, make([]byte, n))
		}
	}
}

// QEMU's RAM comes in pieces; an access may span those that follow each other.
func TestDMASpans(t *testing.T) {
	c := connect(t)
	fd := memfd(t, 4*pageSize)
	for i, at := range []uint64{2, 0, 1, 5} { // in any order
		c.ok(cmdDMAMap, mapping(at*pageSize, pageSize, uint64(i)*pageSize, readWrite), fd)
	}
	put := bytes.Repeat([]byte("span"), 2*pageSize/4)
	if err := c.host.WriteDMA(pageSize/2, put); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(put))
	if err := c.host.ReadDMA(pageSize/2, got); err != nil || !bytes.Equal(got, put) {
		t.Errorf("not what was written: %v", err)
	}
	first := make([]byte, pageSize)
	_, _ = unix.Pread(fd, first, pageSize) // of address 0
	if !bytes.Equal(first[pageSize/2:], put[:pageSize/2]) || first[pageSize/2-1] != 0 {
		t.Error("the first part is not in the page at address 0")
	}

	// Into the hole: nothing is written.
	err := c.host.WriteDMA(2*pageSize, bytes.Repeat([]byte{1}, pageSize+1))
	var e *DMAError
	if !errors.As(err, &e) || e.At != 3*pageSize || !errors.Is(err, ErrUnmapped) {
		t.Errorf("into a hole: %v", err)
	}
	if c.host.ReadDMA(2*pageSize, got[:1]); got[0] == 1 {
		t.Error("a part was written")
	}
}

func TestDMARefused(t *testing.T) {
	c := connect(t)
	fd := memfd(t, 4*pageSize)
	c.ok(cmdDMAMap, mapping(0x10000, pageSize, 0, readWrite), fd)
	c.ok(cmdDMAMap, mapping(0x11000, pageSize, pageSize, dmaMapRead), fd)
	c.ok(cmdDMAMap, mapping(0x12000, pageSize, 2*pageSize, dmaMapWrite), fd)
	c.ok(cmdDMAMap, mapping(0x13000, pageSize, 0, readWrite)) // no file
	top := topPage
	c.ok(cmdDMAMap, mapping(top, pageSize, 0, readWrite), fd)
	for _, x := range []struct {
		what       string
		write      bool
		addr, n    uint64
		at         uint64
		want       error
		textHasAny string
	}{
		{"below", false, 0xffff, 1, 0xffff, ErrUnmapped, "DMA read of 1 bytes at 0xffff"},
		{"from below", false, 0xfff8, 16, 0xfff8, ErrUnmapped, ""},
		{"above", true, 0x14000, 8, 0x14000, ErrUnmapped, "DMA write of 8 bytes"},
		{"write to what may be read", true, 0x11000, 8, 0x11000, ErrPermission, ""},
		{"into it", true, 0x10ffc, 8, 0x11000, ErrPermission, ""},
		{"read of what may be written", false, 0x12ff8, 8, 0x12ff8, ErrPermission, ""},
		{"no file", false, 0x13000, 4, 0x13000, ErrNoFile, ""},
		{"past the end of addresses", false, math.MaxUint64, 2, 0, ErrUnmapped, ""},
		{"the last address, to the first", true, math.MaxUint64 - 3, 8, 0, ErrUnmapped, ""},
	} {
		t.Run(x.what, func(t *testing.T) {
			do := c.host.ReadDMA
			if x.write {
				do = c.host.WriteDMA
			}
			err := do(x.addr, make([]byte, x.n))
			var e *DMAError
			if !errors.As(err, &e) || !errors.Is(err, x.want) || e.At != x.at || e.Write != x.write ||
				!strings.Contains(err.Error(), x.textHasAny) {
				t.Errorf("%v, want %v at %#x", err, x.want, x.at)
			}
		})
	}
	b := make([]byte, 8)
	if err := c.host.ReadDMA(math.MaxUint64-7, b); err != nil {
		t.Errorf("the last 8 bytes: %v", err)
	}
	if err := c.host.WriteDMA(0x12000, b); err != nil {
		t.Errorf("what may be written only: %v", err)
	}
}

func TestDMAMapRefused(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	mem := memfd(t, 16*pageSize)
	c.ok(cmdDMAMap, mapping(0x10000, 4*pageSize, 0, readWrite), mem)

	readOnly, err := unix.Open(filepath.Join("/proc/self/fd", itoa(mem)), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, readOnly)
	proc, err := unix.Open("/proc/self/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0) // a regular file, of another file system
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, proc)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	closeLater(t, pipe[0])
	closeLater(t, pipe[1])
	huge := memfd(t, 1<<43)

	for _, x := range []struct {
		what    string
		errno   unix.Errno
		payload []byte
		fds     []int
	}{
		{"empty", unix.EINVAL, mapping(0, 0, 0, readWrite), []int{mem}},
		{"no permission", unix.EINVAL, mapping(0, pageSize, 0, 0), []int{mem}},
		{"unknown flag", unix.EINVAL, mapping(0, pageSize, 0, 4|readWrite), []int{mem}},
		{"odd address", unix.EINVAL, mapping(1, pageSize, 0, readWrite), []int{mem}},
		{"odd size", unix.EINVAL, mapping(0, pageSize+8, 0, readWrite), []int{mem}},
		{"odd offset", unix.EINVAL, mapping(0, pageSize, 8, readWrite), []int{mem}},
		{"wraps around", unix.EINVAL, mapping(topPage, 2*pageSize, 0, readWrite), []int{mem}},
		{"all of memory but a page", unix.EINVAL, mapping(0, topPage, 0, readWrite), []int{mem}},
		{"offset wraps around", unix.EINVAL, mapping(0, pageSize, topPage, readWrite), []int{mem}},
		{"offset is negative", unix.EINVAL, mapping(0, pageSize, 1<<63, readWrite), []int{mem}},
		{"offset and size are negative", unix.EINVAL, mapping(0, 1<<62, 1<<62, readWrite), []int{mem}},
		{"longer than the file", unix.EINVAL, mapping(1<<32, 17*pageSize, 0, readWrite), []int{mem}},
		{"behind the file", unix.EINVAL, mapping(0, pageSize, 16*pageSize, readWrite), []int{mem}},
		{"offset of no file", unix.EINVAL, mapping(0, pageSize, pageSize, readWrite), nil},
		{"argsz", unix.EINVAL, pack(dmaMap{31, readWrite, 0, 0, pageSize}), []int{mem}},
		{"two files", unix.EINVAL, mapping(0, pageSize, 0, readWrite), []int{mem, mem}},
		{"a pipe", unix.EINVAL, mapping(0, pageSize, 0, readWrite), []int{pipe[0]}},
		{"a file of another file system", unix.EINVAL, mapping(0, pageSize, 0, dmaMapRead), []int{proc}},
		{"may be read only", unix.EACCES, mapping(0, pageSize, 0, readWrite), []int{readOnly}},
		{"the same again", unix.EEXIST, mapping(0x10000, 4*pageSize, 0, readWrite), []int{mem}},
		{"overlaps at the start", unix.EEXIST, mapping(0xf000, 2*pageSize, 0, readWrite), []int{mem}},
		{"overlaps at the end", unix.EEXIST, mapping(0x13000, 2*pageSize, 0, readWrite), []int{mem}},
		{"within", unix.EEXIST, mapping(0x11000, pageSize, 0, readWrite), nil},
		{"around", unix.EEXIST, mapping(0xf000, 6*pageSize, 0, readWrite), nil},
		{"more than a process has", unix.ENOMEM, mapping(1<<44, 1<<43, 0, readWrite), []int{huge}},
	} {
		t.Run(x.what, func(t *testing.T) {
			c.fails(x.errno, cmdDMAMap, x.payload, x.fds...)
			why := r.refused()
			if !strings.HasPrefix(why, "vfio-user: DMA_MAP, message ") || x.fds != nil && x.fds[0] == proc && !strings.Contains(why, "must be a memfd") {
				t.Error(why)
			}
		})
	}
	if n := holders(t, mem); n != 2 { // ours and readOnly
		t.Errorf("%d descriptors of the memory, 2 are ours", n)
	}
	if n := len(mappings()); n != 1 {
		t.Errorf("%d mappings, want 1", n)
	}
	c.ok(cmdDMAMap, mapping(0xf000, pageSize, 0, dmaMapRead), readOnly) // next to the first
	c.ok(cmdDMAMap, mapping(0x14000, pageSize, 0, readWrite), mem)
}

func TestDMAMapMany(t *testing.T) {
	c := connect(t)
	for i := range uint64(maxRegions) {
		c.post(cmdDMAMap, mapping(i*2*pageSize, pageSize, 0, readWrite))
	}
	c.fails(unix.ENOSPC, cmdDMAMap, mapping(1<<40, pageSize, 0, readWrite))
	c.ok(cmdDMAUnmap, unmapping(2*pageSize, pageSize, 0))
	c.ok(cmdDMAMap, mapping(1<<40, pageSize, 0, readWrite))
}

// A client that truncates its memory gets errors, not our death.
func TestDMATruncated(t *testing.T) {
	c := connect(t)
	fd := memfd(t, 4*pageSize)
	c.ok(cmdDMAMap, mapping(0, 4*pageSize, 0, readWrite), fd)
	if err := unix.Ftruncate(fd, pageSize); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 2, 4, 8, 64, 3 * pageSize} {
		b := make([]byte, n)
		if err := c.host.ReadDMA(pageSize, b); !errors.Is(err, ErrFault) {
			t.Errorf("read of %d bytes: %v", n, err)
		}
		if err := c.host.WriteDMA(pageSize, b); !errors.Is(err, ErrFault) {
			t.Errorf("write of %d bytes: %v", n, err)
		}
	}
	if err := c.host.WriteDMA(0, []byte{1}); err != nil {
		t.Errorf("what is left: %v", err)
	}
	if err := unix.Ftruncate(fd, 4*pageSize); err != nil {
		t.Fatal(err)
	}
	if err := c.host.WriteDMA(pageSize, []byte{1}); err != nil {
		t.Errorf("when it is there again: %v", err)
	}
}
