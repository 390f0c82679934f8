// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func multi(n uint64, writes ...multiWrite) []byte { return pack(n, writes) }

func one8(off uint64, region, count uint32) multiWrite {
	return multiWrite{regionAccess{off, region, count}, [8]byte([]byte("abcdefgh"))}
}

func TestWriteMulti(t *testing.T) {
	c := connect(t)
	reply := c.ok(cmdWriteMulti, multi(3, one8(0, 0, 8), one8(8, 2, 1), one8(4, regionConfig, 4)))
	if !bytes.Equal(reply, pack(uint64(3))) {
		t.Errorf("reply %x", reply)
	}
	want := []access{{"bar", 0, 0, "abcdefgh"}, {"bar", 2, 8, "a"}, {"config", 0, 4, "abcd"}}
	if got := c.dev.done(); !slices.Equal(got, want) {
		t.Errorf("the device saw %+v, want %+v", got, want)
	}
	c.post(cmdWriteMulti, multi(200, slices.Repeat([]multiWrite{one8(0, 0, 4)}, 200)...)) // QEMU's most
	c.sync()
	if n := len(c.dev.done()); n != 200 {
		t.Errorf("the device saw %d writes", n)
	}
}

func TestWriteMultiRefused(t *testing.T) {
	c := connect(t)
	ok := one8(0, 0, 8)
	for _, payload := range [][]byte{
		multi(0),
		multi(1),
		multi(0, ok),
		multi(2, ok),
		multi(1, ok, ok),
		multi(math.MaxUint64, ok),
		multi(1<<61+1, ok), // times 24 is 24
		pack(multi(1, ok), "more"),
		multi(2, ok, one8(0, 0, 9)),
		multi(2, ok, one8(0, 0, 0)),
		multi(2, ok, one8(0, 1, 4)),
		multi(2, ok, one8(math.MaxUint64, 0, 4)),
	} {
		c.fails(unix.EINVAL, cmdWriteMulti, payload)
	}
	if got := c.dev.done(); len(got) != 0 {
		t.Errorf("the device saw %+v: a message with a wrong write does nothing", got)
	}
}

func TestWriteMultiNotAgreed(t *testing.T) {
	r := newRig(t)
	c := r.dial()
	c.ok(cmdVersion, pack(version{}, `{"capabilities":{"write_multiple":false}}`+"\x00"))
	<-r.dev.attached
	c.fails(unix.EOPNOTSUPP, cmdWriteMulti, multi(1, one8(0, 0, 8)))
}
