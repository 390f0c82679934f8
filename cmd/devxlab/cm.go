// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"devxlab.example/cm"
	"devxlab.example/cm/load"
)

// cmPort is the default: that of rdma-core's own example programs.
const cmPort = 7471

type cmCmd struct {
	Server  cmServerCmd  `cmd:"" help:"Accept connections, until Ctrl-C."`
	Client  cmClientCmd  `cmd:"" help:"Make one connection, show how long each step took, and end it."`
	Bench   cmBenchCmd   `cmd:"" help:"Make many connections to a server, and show how long each step takes. One more comes first and does not count."`
	Timeout cmTimeoutCmd `cmd:"" help:"Compute how long connections take to fail: queue pairs and their connection manager, by formula and as cards were measured."`
	Causes  cmCausesCmd  `cmd:"" help:"Say what a failed connection may come from, and what to look at, in what order."`
}

// cmFlags are what both ends have.
type cmFlags struct {
	DevX bool `name:"devx" help:"Make queue pairs through DevX, not by verbs."`
}

func (f cmFlags) devices() *cm.Devices {
	return &cm.Devices{DevX: f.DevX}
}

type cmServerCmd struct {
	Listen  string `arg:"" optional:"" help:"ADDRESS, ADDRESS:PORT or :PORT; default: all addresses, port 7471."`
	Backlog int    `default:"1024" help:"Requests kept that no worker has taken yet; more are rejected."`
	Workers int    `default:"16" help:"Connections that are brought up at the same time."`
	Count   int    `help:"End after so many connections have ended, or have been refused." placeholder:"N"`
	Reject  bool   `help:"Refuse every request: reason 28."`
	cmFlags
}

func (c *cmServerCmd) Run(e *env) error {
	addr, err := address(c.Listen, true)
	if err != nil {
		return usageError{err}
	}
	if c.Workers < 1 || c.Workers > load.MaxWorkers || c.Backlog < 1 || c.Count < 0 {
		return usageError{fmt.Errorf("--workers is 1 to %d, --backlog is 1 or more, --count is 0 or more", load.MaxWorkers)}
	}
	raiseProcs(c.Workers)
	ch, err := cm.Open()
	if err != nil {
		return err
	}
	defer ch.Close()
	dev := c.devices()
	defer dev.Close()
	return c.run(e, ch, addr, dev.Make)
}

// run serves on a channel.
func (c *cmServerCmd) run(e *env, ch *cm.Channel, addr netip.AddrPort, maker cm.Maker) error {
	l, err := ch.Listen(addr, c.Backlog, maker)
	if err != nil {
		return err
	}
	defer l.Close()
	r, err := l.ID.Route()
	if err != nil {
		return err
	}
	to := e.out
	if e.asJSON { // whose document has standard output to itself
		to = e.err
	}
	fmt.Fprintf(to, "listening on %s\n", r.Src)
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	s := &cmServer{c: c, l: l, cancel: cancel, ending: make(chan struct{}, load.MaxWorkers), failures: map[string]int{}}
	var wg sync.WaitGroup
	for range c.Workers {
		wg.Go(func() { s.work(ctx) })
	}
	wg.Wait()
	cancel()
	s.open.Wait()
	return s.say(e)
}

// cmServer is a server at work.
type cmServer struct {
	c      *cmServerCmd
	l      *cm.Listener
	cancel func()
	open   sync.WaitGroup // connections
	ending chan struct{}  // has one for each that is being ended: each may block an OS thread

	mu              sync.Mutex
	accepted, ended int
	rejected        int
	failures        map[string]int
	fatal           error
}

// work accepts connections, one after the other.
func (s *cmServer) work(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := s.accept(ctx)
		var step *cm.StepError
		switch {
		case ctx.Err() != nil && err != nil:
			return
		case errors.As(err, &step): // this connection; the listener goes on
			s.note(func() { s.failures[load.Reason(err)]++ })
		case err != nil:
			s.note(func() { s.fatal = err })
			s.cancel()
			return
		case conn != nil:
			s.open.Go(func() { s.serve(ctx, conn) })
		}
	}
}

