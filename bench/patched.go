// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/ebpf"
	"devxlab.example/mlx5"
)

// PatchedName is the name of the experiment that Patched makes, and of its files.
const PatchedName = "patched"

// Parts of the measurement of one boot: each is about one of the patches of patches/.
const (
	PatchedRTS    = "c2"     // 0001: RTR→RTS of verbs queue pairs
	PatchedStale  = "c3"     // 0002: a storm of stale connections
	PatchedBatch  = "c6"     // 0003: transitions one by one, over threads, by one ioctl
	PatchedOutbox = "outbox" // 0004: a command that fails
)

// PatchedParts returns all of them, in the order in which they run.
func PatchedParts() []string { return []string{PatchedRTS, PatchedBatch, PatchedOutbox, PatchedStale} }

// PatchedBoot is what the measurement of one boot found besides times.
type PatchedBoot struct {
	Params   []string      `json:"params"` // of the patches, that this kernel has: "mlx5_ib.rts_defer_qps"
	Batch    bool          `json:"batch"`  // it has the ioctl for a batch
	Storms   []StaleStorm  `json:"storms,omitempty"`
	Failures []FailedModif `json:"failures,omitempty"`

	NotVisible map[string]string `json:"not_visible,omitempty"` // stages of package ebpf, and why
}

// FailedModif is how a command that the firmware refuses looks to a program.
type FailedModif struct {
	How      string `json:"how"` // off: the patch's parameter, or none; on
	Outbox   bool   `json:"outbox"`
	Status   string `json:"status,omitempty"`
	Syndrome uint32 `json:"syndrome,omitempty"`
	Errno    string `json:"errno"`
}

const (
	patchedRounds = 12                 // samples of each way in a boot
	patchedCost   = 8                  // groups of queue pairs whose commands are followed
	patchedRoot   = "/sys/module"      // where parameters are
	howOff        = "off"              // as without the patch
	howPlain      = "plain"            // off, and it was never on since boot
	howOn         = "on"               // where a patch has one way to be on
	howOnMS       = "on-1000us"        // 0001 with the delay that the article has
	howOnNow      = "on-0us"           // and with none
	costPrefix    = "cost/"            // of series that are a part of a command, by package ebpf
	deferQPs      = "rts_defer_qps"    // parameters of the patches
	deferUS       = "rts_defer_us"     //
	limitStale    = "limit_stale_conn" //
	outboxOnError = "devx_outbox_on_error"
)

// patchParams are the parameters of the patches, by the module that has them.
var patchParams = []struct{ module, name string }{
	{"mlx5_ib", deferQPs}, {"mlx5_ib", deferUS}, {"ib_cm", limitStale}, {"ib_cm", "stale_conn_window_ms"}, {"mlx5_ib", outboxOnError},
}

// Patched makes the experiment that measures what the patches of patches/ change in
// the kernel that runs, as far as it has them: with each off, and on. It is one boot
// of a comparison, which ComparePatches makes. Where only two ways alternate, onFirst says
// which begins: from boot to boot it is to change.
func Patched(parts []string, onFirst bool) (Experiment, error) {
	for _, p := range parts {
		if !slices.Contains(PatchedParts(), p) {
			return Experiment{}, fmt.Errorf("bench: no part %q: %s", p, strings.Join(PatchedParts(), ", "))
		}
	}
	if len(parts) == 0 {
		parts = PatchedParts()
	}
	return Experiment{
		Name:       PatchedName,
		Question:   "What do the kernel patches change, off and on, in this kernel?",
		queuePairs: 2 * c6Group,
		plan: func(*Run) string {
			return fmt.Sprintf("makes %d queue pairs at most and moves them from RESET to RTS and back, makes connections to itself that are refused, and writes to the patches' parameters in %s. No work request.", 2*c6Group, patchedRoot)
		},
		run: func(ctx context.Context, r *Run) error {
			if r.emulated() {
				return fmt.Errorf("bench: %s is about the kernel's driver, and %s is inside this process: --device mlx5_0, in the lab or on a card", PatchedName, r.Device)
			}
			p := &patched{Run: r, root: patchedRoot, onFirst: onFirst}
			return p.all(ctx, parts)
		},
	}, nil
}

// patched is that experiment under way.
type patched struct {
	*Run
	root    string // where the parameters are
	onFirst bool   // storms begin with one with the limit on

	follow []*contender   // ways whose commands are followed through the kernel, after all that is timed
	undo   []func() error // what ends their devices, and sets parameters back
}

