// SPDX-License-Identifier: BSD-2-Clause

package patches

import (
	"slices"
	"strings"
	"testing"

	"devxlab.example/devx/abi"
)

// Package abi has the numbers of the ioctl that the patch adds.
func TestModifyBatchABI(t *testing.T) {
	const base = 0x1000 // 1U << UVERBS_ID_NS_SHIFT
	for _, v := range Versions() {
		all, err := Series(v)
		if err != nil {
			t.Fatal(err)
		}
		var added []string
		for _, f := range all[2].Files {
			for _, h := range f.Hunks {
				added = append(added, h.New...)
			}
		}
		at := slices.Index(added, "enum mlx5_ib_devx_qp_modify_batch_attrs {") + 1
		for i, attr := range []struct {
			name string
			id   uint16
		}{
			{"HANDLES", abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_HANDLES}, {"CMD_LENS", abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_CMD_LENS},
			{"CMDS", abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_CMDS}, {"RESULTS", abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_RESULTS},
		} {
			if !strings.HasPrefix(added[at+i], "\tMLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_"+attr.name) || attr.id != base+uint16(i) {
				t.Errorf("%s: %q is %#x in package abi", v, added[at+i], attr.id)
			}
		}
		for _, want := range []string{
			"\tMLX5_IB_METHOD_DEVX_QP_MODIFY_BATCH = (1U << UVERBS_ID_NS_SHIFT) + 7,",
			"#define DEVX_QP_MODIFY_BATCH_MAX 32", "\t__u32\t\treserved;", "\t__u8\t\toutbox[16];",
		} {
			if !slices.Contains(added, want) {
				t.Errorf("%s: the patch has no %q", v, want)
			}
		}
	}
	if abi.MLX5_IB_METHOD_DEVX_QP_MODIFY_BATCH != base+7 || abi.QPModifyBatchMax != 32 || abi.QPModifyResultSize != 4+4+16 {
		t.Error("package abi has other numbers")
	}
}