// accept accepts a connection, or refuses one.
func (s *cmServer) accept(ctx context.Context) (*cm.Conn, error) {
	if !s.c.Reject {
		return s.l.Answer(ctx)
	}
	id, _, err := s.l.ID.Request(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(id.Reject(nil), id.Close()); err != nil {
		return nil, &cm.StepError{Step: cm.StepAccept, Err: err}
	}
	s.end(&s.rejected)
	return nil, nil
}

func (s *cmServer) note(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// serve waits until the peer ends the connection, or this server does.
func (s *cmServer) serve(ctx context.Context, conn *cm.Conn) {
	err := conn.ID.Established(ctx)
	if err != nil {
		err = errors.Join(&cm.StepError{Step: cm.StepAccept, Err: err}, s.bounded(conn.Destroy))
	}
	var e *cm.EventError
	switch {
	case err == nil:
		s.note(func() { s.accepted++ })
	case errors.As(err, &e) && e.Event == cm.Disconnected:
		// The peer completed the connection and ended it at once, and the kernel took DREQ
		// before RTU (cm_dreq_handler in cm.c). What is left has been destroyed.
		s.note(func() { s.accepted++ })
		s.end(&s.ended)
		return
	case errors.Is(err, context.Canceled): // this server ends: that is no failure of the connection's
		return
	default:
		s.note(func() { s.failures[load.Reason(err)]++ })
		return
	}
	for {
		ev, err := conn.ID.Event(ctx)
		if err != nil || ev.Type == cm.Disconnected || ev.Type == cm.DeviceRemoval {
			break
		}
	}
	err = s.bounded(func() error {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), load.DefaultTimeout)
		defer cancel()
		return errors.Join(conn.Disconnect(limit), conn.Destroy())
	})
	s.note(func() {
		if err != nil {
			s.failures["at the end: "+load.Reason(err)]++
		}
	})
	s.end(&s.ended)
}

// bounded ends a connection when not too many others are being ended.
func (s *cmServer) bounded(end func() error) error {
	s.ending <- struct{}{}
	defer func() { <-s.ending }()
	return end()
}

// end counts a connection that has ended or was refused, and ends the server after
// so many.
func (s *cmServer) end(n *int) {
	s.note(func() {
		if *n++; *n == s.c.Count {
			s.cancel()
		}
	})
}

func (s *cmServer) say(e *env) error {
	if e.asJSON {
		return errors.Join(s.fatal, e.json(map[string]any{"accepted": s.accepted, "ended": s.ended, "rejected": s.rejected, "failures": s.failures}))
	}
	fmt.Fprintf(e.out, "accepted %d, ended %d, rejected %d\n", s.accepted, s.ended, s.rejected)
	for _, why := range slices.Sorted(maps.Keys(s.failures)) {
		fmt.Fprintf(e.out, "failed %d: %s\n", s.failures[why], why)
	}
	return s.fatal
}

// cmPeer is what a client says of its connections.
type cmPeer struct {
	To         string        `arg:"" help:"The server: ADDRESS or ADDRESS:PORT; default port 7471."`
	Source     string        `help:"Own address; default: the kernel chooses." placeholder:"ADDRESS"`
	Timeout    time.Duration `default:"10s" help:"For one set-up, and for its end. The kernel repeats a request after 6.1 s (Linux 5.15, 6.1) or 4.6 s (newer)."`
	TOS        *uint8        `name:"tos" help:"Type of service, 0 to 255." placeholder:"N"`
	ACKTimeout *uint8        `name:"ack-timeout" help:"Local ACK time-out, 4.096 µs · 2^N, 0 to 31; default: from the path. On RoCE also when a request is repeated, and how long a number stays in time wait." placeholder:"N"`
	Retry      uint8         `default:"7" help:"Retries without an acknowledgement, 0 to 7."`
	RNRRetry   uint8         `name:"rnr-retry" default:"7" help:"Retries after RNR NAKs, 0 to 7; 7: for ever."`
	Private    string        `help:"Private data of the request, up to 56 bytes." placeholder:"TEXT"`
	cmFlags
}

