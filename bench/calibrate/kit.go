// SPDX-License-Identifier: BSD-2-Clause

package calibrate

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// kit is what one goroutine issues commands with.
type kit struct {
	d     *devx.Device
	s     *devx.Submitter
	q     *devx.QP   // lives as long as the kit
	home  *devx.PD   // of the key
	mem   *devx.Umem // likewise
	init  mlx5.RST2INIT
	rtr   mlx5.INIT2RTR
	rts   mlx5.RTR2RTS
	reset [mlx5.ToRSTQPInSize]byte
	cmd   [mlx5.TransitionSize]byte

	// What is alive between a step that makes it and the one that destroys it.
	pd   *devx.PD
	cq   *devx.CQ
	key  *devx.MKey
	temp *devx.QP
}

func newKit(d *devx.Device, path mlx5.Path) (k *kit, err error) {
	k = &kit{d: d}
	if k.s, err = d.NewSubmitter(); err != nil {
		return k, err
	}
	if k.q, err = d.NewQP(devx.QPConfig{}); err != nil {
		return k, err
	}
	if k.home, err = d.PD(); err != nil {
		return k, err
	}
	if k.mem, err = d.Umem(4096, 0); err != nil {
		return k, err
	}
	k.init = mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(mlx5.RemoteWrite | mlx5.RemoteRead)}
	k.rtr = mlx5.INIT2RTR{
		Path: path, MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(k.q.Number()), NextRcvPSN: mlx5.Set(0),
		LogRRAMax: mlx5.Set(0), MinRNRNak: mlx5.Set(12),
	}
	k.rts = mlx5.RTR2RTS{AckTimeout: mlx5.Set(14), RetryCount: mlx5.Set(7), RNRRetry: mlx5.Set(mlx5.RNRRetryForever), NextSendPSN: mlx5.Set(0), LogSRAMax: mlx5.Set(0)}
	mlx5.PutHeader(k.reset[:], mlx5.Op2RST, 0)
	mlx5.ToRSTQPIn(k.reset[:]).SetQPN(k.q.Number())
	return k, nil
}

// free unmaps the kit's memory. The objects went with the device.
func (k *kit) free() error {
	var errs []error
	if k.mem != nil {
		errs = append(errs, k.mem.Close())
	}
	if k.s != nil {
		errs = append(errs, k.s.Close())
	}
	return errors.Join(errs...)
}

// step is one firmware command.
type step struct {
	op mlx5.Op
	do func(*kit) error

	// In a burst, before and after are what the command needs and leaves; a
	// command on a queue pair that changes its state, or how many there are, is
	// not for bursts: it would differ from the one that was measured alone.
	burst         bool
	before, after func(*kit) error
	optional      bool // a device may refuse it
}

// The steps in an order in which each finds what it needs, and the last leaves
// what the first found.
var steps = []step{
	{op: mlx5.OpNOP, do: nop, burst: true, optional: true},
	{op: mlx5.OpQueryHCACap, do: queryCaps, burst: true, optional: true},
	{op: mlx5.OpAllocPD, do: makePD, burst: true, after: dropPD},
	{op: mlx5.OpCreateCQ, do: makeCQ, burst: true, after: dropCQ},
	{op: mlx5.OpCreateMKey, do: makeKey, burst: true, after: dropKey, optional: true},
	{op: mlx5.OpCreateQP, do: makeQP},
	{op: mlx5.OpDestroyQP, do: func(k *kit) error { return k.temp.Close() }},
	{op: mlx5.OpRST2INIT, do: func(k *kit) error { return send(k, k.init) }},
	{op: mlx5.OpINIT2RTR, do: func(k *kit) error { return send(k, k.rtr) }},
	{op: mlx5.OpRTR2RTS, do: func(k *kit) error { return send(k, k.rts) }},
	{op: mlx5.OpRTS2RTS, do: func(k *kit) error { return send(k, mlx5.RTS2RTS{}) }},
	{op: mlx5.Op2ERR, do: func(k *kit) error { return send(k, mlx5.ToERR{}) }},
	{op: mlx5.Op2RST, do: func(k *kit) error { return k.s.Send(k.q, k.reset[:]) }, burst: true},
	{op: mlx5.OpQueryQP, do: queryQP, burst: true},
	{op: mlx5.OpDestroyMKey, do: dropKey, burst: true, before: makeKey, optional: true},
	{op: mlx5.OpDestroyCQ, do: dropCQ, burst: true, before: makeCQ},
	{op: mlx5.OpDeallocPD, do: dropPD, burst: true, before: makePD},
}

// stepOf returns the place of an opcode in steps.
func stepOf(op mlx5.Op) int {
	for i := range steps {
		if steps[i].op == op {
			return i
		}
	}
	panic("calibrate: no step " + op.String())
}

