// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/emu/uverbs"
	"devxlab.example/internal/testdev"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

// TestMain fails the run if a test leaves a goroutine, mapped memory or an open
// device behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if left := leaks(); left != "" && code == 0 {
		fmt.Fprintln(os.Stderr, "left behind:", left)
		code = 1
	}
	os.Exit(code)
}

func leaks() string {
	if n := usermem.Live(); n != 0 {
		return fmt.Sprintf("%d regions of mapped memory", n)
	}
	opened.Lock()
	defer opened.Unlock()
	for _, name := range opened.names {
		if _, open := uverbs.Lookup(name); open {
			return "device " + name
		}
	}
	// A goroutine that was told to end may still be on its way out.
	var stacks string
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); runtime.Gosched() {
		buf := make([]byte, 1<<20)
		stacks = ""
		for _, s := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(s, "devxlab.example/") && !strings.Contains(s, "TestMain") {
				stacks += "\n" + s
			}
		}
		if stacks == "" {
			return ""
		}
	}
	return "goroutines:" + stacks
}

// opened has the name of every emulated device that a test has opened.
var opened struct {
	sync.Mutex
	names []string
}

// tester is what *testing.T, *testing.B and *rapid.T have in common.
type tester interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// open opens the device that a test runs on.
func open(t tester, opts ...devx.Option) *devx.Device {
	t.Helper()
	k := testdev.Kernel()
	if k == "" {
		d, _ := emulate(t, "", opts...)
		return d
	}
	d, err := devx.Open(k, opts...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	closeAtEnd(t, d)
	return d
}

func closeAtEnd(t tester, d *devx.Device) {
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !errors.Is(err, devx.ErrClosed) {
			t.Errorf("close the device: %v", err)
		}
	})
}

// emulate opens an emulated device of its own for a test, which is skipped where
// tests run on the kernel's.
func emulate(t tester, options string, opts ...devx.Option) (*devx.Device, *uverbs.Device) {
	t.Helper()
	if tb, ok := t.(testing.TB); ok { // *rapid.T is none: its caller has asked
		testdev.Emulated(tb)
	}
	opened.Lock()
	if options != "" {
		options += ","
	}
	name := fmt.Sprintf("emu:%sname=t%d", options, len(opened.names))
	opened.names = append(opened.names, name)
	opened.Unlock()
	d, err := devx.Open(name, opts...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	closeAtEnd(t, d)
	e, _ := uverbs.Lookup(name)
	return d, e
}

// virtual is a device whose commands take 200 µs of virtual time.
const (
	virtual = "clock=virtual,latency=200us,threads=64"
	latency = 200 * time.Microsecond
)

func newBatch(t tester, d *devx.Device, o batch.Options) *batch.Batch {
	t.Helper()
	b, err := batch.New(d, o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close the batch: %v", err)
		}
	})
	return b
}

func newQP(t tester, d *devx.Device, st mlx5.ServiceType) *devx.QP {
	t.Helper()
	q, err := d.NewQP(devx.QPConfig{Transport: st})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return q
}

func newQPs(t tester, d *devx.Device, n int) []*devx.QP {
	t.Helper()
	qps := make([]*devx.QP, n)
	for i := range qps {
		qps[i] = newQP(t, d, mlx5.STRC)
	}
	return qps
}

func add[T mlx5.Transition](t tester, b *batch.Batch, q *devx.QP, tr T, tag uint64) {
	t.Helper()
	if err := batch.Add(b, q, tr, tag); err != nil {
		t.Fatalf("Add %d: %v", tag, err)
	}
}

// addToERR adds a transition that every state allows, for each queue pair.
func addToERR(t tester, b *batch.Batch, qps []*devx.QP) {
	t.Helper()
	for i, q := range qps {
		add(t, b, q, mlx5.ToERR{}, uint64(i))
	}
}

// refused is a transition that firmware refuses in RESET.
var refused = mlx5.RTS2RTS{}

// until spins until cond holds.
func until(t tester, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("this never came: %s", what)
		}
	}
}

// held is a Run whose commands stay in flight: the device's clock stands still
// until release.
type held struct {
	t       tester
	e       *uverbs.Device
	err     chan error
	before  uint64
	release func()
}

// hold starts b and returns when n of its commands are in flight.
func hold(ctx context.Context, t tester, b *batch.Batch, e *uverbs.Device, n int) *held {
	t.Helper()
	h := &held{t: t, e: e, err: make(chan error, 1), before: e.HCA().Stats().Commands}
	h.release = sync.OnceFunc(func() { e.HCA().Clock().Busy(-1) })
	t.Cleanup(h.release)
	e.HCA().Clock().Busy(1)
	go func() { h.err <- b.Run(ctx) }()
	until(t, fmt.Sprintf("%d commands in flight", n), func() bool { return e.HCA().Stats().InFlight == int64(n) })
	return h
}

// end lets the commands finish and returns how many of them the device got, and
// what Run did.
func (h *held) end() (int, error) {
	h.t.Helper()
	h.release()
	err := <-h.err
	return int(h.e.HCA().Stats().Commands - h.before), err
}

// outcomes returns one letter for each entry: Done, Failed, Not sent, Unknown,
// Pending.
func outcomes(b *batch.Batch) string {
	s := ""
	for r := range b.Results() {
		s += string("PDFNU"[r.Outcome])
	}
	return s
}

func results(b *batch.Batch) (l []batch.Result) {
	for r := range b.Results() {
		l = append(l, r)
	}
	return l
}

// text checks an error's exact words.
func text(t tester, err error, want string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, not %q", want)
	}
	if err.Error() != want {
		t.Errorf("the error says\n\t%s\nnot\n\t%s", err, want)
	}
}

// partial returns the error of a Run that did not do everything.
func partial(t tester, err error) *batch.Error {
	t.Helper()
	var p *batch.Error
	if !errors.As(err, &p) {
		t.Fatalf("Run: %v, not a *batch.Error", err)
	}
	return p
}
