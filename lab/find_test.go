// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// clean takes away what the machine's user may have set.
func clean(t *testing.T) *finder {
	t.Helper()
	for _, v := range []string{"DEVXLAB_QEMU", "DEVXLAB_KERNEL", "DEVXLAB_MODULES", "DEVXLAB_BUSYBOX"} {
		t.Setenv(v, "")
	}
	t.Setenv("DEVXLAB_CACHE", t.TempDir())
	return &finder{cache: os.Getenv("DEVXLAB_CACHE"), progress: io.Discard}
}

// Without apt the errors say what to install and what to set.
func TestMissing(t *testing.T) {
	f := clean(t)
	t.Setenv("PATH", t.TempDir())
	ctx := t.Context()
	_, qerr := f.qemu(ctx)
	_, berr := f.busybox(ctx)
	_, kerr := f.kernel(ctx, "6.12", "")
	_, ierr := f.fullImage(ctx, fullSuite, nil)
	for want, err := range map[string]error{"DEVXLAB_QEMU": qerr, "DEVXLAB_BUSYBOX": berr, "DEVXLAB_MODULES": kerr, "--image full": ierr} {
		if !errors.Is(err, ErrMissing) || !errors.Is(err, ErrNoMirror) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "apt-get is not installed") {
			t.Errorf("%v, want it to name %s", err, want)
		}
	}
	f.offline = true
	if _, err := f.qemu(ctx); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "devxlab lab fetch") {
		t.Error(err)
	}
}

func TestFindQEMU(t *testing.T) {
	f := clean(t)
	f.offline = true
	ctx := t.Context()
	old, good, bad := script(t, "echo QEMU emulator version 7.2.18"), script(t, "echo QEMU emulator version 10.1.0"), script(t, "echo no >&2; exit 1")
	t.Setenv("DEVXLAB_QEMU", good)
	if q, err := f.qemu(ctx); err != nil || q.Version != "10.1.0" || q.Args[0] != good {
		t.Errorf("%+v, %v", q, err)
	}
	for _, p := range []string{old, bad, "/not/there"} {
		t.Setenv("DEVXLAB_QEMU", p)
		if _, err := f.qemu(ctx); !errors.Is(err, ErrQEMU) || !strings.Contains(err.Error(), "10.1 or newer") {
			t.Errorf("%s: %v", p, err)
		}
	}
	t.Setenv("DEVXLAB_QEMU", "")
	bin := t.TempDir()
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	if err := os.Symlink(old, filepath.Join(bin, "qemu-system-x86_64")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.qemu(ctx); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "the installed one is 7.2.18") {
		t.Errorf("an old one in PATH: %v", err)
	}
}

