// SPDX-License-Identifier: BSD-2-Clause

package cheader

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
)

func parse(t *testing.T, texts ...string) *Header {
	t.Helper()
	h, err := Parse(texts...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestExpressions(t *testing.T) {
	for expr, want := range map[string]uint64{
		"0":                         0,
		"017":                       15,
		"0xFFull":                   255,
		"18446744073709551615UL":    math.MaxUint64,
		"1U << 31":                  1 << 31,
		"1 << 2 + 3":                1 << 5,
		"1 + 2 * 3":                 7,
		"10 - 3 - 2":                5,
		"(10 - (3 - 2))":            9,
		"1 | 6 & 3":                 3,
		"0xf0 >> 4 & 6":             6,
		"1 << 63":                   1 << 63,
		"-1":                        math.MaxUint64,
		"~0":                        math.MaxUint64,
		"- - 5":                     5,
		"~~5":                       5,
		"BIT(5)":                    32,
		"BIT_ULL(63)":               1 << 63,
		"BIT(1 + 2) | BIT(0)":       9,
		"(__u64)1 << 40":            1 << 40,
		"(__u8)0x1ff":               0xff,
		"(__u16)-1":                 0xffff,
		"(__u32)~0":                 0xffffffff,
		"(int)0xffffffff":           math.MaxUint64,
		"EARLIER + 1":               42,
		"(EARLIER)":                 41,
		"5 /* a comment */ + 1":     6,
		"(((((((((((1)))))))))))+1": 2,
	} {
		h := parse(t, "enum { EARLIER = 41, X = "+expr+", };", "#define M "+expr+"\n")
		for _, name := range []string{"X", "M"} {
			if got, ok := h.Value(name); !ok || got != want {
				t.Errorf("%s as %s: %#x, %v; want %#x", expr, name, got, ok, want)
			}
		}
	}
}

// What cannot be computed is left out, never guessed.
func TestExpressionsThatAreNoConstants(t *testing.T) {
	for _, expr := range []string{
		"", "1 +", "(1", "1 2", "UNKNOWN", "sizeof(int)", "1 << 64", "1 >> 64", "1 << -1", "BIT(64)", "BIT()", "BIT(", "BIT",
		"1 ? 2 : 3", "08", "0x", "1.5", `"text"`, "'a'", "18446744073709551616", "f(1)", "(float)1", "1 << 1 \\",
		strings.Repeat("(", 1000) + "1" + strings.Repeat(")", 1000),
		strings.Repeat("~", 10_000) + "1",
	} {
		h, err := Parse("#define X " + expr + "\n")
		if err != nil {
			t.Errorf("%.40s: %v", expr, err)
			continue
		}
		if v, ok := h.Value("X"); ok {
			t.Errorf("%.40s is %#x", expr, v)
		}
	}
}

func TestEnum(t *testing.T) {
	h := parse(t, `
		enum first { A, B, C = 7, D, E = A, /* not F, */ G, };
		enum { H = C | 8, I }; // J
		enum forward;
		enum first variable;
		enum odd { K = sizeof(long), L, M, N = 3, O };
		enum again { A = 99, P };
		enum { Q = (1 << 2), R = (2, 3), S };
		enum empty {};`)
	want := []Const{
		{"A", 0, "first"}, {"B", 1, "first"}, {"C", 7, "first"}, {"D", 8, "first"}, {"E", 0, "first"}, {"G", 1, "first"},
		{"H", 15, ""}, {"I", 16, ""},
		{"N", 3, "odd"}, {"O", 4, "odd"}, // K is unknown, so L and M are, too
		{"P", 100, "again"}, // a second A counts nowhere, but P follows it
		{"Q", 4, ""},
	}
	if !reflect.DeepEqual(h.Consts, want) {
		t.Errorf("got  %v\nwant %v", h.Consts, want)
	}
}

func TestDefine(t *testing.T) {
	h := parse(t, "#define A 3\n#define A 4\n  #  define B A + 1 // why\n#define F(x) 5\n#define G\n#define H 1 \\\n  + 2\n#define I \"s\"\n",
		"#if 0\n#define J B\n#endif\nenum { K = J };")
	want := []Const{{"A", 3, ""}, {"B", 4, ""}, {"J", 4, ""}, {"K", 4, ""}}
	if !reflect.DeepEqual(h.Consts, want) {
		t.Errorf("got  %v\nwant %v", h.Consts, want)
	}
}

// layoutText spells a layout out: name@offset+width, with *count where it is
// not 1 and the members of a nested struct in braces.
func layoutText(s *Struct) string {
	var b strings.Builder
	for _, f := range s.Fields {
		fmt.Fprintf(&b, "%s@%#x+%#x", f.Name, f.Offset, f.Width)
		if f.Count != 1 {
			fmt.Fprintf(&b, "*%d", f.Count)
		}
		if f.Type != nil {
			fmt.Fprintf(&b, "{%s}", layoutText(f.Type))
		}
		b.WriteByte(' ')
	}
	return strings.TrimSuffix(b.String(), " ")
}

func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name, body string
		bits       int
		want       string
	}{
		{"scalars", "u8 a[0x10]; u8 flag; u8 reserved_at_11[0xf];", 32, "a@0x0+0x10 flag@0x10+0x1 reserved_at_11@0x11+0xf"},
		{"array", "u8 mac[6][0x8]; u8 b[0x10];", 64, "mac@0x0+0x8*6 b@0x30+0x10"},
		{"two dimensions of elements", "u8 m[2][3][0x8];", 48, "m@0x0+0x8*6"},
		{"flexible", "u8 n[0x20]; u8 pas[][0x40];", 32, "n@0x0+0x20 pas@0x20+0x40*0"},
		{"flexible, old style", "u8 n[0x20]; u8 pas[0][0x40];", 32, "n@0x0+0x20 pas@0x20+0x40*0"},
		{"named constant", "u8 a[WIDTH * 2]; u8 b[LATER];", 24, "a@0x0+0x10 b@0x10+0x8"},
		{"other struct", "u8 a[0x8]; struct mlx5_ifc_pair_bits p; u8 b[0x8];", 48, "a@0x0+0x8 p@0x8+0x20{x@0x0+0x10 y@0x10+0x10} b@0x28+0x8"},
		{"array of structs", "struct mlx5_ifc_pair_bits p[3];", 96, "p@0x0+0x20*3{x@0x0+0x10 y@0x10+0x10}"},
		{"flexible array of structs", "u8 n[0x8]; struct mlx5_ifc_pair_bits p[];", 8, "n@0x0+0x8 p@0x8+0x20*0{x@0x0+0x10 y@0x10+0x10}"},
		{"further down", "struct mlx5_ifc_last_bits l;", 16, "l@0x0+0x10{z@0x0+0x10}"},
		{"anonymous struct", "u8 a[0x8]; struct { u8 b[0x8]; u8 c[0x10]; }; u8 d[0x8];", 40, "a@0x0+0x8 b@0x8+0x8 c@0x10+0x10 d@0x20+0x8"},
		{"anonymous union", "u8 a[0x8]; union { u8 b[0x8]; u8 c[0x20]; u8 d; }; u8 e[0x8];", 48, "a@0x0+0x8 b@0x8+0x8 c@0x8+0x20 d@0x8+0x1 e@0x28+0x8"},
		{"struct in union in struct", "u8 a[0x20]; union { struct { u8 b[0x8]; u8 c[0x8]; union { u8 d[0x10]; u8 e[0x8]; }; }; u8 f[0x40]; }; u8 g;", 97,
			"a@0x0+0x20 b@0x20+0x8 c@0x28+0x8 d@0x30+0x10 e@0x30+0x8 f@0x20+0x40 g@0x60+0x1"},
		{"named inner struct", "u8 a[0x8]; struct { u8 b[0x8]; } in; union { u8 c[0x10]; u8 d[0x8]; } u;", 32,
			"a@0x0+0x8 in@0x8+0x8{b@0x0+0x8} u@0x10+0x10{c@0x0+0x10 d@0x0+0x8}"},
		{"empty", "", 0, ""},
	} {
		h := parse(t, "#define WIDTH 8\n struct plain { int x; }; struct mlx5_ifc_pair_bits { u8 x[0x10]; u8 y[0x10]; };\n"+
			"struct mlx5_ifc_t_bits {"+c.body+"}; struct mlx5_ifc_last_bits { u8 z[0x10]; }; enum { LATER = 8 };")
		s, err := h.Struct("t")
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := layoutText(s); got != c.want || s.Bits != c.bits {
			t.Errorf("%s:\n got %s, %d bits\nwant %s, %d bits", c.name, got, s.Bits, c.want, c.bits)
		}
	}
}

