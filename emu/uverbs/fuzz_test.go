// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/abi"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

// The fuzzer's input is the length of an ioctl, its bytes, and the bytes of the
// memory that its attributes point to. So that it finds addresses, handles and
// object numbers that mean something, these stand in the input as tags, in the
// upper 16 bits of an attribute's data, and are put in before the call:
const (
	tagIn     = 0xa1a1 // address: memory that has the input's remaining bytes, at the offset in the low bits
	tagOut    = 0xa2a2 // address: other memory
	tagFreed  = 0xa3a3 // address: memory that was unmapped
	tagQP     = 0xa4a4 // handles of the bed
	tagCQ     = 0xa5a5
	tagPD     = 0xa6a6
	tagUmem   = 0xa7a7
	tagUAR    = 0xa8a8
	tagEvents = 0xa9a9 // descriptors of channels
	tagQuery  = 0xaaaa
	tagShift  = 48
)

// numberTag stands for numbers of the bed's objects: for that of the object
// that a command is about, in the 24 bits at byte 9, and in the first field of a
// create command that names an object for those that it uses.
const numberTag = 0xfefefe

const fuzzMem = 8 << 10

// fuzzErrnos are all that the emulated kernel may answer.
var fuzzErrnos = []unix.Errno{
	0, unix.EINVAL, unix.EPROTONOSUPPORT, unix.EFAULT, unix.ENOENT, unix.EBADF, unix.EBUSY, unix.EOPNOTSUPP,
	unix.EREMOTEIO, unix.ENOMEM, unix.EAGAIN, unix.EIO,
}

// rig is what inputs are tried on. The memory stays, and the device for a
// while; the file is made anew for each.
type rig struct {
	setup   *raw
	in, out *usermem.Region
	freed   uint64
	before  []byte // in and out before the call
	events  int
	query   int
	uses    int
	keep    *File // keeps the device
}

func newRig(t testing.TB) *rig {
	g := &rig{setup: newRaw(t), before: make([]byte, 2*fuzzMem)}
	var freed *usermem.Region
	for _, r := range []**usermem.Region{&g.in, &g.out, &freed} {
		var err error
		if *r, err = usermem.Alloc(fuzzMem); err != nil {
			t.Fatal(err)
		}
	}
	g.freed = freed.Addr()
	t.Cleanup(func() { _ = errors.Join(g.in.Free(), g.out.Free(), g.keep.Close()) })
	if err := freed.Free(); err != nil {
		t.Fatal(err)
	}
	g.keep = g.file(t)
	return g
}

// file opens one more file of the rig's device. The caller closes it.
func (g *rig) file(t testing.TB) *File {
	d, err := acquire("name=fuzz")
	if err != nil {
		t.Fatal(err)
	}
	return newFile(d)
}

// address returns what a tag stands for.
func (g *rig) address(b *bed, data uint64) uint64 {
	low := data & (1<<tagShift - 1)
	switch data >> tagShift {
	case tagIn:
		return g.in.Addr() + low%fuzzMem
	case tagOut:
		return g.out.Addr() + low%fuzzMem
	case tagFreed:
		return g.freed + low%fuzzMem
	case tagQP:
		return b.qp
	case tagCQ:
		return b.cq
	case tagPD:
		return b.pd
	case tagUmem:
		return b.umem
	case tagUAR:
		return b.uar
	case tagEvents:
		return g.channel(b, &g.events, abi.MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD)
	case tagQuery:
		return g.channel(b, &g.query, abi.MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD)
	}
	return data
}

// prepare splits an input, and puts in what tags stand for. The result has room
// for nothing beyond the ioctl.
func (g *rig) prepare(b *bed, data []byte) []byte {
	if len(data) < 2 {
		return nil
	}
	n := min(int(binary.LittleEndian.Uint16(data)), len(data)-2)
	hdr := slices.Clone(data[2:][:n])
	mem := g.in.Bytes()
	clear(mem[copy(mem, data[2+n:]):])
	for i := 0; i < len(mem)-512; i += 64 {
		cmd := mem[i:]
		if mlx5.ToRSTQPIn(cmd).QPN() == numberTag {
			mlx5.ToRSTQPIn(cmd).SetQPN(b.qpn)
		}
		switch mlx5.OpOf(cmd) {
		case mlx5.OpCreateQP:
			if q := mlx5.CreateQPIn(cmd); q.QPC().PD() == numberTag {
				copy(cmd, b.createQPIn)
			}
		case mlx5.OpCreateCQ:
			if q := mlx5.CreateCQIn(cmd); q.CQContext().UARPage() == numberTag {
				copy(cmd, b.createCQCmd)
			}
		case mlx5.OpCreateMKey:
			if k := mlx5.CreateMKeyIn(cmd); k.MemoryKeyMKeyEntry().PD() == numberTag {
				k.MemoryKeyMKeyEntry().SetPD(b.pdn)
				k.SetMKeyUmemID(b.umemID)
			}
		}
	}
	for at := abi.HeaderSize; at+abi.AttrSize <= n; at += abi.AttrSize {
		a := abi.Attr(hdr[at:][:abi.AttrSize])
		a.SetData(g.address(b, a.Data()))
	}
	return hdr
}

