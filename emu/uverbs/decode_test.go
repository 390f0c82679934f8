// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

// Each case spoils a call that would succeed, in one place. The errors are
// those of drivers/infiniband/core/uverbs_ioctl.c and rdma_core.c.
func TestDecodeErrors(t *testing.T) {
	r := newRaw(t)
	b := r.bed(file(t, ""))
	freed, err := usermem.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	unmapped := freed.Addr()
	if err := freed.Free(); err != nil {
		t.Fatal(err)
	}
	end := r.mem.Addr() + uint64(len(r.mem.Bytes()))
	eventFD := r.channel(b.f, abi.MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD)
	queryFD := r.channel(b.f, abi.MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD)

	const handle, in, out = 0, 1, 2 // attributes of OBJ_MODIFY
	for _, c := range []struct {
		what  string
		errno unix.Errno
		spoil func(h abi.Header) // after all is filled in
	}{
		{"nothing", 0, func(abi.Header) {}},
		// ib_uverbs_ioctl
		{"length over a page", unix.EINVAL, func(h abi.Header) { h.SetLength(4097) }},
		{"length too short", unix.EINVAL, func(h abi.Header) { h.SetLength(h.Length() - 1) }},
		{"length too long", unix.EINVAL, func(h abi.Header) { h.SetLength(h.Length() + abi.AttrSize) }},
		{"too few attributes", unix.EINVAL, func(h abi.Header) { h.SetNumAttrs(2) }},
		{"too many attributes for any length", unix.EINVAL, func(h abi.Header) { h.SetNumAttrs(4096) }}, // 24 + 65536 is 24 again
		{"reserved1", unix.EPROTONOSUPPORT, func(h abi.Header) { h.SetReserved1(1 << 63) }},
		{"reserved2", unix.EPROTONOSUPPORT, func(h abi.Header) { h.SetReserved2(1) }},
		{"reserved comes before driver", unix.EPROTONOSUPPORT, func(h abi.Header) { h.SetReserved2(1); h.SetDriverID(9) }},
		// ib_uverbs_cmd_verbs
		{"another driver", unix.EINVAL, func(h abi.Header) { h.SetDriverID(2) }},
		{"driver comes before method", unix.EINVAL, func(h abi.Header) { h.SetDriverID(0); h.SetMethodID(77) }},
		{"unknown object", unix.EPROTONOSUPPORT, func(h abi.Header) { h.SetObjectID(0x1007) }},
		{"object out of range", unix.EPROTONOSUPPORT, func(h abi.Header) { h.SetObjectID(0xffff) }},
		{"object out of the core's range", unix.EPROTONOSUPPORT, func(h abi.Header) { h.SetObjectID(0xfff) }},
		{"unknown method", unix.EPROTONOSUPPORT, func(h abi.Header) { h.SetMethodID(0x1005) }},
		{"method out of range", unix.EPROTONOSUPPORT, func(h abi.Header) { h.SetMethodID(0x2002) }},
		{"method without its namespace", unix.EPROTONOSUPPORT, func(h abi.Header) { h.SetMethodID(2) }},
		// uverbs_set_attr
		{"unknown attribute, mandatory", unix.EPROTONOSUPPORT, func(h abi.Header) { h.Attr(out).SetID(0x1003) }},
		{"unknown attribute, so one is missing", unix.EINVAL, func(h abi.Header) { h.Attr(out).SetID(0x1003); h.Attr(out).SetFlags(0) }},
		{"attribute twice", unix.EINVAL, func(h abi.Header) { copy(h.Attr(out), h.Attr(in)) }},
		// uverbs_process_attr, pointers
		{"input too short", unix.EINVAL, func(h abi.Header) { h.Attr(in).SetLen(15) }},
		{"output too short", unix.EINVAL, func(h abi.Header) { h.Attr(out).SetLen(15) }},
		{"reserved bits of input", unix.EINVAL, func(h abi.Header) { h.Attr(in).SetReserved(1) }},
		{"reserved bits of output", unix.EINVAL, func(h abi.Header) { h.Attr(out).SetReserved(1) }},
		{"input nowhere", unix.EFAULT, func(h abi.Header) { h.Attr(in).SetData(0) }},
		{"input where there was memory", unix.EFAULT, func(h abi.Header) { h.Attr(in).SetData(unmapped) }},
		{"input in the kernel", unix.EFAULT, func(h abi.Header) { h.Attr(in).SetData(1<<64 - 8) }},
		{"input that ends after its region", unix.EFAULT, func(h abi.Header) { h.Attr(in).SetData(end - 15) }},
		{"input before its region", unix.EFAULT, func(h abi.Header) { h.Attr(in).SetData(r.mem.Addr() - 1) }},
		{"output nowhere", unix.EFAULT, func(h abi.Header) { h.Attr(out).SetData(unmapped) }},
		{"output that ends after its region", unix.EFAULT, func(h abi.Header) { h.Attr(out).SetData(end - 15) }},
		{"output at the end of its region", 0, func(h abi.Header) { h.Attr(out).SetData(end - 16) }},
		// uverbs_process_attr, objects
		{"handle with a length", unix.EINVAL, func(h abi.Header) { h.Attr(handle).SetLen(8) }},
		{"reserved bits of a handle", unix.EINVAL, func(h abi.Header) { h.Attr(handle).SetReserved(1) }},
		{"negative handle", unix.EINVAL, func(h abi.Header) { h.Attr(handle).SetData(1 << 63) }},
		{"no such handle", unix.ENOENT, func(h abi.Header) { h.Attr(handle).SetData(b.qp + 1) }},
		{"no such handle by far", unix.ENOENT, func(h abi.Header) { h.Attr(handle).SetData(1<<63 - 1) }},
		{"more bits than a handle has", unix.ENOENT, func(h abi.Header) { h.Attr(handle).SetData(1<<32 | b.qp) }},
		{"a handle comes before the input behind it", unix.ENOENT, func(h abi.Header) { h.Attr(handle).SetData(99); h.Attr(in).SetData(0) }},
		{"handle missing", unix.EPROTONOSUPPORT, func(h abi.Header) { h.Attr(handle).SetID(0x0fff) }},
		// the handlers of devx.c
		{"any object will do, but then it must be right", unix.EINVAL, func(h abi.Header) { h.Attr(handle).SetData(b.umem) }},
		{"another object's number", unix.EINVAL, func(h abi.Header) { h.Attr(handle).SetData(b.cq) }},
	} {
		r.modify(b.qp, b.qpn).finish()
		c.spoil(r.hdr)
		// As in the kernel, what follows the ioctl in memory is there to be read.
		if errno := b.f.Ioctl(r.hdr); errno != c.errno {
			t.Errorf("%s: %v, want %v", c.what, errno, c.errno)
		}
		checkUnused(t, c.what, b.f)
	}

	for _, c := range []struct {
		what  string
		errno unix.Errno
		call  func() *raw
	}{
		{"header cut off", unix.EFAULT, func() *raw { r.modify(b.qp, b.qpn).finish(); r.hdr = r.hdr[:23]; return r }},
		{"attributes cut off", unix.EFAULT, func() *raw { r.modify(b.qp, b.qpn).finish(); r.hdr = r.hdr[:71]; return r }},
		{"destroy of a handle of another kind", unix.EINVAL, func() *raw { r.destroy(b.umem).finish(); return r }},
		{"destroy of no handle", unix.ENOENT, func() *raw { r.destroy(4711).finish(); return r }},
		{"destroy of a negative handle", unix.EINVAL, func() *raw { r.destroy(1<<64 - 1).finish(); return r }},
		{"subscribe about an object of another kind", unix.EINVAL, func() *raw { r.subscribe(uint64(eventFD), b.umem).finish(); return r }},
		{"subscribe with no descriptor", unix.EBADF, func() *raw { r.subscribe(4711, b.qp).finish(); return r }},
		{"subscribe with a descriptor of something else", unix.EBADF, func() *raw { r.subscribe(0, b.qp).finish(); return r }},
		{"subscribe with a query channel", unix.EBADF, func() *raw { r.subscribe(uint64(queryFD), b.qp).finish(); return r }},
		{"subscribe with a descriptor of 33 bits", unix.EINVAL, func() *raw { r.subscribe(1<<32|uint64(eventFD), b.qp).finish(); return r }},
		{"subscribe with descriptor -1", unix.EBADF, func() *raw { r.subscribe(1<<64-1, b.qp).finish(); return r }},
		{"subscribe", 0, func() *raw { r.subscribe(uint64(eventFD), b.qp).finish(); return r }},
		{"a constant of 4 bytes", unix.EINVAL, func() *raw {
			r.asyncQuery(queryFD, b.qp, b.qpn, 272).finish()
			r.hdr.Attr(2).SetLen(4)
			return r
		}},
		{"a constant out of range", unix.EINVAL, func() *raw { r.asyncQuery(queryFD, b.qp, b.qpn, 1<<16).finish(); return r }},
		{"query with an event channel", unix.EBADF, func() *raw { r.asyncQuery(eventFD, b.qp, b.qpn, 272).finish(); return r }},
		{"flags of 5 bytes", unix.EINVAL, func() *raw {
			r.umemReg(r.mem.Addr(), 4096)
			r.finish()
			r.hdr.Attr(3).SetLen(5)
			return r
		}},
		{"flags that do not exist", unix.EINVAL, func() *raw {
			r.umemReg(r.mem.Addr(), 4096)
			r.finish()
			r.hdr.Attr(3).SetData(abi.IB_UVERBS_ACCESS_LOCAL_WRITE | abi.IB_UVERBS_ACCESS_REMOTE_ATOMIC)
			return r
		}},
		{"remote write without local write", unix.EINVAL, func() *raw {
			r.umemReg(r.mem.Addr(), 4096)
			r.finish()
			r.hdr.Attr(3).SetData(abi.IB_UVERBS_ACCESS_REMOTE_WRITE)
			return r
		}},
		{"user memory that is not there", unix.EFAULT, func() *raw { r.umemReg(unmapped, 4096); r.finish(); return r }},
		{"user memory of no size", unix.EINVAL, func() *raw { r.umemReg(r.mem.Addr(), 0); r.finish(); return r }},
		{"user memory around the end of addresses", unix.EINVAL, func() *raw { r.umemReg(1<<64-4096, 8192); r.finish(); return r }},
		{"pages of 2 MiB only", unix.EINVAL, func() *raw {
			r.umemReg(r.mem.Addr(), 4096)
			r.finish()
			r.hdr.Attr(4).SetData(1 << 21)
			return r
		}},
		{"write-combining UAR", unix.EOPNOTSUPP, func() *raw {
			r.method(abi.MLX5_IB_OBJECT_UAR, abi.MLX5_IB_METHOD_UAR_OBJ_ALLOC)
			r.handle(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, 0)
			r.u64(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, abi.MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF)
			r.out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, 8)
			r.out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, 4)
			r.out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, 4)
			r.finish()
			return r
		}},
		{"event channel without data", unix.EOPNOTSUPP, func() *raw {
			r.method(abi.MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD, abi.MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC)
			r.handle(abi.MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE, 0)
			r.u32(abi.MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS, abi.MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA).finish()
			return r
		}},
		{"QUERY_UAR with dynamic UARs", unix.EINVAL, func() *raw {
			r.method(abi.MLX5_IB_OBJECT_DEVX, abi.MLX5_IB_METHOD_DEVX_QUERY_UAR)
			r.u32(abi.MLX5_IB_ATTR_DEVX_QUERY_UAR_USER_IDX, 0)
			r.out(abi.MLX5_IB_ATTR_DEVX_QUERY_UAR_DEV_IDX, 4)
			r.finish()
			return r
		}},
		{"a verbs command", unix.EOPNOTSUPP, func() *raw {
			r.method(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE)
			r.u64(abi.UVERBS_ATTR_WRITE_CMD, 0).finish()
			return r
		}},
		{"a second context", unix.EINVAL, func() *raw {
			r.method(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT).in(abi.UVERBS_ATTR_UHW_IN, request(0)).finish()
			return r
		}},
	} {
		if errno := b.f.Ioctl(c.call().hdr); errno != c.errno {
			t.Errorf("%s: %v, want %v", c.what, errno, c.errno)
		}
		r.hdr = r.mem.Bytes()[:abi.MaxIoctlSize]
		checkUnused(t, c.what, b.f)
	}
}

