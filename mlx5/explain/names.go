// SPDX-License-Identifier: BSD-2-Clause

package explain

import "strings"

// names are what users look for in vain, because it is elsewhere or because a
// text that circulates has it wrong. key is in lower case.
var names = []struct{ key, summary, meaning, check string }{
	{"out_of_buffer", "out_of_buffer is a hardware counter of the port",
		"It is /sys/class/infiniband/DEV/ports/N/hw_counters/out_of_buffer, not under counters. It counts incoming requests that found no receive posted; only the responder's rises.",
		"`rdma statistic show`, or the file at the responder; then the receives that it posts."},
	{"msi_vectors", "/sys/class/infiniband/*/msi_vectors does not exist",
		"The interrupts of a device are under /sys/class/infiniband/DEV/device/msi_irqs.",
		"/proc/irq/N/smp_affinity_list for each N that is listed there."},
	{"ibv_query_qp_state", "ibv_query_qp_state does not exist",
		"The function is ibv_query_qp, with IBV_QP_STATE in the mask.", queryState},
	{"mlx5_devx_qp_modify", "mlx5_devx_qp_modify does not exist",
		"rdma-core has mlx5dv_devx_qp_modify, for one QP. No call takes an array of QPs.",
		"devxlab's package batch sends many transitions at once."},
	{"last_conflict", noConflict, conflict, staleCheck},
	{"sequence number conflict", noConflict, conflict, staleCheck},
	{"stale connection", "REJ reason 10: stale connection",
		conflict, staleCheck},
	{"rfc 5049", "RFC 5049 is not about queue pairs",
		"It applies signalling compression to SIP. The states are in the IBTA specification, volume 1: seven of them, RESET, INIT, RTR, RTS, SQD, SQE, ERR.",
		"`devxlab explain INIT→RTR` for one transition."},
	{"netem", "tc netem on the host does not touch hardware RoCE",
		"RoCE packets of the card do not pass the host's queueing disciplines.",
		"Delay and loss in a switch, in the peer's network, or in devxlab's emulated wire."},
	{"hrtimer", "a firmware command cannot run in an hrtimer callback",
		"The callback runs in interrupt context, and a command sleeps until its completion. A timer can only wake something that sends the command.",
		"devxlab's package timerfix does that in user space."},
	{"mlxfwmanager -i", "mlxfwmanager -i takes an image file",
		"It is not a check of a device.", "`mlxfwmanager --query`, or fw_ver of `ibv_devinfo`."},
}

const (
	noConflict = "the CM has no sequence number conflict, and no last_conflict"
	conflict   = "ib_cm knows a repeated REQ by the remote communication id, and a stale connection by the remote QPN: it answers REJ with reason 10 and ends the old connection. Suppressing that check for a time lets a second connection in for the same QP."
	staleCheck = "At the peer: a QP number used again before the old connection was gone. The tracepoints of ib_cm (icm_dup_req, icm_issue_rej)."
)

func parseName(s string) (Answer, bool, error) {
	s = strings.ToLower(s)
	for _, n := range names {
		if strings.Contains(s, n.key) {
			return Answer{Kind: KindName, Summary: n.summary, Meaning: []string{n.meaning}, Check: []string{n.check}}, true, nil
		}
	}
	return Answer{}, false, nil
}
