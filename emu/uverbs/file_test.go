// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import (
	"encoding/binary"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

func want(t *testing.T, what string, got, want unix.Errno) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// A handle means nothing in another file: that one has its own of the same
// number, or none.
func TestHandleOfAnotherFile(t *testing.T) {
	r := newRaw(t)
	a, b := file(t, "name=foreign"), file(t, "name=foreign")
	bed := r.bed(a)
	r.context(b)
	before := a.d.hca.Stats().Commands
	want(t, "modify, no such handle", r.modify(bed.qp, bed.qpn).call(b), unix.ENOENT)
	want(t, "destroy, no such handle", r.destroy(bed.qp).call(b), unix.ENOENT)
	if n := a.d.hca.Stats().Commands; n != before {
		t.Errorf("%d commands", n-before)
	}
	for range bed.qp + 1 { // protection domains, up to that handle
		r.pd(b)
	}
	before = a.d.hca.Stats().Commands
	want(t, "modify, another object", r.modify(bed.qp, bed.qpn).call(b), unix.EINVAL)
	if n := a.d.hca.Stats().Commands; n != before {
		t.Errorf("%d commands", n-before)
	}
	want(t, "destroy of one's own", r.destroy(bed.qp).call(b), 0)
	want(t, "it is gone", r.destroy(bed.qp).call(b), unix.ENOENT)
	want(t, "the other lives", r.modify(bed.qp, bed.qpn).call(a), 0)
}

// uverbs_try_lock_object: what a call uses cannot be destroyed, and what is
// being destroyed cannot be used.
func TestBusy(t *testing.T) {
	a := file(t, "name=busy,clock=virtual,latency=1ms")
	clock, hca := a.d.hca.Clock(), a.d.hca
	r, slow := newRaw(t), newRaw(t)
	b := r.bed(a)
	under := func(call *raw) chan unix.Errno {
		clock.Busy(2) // one sleeps, and time stands still until the other is taken back
		done := make(chan unix.Errno, 1)
		go func() { done <- call.call(a) }()
		for hca.Stats().InFlight == 0 {
			time.Sleep(10 * time.Microsecond)
		}
		return done
	}
	done := under(slow.modify(b.qp, b.qpn))
	want(t, "destroy under a modify", r.destroy(b.qp).call(a), unix.EBUSY)
	clock.Busy(-2)
	want(t, "modify", <-done, 0)

	done = under(slow.destroy(b.qp))
	want(t, "modify under a destroy", r.modify(b.qp, b.qpn).call(a), unix.EBUSY)
	want(t, "destroy under a destroy", r.destroy(b.qp).call(a), unix.EBUSY)
	want(t, "destroy as another kind", r.method(abi.MLX5_IB_OBJECT_UAR, abi.MLX5_IB_METHOD_UAR_OBJ_DESTROY).u64handle(b.qp).call(a), unix.EINVAL)
	clock.Busy(-2)
	want(t, "destroy", <-done, 0)
	want(t, "modify after it", r.modify(b.qp, b.qpn).call(a), unix.ENOENT)

	// What firmware refuses to destroy stays usable.
	r.create(a, b.createQPIn, mlx5.CreateQPOutSize)
	want(t, "CQ in use", r.destroy(b.cq).call(a), unix.EINVAL)
	want(t, "again", r.destroy(b.cq).call(a), unix.EINVAL)
}

func (r *raw) u64handle(h uint64) *raw {
	r.handle(abi.MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, h)
	return r
}

