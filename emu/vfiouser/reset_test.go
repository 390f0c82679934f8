// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A reset is the function's; the client's memory and vectors stay.
func TestReset(t *testing.T) {
	c := connect(t)
	e := eventFD(t)
	c.ok(cmdDMAMap, mapping(0, pageSize, 0, readWrite), memfd(t, pageSize))
	c.ok(cmdSetIRQs, irqs(setFDs, 0, 1), e)
	if reply := c.ok(cmdReset, nil); len(reply) != 0 {
		t.Errorf("reply %x", reply)
	}
	if got := c.dev.done(); !slices.Equal(got, []access{{what: "reset"}}) {
		t.Errorf("the device saw %+v", got)
	}
	if err := c.host.WriteDMA(0, []byte{1}); err != nil {
		t.Error(err)
	}
	if c.host.Interrupt(0); signals(t, e) != 1 {
		t.Error("the vector is gone")
	}
	c.fails(unix.EINVAL, cmdReset, []byte{0})
	if got := c.dev.done(); len(got) != 0 {
		t.Errorf("the device saw %+v", got)
	}
}
