// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/devxtest"
	"devxlab.example/emu/uverbs"
	"devxlab.example/internal/leaktest"
	"devxlab.example/internal/testdev"
	"devxlab.example/mlx5"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// tester is what *testing.T, *testing.B and *rapid.T have in common.
type tester interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// fake is a timer whose time a test moves.
type fake struct {
	mu      sync.Mutex
	cond    sync.Cond
	now     Instant
	armed   Instant
	waiting bool
	failure error
	arms    int
	reads   int // of the time
	closes  int
}

func newFake() *fake {
	f := &fake{now: 1000, armed: Never}
	f.cond.L = &f.mu
	return f
}

func (f *fake) Now() Instant {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	return f.now
}

func (f *fake) Arm(at Instant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = at
	f.arms++
	f.cond.Broadcast()
}

func (f *fake) Wait() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = true
	f.cond.Broadcast()
	for f.armed > f.now && f.failure == nil {
		f.cond.Wait()
	}
	f.waiting = false
	return f.failure
}

func (f *fake) Close() error {
	f.closes++
	return nil
}

// advance moves time, and returns when the scheduler has nothing more to do.
func (f *fake) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
	f.cond.Broadcast()
	f.settle()
}

func (f *fake) settle() {
	for !f.waiting || f.armed <= f.now {
		f.cond.Wait()
	}
}

// move moves time and does not wait.
func (f *fake) move(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
	f.cond.Broadcast()
}

// seen returns how often the timer was set, and the time read.
func (f *fake) seen() (arms, reads int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.arms, f.reads
}

// idle returns when the scheduler has nothing to do.
func (f *fake) idle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settle()
}

var devices struct {
	sync.Mutex
	n int
}

// open opens an emulated device of a test's own.
func open(t *testing.T, options string) (*devx.Device, *uverbs.Device) {
	t.Helper()
	testdev.Emulated(t)
	devices.Lock()
	devices.n++
	name := fmt.Sprintf("emu:%sname=timerfix%d", options, devices.n)
	devices.Unlock()
	d, err := devx.Open(name)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { closed(t, d) })
	e, _ := uverbs.Lookup(name)
	return d, e
}

func openStub(t tester, modify func(cmd []byte) unix.Errno) *devx.Device {
	t.Helper()
	d, err := devxtest.Open(modify)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { closed(t, d) })
	return d
}

func closed(t tester, d *devx.Device) {
	if err := d.Close(); err != nil {
		t.Errorf("close the device: %v", err)
	}
}

// newQPs makes UD queue pairs: their RTS2RTS takes a Q_Key, by which a test
// recognises a command.
func newQPs(t tester, d *devx.Device, n int) []*devx.QP {
	t.Helper()
	qps := make([]*devx.QP, n)
	for i := range qps {
		q, err := d.NewQP(devx.QPConfig{Transport: mlx5.STUD})
		if err != nil {
			t.Fatalf("%v", err)
		}
		qps[i] = q
	}
	return qps
}

// toRTS brings UD queue pairs to RTS.
func toRTS(t tester, qps []*devx.QP) {
	t.Helper()
	for _, q := range qps {
		for _, err := range []error{
			devx.Modify(q, mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), QKey: mlx5.Set(0)}),
			devx.Modify(q, mlx5.INIT2RTR{}),
			devx.Modify(q, mlx5.RTR2RTS{NextSendPSN: mlx5.Set(0)}),
		} {
			if err != nil {
				t.Fatalf("%v", err)
			}
		}
	}
}

// marked is a transition that can be told apart from others.
func marked(mark int) mlx5.RTS2RTS { return mlx5.RTS2RTS{QKey: mlx5.Set(mark)} }

// markOf returns the mark of a command.
func markOf(cmd []byte) int { return int(mlx5.RTS2RTSQPIn(cmd).QPC().QKey()) }

// rig is a scheduler on a stub, with a time of its own.
type rig struct {
	*Scheduler
	t     tester
	timer *fake
	qps   []*devx.QP

	mu    sync.Mutex
	sent  []int // marks, in the order in which they came
	errno func(mark int) unix.Errno
}

func newRig(t tester, qps int, o Options) *rig {
	t.Helper()
	r := &rig{t: t, timer: newFake()}
	d := openStub(t, func(cmd []byte) unix.Errno {
		r.mu.Lock()
		defer r.mu.Unlock()
		m := markOf(cmd)
		r.sent = append(r.sent, m)
		if r.errno != nil {
			return r.errno(m)
		}
		return 0
	})
	r.qps = newQPs(t, d, qps)
	o.Timer = r.timer
	o.Batch.Depth = 1 // so that the order is that of sending
	s, err := New(d, o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	r.Scheduler = s
	t.Cleanup(func() { stop(t, s) })
	return r
}

func stop(t tester, s *Scheduler) []Unsent {
	t.Helper()
	unsent, err := s.Stop()
	if err != nil {
		t.Errorf("Stop: %v", err)
	}
	return unsent
}

// in defers a marked transition of a queue pair by d.
func (r *rig) in(d time.Duration, qp, mark int) Ticket {
	r.t.Helper()
	t, err := Defer(r.Scheduler, r.qps[qp], marked(mark), r.timer.Now().Add(d))
	if err != nil {
		r.t.Fatalf("%v", err)
	}
	return t
}

func (r *rig) marks() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := r.sent
	r.sent = nil
	return sent
}

// over is a context that has ended: Wait and Drain do not block with it.
func over() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
