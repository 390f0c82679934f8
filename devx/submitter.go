// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

// maxCommand is the longest input or output of a command: an attribute's
// length has 16 bits.
const maxCommand = 1<<16 - 8

// The slab of a submitter: a page for the ioctl and its small results, then
// room for one input and one output.
const (
	slabSmall = 2048 // offset of the small results in the first page
	slabIn    = abi.MaxIoctlSize
	slabOut   = slabIn + 1<<16
	slabSize  = slabOut + 1<<16
)

// Submitter issues one command at a time. Its buffers are mapped memory that
// the kernel reads and writes; a program that sends commands from many
// goroutines gives each its own. It is not safe for concurrent use. Its memory
// stays mapped until it is closed, also after the device was.
type Submitter struct {
	d     *Device
	slab  *usermem.Region
	hdr   abi.Header
	in    []byte
	out   []byte
	attrs int
	small int // bytes of the small results in use
	calls int
	since time.Time // it yielded
}

// A submitter lets the scheduler in after yieldEvery calls, and after yieldTime
// if they take long. Go's monitor takes the processor from a goroutine that was
// not scheduled for 10 ms as soon as it is in a system call (sysmon and retake in
// runtime/proc.go), and from then on in every call: two more context switches for
// each command. A goroutine that was scheduled in time keeps its processor as long
// as another is idle, so GOMAXPROCS should be greater than the number of
// submitters. Yielding has a price too, so not each time. A command of more than
// 10 ms loses the processor whatever is done here.
const (
	yieldEvery = 8
	yieldTime  = 4 * time.Millisecond
)

// NewSubmitter returns a submitter of its own for a long-lived goroutine.
func (d *Device) NewSubmitter() (*Submitter, error) {
	slab, err := usermem.Alloc(slabSize)
	if err != nil {
		return nil, fmt.Errorf("devx: %s: %w", d.info.Name, err)
	}
	b := slab.Bytes()
	return &Submitter{
		d:    d,
		slab: slab,
		hdr:  b[:slabIn],
		in:   b[slabIn:slabOut:slabOut],
		out:  b[slabOut:],
	}, nil
}

// Close frees the submitter's buffers. A second call does nothing.
func (s *Submitter) Close() error {
	s.hdr, s.in, s.out = nil, nil, nil
	return s.slab.Free()
}

// begin starts the ioctl of one method.
func (s *Submitter) begin(object, method uint16) {
	s.hdr.SetObjectID(object)
	s.hdr.SetMethodID(method)
	s.hdr.SetReserved1(0)
	s.hdr.SetDriverID(abi.RDMA_DRIVER_MLX5)
	s.hdr.SetReserved2(0)
	s.attrs, s.small = 0, 0
}

func (s *Submitter) attr(id uint16, length int, data uint64) abi.Attr {
	a := s.hdr.Attr(s.attrs)
	s.attrs++
	a.SetID(id)
	a.SetLen(uint16(length))
	a.SetFlags(abi.UVERBS_ATTR_F_MANDATORY)
	a.SetReserved(0)
	a.SetData(data)
	return a
}

// handle adds the handle of an object; after the call the attribute has the
// handle of a new one.
func (s *Submitter) handle(id uint16, h uint32) abi.Attr { return s.attr(id, 0, uint64(h)) }

// value adds n bytes of an integer, 8 at most, inline. A constant has 8
// (UVERBS_ATTR_CONST_IN), whatever its type.
func (s *Submitter) value(id uint16, n int, v uint64) abi.Attr { return s.attr(id, n, v) }

// input adds the first n bytes of s.in.
func (s *Submitter) input(id uint16, n int) { s.inputAt(id, 0, n) }

// inputAt adds n bytes of s.in.
func (s *Submitter) inputAt(id uint16, at, n int) {
	if n <= abi.InlineSize {
		var inline [8]byte
		copy(inline[:], s.in[at:at+n])
		s.attr(id, n, binary.LittleEndian.Uint64(inline[:]))
		return
	}
	s.attr(id, n, s.slab.Addr()+slabIn+uint64(at))
}

// output adds room for n bytes in s.out, cleared.
func (s *Submitter) output(id uint16, n int) {
	clear(s.out[:n])
	s.attr(id, n, s.slab.Addr()+slabOut)
}

// result adds room for n bytes, 8 at most, and returns them.
func (s *Submitter) result(id uint16, n int) []byte {
	at := slabSmall + s.small
	s.small += 8
	clear(s.hdr[at : at+8])
	s.attr(id, n, s.slab.Addr()+uint64(at))
	return s.hdr[at : at+8]
}

// yield lets the scheduler in before a system call now and then. The emulated
// device's are none.
func (s *Submitter) yield() {
	if !s.d.kernel {
		return
	}
	now := time.Now()
	if s.calls++; s.calls%yieldEvery == 0 || now.Sub(s.since) >= yieldTime {
		runtime.Gosched()
		s.since = now
	}
}

