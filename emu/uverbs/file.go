// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/abi"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

// File is an open emulated uverbs file.
type File struct {
	d       *Device
	trace   func(in, out []byte, took time.Duration)
	gone    atomic.Bool
	closed  atomic.Bool
	handles handles

	contextMu sync.Mutex // of GET_CONTEXT
	context   atomic.Bool
	uid       atomic.Uint32 // of the user context; 0: none, or no DevX

	mu       sync.Mutex
	uars     map[uint32]struct{}
	channels map[uint64]*channel // by the inode of the descriptor that user space has
	subs     map[subject][]subscription
	running  sync.WaitGroup // goroutines of channels
}

func newFile(d *Device) *File {
	f := &File{d: d, uars: map[uint32]struct{}{}, channels: map[uint64]*channel{}, subs: map[subject][]subscription{}}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[f] = struct{}{}
	f.gone.Store(d.gone)
	return f
}

// Slots returns how many commands the device takes at once.
func (f *File) Slots() int { return f.d.hca.Profile().Slots }

// Busy tells the device's clock how many goroutines issue commands.
func (f *File) Busy(n int) { f.d.hca.Clock().Busy(n) }

// Trace shows every command of this file, those that the kernel issues on its
// behalf included. It is to be called before the first ioctl.
func (f *File) Trace(t func(in, out []byte, took time.Duration)) { f.trace = t }

// Ioctl executes RDMA_VERBS_IOCTL.
func (f *File) Ioctl(hdr []byte) unix.Errno {
	var b bundle
	errno := f.decode(&b, hdr)
	if errno == 0 {
		errno = f.call(&b)
	}
	b.release()
	return errno
}

// call is the method's handler.
func (f *File) call(b *bundle) unix.Errno {
	switch b.method.Object {
	case abi.MLX5_IB_OBJECT_DEVX_OBJ:
		switch b.method.ID {
		case abi.MLX5_IB_METHOD_DEVX_OBJ_MODIFY:
			return f.objectCommand(b, modifies)
		case abi.MLX5_IB_METHOD_DEVX_OBJ_QUERY:
			return f.objectCommand(b, queries)
		case abi.MLX5_IB_METHOD_DEVX_OBJ_CREATE:
			return f.objCreate(b)
		case abi.MLX5_IB_METHOD_DEVX_OBJ_DESTROY:
			return f.destroy(b, abi.MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE)
		case abi.MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY:
			return f.asyncQuery(b)
		}
	case abi.MLX5_IB_OBJECT_DEVX:
		switch b.method.ID {
		case abi.MLX5_IB_METHOD_DEVX_OTHER:
			return f.other(b)
		case abi.MLX5_IB_METHOD_DEVX_QUERY_EQN:
			return f.queryEQN(b)
		case abi.MLX5_IB_METHOD_DEVX_QUERY_UAR:
			return unix.EINVAL // with dynamic UARs there is no index to ask for
		case abi.MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT:
			return f.subscribe(b)
		}
	case abi.MLX5_IB_OBJECT_DEVX_UMEM:
		if b.method.ID == abi.MLX5_IB_METHOD_DEVX_UMEM_REG {
			return f.umemReg(b)
		}
		return f.destroy(b, abi.MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE)
	case abi.MLX5_IB_OBJECT_UAR:
		if b.method.ID == abi.MLX5_IB_METHOD_UAR_OBJ_ALLOC {
			return f.uarAlloc(b)
		}
		return f.destroy(b, abi.MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE)
	case abi.MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD:
		return f.newChannel(b.get(abi.MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE), b.method.Object)
	case abi.MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD:
		flags, errno := b.get(abi.MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS).flags(abi.MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA)
		switch {
		case errno != 0:
			return errno
		case flags != 0:
			return unix.EOPNOTSUPP // OMIT_DATA: not modelled
		}
		return f.newChannel(b.get(abi.MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE), b.method.Object)
	case abi.UVERBS_OBJECT_DEVICE:
		if b.method.ID == abi.UVERBS_METHOD_GET_CONTEXT {
			return f.getContext(b)
		}
	}
	return unix.EOPNOTSUPP // verbs commands
}

