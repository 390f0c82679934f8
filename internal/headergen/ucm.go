// SPDX-License-Identifier: BSD-2-Clause

package headergen

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"devxlab.example/internal/cheader"
)

const (
	ucmHeader   = "rdma_user_cm.h" // of package linux-libc-dev
	eventHeader = "rdma_cm.h"      // of the kernel: which events there are
	eventEnum   = "rdma_cm_event_type"
)

// UCM returns the generated file of package cm/abi by name.
func UCM() (map[string][]byte, error) {
	user, err := UAPIHeaders()
	if err != nil {
		return nil, err
	}
	kernel, err := KernelHeaders()
	if err != nil {
		return nil, err
	}
	texts, err := read(user, ucmHeader)
	if err != nil {
		return nil, err
	}
	events, err := read(filepath.Join(kernel, "../../rdma"), eventHeader)
	if err != nil {
		return nil, err
	}
	enum := regexp.MustCompile(`(?s)enum ` + eventEnum + ` \{.*?\};`).FindString(events[0])
	h, err := cheader.Parse(append(texts, enum)...)
	if err != nil {
		return nil, err
	}
	names := regexp.MustCompile(`(?m)^\s*(RDMA_(?:USER_CM|PS|OPTION|CM_EVENT|MAX_PRIVATE)_\w+)\s*[,=\n]|^#define\s+(RDMA_(?:USER_CM_ABI|MAX)_\w+)`)
	var b strings.Builder
	fmt.Fprintf(&b, "%spackage abi\n\n// Constants of %s (package linux-libc-dev), and enum %s of the kernel's\n// rdma/%s.\nconst (\n", head, ucmHeader, eventEnum, eventHeader)
	for _, m := range names.FindAllStringSubmatch(texts[0]+"\n"+enum, -1) {
		name := m[1] + m[2]
		v, ok := h.Value(name)
		if !ok {
			return nil, fmt.Errorf("no value of %s", name)
		}
		fmt.Fprintf(&b, "%s = %#x\n", name, v)
	}
	b.WriteString(")\n")
	return formatted(map[string]string{"uapi_gen.go": b.String()})
}
