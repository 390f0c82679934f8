// SPDX-License-Identifier: BSD-2-Clause

package load_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"devxlab.example/cm"
	"devxlab.example/cm/abi"
	"devxlab.example/cm/load"
	"devxlab.example/cm/roce"
	"devxlab.example/internal/leaktest"
	"devxlab.example/internal/ucmfake"
	"devxlab.example/mlx5"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	serverAt = netip.MustParseAddrPort("192.0.2.2:7471")
	bg       = context.Background()
)

// lab is a kernel, a server that accepts and waits for the peer's end, and a
// client's dialer. Its clock is that of the test's bubble: a connection takes 3 ms for
// the address, 5 for the route, 20 until REP; its end 10.
type lab struct {
	t        *testing.T
	k        *ucmfake.Kernel
	d        *cm.Dialer
	accepted atomic.Int32
	ended    atomic.Int32
	qps      atomic.Int32 // open
}

const (
	address = 3 * time.Millisecond
	route   = 5 * time.Millisecond
	rep     = 20 * time.Millisecond
	setUp   = address + route + rep
	apart   = 10 * time.Millisecond
)

// in runs a test in a bubble, and checks that it leaves nothing.
func in(t *testing.T, f func(t *testing.T, l *lab)) {
	synctest.Test(t, func(t *testing.T) {
		k := ucmfake.New()
		k.Latency = func(e cm.EventType) time.Duration {
			return map[cm.EventType]time.Duration{cm.AddrResolved: address, cm.RouteResolved: route, cm.ConnectRequest: rep, cm.Disconnected: apart / 2}[e]
		}
		client, server := cm.NewChannel(k.Open()), cm.NewChannel(k.Open())
		l := &lab{t: t, k: k}
		l.d = &cm.Dialer{Channel: client, Make: l.make}
		ln, err := server.Listen(serverAt, 1000, l.make)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(bg)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := ln.Answer(ctx)
				if ctx.Err() != nil {
					return
				}
				if err == nil {
					wg.Go(func() { l.serve(ctx, c) })
				}
			}
		})
		f(t, l)
		cancel()
		wg.Wait()
		if err := errors.Join(ln.Close(), client.Close(), server.Close()); err != nil {
			t.Error(err)
		}
		if ids := k.IDs(); len(ids) != 0 || l.qps.Load() != 0 {
			t.Errorf("left: IDs %v, %d queue pairs", ids, l.qps.Load())
		}
	})
}

func (l *lab) serve(ctx context.Context, c *cm.Conn) {
	if c.Established(ctx) != nil {
		return
	}
	l.accepted.Add(1)
	if e, err := c.ID.Event(ctx); err == nil && e.Type == cm.Disconnected {
		l.ended.Add(1)
	}
	if err := errors.Join(c.Disconnect(bg), c.Destroy()); err != nil {
		l.t.Error(err)
	}
}

type qp struct{ l *lab }

func (l *lab) make(*cm.ID) (cm.QP, error) { l.qps.Add(1); return qp{l}, nil }
func (qp) Number() uint32                 { return 1 }
func (q qp) Close() error                 { q.l.qps.Add(-1); return nil }
func (qp) To(id *cm.ID, s mlx5.State) error {
	if id == nil {
		return nil
	}
	_, _, err := id.QPAttr(s)
	return err
}

