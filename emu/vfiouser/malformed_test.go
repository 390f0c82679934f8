// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func itoa(n int) string { return strconv.Itoa(n) }

// checkName reports whether a descriptor is an eventfd.
func checkName(fd int) bool {
	what, _ := os.Readlink("/proc/self/fd/" + itoa(fd))
	return what == "anon_inode:[eventfd]"
}

// runtimeEventFDs is how many the network poller has.
var runtimeEventFDs = func() (n int) {
	r, w, err := os.Pipe() // starts the poller
	if err != nil {
		panic(err)
	}
	defer r.Close()
	defer w.Close()
	for fd := range 1024 {
		if checkName(fd) {
			n++
		}
	}
	return n
}()

// A command that is refused leaves the connection as it was.
func TestRefused(t *testing.T) {
	c := connect(t)
	mem := memfd(t, pageSize)
	for n, row := range commands {
		command := uint16(n)
		t.Run(commandName(command), func(t *testing.T) {
			switch {
			case row.do == nil:
				c.fails(unix.EOPNOTSUPP, command, nil)
				c.fails(unix.EOPNOTSUPP, command, make([]byte, 64))
			default:
				for _, size := range []int{0, 1, row.size - 1} {
					if size >= 0 && size < row.size {
						c.fails(unix.EINVAL, command, make([]byte, size))
					}
				}
				if !row.longer {
					c.fails(unix.EINVAL, command, make([]byte, row.size+1))
				}
			}
			// Descriptors that are not expected are closed.
			if _, errno := c.call(command, make([]byte, row.size), slices.Repeat([]int{mem}, row.fds+1)[:min(row.fds+1, maxFDs)]...); errno == 0 {
				t.Error("descriptors were accepted")
			}
			if got := holders(t, mem); got != 1 {
				t.Errorf("%d descriptors of one file are open", got)
			}
		})
	}
	for _, command := range []uint16{0, 19, 1000, 0xffff} {
		c.fails(unix.EOPNOTSUPP, command, nil)
	}
	for _, h := range []header{{Flags: flagError}, {Flags: 0x40}, {Flags: 1 << 31}, {Errno: 5}} {
		h.ID, h.Command = 0xabcd, cmdReset
		c.write(message(h, nil))
		if got, _ := c.read(); got.ID != 0xabcd || got.Errno != uint32(unix.EINVAL) {
			t.Errorf("%+v: reply %+v", h, got)
		}
	}
	if got := c.dev.done(); len(got) != 0 {
		t.Errorf("the device saw %+v", got)
	}
	c.sync()
}

// What breaks the framing ends the connection.
func TestDropped(t *testing.T) {
	mem := memfd(t, pageSize)
	for _, x := range []struct {
		what string
		send func(c *client)
		why  string
	}{
		{"size 0", func(c *client) { c.write(pack(header{Command: cmdReset})) }, "a message of 0 bytes is shorter"},
		{"size 15", func(c *client) { c.write(pack(header{Command: cmdReset, Size: 15})) }, "a message of 15 bytes is shorter"},
		{"too long", func(c *client) { c.write(pack(header{Command: cmdRegionWrite, Size: maxMessage + 1})) }, "at most"},
		{"4 GiB", func(c *client) { c.write(pack(header{Command: cmdRegionWrite, Size: ^uint32(0)})) }, "at most"},
		{"a reply", func(c *client) { c.write(message(header{Command: cmdDMARead, Flags: flagReply}, nil)) }, "type 1"},
		{"type 15", func(c *client) { c.write(message(header{Command: cmdReset, Flags: 15}, nil)) }, "type 15"},
		{"17 descriptors", func(c *client) {
			c.write(message(header{Command: cmdReset}, nil), slices.Repeat([]int{mem}, 17)...)
		}, "more than 16 file descriptors"},
		{"253 descriptors", func(c *client) {
			c.write(message(header{Command: cmdReset}, nil), slices.Repeat([]int{mem}, 253)...)
		}, "more than 16 file descriptors"},
		{"descriptors in parts", func(c *client) {
			for _, b := range message(header{Command: cmdRegionRead}, make([]byte, regionAccessSize)) {
				_, _, _ = c.c.WriteMsgUnix([]byte{b}, unix.UnixRights(mem), nil) // fails once it has hung up
			}
		}, "more than 16 file descriptors"},
		{"the end in a header", func(c *client) {
			c.write(pack(header{Command: cmdReset})[:5], mem)
			_ = c.c.CloseWrite()
		}, "after 5 bytes of a header: unexpected EOF"},
		{"the end after a header", func(c *client) {
			c.write(pack(header{Command: cmdReset, Size: 32}), mem)
			_ = c.c.CloseWrite()
		}, "in DEVICE_RESET of 32 bytes: unexpected EOF"},
		{"the end in a payload", func(c *client) {
			c.write(pack(header{Command: cmdDMAMap, Size: 48}, "01234567"), mem)
			_ = c.c.CloseWrite()
		}, "in DMA_MAP of 48 bytes: unexpected EOF"},
	} {
		t.Run(x.what, func(t *testing.T) {
			r := newRig(t)
			c := r.connect()
			c.ok(cmdDMAMap, mapping(0, pageSize, 0, readWrite), mem)
			c.ok(cmdSetIRQs, irqs(setFDs, 0, 1), eventFD(t))
			x.send(c)
			c.dropped()
			if why := r.refused(); !strings.HasPrefix(why, "vfio-user: client dropped: ") || !strings.Contains(why, x.why) {
				t.Errorf("%q, want %q in it", why, x.why)
			}
			r.connect().sync() // and so the last one's things are gone
			if n := holders(t, mem); n != 1 {
				t.Errorf("%d descriptors of the memory", n)
			}
			if left := mappings(); len(left) != 0 {
				t.Errorf("left: %q", left)
			}
			if err := c.host.ReadDMA(0, make([]byte, 1)); err == nil {
				t.Error("the memory of a client that is gone can be read")
			}
			c.host.Interrupt(0)
		})
	}
}

// A message may come in any number of pieces.
func TestPieces(t *testing.T) {
	c := connect(t)
	mem := memfd(t, pageSize)
	for i, b := range message(header{ID: 9, Command: cmdDMAMap}, mapping(0, pageSize, 0, readWrite)) {
		if i == 20 {
			c.write([]byte{b}, mem)
		} else {
			c.write([]byte{b})
		}
	}
	if h, _ := c.read(); h.ID != 9 || h.Errno != 0 {
		t.Errorf("reply %+v", h)
	}
	two := message(header{ID: 1, Command: cmdReset}, nil)
	c.write(append(two, two...))
	c.read()
	c.read()
	if err := c.host.WriteDMA(0, []byte{1}); err != nil {
		t.Error(err)
	}
}

// What a message claims to have costs no more than the longest one has.
func TestBoundedMemory(t *testing.T) {
	r := newRig(t)
	grown := func(f func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	for _, x := range []struct {
		size  uint32
		bound uint64
	}{{^uint32(0), 256 << 10}, {maxMessage, 4 << 20}} {
		c := r.connect()
		if n := grown(func() {
			c.write(pack(header{Command: cmdRegionWrite, Size: x.size}))
			_ = c.c.CloseWrite()
			c.dropped()
		}); n > x.bound {
			t.Errorf("a claim of %d bytes allocated %d, want at most %d", x.size, n, x.bound)
		}
		r.refused()
	}
	c := r.dial()
	if n := grown(func() {
		c.write(pack(header{Command: cmdVersion, Size: maxVersion + 1}))
		c.dropped()
	}); n > 256<<10 {
		t.Errorf("a first message allocated %d", n)
	}
}
