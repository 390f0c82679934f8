// SPDX-License-Identifier: BSD-2-Clause

package patches

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// module is a module of the kernel, by its directory.
type module struct{ name, dir, beside string }

// dirs are the directories that it is compiled from.
func (m module) dirs() []string {
	if m.beside == "" {
		return []string{m.dir}
	}
	return []string{m.dir, m.beside}
}

// modules are what the patches may change, each with its directory, and another
// one that its sources include headers of by "../".
var modules = []module{
	{"mlx5_core", "drivers/net/ethernet/mellanox/mlx5/core", "drivers/net/ethernet/mellanox/mlxfw"},
	{"mlx5_ib", "drivers/infiniband/hw/mlx5", ""},
	{"ib_cm", "drivers/infiniband/core", ""},
}

// BuildOptions say what to build.
type BuildOptions struct {
	Numbers []int     // of the patches; none: all
	Also    []string  // files with further diffs, to be applied after those
	Kbuild  string    // where the kernel was configured and built, or its headers package; "": the tree
	Out     string    // directory that gets the modules; it may not hold anything else
	Modules string    // lib/modules/RELEASE to copy into Out, with these modules in the place of its own; "": none
	Release string    // the name of its copy; "": as it is called itself
	Log     io.Writer // what make says
	Jobs    int       // of make; 0: one
	Cache   string    // directory that keeps what was built: a module from the same sources, configuration and compiler is taken from there; "": none
}

// Build compiles the modules that patches change, with make W=1, from patched
// copies of their directories, and returns the paths of what it made.
func Build(ctx context.Context, t *Tree, o BuildOptions) ([]string, error) {
	all, changed, err := o.patched(t)
	if err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", workPrefix)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	if err := copies(t, work, changed); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Out, 0o777); err != nil {
		return nil, err
	}
	var made []string
	for _, m := range modules {
		if !touches(all, m.dir) {
			continue
		}
		to := filepath.Join(o.Out, m.name+".ko")
		kept, err := o.kept(t, m, changed)
		if err != nil {
			return nil, err
		}
		if kept == "" || copyFile(kept, to) != nil {
			ko := filepath.Join(work, m.dir, m.name+".ko")
			if err := kbuild(ctx, o, work, m.dir, m.name+".ko"); err != nil {
				return nil, fmt.Errorf("make %s: %w", m.name, err)
			}
			if err := strip(ctx, ko, to); err != nil {
				return nil, err
			}
			if kept != "" {
				if err := keep(to, kept); err != nil {
					return nil, err
				}
			}
		}
		made = append(made, to)
	}
	if o.Modules != "" {
		err = replace(o.Modules, filepath.Join(o.Out, "lib/modules", cmp.Or(o.Release, filepath.Base(filepath.Clean(o.Modules)))), made)
	}
	return made, err
}

// kept is where the cache has, or is to have, a module that is made from the same:
// all that WriteInputs says, the sources of its own directory and the one beside, and what
// the patches change there and outside of all modules' directories.
func (o *BuildOptions) kept(t *Tree, m module, changed map[string][]byte) (string, error) {
	if o.Cache == "" {
		return "", nil
	}
	dir, h := m.dir, sha256.New()
	if err := writeInputs(h, t, o.Kbuild, m); err != nil {
		return "", err
	}
	for _, path := range slices.Sorted(maps.Keys(changed)) {
		other := slices.ContainsFunc(modules, func(m module) bool { return m.dir != dir && within(path, m.dir) })
		if !other {
			fmt.Fprintf(h, "%s %x\n", path, sha256.Sum256(changed[path]))
		}
	}
	return filepath.Join(o.Cache, fmt.Sprintf("%s-%s-%x.ko", m.name, t.Full, h.Sum(nil)[:8])), nil
}

