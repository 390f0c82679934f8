// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/abi"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

// stub is a uverbs file whose transitions return what a test wants, such as a
// kernel's time-out, which the emulated device does not have. All else succeeds.
type stub struct {
	modify func(op mlx5.Op, qpn uint32) unix.Errno // nil: success
	ids    atomic.Uint32
}

type stubs struct {
	mu    sync.Mutex
	files []*stub
}

var allStubs = new(stubs)

func init() { devx.Register("stub", allStubs) }

func (s *stubs) Open(rest string) (devx.File, devx.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var i int
	if _, err := fmt.Sscan(strings.TrimSpace(rest), &i); err != nil {
		return nil, devx.Info{}, err
	}
	return s.files[i], devx.Info{Name: "stub:" + rest}, nil
}

func openStub(t tester, modify func(op mlx5.Op, qpn uint32) unix.Errno) *devx.Device {
	t.Helper()
	allStubs.mu.Lock()
	name := fmt.Sprintf("stub:%d", len(allStubs.files))
	allStubs.files = append(allStubs.files, &stub{modify: modify})
	allStubs.mu.Unlock()
	d, err := devx.Open(name)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close the stub: %v", err)
		}
	})
	return d
}

func (f *stub) Ioctl(hdr []byte) unix.Errno {
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
			return f.modify(mlx5.OpOf(in), mlx5.RST2INITQPIn(in).QPN())
		}
	}
	return 0
}

func (f *stub) MapUAR(int64, int) (devx.DoorbellPage, error) { return stubPage{}, nil }

func (f *stub) Close() error { return nil }

type stubPage struct{}

func (stubPage) Store64(int, uint64) {}
func (stubPage) Unmap() error        { return nil }
