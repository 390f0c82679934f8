// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"strconv"
	"strings"
)

// vt is a terminal, as far as this program needs one.
type vt struct {
	rows, columns int
	cells         [][]rune
	row, column   int
	scrolled      int    // lines that left it at the top
	pending       string // of a sequence, or a character, that is not complete
}

func newVT(rows, columns int) *vt {
	v := &vt{rows: rows, columns: columns}
	for range rows {
		v.cells = append(v.cells, v.blank())
	}
	return v
}

func (v *vt) blank() []rune { return []rune(strings.Repeat(" ", v.columns)) }

// resize keeps what was shown at the top left.
func (v *vt) resize(rows, columns int) {
	old := v.cells
	*v = *newVT(rows, columns)
	for i := range min(rows, len(old)) {
		copy(v.cells[i], old[i])
	}
}

// text is what it shows.
func (v *vt) text() string {
	var b strings.Builder
	for _, row := range v.cells {
		b.WriteString(strings.TrimRight(string(row), " ") + "\n")
	}
	return b.String()
}

// write takes output. What it does not know is an error.
func (v *vt) write(s string) error {
	s = v.pending + s
	v.pending = ""
	for s != "" {
		if s[0] == 0x1b {
			n := strings.IndexFunc(s[1:], func(r rune) bool { return r != '[' && (r < '0' || r > '?') })
			if n < 0 {
				v.pending = s
				return nil
			}
			if err := v.sequence(s[:n+2]); err != nil {
				return err
			}
			s = s[n+2:]
			continue
		}
		r := []rune(s[:min(4, len(s))])[0]
		if r == 0xfffd && len(s) < 4 {
			v.pending = s
			return nil
		}
		s = s[len(string(r)):]
		v.put(r)
	}
	return nil
}

func (v *vt) sequence(s string) error {
	switch s {
	case home:
		v.row, v.column = 0, 0
	case clearLine:
		copy(v.cells[v.row][min(v.column, v.columns):], v.blank())
	case clearBelow:
		copy(v.cells[v.row][min(v.column, v.columns):], v.blank())
		for i := v.row + 1; i < v.rows; i++ {
			v.cells[i] = v.blank()
		}
	default:
		return fmt.Errorf("a sequence that leaves a terminal changed: %s", strconv.Quote(s))
	}
	return nil
}

func (v *vt) put(r rune) {
	switch {
	case r == '\r':
		v.column = 0
		return
	case r == '\n':
		v.down()
		return
	case v.column == v.columns: // behind the last one: it wraps
		v.column = 0
		v.down()
	}
	v.cells[v.row][v.column] = r
	v.column++
}

func (v *vt) down() {
	if v.row++; v.row == v.rows {
		v.row--
		v.scrolled++
		v.cells = append(v.cells[1:], v.blank())
	}
}
