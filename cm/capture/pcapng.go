// SPDX-License-Identifier: BSD-2-Clause

package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/google/gopacket/layers"
)

// Blocks and options of pcapng (draft-ietf-opsawg-pcapng). gopacket's reader
// (1.1.19) believes each length that a file has, so it is read here.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 2 // obsolete
	blockSimple    = 3
	blockEnhanced  = 6

	byteOrderMagic = 0x1a2b3c4d

	optionEnd        = 0
	optionResolution = 9
	optionOffset     = 14

	blockFrame    = 12                // type, length, and length again
	maxBlock      = maxPacket + 1<<16 // with room for options
	maxInterfaces = 1 << 16
)

var (
	errBlock     = errors.New("pcapng: a block that is no block")
	errInterface = errors.New("pcapng: a packet of an interface that was not described")
)

// ngInterface is what packets refer to.
type ngInterface struct {
	link   layers.LinkType
	snap   uint32
	perSec float64
	offset int64 // seconds
}

type ngReader struct {
	in         *bufio.Reader
	order      binary.ByteOrder
	interfaces []ngInterface
	buf        []byte
}

func (r *ngReader) packet() (f Frame, link layers.LinkType, err error) {
	for {
		kind, body, err := r.block()
		if err != nil {
			return f, 0, err
		}
		switch kind {
		case blockSection:
			r.interfaces = r.interfaces[:0]
		case blockInterface:
			if err := r.describe(body); err != nil {
				return f, 0, err
			}
		case blockEnhanced, blockPacket, blockSimple:
			return r.data(kind, body)
		}
	}
}

// block reads the next one. Its body is valid until the next is read. The end of
// the file in a block is no end, but io.ErrUnexpectedEOF.
func (r *ngReader) block() (kind uint32, body []byte, err error) {
	head, err := r.in.Peek(blockFrame)
	switch {
	case len(head) == 0:
		return 0, nil, err
	case len(head) < blockFrame:
		return 0, nil, io.ErrUnexpectedEOF
	}
	if binary.LittleEndian.Uint32(head) == blockSection {
		switch byteOrderMagic {
		case int(binary.LittleEndian.Uint32(head[8:])):
			r.order = binary.LittleEndian
		case int(binary.BigEndian.Uint32(head[8:])):
			r.order = binary.BigEndian
		default:
			return 0, nil, fmt.Errorf("%w: byte order % x", errBlock, head[8:])
		}
	}
	kind = r.order.Uint32(head)
	n := r.order.Uint32(head[4:])
	if n < blockFrame || n%4 != 0 || n > maxBlock {
		return 0, nil, fmt.Errorf("%w: length %d", errBlock, n)
	}
	if int(n) > len(r.buf) {
		r.buf = make([]byte, n)
	}
	b := r.buf[:n]
	if _, err := io.ReadFull(r.in, b); err != nil {
		return 0, nil, io.ErrUnexpectedEOF
	}
	if again := r.order.Uint32(b[n-4:]); again != n {
		return 0, nil, fmt.Errorf("%w: length %d in front and %d behind", errBlock, n, again)
	}
	return kind, b[8 : n-4], nil
}

// describe reads an interface description.
func (r *ngReader) describe(b []byte) error {
	if len(b) < 8 || len(r.interfaces) == maxInterfaces {
		return fmt.Errorf("%w: interface %d in %d bytes", errBlock, len(r.interfaces), len(b))
	}
	i := ngInterface{link: layers.LinkType(r.order.Uint16(b)), snap: r.order.Uint32(b[4:]), perSec: 1e6}
	for b = b[8:]; len(b) >= 4; {
		code, n := r.order.Uint16(b), int(r.order.Uint16(b[2:]))
		padded := 4 + (n+3)&^3
		if code == optionEnd || padded > len(b) {
			break
		}
		switch v := b[4 : 4+n]; {
		case code == optionResolution && n == 1 && v[0]&0x80 != 0:
			i.perSec = math.Exp2(float64(v[0] & 0x7f))
		case code == optionResolution && n == 1:
			i.perSec = math.Pow10(int(v[0]))
		case code == optionOffset && n == 8:
			i.offset = int64(r.order.Uint64(v))
		}
		b = b[padded:]
	}
	r.interfaces = append(r.interfaces, i)
	return nil
}

// at turns a time stamp into a time; into none if that lies beyond the year 9999,
// of which JSON knows nothing.
func (i *ngInterface) at(stamp uint64) time.Time {
	const latest = 1 << 37 // seconds, before the year 6400
	if s := float64(stamp)/i.perSec + float64(i.offset); !(s >= 0 && s < latest) || max(i.offset, -i.offset) >= latest || i.offset == math.MinInt64 {
		return time.Time{}
	}
	const nanoseconds = 1e9
	switch i.perSec {
	case 1e6: // exact, where it matters
		return time.UnixMicro(int64(stamp)).Add(time.Duration(i.offset) * time.Second)
	case nanoseconds:
		return time.Unix(i.offset+int64(stamp/nanoseconds), int64(stamp%nanoseconds))
	}
	whole, part := math.Modf(float64(stamp) / i.perSec)
	return time.Unix(i.offset+int64(whole), int64(part*nanoseconds))
}

// data reads a block with a packet.
func (r *ngReader) data(kind uint32, b []byte) (f Frame, link layers.LinkType, err error) {
	var id int
	var stamp uint64
	var captured, length uint32
	head := 20
	if kind == blockSimple {
		head = 4
	}
	if len(b) < head {
		return f, 0, fmt.Errorf("%w: a packet in %d bytes", errBlock, len(b))
	}
	switch kind {
	case blockEnhanced:
		id = int(r.order.Uint32(b))
	case blockPacket:
		id = int(r.order.Uint16(b))
	}
	if id >= len(r.interfaces) {
		return f, 0, errInterface
	}
	i := &r.interfaces[id]
	if kind == blockSimple { // has no time
		length = r.order.Uint32(b)
		captured = length
		if i.snap != 0 {
			captured = min(captured, i.snap)
		}
	} else {
		stamp = uint64(r.order.Uint32(b[4:]))<<32 | uint64(r.order.Uint32(b[8:]))
		captured, length = r.order.Uint32(b[12:]), r.order.Uint32(b[16:])
		f.Time = i.at(stamp)
	}
	if int64(captured) > int64(len(b)-head) {
		return f, 0, fmt.Errorf("%w: a packet of %d bytes in %d", errBlock, captured, len(b)-head)
	}
	f.Data, f.Cut, f.Wire, f.Snap = b[head:head+int(captured)], length > captured, int(length), i.snap
	return f, i.link, nil
}
