// SPDX-License-Identifier: BSD-2-Clause

package headergen

import (
	"bytes"
	"fmt"
	"go/format"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"devxlab.example/internal/cheader"
)

// structs lists the structs of mlx5_ifc.h that package mlx5 has views of.
const structs = `
	general_obj_in_cmd_hdr general_obj_out_cmd_hdr
	ads qpc cqc mkc umem uctx roce_addr_layout roce_cap cmd_hca_cap query_adapter_param_block
	query_hca_cap_in query_hca_cap_out query_adapter_in query_adapter_out
	query_roce_address_in query_roce_address_out set_roce_address_in set_roce_address_out
	query_issi_in query_issi_out nop_in nop_out
	alloc_pd_in alloc_pd_out dealloc_pd_in dealloc_pd_out
	alloc_uar_in alloc_uar_out dealloc_uar_in dealloc_uar_out
	create_uctx_in create_uctx_out destroy_uctx_in destroy_uctx_out
	create_umem_in create_umem_out destroy_umem_in destroy_umem_out
	create_mkey_in create_mkey_out query_mkey_in query_mkey_out destroy_mkey_in destroy_mkey_out
	create_cq_in create_cq_out query_cq_in query_cq_out modify_cq_in modify_cq_out destroy_cq_in destroy_cq_out
	create_eq_in create_eq_out destroy_eq_in destroy_eq_out eqc
	create_qp_in create_qp_out query_qp_in query_qp_out destroy_qp_in destroy_qp_out
	rst2init_qp_in rst2init_qp_out init2init_qp_in init2init_qp_out init2rtr_qp_in init2rtr_qp_out
	rtr2rts_qp_in rtr2rts_qp_out rts2rts_qp_in rts2rts_qp_out sqerr2rts_qp_in sqerr2rts_qp_out
	qp_2err_in qp_2err_out qp_2rst_in qp_2rst_out
	alloc_q_counter_in alloc_q_counter_out dealloc_q_counter_in dealloc_q_counter_out
	query_q_counter_in query_q_counter_out
	enable_hca_in enable_hca_out disable_hca_in disable_hca_out init_hca_in init_hca_out teardown_hca_in teardown_hca_out
	query_pages_in query_pages_out manage_pages_in manage_pages_out set_issi_in set_issi_out set_hca_cap_in set_hca_cap_out
	access_register_in access_register_out ptys_reg pmtu_reg paos_reg dtor_reg default_timeout mad_ifc_in mad_ifc_out
	atomic_caps per_protocol_networking_offload_caps flow_table_nic_cap flow_table_prop_layout flow_table_fields_supported
	query_special_contexts_in query_special_contexts_out query_eq_in query_eq_out
	nic_vport_context query_nic_vport_context_in query_nic_vport_context_out
	modify_nic_vport_field_select modify_nic_vport_context_in modify_nic_vport_context_out
	query_vport_state_in query_vport_state_out modify_vport_state_in modify_vport_state_out
	query_hca_vport_pkey_in query_hca_vport_pkey_out query_vport_counter_in query_vport_counter_out
	alloc_xrcd_in alloc_xrcd_out dealloc_xrcd_in dealloc_xrcd_out
	alloc_transport_domain_in alloc_transport_domain_out dealloc_transport_domain_in dealloc_transport_domain_out
	wq rmpc rmp_bitmask create_rmp_in create_rmp_out query_rmp_in query_rmp_out modify_rmp_in modify_rmp_out destroy_rmp_in destroy_rmp_out
	xrc_srqc create_xrc_srq_in create_xrc_srq_out query_xrc_srq_in query_xrc_srq_out arm_xrc_srq_in arm_xrc_srq_out
	destroy_xrc_srq_in destroy_xrc_srq_out
	rqc create_rq_in create_rq_out query_rq_in query_rq_out modify_rq_in modify_rq_out destroy_rq_in destroy_rq_out
	sqc create_sq_in create_sq_out query_sq_in query_sq_out modify_sq_in modify_sq_out destroy_sq_in destroy_sq_out
	tisc create_tis_in create_tis_out query_tis_in query_tis_out modify_tis_in modify_tis_out destroy_tis_in destroy_tis_out
	tirc create_tir_in create_tir_out query_tir_in query_tir_out modify_tir_bitmask modify_tir_in modify_tir_out
	destroy_tir_in destroy_tir_out
	rqtc rqt_bitmask create_rqt_in create_rqt_out query_rqt_in query_rqt_out modify_rqt_in modify_rqt_out
	destroy_rqt_in destroy_rqt_out
	flow_table_context create_flow_table_in create_flow_table_out modify_flow_table_in modify_flow_table_out
	destroy_flow_table_in destroy_flow_table_out set_flow_table_root_in set_flow_table_root_out
	create_flow_group_in create_flow_group_out destroy_flow_group_in destroy_flow_group_out
	flow_context dest_format_struct set_fte_in set_fte_out delete_fte_in delete_fte_out
	flow_counter_list alloc_flow_counter_in alloc_flow_counter_out dealloc_flow_counter_in dealloc_flow_counter_out
	query_flow_counter_in query_flow_counter_out
	attach_to_mcg_in attach_to_mcg_out detach_from_mcg_in detach_from_mcg_out
	mcam_reg pcam_reg mcqs_reg mcqi_reg mcqi_version query_cong_statistics_in query_cong_statistics_out
	device_mem_cap qos_cap`

