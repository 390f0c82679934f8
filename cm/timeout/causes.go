// SPDX-License-Identifier: BSD-2-Clause

package timeout

import (
	"slices"
	"strings"
)

// Cause is what a program sees when a connection fails, and how to find out why.
type Cause struct {
	Symptom string   `json:"symptom"` // event and status of rdma_cm, completion, or errno
	Also    []string `json:"-"`       // other words that find it
	Means   string   `json:"means"`
	When    string   `json:"when,omitempty"` // how long after
	Look    []Look   `json:"look"`           // in this order: what is likely and cheap comes first
}

// Look is one thing to look at. In commands DEV is an RDMA device (mlx5_0), IF its
// netdev, PEER the peer's address.
type Look struct {
	At      string `json:"at"`
	Command string `json:"command,omitempty"`
	Where   string `json:"where,omitempty"` // "peer", or here
}

const (
	hw       = "/sys/class/infiniband/DEV/ports/1/hw_counters/"
	cmCounts = "/sys/class/infiniband/DEV/ports/1/"
	atPeer   = "peer"
)

// Looks that several symptoms have.
var (
	lookNeighbour = Look{"neighbour: FAILED or INCOMPLETE is no answer to ARP; a wrong MAC address is a stale one", "ip neigh show PEER", ""}
	lookRoute     = Look{"route, and whether its netdev is the RDMA device's", "ip route get PEER; rdma link show", ""}
	lookPackets   = Look{"what passes between the two: messages that are not answered, repetitions, rejects; of a card, with its sniffer or a mirrored port", "tcpdump -i DEV -w - | devxlab pcap -", ""}
	lookListeners = Look{"who listens, in which port space, on which address", "rdma res show cm_id", atPeer}
	lookQPs       = Look{"states of the queue pairs, and whose they are", "rdma res show qp", atPeer}
	lookMessages  = Look{"messages of the CM that came, and that were sent again", "grep . " + cmCounts + "cm_*/*", ""}
	lookLink      = Look{"link and health of the device", "rdma link show DEV/1; ip link show IF; dmesg | grep mlx5_ | devxlab explain", ""}
	lookLimits    = Look{"after what time it has to come", "devxlab cm timeout --timeout N --retry N", ""}
)

