// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// CacheDir is where QEMU, kernels and console logs are kept:
// $DEVXLAB_CACHE, else devxlab in the user's cache directory (os.UserCacheDir).
// All of it may be deleted at any time when no lab runs.
func CacheDir() (string, error) {
	if d := os.Getenv("DEVXLAB_CACHE"); d != "" {
		return filepath.Abs(d)
	}
	d, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory: %w: set DEVXLAB_CACHE to a directory of yours", err)
	}
	return filepath.Join(d, "devxlab"), nil
}

// lock takes the cache for itself, so that two programs do not download the same
// at once. The kernel lets go of it when the process ends, however it does.
func lock(ctx context.Context, cache string, progress io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("%w: set DEVXLAB_CACHE to a directory of yours", err)
	}
	f, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("%w: set DEVXLAB_CACHE to a directory of yours", err)
	}
	for said := false; ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		if !said {
			said = true
			fmt.Fprintf(progress, "devxlab: another devxlab is filling %s; waiting for it\n", cache)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// install makes the directory at path from what fill puts into an empty one
// beside it: whole or not there. What is at path stays if it is there.
func install(path string, fill func(dir string) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := fill(tmp); err != nil {
		return err
	}
	err = os.Rename(tmp, path)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

// point makes the link at path point to target, a name in its own directory.
func point(path, target string) error {
	tmp := path + ".new"
	_ = os.Remove(tmp)
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// consoleFile makes the file for the console of a run, and removes the oldest
// ones.
func consoleFile(cache string, now time.Time) (*os.File, error) {
	const keep = 50
	dir := filepath.Join(cache, "console")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if old, err := filepath.Glob(filepath.Join(dir, "*.log")); err == nil { // sorted, and so by time
		for len(old) >= keep {
			_ = os.Remove(old[0])
			old = old[1:]
		}
	}
	for { // a process may begin several runs in one millisecond
		name := fmt.Sprintf("%s-%d.log", now.Format("20060102-150405.000"), os.Getpid())
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
		now = now.Add(time.Millisecond)
	}
}