func (p *patched) all(ctx context.Context, parts []string) (err error) {
	defer func() { err = errors.Join(err, p.end()) }()
	p.PatchedBoot = &PatchedBoot{Batch: p.modifyBatch}
	for _, x := range patchParams {
		if p.has(x.module, x.name) {
			p.PatchedBoot.Params = append(p.PatchedBoot.Params, x.module+"."+x.name)
		}
	}
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{{PatchedRTS, p.rts}, {PatchedBatch, p.batch}, {PatchedOutbox, p.outbox}, {PatchedStale, p.stale}} {
		if !slices.Contains(parts, part.name) {
			continue
		}
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("part %s: %w", part.name, err)
		}
	}
	return p.costs(ctx)
}

// end undoes, last first, and forgets it.
func (p *patched) end() (err error) {
	for _, f := range slices.Backward(p.undo) {
		err = errors.Join(err, f())
	}
	p.undo, p.follow = nil, nil
	return err
}

func (p *patched) param(module, name string) string {
	return filepath.Join(p.root, module, "parameters", name)
}

func (p *patched) has(module, name string) bool {
	_, err := os.Stat(p.param(module, name))
	return err == nil
}

// set writes a parameter of a module that runs.
func (p *patched) set(module, name, value string) error {
	return os.WriteFile(p.param(module, name), []byte(value), 0)
}

// rtsWays are the ways of 0001 that this kernel has: as the parameters are set.
func (p *patched) rtsWays() (ways []string, set func(how string) error) {
	if !p.has("mlx5_ib", deferQPs) {
		return []string{howOff}, func(string) error { return nil }
	}
	return []string{howOff, howOnMS, howOnNow}, func(how string) error {
		qps, us := "1", "1000" // one queue pair is enough to be above the threshold
		switch how {
		case howOff:
			qps = "0"
		case howOnNow:
			us = "0"
		}
		return errors.Join(p.set("mlx5_ib", deferUS, us), p.set("mlx5_ib", deferQPs, qps))
	}
}

// rts measures RTR→RTS by verbs.
func (p *patched) rts(ctx context.Context) error {
	bd, err := p.newVerbsBed(p.Device)
	if err != nil || bd == nil {
		return errors.Join(err, p.noVerbs(bd))
	}
	ways, set := p.rtsWays()
	p.undo = append(p.undo, bd.d.Close, func() error { return set(howOff) })
	if err := errors.Join(bd.grow(ctx, c6Group, nil), bd.settle()); err != nil {
		return err
	}
	var turns []*contender
	for _, how := range ways {
		turns = append(turns, rtsContender(bd, how, func() error { return set(how) }))
	}
	p.follow = append(p.follow, turns...)
	return errors.Join(p.inTurn(ctx, p.repeats(patchedRounds), turns...), set(howOff))
}

// settleTries is how often the first RTR is tried, of which each takes a second.
const settleTries = 10

// settle waits until the port's own address can be reached: just after boot the
// kernel may not find it within the second that it gives an RTR.
func (b *bed) settle() (err error) {
	q := b.qps[0]
	for range settleTries {
		err = errors.Join(b.c.modifyVerbs(q, 0), b.c.modifyVerbs(q, 1))
		if !errors.Is(err, unix.ETIMEDOUT) {
			break
		}
		if err := b.c.modifyVerbs(q, stepsPerCycle-1); err != nil {
			return err
		}
	}
	return errors.Join(err, b.c.modifyVerbs(q, stepsPerCycle-1))
}

// noVerbs is an error where there is no bed.
func (p *patched) noVerbs(bd *bed) error {
	if bd == nil && !p.verbs {
		return errors.New("the device has no verbs")
	}
	return nil
}

// rtsName is the name of a series of RTR→RTS: until the call returned, until a query
// answered RTS, or the whole way from RESET and back.
func rtsName(how, what string) string { return PatchedRTS + "/" + how + "/" + what }

// rtsContender times RTR→RTS of each queue pair of a bed.
func rtsContender(bd *bed, how string, set func() error) *contender {
	n := len(bd.qps)
	series := func(what, words string, ops int) *contender {
		return &contender{Series: Series{Name: rtsName(how, what), What: words, Ops: ops}}
	}
	c := series("call", "RTR→RTS by verbs, until the call returned", n)
	c.parts = []*contender{
		series("seen", "RTR→RTS by verbs, until a query has answered RTS", n),
		series("way", "one transition of the way from RESET to RTS and back, with that query", stepsPerCycle*n),
	}
	c.sample = func(ctx context.Context) (sample, error) {
		if err := errors.Join(set(), ctx.Err()); err != nil {
			return sample{}, err
		}
		var call, seen time.Duration
		began := time.Now()
		for step := range stepsPerCycle {
			for _, q := range bd.qps {
				start := time.Now()
				if err := bd.c.modifyVerbs(q, step); err != nil {
					return sample{}, err
				}
				if step != rts {
					continue
				}
				call += time.Since(start)
				a, err := q.Verbs().Query(devx.MaskState)
				if err != nil {
					return sample{}, err
				}
				seen += time.Since(start)
				if a.State != mlx5.StateRTS {
					return sample{}, fmt.Errorf("QP %#x is in %v after RTR→RTS, way %s: a reader sees a state that is not there", q.Number(), a.State, how)
				}
			}
		}
		return sample{ns: perOp(call, n), more: []float64{perOp(seen, n), perOp(time.Since(began), stepsPerCycle*n)}}, nil
	}
	return c
}

