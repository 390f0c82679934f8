// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// functions are those of a kernel on which everything is visible.
const functions = `__traceiter_workqueue_queue_work
complete
ib_uverbs_modify_qp [ib_uverbs]
ib_uverbs_ex_modify_qp [ib_uverbs]
mlx5_ib_handler_MLX5_IB_METHOD_DEVX_OBJ_CREATE [mlx5_ib]
mlx5_ib_handler_MLX5_IB_METHOD_DEVX_OBJ_MODIFY [mlx5_ib]
mlx5_ib_handler_MLX5_IB_METHOD_DEVX_OBJ_QUERY [mlx5_ib]
mlx5_ib_handler_MLX5_IB_METHOD_DEVX_OTHER [mlx5_ib]
_ib_modify_qp [ib_core]
_ib_modify_qp.cold [ib_core]
mlx5_ib_modify_qp [mlx5_ib]
mlx5_core_qp_modify [mlx5_ib]
cmd_exec [mlx5_core]
cmd_work_handler [mlx5_core]
ib_send_cm_req [ib_cm]
ib_send_cm_rep [ib_cm]
ib_send_cm_rtu [ib_cm]
ib_send_cm_dreq [ib_cm]
cm_recv_handler [ib_cm]
cm_work_handler [ib_cm]
cm_work_handler [iw_cm]
cm_insert_remote_id [ib_cm]
cm_insert_remote_qpn [ib_cm]
cm_issue_rej.constprop.0.isra.0 [ib_cm]
cm_enter_timewait [ib_cm]
ib_post_send_mad [ib_core]
cm_send_handler [ib_cm]
cm_destroy_id [ib_cm]
cm_destroy_id.cold [ib_cm]
ib_destroy_cm_id [ib_cm]
`

// system is what a kernel with these functions says of itself.
func system(functions string) fstest.MapFS {
	var text strings.Builder
	for i, line := range strings.Split(strings.TrimSpace(functions), "\n") {
		name, module, in := strings.Cut(line, " ")
		if in {
			module = "\t" + module
		}
		fmt.Fprintf(&text, "ffffffffc0%06x t %s%s\n", 16*(i+1), name, module)
	}
	text.WriteString("ffffffff82000000 D complete_data\n")
	fs := fstest.MapFS{"proc/kallsyms": {Data: []byte(text.String())}, "sys/kernel/btf/vmlinux": {}, "sys/bus/event_source/devices/kprobe/type": {},
		"sys/kernel/security/lockdown": {Data: []byte("none [integrity] confidentiality\n")}}
	for _, m := range modules {
		fs["sys/module/"+m+"/refcnt"] = &fstest.MapFile{}
	}
	return fs
}

// covered resolves, and returns what became of each stage.
func covered(t *testing.T, fs fstest.MapFS) []Coverage {
	t.Helper()
	k, err := readKernel(fs)
	if err != nil {
		t.Fatal(err)
	}
	all := resolve(k).coverage()
	for i, c := range all {
		if c.Stage != Stage(i) || (c.Where == "") == (c.Why == "") {
			t.Errorf("neither seen nor explained, or both: %+v", c)
		}
	}
	return all
}

