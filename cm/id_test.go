// SPDX-License-Identifier: BSD-2-Clause

package cm_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/cm"
	"devxlab.example/cm/abi"
	"devxlab.example/cm/roce"
	"devxlab.example/devx"
	"devxlab.example/internal/ucmfake"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

// written returns what the last command with this number was written as.
func (l *lab) written(cmd uint32) []byte {
	l.t.Helper()
	for _, c := range slices.Backward(l.k.Calls()) {
		if c.Cmd == cmd {
			return c.Bytes
		}
	}
	l.t.Fatalf("command %d was not written", cmd)
	return nil
}

// wire is a command as struct rdma_ucm_cmd_hdr and package abi have it.
func wire(t testing.TB, cmd uint32, out int, request any) []byte {
	t.Helper()
	b, err := binary.Append(nil, binary.NativeEndian, abi.Hdr{Cmd: cmd, In: uint16(binary.Size(request)), Out: uint16(out)})
	if err == nil {
		b, err = binary.Append(b, binary.NativeEndian, request)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func socket4(t testing.TB, a netip.AddrPort) (s abi.Sockaddr) {
	t.Helper()
	ip := a.Addr().As4()
	copy(s[:], []byte{unix.AF_INET, 0, byte(a.Port() >> 8), byte(a.Port())})
	copy(s[4:], ip[:])
	return s
}

// Each command is written byte for byte as the kernel's structs have it. Addresses
// of answers are taken as they are: they are where answers arrive.
func TestCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		src := netip.MustParseAddrPort("192.0.2.1:0")
		same := func(what string, cmd uint32, out int, request any) {
			t.Helper()
			got := l.written(cmd)
			if where := answerAt(request); where >= 0 {
				copy(got[8+where:8+where+8], make([]byte, 8))
			}
			if want := wire(t, cmd, out, request); !bytes.Equal(got, want) {
				t.Errorf("%s:\n%x, want\n%x", what, got, want)
			}
		}
		ctx, cancel := context.WithTimeout(bg, 1500*time.Millisecond)
		defer cancel()

		ln := l.listen(7)
		same("listener", abi.RDMA_USER_CM_CMD_CREATE_ID, 4, abi.CreateID{UID: 1, PS: abi.RDMA_PS_TCP})
		same("bind", abi.RDMA_USER_CM_CMD_BIND, 0, abi.Bind{ID: 1, AddrSize: 16, Addr: socket4(t, serverAt)})
		same("listen", abi.RDMA_USER_CM_CMD_LISTEN, 0, abi.Listen{ID: 1})

		id := l.create()
		same("create", abi.RDMA_USER_CM_CMD_CREATE_ID, 4, abi.CreateID{UID: 1, PS: abi.RDMA_PS_TCP})
		if err := id.ResolveAddr(ctx, src, serverAt); err != nil {
			t.Fatal(err)
		}
		same("address", cmdAddr, 0, abi.ResolveAddr{ID: 2, TimeoutMS: 1350, SrcSize: 16, DstSize: 16, SrcAddr: socket4(t, src), DstAddr: socket4(t, serverAt)})
		if err := id.ResolveRoute(bg); err != nil {
			t.Fatal(err)
		}
		same("route", cmdRoute, 0, abi.ResolveRoute{ID: 2, TimeoutMS: uint32(cm.DefaultTimeout / time.Millisecond)})
		for option, set := range map[abi.SetOption]func() error{
			{ID: 2, OptName: abi.RDMA_OPTION_ID_TOS, OptLen: 1}:         func() error { return id.SetTOS(96) },
			{ID: 2, OptName: abi.RDMA_OPTION_ID_ACK_TIMEOUT, OptLen: 1}: func() error { return id.SetACKTimeout(31) },
			{ID: 2, OptName: abi.RDMA_OPTION_ID_REUSEADDR, OptLen: 4}:   func() error { return id.SetReuse(true) },
			{ID: 2, OptName: abi.RDMA_OPTION_ID_AFONLY, OptLen: 4}:      func() error { return id.SetAFOnly(false) },
		} {
			if err := set(); err != nil {
				t.Error(err)
			}
			same("option", abi.RDMA_USER_CM_CMD_SET_OPTION, 0, option)
		}
		param := cm.Param{QPN: 0xabcdef, SRQ: true, Responder: 16, Initiator: 8, FlowControl: true, Retry: 5, RNRRetry: 3, Private: []byte("hello"), QKey: 77}
		want := abi.ConnParam{QPNum: 0xabcdef, PrivateDataLen: 5, SRQ: 1, ResponderResources: 16, InitiatorDepth: 8, FlowControl: 1, RetryCount: 5, RNRRetryCount: 3, Valid: 1}
		copy(want.PrivateData[:], "hello")
		var wg sync.WaitGroup
		wg.Go(func() {
			peer, _, err := ln.ID.Request(bg)
			if err != nil {
				t.Error(err)
				return
			}
			if err := peer.Answer(param); err != nil {
				t.Error(err)
			}
			same("accept", cmdAccept, 0, abi.Accept{UID: 2, Param: want, ID: 3})
			if err := errors.Join(peer.Established(bg), peer.Close()); err != nil {
				t.Error(err)
			}
		})
		if _, err := id.Connect(bg, param); err != nil {
			t.Fatal(err)
		}
		same("connect", cmdConnect, 0, abi.Connect{Param: want, ID: 2})
		for state, n := range map[mlx5.State]uint32{mlx5.StateInit: 1, mlx5.StateRTR: 2, mlx5.StateRTS: 3} {
			if _, _, err := id.QPAttr(state); err != nil {
				t.Error(err)
			}
			same("attributes", cmdAttr, 144, abi.InitQPAttr{ID: 2, QPState: n})
		}
		if _, err := id.Route(); err != nil {
			t.Error(err)
		}
		same("query", abi.RDMA_USER_CM_CMD_QUERY, 280, abi.Query{ID: 2, Option: abi.RDMA_USER_CM_QUERY_ADDR})
		if err := id.Establish(); err != nil {
			t.Error(err)
		}
		same("establish", cmdAccept, 0, abi.Accept{ID: 2})
		wg.Wait()
		if err := id.Disconnect(bg); err != nil {
			t.Error(err)
		}
		same("disconnect", abi.RDMA_USER_CM_CMD_DISCONNECT, 0, abi.Disconnect{ID: 2})
		if err := id.Close(); err != nil {
			t.Error(err)
		}
		same("destroy", destroyID, 4, abi.DestroyID{ID: 2})
	})
}