func TestGetContext(t *testing.T) {
	r := newRaw(t)
	edit := func(f func(q abi.UcontextReq)) []byte {
		q := abi.UcontextReq(request(abi.MLX5_IB_ALLOC_UCTX_DEVX))
		f(q)
		return q
	}
	for _, c := range []struct {
		what  string
		req   []byte
		errno unix.Errno
	}{
		{"no request", nil, unix.EINVAL},
		{"the first version, 8 bytes", []byte{16, 0, 0, 0, 4, 0, 0, 0}, 0},
		{"between the versions", request(1)[:12], unix.EINVAL},
		{"unknown flag", request(2), unix.EOPNOTSUPP},
		{"comp_mask", edit(func(q abi.UcontextReq) { q[12] = 1 }), unix.EOPNOTSUPP},
		{"reserved", edit(func(q abi.UcontextReq) { q[23] = 1 }), unix.EOPNOTSUPP},
		{"all registers low latency", edit(func(q abi.UcontextReq) { q.SetLowLatencyBfregs(16) }), unix.EINVAL},
		{"none, dynamic", edit(func(q abi.UcontextReq) { q.SetTotalBfregs(0); q.SetLowLatencyBfregs(0) }), 0},
		{"none, static", edit(func(q abi.UcontextReq) { q.SetTotalBfregs(0); q.SetLowLatencyBfregs(0); q.SetLibCaps(0) }), unix.EINVAL},
		{"too many, static", edit(func(q abi.UcontextReq) { q.SetTotalBfregs(513); q.SetLibCaps(0) }), unix.ENOMEM},
		{"longer than we know", append(request(1), make([]byte, 64)...), 0},
	} {
		f := file(t, "name=context")
		call := func() unix.Errno {
			r.method(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT)
			if c.req != nil {
				r.in(abi.UVERBS_ATTR_UHW_IN, c.req)
			}
			return r.call(f)
		}
		want(t, c.what, call(), c.errno)
		if c.errno == 0 {
			want(t, c.what+", again", call(), unix.EINVAL)
		} else {
			r.context(f) // a failure leaves room for one
		}
	}

	f := file(t, "name=context")
	r.method(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT)
	vectors := r.out(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, 4)
	support := r.out(abi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, 8)
	r.in(abi.UVERBS_ATTR_UHW_IN, request(abi.MLX5_IB_ALLOC_UCTX_DEVX))
	resp := abi.UcontextResp(r.out(abi.UVERBS_ATTR_UHW_OUT, abi.UcontextRespSize+8))
	r.ok(f)
	if vectors[0] != 1 || support[0] != coreSupport || resp.NumPorts() != 1 || resp.CQEVersion() != 1 || resp.ResponseLength() != abi.UcontextRespSize || resp.LogUARSize() != 12 {
		t.Errorf("%x %x %x", vectors, support, resp)
	}
	for i := range r.n {
		if got := r.hdr.Attr(i).Flags() & abi.UVERBS_ATTR_F_VALID_OUTPUT; (got != 0) != (r.hdr.Attr(i).ID() != abi.UVERBS_ATTR_UHW_IN) {
			t.Errorf("attribute %d: flags %#x", i, got)
		}
	}
	// Room for a part of the answer gets that part.
	f = file(t, "name=context")
	r.method(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT).in(abi.UVERBS_ATTR_UHW_IN, request(abi.MLX5_IB_ALLOC_UCTX_DEVX))
	resp = r.out(abi.UVERBS_ATTR_UHW_OUT, 44)[:72]
	for i := range resp {
		resp[i] = 0xa5
	}
	r.ok(f)
	if resp.ResponseLength() != 44 || resp[0] == 0xa5 || slices.ContainsFunc(resp[44:], func(x byte) bool { return x != 0xa5 }) {
		t.Errorf("%x", resp)
	}
	// A context that cannot be answered is none.
	g := file(t, "name=context")
	r.method(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT).in(abi.UVERBS_ATTR_UHW_IN, request(abi.MLX5_IB_ALLOC_UCTX_DEVX))
	r.attr(abi.UVERBS_ATTR_UHW_OUT, abi.UcontextRespSize, 8)
	want(t, "answer nowhere", r.call(g), unix.EFAULT)
	r.context(g)
}

// other prepares DEVX_OTHER.
func (r *raw) other(cmd []byte, out int) (answer []byte) {
	r.method(abi.MLX5_IB_OBJECT_DEVX, abi.MLX5_IB_METHOD_DEVX_OTHER)
	r.in(abi.MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, cmd)
	return r.out(abi.MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, out)
}

