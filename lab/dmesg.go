// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// trouble is what a kernel says when something is wrong with itself: lib/bug.c,
// kernel/panic.c, kernel/hung_task.c, kernel/watchdog.c, kernel/rcu,
// kernel/locking/lockdep.c, lib/ubsan.c, mm/kasan, lib/refcount.c. A driver's own
// words about its device are not.
var trouble = regexp.MustCompile(strings.Join([]string{
	`cut here \]---`,
	`\bWARNING: (CPU: |\S+ at |possible |suspicious |inconsistent |held |lock |bad |nested |chain |locking |kernel stack|stack going|HARDIRQ|SOFTIRQ|at )`,
	`\bBUG: `, `\bkernel BUG at `, `\bBUG [a-z]\S* \(`, // the last: slub
	`\bOops\b`, `general protection fault`, `\bKernel panic\b`, `double fault`, `stack segment:`, `invalid opcode:`, `divide error:`,
	`INFO: task .* blocked for more than`, `blocked for more than \d+ seconds`,
	`soft lockup`, `[Hh]ard LOCKUP`, `detected (expedited )?stalls?\b`, `self-detected stall`, `rcu.*kthread starved`,
	`INFO: possible (recursive|circular|irq)`, `INFO: trying to register non-static key`, `DEBUG_LOCKS_WARN_ON`, `turning off the locking correctness validator`,
	`\bUBSAN:`, `\bKASAN:`, `\bKCSAN:`, `\bKFENCE:`, `refcount_t:`, `list_(add|del) corruption`,
	`^(\[[^]]*\] *)?Call Trace:`,
	`Unable to handle kernel`,
}, "|"))

// around is how many lines after a bad one are shown with it.
const around = 25

// longest is where a line is cut.
const longest = 64 << 10

// KernelError is trouble that the guest's kernel reported.
type KernelError struct {
	Lines []string // the first report, from its first line on
	More  int      // further lines that say trouble
}

func (e *KernelError) Error() string {
	more := ""
	if e.More > 0 {
		more = fmt.Sprintf("\n(and %d further lines like that)", e.More)
	}
	return "the guest's kernel reports trouble:\n  " + strings.Join(e.Lines, "\n  ") + more
}

// watcher reads a console as it is written and keeps what is trouble.
type watcher struct {
	mu      sync.Mutex
	partial []byte
	lines   []string
	bad     int
	last    []string // the last lines of all
}

// Write never fails.
func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.partial = append(w.partial, p...)
	for {
		i := bytes.IndexByte(w.partial, '\n')
		if i < 0 {
			break
		}
		w.line(string(w.partial[:i]))
		w.partial = w.partial[i+1:]
	}
	if len(w.partial) > longest { // no kernel writes such a line
		w.line(string(w.partial))
		w.partial = nil
	}
	return len(p), nil
}

func (w *watcher) line(s string) {
	s = strings.TrimRight(s, "\r")
	w.last = append(w.last, s)
	if len(w.last) > around {
		w.last = w.last[1:]
	}
	bad := trouble.MatchString(s)
	if bad {
		w.bad++
	}
	if (bad || len(w.lines) > 0) && len(w.lines) < around {
		w.lines = append(w.lines, s)
	}
}

// err returns a *KernelError, or nil if all was well.
func (w *watcher) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.partial) > 0 {
		w.line(string(w.partial))
		w.partial = nil
	}
	if w.bad == 0 {
		return nil
	}
	shown := 0
	for _, l := range w.lines {
		if trouble.MatchString(l) {
			shown++
		}
	}
	return &KernelError{Lines: append([]string(nil), w.lines...), More: w.bad - shown}
}

// tail returns the last lines.
func (w *watcher) tail() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.last, "\n") + string(w.partial)
}
