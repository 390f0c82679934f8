// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"devxlab.example/ebpf"
	"devxlab.example/internal/atomicfile"
)

// micros is a time in µs, with its three further digits as they are: a float would let
// slices that follow each other overlap by a fraction, and Perfetto drops such ones.
type micros time.Duration

// MarshalJSON gives a number.
func (m micros) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%d.%03d", m/1000, m%1000), nil
}

// chromeEvent is an event of the trace event format: a slice of a thread (X), the
// begin, an instant or the end of something that has no thread (b, n, e), or a name (M).
type chromeEvent struct {
	Name     string         `json:"name"`
	Phase    string         `json:"ph"`
	TS       micros         `json:"ts"`
	Dur      *micros        `json:"dur,omitempty"` // of X
	PID      uint32         `json:"pid"`
	TID      uint32         `json:"tid"`
	Category string         `json:"cat,omitempty"` // of b, n, e
	ID       string         `json:"id,omitempty"`  // which of them belong together
	Args     map[string]any `json:"args,omitempty"`
}

// timeline is what Perfetto shows: commands below the thread that sent them, and
// connections, of which a thread has many at once.
type timeline struct {
	events []chromeEvent
	names  map[thread]string
}

type thread struct{ pid, tid uint32 }

// met notes a thread's name.
func (l *timeline) met(pid, tid uint32, name string) {
	if l.names == nil {
		l.names = map[thread]string{}
	}
	if l.names[thread{pid, tid}] == "" {
		l.names[thread{pid, tid}] = name
	}
}

// command adds a command and, below it, its parts.
func (l *timeline) command(rec *ebpf.Record) {
	l.met(rec.Process, rec.Thread, rec.Name)
	slice := func(name string, at, d time.Duration, args map[string]any) {
		dur := micros(d)
		l.events = append(l.events, chromeEvent{Name: name, Phase: "X", TS: micros(at), Dur: &dur, PID: rec.Process, TID: rec.Thread, Args: args})
	}
	if d := rec.Parts[ebpf.Entry]; d != ebpf.NotSeen {
		slice(ebpf.Entry.String(), rec.Began-d, d, nil)
	}
	slice(rec.Op.String(), rec.Began, rec.Parts[ebpf.Whole],
		map[string]any{"qpn": rec.QPN, "uid": rec.UID, "outcome": outcome(rec.Status, rec.Errno), "syndrome": rec.Syndrome})
	at := rec.Began
	for _, p := range []ebpf.Part{ebpf.Prepare, ebpf.Queue, ebpf.Slot, ebpf.Firmware, ebpf.Wake} {
		d := rec.Parts[p]
		if d == ebpf.NotSeen {
			break // where the next one begins is not known either
		}
		slice(p.String(), at, d, nil)
		at += d
	}
}

// connection adds a connection with its parts, and messages that belong to none.
func (l *timeline) connection(c *ebpf.Connection) {
	name := c.Name
	if c.Process == 0 {
		name = "ib_cm" // no process has answered
	}
	l.met(c.Process, c.Thread, name)
	id := fmt.Sprintf("%s %#x %#x %d", side(c.Passive), c.Local, c.Remote, c.Began())
	event := func(name, phase string, at time.Duration, args map[string]any) chromeEvent {
		return chromeEvent{Name: name, Phase: phase, TS: micros(at), PID: c.Process, TID: c.Thread, Category: "connection", ID: id, Args: args}
	}
	var within []chromeEvent
	from, rep := c.Began(), max(c.Sent[ebpf.REP], c.Received[ebpf.REP])
	for _, p := range []ebpf.ConnectionPart{ebpf.Reply, ebpf.Confirm} {
		if d := c.Time(p, 0); d != ebpf.NotSeen {
			within = append(within, event(p.String(), "b", from, nil), event(p.String(), "e", from+d, nil))
		}
		from = rep
	}
	instant := func(name string, at time.Duration) {
		if at != 0 {
			within = append(within, event(name, "n", at, nil))
		}
	}
	for _, m := range []ebpf.Message{ebpf.MRA, ebpf.REJ, ebpf.DREQ, ebpf.DREP} {
		instant(m.String()+" sent", c.Sent[m])
		instant(m.String()+" received", c.Received[m])
	}
	instant("time-wait", c.Timewait)
	slices.SortStableFunc(within, func(a, b chromeEvent) int { return cmp.Compare(a.TS, b.TS) })
	end := c.Ended
	if end == 0 && len(within) > 0 { // what was seen last
		end = time.Duration(within[len(within)-1].TS)
	}
	whole := side(c.Passive) + " connection"
	args := map[string]any{"local id": c.Local, "remote id": c.Remote, "local qpn": c.LocalQPN, "remote qpn": c.RemoteQPN, "device": c.Device, "outcome": ending(c.Outcome, c.Reason)}
	l.events = append(l.events, event(whole, "b", c.Began(), args))
	l.events = append(l.events, within...)
	l.events = append(l.events, event(whole, "e", max(end, c.Began()), nil))
}

// all returns the events, names first.
func (l *timeline) all() []chromeEvent {
	var all []chromeEvent
	processes := map[uint32]string{}
	threads := make([]thread, 0, len(l.names))
	for t := range l.names {
		threads = append(threads, t)
	}
	slices.SortFunc(threads, func(a, b thread) int { return cmp.Or(cmp.Compare(a.pid, b.pid), cmp.Compare(a.tid, b.tid)) })
	for _, t := range threads {
		if processes[t.pid] == "" { // its main thread, if that was met, has the lowest number
			processes[t.pid] = l.names[t]
			all = append(all, chromeEvent{Name: "process_name", Phase: "M", PID: t.pid, TID: t.tid, Args: map[string]any{"name": l.names[t]}})
		}
		all = append(all, chromeEvent{Name: "thread_name", Phase: "M", PID: t.pid, TID: t.tid, Args: map[string]any{"name": l.names[t]}})
	}
	return append(all, l.events...)
}

// write writes the file.
func (l *timeline) write(file string) error {
	err := atomicfile.Create(file, func(w io.Writer) error {
		return json.NewEncoder(w).Encode(map[string]any{"displayTimeUnit": "ns", "traceEvents": append([]chromeEvent{}, l.all()...)})
	})
	if err != nil {
		return fmt.Errorf("--chrome: %w", err)
	}
	return nil
}
