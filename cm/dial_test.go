// SPDX-License-Identifier: BSD-2-Clause

package cm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/cm"
	"devxlab.example/cm/abi"
	"devxlab.example/cm/roce"
	"devxlab.example/internal/ucmfake"
	"devxlab.example/mlx5"
)

// A connection from end to end: what each side learns of the other, the states that
// the queue pairs go through, the events of the end, and nothing left.
func TestDialAndAccept(t *testing.T) {
	l := newLab(t)
	ln := l.listen(4)
	client, server := l.connected(ln)
	if client.Peer.QPN != server.QP.Number() || server.Peer.QPN != client.QP.Number() {
		t.Errorf("peers %#x and %#x, queue pairs %#x and %#x", client.Peer.QPN, server.Peer.QPN, client.QP.Number(), server.QP.Number())
	}
	// A request's reads are the other side's to serve.
	if p := server.Peer; p.Responder != 2 || p.Initiator != 4 || p.Retry != 7 || p.RNRRetry != 6 || len(p.Private) != cm.RoomREQ {
		t.Errorf("the server learnt %+v", p)
	}
	if p := client.Peer; p.Responder != 2 || p.Initiator != 4 || p.RNRRetry != 6 || len(p.Private) != cm.RoomREP {
		t.Errorf("the client learnt %+v", p)
	}
	for _, c := range []*cm.Conn{client, server} {
		if got, want := c.QP.(*qp).states, []mlx5.State{mlx5.StateInit, mlx5.StateRTR, mlx5.StateRTS}; !slices.Equal(got, want) {
			t.Errorf("states %v, want %v", got, want)
		}
	}
	if r, err := server.ID.Route(); err != nil || r.Src != serverAt || r.NodeGUID != ucmfake.NodeGUID || r.Port != 1 {
		t.Errorf("the server's route: %+v, %v", r, err)
	}
	for s := range cm.StepCount {
		if (client.Steps[s] > 0) != (s != cm.StepAccept) {
			t.Errorf("client: %s took %v", s, client.Steps[s])
		}
		if (server.Steps[s] > 0) != (s > cm.StepRoute && s != cm.StepConnect && s != cm.StepRTU) {
			t.Errorf("server: %s took %v", s, server.Steps[s])
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if e, err := server.ID.Event(bg); err != nil || e.Type != cm.Disconnected {
			t.Errorf("%+v, %v", e, err)
		}
		if err := server.Close(bg); err != nil {
			t.Error(err)
		}
	})
	if err := client.Close(bg); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if s := client.QP.(*qp).states; s[len(s)-1] != mlx5.StateErr {
		t.Errorf("states %v", s)
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	l.gone()
	if n := l.commands(destroyID); n != 3 {
		t.Errorf("%d IDs destroyed, want 3", n)
	}
}

// Each step takes the time that the kernel takes for it.
func TestStepsAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.k.Latency = func(e cm.EventType) time.Duration {
			return map[cm.EventType]time.Duration{cm.AddrResolved: 3, cm.RouteResolved: 5, cm.ConnectRequest: 7, cm.ConnectResponse: 11, cm.Established: 13}[e] * time.Millisecond
		}
		client, server := l.connected(l.listen(1))
		want := cm.Steps{cm.StepAddress: 3 * time.Millisecond, cm.StepRoute: 5 * time.Millisecond, cm.StepConnect: 18 * time.Millisecond}
		if client.Steps != want || client.Steps.Total() != 26*time.Millisecond {
			t.Errorf("client %v, want %v", client.Steps, want)
		}
		if want := (cm.Steps{cm.StepAccept: 24 * time.Millisecond}); server.Steps != want {
			t.Errorf("server %v, want %v", server.Steps, want)
		}
		if err := errors.Join(client.Destroy(), server.Destroy()); err != nil {
			t.Error(err)
		}
	})
}

