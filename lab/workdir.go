// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	workPrefix = "devxlab-lab-"
	workLock   = "lock"
	workYoung  = time.Minute // a directory that may be about to be locked
)

// workDir makes the directory of a run: its initrd and its sockets. The kernel
// lets go of the lock in it when the process ends, however it does; what killed
// ones have left is taken away here.
func workDir() (dir string, remove func(), err error) {
	sweep(os.TempDir(), time.Now())
	if dir, err = os.MkdirTemp("", workPrefix); err != nil {
		return "", nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, workLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", nil, err
	}
	return dir, func() {
		_ = os.RemoveAll(dir)
		_ = f.Close()
	}, nil
}

// sweep removes the directories of runs whose process is gone. What it may not
// look into is somebody else's, and stays.
func sweep(parent string, now time.Time) {
	dirs, _ := filepath.Glob(filepath.Join(parent, workPrefix+"*"))
	for _, d := range dirs {
		fi, err := os.Lstat(d)
		if err != nil || !fi.IsDir() || now.Sub(fi.ModTime()) < workYoung {
			continue
		}
		f, err := os.OpenFile(filepath.Join(d, workLock), os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err == nil {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			_ = f.Close()
		}
		if err == nil || os.IsNotExist(err) { // without one: of a devxlab that was killed before it had made it
			_ = os.RemoveAll(d)
		}
	}
}