// coreSupport is IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS.
const coreSupport = 1

// getContext is UVERBS_METHOD_GET_CONTEXT with mlx5_ib_alloc_ucontext.
func (f *File) getContext(b *bundle) unix.Errno {
	if errno := b.get(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS).put32(uint32(len(f.d.vectors))); errno != 0 {
		return errno
	}
	if errno := b.get(abi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT).put64(coreSupport); errno != 0 {
		return errno
	}
	f.contextMu.Lock()
	defer f.contextMu.Unlock()
	uhw := b.get(abi.UVERBS_ATTR_UHW_IN)
	if f.context.Load() || uhw.n != 8 && uhw.n < 16 { // the first version of the request has 8 bytes
		return unix.EINVAL
	}
	var buf [abi.UcontextReqSize]byte
	copy(buf[:], uhw.bytes())
	req := abi.UcontextReq(buf[:])
	total := (req.TotalBfregs() + 1) &^ 1
	dynamic := req.LibCaps()&abi.MLX5_LIB_CAP_DYN_UAR != 0
	switch {
	case req.Flags()&^abi.MLX5_IB_ALLOC_UCTX_DEVX != 0 || req.CompMask() != 0 || req.Reserved():
		return unix.EOPNOTSUPP
	case req.LowLatencyBfregs() > total-1 || !dynamic && total == 0:
		return unix.EINVAL
	case !dynamic && total > 512: // MLX5_MAX_BFREGS
		return unix.ENOMEM
	}
	uid := uint16(0)
	if req.Flags()&abi.MLX5_IB_ALLOC_UCTX_DEVX != 0 {
		var errno unix.Errno
		if uid, errno = f.createUCTX(); errno != 0 {
			return errno
		}
	}
	var resp [abi.UcontextRespSize]byte
	r := abi.UcontextResp(resp[:])
	r.SetNumPorts(1)
	r.SetCQEVersion(min(req.MaxCQEVersion(), 1))
	r.SetLogUARSize(12)
	r.SetNumUARsPerPage(1)
	out := b.get(abi.UVERBS_ATTR_UHW_OUT)
	r.SetResponseLength(uint32(min(out.n, len(resp))))
	if errno := out.put(resp[:]); errno != 0 {
		f.destroyUCTX(uid)
		return errno
	}
	f.uid.Store(uint32(uid))
	f.context.Store(true)
	return 0
}

// createUCTX is mlx5_ib_devx_create.
func (f *File) createUCTX() (uint16, unix.Errno) {
	if f.d.logMaxUCTX == 0 {
		return 0, unix.EINVAL
	}
	var in [mlx5.CreateUCTXInSize]byte
	var out [mlx5.CreateUCTXOutSize]byte
	mlx5.PutHeader(in[:], mlx5.OpCreateUCTX, 0)
	errno := f.exec(in[:], out[:])
	return mlx5.CreateUCTXOut(out[:]).UID(), errno
}

func (f *File) destroyUCTX(uid uint16) {
	if uid == 0 {
		return
	}
	var in [mlx5.DestroyUCTXInSize]byte
	var out [mlx5.DestroyUCTXOutSize]byte
	mlx5.PutHeader(in[:], mlx5.OpDestroyUCTX, 0)
	mlx5.DestroyUCTXIn(in[:]).SetUID(uid)
	_ = f.exec(in[:], out[:]) // the driver does not look either
}

// run has the device execute a command.
func (f *File) run(in, out []byte) unix.Errno {
	if f.trace == nil {
		f.d.hca.Exec(in, out)
	} else {
		start := f.d.hca.Clock().Now()
		f.d.hca.Exec(in, out)
		f.trace(in, out, f.d.hca.Clock().Now()-start)
	}
	if f.gone.Load() {
		return f.d.lost
	}
	return 0
}

