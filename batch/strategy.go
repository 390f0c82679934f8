// SPDX-License-Identifier: BSD-2-Clause

package batch

import (
	"errors"
	"fmt"
	"sync/atomic"

	"devxlab.example/devx"
)

// Strategy is a way to carry a group of transitions to the device: what
// experiments compare.
type Strategy interface {
	// Name is short and without spaces: "serial-devx", "parallel-16".
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

type serial struct{}

func (serial) Name() string { return "serial-devx" }

func (serial) Start(d *devx.Device) (Carrier, error) {
	s, err := d.NewSubmitter()
	if err != nil {
		return nil, err
	}
	return &serialCarrier{d, s}, nil
}

type serialCarrier struct {
	d *devx.Device
	s *devx.Submitter
}

func (c *serialCarrier) Carry(g *Group) {
	c.d.Busy(1)
	for i := range g.heads {
		g.Send(i, c.s)
	}
	c.d.Busy(-1)
}

func (c *serialCarrier) Close() error { return c.s.Close() }

// Parallel carries up to depth transitions at once, 1 to 64, each from a
// goroutine and buffers of its own that live as long as the batch.
func Parallel(depth int) Strategy { return parallel{depth} }

type parallel struct{ depth int }

func (p parallel) Name() string { return fmt.Sprintf("parallel-%d", p.depth) }

func (p parallel) Start(d *devx.Device) (Carrier, error) {
	if p.depth < 1 || p.depth > MaxDepth {
		return nil, fmt.Errorf("depth %d is out of range: 1 to %d", p.depth, MaxDepth)
	}
	c := &parallelCarrier{d: d, done: make(chan struct{}, 1)}
	for range p.depth {
		s, err := d.NewSubmitter()
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		w := &worker{c: c, s: s, wake: make(chan *Group, 1), gone: make(chan struct{})}
		c.workers = append(c.workers, w)
		go w.run()
	}
	return c, nil
}

type parallelCarrier struct {
	d       *devx.Device
	workers []*worker
	next    atomic.Int64 // chain that the next free worker takes
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
		for {
			i := int(w.c.next.Add(1)) - 1
			if i >= len(g.heads) {
				break
			}
			g.Send(i, w.s)
		}
		w.c.d.Busy(-1)
		if w.c.active.Add(-1) == 0 {
			w.c.done <- struct{}{}
		}
	}
}

func (c *parallelCarrier) Carry(g *Group) {
	n := min(len(c.workers), len(g.heads))
	c.next.Store(0)
	c.active.Store(int64(n))
	c.d.Busy(n)
	for _, w := range c.workers[:n] {
		w.wake <- g
	}
	<-c.done
}

func (c *parallelCarrier) Close() error {
	var errs []error
	for _, w := range c.workers {
		close(w.wake)
		<-w.gone
		errs = append(errs, w.s.Close())
	}
	return errors.Join(errs...)
}
