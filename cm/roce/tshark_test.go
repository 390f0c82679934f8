// SPDX-License-Identifier: BSD-2-Clause

package roce_test

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"devxlab.example/internal/wireshark"
)

// tshark agrees about every field of every packet.
func TestTshark(t *testing.T) {
	f, err := os.Open("testdata/mixed.pcapng.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mixed.pcapng")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r := wireshark.Compare(t, file)
	if r.Values < 10*r.RoCE || r.RoCE == 0 {
		t.Errorf("%d values compared in %d packets", r.Values, r.RoCE)
	}
	t.Logf("%d values of %d packets; none has %q", r.Values, r.RoCE, r.Missing())
}
