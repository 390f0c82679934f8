// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"fmt"
	"strings"

	"devxlab.example/mlx5"
	"golang.org/x/sys/unix"
)

// Values that the driver itself writes into the output of a command that it
// does not send, because the device is in error (mlx5_core.h).
const (
	driverStatusAborted mlx5.Status = 0xfe
	driverSyndrome      uint32      = 0xbadd00de
)

// Status explains the output of a firmware command. op 0 is an unknown
// command.
func Status(op mlx5.Op, status mlx5.Status, syndrome uint32) Answer {
	a := Answer{Kind: KindCommand, Op: op, HasOp: op != 0, Status: status, HasStatus: true, Syndrome: syndrome, HasSyndrome: true}
	a.command()
	return a
}

// statusNotReady came to the driver's list after Linux 6.1, from whose headers
// mlx5.Status is made.
const statusNotReady mlx5.Status = 0x7

// statusInfo is what a status stands for, what public reports add, and what to
// do about it. mlx5 has the words only (cmd_status_str in mlx5_core cmd.c);
// mlx4's cmd.c, whose codes are the same up to 0x40, comments them. The
// reports are those of syndromes.tsv.
var statusInfo = map[mlx5.Status]struct {
	meaning string
	check   []string
}{
	mlx5.StatusInt: {"Internal error: firmware failed, not the request.",
		[]string{"dmesg for health reports, `devlink health show`; then the firmware version and the vendor."}},
	mlx5.StatusBadOp: {"Bad operation: this firmware, or this function, does not know the opcode or its op_mod.",
		[]string{"The opcode and op_mod in the first 8 bytes of the request; the firmware version (`ibv_devinfo`), the capabilities (QUERY_HCA_CAP)."}},
	mlx5.StatusBadParam: {"Bad parameter: the value of some field was refused; firmware does not say which. In public reports: out of range, above a capability, fields that contradict each other, or an object that is still in use.",
		[]string{"Each field of the request against QUERY_HCA_CAP and the field's width; fields that you left 0."}},
	mlx5.StatusBadSysState: {"Bad system state: the device or function is not in a state for this command.",
		[]string{"dmesg of the driver's probe and health; whether the function was just reset."}},
	mlx5.StatusBadRes: {"Bad resource: an object that the request names does not exist, is reserved or is not yours. Public reports also have it for a pool that is used up (CREATE_QP close to max_qp) and for a missing privilege (ACCESS_REG).",
		[]string{"Each object number in the request: allocated, by the same user context (uid), not yet destroyed?"}},
	mlx5.StatusResBusy: {"Resource busy: the object is in use, or a command on it is still running.",
		[]string{"What still refers to the object; destroy that first."}},
	statusNotReady: {"Firmware is not ready for the command yet.",
		[]string{"dmesg for the driver's probe or recovery; retry after a pause."}},
	mlx5.StatusLIM: {"Limits exceeded: no more objects of this kind, or the request asks for more than the device has. The first may come well below the maximum that the device advertises.", nil},
	mlx5.StatusBadResState: {"Bad resource state: the object is still used by another one, or is gone (in public reports: after a function-level reset).",
		[]string{"What still refers to the object; whether the function was reset since it was made (dmesg)."}},
	mlx5.StatusIX: {"Bad index: an index outside its table.",
		[]string{"Every index in the request (GID, P_Key, counter set, register) against the table's size."}},
	mlx5.StatusNoRes: {"No resources: firmware has none at the moment, memory pages for instance.",
		[]string{"dmesg for MANAGE_PAGES or give_pages failures; free memory of the host or guest. A retry after a pause may help."}},
	mlx5.StatusBadQPState: {"Bad QP state: the QP is not in the state that the command starts from. Whether a card says this or bad parameter is not public.", nil},
	mlx5.StatusBadPkt:     {"Bad management packet, discarded.", []string{"The packet that the request (MAD_IFC) carries."}},
	mlx5.StatusBadSizeOutsCqes: {"Bad size, too many outstanding CQEs: a CQ was to become smaller than what is in it.",
		[]string{"Poll the CQ empty, or choose a larger size."}},
	mlx5.StatusBadInpLen:  {"Bad input length: the request is shorter or longer than this command's.", []string{"The input length against the command's layout, its variable part included."}},
	mlx5.StatusBadOutpLen: {"Bad output length: the room for the answer does not fit this command.", []string{"The output length against the command's layout."}},
}

const (
	noRetry  = "Do not retry: the limit does not go away by itself. Destroy what is not needed, or spread over devices, functions or machines."
	countQPs = "Count QPs and contexts: `rdma resource show` (its qp and ctx) against max_qp of `ibv_devinfo -v`. It counts verbs objects; QPs made through DevX are not in it, so count those in the program. The driver caps max_qp at 2^18 = 262,144."
	decode   = "The vendor decodes a syndrome for one firmware version: give command, status, syndrome and fw_ver of `ibv_devinfo`."
)

func opText(op mlx5.Op) string {
	if !knownOp(op) {
		return fmt.Sprintf("command %#x", uint16(op))
	}
	return fmt.Sprintf("%s(%#x)", op, uint16(op))
}

func statusText(s mlx5.Status) string { return fmt.Sprintf("%s(%#x)", statusWords(s), uint8(s)) }

