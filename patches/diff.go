// SPDX-License-Identifier: BSD-2-Clause

package patches

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Patch is one of a series, as git format-patch writes it.
type Patch struct {
	Name    string // of its file: "0003-….patch"
	Subject string // without "[PATCH]"
	Files   []File
}

// Number is what a patch is called by: 3 of "0003-….patch".
func (p *Patch) Number() int {
	n, _ := strconv.Atoi(p.Name[:strings.IndexByte(p.Name, '-')]) // parse has seen to it
	return n
}

// File is what a patch changes in one file of the tree.
type File struct {
	Path  string
	Hunks []Hunk
}

// Hunk is a run of lines to replace by another.
type Hunk struct {
	Header   string // "@@ -1,2 +1,3 @@"
	Line     int    // where Old stands in the tree that the patch was made for, from 1
	Old, New []string
}

// reversed is the hunk that undoes this one.
func (h Hunk) reversed() Hunk {
	h.Old, h.New = h.New, h.Old
	return h
}

var (
	nameRE = regexp.MustCompile(`^[0-9]{4}-.*\.patch$`)
	hunkRE = regexp.MustCompile(`^@@ -([0-9]+)(?:,[0-9]+)? \+[0-9]+(?:,[0-9]+)? @@`)
)

// parse reads the patches of a directory, in the order of their numbers.
func parse(dir fs.FS) ([]Patch, error) {
	names, err := fs.Glob(dir, "*.patch")
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var all []Patch
	for _, n := range names {
		b, err := fs.ReadFile(dir, n)
		if err != nil {
			return nil, err
		}
		p, err := parsePatch(n, string(b))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		all = append(all, p)
	}
	return all, nil
}

func parsePatch(name, text string) (Patch, error) {
	name = path.Base(name)
	if !nameRE.MatchString(name) {
		return Patch{Name: name}, fmt.Errorf("not called as git format-patch does")
	}
	return parseDiff(name, text)
}

// parseDiff reads a patch under any name: it has no number.
func parseDiff(name, text string) (Patch, error) {
	p := Patch{Name: name}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		l := lines[i]
		switch {
		case strings.HasPrefix(l, "Subject: ") && p.Subject == "":
			p.Subject = strings.TrimPrefix(l, "Subject: ")
			for i+1 < len(lines) && strings.HasPrefix(lines[i+1], " ") {
				i++
				p.Subject += lines[i]
			}
			if _, rest, ok := strings.Cut(p.Subject, "] "); ok && p.Subject[0] == '[' {
				p.Subject = rest
			}
		case strings.HasPrefix(l, "+++ b/"):
			p.Files = append(p.Files, File{Path: strings.TrimPrefix(l, "+++ b/")})
		case strings.HasPrefix(l, "@@ "):
			if len(p.Files) == 0 {
				return p, fmt.Errorf("line %d: a hunk without a file", i+1)
			}
			h, n, err := parseHunk(lines[i:])
			if err != nil {
				return p, fmt.Errorf("line %d: %w", i+1, err)
			}
			f := &p.Files[len(p.Files)-1]
			f.Hunks = append(f.Hunks, h)
			i += n - 1
		}
	}
	if p.Subject == "" || len(p.Files) == 0 {
		return p, fmt.Errorf("no subject, or nothing that it changes")
	}
	return p, nil
}

// parseHunk reads a hunk, and returns the number of its lines.
func parseHunk(lines []string) (Hunk, int, error) {
	m := hunkRE.FindStringSubmatch(lines[0])
	if m == nil {
		return Hunk{}, 0, fmt.Errorf("not the header of a hunk: %q", lines[0])
	}
	h := Hunk{Header: m[0]}
	h.Line, _ = strconv.Atoi(m[1]) // digits
	n := 1
	for ; n < len(lines) && lines[n] != ""; n++ {
		text := lines[n][1:]
		switch lines[n][0] {
		case ' ':
			h.Old, h.New = append(h.Old, text), append(h.New, text)
		case '-':
			if strings.HasPrefix(lines[n], "-- ") { // the signature of a mail
				return h, n, nil
			}
			h.Old = append(h.Old, text)
		case '+':
			h.New = append(h.New, text)
		default: // the next hunk or file
			return h, n, nil
		}
	}
	return h, n, nil
}

// HunkError is a hunk that a file does not take.
type HunkError struct {
	Patch   string
	File    string
	Hunk    Hunk
	At      int      // the line at which Have begins, from 1; 0 if the file is not there
	Have    []string // what the file has there
	Applied bool     // it has what the hunk would make
}

func (e *HunkError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s does not apply: %s, hunk %s", e.Patch, e.File, e.Hunk.Header)
	switch {
	case e.Applied:
		b.WriteString(": it is there already: undo it with patch -R, or take a fresh tree")
	case e.At == 0:
		b.WriteString(": the tree has no such file")
	default:
		fmt.Fprintf(&b, "\n  wanted:")
		for _, l := range e.Hunk.Old {
			fmt.Fprintf(&b, "\n    %s", l)
		}
		fmt.Fprintf(&b, "\n  the tree has, from line %d:", e.At)
		for _, l := range e.Have {
			fmt.Fprintf(&b, "\n    %s", l)
		}
	}
	return b.String()
}

// apply changes lines by the hunks: each must be found whole, no line of it is
// left out (no fuzz), but it may stand elsewhere than in the tree that the patch
// was made for.
func apply(lines []string, hunks []Hunk) ([]string, *HunkError) {
	moved := 0 // how far the last hunk was from where it was looked for
	from := 0
	for _, h := range hunks {
		at := find(lines, h.Old, h.Line-1+moved, from)
		if at < 0 {
			e := &HunkError{Hunk: h, Applied: find(lines, h.New, h.Line-1+moved, from) >= 0}
			e.At, e.Have = near(lines, h.Old, h.Line-1+moved)
			return nil, e
		}
		lines = slices.Concat(lines[:at], h.New, lines[at+len(h.Old):])
		moved = at + len(h.New) - len(h.Old) - (h.Line - 1)
		from = at + len(h.New)
	}
	return lines, nil
}

// find returns where want stands in lines, as near to at as possible and not
// before from, or -1.
func find(lines, want []string, at, from int) int {
	for d := 0; d <= len(lines); d++ {
		for _, i := range [...]int{at - d, at + d} {
			if i >= from && i+len(want) <= len(lines) && slices.Equal(lines[i:i+len(want)], want) {
				return i
			}
		}
	}
	return -1
}

// near returns what stands where most of want does: the place, counted from 1, at
// which the most lines agree, the nearest to at if there are several.
func near(lines, want []string, at int) (int, []string) {
	best, most := min(max(at, 0), max(len(lines)-1, 0)), 0
	for i := range lines {
		n := 0
		for j := range want {
			if i+j < len(lines) && strings.TrimSpace(want[j]) != "" && lines[i+j] == want[j] {
				n++
			}
		}
		if n > most || n == most && n > 0 && abs(i-at) < abs(best-at) {
			best, most = i, n
		}
	}
	return best + 1, lines[best:min(best+len(want), len(lines))]
}

func abs(x int) int { return max(x, -x) }
