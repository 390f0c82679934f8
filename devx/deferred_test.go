// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// What follows RTR2RTS finds the queue pair in RTS, whatever it is and however
// soon it comes. The driver's own idea of the state decides here, since no call
// says which state it presumes: a patched driver that writes it down later must
// do so first. Nothing may come after the queue pair is gone.
func TestOnDeviceAfterRTS(t *testing.T) {
	d := kernelDevice(t)
	// Just after boot the kernel may not find its port's own address within the second that
	// it gives an RTR.
	var err error
	for range 10 {
		if err = afterRTS(t, d, len(afterRTSCases)-1); !errors.Is(err, unix.ETIMEDOUT) {
			break
		}
	}
	must(t, err)
	const workers, each = 4, 60
	var all sync.WaitGroup
	errs := make(chan error, workers)
	for w := range workers {
		all.Go(func() {
			for i := range each {
				if err := afterRTS(t, d, (w+i)%len(afterRTSCases)); err != nil {
					errs <- fmt.Errorf("worker %d, round %d: %w", w, i, err)
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
}

// afterRTSCases are what follows RTR2RTS at once.
var afterRTSCases = []func(v *devx.VerbsQP) error{
	func(v *devx.VerbsQP) error { // a change that RTS takes, and RTR does not
		return v.Modify(devx.QPAttr{State: mlx5.StateRTS, MinRNRTimer: 7}, devx.MaskState|devx.MaskMinRNRTimer)
	},
	func(v *devx.VerbsQP) error {
		a, err := v.Query(devx.MaskState)
		if err == nil && a.State != mlx5.StateRTS {
			err = fmt.Errorf("query says %v", a.State)
		}
		return err
	},
	func(v *devx.VerbsQP) error { // what was deferred must not come back after ERR
		if err := v.Modify(devx.QPAttr{State: mlx5.StateErr}, devx.MaskState); err != nil {
			return err
		}
		for range 20 {
			err := v.Modify(devx.QPAttr{State: mlx5.StateRTS, MinRNRTimer: 7}, devx.MaskState|devx.MaskMinRNRTimer)
			if !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("ERR to RTS: %w", err)
			}
		}
		return nil
	},
	func(v *devx.VerbsQP) error { // and round again, while a timer may run
		return v.Modify(devx.QPAttr{State: mlx5.StateRST}, devx.MaskState)
	},
	func(*devx.VerbsQP) error { return nil }, // destroyed at once
}

// afterRTS brings a queue pair to RTS twice, with what follows it each time.
func afterRTS(t testing.TB, d *devx.Device, which int) (err error) {
	v, err := d.NewVerbsQP(devx.QPConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	init, rtr, rts := rcWay(t, d, v.Number())
	for range 2 {
		for _, s := range []verbsStep{{devx.QPAttr{State: mlx5.StateRST}, devx.MaskState}, init, rtr, rts} {
			if err := v.Modify(s.a, s.mask); err != nil {
				return fmt.Errorf("to %v: %w", s.a.State, err)
			}
		}
		if err := afterRTSCases[which](v); err != nil {
			return fmt.Errorf("case %d after RTS: %w", which, err)
		}
	}
	return nil
}
