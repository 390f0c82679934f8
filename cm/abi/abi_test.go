// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"errors"
	"testing"

	"devxlab.example/internal/cstruct"
	"devxlab.example/internal/headergen"
	"devxlab.example/internal/require"
)

// The layouts are those that the installed headers give to the structs.
func TestStructs(t *testing.T) {
	text := cstruct.Headers(t, "rdma_user_cm.h", "ib_user_verbs.h")
	for name, v := range map[string]any{
		"cmd_hdr": Hdr{}, "create_id": CreateID{}, "create_id_resp": CreateIDResp{}, "destroy_id": DestroyID{}, "destroy_id_resp": DestroyIDResp{},
		"bind": Bind{}, "resolve_addr": ResolveAddr{}, "resolve_route": ResolveRoute{}, "query": Query{}, "query_addr_resp": QueryAddrResp{},
		"conn_param": ConnParam{}, "ud_param": UDParam{}, "ece": ECE{}, "connect": Connect{}, "listen": Listen{}, "accept": Accept{},
		"reject": Reject{}, "disconnect": Disconnect{}, "init_qp_attr": InitQPAttr{}, "get_event": GetEvent{}, "event_resp": EventResp{},
		"set_option": SetOption{},
	} {
		cstruct.Check(t, text, "rdma_ucm_"+name, v)
	}
}

// The generated file is what the generator makes of the installed headers.
func TestGeneratedFileIsCurrent(t *testing.T) {
	files, err := headergen.UCM()
	if errors.Is(err, headergen.ErrNoHeaders) {
		require.Have(t, "headers", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := headergen.Compare(".", files); err != nil {
		t.Error(err)
	}
}
