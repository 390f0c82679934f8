// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"devxlab.example/cm/roce"
	"devxlab.example/ebpf"
)

// connectionLine is a connection as JSON. Times are CLOCK_MONOTONIC; what did not
// happen is not there.
type connectionLine struct {
	Type       string           `json:"type"` // connection
	Outcome    string           `json:"outcome"`
	Passive    bool             `json:"passive"`
	LocalID    uint32           `json:"local_id"`
	RemoteID   uint32           `json:"remote_id"`
	LocalQPN   uint32           `json:"local_qpn"`
	RemoteQPN  uint32           `json:"remote_qpn"`
	Service    uint64           `json:"service_id"`
	Device     string           `json:"device"`
	PID        uint32           `json:"pid"`
	TID        uint32           `json:"tid"`
	Name       string           `json:"name"`
	SentNS     map[string]int64 `json:"sent_ns"`
	ReceivedNS map[string]int64 `json:"received_ns"`
	WaitedNS   map[string]int64 `json:"waited_ns"` // each received message, for a worker
	TimewaitNS int64            `json:"timewait_ns,omitempty"`
	EndedNS    int64            `json:"ended_ns,omitempty"`
	Reason     uint16           `json:"reason,omitempty"` // of the REJ
	Refused    string           `json:"refused,omitempty"`
	Retried    uint32           `json:"retried"`
	Repeated   uint32           `json:"repeated"`
	Failed     string           `json:"failed,omitempty"` // message without an answer
	Status     uint8            `json:"status,omitempty"` // its ib_wc_status
}

func newConnectionLine(c *ebpf.Connection) *connectionLine {
	l := &connectionLine{Type: "connection", Outcome: c.Outcome.String(), Passive: c.Passive, LocalID: c.Local, RemoteID: c.Remote,
		LocalQPN: c.LocalQPN, RemoteQPN: c.RemoteQPN, Service: c.Service, Device: c.Device, PID: c.Process, TID: c.Thread, Name: c.Name,
		SentNS: map[string]int64{}, ReceivedNS: map[string]int64{}, WaitedNS: map[string]int64{},
		TimewaitNS: c.Timewait.Nanoseconds(), EndedNS: c.Ended.Nanoseconds(), Reason: c.Reason, Retried: c.Retried, Repeated: c.Repeated, Status: c.Status}
	for _, m := range ebpf.Messages() {
		for _, x := range []struct {
			to map[string]int64
			at time.Duration
		}{{l.SentNS, c.Sent[m]}, {l.ReceivedNS, c.Received[m]}, {l.WaitedNS, c.Waited[m]}} {
			if x.at != 0 {
				x.to[m.String()] = x.at.Nanoseconds()
			}
		}
	}
	if c.Sent[ebpf.REJ] != 0 || c.Received[ebpf.REJ] != 0 {
		l.Refused = c.Refused.String()
	}
	if c.Status != 0 {
		l.Failed = c.Failed.String()
	}
	return l
}

// side is which one a connection's record is of.
func side(passive bool) string {
	if passive {
		return "passive"
	}
	return "active"
}

// ending is what became of a connection, in words.
func ending(o ebpf.Outcome, reason uint16) string {
	if reason != 0 {
		return o.String() + ": " + roce.RejectReason(reason).String()
	}
	return o.String()
}

// connectionText is a connection in a line.
func connectionText(c *ebpf.Connection) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.6f %s", c.Began().Seconds(), side(c.Passive))
	if c.Process != 0 {
		fmt.Fprintf(&b, " %s[%d]", printable(c.Name), c.Thread)
	}
	fmt.Fprintf(&b, " %s id %#x to %#x QP %#x to %#x service %#x: %s", c.Device, c.Local, c.Remote, c.LocalQPN, c.RemoteQPN, c.Service, ending(c.Outcome, c.Reason))
	if c.Status != 0 {
		fmt.Fprintf(&b, ", no answer to %s: status %d", c.Failed, c.Status)
	}
	for _, p := range []ebpf.ConnectionPart{ebpf.Reply, ebpf.Confirm} {
		if d := c.Time(p, 0); d != ebpf.NotSeen {
			fmt.Fprintf(&b, " %s %v", p, d)
		}
	}
	for _, m := range ebpf.Messages() {
		if d := c.Time(ebpf.Work, m); d != ebpf.NotSeen {
			fmt.Fprintf(&b, " %s waited %v", m, d)
		}
	}
	for _, x := range []struct {
		n    uint32
		what string
	}{{c.Retried, "sent again"}, {c.Repeated, "received again"}} {
		if x.n > 0 {
			fmt.Fprintf(&b, " %s %d", x.what, x.n)
		}
	}
	return b.String()
}

// traceCMTimes and traceEnding are parts of the report.
type traceCMTimes struct {
	Part    string `json:"part"`
	Passive bool   `json:"passive"`
	Message string `json:"message"`
	N       uint64 `json:"n"`
	MeanNS  int64  `json:"mean_ns"`
	P50NS   int64  `json:"p50_ns"`
	P99NS   int64  `json:"p99_ns"`
}

type traceEnding struct {
	Outcome string `json:"outcome"`
	Passive bool   `json:"passive"`
	Reason  uint16 `json:"reason"`
	N       uint64 `json:"n"`
}

func cmTimes(s *ebpf.Snapshot) []traceCMTimes {
	all := []traceCMTimes{}
	for _, t := range s.ConnectionTimes {
		all = append(all, traceCMTimes{t.Part.String(), t.Passive, t.Message.String(), t.Count(),
			t.Mean().Nanoseconds(), t.Quantile(0.5).Nanoseconds(), t.Quantile(0.99).Nanoseconds()})
	}
	return all
}

func cmEndings(s *ebpf.Snapshot) []traceEnding {
	all := []traceEnding{}
	for _, x := range s.Endings {
		all = append(all, traceEnding{x.Outcome.String(), x.Passive, x.Reason, x.N})
	}
	return all
}

// connectionTables show how connections ended in a time, and how long their parts
// took, if there were any.
func connectionTables(e *env, s *ebpf.Snapshot, open int, took time.Duration) error {
	if len(s.Endings) > 0 || open > 0 {
		rows := [][]string{{"connections", "side", "ended", "per second"}}
		for _, x := range s.Endings {
			rows = append(rows, []string{ending(x.Outcome, x.Reason), side(x.Passive), strconv.FormatUint(x.N, 10), fmt.Sprintf("%.1f", float64(x.N)/took.Seconds())})
		}
		fmt.Fprintf(e.out, "\nconnections open: %d\n", open)
		if err := e.table(rows); err != nil {
			return err
		}
	}
	if len(s.ConnectionTimes) == 0 {
		return nil
	}
	rows := [][]string{{"part of a connection", "side", "n", "P50/P99"}}
	for _, t := range s.ConnectionTimes {
		rows = append(rows, []string{t.String(), side(t.Passive), strconv.FormatUint(t.Count(), 10), quantiles(t.Histogram)})
	}
	fmt.Fprintln(e.out)
	return e.table(rows)
}
