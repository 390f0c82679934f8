// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/internal/usermem"
)

// maxAttrs is the most attributes that any method has.
const maxAttrs = 6

// bundle is a decoded ioctl: the values of a method's attributes, in the order
// of the method's table.
type bundle struct {
	method *abi.Method
	vals   [maxAttrs]value
}

type value struct {
	present bool
	n       int
	attr    abi.Attr // as user space wrote it; flags, handles and descriptors are returned in it
	word    uint64   // its data, read once: user space may change it
	data    []byte   // input longer than 8 bytes
	obj     *object  // of UseHandle, counted until release; of DropHandle
	ch      *channel // of UseFD
}

// methods finds a method by object and method id. Both are small, with those of
// drivers above 0x1000.
var methods [2 * objectIDs][2 * methodIDs]*abi.Method

const objectIDs, methodIDs = 16, 8

func init() {
	all := abi.Methods()
	for i := range all {
		m := &all[i]
		if len(m.Attrs) > maxAttrs {
			panic("uverbs: maxAttrs is too small for " + m.Name)
		}
		methods[slot(m.Object, objectIDs)][slot(m.ID, methodIDs)] = m
	}
}

// slot returns the place of an id among 2n, or -1.
func slot(id uint16, n int) int {
	switch i := int(id &^ 0x1000); {
	case i >= n:
		return -1
	case id >= 0x1000:
		return n + i
	default:
		return i
	}
}

func lookup(object, method uint16) *abi.Method {
	o, m := slot(object, objectIDs), slot(method, methodIDs)
	if o < 0 || m < 0 {
		return nil
	}
	return methods[o][m]
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

// release ends the call's use of objects.
func (b *bundle) release() {
	if b.method == nil {
		return
	}
	for i := range b.method.Attrs {
		if o := b.vals[i].obj; o != nil && b.method.Attrs[i].Kind == abi.UseHandle {
			o.unuse()
		}
	}
}

// u64 returns an inline integer, 0 if the attribute is absent.
func (v *value) u64() uint64 {
	if v.n < 8 {
		return v.word & (1<<(8*v.n) - 1)
	}
	return v.word
}

// constant returns a constant, or otherwise if the attribute is absent. Its
// attribute has 8 bytes (UVERBS_ATTR_CONST_IN).
func (v *value) constant(otherwise uint64) (uint64, unix.Errno) {
	switch {
	case !v.present:
		return otherwise, 0
	case v.n != 8:
		return 0, unix.EINVAL
	}
	return v.word, 0
}

// flags returns a set of bits among those allowed, none if the attribute is
// absent (uverbs_get_flags32).
func (v *value) flags(allowed uint64) (uint64, unix.Errno) {
	if f := v.u64(); !v.present || (v.n == 4 || v.n == 8) && f&^allowed == 0 {
		return f, 0
	}
	return 0, unix.EINVAL
}

// bytes returns input, wherever it stands.
func (v *value) bytes() []byte {
	if v.n <= abi.InlineSize {
		return v.attr[8 : 8+v.n]
	}
	return v.data
}

// put writes output, as much as there is room for, and marks it valid
// (uverbs_copy_to). An absent attribute takes nothing.
func (v *value) put(b []byte) unix.Errno {
	if !v.present {
		return 0
	}
	b = b[:min(len(b), v.n)]
	to, mapped := usermem.Resolve(v.word, len(b))
	if !mapped && len(b) > 0 {
		return unix.EFAULT
	}
	copy(to, b)
	v.attr.SetFlags(v.attr.Flags() | abi.UVERBS_ATTR_F_VALID_OUTPUT)
	return 0
}

func (v *value) put32(x uint32) unix.Errno {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], x)
	return v.put(b[:])
}

func (v *value) put64(x uint64) unix.Errno {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], x)
	return v.put(b[:])
}

