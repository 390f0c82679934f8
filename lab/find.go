// SPDX-License-Identifier: BSD-2-Clause

package lab

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
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"devxlab.example/internal/atomicfile"
)

// ErrMissing means that something the lab needs is not on this machine and could
// not be brought. The error says what to install or which variable to set.
var ErrMissing = errors.New("the lab is not complete")

// errOffline is a piece that would have to be downloaded, and must not.
var errOffline = errors.New("not in the cache, and nothing is to be downloaded: devxlab lab fetch")

// named are the kernels that can be asked for by name, and the suites of Debian
// in which they are. Of several suites the one with the highest version is taken.
var named = map[string][]string{
	"5.10":   {"bullseye"},
	"6.1":    {"bookworm"},
	"6.12":   {"trixie"},
	"newest": {"trixie-backports", "sid", "experimental"},
}

// DefaultKernel is the one that is brought where nothing is named and /boot has
// none with mlx5.
const DefaultKernel = "6.1"

// KernelNames are the kernels that Options.Kernel knows by name.
func KernelNames() []string { return slices.Sorted(maps.Keys(named)) }

// guestArch is Debian's name for the guest's architecture.
const guestArch = "amd64"

// Kernel is one to boot.
type Kernel struct {
	Release string // uname -r; the name of the modules' directory
	Image   string // vmlinux where one could be extracted, else the bzImage
	Modules string // directory lib/modules/RELEASE
}

// finder finds what a run needs, or brings it.
type finder struct {
	cache    string
	progress io.Writer
	refresh  bool     // look for newer versions of what is in the cache
	offline  bool     // take nothing from a mirror
	sources  []source // of this machine's apt
	archives map[string]*archive
}

// archive returns suites of the mirror, by default those that this machine's apt
// itself uses; their index is read once.
func (f *finder) archive(ctx context.Context, arch string, suites ...string) (*archive, error) {
	if f.sources == nil {
		var err error
		if f.sources, err = findSources(ctx); err != nil {
			return nil, err
		}
	}
	from := f.sources
	if len(suites) > 0 {
		site, ok := mainSite(f.sources)
		if !ok {
			return nil, fmt.Errorf("%w: only one of security updates", ErrNoMirror)
		}
		from = nil
		for _, s := range suites {
			from = append(from, source{site, s})
		}
	}
	if arch == "" { // the host's
		out, err := command(ctx, "dpkg", "--print-architecture")
		if err != nil {
			return nil, err
		}
		arch = strings.TrimSpace(string(out))
	}
	key := fmt.Sprint(arch, from)
	if a := f.archives[key]; a != nil {
		return a, nil
	}
	if len(suites) == 0 {
		suites = []string{"this machine's apt"}
	}
	fmt.Fprintf(f.progress, "devxlab: reading the package index of %s\n", strings.Join(suites, ", "))
	a, err := openArchive(ctx, f.cache, arch, from)
	if err != nil {
		return nil, err
	}
	if f.archives == nil {
		f.archives = map[string]*archive{}
	}
	f.archives[key] = a
	return a, nil
}

// cached returns the directory that the link at path, below the cache, points
// to, or makes both with bring.
func (f *finder) cached(ctx context.Context, link string, bring func(ctx context.Context, dir string) (name string, err error)) (string, error) {
	link = filepath.Join(f.cache, link)
	there := func() (string, bool) {
		t, err := os.Readlink(link)
		if err != nil {
			return "", false
		}
		dir := filepath.Join(filepath.Dir(link), t)
		return dir, exists(dir)
	}
	if dir, ok := there(); ok && !f.refresh {
		return dir, nil
	}
	if f.offline {
		return "", errOffline
	}
	unlock, err := lock(ctx, f.cache, f.progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	if dir, ok := there(); ok && !f.refresh { // another one was faster
		return dir, nil
	}
	name, err := bring(ctx, filepath.Dir(link))
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(link), name), point(link, name)
}

// version is one of Debian's as a file name.
func version(s string) string { return strings.NewReplacer("/", "_", ":", "_").Replace(s) }

