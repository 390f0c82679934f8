// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/ebpf"
	"devxlab.example/mlx5"
)

// traceReport is what trace prints as JSON at its end.
type traceReport struct {
	DurationNS int64           `json:"duration_ns"`
	Stages     []ebpf.Coverage `json:"stages"`
	Counts     []traceCount    `json:"counts"`
	Times      []traceTimes    `json:"times"`
	Failures   []traceFailure  `json:"failures"`
	CMTimes    []traceCMTimes  `json:"connection_times"`
	CMEndings  []traceEnding   `json:"connections"`
	CMOpen     int             `json:"connections_open"`
	Lost       ebpf.Lost       `json:"lost"`
}

type traceCount struct {
	Stage string `json:"stage"`
	Op    string `json:"op,omitempty"` // none before the command begins
	N     uint64 `json:"n"`
}

type traceTimes struct {
	Part   string `json:"part"`
	Op     string `json:"op"`
	Status uint8  `json:"status"`
	Errno  int    `json:"errno"`
	N      uint64 `json:"n"`
	MeanNS int64  `json:"mean_ns"`
	P50NS  int64  `json:"p50_ns"`
	P99NS  int64  `json:"p99_ns"`
}

type traceFailure struct {
	Op       string `json:"op"`
	Status   uint8  `json:"status"`
	Syndrome uint32 `json:"syndrome"`
	Errno    int    `json:"errno"`
	N        uint64 `json:"n"`
}

func newTraceReport(s *ebpf.Snapshot, stages []ebpf.Coverage, open int, took time.Duration) *traceReport {
	r := &traceReport{DurationNS: took.Nanoseconds(), Stages: stages, Counts: []traceCount{}, Times: []traceTimes{}, Failures: []traceFailure{}, Lost: s.Lost,
		CMTimes: cmTimes(s), CMEndings: cmEndings(s), CMOpen: open}
	for _, c := range s.Counts {
		op := ""
		if c.Stage >= ebpf.Command && c.Stage <= ebpf.Awake {
			op = c.Op.String()
		}
		r.Counts = append(r.Counts, traceCount{c.Stage.String(), op, c.N})
	}
	for _, t := range s.Times {
		r.Times = append(r.Times, traceTimes{t.Part.String(), t.Op.String(), uint8(t.Status), int(t.Errno), t.Count(),
			t.Mean().Nanoseconds(), t.Quantile(0.5).Nanoseconds(), t.Quantile(0.99).Nanoseconds()})
	}
	for _, f := range s.Failures {
		r.Failures = append(r.Failures, traceFailure{f.Op.String(), uint8(f.Status), f.Syndrome, int(f.Errno), f.N})
	}
	return r
}

// report shows the whole.
func (r *tracing) report(s *ebpf.Snapshot, open int, took time.Duration) error {
	if !r.env.asJSON {
		return (&traceView{r.env, r.tracer.Coverage(), s, open, took}).whole()
	}
	report := newTraceReport(s, r.tracer.Coverage(), open, took)
	if r.cmd.Records { // then each line is an object
		return json.NewEncoder(r.env.out).Encode(report)
	}
	return r.env.json(report)
}

// outcome is what became of a command, in words.
func outcome(status mlx5.Status, errno unix.Errno) string {
	switch {
	case errno != 0:
		return "no answer: " + errno.Error()
	case status == mlx5.StatusOK:
		return "ok"
	}
	return status.Text()
}

// traceView is what was counted in a time, for people.
type traceView struct {
	e      *env
	stages []ebpf.Coverage
	s      *ebpf.Snapshot
	open   int // connections
	took   time.Duration
}

// whole shows all of it.
func (v *traceView) whole() error {
	fmt.Fprintf(v.e.out, "%v\n\n", v.took.Round(time.Millisecond))
	return cmp.Or(v.stagesTable(), v.timesTable(), v.failuresTable(), connectionTables(v.e, v.s, v.open, v.took), lostTable(v.e, v.s.Lost))
}

// frame shows it with what changes most at the top, where the least of it is cut off.
func (v *traceView) frame() error {
	fmt.Fprintf(v.e.out, "%v of tracing\n", v.took.Round(time.Millisecond))
	err := cmp.Or(v.timesTable(), v.failuresTable(), connectionTables(v.e, v.s, v.open, v.took), lostTable(v.e, v.s.Lost))
	fmt.Fprintln(v.e.out)
	return cmp.Or(err, v.stagesTable())
}

