// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"io"
	"strings"
	"unicode/utf8"
)

// table writes rows in columns. A row's last cell does not widen its column.
func (e *env) table(rows [][]string) error {
	var width []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			if i < len(row)-1 {
				width[i] = max(width[i], utf8.RuneCountInString(cell))
			}
		}
	}
	var b strings.Builder
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			line += cell
			if i < len(row)-1 {
				line += strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)+2)
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(e.out, b.String())
	return err
}

const textWidth = 100

// fill breaks words into lines behind a mark, and indents the others as far.
func fill(b *strings.Builder, mark string, words []string) {
	b.WriteString(mark)
	col := len(mark)
	for i, w := range words {
		switch {
		case i == 0:
		case col+1+len(w) > textWidth:
			b.WriteString("\n" + strings.Repeat(" ", len(mark)))
			col = len(mark)
		default:
			b.WriteByte(' ')
			col++
		}
		b.WriteString(w)
		col += len(w)
	}
	b.WriteByte('\n')
}
