// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"devxlab.example/lab"
	"devxlab.example/lab/guest"
)

// exitLab is the lab's own failure, where the exit status is otherwise that of
// the program in the guest. 125 is docker's for the same.
const exitLab = 125

// statusError ends the program with an exit status that is not devxlab's to
// choose. What there is to say has been said.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

type labCmd struct {
	Shell labShellCmd `cmd:"" default:"withargs" help:"A shell in a virtual machine whose own mlx5 driver drives the emulated HCA (the default)."`
	Run   labRunCmd   `cmd:"" help:"Run a program there: devxlab lab run [flags] -- CMD ARG…"`
	Exec  labExecCmd  `cmd:"" passthrough:"" help:"Run a program of the host there, in its own directory: go test -exec \"devxlab lab exec\" ./pkg. Flags come from DEVXLAB_LAB_FLAGS."`
	Fetch labFetchCmd `cmd:"" help:"Bring QEMU, busybox and a kernel into the cache, so that later runs need no network."`
	Init  labInitCmd  `cmd:"" hidden:"" help:"Process 1 of the guest."`
	Check labCheckCmd `cmd:"" hidden:"" help:"In a guest: see whether its mlx5 driver does all it should."`

	Matrix      labMatrixCmd      `cmd:"" help:"Try the emulated HCA under several kernels, and print a table."`
	Conformance labConformanceCmd `cmd:"" help:"Run rdma-core's own tests on the emulated HCA."`
}

const labHelp = `The kernel is a distribution's, unmodified, with its own mlx5_core and mlx5_ib; the NIC is the emulated HCA.

What the machine needs is looked for in this order:
  QEMU >= 10.1    $DEVXLAB_QEMU, PATH, the cache, the apt mirror
  busybox         $DEVXLAB_BUSYBOX, PATH, the cache, the apt mirror; it must be static
  kernel          --kernel, $DEVXLAB_KERNEL with $DEVXLAB_MODULES, /boot, the cache, the apt mirror
The apt mirror is the Debian mirror that this machine's apt is configured for. Nothing outside the cache is changed:
$DEVXLAB_CACHE, else devxlab in the user's cache directory. "devxlab lab fetch" fills it.

Exit codes: that of the program in the guest; 125 if the lab itself failed, or the guest's kernel reported a bug.`

// Help is what the command's --help adds.
func (labCmd) Help() string { return labHelp }

// labFlags are the flags of the machine.
type labFlags struct {
	Kernel  string            `help:"Path of a kernel, or 5.10, 6.1, 6.12, newest: from the apt mirror of this machine. Default: $$DEVXLAB_KERNEL, else one in /boot with mlx5, else 6.1." placeholder:"KERNEL"`
	Modules string            `help:"Directory lib/modules/RELEASE of a kernel that is a path. Default: $$DEVXLAB_MODULES." placeholder:"DIR"`
	Module  []string          `help:"A further module to load." placeholder:"NAME"`
	Param   map[string]string `help:"Parameters of a module: mlx5_core=debug_mask=1." placeholder:"MODULE=PARAMS"`
	Append  string            `help:"Added to the kernel's command line." placeholder:"WORDS"`
	SMP     int               `name:"smp" default:"1" help:"Virtual CPUs. Races need 2; 1 is fastest under emulation."`
	Mem     int               `placeholder:"MIB" help:"Memory in MiB; default 512, with --image full 1024, with --package 2048."`
	Accel   string            `default:"auto" enum:"auto,kvm,tcg" help:"auto, kvm or tcg: auto is kvm if a guest really starts under it."`
	Devices *int              `help:"How many emulated HCAs, all on one wire; default 1, with --socket none." placeholder:"N"`
	Profile string            `help:"What the HCA's commands cost, as of devxlab emu." placeholder:"PROFILE"`
	Fault   []string          `sep:"none" help:"Something that goes wrong with each HCA, as of devxlab emu; may be repeated." placeholder:"FAULT"`
	Wire    string            `help:"What the wire between several HCAs does to frames, as of devxlab emu." placeholder:"PARAMS"`
	Tap     string            `help:"Write what is on the wire to a pcapng file." placeholder:"FILE"`
	Socket  []string          `sep:"none" help:"Use the HCA that a devxlab emu serves there, in the place of one of this machine's own; may be repeated. So two machines share a wire." placeholder:"PATH"`
	HCA     string            `name:"hca" env:"DEVXLAB_HCA" help:"Program, with arguments, to start as the HCA instead of devxlab emu; it gets --socket PATH." placeholder:"COMMAND"`
	Image   string            `help:"basic (the default): busybox and devxlab; full: also rdma-core's tools and tests, perftest, iproute2, of Debian 12 or of the suite in full:SUITE."`
	Package []string          `help:"A further Debian package to have in the guest, with what it depends on, such as bpftrace; the image is then full." placeholder:"NAME"`
	Timeout time.Duration     `placeholder:"TIME" help:"Limit for the machine, from its start; default 10m, for a shell 24h."`
	Env     []string          `sep:"none" help:"For the program's environment." placeholder:"NAME=VALUE"`
	Put     []string          `sep:"none" help:"Copy a file or directory into the guest, by default to the same path." placeholder:"HOST[:GUEST]"`
	Get     []string          `sep:"none" help:"Copy a file or directory out of the guest at the end, by default into this directory." placeholder:"GUEST[:HOST]"`
	Console bool              `help:"Show the guest's console on standard error."`
	Verbose bool              `short:"v" help:"Say how long it took and how QEMU was started."`
}

