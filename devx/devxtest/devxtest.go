// SPDX-License-Identifier: BSD-2-Clause

// Package devxtest has a uverbs file whose transitions return what a test wants: a
// kernel's time-out, for one, which the emulated device does not have. All else
// succeeds, and nothing has a state. It can have verbs, which the emulated device
// has not either. It is for tests only.
package devxtest

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/abi"
	"devxlab.example/internal/usermem"
)

// Scheme is what the names of stubs begin with.
const Scheme = "stub"

// Stub is what a uverbs file of a test's own answers. Its functions may be called
// by many goroutines at a time.
type Stub struct {
	// Modify gets the bytes of each transition through DevX; nil: each one
	// succeeds.
	Modify func(cmd []byte) unix.Errno
	// Batch gets each transition of a batch ioctl and writes its answer; nil: the
	// kernel has no such ioctl.
	Batch func(cmd, outbox []byte) unix.Errno
	// Verbs gets each verbs command, by whichever path it came; nil: the file has
	// no verbs.
	Verbs func(c Command) unix.Errno
}

// Command is one verbs command.
type Command struct {
	Method       *abi.WriteMethod
	Path         devx.VerbsPath
	Core, Driver []byte // the request, and the driver's part of it
	Resp         []byte // the answer, the driver's part behind it: handles and numbers are in it already
}

type driver struct {
	mu    sync.Mutex
	next  int
	files map[string]devx.File
}

var stubs = &driver{files: map[string]devx.File{}}

func init() { devx.Register(Scheme, stubs) }

// Open opens a stub of its own, without verbs: see Stub.Modify.
func Open(modify func(cmd []byte) unix.Errno) (*devx.Device, error) {
	return Stub{Modify: modify}.Open()
}

// Open opens a device of its own with these answers.
func (s Stub) Open(opts ...devx.Option) (*devx.Device, error) {
	f := &file{stub: s}
	stubs.mu.Lock()
	rest := strconv.Itoa(stubs.next)
	stubs.next++
	stubs.files[rest] = f
	if s.Verbs != nil {
		stubs.files[rest] = verbsFile{f}
	}
	stubs.mu.Unlock()
	return devx.Open(Scheme+":"+rest, opts...)
}

func (s *driver) Open(rest string) (devx.File, devx.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[rest]
	if f == nil {
		return nil, devx.Info{}, fmt.Errorf("no stub %q: make one with devxtest.Open", rest)
	}
	delete(s.files, rest)
	return f, devx.Info{Name: Scheme + ":" + rest}, nil
}

type file struct {
	stub Stub
	ids  atomic.Uint32
}

func (f *file) Ioctl(hdr []byte) unix.Errno {
	h := abi.Header(hdr)
	switch h.ObjectID() {
	case abi.MLX5_IB_OBJECT_DEVX_OBJ:
		return f.object(h)
	case abi.UVERBS_OBJECT_DEVICE:
		if h.MethodID() == abi.UVERBS_METHOD_INVOKE_WRITE {
			return f.invokeWrite(h)
		}
	}
	return 0
}

func (f *file) object(h abi.Header) unix.Errno {
	switch h.MethodID() {
	case abi.MLX5_IB_METHOD_DEVX_OBJ_CREATE:
		out, mapped := resolve(h.Attr(2))
		if !mapped {
			return unix.EFAULT
		}
		id := f.ids.Add(1)
		binary.BigEndian.PutUint32(out[8:], id)
		h.Attr(0).SetData(uint64(id)) // its handle
	case abi.MLX5_IB_METHOD_DEVX_OBJ_MODIFY:
		in, mapped := resolve(h.Attr(1))
		if !mapped {
			return unix.EFAULT
		}
		if f.stub.Modify != nil {
			return f.stub.Modify(in)
		}
	case abi.MLX5_IB_METHOD_DEVX_QP_MODIFY_BATCH:
		return f.modifyBatch(h)
	}
	return 0
}

func resolve(a abi.Attr) ([]byte, bool) { return usermem.Resolve(a.Data(), int(a.Len())) }

func (f *file) MapUAR(int64, int) (devx.DoorbellPage, error) { return page{}, nil }

func (f *file) Close() error { return nil }

type page struct{}

func (page) Store64(int, uint64) {}
func (page) Unmap() error        { return nil }
