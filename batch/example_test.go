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

func Example() {
	d := must(devx.Open("emu:")) // or "mlx5_0"
	defer d.Close()
	b := must(batch.New(d, batch.Options{}))
	defer b.Close()
	init := mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), QKey: mlx5.Set(0x11111111)}
	for i := range 100 {
		qp := must(d.NewQP(devx.QPConfig{Transport: mlx5.STUD}))
		if err := batch.Add(b, qp, init, uint64(i)); err != nil {
			log.Fatal(err)
		}
	}
	if err := b.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(b.Len(), "queue pairs are in INIT")
	// Output: 100 queue pairs are in INIT
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