// capAccessors are the fields of cmd_hca_cap that get accessors; the layout
// table has all of them.
const capAccessors = `
	log_max_qp log_max_qp_sz log_max_cq log_max_cq_sz log_max_pd log_max_mkey log_max_uctx log_max_umem
	log_max_msg max_wqe_sz_sq max_wqe_sz_rq log_max_ra_req_qp log_max_ra_res_qp log_uar_page_sz
	log_max_ra_req_dc port_type num_ports roce roce_rw_supported rc uc xrc cqe_version log_max_eq
	max_qp_cnt max_qp_mcg uar_4k umem_uid_0 umr_modify_entity_size_disabled
	local_ca_ack_delay device_frequency_khz atomic ts_cqe_to_dest_cqn event_cap bf log_bf_reg_size
	uctx_cap log_max_srq log_max_srq_sz log_max_xrcd log_max_rmp eth_net_offloads vhca_id
	log_max_klm_list_size umr_ptr_rlky cqe_compression max_num_eqs num_lag_ports log_max_transport_domain
	vport_counters ets nic_flow_table general_obj_types pkey_table_size gid_table_size native_port_num sq_ts_format rq_ts_format
	log_max_eq_sz log_max_mcg log_max_bsf_list_size log_max_ra_res_dc cmdif_checksum cq_moderation cq_resize block_lb_mc
	compact_address_vector umr_modify_atomic_disabled uar_sz log_pg_sz log_max_tis log_max_tir log_max_sq log_max_rq
	log_max_rqt log_max_rqt_size log_max_tis_per_sq log_max_vlan_list log_max_current_uc_list log_max_current_mc_list
	cache_line_128byte disable_local_lb_uc disable_local_lb_mc max_wqe_sz_sq_dc fast_teardown force_teardown
	mcam_reg pcam_reg out_of_seq_cnt retransmission_q_counters enhanced_error_q_counters roce_accl cc_query_allowed
	log_max_wq_sz max_flow_counter_15_0 imaicl`

// MLX5 returns the generated files of package mlx5 by name. overlay is the
// text of its overlay file.
func MLX5(overlay string) (map[string][]byte, error) {
	dir, err := KernelHeaders()
	if err != nil {
		return nil, err
	}
	texts, err := read(dir, "mlx5_ifc_fpga.h", "mlx5_ifc.h", "device.h", "qp.h")
	if err != nil {
		return nil, err
	}
	h, err := cheader.Parse(texts...)
	if err != nil {
		return nil, err
	}
	lay, err := layouts(h, overlay)
	if err != nil {
		return nil, err
	}
	files := map[string]string{"enum_gen.go": enums(h), "layout_gen.go": lay}
	return formatted(files)
}

