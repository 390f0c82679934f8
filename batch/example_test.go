// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"context"
	"fmt"
	"log"

	"devxlab.example/batch"
	"devxlab.example/devx"
	_ "devxlab.example/emu/uverbs"
	"devxlab.example/mlx5"
)

// A hundred RC queue pairs from nothing to RTS, each connected to itself.
func Example() {
	d := must(devx.Open("emu:")) // or "mlx5_0"
	defer d.Close()
	b := must(batch.New(d, batch.Options{}))
	defer b.Close()
	path, set := must(d.OwnPath(-1)), mlx5.Set[int]
	var eps []batch.Endpoint
	for range 100 {
		qp := must(d.NewQP(devx.QPConfig{}))
		eps = append(eps, batch.Endpoint{QP: qp,
			INIT: mlx5.RST2INIT{Port: set(1), PkeyIndex: set(0), Access: mlx5.Set(mlx5.RemoteWrite)},
			RTR:  mlx5.INIT2RTR{MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(qp.Number()), NextRcvPSN: set(0), LogRRAMax: set(0), MinRNRNak: set(12), Path: path},
			RTS:  mlx5.RTR2RTS{AckTimeout: set(14), RetryCount: set(7), RNRRetry: set(7), NextSendPSN: set(0), LogSRAMax: set(0)},
		})
	}
	reached := must(b.ToRTS(context.Background(), eps))
	fmt.Println(len(reached), "queue pairs; the last is in", reached[99].State, reached[99].Err)
	// Output: 100 queue pairs; the last is in RTS <nil>
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
