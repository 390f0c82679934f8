// SPDX-License-Identifier: BSD-2-Clause

package vfiouser_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"devxlab.example/emu/vfiouser"
)

// counter is a function with one register, which counts its reads, and says so
// with vector 0. Its configuration space is no device's yet: QEMU wants vendor,
// class, the type of BAR 0 and an MSI-X capability in it.
type counter struct {
	config [4096]byte
	n      byte
	host   vfiouser.Host
}

func (c *counter) ReadConfig(off int, b []byte)  { copy(b, c.config[off:]) }
func (c *counter) WriteConfig(off int, b []byte) { copy(c.config[off:], b) }

func (c *counter) BARSize(bar int) int64 {
	if bar == 0 {
		return 4096
	}
	return 0
}

func (c *counter) ReadBAR(bar int, off int64, b []byte) {
	c.n++
	b[0] = c.n
	c.host.Interrupt(0)
}

func (c *counter) WriteBAR(bar int, off int64, b []byte) {}
func (c *counter) Vectors() int                          { return 1 }
func (c *counter) Attach(h vfiouser.Host)                { c.host = h }
func (c *counter) Detach()                               { c.host = nil }
func (c *counter) Reset()                                { c.n = 0 }

func ExampleServe() {
	dir, err := os.MkdirTemp("", "vfiouser") // nobody else may connect
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "counter"), Net: "unix"})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a program would do so on a signal
	fmt.Println(vfiouser.Serve(ctx, l, &counter{}))
	// Output: context canceled
}
