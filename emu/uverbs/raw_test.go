// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import (
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/internal/leaktest"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

func TestMain(m *testing.M) {
	leaktest.Main(m, func() (open []string) {
		devicesMu.Lock()
		defer devicesMu.Unlock()
		for n, d := range devices {
			open = append(open, fmt.Sprintf("emulated device %q: %d files", n, d.opens))
		}
		return open
	})
}

// raw builds ioctls by hand, as a program without package devx would, or a
// malicious one.
type raw struct {
	t    testing.TB
	mem  *usermem.Region
	hdr  abi.Header
	n    int // attributes
	used int // bytes of mem
}

const rawMem = 8192 // offset of what attributes point to

func newRaw(t testing.TB) *raw {
	t.Helper()
	mem, err := usermem.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mem.Free() })
	return &raw{t: t, mem: mem, hdr: mem.Bytes()[:abi.MaxIoctlSize]}
}

// method begins a call.
func (r *raw) method(object, method uint16) *raw {
	clear(r.hdr)
	r.hdr.SetObjectID(object)
	r.hdr.SetMethodID(method)
	r.hdr.SetDriverID(abi.RDMA_DRIVER_MLX5)
	r.n, r.used = 0, rawMem
	return r
}

// attr adds an attribute as it stands.
func (r *raw) attr(id, length uint16, data uint64) abi.Attr {
	a := r.hdr.Attr(r.n)
	r.n++
	a.SetID(id)
	a.SetLen(length)
	a.SetFlags(abi.UVERBS_ATTR_F_MANDATORY)
	a.SetData(data)
	return a
}

// in adds input, inline or behind a pointer.
func (r *raw) in(id uint16, b []byte) *raw {
	if len(b) <= abi.InlineSize {
		var word [8]byte
		copy(word[:], b)
		r.attr(id, uint16(len(b)), binary.LittleEndian.Uint64(word[:]))
		return r
	}
	copy(r.room(len(b)), b)
	r.attr(id, uint16(len(b)), r.mem.Addr()+uint64(r.used-len(b)))
	return r
}

// u64, u32 add integers, inline.
func (r *raw) u64(id uint16, v uint64) *raw { r.attr(id, 8, v); return r }
func (r *raw) u32(id uint16, v uint32) *raw { r.attr(id, 4, uint64(v)); return r }

// out adds room for output.
func (r *raw) out(id uint16, n int) []byte {
	b := r.room(n)
	r.attr(id, uint16(n), r.mem.Addr()+uint64(r.used-n))
	return b
}

func (r *raw) room(n int) []byte {
	b := r.mem.Bytes()[r.used : r.used+n]
	clear(b)
	r.used += n
	return b
}

// handle adds a handle or a descriptor.
func (r *raw) handle(id uint16, h uint64) abi.Attr { return r.attr(id, 0, h) }

// finish sets the header's lengths.
func (r *raw) finish() []byte {
	n := abi.HeaderSize + r.n*abi.AttrSize
	r.hdr.SetLength(uint16(n))
	r.hdr.SetNumAttrs(uint16(r.n))
	return r.hdr[:n]
}

func (r *raw) call(f *File) unix.Errno { return f.Ioctl(r.finish()) }

// ok makes a call that must succeed.
func (r *raw) ok(f *File) {
	r.t.Helper()
	if errno := r.call(f); errno != 0 {
		r.t.Fatalf("object %#x method %#x: %v", r.hdr.ObjectID(), r.hdr.MethodID(), errno)
	}
}

// file opens a file of a device and closes it after the test.
func file(t testing.TB, rest string) *File {
	t.Helper()
	d, err := acquire(rest)
	if err != nil {
		t.Fatal(err)
	}
	f := newFile(d)
	t.Cleanup(func() {
		if err := f.Close(); err != nil && err != unix.EBADF {
			t.Error(err)
		}
	})
	return f
}

// request is the driver's part of GET_CONTEXT as package devx sends it.
func request(flags uint32) []byte {
	req := make(abi.UcontextReq, abi.UcontextReqSize)
	req.SetTotalBfregs(16)
	req.SetLowLatencyBfregs(4)
	req.SetFlags(flags)
	req.SetMaxCQEVersion(1)
	req.SetLibCaps(abi.MLX5_LIB_CAP_4K_UAR | abi.MLX5_LIB_CAP_DYN_UAR)
	return req
}

// context opens a DevX context.
func (r *raw) context(f *File) {
	r.t.Helper()
	r.method(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT).in(abi.UVERBS_ATTR_UHW_IN, request(abi.MLX5_IB_ALLOC_UCTX_DEVX)).ok(f)
}

// create makes an object and returns its handle and number.
func (r *raw) create(f *File, cmd []byte, out int) (h uint64, id uint32) {
	r.t.Helper()
	r.method(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_CREATE)
	a := r.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, 0)
	r.in(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, cmd)
	answer := r.out(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, out)
	r.ok(f)
	return a.Data(), binary.BigEndian.Uint32(answer[8:]) & 0xffffff
}