type labShellCmd struct{ labFlags }

type labRunCmd struct {
	labFlags
	Cmd []string `arg:"" passthrough:"" help:"Program and arguments. A path of the host that has a slash is copied into the guest."`
}

type labExecCmd struct {
	Cmd []string `arg:"" help:"Program and arguments."`
}

type labFetchCmd struct {
	Kernel  string   `default:"" help:"As for lab run." placeholder:"KERNEL"`
	Image   string   `help:"As for lab run."`
	Package []string `help:"As for lab run." placeholder:"NAME"`
	Refresh bool     `help:"Look for newer versions of what is there."`
}

type labInitCmd struct {
	Rest []string `arg:"" optional:"" help:"What the kernel adds."`
}

func (labInitCmd) Run(*env) error { return guest.Init() }

func (c labFetchCmd) Run(e *env) error {
	q, k, err := lab.Fetch(e.ctx, lab.Options{Kernel: c.Kernel, Image: c.Image, Packages: c.Package, Refresh: c.Refresh, Progress: e.err})
	if err != nil {
		return err
	}
	if e.asJSON {
		return e.json(map[string]any{"qemu": q, "kernel": k})
	}
	fmt.Fprintf(e.out, "QEMU %s\nkernel %s: %s\nmodules: %s\n", q.Version, k.Release, k.Image, k.Modules)
	return nil
}

// split reads A[:B].
func split(s, orElse string) lab.Copy {
	from, to, ok := strings.Cut(s, ":")
	if !ok || to == "" {
		to = orElse
	}
	return lab.Copy{From: from, To: to}
}

// devices is how many HCAs the machine has of its own.
func (f labFlags) devices() int {
	switch {
	case f.Devices != nil:
		return *f.Devices
	case len(f.Socket) > 0:
		return 0
	}
	return 1
}

// options are what the flags say.
func (f labFlags) options(e *env) (lab.Options, error) {
	o := lab.Options{Kernel: f.Kernel, Modules: f.Modules, ExtraModules: f.Module, Params: f.Param, Append: f.Append, SMP: f.SMP, MemMB: f.Mem, Accel: f.Accel,
		Devices: f.devices(), Profile: f.Profile, Faults: f.Fault, Wire: f.Wire, Tap: f.Tap, Sockets: f.Socket, HCA: strings.Fields(f.HCA), Image: f.Image, Packages: f.Package, Timeout: f.Timeout, Env: f.Env,
		Stdin: e.in, Stdout: e.out, Stderr: e.err, Progress: e.err}
	if f.Console {
		o.Console = e.err
	}
	if o.SMP == 0 { // to the package it is the default
		return o, errors.New("--smp: above 0")
	}
	for _, p := range f.Put {
		from, _, _ := strings.Cut(p, ":")
		abs, err := filepath.Abs(from)
		if err != nil {
			return o, err
		}
		o.Put = append(o.Put, split(p, abs))
	}
	for _, g := range f.Get {
		from, _, _ := strings.Cut(g, ":")
		o.Get = append(o.Get, split(g, filepath.Base(from)))
	}
	return o, nil
}

