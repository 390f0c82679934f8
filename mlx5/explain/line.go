// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// MaxInput is the longest text that Line reads, in bytes.
const MaxInput = 64 << 10

// InputError says what Line recognised in a text, and what is missing from it.
type InputError struct {
	Input      string
	Recognised []string // empty: nothing at all
	Missing    []string
	Example    string // a complete text of this kind
}

func (e *InputError) Error() string {
	if len(e.Recognised) == 0 {
		return fmt.Sprintf("explain: nothing recognised in %q: give a line of dmesg (%s), the bytes of a reply (05000000 0065b500), an errno (EREMOTEIO, 121), a completion (12/0x81), an attribute (timeout=14) or a transition (RTS→SQD)", printable(clip(e.Input, 80)), exampleLine)
	}
	return fmt.Sprintf("explain: recognised %s; missing: %s; a complete one: %s", strings.Join(e.Recognised, ", "), strings.Join(e.Missing, ", "), e.Example)
}

const exampleLine = "mlx5_core 0000:08:00.0: mlx5_cmd_out_err:808:(pid 1234): CREATE_MKEY(0x200) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x38a711), err(-22)"

// Line explains free text: a line of dmesg about a command (any kernel, with
// or without prefixes, also wrapped or quoted by a mail program), the bytes of
// a request, a reply or both, an error CQE, an errno by name, number or text,
// a completion (12/0x81, or as UCX and NCCL print it), name=value of a queue
// pair attribute, or a state transition (RTS→SQD). Of several it explains the
// first. The error is an *InputError or, for a value that no attribute can
// have, an error that says which it can have.
func Line(s string) (Answer, error) {
	a, err := line(s)
	if e, ok := err.(*InputError); ok {
		e.Input = s
	}
	if err != nil {
		return Answer{}, err
	}
	a.Input = s
	return a, nil
}

func line(s string) (Answer, error) {
	if len(s) > MaxInput {
		return Answer{}, fmt.Errorf("explain: the text has %d bytes, more than %d: give the line that reports the failure", len(s), MaxInput)
	}
	text := flatten(s)
	for _, try := range []func(string) (Answer, bool, error){
		parseTransition, parseBytes(s), parseCompletion, parseEvent, parseCommand, parseAttribute, parseName, parseErrno,
	} {
		if a, ok, err := try(text); ok || err != nil {
			return a, err
		}
	}
	return Answer{}, &InputError{}
}

// flatten joins wrapped lines and drops a mail program's quotation marks.
func flatten(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimLeft(l, "> \t")
	}
	return strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
}

// number reads 0x… as hexadecimal, digits as decimal and anything else with
// letters as hexadecimal.
func number(s string, bits int) (uint64, bool) {
	base := 10
	if t, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		s, base = t, 16
	} else if strings.ContainsAny(strings.ToLower(s), "abcdef") {
		base = 16
	}
	v, err := strconv.ParseUint(s, base, bits)
	return v, err == nil
}

func firstOf(ss ...string) string {
	for _, s := range ss {
		if s != "" {
			return s
		}
	}
	return ""
}

func hasPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// printable keeps control characters of a log away from the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, "?"))
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
