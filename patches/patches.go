// SPDX-License-Identifier: BSD-2-Clause

// Package patches has diffs against the Linux kernel, one series for each version
// that they are made for, and applies them. They are experiments; README.md says
// what each does, and at what risk. The diffs are under the licences of the files
// that they change.
//
// Nothing here changes a kernel tree: Check works in memory, and Build on copies
// of the directories that it compiles.
package patches

import (
	"bufio"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed */*.patch
var series embed.FS

// ErrNotALinuxTree: the directory has no kernel's source.
var ErrNotALinuxTree = errors.New("not a Linux source tree")

// ErrVersion: there is no series for that kernel.
var ErrVersion = errors.New("no patches for this version")

// Versions are those that a series exists for: "5.15".
func Versions() []string {
	dirs, err := fs.ReadDir(series, ".")
	if err != nil {
		panic(err) // it is part of the program
	}
	var all []string
	for _, d := range dirs {
		all = append(all, d.Name())
	}
	return all
}

// Series returns the patches for a version, in order.
func Series(version string) ([]Patch, error) {
	if !slices.Contains(Versions(), version) {
		return nil, fmt.Errorf("%w: %s; there are some for %s", ErrVersion, version, strings.Join(Versions(), ", "))
	}
	dir, err := fs.Sub(series, version)
	if err != nil {
		return nil, err
	}
	return parse(dir)
}

// Tree is the source of a kernel.
type Tree struct {
	Dir     string
	Version string // "5.15"
	Full    string // "5.15.178"
}

// OpenTree finds out which kernel a directory has the source of.
func OpenTree(dir string) (*Tree, error) {
	f, err := os.Open(filepath.Join(dir, "Makefile"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", dir, ErrNotALinuxTree, err)
	}
	defer f.Close()
	var part [3]string
	lines := bufio.NewScanner(f)
	for n := 0; n < 10 && lines.Scan(); n++ {
		name, v, _ := strings.Cut(lines.Text(), " = ")
		if i := slices.Index([]string{"VERSION", "PATCHLEVEL", "SUBLEVEL"}, name); i >= 0 {
			part[i] = v
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, "drivers/infiniband/hw/mlx5")); err != nil || slices.Contains(part[:], "") {
		return nil, fmt.Errorf("%s: %w: no version in its Makefile, or no drivers/infiniband/hw/mlx5", dir, ErrNotALinuxTree)
	}
	return &Tree{Dir: dir, Version: part[0] + "." + part[1], Full: strings.Join(part[:], ".")}, nil
}

// Apply applies patches in their order, in memory, and returns the files that they
// change, by path. Then it undoes them in the opposite order, and fails unless
// that gives the tree again. The error is a *HunkError where a hunk does not
// apply.
func (t *Tree) Apply(all []Patch) (map[string][]byte, error) {
	before, now := map[string][]string{}, map[string][]string{}
	for i := range all {
		if err := t.step(&all[i], now, before, false); err != nil {
			return nil, err
		}
	}
	out := map[string][]byte{}
	for p, lines := range now {
		out[p] = []byte(strings.Join(lines, "\n"))
	}
	for i := range all {
		if err := t.step(&all[len(all)-1-i], now, before, true); err != nil {
			return nil, fmt.Errorf("in reverse: %w", err)
		}
	}
	for p := range now {
		if !slices.Equal(now[p], before[p]) {
			return nil, fmt.Errorf("%s: applied and undone, it is not what it was", p)
		}
	}
	return out, nil
}

// step applies or undoes one patch to the files of now, which it reads from the
// tree where they are not there.
func (t *Tree) step(p *Patch, now, before map[string][]string, undo bool) error {
	for _, f := range p.Files {
		if now[f.Path] == nil {
			b, err := os.ReadFile(filepath.Join(t.Dir, f.Path))
			if errors.Is(err, fs.ErrNotExist) {
				return &HunkError{Patch: p.Name, File: f.Path, Hunk: f.Hunks[0]}
			} else if err != nil {
				return err
			}
			now[f.Path] = strings.Split(string(b), "\n")
			before[f.Path] = now[f.Path]
		}
		hunks := f.Hunks
		if undo {
			hunks = nil
			for _, h := range f.Hunks {
				hunks = append(hunks, h.reversed())
			}
		}
		lines, bad := apply(now[f.Path], hunks)
		if bad != nil {
			bad.Patch, bad.File = p.Name, f.Path
			return bad
		}
		now[f.Path] = lines
	}
	return nil
}
