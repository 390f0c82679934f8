// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// vmlinux is the kernel itself, as the module of a symbol.
const vmlinux = "vmlinux"

// symbol is a function of the kernel or of a module.
type symbol struct {
	name    string // with what the compiler added
	module  string
	address uint64
}

// kernel is what is known of the running one.
type kernel struct {
	symbols map[string][]symbol // by the name in the source
	loaded  map[string]bool     // modules, also those that are built in
	typed   []string            // modules that tell their types
	release [2]int              // major and minor
}

// emptyBTF is the size of a module's BTF that has a header and no types.
const emptyBTF = 24

// ofed is a module that only OFED's drivers have: what they need of newer kernels.
const ofed = "mlx_compat"

var modules = []string{"mlx5_core", "mlx5_ib", "ib_uverbs", "ib_core", "ib_cm"}

// Errors of Attach. Each comes wrapped in one that says what to do.
var (
	ErrNoPermission = errors.New("tracing the kernel is not permitted")
	ErrNotSupported = errors.New("this kernel cannot be traced")
	ErrNoModule     = errors.New("the driver is not loaded")
	ErrFilter       = errors.New("bad filter")
)

// readKernel reads what the kernel says about itself, below root.
func readKernel(root fs.FS) (*kernel, error) {
	if b, err := fs.ReadFile(root, "sys/kernel/security/lockdown"); err == nil && strings.Contains(string(b), "[confidentiality]") {
		return nil, fmt.Errorf("%w: the kernel is locked down (confidentiality), and programs may not read its memory: boot with lockdown=integrity", ErrNoPermission)
	}
	if _, err := fs.Stat(root, "sys/kernel/btf/vmlinux"); err != nil {
		return nil, fmt.Errorf("%w: it has no BTF (/sys/kernel/btf/vmlinux): it must be built with CONFIG_DEBUG_INFO_BTF", ErrNotSupported)
	}
	if _, err := fs.Stat(root, "sys/bus/event_source/devices/kprobe/type"); err != nil {
		return nil, fmt.Errorf("%w: it has no kprobes: it must be built with CONFIG_KPROBES and CONFIG_KPROBE_EVENTS", ErrNotSupported)
	}
	f, err := root.Open("proc/kallsyms")
	if err != nil {
		return nil, fmt.Errorf("%w: its symbols: %w", ErrNotSupported, err)
	}
	defer f.Close()
	k, err := parseSymbols(f)
	if err != nil {
		return nil, err
	}
	for _, m := range modules {
		k.loaded[m] = live(root, m)
	}
	k.typed = typedModules(root)
	if b, err := fs.ReadFile(root, "proc/sys/kernel/osrelease"); err == nil {
		_, _ = fmt.Sscanf(string(b), "%d.%d", &k.release[0], &k.release[1])
	}
	k.loaded[ofed] = live(root, ofed)
	if !k.loaded["mlx5_core"] {
		return nil, fmt.Errorf("%w: mlx5_core: modprobe mlx5_ib, or wait for it (devxlab trace --wait)", ErrNoModule)
	}
	return k, nil
}

// live reports whether a module is there and initialised. One that is built in has no
// such state.
func live(root fs.FS, module string) bool {
	if _, err := fs.Stat(root, "sys/module/"+module); err != nil {
		return false
	}
	state, err := fs.ReadFile(root, "sys/module/"+module+"/initstate")
	return errors.Is(err, fs.ErrNotExist) || strings.TrimSpace(string(state)) == "live"
}

// hasBTF reports whether the kernel tells a module's types. There may be a file
// that has none.
func hasBTF(root fs.FS, module string) bool {
	info, err := fs.Stat(root, "sys/kernel/btf/"+module)
	return err == nil && info.Size() > emptyBTF
}

// typedModules returns the modules whose types the programs know and that tell them.
func typedModules(root fs.FS) (typed []string) {
	for _, m := range []string{"mlx5_core", "ib_core", "ib_cm"} {
		if hasBTF(root, m) {
			typed = append(typed, m)
		}
	}
	return typed
}

// parseSymbols reads the functions that stages need from the text of /proc/kallsyms.
func parseSymbols(r io.Reader) (*kernel, error) {
	k := &kernel{symbols: map[string][]symbol{}, loaded: map[string]bool{}}
	wanted := map[string]bool{}
	for _, s := range specs {
		for _, p := range slices.Concat(s.ways...) {
			name := p.symbol
			if p.trace {
				name = "__traceiter_" + name
			}
			wanted[name] = true
		}
	}
	hidden := true
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		// address type name, and behind a tab the module in brackets
		address, rest, _ := strings.Cut(lines.Text(), " ")
		kind, rest, _ := strings.Cut(rest, " ")
		name, module, isModule := strings.Cut(rest, "\t")
		source, suffix, _ := strings.Cut(name, ".")
		if !wanted[source] || kind != "t" && kind != "T" || splitOff(suffix) {
			continue
		}
		s := symbol{name: name, module: vmlinux}
		if isModule {
			s.module = strings.Trim(module, "[]")
		}
		var err error
		if s.address, err = strconv.ParseUint(address, 16, 64); err != nil {
			return nil, fmt.Errorf("/proc/kallsyms: %q: not an address", lines.Text())
		}
		hidden = hidden && s.address == 0
		k.symbols[source] = append(k.symbols[source], s)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("/proc/kallsyms: %w", err)
	}
	if hidden {
		return nil, fmt.Errorf("%w: /proc/kallsyms hides the addresses: as root, sysctl kernel.kptr_restrict=1", ErrNoPermission)
	}
	return k, nil
}

// splitOff reports whether what the compiler added to a name says that this is only a
// part of the function, maybe of a clone: isra.0.cold.
func splitOff(suffix string) bool {
	words := strings.Split(suffix, ".")
	return slices.Contains(words, "cold") || slices.Contains(words, "part")
}

// has reports whether there is a function with this very name.
func (k *kernel) has(name, module string) bool { return k.address(name, module) != 0 }

// address returns where a function begins, or 0.
func (k *kernel) address(name, module string) uint64 {
	source, _, _ := strings.Cut(name, ".")
	for _, s := range k.symbols[source] {
		if s.name == name && s.module == module {
			return s.address
		}
	}
	return 0
}
