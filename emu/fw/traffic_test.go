// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"devxlab.example/mlx5"
	"pgregory.net/rapid"
)

// weather is what a bad wire does, in frames of a thousand.
type weather struct {
	lose, double, delay int
	most                time.Duration
}

func (w weather) fate(seed uint64) fate {
	r := rand.New(rand.NewPCG(seed, 1))
	return func([]byte) []time.Duration {
		late := func() time.Duration {
			if r.IntN(1000) < w.delay {
				return time.Duration(r.Int64N(int64(w.most)))
			}
			return 0
		}
		switch n := r.IntN(1000); {
		case n < w.lose:
			return nil
		case n < w.lose+w.double:
			return []time.Duration{late(), late()}
		}
		return []time.Duration{late()}
	}
}

func drawWeather(t *rapid.T) weather {
	return weather{
		lose:   rapid.IntRange(0, 100).Draw(t, "lost per mille"),
		double: rapid.IntRange(0, 100).Draw(t, "doubled per mille"),
		delay:  rapid.IntRange(0, 300).Draw(t, "delayed per mille"),
		most:   time.Duration(rapid.IntRange(1, 300).Draw(t, "delay in µs")) * time.Microsecond,
	}
}

const (
	slots    = 20
	slotSize = 1500
)

// Whatever the wire does, as long as something gets through: each request of RC
// completes once, in order and well; each message arrives once, in order and
// whole; each atomic is executed once.
func TestTrafficRC(t *testing.T) {
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		o := usual
		o.psn = [2]uint32{rapid.Uint32Range(0, psnMask).Draw(t, "PSN"), rapid.Uint32Range(0, psnMask).Draw(t, "other PSN")}
		o.mtu = rapid.Uint8Range(1, 3).Draw(t, "MTU")
		o.logReads = rapid.Uint8Range(0, 3).Draw(t, "log_sra_max")
		o.logResp = o.logReads
		o.gidIndex = rapid.Uint8Range(0, 2).Draw(t, "GID")
		n, a, b := newPair(outer, mlx5.STRC, o)
		for i, l := range n.link {
			l.set(drawWeather(t).fate(rapid.Uint64().Draw(t, "seed") + uint64(i)))
		}
		ready := rapid.Bool().Draw(t, "receiver ready")
		ops := rapid.SliceOfN(rapid.SampledFrom([]byte{opSend, opSendImm, opWrite, opWriteImm, opRead, opFetchAdd, opCAS, opNOP}), 1, slots).Draw(t, "operations")
		var want, arrive []done
		data := make([][]byte, len(ops))
		shared := uint64(0)
		static := b.fill(0xe000, slotSize, 99)
		for i, op := range ops {
			size := rapid.IntRange(0, slotSize).Draw(t, "size")
			w := work{op: op, off: i * slotSize, n: size, va: b.mem + uint64(i*slotSize), rkey: b.key, imm: uint32(i)}
			want = append(want, done{wqe: op})
			switch op {
			case opSend, opSendImm, opWriteImm:
				if ready {
					b.recv(i*slotSize, slotSize)
				}
				d := done{op: map[byte]byte{opSend: cqeRecvSend, opSendImm: cqeRecvSendImm, opWriteImm: cqeRecvImm}[op], n: uint32(size)}
				if op != opSend {
					d.imm = uint32(i)
				}
				arrive = append(arrive, d)
				data[i] = a.fill(w.off, size, byte(i))
			case opWrite:
				data[i] = a.fill(w.off, size, byte(i))
			case opRead:
				w.va = b.mem + 0xe000
				want[i].n = uint32(size)
			case opFetchAdd, opCAS:
				w.n, w.va, w.a = 8, b.mem+0xf000, uint64(i+1)
				if op == opCAS {
					w.b = shared
					shared = w.a
				} else {
					shared += w.a
				}
				want[i].n = 8
			case opNOP:
				w.n = 0
			}
			a.post(w)
			if rapid.Bool().Draw(t, "pause") {
				n.run(5 * time.Microsecond)
			}
		}
		if !ready {
			n.run(time.Millisecond)
			for i, op := range ops {
				if op == opSend || op == opSendImm || op == opWriteImm {
					b.recv(i*slotSize, slotSize)
				}
			}
		}
		n.run(10 * time.Second)
		a.same(t, "requester", want)
		b.same(t, "responder", arrive)
		for i, op := range ops {
			switch op {
			case opRead:
				size := int(want[i].n)
				if !bytes.Equal(a.at(i*slotSize, size), static[:size]) {
					t.Errorf("READ %d: other data", i)
				}
			default:
				if len(data[i]) > 0 && !bytes.Equal(b.at(i*slotSize, len(data[i])), data[i]) {
					t.Errorf("operation %d (%#x): other data", i, op)
				}
			}
		}
		if got := binary.LittleEndian.Uint64(b.at(0xf000, 8)); got != shared {
			t.Errorf("atomics made %d, want %d", got, shared)
		}
		if a.state() != mlx5.StateRTS || b.state() != mlx5.StateRTS {
			t.Errorf("states %v, %v", a.state(), b.state())
		}
	})
}

// same is expect for a property test.
func (e *end) same(t *rapid.T, what string, want []done) {
	got := e.poll()
	for i := range got {
		got[i].counter, got[i].flags = 0, 0
	}
	if len(got) != len(want) {
		t.Fatalf("%s: %d completions, want %d: %v", what, len(got), len(want), got)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s: completion %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// UC on a bad wire: what arrives is whole and in order, and nothing arrives
// twice that the wire did not double.
func TestTrafficUC(t *testing.T) {
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		n, a, b := newPair(outer, mlx5.STUC, usual)
		n.link[0].set(weather{lose: rapid.IntRange(0, 300).Draw(t, "lost per mille")}.fate(rapid.Uint64().Draw(t, "seed")))
		count := rapid.IntRange(1, 14).Draw(t, "messages")
		var want []done
		sizes := make([]int, count)
		for i := range count {
			sizes[i] = rapid.IntRange(0, slotSize).Draw(t, "size")
			a.fill(i*slotSize, sizes[i], byte(i))
			b.recv(i*slotSize, slotSize)
			a.post(work{op: opSendImm, off: i * slotSize, n: sizes[i], imm: uint32(i)})
			want = append(want, done{wqe: opSendImm})
		}
		n.run(time.Millisecond)
		a.same(t, "requester", want)
		last := -1
		for at, d := range b.poll() {
			i := int(d.imm)
			if i <= last || i >= count || d.op != cqeRecvSendImm || d.n != uint32(sizes[i]) {
				t.Fatalf("completion %v after message %d", d, last)
			}
			if !bytes.Equal(b.at(at*slotSize, sizes[i]), a.at(i*slotSize, sizes[i])) {
				t.Errorf("message %d: other data", i)
			}
			last = i
		}
		if b.state() != mlx5.StateRTS {
			t.Errorf("state %v", b.state())
		}
	})
}
