// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/devxtest"
	"devxlab.example/emu/fw"
	"devxlab.example/internal/require"
	"devxlab.example/internal/testdev"
	"devxlab.example/mlx5"
)

// modification encodes a transition.
func modification[T mlx5.Transition](t testing.TB, q *devx.QP, tr T) devx.Modification {
	t.Helper()
	cmd := make([]byte, mlx5.TransitionSize)
	n, err := tr.Encode(cmd, q.Number(), q.Transport())
	must(t, err)
	return devx.Modification{QP: q, Cmd: cmd[:n]}
}

func submitter(t testing.TB, d *devx.Device) *devx.Submitter {
	t.Helper()
	s, err := d.NewSubmitter()
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func qps(t testing.TB, d *devx.Device, n int) []*devx.QP {
	t.Helper()
	l := make([]*devx.QP, n)
	for i := range l {
		l[i] = newQP(t, d, mlx5.STRC)
	}
	return l
}

// A kernel without the patch, as the emulated one, says so, and nothing is sent.
func TestNoModifyBatch(t *testing.T) {
	testdev.Emulated(t)
	d := open(t, name(t))
	if err := d.HasModifyBatch(); !errors.Is(err, devx.ErrNoModifyBatch) {
		t.Error(err)
	}
	q := newQP(t, d, mlx5.STRC)
	err := submitter(t, d).SendBatch([]devx.Modification{modification(t, q, rcInit)})
	if !errors.Is(err, devx.ErrNoModifyBatch) || !errors.Is(err, unix.EPROTONOSUPPORT) || devx.Unknown(err) {
		t.Error(err)
	}
	contains(t, err, "patches/README.md")
	if s, err := q.State(); err != nil || s != mlx5.StateRST {
		t.Error(s, err)
	}
}

// stubBatch is a kernel with the patch whose firmware answers what a test wants.
func stubBatch(t testing.TB, answer func(cmd, outbox []byte) unix.Errno, opts ...devx.Option) *devx.Device {
	t.Helper()
	d, err := devxtest.Stub{Batch: answer}.Open(opts...)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

// Each command arrives whole, whatever the number and the lengths.
func TestSendBatchEncodes(t *testing.T) {
	for _, n := range []int{1, 2, 3, 31, 32} {
		var got [][]byte
		d := stubBatch(t, func(cmd, _ []byte) unix.Errno {
			got = append(got, bytes.Clone(cmd))
			return 0
		})
		must(t, d.HasModifyBatch())
		var m []devx.Modification
		for i, q := range qps(t, d, n) {
			if i%3 == 1 {
				m = append(m, modification(t, q, mlx5.ToERR{})) // 16 bytes
			} else {
				m = append(m, modification(t, q, rcInit)) // 272
			}
		}
		must(t, submitter(t, d).SendBatch(m))
		if len(got) != n {
			t.Fatalf("%d of %d commands", len(got), n)
		}
		for i := range m {
			if !bytes.Equal(got[i], m[i].Cmd) || m[i].Err != nil {
				t.Errorf("%d of %d: %x, %v", i, n, got[i], m[i].Err)
			}
		}
	}
}

// What the kernel says of each command is what its error says.
func TestSendBatchResults(t *testing.T) {
	answers := []unix.Errno{0, unix.EREMOTEIO, unix.ETIMEDOUT, unix.ECANCELED, unix.ENOMEM, unix.EIO}
	next, traced := 0, 0
	d := stubBatch(t, func(_, outbox []byte) unix.Errno {
		errno := answers[next]
		next++
		if errno == unix.EREMOTEIO {
			copy(outbox, []byte{byte(mlx5.StatusBadQPState), 0, 0, 0, 0xde, 0xad, 0xbe, 0xef})
		}
		return errno
	}, devx.WithTrace(func(in, out []byte, _ time.Duration) { traced++ }))
	var m []devx.Modification
	for _, q := range qps(t, d, len(answers)) {
		m = append(m, modification(t, q, rcInit))
	}
	traced = 0
	must(t, submitter(t, d).SendBatch(m))
	if m[0].Err != nil {
		t.Error(m[0].Err)
	}
	var c *devx.CommandError
	if err := m[1].Err; !errors.As(err, &c) || !c.HasOutbox || c.Status != mlx5.StatusBadQPState || c.Syndrome != 0xdeadbeef || c.QPN != m[1].QP.Number() || devx.Unknown(err) {
		t.Error(err)
	}
	for i, unknown := range map[int]bool{2: true, 4: false, 5: true} {
		if err := m[i].Err; !errors.Is(err, answers[i]) || devx.Unknown(err) != unknown || !errors.As(err, &c) {
			t.Errorf("%v: %v", answers[i], err)
		}
	}
	if err := m[3].Err; !errors.Is(err, unix.ECANCELED) || errors.As(err, &c) {
		t.Errorf("what was not sent is no failed command: %v", err)
	}
	if traced != len(answers)-1 {
		t.Errorf("%d commands traced", traced)
	}
}

// What cannot go together is refused before anything is sent.
func TestSendBatchRefuses(t *testing.T) {
	sent := 0
	d := stubBatch(t, func([]byte, []byte) unix.Errno { sent++; return 0 })
	other := stubBatch(t, nil)
	s, l := submitter(t, d), qps(t, d, 33)
	var m []devx.Modification
	for _, q := range l {
		m = append(m, modification(t, q, mlx5.ToERR{}))
	}
	contains(t, s.SendBatch(nil), "0 modifications", "1 to 32")
	contains(t, s.SendBatch(m), "33 modifications", "1 to 32")
	if err := s.SendBatch([]devx.Modification{m[0], m[1], m[0]}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a queue pair twice: %v", err)
	}
	foreign := modification(t, newQP(t, other, mlx5.STRC), mlx5.ToERR{})
	if err := s.SendBatch([]devx.Modification{m[0], foreign}); !errors.Is(err, devx.ErrForeign) {
		t.Error(err)
	}
	contains(t, s.SendBatch([]devx.Modification{m[0], {QP: l[1], Cmd: make([]byte, 8)}}), "8 bytes")
	must(t, l[2].Close())
	if err := s.SendBatch(m[1:4]); !errors.Is(err, devx.ErrClosed) {
		t.Error(err)
	}
	if sent != 0 {
		t.Errorf("%d commands were sent", sent)
	}
	must(t, l[0].Close()) // no refused call uses it any more
	must(t, s.SendBatch(m[3:4]))
	must(t, s.Close())
	if err := s.SendBatch(m[3:4]); !errors.Is(err, devx.ErrClosed) {
		t.Error(err)
	}
}

// patchedKernel opens the device of a kernel that has the patch.
func patchedKernel(t *testing.T) *devx.Device {
	t.Helper()
	d := open(t, name(t))
	require.Have(t, "modify-batch", d.HasModifyBatch())
	return d
}

// One ioctl of a patched kernel does what one by one does, for every number that
// it takes, on queue pairs of DevX and of verbs.
func TestModifyBatchOfThisKernel(t *testing.T) {
	d := patchedKernel(t)
	s := submitter(t, d)
	for _, n := range []int{1, 31, 32} {
		l := qps(t, d, n)
		if n > 1 {
			v, err := d.NewVerbsQP(devx.QPConfig{})
			must(t, err)
			t.Cleanup(func() { must(t, v.Close()) })
			must(t, l[n-1].Close())
			l[n-1] = v.DevX()
		}
		one := newQP(t, d, mlx5.STRC)
		for _, step := range []func(q *devx.QP) devx.Modification{
			func(q *devx.QP) devx.Modification { return modification(t, q, rcInit) },
			func(q *devx.QP) devx.Modification { return modification(t, q, rcRTR(t, d, q.Number())) },
			func(q *devx.QP) devx.Modification { return modification(t, q, rcRTS) },
			func(q *devx.QP) devx.Modification { return modification(t, q, mlx5.ToERR{}) },
			func(q *devx.QP) devx.Modification { return modification(t, q, mlx5.ToRST{}) },
		} {
			var m []devx.Modification
			for _, q := range l {
				m = append(m, step(q))
			}
			must(t, s.SendBatch(m))
			alone := step(one)
			must(t, s.Send(one, alone.Cmd))
			want, err := one.State()
			must(t, err)
			for i := range m {
				if got, err := m[i].QP.State(); m[i].Err != nil || err != nil || got != want {
					t.Errorf("%d of %d: %v, %v, %v; want %v", i, n, m[i].Err, got, err, want)
				}
			}
		}
	}
}

// A command that the firmware refuses is reported, with its status, and the
// others are done.
func TestModifyBatchBadOneInTheMiddle(t *testing.T) {
	d := patchedKernel(t)
	l := qps(t, d, 32)
	var m []devx.Modification
	for i, q := range l {
		if i == 13 {
			m = append(m, modification(t, q, rcRTS))
		} else {
			m = append(m, modification(t, q, rcInit))
		}
	}
	must(t, submitter(t, d).SendBatch(m))
	for i := range m {
		var c *devx.CommandError
		state, err := l[i].State()
		must(t, err)
		switch err := m[i].Err; {
		case i != 13 && (err != nil || state != mlx5.StateInit):
			t.Errorf("%d: %v, %v", i, err, state)
		case i == 13 && (!errors.As(err, &c) || !errors.Is(err, unix.EREMOTEIO) || c.Status != mlx5.StatusBadQPState || fw.CheckOf(c.Syndrome) == nil || state != mlx5.StateRST):
			t.Errorf("%d: %v, %v", i, err, state)
		}
	}
}

// An XRC target queue pair is taken, and refused if it is given twice, as two handles
// of it.
func TestModifyBatchXRCTarget(t *testing.T) {
	d := patchedKernel(t)
	s := submitter(t, d)
	q, again, err := s.XRCTarget()
	must(t, err)
	if q.Number() != again.Number() {
		t.Fatalf("two handles of %#x and %#x", q.Number(), again.Number())
	}
	const size = 24
	cmd := modification(t, q, mlx5.ToERR{}).Cmd
	for _, handle := range []*devx.QP{q, again} {
		if errno := s.BatchIoctl([]*devx.QP{handle}, []uint16{16}, cmd, size); errno != 0 {
			t.Error(errno)
		}
	}
	if errno := s.BatchIoctl([]*devx.QP{q, again}, []uint16{16, 16}, slices.Concat(cmd, cmd), 2*size); errno != unix.EINVAL {
		t.Errorf("two handles of one: %v, want %v", errno, unix.EINVAL)
	}
}

// What the patched kernel must not take, it refuses as a whole.
func TestModifyBatchChecks(t *testing.T) {
	d := patchedKernel(t)
	s, l := submitter(t, d), qps(t, d, 33)
	const size = 24
	command := func(q *devx.QP, tr mlx5.Transition) []byte {
		b := make([]byte, mlx5.TransitionSize)
		n, err := tr.Encode(b, q.Number(), q.Transport())
		must(t, err)
		return b[:n]
	}
	toERR := func(l ...*devx.QP) (cmds []byte) {
		for _, q := range l {
			cmds = append(cmds, command(q, mlx5.ToERR{})...)
		}
		return cmds
	}
	lens := func(n int, v uint16) []uint16 { return slices.Repeat([]uint16{v}, n) }
	tunnel := toERR(l[0], l[1])
	tunnel[16+5] = 1 // vhca_tunnel_id
	query := toERR(l[0], l[1])
	query[16], query[17] = 0x05, 0x0b // QUERY_QP
	for what, c := range map[string]struct {
		qps     []*devx.QP
		lens    []uint16
		cmds    []byte
		results int
	}{
		"none":                  {nil, nil, toERR(l[0]), size},
		"33":                    {l, lens(33, 16), toERR(l...), 33 * size},
		"a duplicate":           {[]*devx.QP{l[0], l[1], l[0]}, lens(3, 16), toERR(l[0], l[1], l[0]), 3 * size},
		"another's number":      {l[:2], lens(2, 16), toERR(l[0], l[2]), 2 * size},
		"too few lengths":       {l[:2], lens(1, 16), toERR(l[:2]...), 2 * size},
		"a length of 12":        {l[:2], []uint16{16, 12}, toERR(l[:2]...)[:28], 2 * size},
		"a length of 18":        {l[:2], []uint16{18, 16}, append(toERR(l[:2]...), 0, 0), 2 * size},
		"a length beyond":       {l[:2], []uint16{16, 32}, toERR(l[:2]...), 2 * size},
		"bytes left":            {l[:2], lens(2, 16), toERR(l[:3]...), 2 * size},
		"room for one result":   {l[:2], lens(2, 16), toERR(l[:2]...), size},
		"room for three":        {l[:2], lens(2, 16), toERR(l[:2]...), 3 * size},
		"a vhca tunnel":         {l[:2], lens(2, 16), tunnel, 2 * size},
		"no command of QP":      {l[:2], lens(2, 16), query, 2 * size},
		"a zero opcode":         {l[:1], lens(1, 16), make([]byte, 16), size},
		"the first of a length": {l[:1], lens(1, 8), toERR(l[0])[:8], size},
	} {
		if errno := s.BatchIoctl(c.qps, c.lens, c.cmds, c.results); errno != unix.EINVAL {
			t.Errorf("%s: %v, want %v", what, errno, unix.EINVAL)
		}
	}
	for i, q := range l {
		if state, err := q.State(); err != nil || state != mlx5.StateRST {
			t.Errorf("%d: %v, %v", i, state, err)
		}
	}
	if errno := s.BatchIoctl(l[:2], lens(2, 16), toERR(l[:2]...), 2*size); errno != 0 {
		t.Errorf("the right one: %v", errno)
	}
}

// Batches of two contexts at once, each over its own queue pairs.
func TestModifyBatchTwoContexts(t *testing.T) {
	d := patchedKernel(t)
	done := make(chan error)
	for range 2 {
		c := d
		d = open(t, name(t))
		s, l := submitter(t, c), qps(t, c, 32)
		go func() { done <- rounds(s, l) }()
	}
	for range 2 {
		must(t, <-done)
	}
}

// rounds takes queue pairs to ERR and RESET fifty times.
func rounds(s *devx.Submitter, l []*devx.QP) error {
	for range 50 {
		for _, op := range []mlx5.Transition{mlx5.ToERR{}, mlx5.ToRST{}} {
			var m []devx.Modification
			for _, q := range l {
				cmd := make([]byte, mlx5.TransitionSize)
				n, err := op.Encode(cmd, q.Number(), q.Transport())
				if err != nil {
					return err
				}
				m = append(m, devx.Modification{QP: q, Cmd: cmd[:n]})
			}
			if err := s.SendBatch(m); err != nil {
				return err
			}
			for i := range m {
				if m[i].Err != nil {
					return fmt.Errorf("%d: %w", i, m[i].Err)
				}
			}
		}
	}
	return nil
}
