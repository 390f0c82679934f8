// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cavaliergopher/cpio"

	"devxlab.example/lab/guest"
)

// initrd writes the guest's root file system as an uncompressed archive: under
// emulation that starts faster than any compression. Its /bin, /sbin, /lib and
// /lib64 are links into /usr, so that Debian's packages of any age fit.
type initrd struct {
	w    *cpio.Writer
	seen map[string]bool
}

func newInitrd(w io.Writer) (*initrd, error) {
	a := &initrd{w: cpio.NewWriter(w), seen: map[string]bool{".": true}}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := errors.Join(a.dir("usr/"+d), a.header(&cpio.Header{Name: d, Mode: cpio.TypeSymlink | 0o777, Size: int64(len("usr/" + d))})); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(a.w, "usr/"+d); err != nil {
			return nil, err
		}
		a.seen[d] = true
	}
	for _, d := range []string{"dev", "proc", "sys", "tmp", "run", "root", "etc", "var/tmp", "lab"} {
		if err := a.dir(d); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// place is a path as the archive has it: relative, and in /usr.
func place(p string) string {
	p = strings.TrimPrefix(path.Clean("/"+p), "/")
	first, _, _ := strings.Cut(p, "/")
	if slices.Contains([]string{"bin", "sbin", "lib", "lib64"}, first) {
		p = "usr/" + p
	}
	if p == "" {
		p = "."
	}
	return p
}

func (a *initrd) header(h *cpio.Header) error {
	h.Links = 1
	a.seen[h.Name] = true
	return a.w.WriteHeader(h)
}

// dir adds a directory and its parents.
func (a *initrd) dir(p string) error {
	p = place(p)
	if a.seen[p] {
		return nil
	}
	if err := a.dir(path.Dir(p)); err != nil {
		return err
	}
	return a.header(&cpio.Header{Name: p, Mode: cpio.TypeDir | 0o755})
}

// link adds a symbolic link. One that is there stays.
func (a *initrd) link(p, target string) error {
	p = place(p)
	if a.seen[p] {
		return nil
	}
	if err := a.dir(path.Dir(p)); err != nil {
		return err
	}
	if err := a.header(&cpio.Header{Name: p, Mode: cpio.TypeSymlink | 0o777, Size: int64(len(target))}); err != nil {
		return err
	}
	_, err := io.WriteString(a.w, target)
	return err
}

// maxFile is what the format can say.
const maxFile = 1<<32 - 1

// data adds a file.
func (a *initrd) data(p string, perm fs.FileMode, b []byte) error {
	return a.stream(p, perm, int64(len(b)), bytes.NewReader(b))
}

func (a *initrd) stream(p string, perm fs.FileMode, size int64, r io.Reader) error {
	p = place(p)
	if size > maxFile {
		return fmt.Errorf("%s: %d bytes are too much for the guest's root file system", p, size)
	}
	if err := a.dir(path.Dir(p)); err != nil {
		return err
	}
	if err := a.header(&cpio.Header{Name: p, Mode: cpio.TypeReg | cpio.FileMode(perm.Perm()), Size: size}); err != nil {
		return err
	}
	n, err := io.CopyN(a.w, r, size)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s: became shorter while it was read (%d of %d bytes)", p, n, size)
	}
	return err
}

// copy adds a file of the host, or what is below a directory. Sockets, pipes and
// devices are left out.
func (a *initrd) copy(from, to string) error {
	fi, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return a.file(from, to)
	}
	if from, err = filepath.EvalSymlinks(from); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		dst := path.Join(to, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			return a.dir(dst)
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			return a.link(dst, target)
		case d.Type().IsRegular():
			return a.file(p, dst)
		}
		return nil
	})
}

func (a *initrd) file(from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%s: not a regular file", from)
	}
	return a.stream(to, fi.Mode(), fi.Size(), f)
}

// program adds an x86-64 program, with the shared libraries that it names.
func (a *initrd) program(from, to string) error {
	libs, err := libraries(from)
	if err != nil {
		return err
	}
	for _, l := range libs {
		if !a.seen[place(l)] {
			if err := a.file(l, l); err != nil {
				return err
			}
		}
	}
	return a.file(from, to)
}

func (a *initrd) close() error { return a.w.Close() }

