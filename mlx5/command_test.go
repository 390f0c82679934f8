// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestOpLayouts(t *testing.T) {
	for _, op := range append(Transitions(), OpCreateQP, OpCreateCQ, OpCreateMKey, OpQueryQP, OpQueryHCACap, OpAllocPD, OpNOP, OpCreateUmem) {
		in, out := op.Layouts()
		if in == nil || out == nil {
			t.Errorf("%s has no layouts", op)
			continue
		}
		if !strings.HasSuffix(in.Name, "_in") || !strings.HasSuffix(out.Name, "_out") || strings.TrimSuffix(in.Name, "_in") != strings.TrimSuffix(out.Name, "_out") {
			t.Errorf("%s has the layouts %s and %s", op, in.Name, out.Name)
		}
	}
	if in, _ := Op2ERR.Layouts(); in.Name != "qp_2err_in" {
		t.Errorf("2ERR has the layout %s", in.Name)
	}
	for _, op := range []Op{0, 0xffff, OpSQDRTS} {
		if in, out := op.Layouts(); in != nil || out != nil {
			t.Errorf("%s has the layouts %v, %v", op, in, out)
		}
	}
}

func TestHeaders(t *testing.T) {
	in := bytes.Repeat([]byte{0xff}, 16)
	PutHeader(in, OpQueryHCACap, 0x1234)
	if want := "0100ffffffff1234ffffffffffffffff"; hex.EncodeToString(in) != want {
		t.Errorf("PutHeader writes %x, want %s", in, want)
	}
	for text, want := range map[string]Op{"": 0, "05": 0, "0500": OpCreateQP, "050a00": Op2RST} {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := OpOf(b); got != want {
			t.Errorf("OpOf(%s) = %s", text, got)
		}
	}
	if st, syn := StatusOf([]byte{5, 0, 0, 0, 0, 0x65, 0xb5}); st != 0 || syn != 0 {
		t.Errorf("an output of 7 bytes has status %s, syndrome %#x", st, syn)
	}
}

func TestWriteDump(t *testing.T) {
	in := make([]byte, RST2INITQPInSize)
	if _, err := (RST2INIT{Port: Set(1), PkeyIndex: Set(0), Access: Set(RemoteWrite)}).Encode(in, 0x40121, STRC); err != nil {
		t.Fatal(err)
	}
	out := []byte{3, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0, 0, 0, 0, 0}
	for _, c := range []struct {
		in, out []byte
		want    string
	}{
		{in, out, `RST2INIT_QP(0x502)
  in  0x000  05020000 00000000 00040121 00000000 00000000 00000000 00001800 00000000
  in    …     (zero)
  in  0x040  00000000 00000000 00000000 00000000 00000000 00010000 00000000 00000000
  in    …     (zero)
  in  0x0a0  00000000 00000000 00004000 00000000 00000000 00000000 00000000 00000000
  in    …     (zero)
  in  0x100  00000000 00000000 00000000 00000000
      opcode=0x502 qpn=0x40121 qpc.pm_state=0x3 qpc.primary_address_path.vhca_port_num=0x1 qpc.rwe=0x1
  out 0x000  03000000 deadbeef 00000000 00000000
      status=0x3 syndrome=0xdeadbeef
`},
		{nil, nil, "Op(0x0)(0x0)\n"},
		{append(make([]byte, 95), 1), make([]byte, 65), `Op(0x0)(0x0)
  in  0x000  00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
  in    …     (zero)
  in  0x040  00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000001
  out 0x000  00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
  out   …     (zero)
  out 0x040  00
`},
		{[]byte{5}, []byte{1, 2, 3}, "Op(0x0)(0x0)\n  in  0x000  05\n  out 0x000  010203\n"},
		{[]byte{5, 0, 0xff}, nil, "CREATE_QP(0x500)\n  in  0x000  0500ff\n      opcode=0x500\n"},
	} {
		var b strings.Builder
		if err := WriteDump(&b, c.in, c.out); err != nil || b.String() != c.want {
			t.Errorf("%v\ngot\n%s\nwant\n%s", err, b.String(), c.want)
		}
	}
}

type brokenWriter struct{}

var errBroken = errors.New("broken")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestWriteDumpFails(t *testing.T) {
	if err := WriteDump(brokenWriter{}, []byte{5, 0}, nil); !errors.Is(err, errBroken) {
		t.Error(err)
	}
}

var dumpLine = regexp.MustCompile(`^  (in |out) (0x[0-9a-f]{3,}) ((?: [0-9a-f]+)+)$`)

// undump reads the bytes of a dump; what it leaves out is zero.
func undump(t *testing.T, text string, in, out int) (gotIn, gotOut []byte) {
	gotIn, gotOut = make([]byte, in), make([]byte, out)
	for line := range strings.Lines(text) {
		m := dumpLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			continue
		}
		at, err := strconv.ParseInt(m[2], 0, 32)
		if err != nil {
			t.Fatal(err)
		}
		b, err := hex.DecodeString(strings.ReplaceAll(m[3], " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		dst := gotIn
		if m[1] == "out" {
			dst = gotOut
		}
		if int(at)+len(b) > len(dst) {
			t.Fatalf("%s shows bytes that do not exist", line)
		}
		copy(dst[at:], b)
	}
	return gotIn, gotOut
}

// FuzzDump: whatever the bytes are, the dump shows each that is not zero, and
// names each field of the layout that is whole and not zero.
func FuzzDump(f *testing.F) {
	for _, op := range Transitions() {
		in := make([]byte, TransitionSize)
		PutHeader(in, op, 0)
		in[200] = 1
		f.Add(in, []byte{0, 0, 0, 0, 0, 0, 0, 0})
		f.Add(bytes.Repeat(in[:2], 100), bytes.Repeat([]byte{0xff}, 33))
	}
	f.Add([]byte{}, []byte{})
	f.Add([]byte{5, 0}, bytes.Repeat([]byte{0, 1}, 3000))
	f.Add(append([]byte{1, 0}, make([]byte, 5000)...), append(make([]byte, 4096), 1))
	f.Fuzz(func(t *testing.T, in, out []byte) {
		var b strings.Builder
		if err := WriteDump(&b, in, out); err != nil {
			t.Fatal(err)
		}
		text := b.String()
		if gotIn, gotOut := undump(t, text, len(in), len(out)); !bytes.Equal(gotIn, in) || !bytes.Equal(gotOut, out) {
			t.Fatalf("%x, %x\nis shown as\n%s", in, out, text)
		}
		words := map[string]int{}
		for _, w := range strings.Fields(text) {
			words[w]++
		}
		li, lo := OpOf(in).Layouts()
		for l, data := range map[*Layout][]byte{li: in, lo: out} {
			if l == nil {
				continue
			}
			for i := range l.Fields {
				if v, ok := l.Fields[i].Bits(data); ok && v != 0 && words[fmt.Sprintf("%s=%#x", l.Fields[i].Name, v)] == 0 {
					t.Fatalf("%s=%#x is missing in\n%s", l.Fields[i].Name, v, text)
				}
			}
		}
	})
}
