// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
)

// Places that a figure can come from.
const (
	PlaceEmu = "emu" // kernel and NIC emulated in the process
	PlaceHW  = "hw"  // a device of this machine
)

// Provenance says where figures come from.
type Provenance struct {
	Place      string  `json:"place"`
	Device     string  `json:"device"`
	Profile    string  `json:"profile,omitempty"` // of the emulated device
	Firmware   string  `json:"firmware,omitempty"`
	Kernel     string  `json:"kernel"`
	Stack      string  `json:"stack"` // inbox driver or OFED
	CPU        string  `json:"cpu"`
	CPUs       int     `json:"cpus"`
	GOMAXPROCS int     `json:"gomaxprocs"`
	Go         string  `json:"go"`
	Commit     string  `json:"commit"`
	Steal      float64 `json:"steal"` // share of CPU time that the hypervisor took during the run, 0 to 1
}

// commit is set by the linker (make bench); otherwise the build says it.
var commit string

func provenance(info devx.Info, profile string) Provenance {
	p := Provenance{
		Place: PlaceHW, Device: info.Name, Firmware: info.Firmware, Stack: info.Stack.String(), Kernel: kernel(),
		CPU: cpuModel(), CPUs: runtime.NumCPU(), GOMAXPROCS: runtime.GOMAXPROCS(0), Go: runtime.Version(), Commit: revision(),
	}
	if info.Emulated {
		p.Place, p.Profile, p.Stack = PlaceEmu, profile, "none: emulated in the process"
	}
	return p
}

// Where says it in one line.
func (p Provenance) Where() string {
	s := fmt.Sprintf("%s, %s", p.Place, p.Device)
	if p.Profile != "" {
		s += ", profile " + p.Profile
	}
	return fmt.Sprintf("%s; %s, %d CPUs, Linux %s, %s, commit %s", s, p.CPU, p.CPUs, p.Kernel, p.Go, p.Commit)
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return runtime.GOARCH
}

func revision() string {
	if commit != "" {
		return commit
	}
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}

// cpuTime is the first line of /proc/stat, in clock ticks.
type cpuTime struct{ total, steal uint64 }

func readCPUTime() (t cpuTime) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	for i, f := range strings.Fields(string(line)) {
		v, err := strconv.ParseUint(f, 10, 64)
		if i == 0 || i > 8 || err != nil { // guest time is in user time already
			continue
		}
		t.total += v
		if i == 8 {
			t.steal = v
		}
	}
	return t
}

// stealSince returns the share of CPU time that was stolen since t.
func stealSince(t cpuTime) float64 {
	now := readCPUTime()
	if now.total <= t.total {
		return 0
	}
	return float64(now.steal-t.steal) / float64(now.total-t.total)
}
