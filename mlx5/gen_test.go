// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"errors"
	"os"
	"testing"

	"devxlab.example/internal/headergen"
	"devxlab.example/internal/require"
)

// The generated files are what the generator makes of the installed headers.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	overlay, err := os.ReadFile("overlay.txt")
	if err != nil {
		t.Fatal(err)
	}
	files, err := headergen.MLX5(string(overlay))
	if errors.Is(err, headergen.ErrNoHeaders) {
		require.Have(t, "headers", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 {
		t.Fatalf("the generator made %d files", len(files))
	}
	if err := headergen.Compare(".", files); err != nil {
		t.Error(err)
	}
}
