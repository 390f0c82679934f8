// SPDX-License-Identifier: BSD-2-Clause

// Package arrows holds the imports between the rooms of this module against
// docs/architecture.md: they go down the list of rooms and never back.
package arrows

import (
	"os/exec"
	"strings"
	"testing"
)

// may lists what each room imports of this module, by prefix of the path below
// it. A room that is not here must be added, with the reason, to
// docs/architecture.md too.
var may = map[string][]string{
	"internal/cheader":       {},
	"internal/cstruct":       {"internal/headergen", "internal/require"},
	"internal/dma":           {},
	"internal/headergen":     {"internal/cheader"},
	"internal/headergen/cmd": {"internal/headergen"},
	"internal/qpparams":      {"mlx5"},
	"internal/race":          {},
	"internal/require":       {},
	"internal/testdev":       {"internal/require"},
	"internal/ucmfake":       {"mlx5", "devx", "devx/abi", "cm", "cm/abi", "cm/roce", "internal/usermem"},
	"internal/usermem":       {},
	"internal/mutate":        {},
	"internal/leaktest":      {"internal/usermem"},
	"internal/arrows":        {},
	"internal/atomicfile":    {},
	"mlx5":                   {},
	"mlx5/explain":           {"mlx5"},
	"devx/abi":               {},
	"devx":                   {"mlx5", "devx/abi", "internal/usermem"},
	"devx/devxtest":          {"devx", "devx/abi", "internal/usermem"},
	"batch":                  {"mlx5", "devx"},
	"timerfix":               {"mlx5", "devx", "batch"},
	"emu/fw":                 {"mlx5"},
	"emu/wire":               {},
	"emu/uverbs":             {"mlx5", "emu/fw", "devx/abi", "devx", "internal/dma", "internal/usermem"},
	"emu/pci":                {"mlx5", "emu/fw"},
	"emu/vfiouser":           {"internal/dma"},
	"cm":                     {"mlx5", "devx", "devx/abi", "cm/abi", "cm/roce", "internal/usermem"},
	"cm/abi":                 {"devx/abi"},
	"cm/load":                {"cm", "cm/roce"},
	"internal/labcapture":    {},
	"internal/wireshark":     {"cm/roce", "cm/capture", "internal/require"},
	"cm/roce":                {},
	"cm/capture":             {"cm/roce"},
	"cm/timeout":             {},
	"ebpf":                   {"mlx5"},
	"verify":                 {"mlx5", "devx"},
	"bench":                  {"ebpf", "cm", "cm/load", "mlx5", "devx", "batch", "timerfix", "emu/fw", "emu/uverbs", "internal/qpparams", "internal/atomicfile"},
	"bench/report":           {"bench"},
	"bench/calibrate":        {"mlx5", "devx", "emu/fw", "emu/uverbs", "internal/atomicfile"},
	"lab":                    {"lab/guest", "internal/atomicfile"},
	"lab/guest":              {},
	"patches":                {},
	"cmd/devxlab":            {"ebpf", "cm", "cm/capture", "cm/load", "cm/roce", "cm/timeout", "verify", "batch", "lab", "lab/guest", "mlx5", "mlx5/explain", "devx", "emu/fw", "emu/pci", "emu/uverbs", "emu/vfiouser", "emu/wire", "bench", "bench/calibrate", "bench/report", "internal/qpparams", "internal/atomicfile", "patches"},
}

func TestArrows(t *testing.T) {
	module := goList(t, "-m")
	prefix := strings.TrimSpace(module) + "/"
	for line := range strings.Lines(goList(t, "-f", `{{.ImportPath}} {{join .Imports " "}}`, "../../...")) {
		words := strings.Fields(line)
		room := strings.TrimPrefix(words[0], prefix)
		allowed, known := may[room]
		if !known {
			t.Errorf("room %s is not in the list", room)
			continue
		}
		for _, imported := range words[1:] {
			if imported == "C" || imported == "syscall" {
				t.Errorf("%s imports %q", room, imported)
			}
			to, ours := strings.CutPrefix(imported, prefix)
			if ours && !contains(allowed, to) {
				t.Errorf("%s imports %s, against the arrows", room, to)
			}
		}
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

func goList(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("go list %v: %v\n%s", args, err, out)
	}
	return string(out)
}
