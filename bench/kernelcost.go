// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"errors"
	"fmt"
	"os"
	"time"

	"devxlab.example/ebpf"
	"devxlab.example/mlx5"
)

// KernelCost is what the kernel spent on the commands and connections of a run, by
// package ebpf. It was watched all the time, which costs each something.
type KernelCost struct {
	Commands    []CommandCost     `json:"commands"`
	Connections []ConnectionCost  `json:"connections,omitempty"`
	NotVisible  map[string]string `json:"not_visible,omitempty"` // stages, and why
	Lost        ebpf.Lost         `json:"lost"`
}

// ConnectionCost is a part of the connections of this process, as ib_cm has it.
type ConnectionCost struct {
	What    string `json:"what"` // ebpf.ConnectionTimes.String
	Passive bool   `json:"passive"`
	PartCost
}

// CommandCost is the split of one opcode's time, of the commands that succeeded.
type CommandCost struct {
	Op    string              `json:"op"`
	N     uint64              `json:"n"`
	Parts map[string]PartCost `json:"parts"` // by the names of package ebpf: "queue", "firmware"
}

// PartCost is a distribution in nanoseconds, to 1.6 %.
type PartCost struct {
	N    uint64        `json:"n"`
	P50  time.Duration `json:"p50_ns"`
	P99  time.Duration `json:"p99_ns,omitempty"` // 0: of fewer than 1,000
	Mean time.Duration `json:"mean_ns"`
}

// ErrNoKernel is in the error of a run that is to show the kernel's cost where there
// is no kernel in the way.
var ErrNoKernel = errors.New("needs a device of the kernel's")

// watched runs f, with the kernel's cost watched if that is asked for.
func (r *Run) watched(f func() error) (err error) {
	if !r.Options.KernelCost || r.Experiment == PatchedName { // which follows parts of itself
		return f()
	}
	t, err := ebpf.Attach(ebpf.Options{Filter: ebpf.Filter{Processes: []int{os.Getpid()}, Device: r.Device}})
	if err != nil {
		return err
	}
	defer closed(&err, t)
	err = f()
	s, serr := t.Snapshot()
	if serr != nil {
		return errors.Join(err, serr)
	}
	r.Result.KernelCost = kernelCost(s, t.Coverage())
	return err
}

func kernelCost(s *ebpf.Snapshot, coverage []ebpf.Coverage) *KernelCost {
	k := &KernelCost{NotVisible: map[string]string{}, Lost: s.Lost}
	for _, c := range coverage {
		if c.Why != "" {
			k.NotVisible[c.Stage.String()] = c.Why
		}
	}
	at := map[mlx5.Op]int{}
	for _, t := range s.Times {
		// A call has no one outcome: it may issue several commands.
		if t.Count() == 0 || t.Part != ebpf.Call && (t.Status != mlx5.StatusOK || t.Errno != 0) {
			continue
		}
		i, known := at[t.Op]
		if !known {
			i = len(k.Commands)
			at[t.Op] = i
			k.Commands = append(k.Commands, CommandCost{Op: t.Op.String(), Parts: map[string]PartCost{}})
		}
		c := &k.Commands[i]
		if t.Part == ebpf.Whole {
			c.N = t.Count()
		}
		c.Parts[t.Part.String()] = partCost(t.Histogram)
	}
	for _, t := range s.ConnectionTimes {
		if t.Count() > 0 {
			k.Connections = append(k.Connections, ConnectionCost{t.String(), t.Passive, partCost(t.Histogram)})
		}
	}
	return k
}

func partCost(h ebpf.Histogram) PartCost {
	p := PartCost{N: h.Count(), P50: h.Quantile(0.5), Mean: h.Mean()}
	if h.Count() >= minForP99 {
		p.P99 = h.Quantile(0.99)
	}
	return p
}

func (c PartCost) String() string {
	s := nanos(float64(c.P50))
	if c.P99 > 0 {
		s += " / " + nanos(float64(c.P99))
	}
	return s
}

// text is a table of the opcodes.
func (k *KernelCost) text(p *page) {
	p.section("What the kernel spent on each command", "Median / P99, while it was watched, which costs each command something; docs/ebpf.md says what the parts are.")
	head, align := []string{"command", "n"}, "lr"
	for _, part := range ebpf.Parts() {
		head, align = append(head, part.String()), align+"r"
	}
	var rows [][]string
	for _, c := range k.Commands {
		row := []string{c.Op, count(int(c.N))}
		for _, part := range ebpf.Parts() {
			x, ok := c.Parts[part.String()]
			cell := "-"
			if ok {
				cell = x.String()
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	p.table(align, head, rows...)
	if len(k.Connections) > 0 {
		rows = nil
		for _, c := range k.Connections {
			side := "active"
			if c.Passive {
				side = "passive"
			}
			rows = append(rows, []string{c.What, side, count(int(c.N)), c.String()})
		}
		p.section("What ib_cm took for each connection of this process", "Median / P99.")
		p.table("llrr", []string{"part", "side", "n", "took"}, rows...)
	}
	for _, stage := range ebpf.Stages() {
		if why := k.NotVisible[stage.String()]; why != "" {
			p.para(fmt.Sprintf("not visible: %s: %s", stage, why), indent)
		}
	}
	if lost := k.Lost; lost != (ebpf.Lost{}) {
		p.para(fmt.Sprintf("lost: %+v", lost), indent)
	}
}
