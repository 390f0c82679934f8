// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import (
	"bytes"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"devxlab.example/mlx5"
)

// A command comes out of its record as it went in, whatever its bytes.
func TestPack(t *testing.T) {
	var s slab
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(minCommand, mlx5.TransitionSize).Draw(t, "length")
		cmd := make([]byte, n)
		for range rapid.IntRange(0, 40).Draw(t, "bytes") {
			cmd[rapid.IntRange(0, n-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		idx := s.take()
		defer s.put(idx)
		s.pack(idx, cmd)
		p := s.packed(idx)
		out := make([]byte, mlx5.TransitionSize)
		got, err := p.Encode(out, 0, mlx5.STRC)
		if err != nil || !bytes.Equal(out[:got], cmd) {
			t.Fatalf("%x\n%x %v", cmd, out[:got], err)
		}
		if p.Op() != mlx5.OpOf(cmd) {
			t.Fatalf("%v, not %v", p.Op(), mlx5.OpOf(cmd))
		}
		if _, err := p.Encode(out[:n-1], 0, mlx5.STRC); err == nil {
			t.Fatal("into a buffer that is too short")
		}
	})
	if len(s.long) > 0 {
		t.Errorf("%d long commands are left", len(s.long))
	}
}

// everything is the transition with the most attributes, with all of them.
var everything = mlx5.INIT2RTR{
	MTU: mlx5.Set(3), LogMsgMax: mlx5.Set(30), RemoteQPN: mlx5.Set(1), NextRcvPSN: mlx5.Set(1), LogRRAMax: mlx5.Set(1), MinRNRNak: mlx5.Set(1),
	Access: mlx5.Set(mlx5.RemoteWrite | mlx5.RemoteRead | mlx5.RemoteAtomic), PkeyIndex: mlx5.Set(1), LAGTXAffinity: mlx5.Set(1),
	Path: mlx5.Path{
		RGID: [16]byte{0: 1, 4: 1, 8: 1, 12: 1}, RMAC: [6]byte{1, 1, 1, 1, 1, 1}, SrcAddrIndex: mlx5.Set(1), HopLimit: mlx5.Set(1), TClass: mlx5.Set(1),
		FlowLabel: mlx5.Set(1), UDPSport: mlx5.Set(0xc001), SL: mlx5.Set(1), StatRate: mlx5.Set(1), Port: mlx5.Set(1),
	},
}

// Every transition of package mlx5 fits into its record, also with all of its
// attributes.
func TestRecordsHoldTransitions(t *testing.T) {
	var s slab
	var cmd [mlx5.TransitionSize]byte
	n, err := everything.Encode(cmd[:], 0xffffff, mlx5.STRC)
	if err != nil {
		t.Fatal(err)
	}
	idx := s.take()
	if s.pack(idx, cmd[:n]); s.head(idx).more {
		t.Error("INIT2RTR does not fit")
	}
}

// What Defer's comment says.
func TestSizes(t *testing.T) {
	if r, i := unsafe.Sizeof(record{})+unsafe.Sizeof(head{}), unsafe.Sizeof(item{}); r != 104 || i != 16 {
		t.Errorf("a record has %d bytes, an item %d", r, i)
	}
}

func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		var model []item
		seq := rapid.Uint32().Draw(t, "first") // wraps, now and then
		if rapid.Bool().Draw(t, "wrap") {
			seq = -uint32(rapid.IntRange(0, 20).Draw(t, "before"))
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			default:
				x := item{due: Instant(rapid.IntRange(0, 20).Draw(t, "due")), seq: seq}
				seq++
				q.push(x)
				model = append(model, x)
			case 0, 1, 2:
				if len(model) == 0 {
					continue
				}
				first := slices.MinFunc(model, func(a, b item) int {
					if a.before(b) {
						return -1
					}
					return 1
				})
				if got := q.pop(); got != first {
					t.Fatalf("%v, not %v", got, first)
				}
				model = slices.DeleteFunc(model, func(x item) bool { return x == first })
			case 3:
				odd := func(x item) bool { return x.seq%2 == 1 }
				q.keep(odd)
				model = slices.DeleteFunc(model, func(x item) bool { return !odd(x) })
			}
			if len(q) != len(model) {
				t.Fatalf("%d items, not %d", len(q), len(model))
			}
		}
	})
}
