// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"devxlab.example/mlx5"
)

// Faults of the wire and of the peer, at their exact times. A frame takes
// linkDelay, and nothing else takes time.

// roundTrip is from a request to its acknowledgement.
const roundTrip = 2 * linkDelay

// pass is the fate of a frame that nothing happens to.
var pass = []time.Duration{0}

// lose returns a fate that loses the packets of those numbers, from 1 on.
func lose(numbers ...int) fate {
	n := 0
	return func([]byte) []time.Duration {
		if n++; slices.Contains(numbers, n) {
			return nil
		}
		return pass
	}
}

// counts are Q counters by the driver's names; those not named are 0.
type counts map[string]uint32

var qCounters = map[string]func(mlx5.QueryQCounterOut) uint32{
	"local_ack_timeout_err":      mlx5.QueryQCounterOut.LocalAckTimeoutErr,
	"packet_seq_err":             mlx5.QueryQCounterOut.PacketSeqErr,
	"implied_nak_seq_err":        mlx5.QueryQCounterOut.ImpliedNakSeqErr,
	"rnr_nak_retry_err":          mlx5.QueryQCounterOut.RNRNakRetryErr,
	"out_of_sequence":            mlx5.QueryQCounterOut.OutOfSequence,
	"duplicate_request":          mlx5.QueryQCounterOut.DuplicateRequest,
	"out_of_buffer":              mlx5.QueryQCounterOut.OutOfBuffer,
	"req_cqe_error":              mlx5.QueryQCounterOut.ReqCQEError,
	"req_cqe_flush_error":        mlx5.QueryQCounterOut.ReqCQEFlushError,
	"resp_cqe_error":             mlx5.QueryQCounterOut.RespCQEError,
	"resp_cqe_flush_error":       mlx5.QueryQCounterOut.RespCQEFlushError,
	"req_remote_access_errors":   mlx5.QueryQCounterOut.ReqRemoteAccessErrors,
	"resp_remote_access_errors":  mlx5.QueryQCounterOut.RespRemoteAccessErrors,
	"req_remote_invalid_request": mlx5.QueryQCounterOut.ReqRemoteInvalidRequest,
}

// counted compares all of them.
func (e *end) counted(what string, want counts) {
	e.t.Helper()
	for name, get := range qCounters {
		if got := e.counter(get); got != want[name] {
			e.t.Errorf("%s: %s is %d, want %d", what, name, got, want[name])
		}
	}
}

// until lets time pass to an instant, and looks just before it whether nothing is
// complete yet.
func (e *end) until(what string, at time.Duration) {
	e.t.Helper()
	e.n.clock.SleepUntil(at - 1)
	e.expect(what + ", too early")
	e.n.run(1)
	for e.n.clock.Now() == at && !e.h.port.idle() {
		e.n.run(1) // it is due now, and done within the instant
	}
}

// A lost acknowledgement costs one time-out; the request is sent again, and not
// executed again.
func TestLostAck(t *testing.T) {
	n, a, b := newPair(t, mlx5.STRC, usual)
	n.link[1].set(lose(1))
	b.recv(0, 64)
	b.recv(64, 64)
	start := n.clock.Now()
	a.post(work{op: opSend, n: 10})
	a.until("lost ACK", start+ackUnit<<usual.timeout+roundTrip)
	a.expect("lost ACK", done{wqe: opSend})
	b.expect("lost ACK", done{op: cqeRecvSend, n: 10})
	n.run(time.Second)
	b.expect("once")
	a.counted("requester", counts{"local_ack_timeout_err": 1})
	b.counted("responder", counts{"duplicate_request": 1})
}

// Whatever is doubled is executed once and completes once.
func TestDoubledPackets(t *testing.T) {
	n, a, b := newPair(t, mlx5.STRC, usual)
	for _, l := range n.link {
		l.set(func([]byte) []time.Duration { return []time.Duration{0, 0} })
	}
	b.recv(0, 1024)
	a.post(work{op: opSend, n: 1000}, work{op: opFetchAdd, n: 8, va: b.mem + 0x8000, rkey: b.key, a: 1}, work{op: opRead, off: 0x1000, n: 1000, va: b.mem, rkey: b.key})
	n.run(time.Second)
	a.expect("requester", done{wqe: opSend}, done{wqe: opFetchAdd, n: 8}, done{wqe: opRead, n: 1000})
	b.expect("responder", done{op: cqeRecvSend, n: 1000})
	if got := binary.LittleEndian.Uint64(b.at(0x8000, 8)); got != 1 {
		t.Errorf("added %d times", got)
	}
	a.counted("requester", counts{})
	b.counted("responder", counts{"duplicate_request": 4 + 1 + 1})
	if a.state() != mlx5.StateRTS || b.state() != mlx5.StateRTS {
		t.Errorf("states %v, %v", a.state(), b.state())
	}
}

