// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// wcInfo is one value of enum ibv_wc_status (infiniband/verbs.h). text is what
// ibv_wc_status_str prints.
type wcInfo struct {
	name, text string
	meaning    string
	check      []string
}

const (
	rnrCounters  = "Responder: out_of_buffer under /sys/class/infiniband/*/ports/N/hw_counters (not under counters) counts what found no receive. Requester: rnr_nak_retry_err."
	localMemory  = "The buffer of this work request: lkey, address and length inside the region, region not yet deregistered, same PD as the QP, IBV_ACCESS_LOCAL_WRITE where the device writes."
	remoteMemory = "At the responder: rkey, address and length inside the region, the region's access flags, the QP's access flags, same PD. Its counter resp_remote_access_errors."
	mlx5Never    = "mlx5 does not report it."
)

var wcStatuses = [...]wcInfo{
	0:  {"IBV_WC_SUCCESS", "success", "The work request succeeded.", nil},
	1:  {"IBV_WC_LOC_LEN_ERR", "local length error", "A message longer than the receive that it met, or a request longer than the QP takes.", []string{"Size of the posted receives against the largest message; for UD the path MTU, and 40 bytes for the GRH."}},
	2:  {"IBV_WC_LOC_QP_OP_ERR", "local QP operation error", "The device could not make sense of the work request on this QP.", []string{"Opcode against the transport (UD only sends), number of SGEs and inline bytes against the QP's capabilities, the WQE's bytes if you write it yourself."}},
	3:  {"IBV_WC_LOC_EEC_OP_ERR", "local EE context operation error", mlx5Never, nil},
	4:  {"IBV_WC_LOC_PROT_ERR", "local protection error", "The device was not allowed to use the local buffer of the work request.", []string{localMemory, "A buffer in GPU memory: the peer-memory or dma-buf support. With an IOMMU: dmesg for faults of this device."}},
	5:  {"IBV_WC_WR_FLUSH_ERR", "Work Request Flushed Error", "The QP went to ERR, and this work request was thrown out. It is a consequence, not a cause.", []string{"The first completion of this QP with another status; it names the cause.", "If there is none: who moved the QP to ERR: a disconnect, a destroy, a 2ERR. That is normal at the end of a connection."}},
	6:  {"IBV_WC_MW_BIND_ERR", "memory management operation error", "Binding a memory window or changing an mkey by work request (UMR) failed.", []string{"Size, access and state of the mkey that is bound or changed."}},
	7:  {"IBV_WC_BAD_RESP_ERR", "bad response error", "The responder answered with a packet that does not fit the request.", []string{"That both ends have the same PSNs and MTU; a capture of the packets."}},
	8:  {"IBV_WC_LOC_ACCESS_ERR", "local access error", "The responder's own buffer could not be used for an incoming request.", []string{localMemory}},
	9:  {"IBV_WC_REM_INV_REQ_ERR", "remote invalid request error", "The responder refused the request as invalid.", []string{"path_mtu the same at both ends; message no longer than the receive; the operation enabled at the responder's QP; max_rd_atomic no more than its max_dest_rd_atomic.", "The responder's own completions and events; the requester's counter req_remote_invalid_request."}},
	10: {"IBV_WC_REM_ACCESS_ERR", "remote access error", "The responder did not allow the access to its memory.", []string{remoteMemory}},
	11: {"IBV_WC_REM_OP_ERR", "remote operation error", "The responder failed while it carried out the request.", []string{"Completions and asynchronous events at the responder: the cause is there."}},
	12: {"IBV_WC_RETRY_EXC_ERR", "transport retry counter exceeded", "Nothing came back from the peer in any of the retries. It cannot tell a QP in ERR from a dead process, a dead host or a broken path: all of them just do not answer.", []string{
		"Whether the peer process lives, by another way than this QP.",
		"The state of the peer's QP (RTR or RTS?), and that QPN, PSN, GID index and path_mtu agree with yours.",
		"The path: ping with the path's MTU, VLAN and priority, ACLs. Requester's hw_counters local_ack_timeout_err and roce_adp_retrans.",
		"timeout and retry_cnt: `devxlab explain timeout=14`.",
	}},
	13: {"IBV_WC_RNR_RETRY_EXC_ERR", "RNR retry counter exceeded", "The responder had no receive posted, and said so until the RNR retries ran out.", []string{rnrCounters, "Receives at the responder: enough, posted before the peer sends, reposted after use (also an SRQ's).", "rnr_retry 7 waits for ever; min_rnr_timer 0 is the longest wait, 655.36 ms."}},
	14: {"IBV_WC_LOC_RDD_VIOL_ERR", "local RDD violation error", mlx5Never, nil},
	15: {"IBV_WC_REM_INV_RD_REQ_ERR", "remote invalid RD request", mlx5Never, nil},
	16: {"IBV_WC_REM_ABORT_ERR", "aborted error", "The responder aborted the operation.", []string{"Completions and asynchronous events at the responder."}},
	17: {"IBV_WC_INV_EECN_ERR", "invalid EE context number", mlx5Never, nil},
	18: {"IBV_WC_INV_EEC_STATE_ERR", "invalid EE context state", mlx5Never, nil},
	19: {"IBV_WC_FATAL_ERR", "fatal error", mlx5Never, nil},
	20: {"IBV_WC_RESP_TIMEOUT_ERR", "response timeout error", mlx5Never, nil},
	21: {"IBV_WC_GENERAL_ERR", "general error", "The completion carries a syndrome that the driver does not know.", []string{"The dump that libmlx5 prints to stderr: byte 55 is the syndrome."}},
	22: {"IBV_WC_TM_ERR", "TM error", "A tag-matching operation failed.", nil},
	23: {"IBV_WC_TM_RNDV_INCOMPLETE", "TM software rendezvous", "A tag-matching rendezvous is left to software.", nil},
}

