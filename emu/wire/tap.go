// SPDX-License-Identifier: BSD-2-Clause

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// TapOptions change what a tap writes.
type TapOptions struct {
	// Epoch is the clock's beginning as a date. Zero is 1970-01-01, which makes
	// the file of a run on a virtual clock the same each time.
	Epoch time.Time
	// Drops also writes frames where they were dropped, with a comment that says
	// why. A frame that a switch drops behind the port is there twice then.
	Drops bool
	// Buffer is how many bytes wait for the writer at most; 0: DefaultTapBuffer.
	Buffer int
	// Error is called, once, if the writer fails. The tap has ended then. It is
	// called on a goroutine of the tap's.
	Error func(error)
}

// DefaultTapBuffer is in bytes.
const DefaultTapBuffer = 8 << 20

// Tap writes the frames that pass ports to one pcapng file
// (draft-ietf-opsawg-pcapng), with one interface for each port. Out is outbound
// there, at the time at which the frame begins to leave, and In is inbound, at
// the time at which it arrives. Frames that a wire loses after they have left
// are there as sent.
//
// A slow writer does not hold the traffic: what does not fit into the buffer is
// left out, and the next record of its interface says how many were
// (epb_dropcount), as do the interface's statistics at the end. A writer that
// fails ends the tap and nothing else.
//
// The records are written here because pcapgo's NgWriter (gopacket 1.1.19) has
// none of the options that this needs: neither epb_flags nor opt_comment nor
// epb_dropcount.
type Tap struct {
	o TapOptions
	w io.Writer

	mu      sync.Mutex
	filled  sync.Cond
	buf     []byte
	ports   []*tapPort
	closed  bool
	err     error
	stopped chan struct{}
}

// tapPort is an interface of a tap.
type tapPort struct {
	t         *Tap
	id        uint32
	seen      uint64
	missed    uint64
	unwritten uint32 // of those, not told yet
	last      uint64 // timestamp
}

// NewTap returns a tap that writes to w, from a goroutine of its own. Close ends
// it.
func NewTap(w io.Writer, o TapOptions) *Tap {
	if o.Buffer <= 0 {
		o.Buffer = DefaultTapBuffer
	}
	t := &Tap{o: o, w: w, stopped: make(chan struct{})}
	t.filled.L = &t.mu
	t.sectionHeader()
	go t.run()
	return t
}

// Tap writes what passes the port to t, under a name, until t is closed. Another
// tap takes its place; nil is none.
func (p *Port) Tap(t *Tap, name string) error {
	var tp *tapPort
	if t != nil {
		var err error
		if tp, err = t.add(name); err != nil {
			return err
		}
	}
	p.e.enter()
	defer p.e.leave()
	p.tap = tp
	return nil
}

// TapInterface is an interface of a tap for frames that pass no port: what a card
// without a wire sends, or sends to itself.
type TapInterface struct {
	p     *tapPort
	clock Clock
}

// Interface adds an interface of that name, with times of the clock.
func (t *Tap) Interface(name string, clock Clock) (*TapInterface, error) {
	p, err := t.add(name)
	if err != nil {
		return nil, err
	}
	return &TapInterface{p, clock}, nil
}

// Write adds a frame, as outbound, with a comment unless that is empty. The frame
// remains the caller's. It never waits for the writer.
func (i *TapInterface) Write(frame []byte, comment string) {
	if len(comment) > maxComment {
		comment = comment[:maxComment]
	}
	i.p.write(frame, flagOutbound, comment, i.clock.Now())
}

// Missed returns how many frames the writer was too slow for.
func (t *Tap) Missed() (n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.ports {
		n += p.missed
	}
	return n
}

// Close writes what is buffered, and the statistics of the interfaces. It waits
// for the writer, and returns its error, if it failed. The writer is not closed.
func (t *Tap) Close() error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		for _, p := range t.ports {
			t.statistics(p)
		}
		t.filled.Signal()
	}
	t.mu.Unlock()
	<-t.stopped
	return t.err
}

func (t *Tap) run() {
	defer close(t.stopped)
	var spare []byte
	t.mu.Lock()
	for {
		for len(t.buf) == 0 && !t.closed {
			t.filled.Wait()
		}
		if len(t.buf) == 0 {
			t.mu.Unlock()
			return
		}
		full := t.buf
		t.buf = spare[:0]
		t.mu.Unlock()
		_, err := t.w.Write(full)
		spare = full
		t.mu.Lock()
		if err != nil {
			t.err = fmt.Errorf("wire: the tap has ended: %w", err)
			t.closed, t.buf = true, nil
			t.mu.Unlock()
			if t.o.Error != nil {
				t.o.Error(t.err)
			}
			return
		}
	}
}

// pcapng: block types, options and what they contain.
const (
	blockSection    = 0x0a0d0d0a
	blockInterface  = 1
	blockStatistics = 5
	blockPacket     = 6
	byteOrderMagic  = 0x1a2b3c4d
	linkEthernet    = 1

	optEnd        = 0
	optComment    = 1
	optUserAppl   = 4
	optIfName     = 2
	optIfTsresol  = 9
	optFlags      = 2
	optDropCount  = 4
	optIfRecv     = 4
	optIfDrop     = 5
	nanoseconds   = 9 // if_tsresol: a power of ten
	flagInbound   = 1
	flagOutbound  = 2
	packetHeader  = 28
	maxOptions    = 128 // what all options of a packet take at most
	maxComment    = 64
	maxOptionSize = 0xffff
)

var le = binary.LittleEndian

