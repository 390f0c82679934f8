// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"devxlab.example/devx"
)

// Devices opens the devices that IDs are on, each once, and makes queue pairs
// there.
type Devices struct {
	Config devx.QPConfig // of the queue pairs; PD, UAR and completion queues are the device's own if nil
	DevX   bool          // through DevX, not by verbs

	mu   sync.Mutex
	open map[uint64]*devx.Device // by node GUID
}

// Make is a Maker.
func (d *Devices) Make(id *ID) (QP, error) {
	r, err := id.Route()
	if err != nil {
		return nil, err
	}
	dev, err := d.Of(r)
	if err != nil {
		return nil, err
	}
	if d.DevX {
		q, err := dev.NewQP(d.Config)
		if err != nil {
			return nil, err
		}
		return DevXQP{q}, nil
	}
	q, err := dev.NewVerbsQP(d.Config)
	if err != nil {
		return nil, err
	}
	return VerbsQP{q}, nil
}

// Of returns the device of a route, opened.
func (d *Devices) Of(r Route) (*devx.Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if dev := d.open[r.NodeGUID]; dev != nil {
		return dev, nil
	}
	name, err := nameOf(r.NodeGUID)
	if err != nil {
		return nil, err
	}
	dev, err := devx.Open(name)
	if err != nil {
		return nil, err
	}
	if d.open == nil {
		d.open = map[uint64]*devx.Device{}
	}
	d.open[r.NodeGUID] = dev
	return dev, nil
}

// Close closes the devices.
func (d *Devices) Close() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dev := range d.open {
		err = errors.Join(err, dev.Close())
	}
	d.open = nil
	return err
}

// nameOf finds the device with that node GUID.
func nameOf(guid uint64) (string, error) {
	all, err := devx.Devices()
	if err != nil {
		return "", err
	}
	for _, i := range all {
		if n, err := strconv.ParseUint(strings.ReplaceAll(i.NodeGUID, ":", ""), 16, 64); err == nil && n == guid {
			return i.Name, nil
		}
	}
	return "", fmt.Errorf("cm: no mlx5 device has the node GUID %#016x: the connection manager chose one of another vendor (rdma link), name an address of an mlx5 device", guid)
}
