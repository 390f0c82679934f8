// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/binary"
	"testing"

	"devxlab.example/mlx5"
)

// A fuzz input is a list of commands. Each has a header of 4 bytes, the command's
// length and the room for its output (0xffff: what its layout wants), and then
// the command.
const layoutRoom = 0xffff

func appendCommand(b, in []byte, room uint16) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(in)))
	b = binary.BigEndian.AppendUint16(b, room)
	return append(b, in...)
}

// nextCommand splits the first command off. A length beyond the end means all
// that is left.
func nextCommand(b []byte) (in []byte, room int, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, 0, nil, false
	}
	n := min(int(binary.BigEndian.Uint16(b)), len(b)-4)
	room = int(binary.BigEndian.Uint16(b[2:]))
	in, rest = b[4:4+n], b[4+n:]
	if room == layoutRoom {
		room = mlx5.CmdOutSize
		if op := mlx5.OpOf(in); int(op) < len(handlers) && handlers[op].run != nil {
			room = handlers[op].out
		}
	}
	return in, room, rest, true
}

// FuzzExec runs any sequence of any bytes as commands of a device that has one
// of each object. Whatever they are, the answer is well-formed, nothing around
// it is written, and each object's users are counted right.
func FuzzExec(f *testing.F) {
	r := newRig(f, Config{})
	whole := func(in []byte) []byte { return appendCommand(nil, in, layoutRoom) }
	life := []byte(nil) // of a queue pair, beginning with the first after those of each seed
	qpn := uint32(firstQPN + 1)
	life = append(life, whole(r.qp(mlx5.STUD))...)
	for _, op := range []mlx5.Op{mlx5.OpRST2INIT, mlx5.OpINIT2INIT, mlx5.OpINIT2RTR, mlx5.OpRTR2RTS, mlx5.OpRTS2RTS} {
		in := r.modify(op, qpn)
		in.SetOptParamMask(0x0200fffe)
		copy(in.QPC(), noise())
		life = append(life, whole(in)...)
	}
	for _, op := range []mlx5.Op{mlx5.OpQueryQP, mlx5.Op2ERR, mlx5.Op2RST, mlx5.OpDestroyQP} {
		life = append(life, whole(about(op, r.uid, qpn))...)
	}
	f.Add(life)
	last := map[mlx5.Op]uint32{mlx5.OpQueryQP: firstQPN, mlx5.OpDestroyQP: firstQPN, mlx5.OpQueryCQ: r.cqn, mlx5.OpDestroyCQ: r.cqn,
		mlx5.OpDeallocUAR: r.uar, mlx5.OpDestroyEQ: r.eq, mlx5.OpQueryMKey: firstMKey, mlx5.OpDestroyMKey: firstMKey}
	for op, hd := range handlers { // each command, about what there is, and too short
		if hd.run == nil {
			continue
		}
		op := mlx5.Op(op)
		id := last[op]
		if id == 0 {
			id = 1
		}
		in := about(op, r.uid, id)
		switch op {
		case mlx5.OpCreateQP:
			in = r.qp(mlx5.STRC)
		case mlx5.OpCreateCQ:
			in = r.cq()
		case mlx5.OpCreateMKey:
			in = r.mkey()
		case mlx5.OpCreateUmem:
			in = umemOf(r.uid, 2)
		}
		if len(in) == mlx5.RST2INITQPInSize && op > mlx5.OpDestroyQP && op <= mlx5.OpINIT2INIT {
			in = r.modify(op, firstQPN)
		}
		f.Add(append(whole(in), whole(about(op, r.uid, id))...))
		f.Add(appendCommand(whole(in[:len(in)-1]), in, uint16(hd.out-1)))
		f.Add(append(whole(in), life...))
	}
	for _, c := range refusals {
		if c.check != objectLimit { // takes 256 commands
			f.Add(whole(c.in(newRig(f, Config{}))))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newRig(t, Config{LogMaxQP: 2, LogMaxUC: 1})
		r.must(build(mlx5.OpAllocQCounter, r.uid))
		r.must(r.mkey())
		r.inState(mlx5.STRC, mlx5.StateRTS)
		for range 40 {
			in, room, rest, ok := nextCommand(b)
			if !ok {
				break
			}
			b = rest
			was := bytes.Clone(in)
			buf := bytes.Repeat([]byte{0xaa}, room+16)
			out := buf[8 : 8+room : 8+room]
			r.h.Exec(in, out)
			if !bytes.Equal(in, was) {
				t.Fatalf("the input changed: %x, was %x", in, was)
			}
			if bytes.Count(buf[:8], []byte{0xaa}) != 8 || bytes.Count(buf[8+room:], []byte{0xaa}) != 8 {
				t.Fatalf("%x: wrote beyond the output", in)
			}
			wellFormed(t, in, out)
		}
	})
}

// wellFormed checks an answer, which it clears.
func wellFormed(t *testing.T, in, out []byte) {
	op := mlx5.OpOf(in)
	status, syndrome := mlx5.StatusOf(out)
	offered := int(op) < len(handlers) && handlers[op].run != nil
	switch c := CheckOf(syndrome); {
	case len(out) < 8:
		if bytes.Count(out, []byte{0}) != len(out) {
			t.Errorf("%x: no room for an answer, got %x", in, out)
		}
	case status == mlx5.StatusOK:
		if syndrome != 0 || !offered || len(in) < handlers[op].in || len(out) < handlers[op].out {
			t.Errorf("%x: accepted, %x", in, out)
		}
	case c == nil || c.Status != status:
		t.Errorf("%x: %v, syndrome %#x", in, status, syndrome)
	default:
		out[0] = 0
		clear(out[4:8])
		if bytes.Count(out, []byte{0}) != len(out) {
			t.Errorf("%x: refused, but there is more: %x", in, out)
		}
	}
}
