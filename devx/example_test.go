// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"fmt"

	"devxlab.example/devx"
	_ "devxlab.example/emu/uverbs" // for names that begin with "emu:"
	"devxlab.example/mlx5"
)

// An RC queue pair, addressed to itself, from RESET to RTS.
func Example() {
	d, err := devx.Open("emu:") // or "mlx5_0"
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	q, err := d.NewQP(devx.QPConfig{Transport: mlx5.STRC})
	if err != nil {
		fmt.Println(err)
		return
	}
	path, err := d.OwnPath(-1)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = devx.Modify(q, mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(mlx5.RemoteWrite)})
	if err == nil {
		err = devx.Modify(q, mlx5.INIT2RTR{
			MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(q.Number()), NextRcvPSN: mlx5.Set(0),
			LogRRAMax: mlx5.Set(0), MinRNRNak: mlx5.Set(12), Path: path,
		})
	}
	if err == nil {
		err = devx.Modify(q, mlx5.RTR2RTS{
			AckTimeout: mlx5.Set(14), RetryCount: mlx5.Set(7), RNRRetry: mlx5.Set(mlx5.RNRRetryForever),
			NextSendPSN: mlx5.Set(0), LogSRAMax: mlx5.Set(0),
		})
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := q.Query()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%v, path MTU %d bytes, local ACK time-out %v\n",
		mlx5.State(c.State()), mlx5.MTU(c.MTU()).Bytes(), mlx5.AckTimeout(c.PrimaryAddressPath().AckTimeout()))
	// Output: RTS, path MTU 1024 bytes, local ACK time-out 67.108864ms
}
