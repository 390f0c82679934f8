// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/mlx5"
)

// Device is a DevX context on one device. It is safe for concurrent use.
type Device struct {
	info       Info
	file       File
	kernel     bool // file is the kernel's
	fileTraces bool
	writer     writer // nil: no verbs
	verbsPath  VerbsPath
	vectors    int
	trace      func(in, out []byte, took time.Duration)

	// calls counts what Close waits for; closing is added to it by Close.
	calls   atomic.Int64
	closed  atomic.Bool
	drained chan struct{}
	drain   sync.Once
	parts   parts

	mu         sync.Mutex
	freed      bool         // what follows
	submitters []*Submitter // idle ones
	channels   map[*channel]struct{}
	uars       map[*UAR]struct{}
}

const closing = 1 << 62

// maxIdle is how many idle submitters a device keeps.
const maxIdle = 64

// Option changes how Open opens a device.
type Option func(*Device)

// WithTrace makes the device call f with every command of this context and its
// answer, when it is done, from whichever goroutine sent it; in and out must
// not be kept. out is empty if no answer came. On the kernel's file these are
// the commands that this program sends; the kernel's own (for the context, for
// user memory and doorbell pages, for destroying) cannot be seen from user
// space. An emulated device shows them too.
func WithTrace(f func(in, out []byte, took time.Duration)) Option {
	return func(d *Device) { d.trace = f }
}

