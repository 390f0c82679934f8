// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/internal/qpparams"
	"devxlab.example/mlx5"
)

// cycle is the life of a queue pair that experiments repeat: from RESET to RTS
// and back, addressed to itself.
type cycle struct {
	init  mlx5.RST2INIT
	rtr   mlx5.INIT2RTR
	rts   mlx5.RTR2RTS
	reset mlx5.ToRST
}

// stepsPerCycle is the number of transitions: three up, and 2RST.
const stepsPerCycle = 4

// loopback returns a cycle whose address is the device's own.
func loopback(d *devx.Device) (cycle, error) {
	c := cycle{
		init: mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(mlx5.RemoteWrite | mlx5.RemoteRead)},
		rtr: mlx5.INIT2RTR{
			MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(0), NextRcvPSN: mlx5.Set(0), LogRRAMax: mlx5.Set(0), MinRNRNak: mlx5.Set(12),
		},
		rts: mlx5.RTR2RTS{AckTimeout: mlx5.Set(14), RetryCount: mlx5.Set(7), RNRRetry: mlx5.Set(mlx5.RNRRetryForever), NextSendPSN: mlx5.Set(0), LogSRAMax: mlx5.Set(0)},
	}
	path, err := d.OwnPath(-1)
	if err != nil {
		return c, fmt.Errorf("bench: %w", err)
	}
	c.rtr.Path = path
	return c, nil
}

// modify brings q through one step of its cycle, through DevX.
func (c *cycle) modify(q *devx.QP, step int) error {
	switch step {
	case 0:
		return devx.Modify(q, c.init)
	case 1:
		rtr := c.rtr
		rtr.RemoteQPN = mlx5.Set(q.Number())
		return devx.Modify(q, rtr)
	case 2:
		return devx.Modify(q, c.rts)
	}
	return devx.Modify(q, c.reset)
}

// modifyVerbs is modify through verbs, of a queue pair that they made.
func (c *cycle) modifyVerbs(q *devx.QP, step int) error {
	v := q.Verbs()
	switch step {
	case 0:
		return devx.ModifyVerbs(v, c.init)
	case 1:
		rtr := c.rtr
		rtr.RemoteQPN = mlx5.Set(v.Number())
		return devx.ModifyVerbs(v, rtr)
	case 2:
		return devx.ModifyVerbs(v, c.rts)
	}
	return devx.ModifyVerbs(v, c.reset)
}

// add adds one step of q's cycle to a batch.
func (c *cycle) add(b *batch.Batch, q *devx.QP, step int) error {
	switch step {
	case 0:
		return batch.Add(b, q, c.init, 0)
	case 1:
		rtr := c.rtr
		rtr.RemoteQPN = mlx5.Set(q.Number())
		return batch.Add(b, q, rtr, 0)
	case 2:
		return batch.Add(b, q, c.rts, 0)
	}
	return batch.Add(b, q, c.reset, 0)
}

// bed is a device with queue pairs and a way to move them.
type bed struct {
	d     *devx.Device
	c     cycle
	qps   []*devx.QP
	verbs bool // makes them by verbs
}

// qpParams are the parameters of a result that queue pairs were made with.
func qpParams(p *qpparams.Params) Params {
	return Params{"max_qp": p.MaxQP, "qp_timeout": p.QPTimeout, "retry_cnt": p.RetryCnt, "rnr_retry": p.RNRRetry}
}

// qpParamsOf is the reverse: nil if there are none.
func qpParamsOf(p Params) *qpparams.Params {
	var q qpparams.Params
	for k, v := range map[string]*int{"max_qp": &q.MaxQP, "qp_timeout": &q.QPTimeout, "retry_cnt": &q.RetryCnt, "rnr_retry": &q.RNRRetry} {
		n, ok := p[k].(int)
		if !ok {
			return nil
		}
		*v = n
	}
	if q.Validate() != nil {
		return nil
	}
	return &q
}

// newBed makes one with the time-out and retries that were asked for.
func (r *Run) newBed(name string, n int) (*bed, error) { return r.newBedOf(name, n, false) }

// newVerbsBed makes one of queue pairs that verbs made; nil, and it is noted, if
// the device has no verbs.
func (r *Run) newVerbsBed(name string) (*bed, error) {
	if !r.verbs {
		r.Findings = append(r.Findings, "Queue pairs made by verbs were not measured: they need a kernel behind the device, in the lab or on hardware.")
		return nil, nil
	}
	return r.newBedOf(name, 0, true)
}

