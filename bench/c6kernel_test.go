// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/devxtest"
	"devxlab.example/mlx5"
)

// answeringBed is a kernel whose firmware takes everything, with the batch ioctl if
// batches is not nil.
func answeringBed(t *testing.T, modify func([]byte) unix.Errno, batches func(cmd, outbox []byte) unix.Errno) *bed {
	t.Helper()
	d, err := devxtest.Stub{Modify: modify, Batch: batches}.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	b := &bed{d: d, c: anyCycle()}
	if err := b.grow(t.Context(), c6Group, nil); err != nil {
		t.Fatal(err)
	}
	return b
}

// anyCycle is a cycle that needs no device to look at.
func anyCycle() (c cycle) {
	c.init = mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(mlx5.RemoteWrite)}
	c.rtr = mlx5.INIT2RTR{
		MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(0), NextRcvPSN: mlx5.Set(0), LogRRAMax: mlx5.Set(0), MinRNRNak: mlx5.Set(12),
		Path: mlx5.Path{RGID: [16]byte{0xfe, 0x80, 15: 9}, RMAC: [6]byte{2, 3, 4, 5, 6, 7}, SrcAddrIndex: mlx5.Set(0)},
	}
	c.rts = mlx5.RTR2RTS{AckTimeout: mlx5.Set(14), RetryCount: mlx5.Set(7), RNRRetry: mlx5.Set(7), NextSendPSN: mlx5.Set(0), LogSRAMax: mlx5.Set(0)}
	return c
}

// Each way does the same transitions, and the kernel's by calls of 32.
func TestC6Kernel(t *testing.T) {
	var single, together atomic.Int64
	b := answeringBed(t, func([]byte) unix.Errno { single.Add(1); return 0 }, func(_, _ []byte) unix.Errno { together.Add(1); return 0 })
	r := &Run{Options: Options{Quick: true}, seed: 1, modifyBatch: true}
	r.Provenance.Place = PlaceHW
	if err := r.c6KernelOn(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	const each = (MinPairs + 1) * stepsPerCycle * c6Group * c6RoundsHW
	if single.Load() != 2*each || together.Load() != each {
		t.Errorf("%d transitions by themselves, %d in the kernel's batches; want %d and %d", single.Load(), together.Load(), 2*each, each)
	}
	for _, how := range []string{wayBatched, waySerial} {
		c := r.ComparisonOf(c6KernelName(wayKernel), c6KernelName(how))
		if c == nil || c.Ratio.Pairs != MinPairs {
			t.Fatalf("%s: %+v", how, c)
		}
	}
	p := new(page)
	c6KernelText(&r.Result, p)
	for _, want := range []string{"One ioctl for 32 (hw)", "one by one", "batched, 31 workers"} {
		if !strings.Contains(p.b.String(), want) {
			t.Errorf("no %q in\n%s", want, p.b.String())
		}
	}
	before := Verdict{Claim: "C6", Answer: NotDecidable, Why: "Before."}
	if v := c6KernelSays(before, &r.Result); v.Answer != NotDecidable || !strings.HasPrefix(v.Why, "Before. By one ioctl") || !strings.Contains(v.Why, "20 pairs") {
		t.Errorf("%+v", v)
	}
}

// A kernel without the ioctl is told apart, and how to get it is said.
func TestC6KernelMissing(t *testing.T) {
	r := &Run{seed: 1}
	if err := r.c6Kernel(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(r.Findings) != 1 || !strings.Contains(r.Findings[0], "patches/README.md") || len(r.Series) != 0 {
		t.Errorf("%q, %d series", r.Findings, len(r.Series))
	}
	v := Verdict{Claim: "C6", Answer: Supported, Why: "Before."}
	if got := c6KernelSays(v, &r.Result); got != v {
		t.Errorf("%+v", got)
	}
	p := new(page)
	if c6KernelText(&r.Result, p); p.b.Len() != 0 {
		t.Error(p.b.String())
	}
	b := answeringBed(t, nil, nil)
	ways, end, err := r.c6Ways(b, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := end(); err != nil || len(ways) != 2 || slices.ContainsFunc(ways, func(c *contender) bool { return c.Name == wayKernel }) {
		t.Errorf("%d ways, %v", len(ways), err)
	}
}

// What a batch is refused ends the part, and is not taken for a figure.
func TestC6KernelFails(t *testing.T) {
	b := answeringBed(t, nil, func(_, _ []byte) unix.Errno { return unix.ETIMEDOUT })
	r := &Run{Options: Options{Quick: true}, seed: 1}
	if err := r.c6KernelOn(t.Context(), b); !errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("%v", err)
	}
	if r.ComparisonOf(c6KernelName(wayKernel), c6KernelName(waySerial)) != nil {
		t.Error("a comparison without samples")
	}
}