// told is a command whose outcome is an event.
func told(e cm.EventType, status int32, private ...byte) ucmfake.Fault {
	return ucmfake.Fault{Event: &ucmfake.Event{Type: e, Status: status, Private: private}}
}

const (
	cmdAddr    = abi.RDMA_USER_CM_CMD_RESOLVE_ADDR
	cmdRoute   = abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE
	cmdConnect = abi.RDMA_USER_CM_CMD_CONNECT
	cmdAccept  = abi.RDMA_USER_CM_CMD_ACCEPT
	cmdAttr    = abi.RDMA_USER_CM_CMD_INIT_QP_ATTR
)

// What can go wrong at each step of a client gives an error that says which step,
// which event or call, the errno or reason, and what to do; and nothing is left.
func TestDialFails(t *testing.T) {
	event := func(e cm.EventType, errno unix.Errno) func(error) bool {
		return func(err error) bool {
			var f *cm.EventError
			return errors.As(err, &f) && f.Event == e && (errno == 0 && f.Errno == nil || errno != 0 && errors.Is(err, errno))
		}
	}
	rejected := func(r roce.RejectReason) func(error) bool {
		return func(err error) bool {
			var f *cm.RejectError
			return errors.Is(err, &cm.RejectError{Reason: r}) && !errors.Is(err, &cm.RejectError{Reason: r + 1}) && errors.As(err, &f) && len(f.Private) == cm.RoomREJ
		}
	}
	call := func(name string, errno unix.Errno) func(error) bool {
		return func(err error) bool {
			var f *cm.CallError
			return errors.As(err, &f) && f.Call == name && errors.Is(err, errno)
		}
	}
	for _, c := range []struct {
		step  cm.Step
		cmd   uint32
		fault ucmfake.Fault
		is    func(error) bool
		says  string
	}{
		{cm.StepAddress, cmdAddr, told(cm.AddrError, -int32(unix.ETIMEDOUT)), event(cm.AddrError, unix.ETIMEDOUT), "ip neigh"},
		{cm.StepAddress, cmdAddr, told(cm.AddrError, -int32(unix.ENETUNREACH)), event(cm.AddrError, unix.ENETUNREACH), "ip route get"},
		{cm.StepAddress, cmdAddr, told(cm.DeviceRemoval, 0), event(cm.DeviceRemoval, 0), "close everything"},
		{cm.StepAddress, cmdAddr, ucmfake.Fault{Errno: unix.ENODEV}, call("rdma_resolve_addr", unix.ENODEV), "rdma link"},
		{cm.StepAddress, cmdAddr, ucmfake.Fault{Errno: unix.ENETUNREACH}, call("rdma_resolve_addr", unix.ENETUNREACH), "192.0.2.2:7471"},
		{cm.StepAddress, cmdAddr, ucmfake.Fault{Errno: unix.EINVAL}, call("rdma_resolve_addr", unix.EINVAL), "zone"},
		{cm.StepRoute, cmdRoute, told(cm.RouteError, -int32(unix.ENODEV)), event(cm.RouteError, unix.ENODEV), "not up"},
		{cm.StepRoute, cmdRoute, ucmfake.Fault{Errno: unix.EINVAL}, call("rdma_resolve_route", unix.EINVAL), "state"},
		{cm.StepRoute, cmdRoute, told(cm.DeviceRemoval, 0), event(cm.DeviceRemoval, 0), "removed"},
		{cm.StepInit, cmdAttr, ucmfake.Fault{Errno: unix.EINVAL}, call("rdma_init_qp_attr", unix.EINVAL), "INIT"},
		{cm.StepConnect, cmdConnect, told(cm.Unreachable, -int32(unix.ETIMEDOUT)), event(cm.Unreachable, unix.ETIMEDOUT), "4791"},
		{cm.StepConnect, cmdConnect, told(cm.Rejected, 10), rejected(roce.RejectStaleConnection), "try again"},
		{cm.StepConnect, cmdConnect, told(cm.Rejected, 8), rejected(roce.RejectInvalidServiceID), "start the server"},
		{cm.StepConnect, cmdConnect, told(cm.Rejected, 28), rejected(roce.RejectConsumerDefined), "refused"},
		{cm.StepConnect, cmdConnect, told(cm.Rejected, 4), rejected(roce.RejectTimeout), "gave up"},
		{cm.StepConnect, cmdConnect, told(cm.Rejected, 99), rejected(99), "99"},
		{cm.StepConnect, cmdConnect, told(cm.ConnectError, -int32(unix.EINVAL)), event(cm.ConnectError, unix.EINVAL), "completed"},
		{cm.StepConnect, cmdConnect, told(cm.Disconnected, 0), event(cm.Disconnected, 0), "peer disconnected"},
		{cm.StepConnect, cmdConnect, told(cm.DeviceRemoval, 0), event(cm.DeviceRemoval, 0), "removed"},
		{cm.StepConnect, cmdConnect, told(cm.ConnectResponse, -int32(unix.EPROTO)), event(cm.ConnectResponse, unix.EPROTO), "protocol"},
		{cm.StepConnect, cmdConnect, ucmfake.Fault{Errno: unix.ENOMEM}, call("rdma_connect", unix.ENOMEM), "memory"},
		{cm.StepRTU, cmdAccept, ucmfake.Fault{Errno: unix.EINVAL}, call("rdma_establish", unix.EINVAL), "peer has given up"},
	} {
		t.Run(fmt.Sprintf("%s/%s", c.step, c.says), func(t *testing.T) {
			l := newLab(t)
			if c.step > cm.StepConnect {
				id, server := l.listen(1), make(chan struct{})
				go func() {
					defer close(server)
					conn, err := id.Accept(bg) // is told by the REJ that the client's end sends
					if !errors.Is(err, &cm.RejectError{Reason: roce.RejectConsumerDefined}) {
						t.Errorf("the server: %+v, %v", conn, err)
					}
				}()
				defer func() { <-server; l.noID(id) }()
			}
			l.k.Fault = func(call ucmfake.Call) ucmfake.Fault {
				if call.Cmd == c.cmd && !(c.cmd == cmdAccept && call.ID != 2) { // of the client, behind the listener's
					return c.fault
				}
				return ucmfake.Fault{}
			}
			conn, err := l.dialer().Dial(bg, serverAt)
			var step *cm.StepError
			if conn != nil || !errors.As(err, &step) || step.Step != c.step || !c.is(err) {
				t.Fatalf("%+v, %v", conn, err)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not say %q", err, c.says)
			}
		})
	}
}

