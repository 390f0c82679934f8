// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/internal/usermem"
)

// maxAttrs is at least the number of attributes of any method.
const maxAttrs = 8

// bundle is a decoded ioctl: the values of a method's attributes, in the order
// of the method's table.
type bundle struct {
	method *abi.Method
	vals   [maxAttrs]value
}

type value struct {
	present bool
	attr    abi.Attr // as user space wrote it; handles are returned in it
	data    []byte   // of PtrIn longer than 8 bytes and of PtrOut: user memory
	n       int
}

// get returns the attribute with the id.
func (b *bundle) get(id uint16) *value {
	for i := range b.method.Attrs {
		if b.method.Attrs[i].ID == id {
			return &b.vals[i]
		}
	}
	return &value{} // no such attribute: absent
}

// u64 returns an inline integer.
func (v *value) u64() uint64 {
	x := v.attr.Data()
	if v.n < 8 {
		x &= 1<<(8*v.n) - 1
	}
	return x
}

// bytes returns input, wherever it stands.
func (v *value) bytes() []byte {
	if v.n <= abi.InlineSize {
		return v.attr[8 : 8+v.n]
	}
	return v.data
}

// put writes output and marks it valid.
func (v *value) put(b []byte) {
	if v.present {
		copy(v.data, b)
		v.attr.SetFlags(v.attr.Flags() | abi.UVERBS_ATTR_F_VALID_OUTPUT)
	}
}

func (v *value) put32(x uint32) {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], x)
	v.put(b[:])
}

func (v *value) put64(x uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], x)
	v.put(b[:])
}

// decode reads an ioctl as ib_uverbs_ioctl does
// (drivers/infiniband/core/uverbs_ioctl.c), with the same errors. Whether
// handles exist is looked up later; whether addresses do, here.
func decode(b *bundle, hdr []byte) unix.Errno {
	if len(hdr) < abi.HeaderSize {
		return unix.EFAULT
	}
	h := abi.Header(hdr)
	n := int(h.NumAttrs())
	switch length := int(h.Length()); {
	case length > abi.MaxIoctlSize || length != abi.HeaderSize+n*abi.AttrSize:
		return unix.EINVAL
	case length > len(hdr):
		return unix.EFAULT
	case h.Reserved1() != 0 || h.Reserved2() != 0:
		return unix.EPROTONOSUPPORT
	case h.DriverID() != abi.RDMA_DRIVER_MLX5:
		return unix.EINVAL
	}
	if b.method = abi.Lookup(h.ObjectID(), h.MethodID()); b.method == nil {
		return unix.EPROTONOSUPPORT
	}
	for i := range n {
		if errno := b.take(h.Attr(i)); errno != 0 {
			return errno
		}
	}
	for i := range b.method.Attrs {
		if b.method.Attrs[i].Mandatory && !b.vals[i].present {
			return unix.EINVAL
		}
	}
	return 0
}

func (b *bundle) take(a abi.Attr) unix.Errno {
	for i := range b.method.Attrs {
		spec := &b.method.Attrs[i]
		if spec.ID != a.ID() {
			continue
		}
		v := &b.vals[i]
		if v.present {
			return unix.EINVAL
		}
		*v = value{present: true, attr: a, n: int(a.Len())}
		return v.check(spec)
	}
	if a.Flags()&abi.UVERBS_ATTR_F_MANDATORY != 0 {
		return unix.EPROTONOSUPPORT
	}
	return 0
}

func (v *value) check(spec *abi.AttrSpec) unix.Errno {
	if v.attr.Reserved() != 0 {
		return unix.EINVAL
	}
	switch spec.Kind {
	case abi.PtrIn, abi.PtrOut:
		if v.n < int(spec.Min) || v.n > int(spec.Max) {
			return unix.EINVAL
		}
		if spec.Kind == abi.PtrIn && v.n <= abi.InlineSize {
			return 0
		}
		var mapped bool
		if v.data, mapped = usermem.Resolve(v.attr.Data(), v.n); !mapped {
			return unix.EFAULT
		}
	default:
		if v.n != 0 {
			return unix.EINVAL
		}
	}
	return 0
}
