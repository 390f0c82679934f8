// SPDX-License-Identifier: BSD-2-Clause

// Package leaktest makes the tests of a package fail if they leave something
// open: file descriptors, mapped user memory, goroutines, or what they have
// told Track of.
//
//	func TestMain(m *testing.M) { leaktest.Main(m) }
//
// The package is for tests only.
package leaktest

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/internal/usermem"
)

// patience is how long something may take to go away by itself: a goroutine
// that was told to end, a descriptor that one closes.
const patience = 10 * time.Second

var (
	mu      sync.Mutex
	tracked = map[*string]string{} // what it is; the stack that made it
)

// Track registers something that a test has opened. done is to be called when
// it is closed; until then it is a leak, reported with the stack of this call.
func Track(what string) (done func()) {
	mu.Lock()
	defer mu.Unlock()
	tracked[&what] = string(debug.Stack())
	return func() {
		mu.Lock()
		defer mu.Unlock()
		delete(tracked, &what)
	}
}

// Main runs the tests and exits: with status 1 if one failed, or if something
// was left open, by its own account or by that of more.
func Main(m *testing.M, more ...func() []string) {
	// What the runtime keeps once it has it: descriptors to poll with, and the
	// goroutine of os/signal, which fuzzing starts.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCONT)
	signal.Stop(signals)
	if r, w, err := os.Pipe(); err == nil {
		_ = r.SetReadDeadline(time.Unix(1, 0))
		_, _ = r.Read(make([]byte, 1))
		_, _ = r.Close(), w.Close()
	}
	fds, regions, goroutines := descriptors(), usermem.Live(), runtime.NumGoroutine()
	code := m.Run()
	leaks := func() []string {
		found := left(fds, regions, goroutines)
		for _, f := range more {
			found = append(found, f()...)
		}
		return found
	}
	found := leaks()
	for end := time.Now().Add(patience); len(found) > 0 && time.Now().Before(end); found = leaks() {
		time.Sleep(time.Millisecond)
	}
	if len(found) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: left open by the tests:\n%s\n", strings.Join(found, "\n"))
		code = max(code, 1)
	}
	os.Exit(code)
}

func left(fds map[string]string, regions, goroutines int) (found []string) {
	mu.Lock()
	for what, stack := range tracked {
		found = append(found, *what+", opened at\n"+stack)
	}
	mu.Unlock()
	for fd, what := range descriptors() {
		if fds[fd] != what {
			found = append(found, "file descriptor "+fd+": "+what)
		}
	}
	if n := usermem.Live(); n != regions {
		found = append(found, fmt.Sprintf("user memory: %d regions, %d at the start", n, regions))
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		var b strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&b, 2)
		found = append(found, fmt.Sprintf("goroutines: %d, %d at the start:\n%s", n, goroutines, b.String()))
	}
	return found
}

// descriptors returns what each open descriptor is.
func descriptors() map[string]string {
	const dir = "/proc/self/fd"
	open := map[string]string{}
	names, _ := os.ReadDir(dir)
	for _, e := range names {
		if what, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil { // not the one that reads the directory
			open[e.Name()] = what
		}
	}
	return open
}