// batch measures the ways of c6.
func (p *patched) batch(ctx context.Context) error {
	bd, err := p.newBed(p.Device, c6Group)
	if err != nil {
		return err
	}
	p.undo = append(p.undo, bd.d.Close)
	ways, end, err := p.c6Ways(bd, 1)
	if err != nil {
		return err
	}
	p.undo = append(p.undo, end)
	for _, w := range ways {
		w.Name = PatchedBatch + "/" + w.Name
		// Commands of the one ioctl have no caller that waits for each of them: there is nothing to follow.
		if w.Name != PatchedBatch+"/"+wayKernel {
			p.follow = append(p.follow, w)
		}
	}
	return p.inTurn(ctx, p.repeats(patchedRounds), ways...)
}

// costs follows RTR2RTS_QP of each way through the kernel, after all that was timed: to
// be watched costs each command something. The median of each part becomes a series of
// one sample: what is compared are boots.
func (p *patched) costs(ctx context.Context) (err error) {
	if !p.Options.KernelCost || p.follow == nil {
		return nil
	}
	t, err := ebpf.Attach(ebpf.Options{Filter: ebpf.Filter{Processes: []int{os.Getpid()}, Device: p.Device, Op: mlx5.OpRTR2RTS}})
	if err != nil {
		return err
	}
	defer closed(&err, t)
	defer setProcs(runtime.GOMAXPROCS(0))
	last := new(ebpf.Snapshot)
	for _, w := range p.follow {
		for range p.repeats(patchedCost) {
			if _, err := w.take(ctx); err != nil {
				return err
			}
		}
		s, err := t.Snapshot()
		if err != nil {
			return err
		}
		k := kernelCost(s.Since(last), t.Coverage())
		last = s
		p.PatchedBoot.NotVisible = k.NotVisible
		p.cost(w, k)
	}
	return nil
}

// cost makes series of the parts of a way's commands.
func (p *patched) cost(w *contender, k *KernelCost) {
	for _, c := range k.Commands {
		if c.Op != mlx5.OpRTR2RTS.String() {
			continue
		}
		for _, name := range ebpf.Parts() {
			if x, ok := c.Parts[name.String()]; ok {
				p.Series = append(p.Series, Series{
					Name: costName(w.Name, name.String()), What: "median of one RTR2RTS_QP, watched: " + name.String(), Ops: int(x.N),
					Samples: Samples{float64(x.P50)}, Summary: Summarize([]float64{float64(x.P50)}),
				})
			}
		}
	}
}

// costName is the name of the series of a part of the commands of another series.
func costName(series, part string) string { return costPrefix + series + "/" + part }

// outbox has a command refused, and notes what the program is told.
func (p *patched) outbox(context.Context) (err error) {
	bd, err := p.newBed(p.Device, 1)
	if err != nil {
		return err
	}
	defer closed(&err, bd.d)
	if err := p.refusedModify(bd, howOff); err != nil || !p.has("mlx5_ib", outboxOnError) {
		return err
	}
	defer func() { err = errors.Join(err, p.set("mlx5_ib", outboxOnError, "N")) }()
	if err := p.set("mlx5_ib", outboxOnError, "Y"); err != nil {
		return err
	}
	return p.refusedModify(bd, howOn)
}

// refusedModify sends RTR2RTS for a queue pair in RESET.
func (p *patched) refusedModify(bd *bed, how string) error {
	err := bd.c.modify(bd.qps[0], rts)
	var c *mlx5.CommandError
	if !errors.As(err, &c) {
		return fmt.Errorf("RTR2RTS_QP of a queue pair in RESET was not refused: %v", err)
	}
	f := FailedModif{How: how, Outbox: c.HasOutbox, Errno: strconv.Itoa(int(c.Errno))}
	if c.HasOutbox {
		f.Status, f.Syndrome = c.Status.String(), c.Syndrome
	}
	p.PatchedBoot.Failures = append(p.PatchedBoot.Failures, f)
	return nil
}
