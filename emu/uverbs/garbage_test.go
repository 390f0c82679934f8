// SPDX-License-Identifier: BSD-2-Clause

package uverbs_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// Anything may stand in the queues and be rung for: the device reads and writes
// nothing that no key covers, and serves other queue pairs as if nothing were.
func TestGarbageInQueues(t *testing.T) {
	rounds := 400
	if testing.Short() {
		rounds = 50
	}
	n := newNode(t, 64<<10)
	bystander, err := n.d.Umem(64<<10, everything) // registered, without a key
	must(t, err)
	t.Cleanup(func() { must(t, bystander.Close()) })
	before := pattern(9, 64<<10)
	copy(bystander.Bytes(), before)
	r := rand.New(rand.NewPCG(1, 2))
	noise := func(b []byte) {
		for i := range b {
			b[i] = byte(r.Uint32())
		}
	}
	x, y := n.end(mlx5.STRC), n.end(mlx5.STRC)
	connect(x, y, usual)
	for round := range rounds {
		a, b := n.end(mlx5.ServiceType(round%2)), n.end(mlx5.ServiceType(round%2)) // RC, UC
		connect(a, b, usual)
		noise(a.w.Recv)
		noise(a.w.Send)
		for at := 0; at < len(a.w.Send); at += mlx5.WQEBB {
			w := a.w.Send[at:]
			// Half of them are requests but for their operands.
			if r.IntN(2) == 0 {
				continue
			}
			w[3] = []byte{0, 1, 8, 9, 0xa, 0xb, 0x10, 0x11, 0x12, 0x25, 0xe, 0x77}[r.IntN(12)]
			w[7] = byte(1 + r.IntN(4))
			for seg := 16; seg < 64; seg += 16 {
				binary.BigEndian.PutUint32(w[seg:], r.Uint32N(1<<r.IntN(32)))
				binary.BigEndian.PutUint32(w[seg+4:], n.key.Key())
				addr := []uint64{n.mem.Addr(), bystander.Addr(), 0, ^uint64(0)}[r.IntN(4)] + r.Uint64N(70<<10)
				binary.BigEndian.PutUint64(w[seg+8:], addr)
				if r.IntN(2) == 0 { // a remote address segment
					binary.BigEndian.PutUint64(w[seg:], addr)
					binary.BigEndian.PutUint32(w[seg+8:], n.key.Key())
				}
			}
		}
		must(t, b.q.PostRecv(uint16(r.Uint32())))
		must(t, a.q.PostRecv(uint16(r.IntN(endRecvs))))
		for range 4 {
			must(t, a.q.Post(uint16(r.IntN(endSends)), r.Uint64()&^(0xffffff<<8)|uint64(a.q.Number())<<8))
		}
		// When this is through, the garbage has had its turns.
		for range 3 {
			y.recv(n.sge(0, 64))
			x.post(mlx5.SendWQE{Op: mlx5.WQESend, Signaled: true, Data: []mlx5.SGE{n.sge(0, 64)}})
			y.completes(mlx5.CQERecvSend, 64)
			x.completes(mlx5.CQERequest, 0)
		}
		if round%3 == 0 {
			must(t, devx.Modify(a.q, mlx5.ToERR{}))
		}
		for _, e := range []*end{a, b} {
			must(t, e.q.Close())
			must(t, e.cq.Close())
		}
	}
	if !bytes.Equal(bystander.Bytes(), before) {
		t.Error("memory without a key was written")
	}
}
