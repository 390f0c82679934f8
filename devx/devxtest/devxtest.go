// SPDX-License-Identifier: BSD-2-Clause

// Package devxtest has a uverbs file whose transitions return what a test wants: a
// kernel's time-out, for one, which the emulated device does not have. All else
// succeeds, and nothing has a state. It is for tests only.
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

type driver struct {
	mu    sync.Mutex
	next  int
	files map[string]*file
}

var stubs = &driver{files: map[string]*file{}}

func init() { devx.Register(Scheme, stubs) }

// Open opens a stub of its own. modify gets the bytes of each transition, and
// may be called by many goroutines at a time; nil: each one succeeds.
func Open(modify func(cmd []byte) unix.Errno) (*devx.Device, error) {
	stubs.mu.Lock()
	rest := strconv.Itoa(stubs.next)
	stubs.next++
	stubs.files[rest] = &file{modify: modify}
	stubs.mu.Unlock()
	return devx.Open(Scheme + ":" + rest)
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
	modify func(cmd []byte) unix.Errno
	ids    atomic.Uint32
}

func (f *file) Ioctl(hdr []byte) unix.Errno {
	h := abi.Header(hdr)
	if h.ObjectID() != abi.MLX5_IB_OBJECT_DEVX_OBJ {
		return 0
	}
	switch h.MethodID() {
	case abi.MLX5_IB_METHOD_DEVX_OBJ_CREATE:
		out, mapped := usermem.Resolve(h.Attr(2).Data(), int(h.Attr(2).Len()))
		if !mapped {
			return unix.EFAULT
		}
		binary.BigEndian.PutUint32(out[8:], f.ids.Add(1))
	case abi.MLX5_IB_METHOD_DEVX_OBJ_MODIFY:
		in, mapped := usermem.Resolve(h.Attr(1).Data(), int(h.Attr(1).Len()))
		if !mapped {
			return unix.EFAULT
		}
		if f.modify != nil {
			return f.modify(in)
		}
	}
	return 0
}

func (f *file) MapUAR(int64, int) (devx.DoorbellPage, error) { return page{}, nil }

func (f *file) Close() error { return nil }

type page struct{}

func (page) Store64(int, uint64) {}
func (page) Unmap() error        { return nil }
