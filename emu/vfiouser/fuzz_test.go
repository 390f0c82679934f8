// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/internal/mutate"
)

// worker is a device that does, on a write to its BAR, what the data say.
type worker struct {
	*device
	host Host
}

func (w *worker) Attach(h Host) { w.host = h }
func (w *worker) Detach()       { w.host = nil }

func (w *worker) WriteBAR(bar int, off int64, b []byte) {
	w.within(off, int64(len(b)), deviceBARs[bar])
	if len(b) != 8 {
		return
	}
	word := binary.NativeEndian.Uint64(b)
	buf := make([]byte, off%64)
	_ = w.host.ReadDMA(word, buf)
	_ = w.host.WriteDMA(word, buf)
	w.host.Interrupt(int(word))
}

func (w *worker) WriteConfig(off int, b []byte) { w.within(int64(off), int64(len(b)), configSize) }
func (w *worker) Reset()                        {}

// A piece of the stream: what comes with it, its length, its bytes.
const (
	pieceFDs  = 0x03 // how many descriptors
	pieceKind = 0x0c // of which
	pieceSize = 0x10 // the size in the header is made right
	pieceHead = 3
)

func piece(control byte, b []byte) []byte {
	return append(binary.LittleEndian.AppendUint16([]byte{control}, uint16(len(b))), b...)
}

// FuzzMessages sends a stream of messages with descriptors. What comes back must
// be replies to the commands, in their order; nothing may be left open.
func FuzzMessages(f *testing.F) {
	kinds := descriptorKinds(f)

	seed := func(pieces ...[]byte) {
		var all []byte
		for _, p := range pieces {
			all = append(all, p...)
		}
		f.Add(all)
	}
	id := uint16(0)
	send := func(command uint16, control byte, payload []byte) []byte {
		id++
		return piece(pieceSize|control, message(header{ID: id, Command: command}, payload))
	}
	post := func(command uint16, payload []byte) []byte {
		id++
		return piece(pieceSize, message(header{ID: id, Command: command, Flags: flagNoReply}, payload))
	}
	const withMem, withEvent = 1, 1 | 1<<2
	hello := send(cmdVersion, 0, pack(version{}, qemuVersion))
	ram := send(cmdDMAMap, withMem, mapping(0x10000, 0x8000, 0x4000, readWrite))
	vector := send(cmdSetIRQs, withEvent, irqs(setFDs, 1, 1))
	work := post(cmdRegionWrite, pack(regionAccess{0x20, 0, 8}, uint64(0x10010)))
	seed(hello)
	qemu := [][]byte{hello}
	for _, m := range recorded {
		control := map[int]byte{withMemory: withMem, withEventFD: withEvent}[m.with]
		id++
		qemu = append(qemu, piece(pieceSize|control, message(header{ID: id, Command: m.command, Flags: m.flags}, m.bytes())))
	}
	seed(qemu...)
	seed(hello, ram, send(cmdDMAMap, 0, mapping(0xfffc0000, 0x40000, 0, dmaMapRead)),
		send(cmdGetInfo, 0, pack(deviceInfo{Argsz: 16})),
		send(cmdGetRegionInfo, 0, pack(regionInfo{Argsz: 32, Index: 7})),
		send(cmdGetIRQInfo, 0, pack(irqInfo{Argsz: 16, Index: 2})),
		send(cmdRegionRead, 0, pack(regionAccess{0, regionConfig, configSize})),
		send(cmdReset, 0, nil),
		send(cmdSetIRQs, 0, irqs(setFDs, 0, 1)), vector, work,
		post(cmdRegionWrite, pack(regionAccess{0x20, 0, 8}, uint64(1))),
		send(cmdDMAUnmap, 0, unmapping(0x10000, 0x8000, 0)), work,
		send(cmdSetIRQs, 0, irqs(irqDataNone|irqTrigger, 0, 0)))
	seed(hello, post(cmdWriteMulti, multi(2, one8(0, 0, 8), one8(4, regionConfig, 4))), send(cmdGetRegionIOFDs, 0, pack(regionIOFDs{Argsz: 16})))
	seed(hello, vector, send(cmdSetIRQs, 0, irqs(irqDataBool|irqMask, 0, 2, 1, 1)), work, send(cmdSetIRQs, 0, irqs(irqDataNone|irqUnmask, 0, 2)))
	seed(hello, ram, ram, send(cmdDMAUnmap, 0, unmapping(0, 0, dmaUnmapAll)), ram, work)
	seed(hello, send(cmdDMAMap, 3, mapping(0, 4096, 0, readWrite)), send(cmdDMAMap, 1|2<<2, mapping(0, 4096, 0, readWrite)), send(cmdSetIRQs, 1|3<<2, irqs(setFDs, 1, 1)))
	seed(hello, piece(withMem, pack(header{Command: cmdDMAMap, Size: 48})), piece(withMem, mapping(0, 4096, 0, readWrite)))
	seed(hello, piece(0, pack(header{Command: cmdReset, Size: 3})))
	seed(ram)

	f.Fuzz(func(t *testing.T, in []byte) { stream(t, kinds, in) })
}