func (c labShellCmd) Run(e *env) error {
	o, err := c.options(e)
	if err != nil {
		return usageError{err}
	}
	o.Args = []string{"/bin/sh", "-i"}
	if !isTerminal(e.in) {
		o.Args = []string{"/bin/sh"} // commands from standard input
	} else if o.Timeout == 0 {
		o.Timeout = 24 * time.Hour
	}
	return c.start(e, o)
}

func (c labRunCmd) Run(e *env) error {
	o, err := c.options(e)
	if err != nil {
		return usageError{err}
	}
	if o.Args = program(c.Cmd); len(o.Args) == 0 {
		return usageError{errors.New("lab run: which program?")}
	}
	if err := bring(&o); err != nil {
		return usageError{err}
	}
	return c.start(e, o)
}

// bring puts a program that is a path of the host into the guest.
func bring(o *lab.Options) error {
	name := o.Args[0]
	if !strings.Contains(name, "/") {
		return nil
	}
	fi, err := os.Stat(name)
	if err != nil || !fi.Mode().IsRegular() {
		return nil // one of the guest's
	}
	abs, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	if slices.Contains([]string{"bin", "sbin", "lib"}, strings.Split(abs, "/")[1]) || strings.HasPrefix(abs, "/usr/bin/") || strings.HasPrefix(abs, "/usr/sbin/") {
		return nil // the guest has its own, or busybox's
	}
	o.Args = append([]string{abs}, o.Args[1:]...)
	o.Put = append(o.Put, lab.Copy{From: abs, To: abs})
	return nil
}

// program takes the -- away that kong leaves.
func program(words []string) []string {
	if len(words) > 0 && words[0] == "--" {
		return words[1:]
	}
	return words
}

// parseFlags reads flags that do not stand on the command line.
func parseFlags(f *labFlags, words []string) error {
	p, err := kong.New(f, kong.Name("devxlab lab"), kong.NoDefaultHelp(), kong.Exit(func(int) {}))
	if err != nil {
		return err
	}
	_, err = p.Parse(words)
	return err
}

// outputFlags are those of a test binary that name a file it writes.
var outputFlags = []string{"blockprofile", "coverprofile", "cpuprofile", "memprofile", "mutexprofile", "trace", "gocoverdir"}

func (c labExecCmd) Run(e *env) error {
	words := program(c.Cmd)
	if len(words) == 0 {
		return usageError{errors.New("lab exec: which program?")}
	}
	var f labFlags
	if err := parseFlags(&f, strings.Fields(os.Getenv("DEVXLAB_LAB_FLAGS"))); err != nil {
		return usageError{fmt.Errorf("DEVXLAB_LAB_FLAGS: %w", err)}
	}
	o, err := f.options(e)
	if err != nil {
		return usageError{fmt.Errorf("DEVXLAB_LAB_FLAGS: %w", err)}
	}
	o.Args = words
	if err := errors.Join(bring(&o), here(&o)); err != nil {
		return err
	}
	for _, v := range os.Environ() {
		if n, _, _ := strings.Cut(v, "="); n == "DEV" || strings.HasPrefix(n, "DEVXLAB_") && !strings.HasPrefix(n, "DEVXLAB_LAB_") || strings.HasPrefix(n, "GO") && n != "GOCOVERDIR" {
			o.Env = append(o.Env, v)
		}
	}
	return f.start(e, o)
}

