// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/mlx5"
)

// channel is a file that the kernel made for messages to this context.
type channel struct {
	d      *Device
	file   *os.File
	closed atomic.Bool
}

func (d *Device) newChannel(object, method, attr uint16, flags func(*Submitter), what string) (*channel, error) {
	if !d.enter() { // a channel that is open is in the list of those that Close closes
		return nil, d.closedError()
	}
	defer d.exit()
	var fd int
	err := d.with(func(s *Submitter) error {
		s.begin(object, method)
		h := s.handle(attr, 0)
		if flags != nil {
			flags(s)
		}
		errno, err := s.call()
		fd = int(int32(h.Data()))
		return d.callError(errno, err, "%s", what)
	})
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("devx: %s: %w", what, err), unix.Close(fd))
	}
	c := &channel{d: d, file: os.NewFile(uintptr(fd), what)}
	d.mu.Lock()
	d.channels[c] = struct{}{}
	d.mu.Unlock()
	return c, nil
}

// close closes the file; readers return.
func (c *channel) close() error {
	if c.closed.Swap(true) {
		return nil
	}
	return c.file.Close()
}

func (c *channel) forget() error {
	c.d.mu.Lock()
	delete(c.d.channels, c)
	c.d.mu.Unlock()
	return c.close()
}

// use runs f with the number of the descriptor. It stays the channel's for as
// long; after Close another file gets it.
func (c *channel) use(f func(fd uint32) error) (err error) {
	conn, _ := c.file.SyscallConn() // fails of a nil file only
	if conn.Control(func(fd uintptr) { err = f(uint32(fd)) }) != nil {
		return c.closedError()
	}
	return err
}

func (c *channel) closedError() error {
	return fmt.Errorf("devx: %s: %s: %w", c.d.info.Name, c.file.Name(), ErrClosed)
}

// read reads one message. A descriptor that does not block answers EAGAIN even
// when the device is gone (devx_async_event_read looks at O_NONBLOCK first);
// poll tells. The runtime's poller returns once then, and never again.
func (c *channel) read(buf []byte) (n int, err error) {
	conn, _ := c.file.SyscallConn() // fails of a nil file only
	waited := conn.Read(func(fd uintptr) bool {
		for {
			n, err = unix.Read(int(fd), buf)
			switch err {
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
				if _, e := unix.Poll(p, 0); e != nil || p[0].Revents == 0 {
					return false
				}
				err = unix.EIO
			}
			return true
		}
	})
	if waited != nil {
		return 0, waited
	}
	return n, err
}

// messages reads until ctx ends, the channel is closed or the device is gone.
func (c *channel) messages(ctx context.Context, size int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		interrupted := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			_ = c.file.SetReadDeadline(time.Unix(1, 0)) // of a closed file it fails
			close(interrupted)
		})
		defer func() {
			if !stop() {
				<-interrupted
				_ = c.file.SetReadDeadline(time.Time{})
			}
		}()
		buf := make([]byte, size)
		for {
			n, err := c.read(buf)
			switch {
			case err == nil && n > 0:
				if !yield(buf[:n], nil) {
					return
				}
				continue
			case ctx.Err() != nil:
				err = ctx.Err()
			case c.closed.Load():
				err = c.closedError()
			case err == nil || err == unix.EIO:
				err = goneError(c.d.info.Name, unix.EIO)
			case err == unix.EOVERFLOW:
				err = fmt.Errorf("devx: %s: %s: messages were lost, the kernel was out of memory: %w", c.d.info.Name, c.file.Name(), err)
			default:
				err = fmt.Errorf("devx: %s: %s: %w", c.d.info.Name, c.file.Name(), err)
			}
			yield(nil, err)
			return
		}
	}
}

// Event is one event queue entry that reached this context.
type Event struct {
	Cookie uint64 // what Subscribe was given
	Type   mlx5.EventType
	EQE    []byte // the whole entry, 64 bytes; valid until the next event
}

// EventChannel receives the events that it is subscribed to.
type EventChannel struct{ c *channel }

// EventChannel opens a channel.
func (d *Device) EventChannel() (*EventChannel, error) {
	c, err := d.newChannel(abi.MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD, abi.MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC,
		abi.MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE,
		func(s *Submitter) { s.value(abi.MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS, 4, 0) },
		"event channel")
	if err != nil {
		return nil, err
	}
	return &EventChannel{c}, nil
}

// Subject is an object that events can be about: *QP, *CQ or *Object.
type Subject interface{ object() *Object }

func (o *Object) object() *Object { return o }
func (q *QP) object() *Object     { return &q.obj }
func (c *CQ) object() *Object     { return &c.obj }

// maxEventTypes is MAX_NUM_EVENTS of devx.c.
const maxEventTypes = 16

