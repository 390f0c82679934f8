// SPDX-License-Identifier: BSD-2-Clause

//go:build !race

package uverbs

import (
	"testing"

	"devxlab.example/devx/abi"
	"devxlab.example/mlx5"
)

// A million handles close with as many commands.
func TestCloseManyHandles(t *testing.T) {
	n := 1_000_000
	if testing.Short() {
		n = 20_000
	}
	r := newRaw(t)
	f := file(t, "name=many")
	r.context(f)
	r.method(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_CREATE)
	r.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, 0)
	r.in(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, command(mlx5.OpAllocPD, 16))
	r.out(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, 16)
	for range n {
		r.ok(f)
	}
	for h := 0; h < n; h += 3 { // holes
		r.destroy(uint64(h)).ok(f)
	}
	left := uint64(n - (n+2)/3)
	before := f.d.hca.Stats().Commands
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if sent := f.d.hca.Stats().Commands - before; sent != left+1 {
		t.Errorf("%d commands for %d objects and the context", sent, left)
	}
}