// A packet that others overtake is asked for once, without a time-out; it comes
// twice then.
func TestReorderedPacket(t *testing.T) {
	n, a, b := newPair(t, mlx5.STRC, usual)
	sent := 0
	n.link[0].set(func([]byte) []time.Duration {
		if sent++; sent == 2 {
			return []time.Duration{10 * linkDelay}
		}
		return pass
	})
	data := a.fill(0, 1000, 7)
	b.recv(0, 1024)
	a.post(work{op: opSend, n: len(data)})
	n.run(100 * time.Microsecond)
	a.expect("requester", done{wqe: opSend})
	b.expect("responder", done{op: cqeRecvSend, n: 1000})
	if !slices.Equal(b.at(0, 1000), data) {
		t.Error("other data")
	}
	a.counted("requester", counts{"packet_seq_err": 1})
	b.counted("responder", counts{"out_of_sequence": 2, "duplicate_request": 1})
}

// A lost response of a READ is noticed by the next one, and asked for from there;
// the last one of all by the time-out.
func TestLostReadResponse(t *testing.T) {
	for _, c := range []struct {
		lost int
		late time.Duration
		want counts
	}{
		{2, 0, counts{"implied_nak_seq_err": 1}},
		{4, ackUnit << usual.timeout, counts{"local_ack_timeout_err": 1}},
	} {
		n, a, b := newPair(t, mlx5.STRC, usual)
		n.link[1].set(lose(c.lost))
		data := b.fill(0, 1000, 9)
		start := n.clock.Now()
		a.post(work{op: opRead, n: len(data), va: b.mem, rkey: b.key})
		a.until("READ", start+roundTrip+c.late+roundTrip)
		a.expect("READ", done{wqe: opRead, n: 1000})
		if !slices.Equal(a.at(0, 1000), data) {
			t.Error("other data")
		}
		a.counted("requester", c.want)
		b.counted("responder", counts{"duplicate_request": 1})
	}
}

// A peer whose queue pair is in ERR says nothing, so that it looks as a dead one
// does. With a time-out of 14 and 7 retries that is 8 · 67.1 ms.
func TestPeerInErr(t *testing.T) {
	for _, timeout := range []uint8{8, 14} {
		o := usual
		o.timeout = timeout
		n, a, b := newPair(t, mlx5.STRC, o)
		b.recv(0, 64)
		b.must(about(mlx5.Op2ERR, 0, b.qpn))
		start := n.clock.Now()
		a.post(work{op: opSend, n: 10}, work{op: opSend, n: 10})
		a.until("peer in ERR", start+8*(ackUnit<<timeout))
		a.expect("peer in ERR", done{op: cqeRequestErr, syndrome: 0x15, vendor: 0x81, wqe: opSend}, done{op: cqeRequestErr, syndrome: 0x05, vendor: 0xf9, wqe: opSend})
		b.expect("peer in ERR", done{op: cqeRecvErr, syndrome: 0x05, vendor: 0xf9})
		a.counted("requester", counts{"local_ack_timeout_err": 8, "req_cqe_error": 2, "req_cqe_flush_error": 1})
		b.counted("responder", counts{"resp_cqe_error": 1, "resp_cqe_flush_error": 1})
		if a.state() != mlx5.StateErr || b.state() != mlx5.StateErr {
			t.Errorf("states %v, %v", a.state(), b.state())
		}
	}
}

// A profile may say that its device waits longer than the attribute. What is
// published of a ConnectX-6 are 3.5 to 3.8 s for every time-out from 10 to 16,
// and 58 s for 20.
func TestProfileAckTimeout(t *testing.T) {
	p, err := ProfileByName("published")
	if err != nil {
		t.Fatal(err)
	}
	for timeout, want := range map[uint8][2]time.Duration{
		10: {3500 * time.Millisecond, 3800 * time.Millisecond},
		16: {3500 * time.Millisecond, 3800 * time.Millisecond},
		20: {57500 * time.Millisecond, 58500 * time.Millisecond},
	} {
		o := usual
		o.timeout = timeout
		n := newNet(t)
		a, b := n.end(0, mlx5.STRC), n.end(1, mlx5.STRC)
		slow := *n.host[0].h.profile
		slow.AckTimeout = p.AckTimeout
		n.host[0].h.profile = &slow
		n.connect(a, b, o)
		n.link[0].set(func([]byte) []time.Duration { return nil })
		a.post(work{op: opSend, n: 10})
		n.run(want[0])
		a.expect("too early")
		n.run(want[1] - want[0])
		a.expect("dead peer", done{op: cqeRequestErr, syndrome: 0x15, vendor: 0x81, wqe: opSend})
	}
}