// answerAt is where a request has an address, behind the header; -1: nowhere.
func answerAt(request any) int {
	switch request.(type) {
	case abi.CreateID:
		return 8
	case abi.DestroyID, abi.Query, abi.InitQPAttr, abi.SetOption:
		return 0
	}
	return -1
}

// What the kernel is told comes back as it was told, and as the field's terms.
func TestOptionsAndAttributes(t *testing.T) {
	l := newLab(t)
	ln := l.listen(1)
	d := l.dialer()
	d.Options = func(id *cm.ID) error { return errors.Join(id.SetTOS(96), id.SetACKTimeout(14)) }
	var wg sync.WaitGroup
	var server *cm.Conn
	wg.Go(func() { server, _ = ln.Accept(bg) })
	client, err := d.Dial(bg, serverAt)
	if err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	init, err := client.ID.INIT()
	if err != nil || init.Port != mlx5.Set(uint8(1)) || init.PkeyIndex != mlx5.Set(uint16(0)) || init.Access != mlx5.Set(mlx5.RemoteWrite|mlx5.RemoteRead) || init.QKey != (mlx5.RST2INIT{}).QKey {
		t.Errorf("%+v, %v", init, err)
	}
	rts, err := client.ID.RTS()
	if err != nil || rts.AckTimeout != mlx5.Set(uint8(14)) || rts.RetryCount != mlx5.Set(uint8(7)) || rts.RNRRetry != mlx5.Set(uint8(6)) ||
		rts.NextSendPSN != mlx5.Set(uint32(ucmfake.SQPSN)) || rts.LogSRAMax != mlx5.Set(1) {
		t.Errorf("%+v, %v", rts, err)
	}
	a, mask, err := client.ID.QPAttr(mlx5.StateRTR)
	if err != nil || a.DestQPN != server.QP.Number() || a.RQPSN != ucmfake.RQPSN || a.PathMTU != mlx5.MTU1024 || a.AV.TrafficClass != 96 || mask&devx.MaskAV == 0 {
		t.Errorf("%+v, %#x, %v", a, mask, err)
	}
	if want := serverAt.Addr().As16(); a.AV.DGID != want {
		t.Errorf("GID %x, want %x", a.AV.DGID, want)
	}
	if err := client.ID.SetACKTimeout(32); err == nil || !strings.Contains(err.Error(), "0 to 31") {
		t.Error(err)
	}
	if err := errors.Join(client.Destroy(), server.Destroy(), ln.Close()); err != nil {
		t.Error(err)
	}
}

