// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"devxlab.example/devx"
	"devxlab.example/internal/require"
	"devxlab.example/internal/testdev"
	"devxlab.example/mlx5"
)

// onKernel opens the device of this machine that tests run on: these trace its
// driver.
func onKernel(t *testing.T) *devx.Device {
	t.Helper()
	name := testdev.Kernel()
	if name == "" {
		require.Have(t, "kernel-device", errors.New(`there is nothing to trace without a driver: DEV=mlx5_0 go test -exec "devxlab lab exec" ./ebpf`))
	}
	d, err := devx.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// trace attaches for a test.
func trace(t *testing.T, o Options) *Tracer {
	t.Helper()
	began := time.Now()
	tr, err := Attach(o)
	t.Logf("attached in %v", time.Since(began))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	return tr
}

func snapshot(t *testing.T, tr *Tracer) *Snapshot {
	t.Helper()
	s, err := tr.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var initQP = mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(mlx5.RemoteWrite)}

// toggles takes a queue pair to INIT and back, n times, by DevX.
func toggles(t *testing.T, q *devx.QP, n int) {
	for range n {
		if err := errors.Join(devx.Modify(q, initQP), devx.Modify(q, mlx5.ToRST{})); err != nil {
			t.Error(err)
			return
		}
	}
}

// commandStages are those that each command passes.
var commandStages = []Stage{Command, Queued, Worker, Completion, Awake}

// wantCounts holds each stage's count against what was sent: n commands of each
// opcode through the command interface.
func wantCounts(t *testing.T, s *Snapshot, n uint64, ops ...mlx5.Op) {
	t.Helper()
	for _, stage := range commandStages {
		for _, op := range ops {
			if got := s.Count(stage, op); got != n {
				t.Errorf("%v of %v: %d, want %d", stage, op, got, n)
			}
		}
	}
	for _, op := range ops {
		for _, part := range []Part{Entry, Prepare, Queue, Slot, Firmware, Wake, Whole, Call} {
			if got := s.Time(part, op).Count(); got != n {
				t.Errorf("part %v of %v: %d values, want %d", part, op, got, n)
			}
		}
	}
	if s.Lost != (Lost{Async: s.Lost.Async}) {
		t.Errorf("lost: %+v", s.Lost)
	}
}

// A thousand DevX modifications are a thousand at each stage of a command, and none
// in qp.c; a thousand verbs modifications are a thousand in both.
func TestOnModify(t *testing.T) {
	const n = 500 // there and back
	d := onKernel(t)
	q, err := d.NewQP(devx.QPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := d.NewVerbsQP(devx.QPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	filter := Filter{Processes: []int{os.Getpid()}}
	tr := trace(t, Options{Filter: filter})
	for _, c := range tr.Coverage() {
		t.Logf("%v: %s%s", c.Stage, c.Where, c.Why)
		if c.Why != "" {
			t.Errorf("%v is not visible: %s", c.Stage, c.Why)
		}
	}
	toggles(t, q, n)
	s := snapshot(t, tr)
	wantCounts(t, s, n, mlx5.OpRST2INIT, mlx5.Op2RST)
	for stage, want := range map[Stage]uint64{DevXModify: 2 * n, UverbsModify: 0, CoreModify: 0, DriverModify: 0, QPCModify: 0, DevXCreate: 0} {
		if got := s.Count(stage, 0); got != want {
			t.Errorf("DevX: %v: %d, want %d", stage, got, want)
		}
	}

	tr2 := trace(t, Options{Filter: filter})
	for range n {
		if err := errors.Join(devx.ModifyVerbs(v, initQP), devx.ModifyVerbs(v, mlx5.ToRST{})); err != nil {
			t.Fatal(err)
		}
	}
	s = snapshot(t, tr2)
	wantCounts(t, s, n, mlx5.OpRST2INIT, mlx5.Op2RST)
	for stage, want := range map[Stage]uint64{DevXModify: 0, UverbsModify: 2 * n, CoreModify: 2 * n, DriverModify: 2 * n, QPCModify: 2 * n} {
		if got := s.Count(stage, 0); got != want {
			t.Errorf("verbs: %v: %d, want %d", stage, got, want)
		}
	}
	for _, part := range Parts() {
		h := s.Time(part, mlx5.OpRST2INIT)
		t.Logf("%v: mean %v, P50 %v, P99 %v", part, h.Mean(), h.Quantile(0.5), h.Quantile(0.99))
	}
}

// The same with as many threads as the device has slots.
func TestOnThreads(t *testing.T) {
	const threads, n = 31, 20
	d := onKernel(t)
	var qps []*devx.QP
	for range threads {
		q, err := d.NewQP(devx.QPConfig{})
		if err != nil {
			t.Fatal(err)
		}
		qps = append(qps, q)
	}
	tr := trace(t, Options{Filter: Filter{Processes: []int{os.Getpid()}}})
	var all sync.WaitGroup
	for _, q := range qps {
		all.Go(func() { toggles(t, q, n) })
	}
	all.Wait()
	wantCounts(t, snapshot(t, tr), threads*n, mlx5.OpRST2INIT, mlx5.Op2RST)
}
