// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/cm/abi"
	"devxlab.example/internal/usermem"
)

// Channel is an event channel: the events of all its IDs come through one open
// file, in their order. Its methods may be called from any goroutine.
type Channel struct {
	node    Node
	done    chan struct{} // closed when there will be no more events
	surplus chan uint32   // requests that nobody takes, by the kernel's number
	swept   chan struct{} // closed when no more of them are destroyed

	mu     sync.Mutex
	ids    map[uint64]*ID // by uid
	uid    uint64         // given out last
	free   []*slab
	all    []*slab
	busy   int // calls under way
	idle   *sync.Cond
	room   *sync.Cond // fewer than maxCalls are under way
	closed bool
	fate   error // why there are no more events; after done
}

// maxCalls bounds the calls of a channel that are under way: each blocks an OS
// thread, and the Go runtime ends a program that has 10,000 (SetMaxThreads in
// runtime/debug). More wait for their turn.
const maxCalls = 512

// maxSurplus bounds the requests that wait to be rejected. With more, events are no
// longer read, and the kernel drops requests beyond its own backlog.
const maxSurplus = 1024

// Open opens File. ErrNoCM and ErrNoPermission say why that is not possible.
func Open() (*Channel, error) {
	n, err := openNode(File)
	if err != nil {
		return nil, err
	}
	return NewChannel(n), nil
}

// NewChannel makes a channel of a node, which it closes.
func NewChannel(n Node) *Channel {
	c := &Channel{node: n, ids: map[uint64]*ID{}, done: make(chan struct{}), surplus: make(chan uint32, maxSurplus), swept: make(chan struct{})}
	c.idle, c.room = sync.NewCond(&c.mu), sync.NewCond(&c.mu)
	go c.read()
	go c.sweep()
	return c
}

// Close destroys all IDs of the channel and closes the file; the kernel sends what
// is to be sent then (a DREQ for a connection, a REJ for a request). It waits for
// calls under way. A second call does nothing.
func (c *Channel) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.room.Broadcast()
	for c.busy > 0 {
		c.idle.Wait()
	}
	c.mu.Unlock()
	err := c.node.Close()
	<-c.done
	<-c.swept
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.all {
		err = errors.Join(err, s.mem.Free())
	}
	c.all, c.free = nil, nil
	return err
}

var errChannelClosed = fmt.Errorf("cm: event channel: %w", ErrClosed)

// with calls f with memory for one command.
func (c *Channel) with(f func(s *slab) error) error {
	s, err := c.take()
	if err != nil {
		return err
	}
	defer c.give(s)
	return f(s)
}

func (c *Channel) take() (*slab, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.busy == maxCalls && !c.closed {
		c.room.Wait()
	}
	if c.closed {
		return nil, errChannelClosed
	}
	if n := len(c.free); n > 0 {
		s := c.free[n-1]
		c.free = c.free[:n-1]
		c.busy++
		return s, nil
	}
	mem, err := usermem.Alloc(slabSize)
	if err != nil {
		return nil, fmt.Errorf("cm: %w", err)
	}
	s := &slab{mem}
	c.all = append(c.all, s)
	c.busy++
	return s, nil
}

func (c *Channel) give(s *slab) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free = append(c.free, s)
	if c.busy--; c.busy == 0 {
		c.idle.Broadcast()
	}
	c.room.Signal()
}

// call carries out the command in s.
func (c *Channel) call(s *slab) error {
	for {
		if err := c.node.Write(s.bytes()); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// read takes events from the file and gives them to their IDs, until the file is
// closed.
func (c *Channel) read() {
	defer close(c.done)
	defer close(c.surplus)
	mem, err := usermem.Alloc(slabSize)
	if err != nil {
		c.end(fmt.Errorf("cm: no events: %w", err))
		return
	}
	s := &slab{mem}
	defer mem.Free()
	for {
		var failed error
		err := c.node.Await(func() bool {
			request[abi.GetEvent](s, abi.RDMA_USER_CM_CMD_GET_EVENT, sizeOf[abi.EventResp]()).Response = s.answerAddr()
			failed = c.call(s)
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err = errors.Join(err, failed); err != nil {
			if errors.Is(err, ErrClosed) {
				err = errChannelClosed
			} else {
				err = fmt.Errorf("cm: no more events: %w", err)
			}
			c.end(err)
			return
		}
		c.dispatch(answer[abi.EventResp](s), time.Now())
	}
}

// end tells all IDs that there will be no more events.
func (c *Channel) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fate = err
}

// dispatch gives an event to its ID. One that has been closed meanwhile has none:
// but a request for a connection is an ID itself, which has to be destroyed.
func (c *Channel) dispatch(r *abi.EventResp, at time.Time) {
	c.mu.Lock()
	id := c.ids[r.UID]
	c.mu.Unlock()
	if id != nil && id.deliver(eventOf(r, id.space == Datagram, at)) {
		return
	}
	if EventType(r.Event) == ConnectRequest {
		c.surplus <- r.ID
	}
}

// sweep destroys requests that nobody takes, beside read: that may block, and events
// of other IDs go on meanwhile.
func (c *Channel) sweep() {
	defer close(c.swept)
	for id := range c.surplus {
		// Destroying it rejects it with reason 28 (cm_destroy_id in cm.c). If that fails, it
		// has gone already.
		_ = c.destroy(id)
	}
}

func (c *Channel) destroy(id uint32) error {
	return c.with(func(s *slab) error {
		r := request[abi.DestroyID](s, abi.RDMA_USER_CM_CMD_DESTROY_ID, sizeOf[abi.DestroyIDResp]())
		r.Response, r.ID = s.answerAddr(), id
		return c.call(s)
	})
}

// add enters an ID, so that it gets events.
func (c *Channel) add(id *ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uid++ // never 0: the kernel drops the events of such an ID (ucma_event_handler)
	id.uid = c.uid
	c.ids[id.uid] = id
}

func (c *Channel) remove(id *ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ids, id.uid)
}

// wait waits for a signal of an ID.
func (c *Channel) wait(ctx context.Context, signal <-chan struct{}) error {
	select {
	case <-signal:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		select { // an event that came before the end
		case <-signal:
			return nil
		default:
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.fate
	}
}
