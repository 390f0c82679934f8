// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// What terminals are told (ECMA-48). Nothing of it lasts: a program that is killed
// leaves the terminal as it was.
const (
	home        = "\x1b[H"
	clearLine   = "\x1b[K" // from the cursor on
	clearBelow  = "\x1b[J"
	clearScreen = home + clearBelow
)

// What a terminal has that does not say its size.
const (
	defaultRows    = 24
	defaultColumns = 80
)

// terminalSize returns that of a terminal as it is now.
func terminalSize(w any) (rows, columns int) {
	if f, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Row > 0 && size.Col > 0 {
			return int(size.Row), int(size.Col)
		}
	}
	return defaultRows, defaultColumns
}

// screen draws text over what a terminal shows. What does not fit is cut off, so that
// nothing scrolls; of lines, the last one says how many.
func screen(text string, rows, columns int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > rows {
		hidden := len(lines) - rows + 1
		lines = append(lines[:rows-1:rows-1], fmt.Sprintf("… %d more lines: a taller terminal, or --summary", hidden))
	}
	var b strings.Builder
	b.WriteString(home)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if runes := []rune(line); len(runes) > columns {
			line = string(runes[:columns-1]) + "…"
		}
		b.WriteString(line)
		if len([]rune(line)) < columns { // else the cursor still stands on the last character
			b.WriteString(clearLine)
		}
	}
	if len(lines) < rows {
		b.WriteString("\r\n" + clearBelow)
	}
	return b.String()
}