// exec runs a command of the kernel's own, whose failure it maps to an errno.
func (f *File) exec(in, out []byte) unix.Errno {
	if errno := f.run(in, out); errno != 0 {
		return errno
	}
	status, _ := mlx5.StatusOf(out)
	return status.Errno()
}

// kernelBuffers are where the kernel keeps a command and its answer: a user's
// memory may change while it looks.
type kernelBuffers struct{ in, out []byte }

var buffers = sync.Pool{New: func() any {
	return &kernelBuffers{make([]byte, 0, 512), make([]byte, 0, 512)}
}}

// load copies a user's command in. The caller puts the buffers back.
func load(in []byte) (*kernelBuffers, mlx5.Op) {
	k := buffers.Get().(*kernelBuffers)
	k.in = append(k.in[:0], in...)
	return k, mlx5.OpOf(k.in)
}

// tunnelled reports whether the command is meant for another function
// (vhca_tunnel_id), which passes through DEVX_OTHER only.
func tunnelled(in []byte) bool { return in[4]|in[5] != 0 }

// uidFor returns the uid that a command is issued with (devx_get_uid).
func (f *File) uidFor(op mlx5.Op) (uint16, unix.Errno) {
	uid := uint16(f.uid.Load())
	switch {
	case uid != 0:
		return uid, 0
	case infoOf(op).class&whitelisted == 0:
		return 0, unix.EINVAL
	case f.d.whitelistUID == 0:
		return 0, unix.EOPNOTSUPP
	}
	return f.d.whitelistUID, 0
}

// command runs the command that was loaded, and returns the answer as the
// kernel does. Before Linux 5.18 a failure is an errno and nothing else; from
// then on it is EREMOTEIO and the answer.
func (f *File) command(k *kernelBuffers, uid uint16, out *value) unix.Errno {
	k.out = slices.Grow(k.out[:0], out.n)[:out.n]
	mlx5.RST2INITQPIn(k.in).SetUID(uid)
	if errno := f.run(k.in, k.out); errno != 0 {
		return errno
	}
	status, _ := mlx5.StatusOf(k.out)
	if status != mlx5.StatusOK && !f.d.outbox {
		return status.Errno()
	}
	if errno := out.put(k.out); errno != 0 || status == mlx5.StatusOK {
		return errno
	}
	return unix.EREMOTEIO
}

// other is DEVX_OTHER: a command about no object.
func (f *File) other(b *bundle) unix.Errno {
	if !f.context.Load() {
		return unix.EINVAL
	}
	k, op := load(b.get(abi.MLX5_IB_ATTR_DEVX_OTHER_CMD_IN).bytes())
	defer buffers.Put(k)
	uid, errno := f.uidFor(op)
	if errno != 0 {
		return errno
	}
	if classOf(op, k.in)&general == 0 && !(op == mlx5.OpQueryESWFunctions && f.d.since(6, 1)) {
		return unix.EINVAL
	}
	return f.command(k, uid, b.get(abi.MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT))
}

// objectCommand is OBJ_MODIFY and OBJ_QUERY. The attributes of both have the
// same ids, and stand in the same order in their tables: handle, input, output.
func (f *File) objectCommand(b *bundle, c class) unix.Errno {
	k, op := load(b.vals[1].bytes())
	defer buffers.Put(k)
	uid, errno := f.validate(b.vals[0].obj, op, k.in, c)
	if errno != 0 {
		return errno
	}
	return f.command(k, uid, &b.vals[2])
}

// validate checks that a command of the class may come through this call, and
// that it is about the handle's object (devx_is_valid_obj_id).
func (f *File) validate(o *object, op mlx5.Op, in []byte, c class) (uint16, unix.Errno) {
	if tunnelled(in) {
		return 0, unix.EINVAL
	}
	uid, errno := f.uidFor(op)
	if errno != 0 {
		return 0, errno
	}
	info := infoOf(op)
	if info.class&c == 0 || o.kind.Load() != abi.MLX5_IB_OBJECT_DEVX_OBJ || info.maker != o.op || numberOf(op, in) != o.id {
		return 0, unix.EINVAL
	}
	return uid, 0
}

