// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"time"

	bpf "github.com/cilium/ebpf"
)

// A Message is one that connection managers send.
type Message uint8

// The messages, as their attribute ids count from 0x10 on (rdma/ib_cm.h).
const (
	REQ Message = iota
	MRA
	REJ
	REP
	RTU
	DREQ
	DREP
	messageCount = iota
)

var messageNames = [messageCount]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP"}

// Messages returns all of them.
func Messages() []Message {
	all := make([]Message, messageCount)
	for i := range all {
		all[i] = Message(i)
	}
	return all
}

func (m Message) String() string {
	if int(m) < len(messageNames) {
		return messageNames[m]
	}
	return "unknown message"
}

// MarshalText gives a message its name in JSON.
func (m Message) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// A ConnectionPart is a span of a connection's time.
type ConnectionPart uint8

// The parts. What is sent counts from where it is handed to ib_mad, and what is
// received from where ib_mad hands it to ib_cm.
const (
	Reply   ConnectionPart = iota // REQ to REP: the active side's whole way, or how long the passive side took
	Confirm                       // REP to RTU
	Work                          // a message received to a worker's start on it
)

func (p ConnectionPart) String() string {
	switch p {
	case Reply:
		return "reply"
	case Confirm:
		return "confirm"
	case Work:
		return "work"
	}
	return "unknown part"
}

// MarshalText gives a part its name in JSON.
func (p ConnectionPart) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// An Outcome is what became of a connection.
type Outcome uint8

// The outcomes.
const (
	Established Outcome = iota // an RTU passed, or a DREQ, which says the same
	Rejected                   // a REJ passed before
	Unanswered                 // a message could not be sent, or no answer came to it and its repetitions
	Dropped                    // destroyed without a word: the peer's REQ is repeated
	Open                       // not ended
)

func (o Outcome) String() string {
	switch o {
	case Established:
		return "established"
	case Rejected:
		return "rejected"
	case Unanswered:
		return "unanswered"
	case Dropped:
		return "dropped"
	case Open:
		return "open"
	}
	return "unknown outcome"
}

// MarshalText gives an outcome its name in JSON.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Connection is one side of a connection of ib_cm. Of one within this machine there
// are two. It ends when its id is destroyed, or when a REQ is refused.
type Connection struct {
	Passive   bool // it was asked for by the peer
	Outcome   Outcome
	Local     uint32 // communication ids; 0: not known, because the peer was not told
	Remote    uint32
	LocalQPN  uint32
	RemoteQPN uint32
	Service   uint64 // service id of the REQ
	Device    string // RDMA device; on kernels without BTF of ib_core, and if it has gone, its place on the bus
	Process   uint32 // that sent the REQ, or answered it by REP or REJ: a worker's where the kernel did; 0: nobody did
	Thread    uint32
	Name      string // of the thread

	// When a message passed first, on CLOCK_MONOTONIC; 0: it did not. Waited is how long
	// one that was received had to wait for a worker.
	Sent, Received, Waited [messageCount]time.Duration
	Timewait               time.Duration // when it entered time-wait; 0: it did not, or CMTimewait's place does not say whose it is
	Ended                  time.Duration // 0: it has not

	Reason   uint16  // of the REJ, sent or received
	Refused  Message // which message that was about: REQ or REP, or REJ for neither
	Retried  uint32  // messages that were sent again
	Repeated uint32  // messages that came again
	Failed   Message // which message was not answered, if Status is not 0
	Status   uint8   // its enum ib_wc_status: 20 is a time-out
}

// Began returns when its REQ passed.
func (c *Connection) Began() time.Duration {
	if c.Passive {
		return c.Received[REQ]
	}
	return c.Sent[REQ]
}

// Time returns how long a part took, or NotSeen; of Work, that of the message.
func (c *Connection) Time(p ConnectionPart, m Message) time.Duration {
	from, to := c.Sent[REQ], c.Received[REP]
	switch {
	case p == Work:
		return seen(0, c.Waited[m])
	case p == Reply && c.Passive:
		from, to = c.Received[REQ], c.Sent[REP]
	case p == Confirm && c.Passive:
		from, to = c.Sent[REP], c.Received[RTU]
	case p == Confirm:
		from, to = c.Received[REP], c.Sent[RTU]
	}
	if from == 0 {
		return NotSeen
	}
	return seen(from, to)
}

func seen(from, to time.Duration) time.Duration {
	if to == 0 {
		return NotSeen
	}
	return to - from
}

// ConnectionTimes is how long a part took in connections of one side: of Work by the
// message received, of the others by the one that ends the part.
type ConnectionTimes struct {
	Part    ConnectionPart `json:"part"`
	Passive bool           `json:"passive"`
	Message Message        `json:"message"`
	Histogram
}

// String says what was timed, in words.
func (t ConnectionTimes) String() string {
	switch t.Part {
	case Reply:
		return "REQ to REP"
	case Confirm:
		return "REP to RTU"
	case Work:
		return t.Message.String() + " waited for a worker"
	}
	return t.Part.String()
}

// Ending is how often connections ended in one way.
type Ending struct {
	Outcome Outcome `json:"outcome"`
	Passive bool    `json:"passive"`
	Reason  uint16  `json:"reason"` // of the REJ
	N       uint64  `json:"n"`
}

// ConnectionTime returns the distribution of a part; of Work, that of a message.
func (s *Snapshot) ConnectionTime(p ConnectionPart, passive bool, m Message) (h Histogram) {
	for _, t := range s.ConnectionTimes {
		if t.Part == p && t.Passive == passive && (p != Work || t.Message == m) {
			h.add(t.Histogram)
		}
	}
	return h
}

