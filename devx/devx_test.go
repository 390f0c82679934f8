// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"devxlab.example/devx"
	"devxlab.example/emu/fw"
	"devxlab.example/emu/uverbs"
	"devxlab.example/internal/leaktest"
	"devxlab.example/internal/testdev"
	"devxlab.example/mlx5"
)

func TestMain(m *testing.M) {
	leaktest.Main(m, func() (open []string) {
		names.Range(func(n, _ any) bool {
			if _, ok := uverbs.Lookup(n.(string)); ok {
				open = append(open, "emulated device "+n.(string))
			}
			return true
		})
		return open
	})
}

// names are those of all emulated devices of the tests.
var names sync.Map

// name returns the name of the device that a test runs on: one with options is
// emulated, and so the test's own.
func name(t testing.TB, options ...string) string {
	t.Helper()
	if len(options) > 0 {
		testdev.Emulated(t)
	}
	if k := testdev.Kernel(); k != "" {
		return k
	}
	for i := 0; ; i++ {
		tag := fmt.Sprintf("name=%s.%d", strings.ReplaceAll(t.Name(), ",", "_"), i)
		n := "emu:" + strings.Join(append(options[:len(options):len(options)], tag), ",")
		if _, taken := names.LoadOrStore(n, nil); !taken {
			return n
		}
	}
}

// open opens a device and closes it when the test is over, unless the test has.
func open(t testing.TB, name string, opts ...devx.Option) *devx.Device {
	t.Helper()
	d, err := devx.Open(name, opts...)
	if err != nil {
		t.Fatal(err)
	}
	done := leaktest.Track("device " + name)
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !errors.Is(err, devx.ErrClosed) {
			t.Error(err)
		}
		done()
	})
	return d
}

// emulated returns the device behind a context. A test that asks for it is
// skipped where it runs on the kernel's.
func emulated(t testing.TB, d *devx.Device) *uverbs.Device {
	t.Helper()
	e, ok := uverbs.Lookup(d.Name())
	if !ok {
		testdev.Emulated(t)
		t.Fatalf("%s is not open", d.Name())
	}
	return e
}

// counter counts what an emulated device gets. The kernel's does not say, and
// nothing is checked there.
type counter struct {
	e    *uverbs.Device // nil: the kernel's
	from fw.Stats
}

func count(d *devx.Device) *counter {
	c := &counter{}
	if e, ok := uverbs.Lookup(d.Name()); ok {
		c.e, c.from = e, e.HCA().Stats()
	}
	return c
}

// commands checks how many commands have come since the count began.
func (c *counter) commands(t testing.TB, least, most uint64) {
	t.Helper()
	if c.e == nil {
		return
	}
	if n := c.e.HCA().Stats().Commands - c.from.Commands; n < least || n > most {
		t.Errorf("%d commands reached the device, want %d to %d", n, least, most)
	}
}

// stats checks a figure as it is now.
func (c *counter) stats(t testing.TB, what string, of func(fw.Stats) int64, want int64) {
	t.Helper()
	if c.e == nil {
		return
	}
	if n := of(c.e.HCA().Stats()); n != want {
		t.Errorf("%d %s, want %d", n, what, want)
	}
}

func newQP(t testing.TB, d *devx.Device, st mlx5.ServiceType) *devx.QP {
	t.Helper()
	q, err := d.NewQP(devx.QPConfig{Transport: st})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Transitions of an RC queue pair, addressed to itself, with no attribute that
// may be left out.
var (
	rcInit = mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(mlx5.RemoteWrite | mlx5.RemoteRead)}
	rcRTS  = mlx5.RTR2RTS{
		AckTimeout: mlx5.Set(14), RetryCount: mlx5.Set(7), RNRRetry: mlx5.Set(7),
		NextSendPSN: mlx5.Set(0x123456), LogSRAMax: mlx5.Set(0),
	}
)

func rcRTR(t testing.TB, d *devx.Device, remote uint32) mlx5.INIT2RTR {
	t.Helper()
	path, err := d.OwnPath(-1)
	must(t, err)
	return mlx5.INIT2RTR{
		MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(remote), NextRcvPSN: mlx5.Set(0x654321),
		LogRRAMax: mlx5.Set(0), MinRNRNak: mlx5.Set(12), Path: path,
	}
}

// rts makes an RC queue pair and brings it to RTS.
func rts(t testing.TB, d *devx.Device) *devx.QP {
	t.Helper()
	q := newQP(t, d, mlx5.STRC)
	must(t, devx.Modify(q, rcInit))
	must(t, devx.Modify(q, rcRTR(t, d, q.Number())))
	must(t, devx.Modify(q, rcRTS))
	return q
}

// wait polls until a condition holds. What is waited for happens by itself; the
// time-out only ends a test that would hang.
func wait(t testing.TB, what string, until func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !until(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

// contains reports the parts of a message that are missing.
func contains(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q\nhas no %q", err, p)
		}
	}
}