// cqeStatus maps the syndrome of an error CQE to ibv_wc_status
// (mlx5_handle_error_cqe in mlx5_ib and libmlx5 cq.c). Any other is 21.
var cqeStatus = map[uint8]uint8{
	0x01: 1, 0x02: 2, 0x04: 4, 0x05: 5, 0x06: 6, 0x10: 7, 0x11: 8, 0x12: 9, 0x13: 10, 0x14: 11, 0x15: 12, 0x16: 13, 0x22: 16,
}

func fromCQE(syndrome uint8) uint8 {
	if st, ok := cqeStatus[syndrome]; ok {
		return st
	}
	return 21
}

func wcName(status uint8) string {
	if int(status) < len(wcStatuses) {
		return wcStatuses[status].name
	}
	return ""
}

// Completion explains a work completion: status is enum ibv_wc_status,
// vendorErr is vendor_err of struct ibv_wc, 0 if it is not known.
func Completion(status uint8, vendorErr uint32) Answer {
	a := Answer{Kind: KindCompletion, WCStatus: status, HasWCStatus: true, VendorErr: vendorErr, HasVendorErr: vendorErr != 0}
	if int(status) >= len(wcStatuses) {
		a.Summary = fmt.Sprintf("completion status %d: not one of ibv_wc_status (0 to %d)", status, len(wcStatuses)-1)
		a.rawStatus()
		return a
	}
	i := wcStatuses[status]
	a.Summary = fmt.Sprintf("%s (%d): %s", i.name, status, i.text)
	if a.HasVendorErr {
		a.Summary += fmt.Sprintf(", vendor error %#x", vendorErr)
	}
	a.Meaning = append(a.Meaning, i.meaning)
	if status == 0 {
		return a
	}
	if status == 12 || status == 13 {
		a.mean("An RC QP is in ERR now. To use it again: both ends to RESET, INIT, RTR, RTS.")
	}
	if !a.HasVendorErr {
		a.check("vendor_err of the completion: it says more than the status.")
	} else {
		for _, c := range completions() {
			if c.vendorErr == vendorErr && c.status == status {
				a.Reports = append(a.Reports, c.report())
			}
		}
		switch {
		case len(a.Reports) > 0:
			a.mean("Vendor error %#x is firmware-internal; public reports say in which circumstance it was seen with this status.", vendorErr)
		default:
			a.mean("Vendor error %#x with this status is firmware-internal, not public: no report of it is known here.", vendorErr)
		}
	}
	a.rawStatus()
	a.check(i.check...)
	return a
}

// rawStatus covers tools that print the CQE's syndrome as the status.
func (a *Answer) rawStatus() {
	st, ok := cqeStatus[a.WCStatus]
	if !ok || st == a.WCStatus || len(a.Reports) > 0 {
		return
	}
	raw := fmt.Sprintf("%#x read as the CQE's own syndrome (UCX's synd) would be %s (%d)", a.WCStatus, wcName(st), st)
	for _, c := range completions() {
		if c.status == st && c.vendorErr == a.VendorErr {
			a.mean("%s, and this vendor error was reported with that one: probably it is meant.", raw)
			return
		}
	}
	a.mean("%s.", raw)
}

func (c *seenCompletion) report() Report {
	r := Report{Status: fmt.Sprintf("%s(%d)", strings.TrimPrefix(wcName(c.status), "IBV_WC_"), c.status), Syndrome: c.vendorErr, Circumstance: c.circumstance, Card: c.card, Source: c.source, Same: true}
	if c.hasHW {
		r.Status += fmt.Sprintf(", hardware syndrome %#x", c.hwSyndrome)
	}
	return r
}

