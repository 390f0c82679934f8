// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import (
	"encoding/binary"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/abi"
	"devxlab.example/emu/fw"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

// File is an open emulated uverbs file.
type File struct {
	d       *Device
	gone    atomic.Bool
	handles handles

	mu       sync.Mutex
	context  bool
	uid      atomic.Uint32 // of the user context; 0: none, or no DevX
	uars     map[uint32]*uarEntry
	channels map[int]*channel
}

// uarEntry is an allocated doorbell page.
type uarEntry struct{ id uint32 }

func newFile(d *Device) *File {
	f := &File{d: d, uars: map[uint32]*uarEntry{}, channels: map[int]*channel{}}
	d.mu.Lock()
	d.files[f] = struct{}{}
	d.mu.Unlock()
	return f
}

// Busy tells the device's clock how many goroutines issue commands.
func (f *File) Busy(n int) { f.d.hca.Clock().Busy(n) }

// Trace shows every command that the device executes, those of other files and
// those that the kernel issues included.
func (f *File) Trace(t func(in, out []byte, took time.Duration)) { f.d.hca.Trace(t) }

// Ioctl executes RDMA_VERBS_IOCTL.
func (f *File) Ioctl(hdr []byte) unix.Errno {
	if f.gone.Load() {
		return unix.EIO
	}
	var b bundle
	if errno := decode(&b, hdr); errno != 0 {
		return errno
	}
	switch b.method.Object {
	case abi.MLX5_IB_OBJECT_DEVX_OBJ:
		switch b.method.ID {
		case abi.MLX5_IB_METHOD_DEVX_OBJ_MODIFY:
			return f.objectCommand(&b, modifies)
		case abi.MLX5_IB_METHOD_DEVX_OBJ_QUERY:
			return f.objectCommand(&b, queries)
		case abi.MLX5_IB_METHOD_DEVX_OBJ_CREATE:
			return f.objCreate(&b)
		case abi.MLX5_IB_METHOD_DEVX_OBJ_DESTROY:
			return f.destroy(&b, abi.MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE)
		case abi.MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY:
			return f.asyncQuery(&b)
		}
	case abi.MLX5_IB_OBJECT_DEVX:
		switch b.method.ID {
		case abi.MLX5_IB_METHOD_DEVX_OTHER:
			return f.other(&b)
		case abi.MLX5_IB_METHOD_DEVX_QUERY_EQN:
			return f.queryEQN(&b)
		case abi.MLX5_IB_METHOD_DEVX_QUERY_UAR:
			return unix.EINVAL // with dynamic UARs there is no index to ask for
		case abi.MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT:
			return f.subscribe(&b)
		}
	case abi.MLX5_IB_OBJECT_DEVX_UMEM:
		if b.method.ID == abi.MLX5_IB_METHOD_DEVX_UMEM_REG {
			return f.umemReg(&b)
		}
		return f.destroy(&b, abi.MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE)
	case abi.MLX5_IB_OBJECT_UAR:
		if b.method.ID == abi.MLX5_IB_METHOD_UAR_OBJ_ALLOC {
			return f.uarAlloc(&b)
		}
		return f.destroy(&b, abi.MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE)
	case abi.MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD:
		return f.newChannel(b.get(abi.MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE), queryChannel)
	case abi.MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD:
		if b.get(abi.MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS).u64() != 0 {
			return unix.EOPNOTSUPP // OMIT_DATA: not modelled
		}
		return f.newChannel(b.get(abi.MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE), eventChannel)
	case abi.UVERBS_OBJECT_DEVICE:
		if b.method.ID == abi.UVERBS_METHOD_GET_CONTEXT {
			return f.getContext(&b)
		}
	}
	return unix.EOPNOTSUPP // verbs commands
}

