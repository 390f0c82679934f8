// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/devx/devxtest"
	"devxlab.example/internal/require"
	"devxlab.example/internal/testdev"
	"devxlab.example/mlx5"
)

// patched is a kernel with the batch ioctl, whose commands answer what a test
// wants.
func patched(t testing.TB, answer func(cmd, outbox []byte) unix.Errno) *devx.Device {
	t.Helper()
	d, err := devxtest.Stub{Batch: answer}.Open()
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, d)
	return d
}

func succeed([]byte, []byte) unix.Errno { return 0 }

// A kernel without the patch has no such strategy.
func TestKernelStrategyMissing(t *testing.T) {
	testdev.Emulated(t)
	d := open(t)
	_, err := batch.New(d, batch.Options{Strategy: batch.Kernel()})
	if !errors.Is(err, devx.ErrNoModifyBatch) {
		t.Fatal(err)
	}
	text(t, err, "batch: kernel-batch: devx: "+d.Name()+": no ioctl that modifies a batch of queue pairs (protocol not supported): it takes a kernel with the patches of patches/README.md")
}

// Chains keep their order, and a call has no queue pair twice: the stub would
// refuse that.
func TestKernelStrategyOrder(t *testing.T) {
	var got []string
	d := patched(t, func(cmd, _ []byte) unix.Errno {
		got = append(got, fmt.Sprintf("%d %v", mlx5.RST2INITQPIn(cmd).QPN(), mlx5.OpOf(cmd)))
		return 0
	})
	b := newBatch(t, d, batch.Options{Group: 64, Strategy: batch.Kernel()})
	l := newQPs(t, d, 40)
	var want [][]string
	for _, q := range l {
		add(t, b, q, mlx5.ToERR{}, 1)
		add(t, b, q, mlx5.ToRST{}, 2)
		n := q.Number()
		want = append(want, []string{fmt.Sprintf("%d %v", n, mlx5.Op2ERR), fmt.Sprintf("%d %v", n, mlx5.Op2RST)})
	}
	if err := b.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(got) != 80 {
		t.Fatalf("%d commands", len(got))
	}
	for _, w := range want {
		if first, second := slices.Index(got, w[0]), slices.Index(got, w[1]); first < 0 || second < first {
			t.Errorf("%q came %d, %q %d", w[0], first, w[1], second)
		}
	}
	if _, most := b.InFlight(); most != 32 {
		t.Errorf("%d in one call, of chains enough for 32", most)
	}
}

// Each entry has the outcome of its own command, and what follows a lost one on its
// queue pair is held back.
func TestKernelStrategyOutcomes(t *testing.T) {
	answers := []unix.Errno{0, unix.EREMOTEIO, unix.ETIMEDOUT, unix.EINVAL}
	const later = "DDND" // on the same queue pair
	b := answering(t, batch.Options{Strategy: batch.Kernel()}, answers)
	p := partial(t, b.Run(t.Context()))
	if got := outcomes(b); got != "DFUF"+later {
		t.Errorf("%s: %v", got, p)
	}
}

// answering is a batch that brings as many queue pairs to ERR as there are answers, and
// then to RESET, which succeeds.
func answering(t testing.TB, o batch.Options, answers []unix.Errno) *batch.Batch {
	t.Helper()
	n := 0
	d := patched(t, func(cmd, outbox []byte) unix.Errno {
		if mlx5.OpOf(cmd) == mlx5.Op2RST {
			return 0
		}
		errno := answers[n]
		if n++; errno == unix.EREMOTEIO {
			outbox[0] = byte(mlx5.StatusBadQPState)
		}
		return errno
	})
	b := newBatch(t, d, o)
	l := newQPs(t, d, len(answers))
	addToERR(t, b, l)
	for i, q := range l {
		add(t, b, q, mlx5.ToRST{}, uint64(i))
	}
	return b
}

// Where the kernel stops, nothing more is sent, in this group or a later one.
func TestKernelStrategyEnds(t *testing.T) {
	answers := []unix.Errno{0, unix.ETIMEDOUT, unix.ECANCELED, 0}
	for _, group := range []int{len(answers), 2 * len(answers)} {
		b := answering(t, batch.Options{Group: group, Strategy: batch.Kernel()}, answers)
		p := partial(t, b.Run(t.Context()))
		if got := outcomes(b); got != "DUND"+"NNNN" {
			t.Errorf("%s: %v", got, p)
		}
		reasons := map[string]int{}
		for r := range b.Results() {
			for _, why := range []string{"not sent: one before it", "the kernel sends no more", "ended unknown"} {
				if r.Outcome == batch.NotSent && strings.Contains(r.Err.Error(), why) {
					reasons[why]++
				}
			}
		}
		if want := map[string]int{"not sent: one before it": 1, "the kernel sends no more": 3, "ended unknown": 1}; !maps.Equal(reasons, want) {
			t.Errorf("%v, want %v", reasons, want)
		}
	}
}

func TestKernelStrategyStops(t *testing.T) {
	calls := 0
	d := patched(t, func(_, outbox []byte) unix.Errno {
		calls++
		outbox[0] = byte(mlx5.StatusBadParam)
		return unix.EREMOTEIO
	})
	b := newBatch(t, d, batch.Options{Group: 64, StopOnError: true, Strategy: batch.Kernel()})
	addToERR(t, b, newQPs(t, d, 40))
	p := partial(t, b.Run(t.Context()))
	if p.Failed != 32 || p.NotSent != 8 || calls != 32 {
		t.Errorf("%v, %d commands", p, calls)
	}
	b.Reset()
	addToERR(t, b, newQPs(t, d, 2))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p := partial(t, b.Run(ctx)); p.NotSent != 2 || !errors.Is(p, context.Canceled) || calls != 32 {
		t.Errorf("%v, %d commands", p, calls)
	}
}

// Where the kernel refuses a whole batch, nothing of it was sent.
func TestKernelStrategyRefusedWhole(t *testing.T) {
	d := patched(t, succeed)
	b := newBatch(t, d, batch.Options{Strategy: batch.Kernel()})
	l := newQPs(t, d, 3)
	addToERR(t, b, l)
	if err := l[1].Close(); err != nil {
		t.Fatal(err)
	}
	if p := partial(t, b.Run(t.Context())); p.NotSent != 3 || !errors.Is(p, devx.ErrClosed) {
		t.Error(p)
	}
}

// On a patched kernel, the strategies end in the same states.
func TestKernelStrategyOfThisKernel(t *testing.T) {
	d := open(t)
	require.Have(t, "modify-batch", d.HasModifyBatch())
	for _, s := range []batch.Strategy{batch.Serial(), batch.Kernel()} {
		b := newBatch(t, d, batch.Options{Group: 64, Strategy: s})
		l := newQPs(t, d, 33)
		for i, q := range l {
			add(t, b, q, mlx5.ToERR{}, 0)
			if i%2 == 0 {
				add(t, b, q, mlx5.ToRST{}, 0)
			}
			if i == 16 {
				add(t, b, q, refused, 0)
			}
		}
		if p := partial(t, b.Run(t.Context())); p.Failed != 1 || p.NotSent+p.Unknown != 0 {
			t.Errorf("%s: %v", s.Name(), p)
		}
		for i, q := range l {
			want := mlx5.StateErr
			if i%2 == 0 {
				want = mlx5.StateRST
			}
			if got, err := q.State(); err != nil || got != want {
				t.Errorf("%s: %d: %v, %v; want %v", s.Name(), i, got, err, want)
			}
		}
	}
}