// libraries returns the shared libraries that a program needs, its interpreter
// first; none if it is static or not ELF (a script).
func libraries(prog string) ([]string, error) {
	var list []string
	seen := map[string]bool{}
	var dirs []string
	var visit func(p string) error
	visit = func(p string) error {
		f, err := elf.Open(p)
		if err != nil {
			var format *elf.FormatError
			if errors.As(err, &format) || errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		defer f.Close()
		if f.Machine != elf.EM_X86_64 {
			return fmt.Errorf("%s is for %v, and the guest is x86-64: build it with GOARCH=amd64", p, f.Machine)
		}
		for _, s := range f.Progs {
			if s.Type != elf.PT_INTERP || p != prog {
				continue
			}
			b, err := io.ReadAll(io.LimitReader(s.Open(), 4096))
			if err != nil {
				return err
			}
			interp := string(bytes.TrimRight(b, "\x00"))
			list = append(list, interp)
			seen[filepath.Base(interp)] = true
			if real, err := filepath.EvalSymlinks(interp); err == nil {
				dirs = append(dirs, filepath.Dir(real))
			}
		}
		names, err := f.ImportedLibraries()
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		for _, n := range names {
			if seen[n] {
				continue
			}
			seen[n] = true
			found := ""
			for _, d := range append(slices.Clone(dirs), "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib") {
				if exists(filepath.Join(d, n)) {
					found = filepath.Join(d, n)
					break
				}
			}
			if found == "" {
				return fmt.Errorf("%s needs %s, which is not found: build it with CGO_ENABLED=0", p, n)
			}
			list = append(list, found)
			if err := visit(found); err != nil {
				return err
			}
		}
		return nil
	}
	return list, visit(prog)
}

// errTooBig is an archive that has reached its limit.
var errTooBig = errors.New("too big")

// limited takes n bytes.
type limited struct {
	w io.Writer
	n int64
}

func (l *limited) Write(p []byte) (int, error) {
	if l.n -= int64(len(p)); l.n < 0 {
		return 0, errTooBig
	}
	return l.w.Write(p)
}

// contents are what a run's guest is made of.
type contents struct {
	busybox string
	applets []string // its names; empty: Init makes them
	devxlab string   // also process 1
	image   string   // a directory: the packages of a larger image
	release string
	tree    *moduleTree
	job     guest.Job
	extra   []string // modules
	params  map[string]string
	put     []Copy
}

// write writes the archive, of at most so many bytes. It completes the job with
// the modules.
func (c *contents) write(w io.Writer, most int64) error {
	a, err := newInitrd(&limited{w, most})
	if err != nil {
		return err
	}
	if c.image != "" {
		if err := a.copy(c.image, "/"); err != nil {
			return err
		}
	}
	for p, text := range map[string]string{
		"etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
		"etc/group":         "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
		"etc/hosts":         "127.0.0.1 localhost lab\n::1 localhost\n",
		"etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
	} {
		if !a.seen[p] {
			if err := a.data(p, 0o644, []byte(text)); err != nil {
				return err
			}
		}
	}
	if err := a.copy(c.busybox, "usr/bin/busybox"); err != nil {
		return err
	}
	for _, n := range c.applets {
		if n != "busybox" && !a.seen["usr/sbin/"+n] {
			if err := a.link("usr/bin/"+n, "busybox"); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(a.program(c.devxlab, "usr/bin/devxlab"), a.link("init", "usr/bin/devxlab")); err != nil {
		return err
	}
	if err := c.modules(a); err != nil {
		return err
	}
	for _, p := range c.put {
		add := a.copy
		if fi, err := os.Stat(p.From); err == nil && !fi.IsDir() && fi.Mode()&0o111 != 0 {
			add = a.program
		}
		if err := add(p.From, p.To); err != nil {
			return err
		}
	}
	if c.job.Dir != "" {
		if err := a.dir(c.job.Dir); err != nil {
			return err
		}
	}
	for _, g := range c.job.Get { // so that it can be written there
		if err := a.dir(path.Dir(g.Path)); err != nil {
			return err
		}
	}
	b, err := json.Marshal(c.job)
	if err != nil {
		return err
	}
	return errors.Join(a.data(guest.JobFile, 0o644, b), a.close())
}

// modules adds the modules, with a modules.dep, so that the guest's modprobe can
// take them out and in again.
func (c *contents) modules(a *initrd) error {
	if c.tree == nil {
		return nil
	}
	var channel []string
	for _, m := range channelModules {
		if c.tree.has(m) {
			channel = append(channel, m)
		}
	}
	order, err := c.tree.closure(slices.Concat(channel, rdmaModules, c.extra)...)
	if err != nil {
		return err
	}
	for m := range c.params {
		if !slices.Contains(order, strings.ReplaceAll(m, "-", "_")) {
			return fmt.Errorf("%w among those that are loaded: %s: add --module %[2]s", ErrNoModule, m)
		}
	}
	dir := "usr/lib/modules/" + c.release + "/"
	var dep strings.Builder
	for _, m := range order {
		b, err := c.tree.read(m)
		if err != nil {
			return err
		}
		if err := a.data(dir+m+".ko", 0o644, b); err != nil {
			return err
		}
		needs, err := c.tree.closure(m)
		if err != nil {
			return err
		}
		fmt.Fprintf(&dep, "%s.ko:", m)
		for _, n := range slices.Backward(needs[:len(needs)-1]) {
			fmt.Fprintf(&dep, " %s.ko", n)
		}
		dep.WriteByte('\n')
		c.job.Modules = append(c.job.Modules, guest.Module{Path: "/" + dir + m + ".ko", Params: c.params[m]})
	}
	return a.data(dir+"modules.dep", 0o644, []byte(dep.String()))
}
