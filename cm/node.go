// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// File is the node that Open opens: the misc device of module rdma_ucm.
const File = "/dev/infiniband/rdma_cm"

// Node is an open file of rdma_ucm, or of what plays it.
type Node interface {
	// Write carries out a command, as write(2) of the whole does: nil, an errno, or
	// ErrClosed. It is called from many goroutines.
	Write(b []byte) error
	// Await calls read until it returns true: at once, and whenever there may be an
	// event. ErrClosed ends that.
	Await(read func() bool) error
	Close() error
}

// kernelNode is the kernel's. Events are waited for by the runtime's poller; calls
// block their OS thread.
type kernelNode struct {
	file *os.File
	raw  interface { // syscall.RawConn
		Control(func(fd uintptr)) error
		Read(func(fd uintptr) bool) error
	}
}

func openNode(path string) (*kernelNode, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, openError(path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	raw, err := f.SyscallConn()
	if err == nil {
		err = f.SetReadDeadline(time.Time{}) // fails if the file cannot be polled
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cm: %s: %w: this is no node of rdma_ucm (%w)", path, ErrNoCM, err)
	}
	return &kernelNode{f, raw}, nil
}

// Write carries a command out. Close waits until it has returned.
func (n *kernelNode) Write(b []byte) error {
	var failed error
	if err := n.raw.Control(func(fd uintptr) { _, failed = unix.Write(int(fd), b) }); err != nil {
		return ErrClosed
	}
	return failed
}

func (n *kernelNode) Await(read func() bool) error {
	if err := n.raw.Read(func(uintptr) bool { return read() }); err != nil {
		return ErrClosed
	}
	return nil
}

func (n *kernelNode) Close() error { return n.file.Close() }