// qemu finds QEMU: $DEVXLAB_QEMU, PATH, the cache, the mirror.
func (f *finder) qemu(ctx context.Context) (*QEMU, error) {
	const program = "qemu-system-x86_64"
	if p := os.Getenv("DEVXLAB_QEMU"); p != "" {
		q, ok, err := askQEMU(ctx, p)
		if err == nil && !ok {
			err = fmt.Errorf("%w: it is %s", ErrQEMU, q.Version)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: $DEVXLAB_QEMU must name a %s of version %d.%d or newer", err, program, needMajor, needMinor)
		}
		return q, nil
	}
	found := "none is installed"
	if p, err := exec.LookPath(program); err == nil {
		q, ok, err := askQEMU(ctx, p)
		switch {
		case err != nil:
			found = err.Error()
		case ok:
			return q, nil
		default:
			found = "the installed one is " + q.Version
		}
	}
	dir, err := f.cached(ctx, "qemu/current", f.bringQEMU)
	if err == nil {
		var q *QEMU
		var ok bool
		if q, ok, err = unpacked(ctx, dir); err == nil && !ok {
			err = fmt.Errorf("%w: the mirror's is %s", ErrQEMU, q.Version)
		}
		if err == nil {
			return q, nil
		}
	}
	return nil, fmt.Errorf("%w: it needs QEMU %d.%d or newer (%s): %w\ninstall qemu-system-x86 (Debian 13: from trixie-backports), or set DEVXLAB_QEMU to a %s", ErrMissing, needMajor, needMinor, found, err, program)
}

func (f *finder) bringQEMU(ctx context.Context, dir string) (string, error) {
	a, err := f.archive(ctx, "", "trixie", "trixie-backports")
	if err != nil {
		return "", err
	}
	// Its version without -t: what backports have, since they are the last suite.
	out, err := a.apt(ctx, "apt-cache", "madison", "qemu-system-x86")
	if err != nil {
		return "", err
	}
	v := madison(out)
	if v == "" {
		return "", errors.New("package qemu-system-x86 is not in trixie, trixie-backports")
	}
	name := version(v)
	return name, install(filepath.Join(dir, name), func(tmp string) error {
		if err := a.download(ctx, tmp, true, f.progress, "qemu-system-x86"); err != nil {
			return err
		}
		for _, waste := range []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/i18n", "var", "usr/share/zoneinfo"} {
			if err := os.RemoveAll(filepath.Join(tmp, waste)); err != nil {
				return err
			}
		}
		_, _, err := unpacked(ctx, tmp)
		return err
	})
}

// madison returns the highest version that "apt-cache madison" lists: the first.
func madison(out []byte) string {
	fields := strings.Split(string(out), "|")
	if len(fields) < 3 {
		return ""
	}
	return strings.TrimSpace(fields[1])
}

// busybox finds a static busybox for the guest.
func (f *finder) busybox(ctx context.Context) (string, error) {
	if p := os.Getenv("DEVXLAB_BUSYBOX"); p != "" {
		if err := checkStatic(p); err != nil {
			return "", fmt.Errorf("$DEVXLAB_BUSYBOX: %w", err)
		}
		return p, nil
	}
	if p, err := exec.LookPath("busybox"); err == nil && checkStatic(p) == nil {
		return p, nil
	}
	dir, err := f.cached(ctx, "busybox/current", func(ctx context.Context, dir string) (string, error) {
		a, err := f.archive(ctx, guestArch, "trixie", "trixie-backports") // where QEMU is, too
		if err != nil {
			return "", err
		}
		s, err := a.show(ctx, "busybox-static")
		if err != nil {
			return "", err
		}
		name := version(s["Version"])
		return name, install(filepath.Join(dir, name), func(tmp string) error {
			if err := a.download(ctx, tmp, false, f.progress, "busybox-static"); err != nil {
				return err
			}
			for _, p := range []string{"usr/bin/busybox", "bin/busybox"} {
				if exists(filepath.Join(tmp, p)) {
					if err := os.Rename(filepath.Join(tmp, p), filepath.Join(tmp, "busybox")); err != nil {
						return err
					}
				}
			}
			return errors.Join(checkStatic(filepath.Join(tmp, "busybox")), os.RemoveAll(filepath.Join(tmp, "usr")), os.RemoveAll(filepath.Join(tmp, "bin")))
		})
	})
	if err != nil {
		return "", fmt.Errorf("%w: it needs a static busybox for x86-64: %w\ninstall busybox-static, or set DEVXLAB_BUSYBOX", ErrMissing, err)
	}
	return filepath.Join(dir, "busybox"), nil
}

