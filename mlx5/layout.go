// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import "encoding/binary"

//go:generate go run devxlab.example/internal/headergen/cmd mlx5 .

// Layout describes a view field by field, for dumps and for documentation.
type Layout struct {
	Name   string // as in mlx5_ifc.h, without mlx5_ifc_ and _bits
	Bytes  int    // without a trailing array
	Fields []LayoutField
}

// LayoutField is one named field; reserved ones are left out.
type LayoutField struct {
	Name   string // nested structs are spelled out: "qpc.primary_address_path.rlid"
	Offset int    // bits from the start, most significant bit of byte 0 first
	Width  int    // bits
}

// LayoutOf returns the layout of struct mlx5_ifc_<name>_bits, or nil if this
// package has no view of it.
func LayoutOf(name string) *Layout {
	for i := range layouts {
		if layouts[i].Name == name {
			return &layouts[i]
		}
	}
	return nil
}

// Field returns the named field, or nil.
func (l *Layout) Field(name string) *LayoutField {
	for i := range l.Fields {
		if l.Fields[i].Name == name {
			return &l.Fields[i]
		}
	}
	return nil
}

// Bits returns the field's value in b, for a field of at most 64 bits that b
// holds; otherwise 0 and false.
func (f *LayoutField) Bits(b []byte) (uint64, bool) {
	if f.Width > 64 || f.Offset < 0 || f.Offset+f.Width > 8*len(b) {
		return 0, false
	}
	var v uint64
	for i := f.Offset; i < f.Offset+f.Width; i++ {
		v = v<<1 | uint64(b[i/8]>>(7-i%8))&1
	}
	return v, true
}

func bit(b byte, mask byte, on bool) byte {
	if on {
		return b | mask
	}
	return b &^ mask
}

func get32(b []byte, shift, width int) uint32 {
	return binary.BigEndian.Uint32(b) >> shift & (1<<width - 1)
}

func put32(b []byte, shift, width int, x uint32) {
	mask := uint32(1)<<width - 1
	binary.BigEndian.PutUint32(b, binary.BigEndian.Uint32(b)&^(mask<<shift)|x&mask<<shift)
}
