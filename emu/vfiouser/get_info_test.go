// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestGetInfo(t *testing.T) {
	c := connect(t)
	for _, argsz := range []uint32{16, 17, 4096} {
		got := decode[deviceInfo](c.ok(cmdGetInfo, pack(deviceInfo{Argsz: argsz})))
		if want := (deviceInfo{16, deviceReset | devicePCI, 9, 5}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	for _, m := range []deviceInfo{{Argsz: 15}, {}, {16, 1, 0, 0}, {16, 0, 1, 0}, {16, 0, 0, 1}} {
		c.fails(unix.EINVAL, cmdGetInfo, pack(m))
	}
}
