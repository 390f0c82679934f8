// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"devxlab.example/devx"
	"devxlab.example/internal/atomicfile"
	"devxlab.example/internal/qpparams"
	"devxlab.example/mlx5"
)

type qpCmd struct {
	RTS   qpRTSCmd   `cmd:"" name:"rts" help:"Bring a queue pair from nothing to RTS and show every firmware command, byte for byte."`
	Batch qpBatchCmd `cmd:"" help:"Bring many queue pairs to RTS and back as batches, and say what became of each transition."`
	Rules qpRulesCmd `cmd:"" help:"Show the state machine: what each transition requires and takes."`

	Params qpParamsCmd `cmd:"" help:"Show the queue pair parameters, where each comes from and what it means; or write a file with them."`
}

type qpRTSCmd struct {
	Device    string `arg:"" help:"Device name. The queue pair is connected to itself and destroyed at the end; nothing is sent."`
	Transport string `enum:"rc,uc,ud" default:"rc" help:"rc, uc or ud."`
	MTU       int    `default:"1024" help:"Path MTU in bytes: 256, 512, 1024, 2048 or 4096 (RC and UC)."`
	PSN       int    `default:"0" help:"First packet sequence number, 24 bits."`
	GID       int    `default:"-1" help:"Index of the own GID; -1: the first RoCE v2 one (RC and UC)."`

	qpparams.Flags
}

// tracedCommand is one firmware command as JSON.
type tracedCommand struct {
	Op       string `json:"op"`
	Opcode   uint16 `json:"opcode"`
	In       string `json:"in"`  // hexadecimal
	Out      string `json:"out"` // hexadecimal
	Status   uint8  `json:"status"`
	Syndrome uint32 `json:"syndrome"`
	TookNS   int64  `json:"took_ns"`
}

// rtsReport is what qp rts prints as JSON.
type rtsReport struct {
	Device   string          `json:"device"`
	Emulated bool            `json:"emulated"` // commands has the kernel's own as well
	QPN      uint32          `json:"qpn,omitempty"`
	State    string          `json:"state,omitempty"` // as the firmware has it, at the end
	Error    string          `json:"error,omitempty"`
	Commands []tracedCommand `json:"commands"`
}

func (c qpRTSCmd) Run(e *env) error {
	params, _, err := c.Resolve()
	if err != nil {
		return usageError{err}
	}
	way, err := c.way(params)
	if err != nil {
		return usageError{err}
	}
	if way.st == mlx5.STRC {
		warn(e, params)
	}
	r := rtsReport{Device: c.Device, Commands: []tracedCommand{}}
	var writeErr error
	d, err := open(c.Device, devx.WithTrace(func(in, out []byte, took time.Duration) {
		if e.asJSON {
			status, syndrome := mlx5.StatusOf(out)
			op := mlx5.OpOf(in)
			r.Commands = append(r.Commands, tracedCommand{op.String(), uint16(op), hex.EncodeToString(in), hex.EncodeToString(out), uint8(status), syndrome, took.Nanoseconds()})
		} else if writeErr == nil {
			writeErr = mlx5.WriteDump(e.out, in, out)
		}
	}))
	if err == nil {
		r.Emulated = d.Info().Emulated
		var state mlx5.State
		if r.QPN, state, err = way.walk(d, c.GID); err == nil {
			r.State = state.String()
			if !e.asJSON {
				r.arrived(e.out)
			}
		}
		err = errors.Join(err, d.Close(), writeErr)
	}
	if e.asJSON {
		if err != nil {
			r.Error = err.Error()
		}
		err = errors.Join(err, e.json(r))
	}
	return err
}

func (r *rtsReport) arrived(w io.Writer) {
	note := "not shown: the kernel's own commands for the context, user memory and doorbell page"
	if r.Emulated {
		note = "emulated: the kernel's own commands are shown as well"
	}
	fmt.Fprintf(w, "\nQP %#x of %s is in %s (%s)\n\nand away again:\n", r.QPN, r.Device, r.State, note)
}

// way is a queue pair's from RESET to RTS.
type way struct {
	st   mlx5.ServiceType
	init mlx5.RST2INIT
	rtr  mlx5.INIT2RTR // without the address
	rts  mlx5.RTR2RTS
}

// way checks what can be checked before the device is touched: whether the
// values fit into the commands.
func (c qpRTSCmd) way(p qpparams.Params) (way, error) {
	w := way{
		st:   map[string]mlx5.ServiceType{"rc": mlx5.STRC, "uc": mlx5.STUC, "ud": mlx5.STUD}[c.Transport],
		init: mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0)},
		rts:  mlx5.RTR2RTS{NextSendPSN: mlx5.Set(c.PSN)},
	}
	mtu, err := mlx5.MTUOf(c.MTU)
	if err != nil {
		return w, fmt.Errorf("--mtu: %w", err)
	}
	if c.GID < -1 {
		return w, fmt.Errorf("--gid %d: an index into the GID table, or -1", c.GID)
	}
	switch w.st {
	case mlx5.STUD:
		w.init.QKey = mlx5.Set(uint32(0x11111111))
	case mlx5.STUC:
		w.init.Access = mlx5.Set(mlx5.RemoteWrite)
		w.rtr = mlx5.INIT2RTR{MTU: mlx5.Set(mtu), NextRcvPSN: mlx5.Set(c.PSN)}
	default:
		w.init.Access = mlx5.Set(mlx5.RemoteWrite | mlx5.RemoteRead)
		w.rtr = mlx5.INIT2RTR{MTU: mlx5.Set(mtu), NextRcvPSN: mlx5.Set(c.PSN), LogRRAMax: mlx5.Set(0), MinRNRNak: mlx5.Set(12)}
		w.rts.AckTimeout, w.rts.RetryCount, w.rts.RNRRetry, w.rts.LogSRAMax = mlx5.Set(p.QPTimeout), mlx5.Set(p.RetryCnt), mlx5.Set(p.RNRRetry), mlx5.Set(0)
	}
	var buf [mlx5.TransitionSize]byte
	if _, err := w.rts.Encode(buf[:], 0, w.st); err != nil {
		return w, err
	}
	return w, nil
}

