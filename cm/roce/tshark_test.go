// SPDX-License-Identifier: BSD-2-Clause

package roce_test

import (
	"os"
	"path/filepath"
	"testing"

	"devxlab.example/internal/labcapture"
	"devxlab.example/internal/wireshark"
)

// tshark agrees about every field of every packet.
func TestTshark(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mixed.pcapng")
	if err := os.WriteFile(file, labcapture.Mixed(t), 0o600); err != nil {
		t.Fatal(err)
	}
	r := wireshark.Compare(t, file)
	if r.Values < 10*r.RoCE || r.RoCE == 0 {
		t.Errorf("%d values compared in %d packets", r.Values, r.RoCE)
	}
	t.Logf("%d values of %d packets; none has %q", r.Values, r.RoCE, r.Missing())
}
