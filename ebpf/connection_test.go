// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"devxlab.example/cm"
	"devxlab.example/cm/load"
	"devxlab.example/cm/roce"
	"devxlab.example/internal/testdev"
)

func TestParseConnection(t *testing.T) {
	raw := commandConnection{Timewait: 50, Ended: 60, Service: 7, Guid: 8, Tgid: 9, Tid: 10, Local: 11, Remote: 12, LocalQpn: 13, RemoteQpn: 14, Retried: 15, Repeated: 16,
		Reason: 28, Passive: 1, Rejected: 1, Status: 20, Failed: uint8(DREQ), Outcome: uint8(Rejected), Comm: [16]int8{'g', 'o'}, Device: [32]int8{'0', ':', '1'}}
	raw.Received[REQ], raw.Sent[REP], raw.Sent[REJ], raw.Received[RTU], raw.Waited[REQ] = 100, 130, 140, 150, 3
	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, raw); err != nil {
		t.Fatal(err)
	}
	want := Connection{Passive: true, Outcome: Rejected, Local: 11, Remote: 12, LocalQPN: 13, RemoteQPN: 14, Service: 7, Device: "mlx5_3", Process: 9, Thread: 10, Name: "go",
		Timewait: 50, Ended: 60, Reason: 28, Refused: REP, Retried: 15, Repeated: 16, Failed: DREQ, Status: 20}
	want.Received[REQ], want.Sent[REP], want.Sent[REJ], want.Received[RTU], want.Waited[REQ] = 100, 130, 140, 150, 3
	got, err := parseConnection(b.Bytes(), map[string]string{"0:1": "mlx5_3"})
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got.Began() != 100 || got.Time(Reply, 0) != 30 || got.Time(Confirm, 0) != 20 || got.Time(Work, REQ) != 3 || got.Time(Work, RTU) != NotSeen {
		t.Errorf("%v, %v, %v, %v", got.Began(), got.Time(Reply, 0), got.Time(Confirm, 0), got.Time(Work, REQ))
	}
	got.Passive = false
	if got.Began() != 0 || got.Time(Reply, 0) != NotSeen || got.Time(Confirm, 0) != NotSeen {
		t.Errorf("of an active side: %v, %v, %v", got.Began(), got.Time(Reply, 0), got.Time(Confirm, 0))
	}
	if _, err := parseConnection(b.Bytes()[:40], nil); err == nil || !strings.Contains(err.Error(), "connection of 40 bytes") {
		t.Error(err)
	}
}

// What was counted of connections between two snapshots is the later one without the
// earlier.
func TestConnectionsSince(t *testing.T) {
	times := func(passive bool, m Message, values ...uint64) ConnectionTimes {
		return ConnectionTimes{Work, passive, m, histogramOf(values)}
	}
	old := &Snapshot{ConnectionTimes: []ConnectionTimes{times(false, REP, 5), times(true, REQ, 6)}, Endings: []Ending{{Rejected, true, 28, 2}, {Rejected, true, 8, 1}}, Lost: Lost{Connections: 1}}
	now := &Snapshot{ConnectionTimes: []ConnectionTimes{times(false, REP, 5, 70), times(true, REQ, 6), times(true, RTU, 9)},
		Endings: []Ending{{Established, true, 0, 4}, {Rejected, true, 28, 5}, {Rejected, true, 8, 1}}, Lost: Lost{Connections: 3, Arrivals: 4}}
	want := &Snapshot{ConnectionTimes: []ConnectionTimes{times(false, REP, 70), times(true, RTU, 9)}, Endings: []Ending{{Established, true, 0, 4}, {Rejected, true, 28, 3}},
		Lost: Lost{Connections: 2, Arrivals: 4}}
	if got := now.Since(old); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if h := now.ConnectionTime(Work, true, RTU); h.Count() != 1 || h.Mean() != 9 {
		t.Errorf("%d values with mean %v", h.Count(), h.Mean())
	}
}

// address returns the IPv4 address of the device that tests run on.
func address(t *testing.T) netip.Addr {
	t.Helper()
	links, err := filepath.Glob("/sys/class/infiniband/" + testdev.Kernel() + "/device/net/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		i, err := net.InterfaceByName(filepath.Base(l))
		if err != nil {
			t.Fatal(err)
		}
		all, err := i.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range all {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
				return p.Addr()
			}
		}
	}
	t.Fatalf("%s has no IPv4 address: %v", testdev.Kernel(), links)
	return netip.Addr{}
}

