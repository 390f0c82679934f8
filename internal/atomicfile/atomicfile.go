// SPDX-License-Identifier: BSD-2-Clause

// Package atomicfile writes files that are whole or not there: never half of
// one under the name that readers look for, whatever ends the program or fills
// the disk.
package atomicfile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Write makes the file at path from what write gives: into a temporary file
// beside it, which is synced and then takes the name. On an error the file at
// path is as it was. A device or a pipe is not replaced but written to.
func Write(path string, write func(io.Writer) error) (err error) {
	if fi, err := os.Stat(path); err == nil && !fi.Mode().IsRegular() && !fi.IsDir() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(buffered(f, write), f.Close())
	} else if err == nil && fi.IsDir() {
		return &fs.PathError{Op: "write", Path: path, Err: unix.EISDIR}
	}
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to // a link stays one, and what it names is replaced
	}
	return place(path, write, os.Rename)
}

// Create is Write for a file that must not be there: if it is, the error is
// fs.ErrExist, also if it came in the meantime.
func Create(path string, write func(io.Writer) error) error {
	if _, err := os.Lstat(path); err == nil {
		return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	return place(path, write, func(tmp, path string) error {
		// A link, unlike a rename, replaces nothing.
		if err := os.Link(tmp, path); err == nil || errors.Is(err, fs.ErrExist) {
			return errors.Join(err, os.Remove(tmp))
		}
		return os.Rename(tmp, path) // a file system without links
	})
}

// place writes a temporary file and gives it the name.
func place(path string, write func(io.Writer) error, name func(tmp, path string) error) (err error) {
	// Not os.CreateTemp, whose files only their owner can read.
	tmp := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%016x.tmp", filepath.Base(path), rand.Uint64()))
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp)
		}
	}()
	if err := errors.Join(fill(f, write), f.Close()); err != nil {
		return err
	}
	if err := name(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// fill writes, and waits for the disk: a full one may say so only then.
func fill(f *os.File, write func(io.Writer) error) error {
	if err := buffered(f, write); err != nil {
		return err
	}
	return f.Sync()
}

func buffered(f *os.File, write func(io.Writer) error) error {
	w := bufio.NewWriterSize(f, 64<<10)
	if err := write(w); err != nil {
		return err
	}
	return w.Flush()
}

// syncDir makes the new name last. Some file systems cannot sync a directory:
// there it lasts when it lasts.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return nil // written, and readable by its name
	}
	err = d.Sync()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return errors.Join(err, d.Close())
}
