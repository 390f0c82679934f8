// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"devxlab.example/cm/timeout"
)

type cmTimeoutCmd struct {
	Timeout           int `default:"14" help:"Local ACK time-out of the queue pair, 0 to 31: 4.096 µs · 2^N; 0 is none." placeholder:"N"`
	Retry             int `default:"7" help:"retry_cnt, 0 to 7." placeholder:"N"`
	RNRRetry          int `name:"rnr-retry" default:"7" help:"rnr_retry, 0 to 7; 7 is for ever." placeholder:"N"`
	MinRNRTimer       int `name:"min-rnr-timer" default:"12" help:"min_rnr_timer of the peer, 0 to 31: a code; 12 is 0.64 ms, 0 the longest, 655.36 ms." placeholder:"CODE"`
	CMResponseTimeout int `name:"cm-response-timeout" default:"20" help:"Response time-out of the CM, 0 to 31; of rdma_cm 20." placeholder:"N"`
	CMRetries         int `name:"cm-retries" default:"15" help:"Repetitions of a CM message, 0 to 15; of rdma_cm 15." placeholder:"N"`
	Lifetime          int `default:"18" help:"Packet life time of the path, 0 to 31; of rdma_cm on RoCE 18 in Linux 5.15 and 6.1, 16 in 6.12." placeholder:"N"`
	AckDelay          int `name:"ack-delay" default:"16" help:"local_ca_ack_delay of the devices, 0 to 31; of ConnectX 16." placeholder:"N"`
	MRA               int `name:"mra" default:"24" help:"Service time-out that an MRA asks for, 0 to 31; of rdma_cm 24." placeholder:"N"`
}

// cmTimeouts is what cm timeout says; times in nanoseconds.
type cmTimeouts struct {
	AckTimeout time.Duration   `json:"ack_timeout_ns"` // of one try; 0: none
	NoAck      timeout.Wait    `json:"retry_exceeded"` // completion 12
	Cards      []cmCard        `json:"cards"`
	RNRDelay   time.Duration   `json:"rnr_delay_ns"`
	NotReady   timeout.Wait    `json:"rnr_retry_exceeded"` // completion 13
	CMTimeout  int             `json:"cm_ack_timeout"`     // that rdma_cm gives a queue pair
	Phases     []timeout.Phase `json:"cm"`
	Notes      []string        `json:"notes,omitempty"`
}

type cmCard struct {
	Name     string       `json:"name"`
	NoAck    timeout.Wait `json:"retry_exceeded"`
	Measured string       `json:"measured"`
	Why      string       `json:"why"`
}

func (c *cmTimeoutCmd) Run(e *env) error {
	q := timeout.QP{AckTimeout: c.Timeout, RetryCount: c.Retry, RNRRetry: c.RNRRetry, MinRNRTimer: c.MinRNRTimer}
	cm := timeout.CM{ResponseTimeout: c.CMResponseTimeout, Retries: c.CMRetries, Lifetime: c.Lifetime, AckDelay: c.AckDelay, ServiceTimeout: c.MRA}
	var t cmTimeouts
	var err error
	if t.NoAck, err = q.NoAck(); err != nil {
		return usageError{err}
	}
	if t.Phases, err = cm.Phases(); err != nil {
		return usageError{err}
	}
	for _, card := range timeout.Cards {
		w, err := q.NoAckOf(card)
		if err != nil {
			return err
		}
		t.Cards = append(t.Cards, cmCard{card.Name, w, card.Measured, card.Why})
	}
	if t.NotReady, err = q.NotReady(); err != nil {
		return err
	}
	if c.Timeout > 0 {
		t.AckTimeout = timeout.Exp(c.Timeout)
	}
	t.RNRDelay, t.CMTimeout, t.Notes = timeout.RNRDelay(c.MinRNRTimer), cm.AckTimeout(), q.Notes()
	if e.asJSON {
		return e.json(t)
	}
	return c.show(e, &t)
}