func TestResolve(t *testing.T) {
	for _, c := range covered(t, system(functions)) {
		if c.Why != "" {
			t.Errorf("%v: %s", c.Stage, c.Why)
		}
	}
	for _, c := range []struct {
		name     string
		old, new string // of the functions
		want     map[Stage]string
	}{
		{"inlined", "_ib_modify_qp [ib_core]\n", "", map[Stage]string{CoreModify: "ib_core has no symbol _ib_modify_qp: inlined by the compiler, or not in this kernel; " +
			"ib_core has no symbol ib_modify_qp: inlined by the compiler, or not in this kernel; ib_core has no symbol ib_modify_qp_with_udata: inlined by the compiler, or not in this kernel"}},
		{"second way", "_ib_modify_qp [ib_core]\n", "ib_modify_qp [ib_core]\nib_modify_qp_with_udata [ib_core]\n",
			map[Stage]string{CoreModify: "kprobe ib_core:ib_modify_qp, kprobe ib_core:ib_modify_qp_with_udata"}},
		{"half of a way", "ib_uverbs_ex_modify_qp [ib_uverbs]\n", "",
			map[Stage]string{UverbsModify: "ib_uverbs has no symbol ib_uverbs_ex_modify_qp: inlined by the compiler, or not in this kernel"}},
		{"renamed", "mlx5_ib_modify_qp [", "mlx5_ib_modify_qp.isra.0 [", map[Stage]string{DriverModify: "kprobe mlx5_ib:mlx5_ib_modify_qp.isra.0"}},
		{"only a part", "mlx5_core_qp_modify [", "mlx5_core_qp_modify.part.0 [", map[Stage]string{QPCModify: "mlx5_ib has no symbol mlx5_core_qp_modify: inlined by the compiler, or not in this kernel"}},
		{"other arguments", "cmd_exec [", "cmd_exec.constprop.0 [", map[Stage]string{
			Command:    "mlx5_core has cmd_exec as cmd_exec.constprop.0: its arguments are not where they were, and neither symbols nor BTF say where they are",
			Awake:      "mlx5_core has cmd_exec as cmd_exec.constprop.0: its arguments are not where they were, and neither symbols nor BTF say where they are",
			Worker:     `it is told from other work by the stage "command", which is not visible`,
			Queued:     `it is told from other work by the stage "command", which is not visible`,
			Completion: `it is told from other work by the stage "command", which is not visible`}},
		{"in two modules", "cmd_exec [mlx5_core]\n", "cmd_exec [mlx5_core]\ncmd_exec [other]\n", map[Stage]string{
			Command: "kprobe mlx5_core:cmd_exec", Awake: "the symbol cmd_exec stands in other too, and its return is probed by name"}},
		{"the kernel's own comes first", "complete\n", "complete [other]\ncomplete\n", map[Stage]string{Completion: "fentry vmlinux:complete"}},
		{"no tracepoint", "__traceiter_workqueue_queue_work\n", "", map[Stage]string{Queued: "the kernel has no tracepoint workqueue_queue_work (CONFIG_EVENT_TRACING)"}},
		{"second way to the end", "cm_destroy_id [ib_cm]\n", "", map[Stage]string{CMEnd: "kprobe ib_cm:ib_destroy_cm_id, kretprobe ib_cm:ib_destroy_cm_id"}},
		{"nothing sent", "ib_post_send_mad [ib_core]\n", "", map[Stage]string{CMEnd: `it is told from other work by the stage "CM sent", which is not visible`}},
		{"no worker", "cmd_work_handler [mlx5_core]\n", "", map[Stage]string{Queued: `it is told from other work by the stage "worker", which is not visible`, Awake: "kretprobe mlx5_core:cmd_exec"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(functions, c.old) {
				t.Fatal("nothing to replace")
			}
			all := covered(t, system(strings.Replace(functions, c.old, c.new, 1)))
			for stage, want := range c.want {
				if got := all[stage].Where + all[stage].Why; got != want {
					t.Errorf("%v: %q, want %q", stage, got, want)
				}
			}
		})
	}
}

// A function whose name another module has too is probed by its address.
func TestSameName(t *testing.T) {
	k, err := readKernel(system(functions))
	if err != nil {
		t.Fatal(err)
	}
	r := resolve(k)
	if p := r.places[CMWork][0]; p.address == 0 || p.address != k.address("cm_work_handler", "ib_cm") {
		t.Errorf("%+v", p)
	}
	if p := r.places[Command][0]; p.address != 0 {
		t.Errorf("%+v", p)
	}
}

func TestModuleNotLoaded(t *testing.T) {
	fs := system(functions)
	delete(fs, "sys/module/mlx5_ib/refcnt")
	fs["sys/module/mlx5_core/initstate"] = &fstest.MapFile{Data: []byte("live\n")}
	for _, c := range covered(t, fs) {
		if missing := c.Why == "module mlx5_ib is not loaded"; missing != slices.Contains([]Stage{DevXCreate, DevXModify, DevXQuery, DevXOther, DriverModify, QPCModify}, c.Stage) {
			t.Errorf("%v: %+v", c.Stage, c)
		}
	}
	fs["sys/module/mlx5_core/initstate"] = &fstest.MapFile{Data: []byte("coming\n")}
	if _, err := readKernel(fs); !errors.Is(err, ErrNoModule) || !strings.Contains(err.Error(), "modprobe mlx5_ib") {
		t.Error(err)
	}
}