// devx_get_uid and devx_is_supported.
func TestWithoutUserContext(t *testing.T) {
	r := newRaw(t)
	caps := command(mlx5.OpQueryHCACap, mlx5.QueryHCACapInSize)
	nop := command(mlx5.OpNOP, 16)
	noContext, plain := file(t, "name=plain"), file(t, "name=plain")
	r.method(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT).in(abi.UVERBS_ATTR_UHW_IN, request(0)).ok(plain)
	for _, f := range []*File{noContext, plain} {
		r.other(nop, 16)
		want(t, "NOP", r.call(f), unix.EINVAL)
		r.method(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_CREATE)
		r.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, 0)
		r.in(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, command(mlx5.OpAllocPD, 16))
		r.out(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, 16)
		want(t, "ALLOC_PD", r.call(f), unix.EINVAL)
		r.umemReg(r.mem.Addr(), 4096)
		want(t, "UMEM_REG", r.call(f), unix.EINVAL)
	}
	r.other(caps, mlx5.QueryHCACapOutSize)
	want(t, "capabilities without a context", r.call(noContext), unix.EINVAL)
	answer := r.other(caps, mlx5.QueryHCACapOutSize)
	want(t, "capabilities by the driver's uid", r.call(plain), 0)
	if mlx5.HCACap(mlx5.QueryHCACapOut(answer).Capability()).LogMaxUCTX() != 8 {
		t.Error("no capabilities")
	}
	r.uar(plain) // needs a context, and no uid

	off := file(t, "name=plain,devx=off")
	r.method(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT).in(abi.UVERBS_ATTR_UHW_IN, request(0)).ok(off)
	r.other(caps, mlx5.QueryHCACapOutSize)
	want(t, "no DevX object", r.call(off), unix.EPROTONOSUPPORT)
	want(t, "no DevX channel", r.method(abi.MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD, abi.MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC).call(off), unix.EPROTONOSUPPORT)
	r.uar(off)
}

// Commands that only later kernels let through.
func TestESWFunctions(t *testing.T) {
	r := newRaw(t)
	for _, c := range []struct {
		kernel string
		errno  unix.Errno
	}{{"5.15", unix.EINVAL}, {"6.0", unix.EINVAL}, {"6.1", unix.EREMOTEIO}} {
		f := file(t, "name=esw,kernel="+c.kernel)
		r.context(f)
		before := f.d.hca.Stats().Commands
		r.other(command(mlx5.OpQueryESWFunctions, 16), 16)
		want(t, c.kernel, r.call(f), c.errno)
		if sent := f.d.hca.Stats().Commands - before; (sent == 1) != (c.errno == unix.EREMOTEIO) {
			t.Errorf("%s: %d commands", c.kernel, sent)
		}
	}
}

// What the kernel makes, but cannot tell the user, it takes back.
func TestAnswerNowhere(t *testing.T) {
	r := newRaw(t)
	f := file(t, "name=nowhere")
	var ops []mlx5.Op
	f.Trace(func(in, _ []byte, _ time.Duration) { ops = append(ops, mlx5.OpOf(in)) })
	b := r.bed(f)
	spoiled := func(what string, id uint16, ops2 ...mlx5.Op) {
		t.Helper()
		for i := range r.n {
			if a := r.hdr.Attr(i); a.ID() == id {
				a.SetData(8)
			}
		}
		handle := r.hdr.Attr(0).Data()
		ops = nil
		newest := f.handles.newest
		want(t, what, r.call(f), unix.EFAULT)
		if !slices.Equal(ops, ops2) || f.handles.newest != newest || r.hdr.Attr(0).Data() != handle {
			t.Errorf("%s: %v", what, ops)
		}
	}
	create := func(cmd []byte, out int) {
		r.method(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_CREATE)
		r.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, 0)
		r.in(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, cmd)
		r.out(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, out)
	}
	create(b.createQPIn, mlx5.CreateQPOutSize)
	spoiled("CREATE_QP", abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, mlx5.OpCreateQP, mlx5.OpDestroyQP)
	create(b.createQPIn[:100], mlx5.CreateQPOutSize) // refused
	spoiled("refused CREATE_QP", abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, mlx5.OpCreateQP)
	r.umemReg(r.mem.Addr(), 4096)
	spoiled("UMEM_REG", abi.MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, mlx5.OpCreateUmem, mlx5.OpDestroyUmem)
	r.modify(b.qp, b.qpn)
	spoiled("2RST", abi.MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, mlx5.Op2RST)
	r.method(abi.MLX5_IB_OBJECT_UAR, abi.MLX5_IB_METHOD_UAR_OBJ_ALLOC)
	r.handle(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, 0)
	r.u64(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, abi.MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC)
	r.out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, 8)
	r.out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, 4)
	r.out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, 4)
	spoiled("UAR", abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, mlx5.OpAllocUAR, mlx5.OpDeallocUAR)
}