// mkcEnd is where the context of a memory key ends in CREATE_MKEY; the driver
// wants that much (devx_handle_mkey_create).
const mkcEnd = 16 + mlx5.MKCSize

func (f *File) objCreate(b *bundle) unix.Errno {
	k, op := load(b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN).bytes())
	defer buffers.Put(k)
	if tunnelled(k.in) {
		return unix.EINVAL
	}
	uid, errno := f.uidFor(op)
	switch {
	case errno != 0:
		return errno
	case classOf(op, k.in)&creates == 0 || op == mlx5.OpCreateMKey && len(k.in) < mkcEnd:
		return unix.EINVAL
	}
	setUmemValid(op, k.in)
	if op == mlx5.OpCreateCQ && len(k.in) >= mlx5.CreateCQInSize && !slices.Contains(f.d.vectors, mlx5.CreateCQIn(k.in).CQContext().CEQNOrApuElement()) {
		return unix.ENOENT // mlx5_core_create_cq looks the event queue up
	}
	out := b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT)
	errno = f.command(k, uid, out)
	if status, _ := mlx5.StatusOf(k.out); errno != 0 && (errno != unix.EFAULT || status != mlx5.StatusOK) {
		return errno
	}
	id := binary.BigEndian.Uint32(k.out[8:]) & 0xffffff
	if errno != 0 { // made, but the user cannot be told
		_ = f.undo(op, id)
		return errno
	}
	h := f.handles.add(abi.MLX5_IB_OBJECT_DEVX_OBJ, op, id)
	b.get(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE).attr.SetData(h)
	return 0
}

// setUmemValid is devx_set_umem_valid and devx_handle_mkey_create: the kernel
// sets these bits so that no user passes physical addresses. A command that is
// too short gets none, and is refused for its length.
func setUmemValid(op mlx5.Op, in []byte) {
	switch {
	case op == mlx5.OpCreateMKey && len(in) >= mlx5.CreateMKeyInSize:
		const klm, ksm = 2, 3
		m := mlx5.CreateMKeyIn(in).MemoryKeyMKeyEntry()
		if mode := m.AccessMode10() | m.AccessMode42()<<2; mode != klm && mode != ksm {
			mlx5.CreateMKeyIn(in).SetMKeyUmemValid(true)
		}
	case op == mlx5.OpCreateCQ && len(in) >= mlx5.CreateCQInSize:
		mlx5.CreateCQIn(in).SetCQUmemValid(true)
		mlx5.CreateCQIn(in).CQContext().SetDBRUmemValid(true)
	case op == mlx5.OpCreateQP && len(in) >= mlx5.CreateQPInSize:
		mlx5.CreateQPIn(in).SetWQUmemValid(true)
		mlx5.CreateQPIn(in).QPC().SetDBRUmemValid(true)
	}
}

// destroy undoes a create (uobj_destroy); the firmware's refusal becomes an
// errno, and the object stays, but for a UAR.
func (f *File) destroy(b *bundle, attr uint16) unix.Errno {
	v := b.get(attr)
	o := v.obj
	if errno := o.claim(b.method.Object); errno != 0 {
		return errno
	}
	if errno := f.undo(o.op, o.id); errno != 0 {
		o.unclaim()
		return errno
	}
	f.forgetObject(o)
	f.handles.drop(uint32(v.word), o)
	return 0
}

