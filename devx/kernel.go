// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// kernelFile is /dev/infiniband/uverbsN.
type kernelFile struct{ fd int }

func openKernel(name string) (File, Info, error) {
	info, err := lookup(name)
	if err != nil {
		return nil, info, fmt.Errorf("devx: open %s: %w", name, err)
	}
	f, err := openNode(name, info.Uverbs)
	return f, info, err
}

func openNode(name, path string) (File, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, openError(name, path, err)
	}
	return &kernelFile{fd}, nil
}

func (f *kernelFile) Close() error { return unix.Close(f.fd) }

// Write blocks the OS thread until the command has been carried out.
func (f *kernelFile) Write(cmd []byte) unix.Errno {
	n, err := unix.Write(f.fd, cmd)
	if err != nil {
		return errnoOf(err)
	}
	if n != len(cmd) {
		return unix.EIO
	}
	return 0
}

func errnoOf(err error) unix.Errno {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return unix.EIO
}

func (f *kernelFile) MapUAR(offset int64, length int) (DoorbellPage, error) {
	b, err := unix.Mmap(f.fd, offset, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap of a UAR: %w", err)
	}
	return &uarMapping{b}, nil
}

// uarMapping is a doorbell page in this process's address space.
type uarMapping struct{ b []byte }

func (m *uarMapping) Unmap() error { return unix.Munmap(m.b) }