// Output is written as far as there is room for it, and no further.
func TestOutputLength(t *testing.T) {
	r := newRaw(t)
	b := r.bed(file(t, "name=output"))
	cmd := command(mlx5.OpQueryQP, mlx5.QueryQPInSize)
	mlx5.QueryQPIn(cmd).SetQPN(b.qpn)
	for _, n := range []int{mlx5.QueryQPOutSize, mlx5.QueryQPOutSize + 100} {
		r.method(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_QUERY)
		r.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE, b.qp)
		r.in(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN, cmd)
		out := r.out(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT, n)
		for i := range out[:n+64] {
			out[:n+64][i] = 0xa5
		}
		r.ok(b.f)
		if out[0] != 0 || slices.ContainsFunc(out[n:n+64], func(x byte) bool { return x != 0xa5 }) {
			t.Errorf("%d bytes: %x", n, out[n:n+64])
		}
		if n > mlx5.QueryQPOutSize && slices.ContainsFunc(out[mlx5.QueryQPOutSize:n], func(x byte) bool { return x != 0 }) {
			t.Error("the rest is not cleared")
		}
	}
}

// Every object that can be made can be destroyed.
func TestDestroyers(t *testing.T) {
	f := file(t, "name=destroyers")
	for op := range opTable {
		if opTable[op].class&creates == 0 || opTable[op].destroyer != 0 {
			continue
		}
		out := make([]byte, 4096)
		f.d.hca.Exec(command(mlx5.Op(op), 4096), out)
		if status, _ := mlx5.StatusOf(out); status != mlx5.StatusBadOp {
			t.Errorf("%v: the device answers %v, and nothing undoes it", mlx5.Op(op), status)
		}
	}
}

