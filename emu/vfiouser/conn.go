// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxFDs is the most descriptors in a message. QEMU refuses a server that names
// more (VFIO_USER_MAX_MAX_FDS).
const maxFDs = 16

// maxXfer is the most data in a message, and maxMessage the longest one.
// maxVersion is the longest first one; QEMU's has some 200 bytes.
const (
	maxXfer    = defaultMaxXfer
	maxMessage = headerSize + regionAccessSize + maxXfer
	maxVersion = 16 << 10
)

// errGone is the end of a client that has closed its end between messages.
var errGone = errors.New("the client is gone")

// conn is a connection as a sequence of messages.
type conn struct {
	c        *net.UnixConn
	patience time.Duration
	deadline bool // for reading is set
	head     [headerSize]byte
	in       []byte // payload of the last message
	fds      []int  // that came with it and nobody has taken
	out      []byte // the reply: room for its header, then the payload
	oob      []byte
}

func newConn(c *net.UnixConn) *conn {
	return &conn{
		c:        c,
		patience: patience,
		out:      make([]byte, headerSize, 512),
		oob:      make([]byte, unix.CmsgSpace(maxFDs*4)),
	}
}

// receive reads a message of at most limit bytes. Its descriptors are in c.fds,
// also after an error. Whatever the error, the stream cannot be followed any
// more.
func (c *conn) receive(limit uint32) (h header, payload []byte, err error) {
	n, err := c.read(c.head[:])
	switch {
	case err == io.EOF:
		return h, nil, errGone
	case err != nil:
		return h, nil, err
	}
	if err := c.readFull(c.head[n:]); err != nil {
		return h, nil, fmt.Errorf("after %d bytes of a header: %w", n, err)
	}
	h = decode[header](c.head[:])
	switch {
	case h.Size < headerSize:
		return h, nil, fmt.Errorf("a message of %d bytes is shorter than its header", h.Size)
	case h.Size > limit:
		return h, nil, fmt.Errorf("a message of %d bytes; at most %d are taken", h.Size, limit)
	case h.Flags&flagType != 0:
		return h, nil, fmt.Errorf("a message of type %d, which is not a command", h.Flags&flagType)
	}
	size := int(h.Size - headerSize)
	if cap(c.in) < size {
		c.in = make([]byte, 1<<bits.Len(uint(size-1))) // a power of two, so that this is rare
	}
	c.in = c.in[:size]
	if err := c.readFull(c.in); err != nil {
		return h, nil, fmt.Errorf("in %s of %d bytes: %w", commandName(h.Command), h.Size, err)
	}
	if c.deadline {
		c.deadline = false
		if err := c.c.SetReadDeadline(time.Time{}); err != nil {
			return h, nil, err
		}
	}
	return h, c.in, nil
}

// expect gives the client patience to send what is missing.
func (c *conn) expect() error {
	if c.deadline {
		return nil
	}
	c.deadline = true
	return c.c.SetReadDeadline(time.Now().Add(c.patience))
}

// readFull reads the rest of a message that has begun.
func (c *conn) readFull(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if err := c.expect(); err != nil {
		return err
	}
	for len(b) > 0 {
		n, err := c.read(b)
		switch {
		case err == io.EOF:
			return io.ErrUnexpectedEOF
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("the rest did not come: %w", err)
		case err != nil:
			return err
		}
		b = b[n:]
	}
	return nil
}

// read reads some bytes, at least one, and the descriptors that come with them.
// The error is io.EOF if the client is gone; a reset is the end of one that did
// not read all of its replies.
func (c *conn) read(b []byte) (int, error) {
	n, oobn, flags, _, err := c.c.ReadMsgUnix(b, c.oob)
	if oobn > 0 {
		c.takeRights(c.oob[:oobn])
	}
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET):
		return 0, io.EOF
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	case flags&unix.MSG_CTRUNC != 0 || len(c.fds) > maxFDs:
		// What did not fit, the kernel has closed.
		return 0, fmt.Errorf("more than %d file descriptors in a message, or no room for them (RLIMIT_NOFILE)", maxFDs)
	}
	return n, nil
}

func (c *conn) takeRights(oob []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			c.fds = append(c.fds, fds...)
		}
	}
}

// closeFDs closes the descriptors that nobody has taken.
func (c *conn) closeFDs() {
	for _, fd := range c.fds {
		_ = unix.Close(fd)
	}
	c.fds = c.fds[:0]
}

// reply sends what is in c.out as the reply to a command, or, with errno, a
// header alone. The header goes out in one piece with the rest: QEMU does not
// read on after half of one.
func (c *conn) reply(to header, errno unix.Errno) error {
	h := header{ID: to.ID, Command: to.Command, Flags: flagReply}
	if errno != 0 {
		c.out = c.out[:headerSize]
		h.Flags |= flagError
		h.Errno = uint32(errno)
	}
	h.Size = uint32(len(c.out))
	if _, err := binary.Encode(c.out[:headerSize], binary.NativeEndian, h); err != nil {
		return err
	}
	if err := c.c.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
		return err
	}
	_, err := c.c.Write(c.out)
	if cap(c.out) > 1<<16 {
		c.out = make([]byte, headerSize, 512) // a long one is rare
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET):
		return errGone
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("it does not read its replies: %w", err)
	}
	return err
}

// decode reads a struct of the protocol from the start of b, which is as long at
// least.
func decode[T any](b []byte) (v T) {
	if _, err := binary.Decode(b, binary.NativeEndian, &v); err != nil {
		panic(err) // a fault of ours: the table of commands has the sizes
	}
	return v
}

// add appends a struct of the protocol to the reply.
func (c *conn) add(v any) {
	out, err := binary.Append(c.out, binary.NativeEndian, v)
	if err != nil {
		panic(err) // not a struct of fixed size
	}
	c.out = out
}