var (
	vendorRE   = regexp.MustCompile(`(?i)\bvend(?:or)?[_ ]?(?:err(?:or)?|synd(?:rome)?)?\b[\s:=(]*(0x[0-9a-f]+\b|[0-9a-f]+\b)?`)
	wcPairRE   = regexp.MustCompile(`(?i)^(?:status )?(\d+|0x[0-9a-f]+) ?[/ ] ?(0x[0-9a-f]+|\d+)$`)
	wcStatusRE = regexp.MustCompile(`(?i)\b(?:status|error)\b[\s:=(]*(0x[0-9a-f]+\b|\d+\b)`)
	wcAloneRE  = regexp.MustCompile(`(?i)^status ?[=:]? ?(\d+|0x[0-9a-f]+)$`)
	wcContext  = regexp.MustCompile(`(?i)\bcompletion\b|\bwc\b|\bcq\b`)
	wcNameRE   = regexp.MustCompile(`(?i)\bIBV?(_WC_[A-Z_]+)`)
	syndRE     = regexp.MustCompile(`(?i)\bsynd (0x[0-9a-f]+)`)
)

const exampleCompletion = "status 12 vendor_err 0x81, or 12/0x81"

func parseCompletion(s string) (Answer, bool, error) {
	if m := wcPairRE.FindStringSubmatch(s); m != nil {
		st, ok := number(m[1], 8)
		if v, vok := number(m[2], 32); ok && vok {
			return completionOf(uint8(st), m[2], uint32(v)), true, nil
		}
		return Answer{}, false, nil
	}
	if m := wcAloneRE.FindStringSubmatch(s); m != nil {
		return Answer{}, true, &InputError{Recognised: []string{"status " + m[1]}, Missing: []string{"the vendor error, if it is a completion's status, or command and syndrome, if it is a firmware command's"}, Example: exampleCompletion + "; " + exampleLine}
	}
	vm := vendorRE.FindStringSubmatch(s)
	st, certain, found := wcStatusIn(vendorRE.ReplaceAllString(s, " "))
	switch {
	case vm == nil && found && (certain || wcContext.MatchString(s)):
		return completionOf(st, "", 0), true, nil
	case vm == nil, !found && vm[1] == "":
		return Answer{}, false, nil
	case vm[1] == "":
		return Answer{}, true, &InputError{Recognised: []string{fmt.Sprintf("completion status %s", wcLabel(st))}, Missing: []string{"the number of the vendor error"}, Example: exampleCompletion}
	}
	v, ok := number(vm[1], 32)
	switch {
	case !ok:
		return Answer{}, true, &InputError{Recognised: []string{"a completion's vendor error"}, Missing: []string{"a vendor error of 32 bits"}, Example: exampleCompletion}
	case !found:
		return Answer{}, true, &InputError{Recognised: []string{fmt.Sprintf("vendor error %#x of a completion", v)}, Missing: []string{"the completion's status"}, Example: exampleCompletion}
	}
	return completionOf(st, vm[1], uint32(v)), true, nil
}

// completionOf watches for a vendor error whose 0x was lost: NCCL prints it in
// decimal, most others in hexadecimal.
func completionOf(st uint8, vendorText string, vendor uint32) Answer {
	a := Completion(st, vendor)
	if x, err := strconv.ParseUint(vendorText, 16, 32); err == nil && len(a.Reports) == 0 && uint32(x) != vendor {
		if len(Completion(st, uint32(x)).Reports) > 0 {
			a.mean("The vendor error was read as decimal. If it is hexadecimal (%#x), it has public reports with this status: write 0x%x.", x, x)
		}
	}
	return a
}

// wcStatusIn finds a completion's status: by name, by UCX's syndrome, as a
// number, or by the words of ibv_wc_status_str. certain is false where the
// number or the words could be about something else.
func wcStatusIn(s string) (status uint8, certain, ok bool) {
	if m := wcNameRE.FindStringSubmatch(s); m != nil {
		want := "IBV" + strings.ToUpper(m[1])
		if i := slices.IndexFunc(wcStatuses[:], func(w wcInfo) bool { return w.name == want }); i >= 0 {
			return uint8(i), true, true
		}
	}
	if m := syndRE.FindStringSubmatch(s); m != nil { // UCX: (synd 0x15 vend 0x81 hw_synd 0/0)
		if v, vok := number(m[1], 8); vok {
			return fromCQE(uint8(v)), false, true
		}
	}
	if m := wcStatusRE.FindStringSubmatch(s); m != nil {
		if v, vok := number(m[1], 8); vok {
			return uint8(v), false, true
		}
	}
	low := strings.ToLower(s)
	for i, w := range wcStatuses {
		if t := strings.ToLower(w.text); i > 0 && strings.Contains(low, t) {
			return uint8(i), low == t, true
		}
	}
	return 0, false, false
}

func wcLabel(st uint8) string {
	if n := wcName(st); n != "" {
		return fmt.Sprintf("%d (%s)", st, n)
	}
	return strconv.Itoa(int(st))
}
