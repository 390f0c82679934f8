// SPDX-License-Identifier: BSD-2-Clause

package qpparams

import (
	"fmt"
	"strings"
	"unicode"
)

// Error is one mistake in a file, in a flag or in a Params.
type Error struct {
	File   string // its name; "": not from a file
	Line   int    // from 1; 0: the file as a whole, or not from a file
	Flag   string // --max-qp; "": not from a flag
	Key    string // max_qp; "": not about one of the keys
	Value  string // as it is written
	Reason string
	Err    error // what the encoder or the system said, or nil
}

func (e *Error) Unwrap() error { return e.Err }

func (e *Error) Error() string {
	var b strings.Builder
	switch {
	case e.Flag != "":
		fmt.Fprintf(&b, "%s %s ", e.Flag, printable(e.Value))
	case e.File != "" && e.Line > 0:
		fmt.Fprintf(&b, "%s:%d: ", e.File, e.Line)
	case e.File != "":
		fmt.Fprintf(&b, "%s: ", e.File)
	case e.Line > 0:
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	if e.Key != "" && e.Flag == "" {
		fmt.Fprintf(&b, "%s = %s ", e.Key, printable(e.Value))
	}
	b.WriteString(e.why())
	return b.String()
}

// why is the error without the place.
func (e *Error) why() string {
	s := e.Reason
	if k := keyOf(e.Key); k != nil {
		s += fmt.Sprintf(" (%d to %d: %s)", k.min, k.max, k.means)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// printable clips what a user wrote and quotes it if it would not be seen.
func printable(s string) string {
	const most = 40
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsGraphic(r) || unicode.IsSpace(r) }) {
		return fmt.Sprintf("%q", s)
	}
	return s
}
