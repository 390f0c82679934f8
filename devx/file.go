// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// File is an open uverbs file: the kernel's, or one of a registered driver.
// Its methods may be called at the same time, but for Close: it comes last, and
// once.
type File interface {
	// Ioctl issues RDMA_VERBS_IOCTL. hdr is struct ib_uverbs_ioctl_hdr with its
	// attributes; the kernel writes handles and flags into it. It and all
	// buffers that it points to are memory that package devx has mapped.
	Ioctl(hdr []byte) unix.Errno
	// MapUAR maps a doorbell page at the offset and of the length that
	// UAR_OBJ_ALLOC returned.
	MapUAR(offset int64, length int) (DoorbellPage, error)
	// Close closes the file, and with it every object that was made through it.
	// No other call is under way, and every doorbell page is unmapped: the kernel
	// keeps a file whose pages are mapped.
	Close() error
}

// DoorbellPage is a mapped UAR.
type DoorbellPage interface {
	// Store64 stores eight bytes at an offset, in the order in which they stand
	// in v from its most significant byte on, after everything that was stored to memory
	// before.
	Store64(offset int, v uint64)
	// Unmap ends the mapping.
	Unmap() error
}

// pacer is implemented by a file whose device runs on a virtual clock.
type pacer interface{ Busy(n int) }

// tracer is implemented by a file that sees more commands than pass through
// this package: those that a kernel issues on a program's behalf.
type tracer interface {
	Trace(f func(in, out []byte, took time.Duration))
}

// Driver opens the devices of one scheme.
type Driver interface {
	// Open opens the device that rest, the name without its scheme, names.
	Open(rest string) (File, Info, error)
}

var (
	driversMu sync.Mutex
	drivers   = map[string]Driver{}
)

// Register makes a driver open the names that begin with "scheme:". It panics
// if the scheme is taken.
func Register(scheme string, d Driver) {
	driversMu.Lock()
	defer driversMu.Unlock()
	if _, dup := drivers[scheme]; dup {
		panic("devx: scheme " + scheme + " is registered twice")
	}
	drivers[scheme] = d
}

func openFile(name string) (File, Info, error) {
	scheme, rest, ok := strings.Cut(name, ":")
	if !ok {
		return openKernel(name)
	}
	driversMu.Lock()
	d := drivers[scheme]
	var known []string
	for s := range drivers {
		known = append(known, s+":")
	}
	driversMu.Unlock()
	if d == nil {
		slices.Sort(known)
		return nil, Info{}, fmt.Errorf("devx: open %s: no driver for %q; registered: %v. For an emulated device, import _ %q", name, scheme+":", known, "devxlab.example/emu/uverbs")
	}
	return d.Open(rest)
}
