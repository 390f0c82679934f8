// SPDX-License-Identifier: BSD-2-Clause

// Package ebpf measures what the kernel spends on firmware commands: how many pass
// each stage on the way from the system call to the doorbell and back, and how the
// time of each is split. It counts in the kernel; a program reads what it wants to
// know, and records of single commands only if it asked for them. Of ib_cm it counts the
// stages too, and follows each connection: what was sent and received when, and what
// became of it.
//
// It needs root, or CAP_BPF and CAP_PERFMON (and CAP_SYS_ADMIN for what only
// tracefs gives), Linux 5.10 or newer with BTF, and the drivers loaded. It changes
// nothing in them, and nothing stays attached when the process ends, however it
// ends. A stage that a kernel does not show is said to be not visible, with the
// reason (Tracer.Coverage): a zero is a measurement.
//
// Commands that the driver sends without waiting (with a callback) are counted as
// they begin, and not followed.
package ebpf

//go:generate go tool -modfile=../tools/go.mod bpf2go -cc clang-14 -strip llvm-strip-14 -target amd64,arm64 -type record -type stage_counts -type part_times -type part_times_key -type failure_key -type connection -type connection_bucket_key -type outcome_key -cflags "-O2 -mcpu=v2 -Wall -Werror -Wno-unused-function" command bpf/command.bpf.c

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"devxlab.example/mlx5"
)

// Filter says which commands and connections are of interest; the zero value says
// all. It is applied in the kernel, to the process that calls; a device, an opcode and a
// QPN not to calls, which have none yet where they are counted. A connection belongs to
// the process that sends its REQ, or the REP or REJ that answers one; opcode and QPN do
// not concern it.
type Filter struct {
	Processes []int   // and all that these start from now on
	Cgroup    string  // directory of a cgroup (version 2): those directly in it
	Device    string  // RDMA device, such as mlx5_0
	Op        mlx5.Op // 0: all
	QPN       uint32  // 0: all; only commands that name a queue pair as their object
}

// Options are what Attach takes.
type Options struct {
	Filter
	Records int // bytes for records of single commands, and as many for connections, a power of two from 4096 on; 0: none
}

// Tracer is attached to the kernel until it is closed.
type Tracer struct {
	objects *bpf.Collection
	links   []io.Closer
	places  []found // that are attached
	covers  []Coverage
	loads   map[string]uint64 // generation of each module
	records bool
	owners  bool // only connections of certain processes are asked for
}

// maxActive is how many calls of one function may be seen to return at once. The
// kernel's own value is the number of CPUs or little more, and commands block.
const maxActive = 1024