// The kernel gets nine tenths of the time until the context's deadline, at least 1 ms
// and no more than it can take.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for d, want := range map[time.Duration]uint32{
			1500 * time.Millisecond: 1350, 10 * time.Second: 9000, 1999 * time.Microsecond: 1, 100 * time.Microsecond: 1, -time.Second: 1, 24 * time.Hour * 365: 1<<31 - 1, 0: 2000,
		} {
			l := newLab(t)
			ctx := bg
			if d != 0 {
				var cancel func()
				ctx, cancel = context.WithTimeout(bg, d)
				defer cancel()
			}
			id := l.create()
			err := id.ResolveAddr(ctx, netip.AddrPort{}, serverAt)
			if d < 0 != errors.Is(err, context.DeadlineExceeded) && err != nil {
				t.Errorf("%v: %v", d, err)
			}
			if got := binary.NativeEndian.Uint32(l.written(cmdAddr)[12:]); got != want {
				t.Errorf("%v: %d ms, want %d", d, got, want)
			}
			if err := id.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Private data of all lengths that a message has room for arrive, padded; one byte
// more is refused before the kernel cuts it off.
func TestPrivateData(t *testing.T) {
	fill := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i*7 + 1)
		}
		return b
	}
	padded := func(b []byte, room int) []byte { return append(bytes.Clone(b), make([]byte, room-len(b))...) }
	for _, n := range []int{0, 1, 3, 55, 56} {
		for _, m := range []int{0, 1, 55, 57, 195, 196} {
			l := newLab(t)
			ln := l.listen(1)
			var wg sync.WaitGroup
			wg.Go(func() {
				id, p, err := ln.ID.Request(bg)
				if err != nil || !bytes.Equal(p.Private, padded(fill(n), cm.RoomREQ)) {
					t.Errorf("REQ with %d bytes: %x, %v", n, p.Private, err)
				}
				if err := errors.Join(id.Answer(cm.Param{QPN: 1, Private: fill(m)}), id.Established(bg), id.Close()); err != nil {
					t.Error(err)
				}
			})
			d := l.dialer()
			d.Param.Private = fill(n)
			conn, err := d.Dial(bg, serverAt)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(conn.Peer.Private, padded(fill(m), cm.RoomREP)) {
				t.Errorf("REP with %d bytes: %x", m, conn.Peer.Private)
			}
			wg.Wait()
			if err := errors.Join(conn.Destroy(), ln.Close()); err != nil {
				t.Error(err)
			}
			l.gone()
		}
	}
	l := newLab(t)
	d := l.dialer()
	d.Param.Private = fill(57)
	if _, err := d.Dial(bg, serverAt); err == nil || !strings.Contains(err.Error(), "REQ has room for 56 bytes of private data, not 57") || l.commands(cmdConnect) != 0 {
		t.Error(err)
	}
	id := l.create()
	if err := id.Answer(cm.Param{Private: fill(197)}); err == nil || !strings.Contains(err.Error(), "196") {
		t.Error(err)
	}
	if err := id.Reject(fill(149)); err == nil || !strings.Contains(err.Error(), "148") {
		t.Error(err)
	}
	for _, p := range []cm.Param{{QPN: 1 << 24}, {Retry: 8}, {RNRRetry: 8}} {
		if _, err := id.Connect(bg, p); err == nil || !strings.Contains(err.Error(), "bits") {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if err := id.Close(); err != nil {
		t.Error(err)
	}
}

// A server that refuses: the client gets the reason, and what it was told besides.
func TestReject(t *testing.T) {
	l := newLab(t)
	ln := l.listen(1)
	var wg sync.WaitGroup
	wg.Go(func() {
		id, _, err := ln.ID.Request(bg)
		if err == nil {
			err = errors.Join(id.Reject([]byte("not today")), id.Close())
		}
		if err != nil {
			t.Error(err)
		}
	})
	_, err := l.dialer().Dial(bg, serverAt)
	var r *cm.RejectError
	if !errors.As(err, &r) || r.Reason != roce.RejectConsumerDefined || string(bytes.TrimRight(r.Private, "\x00")) != "not today" || len(r.Private) != cm.RoomREJ {
		t.Errorf("%v", err)
	}
	wg.Wait()
	l.noID(ln)
}

// Nobody listens: reason 8.
func TestNobodyListens(t *testing.T) {
	l := newLab(t)
	if _, err := l.dialer().Dial(bg, serverAt); !errors.Is(err, &cm.RejectError{Reason: roce.RejectInvalidServiceID}) {
		t.Error(err)
	}
}

// A listener keeps as many requests as it was told, and rejects more; those that it
// keeps are accepted in their order, or rejected when it is closed.
func TestBacklog(t *testing.T) {
	for _, backlog := range []int{1, 3} {
		l := newLab(t)
		ln := l.listen(backlog)
		outcome := make(chan error, 5)
		ids := make([]*cm.ID, 5)
		for n := range ids { // one after the other: a request is kept before the next comes
			ids[n] = l.create()
			if err := errors.Join(ids[n].ResolveAddr(bg, netip.AddrPort{}, serverAt), ids[n].ResolveRoute(bg)); err != nil {
				t.Fatal(err)
			}
			go func() {
				_, err := ids[n].Connect(bg, cm.Param{QPN: uint32(n + 1)})
				outcome <- err
			}()
			if n >= backlog {
				if err := <-outcome; !errors.Is(err, &cm.RejectError{Reason: roce.RejectConsumerDefined}) {
					t.Errorf("request %d of backlog %d: %v", n, backlog, err)
				}
				continue
			}
			for l.commands(cmdConnect) <= n { // until it is written: the goroutine is on its way
				time.Sleep(time.Microsecond)
			}
		}
		id, p, err := ln.ID.Request(bg)
		if err != nil || p.QPN != 1 {
			t.Fatalf("%+v, %v", p, err)
		}
		if err := id.Answer(cm.Param{QPN: 9}); err != nil {
			t.Error(err)
		}
		if err := <-outcome; err != nil {
			t.Error(err)
		}
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
		for range backlog - 1 {
			if err := <-outcome; !errors.Is(err, &cm.RejectError{Reason: roce.RejectConsumerDefined}) {
				t.Error(err)
			}
		}
		err = id.Close()
		for _, i := range ids {
			err = errors.Join(err, i.Close())
		}
		if err != nil {
			t.Error(err)
		}
		l.gone()
	}
	l := newLab(t)
	if _, err := l.server.Listen(serverAt, 0, l.qps.make); err == nil || !strings.Contains(err.Error(), "1 or more") {
		t.Error(err)
	}
	l.gone()
}

// Two listeners on a port, and addresses that are none.
func TestListenFails(t *testing.T) {
	l := newLab(t)
	ln := l.listen(1)
	if _, err := l.server.Listen(serverAt, 1, l.qps.make); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "192.0.2.2:7471") || !strings.Contains(err.Error(), "rdma res show cm_id") {
		t.Error(err)
	}
	if _, err := l.server.Listen(netip.AddrPort{}, 1, l.qps.make); err == nil || !strings.Contains(err.Error(), "no address") {
		t.Error(err)
	}
	if _, err := l.server.Listen(netip.MustParseAddrPort("[fe80::1]:7471"), 1, l.qps.make); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "zone") {
		t.Error(err)
	}
	for errno, says := range map[unix.Errno]string{unix.EADDRNOTAVAIL: "ip addr", unix.ENODEV: "rdma link", unix.EACCES: "CAP_NET_BIND_SERVICE"} {
		l.fault(abi.RDMA_USER_CM_CMD_BIND, ucmfake.Fault{Errno: errno})
		if _, err := l.server.Listen(netip.MustParseAddrPort("192.0.2.2:80"), 1, l.qps.make); !errors.Is(err, errno) || !strings.Contains(err.Error(), says) {
			t.Error(err)
		}
	}
	l.fault(abi.RDMA_USER_CM_CMD_LISTEN, ucmfake.Fault{Errno: unix.EACCES})
	if _, err := l.server.Listen(netip.MustParseAddrPort("192.0.2.2:81"), 1, l.qps.make); !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "credentials") {
		t.Error(err)
	}
	l.k.Fault = nil
	id := l.create()
	if err := id.ResolveAddr(bg, netip.AddrPort{}, netip.AddrPort{}); err == nil || !strings.Contains(err.Error(), "no address") {
		t.Error(err)
	}
	if err := id.Close(); err != nil {
		t.Error(err)
	}
	l.noID(ln)
}