func (l *lab) run(c load.Config) *load.Result {
	l.t.Helper()
	c.Dialer, c.To = l.d, serverAt
	r, err := load.Run(bg, c)
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

// about is a time as the histograms have it: three digits.
func about(ns int64, want time.Duration) bool {
	return math.Abs(float64(ns-want.Nanoseconds())) <= float64(want.Nanoseconds())/1000
}

// counts checks that all connections are accounted for, in every histogram.
func counts(t *testing.T, r *load.Result, done, failed int) {
	t.Helper()
	if r.Done != done || r.Failed != failed {
		t.Errorf("%d done, %d failed; want %d and %d: %v", r.Done, r.Failed, done, failed, r.Failures)
	}
	sum := 0
	for n := range maps.Values(r.Failures) {
		sum += n
	}
	if sum != failed {
		t.Errorf("failures %v, want %d", r.Failures, failed)
	}
	for _, p := range load.Parts() {
		if n := r.Parts[p].TotalCount(); n != int64(done) {
			t.Errorf("%s: %d values, want %d", load.PartName(p), n, done)
		}
	}
	if len(r.Ends) != 0 {
		t.Errorf("ended badly: %v", r.Ends)
	}
}

// A closed loop: each worker begins when it has ended, and each step takes what it
// takes.
func TestClosedLoop(t *testing.T) {
	in(t, func(t *testing.T, l *lab) {
		var progress []int
		r := l.run(load.Config{Connections: 200, Workers: 4, Progress: func(n int) { progress = append(progress, n) }})
		counts(t, r, 200, 0)
		if want := 50 * (setUp + apart); r.Took != want || r.Stopped != "" || r.Late != nil || r.Rate() != 200/want.Seconds() {
			t.Errorf("took %v, want %v; %q, %v", r.Took, want, r.Stopped, r.Rate())
		}
		for part, want := range map[int]time.Duration{int(cm.StepAddress): address, int(cm.StepRoute): route, int(cm.StepConnect): rep, load.Setup: setUp,
			load.Disconnect: apart, int(cm.StepInit): time.Nanosecond, int(cm.StepRTU): time.Nanosecond, load.Destroy: time.Nanosecond} {
			if h := r.Parts[part]; !about(h.Max(), want) || !about(h.Min(), want) {
				t.Errorf("%s: up to %v, want %v", load.PartName(part), time.Duration(h.Max()), want)
			}
		}
		if n := l.k.Most(); n != 1+2*4 || fmt.Sprint(progress) != "[100 200]" {
			t.Errorf("%d IDs at a time; progress %v", n, progress)
		}
		if a, e := l.accepted.Load(), l.ended.Load(); a != 200 || e != 200 {
			t.Errorf("the server accepted %d, %d ended", a, e)
		}
	})
}

// An open loop: connection i begins at i/Rate, whatever the ones before do. With too
// few workers it begins late, and its set-up counts from when it was meant to begin.
func TestOpenLoop(t *testing.T) {
	in(t, func(t *testing.T, l *lab) {
		r := l.run(load.Config{Connections: 50, Workers: 50, Rate: 100})
		counts(t, r, 50, 0)
		if r.Took != 490*time.Millisecond+setUp+apart || r.Late.TotalCount() != 50 || !about(r.Late.Max(), time.Nanosecond) || !about(r.Parts[load.Setup].Max(), setUp) {
			t.Errorf("took %v, late %d up to %d", r.Took, r.Late.TotalCount(), r.Late.Max())
		}
	})
	in(t, func(t *testing.T, l *lab) {
		r := l.run(load.Config{Connections: 10, Workers: 1, Rate: 100}) // each takes 38 ms: the last begins at 9 * 38, not at 90
		counts(t, r, 10, 0)
		if late := 9 * (setUp + apart - 10*time.Millisecond); r.Took != 10*(setUp+apart) || !about(r.Late.Max(), late) || !about(r.Parts[load.Setup].Max(), late+setUp) {
			t.Errorf("took %v, late up to %v, set-up up to %v", r.Took, time.Duration(r.Late.Max()), time.Duration(r.Parts[load.Setup].Max()))
		}
	})
}

// For: none is begun after that time, also none that would have to wait until then.
func TestFor(t *testing.T) {
	in(t, func(t *testing.T, l *lab) {
		r := l.run(load.Config{Connections: 1000, Workers: 2, For: 100 * time.Millisecond}) // begin at 0, 38, 76
		counts(t, r, 6, 0)
		if r.Stopped != "time" || r.Took != 3*(setUp+apart) {
			t.Errorf("%q after %v", r.Stopped, r.Took)
		}
	})
	in(t, func(t *testing.T, l *lab) {
		r := l.run(load.Config{Connections: 1000, Workers: 100, Rate: 100, For: 100 * time.Millisecond}) // begin at 0, 10 … 90
		counts(t, r, 10, 0)
		if r.Stopped != "time" || r.Took != 90*time.Millisecond+setUp+apart {
			t.Errorf("%q after %v", r.Stopped, r.Took)
		}
	})
	in(t, func(t *testing.T, l *lab) { // all were made before
		if r := l.run(load.Config{Connections: 4, Workers: 4, For: time.Second}); r.Stopped != "" || r.Done != 4 {
			t.Errorf("%q, %d", r.Stopped, r.Done)
		}
	})
}

// Connections that were due within For and for which no worker was free are counted.
func TestNotBegun(t *testing.T) {
	for _, c := range []struct{ connections, workers, done, notBegun int }{
		{1000, 1, 3, 7}, // due at 0, 10 … 90; begun at 0, 38, 76
		{8, 1, 3, 5},    // no more are asked for
		{1000, 100, 10, 0},
	} {
		in(t, func(t *testing.T, l *lab) {
			r := l.run(load.Config{Connections: c.connections, Workers: c.workers, Rate: 100, For: 100 * time.Millisecond})
			counts(t, r, c.done, 0)
			if r.NotBegun != c.notBegun || r.Stopped != "time" {
				t.Errorf("%d not begun, want %d; %q", r.NotBegun, c.notBegun, r.Stopped)
			}
			var b bytes.Buffer
			says := fmt.Sprintf("; %d were due and not begun", c.notBegun)
			if err := r.WriteText(&b); err != nil || strings.Contains(b.String(), says) != (c.notBegun > 0) {
				t.Error(b.String(), err)
			}
			j, err := json.Marshal(r)
			if err != nil || !bytes.Contains(j, fmt.Appendf(nil, `"not_begun":%d,`, c.notBegun)) {
				t.Errorf("%s, %v", j, err)
			}
		})
	}
}

// One that never answers costs a step its time, and the others nothing.
func TestTogetherWithoutAnAnswer(t *testing.T) {
	in(t, func(t *testing.T, l *lab) {
		var n atomic.Int32
		l.k.Fault = func(c ucmfake.Call) ucmfake.Fault {
			return ucmfake.Fault{Lost: c.Cmd == abi.RDMA_USER_CM_CMD_RESOLVE_ADDR && n.Add(1) == 1}
		}
		r := l.run(load.Config{Connections: 10, Workers: 2, Timeout: time.Second, Together: true})
		counts(t, r, 9, 1)
		if r.Phases["address"] != time.Second || r.Took != time.Second+route+rep || r.Phases["id"] != 0 {
			t.Errorf("took %v, %v", r.Took, r.Phases)
		}
	})
}

// An interruption is told once, with how many connections are still open, and only if
// there are some. Nothing is made or sent after it but what ends them.
func TestInterrupted(t *testing.T) {
	for _, c := range []struct {
		config load.Config
		after  time.Duration
		open   []int
		calls  []uint32 // after the interruption there are none of them
	}{
		{load.Config{Connections: 100, Workers: 4}, setUp + time.Millisecond, []int{4}, []uint32{abi.RDMA_USER_CM_CMD_CREATE_ID, abi.RDMA_USER_CM_CMD_CONNECT}},
		{load.Config{Connections: 100, Workers: 4}, time.Millisecond, nil, []uint32{abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, abi.RDMA_USER_CM_CMD_DISCONNECT}},
		{load.Config{Connections: 20, Workers: 4, Together: true}, setUp + time.Millisecond, []int{20}, []uint32{abi.RDMA_USER_CM_CMD_CREATE_ID, abi.RDMA_USER_CM_CMD_CONNECT}},
		{load.Config{Connections: 20, Workers: 4, Together: true}, address + time.Millisecond, nil, []uint32{abi.RDMA_USER_CM_CMD_CONNECT, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR}},
	} {
		in(t, func(t *testing.T, l *lab) {
			var over atomic.Bool
			l.k.Fault = func(call ucmfake.Call) ucmfake.Fault {
				if over.Load() && slices.Contains(c.calls, call.Cmd) {
					t.Errorf("command %d after the interruption", call.Cmd)
				}
				return ucmfake.Fault{}
			}
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			time.AfterFunc(c.after, func() { over.Store(true); cancel() })
			var open []int
			c.config.Dialer, c.config.To = l.d, serverAt
			c.config.Interrupted = func(n int) { open = append(open, n) }
			r, err := load.Run(ctx, c.config)
			if err != nil || !slices.Equal(open, c.open) {
				t.Errorf("%+v, %v: told of %v, want %v", c.config, err, open, c.open)
			}
			synctest.Wait()
			if a, e := l.accepted.Load(), l.ended.Load(); int(a) != r.Done || int(e) != r.Done {
				t.Errorf("%d set up; the server accepted %d, was told of the end of %d", r.Done, a, e)
			}
			if n := len(l.k.IDs()); n != 1 {
				t.Errorf("%d IDs, want the listener's", n)
			}
		})
	}
}

// Failures are counted by step and reason, and leave nothing; the others are done.
func TestFailures(t *testing.T) {
	for _, together := range []bool{false, true} {
		in(t, func(t *testing.T, l *lab) {
			var n atomic.Int32
			l.k.Fault = func(c ucmfake.Call) ucmfake.Fault {
				rejected := func(r roce.RejectReason) ucmfake.Fault {
					return ucmfake.Fault{Event: &ucmfake.Event{Type: cm.Rejected, Status: int32(r)}}
				}
				if c.Cmd != abi.RDMA_USER_CM_CMD_CONNECT {
					return ucmfake.Fault{}
				}
				switch n.Add(1) % 10 {
				case 1, 2:
					return rejected(roce.RejectStaleConnection)
				case 3:
					return rejected(roce.RejectConsumerDefined)
				case 4:
					return ucmfake.Fault{Errno: unix.ENOMEM}
				case 5:
					return ucmfake.Fault{Lost: true}
				case 6:
					return ucmfake.Fault{Event: &ucmfake.Event{Type: cm.Unreachable, Status: -int32(unix.ETIMEDOUT)}}
				}
				return ucmfake.Fault{}
			}
			r := l.run(load.Config{Connections: 100, Workers: 7, Timeout: time.Second, Together: together})
			counts(t, r, 40, 60)
			want := map[string]int{
				"REQ→REP: rejected: " + roce.RejectStaleConnection.String(): 20,
				"REQ→REP: rejected: " + roce.RejectConsumerDefined.String(): 10,
				"REQ→REP: rdma_connect: cannot allocate memory":             10,
				"REQ→REP: no answer in time":                                10,
				"REQ→REP: event UNREACHABLE: connection timed out":          10,
			}
			if !maps.Equal(r.Failures, want) {
				t.Errorf("%v, want %v", r.Failures, want)
			}
		})
	}
}

// Connections that were set up and do not end well are counted as both.
func TestBadEnds(t *testing.T) {
	in(t, func(t *testing.T, l *lab) {
		var n atomic.Int32
		l.k.Fault = func(c ucmfake.Call) ucmfake.Fault {
			if c.Cmd == abi.RDMA_USER_CM_CMD_DISCONNECT && n.Add(1) == 1 {
				return ucmfake.Fault{Event: &ucmfake.Event{Type: cm.Disconnected, Status: -int32(unix.ETIMEDOUT)}}
			}
			return ucmfake.Fault{}
		}
		r := l.run(load.Config{Connections: 3, Workers: 1})
		if r.Done != 3 || r.Failed != 0 || !maps.Equal(r.Ends, map[string]int{"event DISCONNECTED: connection timed out": 1}) || r.Parts[load.Disconnect].TotalCount() != 2 {
			t.Errorf("%d, %d, %v", r.Done, r.Failed, r.Ends)
		}
		var b bytes.Buffer
		if err := r.WriteText(&b); err != nil || !strings.Contains(b.String(), "ended badly 1: event DISCONNECTED") {
			t.Error(b.String(), err)
		}
	})
}

// All together: each step of all before the next of any.
func TestTogether(t *testing.T) {
	in(t, func(t *testing.T, l *lab) {
		r := l.run(load.Config{Connections: 300, Workers: 4, Together: true})
		counts(t, r, 300, 0)
		if r.Took != setUp || r.Late != nil || r.Stopped != "" || l.k.Most() != 601 {
			t.Errorf("took %v, want %v; %q; %d IDs", r.Took, setUp, r.Stopped, l.k.Most())
		}
		step, order := map[uint32]int{
			abi.RDMA_USER_CM_CMD_RESOLVE_ADDR: 1, abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE: 2, abi.RDMA_USER_CM_CMD_CONNECT: 3, abi.RDMA_USER_CM_CMD_DISCONNECT: 4}, 0
		for _, c := range l.k.Calls() {
			if s := step[c.Cmd]; s != 0 && s < order {
				t.Fatalf("command %d after one of step %d", c.Cmd, order)
			} else {
				order = max(order, s)
			}
		}
	})
}

// An interruption ends every connection that was set up, with a DREQ; those on their
// way are neither done nor failed. One that comes when all are made is none.
func TestInterruption(t *testing.T) {
	for _, c := range []load.Config{{Connections: 1000, Workers: 8}, {Connections: 1000, Workers: 100, Rate: 500}, {Connections: 100, Workers: 8, Together: true}} {
		for _, after := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond, 51 * time.Millisecond} {
			in(t, func(t *testing.T, l *lab) {
				ctx, cancel := context.WithTimeout(bg, after)
				defer cancel()
				c.Dialer, c.To = l.d, serverAt
				r, err := load.Run(ctx, c)
				if err != nil {
					t.Fatal(err)
				}
				all := c.Together && after > setUp
				counts(t, r, r.Done, 0)
				synctest.Wait()
				if want := map[bool]string{true: "", false: "interrupted"}[all]; r.Stopped != want || all && r.Done != 100 {
					t.Errorf("%+v after %v: %q, %d done", c, after, r.Stopped, r.Done)
				}
				if a, e := l.accepted.Load(), l.ended.Load(); int(a) != r.Done || int(e) != r.Done {
					t.Errorf("%d set up; the server accepted %d, was told of the end of %d", r.Done, a, e)
				}
			})
		}
	}
}

