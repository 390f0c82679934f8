// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bufio"
	"bytes"
	"math"
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
	PlaceLab = "lab" // a real kernel in a virtual machine; the NIC is emulated
	PlaceHW  = "hw"  // a device of this machine
)

// Provenance says where figures come from.
type Provenance struct {
	Place      string `json:"place"`
	Device     string `json:"device"`
	Profile    string `json:"profile,omitempty"` // of the emulated device
	Firmware   string `json:"firmware,omitempty"`
	Kernel     string `json:"kernel"`
	Stack      string `json:"stack"` // inbox driver or OFED
	CPU        string `json:"cpu"`
	CPUs       int    `json:"cpus"`
	Arch       string `json:"arch"`
	GOMAXPROCS int    `json:"gomaxprocs"` // at the beginning; each series has its own
	Go         string `json:"go"`
	Commit     string `json:"commit"`
	Load       Float  `json:"load"`  // average of the last minute at the beginning; null: unknown
	Steal      Float  `json:"steal"` // share of CPU time that the hypervisor took during the run, 0 to 1; null: unknown
}

// placeVariable is set in a guest of package lab: nothing else there tells its
// device from a card.
const placeVariable = "DEVXLAB_PLACE"

// commit is set by the linker (make bench); otherwise the build says it.
var commit string

func provenance(info devx.Info, profile string) Provenance {
	p := Provenance{
		Device: info.Name, Firmware: info.Firmware, Stack: info.Stack.String(), Kernel: kernel(),
		CPU: cpuModel(), CPUs: runtime.NumCPU(), Arch: runtime.GOARCH, GOMAXPROCS: runtime.GOMAXPROCS(0), Go: runtime.Version(),
		Commit: revision(), Load: loadAverage(), Steal: Float(math.NaN()),
	}
	p.Place = KernelPlace()
	if info.Emulated {
		p.Place, p.Profile, p.Stack = PlaceEmu, profile, "none: emulated in the process"
	}
	return p
}

// KernelPlace returns where a device of this machine's kernel is: PlaceLab in a
// guest of package lab, else PlaceHW.
func KernelPlace() string {
	if os.Getenv(placeVariable) == PlaceLab {
		return PlaceLab
	}
	return PlaceHW
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
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return revisionOf(b.Settings)
}

func revisionOf(settings []debug.BuildSetting) string {
	revision, changed := "unknown", ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+changes"
		}
	}
	return revision + changed
}

func loadAverage() Float {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return Float(math.NaN())
	}
	first, _, _ := strings.Cut(string(b), " ")
	v, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return Float(math.NaN())
	}
	return Float(v)
}

// cpuTime is the first line of /proc/stat, in clock ticks.
type cpuTime struct{ total, steal uint64 }

func readCPUTime() cpuTime {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTime{}
	}
	return parseCPUTime(b)
}

// parseCPUTime reads "cpu user nice system idle iowait irq softirq steal guest
// guest_nice" (proc_stat(5)); the last two are in user and nice already.
func parseCPUTime(stat []byte) (t cpuTime) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	const steal = 8
	f := strings.Fields(string(line))
	if len(f) <= steal || f[0] != "cpu" {
		return cpuTime{}
	}
	for i, s := range f[1 : steal+1] {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return cpuTime{}
		}
		t.total += v
		if i+1 == steal {
			t.steal = v
		}
	}
	return t
}

// stealSince returns the share of CPU time that was stolen since t.
func stealSince(t cpuTime) Float { return stealBetween(t, readCPUTime()) }

func stealBetween(t, now cpuTime) Float {
	if t.total == 0 || now.total <= t.total || now.steal < t.steal {
		return Float(math.NaN())
	}
	return Float(now.steal-t.steal) / Float(now.total-t.total)
}