// getContext is mlx5_ib_alloc_ucontext.
func (f *File) getContext(b *bundle) unix.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.context {
		return unix.EINVAL
	}
	uhw := b.get(abi.UVERBS_ATTR_UHW_IN)
	if !uhw.present || uhw.n < 16 {
		return unix.EINVAL
	}
	var buf [abi.UcontextReqSize]byte
	copy(buf[:], uhw.bytes())
	req := abi.UcontextReq(buf[:])
	total := (req.TotalBfregs() + 1) &^ 1
	switch {
	case req.Flags()&^abi.MLX5_IB_ALLOC_UCTX_DEVX != 0:
		return unix.EOPNOTSUPP
	case req.CompMask() != 0 || req.Reserved():
		return unix.EOPNOTSUPP
	case total == 0 || req.LowLatencyBfregs() > total-1:
		return unix.EINVAL
	}
	if req.Flags()&abi.MLX5_IB_ALLOC_UCTX_DEVX != 0 {
		uid, errno := f.createUCTX()
		if errno != 0 {
			return errno
		}
		f.uid.Store(uint32(uid))
	}
	f.context = true
	b.get(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS).put32(uint32(len(f.d.vectors)))
	b.get(abi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT).put64(0)
	var resp [abi.UcontextRespSize]byte
	r := abi.UcontextResp(resp[:])
	r.SetNumPorts(1)
	r.SetCQEVersion(min(req.MaxCQEVersion(), 1))
	r.SetLogUARSize(12)
	r.SetNumUARsPerPage(1)
	out := b.get(abi.UVERBS_ATTR_UHW_OUT)
	r.SetResponseLength(uint32(min(out.n, len(resp))))
	out.put(resp[:])
	return 0
}

func (f *File) createUCTX() (uint16, unix.Errno) {
	if f.d.logMaxUCTX == 0 { // mlx5_ib_devx_create
		return 0, unix.EINVAL
	}
	cmd, out := make([]byte, mlx5.CreateUCTXInSize), make([]byte, mlx5.CreateUCTXOutSize)
	mlx5.PutHeader(cmd, mlx5.OpCreateUCTX, 0)
	if errno := f.exec(cmd, out); errno != 0 {
		return 0, errno
	}
	return mlx5.CreateUCTXOut(out).UID(), 0
}

// exec runs a command of the kernel's own, whose failure it maps to an errno.
func (f *File) exec(in, out []byte) unix.Errno {
	f.d.hca.Exec(in, out)
	if f.gone.Load() {
		return unix.ENXIO
	}
	status, _ := mlx5.StatusOf(out)
	return status.Errno()
}

// kernelBuffers are where the kernel keeps a command and its answer while it
// runs; a user's memory may change under it.
type kernelBuffers struct{ in, out []byte }

var buffers = sync.Pool{New: func() any {
	return &kernelBuffers{make([]byte, 0, 512), make([]byte, 0, 512)}
}}

// command runs a user's command: it copies it, sets the uid, and returns the
// answer as the kernel would. The caller puts k back.
func (f *File) command(k *kernelBuffers, op mlx5.Op, in *value, out int) unix.Errno {
	uid := uint16(f.uid.Load())
	if uid == 0 {
		if isWhitelisted(op) {
			return unix.EOPNOTSUPP
		}
		return unix.EINVAL
	}
	k.in = append(k.in[:0], in.bytes()...)
	if cap(k.out) < out {
		k.out = make([]byte, out)
	}
	k.out = k.out[:out]
	mlx5.RST2INITQPIn(k.in).SetUID(uid)
	setUmemValid(op, k.in)
	f.d.hca.Exec(k.in, k.out)
	if f.gone.Load() {
		return unix.ENXIO
	}
	return 0
}

