// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// traced is what WithTrace saw.
type traced struct {
	mu     sync.Mutex
	ops    []mlx5.Op
	status []mlx5.Status
	outs   []int
	took   time.Duration
}

func (tr *traced) option() devx.Option {
	return devx.WithTrace(func(in, out []byte, took time.Duration) {
		status, _ := mlx5.StatusOf(out)
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.ops, tr.status, tr.outs = append(tr.ops, mlx5.OpOf(in)), append(tr.status, status), append(tr.outs, len(out))
		tr.took += took
	})
}

// traceWork is a queue pair's life, with one refused transition.
func traceWork(t *testing.T, d *devx.Device) {
	t.Helper()
	q := newQP(t, d, mlx5.STRC)
	must(t, devx.Modify(q, rcInit))
	if devx.Modify(q, rcRTS) == nil {
		t.Fatal("INIT to RTS succeeded")
	}
	_, err := q.State()
	must(t, err)
	must(t, q.Close())
}

// An emulated device shows what the kernel issues on the program's behalf, too,
// and not what other contexts do.
func TestTraceEmulated(t *testing.T) {
	n := name(t, "latency=10us")
	other := open(t, n)
	var tr traced
	d := open(t, n, tr.option())
	traceWork(t, d)
	newQP(t, other, mlx5.STUD)
	must(t, d.Close())
	newQP(t, other, mlx5.STUD)
	want := []mlx5.Op{
		mlx5.OpCreateUCTX, mlx5.OpAllocPD, mlx5.OpAllocUAR, mlx5.OpCreateUmem, mlx5.OpCreateCQ, mlx5.OpCreateQP,
		mlx5.OpRST2INIT, mlx5.OpRTR2RTS, mlx5.OpQueryQP, mlx5.OpDestroyQP,
		// Close: the last in, the first out.
		mlx5.OpDestroyCQ, mlx5.OpDestroyUmem, mlx5.OpDeallocUAR, mlx5.OpDeallocPD, mlx5.OpDestroyUCTX,
	}
	if !slices.Equal(tr.ops, want) {
		t.Errorf("%v\nwant %v", tr.ops, want)
	}
	for i, s := range tr.status {
		if refused := tr.ops[i] == mlx5.OpRTR2RTS; (s == mlx5.StatusBadQPState) != refused || s != 0 && !refused {
			t.Errorf("%v: %v", tr.ops[i], s)
		}
	}
	if least := 10 * time.Microsecond * time.Duration(len(want)); tr.took < least {
		t.Errorf("took %v in all, at least %v", tr.took, least)
	}
}

// silent hides that an emulated file traces by itself, as the kernel's does
// not.
type silent struct{ devx.File }

type silentDriver struct{}

func (silentDriver) Open(rest string) (devx.File, devx.Info, error) {
	f, info, err := devx.OpenFile("emu:" + rest)
	return silent{f}, info, err
}

func init() { devx.Register("silent", silentDriver{}) }

func TestTraceOfProgramsOwnCommands(t *testing.T) {
	for _, kernel := range []string{"5.15", "6.1"} {
		var tr traced
		d, err := devx.Open("silent:kernel="+kernel, tr.option())
		must(t, err)
		traceWork(t, d)
		must(t, d.Close())
		want := []mlx5.Op{mlx5.OpAllocPD, mlx5.OpCreateCQ, mlx5.OpCreateQP, mlx5.OpRST2INIT, mlx5.OpRTR2RTS, mlx5.OpQueryQP}
		if !slices.Equal(tr.ops, want) {
			t.Errorf("%v\nwant %v", tr.ops, want)
		}
		// Before Linux 5.18 the program gets no answer to a refused command.
		if out, status := tr.outs[4], tr.status[4]; kernel == "5.15" && out != 0 || kernel == "6.1" && (out != 16 || status != mlx5.StatusBadQPState) {
			t.Errorf("%s: %d bytes, %v", kernel, out, status)
		}
	}
}
