// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/internal/qpparams"
	"devxlab.example/mlx5"
)

type qpBatchCmd struct {
	Device string `arg:"" help:"Device name. The queue pairs are connected to themselves and destroyed at the end; nothing is sent."`
	QPs    int    `name:"qps" default:"64" help:"How many queue pairs."`
	Rounds int    `default:"1" help:"How often each goes from RESET to RTS and back: four transitions, all in one batch."`
	Group  int    `default:"32" help:"Transitions in a group, 1 to 64."`
	Depth  int    `default:"0" help:"In flight at once, 1 to 64; 0: the device's slots."`
	Kernel bool   `name:"kernel-batch" help:"One ioctl for up to 32 transitions, of a kernel with the patches of patches/README.md."`

	qpparams.Flags
}

// Limits of the command line.
const (
	maxBatchQPs    = 1 << 16
	maxBatchRounds = 1 << 20
)

// batchReport is what qp batch prints as JSON: what became of all transitions.
type batchReport struct {
	Device   string         `json:"device"`
	QPs      int            `json:"qps"`
	Rounds   int            `json:"rounds"` // begun
	Added    int            `json:"added"`  // transitions, of which each has one outcome
	Outcomes map[string]int `json:"outcomes"`
	Errnos   map[string]int `json:"errnos"`  // of the system calls that failed
	TookNS   int64          `json:"took_ns"` // of the groups
	InFlight int            `json:"in_flight"`
	Error    string         `json:"error,omitempty"`
}

func (c qpBatchCmd) Run(e *env) error {
	params, _, err := c.Resolve()
	if err != nil {
		return usageError{err}
	}
	if c.QPs < 1 || c.QPs > maxBatchQPs || c.Rounds < 1 || c.Rounds > maxBatchRounds {
		return usageError{fmt.Errorf("--qps %d and --rounds %d: 1 to %d, and 1 to %d", c.QPs, c.Rounds, maxBatchQPs, maxBatchRounds)}
	}
	way, err := qpRTSCmd{Transport: "rc", MTU: 1024, GID: -1}.way(params)
	if err != nil {
		return usageError{err}
	}
	d, err := open(c.Device)
	if err != nil {
		return err
	}
	r := batchReport{Device: c.Device, QPs: c.QPs, Outcomes: map[string]int{}, Errnos: map[string]int{}}
	err = c.rounds(e, d, way, &r)
	err = errors.Join(err, d.Close())
	if err != nil {
		r.Error = err.Error()
	}
	if e.asJSON {
		return errors.Join(err, e.json(r))
	}
	r.write(e)
	return err
}

// outcomes are those that an entry of a batch can have in the end, in the order in
// which they are shown.
var outcomes = []batch.Outcome{batch.Done, batch.Failed, batch.NotSent, batch.Unknown}

func (r *batchReport) write(e *env) {
	var words []string
	for _, o := range outcomes {
		words = append(words, fmt.Sprintf("%d %s", r.Outcomes[o.String()], o))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Errnos)) {
		words = append(words, fmt.Sprintf("%s %d times", name, r.Errnos[name]))
	}
	fmt.Fprintf(e.out, "%d transitions of %d queue pairs of %s in %d rounds: %s; in %v, %d in flight at most\n",
		r.Added, r.QPs, r.Device, r.Rounds, strings.Join(words, ", "), time.Duration(r.TookNS).Round(time.Microsecond), r.InFlight)
}

// rounds runs the batches until one is not done as a whole.
func (c qpBatchCmd) rounds(e *env, d *devx.Device, w way, r *batchReport) (err error) {
	if w.rtr.Path, err = d.OwnPath(-1); err != nil {
		return err
	}
	o := batch.Options{Group: c.Group, Depth: c.Depth, OnWait: func(n int) {
		fmt.Fprintf(e.err, "devxlab: waiting for %d commands in flight, which cannot be recalled: up to 65 s\n", n)
	}}
	if c.Kernel {
		o.Strategy = batch.Kernel()
	}
	b, err := batch.New(d, o)
	switch {
	case errors.Is(err, batch.ErrOptions):
		return usageError{err}
	case err != nil: // its goroutines' memory, or the device
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	qps := make([]*devx.QP, c.QPs)
	for i := range qps {
		if qps[i], err = d.NewQP(devx.QPConfig{}); err != nil {
			return err
		}
	}
	for r.Rounds < c.Rounds && err == nil {
		b.Reset()
		for _, q := range qps {
			w.rtr.RemoteQPN = mlx5.Set(q.Number())
			if err := errors.Join(batch.Add(b, q, w.init, 0), batch.Add(b, q, w.rtr, 0), batch.Add(b, q, w.rts, 0), batch.Add(b, q, mlx5.ToRST{}, 0)); err != nil {
				return err
			}
		}
		r.Rounds++
		r.Added += b.Len()
		err = b.Run(e.ctx)
		for x := range b.Results() {
			r.Outcomes[x.Outcome.String()]++
			if errno := unix.Errno(0); errors.As(x.Err, &errno) {
				r.Errnos[unix.ErrnoName(errno)]++
			}
		}
		_, most := b.InFlight()
		r.InFlight, r.TookNS = max(r.InFlight, most), r.TookNS+b.Elapsed().Nanoseconds()
	}
	return err
}
