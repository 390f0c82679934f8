// SPDX-License-Identifier: BSD-2-Clause

package verify

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// transports and states that a program can bring a queue pair to.
var (
	transports = []mlx5.ServiceType{mlx5.STRC, mlx5.STUC, mlx5.STUD}
	states     = []mlx5.State{mlx5.StateRST, mlx5.StateInit, mlx5.StateRTR, mlx5.StateRTS, mlx5.StateErr}
)

// step is a transition with attributes that it accepts.
type step struct {
	op     mlx5.Op
	modify func(*devx.QP) error
	encode func(*devx.QP) ([]byte, error)
}

func stepOf[T mlx5.Transition](t T) step {
	return step{
		t.Op(),
		func(q *devx.QP) error { return devx.Modify(q, t) },
		func(q *devx.QP) ([]byte, error) {
			cmd := make([]byte, mlx5.TransitionSize)
			n, err := t.Encode(cmd, q.Number(), q.Transport())
			return cmd[:n], err
		},
	}
}

// stepsOf are the transitions of a queue pair that is connected to itself.
func (a *asker) stepsOf(q *devx.QP) ([]step, error) {
	path, err := a.d.OwnPath(-1)
	if err != nil {
		return nil, err
	}
	init, rtr, rts := mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0)}, mlx5.INIT2RTR{}, mlx5.RTR2RTS{NextSendPSN: mlx5.Set(7)}
	switch q.Transport() {
	case mlx5.STUD:
		init.QKey = mlx5.Set(0x11)
	case mlx5.STRC:
		rtr.LogRRAMax, rtr.MinRNRNak = mlx5.Set(0), mlx5.Set(12)
		rts.AckTimeout, rts.RetryCount, rts.RNRRetry, rts.LogSRAMax = mlx5.Set(14), mlx5.Set(7), mlx5.Set(7), mlx5.Set(0)
		fallthrough
	case mlx5.STUC:
		init.Access = mlx5.Set(mlx5.RemoteWrite)
		rtr.MTU, rtr.RemoteQPN, rtr.NextRcvPSN, rtr.Path = mlx5.Set(mlx5.MTU1024), mlx5.Set(q.Number()), mlx5.Set(9), path
	}
	return []step{
		stepOf(init), stepOf(rtr), stepOf(rts),
		stepOf(mlx5.INIT2INIT{}), stepOf(mlx5.RTS2RTS{}), stepOf(mlx5.SQERR2RTS{}), stepOf(mlx5.ToERR{}), stepOf(mlx5.ToRST{}),
	}, nil
}

// in makes a queue pair and brings it to a state.
func (a *asker) in(st mlx5.ServiceType, state mlx5.State) (*devx.QP, []step, error) {
	q, err := a.d.NewQP(devx.QPConfig{Transport: st})
	if err != nil {
		return nil, nil, err
	}
	steps, err := a.stepsOf(q)
	n := 0 // of the way to RTS
	switch state {
	case mlx5.StateInit:
		n = 1
	case mlx5.StateRTR:
		n = 2
	case mlx5.StateRTS:
		n = 3
	case mlx5.StateErr:
		if err == nil {
			err = devx.Modify(q, mlx5.ToERR{})
		}
	}
	for i := range n {
		if err == nil {
			err = steps[i].modify(q)
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, q.Close())
	}
	return q, steps, nil
}

// after is an answer with the state that the queue pair is in then.
func after(q *devx.QP, err error) string {
	state, qerr := q.State()
	if qerr != nil {
		return words(err) + ", query: " + words(qerr)
	}
	return fmt.Sprintf("%s, in %v", words(err), state)
}

// transitions: each one in each state, for each transport.
func (a *asker) transitions() error {
	for _, st := range transports {
		for _, state := range states {
			for i := range 8 {
				q, steps, err := a.in(st, state)
				if err != nil {
					return err
				}
				err = steps[i].modify(q)
				a.note(after(q, err), "%v in %v: %v", st, state, steps[i].op)
				if cerr := q.Close(); a.gone(err) || cerr != nil {
					return errors.Join(err, cerr)
				}
			}
		}
	}
	return nil
}

// spoilt is a field of a transition's context with a value that may be refused.
type spoilt struct {
	what string
	step int // as in stepsOf
	set  func(mlx5.QPC)
}

var spoiltFields = []spoilt{
	{"st 3", 0, func(c mlx5.QPC) { c.SetSt(3) }},
	{"port 0", 0, func(c mlx5.QPC) { c.PrimaryAddressPath().SetVHCAPortNum(0) }},
	{"port 2", 0, func(c mlx5.QPC) { c.PrimaryAddressPath().SetVHCAPortNum(2) }},
	{"P_Key index 1", 0, func(c mlx5.QPC) { c.PrimaryAddressPath().SetPkeyIndex(1) }},
	{"pm_state 2", 0, func(c mlx5.QPC) { c.SetPMState(2) }},
	{"counter set 200", 0, func(c mlx5.QPC) { c.SetCounterSetID(200) }},
	{"foreign PD", 0, func(c mlx5.QPC) { c.SetPD(0xfffff0) }},
	{"foreign CQ", 0, func(c mlx5.QPC) { c.SetCQNRcv(0xfffff0) }},
	{"mtu 0", 1, func(c mlx5.QPC) { c.SetMTU(0) }},
	{"mtu 5", 1, func(c mlx5.QPC) { c.SetMTU(5) }},
	{"mtu 6", 1, func(c mlx5.QPC) { c.SetMTU(6) }},
	{"mtu 7", 1, func(c mlx5.QPC) { c.SetMTU(7) }},
	{"log_msg_max 30", 1, func(c mlx5.QPC) { c.SetLogMsgMax(30) }},
	{"log_msg_max 31", 1, func(c mlx5.QPC) { c.SetLogMsgMax(31) }},
	{"log_rra_max 7", 1, func(c mlx5.QPC) { c.SetLogRRAMax(7) }},
	{"GID index 200", 1, func(c mlx5.QPC) { c.PrimaryAddressPath().SetSrcAddrIndex(200) }},
	{"port 3", 1, func(c mlx5.QPC) { c.PrimaryAddressPath().SetVHCAPortNum(3) }},
	{"no MAC", 1, func(c mlx5.QPC) { c.PrimaryAddressPath().SetRMAC310(0); c.PrimaryAddressPath().SetRMAC4732(0) }},
	{"no GID", 1, func(c mlx5.QPC) { clear(c.PrimaryAddressPath().RGIDRip()) }},
	{"hop limit 0", 1, func(c mlx5.QPC) { c.PrimaryAddressPath().SetHopLimit(0) }},
	{"log_sra_max 7", 2, func(c mlx5.QPC) { c.SetLogSRAMax(7) }},
	{"pm_state 2", 2, func(c mlx5.QPC) { c.SetPMState(2) }},
	{"time-out 0", 2, func(c mlx5.QPC) { c.PrimaryAddressPath().SetAckTimeout(0) }},
	{"time-out 31", 2, func(c mlx5.QPC) { c.PrimaryAddressPath().SetAckTimeout(31) }},
}

