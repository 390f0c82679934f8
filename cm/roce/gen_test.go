// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"devxlab.example/internal/cheader"
	"devxlab.example/internal/headergen"
	"devxlab.example/internal/require"
)

// The generated file is what the generator makes of the installed headers.
func TestGeneratedFileIsCurrent(t *testing.T) {
	files, err := headergen.CM()
	if errors.Is(err, headergen.ErrNoHeaders) {
		require.Have(t, "headers", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 1 {
		t.Fatalf("the generator made %d files", len(files))
	}
	if err := headergen.Compare(".", files); err != nil {
		t.Error(err)
	}
}

// Reasons, attributes and port spaces are those of the kernel's headers.
func TestNumbersAreTheKernels(t *testing.T) {
	dir, err := headergen.KernelHeaders()
	if err != nil {
		require.Have(t, "headers", err)
	}
	var texts []string
	for _, f := range []string{"rdma/ib_cm.h", "uapi/rdma/rdma_user_cm.h"} {
		b, err := os.ReadFile(filepath.Join(dir, "../..", f))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(b))
	}
	h, err := cheader.Parse(texts...)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint64{
		"IB_CM_REJ_NO_QP": uint64(RejectNoQP), "IB_CM_REJ_NO_RESOURCES": uint64(RejectNoResources), "IB_CM_REJ_TIMEOUT": uint64(RejectTimeout),
		"IB_CM_REJ_UNSUPPORTED": uint64(RejectUnsupported), "IB_CM_REJ_INVALID_COMM_ID": uint64(RejectInvalidCommID),
		"IB_CM_REJ_INVALID_SERVICE_ID": uint64(RejectInvalidServiceID), "IB_CM_REJ_INVALID_TRANSPORT_TYPE": uint64(RejectInvalidTransport),
		"IB_CM_REJ_STALE_CONN": uint64(RejectStaleConnection), "IB_CM_REJ_INVALID_GID": uint64(RejectInvalidGID),
		"IB_CM_REJ_INVALID_MTU": uint64(RejectInvalidMTU), "IB_CM_REJ_CONSUMER_DEFINED": uint64(RejectConsumerDefined),
		"RDMA_PS_IPOIB": uint64(PortSpaceIPoIB), "RDMA_PS_TCP": uint64(PortSpaceTCP), "RDMA_PS_UDP": uint64(PortSpaceUDP), "RDMA_PS_IB": uint64(PortSpaceIB),
	} {
		if v, ok := h.Value(name); !ok || uint64(v) != want {
			t.Errorf("%s is %d (%v), not %d", name, v, ok, want)
		}
	}
	names := 0
	enum := regexp.MustCompile(`(?s)enum ib_cm_rej_reason \{.*?\};`).FindString(texts[0])
	for _, m := range regexp.MustCompile(`(IB_CM_REJ_\w+)\s*=\s*(\d+)`).FindAllStringSubmatch(enum, -1) {
		names++
		if n, _ := strconv.Atoi(m[2]); rejectWords[RejectReason(n)] == "" {
			t.Errorf("no words for %s, %d", m[1], n)
		}
	}
	if names != len(rejectWords) {
		t.Errorf("%d reasons in the header, words for %d", names, len(rejectWords))
	}
}