func (c *cmTimeoutCmd) show(e *env, t *cmTimeouts) error {
	ack := "there is no time-out"
	if !t.NoAck.Forever {
		ack = fmt.Sprintf("%d · %s (time-out %d); a device may take up to four times as long: %s", c.Retry+1, short(t.AckTimeout), c.Timeout, short(t.NoAck.Most))
	}
	rnr := fmt.Sprintf("each %s (code %d) and a round trip", short(t.RNRDelay), c.MinRNRTimer)
	if !t.NotReady.Forever {
		rnr = fmt.Sprintf("%d · %s (code %d), and %d round trips", c.RNRRetry, short(t.RNRDelay), c.MinRNRTimer, c.RNRRetry+1)
	}
	rows := [][]string{{"queue pair", "what comes", "after", "that is"}, {"no acknowledgement", "completion 12/0x81", ends(t.NoAck, " or more"), ack}}
	for _, card := range t.Cards {
		rows = append(rows, []string{"  by a " + card.Name, "", ends(card.NoAck, ""), card.Measured})
	}
	rows = append(rows, []string{"no receive entry", "completion 13/0x87", ends(t.NotReady, " or more"), rnr}, nil, []string{"rdma_cm"})
	for _, p := range t.Phases {
		rows = append(rows, []string{p.Name, p.Event, short(p.Total), fmt.Sprintf("%d · %s", p.Tries, short(p.Each))})
	}
	rows[len(rows)-len(t.Phases)+1][3] += " but for the first"
	if err := e.table(rows); err != nil {
		return err
	}
	var b strings.Builder
	for _, text := range append(c.remarks(t), t.Notes...) {
		b.WriteByte('\n')
		fill(&b, "", strings.Fields(text+"."))
	}
	_, err := io.WriteString(e.out, b.String())
	return err
}

func (c *cmTimeoutCmd) remarks(t *cmTimeouts) []string {
	texts := []string{fmt.Sprintf("A queue pair that rdma_cm connects has time-out %d (%s) and, of the peer, min_rnr_timer 0 (%s). "+
		"The kernel's timers are late by up to an eighth: its 16 · 6.144 s took 102 s", t.CMTimeout, short(timeout.Exp(t.CMTimeout)), short(timeout.RNRDelay(0)))}
	for _, card := range t.Cards {
		texts = append(texts, card.Name+": "+card.Why)
	}
	return texts
}

func ends(w timeout.Wait, more string) string {
	switch {
	case w.Forever:
		return "never"
	case more == "" && w.Most != w.Least:
		return short(w.Least) + " to " + short(w.Most)
	}
	return short(w.Least) + more
}

// short writes a time with three digits that count, hours and minutes as Go does.
func short(d time.Duration) string {
	for unit := time.Nanosecond; ; unit *= 10 {
		if r := d.Round(unit); unit >= time.Second || d < 1000*unit {
			return r.String()
		}
	}
}

type cmCausesCmd struct {
	Symptom []string `arg:"" optional:"" help:"What was seen: an event and its status (UNREACHABLE -110, REJECTED 10), a completion (12/0x81), an errno (110). Without it all symptoms are listed."`
}

func (c *cmCausesCmd) Run(e *env) error {
	found := timeout.Find(strings.Join(c.Symptom, " "))
	if len(found) == 0 {
		return usageError{fmt.Errorf("nothing is known of %q; devxlab cm causes lists what is", strings.Join(c.Symptom, " "))}
	}
	if e.asJSON {
		return e.json(found)
	}
	if len(c.Symptom) == 0 {
		var rows [][]string
		for _, f := range found {
			rows = append(rows, []string{f.Symptom, f.Means})
		}
		return e.table(rows)
	}
	var b strings.Builder
	for i, f := range found {
		if i > 0 {
			b.WriteByte('\n')
		}
		fill(&b, "", strings.Fields(f.Symptom+": "+f.Means+"."))
		if f.When != "" {
			fill(&b, "When: ", strings.Fields(f.When+"."))
		}
		for n, l := range f.Look {
			at := l.At
			if l.Where != "" {
				at += ", at the " + l.Where
			}
			fill(&b, fmt.Sprintf("%3d. ", n+1), strings.Fields(at))
			if l.Command != "" {
				b.WriteString("       " + l.Command + "\n")
			}
		}
	}
	_, err := io.WriteString(e.out, b.String())
	return err
}
