// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"context"
	"fmt"
	"net"
	"time"
)

// A Function is a PCI function. Its methods are called by one goroutine, that of
// Serve, one after the other. The slices are valid during the call, and within
// what the function has: offsets and lengths are checked before.
//
// None may block for longer than a register access takes on hardware: until it
// returns, no other access of the guest and no change of its memory map goes on,
// and QEMU gives up a command after 5 s (wait_time in hw/vfio-user/proxy.c). A
// write to a doorbell starts what it asks for in another goroutine.
type Function interface {
	// ReadConfig and WriteConfig access the 4096 bytes of configuration space.
	// QEMU reads all of it at the start, and later 1, 2 or 4 bytes.
	ReadConfig(off int, b []byte)
	WriteConfig(off int, b []byte)

	// BARSize returns the size of BAR 0 to 5, a power of two, or 0 where there is
	// none: also for the upper half of a 64-bit BAR. It does not change.
	BARSize(bar int) int64

	// ReadBAR and WriteBAR access a BAR. From QEMU come 1, 2, 4 or 8 bytes.
	// Writes are posted: the guest goes on before WriteBAR is called, but a later
	// read waits for it.
	ReadBAR(bar int, off int64, b []byte)
	WriteBAR(bar int, off int64, b []byte)

	// Vectors returns the number of MSI-X vectors, at most 2048. It does not
	// change. QEMU has the MSI-X table to itself; it reads the pending bits from
	// the BAR.
	Vectors() int

	// Attach says that a client is there. Its memory follows, and may change at
	// any time. Of the function's state the protocol wants none reset.
	Attach(h Host)

	// Detach says that the client is gone. Once it has returned, the function
	// does not use h any more.
	Detach()

	// Reset is VFIO_USER_DEVICE_RESET: QEMU sends it when the machine is reset. A
	// function-level reset comes as a write of configuration space.
	Reset()
}

// A Host is the client's machine as a function sees it. Its methods may be
// called by any goroutine.
//
// It is an alias so that a package can have a Function without importing this
// one.
type Host = interface {
	// ReadDMA and WriteDMA access guest memory. The error is a *DMAError; with
	// ErrFault, a part may have been transferred, otherwise nothing.
	//
	// Two accesses of one goroutine take effect in their order. 4 or 8 bytes at a
	// multiple of their number are accessed at once; in a longer access, the
	// order of bytes is not defined. So an entry that the guest polls is written
	// with its ownership byte last, in a call of its own.
	ReadDMA(addr uint64, b []byte) error
	WriteDMA(addr uint64, b []byte) error

	// Interrupt signals an MSI-X vector. It does nothing if the client has not
	// set the vector; one that it has masked is signalled when it unmasks it.
	Interrupt(vector int)
}

// A Server serves a function.
type Server struct {
	Function Function

	// Log, if not nil, is told each command that is refused (*RequestError) and
	// why a client was dropped, on the goroutine of Serve. That a client leaves is
	// not an error.
	Log func(error)

	patience time.Duration // 0: the package's
}

// patience is how long a client has for its first message, for the rest of one
// that it has begun, and to make room for a reply. QEMU sends a message in one
// piece and has a thread that reads.
const patience = 10 * time.Second

// Serve serves f as a Server does.
func Serve(ctx context.Context, l *net.UnixListener, f Function) error {
	return (&Server{Function: f}).Serve(ctx, l)
}

// Serve serves one client after the other until ctx is done, and returns ctx's
// error, or until the listener fails. It closes the listener. Who may connect is
// decided by the permissions of the socket's directory.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	shape, err := shapeOf(s.Function)
	if err != nil {
		return err
	}
	for {
		c, err := l.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("vfio-user: waiting for a client: %w", err)
		}
		s.client(ctx, c, shape)
	}
}

// client serves one client until it is gone, and closes the connection.
func (s *Server) client(ctx context.Context, c *net.UnixConn, shape shape) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	log := func(err error) {
		if s.Log != nil && ctx.Err() == nil {
			s.Log(err)
		}
	}
	ss := newSession(s.Function, shape, c, log)
	if s.patience > 0 {
		ss.patience = s.patience
	}
	if err := ss.run(); err != nil {
		log(fmt.Errorf("vfio-user: client dropped: %w", err))
	}
}

// shape is what a function has.
type shape struct {
	bars    [numBARs]int64
	vectors int
}

func shapeOf(f Function) (s shape, err error) {
	for i := range s.bars {
		n := f.BARSize(i)
		if n < 0 || n&(n-1) != 0 || n > 0 && n < 16 {
			return s, fmt.Errorf("vfio-user: BAR %d has %d bytes: not a power of two from 16", i, n)
		}
		s.bars[i] = n
	}
	if s.vectors = f.Vectors(); s.vectors < 0 || s.vectors > maxVectors {
		return s, fmt.Errorf("vfio-user: %d MSI-X vectors: not 0 to %d", s.vectors, maxVectors)
	}
	return s, nil
}

// size returns the size of a region, 0 if there is none.
func (s *shape) size(region uint32) uint64 {
	switch {
	case region < numBARs:
		return uint64(s.bars[region])
	case region == regionConfig:
		return configSize
	}
	return 0
}

// irqs returns how many interrupts an index has.
func (s *shape) irqs(index uint32) uint32 {
	if index == irqMSIX {
		return uint32(s.vectors)
	}
	return 0
}
