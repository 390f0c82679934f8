// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestGetRegionIOFDs(t *testing.T) {
	c := connect(t)
	c.fails(unix.EOPNOTSUPP, cmdGetRegionIOFDs, pack(regionIOFDs{Argsz: 16}))
	c.fails(unix.EOPNOTSUPP, cmdGetRegionIOFDs, pack(regionIOFDs{Argsz: 4096, Index: 8}))
	for _, m := range []regionIOFDs{{}, {Argsz: 16, Index: 9}, {Argsz: 16, Flags: 1}, {Argsz: 16, Count: 1}} {
		c.fails(unix.EINVAL, cmdGetRegionIOFDs, pack(m))
	}
}
