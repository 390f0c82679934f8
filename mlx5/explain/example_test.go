// SPDX-License-Identifier: BSD-2-Clause

package explain_test

import (
	"fmt"
	"os"

	"devxlab.example/mlx5/explain"
)

func ExampleLine() {
	a, err := explain.Line("mlx5_core 0000:81:00.0: mlx5_cmd_check:810:(pid 1234): CREATE_QP(0x500) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x19c6d6)")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(a.Summary)
	for _, r := range a.Reports {
		fmt.Println(r)
	}
	// Output:
	// CREATE_QP(0x500) failed: limits exceeded(0x8), syndrome 0x19c6d6
	// CREATE_QP(0x500), limits exceeded(0x8), 0x19c6d6: 130,763 QPs and 98 contexts existed, far from max_qp 262,144; reason not told [ConnectX-6] (ofiwg/libfabric #7368)
}

func ExampleAnswer_WriteText() {
	a, err := explain.Line("min_rnr_timer=0")
	if err != nil {
		fmt.Println(err)
		return
	}
	a.WriteText(os.Stdout)
	// Output:
	// min_rnr_timer = 0: 655.36 ms, the longest wait, not the shortest
	//
	// What is known
	//   - An index into a table of 32 times: 0 is 655.36 ms, 1 is 0.01 ms, 12 is 0.64
	//     ms, 14 is 1.28 ms, 31 is 491.52 ms.
	//   - The responder sets it; the requester waits that long after an RNR NAK.
}