// Whatever all connections are at, an interruption stops it at the connection that it
// hits.
func TestTogetherStops(t *testing.T) {
	for _, cmd := range []uint32{abi.RDMA_USER_CM_CMD_CREATE_ID, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR} {
		in(t, func(t *testing.T, l *lab) {
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			n := 0
			l.k.Fault = func(c ucmfake.Call) ucmfake.Fault {
				if c.Cmd == cmd {
					if n++; n == 5 {
						cancel()
					}
				}
				return ucmfake.Fault{}
			}
			r, err := load.Run(ctx, load.Config{Dialer: l.d, To: serverAt, Connections: 20, Workers: 1, Together: true})
			if err != nil || r.Done != 0 || r.Failed != 0 || r.Stopped != "interrupted" || n != 5 {
				t.Errorf("%+v, %v; command %d was written %d times, want 5", r, err, cmd, n)
			}
			if ids := l.k.IDs(); len(ids) != 1 || l.qps.Load() != 0 {
				t.Errorf("IDs %v, %d queue pairs: want the listener's ID", ids, l.qps.Load())
			}
		})
	}
}

func TestBounds(t *testing.T) {
	for says, c := range map[string]load.Config{
		"1025 workers: up to 1024":              {Connections: 1, Workers: 1025},
		"8193 connections together: up to 8192": {Connections: 8193, Workers: 1, Together: true},
		"no rate":                               {Connections: 1, Workers: 1, Together: true, Rate: 1},
		"no time to begin":                      {Connections: 1, Workers: 1, Together: true, For: 1},
		"":                                      {Connections: 8192, Workers: 1024, Together: true},
	} {
		if err := c.Check(); says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%+v: %v, want %q", c, err, says)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []load.Config{{Workers: 1}, {Connections: 1}, {Connections: 1, Workers: 1, Rate: -1}, {Connections: 1, Workers: 1, Timeout: -1}, {Connections: 1, Workers: 1, For: -1}} {
		if r, err := load.Run(bg, c); r != nil || err == nil || !strings.Contains(err.Error(), "or more") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestReason(t *testing.T) {
	at := func(err error) error { return &cm.StepError{Step: cm.StepConnect, Err: err} }
	for want, err := range map[string]error{
		"REQ→REP: rejected: " + roce.RejectConsumerDefined.String(): errors.Join(at(&cm.RejectError{Reason: roce.RejectConsumerDefined}), errors.New("more")),
		"event DISCONNECTED": &cm.EventError{Event: cm.Disconnected},
		"REQ→REP: event UNREACHABLE: " + unix.ETIMEDOUT.Error(): at(&cm.EventError{Event: cm.Unreachable, Errno: unix.ETIMEDOUT}),
		"rdma_create_id: too many open files":                   &cm.CallError{Call: "rdma_create_id", On: "something", Errno: unix.EMFILE},
		"REQ→REP: no answer in time":                            at(fmt.Errorf("x: %w", context.DeadlineExceeded)),
		"REQ→REP: odd":                                          at(errors.New("odd")),
		"plain":                                                 errors.New("plain"),
	} {
		if got := load.Reason(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The JSON has each histogram whole: decoded, it is the same.
func TestJSON(t *testing.T) {
	in(t, func(t *testing.T, l *lab) {
		r := l.run(load.Config{Connections: 30, Workers: 3, Rate: 200})
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Done, Failed int
			Took         time.Duration `json:"took_ns"`
			Rate         float64       `json:"rate_per_s"`
			Parts        []struct {
				Part      string
				N         int64
				Min, Max  int64 `json:"-"`
				Quantiles []load.Quantile
				HDR       string `json:"hdr_v2"`
			}
		}
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if got.Done != 30 || got.Failed != 0 || got.Took != r.Took || got.Rate != r.Rate() || len(got.Parts) != len(load.Parts())+1 {
			t.Errorf("%s", b)
		}
		for i, p := range got.Parts {
			want, name := r.Late, "began late"
			if i < len(load.Parts()) {
				want, name = r.Parts[load.Parts()[i]], load.PartName(load.Parts()[i])
			}
			h, err := hdrhistogram.Decode([]byte(p.HDR))
			if err != nil || p.Part != name || p.N != want.TotalCount() || !h.Equals(want) {
				t.Errorf("%s: %v", p.Part, err)
			}
		}
	})
	// Nothing was made: still a document, and a table.
	in(t, func(t *testing.T, l *lab) {
		ctx, cancel := context.WithCancel(bg)
		cancel()
		r, err := load.Run(ctx, load.Config{Dialer: l.d, To: serverAt, Connections: 1, Workers: 1})
		if err != nil || r.Took != 0 || r.Rate() != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		var text bytes.Buffer
		b, err := json.Marshal(r)
		if err != nil || !bytes.Contains(b, []byte(`"stopped":"interrupted"`)) {
			t.Errorf("%s, %v", b, err)
		}
		if err := r.WriteText(&text); err != nil || !strings.HasPrefix(text.String(), "0 connections in 0.00 µs: 0.0 a second; 0 failed; stopped early: interrupted\n") {
			t.Errorf("%q, %v", text.String(), err)
		}
	})
}
