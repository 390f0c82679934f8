// SPDX-License-Identifier: BSD-2-Clause

// Package cheader reads as much C as the kernel's interface headers use:
// enumerations and #define constants, and the mlx5_ifc.h convention in which
// a struct is a sequence of "u8 name[bits]" members.
//
// It is used by the generators of packages mlx5 and devx/abi and by the tests
// that hold the committed output against the installed headers. It is not a
// C parser: preprocessor conditionals are ignored, of two definitions of a
// constant the first counts, a constant whose value it cannot compute is left
// out, and so is a struct whose name does not begin with mlx5_ifc_. One that
// does and breaks the convention is an error.
package cheader

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Const is an enumerator or an object-like macro with an integer value.
type Const struct {
	Name  string
	Value uint64
	Enum  string // name of the enclosing enum, "" for an anonymous one or a macro
}

// Field is a member of a bit-level struct.
type Field struct {
	Name   string
	Offset int // bits from the start of the struct
	Width  int // bits of one element
	Count  int // number of elements: 1 for a scalar, 0 for a flexible array
	Type   *Struct
}

// Reserved reports whether the header leaves the field without a meaning.
func (f Field) Reserved() bool { return strings.HasPrefix(f.Name, "reserved_") }

// Struct is the layout of a struct or union of mlx5_ifc.h, without its
// mlx5_ifc_ prefix and its _bits suffix. Members of anonymous structs and
// unions appear in Fields at their absolute offsets.
type Struct struct {
	Name   string
	Bits   int
	Fields []Field
}

// Field returns the named member.
func (s *Struct) Field(name string) (Field, bool) {
	for _, f := range s.Fields {
		if f.Name == name {
			return f, true
		}
	}
	return Field{}, false
}

// Limits, far above what a header of the kernel has, keep input that is none
// from exhausting stack and memory.
const (
	maxNesting = 64
	maxBits    = 1 << 28 // of a struct
	maxFields  = 1 << 16 // that anonymous members bring in, in all
)

// Header is what was found in one or more header files.
type Header struct {
	Consts  []Const
	structs map[string]*decl
	done    map[string]*Struct
	active  map[string]bool // being laid out
	fields  int             // see maxFields
	values  map[string]uint64
}

// Value returns the value of an enumerator or macro.
func (h *Header) Value(name string) (uint64, bool) {
	v, ok := h.values[name]
	return v, ok
}

// Struct returns the layout of struct mlx5_ifc_<name>_bits.
func (h *Header) Struct(name string) (*Struct, error) { return h.resolve(name, 0) }

type member struct {
	name  string
	bits  int
	dims  [][]string // expressions; a constant may be defined further down
	typ   string     // name of another struct
	inner *decl
}

type decl struct {
	union   bool
	members []member
}

var (
	comment = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	ident   = regexp.MustCompile(`^[A-Za-z_]\w*$`)
	define  = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)[ \t]+(.+)$`)
	cpp     = regexp.MustCompile(`(?m)^[ \t]*#([^\n\\]|\\.|\\\n)*$`)
	token   = regexp.MustCompile(`[A-Za-z_]\w*|0[xX][0-9a-fA-F]+[uUlL]*|\d+[uUlL]*|<<|>>|'.'|.`)
)

