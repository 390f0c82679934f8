// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// ErrNoModule is a module that the kernel does not come with.
var ErrNoModule = errors.New("no such kernel module")

// What the guest loads. The channel to the host comes first, so that the rest can
// be reported over it; a kernel without it uses a serial port.
var (
	channelModules = []string{"virtio_pci", "virtio_console"}
	rdmaModules    = []string{"mlx5_core", "mlx5_ib", "ib_uverbs", "rdma_cm", "rdma_ucm", "ib_umad"}
)

// moduleTree are the modules of one kernel.
type moduleTree struct {
	files   map[string]string // name, with underscores: path
	builtin map[string]bool
	deps    map[string][]string // names; nil: there is no modules.dep
}

var moduleFile = regexp.MustCompile(`\.ko(\.(gz|xz|zst))?$`)

// moduleName is the name that a file has in lsmod.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// openModules reads /lib/modules/RELEASE, or what was copied from it. Debian's
// packages lack modules.dep, which depmod makes at installation; then each
// module is asked itself.
func openModules(dir string) (*moduleTree, error) {
	t := &moduleTree{files: map[string]string{}, builtin: map[string]bool{}}
	root, err := filepath.EvalSymlinks(dir) // WalkDir follows none
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() && moduleFile.MatchString(p) {
			t.files[moduleName(p)] = p
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(t.files) == 0 {
		return nil, fmt.Errorf("%w: %s has no .ko files: name the directory lib/modules/RELEASE of the kernel (--modules, $DEVXLAB_MODULES)", ErrNoModule, dir)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "modules.builtin")); err == nil {
		for line := range strings.Lines(string(b)) {
			t.builtin[moduleName(strings.TrimSpace(line))] = true
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "modules.dep")); err == nil {
		t.deps = parseDep(b)
	}
	return t, nil
}

// parseDep reads modules.dep (modules.dep(5)): "a.ko: b.ko c.ko".
func parseDep(b []byte) map[string][]string {
	deps := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		file, list, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		names := []string{}
		for f := range strings.FieldsSeq(list) {
			names = append(names, moduleName(f))
		}
		deps[moduleName(file)] = names
	}
	return deps
}

// needs returns the modules that one needs directly, and perhaps others that
// those need.
func (t *moduleTree) needs(name string) ([]string, error) {
	if d, ok := t.deps[name]; ok {
		return d, nil
	}
	b, err := t.read(name)
	if err != nil {
		return nil, err
	}
	d, err := modinfoDepends(b)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", t.files[name], err)
	}
	return d, nil
}

// modinfoDepends reads depends= of a module's .modinfo section.
func modinfoDepends(b []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("no .modinfo: not a kernel module")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	var names []string
	for field := range bytes.SplitSeq(info, []byte{0}) {
		list, ok := bytes.CutPrefix(field, []byte("depends="))
		for n := range strings.SplitSeq(string(list), ",") {
			if ok && n != "" {
				names = append(names, moduleName(n))
			}
		}
	}
	return names, nil
}

// read returns a module, decompressed.
func (t *moduleTree) read(name string) ([]byte, error) {
	path, ok := t.files[name]
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrNoModule, name)
	}
	b, err := os.ReadFile(path)
	if err != nil || strings.HasSuffix(path, ".ko") {
		return b, err
	}
	out, err := decompress(b, false)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", path, err)
	}
	return out, nil
}

// closure returns the modules and all that they need, each after what it needs.
// What is built into the kernel is left out.
func (t *moduleTree) closure(names ...string) ([]string, error) {
	var order []string
	const open, done = 1, 2
	state := map[string]int{}
	var visit func(string, []string) error
	visit = func(n string, path []string) error {
		switch {
		case state[n] == done:
			return nil
		case state[n] == open:
			return fmt.Errorf("modules need each other: %s", strings.Join(append(path, n), ", "))
		}
		state[n] = open
		if t.files[n] == "" && t.builtin[n] {
			state[n] = done
			return nil
		}
		needs, err := t.needs(n)
		if err != nil {
			if len(path) > 0 {
				err = fmt.Errorf("%w (needed by %s)", err, path[len(path)-1])
			}
			return err
		}
		for _, d := range needs {
			if err := visit(d, append(slices.Clip(path), n)); err != nil {
				return err
			}
		}
		state[n] = done
		order = append(order, n)
		return nil
	}
	for _, n := range names {
		if err := visit(strings.ReplaceAll(n, "-", "_"), nil); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// has says whether the kernel has a module, loadable or built in.
func (t *moduleTree) has(name string) bool { return t.files[name] != "" || t.builtin[name] }
