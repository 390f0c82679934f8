// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// A queue pair whose send queue had an error is brought back by ibv_modify_qp:
// the driver of the kernel and rdma-core send SQERR2RTS, and it sends again.
func TestLabSQERR2RTS(t *testing.T) {
	o := realLabOf(t, "lab-full", ImageFull)
	script, err := filepath.Abs("testdata/sqerr2rts.py")
	if err != nil {
		t.Fatal(err)
	}
	var out, wrong bytes.Buffer
	o.Devices, o.HCA, o.Stdout, o.Stderr = 1, []string{o.Devxlab, "emu"}, &out, &wrong
	o.Put = append(o.Put, Copy{From: script, To: "/srv/sqerr2rts.py"})
	o.Args = []string{"python3", "/srv/sqerr2rts.py"}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, wrong.String())
	}
	if got := strings.Fields(out.String()); r.Status != 0 || strings.Join(got, " ") != "flushed SQE RTS sent" {
		t.Errorf("exit status %d, %q\n%s", r.Status, got, wrong.String())
	}
}
