// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"slices"
	"testing"

	"devxlab.example/internal/mutate"
	"devxlab.example/mlx5"
)

// FuzzHostExec runs any sequence of any bytes as commands of a device that its
// driver has brought up. Whatever they are, the answer is well-formed, nothing
// around it is written, and each object's users are counted right.
func FuzzHostExec(f *testing.F) {
	mem := newMemory(64 << 20) // one: the collector waits for as much again as is in use
	seed := func() *host {
		mem.renew()
		return newHost(f, Config{Memory: mem})
	}
	for _, c := range hostRefusals {
		f.Add(appendCommand(nil, c.in(seed()), layoutRoom))
	}
	h := seed()
	sq, _, _ := h.sqIn()
	eq, _ := h.eqIn(3, mlx5.EventCmd)
	cq, _, _ := h.cqIn(2)
	qp, _, _ := h.qpIn(mlx5.STXRC)
	for _, in := range [][]byte{sq, eq, cq, qp, h.rqIn(), h.rmpIn(), h.xrcSRQIn(), h.rqtIn(h.rq), h.tirIn(), h.tisIn(), h.tableIn(3), h.groupIn(0, 1),
		h.flowIn(5, toFlowTable, h.ft2), opMod(h.flowIn(4, toTIR, h.tir), 1), h.flowGone(4), h.modifyTable(h.ft, missTable, h.ft2),
		h.modifyQueue(mlx5.OpModifyRQ, h.rq, 0, 1), h.modifyQueue(mlx5.OpModifySQ, h.sq, 0, 1), h.resizeCQ(5), h.modifyCQ(7), h.give(1),
		build(mlx5.OpTeardownHCA, 0), about(mlx5.OpDestroyEQ, 0, h.eq), about(mlx5.OpDestroySQ, 0, h.sq), register1(regPAOS, 0, 0, 1, 2, 0, 0x80)} {
		b := appendCommand(nil, in, layoutRoom)
		f.Add(append(b, b...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		mem.renew()
		h := newHost(t, Config{LogMaxQP: 2, LogMaxUC: 1, Memory: mem})
		defer h.h.Shut() // nothing of it touches the memory later
		h.hostile(b)
	})
}

// hostile runs up to 40 commands of any bytes.
func (h *host) hostile(b []byte) {
	h.t.Helper()
	for range 40 {
		in, room, rest, ok := nextCommand(b)
		if !ok {
			break
		}
		if op := mlx5.OpOf(in); room == mlx5.CmdOutSize && h.h.handler(op) != nil {
			room = h.h.handler(op).out + 64
		}
		b = rest
		buf := bytes.Repeat([]byte{0xaa}, room+16)
		out := buf[8 : 8+room : 8+room]
		h.h.Exec(in, out)
		if bytes.Count(buf[:8], []byte{0xaa}) != 8 || bytes.Count(buf[8+room:], []byte{0xaa}) != 8 {
			h.t.Fatalf("%x: wrote beyond the output", in)
		}
		if status, syndrome := mlx5.StatusOf(out); len(out) >= 8 && status != mlx5.StatusOK {
			if c := CheckOf(syndrome); c == nil || c.Status != status {
				h.t.Fatalf("%x: %v, syndrome %#x", in, status, syndrome)
			}
		}
		h.h.Ring(h.sq)
		h.h.ArmCQ(h.cqn, 0, false)
		h.h.UpdateEQ(uint8(h.eq), 0, true)
	}
}

// scope is a part of a test that cleans up when it ends.
type scope struct {
	testing.TB
	last []func()
}

func (s *scope) Cleanup(f func()) { s.last = append(s.last, f) }

func (s *scope) end() {
	for _, f := range slices.Backward(s.last) {
		f()
	}
	s.last = nil
}

// A device goes on under hostile commands: what FuzzHostExec does to a new one.
func TestMutatedHostExec(t *testing.T) {
	const each = 64 // inputs that a device meets
	mem, part := newMemory(64<<20), &scope{TB: t}
	var h *host
	end := func() {
		if h != nil {
			h.h.Shut()
			part.end()
		}
	}
	mutate.Run(t, "FuzzHostExec", func(n int, in []any) {
		if n%each == 0 {
			end()
			mem.renew()
			h = newHost(part, Config{LogMaxQP: 2, LogMaxUC: 1, Memory: mem})
		}
		h.hostile(in[0].([]byte))
	})
	end()
}
