// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/ebpf"
	"devxlab.example/mlx5"
)

// tracing measures what it costs a command to be watched: by package ebpf, and by
// bpftrace doing the same.
var tracing = Experiment{
	Name:       "tracing",
	Question:   "What does it cost a command to be traced?",
	run:        runTracing,
	text:       tracingText,
	queuePairs: 1,
	needs:      func(Options) int { return 1 },
	plan: func(r *Run) string {
		return fmt.Sprintf("makes 1 queue pair of its own through DevX and destroys it at the end; modifies it in INIT %s times, while its commands are watched in the kernel by turns in %d ways. No work request, no packet.",
			count(len(tracedHow)*tracingCalls*(r.pairs(tracingPairs)+1)), len(tracedHow))
	},
}

const (
	tracingPairs  = 40
	tracingCalls  = 1000 // modifications in a sample
	tracingWarm   = 50   // before them
	tracingBuffer = 1 << 20
	tracingAim    = 0.7 // of what bpftrace costs

	howUntraced   = "none"
	howHistograms = "histograms"
	howRecords    = "records"
	howBpftrace   = "bpftrace"
)

var tracedHow = []string{howUntraced, howHistograms, howRecords, howBpftrace}

// watcher is something that watches the commands of this process. stop ends it and
// returns how many it has seen.
type watcher func() (stop func() (seen uint64, err error), err error)

func runTracing(ctx context.Context, r *Run) (err error) {
	if r.emulated() {
		return fmt.Errorf("bench: tracing %w, and %s is inside this process: --device mlx5_0, on a card or in the lab", ErrNoKernel, r.Device)
	}
	if r.Options.KernelCost {
		return errors.New("bench: tracing measures what --kernel-cost costs: leave that out")
	}
	r.Params["calls"], r.Params["aim"] = tracingCalls, tracingAim
	r.Method = fmt.Sprintf("Each round takes a sample of each way, in turn: attach, %d commands to warm up, %d that are timed one by one by their caller, detach. A sample is their median.",
		tracingWarm, tracingCalls)
	bd, err := r.newBed(r.Device, 1)
	if err != nil {
		return err
	}
	defer closed(&err, bd.d)
	q := bd.qps[0]
	if err := devx.Modify(q, bd.c.init); err != nil {
		return err
	}
	watchers := map[string]watcher{
		howUntraced: func() (func() (uint64, error), error) {
			return func() (uint64, error) { return tracingWarm + tracingCalls, nil }, nil
		},
		howHistograms: func() (func() (uint64, error), error) { return watchOurs(0) },
		howRecords:    func() (func() (uint64, error), error) { return watchOurs(tracingBuffer) },
	}
	program, err := exec.LookPath(howBpftrace)
	if err == nil {
		watchers[howBpftrace] = func() (func() (uint64, error), error) { return watchBpftrace(ctx, program) }
		r.Params[howBpftrace] = bpftraceVersion(ctx, program)
	} else {
		r.Findings = append(r.Findings, "bpftrace was not measured: it is not there (apt-get install bpftrace; in the lab: devxlab lab run --package bpftrace).")
	}
	what := map[string]string{
		howUntraced: "one DevX modify, nothing attached", howHistograms: "the same, counted and timed in the kernel by package ebpf",
		howRecords: "the same, with a record of each command", howBpftrace: "the same, counted and timed in the kernel by a script of bpftrace",
	}
	var cs []*contender
	for _, how := range tracedHow {
		if watch := watchers[how]; watch != nil {
			cs = append(cs, &contender{
				Series: Series{Name: how, What: what[how], Ops: tracingCalls},
				sample: func(ctx context.Context) (sample, error) { return tracedSample(ctx, q, watch, r.repeats(tracingCalls)) },
			})
		}
	}
	if err := r.inTurn(ctx, r.pairs(tracingPairs), cs...); err != nil {
		return err
	}
	r.tracingCosts()
	return nil
}

// tracedSample is the median of what commands take while they are watched. That
// they all were is checked.
func tracedSample(ctx context.Context, q *devx.QP, watch watcher, calls int) (s sample, err error) {
	stop, err := watch()
	if err != nil {
		return s, err
	}
	took := make([]float64, 0, calls)
	for i := range tracingWarm + calls {
		if err = ctx.Err(); err != nil {
			break
		}
		start := time.Now()
		if err = devx.Modify(q, mlx5.INIT2INIT{}); err != nil {
			break
		}
		if i >= tracingWarm {
			took = append(took, float64(time.Since(start)))
		}
	}
	seen, serr := stop()
	if err = errors.Join(err, serr); err == nil && seen < uint64(tracingWarm+calls) {
		err = fmt.Errorf("it saw %d of %d commands", seen, tracingWarm+calls)
	}
	return sample{ns: Median(took)}, err
}