// try makes the call and checks what it did.
func (g *rig) try(t *testing.T, data []byte) {
	g.setup.t = t
	// A new device, so that tables do not grow for ever: a UAR that is destroyed
	// in use is lost, and keeps one of 255 user contexts.
	if g.uses++; g.uses%200 == 0 {
		if err := g.keep.Close(); err != nil {
			t.Fatal(err)
		}
		g.keep = g.file(t)
	}
	f := g.file(t)
	defer func() {
		g.closeChannels()
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	b := g.setup.bed(f)
	hdr := g.prepare(b, data)
	for i := range g.out.Bytes() {
		g.out.Bytes()[i] = 0xa5
	}
	copy(g.before, g.in.Bytes())
	copy(g.before[fuzzMem:], g.out.Bytes())
	hdrBefore := slices.Clone(hdr)

	errno := f.Ioctl(hdr)

	if !slices.Contains(fuzzErrnos, errno) {
		t.Fatalf("errno %v", errno)
	}
	g.checkHeader(t, hdrBefore, hdr, errno)
	g.checkMemory(t, hdrBefore)
	checkUnused(t, "after the call", f)
}

// channel opens a channel if there is none yet.
func (g *rig) channel(b *bed, fd *int, object uint16) uint64 {
	if *fd == 0 {
		*fd = g.setup.openChannel(b.f, object)
	}
	return uint64(*fd)
}

func (g *rig) closeChannels() {
	for _, fd := range []*int{&g.events, &g.query} {
		if *fd != 0 {
			_ = unix.Close(*fd)
		}
		*fd = 0
	}
}

// checkHeader: the kernel writes new handles and descriptors, and the flag of
// valid output.
func (g *rig) checkHeader(t *testing.T, before, after []byte, errno unix.Errno) {
	if len(before) < abi.HeaderSize {
		if !bytes.Equal(before, after) {
			t.Fatal("a header that is too short was changed")
		}
		return
	}
	h := abi.Header(before)
	m := abi.Lookup(h.ObjectID(), h.MethodID())
	allowed := slices.Clone(before)
	for at := abi.HeaderSize; m != nil && at+abi.AttrSize <= len(before); at += abi.AttrSize {
		was, is := abi.Attr(allowed[at:][:abi.AttrSize]), abi.Attr(after[at:][:abi.AttrSize])
		i := slices.IndexFunc(m.Attrs, func(s abi.AttrSpec) bool { return s.ID == was.ID() })
		if i < 0 {
			continue
		}
		switch kind := m.Attrs[i].Kind; {
		case errno == 0 && kind == abi.NewFD && is.Data() != was.Data():
			_ = unix.Close(int(is.Data()))
			was.SetData(is.Data())
		case errno == 0 && kind == abi.NewHandle:
			was.SetData(is.Data())
		case kind == abi.PtrOut:
			was.SetFlags(was.Flags() | is.Flags()&abi.UVERBS_ATTR_F_VALID_OUTPUT)
		}
	}
	if !bytes.Equal(allowed, after) {
		t.Fatalf("the ioctl was changed:\n%x\n%x", before, after)
	}
}

// checkMemory: the kernel writes where an output attribute says, and nowhere
// else.
func (g *rig) checkMemory(t *testing.T, hdr []byte) {
	allowed := map[*usermem.Region][][2]int{}
	if len(hdr) >= abi.HeaderSize {
		h := abi.Header(hdr)
		m := abi.Lookup(h.ObjectID(), h.MethodID())
		for at := abi.HeaderSize; m != nil && at+abi.AttrSize <= len(hdr); at += abi.AttrSize {
			a := abi.Attr(hdr[at:][:abi.AttrSize])
			if !slices.ContainsFunc(m.Attrs, func(s abi.AttrSpec) bool { return s.ID == a.ID() && s.Kind == abi.PtrOut }) {
				continue
			}
			for _, r := range []*usermem.Region{g.in, g.out} {
				if off := a.Data() - r.Addr(); off < fuzzMem && off+uint64(a.Len()) <= fuzzMem {
					allowed[r] = append(allowed[r], [2]int{int(off), int(off) + int(a.Len())})
				}
			}
		}
	}
	for i, r := range []*usermem.Region{g.in, g.out} {
		before, after := g.before[i*fuzzMem:][:fuzzMem], r.Bytes()
		for _, w := range allowed[r] {
			copy(before[w[0]:w[1]], after[w[0]:w[1]])
		}
		if !bytes.Equal(before, after) {
			for j := range before {
				if before[j] != after[j] {
					t.Fatalf("memory %d was written at %#x; output goes to %v", i, j, allowed[r])
				}
			}
		}
	}
}

// recorder is a file that keeps what package devx sends, as seeds.
type recorder struct {
	devx.File
	seeds *[][]byte
}

func (r recorder) Ioctl(hdr []byte) unix.Errno {
	h := abi.Header(hdr)
	m := abi.Lookup(h.ObjectID(), h.MethodID())
	seed := slices.Clone(hdr)
	var mem []byte
	for i := range int(h.NumAttrs()) {
		a := abi.Attr(seed[abi.HeaderSize+abi.AttrSize*i:][:abi.AttrSize])
		spec := m.Attrs[slices.IndexFunc(m.Attrs, func(s abi.AttrSpec) bool { return s.ID == a.ID() })]
		switch spec.Kind {
		case abi.PtrIn:
			if a.Len() <= abi.InlineSize {
				break
			}
			from, _ := usermem.Resolve(a.Data(), int(a.Len()))
			a.SetData(tagIn<<tagShift | uint64(len(mem)))
			mem = append(mem, from...)
			mem = append(mem, make([]byte, -len(mem)&63)...)
		case abi.PtrOut:
			a.SetData(tagOut<<tagShift | uint64(i*512))
		case abi.UseHandle, abi.DropHandle, abi.UseFD:
			a.SetData(tagOf(h, spec) << tagShift)
		}
	}
	switch {
	case h.ObjectID() == abi.MLX5_IB_OBJECT_DEVX_UMEM && h.NumAttrs() > 1:
		abi.Header(seed).Attr(1).SetData(tagIn << tagShift) // the address, inline, and the length
		abi.Header(seed).Attr(2).SetData(fuzzMem / 2)
	case h.ObjectID() != abi.MLX5_IB_OBJECT_DEVX_OBJ || len(mem) < 16:
	case h.MethodID() != abi.MLX5_IB_METHOD_DEVX_OBJ_CREATE:
		mlx5.ToRSTQPIn(mem).SetQPN(numberTag)
	case mlx5.OpOf(mem) == mlx5.OpCreateQP:
		mlx5.CreateQPIn(mem).QPC().SetPD(numberTag)
	case mlx5.OpOf(mem) == mlx5.OpCreateCQ:
		mlx5.CreateCQIn(mem).CQContext().SetUARPage(numberTag)
	case mlx5.OpOf(mem) == mlx5.OpCreateMKey:
		mlx5.CreateMKeyIn(mem).MemoryKeyMKeyEntry().SetPD(numberTag)
	}
	*r.seeds = append(*r.seeds, slices.Concat(binary.LittleEndian.AppendUint16(nil, uint16(len(seed))), seed, mem))
	return r.File.Ioctl(hdr)
}

// tagOf returns the object of the bed that a call like this is about.
func tagOf(h abi.Header, spec abi.AttrSpec) uint64 {
	switch {
	case spec.Kind == abi.UseFD && spec.Object == abi.MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD:
		return tagEvents
	case spec.Kind == abi.UseFD:
		return tagQuery
	case h.ObjectID() == abi.MLX5_IB_OBJECT_DEVX_UMEM:
		return tagUmem
	case h.ObjectID() == abi.MLX5_IB_OBJECT_UAR:
		return tagUAR
	}
	return tagQP
}

type recorderDriver struct{ seeds [][]byte }

func (d *recorderDriver) Open(rest string) (devx.File, devx.Info, error) {
	f, info, err := driver{}.Open(rest)
	return recorder{f, &d.seeds}, info, err
}

var recording = &recorderDriver{}

func init() { devx.Register("record", recording) }

// seeds are real calls: what a program sends that uses every method that
// package devx has.
func seeds(t testing.TB) [][]byte {
	recording.seeds = nil
	d, err := devx.Open("record:name=record")
	if err != nil {
		t.Fatal(err)
	}
	run := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = d.Caps()
	run(err)
	q, err := d.NewQP(devx.QPConfig{Transport: mlx5.STRC})
	run(err)
	path, err := d.OwnPath(-1)
	run(err)
	run(devx.Modify(q, mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(mlx5.RemoteWrite)}))
	run(devx.Modify(q, mlx5.INIT2RTR{MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(q.Number()), NextRcvPSN: mlx5.Set(0), LogRRAMax: mlx5.Set(0), MinRNRNak: mlx5.Set(12), Path: path}))
	run(devx.Modify(q, mlx5.RTR2RTS{AckTimeout: mlx5.Set(14), RetryCount: mlx5.Set(7), RNRRetry: mlx5.Set(7), NextSendPSN: mlx5.Set(0), LogSRAMax: mlx5.Set(0)}))
	run(devx.Modify(q, mlx5.ToERR{}))
	_, err = q.Query()
	run(err)
	u, err := d.Umem(4096, 0)
	run(err)
	pd, err := d.PD()
	run(err)
	k, err := d.MKey(pd, u, 0)
	run(err)
	uar, err := d.UAR()
	run(err)
	ev, err := d.EventChannel()
	run(err)
	run(ev.Subscribe(1, q, mlx5.EventCommEst, mlx5.EventPathMig))
	run(ev.Subscribe(2, nil, mlx5.EventPortChange))
	qc, err := d.QueryChannel()
	run(err)
	in := command(mlx5.OpQueryQP, mlx5.QueryQPInSize)
	mlx5.QueryQPIn(in).SetQPN(q.Number())
	run(qc.Query(3, q, in, mlx5.QueryQPOutSize))
	for _, err := range qc.Answers(context.Background()) {
		run(err)
		break
	}
	run(errors.Join(k.Close(), u.Close(), uar.Close(), q.Close(), ev.Close(), qc.Close(), d.Close()))
	all := recording.seeds

	// What package devx does not send.
	r := newRaw(t)
	r.method(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE).u64(abi.UVERBS_ATTR_WRITE_CMD, 1)
	all = append(all, slices.Concat(binary.LittleEndian.AppendUint16(nil, uint16(len(r.finish()))), r.finish()))
	r.method(abi.MLX5_IB_OBJECT_DEVX, abi.MLX5_IB_METHOD_DEVX_QUERY_UAR).u32(abi.MLX5_IB_ATTR_DEVX_QUERY_UAR_USER_IDX, 0)
	r.attr(abi.MLX5_IB_ATTR_DEVX_QUERY_UAR_DEV_IDX, 4, tagOut<<tagShift)
	return append(all, slices.Concat(binary.LittleEndian.AppendUint16(nil, uint16(len(r.finish()))), r.finish()))
}