func formatted(files map[string]string) (map[string][]byte, error) {
	out := map[string][]byte{}
	for name, src := range files {
		b, err := format.Source([]byte(src))
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", name, err, src)
		}
		out[name] = b
	}
	return out, nil
}

const head = "// Code generated by internal/headergen from the kernel headers of Linux " + Series + "; DO NOT EDIT.\n\n// SPDX-License-Identifier: BSD-2-Clause\n\n"

// transition matches the opcodes of QP transitions, which the field writes
// without their _QP.
var transition = regexp.MustCompile(`^(\w*2\w+|SQD_RTS)_QP$`)

// enumSpec says which constants become a Go type.
type enumSpec struct {
	prefix, typ, base, goPrefix, doc string
	skip                             string // constants to leave out
	trimSuffix                       string
}

func enums(h *cheader.Header) string {
	var b bytes.Buffer
	b.WriteString(head + "package mlx5\n\nimport \"strconv\"\n")
	for _, e := range []enumSpec{
		{prefix: "MLX5_CMD_OP_", typ: "Op", base: "uint16", goPrefix: "Op", skip: "MAX GENERAL_START GENERAL_END",
			doc: "Op is a firmware command's opcode (enum of MLX5_CMD_OP_* in linux/mlx5/mlx5_ifc.h)."},
		{prefix: "MLX5_CMD_STAT_", typ: "Status", base: "uint8", goPrefix: "Status", trimSuffix: "_ERR",
			doc: "Status is the first byte of a command's output (MLX5_CMD_STAT_* in linux/mlx5/device.h)."},
		{prefix: "MLX5_EVENT_TYPE_", typ: "EventType", base: "uint16", goPrefix: "Event", skip: "MAX NOTIFY_ANY",
			doc: "EventType is the type byte of an event queue entry (enum mlx5_event in linux/mlx5/device.h)."},
		{prefix: "MLX5_QP_OPTPAR_", typ: "OptPar", base: "uint32", goPrefix: "OptPar",
			doc: "OptPar is a set of bits of opt_param_mask (enum mlx5_qp_optpar in linux/mlx5/qp.h)."},
		{prefix: "MLX5_QP_ST_", typ: "ServiceType", base: "uint8", goPrefix: "ST", skip: "MAX",
			doc: "ServiceType is the st field of a QP context (MLX5_QP_ST_* in linux/mlx5/qp.h)."},
		{prefix: "MLX5_QP_STATE_", typ: "State", base: "uint8", goPrefix: "State", skip: "BAD",
			doc: "State is the state field of a QP context (enum mlx5_qp_state in linux/mlx5/qp.h)."},
	} {
		skip := map[string]bool{}
		for _, s := range strings.Fields(e.skip) {
			skip[s] = true
		}
		type c struct {
			goName, name string
			value        uint64
		}
		var cs []c
		seen := map[uint64]bool{}
		for _, k := range h.Consts {
			name, ok := strings.CutPrefix(k.Name, e.prefix)
			if !ok || skip[name] {
				continue
			}
			name = strings.TrimSuffix(name, e.trimSuffix)
			goName := camel(name)
			if e.typ == "Op" && transition.MatchString(name) {
				goName = camel(strings.TrimSuffix(name, "_QP"))
			}
			cs = append(cs, c{e.goPrefix + goName, name, k.Value})
		}
		fmt.Fprintf(&b, "\n// %s\ntype %s %s\n\n// Values of %s.\nconst (\n", e.doc, e.typ, e.base, e.typ)
		for _, k := range cs {
			fmt.Fprintf(&b, "%s %s = %#x\n", k.goName, e.typ, k.value)
		}
		fmt.Fprintf(&b, ")\n\n")
		if e.typ == "OptPar" {
			fmt.Fprintf(&b, "// optParNames has the name of each bit.\nvar optParNames = [...]struct{\nbit OptPar\nname string\n}{\n")
			for _, k := range cs {
				fmt.Fprintf(&b, "{%#x, %q},\n", k.value, k.name)
			}
			b.WriteString("}\n")
			continue
		}
		fmt.Fprintf(&b, "// String returns the name as the kernel spells it, without its prefix.\nfunc (v %s) String() string {\nswitch v {\n", e.typ)
		for _, k := range cs {
			if !seen[k.value] {
				fmt.Fprintf(&b, "case %#x:\nreturn %q\n", k.value, k.name)
			}
			seen[k.value] = true
		}
		fmt.Fprintf(&b, "}\nreturn \"%s(0x\" + strconv.FormatUint(uint64(v), 16) + \")\"\n}\n", e.typ)
		if e.typ == "Op" {
			b.WriteString("\n// ops lists every opcode of the header, in its order.\nvar ops = [...]Op{\n")
			for _, k := range cs {
				fmt.Fprintf(&b, "%s,\n", k.goName)
			}
			b.WriteString("}\n")
		}
	}
	return b.String()
}