// here takes the directory of a test along: its files, and its testdata. Files
// that a test binary's flags name come back.
func here(o *lab.Options) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	o.Dir = dir
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, d := range entries {
		if p := filepath.Join(dir, d.Name()); d.Type().IsRegular() || d.IsDir() && d.Name() == "testdata" {
			o.Put = append(o.Put, lab.Copy{From: p, To: p})
		}
	}
	for _, a := range o.Args[1:] {
		name, value, ok := strings.Cut(strings.TrimPrefix(a, "-test."), "=")
		if ok && strings.HasPrefix(a, "-test.") && slices.Contains(outputFlags, name) && value != "" {
			p := value
			if !filepath.IsAbs(p) {
				p = filepath.Join(dir, p)
			}
			if fi, err := os.Stat(p); err == nil && fi.IsDir() { // gocoverdir must be there
				o.Put = append(o.Put, lab.Copy{From: p, To: p})
			}
			o.Get = append(o.Get, lab.Copy{From: p, To: p, Optional: true})
		}
	}
	return nil
}

// start runs a machine and ends with the exit status of its program.
func (f labFlags) start(e *env, o lab.Options) error {
	ctx, leave := context.WithCancel(e.ctx)
	defer leave()
	restore := func() {}
	if isTerminal(e.in) && isTerminal(e.out) {
		var err error
		if restore, err = rawTerminal(e.in.(*os.File), &o, leave); err != nil {
			return err
		}
		fmt.Fprintln(e.err, "devxlab lab: starting the machine; once it is up, Ctrl-] ends it")
	}
	r, err := lab.Run(ctx, o)
	restore()
	if errors.Is(err, lab.ErrOptions) {
		return usageError{err}
	}
	if r != nil && f.Verbose {
		fmt.Fprintf(e.err, "devxlab lab: kernel %s, QEMU %s, KVM %v, initrd %s\nprepared in %v, process 1 after %v, program after %v (guest's clock %v), off after %v\nconsole: %s\n%s\n",
			r.Release, r.QEMU, r.KVM, humanize.IBytes(uint64(r.Initrd)), r.Prepare.Round(time.Millisecond), r.Init, r.Boot.Round(time.Millisecond), r.Ready,
			r.Total.Round(time.Millisecond), r.Console, strings.Join(r.Command, " "))
	}
	switch {
	case err != nil && e.ctx.Err() != nil:
		return err // exit status 130
	case err != nil && ctx.Err() != nil:
		fmt.Fprintln(e.err, "devxlab lab: ended by Ctrl-]")
		return statusError(exitLab)
	case err != nil:
		fmt.Fprintln(e.err, "devxlab lab:", err)
		return statusError(exitLab)
	case r.Status != 0:
		return statusError(r.Status)
	}
	return nil
}

// leaveKey is Ctrl-], which ends the machine as it ends telnet.
const leaveKey = 0x1d

// rawTerminal passes the terminal on to the program in the guest.
func rawTerminal(in *os.File, o *lab.Options, leave func()) (restore func(), err error) {
	fd := int(in.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	raw := *old
	// What termios(3) says cfmakeraw does, but output stays cooked: the console
	// and devxlab's own words go there too.
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	set := false
	sizes := make(chan guest.WindowSize, 1)
	size := func() {
		if w, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil {
			select {
			case sizes <- guest.WindowSize{Rows: w.Row, Cols: w.Col}:
			default:
			}
		}
	}
	size()
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGWINCH)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		for {
			select {
			case <-changed:
				size()
			case <-ctx.Done():
				return
			}
		}
	}()
	o.TTY, o.Sizes = true, sizes
	if t := os.Getenv("TERM"); t != "" {
		o.Env = append(o.Env, "TERM="+t)
	}
	// Until the guest takes the keys, ^C still ends this program.
	o.Stdin = readerFunc(func(p []byte) (int, error) {
		if !set {
			set = true
			if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
				return 0, err
			}
		}
		n, err := in.Read(p)
		if bytes.IndexByte(p[:max(n, 0)], leaveKey) >= 0 {
			leave()
			return 0, io.EOF
		}
		return n, err
	})
	return func() {
		stop()
		signal.Stop(changed)
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, old)
	}, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
