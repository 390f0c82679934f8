// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"devxlab.example/lab/guest"
)

// ErrQEMU is a QEMU that cannot be used.
var ErrQEMU = errors.New("no usable QEMU")

// The first QEMU with the client side of vfio-user (its release notes, 10.1).
const needMajor, needMinor = 10, 1

// QEMU is a program with the arguments that it always gets.
type QEMU struct {
	Args    []string
	Version string
}

var qemuVersion = regexp.MustCompile(`QEMU emulator version (\d+)\.(\d+)(\.\d+)?`)

// parseVersion reads the first line of qemu --version.
func parseVersion(out string) (version string, ok bool, err error) {
	m := qemuVersion.FindStringSubmatch(out)
	if m == nil {
		first, _, _ := strings.Cut(out, "\n")
		return "", false, fmt.Errorf("%w: its --version says %q", ErrQEMU, first)
	}
	major, err1 := strconv.Atoi(m[1])
	minor, err2 := strconv.Atoi(m[2])
	if err := errors.Join(err1, err2); err != nil {
		return "", false, fmt.Errorf("%w: %w", ErrQEMU, err)
	}
	return m[1] + "." + m[2] + m[3], major > needMajor || major == needMajor && minor >= needMinor, nil
}

// askQEMU runs a QEMU for its version.
func askQEMU(ctx context.Context, args ...string) (*QEMU, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := command(ctx, append(slices.Clone(args), "--version")...)
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrQEMU, err)
	}
	v, ok, err := parseVersion(string(out))
	return &QEMU{Args: args, Version: v}, ok, err
}

// unpacked is a QEMU below a directory of unpacked packages: with its own C
// library and loader, since the host's may be older.
func unpacked(ctx context.Context, dir string) (*QEMU, bool, error) {
	loaders, _ := filepath.Glob(filepath.Join(dir, "usr/lib*/ld-linux-*.so.*"))
	libs, _ := filepath.Glob(filepath.Join(dir, "usr/lib/*-linux-gnu*"))
	if len(loaders) == 0 || len(libs) == 0 {
		nested, _ := filepath.Glob(filepath.Join(dir, "usr/lib/*/ld-linux-*.so.*"))
		if loaders = nested; len(loaders) == 0 || len(libs) == 0 {
			return nil, false, fmt.Errorf("%w: %s has no loader: delete it and run this again", ErrQEMU, dir)
		}
	}
	return askQEMU(ctx, loaders[0], "--library-path", strings.Join(libs, ":"), filepath.Join(dir, "usr/bin/qemu-system-x86_64"),
		"-L", filepath.Join(dir, "usr/share/qemu"), "-L", filepath.Join(dir, "usr/share/seabios"))
}

// machine is one run of QEMU.
type machine struct {
	qemu    *QEMU
	kvm     bool
	smp     int
	memMB   int
	kernel  string
	initrd  string
	append  string   // to the kernel's command line
	channel string   // socket of the virtio-serial port
	serial  string   // socket of the second serial port
	devices []string // sockets of HCAs
}

func (m *machine) args() []string {
	accel, cpu := "tcg,thread=multi", "max"
	if m.kvm {
		accel, cpu = "kvm", "host"
	}
	line := "console=ttyS0 panic=-1"
	if !m.kvm {
		line += " no_timer_check" // on a busy host the emulated timer is late, and the kernel panics; KVM guests do not check either
	}
	if m.smp > 1 && !m.kvm {
		line += " tsc=reliable" // else it reads the HPET: 16 % slower
	}
	if m.append != "" {
		line += " " + m.append
	}
	a := append(slices.Clone(m.qemu.Args),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-accel", accel, "-cpu", cpu, "-smp", strconv.Itoa(m.smp),
		"-machine", "q35,memory-backend=m",
		"-object", fmt.Sprintf("memory-backend-memfd,id=m,size=%dM,share=on", m.memMB),
		"-serial", "stdio", "-kernel", m.kernel)
	if m.serial != "" {
		a = append(a, "-chardev", "socket,id=serial,path="+m.serial, "-serial", "chardev:serial")
	}
	if m.channel != "" {
		a = append(a, "-chardev", "socket,id=channel,path="+m.channel,
			"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=channel,name="+guest.PortName)
	}
	// Behind a root port of its own, as a card is: on the root bus itself QEMU takes
	// the link's state away.
	for i, d := range m.devices {
		a = append(a, "-device", fmt.Sprintf("pcie-root-port,id=port%d,chassis=%d,x-speed=16,x-width=16", i, i+1),
			"-device", fmt.Sprintf(`{"driver":"vfio-user-pci","bus":"port%d","socket":{"type":"unix","path":%q}}`, i, d))
	}
	if m.initrd != "" {
		a = append(a, "-initrd", m.initrd)
		line += " -- lab init" // what Init is started with
	}
	return append(a, "-append", line)
}

// kvmWorks says whether a guest really starts under KVM: /dev/kvm may be there
// and still not work, for example inside another virtual machine. It starts the
// kernel without an init and waits for its first line. The answer is kept until
// the host is started again.
func kvmWorks(ctx context.Context, cache string, q *QEMU, kernel string) (bool, string) {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false, err.Error()
	}
	_ = f.Close()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	h := fnv.New64a()
	fmt.Fprintln(h, string(boot), q.Args, q.Version)
	note := filepath.Join(cache, fmt.Sprintf("kvm-%016x", h.Sum64()))
	if b, err := os.ReadFile(note); err == nil {
		why, bad := strings.CutPrefix(string(b), "no: ")
		return !bad, why
	}
	why := probeKVM(ctx, q, kernel)
	if ctx.Err() != nil {
		return false, ctx.Err().Error()
	}
	removeGlob(filepath.Join(cache, "kvm-*"))
	answer := "yes"
	if why != "" {
		answer = "no: " + why
	}
	_ = os.WriteFile(note, []byte(answer), 0o644)
	return why == "", why
}

// probeKVM returns why not, or nothing.
func probeKVM(ctx context.Context, q *QEMU, kernel string) string {
	const limit = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m := machine{qemu: q, kvm: true, smp: 1, memMB: 256, kernel: kernel}
	args := m.args()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	ownGroup(cmd)
	seen := &first{word: "Linux version", then: cancel}
	var errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = seen, &errOut
	err := cmd.Run()
	switch {
	case seen.found:
		return ""
	case ctx.Err() != nil:
		return fmt.Sprintf("the kernel said nothing within %v", limit)
	case err != nil:
		return strings.TrimSpace(err.Error() + ": " + errOut.String())
	}
	return "the kernel said nothing"
}

// first waits for a word in what is written to it.
type first struct {
	word  string
	then  func()
	buf   []byte
	found bool
}

func (f *first) Write(p []byte) (int, error) {
	if !f.found {
		f.buf = append(f.buf, p...)
		if f.found = bytes.Contains(f.buf, []byte(f.word)); f.found {
			f.then()
		}
		if keep := len(f.word); len(f.buf) > keep {
			f.buf = f.buf[len(f.buf)-keep:]
		}
	}
	return len(p), nil
}
