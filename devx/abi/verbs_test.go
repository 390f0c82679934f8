// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"reflect"
	"testing"

	"devxlab.example/internal/cstruct"
)

// The layouts are those that the installed headers give to the structs.
func TestVerbsStructs(t *testing.T) {
	text := cstruct.Headers(t, "ib_user_verbs.h", "mlx5-abi.h")
	for name, v := range map[string]any{
		"ib_uverbs_cmd_hdr": CmdHdr{}, "ib_uverbs_ex_cmd_hdr": ExCmdHdr{},
		"ib_uverbs_alloc_pd": AllocPD{}, "ib_uverbs_alloc_pd_resp": AllocPDResp{}, "mlx5_ib_alloc_pd_resp": MLX5AllocPDResp{},
		"ib_uverbs_dealloc_pd": DeallocPD{},
		"ib_uverbs_reg_mr":     RegMR{}, "ib_uverbs_reg_mr_resp": RegMRResp{}, "ib_uverbs_dereg_mr": DeregMR{},
		"ib_uverbs_create_cq": CreateCQ{}, "ib_uverbs_create_cq_resp": CreateCQResp{},
		"mlx5_ib_create_cq": MLX5CreateCQ{}, "mlx5_ib_create_cq_resp": MLX5CreateCQResp{},
		"ib_uverbs_destroy_cq": DestroyCQ{}, "ib_uverbs_destroy_cq_resp": DestroyCQResp{},
		"ib_uverbs_create_qp": CreateQP{}, "ib_uverbs_create_qp_resp": CreateQPResp{},
		"mlx5_ib_create_qp": MLX5CreateQP{}, "mlx5_ib_create_qp_resp": MLX5CreateQPResp{},
		"ib_uverbs_qp_dest": QPDest{}, "ib_uverbs_modify_qp": ModifyQP{},
		"ib_uverbs_ex_modify_qp": ExModifyQP{}, "ib_uverbs_ex_modify_qp_resp": ExModifyQPResp{},
		"ib_uverbs_query_qp": QueryQP{}, "ib_uverbs_query_qp_resp": QueryQPResp{},
		"ib_uverbs_global_route": GlobalRoute{}, "ib_uverbs_ah_attr": AHAttr{}, "ib_uverbs_qp_attr": QPAttr{},
		"ib_uverbs_destroy_qp": DestroyQP{}, "ib_uverbs_destroy_qp_resp": DestroyQPResp{},
	} {
		cstruct.Check(t, text, name, v)
	}
}

func TestWriteMethods(t *testing.T) {
	sizes := func(s ...any) (n int) {
		for _, v := range s {
			n += int(reflect.TypeOf(v).Size())
		}
		return n
	}
	want := map[string][4]int{
		"ALLOC_PD":     {sizes(AllocPD{}), sizes(AllocPDResp{}), 0, sizes(MLX5AllocPDResp{})},
		"DEALLOC_PD":   {sizes(DeallocPD{})},
		"REG_MR":       {sizes(RegMR{}), sizes(RegMRResp{})},
		"DEREG_MR":     {sizes(DeregMR{})},
		"CREATE_CQ":    {sizes(CreateCQ{}), sizes(CreateCQResp{}), sizes(MLX5CreateCQ{}), sizes(MLX5CreateCQResp{})},
		"DESTROY_CQ":   {sizes(DestroyCQ{}), sizes(DestroyCQResp{})},
		"CREATE_QP":    {sizes(CreateQP{}), sizes(CreateQPResp{}), sizes(MLX5CreateQP{}), sizes(MLX5CreateQPResp{})},
		"QUERY_QP":     {sizes(QueryQP{}), sizes(QueryQPResp{})},
		"MODIFY_QP":    {sizes(ModifyQP{})},
		"DESTROY_QP":   {sizes(DestroyQP{}), sizes(DestroyQPResp{})},
		"EX_MODIFY_QP": {sizes(ExModifyQP{}), sizes(ExModifyQPResp{})},
	}
	if len(WriteMethods()) != len(want) {
		t.Errorf("%d commands, want %d", len(WriteMethods()), len(want))
	}
	for i, m := range WriteMethods() {
		if got := [4]int{m.Req, m.Resp, m.DriverReq, m.DriverResp}; got != want[m.Name] {
			t.Errorf("%s: sizes %v, want %v", m.Name, got, want[m.Name])
		}
		if LookupWrite(m.Cmd) != &WriteMethods()[i] {
			t.Errorf("LookupWrite does not find %s", m.Name)
		}
		header := CmdHdrSize
		if m.Name == "EX_MODIFY_QP" {
			header += ExCmdHdrSize
		}
		if m.HeaderLen() != header || m.Cmd.Extended() != (header != CmdHdrSize) {
			t.Errorf("%s: a header of %d bytes, want %d", m.Name, m.HeaderLen(), header)
		}
	}
	if CmdHdrSize != sizes(CmdHdr{}) || ExCmdHdrSize != sizes(ExCmdHdr{}) {
		t.Error("the headers have other sizes")
	}
	if LookupWrite(0xffff) != nil {
		t.Error("there is no command 0xffff")
	}
}
