// SPDX-License-Identifier: BSD-2-Clause

package batch

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"devxlab.example/devx"
)

// Strategy is a way to carry a group of transitions to the device: what
// experiments compare.
type Strategy interface {
	// Name is short and without spaces: "serial-devx", "serial-verbs", "parallel-16".
	Name() string
	// Start makes what the strategy needs on a device.
	Start(d *devx.Device) (Carrier, error)
}

// Carrier is a strategy at work on one device.
type Carrier interface {
	// Carry sends every chain of the group and returns when the last answer is
	// in. What it leaves out is reported as not sent.
	Carry(g *Group)
	Close() error
}

// Serial carries transitions one by one, from the caller's goroutine.
func Serial() Strategy { return serial{} }

// SerialVerbs carries them one by one through verbs (ibv_modify_qp): the way that
// programs go which know nothing of DevX. The queue pairs must be made by verbs
// (devx.VerbsQP.DevX), and the device must have verbs: the error of one that has
// none is devx.ErrNoVerbs. A transition that verbs cannot express is not sent.
// What the driver chooses itself is said at devx.ModifyVerbs.
func SerialVerbs() Strategy { return serial{verbs: true} }

type serial struct{ verbs bool }

func (s serial) Name() string {
	if s.verbs {
		return "serial-verbs"
	}
	return "serial-devx"
}

func (s serial) Start(d *devx.Device) (Carrier, error) {
	if s.verbs && !d.HasVerbs() {
		return nil, fmt.Errorf("%s: %w: it needs a kernel's driver, in the lab (devxlab lab) or on hardware", d.Name(), devx.ErrNoVerbs)
	}
	own, err := d.NewSubmitter()
	if err != nil {
		return nil, err
	}
	return &serialCarrier{d, own, s.verbs}, nil
}

type serialCarrier struct {
	d     *devx.Device
	s     *devx.Submitter
	verbs bool
}

func (c *serialCarrier) Carry(g *Group) {
	if !g.announced() {
		c.d.Busy(1)
		defer c.d.Busy(-1)
	}
	for i := range g.heads {
		if c.verbs {
			g.SendVerbs(i, c.s)
		} else {
			g.Send(i, c.s)
		}
	}
}

func (c *serialCarrier) Close() error { return c.s.Close() }

// Kernel carries up to 32 transitions of different queue pairs by one ioctl of a
// kernel with the patch of patches/README.md; the error of one without it is
// devx.ErrNoModifyBatch. In flight counts what a call holds: the kernel has up to
// half of the device's slots at work for it. A device that did not answer one of them in time
// gets none by it until its driver is loaded anew.
func Kernel() Strategy { return kernel{} }

type kernel struct{}

func (kernel) Name() string { return "kernel-batch" }

func (kernel) Start(d *devx.Device) (Carrier, error) {
	if err := d.HasModifyBatch(); err != nil {
		return nil, err
	}
	own, err := d.NewSubmitter()
	if err != nil {
		return nil, err
	}
	return &kernelCarrier{s: own}, nil
}

type kernelCarrier struct {
	s      *devx.Submitter
	chains []int32 // each one's next entry
	m      [devx.MaxModifyBatch]devx.Modification
}

func (c *kernelCarrier) Carry(g *Group) {
	c.chains = append(c.chains[:0], g.heads...)
	for len(c.chains) > 0 {
		if n := min(len(c.chains), len(c.m)); !g.sendTogether(c.chains[:n], c.s, c.m[:n]) {
			return
		}
		c.chains = slices.DeleteFunc(c.chains, func(at int32) bool { return at < 0 })
	}
}

func (c *kernelCarrier) Close() error { return c.s.Close() }

// Parallel carries up to depth transitions at once, 1 to 64: one from the
// goroutine that calls Run, which so needs no other to be woken for a single
// transition, and the rest each from a goroutine of its own. Goroutines and
// buffers live as long as the batch.
func Parallel(depth int) Strategy { return parallel{depth} }

type parallel struct{ depth int }

func (p parallel) Name() string { return fmt.Sprintf("parallel-%d", p.depth) }

func (p parallel) Start(d *devx.Device) (Carrier, error) {
	if p.depth < 1 || p.depth > MaxDepth {
		return nil, fmt.Errorf("depth %d is out of range: 1 to %d", p.depth, MaxDepth)
	}
	c := &parallelCarrier{d: d, done: make(chan struct{}, 1)}
	for i := range p.depth {
		s, err := d.NewSubmitter()
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		if i == 0 {
			c.own = s
			continue
		}
		w := &worker{c: c, s: s, wake: make(chan *Group, 1), gone: make(chan struct{})}
		c.workers = append(c.workers, w)
		go w.run()
	}
	return c, nil
}

type parallelCarrier struct {
	d       *devx.Device
	own     *devx.Submitter // of the goroutine that calls Carry
	workers []*worker
	next    atomic.Int64 // chain that whoever is free takes next
	active  atomic.Int64
	done    chan struct{}
}

type worker struct {
	c    *parallelCarrier
	s    *devx.Submitter
	wake chan *Group
	gone chan struct{}
}

func (w *worker) run() {
	defer close(w.gone)
	for g := range w.wake {
		if !w.c.carry(g, w.s) {
			w.c.d.Busy(-1)
			continue
		}
		// The last one: who called Carry waits, and if it was announced before, is
		// so again.
		if !g.announced() {
			w.c.d.Busy(-1)
		}
		w.c.done <- struct{}{}
	}
}

// carry sends chains until none is left, and reports whether it is the last one
// to find none.
func (c *parallelCarrier) carry(g *Group, s *devx.Submitter) (last bool) {
	for {
		i := int(c.next.Add(1)) - 1
		if i >= len(g.heads) {
			return c.active.Add(-1) == 0
		}
		g.Send(i, s)
	}
}

func (c *parallelCarrier) Carry(g *Group) {
	n := min(1+len(c.workers), len(g.heads))
	c.next.Store(0)
	c.active.Store(int64(n))
	if g.announced() {
		c.d.Busy(n - 1)
	} else {
		c.d.Busy(n)
	}
	for _, w := range c.workers[:n-1] {
		w.wake <- g
	}
	if !c.carry(g, c.own) {
		c.d.Busy(-1)
		<-c.done
	} else if !g.announced() {
		c.d.Busy(-1)
	}
}

func (c *parallelCarrier) Close() error {
	var errs []error
	for _, w := range c.workers {
		close(w.wake)
		<-w.gone
		errs = append(errs, w.s.Close())
	}
	if c.own != nil {
		errs = append(errs, c.own.Close())
	}
	return errors.Join(errs...)
}
