// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/emu/uverbs"
)

// Experiment answers one question.
type Experiment struct {
	Name     string `json:"name"` // "c6"
	Question string `json:"question"`
	Default  bool   `json:"default"`  // runs if no experiment is named
	EmuOnly  bool   `json:"emu_only"` // refuses hardware
	many     bool   // wants room for a million queue pairs

	run    func(ctx context.Context, r *Run) error
	resume func(r *Run) error // reads what an earlier run has left; nil: it cannot be resumed
	text   func(r *Result, p *page)

	// On hardware: how many queue pairs it makes, and what it does with them,
	// in a sentence.
	queuePairs int
	plan       func(r *Run) string

	// How many queue pairs it needs wherever it runs, if max_qp was given; nil: it
	// takes what it may.
	needs func(o Options) int
}

// Experiments returns all of them, in the order in which they run.
func Experiments() []Experiment {
	return []Experiment{micro, c1, c2, c3, c6, c8, timer, scale, rival, tracing}
}

// experiment returns the one of that name, also of those that others put together; its
// zero value has none.
func experiment(name string) Experiment {
	for _, e := range append(Experiments(), Experiment{Name: PatchesName, text: patchesText}, Experiment{Name: PatchedName, text: patchedText}) {
		if e.Name == name {
			return e
		}
	}
	return Experiment{}
}

// isEmulated reports whether a name is that of an emulated device.
func isEmulated(device string) bool { return strings.HasPrefix(device, uverbs.Scheme+":") }

// permille is how much of the queue pairs that a device offers a run on
// hardware may take.
const permille = 700

// room reports an error if n queue pairs are too many for a run on hardware.
func room(d *devx.Device, offered, n int) error {
	if most := offered * permille / 1000; n > most {
		return fmt.Errorf("bench: this makes %d queue pairs, and a run on hardware stops at 70 %% of what the device offers: %s has %d, so at most %d",
			n, d.Name(), offered, most)
	}
	return nil
}

// pinnedPerQP is the memory that a queue pair's queues and doorbell record keep
// locked, in bytes: a page of its own (devx.NewQP).
const pinnedPerQP = 4096

// keptPerQP is what else a queue pair takes, in bytes: 0.6 KiB in the kernel's
// slabs (measured on Linux 6.1), and this program's own.
const keptPerQP = 2048

// lockable reports an error if the kernel would refuse to lock the memory of n
// queue pairs (RLIMIT_MEMLOCK, getrlimit(2)), or has too little of it
// (MemAvailable, proc_meminfo(5)) and would end a program to get more: better
// now than after half an hour.
func (r *Run) lockable(n int) error {
	if r.emulated() {
		return nil
	}
	if free, known := memAvailable("/proc/meminfo"); known {
		if err := memoryError(n, free); err != nil {
			return err
		}
	}
	var limit unix.Rlimit
	if unix.Geteuid() == 0 || unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) != nil {
		return nil
	}
	return lockError(n, limit.Cur)
}

// memAvailable returns the bytes that new programs can have.
func memAvailable(file string) (bytes uint64, known bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &bytes); err == nil {
			return bytes << 10, true
		}
	}
	return 0, false
}

func memoryError(n int, free uint64) error {
	need := uint64(n) * (pinnedPerQP + keptPerQP)
	if need <= free {
		return nil
	}
	return fmt.Errorf("bench: %s queue pairs need about %d MiB of memory and %d MiB are free: for c1, --max-qp %d asks for fewer (in the lab, --mem gives the machine more)",
		count(n), need>>20, free>>20, free/(pinnedPerQP+keptPerQP)*recordsPerPage/(recordsPerPage+1))
}

func lockError(n int, limit uint64) error {
	need := uint64(n) * pinnedPerQP
	if need <= limit {
		return nil
	}
	return fmt.Errorf("bench: %s queue pairs lock %d KiB of memory and %d KiB are allowed: raise it with ulimit -l %d (for c1, --max-qp asks for fewer)",
		count(n), need>>10, limit>>10, need>>10)
}