// setUmemValid is devx_set_umem_valid: the kernel sets these bits so that no
// user passes physical addresses. A command that is too short gets none, and is
// refused for its length.
func setUmemValid(op mlx5.Op, in []byte) {
	switch {
	case op == mlx5.OpCreateMKey && len(in) >= mlx5.CreateMKeyInSize:
		mlx5.CreateMKeyIn(in).SetMKeyUmemValid(true)
	case op == mlx5.OpCreateCQ && len(in) >= mlx5.CreateCQInSize:
		mlx5.CreateCQIn(in).SetCQUmemValid(true)
		mlx5.CreateCQIn(in).CQContext().SetDBRUmemValid(true)
	case op == mlx5.OpCreateQP && len(in) >= mlx5.CreateQPInSize:
		mlx5.CreateQPIn(in).SetWQUmemValid(true)
		mlx5.CreateQPIn(in).QPC().SetDBRUmemValid(true)
	}
}

// answer passes a command's answer to the user. Before Linux 5.18 a failure is
// an errno and nothing else; from then on it is EREMOTEIO and the answer.
func (f *File) answer(k *kernelBuffers, out *value) unix.Errno {
	status, _ := mlx5.StatusOf(k.out)
	if status != mlx5.StatusOK && !f.d.outbox {
		return status.Errno()
	}
	out.put(k.out)
	if status != mlx5.StatusOK {
		return unix.EREMOTEIO
	}
	return 0
}

// general in, object out of the way: DEVX_OTHER.
func (f *File) other(b *bundle) unix.Errno {
	in, out := b.get(abi.MLX5_IB_ATTR_DEVX_OTHER_CMD_IN), b.get(abi.MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT)
	op := mlx5.OpOf(in.bytes())
	if f.uid.Load() != 0 && !isGeneral(op) {
		return unix.EINVAL
	}
	k := buffers.Get().(*kernelBuffers)
	defer buffers.Put(k)
	if errno := f.command(k, op, in, out.n); errno != 0 {
		return errno
	}
	return f.answer(k, out)
}

// objectCommand is OBJ_MODIFY and OBJ_QUERY, whose attributes have the same ids.
func (f *File) objectCommand(b *bundle, c class) unix.Errno {
	in, out := &b.vals[1], &b.vals[2] // the order of both tables: handle, input, output
	o, errno := f.handles.lookup(b.vals[0].attr.Data(), 0, true)
	if errno != 0 {
		return errno
	}
	defer o.unuse()
	op := mlx5.OpOf(in.bytes())
	if errno := validate(o, op, in.bytes(), c); errno != 0 {
		return errno
	}
	k := buffers.Get().(*kernelBuffers)
	defer buffers.Put(k)
	if errno := f.command(k, op, in, out.n); errno != 0 {
		return errno
	}
	return f.answer(k, out)
}

// validate checks that the command may come through this call, and that it is
// about the handle's object (devx_is_valid_obj_id).
func validate(o *object, op mlx5.Op, in []byte, c class) unix.Errno {
	if classes[op] != c || maker[op] != o.op || o.kind != abi.MLX5_IB_OBJECT_DEVX_OBJ || subject(op, in) != o.id {
		return unix.EINVAL
	}
	return 0
}

func (f *File) objCreate(b *bundle) unix.Errno {
	in, out := b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN), b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT)
	op := mlx5.OpOf(in.bytes())
	if f.uid.Load() == 0 || classes[op] != creates {
		return unix.EINVAL
	}
	if op == mlx5.OpCreateCQ && in.n >= mlx5.CreateCQInSize && !f.hasEQN(mlx5.CreateCQIn(in.bytes()).CQContext().CEQNOrApuElement()) {
		return unix.ENOENT // mlx5_core_create_cq looks the event queue up
	}
	k := buffers.Get().(*kernelBuffers)
	defer buffers.Put(k)
	if errno := f.command(k, op, in, out.n); errno != 0 {
		return errno
	}
	if errno := f.answer(k, out); errno != 0 {
		return errno
	}
	id := binary.BigEndian.Uint32(k.out[8:]) & 0xffffff
	h, o := f.handles.add()
	o.kind, o.op, o.id = abi.MLX5_IB_OBJECT_DEVX_OBJ, op, id
	b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE).attr.SetData(uint64(h))
	o.ready()
	return 0
}

