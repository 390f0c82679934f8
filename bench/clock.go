// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"strings"
	"time"

	"devxlab.example/emu/fw"
	"devxlab.example/emu/uverbs"
)

// stopwatch reads the time that a device's commands take: that of its clock
// where it is virtual, else the machine's.
type stopwatch struct {
	virtual *fw.VirtualClock
	start   time.Time
}

func stopwatchOf(device string) stopwatch {
	w := stopwatch{start: time.Now()}
	if emu, ok := uverbs.Lookup(device); ok {
		w.virtual, _ = emu.HCA().Clock().(*fw.VirtualClock)
	}
	return w
}

// now returns the time since any instant.
func (w *stopwatch) now() time.Duration {
	if w.virtual != nil {
		return w.virtual.Now()
	}
	return time.Since(w.start)
}

// withOption adds an option to the name of an emulated device, unless it has
// one of that key.
func withOption(device, key, value string) string {
	scheme, options, _ := strings.Cut(device, ":")
	for o := range strings.SplitSeq(options, ",") {
		if k, _, _ := strings.Cut(o, "="); k == key {
			return device
		}
	}
	if options != "" {
		options += ","
	}
	return scheme + ":" + options + key + "=" + value
}
