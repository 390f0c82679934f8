// SPDX-License-Identifier: BSD-2-Clause

package headergen

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"devxlab.example/internal/cheader"
)

func TestNames(t *testing.T) {
	for c, want := range map[string]string{
		"qpc":                        "QPC",
		"next_send_psn":              "NextSendPSN",
		"rmac_47_32":                 "RMAC4732",
		"MKEY":                       "MKey",
		"roce_address":               "RoCEAddress",
		"nic_vport_context":          "NICVPortContext",
		"set_roce_address_in":        "SetRoCEAddressIn",
		"a__b_":                      "AB",
		"translations_octword_size":  "TranslationsOctwordSize",
		"RST2INIT":                   "RST2INIT",
		"wq_umem_id":                 "WQUmemID",
		"number_of_comp_eq_requests": "NumberOfCompEQRequests",
	} {
		if got := camel(c); got != want {
			t.Errorf("camel(%s) = %s, want %s", c, got, want)
		}
	}
	for c, want := range map[string]string{
		"cmd_hca_cap":    "HCACap",
		"umem":           "UmemContext",
		"qp_2err_in":     "ToERRQPIn",
		"qp_2rst_out":    "ToRSTQPOut",
		"rst2init_qp_in": "RST2INITQPIn",
		"create_qp_in":   "CreateQPIn",
	} {
		if got := viewName(c); got != want {
			t.Errorf("viewName(%s) = %s, want %s", c, got, want)
		}
	}
}