// overlayField is a field that the kernel's header lacks.
type overlayField struct {
	strct string
	cheader.Field
	source string
}

func parseOverlay(text string) ([]overlayField, error) {
	var out []overlayField
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		w := strings.Fields(line)
		if len(w) == 0 {
			continue
		}
		if len(w) < 5 {
			return nil, fmt.Errorf("overlay line %d: want: struct field offset width source…", i+1)
		}
		off, err1 := strconv.ParseInt(w[2], 0, 32)
		width, err2 := strconv.ParseInt(w[3], 0, 32)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("overlay line %d: bad offset or width", i+1)
		}
		out = append(out, overlayField{w[0], cheader.Field{Name: w[1], Offset: int(off), Width: int(width), Count: 1}, strings.Join(w[4:], " ")})
	}
	return out, nil
}

// merge adds an overlay field to a struct, or checks it against the header
// where a newer header already has it.
func merge(s *cheader.Struct, o overlayField) error {
	if f, ok := s.Field(o.Name); ok {
		if f.Offset != o.Offset || f.Width != o.Width {
			return fmt.Errorf("overlay %s.%s is at %#x+%#x, the header has it at %#x+%#x", o.strct, o.Name, o.Offset, o.Width, f.Offset, f.Width)
		}
		return nil
	}
	for _, f := range s.Fields {
		if !f.Reserved() && f.Count > 0 && o.Offset < f.Offset+f.Width*f.Count && f.Offset < o.Offset+o.Width {
			return fmt.Errorf("overlay %s.%s overlaps %s", o.strct, o.Name, f.Name)
		}
	}
	if o.Offset+o.Width > s.Bits {
		return fmt.Errorf("overlay %s.%s is outside the struct", o.strct, o.Name)
	}
	s.Fields = append(s.Fields, o.Field)
	sort.SliceStable(s.Fields, func(i, j int) bool { return s.Fields[i].Offset < s.Fields[j].Offset })
	return nil
}

