// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// fullSuite is where the larger image's packages are from if nothing else is
// said: Debian 12, whose rdma-core 44 has pyverbs for test_mlx5_devx and loads on
// every kernel here.
const fullSuite = "bookworm"

// suiteOf returns the suite that an image's packages are from, or false if it is
// no image of packages.
func suiteOf(image string) (suite string, ok bool) {
	suite, named := strings.CutPrefix(image, ImageFull+":")
	switch {
	case image == ImageFull:
		return fullSuite, true
	case named && slices.Contains(suites, suite):
		return suite, true
	}
	return "", false
}

// fullPackages are what the larger image has, with their dependencies.
var fullPackages = []string{"ibverbs-utils", "ibverbs-providers", "rdmacm-utils", "rdma-core", "infiniband-diags", "perftest", "python3-pyverbs", "python3-scapy", "iproute2", "ethtool", "iputils-ping", "procps", "tcpdump"}

// What of these packages no program in the guest reads.
var imageWaste = []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/i18n", "usr/share/lintian", "usr/share/bash-completion",
	"usr/share/zoneinfo", "usr/share/perl", "usr/share/perl5", "usr/lib/x86_64-linux-gnu/perl", "usr/lib/x86_64-linux-gnu/perl-base", "usr/lib/x86_64-linux-gnu/gconv",
	"usr/lib/udev", "usr/lib/systemd", "lib/udev", "lib/systemd", "usr/share/pixmaps",
	"usr/lib/python3.*/test", "usr/lib/python3.*/idlelib", "usr/lib/python3.*/ensurepip", "var/lib", "var/cache", "etc/init.d", "usr/share/tcl8.6"} // patterns

// fullImage finds or makes the directory of the larger image, of packages of a
// suite: those that it always has, and more.
func (f *finder) fullImage(ctx context.Context, suite string, more []string) (string, error) {
	packages := slices.Concat(fullPackages, slices.Sorted(slices.Values(more)))
	// Another list is another image.
	id := fmt.Sprintf("%x", sha256.Sum256([]byte(suite+strings.Join(slices.Concat(packages, imageWaste), " "))))[:12]
	dir, err := f.cached(ctx, "image/full-"+id, func(ctx context.Context, dir string) (string, error) {
		a, err := f.archive(ctx, guestArch, suite)
		if err != nil {
			return "", err
		}
		s, err := a.show(ctx, "rdma-core")
		if err != nil {
			return "", err
		}
		name := "rdma-core-" + version(s["Version"]) + "-" + id
		return name, install(filepath.Join(dir, name), func(tmp string) error {
			if err := a.download(ctx, tmp, true, f.progress, packages...); err != nil {
				return err
			}
			if err := prune(tmp); err != nil {
				return err
			}
			precompile(ctx, tmp, f.progress)
			return complete(tmp)
		})
	})
	if err != nil {
		return "", fmt.Errorf("%w: no full image: %w\nleave out --image, or bring it on a machine with a Debian mirror (devxlab lab fetch --image %s%s) and copy %s",
			ErrMissing, err, ImageFull+":"+suite, strings.Join(append([]string{""}, more...), " --package "), f.cache)
	}
	return dir, nil
}

// docTests is where the packages have rdma-core's own tests, and testDir where
// the guest has them: python3 tests/run_tests.py in the directory above.
const (
	docTests = "usr/share/doc/rdma-core/tests"
	testDir  = "usr/share/rdma-core/tests"
)

// prune takes out what is not needed, and unpacks the tests, most of which are
// compressed as documentation is.
func prune(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(testDir)), 0o755); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(dir, docTests), filepath.Join(dir, testDir)); err != nil {
		return err
	}
	packed, err := filepath.Glob(filepath.Join(dir, testDir, "*.gz"))
	if err != nil {
		return err
	}
	for _, p := range packed {
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if b, err = decompress(b, false); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if err := errors.Join(os.WriteFile(strings.TrimSuffix(p, ".gz"), b, 0o644), os.Remove(p)); err != nil {
			return err
		}
	}
	for _, w := range imageWaste {
		found, err := filepath.Glob(filepath.Join(dir, w))
		if err != nil {
			return err
		}
		for _, p := range found {
			if err := os.RemoveAll(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// precompile lets the image's own Python compile its modules, which under
// emulation costs seconds at each start. Hashes that are not checked, since the
// guest's files have no times. Without it all works, more slowly.
func precompile(ctx context.Context, dir string, progress io.Writer) {
	old, merged := filepath.Join(dir, "lib/x86_64-linux-gnu"), filepath.Join(dir, "usr/lib/x86_64-linux-gnu")
	libs, loader := old+":"+merged, filepath.Join(merged, "ld-linux-x86-64.so.2")
	if !exists(loader) { // in Debian 12 not yet in /usr
		loader = filepath.Join(old, "ld-linux-x86-64.so.2")
	}
	interpreters, _ := filepath.Glob(filepath.Join(dir, "usr/bin/python3.[0-9]*"))
	if len(interpreters) == 0 {
		return
	}
	cmd := aptCommand(ctx, loader, "--library-path", libs, interpreters[0], "-m", "compileall", "-q",
		"--invalidation-mode", "unchecked-hash", filepath.Join(dir, "usr/lib/python3/dist-packages"), filepath.Join(dir, "usr/lib", filepath.Base(interpreters[0])), filepath.Join(dir, testDir))
	cmd.Env = append(cmd.Env, "PYTHONHOME="+filepath.Join(dir, "usr"))
	if _, err := output(cmd); err != nil {
		fmt.Fprintf(progress, "devxlab: Python's modules are not compiled, which is slower in the guest: %v\n", err)
	}
}

// complete checks that the image has what it is for.
func complete(dir string) error {
	for _, p := range []string{"usr/bin/ibv_devinfo", "usr/bin/ib_send_bw", "usr/lib/x86_64-linux-gnu/libibverbs", testDir + "/test_mlx5_devx.py"} {
		if !exists(filepath.Join(dir, p)) {
			return fmt.Errorf("%s: %w", p, fs.ErrNotExist)
		}
	}
	return nil
}
