// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ownGroup lets a program start in a process group of its own, which is killed
// as a whole: at the end of the context, and with the thread that started it if
// this process is killed.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return killGroup(cmd) }
	cmd.WaitDelay = 2 * time.Second
}

func killGroup(cmd *exec.Cmd) error {
	if cmd.Process == nil || cmd.Process.Pid <= 1 {
		return nil
	}
	return unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
}

// quote writes a command line that a shell reads as these words.
func quote(words []string) string {
	q := make([]string, len(words))
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\$`&|;<>()*?[]{}!#~") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		q[i] = w
	}
	return strings.Join(q, " ")
}
