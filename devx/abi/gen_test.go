// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"devxlab.example/internal/headergen"
	"devxlab.example/internal/require"
)

// The generated file is what the generator makes of the installed headers.
func TestGeneratedFileIsCurrent(t *testing.T) {
	files, err := headergen.ABI()
	if errors.Is(err, headergen.ErrNoHeaders) {
		require.Have(t, "headers", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 1 {
		t.Fatalf("the generator made %d files", len(files))
	}
	for name, want := range files {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s differs from what the installed headers give: run go generate ./devx/abi and look at the difference", name)
		}
	}
}
