// SPDX-License-Identifier: BSD-2-Clause

package fw_test

import (
	"fmt"

	"devxlab.example/emu/fw"
	"devxlab.example/mlx5"
)

// A device whose commands take what the published figures say, on a clock that
// does not make anybody wait.
func Example() {
	profile, err := fw.ProfileByName("published")
	if err != nil {
		panic(err)
	}
	clock := &fw.VirtualClock{}
	hca, err := fw.New(fw.Config{Profile: profile, Clock: clock})
	if err != nil {
		panic(err)
	}

	in, out := make([]byte, mlx5.AllocPDInSize), make([]byte, mlx5.AllocPDOutSize)
	mlx5.PutHeader(in, mlx5.OpAllocPD, 0)
	hca.Exec(in, out)
	fmt.Printf("PD %d after %v\n", mlx5.AllocPDOut(out).PD(), clock.Now())

	// The queue pair 0x40 does not exist.
	in, out = make([]byte, mlx5.ToRSTQPInSize), make([]byte, mlx5.ToRSTQPOutSize)
	mlx5.PutHeader(in, mlx5.Op2RST, 0)
	mlx5.ToRSTQPIn(in).SetQPN(0x40)
	hca.Exec(in, out)
	status, syndrome := mlx5.StatusOf(out)
	fmt.Printf("%v: refused was %s\n", status, fw.CheckOf(syndrome).Refuses)
	// Output:
	// PD 1 after 337µs
	// BAD_RES: refused was a queue pair that does not exist or has another uid
}
