// SPDX-License-Identifier: BSD-2-Clause

package pci

import (
	"testing"

	"devxlab.example/mlx5"
)

// BenchmarkCommand is the way of a command through the function, from the
// doorbell until the driver sees the answer, without a virtual machine.
func BenchmarkCommand(b *testing.B) {
	d := newDriver(b, Config{})
	d.boot()
	for _, op := range []mlx5.Op{mlx5.OpNOP, mlx5.OpQueryISSI, mlx5.OpQueryHCACap} {
		in := build(op, 0)
		_, out := op.Layouts()
		b.Run(op.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d.t = b
				d.exec(in, out.Bytes)
			}
		})
	}
}
