// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"
	"testing"

	"devxlab.example/mlx5"
)

// capability says why the device may advertise a field of a capability page.
type capability struct {
	field string // of the page's layout
	by    string // what implements it
	lacks string // what of it is not there although the driver demands the bit; empty: nothing
}

// capabilities has every field that the device sets, page by page.
var capabilities = map[mlx5.CapType][]capability{
	mlx5.CapGeneral: {
		{"log_max_srq_sz", "CREATE_RMP, CREATE_XRC_SRQ: badWQSize", ""},
		{"log_max_qp_sz", "CREATE_QP", ""},
		{"log_max_qp", "the table of queue pairs; SET_HCA_CAP lowers it", ""},
		{"log_max_srq", "the table of RMPs and XRC SRQs", ""},
		{"log_max_cq_sz", "CREATE_CQ, MODIFY_CQ: badCQSize", ""},
		{"log_max_cq", "the table of completion queues", ""},
		{"log_max_eq_sz", "CREATE_EQ: badEQSize", ""},
		{"log_max_mkey", "the table of memory keys", ""},
		{"log_max_eq", "the table of event queues", ""},
		{"log_max_klm_list_size", "CREATE_MKEY of the KLM modes", ""},
		{"roce_accl", "QUERY_Q_COUNTER: zeros, since the device retransmits at no adaptive pace and never restarts slowly", ""},
		{"log_max_ra_req_qp", "transitions: badSRAMax", ""},
		{"log_max_ra_res_qp", "transitions: badRRAMax", ""},
		{"cc_query_allowed", "QUERY_CONG_STATISTICS: CNPs sent and received", ""},
		{"out_of_seq_cnt", "QUERY_Q_COUNTER", ""},
		{"vport_counters", "QUERY_VPORT_COUNTER", ""},
		{"retransmission_q_counters", "QUERY_Q_COUNTER", ""},
		{"max_qp_cnt", "ALLOC_Q_COUNTER: the table of counter sets", ""},
		{"nic_flow_table", "flow tables of what the port receives, and of what send queues of frames send", ""},
		{"mcam_reg", "ACCESS_REG: MCAM, with what the device has of that space", ""},
		{"pcam_reg", "ACCESS_REG: PCAM, with the port registers that the device has", ""},
		{"local_ca_ack_delay", "a figure; the reference card's", ""},
		{"enhanced_error_q_counters", "QUERY_Q_COUNTER", ""},
		{"port_type", "Ethernet: vport, PTYS, RoCE addresses", ""},
		{"num_ports", "badPort", ""},
		{"log_max_msg", "transitions: badMsgMax", ""},
		{"cqe_version", "completions carry the user index", ""},
		{"compact_address_vector", "INIT2RTR and RTR2RTS take one, as they take a whole one", ""},
		{"umr_modify_entity_size_disabled", "a restriction: mlx5_ib then makes no memory keys in stock", ""},
		{"eth_net_offloads", "the page of Ethernet capabilities", ""},
		{"roce", "the page of RoCE capabilities, QUERY_ROCE_ADDRESS and SET_ROCE_ADDRESS", ""},
		{"atomic", "the page of atomic capabilities", ""},
		{"cq_resize", "MODIFY_CQ", ""},
		{"fast_teardown", "TEARDOWN_HCA: the way down of a driver that shuts down", ""},
		{"force_teardown", "TEARDOWN_HCA", ""},
		{"cq_moderation", "MODIFY_CQ", ""},
		{"block_lb_mc", "CREATE_QP: the queue pair hears none of the device's own multicasts", ""},
		{"xrc", "XRC domains, XRC SRQs and queue pairs of that type", ""},
		{"uc", "queue pairs of that type", ""},
		{"rc", "queue pairs of that type", ""},
		{"uar_sz", "BAR 0", ""},
		{"log_pg_sz", "pages of umems, queues and memory keys", ""},
		{"log_bf_reg_size", "doorbell pages", ""},
		{"max_wqe_sz_sq", "send queues", ""},
		{"max_wqe_sz_rq", "receive queues", ""},
		{"log_max_transport_domain", "the table of transport domains", ""},
		{"log_max_pd", "the table of protection domains", ""},
		{"log_max_xrcd", "the table of XRC domains", ""},
		{"log_max_rq", "the table of RQs", ""},
		{"log_max_sq", "the table of SQs", ""},
		{"log_max_tir", "the table of TIRs", ""},
		{"log_max_tis", "the table of TISs", ""},
		{"log_max_rmp", "the table of RMPs and XRC SRQs", ""},
		{"log_max_rqt", "the table of RQ tables", ""},
		{"log_max_rqt_size", "CREATE_RQT: badRQTSize", ""},
		{"log_max_tis_per_sq", "CREATE_SQ: badTIS", ""},
		{"log_max_vlan_list", "MODIFY_NIC_VPORT_CONTEXT: badListSize", ""},
		{"log_max_current_mc_list", "MODIFY_NIC_VPORT_CONTEXT: badListSize", ""},
		{"log_max_current_uc_list", "MODIFY_NIC_VPORT_CONTEXT: badListSize", ""},
		{"log_max_uctx", "the table of user contexts; SET_HCA_CAP does not change it", ""},
		{"log_max_umem", "the table of umems", ""},
		{"max_num_eqs", "the table of event queues", ""},
		{"imaicl", "memory windows: UMR work requests of programs bind and free keys (mr.go)", ""},
		{"log_max_wq_sz", "CREATE_RQ, CREATE_SQ: badWQSize", ""},
		{"max_flow_counter_15_0", "the table of flow counters", ""},
		{"device_frequency_khz", "the timer of BAR 0, in nanoseconds", ""},
	},
	mlx5.CapRoCE: {
		{"l3_type", "RoCE addresses of IPv4 and IPv6", ""},
		{"roce_version", "RoCE v1 and v2 addresses", ""},
		{"r_roce_dest_udp_port", "a figure: RoCE v2's port", ""},
		{"r_roce_max_src_udp_port", "a figure for the driver, which chooses a source port up to it", ""},
		{"r_roce_min_src_udp_port", "a figure for the driver, which chooses a source port from it on", ""},
		{"roce_address_table_size", "the table of RoCE addresses: badRoCEIndex, badSrcAddrIndex", ""},
	},
	capEth: {
		{"csum_cap", "checksums of IPv4, TCP and UDP are filled in and checked (ether.go)", ""},
		{"vlan_cap", "tags are taken off what an RQ receives, unless it keeps them", ""},
		{"wqe_vlan_insert", "tags are put into what an SQ sends", ""},
		{"self_lb_en_modifiable", "MODIFY_TIR", ""},
		{"max_lso_cap", "long TCP packets are segmented", ""},
		{"wqe_inline_mode", "requests without headers in them are taken", ""},
		{"rss_ind_tbl_cap", "CREATE_RQT", ""},
	},
	capAtomic: {
		{"atomic_req_8B_endianness_mode", "a demand on the driver", ""},
		{"atomic_operations", "compare and swap, fetch and add", ""},
		{"atomic_size_qp", "8 bytes", ""},
	},
	capFlowTable: {
		{"flow_table_properties_nic_*.ft_support", "CREATE_FLOW_TABLE, CREATE_FLOW_GROUP, SET_FLOW_TABLE_ENTRY", ""},
		{"flow_table_properties_nic_*.flow_counter", "SET_FLOW_TABLE_ENTRY, ALLOC_FLOW_COUNTER, QUERY_FLOW_COUNTER", ""},
		{"flow_table_properties_nic_*.flow_modify_en", "SET_FLOW_TABLE_ENTRY, op_mod 1", ""},
		{"flow_table_properties_nic_*.modify_root", "SET_FLOW_TABLE_ROOT", ""},
		{"flow_table_properties_nic_*.identified_miss_table_mode", "table_miss_action", ""},
		{"flow_table_properties_nic_*.flow_table_modify", "MODIFY_FLOW_TABLE", ""},
		{"flow_table_properties_nic_*.ignore_flow_level", "SET_FLOW_TABLE_ENTRY: badFlowLevel", ""},
		{"flow_table_properties_nic_*.log_max_ft_size", "CREATE_FLOW_TABLE: badTableSize", ""},
		{"flow_table_properties_nic_*.max_ft_level", "CREATE_FLOW_TABLE: badTableSize", ""},
		{"flow_table_properties_nic_*.log_max_ft_num", "the table of flow tables", ""},
		{"flow_table_properties_nic_*.log_max_flow_counter", "SET_FLOW_TABLE_ENTRY: badFlowAction", ""},
		{"flow_table_properties_nic_*.log_max_destination", "SET_FLOW_TABLE_ENTRY: badFlowAction", ""},
		{"flow_table_properties_nic_*.log_max_flow", "the table of flow groups; flow entries", ""},
		{"flow_table_properties_nic_*.ft_field_support.outer_*", "frames are matched (match.go)", ""},
		{"flow_table_properties_nic_*.ft_field_bitmask_support.outer_*", "frames are matched (match.go)", ""},
	},
	capQoS: {
		{"flow_meter_reg_id", "a figure, assumed: the metadata registers that flow meters would colour", "flow meters: flow_meter_old and all else of the page is 0. rdma-core's test asks for a register before it asks for meters"},
	},
}

