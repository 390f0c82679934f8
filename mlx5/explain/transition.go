// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"devxlab.example/mlx5"
)

// The two tables that a modify through verbs must pass: qp_state_table of
// drivers/infiniband/core/verbs.c, and optab in __mlx5_ib_modify_qp of
// drivers/infiniband/hw/mlx5/qp.c (both Linux 5.15).
var (
	coreAllows = map[mlx5.State][]mlx5.State{
		mlx5.StateRST:  {mlx5.StateRST, mlx5.StateInit},
		mlx5.StateInit: {mlx5.StateRST, mlx5.StateErr, mlx5.StateInit, mlx5.StateRTR},
		mlx5.StateRTR:  {mlx5.StateRST, mlx5.StateErr, mlx5.StateRTS},
		mlx5.StateRTS:  {mlx5.StateRST, mlx5.StateErr, mlx5.StateRTS, mlx5.StateSQD},
		mlx5.StateSQD:  {mlx5.StateRST, mlx5.StateErr, mlx5.StateRTS, mlx5.StateSQD},
		mlx5.StateSQER: {mlx5.StateRST, mlx5.StateErr, mlx5.StateRTS},
		mlx5.StateErr:  {mlx5.StateRST, mlx5.StateErr},
	}
	mlx5Op = map[[2]mlx5.State]mlx5.Op{
		{mlx5.StateRST, mlx5.StateInit}:  mlx5.OpRST2INIT,
		{mlx5.StateInit, mlx5.StateInit}: mlx5.OpINIT2INIT,
		{mlx5.StateInit, mlx5.StateRTR}:  mlx5.OpINIT2RTR,
		{mlx5.StateRTR, mlx5.StateRTS}:   mlx5.OpRTR2RTS,
		{mlx5.StateRTS, mlx5.StateRTS}:   mlx5.OpRTS2RTS,
		{mlx5.StateSQD, mlx5.StateRTS}:   mlx5.OpSQDRTS,
		{mlx5.StateSQER, mlx5.StateRTS}:  mlx5.OpSQERR2RTS,
	}
)

// opOf returns the command of a transition; every state has 2ERR and 2RST.
func opOf(from, to mlx5.State) (mlx5.Op, bool) {
	switch to {
	case mlx5.StateErr:
		return mlx5.Op2ERR, true
	case mlx5.StateRST:
		return mlx5.Op2RST, true
	}
	op, ok := mlx5Op[[2]mlx5.State{from, to}]
	return op, ok
}

// states by the names of verbs, of the QP context and of the commands.
var states = map[string]mlx5.State{
	"RESET": mlx5.StateRST, "RST": mlx5.StateRST, "INIT": mlx5.StateInit, "RTR": mlx5.StateRTR, "RTS": mlx5.StateRTS,
	"SQD": mlx5.StateSQD, "SQE": mlx5.StateSQER, "SQER": mlx5.StateSQER, "SQERR": mlx5.StateSQER, "ERR": mlx5.StateErr, "ERROR": mlx5.StateErr,
}

// stateName is the name that ibv_qp_state uses.
func stateName(s mlx5.State) string {
	switch s {
	case mlx5.StateRST:
		return "RESET"
	case mlx5.StateSQER:
		return "SQE"
	}
	return s.String()
}

const queryState = "ibv_query_qp: it asks the device and brings the kernel's copy of the state up to date."

