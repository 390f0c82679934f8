// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// access is a call of a device's method.
type access struct {
	what string
	bar  int
	off  int64
	data string
}

// device is a function with a BAR 0 of memory, a small BAR 2 and 20 vectors.
// Memory and configuration space have a pattern in them at first.
type device struct {
	t        testing.TB
	attached chan Host
	detached chan struct{}

	mu     sync.Mutex
	config [configSize]byte
	bar0   [64 << 10]byte
	calls  []access // writes and resets
}

const deviceVectors = 20

var deviceBARs = [numBARs]int64{0: 64 << 10, 2: 16}

func newDevice(t testing.TB) *device {
	d := &device{t: t, attached: make(chan Host, 1), detached: make(chan struct{}, 1)}
	for i := range d.config {
		d.config[i] = byte(i * 5)
	}
	for i := range d.bar0 {
		d.bar0[i] = byte(i * 7)
	}
	return d
}

func (d *device) did(a access) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, a)
}

// done returns the calls since the last time.
func (d *device) done() []access {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls
	d.calls = nil
	return calls
}

// within complains about an access that the server should not let through.
func (d *device) within(off, n, size int64) {
	if off < 0 || n <= 0 || off > size-n {
		d.t.Errorf("the device got an access of %d bytes at %#x; it has %#x", n, off, size)
	}
}

func (d *device) ReadConfig(off int, b []byte) {
	d.within(int64(off), int64(len(b)), configSize)
	copy(b, d.config[off:])
}

func (d *device) WriteConfig(off int, b []byte) {
	d.within(int64(off), int64(len(b)), configSize)
	copy(d.config[off:], b)
	d.did(access{"config", 0, int64(off), string(b)})
}

func (d *device) BARSize(bar int) int64 { return deviceBARs[bar] }

func (d *device) ReadBAR(bar int, off int64, b []byte) {
	d.within(off, int64(len(b)), deviceBARs[bar])
	if bar == 0 {
		copy(b, d.bar0[off:])
	}
}

func (d *device) WriteBAR(bar int, off int64, b []byte) {
	d.within(off, int64(len(b)), deviceBARs[bar])
	if bar == 0 {
		copy(d.bar0[off:], b)
	}
	d.did(access{"bar", bar, off, string(b)})
}

func (d *device) Vectors() int  { return deviceVectors }
func (d *device) Attach(h Host) { d.attached <- h }
func (d *device) Detach()       { d.detached <- struct{}{} }
func (d *device) Reset()        { d.did(access{what: "reset"}) }

// foreign is a function that does not know this package's types. It need not
// run; it must compile.
type foreign struct{ *device }

func (f foreign) Attach(h interface {
	ReadDMA(addr uint64, b []byte) error
	WriteDMA(addr uint64, b []byte) error
	Interrupt(vector int)
}) {
	f.device.Attach(h)
}

var _ Function = foreign{}

// rig is a server on a socket.
type rig struct {
	t    testing.TB
	dev  *device
	path string
	log  chan error
}

// impatient is for tests of clients that make the server wait.
const impatient = 20 * time.Millisecond

func newRig(t testing.TB) *rig { return newRigWith(t, 0) }

func newRigWith(t testing.TB, patience time.Duration) *rig {
	t.Helper()
	r := &rig{t: t, dev: newDevice(t), path: filepath.Join(t.TempDir(), "s"), log: make(chan error, 1000)}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Function: r.dev, Log: func(err error) { r.log <- err }, patience: patience}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
	})
	return r
}

// client speaks the protocol.
type client struct {
	t    testing.TB
	c    *net.UnixConn
	id   uint16
	dev  *device
	host Host
}

func (r *rig) dial() *client {
	r.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: r.path, Net: "unix"})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // a hang is an error, not a time-out of the run
	return &client{t: r.t, c: c, dev: r.dev}
}

// qemuVersion is what QEMU 11.1.3 sends first.
const qemuVersion = `{"capabilities": {"pgsizes": 4096, "max_msg_fds": 16, "max_dma_maps": 65535, "max_data_xfer_size": 1048576, ` +
	`"migration": {"max_bitmap_size": 268435456, "pgsize": 4096}, "write_multiple": true}}` + "\x00"

// connect makes a client that has agreed on a version.
func (r *rig) connect() *client {
	r.t.Helper()
	c := r.dial()
	c.ok(cmdVersion, pack(version{}, qemuVersion))
	c.host = <-r.dev.attached
	return c
}

func connect(t testing.TB) *client {
	t.Helper()
	return newRig(t).connect()
}

const nothing = "nothing was refused in 20 s"

// refused returns why the server last refused a command or dropped a client.
func (r *rig) refused() string {
	select {
	case err := <-r.log:
		return err.Error()
	case <-time.After(20 * time.Second):
		return nothing
	}
}

// pack puts integers, structs, strings and bytes one after the other.
func pack(parts ...any) (b []byte) {
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			b = append(b, p...)
		default:
			var err error
			if b, err = binary.Append(b, binary.NativeEndian, p); err != nil {
				panic(err)
			}
		}
	}
	return b
}