// begin appends a block's header; end pads it and fills in its length.
func (t *Tap) begin(kind uint32) (start int) {
	start = len(t.buf)
	t.buf = le.AppendUint32(t.buf, kind)
	t.buf = le.AppendUint32(t.buf, 0)
	return start
}

func (t *Tap) end(start int) {
	length := uint32(len(t.buf) - start + 4)
	le.PutUint32(t.buf[start+4:], length)
	t.buf = le.AppendUint32(t.buf, length)
}

func (t *Tap) pad() {
	for len(t.buf)%4 != 0 { // blocks and options begin at multiples of 4, and the buffer with a block
		t.buf = append(t.buf, 0)
	}
}

func (t *Tap) option(code, length int) {
	t.buf = le.AppendUint16(t.buf, uint16(code))
	t.buf = le.AppendUint16(t.buf, uint16(length))
}

func (t *Tap) textOption(code int, s string) {
	t.option(code, len(s))
	t.buf = append(t.buf, s...)
	t.pad()
}

func (t *Tap) numberOption(code int, n uint64) {
	t.option(code, 8)
	t.buf = le.AppendUint64(t.buf, n)
}

func (t *Tap) sectionHeader() {
	start := t.begin(blockSection)
	t.buf = le.AppendUint32(t.buf, byteOrderMagic)
	t.buf = le.AppendUint32(t.buf, 1) // version 1.0
	t.buf = le.AppendUint64(t.buf, ^uint64(0))
	t.textOption(optUserAppl, "devxlab emu/wire")
	t.option(optEnd, 0)
	t.end(start)
}

func (t *Tap) add(name string) (*tapPort, error) {
	if len(name) > maxOptionSize {
		return nil, fmt.Errorf("wire: a port's name of %d bytes: pcapng has room for %d", len(name), maxOptionSize)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errors.Join(errors.New("wire: the tap is closed"), t.err)
	}
	p := &tapPort{t: t, id: uint32(len(t.ports))}
	t.ports = append(t.ports, p)
	start := t.begin(blockInterface)
	t.buf = le.AppendUint16(t.buf, linkEthernet)
	t.buf = le.AppendUint16(t.buf, 0)
	t.buf = le.AppendUint32(t.buf, 0) // no limit of length
	t.textOption(optIfName, name)
	t.option(optIfTsresol, 1)
	t.buf = append(t.buf, nanoseconds)
	t.pad()
	t.option(optEnd, 0)
	t.end(start)
	t.filled.Signal()
	return p, nil
}

// timestamp is split in two 32-bit words, the upper one first.
func (t *Tap) timestamp(ts uint64) {
	t.buf = le.AppendUint32(t.buf, uint32(ts>>32))
	t.buf = le.AppendUint32(t.buf, uint32(ts))
}

func (t *Tap) statistics(p *tapPort) {
	start := t.begin(blockStatistics)
	t.buf = le.AppendUint32(t.buf, p.id)
	t.timestamp(p.last)
	t.numberOption(optIfRecv, p.seen)
	t.numberOption(optIfDrop, p.missed)
	t.option(optEnd, 0)
	t.end(start)
}

// write adds a frame. It never waits for the writer.
func (p *tapPort) write(data []byte, flag uint32, comment string, now time.Duration) {
	t := p.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	p.seen++
	if len(t.buf)+packetHeader+len(data)+maxOptions > t.o.Buffer {
		p.missed++
		p.unwritten++
		return
	}
	ts := uint64(now)
	if !t.o.Epoch.IsZero() {
		ts += uint64(t.o.Epoch.UnixNano())
	}
	p.last = max(p.last, ts)
	if len(t.buf) == 0 {
		t.filled.Signal()
	}
	start := t.begin(blockPacket)
	t.buf = le.AppendUint32(t.buf, p.id)
	t.timestamp(ts)
	t.buf = le.AppendUint32(t.buf, uint32(len(data)))
	t.buf = le.AppendUint32(t.buf, uint32(len(data)))
	t.buf = append(t.buf, data...)
	t.pad()
	if comment != "" {
		t.textOption(optComment, comment)
	}
	t.option(optFlags, 4)
	t.buf = le.AppendUint32(t.buf, flag)
	if p.unwritten > 0 {
		t.numberOption(optDropCount, uint64(p.unwritten))
		p.unwritten = 0
	}
	t.option(optEnd, 0)
	t.end(start)
}

func (d *direction) tapNear(f *frame, now time.Duration) {
	if d.near != nil && d.near.tap != nil {
		d.near.tap.write(f.data, flagOutbound, "", now)
	}
}

func (d *direction) tapFar(f *frame, now time.Duration) {
	if d.far != nil && d.far.tap != nil {
		d.far.tap.write(f.data, flagInbound, "", now)
	}
}

// dropComments are made once, not for each frame.
var dropComments = func() (c [numReasons]string) {
	for r := range c {
		c[r] = "dropped: " + reasons[r]
	}
	return c
}()

// tapDrop writes a dropped frame at the port that sent it, or if that has no tap
// at the one that misses it.
func (d *direction) tapDrop(f *frame, r Reason, now time.Duration) {
	comment := dropComments[r]
	left := r == Lost || r == BurstLost || r == Filtered // it did pass the sending port
	for _, side := range []struct {
		p    *Port
		flag uint32
	}{{d.near, flagOutbound}, {d.far, flagInbound}} {
		if side.p == nil || side.p.tap == nil {
			continue
		}
		switch outbound := side.flag == flagOutbound; {
		case side.p.tap.t.o.Drops:
			side.p.tap.write(f.data, side.flag, comment, now)
		case outbound && left:
			side.p.tap.write(f.data, side.flag, "", now)
		}
		return
	}
}
