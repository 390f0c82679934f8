// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// record is the command of a deferred transition. It was encoded when it was
// deferred, so that a bad attribute fails there; of its 272 bytes few words are
// not zero, and only those are kept.
type record struct {
	mask  [3]uint32
	words [maxWords]uint32
}

// head is what else there is to know of a record. Heads lie together, two on a
// cache line: to cancel a transition is to look at nothing else.
type head struct {
	qp         *devx.QP
	due        Instant
	prev, next uint32 // in the wheel's list

	// The ticket's sequence number, in 48 bits: another one means that the record
	// is somebody else's by now. At a million a second it lasts for nine years.
	seqLow  uint32
	seqHigh uint16

	length uint8 // of the command, in words; 0: the command is in slab.long
	state  state
}

func (h *head) seq() uint64 { return uint64(h.seqHigh)<<32 | uint64(h.seqLow) }

func (h *head) setSeq(seq uint64) { h.seqLow, h.seqHigh = uint32(seq), uint16(seq>>32) }

// maxWords is what the transitions of package mlx5 need: INIT2RTR with every
// attribute has 18 words that are not zero.
const maxWords = 18

type state uint8

const (
	free    state = iota
	pending       // in the wheel
	sending       // in the batch
	ended         // its result is kept for Wait
)

// slab has the records, in chunks that stay where they are.
type slab struct {
	chunks []*struct {
		heads   [chunk]head
		records [chunk]record
	}
	free []uint32
	used uint32
	long map[uint32][]byte
}

const chunk = 1024

func (s *slab) head(idx uint32) *head { return &s.chunks[idx/chunk].heads[idx%chunk] }

func (s *slab) record(idx uint32) *record { return &s.chunks[idx/chunk].records[idx%chunk] }

// take returns a free record.
func (s *slab) take() uint32 {
	if n := len(s.free); n > 0 {
		idx := s.free[n-1]
		s.free = s.free[:n-1]
		return idx
	}
	if s.used%chunk == 0 {
		s.chunks = append(s.chunks, new(struct {
			heads   [chunk]head
			records [chunk]record
		}))
	}
	s.used++
	return s.used - 1
}

func (s *slab) put(idx uint32) {
	h := s.head(idx)
	if h.length == 0 {
		delete(s.long, idx)
	}
	h.qp, h.state = nil, free // it keeps no queue pair alive
	*s.record(idx) = record{} // the next one who takes it then finds it in the cache
	s.free = append(s.free, idx)
}

// pack keeps a command.
func (s *slab) pack(idx uint32, cmd []byte) {
	h := s.head(idx)
	h.length = uint8(len(cmd) / 4)
	var r record // stored as a whole: its memory is hardly ever in the cache
	k := 0
	for i := 0; i < len(cmd); i += 4 {
		var w uint32
		if i+4 <= len(cmd) {
			if w = binary.NativeEndian.Uint32(cmd[i:]); w == 0 {
				continue
			}
		}
		if k == maxWords || i+4 > len(cmd) {
			if s.long == nil {
				s.long = map[uint32][]byte{}
			}
			h.length = 0
			s.long[idx] = append([]byte(nil), cmd...)
			return
		}
		r.words[k] = w
		k++
		r.mask[i/4/32] |= 1 << (i / 4 % 32)
	}
	*s.record(idx) = r
}

// packed is a kept command as a transition, for batch.Add.
type packed struct {
	r    *record
	n    int
	long []byte // in the place of the record's words
}

func (s *slab) packed(idx uint32) packed {
	h := s.head(idx)
	if h.length == 0 {
		long := s.long[idx]
		return packed{n: len(long), long: long}
	}
	return packed{r: s.record(idx), n: 4 * int(h.length)}
}

// Op returns the command's opcode.
func (p packed) Op() mlx5.Op {
	if p.long != nil {
		return mlx5.OpOf(p.long)
	}
	var head [4]byte
	if p.r.mask[0]&1 != 0 {
		binary.NativeEndian.PutUint32(head[:], p.r.words[0])
	}
	return mlx5.OpOf(head[:])
}

// Encode writes the command as it was encoded before.
func (p packed) Encode(dst []byte, _ uint32, _ mlx5.ServiceType) (int, error) {
	if len(dst) < p.n {
		return 0, fmt.Errorf("timerfix: a buffer of %d bytes for a command of %d", len(dst), p.n)
	}
	if p.long != nil {
		return copy(dst, p.long), nil
	}
	k := 0
	for i, m := range p.r.mask {
		for ; m != 0; m &= m - 1 {
			at := 4 * (32*i + bits.TrailingZeros32(m))
			binary.NativeEndian.PutUint32(dst[at:], p.r.words[k])
			k++
		}
	}
	return p.n, nil
}