func message(h header, payload []byte) []byte {
	if h.Size == 0 {
		h.Size = uint32(headerSize + len(payload))
	}
	return pack(h, payload)
}

// write sends bytes with descriptors.
func (c *client) write(b []byte, fds ...int) {
	c.t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.c.WriteMsgUnix(b, oob, nil); err != nil {
		c.t.Fatal(err)
	}
}

// read receives a reply and checks its header.
func (c *client) read() (h header, payload []byte) {
	c.t.Helper()
	head := make([]byte, headerSize)
	if _, err := io.ReadFull(c.c, head); err != nil {
		c.t.Fatalf("no reply: %v", err)
	}
	h = decode[header](head)
	if h.Size < headerSize || h.Size > maxMessage {
		c.t.Fatalf("reply %+v", h)
	}
	payload = make([]byte, h.Size-headerSize)
	if _, err := io.ReadFull(c.c, payload); err != nil {
		c.t.Fatalf("reply %+v: %v", h, err)
	}
	switch h.Flags {
	case flagReply:
		if h.Errno != 0 {
			c.t.Fatalf("reply %+v: an error number without the flag", h)
		}
	case flagReply | flagError:
		if len(payload) != 0 || h.Errno == 0 {
			c.t.Fatalf("error reply %+v with %d bytes", h, len(payload))
		}
	default:
		c.t.Fatalf("reply %+v: flags", h)
	}
	return h, payload
}

// call sends a command and returns the reply.
func (c *client) call(command uint16, payload []byte, fds ...int) ([]byte, unix.Errno) {
	c.t.Helper()
	c.id++
	c.write(message(header{ID: c.id, Command: command}, payload), fds...)
	h, reply := c.read()
	if h.ID != c.id || h.Command != command {
		c.t.Fatalf("reply %+v to command %d, message %d", h, command, c.id)
	}
	return reply, unix.Errno(h.Errno)
}

// ok sends a command that must succeed.
func (c *client) ok(command uint16, payload []byte, fds ...int) []byte {
	c.t.Helper()
	reply, errno := c.call(command, payload, fds...)
	if errno != 0 {
		c.t.Fatalf("%s %x: %v", commandName(command), payload, errno)
	}
	return reply
}

// fails sends a command that must fail.
func (c *client) fails(want unix.Errno, command uint16, payload []byte, fds ...int) {
	c.t.Helper()
	if _, errno := c.call(command, payload, fds...); errno != want {
		c.t.Errorf("%s %x: %v, want %v", commandName(command), payload, errno, want)
	}
}

// post sends a command that wants no reply.
func (c *client) post(command uint16, payload []byte, fds ...int) {
	c.t.Helper()
	c.id++
	c.write(message(header{ID: c.id, Command: command, Flags: flagNoReply}, payload), fds...)
}

// sync returns when the server has executed all that was sent.
func (c *client) sync() {
	c.t.Helper()
	c.ok(cmdGetInfo, pack(deviceInfo{Argsz: deviceInfoSize}))
}

// dropped waits until the server has closed the connection, and the function
// was told.
func (c *client) dropped() {
	c.t.Helper()
	if b, err := io.ReadAll(c.c); err != nil && !errors.Is(err, unix.ECONNRESET) {
		c.t.Fatalf("the connection stays: %x, %v", b, err)
	}
	if c.host != nil {
		<-c.dev.detached
	}
}

// close leaves.
func (c *client) close() {
	c.t.Helper()
	_ = c.c.Close()
	<-c.dev.detached
}

func closeLater(t testing.TB, fd int) { t.Cleanup(func() { _ = unix.Close(fd) }) }

// memfd makes guest memory.
func memfd(t testing.TB, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate(memName, unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, fd)
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	return fd
}

func eventFD(t testing.TB) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, fd)
	return fd
}

// signals returns how often an eventfd was signalled since the last time.
func signals(t testing.TB, fd int) uint64 {
	t.Helper()
	b := make([]byte, 8)
	if _, err := unix.Read(fd, b); err == unix.EAGAIN {
		return 0
	} else if err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(b)
}

// holders returns how many descriptors of this process are of the same file.
// Theirs all have one inode number if they are eventfds, so the count of an
// eventfd is not told from that of others.
func holders(t testing.TB, fd int) (n int) {
	t.Helper()
	var want unix.Stat_t
	if err := unix.Fstat(fd, &want); err != nil {
		t.Fatal(err)
	}
	for i := range 1024 {
		var st unix.Stat_t
		if unix.Fstat(i, &st) == nil && st.Dev == want.Dev && st.Ino == want.Ino {
			n++
		}
	}
	return n
}

// mapping is VFIO_USER_DMA_MAP's payload.
func mapping(addr, size, off uint64, flags uint32) []byte {
	return pack(dmaMap{Argsz: dmaMapSize, Flags: flags, Offset: off, Addr: addr, Length: size})
}

func unmapping(addr, size uint64, flags uint32) []byte {
	return pack(dmaUnmap{Argsz: dmaUnmapSize, Flags: flags, Addr: addr, Length: size})
}

const readWrite = dmaMapRead | dmaMapWrite

// topPage is the last page of the address space.
const topPage uint64 = 1<<64 - pageSize