// dialer reads the flags; Channel and Make are open's to set.
func (c *cmPeer) dialer() (d *cm.Dialer, to netip.AddrPort, err error) {
	d = &cm.Dialer{Param: cm.Param{Responder: 1, Initiator: 1, Retry: c.Retry, RNRRetry: c.RNRRetry, Private: []byte(c.Private)}}
	if to, err = address(c.To, false); err == nil && c.Source != "" {
		var ip netip.Addr
		if ip, err = netip.ParseAddr(c.Source); err != nil {
			err = fmt.Errorf("--source %s: an IP address", c.Source)
		}
		d.Source = netip.AddrPortFrom(ip, 0)
	}
	switch {
	case err != nil:
	case c.Retry > 7 || c.RNRRetry > 7:
		err = errors.New("--retry and --rnr-retry are 0 to 7: the messages have 3 bits for them")
	case c.ACKTimeout != nil && *c.ACKTimeout > 31:
		err = fmt.Errorf("--ack-timeout %d: 0 to 31, for 4.096 µs · 2^N", *c.ACKTimeout)
	case len(c.Private) > cm.RoomREQ:
		err = fmt.Errorf("--private has %d bytes: a request has room for %d", len(c.Private), cm.RoomREQ)
	case c.Timeout <= 0:
		err = fmt.Errorf("--timeout %v: more than 0", c.Timeout)
	}
	if err != nil {
		return nil, to, usageError{err}
	}
	d.Options = func(id *cm.ID) error {
		var err error
		if c.TOS != nil {
			err = id.SetTOS(*c.TOS)
		}
		if c.ACKTimeout != nil {
			err = errors.Join(err, id.SetACKTimeout(*c.ACKTimeout))
		}
		return err
	}
	return d, to, nil
}

// open opens what a dialer needs; done closes it.
func (c *cmPeer) open(d *cm.Dialer) (done func(), err error) {
	ch, err := cm.Open()
	if err != nil {
		return nil, err
	}
	dev := c.devices()
	d.Channel, d.Make = ch, dev.Make
	return func() {
		_ = dev.Close()
		_ = ch.Close()
	}, nil
}

type cmClientCmd struct {
	cmPeer
	Hold time.Duration `help:"Keep the connection so long before it is ended, or until the peer ends it." placeholder:"TIME"`
}

func (c *cmClientCmd) Run(e *env) error {
	d, to, err := c.dialer()
	if err != nil {
		return err
	}
	done, err := c.open(d)
	if err != nil {
		return err
	}
	defer done()
	return c.run(e, d, to)
}

// run makes the connection.
func (c *cmClientCmd) run(e *env, d *cm.Dialer, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(e.ctx, c.Timeout)
	defer cancel()
	conn, err := d.Dial(ctx, to)
	if err != nil {
		return err
	}
	r, err := conn.ID.Route()
	if err != nil {
		return errors.Join(err, conn.Destroy())
	}
	if !e.asJSON {
		fmt.Fprintf(e.out, "connected %s to %s: queue pair %#x to %#x\n", r.Src, r.Dst, conn.QP.Number(), conn.Peer.QPN)
	}
	if c.Hold > 0 {
		c.hold(e, conn.ID)
	}
	limit, cancel2 := context.WithTimeout(context.WithoutCancel(e.ctx), c.Timeout)
	defer cancel2()
	start := time.Now()
	if err := conn.Disconnect(limit); err != nil {
		return errors.Join(err, conn.Destroy())
	}
	apart := time.Since(start)
	if err := conn.Destroy(); err != nil {
		return err
	}
	return c.say(e, conn, apart)
}

// hold waits until the connection has ended, or its time is over, and says what
// happens meanwhile.
func (c *cmClientCmd) hold(e *env, id *cm.ID) {
	ctx, cancel := context.WithTimeout(e.ctx, c.Hold)
	defer cancel()
	for ev, err := range id.Events(ctx) {
		if err != nil {
			return
		}
		fmt.Fprintf(e.err, "devxlab cm client: %s\n", ev.Type)
		if ev.Type == cm.Disconnected || ev.Type == cm.DeviceRemoval {
			return
		}
	}
}