func TestKernelSaysNo(t *testing.T) {
	for name, c := range map[string]struct {
		change func(fs fstest.MapFS)
		want   error
		word   string
	}{
		"lockdown": {func(fs fstest.MapFS) {
			fs["sys/kernel/security/lockdown"].Data = []byte("none integrity [confidentiality]\n")
		}, ErrNoPermission, "lockdown=integrity"},
		"no BTF":          {func(fs fstest.MapFS) { delete(fs, "sys/kernel/btf/vmlinux") }, ErrNotSupported, "CONFIG_DEBUG_INFO_BTF"},
		"no kprobes":      {func(fs fstest.MapFS) { delete(fs, "sys/bus/event_source/devices/kprobe/type") }, ErrNotSupported, "CONFIG_KPROBES"},
		"no symbols":      {func(fs fstest.MapFS) { delete(fs, "proc/kallsyms") }, ErrNotSupported, "symbols"},
		"hidden":          {func(fs fstest.MapFS) { fs["proc/kallsyms"].Data = []byte("0000000000000000 t complete\n") }, ErrNoPermission, "kptr_restrict"},
		"no such address": {func(fs fstest.MapFS) { fs["proc/kallsyms"].Data = []byte("xyz t complete\n") }, nil, "not an address"},
	} {
		fs := system(functions)
		c.change(fs)
		if _, err := readKernel(fs); err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// BTF that is there and empty is none.
func TestEmptyBTF(t *testing.T) {
	fs := fstest.MapFS{"sys/kernel/btf/empty": {Data: make([]byte, emptyBTF)}, "sys/kernel/btf/some": {Data: make([]byte, emptyBTF+1)}}
	for name, want := range map[string]bool{"empty": false, "some": true, "none": false} {
		if got := hasBTF(fs, name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestStaleEvents(t *testing.T) {
	const text = `r1024:devxlab_12_0123456789abcdef/cmd_exec cmd_exec
r1024:devxlab_13_0123456789abcdef/cmd_exec cmd_exec
p:ebpf_12_x/cmd_exec cmd_exec
p:mine/devxlab_12_x cmd_exec
`
	got := staleEvents(text, func(pid int) bool { return pid == 13 })
	if want := []string{"devxlab_12_0123456789abcdef/cmd_exec"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Where ids are in ib_cm's structure the kernel tells, or is known from its release and
// from whether the drivers are OFED's.
func TestIDs(t *testing.T) {
	for _, c := range []struct {
		release    string
		btf        int
		ofed       bool
		mask, seen bool
	}{{"5.10.0-32-amd64\n", 0, false, true, true}, {"5.15.178\n", emptyBTF, false, true, true}, {"5.15.178\n", emptyBTF, true, false, true}, {"5.19.0\n", 0, false, false, false},
		{"5.19.0\n", emptyBTF + 1, false, false, true}, {"5.19.0\n", 0, true, false, true}, {"6.1.0-9-amd64\n", 0, false, false, true}, {"7.3.4\n", emptyBTF, false, false, true}} {
		fs := system(functions)
		fs["proc/sys/kernel/osrelease"] = &fstest.MapFile{Data: []byte(c.release)}
		if c.btf > 0 {
			fs["sys/kernel/btf/ib_cm"] = &fstest.MapFile{Data: make([]byte, c.btf)}
		}
		if c.ofed {
			fs["sys/module/mlx_compat/initstate"] = &fstest.MapFile{Data: []byte("live\n")}
		}
		k, err := readKernel(fs)
		if err != nil {
			t.Fatal(err)
		}
		all := resolve(k).coverage()
		if got := all[CMEnd]; (got.Why == "") != c.seen || !c.seen && !strings.Contains(got.Why, "known up to Linux 5.15 and from 6.1 on") {
			t.Errorf("%+v: %+v", c, got)
		}
		if mask, _ := k.serviceMask(); mask != c.mask {
			t.Errorf("%+v: service_mask %v", c, mask)
		}
	}
}

// What compilers make of a function's name: a clone that was renamed is the function,
// what was split off is not, wherever it stands in the table.
func TestClones(t *testing.T) {
	for _, c := range []struct{ symbols, want string }{
		{"%s.isra.0", "kprobe mlx5_ib:%s.isra.0"},
		{"%s.constprop.0", "kprobe mlx5_ib:%s.constprop.0"},
		{"%s.constprop.0.isra.0", "kprobe mlx5_ib:%s.constprop.0.isra.0"},
		{"%s.cold %s.isra.0 %s.isra.0.cold", "kprobe mlx5_ib:%s.isra.0"},
		{"%s.isra.0 %s", "kprobe mlx5_ib:%s"},
		{"%s.part.0 %s.part.0.isra.0 %s.isra.0.part.0", "mlx5_ib has no symbol %s: inlined by the compiler, or not in this kernel"},
		{"%s.cold %s.constprop.0.cold", "mlx5_ib has no symbol %s: inlined by the compiler, or not in this kernel"},
		{"__pfx_%s %s.cold", "mlx5_ib has no symbol %s: inlined by the compiler, or not in this kernel"},
		{"%s.llvm.1234567890", "kprobe mlx5_ib:%s.llvm.1234567890"},
	} {
		const name = "mlx5_core_qp_modify"
		lines := ""
		for s := range strings.FieldsSeq(strings.ReplaceAll(c.symbols, "%s", name)) {
			lines += s + " [mlx5_ib]\n"
		}
		got := covered(t, system(strings.Replace(functions, name+" [mlx5_ib]\n", lines, 1)))[QPCModify]
		if want := strings.ReplaceAll(c.want, "%s", name); got.Where+got.Why != want {
			t.Errorf("%s: %q, want %q", c.symbols, got.Where+got.Why, want)
		}
	}
}

// OFED's drivers (MLNX_OFED 24.07, DOCA-OFED 25.10: cmd.c, devx.c, qp.c, qpc.c,
// uverbs_cmd.c, verbs.c, cm.c, mad.c) have the functions under the same names, in modules of the
// same names; what they bring of newer kernels is in mlx_compat, with names of its own.
func TestOFED(t *testing.T) {
	fs := system(functions + "backport_complete [mlx_compat]\nbackport_cmd_exec [mlx_compat]\n")
	fs["sys/module/mlx_compat/initstate"] = &fstest.MapFile{Data: []byte("live\n")}
	fs["sys/kernel/btf/mlx5_core"] = &fstest.MapFile{Data: make([]byte, emptyBTF)}
	stock := covered(t, system(functions))
	for i, c := range covered(t, fs) {
		if c != stock[i] || c.Why != "" {
			t.Errorf("%+v, with the kernel's own drivers %+v", c, stock[i])
		}
	}
}

// Each place that is looked for is one that a program exists for, of the right kind.
func TestProgramsExist(t *testing.T) {
	spec, err := loadCommand()
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{"forked": true, "exited": true}
	for s, stage := range specs {
		for _, p := range slices.Concat(stage.ways...) {
			used[p.program] = true
			program := spec.Programs[p.program]
			if program == nil {
				t.Errorf("%v: no program %s", Stage(s), p.program)
				continue
			}
			kind := "kprobe"
			switch {
			case p.trace:
				kind = "raw_tp/" + p.symbol
			case p.fentry:
				kind = "fentry/" + p.symbol
			case p.back:
				kind = "kretprobe"
			}
			if program.SectionName != kind {
				t.Errorf("%v: %s is in the section %s, want %s", Stage(s), p.program, program.SectionName, kind)
			}
		}
	}
	for name := range spec.Programs {
		if !used[name] {
			t.Errorf("nothing uses the program %s", name)
		}
	}
}