// Subscribe asks for events of the given types, 16 at most, about one object,
// or, if about is nil, about the device. Each carries the cookie.
func (c *EventChannel) Subscribe(cookie uint64, about Subject, types ...mlx5.EventType) error {
	d := c.c.d
	if len(types) == 0 || len(types) > maxEventTypes {
		return fmt.Errorf("devx: Subscribe: %d event types: 1 to %d in one call", len(types), maxEventTypes)
	}
	if about != nil {
		if err := about.object().useWith(d); err != nil {
			return fmt.Errorf("devx: Subscribe: %w", err)
		}
		defer about.object().unuse()
	}
	return d.with(func(s *Submitter) error {
		return c.c.use(func(fd uint32) error {
			s.begin(abi.MLX5_IB_OBJECT_DEVX, abi.MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT)
			s.handle(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE, fd)
			if about != nil {
				s.handle(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE, about.object().handle)
			}
			for i, t := range types { // an array of u16 of the host
				binary.LittleEndian.PutUint16(s.in[2*i:], uint16(t))
			}
			s.input(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST, 2*len(types))
			s.value(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE, 8, cookie)
			errno, err := s.call()
			return d.callError(errno, err, "subscribe to %v", types)
		})
	})
}

// Events yields events as they come, until ctx ends, the channel or the device
// is closed (ErrClosed), or the device is gone (ErrDeviceGone); the last pair
// carries that error. One that says EOVERFLOW, events were lost, may be followed
// by another call of Events. One reader at a time.
func (c *EventChannel) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for b, err := range c.c.messages(ctx, 256) {
			if err == nil && len(b) < abi.AsyncEventHdrSize+2 {
				err = fmt.Errorf("devx: an event of %d bytes", len(b))
			}
			if err != nil {
				yield(Event{}, err)
				return
			}
			eqe := b[abi.AsyncEventHdrSize:]
			if !yield(Event{binary.LittleEndian.Uint64(b), mlx5.EventType(eqe[1]), eqe}, nil) {
				return
			}
		}
	}
}

// Close closes the channel and ends its subscriptions.
func (c *EventChannel) Close() error { return c.c.forget() }

// Answer is the firmware's answer to an asynchronous query.
type Answer struct {
	ID  uint64 // what Query was given
	Out []byte // status and syndrome first; valid until the next answer
}

// QueryChannel issues queries without waiting for their answers. There is no
// such thing for a command that changes something. Linux 6.1 warns in dmesg if
// firmware refuses such a query (docs/kernels.md).
type QueryChannel struct{ c *channel }

// QueryChannel opens a channel.
func (d *Device) QueryChannel() (*QueryChannel, error) {
	c, err := d.newChannel(abi.MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD, abi.MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC,
		abi.MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE, nil, "asynchronous query channel")
	if err != nil {
		return nil, err
	}
	return &QueryChannel{c}, nil
}

// Query sends a query command about an object. EAGAIN says that more than 1
// MiB of answers are outstanding (devx.c, MAX_ASYNC_BYTES_IN_USE): read some first.
func (c *QueryChannel) Query(id uint64, about Subject, in []byte, out int) error {
	d := c.c.d
	o := about.object()
	if err := o.useWith(d); err != nil {
		return fmt.Errorf("devx: Query: %w", err)
	}
	defer o.unuse()
	return d.with(func(s *Submitter) error {
		if err := s.load(in, out); err != nil {
			return err
		}
		return c.c.use(func(fd uint32) error {
			s.begin(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY)
			s.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE, o.handle)
			s.input(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN, len(in))
			s.value(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN, 8, uint64(out))
			s.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD, fd)
			s.value(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID, 8, id)
			errno, err := s.call()
			if errno == unix.EAGAIN {
				return fmt.Errorf("devx: %s: asynchronous %v: %w: too many answers are outstanding, read some first", d.info.Name, mlx5.OpOf(in), errno)
			}
			return d.callError(errno, err, "asynchronous %v", mlx5.OpOf(in))
		})
	})
}

// Answers yields answers as they come, until ctx ends, the channel or the device
// is closed (ErrClosed), or the device is gone (ErrDeviceGone); the last pair
// carries that error. One reader at a time.
func (c *QueryChannel) Answers(ctx context.Context) iter.Seq2[Answer, error] {
	return func(yield func(Answer, error) bool) {
		for b, err := range c.c.messages(ctx, abi.AsyncCmdHdrSize+maxCommand) {
			if err == nil && len(b) < abi.AsyncCmdHdrSize+8 {
				err = fmt.Errorf("devx: an answer of %d bytes", len(b))
			}
			if err != nil {
				yield(Answer{}, err)
				return
			}
			if !yield(Answer{binary.LittleEndian.Uint64(b), b[abi.AsyncCmdHdrSize:]}, nil) {
				return
			}
		}
	}
}

// Close closes the channel; answers that were not read are lost.
func (c *QueryChannel) Close() error { return c.c.forget() }
