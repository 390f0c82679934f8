// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
	"unicode"

	"devxlab.example/ebpf"
	"devxlab.example/mlx5"
)

type traceCmd struct {
	Duration time.Duration `help:"End after this time; default: when CMD ends, or at Ctrl-C." placeholder:"TIME"`
	Summary  bool          `help:"Only the whole at the end, also on a terminal."`
	Records  bool          `help:"A line for each command and each connection as it ends."`
	Chrome   string        `help:"Write a timeline of all commands and connections to this new file; Perfetto (ui.perfetto.dev) and chrome://tracing open it." placeholder:"FILE"`
	Wait     bool          `help:"Wait until the driver is loaded, if it is not yet."`
	Stages   bool          `help:"Only show where each stage can be seen on this kernel, or why it cannot."`
	PID      []int         `name:"pid" help:"Only of these processes, and of what they start from now on."`
	Cgroup   string        `help:"Only of processes in this cgroup (version 2)." placeholder:"DIR"`
	Device   string        `help:"Only commands and connections of this device, such as mlx5_0."`
	Op       string        `help:"Only commands with this opcode, such as RTR2RTS_QP." placeholder:"NAME"`
	QPN      uint32        `name:"qpn" help:"Only commands about this queue pair."`

	Cmd []string `arg:"" optional:"" passthrough:"" help:"Program to run and to trace, with arguments, behind --. Its standard output goes to standard error."`
}

const traceHelp = `Count and time firmware commands in the kernel: how many pass each stage, and how the time of each is split into entry
(system call to the driver), prepare, queue (waiting for the one submission worker), slot (waiting for a free slot of the
command queue), firmware, and wake (until the caller runs again). Columns show P50/P99. Of connections (ib_cm): how they
ended, and the time from REQ to REP, from REP to RTU, and until a worker began with a message.

It needs root, and Linux 5.10 or newer. See docs/ebpf.md.`

// Help is what the command's --help adds.
func (traceCmd) Help() string { return traceHelp }

// recordBuffer holds about 30,000 commands.
const recordBuffer = 4 << 20

func (c *traceCmd) options(words []string) (o ebpf.Options, err error) {
	o.Filter = ebpf.Filter{Processes: c.PID, Cgroup: c.Cgroup, Device: c.Device, QPN: c.QPN}
	if len(words) > 0 {
		if len(c.PID) > 0 {
			return o, errors.New("--pid and a program to run: one of the two")
		}
		o.Processes = []int{os.Getpid()} // which starts it, and sends no command itself
	}
	if c.Op != "" {
		var known bool
		if o.Op, known = mlx5.ParseOp(c.Op); !known {
			return o, fmt.Errorf("--op %s: no opcode of that name; RTR2RTS_QP is one", c.Op)
		}
	}
	if c.Records || c.Chrome != "" {
		o.Records = recordBuffer
	}
	return o, nil
}

func (c *traceCmd) Run(e *env) error {
	words := program(c.Cmd)
	o, err := c.options(words)
	if err != nil {
		return usageError{err}
	}
	if c.Wait {
		if err := ebpf.WaitForDriver(e.ctx); err != nil {
			return err
		}
	}
	t, err := ebpf.Attach(o)
	if errors.Is(err, ebpf.ErrFilter) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	if c.Stages {
		return errors.Join(showStages(e, t.Coverage()), t.Close())
	}
	r := &tracing{cmd: c, env: e, tracer: t, began: time.Now()}
	return errors.Join(r.run(words), t.Close())
}

// tracing is one run.
type tracing struct {
	cmd      *traceCmd
	env      *env
	tracer   *ebpf.Tracer
	began    time.Time
	mu       sync.Mutex // of what both readers write
	timeline timeline
}

func (r *tracing) run(words []string) error {
	ctx, cancel := context.WithCancel(r.env.ctx)
	defer cancel()
	if r.cmd.Duration > 0 {
		ctx, cancel = context.WithTimeout(ctx, r.cmd.Duration)
		defer cancel()
	}
	reading, stop := context.WithCancel(context.Background())
	read := make(chan error, 2)
	go func() { read <- take(reading, r, r.tracer.Records, r.record) }()
	go func() { read <- take(reading, r, r.tracer.Connections, r.connection) }()
	var err error
	if len(words) > 0 {
		err = r.command(ctx, words)
	} else {
		err = r.wait(ctx)
	}
	took := time.Since(r.began)
	err = errors.Join(err, r.tracer.Freeze()) // so that records, even if they come late, and the whole agree
	s, serr := r.tracer.Snapshot()
	open, oerr := r.tracer.OpenConnections()
	stop()
	err = errors.Join(err, serr, <-read, <-read)
	for i := range open {
		oerr = errors.Join(oerr, r.connection(&open[i]))
	}
	err = errors.Join(err, oerr)
	if s != nil {
		err = errors.Join(err, r.report(s, len(open), took))
	}
	if r.cmd.Chrome != "" {
		err = errors.Join(err, r.timeline.write(r.cmd.Chrome))
	}
	return err
}

