// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// endpoint is what a queue pair needs on its way to RTS.
func endpoint(q *devx.QP) batch.Endpoint {
	e := batch.Endpoint{QP: q, INIT: mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0)}, RTS: mlx5.RTR2RTS{NextSendPSN: mlx5.Set(7)}}
	if q.Transport() == mlx5.STUD {
		e.INIT.QKey = mlx5.Set(0x1111)
		return e
	}
	e.INIT.Access = mlx5.Set(mlx5.RemoteWrite)
	e.RTR = mlx5.INIT2RTR{
		MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(q.Number()), NextRcvPSN: mlx5.Set(7),
		Path: mlx5.Path{RGID: [16]byte{0xfe, 0x80, 15: 1}, RMAC: [6]byte{2, 5: 1}, SrcAddrIndex: mlx5.Set(1)},
	}
	if q.Transport() == mlx5.STRC {
		e.RTR.LogRRAMax, e.RTR.MinRNRNak = mlx5.Set(0), mlx5.Set(12)
		e.RTS.AckTimeout, e.RTS.RetryCount, e.RTS.RNRRetry, e.RTS.LogSRAMax = mlx5.Set(14), mlx5.Set(7), mlx5.Set(7), mlx5.Set(0)
	}
	return e
}

// mixed makes n queue pairs of all transports.
func mixed(t tester, d *devx.Device, n int) (eps []batch.Endpoint) {
	for i := range n {
		eps = append(eps, endpoint(newQP(t, d, mlx5.ServiceType(i%3))))
	}
	return eps
}

// really checks each queue pair's state against what the result says.
func really(t *testing.T, reached []batch.Reached) {
	t.Helper()
	for i, r := range reached {
		if (r.Err == nil) != (r.State == mlx5.StateRTS) {
			t.Errorf("%d: %v, %v", i, r.State, r.Err)
		}
		if s, err := r.QP.State(); err != nil || s != r.State {
			t.Errorf("%d: said to be in %v, is in %v (%v)", i, r.State, s, err)
		}
	}
}

func TestToRTS(t *testing.T) {
	d, e := emulate(t, virtual)
	b := newBatch(t, d, batch.Options{})
	for range 2 { // it is empty afterwards
		eps := mixed(t, d, 62)
		start := e.HCA().Clock().Now()
		reached, err := b.ToRTS(context.Background(), eps)
		if err != nil || b.Len() != 0 || len(reached) != 62 {
			t.Fatal(err, b.Len(), len(reached))
		}
		if got, want := e.HCA().Clock().Now()-start, 3*(2+1)*latency; got != want { // 31, 1 and 30, three times
			t.Errorf("took %v, not %v", got, want)
		}
		for i, r := range reached {
			if r.QP != eps[i].QP || r.State != mlx5.StateRTS {
				t.Errorf("%d: %+v", i, r)
			}
		}
		really(t, reached)
	}
	if reached, err := b.ToRTS(context.Background(), nil); err != nil || len(reached) != 0 {
		t.Error(reached, err)
	}
}

// One that fails stays where it is, with its reason, and holds up no other.
func TestToRTSWithFailures(t *testing.T) {
	d := open(t)
	eps := mixed(t, d, 64)
	type end struct {
		state  mlx5.State
		status mlx5.Status // of a refusal by firmware
		attr   bool        // refused by the encoder
	}
	want := make([]end, len(eps))
	for i := range eps {
		e, w := &eps[i], &want[i]
		w.state = mlx5.StateRTS
		switch i % 9 {
		case 1:
			e.INIT.PkeyIndex = mlx5.Set(5)
			*w = end{state: mlx5.StateRST, status: mlx5.StatusIX}
		case 2:
			e.INIT.Port = mlx5.Attr{}
			*w = end{state: mlx5.StateRST, attr: true}
		case 3:
			e.RTR.PkeyIndex = mlx5.Set(5)
			*w = end{state: mlx5.StateInit, status: mlx5.StatusIX}
		case 4:
			e.RTR.LogMsgMax = mlx5.Set(31)
			*w = end{state: mlx5.StateInit, attr: true}
		case 5:
			if e.QP.Transport() == mlx5.STUD { // firmware has nothing to refuse in its RTR2RTS
				continue
			}
			e.RTS.PMState = mlx5.Set(2)
			*w = end{state: mlx5.StateRTR, status: mlx5.StatusBadParam}
		case 6:
			e.RTS.NextSendPSN = mlx5.Attr{}
			*w = end{state: mlx5.StateRTR, attr: true}
		}
	}
	reached, err := newBatch(t, d, batch.Options{}).ToRTS(context.Background(), eps)
	if err != nil {
		t.Fatal(err)
	}
	really(t, reached)
	for i, r := range reached {
		got := end{state: r.State}
		if c := command(r.Err); c != nil {
			got.status = c.Status
		}
		var a *mlx5.AttrError
		got.attr = errors.As(r.Err, &a)
		if got != want[i] || r.QP != eps[i].QP {
			t.Errorf("%d (%v): %+v, not %+v: %v", i, eps[i].QP.Transport(), got, want[i], r.Err)
		}
	}
}

