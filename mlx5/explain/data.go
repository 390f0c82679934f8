// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"devxlab.example/mlx5"
)

//go:embed syndromes.tsv
var syndromesTSV string

//go:embed completions.tsv
var completionsTSV string

// seenSyndrome is a row of syndromes.tsv.
type seenSyndrome struct {
	syndrome                            uint32
	op                                  mlx5.Op // 0: not told
	status                              mlx5.Status
	hasStatus                           bool
	command, circumstance, card, source string
}

// seenCompletion is a row of completions.tsv.
type seenCompletion struct {
	status                     uint8
	vendorErr                  uint32
	hwSyndrome                 uint8
	hasHW                      bool
	circumstance, card, source string
}

var (
	syndromes   = sync.OnceValue(func() []seenSyndrome { return must(parseSyndromes(syndromesTSV)) })
	completions = sync.OnceValue(func() []seenCompletion { return must(parseCompletions(completionsTSV)) })
)

// must: the data are part of the program, and a test parses them.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// rows calls f with the columns of each row; f gets a parser of numbers in
// which "-" is absent.
func rows(data string, columns int, f func(c []string, num func(i, bits int) (uint64, bool))) error {
	for n, line := range strings.Split(strings.TrimSuffix(data, "\n"), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		c := strings.Split(line, "\t")
		if len(c) != columns {
			return fmt.Errorf("explain: row %d has %d columns, not %d", n+1, len(c), columns)
		}
		var bad error
		f(c, func(i, bits int) (uint64, bool) {
			if c[i] == "-" {
				return 0, false
			}
			v, err := strconv.ParseUint(c[i], 0, bits)
			if err != nil {
				bad = fmt.Errorf("explain: row %d, column %d: %w", n+1, i+1, err)
			}
			return v, true
		})
		if bad != nil {
			return bad
		}
	}
	return nil
}

func dash(s string) string {
	if s == "-" {
		return ""
	}
	return s
}

func parseSyndromes(data string) ([]seenSyndrome, error) {
	var out []seenSyndrome
	err := rows(data, 7, func(c []string, num func(int, int) (uint64, bool)) {
		s := seenSyndrome{command: c[3], circumstance: c[4], card: dash(c[5]), source: c[6]}
		v, _ := num(0, 32)
		s.syndrome = uint32(v)
		v, _ = num(1, 16)
		s.op = mlx5.Op(v)
		v, s.hasStatus = num(2, 8)
		s.status = mlx5.Status(v)
		out = append(out, s)
	})
	return out, err
}

func parseCompletions(data string) ([]seenCompletion, error) {
	var out []seenCompletion
	err := rows(data, 6, func(c []string, num func(int, int) (uint64, bool)) {
		s := seenCompletion{circumstance: c[3], card: dash(c[4]), source: c[5]}
		v, _ := num(0, 8)
		s.status = uint8(v)
		v, _ = num(1, 32)
		s.vendorErr = uint32(v)
		v, s.hasHW = num(2, 8)
		s.hwSyndrome = uint8(v)
		out = append(out, s)
	})
	return out, err
}

// report finds the reports of a's syndrome, those of the same command first.
func (a *Answer) report() {
	var others []Report
	for _, s := range syndromes() {
		if s.syndrome != a.Syndrome {
			continue
		}
		r := Report{Command: s.command, Syndrome: s.syndrome, Circumstance: s.circumstance, Card: s.card, Source: s.source, Same: true}
		if s.op != 0 {
			r.Command = fmt.Sprintf("%s(%#x)", s.command, uint16(s.op))
		}
		if s.hasStatus {
			r.Status = statusText(s.status)
		}
		if a.HasOp && s.op != 0 && s.op != a.Op || a.HasStatus && s.hasStatus && s.status != a.Status {
			r.Same = false
		}
		switch {
		case r.Same && (a.Syndrome != 0 || a.HasOp):
			a.Reports = append(a.Reports, r)
		case a.Syndrome != 0: // 0 identifies nothing
			others = append(others, r)
		}
	}
	a.Reports = append(a.Reports, others...)
}
