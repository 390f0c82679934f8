// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"devxlab.example/devx"
	"devxlab.example/emu/uverbs"
	"devxlab.example/mlx5"
)

// Options of a run.
type Options struct {
	Device   string    // "" or "emu:": the emulated device; a name such as mlx5_0: hardware
	Dir      string    // where the files go; "" writes none
	Quick    bool      // the fewest pairs that allow an answer
	Progress io.Writer // nil: none
}

// Run is an experiment under way.
type Run struct {
	Options
	Result
	seed uint64
}

// emulated reports whether figures depend on what a profile was told.
func (r *Run) emulated() bool { return r.Provenance.Place == PlaceEmu }

func (r *Run) progress(format string, args ...any) {
	if r.Options.Progress != nil {
		fmt.Fprintf(r.Options.Progress, "\r\x1b[K"+format, args...)
	}
}

// pairs is how many interleaved pairs a comparison takes.
func (r *Run) pairs(full int) int {
	if r.Quick {
		return MinPairs
	}
	return max(full, MinPairs)
}

// Do runs one experiment. A cancelled context ends it early; what was measured
// until then is in the result, which is marked.
func Do(ctx context.Context, e Experiment, o Options) (*Result, error) {
	if o.Device == "" {
		o.Device = uverbs.Scheme + ":"
	}
	info, profile, err := inspect(o.Device)
	if err != nil {
		return nil, err
	}
	r := &Run{Options: o, seed: 1}
	r.Result = Result{
		Experiment: e.Name, Question: e.Question, Params: map[string]any{}, Started: time.Now(),
		Provenance: provenance(info, profile),
	}
	before := readCPUTime()
	err = e.run(ctx, r)
	r.progress("")
	r.Took = time.Since(r.Started)
	r.Provenance.Steal = stealSince(before)
	if ctx.Err() != nil {
		r.Interrupted = true
		r.Verdicts = nil
		err = nil
	}
	if err != nil {
		r.Error = err.Error()
	}
	if o.Dir != "" {
		err = errors.Join(err, r.Result.WriteFiles(o.Dir))
	}
	return &r.Result, err
}

// inspect opens the device to see what it is.
func inspect(name string) (devx.Info, string, error) {
	d, err := devx.Open(name)
	if err != nil {
		return devx.Info{}, "", err
	}
	profile := ""
	if emu, ok := uverbs.Lookup(name); ok {
		profile = emu.HCA().Profile().Name
	}
	return d.Info(), profile, d.Close()
}

// maxProcs gives the program a thread for each command in flight, and two more,
// and returns a function that takes them back. With fewer, the runtime hands
// blocked threads over slowly.
func maxProcs(depth int) (restore func()) {
	old := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(old, depth+2))
	return func() { runtime.GOMAXPROCS(old) }
}

// cycle is the life of a queue pair that experiments repeat: from RESET to RTS
// and back, addressed to itself.
type cycle struct {
	init mlx5.RST2INIT
	rtr  mlx5.INIT2RTR
	rts  mlx5.RTR2RTS
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
