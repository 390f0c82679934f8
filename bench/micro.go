// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// micro measures the parts of one transition.
var micro = Experiment{
	Name:     "micro",
	Question: "What do the parts of one transition cost: encoding, the call, the command?",
	run:      runMicro,
}

var reset = mlx5.ToRST{}

// joined joins errors.
func joined(errs ...error) error { return errors.Join(errs...) }

// part is one thing that is timed.
type part struct {
	name string
	what string
	n    int // times in one sample
	do   func() error
}

func runMicro(ctx context.Context, r *Run) error {
	r.Method = "Samples of all parts alternate; each is the mean over the number of calls that stands in the parameters. Ratios are to getpid of the same round."
	bd, err := newBed(r.Device, 1)
	if err != nil {
		return err
	}
	defer bd.d.Close()
	q := bd.qps[0]
	s, err := bd.d.NewSubmitter()
	if err != nil {
		return err
	}
	defer s.Close()
	var buf [mlx5.TransitionSize]byte
	calls := 2000
	if !r.emulated() {
		calls = 100
	}
	parts := []part{
		{"getpid", "one getpid system call, the yardstick", 20000, func() error { unix.Getpid(); return nil }},
		{"encode", "encoding RTR2RTS into its 272 bytes", 20000, func() error {
			clear(buf[:])
			_, err := bd.c.rts.Encode(buf[:], q.Number(), q.Transport())
			return err
		}},
		{"ioctl", "an ioctl that fails before the firmware: a modify with another QP's number", calls, wrongQPN(q, s)},
		{"modify", "a whole modify: 2RST, encoded, sent and answered", calls, func() error { return devx.Modify(q, reset) }},
	}
	rounds := r.pairs(50)
	samples := map[string][]float64{}
	for i := range rounds + 1 {
		for _, p := range parts {
			if err := ctx.Err(); err != nil {
				break
			}
			r.progress("micro: round %d of %d", i, rounds)
			start := time.Now()
			for range p.n {
				if err := p.do(); err != nil {
					return fmt.Errorf("bench: micro: %s: %w", p.name, err)
				}
			}
			ns := float64(time.Since(start).Nanoseconds()) / float64(p.n)
			if i > 0 {
				samples[p.name] = append(samples[p.name], ns)
			}
		}
	}
	for _, p := range parts {
		r.Params["calls_"+p.name] = p.n
		s := samples[p.name]
		r.Series = append(r.Series, Series{Name: p.name, What: p.what, Samples: s, Summary: Summarize(s)})
		if n := min(len(s), len(samples["getpid"])); n > 0 && p.name != "getpid" {
			r.Comparisons = append(r.Comparisons, Comparison{p.name, "getpid", CompareCosts(s[:n], samples["getpid"][:n], r.seed)})
		}
	}
	if r.emulated() {
		r.Findings = append(r.Findings, "in emu a modify makes no system call: it is the cost of this module and of the emulated device; with a latency in the profile, that latency as well")
	}
	return nil
}

// wrongQPN returns a modify that the kernel refuses (devx_is_valid_obj_id).
func wrongQPN(q *devx.QP, s *devx.Submitter) func() error {
	var cmd [mlx5.ToRSTQPInSize]byte
	mlx5.PutHeader(cmd[:], mlx5.Op2RST, 0)
	mlx5.ToRSTQPIn(cmd[:]).SetQPN(q.Number() + 1)
	return func() error {
		switch err := s.Send(q, cmd[:]); {
		case err == nil:
			return fmt.Errorf("a modify with another QP's number succeeded")
		case errors.Is(err, unix.EINVAL):
			return nil
		default:
			return err
		}
	}
}