// Connections returns connections as they end, like Records.
func (t *Tracer) Connections(ctx context.Context) iter.Seq2[Connection, error] {
	names := deviceNames()
	return records(ctx, t, "connection_records", func(b []byte) (Connection, error) { return parseConnection(b, names) })
}

// OpenConnections returns those that have begun and not ended, in the order of their
// beginning.
func (t *Tracer) OpenConnections() ([]Connection, error) {
	var all []Connection
	var key commandConnectionKey
	var raw commandConnection
	names := deviceNames()
	i := t.objects.Maps["connections"].Iterate()
	for i.Next(&key, &raw) {
		c := newConnection(&raw, names)
		c.Outcome = Open
		if c.Process != 0 || !t.owners { // else nobody has answered it, and it may be another's
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b Connection) int { return cmp.Compare(a.Began(), b.Began()) })
	if err := i.Err(); err != nil {
		return all, fmt.Errorf("connections: %w", err)
	}
	return all, nil
}

// deviceNames returns what RDMA devices are called, by their place on the bus.
func deviceNames() map[string]string {
	names := map[string]string{}
	all, _ := filepath.Glob("/sys/class/infiniband/*/device")
	for _, link := range all {
		if target, err := os.Readlink(link); err == nil {
			names[filepath.Base(target)] = filepath.Base(filepath.Dir(link))
		}
	}
	return names
}

func parseConnection(b []byte, names map[string]string) (Connection, error) {
	var raw commandConnection
	if err := binary.Read(bytes.NewReader(b), binary.NativeEndian, &raw); err != nil {
		return Connection{}, fmt.Errorf("connection of %d bytes: %w", len(b), err)
	}
	return newConnection(&raw, names), nil
}

// newConnection is what the programs say of one.
func newConnection(raw *commandConnection, names map[string]string) Connection {
	c := Connection{Passive: raw.Passive != 0, Outcome: Outcome(raw.Outcome), Local: raw.Local, Remote: raw.Remote, LocalQPN: raw.LocalQpn, RemoteQPN: raw.RemoteQpn,
		Service: raw.Service, Device: text(raw.Device[:]), Process: raw.Tgid, Thread: raw.Tid, Name: text(raw.Comm[:]),
		Timewait: time.Duration(raw.Timewait), Ended: time.Duration(raw.Ended),
		Reason: raw.Reason, Retried: raw.Retried, Repeated: raw.Repeated, Failed: Message(raw.Failed), Status: raw.Status}
	if name, known := names[c.Device]; known {
		c.Device = name
	}
	for i := range messageCount {
		c.Sent[i], c.Received[i], c.Waited[i] = time.Duration(raw.Sent[i]), time.Duration(raw.Received[i]), time.Duration(raw.Waited[i])
	}
	if c.Sent[REJ] != 0 || c.Received[REJ] != 0 {
		c.Refused = [...]Message{REQ, REP, REJ, REJ}[raw.Rejected&3] // enum cm_msg_response
	}
	return c
}

// readConnections reads what was counted of them.
func (t *Tracer) readConnections(s *Snapshot) error {
	times := map[commandConnectionBucketKey]*Histogram{}
	var bk commandConnectionBucketKey
	var n uint64
	i := t.objects.Maps["connection_buckets"].Iterate()
	for i.Next(&bk, &n) {
		index := bk.Bucket
		bk.Bucket = 0
		if times[bk] == nil {
			times[bk] = &Histogram{}
		}
		times[bk].put(index, n)
	}
	if err := i.Err(); err != nil {
		return fmt.Errorf("histograms of connections: %w", err)
	}
	for k, h := range times {
		h.sort()
		s.ConnectionTimes = append(s.ConnectionTimes, ConnectionTimes{ConnectionPart(k.Part), k.Passive != 0, Message(k.Message), *h})
	}
	return readMap(t.objects.Maps["outcomes"], func(k commandOutcomeKey, n uint64) {
		s.Endings = append(s.Endings, Ending{Outcome(k.Outcome), k.Passive != 0, k.Reason, n})
	})
}

// readMap calls f for each entry of a map of numbers.
func readMap[K any](m *bpf.Map, f func(key K, n uint64)) error {
	var k K
	var n uint64
	i := m.Iterate()
	for i.Next(&k, &n) {
		f(k, n)
	}
	if err := i.Err(); err != nil {
		return fmt.Errorf("%s: %w", m, err)
	}
	return nil
}

// connectionsSince fills in d, which is what was counted after old.
func (s *Snapshot) connectionsSince(old, d *Snapshot) {
	for _, t := range s.ConnectionTimes {
		for _, o := range old.ConnectionTimes {
			if o.Part == t.Part && o.Passive == t.Passive && o.Message == t.Message {
				t.minus(o.Histogram)
			}
		}
		if t.n > 0 {
			d.ConnectionTimes = append(d.ConnectionTimes, t)
		}
	}
	for _, x := range s.Endings {
		for _, o := range old.Endings {
			if o.Outcome == x.Outcome && o.Passive == x.Passive && o.Reason == x.Reason {
				x.N -= o.N
			}
		}
		if x.N > 0 {
			d.Endings = append(d.Endings, x)
		}
	}
}

// sortConnections brings what was read in an order of its own.
func (s *Snapshot) sortConnections() {
	side := func(passive bool) int {
		if passive {
			return 1
		}
		return 0
	}
	slices.SortFunc(s.ConnectionTimes, func(a, b ConnectionTimes) int {
		return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(side(a.Passive), side(b.Passive)), cmp.Compare(a.Message, b.Message))
	})
	slices.SortFunc(s.Endings, func(a, b Ending) int {
		return cmp.Or(cmp.Compare(side(a.Passive), side(b.Passive)), cmp.Compare(a.Outcome, b.Outcome), cmp.Compare(a.Reason, b.Reason))
	})
}
