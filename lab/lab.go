// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/lab/guest"
)

// ErrTimeout means that the time limit of the machine was reached.
var ErrTimeout = errors.New("time limit reached")

// ErrLost is a file that Options.Get names and that did not come back.
var ErrLost = errors.New("not brought back")

// Result is a run whose program came to its end.
type Result struct {
	Status  int    // exit status of the program; 128+n: ended by signal n; 127: not started
	Release string // uname -r
	QEMU    string // version
	KVM     bool
	Command []string // of QEMU; its sockets and its initrd are gone
	Console string   // file with the console
	Initrd  int64    // bytes

	Prepare time.Duration // until QEMU was started
	Boot    time.Duration // from QEMU's start until the program began
	Total   time.Duration // until the machine was off
	Init    time.Duration // from the kernel's start to process 1, by the guest's clock
	Ready   time.Duration // the same to the program, with modules loaded and ports active
}

// RunError is a run that failed, with what is needed to see why.
type RunError struct {
	Err     error
	Command []string // of QEMU
	Console string   // file
	Tail    string   // the console's last lines
	Said    string   // what QEMU and the HCA said
}

func (e *RunError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n", e.Err)
	var k *KernelError
	if !errors.As(e.Err, &k) && e.Tail != "" {
		fmt.Fprintf(&b, "last lines of the console:\n  %s\n", strings.ReplaceAll(e.Tail, "\n", "\n  "))
	}
	if e.Said != "" {
		fmt.Fprintf(&b, "QEMU and the HCA said:\n  %s\n", strings.ReplaceAll(e.Said, "\n", "\n  "))
	}
	fmt.Fprintf(&b, "console: %s\nQEMU: %s", e.Console, quote(e.Command))
	return b.String()
}

func (e *RunError) Unwrap() error { return e.Err }

// Fetch brings all that a run with these options needs, so that later ones work
// without a mirror, and says where it is.
func Fetch(ctx context.Context, o Options) (*QEMU, *Kernel, error) {
	o.setDefaults()
	if err := o.check(); err != nil {
		return nil, nil, err
	}
	p, err := find(ctx, &o)
	if err != nil {
		return nil, nil, err
	}
	return p.qemu, p.kernel, nil
}

// pieces are what a run needs.
type pieces struct {
	cache   string
	qemu    *QEMU
	kernel  *Kernel
	busybox string
	image   string // directory
}

func find(ctx context.Context, o *Options) (p pieces, err error) {
	if p.cache, err = CacheDir(); err != nil {
		return p, err
	}
	f := &finder{cache: p.cache, progress: o.Progress, refresh: o.Refresh, offline: o.Offline}
	if p.qemu, err = f.qemu(ctx); err != nil {
		return p, err
	}
	if p.busybox, err = f.busybox(ctx); err != nil {
		return p, err
	}
	if suite, full := suiteOf(o.Image); full {
		if p.image, err = f.fullImage(ctx, suite, o.Packages); err != nil {
			return p, err
		}
	}
	p.kernel, err = f.kernel(ctx, o.Kernel, o.Modules)
	return p, err
}

// Run runs a program in a new virtual machine. The error is nil if the program
// ended, with whatever status, every file in Get came back, and the kernel had
// nothing to report. Otherwise, once QEMU was started, it is ErrLost for files and
// a *RunError for all else; if ctx ended the run, its cause. The Result is there
// whenever the program ended.
func Run(ctx context.Context, o Options) (*Result, error) {
	began := time.Now()
	o.setDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Devxlab == "" {
		var err error
		if o.Devxlab, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	p, err := find(ctx, &o)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // not what it made of the search
	}
	if err != nil {
		return nil, err
	}
	dir, remove, err := workDir()
	if err != nil {
		return nil, err
	}
	defer remove()
	if longest := 107 - len("/hca-0.sock"); len(dir) > longest { // sockaddr_un
		return nil, fmt.Errorf("%s is too long for the path of a socket: set TMPDIR to a directory of at most 80 characters", dir)
	}
	r := &run{o: &o, dir: dir, result: &Result{Release: p.kernel.Release, QEMU: p.qemu.Version}}
	r.m = machine{qemu: p.qemu, smp: o.SMP, memMB: o.MemMB, kernel: p.kernel.Image, append: o.Append, initrd: filepath.Join(dir, "initrd")}
	if err := r.archive(ctx, p); err != nil {
		return nil, err
	}
	if o.Accel != AccelTCG {
		var why string
		r.m.kvm, why = kvmWorks(ctx, p.cache, p.qemu, p.kernel.Image)
		if !r.m.kvm && o.Accel == AccelKVM {
			return nil, fmt.Errorf("KVM does not work: %s: leave out --accel kvm", why)
		}
	}
	r.result.KVM = r.m.kvm
	console, err := consoleFile(p.cache, began)
	if err != nil {
		return nil, err
	}
	defer console.Close()
	r.result.Console = console.Name()
	err = r.machine(ctx, console, began)
	if err != nil && r.result.Command != nil && ctx.Err() == nil {
		err = &RunError{Err: err, Command: r.result.Command, Console: console.Name(), Tail: r.watch.tail(), Said: strings.TrimSpace(r.said.String())}
	}
	if err = errors.Join(err, r.lost); !r.exited {
		return nil, err
	}
	return r.result, err
}

