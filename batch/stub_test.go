// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/devxtest"
	"devxlab.example/mlx5"
)

// openStub opens a device whose transitions return what modify says.
func openStub(t tester, modify func(op mlx5.Op, qpn uint32) unix.Errno) *devx.Device {
	t.Helper()
	d, err := devxtest.Open(func(cmd []byte) unix.Errno {
		if modify == nil {
			return 0
		}
		return modify(mlx5.OpOf(cmd), mlx5.RST2INITQPIn(cmd).QPN())
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close the stub: %v", err)
		}
	})
	return d
}
