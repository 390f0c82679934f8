// SPDX-License-Identifier: BSD-2-Clause

package uverbs_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"devxlab.example/devx"
	"devxlab.example/emu/fw"
	"devxlab.example/emu/uverbs"
	"devxlab.example/emu/wire"
	"devxlab.example/mlx5"
)

// node is a device with a protection domain and registered memory under one key.
type node struct {
	t    testing.TB
	d    *devx.Device
	hca  *fw.HCA
	pd   *devx.PD
	mem  *devx.Umem
	key  *devx.MKey
	path mlx5.Path // of the port, RoCEv2 over IPv4
}

var everything = mlx5.RemoteWrite | mlx5.RemoteRead | mlx5.RemoteAtomic

var nodes atomic.Int64

// newNode opens a device of its own with so many bytes of memory.
func newNode(t testing.TB, bytes int, options ...string) *node {
	t.Helper()
	options = append(options, fmt.Sprintf("name=node%d", nodes.Add(1)))
	n := &node{t: t}
	var err error
	n.d, err = devx.Open("emu:" + strings.Join(options, ","))
	must(t, err)
	t.Cleanup(func() {
		must(t, n.d.Close())
		if n.mem != nil {
			must(t, n.mem.Close())
		}
	})
	e, _ := uverbs.Lookup(n.d.Name())
	n.hca = e.HCA()
	n.pd, err = n.d.PD()
	must(t, err)
	n.mem, err = n.d.Umem(bytes, everything)
	must(t, err)
	n.key, err = n.d.MKey(n.pd, n.mem, everything)
	must(t, err)
	const rocev2IPv4 = 3
	n.path, err = n.d.OwnPath(rocev2IPv4)
	must(t, err)
	return n
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// sge names n bytes of the node's memory.
func (n *node) sge(off, bytes int) mlx5.SGE {
	return mlx5.SGE{Addr: n.mem.Addr() + uint64(off), Bytes: uint32(bytes), LKey: n.key.Key()}
}

// at returns the node's memory.
func (n *node) at(off, bytes int) []byte { return n.mem.Bytes()[off:][:bytes] }

// end is a queue pair with its completion queue.
type end struct {
	*node
	q        *devx.QP
	cq       *devx.CQ
	w        devx.Queues
	spi, rpi uint16
	ci       uint32
}

const (
	endSends = 256 // units of a send queue
	endRecvs = 256 // entries
)

// end makes a queue pair in RESET.
func (n *node) end(st mlx5.ServiceType) *end {
	n.t.Helper()
	cq, err := n.d.CQ(endSends + endRecvs)
	must(n.t, err)
	q, err := n.d.NewQP(devx.QPConfig{Transport: st, PD: n.pd, SendCQ: cq, SendWQEBBs: endSends, RecvWQEs: endRecvs})
	must(n.t, err)
	return &end{node: n, q: q, cq: cq, w: q.Queues()}
}

// link is how two ends are connected.
type link struct {
	mtu     mlx5.MTU
	timeout int
	retries int
}

var usual = link{mtu: mlx5.MTU1024, timeout: 14, retries: 7}

// connect brings two ends to RTS.
func connect(a, b *end, l link) {
	a.ready(b, l)
	b.ready(a, l)
}

func (e *end) ready(to *end, l link) {
	e.t.Helper()
	path := to.path
	path.SrcAddrIndex = e.path.SrcAddrIndex
	access := everything
	if e.q.Transport() == mlx5.STUC {
		access = mlx5.RemoteWrite
	}
	must(e.t, devx.Modify(e.q, mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(access)}))
	rtr := mlx5.INIT2RTR{MTU: mlx5.Set(l.mtu), RemoteQPN: mlx5.Set(to.q.Number()), NextRcvPSN: mlx5.Set(to.q.Number()), Path: path}
	rts := mlx5.RTR2RTS{NextSendPSN: mlx5.Set(e.q.Number())}
	if e.q.Transport() == mlx5.STRC {
		rtr.LogRRAMax, rtr.MinRNRNak = mlx5.Set(4), mlx5.Set(1)
		rts.AckTimeout, rts.RetryCount, rts.RNRRetry, rts.LogSRAMax = mlx5.Set(l.timeout), mlx5.Set(l.retries), mlx5.Set(mlx5.RNRRetryForever), mlx5.Set(4)
	}
	must(e.t, devx.Modify(e.q, rtr))
	must(e.t, devx.Modify(e.q, rts))
}