// Retries of an RNR NAK come exactly after its delay. What moves when they are
// used up is as recorded on a card: out_of_buffer there, rnr_nak_retry_err and
// req_cqe_error here, each by 1 if there is no retry.
func TestRNRTimes(t *testing.T) {
	const delay = 1280 * time.Microsecond // code 14
	for _, retries := range []uint8{0, 1, 3} {
		o := usual
		o.rnr, o.minRNR = retries, 14
		n, a, b := newPair(t, mlx5.STRC, o)
		start := n.clock.Now()
		a.post(work{op: opSend, n: 10})
		tries := time.Duration(retries) + 1
		a.until("RNR", start+tries*roundTrip+(tries-1)*delay)
		a.expect("RNR", done{op: cqeRequestErr, syndrome: 0x16, vendor: 0x87, wqe: opSend})
		a.counted("requester", counts{"rnr_nak_retry_err": uint32(tries), "req_cqe_error": 1})
		b.counted("responder", counts{"out_of_buffer": uint32(tries)})
		if a.state() != mlx5.StateErr || b.state() != mlx5.StateRTS {
			t.Errorf("states %v, %v", a.state(), b.state())
		}
	}
	o := usual
	o.rnr, o.minRNR = rnrForever, 14
	n, a, b := newPair(t, mlx5.STRC, o)
	start := n.clock.Now()
	a.post(work{op: opSend, n: 10})
	const period = roundTrip + delay
	n.clock.SleepUntil(start + 1000*period - 1)
	a.expect("for ever")
	b.recv(0, 64)
	a.until("for ever", start+1000*period+roundTrip)
	a.expect("for ever", done{wqe: opSend})
	a.counted("requester", counts{"rnr_nak_retry_err": 1000})
	b.counted("responder", counts{"out_of_buffer": 1000})
}

// Each kind of atomic is executed once, whether its request, its response or one
// after the other is lost.
func TestAtomicsOnce(t *testing.T) {
	for _, c := range []struct {
		name        string
		there, back []int
		duplicates  uint32
	}{
		{name: "request", there: []int{1}},
		{name: "response", back: []int{1}, duplicates: 1},
		{name: "both", there: []int{1}, back: []int{1}, duplicates: 1},
		{name: "responses", back: []int{1, 2, 3, 4, 5, 6, 7}, duplicates: 7},
	} {
		for _, w := range []work{{op: opFetchAdd, n: 8, a: 5}, {op: opCAS, n: 8, a: 5, b: 0}} {
			n, a, b := newPair(t, mlx5.STRC, usual)
			n.link[0].set(lose(c.there...))
			n.link[1].set(lose(c.back...))
			w.va, w.rkey = b.mem, b.key
			a.fill(0, 8, 0xff)
			start := n.clock.Now()
			a.post(w)
			lost := time.Duration(len(c.there) + len(c.back))
			a.until(c.name, start+lost*(ackUnit<<usual.timeout)+roundTrip)
			a.expect(c.name, done{wqe: w.op, n: 8})
			if was, is := binary.LittleEndian.Uint64(a.at(0, 8)), binary.LittleEndian.Uint64(b.at(0, 8)); was != 0 || is != 5 {
				t.Errorf("%s, operation %#x: was %d, is %d", c.name, w.op, was, is)
			}
			a.counted(c.name, counts{"local_ack_timeout_err": uint32(lost)})
			b.counted(c.name, counts{"duplicate_request": c.duplicates})
		}
	}
}

