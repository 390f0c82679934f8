// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestGetIRQInfo(t *testing.T) {
	c := connect(t)
	for i := range uint32(5) {
		want := irqInfo{Argsz: 16, Index: i}
		if i == irqMSIX {
			want.Flags, want.Count = irqEventFD, deviceVectors
		}
		if got := decode[irqInfo](c.ok(cmdGetIRQInfo, pack(irqInfo{Argsz: 16, Index: i}))); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	for _, m := range []irqInfo{{Argsz: 16, Index: 5}, {Argsz: 15}, {Argsz: 16, Flags: 1}, {Argsz: 16, Count: 1}} {
		c.fails(unix.EINVAL, cmdGetIRQInfo, pack(m))
	}
}
