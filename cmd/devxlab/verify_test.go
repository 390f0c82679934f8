// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestVerify(t *testing.T) {
	code, out, errOut := devxlab("", "verify", "emu:kernel=6.1", "--against", "emu:kernel=6.1,name=other")
	if code != exitOK || errOut != "" || !strings.HasSuffix(out, "questions: 0 answered differently by emu:kernel=6.1 and emu:kernel=6.1,name=other\n") {
		t.Errorf("%d, %q, %q", code, out, errOut)
	}
	if code, _, errOut := devxlab("", "verify", "emu:"); code == exitUsage || strings.Contains(errOut, "kernel=") {
		t.Errorf("against this machine's kernel: %d, %q", code, errOut)
	}
	code, out, errOut = devxlab("", "verify", "emu:kernel=6.1", "--against", "emu:kernel=5.10", "-o", "json")
	var r verifyReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitFailed || errOut != "devxlab: the devices differ\n" {
		t.Errorf("%d, %q, %v", code, errOut, err)
	}
	if len(r.Different) < 100 || r.Questions < 3000 || r.Against != "emu:kernel=5.10" {
		t.Errorf("%d of %d differ", len(r.Different), r.Questions)
	}
	if code, _, errOut := devxlab("", "verify", "mlx5_77"); code != exitNoDevice || !strings.Contains(errOut, "mlx5_77") {
		t.Errorf("%d, %q", code, errOut)
	}
}