// decode reads an ioctl as ib_uverbs_ioctl does
// (drivers/infiniband/core/uverbs_ioctl.c), with the same errors in the same
// order. b.release undoes what it has taken, also after an error.
func (f *File) decode(b *bundle, hdr []byte) unix.Errno {
	if len(hdr) < abi.HeaderSize {
		return unix.EFAULT
	}
	h := abi.Header(hdr)
	n := int(h.NumAttrs())
	length := int(h.Length())
	switch {
	case length > abi.MaxIoctlSize || length != abi.HeaderSize+n*abi.AttrSize:
		return unix.EINVAL
	case h.Reserved1() != 0 || h.Reserved2() != 0:
		return unix.EPROTONOSUPPORT
	case h.DriverID() != abi.RDMA_DRIVER_MLX5:
		return unix.EINVAL
	}
	b.method = lookup(h.ObjectID(), h.MethodID())
	switch {
	case b.method == nil || !f.d.offers(b.method.Object):
		return unix.EPROTONOSUPPORT
	case f.gone.Load(): // uverbs_disassociate_api
		return unix.EIO
	case length > len(hdr):
		return unix.EFAULT
	}
	for i := range n {
		if errno := f.take(b, i, h.Attr(i)); errno != 0 {
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

// offers reports whether the device has the object: without user contexts in
// the firmware, the driver takes the DevX ones away (devx_is_supported).
func (d *Device) offers(object uint16) bool {
	return d.logMaxUCTX != 0 || object < abi.MLX5_IB_OBJECT_DEVX || object > abi.MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD
}

// take reads attribute number i of user space (uverbs_set_attr).
func (f *File) take(b *bundle, i int, a abi.Attr) unix.Errno {
	specs := b.method.Attrs
	id := a.ID()
	if i >= len(specs) || specs[i].ID != id { // most come in the table's order
		for i = range specs {
			if specs[i].ID == id {
				break
			}
		}
	}
	switch spec, v := &specs[i], &b.vals[i]; {
	case spec.ID != id && a.Flags()&abi.UVERBS_ATTR_F_MANDATORY != 0:
		return unix.EPROTONOSUPPORT
	case spec.ID != id:
		return 0
	case v.present:
		return unix.EINVAL
	default:
		v.attr, v.n, v.word = a, int(a.Len()), a.Data()
		errno := f.process(v, spec)
		v.present = errno == 0
		return errno
	}
}

// process is uverbs_process_attr.
func (f *File) process(v *value, spec *abi.AttrSpec) (errno unix.Errno) {
	if spec.Kind == abi.PtrIn || spec.Kind == abi.PtrOut {
		if v.n < int(spec.Min) || v.n > int(spec.Max) || v.attr.Reserved() != 0 {
			return unix.EINVAL
		}
		if spec.Kind == abi.PtrIn && v.n > abi.InlineSize {
			var mapped bool
			if v.data, mapped = usermem.Resolve(v.word, v.n); !mapped {
				return unix.EFAULT
			}
		}
		return 0
	}
	if v.attr.Reserved() != 0 || v.n != 0 {
		return unix.EINVAL
	}
	switch spec.Kind {
	case abi.NewHandle, abi.NewFD:
		if !f.context.Load() { // alloc_uobj
			return unix.EINVAL
		}
	case abi.UseHandle:
		any := spec.Object == abi.AnyObject
		o, errno := f.handles.lookup(v.word, spec.Object, any)
		if errno == 0 {
			errno = o.use()
		}
		if errno != 0 {
			return errno
		}
		if !any && o.kind.Load() != uint32(spec.Object) { // destroyed meanwhile, and its handle used again
			o.unuse()
			return unix.ENOENT
		}
		v.obj = o
	case abi.DropHandle:
		v.obj, errno = f.handles.lookup(v.word, spec.Object, false)
	case abi.UseFD:
		v.ch, errno = f.channelOf(v.word, spec.Object)
	}
	return errno
}