func send[T mlx5.Transition](k *kit, t T) error {
	clear(k.cmd[:])
	n, err := t.Encode(k.cmd[:], k.q.Number(), k.q.Transport())
	if err != nil {
		return err
	}
	return k.s.Send(k.q, k.cmd[:n])
}

func nop(k *kit) error {
	var in [mlx5.NOPInSize]byte
	var out [mlx5.CmdOutSize]byte
	mlx5.PutHeader(in[:], mlx5.OpNOP, 0)
	return k.d.Exec(in[:], out[:])
}

func queryCaps(k *kit) error {
	_, err := k.d.Caps()
	return err
}

func queryQP(k *kit) error {
	_, err := k.q.Query()
	return err
}

func makePD(k *kit) (err error) {
	k.pd, err = k.d.PD()
	return err
}

func dropPD(k *kit) error { return k.pd.Close() }

func makeCQ(k *kit) (err error) {
	k.cq, err = k.d.CQ(1)
	return err
}

func dropCQ(k *kit) error { return k.cq.Close() }

func makeKey(k *kit) (err error) {
	k.key, err = k.d.MKey(k.home, k.mem, 0)
	return err
}

func dropKey(k *kit) error {
	if k.key == nil { // the device refused to make one
		return errNoKey
	}
	return k.key.Close()
}

var errNoKey = errors.New("there is no key to destroy")

func makeQP(k *kit) (err error) {
	k.temp, err = k.d.NewQP(devx.QPConfig{})
	return err
}

// clock is what a device's commands take their time on.
type clock interface {
	Now() time.Duration
	SleepUntil(time.Duration)
}

// team is a goroutine with a kit for each command in flight.
type team struct {
	d       *devx.Device
	clock   clock
	virtual bool
	kits    []*kit
	work    []chan func()
	ended   sync.WaitGroup
}

func newTeam(d *devx.Device, c clock, virtual bool, n int) (*team, error) {
	t := &team{d: d, clock: c, virtual: virtual}
	path, err := d.OwnPath(-1)
	if err != nil {
		return t, err
	}
	for range n {
		k, err := newKit(d, path)
		t.kits = append(t.kits, k)
		if err != nil {
			return t, err
		}
		work := make(chan func(), 1) // who hands out work must not wait for a thread
		t.work = append(t.work, work)
		t.ended.Go(func() {
			for f := range work {
				f()
				d.Busy(-1)
			}
		})
	}
	return t, nil
}

// close ends the goroutines, the device's context and all objects in it.
func (t *team) close() error {
	for _, w := range t.work {
		close(w)
	}
	t.ended.Wait()
	errs := []error{t.d.Close()}
	for _, k := range t.kits {
		errs = append(errs, k.free())
	}
	return errors.Join(errs...)
}

// each runs f on n kits at once.
func (t *team) each(n int, f func(i int, k *kit) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	wg.Add(n)
	t.d.Busy(n)
	for i := range n {
		t.work[i] <- func() {
			defer wg.Done()
			errs[i] = f(i, t.kits[i])
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// event is one command of a trial.
type event struct {
	step       int
	start, end time.Duration // on the device's clock
}

// burst issues one command from each of len(of) kits, each so long after the
// first as after says (nil: all at once). The events are in the order of their
// start, which is that of arrival; on a virtual clock, where it can be chosen, a
// nanosecond tells commands that come together apart.
func (t *team) burst(of []int, after []time.Duration) ([]event, error) {
	around := func(hook func(*step) func(*kit) error) error {
		return t.each(len(of), func(i int, k *kit) error {
			if f := hook(&steps[of[i]]); f != nil {
				return f(k)
			}
			return nil
		})
	}
	if err := around(func(s *step) func(*kit) error { return s.before }); err != nil {
		return nil, err
	}
	lead := time.Microsecond
	if !t.virtual {
		lead = 300*time.Microsecond + time.Duration(len(of))*70*time.Microsecond // until each sleeps on a thread of its own
	}
	at := t.clock.Now() + lead
	events := make([]event, len(of))
	err := t.each(len(of), func(i int, k *kit) error {
		due := at
		if after != nil {
			due += after[i]
		}
		if t.virtual {
			due += time.Duration(i)
		}
		t.clock.SleepUntil(due)
		start := t.clock.Now()
		err := steps[of[i]].do(k)
		events[i] = event{of[i], start, t.clock.Now()}
		if err != nil {
			err = fmt.Errorf("%v: %w", steps[of[i]].op, err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	sortEvents(events)
	return events, around(func(s *step) func(*kit) error { return s.after })
}
