// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"unsafe"

	"devxlab.example/cm/abi"
	uverbs "devxlab.example/devx/abi"
	"devxlab.example/internal/usermem"
)

// slab is memory outside the Go heap for one call: the header and the request,
// and behind them what the request's addresses point to.
type slab struct{ mem *usermem.Region }

const (
	slabSize   = 4096
	slabAnswer = 2048
	headerSize = unsafe.Sizeof(abi.Hdr{})
)

// request clears the slab, writes the header, and returns the place of the request.
// out is the size of the answer.
func request[T any](s *slab, cmd uint32, out uintptr) *T {
	b := s.mem.Bytes()
	clear(b)
	var in T
	*(*abi.Hdr)(unsafe.Pointer(&b[0])) = abi.Hdr{Cmd: cmd, In: uint16(unsafe.Sizeof(in)), Out: uint16(out)}
	return (*T)(unsafe.Pointer(&b[headerSize]))
}

// bytes are those that write(2) takes.
func (s *slab) bytes() []byte {
	b := s.mem.Bytes()
	return b[:headerSize+uintptr((*abi.Hdr)(unsafe.Pointer(&b[0])).In)]
}

// answer is the place of the answer, or of an option's value.
func answer[T any](s *slab) *T { return (*T)(unsafe.Pointer(&s.mem.Bytes()[slabAnswer])) }

func (s *slab) answerAddr() uint64 { return s.mem.Addr() + slabAnswer }

func sizeOf[T any]() uintptr { var v T; return unsafe.Sizeof(v) }

// conn is the other member of the event's union.
func conn(e *abi.EventResp) *abi.ConnParam { return (*abi.ConnParam)(unsafe.Pointer(&e.UD)) }

type attrAnswer = uverbs.QPAttr
