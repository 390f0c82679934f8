// SPDX-License-Identifier: BSD-2-Clause

package cm_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/cm"
	"devxlab.example/cm/roce"
	"devxlab.example/internal/require"
)

// These tests ask a kernel's connection manager, with no queue pairs at all: it
// takes any number for one. The other end is in the network namespace "far" of this
// machine, at 192.168.7.2. Standard output and input are the other side of the
// wire: a line "@fault …" there has it do something, and is answered. The lab's
// TestLabConnections runs them in a guest of two cards.
var (
	near = netip.MustParseAddr("192.168.7.1")
	far  = netip.MustParseAddr("192.168.7.2")
)

// repeats is the least time after which the kernel repeats a message: the peer's CM
// response time-out of 2^20 · 4.096 µs, which it rounds down to 2^12 ms.
const repeats = 4096 * time.Millisecond

const patience = 60 * time.Second // for what is to come at all

func needFar(t *testing.T) {
	t.Helper()
	if os.Getenv("CM_FAR") == "" {
		require.Have(t, "connections", errors.New("it needs a guest of two cards: go test ./lab -run TestLabConnections"))
	}
}

// ontoWire has the wire do something.
func ontoWire(t *testing.T, what string) {
	t.Helper()
	fmt.Printf("@fault %s\n", what)
	answer, err := stdin.ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != "ok" {
		t.Fatalf("%s: %q, %v", what, answer, err)
	}
}

var stdin = bufio.NewReader(os.Stdin)