// attributes: single fields out of range, and commands that the driver does not
// pass on.
func (a *asker) attributes() error {
	s, err := a.d.NewSubmitter()
	if err != nil {
		return err
	}
	defer s.Close()
	for _, st := range transports {
		for _, f := range spoiltFields {
			q, steps, err := a.in(st, states[f.step])
			if err != nil {
				return err
			}
			cmd, err := steps[f.step].encode(q)
			if err == nil {
				f.set(mlx5.RST2INITQPIn(cmd).QPC())
				err = s.Send(q, cmd)
				a.note(after(q, err), "%v: %v with %s", st, steps[f.step].op, f.what)
			}
			if cerr := q.Close(); a.gone(err) || cerr != nil {
				return errors.Join(err, cerr)
			}
		}
	}
	return a.crooked(s)
}

// crooked are commands whose frame is wrong: number, opcode, length.
func (a *asker) crooked(s *devx.Submitter) error {
	q, steps, err := a.in(mlx5.STRC, mlx5.StateRTS)
	if err != nil {
		return err
	}
	defer q.Close()
	rts2rts, err := steps[4].encode(q)
	if err != nil {
		return err
	}
	with := func(change func(cmd []byte)) []byte {
		cmd := append([]byte(nil), rts2rts...)
		change(cmd)
		return cmd
	}
	for _, c := range []struct {
		what string
		cmd  []byte
	}{
		{"as it should be", rts2rts},
		{"another QPN", with(func(c []byte) { mlx5.RTS2RTSQPIn(c).SetQPN(q.Number() ^ 1) })},
		{"op_mod 1", with(func(c []byte) { mlx5.RTS2RTSQPIn(c).SetOpMod(1) })},
		{"a uid of its own", with(func(c []byte) { mlx5.RTS2RTSQPIn(c).SetUID(0x7777) })},
		{"a vhca_tunnel_id", with(func(c []byte) { c[5] = 1 })},
		{"16 bytes", rts2rts[:16]},
		{"64 bytes", rts2rts[:64]},
		{"512 bytes", append(rts2rts[:len(rts2rts):len(rts2rts)], make([]byte, 512-len(rts2rts))...)},
		{"opcode SQD2RTS", with(func(c []byte) { mlx5.PutHeader(c, mlx5.OpSQDRTS, 0) })},
		{"opcode QUERY_QP", with(func(c []byte) { mlx5.PutHeader(c, mlx5.OpQueryQP, 0) })},
		{"opcode DESTROY_QP", with(func(c []byte) { mlx5.PutHeader(c, mlx5.OpDestroyQP, 0) })},
		{"opcode 0", with(func(c []byte) { mlx5.PutHeader(c, 0, 0) })},
	} {
		err := s.Send(q, c.cmd)
		a.note(after(q, err), "RTS2RTS with %s", c.what)
		if a.gone(err) {
			return err
		}
	}
	return nil
}

// Of the walk: always the same, whatever the device.
const (
	walkSeed  = 1
	walkQPs   = 6
	walkSteps = 600
)

// walk makes transitions at random and asks for each state.
func (a *asker) walk() error {
	rng := rand.New(rand.NewPCG(walkSeed, walkSeed))
	var qps []*devx.QP
	var steps [][]step
	defer func() {
		for _, q := range qps {
			_ = q.Close()
		}
	}()
	for i := range walkQPs {
		q, s, err := a.in(transports[i%len(transports)], mlx5.StateRST)
		if err != nil {
			return err
		}
		qps, steps = append(qps, q), append(steps, s)
	}
	next := make([]int, walkQPs) // on the way to RTS
	for n := range walkSteps {
		i := rng.IntN(walkQPs)
		k := rng.IntN(len(steps[i]))
		if rng.IntN(3) > 0 {
			k = next[i]
		}
		err := steps[i][k].modify(qps[i])
		if a.gone(err) {
			return err
		}
		state, serr := qps[i].State()
		if serr != nil {
			return serr
		}
		next[i] = map[mlx5.State]int{mlx5.StateRST: 0, mlx5.StateInit: 1, mlx5.StateRTR: 2, mlx5.StateRTS: 4, mlx5.StateErr: 7}[state]
		a.note(fmt.Sprintf("%s, in %v", words(err), state), "step %d of a random walk: %v of QP %d, %v", n, steps[i][k].op, i, qps[i].Transport())
	}
	return nil
}
