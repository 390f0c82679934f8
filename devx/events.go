// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/mlx5"
)

// channel is a file that the kernel made for messages to this context.
type channel struct {
	d    *Device
	fd   int
	file *os.File
	mu   sync.Mutex
	done bool
}

func (d *Device) newChannel(object, method, attr uint16, flags func(*Submitter), what string) (*channel, error) {
	c := &channel{d: d}
	err := d.with(func(s *Submitter) error {
		s.begin(object, method)
		fd := s.handle(attr, 0)
		if flags != nil {
			flags(s)
		}
		errno, err := s.call()
		c.fd = int(int32(fd.Data()))
		return d.callError(what, errno, err)
	})
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(c.fd)
	if err := unix.SetNonblock(c.fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("devx: %s: %w", what, err), unix.Close(c.fd))
	}
	c.file = os.NewFile(uintptr(c.fd), what)
	d.mu.Lock()
	closed := d.closed
	if !closed {
		d.channels[c] = struct{}{}
	}
	d.mu.Unlock()
	if closed {
		return nil, errors.Join(d.closedError(), c.file.Close())
	}
	return c, nil
}

// close closes the file; readers return.
func (c *channel) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return nil
	}
	c.done = true
	return c.file.Close()
}

func (c *channel) forget() error {
	c.d.mu.Lock()
	delete(c.d.channels, c)
	c.d.mu.Unlock()
	return c.close()
}

// messages reads until ctx ends, the channel is closed or the device is gone.
func (c *channel) messages(ctx context.Context, size int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		stop := context.AfterFunc(ctx, func() { _ = c.file.SetReadDeadline(time.Unix(1, 0)) })
		defer func() {
			stop()
			_ = c.file.SetReadDeadline(time.Time{}) // of a closed file it may fail
		}()
		buf := make([]byte, size)
		for {
			n, err := c.file.Read(buf)
			switch {
			case err == nil && n > 0:
				if !yield(buf[:n], nil) {
					return
				}
				continue
			case ctx.Err() != nil:
				err = ctx.Err()
			case errors.Is(err, os.ErrClosed):
				err = c.d.closedError()
			case err == nil || n == 0 || errors.Is(err, unix.EIO):
				err = goneError(c.d.info.Name, unix.EIO)
			case errors.Is(err, unix.EOVERFLOW):
				err = fmt.Errorf("devx: %s: events were lost: the kernel's queue overflowed: %w", c.d.info.Name, err)
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

// Subscribe asks for events of the given types about one object, or, if about
// is nil, about the device. Each carries the cookie.
func (c *EventChannel) Subscribe(cookie uint64, about Subject, types ...mlx5.EventType) error {
	d := c.c.d
	if len(types) == 0 {
		return fmt.Errorf("devx: Subscribe: no event type given")
	}
	return d.with(func(s *Submitter) error {
		s.begin(abi.MLX5_IB_OBJECT_DEVX, abi.MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT)
		s.handle(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE, uint32(c.c.fd))
		if about != nil {
			if about.object().d != d {
				return fmt.Errorf("devx: Subscribe: the object %w than %s", ErrForeign, d.info.Name)
			}
			s.handle(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE, about.object().handle)
		}
		for i, t := range types { // an array of u16 of the host
			binary.LittleEndian.PutUint16(s.in[2*i:], uint16(t))
		}
		s.input(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST, 2*len(types))
		s.value(abi.MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE, 8, cookie)
		errno, err := s.call()
		return d.callError(fmt.Sprintf("subscribe to %v", types), errno, err)
	})
}

// Events yields events as they come, until ctx ends, the channel is closed or
// the device is gone; the last pair carries that error. One reader at a time.
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
// such thing for a command that changes something.
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
	if about.object().d != d {
		return fmt.Errorf("devx: Query: the object %w than %s", ErrForeign, d.info.Name)
	}
	return d.with(func(s *Submitter) error {
		if err := s.load(in, out); err != nil {
			return err
		}
		s.begin(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY)
		s.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE, about.object().handle)
		s.input(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN, len(in))
		s.value(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN, 2, uint64(out))
		s.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD, uint32(c.c.fd))
		s.value(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID, 8, id)
		errno, err := s.call()
		return d.callError(fmt.Sprintf("asynchronous %v", mlx5.OpOf(in)), errno, err)
	})
}

// Answers yields answers as they come, until ctx ends, the channel is closed or
// the device is gone; the last pair carries that error. One reader at a time.
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