// setFields returns the fields of a page that are not zero, in the order of
// their places, and their values. Nested structs of the flow tables' page are
// spelled out, for both directions together; what may be matched counts as one
// field.
func setFields(t capType, page []byte) (names []string, values map[string]uint64, set int) {
	values = map[string]uint64{}
	add := func(layout, prefix string, b []byte) {
		for _, f := range mlx5.LayoutOf(layout).Fields {
			v, plain := f.Bits(b)
			if !plain || v == 0 {
				continue
			}
			name := prefix + f.Name
			if layout == "flow_table_fields_supported" && strings.HasPrefix(f.Name, "outer_") {
				name = prefix + "outer_*"
			}
			if _, seen := values[name]; !seen {
				names = append(names, name)
			}
			values[name] += v
			set += bits.OnesCount64(v)
		}
	}
	switch t {
	case capFlowTable:
		p := mlx5.FlowTableNICCap(page)
		rx, tx := p.FlowTablePropertiesNICReceive(), p.FlowTablePropertiesNICTransmit()
		if !bytes.Equal(rx, tx) {
			names = append(names, "the two directions differ")
		}
		const both = "flow_table_properties_nic_*."
		add("flow_table_prop_layout", both, rx)
		add("flow_table_fields_supported", both+"ft_field_support.", rx.FtFieldSupport())
		add("flow_table_fields_supported", both+"ft_field_bitmask_support.", rx.FtFieldBitmaskSupport())
		set += onesIn(tx)
	default:
		add(capLayouts[t], "", page)
	}
	return names, values, set
}

