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
	gone []*devx.Device          // that were removed; queue pairs may still be theirs
}

// Make is a Maker. After devx.ErrDeviceGone it opens the device anew the next time.
func (d *Devices) Make(id *ID) (QP, error) {
	r, err := id.Route()
	if err != nil {
		return nil, err
	}
	dev, err := d.Of(r)
	if err != nil {
		return nil, err
	}
	q, err := d.make(dev)
	if errors.Is(err, devx.ErrDeviceGone) {
		d.forget(r.NodeGUID, dev)
	}
	return q, err
}

func (d *Devices) make(dev *devx.Device) (QP, error) {
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

// forget lets Of open a device anew, unless that has been done meanwhile.
func (d *Devices) forget(guid uint64, dev *devx.Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open[guid] == dev {
		delete(d.open, guid)
		d.gone = append(d.gone, dev)
	}
}

// Of returns the device of a route, opened.
func (d *Devices) Of(r Route) (*devx.Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if dev := d.open[r.NodeGUID]; dev != nil {
		return dev, nil
	}
	all, err := devx.Devices()
	if err != nil {
		return nil, err
	}
	name, err := nameOf(all, r.NodeGUID)
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
	for _, dev := range d.gone { // what fails to close there went with the device
		_ = dev.Close()
	}
	d.open, d.gone = nil, nil
	return err
}

// nameOf finds the device with that node GUID.
func nameOf(all []devx.Info, guid uint64) (string, error) {
	if guid == 0 {
		return "", errors.New("cm: the ID is on a device with node GUID 0, or on none: resolve or bind an address first; " +
			"a virtual function gets its GUID by ip link set DEV vf N node_guid GUID, before its driver is bound")
	}
	var names []string
	for _, i := range all {
		if n, err := strconv.ParseUint(strings.ReplaceAll(i.NodeGUID, ":", ""), 16, 64); err == nil && n == guid {
			names = append(names, i.Name)
		}
	}
	switch len(names) {
	case 0:
		return "", fmt.Errorf("cm: no mlx5 device has the node GUID %#016x: the connection manager chose one of another vendor (rdma link), name an address of an mlx5 device", guid)
	case 1:
		return names[0], nil
	}
	return "", fmt.Errorf("cm: %s have the same node GUID %#016x: the connection manager says no more about which one it chose; "+
		"give them different ones (ip link set DEV vf N node_guid GUID), or use a Maker of your own", strings.Join(names, " and "), guid)
}