func TestUnion(t *testing.T) {
	h := parse(t, "union mlx5_ifc_u_bits { u8 a[0x8]; struct mlx5_ifc_p_bits p; u8 b[0x10]; }; struct mlx5_ifc_p_bits { u8 x[0x40]; };")
	s, err := h.Struct("u")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := layoutText(s), "a@0x0+0x8 p@0x0+0x40{x@0x0+0x40} b@0x0+0x10"; got != want || s.Bits != 64 {
		t.Errorf("got %s, %d bits; want %s, 64", got, s.Bits, want)
	}
	if f, ok := s.Field("b"); !ok || f.Width != 16 || f.Reserved() {
		t.Errorf("Field(b) = %+v, %v", f, ok)
	}
	if _, ok := s.Field("none"); ok {
		t.Error("there is a field none")
	}
	if !(Field{Name: "reserved_at_40"}).Reserved() {
		t.Error("reserved_at_40 is not reserved")
	}
}

// nested returns a struct whose members are n anonymous ones inside each other.
func nested(n int) string {
	return "struct mlx5_ifc_t_bits {" + strings.Repeat("struct {", n) + "u8 a[0x8];" + strings.Repeat("};", n) + "};"
}

// chain returns n structs of which each has fan members of the next.
func chain(n, fan int) string {
	var b strings.Builder
	b.WriteString("struct mlx5_ifc_t_bits { struct mlx5_ifc_s0_bits; };\n")
	for i := range n {
		fmt.Fprintf(&b, "struct mlx5_ifc_s%d_bits { %s };\n", i, strings.Repeat(fmt.Sprintf("struct mlx5_ifc_s%d_bits;", i+1), fan))
	}
	fmt.Fprintf(&b, "struct mlx5_ifc_s%d_bits { u8 a; };\n", n)
	return b.String()
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"enum e { A, B":                                 "enum e: unexpected \"\" after B",
		"enum { A = 1":                                  "enum : unexpected \"\" after A",
		"enum { , }":                                    "enum : unexpected \",\"",
		"enum { A; }":                                   "enum : unexpected \";\" after A",
		"enum { M(x) }":                                 "enum : unexpected \"(\" after M",
		"struct mlx5_ifc_t_bits { u8 a[0x8]":            "struct t: member a: unexpected \"\"",
		"struct mlx5_ifc_t_bits { u8 a[0x8];":           "struct t: unexpected \"\"",
		"struct mlx5_ifc_t_bits { u8 a[":                "struct t: member a: unexpected \"\"",
		"struct mlx5_ifc_t_bits { int a; };":            "struct t: unexpected \"int\"",
		"struct mlx5_ifc_t_bits { u8 a : 3; };":         "struct t: member a: unexpected \":\"",
		"struct mlx5_ifc_t_bits { u8 a, b; };":          "struct t: member a: unexpected \",\"",
		"struct mlx5_ifc_t_bits { u8; };":               "struct t: a member without a name",
		"struct mlx5_ifc_t_bits { u8 [8]; };":           "struct t: unexpected \"[\" in the place of a member's name",
		"struct mlx5_ifc_t_bits { struct { u8 a } b; }": "struct t: member a: unexpected \"}\"",
		nested(maxNesting + 1):                          "struct t: nested more than 64 deep",
		nested(10_000):                                  "struct t: nested more than 64 deep",
	} {
		_, err := Parse(text)
		if err == nil || err.Error() != want {
			t.Errorf("%.60s: error %v, want %s", text, err, want)
		}
	}
}

func TestStructRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "no struct mlx5_ifc_t_bits in the header",
		"struct mlx5_ifc_t_bits": "no struct mlx5_ifc_t_bits in the header",
		"struct mlx5_ifc_t_bits { struct mlx5_ifc_no_bits x; };":                                                        "no struct mlx5_ifc_no_bits in the header",
		"struct mlx5_ifc_t_bits { struct mlx5_ifc_t_bits x; };":                                                         "struct t contains itself",
		"struct mlx5_ifc_t_bits { struct { struct mlx5_ifc_t_bits; }; };":                                               "struct t contains itself",
		"struct mlx5_ifc_t_bits { struct mlx5_ifc_s_bits x; }; struct mlx5_ifc_s_bits { struct mlx5_ifc_t_bits x[2]; }": "struct t contains itself",
		"struct mlx5_ifc_t_bits { u8 a[N]; };":                                                                          `member a: "N" is not a constant`,
		"struct mlx5_ifc_t_bits { u8 a[1 << 64]; };":                                                                    "member a: shift by more than 63 bits",
		"struct mlx5_ifc_t_bits { u8 a[-1]; };":                                                                         "member a: dimension 18446744073709551615 is over the limit of 268435456",
		"struct mlx5_ifc_t_bits { u8 a[1 << 63]; };":                                                                    "member a: dimension 9223372036854775808 is over the limit of 268435456",
		"struct mlx5_ifc_t_bits { u8 a[1<<28][1<<28][1<<28][1<<28]; };":                                                 "member a: the struct is over the limit of 268435456 bits",
		"struct mlx5_ifc_t_bits { u8 a[1<<20][1<<20]; };":                                                               "member a: the struct is over the limit of 268435456 bits",
		"struct mlx5_ifc_t_bits { u8 a[1<<28]; u8 b; };":                                                                "member b: the struct is over the limit of 268435456 bits",
		chain(maxNesting, 1): "nested more than 64 deep",
		chain(40, 2):         "more than 65536 members of anonymous structs",
	} {
		h, err := Parse(text)
		if err != nil {
			t.Errorf("%.60s: %v", text, err)
			continue
		}
		for range 2 { // a failure must not leave a trace
			if _, err = h.Struct("t"); err == nil || err.Error() != want {
				t.Errorf("%.60s: error %v, want %s", text, err, want)
			}
		}
	}
}

