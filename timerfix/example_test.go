// SPDX-License-Identifier: BSD-2-Clause

package timerfix_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"devxlab.example/devx"
	_ "devxlab.example/emu/uverbs"
	"devxlab.example/mlx5"
	"devxlab.example/timerfix"
)

// must returns v, or ends the program.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// Two queue pairs are put into ERR a millisecond later, unless somebody changes
// his mind.
func Example() {
	d := must(devx.Open("emu:")) // or "mlx5_0"
	defer d.Close()
	s := must(timerfix.New(d, timerfix.Options{}))
	defer s.Stop()
	a, b := must(d.NewQP(devx.QPConfig{})), must(d.NewQP(devx.QPConfig{}))

	due := s.Now().Add(time.Millisecond)
	keep := must(timerfix.Defer(s, a, mlx5.ToERR{}, due))
	drop := must(timerfix.Defer(s, b, mlx5.ToERR{}, due))
	fmt.Println("cancelled:", s.Cancel(drop))

	r := must(s.Wait(context.Background(), keep)) // the barrier: now it is real
	fmt.Println(r.Op, r.Outcome)
	fmt.Println(must(a.State()), must(b.State()))
	// Output:
	// cancelled: true
	// 2ERR_QP done
	// ERR RST
}