// listening makes both ends of connections, until the test has ended.
func listening(t *testing.T, here netip.AddrPort) (*cm.Channel, *cm.Devices, *cm.Listener) {
	t.Helper()
	ch, err := cm.Open()
	if err != nil {
		t.Fatal(err)
	}
	dev := &cm.Devices{}
	l, err := ch.Listen(here, 1024, dev.Make)
	if err != nil {
		t.Fatal(errors.Join(err, dev.Close(), ch.Close()))
	}
	t.Cleanup(func() { _, _, _ = l.Close(), dev.Close(), ch.Close() })
	return ch, dev, l
}

// serve accepts n connections, and returns what waits until the peer has ended them
// and nothing is left of them.
func serve(t *testing.T, l *cm.Listener, n int) (wait func()) {
	var all sync.WaitGroup
	var begun atomic.Int32
	for range min(n, 16) {
		all.Go(func() {
			for begun.Add(1) <= int32(n) {
				c, err := l.Answer(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				all.Go(func() { attend(t, c) })
			}
		})
	}
	return all.Wait
}

// attend waits for the end of a connection.
func attend(t *testing.T, c *cm.Conn) {
	if err := c.Established(t.Context()); err != nil {
		var e *cm.EventError
		if !errors.As(err, &e) || e.Event != cm.Disconnected { // a DREQ may overtake the RTU
			t.Error(err)
		}
		return
	}
	for {
		if e, err := c.ID.Event(t.Context()); err != nil || e.Type == cm.Disconnected {
			break
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// refused makes a connection that the peer refuses.
func refused(t *testing.T, d *cm.Dialer, to netip.AddrPort, want roce.RejectReason) {
	t.Helper()
	var e *cm.RejectError
	if _, err := d.Dial(t.Context(), to); !errors.As(err, &e) || e.Reason != want {
		t.Errorf("%v, want reason %d", err, want)
	}
}

// Two hundred connections of 31 workers are that many records at each side, whose ids
// and queue pairs are each other's, in as many values of each histogram; one that is
// refused is one with its reason; one that has not ended is open.
func TestOnConnections(t *testing.T) {
	const n, workers = 200, 31
	onKernel(t)
	at := address(t)
	here := netip.AddrPortFrom(at, 7471)
	ch, dev, l := listening(t, here)
	d := &cm.Dialer{Channel: ch, Make: dev.Make, Param: cm.Param{Retry: 7, RNRRetry: 7}}
	tr := trace(t, Options{Filter: Filter{Device: testdev.Kernel()}, Records: 1 << 21})

	wait := serve(t, l, n)
	var clock []time.Duration // the caller's, from REQ to REP
	r, err := load.Run(t.Context(), load.Config{Dialer: d, To: here, Connections: n, Workers: workers, Timeout: time.Minute,
		Each: func(s load.Sample) { clock = append(clock, s.Steps[cm.StepConnect]) }})
	if err != nil || len(clock) != n {
		t.Fatalf("%d set-ups, %+v, %v", len(clock), r, err)
	}
	wait()
	all := ended(t, tr)
	checkMirrors(t, all, n)
	checkClock(t, all, clock)

	rejected := make(chan error)
	go func() {
		id, _, err := l.ID.Request(t.Context())
		if err == nil {
			err = errors.Join(id.Reject(nil), id.Close())
		}
		rejected <- err
	}()
	refused(t, d, here, roce.RejectConsumerDefined)
	if err := <-rejected; err != nil {
		t.Error(err)
	}
	refused(t, d, netip.AddrPortFrom(at, 9), roce.RejectInvalidServiceID)
	all = ended(t, tr)
	sides := map[string]int{}
	for _, c := range all {
		if c.Outcome != Rejected || c.Refused != REQ || c.Passive && c.Sent[REJ] <= c.Received[REQ] || !c.Passive && c.Received[REJ] <= c.Sent[REQ] {
			t.Errorf("%+v", c)
		}
		sides[fmt.Sprintf("%v %d", c.Passive, c.Reason)]++
	}
	if want := map[string]int{"true 8": 1, "false 8": 1, "true 28": 1, "false 28": 1}; !maps.Equal(sides, want) {
		t.Errorf("%v, want %v", sides, want)
	}

	wait = serve(t, l, 1)
	c, err := d.Dial(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	open, err := tr.OpenConnections()
	if err != nil || len(open) != 2 || open[0].Passive || !open[1].Passive || open[0].Outcome != Open || open[0].Local != open[1].Remote {
		t.Errorf("%+v, %v", open, err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	wait()
	if open, err := tr.OpenConnections(); err != nil || len(open) != 0 {
		t.Errorf("%+v, %v", open, err)
	}
	if all := ended(t, tr); len(all) != 2 {
		t.Errorf("%+v", all)
	}
	checkCounts(t, snapshot(t, tr), n+1)
}

// Of a process that has no connection there is none, whatever others have.
func TestOnOthersConnection(t *testing.T) {
	onKernel(t)
	here := netip.AddrPortFrom(address(t), 7471)
	ch, dev, l := listening(t, here)
	tr := trace(t, Options{Filter: Filter{Processes: []int{1}}})
	wait := serve(t, l, 1)
	c, err := (&cm.Dialer{Channel: ch, Make: dev.Make}).Dial(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	open, err := tr.OpenConnections()
	if err != nil || len(open) != 0 {
		t.Errorf("%+v, %v", open, err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	wait()
	s := snapshot(t, tr)
	if s.Count(CMSendREQ, 0) != 1 || s.Count(CMEnd, 0) != 0 || len(s.Endings) != 0 || len(s.ConnectionTimes) != 0 || s.Lost.Connections != 0 {
		t.Errorf("%+v", s)
	}
}

// A program that does not answer is asked again, which both sides' records say, or has
// its kernel ask for time (MRA); one that gives up says so. It gives up when either has
// come to pass: the REQ is repeated after 4.6 or 6.1 s of the guest's, and as much again
// until the next.
func TestOnUnanswered(t *testing.T) {
	const hangs = 5 * time.Minute // 15 repetitions take 69 s or more
	onKernel(t)
	here := netip.AddrPortFrom(address(t), 7471)
	ch, dev, l := listening(t, here)
	tr := trace(t, Options{Records: os.Getpagesize()})
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	defer cancel()
	dialed := make(chan error, 1)
	go func() {
		_, err := (&cm.Dialer{Channel: ch, Make: dev.Make}).Dial(ctx, here)
		dialed <- err
	}()
	awaitAskedAgain(t, tr, dialed)
	cancel()
	if err := <-dialed; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	id, _, err := l.ID.Request(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := id.Close(); err != nil {
		t.Error(err)
	}
	all := ended(t, tr)
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	a, p := all[0], all[1]
	if a.Passive {
		a, p = p, a
	}
	if a.Outcome != Rejected || p.Outcome != Rejected || a.Reason != uint16(roce.RejectTimeout) || p.Reason != a.Reason || a.Sent[REJ] == 0 || p.Received[REJ] == 0 {
		t.Errorf("active  %+v\npassive %+v", a, p)
	}
	if a.Retried != p.Repeated || a.Retried == 0 && a.Received[MRA] == 0 {
		t.Errorf("active  %+v\npassive %+v", a, p)
	}
	t.Logf("asked again %d times, came again %d times; MRA %v", a.Retried, p.Repeated, a.Received[MRA])
}

// awaitAskedAgain waits until a side of an open connection has received a message again
// or an MRA. It fails if the one that dials ends before.
func awaitAskedAgain(t *testing.T, tr *Tracer, dialed <-chan error) {
	t.Helper()
	for tick := time.Tick(50 * time.Millisecond); ; <-tick {
		open, err := tr.OpenConnections()
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(open, func(c Connection) bool { return c.Repeated > 0 || c.Received[MRA] > 0 }) {
			return
		}
		select {
		case err := <-dialed:
			t.Fatalf("it ended with nothing asked again: %v: %+v", err, open)
		default:
		}
	}
}

// ended returns the records that are there.
func ended(t *testing.T, tr *Tracer) (all []Connection) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for c, err := range tr.Connections(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Device != testdev.Kernel() || c.Ended < c.Began() || c.Began() == 0 || (c.Process == 0) != (c.Name == "") {
			t.Errorf("%+v", c)
		}
		all = append(all, c)
	}
	return all
}

// checkMirrors holds n connections against what both sides of one have in common.
func checkMirrors(t *testing.T, all []Connection, n int) {
	t.Helper()
	active := map[uint32]Connection{}
	for _, c := range all {
		if !c.Passive {
			active[c.Local] = c
		}
	}
	if len(all) != 2*n || len(active) != n {
		t.Errorf("%d records, %d of active sides, of %d connections", len(all), len(active), n)
	}
	for _, p := range all {
		a := active[p.Remote]
		if !p.Passive {
			continue
		}
		if a.Remote != p.Local || a.LocalQPN != p.RemoteQPN || a.RemoteQPN != p.LocalQPN || a.Service != p.Service || a.Service != roce.ServiceID(roce.PortSpaceTCP, 7471) ||
			int(a.Process) != os.Getpid() || int(p.Process) != os.Getpid() || a.Outcome != Established || p.Outcome != Established {
			t.Errorf("active  %+v\npassive %+v", a, p)
		}
		inOrder := []time.Duration{a.Sent[REQ], p.Received[REQ], p.Sent[REP], a.Received[REP], a.Sent[RTU], p.Received[RTU]}
		if !slices.IsSorted(inOrder) || inOrder[0] == 0 || a.Time(Reply, 0) < p.Time(Reply, 0) {
			t.Errorf("steps %v", inOrder)
		}
		if a.Sent[DREQ] == 0 && p.Sent[DREQ] == 0 || a.Timewait == 0 || p.Timewait == 0 || a.Reason != 0 {
			t.Errorf("active  %+v\npassive %+v", a, p)
		}
	}
}

// checkClock holds the times from REQ to REP against the caller's own clock, which
// has them and the way to the kernel and back. Whose is whose is not known: the k-th
// longest of one list is then at most the k-th longest of the other.
func checkClock(t *testing.T, all []Connection, clock []time.Duration) {
	t.Helper()
	var ours []time.Duration
	for _, c := range all {
		if !c.Passive {
			ours = append(ours, c.Time(Reply, 0))
		}
	}
	slices.Sort(ours)
	slices.Sort(clock)
	if len(ours) != len(clock) {
		t.Fatalf("%d and %d times", len(ours), len(clock))
	}
	for i := range ours {
		if ours[i] <= 0 || ours[i] > clock[i] {
			t.Errorf("%d: %v in the kernel, %v by the caller's clock", i, ours[i], clock[i])
		}
	}
	t.Logf("REQ to REP: median %v in the kernel, %v by the caller's clock", ours[len(ours)/2], clock[len(clock)/2])
}

// checkCounts holds what was counted against n connections, one that the program
// refused, and one that the kernel refused.
func checkCounts(t *testing.T, s *Snapshot, n uint64) {
	t.Helper()
	for stage, want := range map[Stage]uint64{CMSendREQ: n + 2, CMReceiveREQ: n + 2, CMSendREP: n, CMReceiveREP: n, CMSendRTU: n, CMReceiveRTU: n, CMEnd: 2 * (n + 2), CMReject: 1} {
		if got := s.Count(stage, 0); got != want {
			t.Errorf("%v: %d, want %d", stage, got, want)
		}
	}
	for _, passive := range []bool{false, true} {
		for _, p := range []ConnectionPart{Reply, Confirm} {
			if got := s.ConnectionTime(p, passive, 0).Count(); got != n {
				t.Errorf("%v, passive %v: %d values, want %d", p, passive, got, n)
			}
		}
	}
	if req, rep, rej := s.ConnectionTime(Work, true, REQ).Count(), s.ConnectionTime(Work, false, REP).Count(), s.ConnectionTime(Work, false, REJ).Count(); req != n+2 || rep != n || rej != 2 {
		t.Errorf("work: %d of REQ, %d of REP, %d of REJ", req, rep, rej)
	}
	want := []Ending{{Established, false, 0, n}, {Rejected, false, 8, 1}, {Rejected, false, 28, 1}, {Established, true, 0, n}, {Rejected, true, 8, 1}, {Rejected, true, 28, 1}}
	if !slices.Equal(s.Endings, want) {
		t.Errorf("%+v, want %+v", s.Endings, want)
	}
	if s.Lost != (Lost{Async: s.Lost.Async}) {
		t.Errorf("lost: %+v", s.Lost)
	}
}
