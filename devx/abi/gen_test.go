// SPDX-License-Identifier: BSD-2-Clause

package abi

import (
	"errors"
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
	if err := headergen.Compare(".", files); err != nil {
		t.Error(err)
	}
}