// run is one run.
type run struct {
	o      *Options
	dir    string
	m      machine
	result *Result
	watch  watcher
	said   tailBuffer

	mu      sync.Mutex // of what sessions change
	exited  bool
	begun   time.Time
	problem error
	lost    error         // of files
	hello   chan struct{} // closed when the guest has greeted
}

// archive writes the initrd.
func (r *run) archive(ctx context.Context, p pieces) error {
	tree, err := openModules(p.kernel.Modules)
	if err != nil {
		return err
	}
	c := contents{busybox: p.busybox, devxlab: r.o.Devxlab, image: p.image, release: p.kernel.Release, tree: tree,
		extra: r.o.ExtraModules, params: r.o.Params, put: r.o.Put,
		job: guest.Job{Args: r.o.Args, Env: r.o.Env, Dir: r.o.Dir, TTY: r.o.TTY, Devices: r.o.Devices + len(r.o.Sockets), ForceOff: r.o.forceOff()}}
	for _, g := range r.o.Get {
		c.job.Get = append(c.job.Get, guest.Get{Path: g.From, Optional: g.Optional})
	}
	if runtime.GOARCH == "amd64" {
		if out, err := command(ctx, p.busybox, "--list"); err == nil {
			c.applets = strings.Fields(string(out))
		}
	}
	f, err := os.Create(r.m.initrd)
	if err != nil {
		return err
	}
	most := rootLimit(r.o.MemMB)
	err = errors.Join(c.write(f, most), f.Close())
	if errors.Is(err, errTooBig) {
		return fmt.Errorf("the guest's root file system is larger than the %d MiB that fit into %d MiB of memory: give it more (--mem), or put less into it", most>>20, r.o.MemMB)
	}
	if err != nil {
		return fmt.Errorf("the guest's root file system: %w", err)
	}
	fi, err := os.Stat(r.m.initrd)
	if err != nil {
		return err
	}
	r.result.Initrd = fi.Size()
	return nil
}

// rootLimit is how large an initrd may be. The kernel unpacks it into half of the
// memory that it and the kernel leave, and loses without a word what does not fit.
func rootLimit(memMB int) int64 {
	const kernel = 72
	return int64(memMB-kernel) << 20 / 3
}