// An endpoint without a queue pair, or with one that is not there to be changed.
func TestToRTSWithoutQP(t *testing.T) {
	d := open(t)
	other := open(t)
	eps := mixed(t, d, 4)
	eps[1].QP = nil
	eps[2].QP = newQP(t, other, mlx5.STUD)
	if err := eps[3].QP.Close(); err != nil {
		t.Fatal(err)
	}
	reached, err := newBatch(t, d, batch.Options{}).ToRTS(context.Background(), eps)
	if err != nil || reached[0].State != mlx5.StateRTS {
		t.Error(err, reached[0])
	}
	text(t, reached[1].Err, "batch: no queue pair given: it is nil")
	if !errors.Is(reached[2].Err, devx.ErrForeign) || !errors.Is(reached[3].Err, devx.ErrClosed) || !errors.Is(reached[3].Err, batch.ErrNotSent) {
		t.Error(reached[2].Err, reached[3].Err)
	}
}

// StopOnError ends the step in which something failed; who passed it goes on.
func TestToRTSStopOnError(t *testing.T) {
	d := open(t)
	eps := mixed(t, d, 8)
	eps[3].INIT.PkeyIndex = mlx5.Set(5)
	eps[1].RTR.PkeyIndex = mlx5.Set(5)
	b := newBatch(t, d, batch.Options{StopOnError: true, Strategy: batch.Serial()})
	reached, err := b.ToRTS(context.Background(), eps)
	if err != nil {
		t.Fatal(err)
	}
	really(t, reached)
	for i, want := range []mlx5.State{mlx5.StateRTS, mlx5.StateInit, mlx5.StateInit, mlx5.StateRST, mlx5.StateRST, mlx5.StateRST, mlx5.StateRST, mlx5.StateRST} {
		if reached[i].State != want || i >= 4 && !errors.Is(reached[i].Err, batch.ErrNotSent) {
			t.Errorf("%d: %v (%v), not %v", i, reached[i].State, reached[i].Err, want)
		}
	}
}

// Cancelled at any command, each queue pair is where the result says.
func TestToRTSCancelled(t *testing.T) {
	const n = 8
	for k := 0; k < 3*n; k++ {
		ctx, cancel := context.WithCancelCause(context.Background())
		sent := 0
		d, _ := emulate(t, virtual, devx.WithTrace(func(in, _ []byte, _ time.Duration) {
			switch mlx5.OpOf(in) {
			case mlx5.OpRST2INIT, mlx5.OpINIT2RTR, mlx5.OpRTR2RTS:
				if sent++; sent == k {
					cancel(errTest)
				}
			}
		}))
		if k == 0 {
			cancel(errTest)
		}
		b := newBatch(t, d, batch.Options{Strategy: batch.Serial()})
		reached, err := b.ToRTS(ctx, mixed(t, d, n))
		if err != errTest || sent != k || b.Len() != 0 {
			t.Errorf("cancelled at %d: %v, %d sent", k, err, sent)
		}
		really(t, reached)
		for i, r := range reached {
			if r.Err != nil && (!errors.Is(r.Err, errTest) || !errors.Is(r.Err, batch.ErrNotSent)) {
				t.Errorf("%d: %v", i, r.Err)
			}
		}
	}
}

func TestToRTSUnplugged(t *testing.T) {
	d, e := emulate(t, virtual)
	b := newBatch(t, d, batch.Options{})
	eps := mixed(t, d, 4)
	e.Unplug()
	reached, err := b.ToRTS(context.Background(), eps)
	if err != nil {
		t.Error(err)
	}
	for i, r := range reached {
		if r.State != mlx5.StateRST || !errors.Is(r.Err, devx.ErrDeviceGone) {
			t.Errorf("%d: %+v", i, r)
		}
	}
}
