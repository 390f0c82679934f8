// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// micro measures the parts of one transition.
var micro = Experiment{
	Name:       "micro",
	Question:   "What do the parts of one transition cost: encoding, the call, the command?",
	Default:    true,
	run:        runMicro,
	text:       microText,
	queuePairs: 1,
	needs:      func(Options) int { return 1 },
	plan: func(r *Run) string {
		n := count(microCallsHW * (r.pairs(microRounds) + 1))
		return fmt.Sprintf("makes 1 queue pair of its own through DevX and destroys it at the end; resets it %s times, and %s times asks for what the kernel refuses. No work request, no packet.", n, n)
	},
}

const (
	microRounds  = 50
	microPure    = 20000 // calls in one sample of what needs no device
	microCalls   = 2000
	microCallsHW = 100
)

func runMicro(ctx context.Context, r *Run) (err error) {
	r.Method = "One sample of each part in turn; a sample is the mean over the calls that stand beside it. Ratios are to getpid in the same round."
	bd, err := r.newBed(r.Device, 1)
	if err != nil {
		return err
	}
	defer closed(&err, bd.d)
	s, err := bd.d.NewSubmitter()
	if err != nil {
		return err
	}
	defer closed(&err, s)
	q, pure, calls := bd.qps[0], r.repeats(microPure), r.repeats(microCalls)
	if !r.emulated() {
		calls = microCallsHW
	}
	var buf [mlx5.TransitionSize]byte
	parts := []*contender{
		part("getpid", "one getpid system call: the yardstick", pure, func() error {
			unix.Getpid()
			return nil
		}),
		part("encode", "encoding RTR2RTS_QP into its 272 bytes", pure, func() error {
			clear(buf[:])
			_, err := bd.c.rts.Encode(buf[:], q.Number(), q.Transport())
			return err
		}),
		part("refused", "a modify that the kernel refuses, with another queue pair's number: the ioctl, and making its error", calls, wrongQPN(q, s)),
		part("modify", "a whole modify, 2RST_QP: encoded, sent, answered", calls, func() error { return devx.Modify(q, bd.c.reset) }),
	}
	err = r.inTurn(ctx, r.pairs(microRounds), parts...)
	for _, p := range parts[1:] {
		r.compare(p, parts[0])
	}
	if err != nil {
		return err
	}
	if r.emulated() {
		r.Findings = append(r.Findings, "In emu neither refused nor modify enters a kernel: their time is this module's and the emulated device's own.")
		if r.Provenance.Profile != "zero" && !strings.Contains(r.Device, "clock=virtual") {
			r.Findings = append(r.Findings, "The latency that the profile was told is in modify as well.")
		}
	}
	return nil
}

// part is a contender that calls do n times a sample.
func part(name, what string, n int, do func() error) *contender {
	return &contender{
		Series: Series{Name: name, What: what, Ops: n},
		sample: func(context.Context) (sample, error) {
			start := time.Now()
			for range n {
				if err := do(); err != nil {
					return sample{}, err
				}
			}
			return sample{ns: perOp(time.Since(start), n)}, nil
		},
	}
}

// wrongQPN returns a modify that the kernel refuses (devx_is_valid_obj_id).
func wrongQPN(q *devx.QP, s *devx.Submitter) func() error {
	var cmd [mlx5.ToRSTQPInSize]byte
	mlx5.PutHeader(cmd[:], mlx5.Op2RST, 0)
	mlx5.ToRSTQPIn(cmd[:]).SetQPN(q.Number() ^ 1)
	return func() error {
		switch err := s.Send(q, cmd[:]); {
		case err == nil:
			return errors.New("a modify with another queue pair's number succeeded")
		case errors.Is(err, unix.EINVAL):
			return nil
		default:
			return err
		}
	}
}

func microText(r *Result, p *page) {
	p.section(fmt.Sprintf("The parts (%s)", r.Provenance.Place), r.Method)
	var rows [][]string
	for _, s := range r.Series {
		ratio := "1"
		if c := r.ComparisonOf(s.Name, "getpid"); c != nil {
			ratio = c.Ratio.interval()
		}
		rows = append(rows, []string{s.Name, nanos(Median(s.Samples)), nanos(float64(s.Summary.P90)), nanos(float64(s.Summary.Min)), nanos(float64(s.Summary.Max)),
			fmt.Sprintf("%s × %s", count(int(s.Summary.N)), count(s.Ops)), ratio})
	}
	p.table("lrrrrrl", []string{"part", "median", "P90", "min", "max", "samples × calls", "in getpids [95 %]"}, rows...)
	p.b.WriteByte('\n')
	rows = nil
	for _, s := range r.Series {
		rows = append(rows, []string{s.Name, s.What})
	}
	p.table("ll", rows[0], rows[1:]...)
}