func TestParseOverlay(t *testing.T) {
	got, err := parseOverlay("# all comment\n\nqpc dbr_umem_id 0x720 32 some header, some struct # why\n")
	want := []overlayField{{"qpc", cheader.Field{Name: "dbr_umem_id", Offset: 0x720, Width: 32, Count: 1}, "some header, some struct"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for text, want := range map[string]string{
		"qpc f 0 32":                 "overlay line 1: want: struct field offset width source…",
		"\nqpc f zero 32 source":     "overlay line 2: bad offset or width",
		"qpc f 0 0xfffffffff source": "overlay line 1: bad offset or width",
	} {
		if _, err := parseOverlay(text); err == nil || err.Error() != want {
			t.Errorf("%q: error %v, want %s", text, err, want)
		}
	}
}

func TestMerge(t *testing.T) {
	h, err := cheader.Parse("struct mlx5_ifc_s_bits { u8 a[0x20]; u8 reserved_at_20[0x60]; u8 b[0x20]; u8 pas[][0x40]; };")
	if err != nil {
		t.Fatal(err)
	}
	add := func(name string, offset, width int) error {
		s, err := h.Struct("s")
		if err != nil {
			t.Fatal(err)
		}
		c := *s
		c.Fields = append([]cheader.Field(nil), s.Fields...)
		err = merge(&c, overlayField{"s", cheader.Field{Name: name, Offset: offset, Width: width, Count: 1}, "test"})
		f, found := c.Field(name)
		if err == nil && (!found || f.Offset != offset || f.Width != width) {
			t.Errorf("%s at %#x+%#x: the struct has it at %#x+%#x", name, offset, width, f.Offset, f.Width)
		}
		for i := 1; i < len(c.Fields); i++ {
			if c.Fields[i].Offset < c.Fields[i-1].Offset {
				t.Errorf("after %s the fields are out of order", name)
			}
		}
		return err
	}
	for _, c := range []struct {
		name          string
		offset, width int
		want          string
	}{
		{"new", 0x20, 0x20, ""},
		{"new", 0x60, 0x20, ""},
		{"b", 0x80, 0x20, ""}, // a newer header has it
		{"b", 0x40, 0x20, "overlay s.b is at 0x40+0x20, the header has it at 0x80+0x20"},
		{"new", 0x1f, 1, "overlay s.new overlaps a"},
		{"new", 0x70, 0x11, "overlay s.new overlaps b"},
		{"new", 0xa0, 1, "overlay s.new is outside the struct"},
	} {
		got := ""
		if err := add(c.name, c.offset, c.width); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s at %#x+%#x: %q, want %q", c.name, c.offset, c.width, got, c.want)
		}
	}
}

// The generator refuses a field that its accessors cannot express, instead of
// writing one that is wrong.
func TestAccessRefuses(t *testing.T) {
	for body, want := range map[string]string{
		"u8 r[0x1c]; u8 f[0x8];":     "field of 8 bits at bit 0x1c crosses a dword",
		"u8 r[0x10]; u8 f[0x18];":    "field of 24 bits at bit 0x10 crosses a dword",
		"u8 f[0x28];":                "field of 40 bits at bit 0x0",
		"u8 r[0x4]; u8 f[0x40];":     "field of 64 bits at bit 0x4",
		"u8 r[0x4]; u8 f[0x80];":     "wide field at bit 0x4",
		"u8 r[0x4]; u8 f[4][0x8];":   "array at bit 0x4",
		"u8 r[0x4]; u8 f[][0x8];":    "trailing array at bit 0x4",
		"u8 r; struct { u8 g; } f;":  "array at bit 0x1",
		"u8 r[0x8]; u8 f[3][0x4];":   "array at bit 0x8",
		"u8 r[0x1f]; u8 f[0x2];":     "field of 2 bits at bit 0x1f crosses a dword",
		"u8 r[0x20]; u8 f[0x84];":    "wide field at bit 0x20",
		"u8 r[0x8]; u8 f[0x18];":     "",
		"u8 r[0x8]; u8 f[0x40];":     "",
		"u8 r[0x6]; u8 f[0x4];":      "",
		"u8 r[0x8]; u8 f[0x10];":     "",
		"u8 r[0x18]; u8 f[6][0x8];":  "",
		"u8 r[0x20]; u8 f[][0x20];":  "",
		"struct mlx5_ifc_o_bits f;":  "",
		"u8 r[0x40]; u8 f[0x80];":    "",
		"u8 r[0x10]; u8 f[0x8];":     "",
		"u8 r[0x3]; u8 f[0x1];":      "",
		"u8 r[0x40]; u8 f[0x20];":    "",
		"struct { u8 g[0x20]; } f;":  "",
		"u8 r[0x10]; u8 f[0x1];":     "",
		"u8 r[0x8]; u8 f[0x8];":      "",
		"u8 r[0x2]; u8 f[2][3][0x8]": "array at bit 0x2",
	} {
		if !strings.HasSuffix(body, ";") {
			body += ";"
		}
		h, err := cheader.Parse("struct mlx5_ifc_o_bits { u8 x[0x20]; }; struct mlx5_ifc_s_bits {" + body + "};")
		if err != nil {
			t.Fatal(err)
		}
		s, err := h.Struct("s")
		if err != nil {
			t.Fatal(err)
		}
		f, _ := s.Field("f")
		got := ""
		if err := access(&bytes.Buffer{}, "S", f, map[string]string{"o": "O"}); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}

// Headers that were named and are not there, or are others than ours, are an
// error and no reason to skip.
func TestNamedHeaders(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DEVXLAB_KERNEL_HEADERS", dir)
	if got, err := KernelHeaders(); err != nil || got != filepath.Join(dir, "include/linux/mlx5") {
		t.Errorf("KernelHeaders = %s, %v", got, err)
	}
	if _, err := MLX5(""); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNoHeaders) {
		t.Errorf("without headers: %v", err)
	}
	sub := filepath.Join(dir, "include/linux/mlx5")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(sub, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []string{"mlx5_ifc_fpga.h", "device.h", "qp.h"} {
		write(n, "")
	}
	write("mlx5_ifc.h", "struct mlx5_ifc_t_bits { int a; };")
	if _, err := MLX5(""); err == nil || err.Error() != `struct t: unexpected "int"` {
		t.Errorf("bad header: %v", err)
	}
	write("mlx5_ifc.h", "")
	for overlay, want := range map[string]string{
		"":               "no struct mlx5_ifc_general_obj_in_cmd_hdr_bits in the header",
		"qpc f 0 1 test": "no struct mlx5_ifc_qpc_bits in the header",
		"qpc":            "overlay line 1: want: struct field offset width source…",
	} {
		if _, err := MLX5(overlay); err == nil || err.Error() != want {
			t.Errorf("empty header, overlay %q: %v, want %s", overlay, err, want)
		}
	}
}

// What is committed and what is made: the same, another, none.
func TestCompare(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Compare(dir, map[string][]byte{"a.go": []byte("a")}); err != nil {
		t.Error(err)
	}
	err := Compare(dir, map[string][]byte{"a.go": []byte("b"), "c.go": nil})
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "a.go differs") {
		t.Error(err)
	}
}