// post writes requests and rings once.
func (e *end) post(work ...mlx5.SendWQE) {
	var doorbell uint64
	for i := range work {
		units, d, err := work[i].Encode(e.w.Send, e.spi, e.q.Number())
		must(e.t, err)
		e.spi, doorbell = e.spi+uint16(units), d
	}
	must(e.t, e.q.Post(e.spi, doorbell))
}

// recv posts a receive entry.
func (e *end) recv(s ...mlx5.SGE) {
	at := int(e.rpi) % (len(e.w.Recv) / e.w.RecvStride) * e.w.RecvStride
	must(e.t, mlx5.EncodeRecv(e.w.Recv[at:at+e.w.RecvStride], s))
	e.rpi++
	must(e.t, e.q.PostRecv(e.rpi))
}

// poll takes a completion, if there is one.
func (e *end) poll() (mlx5.CQE, bool) {
	c, ok := e.cq.Entry(e.ci)
	if !ok {
		return nil, false
	}
	c = append(mlx5.CQE(nil), c...)
	e.ci++
	must(e.t, e.cq.Consume(e.ci))
	return c, true
}

// await waits for a completion. On a virtual clock it lets time pass.
func (e *end) await() mlx5.CQE {
	e.t.Helper()
	clock, virtual := e.hca.Clock().(*fw.VirtualClock)
	limit := time.Now().Add(time.Minute)
	for i := 1; i%4096 > 0 || time.Now().Before(limit); i++ {
		if c, ok := e.poll(); ok {
			return c
		}
		if virtual {
			clock.SleepUntil(clock.Now() + time.Microsecond)
		} else {
			runtime.Gosched()
		}
	}
	e.t.Fatal("no completion")
	return nil
}

// completes waits for a completion and checks it.
func (e *end) completes(op mlx5.CQEOp, bytes int) mlx5.CQE {
	e.t.Helper()
	c := e.await()
	if c.Opcode() != op || c.Bytes() != uint32(bytes) || c.QPN() != e.q.Number() {
		e.t.Fatalf("completion %d of %d bytes, QP %#x, syndrome %#x/%#x; want %d of %d bytes", c.Opcode(), c.Bytes(), c.QPN(), c.Syndrome(), c.VendorSyndrome(), op, bytes)
	}
	return c
}

// fails waits for a completion with an error.
func (e *end) fails(syndrome, vendor uint8) {
	e.t.Helper()
	if c := e.await(); !c.Failed() || c.Syndrome() != syndrome || c.VendorSyndrome() != vendor {
		e.t.Fatalf("completion %d, syndrome %#x/%#x; want an error %#x/%#x", c.Opcode(), c.Syndrome(), c.VendorSyndrome(), syndrome, vendor)
	}
}

// virtualWire is the device's virtual clock as package wire wants it.
type virtualWire struct{ *fw.VirtualClock }

func (c virtualWire) NewAlarm() (wire.Alarm, error) { return c.VirtualClock.NewAlarm(), nil }

// wireOf lays a cable between two nodes, with their clock.
func wireOf(t testing.TB, a, b *node, ab, ba wire.Params, seed uint64) *wire.Link {
	t.Helper()
	var clock wire.Clock = wire.NewRealClock()
	if v, virtual := a.hca.Clock().(*fw.VirtualClock); virtual {
		clock = virtualWire{v}
	}
	l, err := wire.NewLink(clock, ab, ba, seed)
	must(t, err)
	t.Cleanup(l.Close)
	l.A.Connect(a.hca.Receive)
	l.B.Connect(b.hca.Receive)
	a.hca.Connect(l.A)
	b.hca.Connect(l.B)
	return l
}
