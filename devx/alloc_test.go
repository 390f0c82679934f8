// SPDX-License-Identifier: BSD-2-Clause

//go:build !race

package devx_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/devxtest"
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

func TestVerbsSteadyStateDoesNotAllocate(t *testing.T) {
	for _, p := range []devx.VerbsPath{devx.InvokeWrite, devx.PlainWrite} {
		d, err := devxtest.Stub{Verbs: func(devxtest.Command) unix.Errno { return 0 }}.Open(devx.WithVerbsPath(p))
		must(t, err)
		v, err := d.NewVerbsQP(devx.QPConfig{})
		must(t, err)
		s, err := d.NewSubmitter()
		must(t, err)
		init, rtr, _ := rcTransitions()
		cmd := encoded(t, rtr, mlx5.STRC)
		for what, f := range map[string]func() error{
			"ModifyVerbs": func() error { return devx.ModifyVerbs(v, init) },
			"SendVerbs":   func() error { return s.SendVerbs(v.DevX(), cmd) },
			"Modify":      func() error { return v.Modify(devx.QPAttr{State: mlx5.StateErr}, devx.MaskState) },
			"Query":       func() error { _, err := v.Query(devx.MaskState); return err },
			"DevX":        func() error { return devx.Modify(v.DevX(), rtr) },
		} {
			failed := error(nil)
			if n := testing.AllocsPerRun(1000, func() {
				if err := f(); err != nil {
					failed = err
				}
			}); n != 0 || failed != nil {
				t.Errorf("%s, %s: %v allocations, %v", p, what, n, failed)
			}
		}
		must(t, s.Close())
		must(t, d.Close())
	}
}
