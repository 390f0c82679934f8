// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"fmt"
	"strings"
	"testing"

	"devxlab.example/internal/cheader"
	"devxlab.example/internal/cstruct"
)

// spec is the drivers' declarations, attribute by attribute: name, kind, bytes,
// ! for a mandatory one. CONST is exactly 8 bytes (UVERBS_ATTR_CONST_IN), FLAGS
// is 4 to 8 (UVERBS_ATTR_FLAGS_IN).
var spec = map[string]string{
	"INVOKE_WRITE":              "WRITE_CMD in CONST ! | CORE_IN in 4+ | CORE_OUT out 0+ | UHW_IN in 0+ | UHW_OUT out 0+",
	"GET_CONTEXT":               "NUM_COMP_VECTORS out 4 | CORE_SUPPORT out 8 | UHW_IN in 0+ | UHW_OUT out 0+",
	"DEVX_OTHER":                "CMD_IN in 16+ ! | CMD_OUT out 16+ !",
	"DEVX_QUERY_UAR":            "USER_IDX in 4 ! | DEV_IDX out 4 !",
	"DEVX_QUERY_EQN":            "USER_VEC in 4 ! | DEV_EQN out 4 !",
	"DEVX_SUBSCRIBE_EVENT":      "FD_HANDLE usefd DEVX_ASYNC_EVENT_FD ! | OBJ_HANDLE use DEVX_OBJ | TYPE_NUM_LIST in 2+ ! | COOKIE in 8 | FD_NUM in 4",
	"DEVX_OBJ_CREATE":           "HANDLE new DEVX_OBJ ! | CMD_IN in 16+ ! | CMD_OUT out 16+ !",
	"DEVX_OBJ_DESTROY":          "HANDLE drop DEVX_OBJ !",
	"DEVX_OBJ_MODIFY":           "HANDLE use ANY ! | CMD_IN in 16+ ! | CMD_OUT out 16+ !",
	"DEVX_OBJ_QUERY":            "HANDLE use ANY ! | CMD_IN in 16+ ! | CMD_OUT out 16+ !",
	"DEVX_OBJ_ASYNC_QUERY":      "HANDLE use ANY ! | CMD_IN in 16+ ! | OUT_LEN in CONST ! | FD usefd DEVX_ASYNC_CMD_FD ! | WR_ID in 8 !",
	"DEVX_UMEM_REG":             "HANDLE new DEVX_UMEM ! | ADDR in 8 ! | LEN in 8 ! | ACCESS in FLAGS | PGSZ_BITMAP in CONST | OUT_ID out 4 !",
	"DEVX_UMEM_DEREG":           "HANDLE drop DEVX_UMEM !",
	"DEVX_ASYNC_CMD_FD_ALLOC":   "HANDLE newfd DEVX_ASYNC_CMD_FD !",
	"DEVX_ASYNC_EVENT_FD_ALLOC": "HANDLE newfd DEVX_ASYNC_EVENT_FD ! | FLAGS in FLAGS !",
	"UAR_OBJ_ALLOC":             "HANDLE new UAR ! | TYPE in CONST ! | PAGE_ID out 4 ! | MMAP_LENGTH out 4 ! | MMAP_OFFSET out 8 !",
	"UAR_OBJ_DESTROY":           "HANDLE drop UAR !",
}

var kinds = map[string]Kind{"in": PtrIn, "out": PtrOut, "new": NewHandle, "use": UseHandle, "drop": DropHandle, "newfd": NewFD, "usefd": UseFD}

var objects = map[string]uint16{
	"DEVX_OBJ": MLX5_IB_OBJECT_DEVX_OBJ, "DEVX_UMEM": MLX5_IB_OBJECT_DEVX_UMEM, "DEVX_ASYNC_CMD_FD": MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD,
	"DEVX_ASYNC_EVENT_FD": MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD, "UAR": MLX5_IB_OBJECT_UAR, "ANY": AnyObject,
}