// command runs a program to its end, or to the end of the time.
func (r *tracing) command(ctx context.Context, words []string) error {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r.env.in, r.env.err, r.env.err
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.As(err, &ended) && ended.ExitCode() > 0:
		return statusError(ended.ExitCode())
	case err != nil:
		return fmt.Errorf("%s: %w", words[0], err)
	}
	return nil
}

// wait shows a table every second on a terminal, until the time is over.
func (r *tracing) wait(ctx context.Context) error {
	if r.cmd.Summary || r.cmd.Records || r.env.asJSON || !isTerminal(r.env.out) {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, at := &ebpf.Snapshot{}, r.began
	for {
		select {
		case <-ctx.Done():
			_, err := io.WriteString(r.env.out, clearScreen) // for the whole
			return err
		case now := <-tick.C:
			s, err := r.tracer.Snapshot()
			if err != nil {
				return err
			}
			open, err := r.tracer.OpenConnections()
			if err != nil {
				return err
			}
			if err := r.draw(s.Since(last), len(open), now.Sub(at)); err != nil {
				return err
			}
			last, at = s, now
		}
	}
}

// draw replaces what is on the terminal.
func (r *tracing) draw(s *ebpf.Snapshot, open int, took time.Duration) error {
	var text strings.Builder
	e := *r.env
	e.out = &text
	if err := (&traceView{&e, r.tracer.Coverage(), s, open, took}).frame(); err != nil {
		return err
	}
	rows, columns := terminalSize(r.env.out)
	_, err := io.WriteString(r.env.out, screen(text.String(), rows, columns))
	return err
}

// take takes records until ctx is done.
func take[R any](ctx context.Context, r *tracing, records func(context.Context) iter.Seq2[R, error], each func(*R) error) error {
	if !r.cmd.Records && r.cmd.Chrome == "" {
		return nil
	}
	for rec, err := range records(ctx) {
		if err != nil {
			return fmt.Errorf("records: %w", err)
		}
		if err := each(&rec); err != nil {
			return err
		}
	}
	return nil
}

// record notes a command.
func (r *tracing) record(rec *ebpf.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd.Chrome != "" {
		r.timeline.command(rec)
	}
	if r.cmd.Records {
		return r.line(*rec)
	}
	return nil
}

// connection notes a connection.
func (r *tracing) connection(c *ebpf.Connection) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd.Chrome != "" {
		r.timeline.connection(c)
	}
	if !r.cmd.Records {
		return nil
	}
	if r.env.asJSON {
		return json.NewEncoder(r.env.out).Encode(newConnectionLine(c))
	}
	_, err := fmt.Fprintln(r.env.out, connectionText(c))
	return err
}

// recordLine is a command as JSON.
type recordLine struct {
	Type     string           `json:"type"`     // command
	BeganNS  int64            `json:"began_ns"` // CLOCK_MONOTONIC
	PID      uint32           `json:"pid"`
	TID      uint32           `json:"tid"`
	Name     string           `json:"name"`
	Op       string           `json:"op"`
	OpMod    uint16           `json:"op_mod"`
	UID      uint16           `json:"uid"`
	QPN      uint32           `json:"qpn"`
	Status   uint8            `json:"status"`
	Syndrome uint32           `json:"syndrome"`
	Errno    int              `json:"errno"`
	PartsNS  map[string]int64 `json:"parts_ns"`
}

func (r *tracing) line(rec ebpf.Record) error {
	if r.env.asJSON {
		l := recordLine{"command", rec.Began.Nanoseconds(), rec.Process, rec.Thread, rec.Name, rec.Op.String(), rec.OpMod, rec.UID, rec.QPN,
			uint8(rec.Status), rec.Syndrome, int(rec.Errno), map[string]int64{}}
		for _, p := range ebpf.Parts() {
			if d := rec.Parts[p]; d != ebpf.NotSeen {
				l.PartsNS[p.String()] = d.Nanoseconds()
			}
		}
		return json.NewEncoder(r.env.out).Encode(l)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%.6f %s[%d] %s", rec.Began.Seconds(), printable(rec.Name), rec.Thread, rec.Op)
	if rec.QPN != 0 {
		fmt.Fprintf(&b, " QP %#x", rec.QPN)
	}
	fmt.Fprintf(&b, " uid %d: %s", rec.UID, outcome(rec.Status, rec.Errno))
	if rec.Syndrome != 0 {
		fmt.Fprintf(&b, ", syndrome %#x", rec.Syndrome)
	}
	for _, p := range ebpf.Parts() {
		if d := rec.Parts[p]; d != ebpf.NotSeen {
			fmt.Fprintf(&b, " %s %v", p, d)
		}
	}
	_, err := fmt.Fprintln(r.env.out, b.String())
	return err
}

// printable is a name that a program has given itself, without what a terminal would
// obey.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, name)
}