// Attach attaches to the running kernel.
func Attach(o Options) (*Tracer, error) {
	root := os.DirFS("/")
	if err := permitted(); err != nil {
		return nil, err
	}
	k, err := readKernel(root)
	if err != nil {
		return nil, err
	}
	spec, err := loadCommand()
	if err != nil {
		return nil, err
	}
	r := resolve(k)
	if err := o.set(spec, k, r); err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("%w: RLIMIT_MEMLOCK: %w", ErrNoPermission, err)
	}
	removeStale()
	t := &Tracer{records: o.Records > 0, owners: len(o.Processes) > 0 || o.Cgroup != "", loads: map[string]uint64{}}
	for _, m := range modules {
		t.loads[m] = generation(m)
	}
	if err := t.load(spec, r, k.typed); err != nil {
		return nil, err
	}
	for _, p := range o.Processes {
		if err := t.objects.Maps["tasks"].Put(uint32(p), uint8(1)); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	if err := t.attach(r, len(o.Processes) > 0); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	if r.why[CMEnd] == "" {
		if err := t.objects.Variables["follow_connections"].Set(uint8(1)); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	t.covers = r.coverage()
	return t, nil
}

// set writes the filter into the programs, and what they need to know of the kernel.
func (o *Options) set(spec *bpf.CollectionSpec, k *kernel, r *resolution) error {
	values := map[string]any{"work_function": k.address("cmd_work_handler", "mlx5_core")}
	if mask, _ := k.serviceMask(); mask {
		values["service_mask"] = uint8(1)
	}
	if p := r.places[CMTimewait]; len(p) > 0 && p[0].actual == p[0].symbol {
		values["timewait_id"] = uint8(1)
	}
	if o.Records != 0 {
		if o.Records < os.Getpagesize() || o.Records > 1<<30 || o.Records&(o.Records-1) != 0 {
			return fmt.Errorf("%w: %d bytes for records: a power of two from %d to 2^30", ErrFilter, o.Records, os.Getpagesize())
		}
		spec.Maps["records"].MaxEntries, spec.Maps["connection_records"].MaxEntries = uint32(o.Records), uint32(o.Records)
		values["want_records"], values["wake_up_at"] = uint8(1), uint64(o.Records/4)
	}
	if len(o.Processes) > 0 {
		values["filter_tasks"] = uint8(1)
	}
	if o.Cgroup != "" {
		info, err := os.Stat(o.Cgroup)
		if err != nil {
			return fmt.Errorf("%w: cgroup: %w", ErrFilter, err)
		}
		var fsInfo unix.Statfs_t
		if err := unix.Statfs(o.Cgroup, &fsInfo); err != nil || !info.IsDir() || fsInfo.Type != unix.CGROUP2_SUPER_MAGIC {
			return fmt.Errorf("%w: %s is no directory of a cgroup2 file system", ErrFilter, o.Cgroup)
		}
		var stat unix.Stat_t
		if err := unix.Stat(o.Cgroup, &stat); err != nil {
			return fmt.Errorf("%w: cgroup: %w", ErrFilter, err)
		}
		values["filter_cgroup"] = stat.Ino // kernfs: the cgroup's id
	}
	if o.Device != "" {
		name, err := deviceName(o.Device)
		if err != nil {
			return err
		}
		rdma := filepath.Base(o.Device)
		values["device_name"], values["filter_device"] = chars(name), uint8(len(name)+1)
		values["rdma_name"], values["rdma_length"] = chars(rdma), uint8(len(rdma)+1)
	}
	values["filter_op"], values["filter_qpn"] = uint16(o.Op), o.QPN
	for name, v := range values {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// deviceName returns what mlx5_core calls an RDMA device: its place on the bus.
func deviceName(rdma string) (string, error) {
	target, err := os.Readlink("/sys/class/infiniband/" + filepath.Base(rdma) + "/device")
	if err != nil {
		return "", fmt.Errorf("%w: device %s: devxlab list shows those of this machine: %w", ErrFilter, rdma, err)
	}
	name := filepath.Base(target)
	if len(name) > maxName || len(filepath.Base(rdma)) > maxName {
		return "", fmt.Errorf("%w: device %s: its name %q is too long: up to %d characters", ErrFilter, rdma, name, maxName)
	}
	return name, nil
}

// maxName is how long a device's name may be, for the programs.
const maxName = 31

func chars(s string) (c [maxName + 1]int8) {
	for i := range len(s) {
		c[i] = int8(s[i])
	}
	return c
}

// load loads the programs that have a place, and the maps. typed are modules that
// tell their types.
func (t *Tracer) load(spec *bpf.CollectionSpec, r *resolution, typed []string) error {
	used := []string{}
	for _, places := range r.places {
		for _, p := range places {
			used = append(used, p.program)
		}
	}
	for name := range spec.Programs {
		if !slices.Contains(used, name) && name != "forked" && name != "exited" {
			delete(spec.Programs, name)
		}
	}
	var o bpf.CollectionOptions
	for _, module := range typed {
		types, err := btf.LoadKernelModuleSpec(module)
		if err != nil {
			return fmt.Errorf("%w: BTF of %s: %w", ErrNotSupported, module, err)
		}
		o.Programs.ExtraRelocationTargets = append(o.Programs.ExtraRelocationTargets, types)
	}
	var err error
	t.objects, err = bpf.NewCollectionWithOptions(spec, o)
	var refused *bpf.VerifierError
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: %w", ErrNoPermission, err)
	case errors.As(err, &refused):
		return fmt.Errorf("%w: its verifier refuses the programs: %+v", ErrNotSupported, refused)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotSupported, err)
	}
	return nil
}

// attach attaches all places. A stage whose places cannot be attached is not
// visible, with what the kernel said.
func (t *Tracer) attach(r *resolution, follow bool) error {
	if follow {
		for program, tracepoint := range map[string]string{"forked": "sched_process_fork", "exited": "sched_process_exit"} {
			if err := t.link(found{place: place{program: program, symbol: tracepoint, trace: true}, actual: tracepoint}); err != nil {
				return fmt.Errorf("following processes: %w", err)
			}
		}
	}
	// Returns first, and the others from the inside out: what begins is seen to its end.
	for s := len(specs) - 1; s >= 0; s-- {
		for _, p := range slices.Backward(r.places[s]) {
			if err := t.link(p); err != nil {
				r.drop(Stage(s), fmt.Sprintf("%s: %v", p, err))
				break
			}
		}
	}
	r.settle()
	if r.why[Command] != "" {
		return fmt.Errorf("%w: no command can be seen: %s", ErrNotSupported, r.why[Command])
	}
	return nil
}

func (t *Tracer) link(p found) error {
	same := func(o found) bool { return o == p }
	if slices.ContainsFunc(t.places, same) {
		return nil
	}
	var l io.Closer
	var err error
	program := t.objects.Programs[p.program]
	switch {
	case p.trace:
		l, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: p.actual, Program: program})
	case p.fentry:
		l, err = link.AttachTracing(link.TracingOptions{Program: program})
	case p.back:
		l, err = link.Kretprobe(p.actual, program, &link.KprobeOptions{RetprobeMaxActive: maxActive, TraceFSPrefix: tracefsPrefix(os.Getpid())})
	case p.address != 0:
		l, err = probeAddress(p.address, program.FD())
	default:
		l, err = link.Kprobe(p.actual, program, nil)
	}
	if err != nil {
		return err
	}
	t.links, t.places = append(t.links, l), append(t.places, p)
	return nil
}