// watchOurs watches by package ebpf, with records if they get room.
func watchOurs(records int) (func() (uint64, error), error) {
	t, err := ebpf.Attach(ebpf.Options{Filter: ebpf.Filter{Processes: []int{os.Getpid()}}, Records: records})
	if err != nil {
		return nil, err
	}
	reading, stop := context.WithCancel(context.Background())
	var reader sync.WaitGroup
	var read error
	got := uint64(0)
	if records > 0 {
		reader.Go(func() {
			for _, err := range t.Records(reading) {
				if err != nil {
					read = err
					return
				}
				got++
			}
		})
	}
	return func() (seen uint64, err error) {
		defer closed(&err, t)
		s, err := t.Snapshot()
		stop()
		reader.Wait()
		if err = errors.Join(err, read); err != nil {
			return 0, err
		}
		if seen = s.Count(ebpf.Awake, mlx5.OpINIT2INIT); records > 0 {
			seen = min(seen, got)
		}
		return seen, nil
	}, nil
}

// What the script has to know of struct mlx5_cmd_work_ent, in bytes: from done to
// work, and from work to its time stamps (Linux 5.10 to 6.12, no lock debugging).
const (
	doneToWork   = 40
	workToStamps = 56
)

// bpftraceScript counts at the same stages as package ebpf, and makes the same
// histograms with the same keys; its own are powers of two.
func bpftraceScript(pid int, worker string) string {
	return strings.NewReplacer("PID", fmt.Sprint(pid), "FUNCTION", "0x"+worker, "WORK", fmt.Sprint(doneToWork), "TS1", fmt.Sprint(doneToWork+workToStamps), "TS2", fmt.Sprint(doneToWork+workToStamps+8)).Replace(`
kprobe:mlx5_ib_handler_MLX5_IB_METHOD_DEVX_OBJ_MODIFY /pid == PID/ { @stage[0, (uint64)0] = count(); @entered[tid] = nsecs; }
kprobe:cmd_exec /pid == PID && arg5 == 0/ {
	$op = ((uint64)*(uint8 *)arg1 << 8) | (uint64)*(uint8 *)(arg1 + 1);
	@stage[1, $op] = count(); @op[tid] = $op; @out[tid] = arg3; @began[tid] = nsecs;
}
tracepoint:workqueue:workqueue_queue_work /@began[tid] && !@queued[tid]/ {
	if ((uint64)args->function == FUNCTION) { @stage[2, @op[tid]] = count(); @queued[tid] = nsecs; @owner[(uint64)args->work] = tid; }
}
kprobe:cmd_work_handler /@owner[arg0]/ { $t = @owner[arg0]; @stage[3, @op[$t]] = count(); @started[$t] = nsecs; }
kprobe:complete /@owner[arg0 + WORK]/ {
	$t = @owner[arg0 + WORK]; @stage[4, @op[$t]] = count();
	@rung[$t] = *(uint64 *)(arg0 + TS1); @completed[$t] = *(uint64 *)(arg0 + TS2); delete(@owner[arg0 + WORK]);
}
kretprobe:cmd_exec /@began[tid]/ {
	$now = nsecs; $op = @op[tid]; $error = (int32)retval; $status = (uint64)0;
	if ($error == 0) { $status = (uint64)*(uint8 *)@out[tid]; }
	@stage[5, $op] = count();
	@entry[$op, $status, $error] = hist(@began[tid] - @entered[tid]);
	@prepare[$op, $status, $error] = hist(@queued[tid] - @began[tid]);
	@queue[$op, $status, $error] = hist(@started[tid] - @queued[tid]);
	@slot[$op, $status, $error] = hist(@rung[tid] - @started[tid]);
	@firmware[$op, $status, $error] = hist(@completed[tid] - @rung[tid]);
	@wake[$op, $status, $error] = hist($now - @completed[tid]);
	@command[$op, $status, $error] = hist($now - @began[tid]);
	@awake = count();
	delete(@began[tid]); delete(@queued[tid]); delete(@started[tid]); delete(@rung[tid]); delete(@completed[tid]); delete(@out[tid]); delete(@op[tid]);
}
kretprobe:mlx5_ib_handler_MLX5_IB_METHOD_DEVX_OBJ_MODIFY /@entered[tid]/ { @call = hist(nsecs - @entered[tid]); delete(@entered[tid]); }
interval:ms:200 { printf("ready\n"); }
END { clear(@began); clear(@queued); clear(@started); clear(@rung); clear(@completed); clear(@out); clear(@op); clear(@owner); clear(@entered); }
`)
}

func bpftraceVersion(ctx context.Context, program string) string {
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(strings.TrimPrefix(string(out), "bpftrace "))
}

// bpftraceLine is a line of what bpftrace -f json prints.
type bpftraceLine struct {
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
}