// command is one whose fields are all zero.
func command(op mlx5.Op, n int) []byte {
	b := make([]byte, n)
	mlx5.PutHeader(b, op, 0)
	return b
}

func (r *raw) pd(f *File) (h uint64, id uint32) {
	r.t.Helper()
	return r.create(f, command(mlx5.OpAllocPD, mlx5.AllocPDInSize), mlx5.AllocPDOutSize)
}

func (r *raw) uar(f *File) (h uint64, id uint32) {
	r.t.Helper()
	r.method(abi.MLX5_IB_OBJECT_UAR, abi.MLX5_IB_METHOD_UAR_OBJ_ALLOC)
	a := r.handle(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, 0)
	r.u64(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, abi.MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC)
	r.out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, 8)
	r.out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, 4)
	page := r.out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, 4)
	r.ok(f)
	return a.Data(), binary.LittleEndian.Uint32(page)
}

func (r *raw) umemReg(addr, n uint64) (handle abi.Attr, id []byte) {
	r.method(abi.MLX5_IB_OBJECT_DEVX_UMEM, abi.MLX5_IB_METHOD_DEVX_UMEM_REG)
	handle = r.handle(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE, 0)
	r.u64(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR, addr).u64(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_LEN, n)
	r.u32(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS, abi.IB_UVERBS_ACCESS_LOCAL_WRITE)
	r.u64(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP, 4096)
	return handle, r.out(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, 4)
}

// umem registers the second half of r's memory.
func (r *raw) umem(f *File) (h uint64, id uint32) {
	r.t.Helper()
	a, out := r.umemReg(r.mem.Addr()+1<<19, 1<<19)
	r.ok(f)
	return a.Data(), binary.LittleEndian.Uint32(out)
}

// bed is a file with a queue pair and all that it uses.
type bed struct {
	f                       *File
	pd, uar, umem, cq, qp   uint64 // handles
	pdn, page, umemID, cqn  uint32
	qpn                     uint32
	createCQCmd, createQPIn []byte
}

func (r *raw) bed(f *File) *bed {
	r.t.Helper()
	b := &bed{f: f}
	r.context(f)
	b.pd, b.pdn = r.pd(f)
	b.uar, b.page = r.uar(f)
	b.umem, b.umemID = r.umem(f)
	b.createCQCmd = make([]byte, mlx5.CreateCQInSize)
	_, err := mlx5.CreateCQ{Buf: mlx5.UmemRef{ID: b.umemID}, DoorbellRecord: mlx5.UmemRef{ID: b.umemID, Offset: 64 << 4}, LogSize: 4, UARPage: b.page, EQN: f.d.vectors[0]}.Encode(b.createCQCmd)
	if err != nil {
		r.t.Fatal(err)
	}
	b.cq, b.cqn = r.create(f, b.createCQCmd, mlx5.CreateCQOutSize)
	b.createQPIn = make([]byte, mlx5.CreateQPInSize)
	_, err = mlx5.CreateQP{
		ST: mlx5.STUD, PD: b.pdn, UARPage: b.page, CQNSend: b.cqn, CQNRecv: b.cqn, LogRQStride: 4,
		Buf: mlx5.UmemRef{ID: b.umemID, Offset: 4096}, DoorbellRecord: mlx5.UmemRef{ID: b.umemID, Offset: 8192}, TsFormat: 1,
	}.Encode(b.createQPIn)
	if err != nil {
		r.t.Fatal(err)
	}
	b.qp, b.qpn = r.create(f, b.createQPIn, mlx5.CreateQPOutSize)
	return b
}

// modify prepares OBJ_MODIFY with 2RST of a queue pair.
func (r *raw) modify(h uint64, qpn uint32) *raw {
	cmd := command(mlx5.Op2RST, mlx5.ToRSTQPInSize)
	mlx5.ToRSTQPIn(cmd).SetQPN(qpn)
	r.method(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_MODIFY)
	r.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE, h)
	r.in(abi.MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, cmd)
	r.out(abi.MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, mlx5.ToRSTQPOutSize)
	return r
}

// destroy prepares OBJ_DESTROY.
func (r *raw) destroy(h uint64) *raw {
	r.method(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_DESTROY)
	r.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, h)
	return r
}

// channel opens a channel for the length of the test.
func (r *raw) channel(f *File, object uint16) int {
	r.t.Helper()
	fd := r.openChannel(f, object)
	r.t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// openChannel opens a channel and returns the descriptor.
func (r *raw) openChannel(f *File, object uint16) int {
	r.t.Helper()
	r.method(object, abi.MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC) // the same for both
	a := r.handle(abi.MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE, 0)
	if object == abi.MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD {
		r.u32(abi.MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS, 0)
	}
	r.ok(f)
	return int(a.Data())
}