// Causes is the matrix of symptoms. Events and statuses are those of
// drivers/infiniband/core/cma.c (cma_ib_handler, cma_sidr_rep_handler, addr_handler),
// reject reasons those of rdma/ib_cm.h.
var Causes = []Cause{
	{
		Symptom: "ADDR_ERROR -110", Also: []string{"ETIMEDOUT"},
		Means: "the address of the peer was not resolved to a MAC address: nobody answered ARP or neighbour discovery",
		When:  "after the time that rdma_resolve_addr was given (2 s in most programs)",
		Look:  []Look{lookRoute, lookNeighbour, {"whether requests leave and answers come: VLAN, cable, bond, filter", "tcpdump -ni IF arp or icmp6", ""}, {"whether the peer has the address, on that port", "ip addr show", atPeer}},
	},
	{
		Symptom: "errno 101 of rdma_resolve_addr", Also: []string{"ADDR_ERROR", "ENETUNREACH", "113", "EHOSTUNREACH", "unreachable"},
		Means: "there is no route to the address: the call fails, no event comes",
		When:  "at once",
		Look:  []Look{lookRoute, {"addresses and state of the netdevs", "ip addr show; ip route show table all", ""}},
	},
	{
		Symptom: "ADDR_ERROR -19", Also: []string{"ENODEV", "-99", "EADDRNOTAVAIL"},
		Means: "no RDMA device has the source address that the route has: its GID is not there (yet), or the route leaves by another netdev",
		When:  "at once",
		Look: []Look{lookRoute, {"GIDs: one for each address of the netdev, RoCE v2", "grep . /sys/class/infiniband/*/ports/*/gids/* | grep -v :0000:0000:0000:0000$", ""},
			{"network namespaces: in mode exclusive a program sees its own devices only", "rdma system show", ""}, {"whether the driver is there", "rdma dev show; lsmod | grep mlx5_ib", ""}},
	},
	{
		Symptom: "ROUTE_ERROR", Also: []string{"-19", "ENODEV", "-22", "EINVAL", "-110", "ETIMEDOUT"},
		Means: "RoCE asks nobody for the route: the netdev went away or its MTU is too small. On InfiniBand -110 is a subnet manager that does not answer",
		When:  "at once; on InfiniBand after the time that rdma_resolve_route was given",
		Look:  []Look{lookLink, {"MTU, 352 at least", "ip link show IF", ""}, {"on InfiniBand: that there is a subnet manager", "sminfo; ibv_devinfo | grep -e sm_lid -e state", ""}},
	},
	{
		Symptom: "UNREACHABLE -110 of a client", Also: []string{"ETIMEDOUT", "REQ"},
		Means: "no answer to the REQ, and none to any of its 15 repetitions: it or the answer is lost, or the peer's CM does not run",
		When:  "98 s (Linux 5.15, 6.1) or 74 s (6.12); 17 min if the peer's kernel answers with MRAs and its program never accepts",
		Look: []Look{lookMessages, lookPackets, {"the same there: rx_msgs/req that does not move means that nothing comes", "grep . " + cmCounts + "cm_rx_*/req", atPeer}, lookNeighbour,
			{"filters of UDP port 4791, also in the network", "nft list ruleset", atPeer},
			{"version of RoCE: a REQ of v1 to a peer that has v2 only is not heard", "cat /sys/kernel/config/rdma_cm/DEV/ports/1/default_roce_mode", ""},
			{"priority and PFC: QP 1 has its own", "ethtool -S IF | grep -e pause -e discard", ""}, {"with MRAs: why the program does not accept", "rdma res show cm_id", atPeer}},
	},
	{
		Symptom: "UNREACHABLE -110 of a server", Also: []string{"ETIMEDOUT", "REP"},
		Means: "it has accepted, and no RTU came to any of 16 REPs: the way back is broken, or the client's program or host died after its REQ",
		When:  "65.5 s",
		Look:  []Look{lookPackets, lookMessages, lookNeighbour, {"whether the client lives", "rdma res show cm_id", atPeer}},
	},
	{
		Symptom: "UNREACHABLE 1 to 5", Also: []string{"1", "2", "3", "4", "5", "SIDR", "UDP", "datagram"},
		Means: "a datagram service was refused (SIDR_REP): 1 nobody listens, 2 the program refused or ended, 3 no queue pair, 4 redirected, 5 version",
		When:  "after a round trip",
		Look:  []Look{lookListeners},
	},
	{
		Symptom: "REJECTED 8", Also: []string{"invalid", "service", "id", "IB_CM_REJ_INVALID_SERVICE_ID"},
		Means: "nobody listens there: on that port, in that port space (TCP is not UDP), on that address or device",
		When:  "after a round trip",
		Look:  []Look{lookListeners, {"whether the listener is in another network namespace, or bound to another device", "ip netns list; rdma system show", atPeer}, {"which version of RoCE the REQ came by: a listener is bound to a GID", "devxlab pcap FILE", ""}},
	},
	{
		Symptom: "REJECTED 10", Also: []string{"stale", "connection", "IB_CM_REJ_STALE_CONN"},
		Means: "the peer's CM still has a connection with this queue pair number: this host died or restarted, or destroyed it, and its DREQ was lost, and the number is used again. The peer ends the old one for it: try again",
		When:  "after a round trip; the next attempt may succeed",
		Look:  []Look{{"the old connection", "rdma res show cm_id; rdma res show qp", atPeer}, lookPackets},
	},
	{
		Symptom: "REJECTED 28", Also: []string{"consumer", "IB_CM_REJ_CONSUMER_DEFINED"},
		Means: "the peer's program refused (rdma_reject), or ended, or destroyed the id, before it accepted; private data may say why",
		When:  "when the program says so",
		Look:  []Look{{"the program's log; its limits: backlog of rdma_listen, memory, queue pairs", "rdma res show", atPeer}, lookListeners},
	},
	{
		Symptom: "REJECTED 4", Also: []string{"timeout", "time-out", "IB_CM_REJ_TIMEOUT"},
		Means: "the other side gave up waiting and says so: a client that closed its id before the REP came, with a time-out of its own",
		When:  "when that time-out is over",
		Look:  []Look{{"the time-out of the other program, against the time that a set-up takes", "devxlab pcap FILE", atPeer}, lookPackets},
	},
	{
		Symptom: "REJECTED of another reason", Also: []string{"1", "3", "5", "6", "9", "12", "24", "26", "27", "29", "IB_CM_REJ"},
		Means: "1 and 3: the peer has no queue pair or resources left; 5, 6, 9: its CM does not take the request; 12: a GID that it has not (another version of RoCE?); 26: path MTU; 27 and 29: depth of READs, RNR retries",
		When:  "after a round trip",
		Look:  []Look{{"the reason in words, and which message was rejected", "devxlab pcap FILE", ""}, {"limits and use", "rdma res show; ibv_devinfo -v", atPeer}, {"GIDs and MTU of both ends", "ibv_devinfo -v | grep -e GID -e active_mtu", ""}},
	},
	{
		Symptom: "CONNECT_ERROR", Also: []string{"-22", "EINVAL", "-110", "ETIMEDOUT"},
		Means: "the REP came, but this queue pair did not go to RTR and RTS: -22 for attributes, -110 for an address that was not resolved within 1 s",
		When:  "after a round trip, and 1 s more with -110",
		Look:  []Look{{"the driver's words, and what they mean", "dmesg | grep mlx5_ | devxlab explain", ""}, lookNeighbour, {"responder resources and depth of both sides, against the device's max_qp_rd_atom", "ibv_devinfo -v | grep rd_atom", ""}},
	},
	{
		Symptom: "completion 12/0x81", Also: []string{"IBV_WC_RETRY_EXC_ERR", "retry", "exceeded"},
		Means: "no acknowledgement in any of the retries. The peer's queue pair in ERR, its process, its host or the path dead: all look the same from here",
		When:  "(retry_cnt + 1) · time-out at least; a ConnectX-6 takes 3.7 s with 7 retries for each time-out up to 16",
		Look: []Look{lookQPs, {"local_ack_timeout_err moved here: nothing came; so did roce_adp_retrans, if the firmware repeats adaptively", "grep . " + hw + "local_ack_timeout_err " + hw + "roce_adp_retrans*", ""},
			{"out_of_sequence moved there: some came, some did not", "grep . " + hw + "out_of_sequence", atPeer}, lookNeighbour, {"the path with its MTU", "ping -M do -s 4096 PEER", ""}, {"priority: drops and pauses", "ethtool -S IF | grep -e discard -e pause -e ecn", ""}, lookLimits},
	},
	{
		Symptom: "completion 13/0x87", Also: []string{"IBV_WC_RNR_RETRY_EXC_ERR", "RNR"},
		Means: "the peer lives, and had no receive entry posted",
		When:  "rnr_retry · the delay of the peer's min_rnr_timer; queue pairs of rdma_cm have min_rnr_timer 0, which is 655 ms",
		Look: []Look{{"out_of_buffer moves with each", "cat " + hw + "out_of_buffer", atPeer}, {"rnr_nak_retry_err", "cat " + hw + "rnr_nak_retry_err", ""},
			{"receive entries of the peer's program: enough, and posted before its rdma_accept", "rdma res show qp", atPeer}, {"how long it may take", "devxlab cm timeout --rnr-retry N --min-rnr-timer N", ""}},
	},
	{
		Symptom: "completion 5/0xf9", Also: []string{"IBV_WC_WR_FLUSH_ERR", "0xf5", "flush", "flushed"},
		Means: "a consequence: the queue pair is in ERR, and what was posted is thrown out",
		Look: []Look{{"the first completion that is not 5: it has the cause", "devxlab explain STATUS/VENDOR", ""}, {"if there is none: a disconnect (DISCONNECTED, REJECTED) or a program that moved it to ERR", "devxlab pcap FILE", ""},
			{"counters of both: req_cqe_error is a cause, req_cqe_flush_error a consequence", "grep . " + hw + "re*_cqe_*", ""}},
	},
	{
		Symptom: "errno 110 of RTR", Also: []string{"ETIMEDOUT", "modify", "ibv_modify_qp"},
		Means: "ibv_modify_qp to RTR: the kernel found no MAC address for the peer's GID. It is the kernel's ARP; no command was sent to the device. DevX does not ask",
		When:  "1 s (addr.c, rdma_addr_find_l2_eth_by_grh), and those of other programs wait behind it",
		Look:  []Look{lookNeighbour, {"GID index and the peer's GID: an address of the same network, of the same version of RoCE", "ibv_devinfo -v | grep GID", ""}, {"a lost ARP request is repeated after 1 s only", "sysctl net.ipv4.neigh.IF.retrans_time_ms", ""}},
	},
	{
		Symptom: "DISCONNECTED", Also: []string{"0", "-110", "ETIMEDOUT", "DREQ"},
		Means: "the peer disconnected or its program ended (the kernel does that for it); with -110: this side did, and no DREP came",
		When:  "with -110 98 s or 65.5 s, as the REQ or REP",
		Look:  []Look{{"who sent the DREQ first", "devxlab pcap FILE", ""}, {"whether the program ended: log, out of memory", "dmesg | grep -i -e oom -e segfault", atPeer}, lookLink},
	},
	{
		Symptom: "DEVICE_REMOVAL", Also: []string{"11"},
		Means: "the RDMA device goes away: unbound, reset, recovered after a failure, moved to another network namespace. All of its objects are lost",
		Look:  []Look{{"why", "dmesg | grep mlx5_ | devxlab explain", ""}, {"health", "devlink health show", ""}, {"whether it is back", "rdma dev show", ""}},
	},
	{
		Symptom: "TIMEWAIT_EXIT", Also: []string{"time", "wait"},
		Means: "no fault: the time after a disconnect in which late packets may come is over; the queue pair number may be used again",
		When:  "2 s after the disconnect, 1 s with a packet life time of 16 (Linux 6.12)",
		Look:  []Look{{"how long it is", "devxlab cm timeout", ""}},
	},
	{
		Symptom: "nothing comes", Also: []string{"hang", "hangs", "never", "forever"},
		Means: "a time-out of 0 is none: the queue pair waits for ever; rnr_retry 7 goes on for ever as well. Or the program reads no events",
		Look: []Look{{"attributes of the queue pair: timeout (random() % 15 is 0 in one case of 15), rnr_retry", "rdma res show qp", ""}, {"whether packets are repeated", "grep . " + hw + "rnr_nak_retry_err " + hw + "local_ack_timeout_err", ""},
			{"whether events wait", "rdma res show cm_id", ""}, lookLimits},
	},
}

// Find returns the causes that have each word of a symptom: "REJECTED 10", "12/0x81",
// "RDMA_CM_EVENT_UNREACHABLE, error -110". Nothing finds all of them.
func Find(symptom string) (found []Cause) {
	want := words(symptom)
	for _, c := range Causes {
		has := words(c.Symptom + " " + strings.Join(c.Also, " "))
		if !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(has, w) }) {
			found = append(found, c)
		}
	}
	return found
}

// fillers are words of messages that say nothing about which.
var fillers = []string{"rdma", "cm", "event", "error", "status", "errno", "reason", "completion", "wc", "of", "a", "to"}

func words(s string) []string {
	split := strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return strings.ContainsRune(" ,;:/()=-_.\t", r) })
	return slices.DeleteFunc(split, func(w string) bool { return slices.Contains(fillers, w) })
}
