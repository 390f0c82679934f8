// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"devxlab.example/cm"
	"devxlab.example/cm/abi"
	"devxlab.example/cm/load"
	"devxlab.example/internal/ucmfake"
	"devxlab.example/mlx5"
)

// What is wrong on the command line is said before anything is opened.
func TestCMUsage(t *testing.T) {
	for args, says := range map[string]string{
		"client":                                 "expected",
		"client example.org":                     "an IP address, with or without a port",
		"client 192.0.2.1:99999":                 "port 99999: 0 to 65535",
		"client 192.0.2.1:":                      "0 to 65535",
		"client 192.0.2.1:0":                     "1 to 65535",
		"client :7471":                           "an IP address",
		"client [2001:db8::1":                    "an IP address",
		"client 192.0.2.1 --source here":         "--source here: an IP address",
		"client 192.0.2.1 --retry 8":             "0 to 7",
		"client 192.0.2.1 --rnr-retry 8":         "0 to 7",
		"client 192.0.2.1 --retry 256":           "--retry",
		"client 192.0.2.1 --tos 256":             "--tos",
		"client 192.0.2.1 --ack-timeout 32":      "--ack-timeout 32: 0 to 31",
		"client 192.0.2.1 --timeout 0s":          "more than 0",
		"client 192.0.2.1 --timeout=-1s":         "more than 0",
		"client 192.0.2.1 --private " + long(57): "57 bytes: a request has room for 56",
		"bench 192.0.2.1 -n 0":                   "0 connections: 1 or more",
		"bench 192.0.2.1 -w 0":                   "0 workers: 1 or more",
		"bench 192.0.2.1 --rate=-1":              "0 or more",
		"bench 192.0.2.1 --rate NaN":             "0 or more",
		"bench 192.0.2.1 --for=-1s":              "0 or more",
		"server somewhere":                       "an IP address",
		"server :70000":                          "port 70000",
		"server --workers 0":                     "1 or more",
		"server --backlog 0":                     "1 or more",
		"server --count=-1":                      "--count is 0 or more",
		"server --workers 1025":                  "1 to 1024",
		"bench 192.0.2.1 -w 1025":                "up to 1024",
		"bench 192.0.2.1 --together -n 8193":     "up to 8192",
		"bench 192.0.2.1 --together --rate 5":    "no rate",
		"bench 192.0.2.1 --together --for 5s":    "no time to begin in",
	} {
		code, out, errOut := devxlab("", append([]string{"cm"}, strings.Fields(args)...)...)
		if code != exitUsage || out != "" || !strings.Contains(errOut, says) {
			t.Errorf("%s: exit code %d, %q, %q; want %q", args, code, out, errOut, says)
		}
	}
}

func long(n int) string { return strings.Repeat("x", n) }

// Without the kernel's connection manager every command says so, and how to get it.
func TestCMWithoutANode(t *testing.T) {
	if _, err := os.Stat(cm.File); err == nil {
		t.Logf("%s is here: what is said without it is tested where it is not", cm.File)
		return
	}
	for _, args := range []string{"server", "server 192.0.2.1 -o json", "client 192.0.2.1:1 --private " + long(56), "bench [2001:db8::1]:7471 -n 1"} {
		code, out, errOut := devxlab("", append([]string{"cm"}, strings.Fields(args)...)...)
		if code != exitNoDevice || out != "" || !strings.Contains(errOut, "modprobe rdma_ucm") || !strings.Contains(errOut, cm.File) {
			t.Errorf("%s: exit code %d, %q, %q", args, code, out, errOut)
		}
	}
}

