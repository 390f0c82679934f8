// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

type listCmd struct{}

func (listCmd) Run(e *env) error {
	found, err := devx.Devices()
	if err != nil {
		return err
	}
	if e.asJSON {
		if found == nil {
			found = []devx.Info{}
		}
		return e.json(found)
	}
	if len(found) == 0 {
		fmt.Fprintln(e.out, `no mlx5 device here; "emu:" is the emulated one: devxlab info emu:`)
		return nil
	}
	return e.table(devicesTable(found))
}

func devicesTable(found []devx.Info) [][]string {
	rows := [][]string{{"device", "firmware", "board", "PCI", "NUMA", "driver", "ports"}}
	for _, d := range found {
		var ports []string
		for _, p := range d.Ports {
			ports = append(ports, words(fmt.Sprint(p.Number), p.State, p.LinkLayer, p.Netdev))
		}
		rows = append(rows, []string{d.Name, d.Firmware, d.BoardID, d.PCI, fmt.Sprint(d.NUMANode), d.Stack.String(), strings.Join(ports, ", ")})
	}
	return rows
}

// words joins those that are not empty.
func words(s ...string) string {
	return strings.Join(slices.DeleteFunc(s, func(w string) bool { return w == "" }), " ")
}

type infoCmd struct {
	Device string `arg:"" help:"Device name."`
	All    bool   `help:"Show every capability that is not zero."`
}

// deviceReport is what info prints as JSON.
type deviceReport struct {
	devx.Info
	PSID         string            `json:"psid"`
	Capabilities map[string]uint64 `json:"capabilities"`
	RoCE         map[string]uint64 `json:"roce_capabilities"`
	GIDs         []gid             `json:"gids"`
}

type gid struct {
	Index int    `json:"index"`
	GID   string `json:"gid"`
	MAC   string `json:"mac"`
	RoCE  string `json:"roce"`
}

func (c infoCmd) Run(e *env) error {
	d, err := open(c.Device)
	if err != nil {
		return err
	}
	r, err := report(d)
	if err := errors.Join(err, d.Close()); err != nil {
		return err
	}
	if e.asJSON {
		return e.json(r)
	}
	return e.table(r.table(c.All))
}

// mainCaps are the capabilities that bound what this program does.
var mainCaps = []string{"log_max_qp", "log_max_qp_sz", "log_max_cq", "log_max_cq_sz", "log_max_pd", "log_max_mkey", "log_max_uctx", "log_max_msg", "log_max_ra_req_qp", "log_max_ra_res_qp"}

func (r deviceReport) table(all bool) [][]string {
	name, driver := r.Name, words(r.Driver, r.Stack.String())
	if r.Emulated {
		name, driver = r.Name+" (emulated inside the process)", "none"
	}
	rows := [][]string{
		{"device", name},
		{"PCI id", words(fmt.Sprintf("%04x:%04x", r.VendorID, r.PartID), r.PCI)},
		{"firmware", r.Firmware, words("board", r.PSID)},
		{"driver", driver},
	}
	for _, p := range r.Ports {
		rows = append(rows, []string{fmt.Sprintf("port %d", p.Number), words(p.State, p.PhysState, p.LinkLayer, p.Rate, p.Netdev)})
	}
	for _, g := range r.GIDs {
		rows = append(rows, []string{fmt.Sprintf("GID %d", g.Index), g.GID, words(g.MAC, g.RoCE)})
	}
	for _, f := range mlx5.LayoutOf("cmd_hca_cap").Fields {
		v, ok := r.Capabilities[f.Name]
		if !ok || !all && !slices.Contains(mainCaps, f.Name) {
			continue
		}
		note := ""
		if f.Name == "log_max_qp" && v < 32 {
			note = fmt.Sprintf("at most %d queue pairs", uint64(1)<<v)
		}
		rows = append(rows, []string{f.Name, fmt.Sprint(v), note})
	}
	return rows
}

func report(d *devx.Device) (deviceReport, error) {
	r := deviceReport{Info: d.Info(), GIDs: []gid{}}
	var err error
	if r.PSID, err = d.PSID(); err != nil {
		return r, err
	}
	caps, err := d.Caps()
	if err != nil {
		return r, err
	}
	r.Capabilities = nonZero("cmd_hca_cap", caps)
	if !caps.RoCE() {
		return r, nil
	}
	roce, err := d.RoCECaps()
	if err != nil {
		return r, err
	}
	r.RoCE = nonZero("roce_cap", roce)
	for i := range min(int(roce.RoCEAddressTableSize()), 16) {
		a, err := d.RoCEAddress(i)
		if err != nil {
			return r, err
		}
		hi, lo := a.SourceMAC4732(), a.SourceMAC310()
		if hi == 0 && lo == 0 {
			continue
		}
		addr, _ := netip.AddrFromSlice(a.SourceL3Address()) // 16 bytes: always one
		version := "RoCE v1"
		if a.RoCEVersion() == 2 {
			version = "RoCE v2"
		}
		mac := net.HardwareAddr{byte(hi >> 8), byte(hi), byte(lo >> 24), byte(lo >> 16), byte(lo >> 8), byte(lo)}
		r.GIDs = append(r.GIDs, gid{i, addr.String(), mac.String(), version})
	}
	return r, nil
}

func nonZero(layout string, b []byte) map[string]uint64 {
	m := map[string]uint64{}
	for _, f := range mlx5.LayoutOf(layout).Fields {
		if v, ok := f.Bits(b); ok && v != 0 {
			m[f.Name] = v
		}
	}
	return m
}
