// SPDX-License-Identifier: BSD-2-Clause

package uverbs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"iter"
	"testing"
	"time"

	"devxlab.example/devx"
	"devxlab.example/emu/fw"
	"devxlab.example/emu/uverbs"
	"devxlab.example/emu/wire"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

func pattern(seed, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

// Each operation of RC, between two queue pairs of one device and over a wire.
func TestOperations(t *testing.T) {
	const size = 64 << 10
	for name, pair := range map[string]func(t *testing.T) (a, b *node){
		"loopback": func(t *testing.T) (*node, *node) { n := newNode(t, size); return n, n },
		"wire": func(t *testing.T) (*node, *node) {
			a, b := newNode(t, size), newNode(t, size, "addr=2")
			wireOf(t, a, b, wire.Params{}, wire.Params{}, 1)
			return a, b
		},
	} {
		t.Run(name, func(t *testing.T) {
			na, nb := pair(t)
			if c, err := na.d.Caps(); err != nil || !c.Atomic() || !c.CCQueryAllowed() {
				t.Errorf("capabilities: atomics %v, congestion statistics %v, %v", c.Atomic(), c.CCQueryAllowed(), err)
			}
			a, b := na.end(mlx5.STRC), nb.end(mlx5.STRC)
			connect(a, b, usual)
			for _, n := range []int{0, 1, 1024, 1025, 5000} {
				data := pattern(n, n)
				copy(a.at(0, n), data)
				const there = 32 << 10 // in b's memory, also where it is a's
				remote := func(op mlx5.WQEOp) mlx5.SendWQE {
					return mlx5.SendWQE{Op: op, Signaled: true, RemoteAddr: nb.mem.Addr() + there, RKey: nb.key.Key(), Data: []mlx5.SGE{na.sge(0, n)}}
				}
				arrived := func(op string) {
					t.Helper()
					if !bytes.Equal(nb.at(there, n), data) {
						t.Errorf("%s of %d bytes: other data", op, n)
					}
					clear(nb.at(there, n))
				}
				b.recv(nb.sge(there, 8192))
				a.post(mlx5.SendWQE{Op: mlx5.WQESend, Signaled: true, Data: []mlx5.SGE{na.sge(0, n)}})
				b.completes(mlx5.CQERecvSend, n)
				a.completes(mlx5.CQERequest, 0)
				arrived("SEND")
				b.recv(nb.sge(there, 8192))
				a.post(mlx5.SendWQE{Op: mlx5.WQESendImm, Imm: 0x11223344, Inline: data[:min(n, 300)], Data: []mlx5.SGE{na.sge(min(n, 300), n-min(n, 300))}})
				if c := b.completes(mlx5.CQERecvSendImm, n); c.Imm() != 0x11223344 {
					t.Errorf("immediate data %#x", c.Imm())
				}
				arrived("SEND with immediate and inline data")
				a.post(remote(mlx5.WQEWrite))
				a.completes(mlx5.CQERequest, 0)
				arrived("WRITE")
				b.recv()
				w := remote(mlx5.WQEWriteImm)
				w.Imm = 7
				a.post(w)
				if c := b.completes(mlx5.CQERecvWriteImm, n); c.Imm() != 7 {
					t.Errorf("immediate data %d", c.Imm())
				}
				a.completes(mlx5.CQERequest, 0)
				arrived("WRITE with immediate")
				copy(nb.at(there, n), data)
				r := remote(mlx5.WQERead)
				r.Data = []mlx5.SGE{na.sge(16<<10, n)}
				a.post(r)
				a.completes(mlx5.CQERequest, n)
				if !bytes.Equal(na.at(16<<10, n), data) {
					t.Errorf("READ of %d bytes: other data", n)
				}
			}
			binary.LittleEndian.PutUint64(nb.at(0x100, 8), 40)
			atomic := mlx5.SendWQE{Op: mlx5.WQEFetchAdd, Signaled: true, RemoteAddr: nb.mem.Addr() + 0x100, RKey: nb.key.Key(), SwapAdd: 2, Data: []mlx5.SGE{na.sge(0x200, 8)}}
			swap := atomic
			swap.Op, swap.SwapAdd, swap.Compare, swap.Data = mlx5.WQECmpSwap, 100, 42, []mlx5.SGE{na.sge(0x208, 8)}
			a.post(atomic, swap)
			a.completes(mlx5.CQERequest, 8)
			a.completes(mlx5.CQERequest, 8)
			for i, want := range []uint64{40, 42} {
				if got := binary.LittleEndian.Uint64(na.at(0x200+8*i, 8)); got != want {
					t.Errorf("atomic %d returned %d, want %d", i, got, want)
				}
			}
			if got := binary.LittleEndian.Uint64(nb.at(0x100, 8)); got != 100 {
				t.Errorf("%d at the end", got)
			}
			for _, e := range []*end{a, b} {
				if s, err := e.q.State(); s != mlx5.StateRTS || err != nil {
					t.Errorf("%v, %v", s, err)
				}
			}
		})
	}
}

// What the memory of a umem or key does not cover is neither read nor written,
// and the completion says so.
func TestBounds(t *testing.T) {
	const page = 4096
	for name, c := range map[string]struct {
		w                func(n, other *node) mlx5.SendWQE
		syndrome, vendor uint8
	}{
		"lkey, behind": {func(n, _ *node) mlx5.SendWQE {
			return mlx5.SendWQE{Op: mlx5.WQESend, Data: []mlx5.SGE{n.sge(page-7, 8)}}
		}, 0x04, 0x52},
		"lkey, before": {func(n, _ *node) mlx5.SendWQE { return mlx5.SendWQE{Op: mlx5.WQESend, Data: []mlx5.SGE{n.sge(-1, 8)}} }, 0x04, 0x52},
		"lkey, anywhere": {func(n, _ *node) mlx5.SendWQE {
			return mlx5.SendWQE{Op: mlx5.WQESend, Data: []mlx5.SGE{{Addr: 8, Bytes: 8, LKey: n.key.Key()}}}
		}, 0x04, 0x52},
		"reserved lkey": {func(n, _ *node) mlx5.SendWQE {
			s := n.sge(0, 8)
			s.LKey = 0x300
			return mlx5.SendWQE{Op: mlx5.WQESend, Data: []mlx5.SGE{s}}
		}, 0x04, 0x52},
		"another's lkey": {func(n, o *node) mlx5.SendWQE {
			s := o.sge(0, 8)
			s.LKey |= 0x1000
			return mlx5.SendWQE{Op: mlx5.WQESend, Data: []mlx5.SGE{s}}
		}, 0x04, 0x52},
		"WRITE from behind": {func(n, _ *node) mlx5.SendWQE {
			return mlx5.SendWQE{Op: mlx5.WQEWrite, RemoteAddr: n.mem.Addr(), RKey: n.key.Key(), Data: []mlx5.SGE{n.sge(page-7, 8)}}
		}, 0x04, 0x52},
		"WRITE behind": {func(n, _ *node) mlx5.SendWQE {
			return mlx5.SendWQE{Op: mlx5.WQEWrite, RemoteAddr: n.mem.Addr() + page - 7, RKey: n.key.Key(), Data: []mlx5.SGE{n.sge(0, 8)}}
		}, 0x13, 0x88},
		"READ before": {func(n, _ *node) mlx5.SendWQE {
			return mlx5.SendWQE{Op: mlx5.WQERead, RemoteAddr: n.mem.Addr() - 1, RKey: n.key.Key(), Data: []mlx5.SGE{n.sge(0, 8)}}
		}, 0x13, 0x88},
		"READ to behind": {func(n, _ *node) mlx5.SendWQE {
			return mlx5.SendWQE{Op: mlx5.WQERead, RemoteAddr: n.mem.Addr(), RKey: n.key.Key(), Data: []mlx5.SGE{n.sge(page-7, 8)}}
		}, 0x04, 0x52},
		"atomic behind": {func(n, _ *node) mlx5.SendWQE {
			return mlx5.SendWQE{Op: mlx5.WQEFetchAdd, RemoteAddr: n.mem.Addr() + page, RKey: n.key.Key(), Data: []mlx5.SGE{n.sge(0, 8)}}
		}, 0x13, 0x88},
		"wrong rkey": {func(n, _ *node) mlx5.SendWQE {
			return mlx5.SendWQE{Op: mlx5.WQERead, RemoteAddr: n.mem.Addr(), RKey: n.key.Key() + 1, Data: []mlx5.SGE{n.sge(0, 8)}}
		}, 0x13, 0x88},
	} {
		t.Run(name, func(t *testing.T) {
			n, other := newNode(t, page), newNode(t, page, "addr=2")
			a, b := n.end(mlx5.STRC), n.end(mlx5.STRC)
			connect(a, b, usual)
			b.recv(n.sge(0, page))
			before := bytes.Clone(n.at(0, page))
			a.post(c.w(n, other))
			a.fails(c.syndrome, c.vendor)
			if !bytes.Equal(n.at(0, page), before) {
				t.Error("memory has changed")
			}
		})
	}
}

// A key that is gone: what was posted with it fails, and memory that the program
// frees while it is registered stays mapped for the device.
func TestMemoryThatIsGone(t *testing.T) {
	before := usermem.Live()
	var last *devx.Umem
	t.Cleanup(func() { // when the device is closed
		must(t, last.Close())
		if got := usermem.Live(); got != before {
			t.Errorf("%d regions of memory mapped, %d before", got, before)
		}
	})
	n := newNode(t, 4096)
	a, b := n.end(mlx5.STRC), n.end(mlx5.STRC)
	connect(a, b, usual)
	extra, err := n.d.Umem(8192, everything)
	must(t, err)
	key, err := n.d.MKey(n.pd, extra, everything)
	must(t, err)
	write := mlx5.SendWQE{Op: mlx5.WQEWrite, Signaled: true, RemoteAddr: extra.Addr(), RKey: key.Key(), Data: []mlx5.SGE{n.sge(0, 64)}}
	if extra.Close() == nil {
		t.Error("user memory under a key was deregistered")
	}
	a.post(write)
	a.completes(mlx5.CQERequest, 0)
	must(t, key.Close())
	must(t, extra.Close())
	a.post(write)
	a.fails(0x13, 0x88)

	// The program closes the device first: everything goes, in the order of use.
	last, err = n.d.Umem(8192, everything)
	must(t, err)
	_, err = n.d.MKey(n.pd, last, everything)
	must(t, err)
}

// A device that is pulled out in the middle of traffic touches nothing more.
func TestUnplugUnderTraffic(t *testing.T) {
	n := newNode(t, 1<<20)
	a, b := n.end(mlx5.STRC), n.end(mlx5.STRC)
	connect(a, b, usual)
	e, _ := uverbs.Lookup(n.d.Name())
	for range endSends / 2 {
		a.post(mlx5.SendWQE{Op: mlx5.WQEWrite, RemoteAddr: n.mem.Addr() + 1<<19, RKey: n.key.Key(), Data: []mlx5.SGE{n.sge(0, 1<<19)}})
	}
	e.Unplug()
	copy(n.at(1<<19, 1<<19), bytes.Repeat([]byte{0xa5}, 1<<19))
	for range 100 {
		if !bytes.Equal(n.at(1<<19, 1<<19), bytes.Repeat([]byte{0xa5}, 1<<19)) {
			t.Fatal("the device wrote after it was gone")
		}
	}
}

// A completion queue that is armed reports its next completion, once.
func TestCompletionEvents(t *testing.T) {
	n := newNode(t, 4096)
	a, b := n.end(mlx5.STRC), n.end(mlx5.STRC)
	connect(a, b, usual)
	ch, err := n.d.EventChannel()
	must(t, err)
	must(t, ch.Subscribe(77, b.cq, mlx5.EventComp))
	next, stop := iter.Pull2(ch.Events(context.Background()))
	defer stop()
	exchange := func(solicited bool) {
		t.Helper()
		b.recv(n.sge(0, 8))
		a.post(mlx5.SendWQE{Op: mlx5.WQESend, Solicited: solicited, Data: []mlx5.SGE{n.sge(0, 8)}})
		b.completes(mlx5.CQERecvSend, 8)
	}
	heard := func(what string) {
		t.Helper()
		if e, err, ok := next(); !ok || err != nil || e.Cookie != 77 || e.Type != mlx5.EventComp {
			t.Errorf("%s: event %+v, %v, %v", what, e, err, ok)
		}
	}
	must(t, b.cq.Arm(b.ci, false, 0))
	exchange(false)
	heard("the next")
	exchange(false)
	must(t, b.cq.Arm(b.ci-1, false, 1))
	heard("one that came before it was armed")
	must(t, b.cq.Arm(b.ci, true, 2))
	exchange(false)
	exchange(true)
	heard("a solicited one")
	exchange(true) // not armed
	must(t, ch.Subscribe(78, b.cq, mlx5.EventCQError))
	n.hca.Raise(fw.Event{Type: mlx5.EventCQError, Object: b.cq.Number()})
	if e, err, _ := next(); err != nil || e.Cookie != 78 {
		t.Errorf("one event too many: %+v, %v", e, err)
	}
}

// A dead peer on a virtual clock: the request fails after exactly as many local
// ACK time-outs as the queue pair has tries.
func TestRetryExceeded(t *testing.T) {
	a, b := newNode(t, 4096, "clock=virtual:retry"), newNode(t, 4096, "clock=virtual:retry", "addr=2")
	if a.hca.Clock() != b.hca.Clock() {
		t.Fatal("two clocks of one name")
	}
	clock := a.hca.Clock()
	a.d.Busy(1)
	defer a.d.Busy(-1)
	l := wireOf(t, a, b, wire.Params{}, wire.Params{}, 1)
	l.A.SetFilter(wire.Out, func(wire.Frame) wire.Verdict { return wire.Verdict{Drop: true} })
	x, y := a.end(mlx5.STRC), b.end(mlx5.STRC)
	connect(x, y, link{mlx5.MTU1024, 10, 2})
	start := clock.Now()
	x.post(mlx5.SendWQE{Op: mlx5.WQESend, Data: []mlx5.SGE{a.sge(0, 8)}})
	x.fails(0x15, 0x81)
	want := 3 * mlx5.AckTimeout(10)
	if took := clock.Now() - start; took < want || took > want+time.Microsecond {
		t.Errorf("failed after %v, want %v", took, want)
	}
	if s, _ := x.q.State(); s != mlx5.StateErr {
		t.Errorf("state %v", s)
	}
}

// Two contexts of one device talk to each other; neither may use the other's keys.
func TestTwoContexts(t *testing.T) {
	n := newNode(t, 4096)
	d, err := devx.Open(n.d.Name())
	must(t, err)
	m := &node{t: t, d: d, hca: n.hca, path: n.path}
	t.Cleanup(func() { must(t, d.Close()); must(t, m.mem.Close()) })
	m.pd, err = d.PD()
	must(t, err)
	m.mem, err = d.Umem(4096, everything)
	must(t, err)
	m.key, err = d.MKey(m.pd, m.mem, everything)
	must(t, err)
	a, b := n.end(mlx5.STRC), m.end(mlx5.STRC)
	connect(a, b, usual)
	copy(n.at(0, 5), "hello")
	a.post(mlx5.SendWQE{Op: mlx5.WQEWrite, Signaled: true, RemoteAddr: m.mem.Addr() + 8, RKey: m.key.Key(), Data: []mlx5.SGE{n.sge(0, 5)}})
	a.completes(mlx5.CQERequest, 0)
	if string(m.at(8, 5)) != "hello" {
		t.Errorf("%q arrived", m.at(8, 5))
	}
	s := n.sge(0, 5)
	s.LKey = m.key.Key()
	a.post(mlx5.SendWQE{Op: mlx5.WQESend, Data: []mlx5.SGE{s}})
	a.fails(0x04, 0x52)
}
