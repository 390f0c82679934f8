// SPDX-License-Identifier: BSD-2-Clause

//go:build !race

package devx_test

import (
	"testing"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// The race detector allocates where the program does not.

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	d := open(t, name(t))
	q := rts(t, d)
	s, err := d.NewSubmitter()
	must(t, err)
	defer s.Close()
	change := mlx5.RTS2RTS{Access: mlx5.Set(mlx5.RemoteRead), MinRNRNak: mlx5.Set(12)}
	cmd := make([]byte, mlx5.TransitionSize)
	rtr := rcRTR(t, d, q.Number())
	for what, f := range map[string]func() error{
		"Modify": func() error { return devx.Modify(q, change) },
		"Modify, the whole way": func() error {
			err := devx.Modify(q, mlx5.ToRST{})
			if err == nil {
				err = devx.Modify(q, rcInit)
			}
			if err == nil {
				err = devx.Modify(q, rtr)
			}
			if err == nil {
				err = devx.Modify(q, rcRTS)
			}
			return err
		},
		"Encode and Send": func() error {
			clear(cmd)
			n, err := change.Encode(cmd, q.Number(), q.Transport())
			if err == nil {
				err = s.Send(q, cmd[:n])
			}
			return err
		},
	} {
		failed := error(nil)
		if n := testing.AllocsPerRun(1000, func() {
			if err := f(); err != nil {
				failed = err
			}
		}); n != 0 || failed != nil {
			t.Errorf("%s: %v allocations, %v", what, n, failed)
		}
	}
}