// noID closes a listener and checks that nothing else was left.
func (l *lab) noID(ln *cm.Listener) {
	l.t.Helper()
	if err := ln.Close(); err != nil {
		l.t.Error(err)
	}
	l.gone()
}

// What fails outside the kernel's connection manager fails the step too.
func TestDialFailsAtTheQueuePair(t *testing.T) {
	for step, set := range map[cm.Step]func(*qps){
		cm.StepCreate: func(q *qps) { q.fail = errQP },
		cm.StepInit:   func(q *qps) { q.refuse = mlx5.StateInit },
	} {
		l := newLab(t)
		set(&l.qps)
		_, err := l.dialer().Dial(bg, serverAt)
		var at *cm.StepError
		if !errors.Is(err, errQP) || !errors.As(err, &at) || at.Step != step {
			t.Errorf("%s: %v", step, err)
		}
		l.gone()
	}
	for _, step := range []cm.Step{cm.StepRTR, cm.StepRTS} {
		l := newLab(t)
		ln := l.listen(1)
		var wg sync.WaitGroup
		wg.Go(func() {
			id, _, err := ln.ID.Request(bg)
			if err == nil {
				err = errors.Join(id.Answer(cm.Param{QPN: 9}), reasonOf(id.Established(bg), roce.RejectConsumerDefined), id.Close())
			}
			if err != nil {
				t.Error(err)
			}
		})
		l.qps.refuse = map[cm.Step]mlx5.State{cm.StepRTR: mlx5.StateRTR, cm.StepRTS: mlx5.StateRTS}[step]
		_, err := l.dialer().Dial(bg, serverAt)
		var at *cm.StepError
		if !errors.Is(err, errQP) || !errors.As(err, &at) || at.Step != step {
			t.Errorf("%s: %v", step, err)
		}
		wg.Wait()
		l.noID(ln)
	}
}