// watchBpftrace watches by a script of bpftrace.
func watchBpftrace(ctx context.Context, program string) (func() (uint64, error), error) {
	symbols, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		return nil, err
	}
	worker, err := moduleSymbol(string(symbols), "cmd_work_handler", "mlx5_core") // which bpftrace 0.17 does not find
	if err != nil {
		return nil, err
	}
	var said strings.Builder
	cmd := exec.CommandContext(ctx, program, "-f", "json", "-e", bpftraceScript(os.Getpid(), worker))
	cmd.Stderr = &said
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for ready := false; !ready; {
		if !lines.Scan() {
			return nil, errors.Join(fmt.Errorf("bpftrace: it has ended: %s", strings.TrimSpace(said.String())), lines.Err(), cmd.Wait())
		}
		var l bpftraceLine
		ready = json.Unmarshal(lines.Bytes(), &l) == nil && l.Type == "printf"
	}
	return func() (seen uint64, err error) {
		if err := cmd.Process.Signal(unix.SIGINT); err != nil {
			return 0, err
		}
		seen, err = bpftraceAwake(lines)
		_, rest := io.Copy(io.Discard, out)
		return seen, errors.Join(err, rest, cmd.Wait())
	}, nil
}

// moduleSymbol returns the address of a module's function, in hexadecimal.
func moduleSymbol(kallsyms, name, module string) (string, error) {
	for line := range strings.Lines(kallsyms) {
		if f := strings.Fields(line); len(f) == 4 && f[2] == name && f[3] == "["+module+"]" {
			return f[0], nil
		}
	}
	return "", fmt.Errorf("bpftrace: %s of %s is not in /proc/kallsyms", name, module)
}

// bpftraceAwake finds the map @awake in what bpftrace prints at its end.
func bpftraceAwake(lines *bufio.Scanner) (seen uint64, err error) {
	for lines.Scan() {
		var l bpftraceLine
		var data map[string]uint64
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Type == "map" && json.Unmarshal(l.Data, &data) == nil {
			seen += data["@awake"]
		}
	}
	return seen, lines.Err()
}

// tracingCosts takes what it costs to be watched from the samples of the same round,
// and compares that.
func (r *Run) tracingCosts() {
	none := r.SeriesOf(howUntraced)
	var costs []*contender
	for _, how := range tracedHow[1:] {
		s := r.SeriesOf(how)
		if s == nil {
			continue
		}
		c := &contender{Series: Series{Name: "cost/" + how, What: "what that costs one command: the difference in each round", Ops: s.Ops, GOMAXPROCS: s.GOMAXPROCS}}
		for i := range min(len(s.Samples), len(none.Samples)) {
			c.Samples = append(c.Samples, s.Samples[i]-none.Samples[i])
		}
		costs = append(costs, c)
	}
	for _, c := range costs {
		r.keep(c)
		low, high := MedianInterval(c.Samples, r.seed)
		r.Findings = append(r.Findings, fmt.Sprintf("%s costs a command %s [%s, %s].", strings.TrimPrefix(c.Name, "cost/"), nanos(Median(c.Samples)), nanos(low), nanos(high)))
	}
	last := costs[len(costs)-1]
	for _, c := range costs[:len(costs)-1] {
		if last.Name != "cost/"+howBpftrace {
			break
		}
		r.compare(c, last)
		x := r.ComparisonOf(c.Name, last.Name)
		how := "the interval decides nothing"
		switch {
		case x == nil || x.Ratio.Pairs < MinPairs:
		case float64(x.Ratio.High) <= tracingAim:
			how = "met"
		case float64(x.Ratio.Low) > tracingAim:
			how = "missed"
		}
		if x != nil && !math.IsNaN(float64(x.Ratio.Median)) {
			r.Findings = append(r.Findings, fmt.Sprintf("%s against bpftrace: ratio %s; aim %.1f: %s.", strings.TrimPrefix(c.Name, "cost/"), x.Ratio.interval(), tracingAim, how))
		}
	}
}

func tracingText(r *Result, p *page) {
	p.section(fmt.Sprintf("A DevX modify that is watched (%s)", r.Provenance.Place), r.Method)
	var rows [][]string
	for _, how := range tracedHow {
		s, c := r.SeriesOf(how), r.SeriesOf("cost/"+how)
		if s == nil {
			continue
		}
		cost, ratio := "-", "-"
		if c != nil {
			low, high := MedianInterval(c.Samples, 1)
			cost = fmt.Sprintf("%s [%s, %s]", nanos(Median(c.Samples)), nanos(low), nanos(high))
			if x := r.ComparisonOf(c.Name, "cost/"+howBpftrace); x != nil {
				ratio = x.Ratio.interval()
			}
		}
		rows = append(rows, []string{how, nanos(Median(s.Samples)), cost, ratio})
	}
	p.table("lrrr", []string{"watched by", "a modify takes", "more than unwatched [95 %]", "of bpftrace's [95 %]"}, slices.Clip(rows)...)
}