func (r *Run) newBedOf(name string, n int, verbs bool) (*bed, error) {
	b, err := newBed(name, n)
	if err != nil {
		return nil, err
	}
	b.verbs = verbs
	if p := r.Options.QP; p != nil {
		b.c.rts.AckTimeout, b.c.rts.RetryCount, b.c.rts.RNRRetry = mlx5.Set(p.QPTimeout), mlx5.Set(p.RetryCnt), mlx5.Set(p.RNRRetry)
	}
	return b, nil
}

func newBed(name string, n int) (*bed, error) {
	d, err := devx.Open(name)
	if err != nil {
		return nil, err
	}
	b := &bed{d: d}
	if b.c, err = loopback(d); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if err := b.grow(context.Background(), n, nil); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return b, nil
}

// grow makes queue pairs until there are n. Now and then it calls made.
func (b *bed) grow(ctx context.Context, n int, made func(int)) error {
	for len(b.qps) < n {
		if i := len(b.qps); i%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			if made != nil {
				made(i)
			}
		}
		q, err := b.newQP()
		if err != nil {
			return err
		}
		b.qps = append(b.qps, q)
	}
	return nil
}

func (b *bed) newQP() (*devx.QP, error) {
	if !b.verbs {
		return b.d.NewQP(devx.QPConfig{})
	}
	v, err := b.d.NewVerbsQP(devx.QPConfig{})
	if err != nil {
		return nil, err
	}
	return v.DevX(), nil
}

// sample is one measurement.
type sample struct {
	ns       float64 // for one operation
	inFlight float64 // commands, mean; 0: not looked at
	possible float64 // the most that the depth and what was left to do allowed, mean
	more     []float64
}

// oneByOne measures the cycle of every queue pair, rounds times, step by step,
// one modify after the other.
func (b *bed) oneByOne(rounds int, modify func(q *devx.QP, step int) error) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		start := time.Now()
		for i := range rounds * stepsPerCycle {
			if err := ctx.Err(); err != nil {
				return sample{}, err
			}
			for _, q := range b.qps {
				if err := modify(q, i%stepsPerCycle); err != nil {
					return sample{}, err
				}
			}
		}
		return sample{ns: perOp(time.Since(start), rounds*stepsPerCycle*len(b.qps))}, nil
	}
}

// batched measures the same through a batch, one group a step: what it costs
// to fill and to empty the batch is in it, too. With depth above 0 it looks at
// how many commands were in flight, and notes in took, unless that is nil, how
// long each was under way.
func (b *bed) batched(t *batch.Batch, rounds, depth int, took *hdrhistogram.Histogram) func(context.Context) (sample, error) {
	ends := make([]time.Duration, len(b.qps))
	return func(ctx context.Context) (sample, error) {
		var spent, busy, possible, wall time.Duration
		for i := range rounds * stepsPerCycle {
			start := time.Now()
			t.Reset()
			for _, q := range b.qps {
				if err := b.c.add(t, q, i%stepsPerCycle); err != nil {
					return sample{}, err
				}
			}
			sent := time.Now()
			if err := t.Run(ctx); err != nil {
				return sample{}, err
			}
			spent += time.Since(start)
			if depth == 0 {
				continue
			}
			ends = ends[:0]
			for r := range t.Results() {
				busy += r.Took
				if took != nil {
					_ = took.RecordValue(int64(min(max(r.Took, 1), longest)))
				}
				ends = append(ends, r.Sent.Add(r.Took).Sub(sent))
			}
			slices.Sort(ends)
			possible += mostBusy(depth, ends)
			wall += ends[len(ends)-1]
		}
		n := rounds * stepsPerCycle * len(b.qps)
		s := sample{ns: perOp(spent, n), more: []float64{perOp(busy, n)}}
		if wall > 0 {
			s.inFlight, s.possible = float64(busy)/float64(wall), float64(possible)/float64(wall)
		}
		return s, nil
	}
}

// mostBusy returns the command time of a group whose commands ended at these
// times, sorted, if depth of them had been in flight whenever that many were
// left: what a sweep over depth is measured by, because at the end of a group
// there are fewer than depth, whoever sends them.
func mostBusy(depth int, ends []time.Duration) time.Duration {
	var sum, last time.Duration
	for i, end := range ends {
		sum += (end - last) * time.Duration(min(depth, len(ends)-i))
		last = end
	}
	return sum
}

func perOp(spent time.Duration, n int) float64 { return float64(spent.Nanoseconds()) / float64(n) }
