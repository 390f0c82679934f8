// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel's file, as far as it can be had without a device.

func has(t *testing.T, err error, is error, parts ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("%v is no %v", err, is)
	}
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("%q has no %q", err, p)
		}
	}
}

func TestOpenNode(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "uverbs0")
	_, err := openNode("mlx5_0", missing)
	has(t, err, ErrNoUverbs, "devx: open mlx5_0 ("+missing+"): no uverbs node: no such file or directory", "is ib_uverbs loaded")
	has(t, err, unix.ENOENT)

	// A superuser may open everything, so this one is not tried.
	err = openError("mlx5_0", "/dev/infiniband/uverbs0", unix.EACCES)
	has(t, err, ErrNoPermission, "devx: open mlx5_0 (/dev/infiniband/uverbs0): no permission: permission denied", "rdma-core's udev rules", "0666")
	has(t, openError("mlx5_0", "x", unix.EPERM), ErrNoPermission)
	has(t, openError("mlx5_0", "x", unix.ENXIO), ErrNoUverbs)
	has(t, openError("mlx5_0", "x", unix.EMFILE), unix.EMFILE, "devx: open mlx5_0 (x): too many open files")
}

// nodes makes every name stand for a file of the kernel's kind.
type nodes struct{}

func (nodes) Open(path string) (File, Info, error) {
	f, err := openNode("node:"+path, path)
	return f, Info{Name: "node:" + path}, err
}

func init() { Register("node", nodes{}) }

func TestFileIsNoNode(t *testing.T) {
	_, err := Open("node:/dev/null")
	has(t, err, ErrNoDevX, "devx: node:/dev/null: no DevX: the file knows no ioctl that opens a context (inappropriate ioctl for device)", "Linux 5.6", "uverbs node")
	has(t, err, unix.ENOTTY)

	f, err := openNode("null", "/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.MapUAR(0, 4096); !errors.Is(err, unix.ENODEV) {
		t.Errorf("mmap: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if errno := f.Ioctl(make([]byte, 64)); errno != unix.EBADF {
		t.Errorf("ioctl of a closed file: %v", errno)
	}
}

// A doorbell reaches the page in the order of its bytes, most significant first.
func TestStore64(t *testing.T) {
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	m := &uarMapping{b}
	m.Store64(0x800, 0x0102030405060708)
	m.Store64(4088, 0xf1f2f3f4f5f6f7f8)
	if !bytes.Equal(b[0x7f8:0x810], []byte{8: 1, 9: 2, 10: 3, 11: 4, 12: 5, 13: 6, 14: 7, 15: 8, 23: 0}) || b[4088] != 0xf1 || b[4095] != 0xf8 {
		t.Errorf("%x, %x", b[0x7f8:0x810], b[4088:])
	}
	if err := m.Unmap(); err != nil {
		t.Error(err)
	}
}

func TestContextErrors(t *testing.T) {
	for _, c := range []struct {
		err, plain unix.Errno
		is         error
		part       string
	}{
		{unix.EPROTONOSUPPORT, unix.EPROTONOSUPPORT, ErrNoDevX, "it came with Linux 5.6"},
		{unix.EINVAL, 0, ErrNoDevX, "log_max_uctx"},
		{unix.EIO, unix.EIO, ErrDeviceGone, "see dmesg"},
		{unix.ENOMEM, unix.ENOMEM, unix.ENOMEM, "/dev/infiniband/uverbs*"},
		{unix.EAGAIN, unix.EAGAIN, ErrDeviceGone, "see dmesg"},
		{unix.ENOLINK, unix.ENOLINK, ErrDeviceGone, "see dmesg"},
		{unix.ETIMEDOUT, unix.ETIMEDOUT, unix.ETIMEDOUT, "did not answer in time"},
		{unix.EBUSY, unix.EBUSY, unix.EBUSY, "no context"},
	} {
		has(t, contextError("mlx5_0", c.err, c.plain), c.is, "devx: mlx5_0: ", c.part)
		has(t, contextError("mlx5_0", c.err, c.plain), c.err)
	}
	if Unknown(contextError("mlx5_0", unix.EINVAL, 0)) {
		t.Error("nothing was sent that could be unknown")
	}
}

func TestUnknown(t *testing.T) {
	for _, c := range []struct {
		e       CommandError
		unknown bool
	}{
		{CommandError{Errno: unix.EIO}, true}, {CommandError{Errno: unix.ENXIO}, true}, {CommandError{Errno: unix.ETIMEDOUT}, true},
		{CommandError{Errno: unix.EINVAL}, false}, {CommandError{Errno: unix.EBUSY}, false}, {CommandError{Errno: unix.EREMOTEIO, HasOutbox: true, Status: 1}, false},
		{CommandError{Errno: unix.EIO, HasOutbox: true, Status: 1}, false},
	} {
		if Unknown(&c.e) != c.unknown {
			t.Errorf("%v: %v", &c.e, !c.unknown)
		}
	}
	if Unknown(nil) || Unknown(ErrClosed) || !Unknown(goneError("x", unix.EIO)) {
		t.Error("of other errors")
	}
}

// testChannel is a channel whose descriptor is an end of a socket pair.
func testChannel(t *testing.T, typ int) (c *channel, fd int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c = &channel{d: &Device{info: Info{Name: "mlx5_0"}}, file: os.NewFile(uintptr(fds[0]), "event channel")}
	t.Cleanup(func() {
		_ = c.close()
		_ = unix.Close(fds[1])
	})
	return c, fds[1]
}

func last(c *channel, size int) (n int, err error) {
	for _, e := range c.messages(context.Background(), size) {
		if e != nil {
			return n, e
		}
		n++
	}
	return n, errors.New("no error at the end")
}

// A descriptor of a device that is gone answers EAGAIN to a read that does not
// block, and RDHUP to poll. So does a datagram socket whose reading end was
// shut down.
func TestChannelOfDeviceThatIsGone(t *testing.T) {
	for range 50 {
		c, fd := testChannel(t, unix.SOCK_DGRAM)
		if _, err := unix.Write(fd, []byte("event")); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			n, err := last(c, 64)
			if n != 1 {
				t.Errorf("%d messages", n)
			}
			got <- err
		}()
		if err := c.use(func(fd uint32) error { return unix.Shutdown(int(fd), unix.SHUT_RD) }); err != nil {
			t.Fatal(err)
		}
		has(t, <-got, ErrDeviceGone, "mlx5_0")
	}
}

// An error of the read is not mistaken for the end of the device: the kernel's
// EOVERFLOW says that events were lost.
func TestChannelReadError(t *testing.T) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &channel{d: &Device{info: Info{Name: "mlx5_0"}}, file: os.NewFile(uintptr(fd), "event channel")}
	defer c.close()
	_, err = last(c, 64) // of a socket that is not connected
	has(t, err, unix.EINVAL, "devx: mlx5_0: event channel: ")
	if errors.Is(err, ErrDeviceGone) {
		t.Error(err)
	}
}
