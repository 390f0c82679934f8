// SPDX-License-Identifier: BSD-2-Clause

package mutate

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestParse(t *testing.T) {
	got, err := parse("go test fuzz v1\n[]byte(\"a\\x00\\\"\")\nbool(true)\nbool(false)\n")
	if err != nil || !reflect.DeepEqual(got, []any{[]byte("a\x00\""), true, false}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "go test fuzz v2\n", "go test fuzz v1\nint(3)", "go test fuzz v1\n[]byte(3)"} {
		if got, err := parse(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

// The same seed makes the same inputs, and they differ from each other.
func TestRun(t *testing.T) {
	t.Chdir(t.TempDir())
	dir := filepath.Join("testdata", "fuzz", "FuzzX")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a": "[]byte(\"0123456789abcdef\")\nbool(true)", "b": "[]byte(\"\")\nbool(false)"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("go test fuzz v1\n"+text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	collect := func() (all []string) {
		Run(t, "FuzzX", func(n int, input []any) {
			if n != len(all) || len(input) != 2 {
				t.Fatalf("input %d: %v", n, input)
			}
			all = append(all, string(input[0].([]byte)))
		})
		return all
	}
	first, second := collect(), collect()
	if len(first) != *count || !reflect.DeepEqual(first, second) {
		t.Errorf("%d and %d inputs", len(first), len(second))
	}
	different := map[string]bool{}
	for _, s := range first {
		different[s] = true
	}
	if len(different) < len(first)/2 {
		t.Errorf("%d of %d are different", len(different), len(first))
	}
}

// Whatever is changed, a result is bounded and the seed stays what it was.
func TestBytes(t *testing.T) {
	m := &mutator{r: rand.New(rand.NewPCG(1, 2)), pool: [][]byte{make([]byte, 3*maxLength), {1}}}
	b := []byte("seed")
	for range 20000 {
		if got := m.bytes(b); len(got) > maxLength || string(b) != "seed" {
			t.Fatalf("%d bytes; %q", len(got), b)
		}
	}
}
