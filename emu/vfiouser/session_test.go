// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// One client is served at a time: the next one waits.
func TestNextClient(t *testing.T) {
	r := newRig(t)
	first := r.connect()
	second := r.dial()
	second.write(message(header{ID: 7, Command: cmdVersion}, pack(version{})))
	first.sync()
	select {
	case <-r.dev.attached:
		t.Fatal("two clients at once")
	default:
	}
	first.close()
	if h, _ := second.read(); h.ID != 7 {
		t.Errorf("reply %+v", h)
	}
	<-r.dev.attached
}

func TestManyServers(t *testing.T) {
	fd := memfd(t, pageSize)
	for i := range 4 {
		c := connect(t)
		c.ok(cmdDMAMap, mapping(uint64(i)<<32, pageSize, 0, readWrite), fd)
		if err := c.host.WriteDMA(uint64(i)<<32, []byte{1}); err != nil {
			t.Error(err)
		}
		if err := c.host.WriteDMA(uint64(i+1)<<32, []byte{1}); !errors.Is(err, ErrUnmapped) {
			t.Errorf("another server's memory: %v", err)
		}
	}
}

// persist makes a client that has agreed on a version. The server's patience is
// so short that it may be over before we have said a word; then again.
func (r *rig) persist() *client {
	for {
		c := r.dial()
		_, _ = c.c.Write(message(header{Command: cmdVersion}, pack(version{})))
		if n, _ := io.ReadFull(c.c, make([]byte, headerSize+versionSize)); n == headerSize+versionSize {
			c.host = <-r.dev.attached
			return c
		}
		c.c.Close()
	}
}

func TestImpatience(t *testing.T) {
	for _, x := range []struct {
		what, why string
		do        func(r *rig) *client
	}{
		{"says nothing", "handshake: ", func(r *rig) *client { return r.dial() }},
		{"half a header", "after 4 bytes of a header: the rest did not come", func(r *rig) *client {
			c := r.persist()
			c.write([]byte{1, 0, 13, 0})
			return c
		}},
		{"no payload", "in DMA_MAP of 48 bytes: the rest did not come", func(r *rig) *client {
			c := r.persist()
			c.write(pack(header{Command: cmdDMAMap, Size: 48}), memfd(r.t, 0))
			return c
		}},
		{"does not read", "does not read its replies", func(r *rig) *client {
			c := r.persist()
			read := message(header{Command: cmdRegionRead}, pack(regionAccess{0, 0, 64 << 10}))
			go func() { // until the server has hung up
				for {
					if _, err := c.c.Write(read); err != nil {
						return
					}
				}
			}()
			return c
		}},
	} {
		t.Run(x.what, func(t *testing.T) {
			r := newRigWith(t, impatient)
			c := x.do(r)
			for why := ""; !strings.Contains(why, x.why); { // what persist met with may come first
				if why = r.refused(); why == nothing {
					t.Fatalf("%s; want %q", why, x.why)
				}
			}
			c.dropped()
			r.persist() // the next one is served
		})
	}
}

// A client may be silent between messages. The wait makes an error show; without
// one the test passes however long it takes.
func TestSilence(t *testing.T) {
	c := newRigWith(t, impatient).persist()
	_, _ = c.c.Write(message(header{Command: cmdReset}, nil))
	c.read()
	time.Sleep(3 * impatient)
	c.write(message(header{Command: cmdReset}, nil))
	c.read()
}

// A client that is served, and one that waits, do not keep Serve.
func TestServeEnds(t *testing.T) {
	d := newDevice(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- Serve(ctx, l, d) }()
	r := &rig{t: t, dev: d, path: l.Addr().String()}
	c, waits := r.connect(), r.dial()
	c.ok(cmdDMAMap, mapping(0, pageSize, 0, readWrite), memfd(t, pageSize))
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Serve: %v", err)
	}
	c.dropped()
	waits.dropped()

	// Before it begins.
	if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	if err := Serve(ctx, l, d); !errors.Is(err, context.Canceled) {
		t.Errorf("Serve: %v", err)
	}
	if err := Serve(context.Background(), l, d); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve with a closed listener: %v", err)
	}
}

// wrong has a shape that cannot be.
type wrong struct {
	*device
	bar     int64
	vectors int
}

func (w wrong) BARSize(int) int64 { return w.bar }
func (w wrong) Vectors() int      { return w.vectors }

func TestShape(t *testing.T) {
	for _, w := range []wrong{{bar: 3}, {bar: 8}, {bar: -16}, {bar: -1 << 63}, {vectors: -1}, {vectors: 2049}} {
		if _, err := shapeOf(w); err == nil {
			t.Errorf("BAR of %d bytes, %d vectors: no error", w.bar, w.vectors)
		}
	}
	for _, w := range []wrong{{}, {bar: 16}, {bar: 1 << 62, vectors: 2048}} {
		if _, err := shapeOf(w); err != nil {
			t.Error(err)
		}
	}
}

func TestErrors(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	c.fails(unix.ENOENT, cmdDMAUnmap, unmapping(0x1000, 0x1000, 0))
	err := <-r.log
	var e *RequestError
	if !errors.As(err, &e) || !errors.Is(err, unix.ENOENT) || e.Command != "DMA_UNMAP" || e.ID != c.id {
		t.Errorf("%#v", err)
	}
	const want = "vfio-user: DMA_UNMAP, message 2, refused: there is no mapping of 0x1000 bytes at 0x1000: no such file or directory"
	if err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}