// keep puts a module into the cache, whole or not at all.
func keep(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	part := to + ".part"
	err := copyFile(from, part)
	if err == nil {
		err = os.Rename(part, to)
	}
	if err != nil {
		if gone := os.Remove(part); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// configured are the files of a built kernel that tell it from another one. Configuration and
// compile.h name the compiler; compile.h, or utsversion.h since 6.1, has when it was
// built, and so stands for the headers of include/. Only the first is always there.
var configured = []string{symversName, ".config", "include/config/auto.conf", "include/generated/compile.h", "include/generated/utsversion.h"}

const symversName = "Module.symvers"

// WriteInputs writes what the modules are compiled from besides the patches, to be
// hashed: the version of the tree, the sources of their directories in it, and, of the
// directory where the kernel was built ("": the tree), its place, Module.symvers,
// configuration and compiler.
func WriteInputs(w io.Writer, t *Tree, kbuild string) error {
	return writeInputs(w, t, cmp.Or(kbuild, t.Dir), modules...)
}

func writeInputs(w io.Writer, t *Tree, kbuild string, of ...module) error {
	at, err := filepath.Abs(kbuild)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "%s %s\n", t.Full, at); err != nil {
		return err
	}
	for _, name := range configured {
		err := writeInput(w, filepath.Join(at, name), name)
		if err != nil && (name == symversName || !errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	for _, m := range of {
		for _, dir := range m.dirs() {
			if err := writeSources(w, t.Dir, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeSources writes the files of a directory that copySource copies.
func writeSources(w io.Writer, tree, dir string) error {
	return filepath.WalkDir(filepath.Join(tree, dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !isSource(path) {
			return err
		}
		name, err := filepath.Rel(tree, path)
		if err != nil {
			return err
		}
		return writeInput(w, path, name)
	})
}

// writeInput writes a name and the hash of a file.
func writeInput(w io.Writer, file, name string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s %x\n", name, sha256.Sum256(b))
	return err
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o666)
}

// workPrefix is how the name of a directory begins in which something is compiled.
const workPrefix = "devxlab-patches-"

// patched returns the patches that are asked for, and the files that they change, and
// sets what of the options is left to be set.
func (o *BuildOptions) patched(t *Tree) (all []Patch, changed map[string][]byte, err error) {
	if all, err = Series(t.Version); err != nil {
		return nil, nil, err
	}
	if all, err = choose(all, o.Numbers); err != nil {
		return nil, nil, err
	}
	for _, name := range o.Also {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, nil, err
		}
		p, err := parseDiff(filepath.Base(name), string(b))
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, p)
	}
	if changed, err = t.Apply(all); err != nil {
		return nil, nil, err
	}
	o.Kbuild = cmp.Or(o.Kbuild, t.Dir)
	if _, err := os.Stat(filepath.Join(o.Kbuild, "Module.symvers")); err != nil {
		return nil, nil, fmt.Errorf("%s was not built: %w; build the kernel first, or name a headers package with --kbuild", o.Kbuild, err)
	}
	return all, changed, nil
}

// choose returns the patches with the numbers, in order.
func choose(all []Patch, numbers []int) ([]Patch, error) {
	if len(numbers) == 0 {
		return all, nil
	}
	var some []Patch
	for _, p := range all {
		if slices.Contains(numbers, p.Number()) {
			some = append(some, p)
		}
	}
	if len(some) != len(numbers) {
		return nil, fmt.Errorf("patches %v: there are %d of them in the series, or one is named twice", numbers, len(some))
	}
	return some, nil
}

func touches(all []Patch, dir string) bool {
	return slices.ContainsFunc(all, func(p Patch) bool {
		return slices.ContainsFunc(p.Files, func(f File) bool { return within(f.Path, dir) })
	})
}

func within(path, dir string) bool { return strings.HasPrefix(path, dir+"/") }

// copies copies the directories of the modules that change, and writes what
// changes.
func copies(t *Tree, work string, changed map[string][]byte) error {
	for _, m := range modules {
		for p := range changed {
			if within(p, m.dir) {
				for _, dir := range m.dirs() {
					if err := copySource(filepath.Join(t.Dir, dir), filepath.Join(work, dir)); err != nil {
						return err
					}
				}
				break
			}
		}
	}
	// A trace header of ib_core is found from include/trace, by "../../drivers".
	if err := os.MkdirAll(filepath.Join(work, "include/trace"), 0o777); err != nil {
		return err
	}
	for p, b := range changed {
		to := filepath.Join(work, p)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o777), os.WriteFile(to, b, 0o666)); err != nil {
			return err
		}
	}
	return nil
}

// copyTree copies the regular files of a tree for which choose returns a name in the
// new one, and the file that is read for it.
func copyTree(from, to string, choose func(path, rel string) (source, name string)) error {
	root, err := filepath.EvalSymlinks(from) // WalkDir follows none
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o777)
		case !d.Type().IsRegular():
			return nil // of modules, build and source lead out of it
		}
		source, name := choose(path, rel)
		if name == "" {
			return nil
		}
		b, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), b, 0o666)
	})
}

// copySource copies what a directory is compiled from.
func copySource(from, to string) error {
	return copyTree(from, to, func(path, rel string) (string, string) {
		if !isSource(rel) {
			return "", ""
		}
		return path, rel
	})
}

// isSource says whether a file is written by people, and compiled.
func isSource(path string) bool {
	name, ext := filepath.Base(path), filepath.Ext(path)
	return !strings.HasSuffix(name, ".mod.c") && (name == "Makefile" || name == "Kbuild" || ext == ".c" || ext == ".h")
}

// kbuild has the kernel's own makefiles build targets of a directory outside
// of it. A header of include/uapi that a patch changes is read first, so that the
// kernel's own, with the same guard, has no effect.
func kbuild(ctx context.Context, o BuildOptions, work, dir string, targets ...string) error {
	flags := "KCFLAGS=-g0 -I" + filepath.Join(work, "include/trace") // what strip would take out again costs a third of the time
	err := filepath.WalkDir(filepath.Join(work, "include/uapi"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			flags += " -include " + path
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	at, err := filepath.Abs(o.Kbuild)
	if err != nil {
		return err
	}
	args := []string{"-C", at, fmt.Sprintf("-j%d", max(o.Jobs, 1)), "W=1", "M=" + filepath.Join(work, dir), flags}
	cmd := exec.CommandContext(ctx, "make", append(args, targets...)...)
	cmd.Stdout, cmd.Stderr = o.Log, o.Log
	return cmd.Run()
}

// strip leaves the debugging information out of a module: a guest's root file
// system lies in memory.
func strip(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "strip", "-g", "-o", to, from).CombinedOutput(); err != nil {
		return fmt.Errorf("strip %s: %w: %s", filepath.Base(from), err, out)
	}
	return nil
}

// replace copies a tree of modules, with others in the place of those of the same
// name.
func replace(from, to string, made []string) error {
	own := map[string]string{}
	for _, m := range made {
		own[filepath.Base(m)] = m
	}
	return copyTree(from, to, func(path, rel string) (string, string) {
		name, _, compressed := strings.Cut(filepath.Base(rel), ".ko.")
		if compressed {
			name += ".ko"
		}
		mine := own[name]
		if mine == "" {
			return path, rel
		}
		return mine, filepath.Join(filepath.Dir(rel), name)
	})
}
