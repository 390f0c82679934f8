// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"devxlab.example/devx"
	"devxlab.example/emu/fw"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

// Many goroutines use the device in every way while it is closed. Each call
// succeeds or says that the device is closed, Close returns after the last of
// those that succeed, and nothing stays mapped.
func TestCloseUnderUse(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	for range rounds {
		closeUnderUse(t)
	}
}

func closeUnderUse(t *testing.T) {
	regions := usermem.Live()
	d := open(t, name(t))
	c := count(d)
	path, err := d.OwnPath(-1)
	must(t, err)
	var done sync.WaitGroup
	var commands atomic.Int64
	// run calls f until the device is closed.
	run := func(f func() error) {
		done.Go(func() {
			for {
				switch err := f(); {
				case err == nil:
					commands.Add(1)
				case errors.Is(err, devx.ErrClosed):
					return
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	for range 4 { // queue pairs that others do not touch
		q := newQP(t, d, mlx5.STRC)
		rtr := mlx5.INIT2RTR{
			MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(q.Number()), NextRcvPSN: mlx5.Set(0),
			LogRRAMax: mlx5.Set(0), MinRNRNak: mlx5.Set(12), Path: path,
		}
		run(func() error {
			return errors.Join(devx.Modify(q, rcInit), devx.Modify(q, rtr), devx.Modify(q, rcRTS), devx.Modify(q, mlx5.ToRST{}))
		})
	}
	q := newQP(t, d, mlx5.STRC)
	for range 2 {
		s, err := d.NewSubmitter()
		must(t, err)
		cmd := make([]byte, mlx5.ToRSTQPInSize)
		mlx5.PutHeader(cmd, mlx5.Op2RST, 0)
		mlx5.ToRSTQPIn(cmd).SetQPN(q.Number())
		run(func() error {
			err := s.Send(q, cmd)
			if err != nil {
				err = errors.Join(err, s.Close())
			}
			return err
		})
	}
	run(func() error { // memory is carved out, written, given back
		q, err := d.NewQP(devx.QPConfig{SendWQEBBs: 1 << 14})
		if err != nil {
			return err
		}
		return q.Close()
	})
	run(func() error {
		c, err := d.CQ(1 << 14)
		if err != nil {
			return err
		}
		return c.Close()
	})
	run(func() error {
		u, err := d.UAR()
		if err != nil {
			return err
		}
		return errors.Join(u.Ring(0x800, 1), u.Close())
	})
	run(func() error {
		u, err := d.Umem(8192, 0)
		if err != nil {
			return err
		}
		return u.Close()
	})
	run(func() error {
		c, err := d.EventChannel()
		if err != nil {
			return err
		}
		return errors.Join(c.Subscribe(1, q, mlx5.EventCommEst), c.Close())
	})
	run(func() error {
		c, err := d.QueryChannel()
		if err != nil {
			return err
		}
		in := make([]byte, mlx5.QueryQPInSize)
		mlx5.PutHeader(in, mlx5.OpQueryQP, 0)
		mlx5.QueryQPIn(in).SetQPN(q.Number())
		err = c.Query(1, q, in, mlx5.QueryQPOutSize)
		for _, e := range c.Answers(context.Background()) {
			err = errors.Join(err, e)
			break
		}
		return errors.Join(err, c.Close())
	})
	wait(t, "calls", func() bool { return commands.Load() > 300 || t.Failed() })
	must(t, d.Close())
	c.stats(t, "commands in flight after Close", func(s fw.Stats) int64 { return s.InFlight }, 0)
	if c.e != nil {
		c.from = c.e.HCA().Stats()
	}
	done.Wait()
	c.commands(t, 0, 0)
	c.stats(t, "queue pairs", qpsOf, 0)
	if n := usermem.Live(); n != regions {
		t.Errorf("%d regions mapped, %d before", n, regions)
	}
}

// Close waits for a command under way. The clock stands still, so the command
// cannot end by itself.
func TestCloseWaits(t *testing.T) {
	d := open(t, name(t, "clock=virtual", "latency=1ms"))
	q := newQP(t, d, mlx5.STRC)
	hca := emulated(t, d).HCA()
	d.Busy(2)
	modified, closed := make(chan error, 1), make(chan error, 1)
	go func() { modified <- devx.Modify(q, rcInit) }()
	wait(t, "a command in flight", func() bool { return hca.Stats().InFlight == 1 })
	go func() { closed <- d.Close() }()
	wait(t, "Close to refuse calls", func() bool { // one that the firmware does not see
		_, err := d.EQN(0)
		return errors.Is(err, devx.ErrClosed)
	})
	select {
	case err := <-closed:
		t.Fatalf("Close did not wait: %v", err)
	case err := <-modified:
		t.Fatalf("the command ended: %v", err)
	default:
	}
	d.Busy(-2)
	if err := <-modified; err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// Many contexts of one device open and close at once; it is gone with the last.
func TestOpenCloseConcurrently(t *testing.T) {
	n := name(t)
	var done sync.WaitGroup
	for range 8 {
		done.Go(func() {
			for range 50 {
				d, err := devx.Open(n)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := d.NewQP(devx.QPConfig{}); err != nil {
					t.Error(err)
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
}