// Parse reads the text of the given headers, in order; constants of an
// earlier one may be used in a later one.
func Parse(texts ...string) (*Header, error) {
	h := &Header{structs: map[string]*decl{}, done: map[string]*Struct{}, active: map[string]bool{}, values: map[string]uint64{}}
	for _, text := range texts {
		text = comment.ReplaceAllString(text, " ")
		for _, m := range define.FindAllStringSubmatch(text, -1) {
			if v, err := h.eval(tokens(m[2])); err == nil {
				h.add(Const{Name: m[1], Value: v})
			}
		}
		p := &parser{h: h, toks: tokens(cpp.ReplaceAllString(text, ""))}
		if err := p.file(); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func tokens(s string) []string {
	var out []string
	for _, t := range token.FindAllString(s, -1) {
		if strings.TrimSpace(t) != "" {
			out = append(out, t)
		}
	}
	return out
}

func (h *Header) add(c Const) {
	if _, dup := h.values[c.Name]; dup {
		return
	}
	h.values[c.Name] = c.Value
	h.Consts = append(h.Consts, c)
}

type parser struct {
	h    *Header
	toks []string
	i    int
}

func (p *parser) peek(n int) string {
	if p.i+n < len(p.toks) {
		return p.toks[p.i+n]
	}
	return ""
}

func (p *parser) file() error {
	for p.i < len(p.toks) {
		switch t := p.peek(0); {
		case t == "enum" && (p.peek(1) == "{" || p.peek(2) == "{"):
			if err := p.enum(); err != nil {
				return err
			}
		case (t == "struct" || t == "union") && p.peek(2) == "{" && strings.HasPrefix(p.peek(1), "mlx5_ifc_"):
			name := trim(p.peek(1))
			p.i += 3
			d, err := p.body(t == "union", 0)
			if err != nil {
				return fmt.Errorf("struct %s: %w", name, err)
			}
			p.h.structs[name] = d
		default:
			p.i++
		}
	}
	return nil
}

func trim(s string) string {
	return strings.TrimSuffix(strings.TrimPrefix(s, "mlx5_ifc_"), "_bits")
}

func (p *parser) enum() error {
	p.i++
	name := ""
	if p.peek(0) != "{" {
		name = p.peek(0)
		p.i++
	}
	p.i++
	next, known := uint64(0), true // the value of an enumerator without one of its own
	for p.peek(0) != "}" {
		id := p.peek(0)
		if !ident.MatchString(id) {
			return fmt.Errorf("enum %s: unexpected %q", name, id)
		}
		p.i++
		if p.peek(0) == "=" {
			p.i++
			start, depth := p.i, 0
			for p.i < len(p.toks) && (depth > 0 || p.peek(0) != "," && p.peek(0) != "}") {
				switch p.peek(0) {
				case "(":
					depth++
				case ")":
					depth--
				}
				p.i++
			}
			v, err := p.h.eval(p.toks[start:p.i])
			known = err == nil
			next = v
		}
		if known {
			p.h.add(Const{Name: id, Value: next, Enum: name})
		}
		next++
		switch p.peek(0) {
		case ",":
			p.i++
		case "}":
		default:
			return fmt.Errorf("enum %s: unexpected %q after %s", name, p.peek(0), id)
		}
	}
	p.i++
	return nil
}

// body parses members up to and including the closing brace.
func (p *parser) body(union bool, depth int) (*decl, error) {
	if depth > maxNesting {
		return nil, errNesting
	}
	d := &decl{union: union}
	for p.peek(0) != "}" {
		var m member
		switch t := p.peek(0); t {
		case "u8", "__be16", "__be32":
			m.bits = 1
			p.i++
		case "struct", "union":
			if p.peek(1) == "{" {
				p.i += 2
				inner, err := p.body(t == "union", depth+1)
				if err != nil {
					return nil, err
				}
				m.inner = inner
			} else {
				m.typ = trim(p.peek(1))
				p.i += 2
			}
		default:
			return nil, fmt.Errorf("unexpected %q", t)
		}
		if p.peek(0) != ";" {
			if m.name = p.peek(0); !ident.MatchString(m.name) {
				return nil, fmt.Errorf("unexpected %q in the place of a member's name", m.name)
			}
			p.i++
		} else if m.typ == "" && m.inner == nil {
			return nil, fmt.Errorf("a member without a name")
		}
		for p.peek(0) == "[" {
			start := p.i + 1
			for p.i < len(p.toks) && p.peek(0) != "]" {
				p.i++
			}
			m.dims = append(m.dims, p.toks[start:p.i])
			p.i++
		}
		if p.peek(0) != ";" {
			return nil, fmt.Errorf("member %s: unexpected %q", m.name, p.peek(0))
		}
		p.i++
		d.members = append(d.members, m)
	}
	p.i++
	return d, nil
}

func (h *Header) resolve(name string, depth int) (*Struct, error) {
	if s := h.done[name]; s != nil {
		return s, nil
	}
	d := h.structs[name]
	if d == nil {
		return nil, fmt.Errorf("no struct mlx5_ifc_%s_bits in the header", name)
	}
	if h.active[name] {
		return nil, fmt.Errorf("struct %s contains itself", name)
	}
	h.active[name] = true
	s, err := h.layout(name, d, depth)
	delete(h.active, name)
	if err != nil {
		return nil, err
	}
	h.done[name] = s
	return s, nil
}

func (h *Header) layout(name string, d *decl, depth int) (*Struct, error) {
	if depth > maxNesting {
		return nil, errNesting
	}
	s := &Struct{Name: name}
	at := 0
	for _, m := range d.members {
		f := Field{Name: m.name, Offset: at, Count: 1}
		if d.union {
			f.Offset = 0
		}
		var dims []int
		for _, e := range m.dims {
			n := uint64(0) // flexible
			if len(e) > 0 {
				var err error
				if n, err = h.eval(e); err != nil {
					return nil, fmt.Errorf("member %s: %w", m.name, err)
				}
			}
			if n > maxBits {
				return nil, fmt.Errorf("member %s: dimension %d is over the limit of %d", m.name, n, maxBits)
			}
			dims = append(dims, int(n))
		}
		switch {
		case m.typ != "":
			t, err := h.resolve(m.typ, depth+1)
			if err != nil {
				return nil, err
			}
			f.Type, f.Width = t, t.Bits
		case m.inner != nil:
			t, err := h.layout("", m.inner, depth+1)
			if err != nil {
				return nil, err
			}
			f.Type, f.Width = t, t.Bits
		case len(dims) > 0: // u8: the last dimension is the width
			f.Width, dims = dims[len(dims)-1], dims[:len(dims)-1]
		default:
			f.Width = m.bits
		}
		for _, n := range dims {
			if f.Count *= n; f.Count > maxBits {
				break // before it overflows
			}
		}
		size := f.Width * f.Count
		if f.Count > maxBits || size > maxBits || at+size > maxBits {
			return nil, fmt.Errorf("member %s: the struct is over the limit of %d bits", m.name, maxBits)
		}
		if m.name == "" && f.Type != nil { // anonymous: its members are ours
			if h.fields += len(f.Type.Fields); h.fields > maxFields {
				return nil, fmt.Errorf("more than %d members of anonymous structs", maxFields)
			}
			for _, g := range f.Type.Fields {
				g.Offset += f.Offset
				s.Fields = append(s.Fields, g)
			}
		} else {
			s.Fields = append(s.Fields, f)
		}
		if d.union {
			s.Bits = max(s.Bits, size)
		} else {
			at += size
			s.Bits = at
		}
	}
	return s, nil
}

// eval computes a constant expression of integers, known names, casts,
// parentheses and the operators | & << >> + - * ~ (binary ones with C's
// precedence), in 64 bits.
func (h *Header) eval(toks []string) (uint64, error) {
	e := &expr{h: h, toks: toks}
	v, err := e.binary(0)
	if err == nil && e.i != len(toks) {
		err = fmt.Errorf("unexpected %q in expression", toks[e.i])
	}
	return v, err
}

type expr struct {
	h     *Header
	toks  []string
	i     int
	depth int
}

var (
	errShift   = errors.New("shift by more than 63 bits")
	errNesting = fmt.Errorf("nested more than %d deep", maxNesting)
)

// ctypes are the types that an expression may be cast to, with their bits;
// negative for a signed one.
var ctypes = map[string]int{"__u8": 8, "__u16": 16, "__u32": 32, "__u64": 64, "int": -32}

func cast(v uint64, bits int) uint64 {
	if bits < 0 {
		return uint64(int64(v<<(64+bits)) >> (64 + bits))
	}
	return v << (64 - bits) >> (64 - bits)
}

var prec = map[string]int{"|": 1, "&": 2, "<<": 3, ">>": 3, "+": 4, "-": 4, "*": 5}

func (e *expr) binary(least int) (uint64, error) {
	v, err := e.unary()
	for err == nil && e.i < len(e.toks) {
		op := e.toks[e.i]
		p := prec[op]
		if p == 0 || p <= least {
			break
		}
		e.i++
		var r uint64
		if r, err = e.binary(p); err != nil {
			break
		}
		switch op {
		case "|":
			v |= r
		case "&":
			v &= r
		case "<<":
			if r > 63 {
				return 0, errShift
			}
			v <<= r
		case ">>":
			if r > 63 {
				return 0, errShift
			}
			v >>= r
		case "+":
			v += r
		case "-":
			v -= r
		case "*":
			v *= r
		}
	}
	return v, err
}

func (e *expr) unary() (uint64, error) {
	if e.depth++; e.depth > maxNesting {
		return 0, errNesting
	}
	defer func() { e.depth-- }()
	if e.i >= len(e.toks) {
		return 0, fmt.Errorf("expression ends early")
	}
	t := e.toks[e.i]
	e.i++
	switch {
	case t == "(" && e.i+1 < len(e.toks) && ctypes[e.toks[e.i]] != 0 && e.toks[e.i+1] == ")": // a cast
		bits := ctypes[e.toks[e.i]]
		e.i += 2
		v, err := e.unary()
		return cast(v, bits), err
	case t == "(":
		v, err := e.binary(0)
		if err == nil && (e.i >= len(e.toks) || e.toks[e.i] != ")") {
			err = fmt.Errorf("missing )")
		}
		e.i++
		return v, err
	case t == "-":
		v, err := e.unary()
		return -v, err
	case t == "~":
		v, err := e.unary()
		return ^v, err
	case t[0] >= '0' && t[0] <= '9':
		return strconv.ParseUint(strings.TrimRight(t, "uUlL"), 0, 64)
	case (t == "BIT" || t == "BIT_ULL") && e.i < len(e.toks) && e.toks[e.i] == "(":
		v, err := e.unary()
		if err == nil && v > 63 {
			err = errShift
		}
		return 1 << (v & 63), err
	}
	if v, ok := e.h.values[t]; ok {
		return v, nil
	}
	return 0, fmt.Errorf("%q is not a constant", t)
}