func checkStatic(p string) error {
	if !exists(p) {
		return fmt.Errorf("%s: %w", p, fs.ErrNotExist)
	}
	libs, err := libraries(p)
	if err == nil && len(libs) > 0 {
		err = fmt.Errorf("%s is not static: install busybox-static", p)
	}
	return err
}

// kernel finds a kernel: by the caller's words, $DEVXLAB_KERNEL and
// $DEVXLAB_MODULES, in /boot, or by bringing the default.
func (f *finder) kernel(ctx context.Context, image, modules string) (*Kernel, error) {
	image = cmp.Or(image, os.Getenv("DEVXLAB_KERNEL"))
	modules = cmp.Or(modules, os.Getenv("DEVXLAB_MODULES"))
	if image == "" && modules == "" {
		if k := f.installed(ctx, "/boot", "/lib/modules"); k != nil {
			return k, nil
		}
		image = DefaultKernel
	}
	if image == "" {
		return nil, fmt.Errorf("%w: modules %s without their kernel: name it (--kernel, $DEVXLAB_KERNEL)", ErrMissing, modules)
	}
	from, ok := named[image]
	bring := func(ctx context.Context, dir string) (string, error) { return f.bringKernel(ctx, dir, from) }
	if !ok && packagedRelease.MatchString(image) && !exists(image) {
		ok, bring = true, func(ctx context.Context, dir string) (string, error) { return f.bringRelease(ctx, dir, image) }
	}
	if ok {
		if modules != "" {
			return nil, fmt.Errorf("kernel %s comes with its modules: leave out --modules and $DEVXLAB_MODULES", image)
		}
		dir, err := f.cached(ctx, "kernel/"+image, bring)
		if err != nil {
			return nil, fmt.Errorf("%w: no kernel %s: %w\ninstall linux-image-amd64, or set DEVXLAB_KERNEL and DEVXLAB_MODULES to a kernel and its lib/modules/RELEASE", ErrMissing, image, err)
		}
		return brought(dir)
	}
	if !exists(image) {
		return nil, fmt.Errorf("%w: kernel %q is neither a file nor one of %s, nor a release of Debian's such as 6.1.0-57-%s", ErrMissing, image, strings.Join(KernelNames(), ", "), guestArch)
	}
	return f.fromFile(image, modules)
}

// fromFile makes a kernel of a file and the directory of its modules.
func (f *finder) fromFile(image, modules string) (*Kernel, error) {
	image, err := filepath.Abs(image)
	if err != nil {
		return nil, err
	}
	if modules == "" {
		if modules, err = beside(image); err != nil {
			return nil, err
		}
	}
	if modules, err = modulesDir(modules); err != nil {
		return nil, err
	}
	v, err := f.vmlinux(image)
	if err != nil {
		return nil, err
	}
	return &Kernel{Release: releaseOf(modules), Image: v, Modules: modules}, nil
}

// beside guesses where the modules of a kernel are: by its name, vmlinuz-RELEASE.
func beside(image string) (string, error) {
	_, release, ok := strings.Cut(filepath.Base(image), "-")
	if ok {
		root := filepath.Dir(filepath.Dir(image)) // of boot/vmlinuz-…
		for _, d := range []string{filepath.Join(root, "lib/modules", release), filepath.Join(root, "usr/lib/modules", release), "/lib/modules/" + release} {
			if exists(d) {
				return d, nil
			}
		}
	}
	return "", fmt.Errorf("%w: the modules of %s are not found: name their directory lib/modules/RELEASE (--modules, $DEVXLAB_MODULES)", ErrMissing, image)
}

// modulesDir takes lib/modules/RELEASE itself, or a directory above it that has
// only one.
func modulesDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if !exists(filepath.Join(dir, "kernel")) && !exists(filepath.Join(dir, "modules.dep")) && !exists(filepath.Join(dir, "modules.order")) {
		for _, below := range []string{"lib/modules/*", "usr/lib/modules/*", "*"} {
			found, _ := filepath.Glob(filepath.Join(dir, below, "kernel"))
			if len(found) == 1 {
				return filepath.Dir(found[0]), nil
			}
		}
	}
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return "", fmt.Errorf("%w: modules %s: not a directory (--modules, $DEVXLAB_MODULES)", ErrMissing, dir)
	}
	return dir, nil
}