func TestFindKernel(t *testing.T) {
	f := clean(t)
	f.offline = true
	ctx := t.Context()
	root := t.TempDir()
	modules := map[string][]byte{"boot/vmlinuz-6.1.0-test": bzImage(compressed(t, fakeVmlinux())["zstd"]), "boot/lzo": bzImage([]byte("\x89LZO and so on")), "boot/text": []byte("text")}
	for n, b := range fakeModules() {
		modules["lib/modules/6.1.0-test/"+n] = b
		modules["stock/"+n] = b // as devxlab patches build --packaged has it
	}
	writeFiles(t, root, modules)
	image, dir := filepath.Join(root, "boot/vmlinuz-6.1.0-test"), filepath.Join(root, "lib/modules/6.1.0-test")
	for name, try := range map[string]func() (*Kernel, error){
		"a path, modules beside it": func() (*Kernel, error) { return f.kernel(ctx, image, "") },
		"both":                      func() (*Kernel, error) { return f.kernel(ctx, image, dir) },
		"modules from above":        func() (*Kernel, error) { return f.kernel(ctx, image, root) },
		"variables": func() (*Kernel, error) {
			t.Setenv("DEVXLAB_KERNEL", image)
			t.Setenv("DEVXLAB_MODULES", dir)
			defer t.Setenv("DEVXLAB_KERNEL", "")
			defer t.Setenv("DEVXLAB_MODULES", "")
			return f.kernel(ctx, "", "")
		},
		"installed": func() (*Kernel, error) {
			return f.installed(ctx, filepath.Join(root, "boot"), filepath.Join(root, "lib/modules")), nil
		},
	} {
		k, err := try()
		if err != nil || k == nil || k.Release != "6.1.0-test" || k.Modules != dir {
			t.Errorf("%s: %+v, %v", name, k, err)
			continue
		}
		if b, err := os.ReadFile(k.Image); err != nil || !bytes.Equal(b, fakeVmlinux()) {
			t.Errorf("%s: %s is not the vmlinux: %v", name, k.Image, err)
		}
	}
	if k, err := f.kernel(ctx, filepath.Join(root, "boot/lzo"), dir); err != nil || k.Image != filepath.Join(root, "boot/lzo") {
		t.Errorf("an unknown compression: %+v, %v", k, err)
	}
	for name, c := range map[string]struct {
		image, modules string
		want           string
	}{
		"no such name":           {"6.7", "", "newest"},
		"no release either":      {"6.1.0-57-arm64", "", "such as 6.1.0-57-amd64"},
		"a release, offline":     {"6.1.0-57-amd64", "", "nothing is to be downloaded"},
		"a release and modules":  {"6.1.0-57-amd64", dir, "leave out --modules"},
		"text":                   {filepath.Join(root, "boot/text"), dir, "not an x86-64 kernel"},
		"modules of nothing":     {filepath.Join(root, "boot/text"), "", "--modules"},
		"modules without kernel": {"", dir, "--kernel"},
		"modules not there":      {image, filepath.Join(root, "no"), "not a directory"},
		"a name and modules":     {"6.1", dir, "leave out --modules"},
	} {
		if _, err := f.kernel(ctx, c.image, c.modules); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if k := f.installed(ctx, t.TempDir(), "/lib/modules"); k != nil {
		t.Errorf("installed in an empty /boot: %+v", k)
	}
}

// Of Debian's packages, with modules in /lib or in /usr/lib.
func TestArrange(t *testing.T) {
	for _, lib := range []string{"lib", "usr/lib"} {
		dir := t.TempDir()
		root := filepath.Join(dir, "root")
		files := map[string][]byte{"boot/vmlinuz-6.1.0": bzImage(compressed(t, fakeVmlinux())["xz"]), "boot/config-6.1.0": []byte("CONFIG_X=y"), lib + "/modules/6.1.0/kernel/drivers/gpu/drm.ko": fakeModule()}
		for n, b := range fakeModules() {
			files[lib+"/modules/6.1.0/"+n] = b
		}
		writeFiles(t, root, files)
		if err := arrange(dir, root); err != nil {
			t.Fatal(err)
		}
		k, err := brought(dir)
		if err != nil || k.Release != "6.1.0" || k.Image != filepath.Join(dir, "vmlinux") {
			t.Errorf("%+v, %v", k, err)
		}
		if exists(filepath.Join(k.Modules, "kernel/drivers/gpu")) || !exists(filepath.Join(dir, "config")) {
			t.Error("not as it should be")
		}
		if releaseOf(k.Modules) != "6.1.0" {
			t.Error(releaseOf(k.Modules))
		}
	}
	if err := arrange(t.TempDir(), t.TempDir()); err == nil {
		t.Error("nothing was arranged without an error")
	}
}

// A directory is whole or not there, and brought once.
func TestCached(t *testing.T) {
	f := clean(t)
	failed := errors.New("failed")
	if _, err := f.cached(t.Context(), "x/current", func(_ context.Context, dir string) (string, error) {
		return "1", install(filepath.Join(dir, "1"), func(tmp string) error {
			return errors.Join(os.WriteFile(filepath.Join(tmp, "half"), nil, 0o644), failed)
		})
	}); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(f.cache, "x")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	var times atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			other := &finder{cache: f.cache, progress: io.Discard}
			dir, err := other.cached(t.Context(), "x/current", func(_ context.Context, dir string) (string, error) {
				times.Add(1)
				return "2", install(filepath.Join(dir, "2"), func(tmp string) error {
					return os.WriteFile(filepath.Join(tmp, "whole"), nil, 0o644)
				})
			})
			if err != nil || !exists(filepath.Join(dir, "whole")) {
				t.Errorf("%s, %v", dir, err)
			}
		})
	}
	wg.Wait()
	if times.Load() != 1 {
		t.Errorf("brought %d times", times.Load())
	}
	// A link to what somebody deleted is brought again.
	if err := os.RemoveAll(filepath.Join(f.cache, "x/2")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.cached(t.Context(), "x/current", func(_ context.Context, dir string) (string, error) {
		return "3", install(filepath.Join(dir, "3"), func(string) error { return nil })
	}); err != nil || !exists(filepath.Join(f.cache, "x/current")) {
		t.Error(err)
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lock(t.Context(), dir, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var said bytes.Buffer
	if _, err := lock(ctx, dir, &said); !errors.Is(err, context.Canceled) || !strings.Contains(said.String(), "another devxlab") {
		t.Errorf("%v, %q", err, said.String())
	}
	unlock()
	if unlock, err = lock(t.Context(), dir, io.Discard); err != nil {
		t.Fatal(err)
	}
	unlock()
	if _, err := lock(t.Context(), "/proc/nowhere", io.Discard); err == nil || !strings.Contains(err.Error(), "DEVXLAB_CACHE") {
		t.Errorf("a cache that cannot be made: %v", err)
	}
}

// Old consoles go, the newest stay.
func TestConsoleFile(t *testing.T) {
	dir := t.TempDir()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range 60 {
		f, err := consoleFile(dir, start.Add(time.Duration(i)*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // at once
		f, err := consoleFile(dir, start.Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	left, err := filepath.Glob(filepath.Join(dir, "console/*.log"))
	if err != nil || len(left) != 50 || !strings.Contains(left[49], "20260102-040405.001") {
		t.Errorf("%d, %v", len(left), err)
	}
}

func TestCompareReleases(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"vmlinuz-6.1.0-50-amd64", "vmlinuz-6.1.0-9-amd64", 1}, {"vmlinuz-6.12.1", "vmlinuz-6.2.0", 1}, {"vmlinuz-5.10", "vmlinuz-5.10", 0}, {"vmlinuz-x", "vmlinuz-1", -1}} {
		if got := compareReleases(c.a, c.b); got != c.want {
			t.Errorf("%s, %s: %d", c.a, c.b, got)
		}
	}
}

// Images are of the suites of Debian that the lab knows, and of Debian 12 where
// none is named.
func TestSuiteOf(t *testing.T) {
	for image, want := range map[string]string{"full": "bookworm", "full:trixie": "trixie", "full:sid": "sid", "basic": "", "full:": "", "full:buster": "", "fullsid": ""} {
		suite, ok := suiteOf(image)
		if suite != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", image, suite, ok)
		}
	}
}
