// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// Layouts returns the layouts of a command's input and output, or nil where
// this package has no view of them.
func (v Op) Layouts() (in, out *Layout) {
	name := strings.ToLower(v.String())
	if s, ok := strings.CutSuffix(name, "_qp"); ok && s[0] == '2' {
		name = "qp_" + s
	}
	return LayoutOf(name + "_in"), LayoutOf(name + "_out")
}

// OpOf returns the opcode of a command, or 0 if in is shorter than two bytes.
func OpOf(in []byte) Op {
	if len(in) < 2 {
		return 0
	}
	return Op(binary.BigEndian.Uint16(in))
}

// StatusOf returns the status and the syndrome of a command's output. An
// output shorter than 8 bytes has neither: it gives StatusOK and 0.
func StatusOf(out []byte) (Status, uint32) {
	if len(out) < 8 {
		return StatusOK, 0
	}
	return Status(out[0]), binary.BigEndian.Uint32(out[4:])
}

// PutHeader writes opcode and op_mod, which stand at the same place in every
// command.
func PutHeader(in []byte, op Op, opMod uint16) {
	binary.BigEndian.PutUint16(in, uint16(op))
	binary.BigEndian.PutUint16(in[6:], opMod)
}

// WriteDump writes a command's input and output for people: the bytes as
// hexadecimal dwords, eight to a line, and below them the named fields that are
// not zero.
func WriteDump(w io.Writer, in, out []byte) error {
	op := OpOf(in)
	li, lo := op.Layouts()
	var b strings.Builder
	fmt.Fprintf(&b, "%s(%#x)\n", op, uint16(op))
	dump(&b, "in ", in, li)
	dump(&b, "out", out, lo)
	_, err := io.WriteString(w, b.String())
	return err
}

func dump(b *strings.Builder, label string, data []byte, l *Layout) {
	const line = 32
	last := -1 // end of the last line that was written
	for at := 0; at < len(data); at += line {
		chunk := data[at:min(at+line, len(data))]
		if at > 0 && at+line < len(data) && allZero(chunk) {
			continue
		}
		if last >= 0 && last != at {
			fmt.Fprintf(b, "  %s   …     (zero)\n", label)
		}
		fmt.Fprintf(b, "  %s 0x%03x ", label, at)
		for i := 0; i < len(chunk); i += 4 {
			fmt.Fprintf(b, " %x", chunk[i:min(i+4, len(chunk))])
		}
		b.WriteByte('\n')
		last = at + line
	}
	if l == nil {
		return
	}
	sep := "      "
	for i := range l.Fields {
		f := &l.Fields[i]
		text := ""
		if v, ok := f.Bits(data); ok {
			if v == 0 && f.Name != "status" {
				continue
			}
			text = fmt.Sprintf("%s=%#x", f.Name, v)
		} else if f.Offset%8 == 0 && f.Width%8 == 0 && (f.Offset+f.Width)/8 <= len(data) {
			raw := data[f.Offset/8 : (f.Offset+f.Width)/8]
			if allZero(raw) {
				continue
			}
			text = fmt.Sprintf("%s=%x", f.Name, raw)
		}
		if text != "" {
			b.WriteString(sep + text)
			sep = " "
		}
	}
	if sep == " " {
		b.WriteByte('\n')
	}
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