func layouts(h *cheader.Header, overlay string) (string, error) {
	over, err := parseOverlay(overlay)
	if err != nil {
		return "", err
	}
	for _, o := range over {
		s, err := h.Struct(o.strct)
		if err != nil {
			return "", err
		}
		if err := merge(s, o); err != nil {
			return "", err
		}
	}
	accessor := map[string]bool{}
	for _, f := range strings.Fields(capAccessors) {
		accessor[f] = true
	}
	known := map[string]string{}
	for _, n := range strings.Fields(structs) {
		known[n] = viewName(n)
	}
	var b, tables bytes.Buffer
	b.WriteString(head + "package mlx5\n\nimport \"encoding/binary\"\n")
	tables.WriteString("\n// layouts has the table of each view.\nvar layouts = [...]Layout{\n")
	for _, n := range strings.Fields(structs) {
		s, err := h.Struct(n)
		if err != nil {
			return "", err
		}
		view := known[n]
		fmt.Fprintf(&b, "\n// %s is a view of struct mlx5_ifc_%s_bits.\ntype %s []byte\n\n", view, n, view)
		fmt.Fprintf(&b, "// %sSize is the size of a %s in bytes, without a trailing array.\nconst %sSize = %d\n\n", view, view, view, s.Bits/8)
		for _, f := range s.Fields {
			if f.Reserved() || n == "cmd_hca_cap" && !accessor[f.Name] {
				continue
			}
			if n == "cmd_hca_cap" {
				delete(accessor, f.Name)
			}
			if err := access(&b, view, f, known); err != nil {
				return "", fmt.Errorf("%s.%s: %w", n, f.Name, err)
			}
		}
		fmt.Fprintf(&tables, "{Name: %q, Bytes: %d, Fields: []LayoutField{\n", n, s.Bits/8)
		rows(&tables, "", 0, s)
		tables.WriteString("}},\n")
	}
	if len(accessor) > 0 {
		return "", fmt.Errorf("cmd_hca_cap has no such fields: %v", accessor)
	}
	tables.WriteString("}\n")
	b.Write(tables.Bytes())
	return b.String(), nil
}

// opaque are nested structs that the tables have as one row: each would be
// hundreds, and stands in several commands.
var opaque = map[string]bool{"fte_match_param": true, "flow_table_fields_supported": true, "flow_table_prop_layout": true, "traffic_counter": true}

// rows writes the layout of a struct with nested ones spelled out, since a
// dump is read field by field.
func rows(w *bytes.Buffer, prefix string, base int, s *cheader.Struct) {
	for _, f := range s.Fields {
		switch {
		case f.Reserved() || f.Count == 0:
		case f.Name == "capability": // a union: which member it is depends on op_mod
		case f.Type != nil && f.Count == 1 && !opaque[f.Type.Name]:
			rows(w, prefix+f.Name+".", base+f.Offset, f.Type)
		default:
			fmt.Fprintf(w, "{%q, %d, %d},\n", prefix+f.Name, base+f.Offset, f.Width*f.Count)
		}
	}
}

func viewName(n string) string {
	switch n {
	case "cmd_hca_cap":
		return "HCACap"
	case "umem":
		return "UmemContext"
	case "uctx":
		return "UCTXContext"
	case "general_obj_in_cmd_hdr":
		return "CmdIn"
	case "general_obj_out_cmd_hdr":
		return "CmdOut"
	}
	n = strings.Replace(n, "qp_2err", "2err_qp", 1)
	n = strings.Replace(n, "qp_2rst", "2rst_qp", 1)
	v := camel(n)
	if v[0] == '2' {
		v = "To" + strings.ToUpper(v[1:2]) + v[2:]
	}
	return v
}

