// SPDX-License-Identifier: BSD-2-Clause

package mlx5_test

import (
	"fmt"
	"os"

	"devxlab.example/mlx5"
)

// Encode the transition that brings queue pair 0x40121 to RTS, and show the
// command as firmware would read it.
func Example() {
	rts := mlx5.RTR2RTS{
		AckTimeout:  mlx5.Set(14), // 67 ms
		RetryCount:  mlx5.Set(7),
		RNRRetry:    mlx5.Set(mlx5.RNRRetryForever),
		NextSendPSN: mlx5.Set(mlx5.PSN(0x123456)),
		LogSRAMax:   mlx5.Set(4), // 16 reads and atomics
	}
	cmd := make([]byte, mlx5.TransitionSize)
	n, err := rts.Encode(cmd, 0x40121, mlx5.STRC)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := mlx5.WriteDump(os.Stdout, cmd[:n], nil); err != nil {
		fmt.Println(err)
	}

	rts.RetryCount = mlx5.Set(15)
	_, err = rts.Encode(make([]byte, mlx5.TransitionSize), 0x40121, mlx5.STRC)
	fmt.Println(err)
	// Output:
	// RTR2RTS_QP(0x504)
	//   in  0x000  05040000 00000000 00040121 00000000 00000000 00000000 00000000 00000000
	//   in  0x020  00000000 00000000 00000000 00000000 00000000 00000000 70000000 00000000
	//   in    …     (zero)
	//   in  0x080  00000000 00000000 0087e000 00000000 00123456 00000000 00000000 00000000
	//   in    …     (zero)
	//   in  0x100  00000000 00000000 00000000 00000000
	//       opcode=0x504 qpn=0x40121 qpc.primary_address_path.ack_timeout=0xe qpc.log_sra_max=0x4 qpc.retry_count=0x7 qpc.rnr_retry=0x7 qpc.next_send_psn=0x123456
	// mlx5: RTR2RTS_QP (RC): retry_count 15 is out of range: 0 to 7
}