// stagesTable has a line for each stage.
func (v *traceView) stagesTable() error {
	rows := [][]string{{"stage", "passed", "per second"}}
	for _, c := range v.stages {
		if c.Why != "" {
			rows = append(rows, []string{c.Stage.String(), "not visible", c.Why})
			continue
		}
		n := uint64(0)
		for _, x := range v.s.Counts {
			if x.Stage == c.Stage {
				n += x.N
			}
		}
		rows = append(rows, []string{c.Stage.String(), strconv.FormatUint(n, 10), v.rate(n)})
	}
	return v.e.table(rows)
}

func (v *traceView) rate(n uint64) string { return fmt.Sprintf("%.1f", float64(n)/v.took.Seconds()) }

// failuresTable has a line for each way in which commands failed, if any did.
func (v *traceView) failuresTable() error {
	if len(v.s.Failures) == 0 {
		return nil
	}
	fmt.Fprintln(v.e.out)
	rows := [][]string{{"failed", "times", "per second", "syndrome", "outcome"}}
	for _, f := range v.s.Failures {
		rows = append(rows, []string{f.Op.String(), strconv.FormatUint(f.N, 10), v.rate(f.N), fmt.Sprintf("%#x", f.Syndrome), outcome(f.Status, f.Errno)})
	}
	return v.e.table(rows)
}

// timesTable has a line for each opcode and outcome, and a column for each part.
func (v *traceView) timesTable() error {
	header := []string{"command", "outcome", "n", "per second"}
	for _, p := range ebpf.Parts() {
		header = append(header, p.String())
	}
	rows := [][]string{header}
	var last ebpf.Times
	for _, t := range v.s.Times {
		if t.Part == ebpf.Call { // of no one outcome
			continue
		}
		row := len(rows) - 1
		if row == 0 || t.Op != last.Op || t.Status != last.Status || t.Errno != last.Errno {
			row++
			rows = append(rows, make([]string, len(header)))
			rows[row][0], rows[row][1] = t.Op.String(), outcome(t.Status, t.Errno)
		}
		if t.Part == ebpf.Whole {
			rows[row][2], rows[row][3] = strconv.FormatUint(t.Count(), 10), v.rate(t.Count())
		}
		rows[row][4+int(t.Part)] = quantiles(t.Histogram)
		last = t
	}
	if len(rows) == 1 {
		return nil
	}
	for _, row := range rows[1:] {
		op, _ := mlx5.ParseOp(row[0])
		if h := v.s.Time(ebpf.Call, op); h.Count() > 0 && row[1] == outcome(mlx5.StatusOK, 0) {
			row[4+int(ebpf.Call)] = quantiles(h)
		}
	}
	fmt.Fprintln(v.e.out)
	return v.e.table(rows)
}

// quantiles are P50/P99 in three digits.
func quantiles(h ebpf.Histogram) string {
	return short(h.Quantile(0.5)) + "/" + short(h.Quantile(0.99))
}

// showStages shows where each stage is seen.
func showStages(e *env, all []ebpf.Coverage) error {
	if e.asJSON {
		return e.json(all)
	}
	rows := [][]string{{"stage", "seen at"}}
	for _, c := range all {
		where := c.Where
		if c.Why != "" {
			where = "not visible: " + c.Why
		}
		rows = append(rows, []string{c.Stage.String(), where})
	}
	return e.table(rows)
}

// lostTable says what was not seen, if anything.
func lostTable(e *env, l ebpf.Lost) error {
	rows := [][]string{}
	for _, x := range []struct {
		n    uint64
		what string
	}{{l.Records, "records: the buffer was full"}, {l.Counts, "counts: too many outcomes, ways to fail, or buckets"}, {l.Calls, "calls: too many in flight"},
		{l.Returns, "returns that the kernel did not report"}, {l.Stamps, "commands whose time stamps cannot be: without slot and firmware"},
		{l.Completions, "completions: without slot, firmware and wake"}, {l.Async, "commands without a waiting caller: counted as they begin, not followed"},
		{l.Connections, "connections: too many, or two peers with one id"}, {l.Arrivals, "messages that were handled and not seen to arrive"}} {
		if x.n > 0 {
			rows = append(rows, []string{strconv.FormatUint(x.n, 10), x.what})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(e.out, "\nnot seen, or not followed:")
	return e.table(rows)
}