// releaseOf is the name of the modules' directory, except in the cache, where a
// file has it.
func releaseOf(modules string) string {
	if b, err := os.ReadFile(filepath.Join(filepath.Dir(modules), "release")); err == nil {
		return strings.TrimSpace(string(b))
	}
	return filepath.Base(modules)
}

// vmlinux extracts a kernel into the cache, under a name that is its contents.
func (f *finder) vmlinux(image string) (string, error) {
	b, err := os.ReadFile(image)
	if err != nil {
		return "", fmt.Errorf("kernel: %w", err)
	}
	out := filepath.Join(f.cache, "vmlinux", fmt.Sprintf("%x", sha256.Sum256(b)))
	if exists(out) {
		return out, nil
	}
	v, err := Vmlinux(b)
	switch {
	case errors.Is(err, errPayload):
		fmt.Fprintf(f.progress, "devxlab: %s: %v; booting it as it is, which is slower\n", image, err)
		return image, nil
	case err != nil:
		return "", fmt.Errorf("kernel %s: %w", image, err)
	case len(v) == len(b):
		return image, nil
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return "", err
	}
	return out, atomicfile.Write(out, func(w io.Writer) error { _, err := w.Write(v); return err })
}

// installed returns a kernel of this machine whose modules include mlx5: the
// running one if it has, else the newest.
func (f *finder) installed(ctx context.Context, boot, modules string) *Kernel {
	images, _ := filepath.Glob(filepath.Join(boot, "vmlinuz-*"))
	var u unix.Utsname
	_ = unix.Uname(&u)
	running := unix.ByteSliceToString(u.Release[:])
	slices.SortFunc(images, func(a, b string) int {
		ra, rb := strings.HasSuffix(a, "-"+running), strings.HasSuffix(b, "-"+running)
		switch {
		case ra != rb && ra:
			return -1
		case ra != rb:
			return 1
		}
		return -compareReleases(a, b)
	})
	for _, image := range images {
		_, release, _ := strings.Cut(filepath.Base(image), "-")
		dir := filepath.Join(modules, release)
		if found, _ := filepath.Glob(filepath.Join(dir, "kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko*")); len(found) == 0 {
			continue
		}
		k, err := f.fromFile(image, dir)
		if err == nil {
			return k
		}
		fmt.Fprintf(f.progress, "devxlab: not used: %v\n", err) // often readable by root only
	}
	return nil
}

var number = regexp.MustCompile(`\d+`)

// compareReleases orders by the numbers in two names.
func compareReleases(a, b string) int {
	return slices.CompareFunc(number.FindAllString(filepath.Base(a), -1), number.FindAllString(filepath.Base(b), -1), func(x, y string) int {
		x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y))
	})
}

// brought is a kernel in the cache.
func brought(dir string) (*Kernel, error) {
	b, err := os.ReadFile(filepath.Join(dir, "release"))
	if err != nil {
		return nil, fmt.Errorf("%w: delete %s and run this again", err, dir)
	}
	k := &Kernel{Release: strings.TrimSpace(string(b)), Image: filepath.Join(dir, "vmlinux"), Modules: filepath.Join(dir, "modules")}
	if !exists(k.Image) {
		k.Image = filepath.Join(dir, "vmlinuz")
	}
	return k, nil
}

// kernelPart is a package that belongs to a kernel image: since 6.19 Debian
// splits it.
var kernelPart = regexp.MustCompile(`^linux-(image|binary|modules|base)-\d`)

// packagedRelease is what uname -r says of a kernel of Debian's.
var packagedRelease = regexp.MustCompile(`^[1-9][0-9]*\.[0-9]+[0-9a-z.+~-]*-` + guestArch + `$`)

// parts returns the packages of the kernel that a package stands for, such as
// linux-image-amd64, and its version.
func parts(ctx context.Context, a *archive, first string) (names []string, version string, err error) {
	todo := []string{first}
	if kernelPart.MatchString(first) {
		names = todo
	}
	for len(todo) > 0 {
		s, err := a.show(ctx, todo[0])
		if err != nil {
			return nil, "", err
		}
		if version == "" {
			version = s["Version"]
		}
		todo = todo[1:]
		for d := range strings.SplitSeq(s["Depends"], ",") {
			n, _, _ := strings.Cut(strings.TrimSpace(d), " ")
			if kernelPart.MatchString(n) && packageName.MatchString(n) && !slices.Contains(names, n) {
				names, todo = append(names, n), append(todo, n)
			}
		}
	}
	if len(names) == 0 {
		return nil, "", fmt.Errorf("%s of %s names no kernel", first, strings.Join(a.suites, ", "))
	}
	return names, version, nil
}