func (f *File) hasEQN(eqn uint32) bool {
	for _, e := range f.d.vectors {
		if e == eqn {
			return true
		}
	}
	return false
}

// destroy undoes a create; the firmware's refusal becomes an errno, and the
// object stays.
func (f *File) destroy(b *bundle, attr uint16) unix.Errno {
	h := b.get(attr).attr.Data()
	o, errno := f.handles.claim(h, b.method.Object)
	if errno != 0 {
		return errno
	}
	if errno := f.undo(o); errno != 0 {
		o.ready()
		return errno
	}
	f.handles.drop(uint32(h), o)
	return 0
}

func (f *File) undo(o *object) unix.Errno {
	var in [16]byte
	var out [16]byte
	mlx5.PutHeader(in[:], destroyer[o.op], 0)
	cmd := mlx5.DestroyQPIn(in[:]) // uid and the 24-bit number stand alike in all
	cmd.SetUID(uint16(f.uid.Load()))
	if o.op == mlx5.OpAllocUAR && !f.d.uarUID {
		cmd.SetUID(0)
	}
	cmd.SetQPN(o.id)
	errno := f.exec(in[:], out[:])
	if errno == 0 && o.data != nil {
		f.mu.Lock()
		delete(f.uars, o.id)
		f.mu.Unlock()
	}
	return errno
}

func (f *File) queryEQN(b *bundle) unix.Errno {
	if !f.hasContext() {
		return unix.EINVAL
	}
	vector := b.get(abi.MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC).u64()
	if vector >= uint64(len(f.d.vectors)) {
		return unix.ENOENT
	}
	b.get(abi.MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN).put32(f.d.vectors[vector])
	return 0
}

func (f *File) hasContext() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.context
}

// maxUmem keeps the list of pages within the reach of one command.
const maxUmem = 1 << 36

// umemReg is MLX5_IB_METHOD_DEVX_UMEM_REG: it pins the memory and tells the
// device its pages. The process's addresses play the physical ones.
func (f *File) umemReg(b *bundle) unix.Errno {
	addr := b.get(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR).u64()
	length := b.get(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_LEN).u64()
	access := b.get(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS).u64()
	const allowed = abi.IB_UVERBS_ACCESS_LOCAL_WRITE | abi.IB_UVERBS_ACCESS_REMOTE_WRITE | abi.IB_UVERBS_ACCESS_REMOTE_READ
	switch {
	case f.uid.Load() == 0 || length == 0 || length > maxUmem || access&^allowed != 0:
		return unix.EINVAL
	case access&abi.IB_UVERBS_ACCESS_REMOTE_WRITE != 0 && access&abi.IB_UVERBS_ACCESS_LOCAL_WRITE == 0:
		return unix.EINVAL // ib_check_mr_access
	}
	if _, mapped := usermem.Resolve(addr, int(length)); !mapped {
		return unix.EFAULT
	}
	sizes := ^uint64(0xfff)
	if v := b.get(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP); v.present {
		sizes = v.u64() &^ 0xfff
	}
	shift := pageShift(sizes, length)
	if shift == 0 {
		return unix.EINVAL
	}
	mask := uint64(1)<<shift - 1
	pages := (addr&mask + length + mask) >> shift
	in := make([]byte, mlx5.CreateUmemInSize+8*pages)
	out := make([]byte, mlx5.CreateUmemOutSize)
	mlx5.PutHeader(in, mlx5.OpCreateUmem, 0)
	cmd := mlx5.CreateUmemIn(in)
	cmd.SetUID(uint16(f.uid.Load()))
	u := cmd.Umem()
	u.SetNumOfMTT(pages)
	u.SetLogPageSize(uint8(shift - 12))
	u.SetPageOffset(uint32(addr & mask))
	for i := range pages { // read and write permission in the low bits
		binary.BigEndian.PutUint64(in[mlx5.CreateUmemInSize+8*i:], (addr&^mask+i<<shift)|3)
	}
	if errno := f.exec(in, out); errno != 0 {
		return errno
	}
	h, o := f.handles.add()
	o.kind, o.op, o.id = abi.MLX5_IB_OBJECT_DEVX_UMEM, mlx5.OpCreateUmem, mlx5.CreateUmemOut(out).UmemID()
	b.get(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE).attr.SetData(uint64(h))
	b.get(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID).put32(o.id)
	o.ready()
	return 0
}