// Close destroys in the reverse order of creation, whatever handles objects
// got, so firmware refuses none.
func TestCloseOrder(t *testing.T) {
	r := newRaw(t)
	f := file(t, "name=order")
	b := r.bed(f)
	// Let the CQ have a handle above that of the queue pair which uses it.
	r.destroy(b.qp).ok(f)
	pd, _ := r.pd(f)
	r.destroy(b.cq).ok(f)
	r.destroy(pd).ok(f)
	cq, cqn := r.create(f, b.createCQCmd, mlx5.CreateCQOutSize)
	q := mlx5.CreateQPIn(b.createQPIn).QPC()
	q.SetCQNSnd(cqn)
	q.SetCQNRcv(cqn)
	if qp, _ := r.create(f, b.createQPIn, mlx5.CreateQPOutSize); qp > cq {
		t.Errorf("handles %d and %d: not what was meant", cq, qp)
	}
	n, refused := 0, 0
	f.trace = func(in, out []byte, _ time.Duration) {
		n++
		if status, _ := mlx5.StatusOf(out); status != 0 {
			refused++
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if want := 5 + 1; n != want || refused != 0 { // PD, UAR, umem, CQ and QP; the context
		t.Errorf("%d commands, %d refused; want %d and none", n, refused, want)
	}
	if err := f.Close(); err != unix.EBADF {
		t.Errorf("a second Close: %v", err)
	}
}

// A program that changes its command while the kernel reads it gets the one
// that was checked, or an error.
func TestCommandChangesUnderCall(t *testing.T) {
	r := newRaw(t)
	b := r.bed(file(t, "name=fetch"))
	_, victim := r.create(b.f, b.createQPIn, mlx5.CreateQPOutSize)
	r.modify(b.qp, b.qpn).finish()
	cmd := r.mem.Bytes()[rawMem:]
	var stop atomic.Bool
	var done sync.WaitGroup
	done.Go(func() {
		for !stop.Load() {
			mlx5.ToRSTQPIn(cmd).SetQPN(victim)
			mlx5.ToRSTQPIn(cmd).SetQPN(b.qpn)
		}
	})
	b.f.trace = func(in, _ []byte, _ time.Duration) {
		if mlx5.ToRSTQPIn(in).QPN() != b.qpn {
			t.Errorf("QP %#x was modified by the handle of %#x", mlx5.ToRSTQPIn(in).QPN(), b.qpn)
		}
	}
	// Until the two have met often enough, or the machine is too busy to let them
	// run at the same time.
	seen, last, changes := map[unix.Errno]int{}, unix.Errno(0), 0
	for end := time.Now().Add(3 * time.Second); changes < 50_000 && time.Now().Before(end) && !t.Failed(); {
		errno := b.f.Ioctl(r.hdr)
		if seen[errno]++; errno != last {
			last = errno
			changes++
		}
	}
	if changes == 0 || len(seen) != 2 || seen[0] == 0 || seen[unix.EINVAL] == 0 {
		t.Errorf("%d changes, %v", changes, seen)
	}
	stop.Store(true)
	done.Wait()
	b.f.trace = nil
}

func TestUnplug(t *testing.T) {
	r := newRaw(t)
	f := file(t, "name=unplug")
	b := r.bed(f)
	page, err := f.MapUAR(int64(b.page)<<12, 4096)
	if err != nil {
		t.Fatal(err)
	}
	page.Store64(0x800, 1)
	d := f.d
	d.Unplug()
	d.Unplug()
	want(t, "modify", r.modify(b.qp, b.qpn).call(f), unix.EIO)
	want(t, "destroy", r.destroy(b.qp).call(f), unix.EIO)
	want(t, "the header comes first", r.method(0x1777, 1).call(f), unix.EPROTONOSUPPORT)
	page.Store64(0x800, 1)
	if n := d.hca.Stats().Doorbells; n != 1 {
		t.Errorf("%d doorbells: one after the device was gone", n)
	}
	if _, err := f.MapUAR(int64(b.page)<<12, 4096); err != unix.EIO {
		t.Error(err)
	}
	if _, ok := Lookup("emu:name=unplug"); ok {
		t.Error("the device is still found")
	}
	// One that was being opened then.
	devicesMu.Lock()
	d.opens++
	devicesMu.Unlock()
	late := newFile(d)
	want(t, "a late file", r.method(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT).call(late), unix.EIO)
	var v value
	want(t, "a late channel", late.newChannel(&v, abi.MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD), unix.EIO)
	if err := late.Close(); err != nil {
		t.Error(err)
	}
}

// The driver answers 0 whether or not firmware takes the page back.
func TestDestroyUARInUse(t *testing.T) {
	r := newRaw(t)
	f := file(t, "name=uar")
	b := r.bed(f)
	var refused []mlx5.Op
	f.trace = func(in, out []byte, _ time.Duration) {
		if status, _ := mlx5.StatusOf(out); status != 0 {
			refused = append(refused, mlx5.OpOf(in))
		}
	}
	destroy := func() unix.Errno {
		return r.method(abi.MLX5_IB_OBJECT_UAR, abi.MLX5_IB_METHOD_UAR_OBJ_DESTROY).u64handle(b.uar).call(f)
	}
	want(t, "in use", destroy(), 0)
	want(t, "again", destroy(), unix.ENOENT)
	if !slices.Equal(refused, []mlx5.Op{mlx5.OpDeallocUAR}) {
		t.Errorf("refused: %v", refused)
	}
	if _, err := f.MapUAR(int64(b.page)<<12, 4096); err != unix.EINVAL {
		t.Error(err)
	}
	want(t, "the queue pair lives", r.modify(b.qp, b.qpn).call(f), 0)
}

func TestMapUAR(t *testing.T) {
	r := newRaw(t)
	f := file(t, "name=map")
	r.context(f)
	h, id := r.uar(f)
	at := int64(id) << 12
	for _, c := range []struct {
		offset int64
		length int
	}{{at + 1, 4096}, {at, 4095}, {at, 8192}, {at + 4096, 4096}, {-1, 4096}, {at | 1<<44, 4096}, {at | -1<<63, 4096}} {
		if _, err := f.MapUAR(c.offset, c.length); err != unix.EINVAL {
			t.Errorf("%#x, %d: %v", c.offset, c.length, err)
		}
	}
	if _, err := f.MapUAR(at, 4096); err != nil {
		t.Error(err)
	}
	r.method(abi.MLX5_IB_OBJECT_UAR, abi.MLX5_IB_METHOD_UAR_OBJ_DESTROY).u64handle(h).ok(f)
	if _, err := f.MapUAR(at, 4096); err != unix.EINVAL {
		t.Errorf("freed: %v", err)
	}
}

// Descriptors are files, not numbers: a duplicate is the same channel, and a
// number that was closed and used again is not.
func TestChannelDescriptors(t *testing.T) {
	r := newRaw(t)
	b := r.bed(file(t, "name=fds"))
	fd := r.channel(b.f, abi.MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD)
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dup)
	want(t, "the original", r.subscribe(uint64(fd), b.qp).call(b.f), 0)
	want(t, "the duplicate", r.subscribe(uint64(dup), b.qp).call(b.f), 0)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC); err != nil { // closes fd
		t.Fatal(err)
	}
	want(t, "the number, used again", r.subscribe(uint64(fd), b.qp).call(b.f), unix.EBADF)
	want(t, "the duplicate lives", r.subscribe(uint64(dup), b.qp).call(b.f), 0)
	other := file(t, "name=fds")
	r.context(other)
	pd, _ := r.pd(other)
	want(t, "another file's channel", r.subscribe(uint64(dup), pd).call(other), unix.EBADF)
}