// checkUnused looks for an object that a call still holds.
func checkUnused(t *testing.T, what string, f *File) {
	t.Helper()
	for h := f.handles.newest; h != 0; h = f.handles.at(uint64(h - 1)).older {
		if n := f.handles.at(uint64(h - 1)).users.Load(); n != idle {
			t.Fatalf("%s: handle %d is in state %d", what, h-1, n)
		}
	}
}

func (r *raw) subscribe(fd, about uint64) *raw {
	r.method(abi.MLX5_IB_OBJECT_DEVX, abi.MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT)
	r.handle(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE, fd)
	r.handle(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE, about)
	var list [2]byte
	binary.LittleEndian.PutUint16(list[:], uint16(mlx5.EventCommEst))
	return r.in(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST, list[:])
}

func (r *raw) asyncQuery(fd int, h uint64, qpn uint32, out uint64) *raw {
	cmd := command(mlx5.OpQueryQP, mlx5.QueryQPInSize)
	mlx5.QueryQPIn(cmd).SetQPN(qpn)
	r.method(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY)
	r.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE, h)
	r.in(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN, cmd)
	r.u64(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN, out)
	r.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD, uint64(fd))
	return r.u64(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID, 1)
}

// Every method of the table is found, and nothing else is.
func TestLookup(t *testing.T) {
	n := 0
	for object := range 1 << 16 {
		for _, method := range []uint16{0, 1, 2, 3, 4, 7, 8, 0x1000, 0x1001, 0x1002, 0x1003, 0x1004, 0x1007, 0x1008, 0x2000, 0xffff} {
			m := lookup(uint16(object), method)
			if m != abi.Lookup(uint16(object), method) {
				t.Fatalf("object %#x method %#x: %v", object, method, m)
			}
			if m != nil {
				n++
			}
		}
	}
	if n != len(abi.Methods()) {
		t.Errorf("%d methods of %d", n, len(abi.Methods()))
	}
}