// parseSpec reads one attribute of spec; its number is left out.
func parseSpec(t *testing.T, text string) (a AttrSpec) {
	w := strings.Fields(text)
	a.Name = w[0]
	a.Mandatory = w[len(w)-1] == "!"
	kind, ok := kinds[w[1]]
	if !ok {
		t.Fatalf("kind of %q", text)
	}
	a.Kind = kind
	if kind != PtrIn && kind != PtrOut {
		if a.Object, ok = objects[w[2]]; !ok {
			t.Fatalf("object of %q", text)
		}
		return a
	}
	switch size, open := strings.CutSuffix(w[2], "+"); size {
	case "CONST":
		a.Min, a.Max = 8, 8
	case "FLAGS":
		a.Min, a.Max = 4, 8
	default:
		if _, err := fmt.Sscan(size, &a.Min); err != nil {
			t.Fatalf("size of %q: %v", text, err)
		}
		if a.Max = a.Min; open {
			a.Max = 0xffff
		}
	}
	return a
}

func TestTable(t *testing.T) {
	if len(Methods()) != len(spec) {
		t.Errorf("%d methods, want %d", len(Methods()), len(spec))
	}
	for _, m := range Methods() {
		text, ok := spec[m.Name]
		if !ok {
			t.Errorf("there is no method %s", m.Name)
			continue
		}
		want := map[string]AttrSpec{}
		for a := range strings.SplitSeq(text, "|") {
			p := parseSpec(t, a)
			want[p.Name] = p
		}
		for _, a := range m.Attrs {
			w := want[a.Name]
			w.ID = a.ID // see TestNumbers
			if a != w {
				t.Errorf("%s: %+v, want %+v", m.Name, a, w)
			}
			delete(want, a.Name)
		}
		for name := range want {
			t.Errorf("%s lacks %s", m.Name, name)
		}
	}
}

func TestTableIsUnambiguous(t *testing.T) {
	type key struct{ object, method uint16 }
	byID, byName := map[key]string{}, map[string]bool{}
	for i := range methods {
		m := &methods[i]
		k := key{m.Object, m.ID}
		if other, dup := byID[k]; dup || byName[m.Name] {
			t.Errorf("%s has the numbers or the name of %s", m.Name, other)
		}
		byID[k], byName[m.Name] = m.Name, true
		if Lookup(m.Object, m.ID) != m {
			t.Errorf("Lookup does not find %s", m.Name)
		}
		if n := len(m.Attrs); n == 0 || n > 8 {
			t.Errorf("%s has %d attributes, want 1 to 8", m.Name, n)
		}
		if HeaderSize+len(m.Attrs)*AttrSize > MaxIoctlSize {
			t.Errorf("%s does not fit in an ioctl", m.Name)
		}
		ids := map[uint16]string{}
		for _, a := range m.Attrs {
			if other, dup := ids[a.ID]; dup {
				t.Errorf("%s: %s and %s have the number %#x", m.Name, a.Name, other, a.ID)
			}
			ids[a.ID] = a.Name
		}
	}
	for _, k := range []key{{MLX5_IB_OBJECT_DEVX, 0xffff}, {0xffff, 0}, {UVERBS_OBJECT_PD, UVERBS_METHOD_GET_CONTEXT}} {
		if m := Lookup(k.object, k.method); m != nil {
			t.Errorf("Lookup(%#x, %#x) = %s", k.object, k.method, m.Name)
		}
	}
}

// The numbers are those that the headers give to the names.
func TestNumbers(t *testing.T) {
	h, err := cheader.Parse(cstruct.Headers(t, "ib_user_ioctl_cmds.h", "mlx5_user_ioctl_cmds.h"))
	if err != nil {
		t.Fatal(err)
	}
	number := func(names ...string) uint64 {
		for _, n := range names {
			if v, ok := h.Value(n); ok {
				return v
			}
		}
		t.Errorf("the headers have none of %v", names)
		return 1 << 32
	}
	for _, m := range Methods() {
		if v := number("MLX5_IB_METHOD_"+m.Name, "UVERBS_METHOD_"+m.Name); v != uint64(m.ID) {
			t.Errorf("%s is %#x, want %#x", m.Name, m.ID, v)
		}
		prefix := "MLX5_IB_ATTR_" + strings.Replace(m.Name, "DEVX_OBJ_ASYNC_QUERY", "DEVX_OBJ_QUERY_ASYNC", 1) + "_"
		for _, a := range m.Attrs {
			if v := number(prefix+a.Name, "UVERBS_ATTR_"+m.Name+"_"+a.Name, "UVERBS_ATTR_"+a.Name); v != uint64(a.ID) {
				t.Errorf("%s %s is %#x, want %#x", m.Name, a.Name, a.ID, v)
			}
		}
	}
}
