// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"fmt"

	"devxlab.example/mlx5"
)

// searchGIDs is how far OwnPath looks for a GID by itself.
const searchGIDs = 8

// OwnPath returns the address of the device's own port 1, for a queue pair that
// is connected to one of the same device. index chooses the entry of the GID
// table; -1 takes the first RoCE v2 entry among the first eight, or else the
// first RoCE v1 entry. It needs an Ethernet port.
func (d *Device) OwnPath(index int) (mlx5.Path, error) {
	if p := d.info.Ports; len(p) > 0 && p[0].LinkLayer == "InfiniBand" {
		return mlx5.Path{}, fmt.Errorf("devx: port 1 of %s is InfiniBand: an own path needs an Ethernet port (RoCE)", d.info.Name)
	}
	if index >= 0 {
		path, version, err := d.pathOf(index)
		if err == nil && version == noGID {
			err = fmt.Errorf("devx: %s has no GID at index %d: is its network interface up?", d.info.Name, index)
		}
		return path, err
	}
	var best mlx5.Path
	found := false
	for i := range searchGIDs {
		path, version, err := d.pathOf(i)
		switch {
		case err != nil && !found:
			return mlx5.Path{}, err
		case err != nil: // the end of a short table
			return best, nil
		case version == rocev2:
			return path, nil
		case version == rocev1 && !found:
			best, found = path, true
		}
	}
	if !found {
		return mlx5.Path{}, fmt.Errorf("devx: %s has no GID: is its network interface up?", d.info.Name)
	}
	return best, nil
}

// Versions of RoCE as roce_version has them (linux/mlx5/device.h,
// MLX5_ROCE_VERSION_1 and _2), and no entry.
const (
	rocev1 = 0
	rocev2 = 2
	noGID  = -1
)

func (d *Device) pathOf(index int) (mlx5.Path, int, error) {
	a, err := d.RoCEAddress(index)
	if err != nil {
		return mlx5.Path{}, noGID, err
	}
	hi, lo := a.SourceMAC4732(), a.SourceMAC310()
	if hi == 0 && lo == 0 {
		return mlx5.Path{}, noGID, nil
	}
	p := mlx5.Path{
		Port:         mlx5.Set(1),
		RMAC:         [6]byte{byte(hi >> 8), byte(hi), byte(lo >> 24), byte(lo >> 16), byte(lo >> 8), byte(lo)},
		SrcAddrIndex: mlx5.Set(index),
		HopLimit:     mlx5.Set(64),
	}
	copy(p.RGID[:], a.SourceL3Address())
	if a.RoCEVersion() == rocev2 {
		p.UDPSport = mlx5.Set(0xc000) // the least that the kernel uses (IB_ROCE_UDP_ENCAP_VALID_PORT_MIN in rdma/ib_verbs.h)
	}
	return p, int(a.RoCEVersion()), nil
}