func reasonOf(err error, r roce.RejectReason) error {
	if errors.Is(err, &cm.RejectError{Reason: r}) {
		return nil
	}
	return fmt.Errorf("want a REJ with reason %d: %w", r, err)
}

// The kernel refuses an ID, or an option: then there is none.
func TestDialWithoutAnID(t *testing.T) {
	l := newLab(t)
	l.fault(abi.RDMA_USER_CM_CMD_CREATE_ID, ucmfake.Fault{Errno: unix.EMFILE})
	var step *cm.StepError
	if _, err := l.dialer().Dial(bg, serverAt); !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "rdma_create_id") || !errors.As(err, &step) || step.Step != cm.StepID {
		t.Error(err)
	}
	l.fault(abi.RDMA_USER_CM_CMD_SET_OPTION, ucmfake.Fault{Errno: unix.ENOSYS})
	d := l.dialer()
	d.Options = func(id *cm.ID) error { return id.SetTOS(96) }
	if _, err := d.Dial(bg, serverAt); !errors.Is(err, unix.ENOSYS) || !strings.Contains(err.Error(), "kernel has no such option") {
		t.Error(err)
	}
	l.gone()
}

// What can go wrong after a request: the error says at which step, the peer is told,
// the listener goes on.
func TestAcceptFails(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*lab)
		step cm.Step
		is   func(error) bool
	}{
		{"make", func(l *lab) { l.qps.fail = errQP }, cm.StepCreate, func(err error) bool { return errors.Is(err, errQP) }},
		{"INIT", func(l *lab) { l.qps.refuse = mlx5.StateInit }, cm.StepInit, func(err error) bool { return errors.Is(err, errQP) }},
		{"RTR", func(l *lab) { l.qps.refuse = mlx5.StateRTR }, cm.StepRTR, func(err error) bool { return errors.Is(err, errQP) }},
		{"RTS", func(l *lab) { l.qps.refuse = mlx5.StateRTS }, cm.StepRTS, func(err error) bool { return errors.Is(err, errQP) }},
		{"refused", func(l *lab) { l.fault(cmdAccept, ucmfake.Fault{Errno: unix.EINVAL}) }, cm.StepAccept, func(err error) bool { return errors.Is(err, unix.EINVAL) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			ln := l.listen(2)
			id := l.create()
			if err := errors.Join(id.ResolveAddr(bg, netip.AddrPort{}, serverAt), id.ResolveRoute(bg)); err != nil {
				t.Fatal(err)
			}
			c.set(l)
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := id.Connect(bg, cm.Param{QPN: 5})
				if err := errors.Join(reasonOf(err, roce.RejectConsumerDefined), id.Close()); err != nil {
					t.Error(err)
				}
			})
			_, err := ln.Accept(bg)
			var step *cm.StepError
			if !errors.As(err, &step) || step.Step != c.step || !c.is(err) {
				t.Errorf("%v", err)
			}
			wg.Wait()
			if n := len(l.k.IDs()); n != 1 {
				t.Errorf("%d IDs, want the listener's", n)
			}
			l.k.Fault, l.qps.fail, l.qps.refuse = nil, nil, 0
			a, b := l.connected(ln)
			if err := errors.Join(a.Destroy(), b.Destroy()); err != nil {
				t.Error(err)
			}
			l.noID(ln)
		})
	}
}