func access(b *bytes.Buffer, view string, f cheader.Field, known map[string]string) error {
	name := camel(f.Name)
	at := f.Offset / 8
	if f.Count == 0 {
		if at*8 != f.Offset {
			return fmt.Errorf("trailing array at bit %#x", f.Offset)
		}
		fmt.Fprintf(b, "// %s returns the trailing array: %d-bit elements up to the end of v.\nfunc (v %s) %s() []byte { return v[%d:] }\n\n", name, f.Width, view, name, at)
		return nil
	}
	if f.Type != nil || f.Count > 1 {
		if f.Offset%8 != 0 || f.Width*f.Count%8 != 0 {
			return fmt.Errorf("array at bit %#x", f.Offset)
		}
		typ, n := "[]byte", f.Width*f.Count/8
		if f.Type != nil && f.Count == 1 && known[f.Type.Name] != "" {
			typ = known[f.Type.Name]
		}
		fmt.Fprintf(b, "// %s returns the %d bytes of %s, which alias v.\nfunc (v %s) %s() %s { return %s(v[%d:%d:%d]) }\n\n", name, n, f.Name, view, name, typ, typ, at, at+n, at+n)
		return nil
	}
	if f.Width > 64 {
		if f.Offset%8 != 0 || f.Width%8 != 0 {
			return fmt.Errorf("wide field at bit %#x", f.Offset)
		}
		fmt.Fprintf(b, "// %s returns the %d bytes of %s, which alias v.\nfunc (v %s) %s() []byte { return v[%d:%d:%d] }\n\n", name, f.Width/8, f.Name, view, name, at, at+f.Width/8, at+f.Width/8)
		return nil
	}
	typ, suffix := "uint64", "64"
	if f.Width <= 32 {
		typ, suffix = "uint32", "32"
	}
	if f.Width == 1 {
		typ = "bool"
	} else if f.Width <= 8 {
		typ = "uint8"
	} else if f.Width <= 16 {
		typ = "uint16"
	}
	if f.Width > 32 && (f.Offset%8 != 0 || f.Width != 64) {
		return fmt.Errorf("field of %d bits at bit %#x", f.Width, f.Offset)
	}
	drop := ""
	if typ != "bool" && f.Width != 8 && f.Width != 16 && f.Width != 32 && f.Width != 64 {
		drop = "; higher bits of x are dropped"
	}
	fmt.Fprintf(b, "// %s returns %s (%d bits at bit %#x).\n", name, f.Name, f.Width, f.Offset)
	set := func(body string) {
		fmt.Fprintf(b, "\n// Set%s sets %s%s.\nfunc (v %s) Set%s(x %s) { %s }\n\n", name, f.Name, drop, view, name, typ, body)
	}
	switch {
	case f.Width == 8 && f.Offset%8 == 0:
		fmt.Fprintf(b, "func (v %s) %s() %s { return v[%d] }\n", view, name, typ, at)
		set(fmt.Sprintf("v[%d] = x", at))
	case (f.Width == 16 || f.Width == 32 || f.Width == 64) && f.Offset%8 == 0:
		fmt.Fprintf(b, "func (v %s) %s() %s { return binary.BigEndian.Uint%d(v[%d:]) }\n", view, name, typ, f.Width, at)
		set(fmt.Sprintf("binary.BigEndian.PutUint%d(v[%d:], x)", f.Width, at))
	case f.Width == 1:
		mask := 1 << (7 - f.Offset%8)
		fmt.Fprintf(b, "func (v %s) %s() bool { return v[%d]&%#x != 0 }\n", view, name, at, mask)
		set(fmt.Sprintf("v[%d] = bit(v[%d], %#x, x)", at, at, mask))
	case f.Offset/8 == (f.Offset+f.Width-1)/8: // within one byte
		shift := 7 - (f.Offset+f.Width-1)%8
		mask := 1<<f.Width - 1
		fmt.Fprintf(b, "func (v %s) %s() %s { return v[%d]>>%d&%#x }\n", view, name, typ, at, shift, mask)
		set(fmt.Sprintf("v[%d] = v[%d]&^(%#x<<%d) | x&%#x<<%d", at, at, mask, shift, mask, shift))
	case f.Offset/32 == (f.Offset+f.Width-1)/32: // within one dword
		dw := f.Offset / 32 * 4
		shift := 31 - (f.Offset+f.Width-1)%32
		fmt.Fprintf(b, "func (v %s) %s() %s { return %s(get%s(v[%d:], %d, %d)) }\n", view, name, typ, typ, suffix, dw, shift, f.Width)
		set(fmt.Sprintf("put%s(v[%d:], %d, %d, uint32(x))", suffix, dw, shift, f.Width))
	default:
		return fmt.Errorf("field of %d bits at bit %#x crosses a dword", f.Width, f.Offset)
	}
	return nil
}
