// SPDX-License-Identifier: BSD-2-Clause

package cstruct

import (
	"fmt"
	"testing"
)

// The calculator itself, on what it must get right.
func TestNaturalAlignment(t *testing.T) {
	const text = `struct t { __u8 a; __u16 b; __u8 c[3]; __u32 d; union { __u8 e; struct { __u16 f; __u16 g; } h; __u64 i; }; __u8 j; struct other k[]; };
		struct other { __u64 l; __u8 m[TWO]; };
		#define TWO 2`
	s := Of(t, text, "t")
	want := map[string][2]int{"a": {0, 1}, "b": {2, 2}, "c": {4, 3}, "d": {8, 4}, "e": {16, 1}, "h": {16, 4}, "i": {16, 8}, "j": {24, 1}, "k": {32, 0}}
	if s.Size != 32 || s.Align != 8 || fmt.Sprint(s.At) != fmt.Sprint(want) {
		t.Errorf("size %d, alignment %d, members %v; want %v", s.Size, s.Align, s.At, want)
	}
	if o := Of(t, text, "other"); o.Size != 16 || o.At["m"] != [2]int{8, 2} {
		t.Errorf("an array of a constant's length: %+v", o)
	}
}
