// SPDX-License-Identifier: BSD-2-Clause

package uverbs_test

import (
	"fmt"
	"testing"
	"time"

	"devxlab.example/cm/timeout"
	"devxlab.example/emu/wire"
	"devxlab.example/mlx5"
)

// A program that posts to a peer behind a dead wire finds the error at the instant
// that package timeout computes, and nothing before.
func TestComputedTimes(t *testing.T) {
	for _, n := range []int{1, 8, 14, 18} {
		for _, retries := range []int{0, 2, 7} {
			clock := fmt.Sprintf("clock=virtual:times-%d-%d", n, retries)
			a, b := newNode(t, 4096, clock), newNode(t, 4096, clock, "addr=2")
			a.d.Busy(1)
			dead := wire.Params{Loss: 1}
			wireOf(t, a, b, dead, dead, 1)
			x, y := a.end(mlx5.STRC), b.end(mlx5.STRC)
			connect(x, y, link{mlx5.MTU1024, n, retries})
			want, err := timeout.QP{AckTimeout: n, RetryCount: retries}.NoAck()
			must(t, err)
			hca := a.hca.Clock()
			start := hca.Now()
			x.post(mlx5.SendWQE{Op: mlx5.WQEWrite, Signaled: true, RemoteAddr: b.mem.Addr(), RKey: b.key.Key(), Data: []mlx5.SGE{a.sge(0, 64)}})
			hca.SleepUntil(start + want.Least - 1)
			if c, early := x.poll(); early {
				t.Errorf("time-out %d, %d retries: %x too early", n, retries, []byte(c))
			}
			hca.SleepUntil(start + want.Least)
			hca.SleepUntil(start + want.Least + time.Nanosecond) // it is due at the instant itself, after whoever slept
			c, there := x.poll()
			if !there || !c.Failed() || c.Syndrome() != 0x15 || c.VendorSyndrome() != 0x81 {
				t.Errorf("time-out %d, %d retries: %v, %x", n, retries, there, []byte(c))
			}
			a.d.Busy(-1)
		}
	}
}
