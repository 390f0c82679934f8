// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

type qpCmd struct {
	RTS   qpRTSCmd   `cmd:"" name:"rts" help:"Bring a queue pair from nothing to RTS and show every firmware command, byte for byte."`
	Rules qpRulesCmd `cmd:"" help:"Show the state machine: what each transition requires and takes."`
}

type qpRTSCmd struct {
	Device    string `arg:"" help:"Device name."`
	Transport string `enum:"rc,uc,ud" default:"rc" help:"rc, uc or ud."`
	MTU       int    `default:"1024" help:"Path MTU in bytes."`
	Timeout   int    `default:"14" help:"Local ACK time-out: 4.096 µs · 2^n; 14 is 67 ms, 0 is none."`
	RetryCnt  int    `default:"7" name:"retry-cnt" help:"0 to 7."`
	RNRRetry  int    `default:"7" name:"rnr-retry" help:"0 to 7; 7 is for ever."`
	PSN       int    `default:"0" help:"First packet sequence number, 24 bits."`
	GID       int    `default:"-1" help:"Index of the own GID; -1: the first RoCE v2 one. The queue pair is addressed to itself."`
}

// tracedCommand is one firmware command as JSON.
type tracedCommand struct {
	Op       string `json:"op"`
	Opcode   uint16 `json:"opcode"`
	In       string `json:"in"`
	Out      string `json:"out"`
	Status   uint8  `json:"status"`
	Syndrome uint32 `json:"syndrome"`
	TookNS   int64  `json:"took_ns"`
}

func (c qpRTSCmd) Run(e *env) error {
	var traced []tracedCommand
	var writeErr error
	d, err := devx.Open(c.Device, devx.WithTrace(func(in, out []byte, took time.Duration) {
		if !e.asJSON {
			writeErr = errors.Join(writeErr, mlx5.WriteDump(e.out, in, out))
			return
		}
		status, syndrome := mlx5.StatusOf(out)
		op := mlx5.OpOf(in)
		traced = append(traced, tracedCommand{op.String(), uint16(op), hex.EncodeToString(in), hex.EncodeToString(out), uint8(status), syndrome, took.Nanoseconds()})
	}))
	if err != nil {
		return err
	}
	qpn, state, err := c.toRTS(d)
	if err == nil && !e.asJSON {
		fmt.Fprintf(e.out, "\nQP %#x of %s is in %v", qpn, d.Name(), state)
		if d.Info().Emulated {
			fmt.Fprint(e.out, " (emulated: the kernel's own commands are shown as well)")
		} else {
			fmt.Fprint(e.out, " (not shown: the kernel's own commands for the context, user memory and doorbell page)")
		}
		fmt.Fprintln(e.out, "\n\nand away again:")
	}
	err = errors.Join(err, d.Close(), writeErr)
	if e.asJSON && err == nil {
		err = e.json(traced)
	}
	return err
}

func (c qpRTSCmd) toRTS(d *devx.Device) (uint32, mlx5.State, error) {
	st := map[string]mlx5.ServiceType{"rc": mlx5.STRC, "uc": mlx5.STUC, "ud": mlx5.STUD}[c.Transport]
	mtu, err := mlx5.MTUOf(c.MTU)
	if err != nil {
		return 0, 0, usageError{err}
	}
	init := mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0)}
	var rtr mlx5.INIT2RTR
	rts := mlx5.RTR2RTS{NextSendPSN: mlx5.Set(c.PSN)}
	switch st {
	case mlx5.STUD:
		init.QKey = mlx5.Set(uint32(0x11111111))
	default:
		init.Access = mlx5.Set(mlx5.RemoteWrite)
		path, err := d.OwnPath(c.GID)
		if err != nil {
			return 0, 0, err
		}
		rtr = mlx5.INIT2RTR{MTU: mlx5.Set(mtu), NextRcvPSN: mlx5.Set(c.PSN), Path: path}
	}
	if st == mlx5.STRC {
		init.Access = mlx5.Set(mlx5.RemoteWrite | mlx5.RemoteRead)
		rtr.LogRRAMax, rtr.MinRNRNak = mlx5.Set(0), mlx5.Set(12)
		rts.AckTimeout, rts.RetryCount, rts.RNRRetry, rts.LogSRAMax = mlx5.Set(c.Timeout), mlx5.Set(c.RetryCnt), mlx5.Set(c.RNRRetry), mlx5.Set(0)
	}
	q, err := d.NewQP(devx.QPConfig{Transport: st})
	if err != nil {
		return 0, 0, err
	}
	if st != mlx5.STUD {
		rtr.RemoteQPN = mlx5.Set(q.Number())
	}
	if err := devx.Modify(q, init); err != nil {
		return 0, 0, err
	}
	if err := devx.Modify(q, rtr); err != nil {
		return 0, 0, err
	}
	if err := devx.Modify(q, rts); err != nil {
		return 0, 0, err
	}
	state, err := q.State()
	return q.Number(), state, err
}

type qpRulesCmd struct{}

func (qpRulesCmd) Run(e *env) error {
	type rule struct {
		Op        string   `json:"op"`
		Transport string   `json:"transport"`
		From      []string `json:"from"`
		To        string   `json:"to"`
		Required  []string `json:"required"`
		Optional  []string `json:"optional"`
	}
	names := func(s mlx5.AttrSet) []string {
		out := []string{}
		for _, id := range s.IDs() {
			out = append(out, id.String())
		}
		return out
	}
	var rules []rule
	for _, op := range mlx5.Transitions() {
		for _, st := range []mlx5.ServiceType{mlx5.STRC, mlx5.STUC, mlx5.STUD} {
			r := mlx5.RuleOf(op, st)
			from := []string{}
			for _, s := range r.From {
				from = append(from, s.String())
			}
			if r.From == nil {
				from = append(from, "any")
			}
			rules = append(rules, rule{op.String(), st.String(), from, r.To.String(), names(r.Required), names(r.Optional)})
		}
	}
	if e.asJSON {
		return e.json(rules)
	}
	t := tabwriter.NewWriter(e.out, 2, 8, 2, ' ', 0)
	fmt.Fprintln(t, "transition\ttransport\tfrom\tto\trequired\toptional")
	for _, r := range rules {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Op, r.Transport, list(r.From), r.To, list(r.Required), list(r.Optional))
	}
	return t.Flush()
}

func list(s []string) string {
	out := ""
	for i, x := range s {
		if i > 0 {
			out += " "
		}
		out += x
	}
	if out == "" {
		return "-"
	}
	return out
}
