// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"fmt"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
)

// VerbsPath is how verbs commands reach the kernel. Both end in the same
// function of ib_uverbs.
type VerbsPath uint8

const (
	// InvokeWrite wraps the command in an ioctl (object 0, method 0). It is the
	// default, as it is in rdma-core: that asks the kernel once whether it has
	// the method and then uses nothing else (has_ioctl_write in
	// libibverbs/device.c). Every kernel with the ioctl that opens a DevX
	// context has it.
	InvokeWrite VerbsPath = iota
	// PlainWrite is write(2), the oldest way. The kernel refuses it with EACCES
	// if the program's credentials changed since it opened the file.
	PlainWrite
)

func (p VerbsPath) String() string {
	switch p {
	case InvokeWrite:
		return "INVOKE_WRITE"
	case PlainWrite:
		return "write"
	}
	return fmt.Sprintf("VerbsPath(%d)", uint8(p))
}

// WithVerbsPath chooses how the device's verbs commands reach the kernel.
func WithVerbsPath(p VerbsPath) Option { return func(d *Device) { d.verbsPath = p } }

// writer is implemented by a file with verbs: the kernel's.
type writer interface {
	// Write is write(2) of one verbs command, of which nothing or all is taken.
	Write(cmd []byte) unix.Errno
}

// HasVerbs reports whether the device answers verbs commands. An emulated
// device inside the process does not: they go through the driver's own code, and
// a model of that would prove nothing about it.
func (d *Device) HasVerbs() bool { return d.writer != nil }

// beginWrite starts a write command. Its header, request and the driver's part
// stand one after the other in s.in, the answers in s.out, so that either path
// sends the same bytes.
func (s *Submitter) beginWrite(c abi.WriteCmd) *abi.WriteMethod {
	m := abi.LookupWrite(c)
	clear(s.in[:m.HeaderLen()+m.Req+m.DriverReq])
	clear(s.out[:m.Resp+m.DriverResp])
	return m
}

func request[T any](s *Submitter, m *abi.WriteMethod) *T { return viewOf[T](s.in[m.HeaderLen():]) }

func driverRequest[T any](s *Submitter, m *abi.WriteMethod) *T {
	return viewOf[T](s.in[m.HeaderLen()+m.Req:])
}

func response[T any](s *Submitter) *T { return viewOf[T](s.out) }

func driverResponse[T any](s *Submitter, m *abi.WriteMethod) *T { return viewOf[T](s.out[m.Resp:]) }

// write sends the command.
func (s *Submitter) write(m *abi.WriteMethod) (unix.Errno, error) {
	switch {
	case s.in == nil:
		return 0, fmt.Errorf("devx: submitter: %w", ErrClosed)
	case s.d.writer == nil:
		return 0, s.d.noVerbs(m.Name)
	case s.d.verbsPath == PlainWrite:
		return s.plainWrite(m)
	}
	return s.invokeWrite(m)
}

func (s *Submitter) invokeWrite(m *abi.WriteMethod) (unix.Errno, error) {
	s.begin(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE)
	s.value(abi.UVERBS_ATTR_WRITE_CMD, 8, uint64(m.Cmd))
	s.inputAt(abi.UVERBS_ATTR_CORE_IN, m.HeaderLen(), m.Req)
	if m.Resp > 0 {
		s.attr(abi.UVERBS_ATTR_CORE_OUT, m.Resp, s.slab.Addr()+slabOut)
	}
	if m.DriverReq > 0 {
		s.inputAt(abi.UVERBS_ATTR_UHW_IN, m.HeaderLen()+m.Req, m.DriverReq)
	}
	if m.DriverResp > 0 {
		s.attr(abi.UVERBS_ATTR_UHW_OUT, m.DriverResp, s.slab.Addr()+slabOut+uint64(m.Resp))
	}
	return s.call()
}

// plainWrite fills in the lengths, in words, and the address of the answer,
// which is the first member of a request that has one.
func (s *Submitter) plainWrite(m *abi.WriteMethod) (unix.Errno, error) {
	const word, long = 4, 8
	n := m.HeaderLen() + m.Req + m.DriverReq
	h := viewOf[abi.CmdHdr](s.in)
	h.Command = uint32(m.Cmd)
	if m.Cmd.Extended() {
		h.InWords, h.OutWords = uint16(m.Req/long), uint16(m.Resp/long)
		*viewOf[abi.ExCmdHdr](s.in[abi.CmdHdrSize:]) = abi.ExCmdHdr{
			Response: s.slab.Addr() + slabOut, ProviderInWords: uint16(m.DriverReq / long), ProviderOutWords: uint16(m.DriverResp / long),
		}
	} else {
		h.InWords, h.OutWords = uint16(n/word), uint16((m.Resp+m.DriverResp)/word)
		if m.Resp > 0 {
			*request[uint64](s, m) = s.slab.Addr() + slabOut
		}
	}
	s.yield()
	if !s.d.enter() {
		return 0, s.d.closedError()
	}
	defer s.d.exit()
	return s.d.writer.Write(s.in[:n]), nil
}

// verbs sends a command that is about no queue pair's state, and says what was
// refused.
func (s *Submitter) verbs(m *abi.WriteMethod) error {
	errno, err := s.write(m)
	if err != nil || errno == 0 {
		return err
	}
	return s.d.verbsError(&VerbsError{Cmd: m.Name, Errno: errno})
}
