// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// rival compares the DevX modify loop of this module with the same loop in
// another program, pair by pair: bench/rival/modify.c, in C on libmlx5.
var rival = Experiment{
	Name:       "rival",
	Question:   "Is a DevX modify slower in Go than in C on libmlx5?",
	run:        runRival,
	text:       rivalText,
	queuePairs: rivalMost,
	needs:      func(Options) int { return rivalMost },
	plan: func(r *Run) string {
		return fmt.Sprintf("makes %d queue pairs of its own through DevX, and the other program 64, and destroys them at the end; modifies them in INIT, "+
			"%d samples of each program at %d numbers of threads, of at most %v each if the device keeps its pace. No work request, no packet.",
			rivalMost, r.pairs(rivalPairs)+1, len(rivalThreads), rivalSample)
	},
}

const (
	rivalPairs  = 20
	rivalMost   = 62
	rivalSample = 500 * time.Millisecond // about what a sample lasts
	rivalLeast  = 4                      // modifications of each thread in a sample
)

// rivalThreads are one, some, the slots of the command queue, and twice that.
var rivalThreads = []int{1, 8, c6Claimed, rivalMost}

// ErrNoRival is in the error of a run that was not told whom to compare with.
var ErrNoRival = errors.New("needs a program to compare with")

func runRival(ctx context.Context, r *Run) (err error) {
	if len(r.Options.Rival) == 0 {
		return fmt.Errorf("bench: rival %w: --rival \"/path/to/modify %s\"; it is built by: cc -O2 -pthread -o modify bench/rival/modify.c -lmlx5 -libverbs", ErrNoRival, r.Device)
	}
	if r.emulated() {
		return fmt.Errorf("bench: rival %w on the same device, and %s is inside this process: --device mlx5_0, on a card or in the lab", ErrNoRival, r.Device)
	}
	r.Params["rival"] = strings.Join(r.Options.Rival, " ")
	r.Method = "Each sample: so many threads modify a queue pair of their own, INIT2INIT_QP, in one program and then in the other. Time per command of one thread."
	bd, err := r.newBed(r.Device, rivalMost)
	if err != nil {
		return err
	}
	defer closed(&err, bd.d)
	for _, q := range bd.qps {
		if err := devx.Modify(q, bd.c.init); err != nil {
			return err
		}
	}
	other, err := startRival(ctx, r.Options.Rival)
	if err != nil {
		return err
	}
	defer closed(&err, other)
	for _, n := range rivalThreads {
		calls, err := rivalCalls(bd.qps[:n])
		if err != nil {
			return err
		}
		series := func(name, what string, do func() (time.Duration, error)) *contender {
			return &contender{
				Series: Series{Name: fmt.Sprintf("%s/threads=%d", name, n), What: what, Ops: calls * n},
				procs:  n + 2,
				sample: func(context.Context) (sample, error) {
					took, err := do()
					return sample{ns: perOp(took, calls)}, err
				},
			}
		}
		ours := series("go", "devx.Modify in goroutines", func() (time.Duration, error) { return modifyAll(bd.qps[:n], calls) })
		theirs := series("rival", "the other program's threads", func() (time.Duration, error) { return other.run(n, calls) })
		if err := r.against(ctx, r.pairs(rivalPairs), ours, theirs); err != nil {
			return err
		}
	}
	return nil
}

// rivalCalls is how many modifications each of the threads makes in a sample.
func rivalCalls(qps []*devx.QP) (int, error) {
	took, err := modifyAll(qps, rivalLeast)
	return max(rivalLeast, int(rivalSample*rivalLeast/max(took, 1))), err
}

// modifyAll modifies each queue pair so many times, each in a goroutine.
func modifyAll(qps []*devx.QP, calls int) (time.Duration, error) {
	errs := make([]error, len(qps))
	var all sync.WaitGroup
	start := time.Now()
	for i, q := range qps {
		all.Go(func() {
			for range calls {
				if errs[i] = devx.Modify(q, mlx5.INIT2INIT{}); errs[i] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return time.Since(start), errors.Join(errs...)
}

// rivalProgram is another program at work: it takes lines "THREADS N" and
// answers each with nanoseconds.
type rivalProgram struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startRival(ctx context.Context, command []string) (*rivalProgram, error) {
	p := &rivalProgram{cmd: exec.CommandContext(ctx, command[0], command[1:]...)}
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: rival: %w", err)
	}
	p.in, p.out = in, bufio.NewScanner(out)
	if line, err := p.line(); err != nil || line != "ready" {
		return nil, errors.Join(fmt.Errorf("bench: rival: %s says %q, not ready", command[0], line), err, p.Close())
	}
	return p, nil
}

func (p *rivalProgram) line() (string, error) {
	if !p.out.Scan() {
		return "", fmt.Errorf("bench: rival: it has ended: %w", errors.Join(p.out.Err(), io.ErrUnexpectedEOF))
	}
	return strings.TrimSpace(p.out.Text()), nil
}

func (p *rivalProgram) run(threads, calls int) (time.Duration, error) {
	if _, err := fmt.Fprintf(p.in, "%d %d\n", threads, calls); err != nil {
		return 0, fmt.Errorf("bench: rival: %w", err)
	}
	line, err := p.line()
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(line, 10, 64)
	if err != nil || ns <= 0 {
		return 0, fmt.Errorf("bench: rival: it answers %q, not nanoseconds", line)
	}
	return time.Duration(ns), nil
}

// Close ends the program.
func (p *rivalProgram) Close() error {
	return errors.Join(p.in.Close(), p.cmd.Wait())
}

func rivalText(r *Result, p *page) {
	p.section(fmt.Sprintf("Go and C (%s)", r.Provenance.Place), r.Method)
	var rows [][]string
	for _, n := range rivalThreads {
		g, c := r.SeriesOf(fmt.Sprintf("go/threads=%d", n)), r.SeriesOf(fmt.Sprintf("rival/threads=%d", n))
		if g == nil || c == nil {
			continue
		}
		ratio, answer := "-", "-"
		if x := r.ComparisonOf(g.Name, c.Name); x != nil {
			ratio, answer = x.Ratio.interval(), string(x.Ratio.Answer)
		}
		rate := func(s *Series) string { return count(int(float64(n) * 1e9 / Median(s.Samples))) }
		rows = append(rows, []string{strconv.Itoa(n), nanos(Median(g.Samples)), nanos(Median(c.Samples)), rate(g), rate(c), ratio, answer})
	}
	p.table("rrrrrrl", []string{"threads", "Go", "C", "Go, commands/s", "C, commands/s", "Go / C [95 %]", "Go is"}, rows...)
}
