// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// Each transition has an outcome, also where some fail.
func TestQPBatch(t *testing.T) {
	var out, errOut bytes.Buffer
	if code := run(strings.Fields("qp batch emu: --qps 10 --rounds 3 --group 8"), nil, &out, &errOut); code != exitOK ||
		!strings.HasPrefix(out.String(), "120 transitions of 10 queue pairs of emu: in 3 rounds: 120 done, 0 failed, 0 not sent, 0 unknown; in ") {
		t.Errorf("exit code %d: %s%s", code, out.String(), errOut.String())
	}
	out.Reset()
	var r batchReport
	if code := run(strings.Fields("-o json qp batch emu: --qps 3"), nil, &out, &errOut); code != exitOK {
		t.Fatalf("exit code %d: %s", code, errOut.String())
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Added != 12 || r.Outcomes["done"] != 12 || r.Rounds != 1 || r.Error != "" {
		t.Errorf("%+v, %v", r, err)
	}
	for args, code := range map[string]int{
		"qp batch emu: --qps 0":             exitUsage,
		"qp batch emu: --rounds 0":          exitUsage,
		"qp batch emu: --group 65":          exitUsage,
		"qp batch emu:nonsense":             exitUsage,
		"qp batch emu:log_max_qp=3 --qps 9": exitRefused,
		"qp batch nosuch":                   exitNoDevice,
	} {
		out.Reset()
		errOut.Reset()
		if got := run(strings.Fields(args), nil, &out, &errOut); got != code {
			t.Errorf("%s: exit code %d, want %d: %s%s", args, got, code, out.String(), errOut.String())
		}
	}
}
