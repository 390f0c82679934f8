// SPDX-License-Identifier: BSD-2-Clause

package cm_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"devxlab.example/cm"
	"devxlab.example/cm/abi"
	"devxlab.example/internal/ucmfake"
)

// Close of a channel or an ID ends all that waits there, with ErrClosed, and a
// second one does nothing.
func TestCloseEndsWaiters(t *testing.T) {
	for name, end := range map[string]func(l *lab, ln *cm.Listener, id *cm.ID) error{
		"ID": func(_ *lab, ln *cm.Listener, id *cm.ID) error {
			return errors.Join(ln.Close(), id.Close(), ln.Close(), id.Close())
		},
		"channel": func(l *lab, _ *cm.Listener, _ *cm.ID) error {
			return errors.Join(l.server.Close(), l.client.Close(), l.server.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			ln := l.listen(1)
			id := l.create()
			waiting, ended := make(chan struct{}), make(chan error)
			wait := func(f func(context.Context) error) {
				go func() {
					ended <- f(signalled{bg, waiting})
				}()
				<-waiting
			}
			for range 3 {
				wait(func(ctx context.Context) error { _, err := ln.Accept(ctx); return err })
				wait(func(ctx context.Context) error { _, err := id.Event(ctx); return err })
			}
			if err := end(l, ln, id); err != nil {
				t.Error(err)
			}
			for range 6 {
				if err := <-ended; !errors.Is(err, cm.ErrClosed) || !strings.HasPrefix(err.Error(), "cm: ") {
					t.Error(err)
				}
			}
			l.gone()
			if _, err := l.server.NewID(cm.Connected); name == "channel" && !errors.Is(err, cm.ErrClosed) {
				t.Error(err)
			}
			if err := errors.Join(ln.Close(), id.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// signalled is a context that says when it is waited for.
type signalled struct {
	context.Context
	waiting chan struct{}
}

func (s signalled) Done() <-chan struct{} {
	s.waiting <- struct{}{}
	return nil
}

// Everything at a time: clients that dial, servers that accept, connections that end
// from both sides, and then the channels closed under all that. No ID and no queue
// pair is left, whoever came first.
func TestCloseUnderLoad(t *testing.T) {
	for range 10 {
		l := newLab(t)
		ln := l.listen(8)
		ctx, cancel := context.WithCancel(bg)
		var wg sync.WaitGroup
		var made atomic.Int32
		ended := func(err error) bool {
			if err != nil && !errors.Is(err, cm.ErrClosed) && !errors.Is(err, context.Canceled) && !isOfTheEnd(err) {
				t.Errorf("%v", err)
			}
			return ctx.Err() != nil || errors.Is(err, cm.ErrClosed)
		}
		for range 4 {
			wg.Go(func() {
				for {
					c, err := l.dialer().Dial(ctx, serverAt)
					if err == nil {
						made.Add(1)
						err = c.Close(ctx)
					}
					if ended(err) {
						return
					}
				}
			})
			wg.Go(func() {
				for {
					c, err := ln.Accept(ctx)
					if err == nil {
						if rand.IntN(2) == 0 {
							_, _ = c.ID.Event(ctx)
						}
						err = c.Close(ctx)
					}
					if ended(err) {
						return
					}
				}
			})
		}
		for made.Load() < 20 {
			id := l.create() // one that comes and goes beside
			if err := id.Close(); err != nil {
				t.Error(err)
			}
		}
		how := []func(){func() { _ = ln.Close() }, func() { _ = l.client.Close() }, func() { _ = l.server.Close() }}
		rand.Shuffle(len(how), func(i, j int) { how[i], how[j] = how[j], how[i] })
		for _, f := range how {
			wg.Go(f)
		}
		cancel()
		wg.Wait()
		l.gone()
	}
}

// isOfTheEnd is an error of a connection whose other end has gone.
func isOfTheEnd(err error) bool {
	var r *cm.RejectError
	var e *cm.EventError
	return errors.As(err, &r) || errors.As(err, &e) || errors.Is(err, unix.EINVAL)
}

// Many goroutines close the same ID while its events come: each event goes to it or
// to nobody, it is destroyed once.
func TestCloseAndEvents(t *testing.T) {
	l := newLab(t)
	for n := range uint32(200) {
		id := l.create()
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 5 {
				l.k.Tell(n+1, ucmfake.Event{Type: cm.AddrChange})
			}
		})
		wg.Go(func() {
			for _, err := range id.Events(bg) {
				if err != nil && !errors.Is(err, cm.ErrClosed) {
					t.Error(err)
				}
			}
		})
		for range 3 {
			wg.Go(func() {
				if err := id.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	if n := l.commands(destroyID); n != 200 {
		t.Errorf("%d IDs destroyed, want 200", n)
	}
}

// A listener is closed while requests come: each is accepted, rejected, or refused
// because nobody listens.
func TestCloseOfAListenerUnderRequests(t *testing.T) {
	for range 30 {
		l := newLab(t)
		ln := l.listen(2)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if c, err := l.dialer().Dial(bg, serverAt); err == nil {
					err = c.Destroy()
					if err != nil {
						t.Error(err)
					}
				} else if !isOfTheEnd(err) {
					t.Error(err)
				}
			})
		}
		wg.Go(func() {
			for {
				c, err := ln.Accept(bg)
				if errors.Is(err, cm.ErrClosed) {
					return
				}
				if err == nil {
					err = c.Destroy()
				}
				if err != nil && !isOfTheEnd(err) {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			if err := ln.Close(); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		l.gone()
	}
}

// Numbers of IDs for events are never 0 and never given twice.
func TestUIDs(t *testing.T) {
	l := newLab(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if err := l.create().Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	seen := map[byte]bool{}
	for _, c := range l.k.Calls() {
		if c.Cmd != abi.RDMA_USER_CM_CMD_CREATE_ID {
			continue
		}
		uid := c.Bytes[8]
		if uid == 0 || seen[uid] || string(c.Bytes[9:16]) != strings.Repeat("\x00", 7) {
			t.Errorf("uid %x", c.Bytes[8:16])
		}
		seen[uid] = true
	}
	if len(seen) != 200 {
		t.Errorf("%d IDs", len(seen))
	}
}

// EINTR is no answer: neither a command nor an event is lost by it.
func TestInterrupted(t *testing.T) {
	k := ucmfake.New()
	open := func() *ucmfake.File {
		f, n := k.Open(), atomic.Int32{}
		f.Fail = func(uint32) error {
			if n.Add(1)%3 != 0 {
				return unix.EINTR
			}
			return nil
		}
		return f
	}
	l := &lab{t: t, k: k, client: cm.NewChannel(open()), server: cm.NewChannel(open())}
	ln := l.listen(1)
	a, b := l.connected(ln)
	if err := errors.Join(a.Destroy(), b.Destroy(), ln.Close(), l.client.Close(), l.server.Close()); err != nil {
		t.Error(err)
	}
	l.gone()
}

// A node that answers with an error for ever: calls fail with it, waiters are told
// once and for all, Close ends.
func TestDeadNode(t *testing.T) {
	k := ucmfake.New()
	f := k.Open()
	var dead atomic.Bool
	var reads atomic.Int32
	f.Fail = func(cmd uint32) error {
		if dead.Load() {
			if cmd == abi.RDMA_USER_CM_CMD_GET_EVENT {
				reads.Add(1)
			}
			return unix.EIO
		}
		return nil
	}
	c := cm.NewChannel(f)
	id, err := c.NewID(cm.Connected)
	if err != nil {
		t.Fatal(err)
	}
	dead.Store(true)
	f.Queue(abi.EventResp{UID: 1, ID: 1, Event: uint32(cm.AddrChange)}) // wakes the reader
	for range 3 {
		if _, err := id.Event(bg); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "no more events") {
			t.Error(err)
		}
	}
	if _, err := c.NewID(cm.Connected); !errors.Is(err, unix.EIO) {
		t.Error(err)
	}
	if err := id.Close(); !errors.Is(err, unix.EIO) {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if n := reads.Load(); n != 1 {
		t.Errorf("%d reads of events, want 1: they do not go on after an error", n)
	}
	if ids := k.IDs(); len(ids) != 0 {
		t.Errorf("IDs %v", ids)
	}
}

// Open, where there is no node, says what to do.
func TestOpen(t *testing.T) {
	c, err := cm.Open()
	if err == nil { // there is one here
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	if !errors.Is(err, cm.ErrNoCM) && !errors.Is(err, cm.ErrNoPermission) || !strings.Contains(err.Error(), cm.File) {
		t.Error(err)
	}
}

// A surplus request whose end blocks holds up no other ID's events.
func TestBlockedRejection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := ucmfake.New()
		f := k.Open()
		blocked := make(chan struct{})
		f.Fail = func(cmd uint32) error {
			if cmd == destroyID {
				<-blocked
			}
			return nil
		}
		c := cm.NewChannel(f)
		id, err := c.NewID(cm.Connected)
		if err != nil {
			t.Fatal(err)
		}
		for n := range uint32(3) {
			f.Queue(abi.EventResp{UID: 99, ID: 70 + n, Event: uint32(cm.ConnectRequest)})
		}
		f.Queue(abi.EventResp{UID: 1, ID: 1, Event: uint32(cm.AddrChange)})
		if e, err := id.Event(bg); err != nil || e.Type != cm.AddrChange {
			t.Errorf("%+v, %v", e, err)
		}
		close(blocked)
		synctest.Wait()
		n := 0
		for _, call := range k.Calls() {
			if call.Cmd == destroyID {
				n++
			}
		}
		if n != 3 {
			t.Errorf("%d requests destroyed, want 3", n)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// No more than 512 calls of a channel are under way at a time, and Close ends those
// that wait for their turn.
func TestCallsAreBounded(t *testing.T) {
	const calls, most = 600, 512
	synctest.Test(t, func(t *testing.T) {
		k := ucmfake.New()
		f := k.Open()
		blocked := make(chan struct{})
		var under, done, refused atomic.Int32
		f.Fail = func(cmd uint32) error {
			if cmd == abi.RDMA_USER_CM_CMD_CREATE_ID {
				under.Add(1)
				<-blocked
			}
			return nil
		}
		c := cm.NewChannel(f)
		for range calls {
			go func() {
				switch _, err := c.NewID(cm.Connected); {
				case err == nil:
					done.Add(1)
				case errors.Is(err, cm.ErrClosed):
					refused.Add(1)
				default:
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		if n := under.Load(); n != most {
			t.Errorf("%d calls under way, want %d", n, most)
		}
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		if n := refused.Load(); n != calls-most {
			t.Errorf("%d calls refused, want %d", n, calls-most)
		}
		close(blocked)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := done.Load(); n != most {
			t.Errorf("%d calls done, want %d", n, most)
		}
	})
}