// call issues the ioctl. ErrClosed is returned, and nothing was sent, if the
// device was closed.
func (s *Submitter) call() (unix.Errno, error) {
	s.yield()
	if !s.d.enter() {
		return 0, s.d.closedError()
	}
	n := abi.HeaderSize + s.attrs*abi.AttrSize
	s.hdr.SetLength(uint16(n))
	s.hdr.SetNumAttrs(uint16(s.attrs))
	errno := s.d.file.Ioctl(s.hdr[:n])
	s.d.exit()
	return errno, nil
}

// command issues the ioctl, whose input and output are a firmware command, and
// says what firmware or kernel refused.
func (s *Submitter) command(qpn uint32, in, out int) error {
	var start time.Time
	trace := s.d.trace
	if trace != nil {
		start = time.Now()
	}
	errno, err := s.call()
	if err != nil {
		return err
	}
	if trace != nil && !s.d.fileTraces {
		took := time.Since(start)
		if errno != 0 && s.out[0] == 0 {
			out = 0 // the kernel passed none on
		}
		trace(s.in[:in], s.out[:out], took)
	}
	if errno == 0 && s.out[0] == 0 {
		return nil
	}
	return s.failed(s.in, s.out, qpn, errno)
}

func (s *Submitter) failed(in, out []byte, qpn uint32, errno unix.Errno) error {
	status, syndrome := mlx5.StatusOf(out)
	e := &CommandError{
		Op:        mlx5.OpOf(in),
		OpMod:     binary.BigEndian.Uint16(in[6:]),
		QPN:       qpn,
		Status:    status,
		Syndrome:  syndrome,
		HasOutbox: status != mlx5.StatusOK,
		Errno:     errno,
	}
	if !e.HasOutbox && lostAnswer(errno) && errno != unix.ETIMEDOUT {
		return goneError(s.d.info.Name, e)
	}
	return fmt.Errorf("devx: %s: %w", s.d.info.Name, e)
}

// load copies a command in and checks the room for its output.
func (s *Submitter) load(in []byte, out int) error {
	if len(in) < 16 || out < 16 {
		return fmt.Errorf("devx: a command has at least 16 bytes of input and of output, not %d and %d", len(in), out)
	}
	if len(in) > maxCommand || out > maxCommand {
		return fmt.Errorf("devx: input of %d or output of %d bytes is too long: the ioctl carries %d", len(in), out, maxCommand)
	}
	if least := umemBits(in); len(in) < least {
		return fmt.Errorf("devx: %v of %d bytes: at least %d, or the kernel writes beyond its copy of the command", mlx5.OpOf(in), len(in), least)
	}
	copy(s.in, in)
	return nil
}

// xrqUmemBits is where the bits end that the kernel sets in CREATE_XRQ: those of
// wq in xrqc (mlx5_ifc.h), behind the header.
const xrqUmemBits = 16 + 0x400/8 + 0x140/8

// umemBits returns how long a command must be for the kernel to set the bits
// in it that say that an object's memory is a umem. It sets them whatever the
// length (devx_set_umem_valid in the driver, seen in Linux 5.10 to 7.3): a
// shorter command corrupts the kernel's memory.
func umemBits(in []byte) int {
	switch op := mlx5.OpOf(in); op {
	case mlx5.OpCreateMKey, mlx5.OpCreateCQ, mlx5.OpModifyCQ, mlx5.OpCreateQP, mlx5.OpCreateSQ, mlx5.OpCreateRQ, mlx5.OpCreateRMP, mlx5.OpCreateXRCSRQ:
		l, _ := op.Layouts()
		return l.Bytes
	case mlx5.OpCreateXRQ:
		return xrqUmemBits
	}
	return 0
}

// Send issues an encoded transition of q: what Transition.Encode wrote. It
// allocates nothing if the command succeeds.
func (s *Submitter) Send(q *QP, cmd []byte) error {
	switch {
	case q.obj.d != s.d:
		return fmt.Errorf("devx: QP %#x %w than %s", q.qpn, ErrForeign, s.d.info.Name)
	case s.in == nil:
		return fmt.Errorf("devx: submitter: %w", ErrClosed)
	}
	if err := q.obj.use(); err != nil {
		return fmt.Errorf("devx: QP %#x: %w", q.qpn, ErrClosed)
	}
	defer q.obj.unuse()
	if err := s.load(cmd, mlx5.CmdOutSize); err != nil {
		return err
	}
	return s.modify(&q.obj, q.qpn, len(cmd), mlx5.CmdOutSize)
}

func (s *Submitter) modify(o *Object, qpn uint32, in, out int) error {
	s.begin(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_MODIFY)
	s.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE, o.handle)
	s.input(abi.MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, in)
	s.output(abi.MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, out)
	return s.command(qpn, in, out)
}