// probeAddress attaches a kprobe where a function begins. The package in use takes
// names only, and some stand in two modules.
func probeAddress(address uint64, program int) (io.Closer, error) {
	b, err := os.ReadFile("/sys/bus/event_source/devices/kprobe/type")
	if err != nil {
		return nil, err
	}
	kind, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("type of the kprobe PMU: %w", err)
	}
	// kprobe_func (Ext1) is 0, so kprobe_addr (Ext2) counts: perf_event_open(2).
	attr := unix.PerfEventAttr{Type: uint32(kind), Size: unix.PERF_ATTR_SIZE_VER1, Ext2: address}
	fd, err := unix.PerfEventOpen(&attr, -1, 0, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("perf_event_open: %w", err)
	}
	f := os.NewFile(uintptr(fd), "kprobe")
	for _, c := range []struct {
		request uint
		value   int
	}{{unix.PERF_EVENT_IOC_SET_BPF, program}, {unix.PERF_EVENT_IOC_ENABLE, 0}} {
		if err := unix.IoctlSetInt(fd, c.request, c.value); err != nil {
			return nil, errors.Join(fmt.Errorf("attach: %w", err), f.Close())
		}
	}
	return f, nil
}

// Coverage returns for each stage where it is seen, or why it is not. A module that
// was unloaded after Attach took its stages with it, also if it is loaded again.
func (t *Tracer) Coverage() []Coverage {
	all := slices.Clone(t.covers)
	for i := range all {
		c := &all[i]
		if m := specs[c.Stage].module; c.Why == "" && m != vmlinux && generation(m) != t.loads[m] {
			c.Where, c.Why = "", fmt.Sprintf("module %s was unloaded meanwhile: nothing was seen from then on; attach again", m)
		}
	}
	return all
}

// generation tells one loading of a module from the next; 0: it is not loaded.
func generation(module string) uint64 {
	var stat unix.Stat_t
	if err := unix.Stat("/sys/module/"+module, &stat); err != nil {
		return 0
	}
	return stat.Ino
}

// WaitForDriver waits until the modules whose stages Attach would look for are
// loaded, for as long as ctx allows. What they do while they are being loaded is not
// seen.
func WaitForDriver(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for root := os.DirFS("/"); ; {
		if slices.IndexFunc(modules, func(m string) bool { return !live(root, m) }) < 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// Freeze ends counting, at one moment for all of it: Snapshot, OpenConnections, and
// what is left of Records and Connections, then belong together. What is under way
// stays unfinished.
func (t *Tracer) Freeze() error {
	if err := t.objects.Variables["over"].Set(uint8(1)); err != nil {
		return err
	}
	// A program that has looked before has ended when each CPU has passed a quiescent
	// state (membarrier(2)). A kernel that refuses leaves some microseconds in which one ends.
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
	return nil
}

const membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL, linux/membarrier.h

// Close detaches from the kernel.
func (t *Tracer) Close() error {
	// At once, because the kernel waits for every CPU after each.
	errs := make([]error, len(t.links))
	var all sync.WaitGroup
	for i, l := range t.links {
		all.Go(func() { errs[i] = l.Close() })
	}
	all.Wait()
	t.links = nil
	t.objects.Close()
	return errors.Join(errs...)
}

// permitted looks for the capabilities, so that what is missing has a name.
func permitted() error {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	var missing []string
	for _, c := range []struct {
		name string
		bit  int
	}{{"CAP_BPF", unix.CAP_BPF}, {"CAP_PERFMON", unix.CAP_PERFMON}, {"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN}} {
		if data[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			missing = append(missing, c.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: this process lacks %s: run it as root", ErrNoPermission, strings.Join(missing, ", "))
}

// tracefsPrefix begins the names of a process's return probes in tracefs.
func tracefsPrefix(pid int) string { return fmt.Sprintf("devxlab_%d", pid) }

// removeStale removes the return probes that processes left which were killed. They
// are not attached to anything: only their definitions stay.
func removeStale() {
	for _, dir := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		name := filepath.Join(dir, "kprobe_events")
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return
		}
		for _, event := range staleEvents(string(text), func(pid int) bool {
			_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
			return !errors.Is(err, fs.ErrNotExist)
		}) {
			_, _ = f.WriteString("-:" + event + "\n")
		}
		_ = f.Close()
		return
	}
}

// staleEvents returns the events in the text of kprobe_events whose process is no
// longer there.
func staleEvents(text string, alive func(pid int) bool) (stale []string) {
	for line := range strings.Lines(text) {
		// r1024:devxlab_PID_RANDOM/SYMBOL SYMBOL
		_, rest, _ := strings.Cut(line, ":")
		event, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		var pid int
		if n, err := fmt.Sscanf(event, "devxlab_%d_", &pid); n == 1 && err == nil && !alive(pid) {
			stale = append(stale, event)
		}
	}
	return stale
}
