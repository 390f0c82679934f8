// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"errors"
	"slices"
	"testing"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// Queues lie in the queue pair's memory as CREATE_QP says: the receive queue
// first, and neither touches the doorbell record.
func TestQueues(t *testing.T) {
	d := open(t, name(t))
	for _, c := range []struct {
		c                  devx.QPConfig
		send, recv, stride int
	}{
		{devx.QPConfig{}, 64, 64, 16},
		{devx.QPConfig{SendWQEBBs: 5, RecvWQEs: 3, RecvSGEs: 4}, 512, 256, 64},
		{devx.QPConfig{SendWQEBBs: 2, NoRecvQueue: true}, 128, 0, 0},
	} {
		q, err := d.NewQP(c.c)
		must(t, err)
		w := q.Queues()
		if len(w.Send) != c.send || len(w.Recv) != c.recv || w.RecvStride != c.stride {
			t.Errorf("%+v: %d, %d, stride %d; want %+v", c.c, len(w.Send), len(w.Recv), w.RecvStride, c)
		}
		for i := range w.Recv {
			w.Recv[i] = 0xff
		}
		if slices.ContainsFunc(w.Send, func(b byte) bool { return b != 0 }) {
			t.Errorf("%+v: the queues overlap", c.c)
		}
	}
}

// A queue that is closed cannot be posted to.
func TestPostClosed(t *testing.T) {
	d := open(t, name(t))
	q, err := d.NewQP(devx.QPConfig{})
	must(t, err)
	c, err := d.CQ(100)
	must(t, err)
	if c.Log() != 7 {
		t.Errorf("log2 of a queue of 100 entries: %d", c.Log())
	}
	if _, ok := c.Entry(0); ok {
		t.Error("a completion in a new queue")
	}
	must(t, q.Close())
	must(t, c.Close())
	for _, err := range []error{q.Post(1, 1), q.PostRecv(1), c.Consume(1), c.Arm(1, false, 0)} {
		if !errors.Is(err, devx.ErrClosed) {
			t.Error(err)
		}
	}
}

// Requests that are posted before RTS are executed when it comes, and flushed in
// ERR.
func TestPostAndTransitions(t *testing.T) {
	d := open(t, name(t))
	c, err := d.CQ(8)
	must(t, err)
	q, err := d.NewQP(devx.QPConfig{SendCQ: c, SendWQEBBs: 4})
	must(t, err)
	post := func(pi uint16) {
		t.Helper()
		w := mlx5.SendWQE{Op: mlx5.WQENop, Signaled: true}
		_, doorbell, err := w.Encode(q.Queues().Send, pi, q.Number())
		must(t, err)
		must(t, q.Post(pi+1, doorbell))
	}
	completes := func(ci uint32, failed bool) {
		t.Helper()
		var e mlx5.CQE
		wait(t, "a completion", func() (ok bool) { e, ok = c.Entry(ci); return ok })
		if e.Failed() != failed || e.WQECounter() != uint16(ci) || e.WQEOpcode() != mlx5.WQENop {
			t.Errorf("completion %x", []byte(e))
		}
	}
	post(0)
	path, err := d.OwnPath(-1)
	must(t, err)
	must(t, devx.Modify(q, mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(mlx5.RemoteWrite)}))
	must(t, devx.Modify(q, mlx5.INIT2RTR{
		MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(q.Number()), NextRcvPSN: mlx5.Set(0), LogRRAMax: mlx5.Set(0), MinRNRNak: mlx5.Set(12), Path: path,
	}))
	if _, ok := c.Entry(0); ok {
		t.Error("a request was executed in RTR")
	}
	must(t, devx.Modify(q, mlx5.RTR2RTS{
		AckTimeout: mlx5.Set(14), RetryCount: mlx5.Set(7), RNRRetry: mlx5.Set(mlx5.RNRRetryForever), NextSendPSN: mlx5.Set(0), LogSRAMax: mlx5.Set(0),
	}))
	completes(0, false)
	must(t, devx.Modify(q, mlx5.ToERR{}))
	post(1)
	completes(1, true)
}
