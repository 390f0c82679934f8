// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"devxlab.example/cm/capture"
)

type pcapCmd struct {
	File   string `arg:"" help:"Capture in pcap or pcapng format; - is standard input."`
	Totals bool   `help:"No line for each connection."`
}

func (c *pcapCmd) Run(e *env) error {
	in := e.in
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	r, err := capture.NewReader(in)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	follower := capture.NewFollower()
	var damaged error
	pipe := c.File == "-" // Ctrl-C ends whoever writes it, too; what that has left to say counts
	for pipe || e.ctx.Err() == nil {
		p, err := r.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				damaged = fmt.Errorf("%s: %w; what was read before is shown", c.File, err)
			}
			break
		}
		follower.Add(p)
	}
	if n := r.Note(); n != "" {
		follower.Notes = append(follower.Notes, n)
	}
	return errors.Join(c.show(e, follower), damaged)
}

// pcapConnection is a connection as JSON has it; times in seconds.
type pcapConnection struct {
	Begin        time.Time `json:"begin,omitzero"`
	Client       string    `json:"client"`
	Server       string    `json:"server"`
	Service      string    `json:"service"`
	ClientQPN    uint32    `json:"client_qpn"`
	ServerQPN    uint32    `json:"server_qpn"`
	Accept       *float64  `json:"req_to_rep,omitempty"`
	Ready        *float64  `json:"rep_to_rtu,omitempty"`
	SetUp        *float64  `json:"req_to_rtu,omitempty"`
	Disconnect   *float64  `json:"dreq_to_drep,omitempty"`
	Retransmits  int       `json:"retransmissions"`
	Duplicates   int       `json:"duplicates"`
	State        string    `json:"state"`
	Remarks      []string  `json:"remarks,omitempty"`
	RejectReason uint16    `json:"reject_reason,omitempty"`
}

// Steps of a set-up, as seen where the capture was taken.
var pcapSteps = []struct {
	name, json string
	of         func(*capture.Connection) (from, to capture.Message)
}{
	{"REQ→REP", "req_to_rep", func(c *capture.Connection) (from, to capture.Message) { return c.REQ, c.REP }},
	{"REP→RTU", "rep_to_rtu", func(c *capture.Connection) (from, to capture.Message) { return c.REP, c.RTU }},
	{"REQ→RTU", "req_to_rtu", func(c *capture.Connection) (from, to capture.Message) { return c.REQ, c.RTU }},
	{"DREQ→DREP", "dreq_to_drep", func(c *capture.Connection) (from, to capture.Message) { return c.DREQ, c.DREP }},
}

func pcapStep(c *capture.Connection, i int) (took time.Duration, ok bool) {
	from, to := pcapSteps[i].of(c)
	return to.Time.Sub(from.Time), !from.Time.IsZero() && !to.Time.IsZero()
}

func (c *pcapCmd) show(e *env, f *capture.Follower) error {
	if e.asJSON {
		return c.json(e, f)
	}
	all := f.Connections()
	if len(all) > 0 && !c.Totals {
		rows := [][]string{{"#", "at", "client", "server", "service", "QPNs", pcapSteps[0].name, pcapSteps[1].name, pcapSteps[2].name, "again", "twice", "state"}}
		for i, k := range all {
			row := []string{strconv.Itoa(i + 1), fmt.Sprintf("%.6f", k.REQ.Time.Sub(all[0].REQ.Time).Seconds()), k.Client.String(), k.Server.String(), capture.Name(k.Service),
				fmt.Sprintf("%#x %#x", k.ClientQPN, k.ServerQPN)}
			for s := range 3 {
				took, ok := pcapStep(k, s)
				row = append(row, orDash(ok && !(k.Datagram && s > 0), took))
			}
			rows = append(rows, append(row, strconv.Itoa(k.Repeats()), strconv.Itoa(k.Copies()), strings.Join(append([]string{k.State()}, k.Remarks()...), "; ")))
		}
		if err := e.table(rows); err != nil {
			return err
		}
		fmt.Fprintln(e.out)
	}
	n := f.Counts
	fmt.Fprintf(e.out, "%d packets, %d of RoCE, %d messages of the CM; %d connections", n.Frames, n.RoCE, n.CM, len(all))
	fmt.Fprintf(e.out, "; %d cut off, %d damaged, %d with a wrong ICRC, %d messages without their REQ, %d other management datagrams\n", n.Truncated, n.Damaged, n.BadICRC, n.Unmatched, n.Unread)
	for _, w := range f.Notes {
		fmt.Fprintln(e.out, "  "+w)
	}
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintln(e.out)
	if err := e.table(pcapStates(all)); err != nil {
		return err
	}
	fmt.Fprintln(e.out)
	return e.table(pcapPercentiles(all))
}

