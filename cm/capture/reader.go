// SPDX-License-Identifier: BSD-2-Clause

// Package capture reads packet captures and follows the connections of the
// communication manager in them: when each message passed, how often, and how
// it ended.
package capture

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// Frame is one packet of a capture.
type Frame struct {
	Time  time.Time
	Data  []byte // valid until the next one is read
	Cut   bool   // longer on the wire than in the capture
	Wire  int    // its length there, in bytes
	Snap  uint32 // the most that the file says it has of any packet, in bytes; 0: it does not say
	First gopacket.LayerType
	Why   error // that First is none: the type of the link is not read here
}

// Reader reads a capture, pcap or pcapng, front to back.
type Reader struct {
	source source
	read   int
	note   string
}

// Note says what is odd about the file so far, though it can be read; empty if
// nothing is.
func (r *Reader) Note() string { return r.note }

// source is one of the formats.
type source interface {
	// packet returns the next packet, whether it is longer than that, and the type
	// of what it begins with; io.EOF at the end.
	packet() (f Frame, link layers.LinkType, err error)
}

// maxPacket is the longest packet that is read, in bytes. No interface has
// longer ones; a length that is damaged may say so.
const maxPacket = 1 << 24

// classic is pcap.
type classic struct {
	r    *pcapgo.Reader
	snap uint32
}

func (c classic) packet() (Frame, layers.LinkType, error) {
	data, ci, err := c.r.ReadPacketData()
	return Frame{Time: ci.Timestamp, Data: data, Cut: ci.Length > ci.CaptureLength, Wire: ci.Length, Snap: c.snap}, c.r.LinkType(), err
}

// Magic numbers of the two formats (pcap: both byte orders, micro- and nanoseconds).
var (
	pcapngMagic = []byte{0x0a, 0x0d, 0x0d, 0x0a}
	pcapMagics  = [][]byte{{0xa1, 0xb2, 0xc3, 0xd4}, {0xd4, 0xc3, 0xb2, 0xa1}, {0xa1, 0xb2, 0x3c, 0x4d}, {0x4d, 0x3c, 0xb2, 0xa1}}
)

// ErrFormat is of a file that is no capture.
var ErrFormat = errors.New("capture: neither pcap nor pcapng")

// NewReader finds out which format r has. It reads no further than it must, so
// that r may be a pipe that is still being written.
func NewReader(r io.Reader) (*Reader, error) {
	b := bufio.NewReaderSize(r, 1<<16)
	magic, err := b.Peek(len(pcapngMagic))
	if err != nil {
		return nil, fmt.Errorf("%w: it ends after %d bytes", ErrFormat, len(magic))
	}
	if bytes.Equal(magic, pcapngMagic) {
		return &Reader{source: &ngReader{in: b}}, nil
	}
	for _, m := range pcapMagics {
		if bytes.Equal(magic, m) {
			p, err := pcapgo.NewReader(b)
			if err != nil {
				return nil, fmt.Errorf("capture: pcap: %w", err)
			}
			snap := p.Snaplen()
			p.SetSnaplen(maxPacket) // also where the header has less than a packet: see Note
			return &Reader{source: classic{p, snap}}, nil
		}
	}
	return nil, fmt.Errorf("%w: it begins with % x", ErrFormat, magic)
}

// Next returns the next packet, or io.EOF. An error names the packet at which the
// capture is damaged; there is nothing to be read behind it.
func (r *Reader) Next() (Frame, error) {
	f, link, err := r.source.packet()
	if errors.Is(err, io.EOF) {
		return f, io.EOF
	}
	if err != nil {
		return f, fmt.Errorf("capture: packet %d: %w: the file is cut off or damaged there", r.read+1, err)
	}
	r.read++
	if f.Snap != 0 && len(f.Data) > int(f.Snap) && r.note == "" {
		r.note = fmt.Sprintf("the file says that it has %d bytes of a packet at most (snap length), but packet %d has %d: that is wrong, and packets are read as they are", f.Snap, r.read, len(f.Data))
	}
	f.First, f.Why = firstLayer(link)
	if _, only := r.source.(classic); only && f.Why != nil { // all are like that
		return f, fmt.Errorf("capture: packet %d: %w", r.read, f.Why)
	}
	return f, nil
}

// Link types that captures of RoCE have. Those of raw IP are three: the number
// differed between systems.
const (
	linkRaw        layers.LinkType = 12
	linkIPv4       layers.LinkType = 228
	linkIPv6       layers.LinkType = 229
	linkInfiniBand layers.LinkType = 247
)

func firstLayer(l layers.LinkType) (gopacket.LayerType, error) {
	switch l {
	case layers.LinkTypeEthernet:
		return layers.LayerTypeEthernet, nil
	case linkIPv4, linkIPv6, linkRaw, layers.LinkTypeRaw:
		return layers.LayerTypeIPv4, nil // by its version, see Follower.Add
	case layers.LinkTypeLinuxSLL:
		return layers.LayerTypeLinuxSLL, nil
	case linkInfiniBand:
		return 0, errors.New("link type 247: packets of native InfiniBand, which have no Ethernet; this reads RoCE")
	}
	return 0, fmt.Errorf("link type %d (%v): this reads Ethernet, raw IP and Linux cooked captures", l, l)
}
