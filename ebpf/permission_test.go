// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Without the capabilities there is an error that names them.
func TestNoCapability(t *testing.T) {
	type result struct {
		dropped, err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // which ends with the goroutine, and its capabilities with it
		var r result
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if r.dropped = unix.Capget(&header, &data[0]); r.dropped == nil {
			for _, c := range []int{unix.CAP_BPF, unix.CAP_SYS_ADMIN} {
				data[c/32].Effective &^= 1 << (c % 32)
			}
			r.dropped = unix.Capset(&header, &data[0])
		}
		_, r.err = Attach(Options{})
		done <- r
	}()
	r := <-done
	if r.dropped != nil {
		t.Fatal(r.dropped)
	}
	if !errors.Is(r.err, ErrNoPermission) || !strings.Contains(r.err.Error(), "CAP_BPF, ") || !strings.Contains(r.err.Error(), "CAP_SYS_ADMIN: run it as root") {
		t.Error(r.err)
	}
}
