// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import (
	"os"
	"strings"
	"testing"

	"devxlab.example/internal/testdev"
)

// README's excerpt is the package's example.
func TestREADMEExcerpt(t *testing.T) {
	testdev.Sources(t)
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	const from, to = "\tdue := ", "// the barrier: now it is real\n"
	_, excerpt, ok := strings.Cut(string(example), from)
	excerpt, _, ended := strings.Cut(excerpt, to)
	if !ok || !ended {
		t.Fatal("the example has changed: change this test")
	}
	if excerpt = from + excerpt + to; !strings.Contains(string(readme), excerpt) {
		t.Errorf("README.md does not have\n%s", excerpt)
	}
}