func orDash(ok bool, took time.Duration) string {
	if !ok {
		return "-"
	}
	return took.Round(100 * time.Nanosecond).String()
}

// pcapStates counts how connections ended, most frequent first.
func pcapStates(all []*capture.Connection) [][]string {
	count := map[string]int{}
	again, twice := 0, 0
	for _, k := range all {
		count[k.State()]++
		again += k.Repeats()
		twice += k.Copies()
	}
	rows := [][]string{{"connections", "state"}}
	for _, s := range slices.SortedFunc(maps.Keys(count), func(a, b string) int { return cmp.Or(count[b]-count[a], cmp.Compare(a, b)) }) {
		rows = append(rows, []string{strconv.Itoa(count[s]), s})
	}
	return append(rows, []string{strconv.Itoa(again), "messages were sent again"}, []string{strconv.Itoa(twice), "packets came twice"})
}

// A percentile needs so many values: as many as make one lie beyond it, tenfold.
var pcapPercents = []struct {
	name  string
	of    float64
	least int
}{{"P50", 0.5, 1}, {"P90", 0.9, 100}, {"P99", 0.99, 1000}, {"P99.9", 0.999, 10000}}

func pcapPercentiles(all []*capture.Connection) [][]string {
	head := []string{"step", "connections", "least"}
	for _, p := range pcapPercents {
		head = append(head, p.name)
	}
	rows := [][]string{append(head, "most")}
	for s := range pcapSteps {
		took := pcapTimes(all, s)
		if len(took) == 0 {
			continue
		}
		row := []string{pcapSteps[s].name, strconv.Itoa(len(took)), orDash(true, took[0])}
		for _, p := range pcapPercents {
			row = append(row, orDash(len(took) >= p.least, took[min(len(took)-1, int(float64(len(took))*p.of))]))
		}
		rows = append(rows, append(row, orDash(true, took[len(took)-1])))
	}
	return rows
}

// pcapTimes returns what a step took, least first. What a datagram service takes
// to answer is no set-up.
func pcapTimes(all []*capture.Connection, s int) (took []time.Duration) {
	for _, k := range all {
		if t, ok := pcapStep(k, s); ok && !k.Datagram {
			took = append(took, t)
		}
	}
	slices.Sort(took)
	return took
}

func (c *pcapCmd) json(e *env, f *capture.Follower) error {
	all := f.Connections()
	out := struct {
		Counts      capture.Counts                `json:"counts"`
		Notes       []string                      `json:"notes,omitempty"`
		Percentiles map[string]map[string]float64 `json:"percentiles"` // seconds
		Connections []pcapConnection              `json:"connections,omitempty"`
	}{Counts: f.Counts, Notes: f.Notes, Percentiles: map[string]map[string]float64{}}
	for s, step := range pcapSteps {
		took := pcapTimes(all, s)
		if len(took) == 0 {
			continue
		}
		p := map[string]float64{"count": float64(len(took)), "least": took[0].Seconds(), "most": took[len(took)-1].Seconds()}
		for _, x := range pcapPercents {
			if len(took) >= x.least {
				p[x.name] = took[min(len(took)-1, int(float64(len(took))*x.of))].Seconds()
			}
		}
		out.Percentiles[step.json] = p
	}
	if !c.Totals {
		for _, k := range all {
			j := pcapConnection{Begin: k.REQ.Time, Client: k.Client.String(), Server: k.Server.String(), Service: capture.Name(k.Service),
				ClientQPN: k.ClientQPN, ServerQPN: k.ServerQPN, Retransmits: k.Repeats(), Duplicates: k.Copies(), State: k.State(), Remarks: k.Remarks(), RejectReason: uint16(k.Reason)}
			for s, to := range []**float64{&j.Accept, &j.Ready, &j.SetUp, &j.Disconnect} {
				if took, ok := pcapStep(k, s); ok {
					v := took.Seconds()
					*to = &v
				}
			}
			out.Connections = append(out.Connections, j)
		}
	}
	return e.json(out)
}