// Every method has a seed, and the seeds do what they did when they were
// recorded.
func TestSeeds(t *testing.T) {
	found := map[*abi.Method]bool{}
	for _, s := range seeds(t) {
		h := abi.Header(s[2:])
		found[abi.Lookup(h.ObjectID(), h.MethodID())] = true
	}
	for i := range abi.Methods() {
		if m := &abi.Methods()[i]; !found[m] {
			t.Errorf("no seed for %s", m.Name)
		}
	}
	g := newRig(t)
	f := g.file(t)
	defer f.Close()
	defer g.closeChannels()
	b := g.setup.bed(f)
	failed := map[unix.Errno]int{}
	for _, s := range seeds(t) {
		hdr := g.prepare(b, s)
		h := abi.Header(hdr)
		errno := f.Ioctl(hdr)
		if failed[errno]++; errno == 0 && (h.ObjectID() == abi.MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD || h.ObjectID() == abi.MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD) {
			_ = unix.Close(int(h.Attr(0).Data()))
		}
	}
	// A second context, and destroying the same object twice, fail.
	if failed[0] < 22 || failed[unix.EFAULT] != 0 || failed[unix.EPROTONOSUPPORT] != 0 || failed[unix.EBADF] != 0 {
		t.Errorf("the seeds give %v", failed)
	}
}

// FuzzIoctl sends mutated calls to a file that has objects. The emulated kernel
// must not crash, must write nothing but output, and answers with a known
// errno.
func FuzzIoctl(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	g := newRig(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) <= 2+abi.MaxIoctlSize+fuzzMem {
			g.try(t, data)
		}
	})
}