func TestLimitsAdmitWhatIsBelow(t *testing.T) {
	for name, text := range map[string]string{
		"nesting": nested(maxNesting),
		"chain":   chain(maxNesting-1, 1),
		"fan":     chain(12, 2),
		"bits":    "struct mlx5_ifc_t_bits { u8 a[1<<27]; u8 b[2][1<<26]; };",
	} {
		h := parse(t, text)
		if _, err := h.Struct("t"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzParse holds the parser against text that is no header: it ends with an
// error or with layouts whose members lie inside them.
func FuzzParse(f *testing.F) {
	f.Add("enum e { A, B = A << 3, C = (__u64)1 << 40 };\n#define M BIT(3) | A\n")
	f.Add("struct mlx5_ifc_t_bits { u8 a[0x10]; u8 b[2][0x8]; union { struct { u8 c; }; u8 d[0x20]; }; struct mlx5_ifc_s_bits s[2]; u8 pas[][0x40]; };\nunion mlx5_ifc_s_bits { u8 x[N]; };\nenum { N = 3 };")
	f.Add(nested(70))
	f.Add(chain(3, 3))
	f.Add("struct mlx5_ifc_t_bits { u8 a[1<<28][1<<28]; u8 b[1<<99]; };")
	f.Add("#define X ((((((((1\n#define Y ~-~-1 << 64\n/* unfinished")
	f.Add("struct mlx5_ifc_t_bits { struct mlx5_ifc_t_bits; };")
	f.Add("enum {;}} struct { [ ] \x00\xff '")
	f.Fuzz(func(t *testing.T, text string) {
		h, err := Parse(text)
		if err != nil {
			return
		}
		for _, c := range h.Consts {
			if v, ok := h.Value(c.Name); !ok || v != c.Value || !ident.MatchString(c.Name) {
				t.Fatalf("constant %+v has value %#x, %v", c, v, ok)
			}
		}
		for name := range h.structs {
			s, err := h.Struct(name)
			if err != nil {
				continue
			}
			for _, f := range s.Fields {
				if f.Offset < 0 || f.Width < 0 || f.Count < 0 || f.Offset+f.Width*f.Count > s.Bits {
					t.Fatalf("%s.%s at %d, %d × %d bits, leaves the %d bits of its struct", name, f.Name, f.Offset, f.Count, f.Width, s.Bits)
				}
			}
		}
	})
}