// What no guest here has hardware for: most of a kernel package.
var wasteModules = []string{"drivers/gpu", "drivers/media", "drivers/staging", "drivers/iio", "drivers/hid", "drivers/hwmon", "drivers/usb", "drivers/scsi",
	"drivers/net/wireless", "drivers/bluetooth", "drivers/input", "drivers/platform", "drivers/ata", "drivers/mmc", "drivers/mtd", "sound"}

func (f *finder) bringKernel(ctx context.Context, dir string, suites []string) (string, error) {
	var best *archive
	var packages []string
	var highest string
	var errs error
	for _, s := range suites {
		a, err := f.archive(ctx, guestArch, s)
		if err == nil {
			var names []string
			var v string
			if names, v, err = parts(ctx, a, "linux-image-"+guestArch); err == nil && (best == nil || newer(ctx, v, highest)) {
				best, packages, highest = a, names, v
			}
		}
		errs = errors.Join(errs, err)
		if ctx.Err() != nil || errors.Is(err, ErrNoMirror) {
			return "", errs
		}
	}
	if best == nil {
		return "", errs
	}
	return f.installKernel(ctx, dir, best, highest, packages)
}

// bringRelease brings the kernel with that uname -r, from where this machine's
// apt takes its packages: one that modules were built for against its headers.
func (f *finder) bringRelease(ctx context.Context, dir, release string) (string, error) {
	a, err := f.archive(ctx, guestArch)
	if err != nil {
		return "", err
	}
	packages, v, err := parts(ctx, a, "linux-image-"+release)
	if err != nil {
		return "", err
	}
	return f.installKernel(ctx, dir, a, v, packages)
}

// installKernel downloads the packages of a kernel and makes its directory of
// them.
func (f *finder) installKernel(ctx context.Context, dir string, a *archive, highest string, packages []string) (string, error) {
	name := version(highest)
	return name, install(filepath.Join(dir, name), func(tmp string) error {
		root := filepath.Join(tmp, "root")
		if err := os.Mkdir(root, 0o755); err != nil {
			return err
		}
		if err := a.download(ctx, root, false, f.progress, packages...); err != nil {
			return err
		}
		if err := arrange(tmp, root); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(packages, ", "), err)
		}
		return os.RemoveAll(root)
	})
}

// arrange makes a kernel's directory of its unpacked packages.
func arrange(dir, root string) error {
	var modules, images []string
	for _, lib := range []string{"lib", "usr/lib"} {
		m, _ := filepath.Glob(filepath.Join(root, lib, "modules/*"))
		modules = append(modules, m...)
	}
	for _, p := range []string{"boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz", "lib/modules/*/vmlinuz"} {
		m, _ := filepath.Glob(filepath.Join(root, p))
		images = append(images, m...)
	}
	if len(modules) != 1 || len(images) == 0 {
		return fmt.Errorf("%d directories of modules and %d kernels in them, not one of each", len(modules), len(images))
	}
	release := filepath.Base(modules[0])
	b, err := os.ReadFile(images[0])
	if err != nil {
		return err
	}
	v, err := Vmlinux(b)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "vmlinux"), v, 0o644)
	} else if errors.Is(err, errPayload) {
		err = os.WriteFile(filepath.Join(dir, "vmlinuz"), b, 0o644)
	}
	if err != nil {
		return err
	}
	for _, p := range []string{"config", "System.map"} {
		if m, _ := filepath.Glob(filepath.Join(root, "boot", p+"-*")); len(m) > 0 {
			if err := os.Rename(m[0], filepath.Join(dir, p)); err != nil {
				return err
			}
		}
	}
	if err := os.Rename(modules[0], filepath.Join(dir, "modules")); err != nil {
		return err
	}
	for _, w := range wasteModules {
		if err := os.RemoveAll(filepath.Join(dir, "modules/kernel", w)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "release"), []byte(release+"\n"), 0o644)
}
