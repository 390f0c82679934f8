// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"devxlab.example/emu/pci"
	"devxlab.example/emu/wire"
)

// network is what lies between the cards of one process: a link between two, a
// switch with a port for each of more.
type network struct {
	ports  []*wire.Port
	closer interface{ Close() }
	tap    *wire.Tap
	file   *os.File
}

// network returns nil for a card alone, which has no wire.
func (c emuCmd) network() (*network, error) {
	if len(c.Socket) < 2 {
		if c.Tap != "" || c.Wire != (wire.Params{}) {
			return nil, usageError{errors.New("--wire and --tap need a wire, and a card alone has none: give a second --socket")}
		}
		return nil, nil
	}
	n := &network{}
	clock, began := wire.NewRealClock(), time.Now()
	if len(c.Socket) == 2 {
		l, err := wire.NewLink(clock, c.Wire, c.Wire, c.Seed)
		if err != nil {
			return nil, usageError{err}
		}
		n.ports, n.closer = []*wire.Port{l.A, l.B}, l
	} else {
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
	var err error
	if n.file, err = os.Create(c.Tap); err != nil {
		n.closer.Close()
		return nil, err
	}
	n.tap = wire.NewTap(n.file, wire.TapOptions{Epoch: began, Drops: true})
	tapped := n.ports
	if len(n.ports) == 2 {
		tapped = n.ports[:1] // everything passes it, and nothing twice
	}
	for i, p := range tapped {
		if err := p.Tap(n.tap, fmt.Sprintf("card %d", i+1)); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}
	return n, nil
}

// connect plugs a card into its port.
func (n *network) connect(i int, f *pci.Function) {
	f.Connect(n.ports[i])
	n.ports[i].Connect(f.Receive)
}

// change gives the wire new parameters, each way.
func (n *network) change(text string) error {
	if n == nil {
		return errors.New("a card alone has no wire")
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
	n.closer.Close()
	if n.tap == nil {
		return nil
	}
	return errors.Join(n.tap.Close(), n.file.Close())
}
