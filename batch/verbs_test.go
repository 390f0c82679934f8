// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/devx/abi"
	"devxlab.example/devx/devxtest"
	"devxlab.example/internal/require"
	"devxlab.example/mlx5"
)

// openVerbs opens a stub with verbs. modify gets what is sent by verbs: the queue
// pair's handle, which is its number, and the state that it is to go to.
func openVerbs(t tester, modify func(qpn uint32, to uint8) unix.Errno) *devx.Device {
	t.Helper()
	d, err := devxtest.Stub{
		Modify: func([]byte) unix.Errno { t.Errorf("a transition through DevX"); return unix.EINVAL },
		Verbs: func(c devxtest.Command) unix.Errno {
			if c.Method.Cmd != abi.IB_USER_VERBS_CMD_MODIFY_QP || modify == nil {
				return 0
			}
			const handle, state = 64, 96 // qp_handle and qp_state in struct ib_uverbs_modify_qp
			return modify(uint32(c.Core[handle])|uint32(c.Core[handle+1])<<8, c.Core[state])
		},
	}.Open()
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close the stub: %v", err)
		}
	})
	return d
}

func newVerbsQP(t tester, d *devx.Device) *devx.QP {
	t.Helper()
	v, err := d.NewVerbsQP(devx.QPConfig{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return v.DevX()
}

func TestSerialVerbs(t *testing.T) {
	type sent struct {
		qpn uint32
		to  uint8
	}
	var log []sent
	d := openVerbs(t, func(qpn uint32, to uint8) unix.Errno {
		log = append(log, sent{qpn, to})
		return 0
	})
	b := newBatch(t, d, batch.Options{Strategy: batch.SerialVerbs(), Group: 2})
	var want []sent
	for range 3 {
		q := newVerbsQP(t, d)
		for _, err := range []error{batch.Add(b, q, mlx5.ToERR{}, 0), batch.Add(b, q, mlx5.ToRST{}, 0)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		want = append(want, sent{q.Number(), 6}, sent{q.Number(), 0})
	}
	if err := b.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(log) != len(want) {
		t.Fatalf("sent %v, want %v", log, want)
	}
	for i := range want {
		if log[i] != want[i] {
			t.Errorf("sent %v, want %v", log, want)
			break
		}
	}
	if _, most := b.InFlight(); most != 1 {
		t.Errorf("%d in flight", most)
	}
	if n := batch.SerialVerbs().Name(); n != "serial-verbs" {
		t.Errorf("it is called %s", n)
	}
}

// What verbs refuse is failed, an answer that was lost is unknown, and what is
// none of theirs was not sent.
func TestSerialVerbsOutcomes(t *testing.T) {
	errs := map[uint32]unix.Errno{}
	sent := map[uint32]int{}
	d := openVerbs(t, func(qpn uint32, _ uint8) unix.Errno {
		sent[qpn]++
		return errs[qpn]
	})
	fine, refused, lost, gone := newVerbsQP(t, d), newVerbsQP(t, d), newVerbsQP(t, d), newVerbsQP(t, d)
	errs[refused.Number()], errs[lost.Number()], errs[gone.Number()] = unix.EINVAL, unix.ETIMEDOUT, unix.EIO
	foreign := newQP(t, d, mlx5.STRC) // made through DevX
	b := newBatch(t, d, batch.Options{Strategy: batch.SerialVerbs()})
	init := mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(0)}
	counter := init
	counter.CounterSetID = mlx5.Set(1) // verbs have no such attribute
	for i, err := range []error{
		batch.Add(b, fine, init, 0), batch.Add(b, refused, init, 1), batch.Add(b, lost, init, 2), batch.Add(b, gone, init, 3),
		batch.Add(b, foreign, init, 4), batch.Add(b, fine, counter, 5), batch.Add(b, lost, init, 6),
	} {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	var partial *batch.Error
	if err := b.Run(context.Background()); !errors.As(err, &partial) || partial.Failed != 1 || partial.Unknown != 2 || partial.NotSent != 3 {
		t.Errorf("%v", err)
	}
	want := []struct {
		outcome batch.Outcome
		part    string
	}{
		{batch.Done, ""}, {batch.Failed, "MODIFY_QP"}, {batch.Unknown, "unknown"}, {batch.Unknown, "device gone"},
		{batch.NotSent, "NewVerbsQP"}, {batch.NotSent, "counter_set_id"}, {batch.NotSent, "ended unknown"},
	}
	for r := range b.Results() {
		w := want[r.Tag]
		if r.Outcome != w.outcome || w.part != "" && (r.Err == nil || !strings.Contains(r.Err.Error(), w.part)) {
			t.Errorf("entry %d: %v, %v; want %v, %s", r.Tag, r.Outcome, r.Err, w.outcome, w.part)
		}
		var v *devx.VerbsError
		if called := r.Outcome == batch.Failed || r.Outcome == batch.Unknown; errors.As(r.Err, &v) != called || (r.InFlight > 0) != (called || r.Outcome == batch.Done) {
			t.Errorf("entry %d: %v, in flight %d", r.Tag, r.Err, r.InFlight)
		}
	}
	if sent[fine.Number()] != 1 || sent[lost.Number()] != 1 {
		t.Errorf("sent %v", sent)
	}
}

// In process there are no verbs, and New says so.
func TestSerialVerbsInProcess(t *testing.T) {
	d, _ := emulate(t, "")
	if _, err := batch.New(d, batch.Options{Strategy: batch.SerialVerbs()}); !errors.Is(err, devx.ErrNoVerbs) || !strings.Contains(err.Error(), "serial-verbs") {
		t.Errorf("%v", err)
	}
}

func TestSerialVerbsAllocatesNothing(t *testing.T) {
	d := openVerbs(t, nil)
	qps := make([]*devx.QP, 70)
	for i := range qps {
		qps[i] = newVerbsQP(t, d)
	}
	b := newBatch(t, d, batch.Options{Strategy: batch.SerialVerbs()})
	round := func() {
		for i := range 100 {
			if err := batch.Add(b, qps[i%len(qps)], mlx5.RTS2RTS{MinRNRNak: mlx5.Set(i % 32)}, uint64(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		b.Reset()
	}
	for range 20 {
		round()
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations for 100 transitions", n)
	}
}

// Every strategy brings queue pairs that verbs made to RTS on a kernel's device:
//
//	DEV=mlx5_0 go test -exec "devxlab lab exec" -run OnDevice ./batch
func TestOnDeviceStrategies(t *testing.T) {
	dev := os.Getenv("DEV")
	if dev == "" || strings.Contains(dev, ":") {
		require.Have(t, "device", errors.New("no kernel's device is named: DEV=mlx5_0"))
	}
	d, err := devx.Open(dev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	path, err := d.OwnPath(-1)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []batch.Strategy{batch.SerialVerbs(), batch.Serial(), batch.Parallel(8)} {
		b := newBatch(t, d, batch.Options{Strategy: s})
		var eps []batch.Endpoint
		for range batch.DefaultGroup + 3 {
			q := newVerbsQP(t, d)
			eps = append(eps, batch.Endpoint{
				QP:   q,
				INIT: mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(mlx5.RemoteWrite)},
				RTR: mlx5.INIT2RTR{
					MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(q.Number()), NextRcvPSN: mlx5.Set(0), LogRRAMax: mlx5.Set(0), MinRNRNak: mlx5.Set(12), Path: path,
				},
				RTS: mlx5.RTR2RTS{AckTimeout: mlx5.Set(14), RetryCount: mlx5.Set(7), RNRRetry: mlx5.Set(7), NextSendPSN: mlx5.Set(0), LogSRAMax: mlx5.Set(0)},
			})
		}
		reached, err := b.ToRTS(context.Background(), eps)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range reached {
			if r.Err != nil || r.State != mlx5.StateRTS {
				t.Fatalf("%s: %v, %v", s.Name(), r.State, r.Err)
			}
			if fw, err := r.QP.State(); err != nil || fw != mlx5.StateRTS {
				t.Errorf("%s: the firmware has %v, %v", s.Name(), fw, err)
			}
			a, err := r.QP.Verbs().Query(devx.MaskState)
			if err != nil || a.State != mlx5.StateRTS {
				t.Errorf("%s: verbs say %v, %v", s.Name(), a.State, err)
			}
			if err := r.QP.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
