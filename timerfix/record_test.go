// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import (
	"bytes"
	"testing"
	"time"
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

// The transition with the most attributes fits into its record.
func TestRecordsHoldTransitions(t *testing.T) {
	var s slab
	var cmd [mlx5.TransitionSize]byte
	n, err := everything.Encode(cmd[:], 0xffffff, mlx5.STRC)
	if err != nil {
		t.Fatal(err)
	}
	idx := s.take()
	if s.pack(idx, cmd[:n]); s.head(idx).length == 0 {
		t.Error("INIT2RTR does not fit")
	}
}

// What Defer's comment says.
func TestSizes(t *testing.T) {
	if n := unsafe.Sizeof(record{}) + unsafe.Sizeof(head{}); n != 116 {
		t.Errorf("%d bytes", n)
	}
}

// The wheel against a plain list, with times near and far, and across the
// boundaries of slots.
func TestWheel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s slab
		w := wheel{slab: &s}
		now := Instant(rapid.Int64Range(0, 1<<rapid.IntRange(1, 62).Draw(t, "bits")).Draw(t, "now"))
		w.base = now
		type pending struct {
			due Instant
			idx uint32
		}
		var model []pending
		drop := func(i int) {
			w.remove(model[i].idx)
			s.put(model[i].idx)
			model = append(model[:i:i], model[i+1:]...)
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			default:
				ahead := rapid.Int64Range(-100, 1<<rapid.IntRange(0, 62).Draw(t, "bits")).Draw(t, "ahead")
				due := now.Add(time.Duration(ahead))
				if len(model) > 0 && rapid.Bool().Draw(t, "again") {
					due = model[rapid.IntRange(0, len(model)-1).Draw(t, "which")].due
				}
				idx := s.take()
				s.head(idx).due = due
				w.push(idx)
				// Whatever is past is due now, in the order in which it came.
				model = append(model, pending{max(due, w.base), idx})
			case 0:
				if len(model) > 0 {
					drop(rapid.IntRange(0, len(model)-1).Draw(t, "which"))
				}
			case 1:
				now = now.Add(time.Duration(rapid.Int64Range(0, 1<<rapid.IntRange(0, 60).Draw(t, "bits")).Draw(t, "by")))
				for {
					idx, ok := w.due(now)
					first := -1
					for i, p := range model {
						if p.due <= now && (first < 0 || p.due < model[first].due) {
							first = i
						}
					}
					if ok != (first >= 0) || ok && idx != model[first].idx {
						t.Fatalf("at %d: %d %v, not %v of %v", now, idx, ok, first, model)
					}
					if !ok {
						break
					}
					drop(first)
				}
			}
			// It never tells to look too late, nor to look at what is past already.
			first := Never
			for _, p := range model {
				first = min(first, p.due)
			}
			if at := w.next(); at > first || len(model) <= scan && at != first {
				t.Fatalf("next is %d, the first is due at %d", at, first)
			}
			if (w.level == 0) != (len(model) == 0) {
				t.Fatalf("levels %b with %d pending", w.level, len(model))
			}
		}
	})
}