// Open opens a device by the name that Devices lists, or by the name of an
// emulated one ("emu:", see package emu/uverbs), and allocates a DevX context
// on it. Its errors are told apart with errors.Is: ErrNoDevice, ErrNoUverbs,
// ErrNoPermission, ErrNoDevX, ErrDeviceGone.
func Open(name string, opts ...Option) (*Device, error) {
	file, info, err := openFile(name)
	if err != nil {
		return nil, err
	}
	d := &Device{info: info, file: file, drained: make(chan struct{}), channels: map[*channel]struct{}{}, uars: map[*UAR]struct{}{}}
	for _, o := range opts {
		o(d)
	}
	d.writer, _ = file.(writer)
	_, d.kernel = file.(*kernelFile)
	if t, ok := file.(tracer); ok && d.trace != nil {
		t.Trace(d.trace)
		d.fileTraces = true
	}
	if err := d.getContext(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// getContext issues GET_CONTEXT with a request for DevX.
func (d *Device) getContext() error {
	errno, err := d.requestContext(abi.MLX5_IB_ALLOC_UCTX_DEVX)
	if err != nil || errno == 0 {
		return err
	}
	// Is it DevX that is missing? Only one context fits into a file, and this
	// one has none yet.
	plain, err := d.requestContext(0)
	if err != nil {
		return err
	}
	return contextError(d.info.Name, errno, plain)
}

func (d *Device) requestContext(flags uint32) (errno unix.Errno, err error) {
	err = d.with(func(s *Submitter) error {
		s.begin(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT)
		clear(s.in[:abi.UcontextReqSize])
		req := abi.UcontextReq(s.in)
		req.SetTotalBfregs(16)
		req.SetLowLatencyBfregs(4)
		req.SetFlags(flags)
		req.SetMaxCQEVersion(1)
		req.SetLibCaps(abi.MLX5_LIB_CAP_4K_UAR | abi.MLX5_LIB_CAP_DYN_UAR)
		vectors := s.result(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, 4)
		s.input(abi.UVERBS_ATTR_UHW_IN, abi.UcontextReqSize)
		s.output(abi.UVERBS_ATTR_UHW_OUT, abi.UcontextRespSize)
		errno, err = s.call()
		d.vectors = int(binary.LittleEndian.Uint32(vectors))
		return err
	})
	return errno, err
}

// Info returns what the device is.
func (d *Device) Info() Info { return d.info }

// Name returns the name that the device was opened by.
func (d *Device) Name() string { return d.info.Name }

// CompletionVectors returns the number of completion event queues.
func (d *Device) CompletionVectors() int { return d.vectors }

// Slots returns the number of commands that the device takes at once. The
// driver offers 2^log_sz entries, at most 32, and keeps one for page commands
// (mlx5_core cmd.c); the size is not visible from user space, and 32 on every
// card that was looked at. An emulated device says what it has.
func (d *Device) Slots() int {
	if f, ok := d.file.(interface{ Slots() int }); ok {
		return f.Slots()
	}
	return 31
}

// Busy tells a device on a virtual clock that n more goroutines (fewer, if n is
// negative) issue commands, so that its time stands still while one of them is
// on its way. On any other device it does nothing.
func (d *Device) Busy(n int) {
	if p, ok := d.file.(pacer); ok {
		p.Busy(n)
	}
}

// Exec issues any command that DevX lets through outside of an object
// (devx_is_general_cmd in the driver: queries of capabilities, ports and
// addresses, NOP, and the general opcodes 0xb00 to 0xcff). in is the whole
// command; out, whose length tells the kernel how much to return, gets the
// answer.
func (d *Device) Exec(in, out []byte) error {
	return d.with(func(s *Submitter) error {
		if err := s.load(in, len(out)); err != nil {
			return err
		}
		s.begin(abi.MLX5_IB_OBJECT_DEVX, abi.MLX5_IB_METHOD_DEVX_OTHER)
		s.input(abi.MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, len(in))
		s.output(abi.MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, len(out))
		err := s.command(0, len(in), len(out))
		copy(out, s.out)
		return err
	})
}

// Caps queries the current general capabilities.
func (d *Device) Caps() (mlx5.HCACap, error) {
	b, err := d.capPage(mlx5.CapGeneral)
	return mlx5.HCACap(b), err
}

// RoCECaps queries the current RoCE capabilities.
func (d *Device) RoCECaps() (mlx5.RoCECap, error) {
	b, err := d.capPage(mlx5.CapRoCE)
	return mlx5.RoCECap(b), err
}

func (d *Device) capPage(t mlx5.CapType) ([]byte, error) {
	in, out := make([]byte, mlx5.QueryHCACapInSize), make([]byte, mlx5.QueryHCACapOutSize)
	mlx5.PutHeader(in, mlx5.OpQueryHCACap, mlx5.QueryHCACapOpMod(t, true))
	if err := d.Exec(in, out); err != nil {
		return nil, err
	}
	return mlx5.QueryHCACapOut(out).Capability(), nil
}

// RoCEAddress queries one entry of the GID table.
func (d *Device) RoCEAddress(index int) (mlx5.RoCEAddrLayout, error) {
	if index < 0 || index > 0xffff {
		return nil, fmt.Errorf("devx: GID index %d is out of range: 0 to 65535", index)
	}
	in, out := make([]byte, mlx5.QueryRoCEAddressInSize), make([]byte, mlx5.QueryRoCEAddressOutSize)
	mlx5.PutHeader(in, mlx5.OpQueryRoCEAddress, 0)
	mlx5.QueryRoCEAddressIn(in).SetRoCEAddressIndex(uint16(index))
	if err := d.Exec(in, out); err != nil {
		return nil, err
	}
	return mlx5.QueryRoCEAddressOut(out).RoCEAddress(), nil
}

// PSID queries the board's parameter set id.
func (d *Device) PSID() (string, error) {
	in, out := make([]byte, mlx5.QueryAdapterInSize), make([]byte, mlx5.QueryAdapterOutSize)
	mlx5.PutHeader(in, mlx5.OpQueryAdapter, 0)
	if err := d.Exec(in, out); err != nil {
		return "", err
	}
	id := mlx5.QueryAdapterOut(out).QueryAdapterStruct().VSDContdPSID()
	return string(id[:clen(id)]), nil
}

func clen(b []byte) int {
	for i, c := range b {
		if c == 0 {
			return i
		}
	}
	return len(b)
}

// EQN returns the number of a completion vector's event queue.
func (d *Device) EQN(vector int) (eqn uint32, err error) {
	err = d.with(func(s *Submitter) error {
		s.begin(abi.MLX5_IB_OBJECT_DEVX, abi.MLX5_IB_METHOD_DEVX_QUERY_EQN)
		s.value(abi.MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC, 4, uint64(uint32(vector)))
		out := s.result(abi.MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN, 4)
		errno, err := s.call()
		eqn = binary.LittleEndian.Uint32(out)
		return d.callError(errno, err, "event queue of completion vector %d (it has %d)", vector, d.vectors)
	})
	return eqn, err
}

// callError reports a method that is no firmware command. format and args say
// what it was to do.
func (d *Device) callError(errno unix.Errno, err error, format string, args ...any) error {
	if err != nil || errno == 0 {
		return err
	}
	what := fmt.Sprintf(format, args...)
	switch errno {
	case unix.EIO, unix.ENXIO:
		return goneError(d.info.Name, fmt.Errorf("%s: %w", what, errno))
	case unix.EPROTONOSUPPORT:
		return fmt.Errorf("devx: %s: %s: %w: the kernel does not have this call", d.info.Name, what, errno)
	}
	return fmt.Errorf("devx: %s: %s: %w", d.info.Name, what, errno)
}

// with runs f with an idle submitter.
func (d *Device) with(f func(*Submitter) error) error {
	s, err := d.take()
	if err != nil {
		return err
	}
	defer d.put(s)
	return f(s)
}

// take returns an idle submitter, or a new one; put gives it back.
func (d *Device) take() (*Submitter, error) {
	d.mu.Lock()
	n, freed := len(d.submitters), d.freed
	if n == 0 {
		d.mu.Unlock()
		if freed {
			return nil, d.closedError()
		}
		return d.NewSubmitter()
	}
	s := d.submitters[n-1]
	d.submitters = d.submitters[:n-1]
	d.mu.Unlock()
	return s, nil
}

func (d *Device) put(s *Submitter) {
	d.mu.Lock()
	drop := d.freed || len(d.submitters) >= maxIdle
	if !drop {
		d.submitters = append(d.submitters, s)
	}
	d.mu.Unlock()
	if drop {
		_ = s.Close() // munmap of a mapping that is there does not fail
	}
}

// enter makes Close wait until exit is called, unless it was called before.
func (d *Device) enter() bool {
	if d.calls.Add(1) > closing {
		d.exit()
		return false
	}
	return true
}

func (d *Device) exit() {
	if d.calls.Add(-1) == closing {
		d.drain.Do(func() { close(d.drained) })
	}
}

func (d *Device) closedError() error { return fmt.Errorf("devx: %s: %w", d.info.Name, ErrClosed) }

// Close closes the context. It waits for the calls under way, which may take
// the driver's 60 s if a command hangs, and refuses new ones with ErrClosed.
// What the program has not closed before, the kernel destroys, latest first.
// Memory that the program has of its own (Umem, Submitter) stays mapped until
// it is closed. A second call returns ErrClosed at once.
func (d *Device) Close() error {
	if d.closed.Swap(true) {
		return d.closedError()
	}
	if d.calls.Add(closing) > closing {
		<-d.drained
	}
	d.mu.Lock()
	submitters, channels, uars := d.submitters, d.channels, d.uars
	d.freed, d.submitters, d.channels, d.uars = true, nil, nil, nil
	d.mu.Unlock()
	var errs []error
	for c := range channels {
		errs = append(errs, c.close())
	}
	for u := range uars {
		errs = append(errs, u.unmap())
	}
	errs = append(errs, d.file.Close())
	for _, s := range submitters {
		errs = append(errs, s.Close())
	}
	errs = append(errs, d.parts.free())
	return errors.Join(errs...)
}