// The kernel chooses a port; a listener on all addresses of IPv6 takes IPv4, unless
// it is told not to.
func TestListenOnAll(t *testing.T) {
	for _, only := range []bool{false, true} {
		l := newLab(t)
		id, err := l.server.NewID(cm.Connected)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(id.SetAFOnly(only), id.Bind(netip.AddrPortFrom(netip.IPv6Unspecified(), 0)), id.Listen(1)); err != nil {
			t.Fatal(err)
		}
		r, err := id.Route()
		if err != nil || r.Src.Port() == 0 || r.Src.Addr() != netip.IPv6Unspecified() || r.NodeGUID != 0 || r.Port != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		ln := &cm.Listener{ID: id, Make: l.qps.make}
		var wg sync.WaitGroup
		if !only {
			wg.Go(func() {
				c, err := ln.Accept(bg)
				if err == nil {
					err = c.Destroy()
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		c, err := l.dialer().Dial(bg, netip.AddrPortFrom(serverAt.Addr(), r.Src.Port()))
		switch {
		case only:
			err = reasonOf(err, roce.RejectInvalidServiceID)
		case err == nil:
			err = c.Destroy()
		}
		if err != nil {
			t.Errorf("IPv6 only %v: %v", only, err)
		}
		wg.Wait()
		l.noID(ln)
	}
}

// A datagram service: the client learns the queue pair, its key and the way there.
func TestDatagram(t *testing.T) {
	l := newLab(t)
	dgram := func(c *cm.Channel) *cm.ID {
		id, err := c.NewID(cm.Datagram)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	ln := dgram(l.server)
	if err := errors.Join(ln.Bind(serverAt), ln.Listen(2)); err != nil {
		t.Fatal(err)
	}
	resolved := func() *cm.ID {
		id := dgram(l.client)
		if err := errors.Join(id.ResolveAddr(bg, netip.AddrPort{}, serverAt), id.ResolveRoute(bg)); err != nil {
			t.Fatal(err)
		}
		return id
	}
	id := resolved()
	var wg sync.WaitGroup
	wg.Go(func() {
		peer, p, err := ln.Request(bg)
		if err != nil || len(p.Private) != cm.RoomSIDRReq || string(p.Private[:4]) != "ping" {
			t.Errorf("%+v, %v", p, err)
		}
		if init, err := peer.INIT(); err != nil || init.QKey != mlx5.Set(uint32(0x01234567)) || init.Access != (mlx5.RST2INIT{}).Access {
			t.Errorf("%+v, %v", init, err)
		}
		if err := errors.Join(peer.Answer(cm.Param{QPN: 0x55, Private: []byte("pong"), QKey: 3}), peer.Close()); err != nil {
			t.Error(err)
		}
	})
	p, err := id.Connect(bg, cm.Param{Private: []byte("ping")})
	if want := serverAt.Addr().As16(); err != nil || p.QPN != 0x55 || p.QKey != 0x01234567 || len(p.Private) != cm.RoomSIDRRep || string(p.Private[:4]) != "pong" || p.AV.HopLimit != 64 {
		t.Errorf("%+v, %v, want GID %x", p, err, want)
	}
	wg.Wait()
	if err := id.SetACKTimeout(14); !errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
	if err := id.Close(); err != nil {
		t.Error(err)
	}

	id = resolved()
	wg.Go(func() {
		peer, _, err := ln.Request(bg)
		if err == nil {
			err = errors.Join(peer.Reject(nil), peer.Close(), ln.Close())
		}
		if err != nil {
			t.Error(err)
		}
	})
	var e *cm.EventError
	if _, err := id.Connect(bg, cm.Param{}); !errors.As(err, &e) || e.SIDR != cm.SIDRReject || e.Errno != nil || !strings.Contains(err.Error(), "status 2, the program there refused") {
		t.Error(err)
	}
	wg.Wait()
	if err := id.Close(); err != nil {
		t.Error(err)
	}
	id = resolved()
	if _, err := id.Connect(bg, cm.Param{}); !errors.As(err, &e) || e.SIDR != cm.SIDRUnsupported || !strings.Contains(err.Error(), "nobody listens") {
		t.Error(err)
	}
	for _, c := range []struct {
		call func() error
		room string
	}{
		{func() error { _, err := id.Connect(bg, cm.Param{Private: make([]byte, 181)}); return err }, "SIDR_REQ has room for 180"},
		{func() error { return id.Answer(cm.Param{Private: make([]byte, 137)}) }, "SIDR_REP has room for 136"},
	} {
		if err := c.call(); err == nil || !strings.Contains(err.Error(), c.room) {
			t.Error(err)
		}
	}
	if err := id.Close(); err != nil {
		t.Error(err)
	}
	for s, says := range map[cm.SIDRStatus]string{5: "5, another version", 9: "9, a status that the specification does not have"} {
		if s.String() != says {
			t.Errorf("%q", s)
		}
	}
}

// The end of a connection, from either side or both; a peer that is gone; a peer
// that does not answer.
func TestDisconnect(t *testing.T) {
	l := newLab(t)
	ln := l.listen(1)
	t.Run("both", func(t *testing.T) {
		a, b := l.connected(ln)
		var wg sync.WaitGroup
		for _, c := range []*cm.Conn{a, b} {
			wg.Go(func() {
				if err := c.Close(bg); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
	t.Run("gone", func(t *testing.T) {
		a, b := l.connected(ln)
		if err := b.Destroy(); err != nil {
			t.Error(err)
		}
		if e, err := a.ID.Event(bg); err != nil || e.Type != cm.Disconnected || e.Status != 0 {
			t.Errorf("%+v, %v", e, err)
		}
		for range 2 { // it is known
			if err := a.Disconnect(bg); err != nil {
				t.Error(err)
			}
		}
		if err := a.Destroy(); err != nil {
			t.Error(err)
		}
	})
	t.Run("no answer", func(t *testing.T) {
		a, b := l.connected(ln)
		l.fault(abi.RDMA_USER_CM_CMD_DISCONNECT, told(cm.Disconnected, -int32(unix.ETIMEDOUT)))
		if err := a.Close(bg); !errors.Is(err, unix.ETIMEDOUT) {
			t.Error(err)
		}
		l.fault(abi.RDMA_USER_CM_CMD_DISCONNECT, ucmfake.Fault{Errno: unix.EINVAL})
		if err := b.Disconnect(bg); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "rdma_disconnect") {
			t.Error(err)
		}
		l.k.Fault = nil
		if err := b.Destroy(); err != nil {
			t.Error(err)
		}
	})
	t.Run("context", func(t *testing.T) {
		a, b := l.connected(ln)
		ctx, cancel := context.WithCancel(bg)
		cancel()
		if err := a.Disconnect(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := errors.Join(a.Destroy(), b.Destroy()); err != nil {
			t.Error(err)
		}
	})
	t.Run("device", func(t *testing.T) {
		a, b := l.connected(ln)
		for _, n := range l.k.IDs() {
			l.k.Tell(n, ucmfake.Event{Type: cm.DeviceRemoval})
		}
		for _, c := range []*cm.Conn{a, b} {
			for e, err := range c.ID.Events(bg) {
				if err != nil || e.Type != cm.DeviceRemoval {
					t.Errorf("%+v, %v", e, err)
				}
				break
			}
			var f *cm.EventError
			if err := c.Disconnect(bg); !errors.Is(err, unix.ENXIO) || errors.As(err, &f) || !strings.Contains(err.Error(), "removed") {
				t.Error(err)
			}
			if err := c.Destroy(); err != nil {
				t.Error(err)
			}
		}
		for range 3 { // each worker is told, not only one
			if _, err := ln.Accept(bg); err == nil || !strings.Contains(err.Error(), "DEVICE_REMOVAL") {
				t.Error(err)
			}
		}
	})
	l.noID(ln)
}

// Events for which nobody waits are kept for Event, in their order; steps do not
// take them.
func TestEventsAreKept(t *testing.T) {
	l := newLab(t)
	ln := l.listen(1)
	id := l.create()
	l.k.Tell(2, ucmfake.Event{Type: cm.AddrChange})
	if err := errors.Join(id.ResolveAddr(bg, netip.AddrPort{}, serverAt), id.ResolveRoute(bg)); err != nil {
		t.Fatal(err)
	}
	l.k.Tell(2, ucmfake.Event{Type: cm.TimewaitExit, Status: 3})
	var got []string
	for e, err := range id.Events(bg) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, fmt.Sprint(e.Type, e.Status)); len(got) == 2 {
			break
		}
	}
	if want := []string{"ADDR_CHANGE 0", "TIMEWAIT_EXIT 3"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	for e, err := range id.Events(ctx) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v", e, err)
		}
	}
	if err := id.Close(); err != nil {
		t.Error(err)
	}
	l.noID(ln)
}

// A damaged answer is an event like another, and an event of nobody is dropped: a
// request is destroyed though.
func TestEventsOfNobody(t *testing.T) {
	synctest.Test(t, testEventsOfNobody)
}

func testEventsOfNobody(t *testing.T) {
	k := ucmfake.New()
	f := k.Open()
	c := cm.NewChannel(f)
	id, err := c.NewID(cm.Connected)
	if err != nil {
		t.Fatal(err)
	}
	f.Queue(abi.EventResp{UID: 99, ID: 1, Event: uint32(cm.Rejected)})
	f.Queue(abi.EventResp{UID: 0, ID: 1, Event: uint32(cm.Established)})
	f.Queue(abi.EventResp{UID: 99, ID: 77, Event: uint32(cm.ConnectRequest)})
	f.Queue(abi.EventResp{UID: 1, ID: 78, Event: uint32(cm.ConnectRequest)}) // of an ID that does not listen
	f.Queue(abi.EventResp{UID: 1, ID: 1, Event: 1 << 31})
	if e, err := id.Event(bg); err != nil || e.Type.String() != "event 2147483648" {
		t.Errorf("%v, %v", e, err)
	}
	synctest.Wait() // until the requests are destroyed, too
	var destroyed []uint32
	for _, call := range k.Calls() {
		if call.Cmd == destroyID {
			destroyed = append(destroyed, call.ID)
		}
	}
	if !slices.Equal(destroyed, []uint32{77, 78}) {
		t.Errorf("destroyed %v", destroyed)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// Text that a user reads.
func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		cm.StepConnect.String(): "REQ→REP", cm.Step(99).String(): "step 99", cm.ConnectResponse.String(): "CONNECT_RESPONSE", cm.EventType(77).String(): "event 77",
		(&cm.CallError{Call: "rdma_listen", Errno: unix.EPERM}).Error(): "cm: rdma_listen: operation not permitted",
		(&cm.EventError{Event: cm.AddrChange}).Error():                  "cm: event ADDR_CHANGE",
		(&cm.StepError{Step: cm.StepRTR, Err: errQP}).Error():           "cm: at RTR: the queue pair is out of order",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if n := usermem.Live(); n != 0 {
		t.Errorf("%d regions", n)
	}
}

// Two families, and a zone that does not exist, are named before the kernel says
// EINVAL.
func TestUnusableAddresses(t *testing.T) {
	l := newLab(t)
	id := l.create()
	at := netip.MustParseAddrPort
	for _, c := range []struct {
		src, dst netip.AddrPort
		says     string
	}{
		{at("[2001:db8::1]:0"), serverAt, "two families"},
		{at("192.0.2.1:0"), at("[2001:db8::1]:7471"), "two families"},
		{netip.AddrPort{}, at("[fe80::1%1no]:7471"), "no network interface 1no"},
		{netip.AddrPort{}, at("[fe80::1%77777]:7471"), "no network interface 77777"},
		{at("[fe80::1%1no]:0"), at("[2001:db8::1]:7471"), "no network interface 1no"},
	} {
		if err := id.ResolveAddr(bg, c.src, c.dst); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s to %s: %v, want %q", c.src, c.dst, err, c.says)
		}
	}
	if err := id.Bind(at("[fe80::1%1no]:7471")); err == nil || !strings.Contains(err.Error(), "no network interface 1no") {
		t.Error(err)
	}
	if n := l.commands(cmdAddr) + l.commands(abi.RDMA_USER_CM_CMD_BIND); n != 0 {
		t.Errorf("%d commands", n)
	}
	if err := id.ResolveAddr(bg, at("[::ffff:192.0.2.1]:0"), serverAt); err != nil { // one family
		t.Error(err)
	}
	if err := id.Close(); err != nil {
		t.Error(err)
	}
}