func TestCMAddress(t *testing.T) {
	for s, want := range map[string]string{
		"192.0.2.1": "192.0.2.1:7471", "192.0.2.1:80": "192.0.2.1:80", "2001:db8::1": "[2001:db8::1]:7471", "[2001:db8::1]": "[2001:db8::1]:7471",
		"[2001:db8::1]:1": "[2001:db8::1]:1", "fe80::1%lo": "[fe80::1%lo]:7471", "[fe80::1%lo]:65535": "[fe80::1%lo]:65535",
	} {
		for _, listener := range []bool{false, true} {
			if got, err := address(s, listener); err != nil || got != netip.MustParseAddrPort(want) {
				t.Errorf("%s: %s, %v; want %s", s, got, err, want)
			}
		}
	}
	for s, want := range map[string]string{"": "[::]:7471", ":80": "[::]:80", ":0": "[::]:0", "0.0.0.0:0": "0.0.0.0:0"} {
		if got, err := address(s, true); err != nil || got != netip.MustParseAddrPort(want) {
			t.Errorf("listener %s: %s, %v; want %s", s, got, err, want)
		}
		if got, err := address(s, false); err == nil {
			t.Errorf("client %s: %s", s, got)
		}
	}
}

// cmLab is a kernel with a server's and a client's channel, in a bubble.
type cmLab struct {
	k              *ucmfake.Kernel
	server, client *cm.Channel
	to             netip.AddrPort
}