// A descriptor of a channel whose device is gone reads as ended, also if the
// reader had asked for it before.
func TestChannelEndsWithFile(t *testing.T) {
	r := newRaw(t)
	f := file(t, "name=ends")
	b := r.bed(f)
	fd := r.channel(f, abi.MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD)
	for i := range 2000 { // more than the socket holds, so that some wait behind it
		if errno := r.asyncQuery(fd, b.qp, b.qpn, mlx5.QueryQPOutSize).call(f); errno != 0 {
			t.Fatalf("%d: %v", i, errno)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 512)
	n := 0
	for {
		got, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if got == 0 && err == nil {
			break
		}
		if err != nil || got != abi.AsyncCmdHdrSize+mlx5.QueryQPOutSize || binary.LittleEndian.Uint64(buf) != 1 {
			t.Fatalf("%d bytes, %v", got, err)
		}
		n++
	}
	if n >= 2000 {
		t.Errorf("%d answers after the file was closed", n)
	}
}

// Resolve is asked for every address, so memory that went away is a fault.
func TestMemoryGoneBetweenCalls(t *testing.T) {
	r := newRaw(t)
	b := r.bed(file(t, "name=memory"))
	mem, err := usermem.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	r.modify(b.qp, b.qpn).finish()
	r.hdr.Attr(2).SetData(mem.Addr())
	want(t, "mapped", b.f.Ioctl(r.hdr), 0)
	if err := mem.Free(); err != nil {
		t.Fatal(err)
	}
	want(t, "unmapped", b.f.Ioctl(r.hdr), unix.EFAULT)
}
