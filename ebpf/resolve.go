// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"fmt"
	"slices"
	"strings"
)

// Coverage says where a stage is seen, or why it is not: one of the two is empty.
type Coverage struct {
	Stage Stage  `json:"stage"`
	Where string `json:"where,omitempty"`
	Why   string `json:"why,omitempty"`
}

// found is a place with the name that it has in this kernel.
type found struct {
	place
	module  string
	actual  string
	address uint64 // if another module has a function of this name too
}

// String is the place as people write it.
func (f found) String() string {
	switch {
	case f.trace:
		return "tracepoint " + f.actual
	case f.fentry:
		return "fentry " + f.module + ":" + f.actual
	case f.back:
		return "kretprobe " + f.module + ":" + f.actual
	}
	return "kprobe " + f.module + ":" + f.actual
}

// resolution is what can be attached in one kernel.
type resolution struct {
	places [len(specs)][]found
	why    [len(specs)]string
}

// Where the kernel does not tell ib_cm's types, the ids in struct ib_cm_id are where
// they were up to withMask, or from withoutMask on, which has no service_mask. OFED's
// has none either (24.07 and 25.10), on whatever kernel.
var withMask, withoutMask = [2]int{5, 15}, [2]int{6, 1}

// serviceMask reports whether struct ib_cm_id has a service_mask, if that is known.
func (k *kernel) serviceMask() (has, known bool) {
	switch {
	case slices.Contains(k.typed, "ib_cm") || k.loaded[ofed] || slices.Compare(k.release[:], withoutMask[:]) >= 0:
		return false, true
	case slices.Compare(k.release[:], withMask[:]) <= 0:
		return true, true
	}
	return false, false
}

// resolve finds a place for each stage.
func resolve(k *kernel) *resolution {
	r := &resolution{}
	for s := range specs {
		r.places[s], r.why[s] = k.find(&specs[s])
	}
	if _, known := k.serviceMask(); !known && r.why[CMEnd] == "" {
		r.drop(CMEnd, fmt.Sprintf("the kernel does not tell the types of ib_cm (/sys/kernel/btf/ib_cm), and without that its ids are known up to Linux %d.%d and from %d.%d on",
			withMask[0], withMask[1], withoutMask[0], withoutMask[1]))
	}
	r.settle()
	return r
}

// settle drops the stages that need one which is not visible.
func (r *resolution) settle() {
	for range specs { // needs of needs
		for s := range specs {
			for _, need := range specs[s].needs {
				if r.why[s] == "" && r.why[need] != "" {
					r.drop(Stage(s), fmt.Sprintf("it is told from other work by the stage %q, which is not visible", need))
				}
			}
		}
	}
}

func (r *resolution) drop(s Stage, why string) { r.places[s], r.why[s] = nil, why }

// coverage describes it.
func (r *resolution) coverage() []Coverage {
	var all []Coverage
	for s := range specs {
		c := Coverage{Stage: Stage(s), Why: r.why[s]}
		var words []string
		for _, f := range r.places[s] {
			if word := f.String(); f.program != "left" && !slices.Contains(words, word) {
				words = append(words, word)
			}
		}
		c.Where = strings.Join(words, ", ")
		all = append(all, c)
	}
	return all
}

// find returns the places of the first way that this kernel has, or why it has
// none.
func (k *kernel) find(s *spec) (places []found, why string) {
	if s.module != vmlinux && !k.loaded[s.module] {
		return nil, fmt.Sprintf("module %s is not loaded", s.module)
	}
	var reasons []string
	for _, way := range s.ways {
		places = places[:0]
		bad := false
		for _, p := range way {
			f, why := k.lookup(s.module, p)
			if why != "" {
				if bad = true; !slices.Contains(reasons, why) {
					reasons = append(reasons, why)
				}
				continue
			}
			places = append(places, f)
		}
		if !bad {
			return places, ""
		}
	}
	return nil, strings.Join(reasons, "; ")
}

// lookup finds one place.
func (k *kernel) lookup(module string, p place) (f found, why string) {
	f = found{place: p, module: module, actual: p.symbol}
	if p.trace {
		if !k.has("__traceiter_"+p.symbol, vmlinux) {
			return f, fmt.Sprintf("the kernel has no tracepoint %s (CONFIG_EVENT_TRACING)", p.symbol)
		}
		return f, ""
	}
	var elsewhere []string
	renamed := ""
	for _, s := range k.symbols[p.symbol] {
		switch {
		case s.module == module && s.name != p.symbol:
			renamed = s.name
		case s.module != module && module != vmlinux && s.name == p.symbol: // a bare name is the kernel's own first
			elsewhere = append(elsewhere, s.module)
		}
	}
	switch {
	case k.has(p.symbol, module):
		if len(elsewhere) > 0 && !p.back {
			f.address = k.address(p.symbol, module)
			return f, ""
		}
		if len(elsewhere) > 0 {
			return f, fmt.Sprintf("the symbol %s stands in %s too, and its return is probed by name", p.symbol, strings.Join(elsewhere, " and "))
		}
		return f, ""
	case renamed == "":
		return f, fmt.Sprintf("%s has no symbol %s: inlined by the compiler, or not in this kernel", module, p.symbol)
	case !p.renamed:
		return f, fmt.Sprintf("%s has %s as %s: its arguments are not where they were, and neither symbols nor BTF say where they are", module, p.symbol, renamed)
	}
	f.actual = renamed
	return f, ""
}