// machine starts the HCAs and QEMU and stays until all of them are gone.
func (r *run) machine(parent context.Context, console io.Writer, began time.Time) (err error) {
	ctx, cancel := context.WithTimeoutCause(parent, r.o.Timeout, ErrTimeout)
	defer cancel()
	r.hello = make(chan struct{})

	var sessions sync.WaitGroup
	var listeners []*net.UnixListener
	for _, l := range []struct {
		name string
		path *string
	}{{"channel.sock", &r.m.channel}, {"serial.sock", &r.m.serial}} {
		*l.path = filepath.Join(r.dir, l.name)
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: *l.path, Net: "unix"})
		if err != nil {
			return err
		}
		defer ln.Close()
		listeners = append(listeners, ln)
		sessions.Go(func() {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			r.session(ctx, c)
			stop()
			_ = c.Close()
		})
	}
	r.m.devices = append(r.m.devices, r.o.Sockets...)
	var cards *hca // those of this machine's own
	if r.o.Devices > 0 {
		var sockets []string
		for i := range r.o.Devices {
			sockets = append(sockets, filepath.Join(r.dir, fmt.Sprintf("hca-%d.sock", i)))
		}
		if cards, err = startHCA(ctx, r.o, sockets, &r.said); err != nil {
			return err
		}
		defer cards.stop()
		r.m.devices = append(r.m.devices, sockets...)
	}
	args := r.m.args()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	ownGroup(cmd)
	cmd.Stdout = io.MultiWriter(console, &r.watch, r.o.Console)
	cmd.Stderr = &r.said
	r.result.Command = args
	started := time.Now()
	r.result.Prepare = started.Sub(began)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: %w", ErrQEMU, err)
	}
	qerr := cmd.Wait()
	r.result.Total = time.Since(started)
	reached := ctx.Err() != nil
	cause := context.Cause(ctx)
	for _, l := range listeners {
		_ = l.Close() // QEMU may not have come as far as to connect
	}
	done := make(chan struct{})
	go func() { sessions.Wait(); close(done) }()
	select {
	case <-done: // all that the guest sent is read
	case <-ctx.Done():
		select {
		case <-done:
		case <-time.After(2 * time.Second):
			return fmt.Errorf("%w, and the reader of the program's output does not take it", context.Cause(ctx))
		}
	}
	var gone error // by itself: what follows ends it
	if cards != nil && !reached {
		gone = cards.ended()
	}
	cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun.IsZero() {
		r.result.Boot = r.begun.Sub(started)
	}
	switch {
	case reached && errors.Is(cause, ErrTimeout):
		err = fmt.Errorf("%w: %v (--timeout)", ErrTimeout, r.o.Timeout)
	case reached:
		err = cause
	case qerr != nil:
		err = fmt.Errorf("QEMU: %w", qerr)
	case r.begun.IsZero():
		err = errors.New("the machine was off before its program began")
	case !r.exited:
		err = errors.New("the machine was off before its program ended")
	}
	return errors.Join(r.watch.err(), r.problem, err, gone)
}

// session talks with the guest over one connection. Only one of the two ever
// carries anything.
func (r *run) session(ctx context.Context, c net.Conn) {
	w := guest.NewWriter(c)
	sink := &sink{get: r.o.Get}
	out, errOut := r.o.Stdout, r.o.Stderr
	room := 32 // for errors: a guest may send any number
	note := func(list *error, err error) {
		if err != nil && room > 0 {
			room--
			r.mu.Lock()
			*list = errors.Join(*list, err)
			r.mu.Unlock()
		}
	}
	problem := func(err error) { note(&r.problem, err) }
	lost := func(err error) {
		if err != nil {
			note(&r.lost, fmt.Errorf("%w: %w", ErrLost, err))
		}
	}
	defer func() { lost(sink.close()) }()
	for {
		kind, b, err := guest.ReadFrame(c)
		if err != nil {
			if !errors.Is(err, io.EOF) && ctx.Err() == nil && !errors.Is(err, unix.ECONNRESET) {
				problem(fmt.Errorf("from the guest: %w", err))
			}
			return
		}
		switch kind {
		case guest.Hello:
			var g guest.Greeting
			if err := json.Unmarshal(b, &g); err != nil {
				problem(fmt.Errorf("%w: greeting: %w", guest.ErrFrame, err))
				return
			}
			r.mu.Lock()
			first := r.begun.IsZero()
			if first {
				r.begun = time.Now()
				r.result.Release, r.result.Init, r.result.Ready = g.Release, seconds(g.Uptime), seconds(g.Ready)
			}
			r.mu.Unlock()
			if first {
				go r.feed(ctx, w)
			}
		case guest.Stdout:
			if _, err = out.Write(b); err != nil {
				out = io.Discard // the program goes on, as it would not in a pipe
			}
		case guest.Stderr:
			if _, err = errOut.Write(b); err != nil {
				errOut = io.Discard
			}
		case guest.File:
			lost(sink.open(b))
		case guest.Data:
			lost(sink.write(b))
		case guest.Fault:
			err = errors.New("in the guest: " + string(b))
		case guest.Lost:
			lost(errors.New("in the guest: " + string(b)))
		case guest.Exit:
			if len(b) != 1 {
				problem(fmt.Errorf("%w: exit status of %d bytes", guest.ErrFrame, len(b)))
				return
			}
			r.mu.Lock()
			r.result.Status, r.exited = int(b[0]), true
			r.mu.Unlock()
			_ = w.Frame(guest.Bye, nil)
		default:
			err = fmt.Errorf("%w: kind %q", guest.ErrFrame, kind)
		}
		problem(err)
	}
}