// A peer that does not complete the connection: the error is the event's, or the
// context's, and the ID is gone.
func TestAcceptIsNotCompleted(t *testing.T) {
	for name, c := range map[string]struct {
		fault ucmfake.Fault
		is    error
	}{
		"unreachable": {told(cm.Unreachable, -int32(unix.ETIMEDOUT)), unix.ETIMEDOUT},
		"rejected":    {told(cm.Rejected, 4), &cm.RejectError{Reason: roce.RejectTimeout}},
		"nothing":     {ucmfake.Fault{Lost: true}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				ln := l.listen(1)
				ctx, cancel := context.WithTimeout(bg, time.Second)
				defer cancel()
				l.k.Fault = func(call ucmfake.Call) ucmfake.Fault {
					if call.Cmd == cmdAccept && call.ID == 2 { // RTU
						time.AfterFunc(time.Millisecond, func() {
							if c.fault.Event != nil {
								l.k.Tell(3, *c.fault.Event)
							}
						})
						return ucmfake.Fault{Lost: true}
					}
					return ucmfake.Fault{}
				}
				var wg sync.WaitGroup
				defer wg.Wait()
				wg.Go(func() {
					conn, err := l.dialer().Dial(ctx, serverAt)
					if err == nil {
						<-ctx.Done()
						err = conn.Destroy()
					}
					if err != nil {
						t.Error(err)
					}
				})
				_, err := ln.Accept(ctx)
				var step *cm.StepError
				if !errors.Is(err, c.is) || !errors.As(err, &step) || step.Step != cm.StepAccept {
					t.Error(err)
				}
			})
		})
	}
}

// A context that ends ends the step, whichever it is, and leaves nothing.
func TestContextEndsEachStep(t *testing.T) {
	for step, cmd := range map[cm.Step]uint32{cm.StepAddress: cmdAddr, cm.StepRoute: cmdRoute, cm.StepConnect: cmdConnect} {
		for _, why := range []error{context.Canceled, context.DeadlineExceeded} {
			t.Run(fmt.Sprintf("%s/%v", step, why), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLab(t)
					l.fault(cmd, ucmfake.Fault{Lost: true})
					ctx, cancel := context.WithTimeout(bg, 1234*time.Millisecond)
					defer cancel()
					after := 1234 * time.Millisecond
					if why == context.Canceled {
						after = 77 * time.Millisecond
						time.AfterFunc(after, cancel)
					}
					start := time.Now()
					_, err := l.dialer().Dial(ctx, serverAt)
					var at *cm.StepError
					if !errors.Is(err, why) || !errors.As(err, &at) || at.Step != step || time.Since(start) != after {
						t.Errorf("after %v: %v", time.Since(start), err)
					}
					says := map[cm.Step]string{cm.StepAddress: "no ADDR_RESOLVED until", cm.StepRoute: "no ROUTE_RESOLVED until", cm.StepConnect: "no CONNECT_RESPONSE until"}[step]
					looks := map[cm.Step]string{cm.StepAddress: "ip neigh", cm.StepRoute: "not up", cm.StepConnect: "4791"}[step]
					if late := why == context.DeadlineExceeded; strings.Contains(err.Error(), says) != late || strings.Contains(err.Error(), looks) != late {
						t.Error(err)
					}
					l.gone()
				})
			})
		}
	}
}

// Steps are taken in their order, each once.
func TestStepsHaveAnOrder(t *testing.T) {
	l := newLab(t)
	for _, s := range []cm.Step{cm.StepAddress, cm.StepRoute, cm.StepConnect, cm.StepRTU, cm.StepAccept, cm.StepCount} {
		g := l.dialer().Begin(serverAt)
		var step *cm.StepError
		if err := g.Step(bg, s); !errors.As(err, &step) || step.Step != s || !strings.Contains(err.Error(), "id comes first") {
			t.Errorf("%s: %v", s, err)
		}
		first := g.Step(bg, cm.StepID)
		if first == nil {
			t.Errorf("%s: a step was taken after a failure", s)
		}
		l.gone()
	}
}