func (f *File) undo(op mlx5.Op, id uint32) unix.Errno {
	var in, out [16]byte
	mlx5.PutHeader(in[:], infoOf(op).destroyer, 0)
	cmd := mlx5.DestroyQPIn(in[:]) // uid and the 24-bit number stand alike in all
	cmd.SetQPN(id)
	if op != mlx5.OpAllocUAR || f.d.uarUID() {
		cmd.SetUID(uint16(f.uid.Load()))
	}
	var pin *pinned
	if op == mlx5.OpCreateUmem {
		pin = f.d.mem.take(id) // before another can have the number
	}
	errno := f.exec(in[:], out[:])
	switch {
	case pin == nil:
	case errno == 0:
		f.d.mem.drop(pin) // the device uses it no more
	default:
		f.d.mem.settle(pin, id)
	}
	if op == mlx5.OpAllocUAR && !f.gone.Load() {
		return 0 // the driver does not look (mlx5_ib_mmap_free), so a page in use is lost
	}
	return errno
}

// forgetObject ends what refers to an object that was destroyed.
func (f *File) forgetObject(o *object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.op == mlx5.OpAllocUAR {
		delete(f.uars, o.id)
		return
	}
	delete(f.subs, subject{o.op, o.id})
}

func (f *File) queryEQN(b *bundle) unix.Errno {
	if !f.context.Load() {
		return unix.EINVAL
	}
	vector := b.get(abi.MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC).u64()
	none := unix.ENOENT  // mlx5_vector2eqn
	if f.d.since(6, 6) { // mlx5_comp_eqn_get, whose vector has 16 bits
		vector, none = uint64(uint16(vector)), unix.EINVAL
	}
	if vector >= uint64(len(f.d.vectors)) {
		return none
	}
	return b.get(abi.MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN).put32(f.d.vectors[vector])
}

// maxUmem keeps the list of pages within the reach of one command.
const maxUmem = 1 << 36

// umemReg is MLX5_IB_METHOD_DEVX_UMEM_REG: it pins the memory, so that it stays
// until it is deregistered, and tells the device its pages. The process's addresses play the physical ones, and no two
// pages of 4 KiB are taken for neighbours, so the device gets those whatever
// sizes the user allows.
func (f *File) umemReg(b *bundle) unix.Errno {
	const allowed = abi.IB_UVERBS_ACCESS_LOCAL_WRITE | abi.IB_UVERBS_ACCESS_REMOTE_WRITE | abi.IB_UVERBS_ACCESS_REMOTE_READ
	const page = 4096
	addr := b.get(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR).u64()
	length := b.get(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_LEN).u64()
	uid := uint16(f.uid.Load())
	if uid == 0 {
		return unix.EINVAL
	}
	access, errno := b.get(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS).flags(allowed)
	switch {
	case errno != 0:
		return errno
	case access&abi.IB_UVERBS_ACCESS_REMOTE_WRITE != 0 && access&abi.IB_UVERBS_ACCESS_LOCAL_WRITE == 0:
		return unix.EINVAL // ib_check_mr_access
	case length == 0 || length > maxUmem || addr+length < addr:
		return unix.EINVAL
	}
	sizes, errno := b.get(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP).constant(page)
	if errno != 0 {
		return errno
	}
	if _, mapped := usermem.Resolve(addr, int(length)); !mapped {
		return unix.EFAULT
	}
	if sizes&page == 0 { // devx_umem_find_best_pgsize
		return unix.EINVAL
	}
	pin, errno := f.d.mem.pin(addr, int(length))
	if errno != 0 {
		return errno
	}
	pages := (addr%page + length + page - 1) / page
	in := make([]byte, mlx5.CreateUmemInSize+8*pages)
	var out [mlx5.CreateUmemOutSize]byte
	mlx5.PutHeader(in, mlx5.OpCreateUmem, 0)
	cmd := mlx5.CreateUmemIn(in)
	cmd.SetUID(uid)
	u := cmd.Umem()
	u.SetNumOfMTT(pages)
	u.SetPageOffset(uint32(addr % page))
	for i := range pages { // read and write permission in the low bits
		binary.BigEndian.PutUint64(in[mlx5.CreateUmemInSize+8*i:], (addr&^(page-1)+i*page)|3)
	}
	if errno := f.exec(in, out[:]); errno != 0 {
		f.d.mem.drop(pin)
		return errno
	}
	id := mlx5.CreateUmemOut(out[:]).UmemID()
	f.d.mem.settle(pin, id)
	if errno := b.get(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID).put32(id); errno != 0 {
		_ = f.undo(mlx5.OpCreateUmem, id)
		return errno
	}
	h := f.handles.add(abi.MLX5_IB_OBJECT_DEVX_UMEM, mlx5.OpCreateUmem, id)
	b.get(abi.MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE).attr.SetData(h)
	return 0
}

