// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"devxlab.example/emu/fw"
	"devxlab.example/emu/pci"
	"devxlab.example/emu/wire"
)

// network is what lies between the cards of one process: a link between two, a
// switch with a port for each of more.
type network struct {
	ports  []*wire.Port
	closer interface{ Close() } // nil: a card alone has none
	tap    *wire.Tap
	own    []*wire.TapInterface // of each card
	file   *os.File
}

// network returns nil for a card alone that nobody listens to.
func (c emuCmd) network() (*network, error) {
	if len(c.Socket) < 2 && c.Wire != (wire.Params{}) {
		return nil, usageError{errors.New("--wire needs a wire, and a card alone has none: give a second --socket")}
	}
	if len(c.Socket) < 2 && c.Tap == "" {
		return nil, nil
	}
	n := &network{}
	clock, began := wire.NewRealClock(), time.Now()
	switch len(c.Socket) {
	case 1:
	case 2:
		l, err := wire.NewLink(clock, c.Wire, c.Wire, c.Seed)
		if err != nil {
			return nil, usageError{err}
		}
		n.ports, n.closer = []*wire.Port{l.A, l.B}, l
	default:
		s, err := wire.NewSwitch(clock, len(c.Socket), c.Wire, c.Seed)
		if err != nil {
			return nil, usageError{err}
		}
		for i := range c.Socket {
			n.ports = append(n.ports, s.Port(i))
		}
		n.closer = s
	}
	if c.Tap == "" {
		return n, nil
	}
	if err := n.tapAll(c.Tap, len(c.Socket), clock, began); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// tapAll writes to a file what passes the ports, and what cards send to themselves
// or, alone, to nobody.
func (n *network) tapAll(path string, cards int, clock *wire.RealClock, began time.Time) (err error) {
	if n.file, err = os.Create(path); err != nil {
		return err
	}
	n.tap = wire.NewTap(n.file, wire.TapOptions{Epoch: began, Drops: true})
	tapped := n.ports
	if len(n.ports) == 2 {
		tapped = n.ports[:1] // everything passes it, and nothing twice
	}
	for i, p := range tapped {
		if err := p.Tap(n.tap, fmt.Sprintf("card %d", i+1)); err != nil {
			return err
		}
	}
	for i := range cards {
		own, err := n.tap.Interface(fmt.Sprintf("card %d alone", i+1), clock)
		if err != nil {
			return err
		}
		n.own = append(n.own, own)
	}
	return nil
}

// tappedWire is what a card is connected to if there is a tap: its port, with
// its rate.
type tappedWire struct {
	*wire.Port
	loopTap
}

var _ fw.PacedWire = tappedWire{}

// aloneWire is what a card without a port is connected to if there is a tap.
type aloneWire struct{ loopTap }

// Send is what goes nowhere.
func (w aloneWire) Send(frame []byte) { w.own.Write(frame, "no wire") }

// loopTap sees what a card sends to itself.
type loopTap struct{ own *wire.TapInterface }

// Looped is such a frame.
func (w loopTap) Looped(frame []byte) { w.own.Write(frame, "loopback") }

// connect plugs a card into its port.
func (n *network) connect(i int, f *pci.Function) {
	var port *wire.Port
	if len(n.ports) > 0 {
		port = n.ports[i]
		port.Connect(f.Receive)
	}
	switch {
	case n.tap == nil:
		f.Connect(port)
	case port == nil:
		f.Connect(aloneWire{loopTap{n.own[i]}})
	default:
		f.Connect(tappedWire{port, loopTap{n.own[i]}})
	}
}

var errNoWire = errors.New("a card alone has no wire")

// change gives the wire new parameters, each way.
func (n *network) change(text string) error {
	if n == nil || len(n.ports) == 0 {
		return errNoWire
	}
	params, err := wire.Parse(text)
	for _, p := range n.ports {
		for _, way := range []wire.Way{wire.Out, wire.In} {
			if err == nil {
				err = p.SetParams(way, params)
			}
		}
	}
	return err
}

// close ends the wire, and the tap with everything that was on it.
func (n *network) close() error {
	if n == nil {
		return nil
	}
	if n.closer != nil {
		n.closer.Close()
	}
	if n.tap == nil {
		return nil
	}
	return errors.Join(n.tap.Close(), n.file.Close())
}