type capType = mlx5.CapType

var capLayouts = map[capType]string{mlx5.CapGeneral: "cmd_hca_cap", mlx5.CapRoCE: "roce_cap", capEth: "per_protocol_networking_offload_caps",
	capAtomic: "atomic_caps", capFlowTable: "flow_table_nic_cap", capDevMem: "device_mem_cap", capQoS: "qos_cap"}

func onesIn(b []byte) (n int) {
	for _, x := range b {
		n += bits.OnesCount8(x)
	}
	return n
}

const capabilitiesDoc = `# What the emulated device advertises

Generated from the table in emu/fw/capabilities_test.go, which has an entry for each bit that the device sets in an
answer to QUERY_HCA_CAP; a test fails for a bit without one. To regenerate: ` + "`go test ./emu/fw -run TestAdvertised -update`" + `.

A device advertises what it implements and nothing else. Where the driver demands a bit and the device has only a part
of what it stands for, the last column says what is missing.

Not advertised, although the reference card has it, is on-demand paging (pg, and the page of ODP capabilities): it takes
page-fault events, requests that wait for them on both sides, and keys whose pages the driver changes under traffic, which
it does only if it makes all of its keys by UMR (umr_modify_entity_size_disabled 0, 2900 keys at probe). A program that asks
for such memory is told EOPNOTSUPP by Linux from 6.2 on and EINVAL by earlier ones (ib_check_mr_access). rdma-core 44's
DCTest.test_odp_dc_traffic asks before it looks at the capability, and takes only EOPNOTSUPP for an answer: it fails on 6.1
and is skipped on 6.12 (conformance.md).
`

// Each bit that the device advertises stands in the table, and the table has no
// other.
func TestAdvertised(t *testing.T) {
	const file = "../../docs/capabilities.md"
	pages := newHost(t, Config{}).h.driver.pages
	want := capabilitiesDoc
	for ct := range capType(64) {
		p := pages[ct]
		if p == nil {
			continue
		}
		if p.layout != capLayouts[ct] {
			t.Fatalf("page %d is of %s: this test does not know it", ct, p.layout)
		}
		names, values, set := setFields(ct, p.max)
		if all := onesIn(p.max); all != set {
			t.Errorf("%s: %d bits are set, %d of them in fields that have a name", p.layout, all, set)
		}
		if set == 0 {
			want += fmt.Sprintf("\n## %s\n\nThe page is there, and says that the device has nothing of it.\n", p.layout)
			continue
		}
		want += fmt.Sprintf("\n## %s\n\n| field | value | implemented by | missing |\n|---|---|---|---|\n", p.layout)
		for _, n := range names {
			i := slices.IndexFunc(capabilities[ct], func(c capability) bool { return c.field == n })
			if i < 0 {
				t.Errorf("%s: %s is %#x: what implements it? (capabilities_test.go)", p.layout, n, values[n])
				continue
			}
			c := capabilities[ct][i]
			if c.by == "" && c.lacks == "" {
				t.Errorf("%s: %s: the table says nothing", p.layout, n)
			}
			want += fmt.Sprintf("| %s | %d | %s | %s |\n", n, values[n], c.by, c.lacks)
		}
		for _, c := range capabilities[ct] {
			if !slices.Contains(names, c.field) {
				t.Errorf("%s: the table has %s, which the device does not advertise", p.layout, c.field)
			}
		}
	}
	for ct := range capabilities {
		if pages[ct] == nil {
			t.Errorf("the table has page %d, which the device does not have", ct)
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s differs from the table (%v): go test ./emu/fw -run TestAdvertised -update", file, err)
	}
}