// After Destroy nothing is written for the connection any more: its number is
// another's by then.
func TestAfterDestroy(t *testing.T) {
	l := newLab(t)
	ln := l.listen(2)
	old, oldPeer := l.connected(ln)
	if err := errors.Join(old.Destroy(), oldPeer.Destroy()); err != nil {
		t.Fatal(err)
	}
	next, nextPeer := l.connected(ln)
	before := len(l.k.Calls())
	if err := errors.Join(old.Close(bg), old.Destroy(), old.ID.Close()); err != nil {
		t.Error(err)
	}
	_, _, attr := old.ID.QPAttr(mlx5.StateRTS)
	_, route := old.ID.Route()
	_, connect := old.ID.Connect(bg, cm.Param{})
	for call, err := range map[string]error{
		"Disconnect": old.Disconnect(bg), "ID.Disconnect": old.ID.Disconnect(bg), "QPAttr": attr, "Route": route, "Connect": connect, "SetTOS": old.ID.SetTOS(1),
		"Bind": old.ID.Bind(serverAt), "Listen": old.ID.Listen(1), "ResolveAddr": old.ID.ResolveAddr(bg, netip.AddrPort{}, serverAt), "ResolveRoute": old.ID.ResolveRoute(bg),
		"Establish": old.ID.Establish(), "Answer": old.ID.Answer(cm.Param{}), "Reject": old.ID.Reject(nil),
	} {
		if !errors.Is(err, cm.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", call, err)
		}
	}
	if n := len(l.k.Calls()) - before; n != 0 {
		t.Errorf("%d commands about a number that is another's", n)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := nextPeer.Close(bg); err != nil {
			t.Error(err)
		}
	})
	if err := next.Close(bg); err != nil {
		t.Error(err)
	}
	wg.Wait()
	l.noID(ln)
}

// Close destroys an ID only when a command about it that is under way has returned.
func TestCloseWaitsForCommands(t *testing.T) {
	k := ucmfake.New()
	f := k.Open()
	var under atomic.Bool
	begun, blocked := make(chan struct{}), make(chan struct{})
	f.Fail = func(cmd uint32) error {
		switch cmd {
		case abi.RDMA_USER_CM_CMD_SET_OPTION:
			under.Store(true)
			close(begun)
			<-blocked
			under.Store(false)
		case destroyID:
			if under.Load() {
				t.Error("destroyed under a command")
			}
		}
		return nil
	}
	c := cm.NewChannel(f)
	id, err := c.NewID(cm.Connected)
	if err != nil {
		t.Fatal(err)
	}
	set, closed := make(chan error, 1), make(chan error, 1)
	go func() { set <- id.SetTOS(1) }()
	<-begun
	go func() { closed <- id.Close() }()
	if _, err := id.Event(bg); !errors.Is(err, cm.ErrClosed) { // Close has begun
		t.Error(err)
	}
	for range 100 {
		runtime.Gosched()
	}
	if len(closed) != 0 {
		t.Error("Close has returned under a command")
	}
	close(blocked)
	if err := errors.Join(<-set, <-closed, c.Close()); err != nil {
		t.Error(err)
	}
}

// A context that has ended ends the way at the next step, without a command.
func TestStepAfterTheContext(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithCancel(bg)
	g := l.dialer().Begin(serverAt)
	for _, s := range cm.ClientSteps()[:4] { // to the queue pair
		if err := g.Step(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	var at *cm.StepError
	if err := g.Step(ctx, cm.StepInit); !errors.Is(err, context.Canceled) || !errors.As(err, &at) || at.Step != cm.StepInit || l.commands(cmdAttr) != 0 {
		t.Error(err)
	}
	l.gone()
	if _, err := l.dialer().Dial(ctx, serverAt); !errors.Is(err, context.Canceled) || l.commands(abi.RDMA_USER_CM_CMD_CREATE_ID) != 1 {
		t.Error(err)
	}
}
