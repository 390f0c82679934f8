// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	"devxlab.example/lab/guest"
)

// ErrOptions is a mistake in Options.
var ErrOptions = errors.New("lab options")

// Images of the guest.
const (
	ImageBasic = "basic" // busybox and devxlab
	// ImageFull has rdma-core's tools and tests, perftest and iproute2 too: 100
	// packages of Debian 12, or of the suite that stands behind it, as in
	// "full:trixie".
	ImageFull = "full"
)

// Accelerators.
const (
	AccelAuto = "auto" // KVM if a guest really starts under it
	AccelKVM  = "kvm"
	AccelTCG  = "tcg"
)

// Copy is a file or directory to copy between host and guest.
type Copy struct {
	From, To string
	Optional bool // from the guest: it need not be there
}

// Options say what to run and in which machine. The zero value is a guest
// without a device, and a shell that reads nothing.
type Options struct {
	Args   []string  // program and arguments in the guest; default: /bin/sh
	Env    []string  // NAME=value for it
	Dir    string    // where it starts, made if it is not there; default: /root
	Stdin  io.Reader // a goroutine may go on reading it after Run has returned
	Stdout io.Writer
	Stderr io.Writer
	TTY    bool                    // give it a terminal; Stderr is then not used
	Sizes  <-chan guest.WindowSize // that of the terminal, first and whenever it changes

	Put []Copy // from host to guest, before the start; programs with their shared libraries
	Get []Copy // from guest to host, after the end

	Kernel       string            // a path, or one of KernelNames; see the package's finding order
	Modules      string            // its lib/modules/RELEASE, where Kernel is a path
	ExtraModules []string          // to load beside mlx5 and verbs
	Params       map[string]string // of modules, by their names: "debug_mask=1"
	Append       string            // to the kernel's command line

	SMP      int      // virtual CPUs; default 1, which is fastest under emulation
	MemMB    int      // MiB of memory; default 512, with ImageFull 1024, with Packages 2048
	Accel    string   // default AccelAuto
	Devices  int      // how many HCAs
	Profile  string   // of the HCA: "devxlab emu --profile"
	Faults   []string // of the HCA: "devxlab emu --fault"
	Wire     string   // between HCAs: "devxlab emu --wire"
	Tap      string   // pcapng file that gets what is on it: "devxlab emu --tap"
	HCA      []string // program and arguments of the HCAs, which gets --socket PATH for each too; default: devxlab emu
	Sockets  []string // of HCAs that run already, so that two machines can share a wire; before Devices
	Image    string   // default ImageBasic, with Packages ImageFull
	Packages []string // of the suite of ImageFull, to be there with their dependencies beside its own
	Devxlab  string   // the devxlab for the guest, an x86-64 program; default: this program

	ForceOff bool // a guest that does not come down within 15 s of its program's end is cut off; with Faults and Sockets always

	Timeout  time.Duration // of the machine, from its start; default 10 min
	Console  io.Writer     // also gets the guest's console
	Progress io.Writer     // what is being found and downloaded; default os.Stderr
	Refresh  bool          // look for newer versions of what is in the cache
	Offline  bool          // download nothing
}

// forceOff says whether the machine may be cut off: where something of its cards
// may go wrong, or where they end when another program does, its kernel may wait
// for ever.
func (o *Options) forceOff() bool {
	return o.ForceOff || len(o.Faults) > 0 || len(o.Sockets) > 0
}

func imageKnown(image string) bool {
	_, ok := suiteOf(image)
	return ok
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)

// Limits of Options, which are QEMU's and the guest's own.
const (
	maxSMP     = 64
	minMemMB   = 160
	maxMemMB   = 64 << 10
	maxDevices = 8
)

func (o *Options) setDefaults() {
	o.SMP, o.Accel = cmp.Or(o.SMP, 1), cmp.Or(o.Accel, AccelAuto)
	if o.Image == "" {
		if o.Image = ImageBasic; len(o.Packages) > 0 {
			o.Image = ImageFull
		}
	}
	if o.MemMB == 0 {
		o.MemMB = 512
		if _, full := suiteOf(o.Image); full {
			o.MemMB = 1024
		}
		if len(o.Packages) > 0 { // nobody knows how large
			o.MemMB = 2048
		}
	}
	o.Timeout = cmp.Or(o.Timeout, 10*time.Minute)
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	if o.Console == nil {
		o.Console = io.Discard
	}
	if o.Progress == nil {
		o.Progress = os.Stderr
	}
}

func (o *Options) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...)
	}
	switch {
	case o.SMP < 1 || o.SMP > maxSMP:
		return bad("%d CPUs: 1 to %d", o.SMP, maxSMP)
	case o.MemMB < minMemMB || o.MemMB > maxMemMB:
		return bad("%d MiB of memory: %d to %d", o.MemMB, minMemMB, maxMemMB)
	case o.Devices < 0 || o.Devices+len(o.Sockets) > maxDevices:
		return bad("%d devices: 0 to %d", o.Devices+len(o.Sockets), maxDevices)
	case o.Devices == 0 && (o.Wire != "" || o.Tap != "" || o.Profile != "" || len(o.Faults) > 0):
		return bad("wire, tap, profile and faults are of HCAs that the machine starts itself, and it starts none: give them to the devxlab emu that serves the socket")
	case o.Timeout < 0:
		return bad("time limit %v: above 0", o.Timeout)
	case o.Accel != AccelAuto && o.Accel != AccelKVM && o.Accel != AccelTCG:
		return bad("accelerator %q: %s, %s or %s", o.Accel, AccelAuto, AccelKVM, AccelTCG)
	case o.Image != ImageBasic && !imageKnown(o.Image):
		return bad("image %q: %s, %s or %s:SUITE of Debian (%s)", o.Image, ImageBasic, ImageFull, ImageFull, strings.Join(suites, ", "))
	case strings.ContainsAny(o.Append, "\n\x00") || strings.Contains(" "+o.Append+" ", " -- "):
		return bad("kernel command line %q: a line without --", o.Append)
	case len(o.Append) > 1500: // COMMAND_LINE_SIZE is 2048
		return bad("kernel command line of %d bytes: at most 1500", len(o.Append))
	case o.Dir != "" && !path.IsAbs(o.Dir):
		return bad("directory %q in the guest: begins with /", o.Dir)
	}
	for _, p := range o.Packages {
		if !packageName.MatchString(p) || o.Image == ImageBasic {
			return bad("package %q: the name of one of Debian, and image %s", p, ImageFull)
		}
	}
	for _, e := range o.Env {
		if !envName.MatchString(e) || strings.ContainsRune(e, 0) {
			return bad("environment %q: NAME=value", e)
		}
	}
	for _, a := range o.Args {
		if strings.ContainsRune(a, 0) {
			return bad("argument %q: contains a zero byte", a)
		}
	}
	for _, c := range o.Put {
		if !path.IsAbs(c.To) || path.Clean(c.To) == "/" {
			return bad("%s to %q in the guest: a path that begins with /", c.From, c.To)
		}
		if _, err := os.Stat(c.From); err != nil {
			return bad("to be put into the guest: %v", err)
		}
	}
	for _, c := range o.Get {
		if !path.IsAbs(c.From) || path.Clean(c.From) == "/" {
			return bad("%q in the guest: a path that begins with /", c.From)
		}
		if c.To == "" {
			return bad("%s: where to?", c.From)
		}
	}
	return nil
}
