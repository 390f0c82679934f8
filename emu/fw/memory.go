// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"errors"
)

// Memory is the host's memory as a device on its bus sees it. Its methods may
// be called at the same time, and fail for addresses where there is none. The host
// reads and writes it too: 4 and 8 aligned bytes are one access, and what one
// goroutine writes is seen in its order by whoever polls with such accesses.
type Memory interface {
	ReadDMA(addr uint64, b []byte) error
	WriteDMA(addr uint64, b []byte) error
}

var errOutside = errors.New("fw: beyond the pages of a buffer")

// buffer is memory of the host that is contiguous to the device: pages, and
// where in the first one it begins.
type buffer struct {
	page   []uint64 // addresses
	shift  uint8
	offset uint64
}

// A list of pages has 8 bytes for each. The low 12 bits are flags in some
// commands and reserved in others.
const (
	pasBytes = 8
	pasMask  = 1<<12 - 1
)

// bufferOf returns a buffer of n bytes in the pages that a command lists, and
// false if they are too few. It keeps no more of them than the buffer needs.
func bufferOf(list []byte, shift uint8, offset, n uint64) (buffer, bool) {
	if shift > maxPageShift || offset >= 1<<shift || n > 1<<40 {
		return buffer{}, false
	}
	pages := (offset + n + 1<<shift - 1) >> shift
	if pages > uint64(len(list)/pasBytes) {
		return buffer{}, false
	}
	b := buffer{make([]uint64, pages), shift, offset}
	for i := range b.page {
		b.page[i] = binary.BigEndian.Uint64(list[i*pasBytes:]) &^ pasMask
	}
	return b, true
}

// at returns the address of byte off, and how many follow it in its page.
func (b *buffer) at(off uint64) (addr, n uint64, ok bool) {
	off += b.offset
	i := off >> b.shift
	if i >= uint64(len(b.page)) {
		return 0, 0, false
	}
	in := off & (1<<b.shift - 1)
	return b.page[i] + in, 1<<b.shift - in, true
}

func (b *buffer) read(m Memory, off uint64, p []byte) error {
	return b.each(off, p, m.ReadDMA)
}

func (b *buffer) write(m Memory, off uint64, p []byte) error {
	return b.each(off, p, m.WriteDMA)
}

func (b *buffer) each(off uint64, p []byte, do func(uint64, []byte) error) error {
	for len(p) > 0 {
		addr, room, ok := b.at(off)
		if !ok {
			return errOutside
		}
		n := min(room, uint64(len(p)))
		if err := do(addr, p[:n]); err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}

// writeOwned writes an entry of a ring whose last byte gives it to the driver:
// who polls for that byte must find the others. The word that it is in is one
// access.
func (b *buffer) writeOwned(m Memory, off uint64, p []byte) error {
	last := len(p) - 8
	if err := b.write(m, off, p[:last]); err != nil {
		return err
	}
	return b.write(m, off+uint64(last), p[last:])
}