// seconds refuses what no uptime is.
func seconds(s float64) time.Duration {
	if !(s >= 0 && s < 1e6) {
		return 0
	}
	return time.Duration(s * float64(time.Second)).Round(10 * time.Millisecond) // as exact as /proc/uptime
}

// feed sends the guest its standard input and the sizes of the terminal.
func (r *run) feed(ctx context.Context, w *guest.Writer) {
	if r.o.Sizes != nil {
		go func() {
			for {
				select {
				case s := <-r.o.Sizes:
					if b, err := json.Marshal(s); err == nil && w.Frame(guest.Size, b) != nil {
						return
					}
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	if r.o.Stdin != nil {
		_, _ = io.Copy(w.Stream(guest.Stdin), struct{ io.Reader }{r.o.Stdin})
	}
	_ = w.Frame(guest.Stdin, nil)
}

// hca is a process that is a machine's devices.
type hca struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // once done is closed
}

// startHCA starts devices, one for each socket, and waits until they can be
// attached.
func startHCA(ctx context.Context, o *Options, sockets []string, said io.Writer) (*hca, error) {
	const patience = 20 * time.Second
	args := append([]string(nil), o.HCA...)
	if len(args) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		args = []string{self, "emu"}
	}
	for _, s := range sockets {
		args = append(args, "--socket", s)
	}
	if o.Profile != "" {
		args = append(args, "--profile", o.Profile)
	}
	for _, f := range o.Faults {
		args = append(args, "--fault", f)
	}
	if o.Wire != "" {
		args = append(args, "--wire", o.Wire)
	}
	if o.Tap != "" {
		args = append(args, "--tap", o.Tap)
	}
	h := &hca{done: make(chan struct{})}
	h.cmd = exec.CommandContext(ctx, args[0], args[1:]...)
	ownGroup(h.cmd)
	h.cmd.Cancel = func() error { return unix.Kill(-h.cmd.Process.Pid, unix.SIGTERM) } // it may have a tap to close
	h.cmd.Stdout, h.cmd.Stderr = said, said
	if err := h.cmd.Start(); err != nil {
		return nil, fmt.Errorf("HCA: %w", err)
	}
	go func() { h.err = h.cmd.Wait(); close(h.done) }()
	missing := func(socket string) bool { return !exists(socket) }
	for until := time.Now().Add(patience); slices.ContainsFunc(sockets, missing); {
		select {
		case <-h.done:
			return nil, fmt.Errorf("the HCA ended before it made its sockets (%v): %s: %s", h.cmd.ProcessState, quote(args), said)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(until) {
			h.stop()
			return nil, fmt.Errorf("the HCA has not made its sockets within %v: %s: %s", patience, quote(args), said)
		}
	}
	return h, nil
}

// ended returns why the device went away by itself. One that QEMU has left may
// end well.
func (h *hca) ended() error {
	select {
	case <-h.done:
		if h.err != nil {
			return fmt.Errorf("the HCA ended: %w", h.err)
		}
	default:
	}
	return nil
}

// stop ends the device: politely, then not.
func (h *hca) stop() {
	select {
	case <-h.done:
		return
	default:
	}
	_ = unix.Kill(-h.cmd.Process.Pid, unix.SIGTERM)
	select {
	case <-h.done:
	case <-time.After(2 * time.Second):
		_ = killGroup(h.cmd)
		<-h.done
	}
}

// tailBuffer keeps the end of what several processes say.
type tailBuffer struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	const most = 16 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if len(t.buf) > most {
		t.buf = bytes.Clone(t.buf[len(t.buf)-most:])
	}
	return len(p), nil
}

func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