// A wire that is far longer than the time-out, varies and loses: everything is
// sent again before its acknowledgement can be there, and all completes once.
func TestLossyAndLong(t *testing.T) {
	o := usual
	o.timeout = 14
	n, a, b := newPair(t, mlx5.STRC, o)
	for i, l := range n.link {
		r := rand.New(rand.NewPCG(7, uint64(i)))
		l.set(func([]byte) []time.Duration {
			if r.IntN(100) < 5 {
				return nil
			}
			return []time.Duration{90*time.Millisecond + time.Duration(r.Int64N(int64(20*time.Millisecond)))}
		})
	}
	const messages = 12
	var want, arrive []done
	for i := range messages {
		b.recv(i*1024, 1024)
		a.post(work{op: opSend, n: 1000}, work{op: opFetchAdd, off: 0x4000, n: 8, va: b.mem + 0x8000, rkey: b.key, a: 1})
		want = append(want, done{wqe: opSend}, done{wqe: opFetchAdd, n: 8})
		arrive = append(arrive, done{op: cqeRecvSend, n: 1000})
	}
	n.run(time.Minute)
	a.expect("requester", want...)
	b.expect("responder", arrive...)
	if got := binary.LittleEndian.Uint64(b.at(0x8000, 8)); got != messages {
		t.Errorf("added %d times", got)
	}
	for e, name := range map[*end]string{a: "local_ack_timeout_err", b: "duplicate_request"} {
		if e.counter(qCounters[name]) == 0 {
			t.Errorf("%s did not move", name)
		}
	}

	if a.state() != mlx5.StateRTS || b.state() != mlx5.StateRTS {
		t.Errorf("states %v, %v", a.state(), b.state())
	}
}

// A queue pair that is put into ERR or RESET amid the responses of a READ sends no
// more than what it had already given to the port.
func TestReadEndsWithQP(t *testing.T) {
	for _, op := range []mlx5.Op{mlx5.Op2ERR, mlx5.Op2RST} {
		n, a, b := newPair(t, mlx5.STRC, usual)
		sent := 0
		n.link[1].set(func([]byte) []time.Duration {
			if sent++; sent == 20 {
				b.must(about(op, 0, b.qpn))
			}
			return pass
		})
		a.post(work{op: opRead, n: 40000, va: b.mem, rkey: b.key})
		n.run(9 * (ackUnit << usual.timeout))
		if sent > 2*turnPackets {
			t.Errorf("%v: %d packets sent", op, sent)
		}
		a.expect("READ", done{op: cqeRequestErr, syndrome: 0x15, vendor: 0x81, wqe: opRead})
	}
}

// A queue pair that went to ERR because of what it was asked answers what was
// asked before, then says why, and nothing more.
func TestNakIsTheLast(t *testing.T) {
	n, a, b := newPair(t, mlx5.STRC, usual)
	a.post(work{op: opRead, n: 5000, va: b.mem, rkey: b.key}, work{op: opWrite, n: 8, va: b.mem, rkey: b.key + 1}, work{op: opFetchAdd, n: 8, va: b.mem, rkey: b.key})
	n.run(time.Millisecond)
	a.expect("requester", done{wqe: opRead, n: 5000}, done{op: cqeRequestErr, syndrome: 0x13, vendor: 0x88, wqe: opWrite}, done{op: cqeRequestErr, syndrome: 0x05, vendor: 0xf9, wqe: opFetchAdd})
	packets := n.link[1].sent(t)
	if last := packets[len(packets)-1]; len(packets) != 21 || last.op != pktAck {
		t.Errorf("%d packets, the last of opcode %#x", len(packets), last.op)
	}
}

// A receive entry is flushed however long the queue pair has been in ERR.
func TestFlushLate(t *testing.T) {
	n, a, _ := newPair(t, mlx5.STRC, usual)
	a.must(about(mlx5.Op2ERR, 0, a.qpn))
	for _, wait := range []time.Duration{time.Second, time.Minute, time.Hour} {
		n.run(wait)
		a.recv(0, 8)
		n.run(firstPoll << maxPolls)
		a.expect(wait.String(), done{op: cqeRecvErr, syndrome: 0x05, vendor: 0xf9})
	}
	a.must(about(mlx5.Op2RST, 0, a.qpn))
	a.recv(0, 8)
	n.run(time.Minute)
	a.expect("RESET")
}

// looper is a wire that is shown what the port sends to itself.
type looper struct {
	cable
	looped int
}

func (l *looper) Looped([]byte) { l.looped++ }

// What a card sends to itself goes to no wire, but a wire may look at it.
func TestLooper(t *testing.T) {
	n := newNetOf(t, 1)
	l := &looper{cable: cable{timers: timers{clock: n.clock}, to: n.host[0].h}}
	n.host[0].h.Connect(l)
	a, b := n.end(0, mlx5.STRC), n.end(0, mlx5.STRC)
	n.connect(a, b, usual)
	b.recv(0, 1024)
	a.post(work{op: opSend, n: 1000})
	n.run(time.Millisecond)
	a.expect("requester", done{wqe: opSend})
	b.expect("responder", done{op: cqeRecvSend, n: 1000})
	if l.looped != 4+1 || len(l.frames) != 0 { // a message of four packets, and its acknowledgement
		t.Errorf("%d frames looped, %d on the wire", l.looped, len(l.frames))
	}
}