func (c *cmClientCmd) say(e *env, conn *cm.Conn, apart time.Duration) error {
	if e.asJSON {
		steps := map[string]int64{load.PartName(load.Setup): conn.Steps.Total().Nanoseconds(), load.PartName(load.Disconnect): apart.Nanoseconds()}
		for _, s := range cm.ClientSteps() {
			steps[s.String()] = conn.Steps[s].Nanoseconds()
		}
		return e.json(map[string]any{"qpn": conn.QP.Number(), "peer_qpn": conn.Peer.QPN, "ns": steps})
	}
	for _, s := range cm.ClientSteps() {
		fmt.Fprintf(e.out, "%-10s %v\n", s, conn.Steps[s].Round(time.Microsecond))
	}
	fmt.Fprintf(e.out, "%-10s %v\n%-10s %v\n", load.PartName(load.Setup), conn.Steps.Total().Round(time.Microsecond), load.PartName(load.Disconnect), apart.Round(time.Microsecond))
	return nil
}

type cmBenchCmd struct {
	cmPeer
	Connections int           `short:"n" default:"1000" help:"How many."`
	Workers     int           `short:"w" default:"8" help:"That make connections at the same time, up to 1024."`
	Rate        float64       `help:"Begin so many a second, whether earlier ones have ended or not (open loop; latency counts from the intended start), but at most --workers are under way at once; default: each worker begins the next when one has ended." placeholder:"N"`
	For         time.Duration `help:"Begin no new connection after this time." placeholder:"TIME"`
	Together    bool          `help:"Bring all connections through each step before any to the next, as rdma-core's cmtime does; up to 8192, without --rate and --for."`
}

func (c *cmBenchCmd) Run(e *env) error {
	d, to, err := c.dialer()
	if err != nil {
		return err
	}
	o := load.Config{To: to, Connections: c.Connections, Workers: c.Workers, Rate: c.Rate, Timeout: c.Timeout, For: c.For, Together: c.Together}
	if err := o.Check(); err != nil {
		return usageError{err}
	}
	done, err := c.open(d)
	if err != nil {
		return err
	}
	defer done()
	raiseProcs(c.Workers)
	return c.run(e, d, o)
}

// run makes the connections.
func (c *cmBenchCmd) run(e *env, d *cm.Dialer, o load.Config) error {
	if err := warm(e.ctx, c.Timeout, d, o.To); err != nil {
		return err
	}
	if isTerminal(e.err) {
		o.Progress = func(n int) { fmt.Fprintf(e.err, "\r%d", n) }
	}
	o.Dialer = d
	o.Interrupted = func(open int) {
		fmt.Fprintf(e.err, "devxlab cm bench: interrupted; %d connections are ended first: each waits up to %v for the peer's answer (DREP)\n", open, c.Timeout)
	}
	r, err := load.Run(e.ctx, o)
	if o.Progress != nil {
		fmt.Fprint(e.err, "\r")
	}
	switch {
	case err != nil:
		return err
	case e.asJSON:
		return e.json(r)
	}
	return r.WriteText(e.out)
}

// warm makes one connection that does not count: it opens the device, and finds the
// neighbour.
func warm(ctx context.Context, timeout time.Duration, d *cm.Dialer, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := d.Dial(ctx, to)
	if err != nil {
		return err
	}
	return c.Close(ctx)
}

// raiseProcs gives blocking calls room to run side by side.
func raiseProcs(workers int) {
	if n := min(workers, 64) + 2; runtime.GOMAXPROCS(0) < n && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(n)
	}
}

// address reads ADDRESS, ADDRESS:PORT, and of a listener :PORT or nothing.
func address(s string, listener bool) (netip.AddrPort, error) {
	host, port := s, uint64(cmPort)
	if h, p, err := net.SplitHostPort(s); err == nil {
		if port, err = strconv.ParseUint(p, 10, 16); err != nil {
			return netip.AddrPort{}, fmt.Errorf("%s: port %s: 0 to 65535", s, p)
		}
		host = h
	}
	if port == 0 && !listener {
		return netip.AddrPort{}, fmt.Errorf("%s: a server has a port from 1 to 65535", s)
	}
	if host == "" && listener {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port)), nil
	}
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") { // a port would have been cut off with them
		host = host[1 : len(host)-1]
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q: an IP address, with or without a port: 192.0.2.1, 192.0.2.1:7471, [2001:db8::1]:7471", s)
	}
	return netip.AddrPortFrom(ip, uint16(port)), nil
}