func inCM(t *testing.T, f func(t *testing.T, l *cmLab)) {
	synctest.Test(t, func(t *testing.T) {
		k := ucmfake.New()
		l := &cmLab{k: k, server: cm.NewChannel(k.Open()), client: cm.NewChannel(k.Open()), to: netip.MustParseAddrPort("192.0.2.2:7471")}
		f(t, l)
		if ids := k.IDs(); len(ids) != 0 {
			t.Errorf("IDs left: %v", ids)
		}
		for _, c := range []*cm.Channel{l.server, l.client} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

type cmQP struct{}

func (cmQP) Number() uint32              { return 1 }
func (cmQP) Close() error                { return nil }
func (cmQP) To(*cm.ID, mlx5.State) error { return nil }
func makeCMQP(*cm.ID) (cm.QP, error)     { return cmQP{}, nil }
func (l *cmLab) dialer() *cm.Dialer      { return &cm.Dialer{Channel: l.client, Make: makeCMQP} }
func (l *cmLab) serve(ctx context.Context, c *cmServerCmd, json bool) (out, errOut *bytes.Buffer, ended chan error) {
	out, errOut, ended = new(bytes.Buffer), new(bytes.Buffer), make(chan error, 1)
	e := &env{ctx: ctx, out: out, err: errOut, asJSON: json}
	go func() { ended <- c.run(e, l.server, l.to, makeCMQP) }()
	synctest.Wait()
	return out, errOut, ended
}

// A server that refuses ends after so many, too.
func TestCMServerRejects(t *testing.T) {
	inCM(t, func(t *testing.T, l *cmLab) {
		out, _, ended := l.serve(context.Background(), &cmServerCmd{Backlog: 8, Workers: 2, Count: 3, Reject: true}, false)
		for range 3 {
			if _, err := l.dialer().Dial(context.Background(), l.to); err == nil {
				t.Error("accepted")
			}
		}
		if err := <-ended; err != nil || out.String() != "listening on 192.0.2.2:7471\naccepted 0, ended 0, rejected 3\n" {
			t.Errorf("%q, %v", out, err)
		}
	})
}

// With JSON, standard output is one document.
func TestCMServerJSON(t *testing.T) {
	inCM(t, func(t *testing.T, l *cmLab) {
		out, errOut, ended := l.serve(context.Background(), &cmServerCmd{Backlog: 8, Workers: 2, Count: 1}, true)
		c, err := l.dialer().Dial(context.Background(), l.to)
		if err == nil {
			err = c.Close(context.Background())
		}
		if err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		var got struct{ Accepted, Ended, Rejected int }
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Accepted != 1 || got.Ended != 1 || errOut.String() != "listening on 192.0.2.2:7471\n" {
			t.Errorf("%v: %s, %s", err, out, errOut)
		}
	})
}

// An interrupted server ends the connections that it has, and a connection that is
// not complete yet is no failure. What failed before is said in order.
func TestCMServerInterrupted(t *testing.T) {
	inCM(t, func(t *testing.T, l *cmLab) {
		var rtu atomic.Int32
		l.k.Fault = func(c ucmfake.Call) ucmfake.Fault {
			if c.Cmd != abi.RDMA_USER_CM_CMD_ACCEPT {
				return ucmfake.Fault{}
			}
			var a abi.Accept
			if _, err := binary.Decode(c.Bytes[binary.Size(abi.Hdr{}):], binary.NativeEndian, &a); err != nil {
				t.Error(err)
			}
			return ucmfake.Fault{Lost: a.Param.Valid == 0 && rtu.Add(1) == 3} // the third RTU
		}
		ctx, cancel := context.WithCancel(context.Background())
		out, _, ended := l.serve(ctx, &cmServerCmd{Backlog: 8, Workers: 2}, false)
		var conns []*cm.Conn
		for range 3 {
			c, err := l.dialer().Dial(context.Background(), l.to)
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		synctest.Wait()
		cancel()
		var closing sync.WaitGroup
		for _, c := range conns {
			closing.Go(func() {
				limit, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = c.Close(limit) // of the third, nobody may answer
			})
		}
		if err := <-ended; err != nil || out.String() != "listening on 192.0.2.2:7471\naccepted 2, ended 2, rejected 0\n" {
			t.Errorf("%q, %v", out, err)
		}
		closing.Wait()
	})
	var out bytes.Buffer
	s := &cmServer{failures: map[string]int{}}
	want := "accepted 0, ended 0, rejected 0\n"
	for n := range 9 {
		s.failures[fmt.Sprint("reason ", n)] = n
		want += fmt.Sprintf("failed %d: reason %d\n", n, n)
	}
	if err := s.say(&env{out: &out}); err != nil || out.String() != want {
		t.Errorf("%q, %v", &out, err)
	}
}

// --hold lasts until its time is over or the connection ends, whatever else happens.
func TestCMClientHold(t *testing.T) {
	for _, c := range []struct {
		event cm.EventType
		after time.Duration
	}{{cm.AddrChange, time.Minute}, {cm.Disconnected, time.Second}} {
		inCM(t, func(t *testing.T, l *cmLab) {
			ctx, cancel := context.WithCancel(context.Background())
			_, _, ended := l.serve(ctx, &cmServerCmd{Backlog: 8, Workers: 2}, false)
			time.AfterFunc(time.Second, func() { l.k.Tell(2, ucmfake.Event{Type: c.event}) }) // the client's, behind the listener's
			var out, errOut bytes.Buffer
			client := &cmClientCmd{Hold: time.Minute}
			client.Timeout = time.Second
			start := time.Now()
			err := client.run(&env{ctx: context.Background(), out: &out, err: &errOut}, l.dialer(), l.to)
			if took := time.Since(start); err != nil || took != c.after || errOut.String() != fmt.Sprintf("devxlab cm client: %s\n", c.event) {
				t.Errorf("%v after %v: %q", err, took, &errOut)
			}
			for _, s := range cm.ClientSteps() {
				if !strings.Contains(out.String(), "\n"+s.String()+" ") {
					t.Errorf("%q has no %s", &out, s)
				}
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// An interrupted bench says once what it waits for.
func TestCMBenchInterrupted(t *testing.T) {
	inCM(t, func(t *testing.T, l *cmLab) {
		serverCtx, stop := context.WithCancel(context.Background())
		_, _, ended := l.serve(serverCtx, &cmServerCmd{Backlog: 8, Workers: 2}, false)
		l.k.Latency = func(e cm.EventType) time.Duration {
			return map[cm.EventType]time.Duration{cm.Disconnected: time.Second}[e]
		}
		ctx, cancel := context.WithTimeout(context.Background(), 4500*time.Millisecond) // in the third end; the warm-up's took 2 s
		defer cancel()
		var out, errOut bytes.Buffer
		b := &cmBenchCmd{Connections: 100, Workers: 3}
		b.Timeout = 10 * time.Second
		err := b.run(&env{ctx: ctx, out: &out, err: &errOut}, l.dialer(), load.Config{To: l.to, Connections: 100, Workers: 3, Timeout: b.Timeout})
		want := "devxlab cm bench: interrupted; 3 connections are ended first: each waits up to 10s for the peer's answer (DREP)\n"
		if err != nil || errOut.String() != want || !strings.Contains(out.String(), "stopped early: interrupted") {
			t.Errorf("%v, %q, %q", err, &errOut, &out)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