// descriptorKinds returns memory, an eventfd and the ends of a pipe.
func descriptorKinds(t testing.TB) []int {
	t.Helper()
	mem, event := memfd(t, 128<<20), eventFD(t)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	closeLater(t, pipe[0])
	closeLater(t, pipe[1])
	return []int{mem, event, pipe[0], pipe[1]}
}

// TestMutatedMessages is FuzzMessages with many inputs.
func TestMutatedMessages(t *testing.T) {
	kinds := descriptorKinds(t)
	mutate.Run(t, "FuzzMessages", func(_ int, in []any) { stream(t, kinds, in[0].([]byte)) })
}

// stream sends a session's pieces, with descriptors of some kinds.
func stream(t *testing.T, kinds []int, in []byte) {
	t.Helper()
	before := descriptors(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	server, cl := socket(t, fds[0]), socket(t, fds[1])
	defer cl.Close()
	w := &worker{device: newDevice(t)}
	shape, err := shapeOf(w)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer server.Close()
		_ = newSession(w, shape, server, func(error) {}).run()
	}()
	replies := make(chan []header)
	go func() {
		c := client{t: t, c: cl}
		replies <- c.readAll()
	}()

	var sent []byte
	for len(in) >= pieceHead {
		control, n := in[0], int(binary.LittleEndian.Uint16(in[1:]))
		b := append([]byte(nil), in[pieceHead:min(len(in), pieceHead+n)]...)
		in = in[pieceHead+len(b):]
		if control&pieceSize != 0 && len(b) >= headerSize {
			binary.NativeEndian.PutUint32(b[4:], uint32(len(b)))
		}
		if len(b) == 0 {
			continue
		}
		var oob []byte
		if n := control & pieceFDs; n > 0 {
			fds := make([]int, n)
			for i := range fds {
				fds[i] = kinds[(int(control&pieceKind)>>2+i)%len(kinds)]
			}
			oob = unix.UnixRights(fds...)
		}
		if _, _, err := cl.WriteMsgUnix(b, oob, nil); err != nil {
			break // dropped
		}
		sent = append(sent, b...)
	}
	_ = cl.CloseWrite()
	<-done
	want := wanted(sent)
	for i, h := range <-replies {
		if i >= len(want) || h.ID != want[i].ID || h.Command != want[i].Command {
			t.Fatalf("reply %d is %+v; the commands that want one are %+v", i, h, want)
		}
	}
	_ = cl.Close()
	if w.host != nil {
		t.Error("the function was not told that the client is gone")
	}
	if left := mappings(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, %d before", after, before)
	}
}

// wanted returns the headers of a stream's commands that want a reply.
func wanted(stream []byte) (hs []header) {
	for len(stream) >= headerSize {
		h := decode[header](stream)
		if h.Size < headerSize || uint64(h.Size) > uint64(len(stream)) {
			break
		}
		if h.Flags&flagNoReply == 0 || len(hs) == 0 {
			hs = append(hs, h)
		}
		stream = stream[h.Size:]
	}
	return hs
}

// readAll reads replies until the server hangs up.
func (c *client) readAll() (hs []header) {
	for {
		head := make([]byte, headerSize)
		if n, err := io.ReadFull(c.c, head); err != nil {
			if n != 0 {
				c.t.Errorf("%d bytes of a header", n)
			}
			return hs
		}
		h := decode[header](head)
		isError := h.Flags == flagReply|flagError && h.Size == headerSize && h.Errno != 0
		isReply := h.Flags == flagReply && h.Size >= headerSize && h.Size <= maxMessage && h.Errno == 0
		if !isError && !isReply {
			c.t.Errorf("reply %+v", h)
			return hs
		}
		if _, err := io.CopyN(io.Discard, c.c, int64(h.Size-headerSize)); err != nil {
			c.t.Errorf("reply %+v: %v", h, err)
			return hs
		}
		hs = append(hs, h)
	}
}

func socket(t testing.TB, fd int) *net.UnixConn {
	t.Helper()
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c.(*net.UnixConn)
}

func descriptors(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}
