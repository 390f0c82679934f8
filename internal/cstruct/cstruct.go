// SPDX-License-Identifier: BSD-2-Clause

// Package cstruct compares Go structs with the C structs of installed headers, for
// tests.
package cstruct

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"testing"

	"devxlab.example/internal/headergen"
	"devxlab.example/internal/require"
)

// Headers returns the text of uapi headers below rdma/ without their comments. It
// skips the test where they are not installed (require.Have, "headers").
func Headers(t *testing.T, names ...string) string {
	t.Helper()
	dir, err := headergen.UAPIHeaders()
	if errors.Is(err, headergen.ErrNoHeaders) {
		require.Have(t, "headers", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, b...)
	}
	return regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(string(text), "")
}

// Layout is that of a C struct whose members have their natural alignment, in
// bytes.
type Layout struct {
	Size, Align int
	At          map[string][2]int // offset and size
}

var widths = map[string]int{"__u8": 1, "__u16": 2, "__u32": 4, "__u64": 8, "__s32": 4, "__s64": 8, "__aligned_u64": 8}

// Of computes the layout of a struct of the header. Members of anonymous
// structs and unions count as its own.
func Of(t *testing.T, text, name string) Layout {
	t.Helper()
	m := regexp.MustCompile(`struct ` + name + ` \{`).FindStringIndex(text)
	if m == nil {
		t.Fatalf("no struct %s", name)
	}
	toks := regexp.MustCompile(`\w+|[{};\[\]]`).FindAllString(text[m[1]:], -1)
	s, _ := parseBody(t, text, toks, false)
	return s
}

// foreign are structs of other headers, as bytes and alignment.
var foreign = map[string]Layout{
	"sockaddr_in6":              {Size: 28, Align: 4},  // linux/in6.h
	"__kernel_sockaddr_storage": {Size: 128, Align: 8}, // linux/socket.h
}

// member returns the size and alignment of the type that tokens begin with, and
// what follows it.
func member(t *testing.T, text string, toks []string) (size, align int, rest []string) {
	t.Helper()
	if toks[0] != "struct" {
		n := widths[toks[0]]
		if n == 0 {
			t.Fatalf("unknown type %s", toks[0])
		}
		return n, n, toks[1:]
	}
	s, ok := foreign[toks[1]]
	if !ok {
		s = Of(t, text, toks[1])
	}
	return s.Size, s.Align, toks[2:]
}

// length returns the number of elements between brackets: a number, or a constant
// of the header.
func length(t *testing.T, text, s string) int {
	t.Helper()
	if m := regexp.MustCompile(`#define\s+` + s + `\s+(\w+)`).FindStringSubmatch(text); m != nil {
		s = m[1]
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// parseBody reads members up to the closing brace and returns what follows it.
func parseBody(t *testing.T, text string, toks []string, union bool) (Layout, []string) {
	t.Helper()
	s := Layout{Align: 1, At: map[string][2]int{}}
	place := func(align, size int) int {
		s.Align = max(s.Align, align)
		if union {
			s.Size = max(s.Size, size)
			return 0
		}
		at := (s.Size + align - 1) / align * align
		s.Size = at + size
		return at
	}
	for toks[0] != "}" {
		kind := toks[0]
		if (kind == "struct" || kind == "union") && toks[1] == "{" {
			inner, rest := parseBody(t, text, toks[2:], kind == "union")
			at := place(inner.Align, inner.Size)
			if rest[0] != ";" { // the name of the member
				s.At[rest[0]] = [2]int{at, inner.Size}
				rest = rest[1:]
			} else {
				for n, f := range inner.At {
					s.At[n] = [2]int{at + f[0], f[1]}
				}
			}
			toks = rest[1:]
			continue
		}
		size, align, rest := member(t, text, toks)
		name, n := rest[0], 1
		if toks = rest[1:]; toks[0] == "[" {
			n = 0
			if toks[1] != "]" {
				n = length(t, text, toks[1])
				toks = toks[1:]
			}
			toks = toks[2:]
		}
		s.At[name] = [2]int{place(align, size*n), size * n}
		toks = toks[1:]
	}
	s.Size = (s.Size + s.Align - 1) / s.Align * s.Align
	return s, toks[1:]
}

// Check reports where a Go struct differs from the C struct of that name in a
// header. The tag c of each member names C's, and the members cover the whole.
func Check(t *testing.T, text, name string, v any) {
	t.Helper()
	s, typ := Of(t, text, name), reflect.TypeOf(v)
	if s.Size != int(typ.Size()) {
		t.Errorf("%s has %d bytes, struct %s %d", typ, typ.Size(), name, s.Size)
	}
	covered := 0
	for i := range typ.NumField() {
		f := typ.Field(i)
		want, ok := s.At[f.Tag.Get("c")]
		if got := [2]int{int(f.Offset), int(f.Type.Size())}; !ok || got != want {
			t.Errorf("%s.%s is at %v, %s of struct %s at %v", typ, f.Name, got, f.Tag.Get("c"), name, want)
		}
		covered += int(f.Type.Size())
	}
	if covered != s.Size {
		t.Errorf("%s: members have %d of %d bytes: something is hidden in padding", typ, covered, s.Size)
	}
}
