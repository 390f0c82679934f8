// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"devxlab.example/internal/leaktest"
)

var update = flag.Bool("update", false, "write the golden files")

// TestMain fails the run if a test leaves a device, a batch or another
// GOMAXPROCS behind.
func TestMain(m *testing.M) {
	procs := runtime.GOMAXPROCS(0)
	leaktest.Main(m, func() (left []string) {
		if n := runtime.GOMAXPROCS(0); n != procs {
			left = append(left, fmt.Sprintf("GOMAXPROCS %d, not %d", n, procs))
		}
		return left
	})
}

// golden compares got with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s (go test -update writes it): got\n%s\nwant\n%s", file, got, want)
	}
}

// cancelAt returns a context, and a step that ends it as soon as a label has
// all of words in it.
func cancelAt(t *testing.T, words ...string) (context.Context, func(string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	seen := false
	t.Cleanup(func() {
		if !seen {
			t.Errorf("no step %q came", words)
		}
	})
	return ctx, func(label string) {
		for _, w := range words {
			if !strings.Contains(label, w) {
				return
			}
		}
		seen = true
		cancel()
	}
}

// repeat returns n samples of v.
func repeat(v float64, n int) []float64 {
	s := make([]float64, n)
	for i := range s {
		s[i] = v
	}
	return s
}