func knownOp(op mlx5.Op) bool { return !strings.HasPrefix(op.String(), "Op(") }

func knownStatus(s mlx5.Status) bool { return s == mlx5.StatusOK || statusInfo[s].meaning != "" }

func statusWords(s mlx5.Status) string {
	if s == statusNotReady {
		return "FW not ready"
	}
	return s.Text()
}

// statusErrno is the number that the driver makes of a status.
func statusErrno(s mlx5.Status) unix.Errno {
	if s == statusNotReady {
		return unix.EAGAIN
	}
	return s.Errno()
}

// command fills the answer from what was recognised of a command.
func (a *Answer) command() {
	name := "a firmware command"
	if a.HasOp {
		name = opText(a.Op)
	}
	switch {
	case a.HasStatus && a.Status == mlx5.StatusOK:
		a.Summary = name + " succeeded"
		if a.Syndrome != 0 {
			a.mean("Status 0 beside syndrome %#x contradict each other; the status decides.", a.Syndrome)
		}
		return
	case a.HasStatus:
		a.Summary = fmt.Sprintf("%s failed: %s", name, statusText(a.Status))
	default:
		a.Summary = name + " failed, status not told"
	}
	if a.HasSyndrome {
		a.Summary += fmt.Sprintf(", syndrome %#x", a.Syndrome)
	}

	if a.HasStatus {
		i := statusInfo[a.Status]
		switch {
		case a.Status == driverStatusAborted:
			a.mean("Status 0xfe is the driver's own, not firmware's: the device is in error or going away, and the command was not sent.")
			a.check("dmesg for health reports, `devlink health show`; open the device again after recovery.")
		case i.meaning == "":
			a.mean("Status %#x is none that the driver knows.", uint8(a.Status))
		default:
			a.Meaning = append(a.Meaning, i.meaning)
			a.mean("A DevX program sees EREMOTEIO (121) and this output from Linux 5.18 on; before that, and for UMEM_REG, destroy and context creation still, only %s.", errnoText(statusErrno(a.Status)))
		}
		a.opCheck()
		a.check(i.check...)
	}
	if a.HasSyndrome {
		a.syndrome()
	}
}

// syndrome says what is known of a syndrome, which is seldom much.
func (a *Answer) syndrome() {
	switch {
	case a.Emulated():
		a.mean("Syndrome %#x comes from devxlab's emulated HCA, not from real firmware: it marks its own with 0xDE in the top byte.", a.Syndrome)
		return
	case a.Syndrome == driverSyndrome:
		a.mean("Syndrome 0xbadd00de is the driver's own, for a command that it did not send because the device is in error.")
		return
	}
	a.report()
	same := 0
	for _, r := range a.Reports {
		if r.Same {
			same++
		}
	}
	switch {
	case a.Syndrome == 0 && !a.HasStatus:
		a.mean("Syndrome 0 where no status is told mostly means that there was no output to read: before Linux 5.18 the kernel passed none on, and the library printed its own zeros.")
	case a.Syndrome == 0:
		a.mean("Syndrome 0: firmware gave none. That is seen in public for other refusals too.")
	case len(a.Reports) == 0:
		a.mean("Syndrome %#x is firmware-internal, not public: no report of it is known here.", a.Syndrome)
		a.check(decode)
	case same == 0:
		a.mean("Syndrome %#x is firmware-internal, not public; reports of the number are for another command or status.", a.Syndrome)
		a.check(decode)
	default:
		a.mean("Syndrome %#x is firmware-internal; public reports say in which circumstance it was seen, for their card and firmware.", a.Syndrome)
		a.check("Whether the circumstance of the report is yours; if not, ask the vendor with command, status, syndrome and fw_ver.")
	}
	if a.Syndrome>>24 != 0 {
		a.mean("Syndromes known from real firmware have 24 bits; this one has more.")
	}
}

// opCheck adds what to look at for this command and status.
func (a *Answer) opCheck() {
	if a.Status == mlx5.StatusLIM {
		if !a.HasOp || a.Op == mlx5.OpCreateQP {
			a.check(countQPs)
		} else {
			a.check("Count the objects of this kind and the contexts: `rdma resource show` against `ibv_devinfo -v`.")
		}
		a.check(noRetry, "The sizes in the request (queue lengths, SGEs, pages, actions) against QUERY_HCA_CAP.")
	}
	if !a.HasOp {
		return
	}
	if a.Op == mlx5.OpCreateQP && a.Status == mlx5.StatusBadRes {
		a.check(countQPs)
	}
	if r := mlx5.RuleOf(a.Op, mlx5.STRC); r != nil {
		if len(r.From) > 0 {
			a.check(fmt.Sprintf("The QP's state: %s starts in %s. QUERY_QP tells; ibv_query_qp also brings the kernel's own copy up to date, which a DevX transition leaves behind.", a.Op, join(r.From)))
		}
		if r.Required != 0 {
			a.check(fmt.Sprintf("The fields that an RC QP needs here: %s. devxlab's encoder refuses a missing or unencodable one by its name.", strings.Join(strings.Fields(r.Required.String()), ", ")))
		}
	}
	if hasPrefix(a.Op.String(), "DESTROY_", "DEALLOC_") {
		a.check("The order of destruction: QPs before their CQs, SRQs and umems, mkeys and QPs before their PD, contexts last.")
	}
}