func (f *File) uarAlloc(b *bundle) unix.Errno {
	// No write-combining: the device has no BlueFlame registers (bf 0), so the
	// driver does not offer it.
	switch kind, errno := b.get(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE).constant(0); {
	case errno != 0:
		return errno
	case kind != abi.MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC:
		return unix.EOPNOTSUPP
	}
	var in [mlx5.AllocUARInSize]byte
	var out [mlx5.AllocUAROutSize]byte
	mlx5.PutHeader(in[:], mlx5.OpAllocUAR, 0)
	if f.d.uarUID() {
		mlx5.AllocUARIn(in[:]).SetUID(uint16(f.uid.Load()))
	}
	if errno := f.exec(in[:], out[:]); errno != 0 {
		return errno
	}
	id := mlx5.AllocUAROut(out[:]).UAR()
	errno := b.get(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET).put64(uint64(id) << 12)
	if errno == 0 {
		errno = b.get(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID).put32(id)
	}
	if errno == 0 {
		errno = b.get(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH).put32(4096)
	}
	if errno != 0 {
		_ = f.undo(mlx5.OpAllocUAR, id)
		return errno
	}
	f.mu.Lock()
	f.uars[id] = struct{}{}
	f.mu.Unlock()
	h := f.handles.add(abi.MLX5_IB_OBJECT_UAR, mlx5.OpAllocUAR, id)
	b.get(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE).attr.SetData(h)
	return 0
}

// MapUAR maps a doorbell page. A store inside the process cannot trap, so it is
// a call.
func (f *File) MapUAR(offset int64, length int) (devx.DoorbellPage, error) {
	if f.gone.Load() {
		return nil, unix.EIO
	}
	id := uint32(offset >> 12)
	f.mu.Lock()
	_, ok := f.uars[id]
	f.mu.Unlock()
	if !ok || int64(id)<<12 != offset || length != 4096 {
		return nil, unix.EINVAL
	}
	return &doorbellPage{f, id}, nil
}

type doorbellPage struct {
	f   *File
	uar uint32
}

// Store64 rings a doorbell. Once the device is gone nobody hears it: the kernel
// puts a page of zeros in the place of the UAR.
func (p *doorbellPage) Store64(offset int, v uint64) {
	if !p.f.gone.Load() {
		p.f.d.hca.Doorbell(p.uar, offset, v)
	}
}

func (p *doorbellPage) Unmap() error { return nil }

// Close closes the file and destroys what was made through it: the latest
// first, and again as long as something that was in use has become free
// (uverbs_destroy_ufile_hw).
func (f *File) Close() error {
	if f.closed.Swap(true) {
		return unix.EBADF
	}
	f.d.mu.Lock()
	delete(f.d.files, f)
	f.d.mu.Unlock()
	f.endChannels()
	f.running.Wait()
	if !f.gone.Load() {
		f.destroyAll()
		f.destroyUCTX(uint16(f.uid.Load()))
	}
	f.d.release()
	return nil
}

func (f *File) destroyAll() {
	t := &f.handles
	for again := true; again; {
		again = false
		for h := t.newest; h != 0; {
			at, o := h-1, t.at(uint64(h-1))
			h = o.older
			if f.undo(o.op, o.id) == 0 {
				t.drop(at, o)
				again = true
			}
		}
	}
}