// walk makes the queue pair and brings it to RTS.
func (w way) walk(d *devx.Device, gid int) (qpn uint32, state mlx5.State, err error) {
	if w.st != mlx5.STUD {
		if w.rtr.Path, err = d.OwnPath(gid); err != nil {
			return 0, 0, err
		}
	}
	q, err := d.NewQP(devx.QPConfig{Transport: w.st})
	if err != nil {
		return 0, 0, err
	}
	qpn = q.Number()
	if w.st != mlx5.STUD {
		w.rtr.RemoteQPN = mlx5.Set(qpn)
	}
	if err := devx.Modify(q, w.init); err != nil {
		return qpn, 0, err
	}
	if err := devx.Modify(q, w.rtr); err != nil {
		return qpn, 0, err
	}
	if err := devx.Modify(q, w.rts); err != nil {
		return qpn, 0, err
	}
	state, err = q.State()
	return qpn, state, err
}

type qpRulesCmd struct{}

// rule is one transition as JSON.
type rule struct {
	Op        string   `json:"op"`
	Transport string   `json:"transport"`
	From      []string `json:"from"`
	To        string   `json:"to"`
	Required  []string `json:"required"`
	Optional  []string `json:"optional"`
}

func rules() []rule {
	names := func(s mlx5.AttrSet) []string {
		out := []string{}
		for _, id := range s.IDs() {
			out = append(out, id.String())
		}
		return out
	}
	var all []rule
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
			all = append(all, rule{op.String(), st.String(), from, r.To.String(), names(r.Required), names(r.Optional)})
		}
	}
	return all
}

func (qpRulesCmd) Run(e *env) error {
	all := rules()
	if e.asJSON {
		return e.json(all)
	}
	var b strings.Builder
	b.WriteString("The transitions that DevX lets through, and the attributes that each requires and takes (names of mlx5_ifc.h).\n")
	last := ""
	for _, r := range all {
		if r.Op != last {
			fmt.Fprintf(&b, "\n%s  %s → %s\n", r.Op, strings.Join(r.From, ", "), r.To)
			last = r.Op
		}
		if len(r.Required)+len(r.Optional) == 0 {
			fmt.Fprintf(&b, "  %s  no attributes\n", r.Transport)
			continue
		}
		mark := fmt.Sprintf("  %s  ", r.Transport)
		for _, part := range []struct {
			what  string
			names []string
		}{{"required  ", r.Required}, {"optional  ", r.Optional}} {
			if len(part.names) > 0 {
				fill(&b, mark+part.what, part.names)
				mark = strings.Repeat(" ", len(mark))
			}
		}
	}
	_, err := io.WriteString(e.out, b.String())
	return err
}

type qpParamsCmd struct {
	qpparams.Flags
	Write string `placeholder:"FILE" help:"Write a new file with these values and what they mean, for --config."`
}

// param is one parameter as JSON.
type param struct {
	qpparams.Value
	Source qpparams.Source `json:"source"`
}

// paramsReport is what qp params prints as JSON.
type paramsReport struct {
	Params   []param  `json:"params"`
	Warnings []string `json:"warnings"`
	Written  string   `json:"written,omitempty"` // the file that was made
}

func (c qpParamsCmd) Run(e *env) error {
	p, sources, err := c.Resolve()
	if err != nil {
		return usageError{err}
	}
	if c.Write != "" {
		if err := writeParams(c.Write, p); err != nil {
			return err
		}
	}
	if e.asJSON {
		r := paramsReport{Params: []param{}, Warnings: append([]string{}, p.Warnings()...), Written: c.Write}
		for _, v := range p.Values() {
			r.Params = append(r.Params, param{v, sources[v.Key]})
		}
		return e.json(r)
	}
	warn(e, p)
	if c.Write != "" {
		_, err := fmt.Fprintf(e.out, "written: %s; to use it: --config %[1]s, or DEVXLAB_CONFIG=%[1]s in the environment\n", c.Write)
		return err
	}
	var b strings.Builder
	for _, v := range p.Values() {
		fmt.Fprintf(&b, "%s = %d  (%s)\n", v.Key, v.Value, sources[v.Key])
		fill(&b, "  ", strings.Fields(v.Meaning))
	}
	_, err = io.WriteString(e.out, b.String())
	return err
}

func warn(e *env, p qpparams.Params) {
	for _, w := range p.Warnings() {
		fmt.Fprintln(e.err, "devxlab: warning:", w)
	}
}

// writeParams makes a file, and none that is half of one.
func writeParams(name string, p qpparams.Params) error {
	err := atomicfile.Create(name, p.Write)
	switch {
	case errors.Is(err, fs.ErrExist):
		return usageError{fmt.Errorf("--write %s: it exists and is not overwritten; name another file, or remove it first", name)}
	case err != nil:
		return fmt.Errorf("--write: %w", err)
	}
	return nil
}
