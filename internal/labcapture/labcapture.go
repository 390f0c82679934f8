// SPDX-License-Identifier: BSD-2-Clause

// Package labcapture has a capture of the lab for tests: ROUNDS=1 CONNECTIONS=5
// lab/testdata/guest/mixed.sh between two cards on a wire that marks, with all that
// RC, UC and UD queue pairs send over RoCEv1, IPv4 and IPv6, NAKs, CNPs, connections
// of rping, cmtime, ucmatose and udaddy over each, some of which are refused, and
// other traffic. For tests only.
package labcapture

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"io"
	"testing"
)

//go:embed mixed.pcapng.gz
var mixed []byte

// Mixed returns the file, in pcapng format.
func Mixed(t testing.TB) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(mixed))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
