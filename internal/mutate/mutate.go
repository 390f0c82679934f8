// SPDX-License-Identifier: BSD-2-Clause

// Package mutate runs tests with millions of inputs that are made from the seeds
// of a fuzz target. It looks for no new code to reach, as go test -fuzz does, and
// keeps nothing; but it calls the test in the same process, some twenty times as
// often, and a device that is not reset between inputs meets them in states that a
// single one does not lead to. The package is for tests only.
package mutate

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var (
	count = flag.Int("mutations", 2000, "how many inputs each test of package internal/mutate makes")
	seed  = flag.Uint64("mutations-seed", 1, "which ones: the same give the same inputs")
)

// Run calls try with -mutations inputs. Each has the values of a seed in
// testdata/fuzz/target, its byte slices changed; try may keep them. If the test fails or
// panics, -mutations-seed and the number of the input find it again.
func Run(t *testing.T, target string, try func(n int, input []any)) {
	t.Helper()
	seeds := Seeds(t, filepath.Join("testdata", "fuzz", target))
	m := &mutator{r: rand.New(rand.NewPCG(*seed, 0))}
	for _, s := range seeds {
		for _, v := range s {
			if b, ok := v.([]byte); ok && len(b) > 0 {
				m.pool = append(m.pool, b)
			}
		}
	}
	n := 0
	defer func() { // also of a test that ends at once, or panics
		if n < *count {
			t.Logf("input %d of -mutations-seed %d", n, *seed)
		}
	}()
	for ; n < *count; n++ {
		input := append([]any(nil), seeds[m.r.IntN(len(seeds))]...)
		for i, v := range input {
			switch v := v.(type) {
			case []byte:
				input[i] = m.bytes(v)
			case bool:
				input[i] = v != (m.r.IntN(8) == 0)
			}
		}
		if try(n, input); t.Failed() {
			return
		}
	}
	t.Logf("%d inputs", n)
}

// Seeds reads a directory of seeds in the format of go test -fuzz. It knows
// byte slices and truth values.
func Seeds(t testing.TB, dir string) (seeds [][]any) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		values, err := parse(string(text))
		if err != nil {
			t.Fatalf("%s: %v", filepath.Join(dir, f.Name()), err)
		}
		seeds = append(seeds, values)
	}
	if len(seeds) == 0 {
		t.Fatalf("no seeds in %s", dir)
	}
	return seeds
}

func parse(text string) (values []any, err error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if lines[0] != "go test fuzz v1" {
		return nil, fmt.Errorf("it begins with %q", lines[0])
	}
	for _, l := range lines[1:] {
		inner, bytes := strings.CutPrefix(l, "[]byte(")
		truth, isBool := strings.CutPrefix(l, "bool(")
		switch {
		case bytes:
			s, err := strconv.Unquote(strings.TrimSuffix(inner, ")"))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", l, err)
			}
			values = append(values, []byte(s))
		case isBool:
			values = append(values, truth == "true)")
		default:
			return nil, fmt.Errorf("not known: %s", l)
		}
	}
	return values, nil
}

// mutator changes byte slices.
type mutator struct {
	r    *rand.Rand
	pool [][]byte
}

const (
	maxChanges = 6
	maxLength  = 1 << 14
)

// bytes returns a changed copy.
func (m *mutator) bytes(b []byte) []byte {
	b = append([]byte(nil), b...)
	for range m.r.IntN(maxChanges + 1) {
		b = m.change(b)
	}
	return b[:min(len(b), maxLength)]
}

func (m *mutator) change(b []byte) []byte {
	if len(b) == 0 {
		return m.other()
	}
	at := m.r.IntN(len(b))
	end := at + m.r.IntN(len(b)-at+1)
	switch m.r.IntN(9) {
	case 0:
		b[at] ^= 1 << m.r.IntN(8)
	case 1:
		b[at] = byte(m.r.Uint32())
	case 2, 3:
		return m.number(b, at)
	case 4: // cut out
		return append(b[:at], b[end:]...)
	case 5: // again
		return append(b[:end:end], b[at:]...)
	case 6: // from another
		copy(b[at:], m.other())
	case 7: // the beginning of this, the end of another
		o := m.other()
		return append(b[:at:at], o[m.r.IntN(len(o)):]...)
	case 8: // nothing, or ones
		fill := byte(m.r.IntN(2)) * 0xff
		for i := at; i < end; i++ {
			b[i] = fill
		}
	}
	return b
}

func (m *mutator) other() []byte {
	if len(m.pool) == 0 {
		return []byte{0}
	}
	return append([]byte(nil), m.pool[m.r.IntN(len(m.pool))]...)
}

// number writes one that is at an edge, of 1, 2, 4 or 8 bytes, of either order.
func (m *mutator) number(b []byte, at int) []byte {
	v := uint64(1) << m.r.IntN(64)
	switch m.r.IntN(4) {
	case 0:
		v = uint64(m.r.IntN(64))
	case 1:
		v--
	case 2:
		v = -v
	}
	var w [8]byte
	size := 1 << m.r.IntN(4)
	if m.r.IntN(2) == 0 {
		binary.BigEndian.PutUint64(w[:], v)
		copy(b[at:], w[8-size:])
	} else {
		binary.LittleEndian.PutUint64(w[:], v)
		copy(b[at:], w[:size])
	}
	return b
}
