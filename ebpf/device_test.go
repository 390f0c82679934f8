// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
		began := time.Now()
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
		t.Logf("closed in %v", time.Since(began))
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

// What the tracer says of the firmware's time is what the driver says itself: both
// read the same two stamps, so number and mean are the same, to the nanosecond.
func TestOnDriversAverage(t *testing.T) {
	const n = 50
	d := onKernel(t)
	q, err := d.NewQP(devx.QPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	place, err := deviceName(testdev.Kernel())
	if err != nil {
		t.Fatal(err)
	}
	dir := "/sys/kernel/debug/mlx5/" + place + "/commands/" + mlx5.OpRST2INIT.String() + "/"
	tr := trace(t, Options{Filter: Filter{Device: testdev.Kernel(), Op: mlx5.OpRST2INIT}})
	reset := dir + "reset" // of kernels newer than 6.1; before that, average takes it (debugfs.c)
	if _, err := os.Stat(reset); err != nil {
		reset = dir + "average"
	}
	if err := os.WriteFile(reset, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	toggles(t, q, n)
	h := snapshot(t, tr).Time(Firmware, mlx5.OpRST2INIT)
	for file, want := range map[string]uint64{"n": h.Count(), "average": uint64(h.Mean())} {
		b, err := os.ReadFile(dir + file)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(b)); got != strconv.FormatUint(want, 10) || h.Count() != n {
			t.Errorf("%s: the driver says %s, the tracer %d of %d commands", file, got, want, h.Count())
		}
	}
}

// A record has the command's own fields, and its parts are all of its time. Those
// that find no room are counted.
func TestOnRecords(t *testing.T) {
	const n = 200
	d := onKernel(t)
	q, err := d.NewQP(devx.QPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	tr := trace(t, Options{Filter: Filter{QPN: q.Number()}, Records: os.Getpagesize()})
	began := time.Now()
	toggles(t, q, n)
	took := time.Since(began)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // only what is there
	var read uint64
	var whole time.Duration
	for r, err := range tr.Records(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if read++; r.QPN != q.Number() || r.Op != mlx5.OpRST2INIT && r.Op != mlx5.Op2RST || r.UID == 0 || int(r.Process) != os.Getpid() || r.Status != 0 || r.Errno != 0 || r.Name == "" {
			t.Errorf("%+v", r)
		}
		sum := time.Duration(0)
		for _, p := range []Part{Prepare, Queue, Slot, Firmware, Wake} {
			if r.Parts[p] < 0 {
				t.Errorf("%v was not seen", p)
			}
			sum += r.Parts[p]
		}
		if sum != r.Parts[Whole] || r.Parts[Entry] <= 0 || r.Parts[Call] != NotSeen {
			t.Errorf("parts %v", r.Parts)
		}
		whole += r.Parts[Entry] + r.Parts[Whole]
	}
	s := snapshot(t, tr)
	if read == 0 || s.Lost.Records == 0 || read+s.Lost.Records != 2*n {
		t.Errorf("%d records were read, %d lost, of %d", read, s.Lost.Records, 2*n)
	}
	if whole > took {
		t.Errorf("%d commands took %v, and their caller waited %v", read, whole, took)
	}
}

// A filter lets nothing else through.
func TestOnFilters(t *testing.T) {
	d := onKernel(t)
	var qps [2]*devx.QP
	for i := range qps {
		var err error
		if qps[i], err = d.NewQP(devx.QPConfig{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		filter        Filter
		init, reset   uint64 // of two queue pairs, one of each
		modifications uint64
	}{
		"QPN":        {Filter{QPN: qps[0].Number()}, 1, 1, 4},
		"opcode":     {Filter{Op: mlx5.OpRST2INIT}, 2, 0, 4},
		"both":       {Filter{QPN: qps[0].Number(), Op: mlx5.Op2RST}, 0, 1, 4},
		"a process":  {Filter{Processes: []int{os.Getpid()}, Device: testdev.Kernel()}, 2, 2, 4},
		"not itself": {Filter{Processes: []int{1}}, 0, 0, 0},
	} {
		tr := trace(t, Options{Filter: c.filter})
		toggles(t, qps[0], 1)
		toggles(t, qps[1], 1)
		s := snapshot(t, tr)
		if s.Count(Awake, mlx5.OpRST2INIT) != c.init || s.Count(Awake, mlx5.Op2RST) != c.reset || s.Count(DevXModify, 0) != c.modifications {
			t.Errorf("%s: %+v", name, s.Counts)
		}
	}
	for name, f := range map[string]Filter{"device": {Device: "mlx5_77"}, "cgroup": {Cgroup: "/proc"}, "no cgroup": {Cgroup: "/not/there"}} {
		if tr, err := Attach(Options{Filter: f}); !errors.Is(err, ErrFilter) {
			t.Errorf("%s: %v, %v", name, tr, err)
		}
	}
	if tr, err := Attach(Options{Records: 5000}); !errors.Is(err, ErrFilter) {
		t.Errorf("records: %v, %v", tr, err)
	}
}

// Of a cgroup what its processes send is counted, and nothing that they send before,
// after, or from a cgroup below it.
func TestOnCgroup(t *testing.T) {
	d := onKernel(t)
	q, err := d.NewQP(devx.QPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := unix.Mount("none", root, "cgroup2", 0, ""); err != nil {
		require.Have(t, "cgroup2", fmt.Errorf("mount cgroup2: %w", err))
	}
	dir, below := filepath.Join(root, "devxlab"), filepath.Join(root, "devxlab/below")
	move := func(to string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Rmdir(below), unix.Rmdir(dir), unix.Unmount(root, 0)); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(below, 0o755)); err != nil {
		t.Fatal(err)
	}
	tr := trace(t, Options{Filter: Filter{Cgroup: dir}})
	toggles(t, q, 3)
	if s := snapshot(t, tr); s.Count(Command, mlx5.OpRST2INIT) != 0 || s.Count(DevXModify, 0) != 0 {
		t.Errorf("outside: %+v", s.Counts)
	}
	move(dir)
	toggles(t, q, 5)
	move(below)
	toggles(t, q, 2)
	move(root)
	toggles(t, q, 7)
	s := snapshot(t, tr)
	wantCounts(t, s, 5, mlx5.OpRST2INIT, mlx5.Op2RST)
	if n := s.Count(DevXModify, 0); n != 10 {
		t.Errorf("%d calls, want 10", n)
	}
}

// After Freeze nothing is counted, and records and counts agree, although commands
// go on.
func TestOnFreeze(t *testing.T) {
	d := onKernel(t)
	tr := trace(t, Options{Filter: Filter{Processes: []int{os.Getpid()}, Op: mlx5.OpRST2INIT}, Records: 1 << 20})
	over := make(chan struct{})
	var senders sync.WaitGroup
	for range 4 {
		q, err := d.NewQP(devx.QPConfig{})
		if err != nil {
			t.Fatal(err)
		}
		senders.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					toggles(t, q, 1)
				}
			}
		})
	}
	for snapshot(t, tr).Count(Awake, mlx5.OpRST2INIT) < 20 && !t.Failed() {
		toggles(t, mustQP(t, d), 1)
	}
	if err := tr.Freeze(); err != nil {
		t.Fatal(err)
	}
	s := snapshot(t, tr)
	toggles(t, mustQP(t, d), 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	read := uint64(0)
	for _, err := range tr.Records(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		read++
	}
	close(over)
	senders.Wait()
	if n := s.Count(Awake, mlx5.OpRST2INIT); n < 20 || read != n || s.Lost.Records != 0 || !reflect.DeepEqual(snapshot(t, tr), s) {
		t.Errorf("%d commands, %d records; at once %+v, later %+v", n, read, s, snapshot(t, tr))
	}
}

func mustQP(t *testing.T, d *devx.Device) *devx.QP {
	t.Helper()
	q, err := d.NewQP(devx.QPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return q
}