// pageShift returns the log2 of the largest page size that is allowed and no
// larger than the memory needs, or 0.
func pageShift(sizes, length uint64) int {
	most := min(max(bits.Len64(length-1), 12), 31)
	sizes &= 1<<(most+1) - 1
	return max(bits.Len64(sizes)-1, 0)
}

func (f *File) uarAlloc(b *bundle) unix.Errno {
	if !f.hasContext() {
		return unix.EINVAL
	}
	// No write-combining: the device has no BlueFlame registers (bf 0), so the
	// driver does not offer it.
	if b.get(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE).u64() != abi.MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC {
		return unix.EOPNOTSUPP
	}
	in, out := make([]byte, mlx5.AllocUARInSize), make([]byte, mlx5.AllocUAROutSize)
	mlx5.PutHeader(in, mlx5.OpAllocUAR, 0)
	if f.d.uarUID {
		mlx5.AllocUARIn(in).SetUID(uint16(f.uid.Load()))
	}
	if errno := f.exec(in, out); errno != 0 {
		return errno
	}
	e := &uarEntry{mlx5.AllocUAROut(out).UAR()}
	f.mu.Lock()
	f.uars[e.id] = e
	f.mu.Unlock()
	h, o := f.handles.add()
	o.kind, o.op, o.id, o.data = abi.MLX5_IB_OBJECT_UAR, mlx5.OpAllocUAR, e.id, e
	b.get(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE).attr.SetData(uint64(h))
	b.get(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET).put64(uint64(e.id) << 12)
	b.get(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH).put32(4096)
	b.get(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID).put32(e.id)
	o.ready()
	return 0
}

// MapUAR maps a doorbell page. A store inside the process cannot trap, so it is
// a call.
func (f *File) MapUAR(offset int64, length int) (devx.DoorbellPage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.uars[uint32(offset>>12)]
	if e == nil || offset&0xfff != 0 || offset>>12 > 1<<24 || length != 4096 {
		return nil, unix.EINVAL
	}
	return &doorbellPage{f.d.hca, e.id}, nil
}

type doorbellPage struct {
	hca *fw.HCA
	uar uint32
}

func (p *doorbellPage) Store64(offset int, v uint64) { p.hca.Doorbell(p.uar, offset, v) }

func (p *doorbellPage) Unmap() error { return nil }

// Close closes the file and destroys what was made through it: latest handles
// first, and again as long as something that was in use has become free
// (uverbs_destroy_ufile_hw).
func (f *File) Close() error {
	f.endChannels()
	f.d.mu.Lock()
	delete(f.d.files, f)
	f.d.mu.Unlock()
	for again := !f.gone.Load(); again; {
		again = false
		for h := int64(f.handles.count()) - 1; h >= 0; h-- {
			o := f.handles.at(uint64(h))
			if o.kind == 0 || o.users.Load() != 0 {
				continue
			}
			if f.undo(o) == 0 {
				f.handles.drop(uint32(h), o)
				o.users.Store(destroying)
				again = true
			}
		}
	}
	if uid := f.uid.Load(); uid != 0 && !f.gone.Load() {
		in, out := make([]byte, mlx5.DestroyUCTXInSize), make([]byte, mlx5.DestroyUCTXOutSize)
		mlx5.PutHeader(in, mlx5.OpDestroyUCTX, 0)
		mlx5.DestroyUCTXIn(in).SetUID(uint16(uid))
		f.d.hca.Exec(in, out)
	}
	f.d.release()
	return nil
}