// there calls f on a thread in the other namespace.
func there(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		fd, err := unix.Open("/run/netns/far", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// pair is a channel for each end, and a listener at the far one.
type pair struct {
	t         *testing.T
	near, far *cm.Channel
	listener  *cm.ID
	to        netip.AddrPort
	qpn       uint32
}

func newPair(t *testing.T) *pair {
	needFar(t)
	p := &pair{t: t, qpn: 0x1000}
	for _, c := range []**cm.Channel{&p.near, &p.far} {
		var err error
		if *c, err = cm.Open(); err != nil {
			t.Fatal(err)
		}
	}
	there(t, func() {
		var err error
		if p.listener, err = p.far.NewID(cm.Connected); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	must(t, p.listener.Bind(netip.AddrPortFrom(far, 0)))
	must(t, p.listener.Listen(64))
	r, err := p.listener.Route()
	must(t, err)
	if p.to = r.Src; p.to.Port() == 0 || p.to.Addr() != far {
		t.Fatalf("the listener is at %s", p.to)
	}
	t.Cleanup(func() {
		ontoWire(t, "lose nothing")
		must(t, errors.Join(p.listener.Close(), p.near.Close(), p.far.Close()))
		noIDs(t)
	})
	return p
}

// noIDs checks that the kernel has no ID of this program left.
func noIDs(t *testing.T) {
	t.Helper()
	for _, ns := range []string{"", "/bin/ip netns exec far "} {
		if left := strings.TrimSpace(run(t, ns+"rdma resource show cm_id")); left != "" {
			t.Errorf("left over: %s", left)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (p *pair) next() uint32 { p.qpn++; return p.qpn }

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// dial makes an ID that is ready to connect.
func (p *pair) dial() *cm.ID {
	p.t.Helper()
	id, err := p.near.NewID(cm.Connected)
	must(p.t, err)
	p.t.Cleanup(func() { _ = id.Close() })
	must(p.t, id.ResolveAddr(patient(p.t), netip.AddrPortFrom(near, 0), p.to))
	must(p.t, id.ResolveRoute(patient(p.t)))
	return id
}

// server does with the next request what f says, and returns its error.
func (p *pair) server(f func(id *cm.ID, peer cm.Param) error) <-chan error {
	done := make(chan error, 1)
	go func() {
		id, peer, err := p.listener.Request(patient(p.t))
		if err == nil {
			err = f(id, peer)
			err = errors.Join(err, id.Close())
		}
		done <- err
	}()
	return done
}

// connection is a connection, both ends of it.
func (p *pair) connection(qpn uint32) (client, server *cm.ID) {
	p.t.Helper()
	got := make(chan *cm.ID, 1)
	failed := make(chan error, 1)
	go func() {
		id, _, err := p.listener.Request(patient(p.t))
		if err == nil {
			if err = id.Answer(cm.Param{QPN: qpn + 0x800000}); err == nil {
				err = id.Established(patient(p.t))
			}
		}
		if err != nil {
			failed <- err
			return
		}
		got <- id
	}()
	client = p.dial()
	_, err := client.Connect(patient(p.t), cm.Param{QPN: qpn})
	must(p.t, err)
	must(p.t, client.Establish())
	select {
	case server = <-got:
	case err := <-failed:
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = server.Close() })
	return client, server
}

// event waits for an event of this type.
func event(t *testing.T, id *cm.ID, want cm.EventType) cm.Event {
	t.Helper()
	for {
		e, err := id.Event(patient(t))
		must(t, err)
		if e.Type == want {
			return e
		}
		t.Logf("also: %s", e.Type)
	}
}

// apart ends a connection from the client's side.
func apart(t *testing.T, client, server *cm.ID) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- client.Disconnect(patient(t)) }()
	event(t, server, cm.Disconnected)
	// Closed at once: an ID that is kept does not answer a repeated DREQ once its own
	// TIMEWAIT is over, which is sooner (cm_dreq_handler in cm.c).
	must(t, errors.Join(server.Disconnect(patient(t)), server.Close()))
	must(t, <-ended)
	must(t, client.Close())
}

// Private data arrives as it is, padded with zeros; what has no room is refused.
func TestKernelPrivateData(t *testing.T) {
	p := newPair(t)
	pattern := bytes.Repeat([]byte("0123456789abc"), 20)
	for _, n := range []int{0, 1, 2, 3, 31, 55, 56} {
		answer := pattern[3 : 3+min(3*n+1, cm.RoomREP)]
		server := p.server(func(id *cm.ID, peer cm.Param) error {
			if want := append(bytes.Clone(pattern[:n]), make([]byte, cm.RoomREQ-n)...); !bytes.Equal(peer.Private, want) {
				return fmt.Errorf("%d bytes: the server got %x", n, peer.Private)
			}
			if err := id.Answer(cm.Param{QPN: 7, Private: answer, Responder: 3, Initiator: 4}); err != nil {
				return err
			}
			return id.Established(patient(t))
		})
		client := p.dial()
		peer, err := client.Connect(patient(t), cm.Param{QPN: p.next(), Private: pattern[:n], Responder: 3, Initiator: 4, Retry: 7, RNRRetry: 7})
		must(t, err)
		if want := append(bytes.Clone(answer), make([]byte, cm.RoomREP-len(answer))...); !bytes.Equal(peer.Private, want) || peer.QPN != 7 {
			t.Errorf("%d bytes: the client got %x of %#x", n, peer.Private, peer.QPN)
		}
		must(t, client.Establish())
		must(t, <-server)
		must(t, client.Close())
	}
	_, err := p.dial().Connect(patient(t), cm.Param{QPN: 1, Private: pattern[:57]})
	if err == nil || !strings.Contains(err.Error(), "room for 56 bytes") {
		t.Errorf("57 bytes: %v", err)
	}
}

func reason(t *testing.T, err error, want roce.RejectReason) {
	t.Helper()
	var r *cm.RejectError
	if !errors.As(err, &r) || r.Reason != want {
		t.Errorf("%v, want reason %v", err, want)
	}
	t.Logf("%v", err)
}

// Each reason that a program meets.
func TestKernelRejects(t *testing.T) {
	p := newPair(t)
	t.Run("invalid service id", func(t *testing.T) {
		there, to := p.to, netip.AddrPortFrom(far, 1)
		p.to = to
		_, err := p.dial().Connect(patient(t), cm.Param{QPN: p.next()})
		p.to = there
		reason(t, err, roce.RejectInvalidServiceID)
	})
	t.Run("consumer defined", func(t *testing.T) {
		server := p.server(func(id *cm.ID, _ cm.Param) error { return id.Reject([]byte("no, not today")) })
		_, err := p.dial().Connect(patient(t), cm.Param{QPN: p.next()})
		must(t, <-server)
		reason(t, err, roce.RejectConsumerDefined)
		var r *cm.RejectError
		if errors.As(err, &r) && (len(r.Private) != cm.RoomREJ || !bytes.HasPrefix(r.Private, []byte("no, not today\x00"))) {
			t.Errorf("private data %q", r.Private)
		}
	})
	t.Run("consumer defined, by closing", func(t *testing.T) {
		server := p.server(func(*cm.ID, cm.Param) error { return nil })
		_, err := p.dial().Connect(patient(t), cm.Param{QPN: p.next()})
		must(t, <-server)
		reason(t, err, roce.RejectConsumerDefined)
	})
	t.Run("stale connection", func(t *testing.T) {
		qpn := p.next()
		client, server := p.connection(qpn)
		_, err := p.dial().Connect(patient(t), cm.Param{QPN: qpn})
		reason(t, err, roce.RejectStaleConnection)
		// The old one is ended for it.
		event(t, client, cm.Disconnected)
		must(t, client.Disconnect(patient(t)))
		event(t, server, cm.Disconnected)
		must(t, errors.Join(client.Close(), server.Close()))
	})
	t.Run("time-out", func(t *testing.T) {
		ontoWire(t, "lose REP all")
		answered := make(chan struct{})
		server := p.server(func(id *cm.ID, _ cm.Param) error {
			if err := id.Answer(cm.Param{QPN: 5}); err != nil {
				return err
			}
			close(answered)
			return id.Established(patient(t))
		})
		client := p.dial()
		ctx, cancel := context.WithCancel(patient(t))
		go func() { <-answered; cancel() }()
		_, err := client.Connect(ctx, cm.Param{QPN: p.next()})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("connected in spite of a wire that loses each REP: %v", err)
		}
		must(t, client.Close())
		reason(t, <-server, roce.RejectTimeout)
		ontoWire(t, "lose nothing")
	})
}

// A message that is lost is repeated, and the connection is made, or ended, all the
// same: later.
func TestKernelLostMessages(t *testing.T) {
	for _, message := range []string{"REQ", "REP", "RTU", "DREQ", "DREP"} {
		t.Run(message, func(t *testing.T) {
			p := newPair(t)
			began := time.Now()
			ontoWire(t, "lose "+message)
			client, server := p.connection(p.next())
			apart(t, client, server)
			took := time.Since(began)
			t.Logf("lost %s: %v", message, took)
			if took < repeats {
				t.Errorf("all done after %v: nothing was lost", took)
			}
		})
	}
}

// A peer that was killed and comes back with the number of its old queue pair is
// refused once, and its old connection ended.
func TestKernelPeerRestarts(t *testing.T) {
	p := newPair(t)
	qpn := p.next()
	client, server := p.connection(qpn)
	ontoWire(t, "lose DREQ all") // nobody hears of its end
	must(t, client.Close())
	ontoWire(t, "lose nothing")
	_, err := p.dial().Connect(patient(t), cm.Param{QPN: qpn})
	reason(t, err, roce.RejectStaleConnection)
	event(t, server, cm.Disconnected)
	must(t, server.Close())
	again, server := p.connection(qpn)
	apart(t, again, server)
}

// netdev returns the network device of a card.
func netdev(t *testing.T, card, in string) string {
	return strings.TrimSpace(run(t, in+"ls /sys/class/infiniband/"+card+"/device/net"))
}

const inFar = "/bin/ip netns exec far "

// reach waits until the far end answers to ping.
const reach = "; for _ in $(seq 200); do ping -c 1 -W 1 192.168.7.2 >/dev/null && exit; sleep 0.1; done; exit 1"

// A link that goes down and up again while a request waits delays it, and ends no
// connection.
func TestKernelLinkFlap(t *testing.T) {
	p := newPair(t)
	client, server := p.connection(p.next())
	second := p.dial()
	answered := p.server(func(id *cm.ID, _ cm.Param) error {
		if err := id.Answer(cm.Param{QPN: 9}); err != nil {
			return err
		}
		return id.Established(patient(t))
	})
	dev := netdev(t, "mlx5_1", inFar)
	run(t, "/bin/ip -n far link set "+dev+" down")
	began := time.Now()
	connected := make(chan error, 1)
	go func() {
		_, err := second.Connect(patient(t), cm.Param{QPN: p.next()})
		connected <- err
	}()
	time.Sleep(time.Second) // the request is lost
	run(t, "/bin/ip -n far link set "+dev+" up"+reach)
	must(t, <-connected)
	if took := time.Since(began); took < repeats {
		t.Errorf("connected after %v: the link was not down", took)
	}
	must(t, second.Establish())
	must(t, <-answered)
	must(t, second.Close())
	apart(t, client, server)
}

// A peer whose MAC address changes while a request waits is not found any more, and
// the kernel says so as soon as its neighbour table knows (from Linux 6.0 on,
// cma_netevent_callback in cma.c); a new request finds it.
func TestKernelPeerChangesMAC(t *testing.T) {
	p := newPair(t)
	ontoWire(t, "lose REQ 1")
	client := p.dial()
	dev := netdev(t, "mlx5_1", inFar)
	was := strings.TrimSpace(run(t, inFar+"cat /sys/class/net/"+dev+"/address"))
	set := func(mac string) {
		run(t, "/bin/ip -n far link set "+dev+" address "+mac+"; /bin/ip neigh flush all"+reach)
	}
	failed := make(chan error, 1)
	began := time.Now()
	go func() {
		_, err := client.Connect(patient(t), cm.Param{QPN: p.next()})
		failed <- err
	}()
	time.Sleep(time.Second) // the request is lost
	set("02:00:00:00:77:02")
	err := <-failed
	t.Logf("after %v: %v", time.Since(began), err)
	var e *cm.EventError
	if !errors.As(err, &e) || e.Event != cm.Unreachable {
		t.Errorf("%v, want UNREACHABLE", err)
	}
	must(t, client.Close())
	again, server := p.connection(p.next())
	apart(t, again, server)
	set(was)
}

// Nobody answers at all: that takes the kernel more than a minute to say.
func TestKernelUnreachable(t *testing.T) {
	if os.Getenv("CM_LONG") == "" {
		require.Have(t, "long-wire", errors.New("it takes two minutes: DEVXLAB_REQUIRE=lab-full,long-wire go test ./lab -run TestLabConnections"))
	}
	p := newPair(t)
	long, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	client, server := p.connection(p.next())
	ontoWire(t, "lose DREQ all")
	ends := make(chan error, 1)
	go func() { ends <- client.Disconnect(long) }()
	ontoWire(t, "lose REQ all")
	began := time.Now()
	_, err := p.dial().Connect(long, cm.Param{QPN: p.next()})
	t.Logf("REQ: after %v: %v", time.Since(began), err)
	var e *cm.EventError
	if !errors.As(err, &e) || e.Event != cm.Unreachable || !errors.Is(err, unix.ETIMEDOUT) || time.Since(began) < 15*repeats {
		t.Errorf("%v after %v, want UNREACHABLE after 16 requests", err, time.Since(began))
	}
	if err := <-ends; !errors.As(err, &e) || e.Event != cm.Disconnected || !errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("an end that nobody answers: %v", err)
	}
	ontoWire(t, "lose nothing")
	must(t, errors.Join(client.Close(), server.Close()))
}