// transition explains a change of state by ibv_modify_qp, and by DevX.
func transition(from, to mlx5.State) Answer {
	a := Answer{Kind: KindTransition}
	name := stateName(from) + "→" + stateName(to)
	op, inDriver := opOf(from, to)
	inCore := slices.Contains(coreAllows[from], to)
	a.Op, a.HasOp = op, inDriver

	switch {
	case from == mlx5.StateRST && to == mlx5.StateRST:
		a.HasOp = false // none is sent
		a.Summary = name + ": ibv_modify_qp returns 0 on mlx5, without a command"
		a.mean("ib_core's state table allows it, with no attribute but the state. mlx5_ib_modify_qp then returns 0 before it builds a command, because both states are RESET in the kernel's copy (Linux 5.15, qp.c).")
		a.mean("So 0 proves nothing about the device: after a DevX transition the kernel's copy may say RESET while the QP is in another state.")
		a.mean("Other vendors' drivers refuse it: with an Intel E810 a public report has EINVAL (kvcache-ai/Mooncake #722). By DevX 2RST_QP is a real command from any state.")
		a.check(queryState, "Do not reset a QP that was just created: it is in RESET.")
		return a
	case !inCore && !inDriver:
		a.Summary = name + ": EINVAL, there is no such transition"
		a.mean("Neither ib_core's state table nor mlx5 has it. The states follow the IBTA specification: RESET, INIT, RTR, RTS, SQD, SQE, ERR.")
		a.check(queryState)
		if from == mlx5.StateErr {
			a.check("The only way on from ERR is RESET.")
		}
		return a
	case !inDriver:
		a.Summary = name + ": EINVAL, mlx5 has no such transition"
		a.mean("ib_core's state table allows it, but mlx5_ib has no command for it (optab in qp.c), and DevX has none either.")
		if to == mlx5.StateSQD {
			a.mean("A program cannot drain the send queue in this way. The device enters SQD by itself, on signature errors.")
			a.check("Stop posting and wait for the completions instead; to change the path, RESET and connect again.")
		}
		return a
	case !inCore:
		a.Summary = fmt.Sprintf("%s: EINVAL by ibv_modify_qp; DevX %s does it", name, opText(op))
		a.mean("ib_core's state table does not have it; mlx5's own would. DevX does not pass ib_core.")
		return a
	}

	a.Summary = fmt.Sprintf("%s: %s", name, opText(op))
	r := mlx5.RuleOf(op, mlx5.STRC)
	if r == nil {
		a.mean("Through ibv_modify_qp only: DevX OBJ_MODIFY does not let %s through (EINVAL).", opText(op))
	} else if r.Required != 0 {
		a.mean("An RC QP needs by verbs: %s; by DevX: %s.", strings.Join(verbsNames(op, r), ", "), strings.Join(strings.Fields(r.Required.String()), ", "))
	}
	if op == mlx5.OpINIT2RTR {
		a.mean("On RoCE the kernel resolves the destination's MAC first and returns ETIMEDOUT after about 1 s if there is none; DevX takes the MAC from you.")
	}
	if from == mlx5.StateRTS && to == mlx5.StateRTS {
		a.mean("It changes access flags, min_rnr_timer and, on InfiniBand, the alternate path; an address vector is EINVAL.")
	}
	return a
}

// verbsNames are the attr_mask bits of a rule, and the address vector, which
// the QP context does not have as one field.
func verbsNames(op mlx5.Op, r *mlx5.Rule) []string {
	n := []string{"IBV_QP_STATE"}
	if op == mlx5.OpINIT2RTR {
		n = append(n, "IBV_QP_AV")
	}
	for _, id := range r.Required.IDs() {
		if v := id.VerbsName(); v != "" && !slices.Contains(n, v) {
			n = append(n, v)
		}
	}
	return n
}

// avInRTS explains the change of a path under a running QP.
func avInRTS() Answer {
	a := Answer{Kind: KindTransition, Summary: "address vector in RTS→RTS: EINVAL", Op: mlx5.OpRTS2RTS, HasOp: true}
	a.mean("ib_core's state table (qp_state_table in verbs.c) does not list IBV_QP_AV for RTS→RTS, and mlx5's opt_mask for it (qp.c) does not have the primary address path either: only access flags, min_rnr_timer, path migration state and the alternate path.")
	a.mean("On RoCE the kernel resolves the destination's MAC before it looks at the table: with a dead GID you see ETIMEDOUT after about 1 s instead.")
	a.mean("SQD→SQD, where the specification allows it, mlx5 does not have.")
	a.check("To change the path: ERR or RESET, then INIT, RTR, RTS with the new address, at both ends. Published for a ConnectX-6: 0.78 to 0.92 ms for both, against 1.79 to 1.92 ms for destroy and create.")
	return a
}

func join(states []mlx5.State) string {
	var n []string
	for _, s := range states {
		n = append(n, stateName(s))
	}
	return strings.Join(n, " or ")
}

const stateNames = `(?:IBV?_QPS_)?(RESET|RST|INIT|RTR|RTS|SQD|SQERR|SQER|SQE|ERROR|ERR)`

var (
	transitionRE = regexp.MustCompile(`(?i)^` + stateNames + `(?:_QP)?\s*(?:->|→|=>|2|\bto\b)\s*` + stateNames + `(?:_QP)?(?:$|[\s:,;.]+(.*)$)`)
	avRE         = regexp.MustCompile(`(?i)\b(?:av|ibv?_qp_av|address[ _]vector|ah_attr)\b`)
	rtsRE        = regexp.MustCompile(`(?i)\bRTS\b`)
)

func parseTransition(s string) (Answer, bool, error) {
	m := transitionRE.FindStringSubmatch(s)
	if m == nil && !(avRE.MatchString(s) && rtsRE.MatchString(s)) {
		return Answer{}, false, nil
	}
	from, to, rest := mlx5.StateRTS, mlx5.StateRTS, s
	if m != nil {
		from, to, rest = states[strings.ToUpper(m[1])], states[strings.ToUpper(m[2])], m[3]
	}
	a := transition(from, to)
	if from == mlx5.StateRTS && to == mlx5.StateRTS && avRE.MatchString(rest) {
		a = avInRTS()
	}
	a.addErrno(rest)
	return a, true, nil
}
