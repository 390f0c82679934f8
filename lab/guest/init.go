// SPDX-License-Identifier: BSD-2-Clause

package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	patience  = 20 * time.Second // for what the kernel does by itself, under emulation
	probeWait = 3 * time.Second  // a probe that is asynchronous; others are over when the module is loaded
	byeWait   = 5 * time.Second
	offWait   = 15 * time.Second
	pollEvery = 10 * time.Millisecond
)

// statusNotRun is the exit status where the program could not be started, as
// shells have it.
const statusNotRun = 127

// Init is process 1. It returns only if it is not, or if the machine cannot be
// powered off.
func Init() error {
	if os.Getpid() != 1 {
		return errors.New("lab init is for the lab's own virtual machine: run devxlab lab")
	}
	if err := guarded(); err != nil {
		fmt.Fprintln(os.Stderr, "devxlab init:", err)
	}
	unix.Sync()
	return unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// cutOff ends a machine whose kernel does not come down: a driver may wait for
// ever for a device that was made to fail (mlx5_core's cmd.c, mlx5_cmd_flush, for a
// command that was never answered).
func cutOff() {
	time.Sleep(offWait)
	fmt.Fprintf(os.Stderr, "devxlab init: the kernel has not come down within %v: cut off\n", offWait)
	_ = os.WriteFile("/proc/sysrq-trigger", []byte("b"), 0)
}

func guarded() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return boot()
}

func boot() error {
	for _, m := range []struct{ what, where, kind string }{
		{"dev", "/dev", "devtmpfs"},
		{"proc", "/proc", "proc"},
		{"sys", "/sys", "sysfs"},
		{"pts", "/dev/pts", "devpts"},
		{"shm", "/dev/shm", "tmpfs"},
		{"debug", "/sys/kernel/debug", "debugfs"},
		{"trace", "/sys/kernel/tracing", "tracefs"},
		{"bpf", "/sys/fs/bpf", "bpf"},
	} {
		_ = os.MkdirAll(m.where, 0o755)
		if err := unix.Mount(m.what, m.where, m.kind, 0, ""); err != nil && !slices.Contains([]string{"debugfs", "tracefs", "bpf"}, m.kind) {
			return fmt.Errorf("mount %s: %w", m.where, err)
		}
	}
	// Before proc is mounted nothing knows the time since the start.
	began := uptime()
	_ = os.Chmod("/tmp", 0o1777)
	_ = unix.Sethostname([]byte("lab"))
	b, err := os.ReadFile(JobFile) // the last file in the initrd
	if err != nil {
		return fmt.Errorf("the initrd was not unpacked whole: more memory may help: %w", err)
	}
	var job Job
	if err := json.Unmarshal(b, &job); err != nil {
		return fmt.Errorf("%s: %w", JobFile, err)
	}
	if job.ForceOff {
		defer func() { go cutOff() }()
	}
	loadErr := load(job.Modules)
	_ = unix.Mount("config", "/sys/kernel/config", "configfs", 0, "") // rdma_cm brings it
	port, err := openPort()
	if err != nil {
		return errors.Join(loadErr, err)
	}
	w := NewWriter(port)
	upErr := loadErr
	if upErr == nil {
		upErr = DevicesUp(job.Devices)
	}
	if err := w.json(Hello, Greeting{Release: release(), Uptime: began, Ready: uptime()}); err != nil {
		return err
	}
	status := statusNotRun
	bye := make(chan struct{})
	if upErr != nil {
		_ = w.Frame(Fault, []byte(upErr.Error()))
		go hear(port, nil, nil, bye)
	} else {
		status = run(job, port, w, bye)
	}
	for i, g := range job.Get {
		if err := send(w, i, g.Path); err != nil && !(g.Optional && errors.Is(err, fs.ErrNotExist)) {
			_ = w.Frame(Lost, fmt.Append(nil, err))
		}
	}
	if err := w.Frame(Exit, []byte{byte(status)}); err != nil {
		return err
	}
	select {
	case <-bye:
	case <-time.After(byeWait):
	}
	return nil
}

func (w *Writer) json(kind byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.Frame(kind, b)
}

// load loads modules in the order given. The first one that fails ends it: what
// comes later depends on it.
func load(modules []Module) error {
	for _, m := range modules {
		f, err := os.Open(m.Path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), m.Params, 0)
		_ = f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("module %s: %w (see the console)", filepath.Base(m.Path), err)
		}
	}
	return nil
}

// openPort opens the way to the host: the virtio-serial port, or the second
// serial one where the kernel has no driver for it.
func openPort() (*os.File, error) {
	for until := time.Now().Add(time.Second); ; time.Sleep(pollEvery) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if b, _ := os.ReadFile(n); strings.TrimSpace(string(b)) == PortName {
				return os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(n))), os.O_RDWR, 0)
			}
		}
		if _, err := os.Stat("/sys/class/virtio-ports"); err != nil || time.Now().After(until) {
			break
		}
	}
	f, err := os.OpenFile(SerialPort, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("the kernel has neither virtio_console nor a second serial port: %w", err)
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, err
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	return f, unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
}

// DevicesUp brings every link up, gives those of RDMA devices an address, and
// waits until n RDMA devices have an active port. Init calls it, and whoever has
// loaded the driver again.
func DevicesUp(n int) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	links, _ := os.ReadDir("/sys/class/net")
	for _, l := range links {
		driver, _ := os.Readlink(filepath.Join("/sys/class/net", l.Name(), "device/driver"))
		if filepath.Base(driver) == "mlx5_core" {
			if err := address(s, l.Name(), [4]byte{192, 168, 7, hostNumber(l.Name())}); err != nil {
				return fmt.Errorf("address of %s: %w", l.Name(), err)
			}
		}
		if err := up(s, l.Name()); err != nil {
			return fmt.Errorf("%s up: %w", l.Name(), err)
		}
	}
	began := time.Now()
	for until := began.Add(patience); n > 0; time.Sleep(pollEvery) {
		var active, all []string
		states, _ := filepath.Glob("/sys/class/infiniband/*/ports/1/state")
		for _, f := range states {
			b, _ := os.ReadFile(f)
			all = append(all, strings.Split(f, "/")[4]+": "+strings.TrimSpace(string(b)))
			if strings.Contains(string(b), "ACTIVE") {
				active = append(active, f)
			}
		}
		if len(active) >= n {
			return nil
		}
		if bound, _ := filepath.Glob("/sys/bus/pci/drivers/mlx5_core/*:*"); len(bound) < n && time.Since(began) > probeWait {
			return fmt.Errorf("mlx5_core has taken %d of %d devices: see what it says on the console", len(bound), n)
		}
		if time.Now().After(until) {
			return fmt.Errorf("%d of %d RDMA devices are active after %v (%s): see what mlx5_core and mlx5_ib say on the console",
				len(active), n, patience, strings.Join(all, ", "))
		}
	}
	return nil
}

// hostNumber is the last byte of a link's address, so that cards on one wire
// have IP addresses of their own in whichever guest they are. With the netmask of
// their network any byte is a host's.
func hostNumber(link string) byte {
	b, _ := os.ReadFile(filepath.Join("/sys/class/net", link, "address"))
	mac, _ := net.ParseMAC(strings.TrimSpace(string(b)))
	if len(mac) == 0 {
		return 1
	}
	return mac[len(mac)-1]
}

// netmask is that of 192.168.0.0/20, in which neither 192.168.7.0 nor .255 is
// special.
var netmask = []byte{255, 255, 240, 0}

func up(s int, name string) error {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, r); err != nil {
		return err
	}
	r.SetUint16(r.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r)
}

func address(s int, name string, a [4]byte) error {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := r.SetInet4Addr(a[:]); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCSIFADDR, r); err != nil {
		return err
	}
	if err := r.SetInet4Addr(netmask); err != nil {
		return err
	}
	return unix.IoctlIfreq(s, unix.SIOCSIFNETMASK, r)
}

// run runs the job's program and returns its exit status.
func run(job Job, port io.Reader, w *Writer, bye chan struct{}) int {
	// Where it is looked up and what it sees.
	env := append([]string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/root", "USER=root", "TMPDIR=/tmp", "LANG=C.UTF-8", "DEVXLAB_PLACE=lab"}, job.Env...)
	for _, e := range env {
		k, v, _ := strings.Cut(e, "=")
		_ = os.Setenv(k, v)
	}
	dir := job.Dir
	if dir == "" {
		dir = "/root"
	}
	if len(job.Args) == 0 {
		job.Args = []string{"/bin/sh"}
	}
	cmd := exec.Command(job.Args[0], job.Args[1:]...)
	cmd.Dir, cmd.Env = dir, os.Environ()
	cmd.WaitDelay = 2 * time.Second // a child left behind keeps the output open
	var in io.WriteCloser
	var resize func(WindowSize)
	fail := func(err error) int {
		_ = w.Frame(Stderr, fmt.Appendf(nil, "devxlab lab: %v\n", err))
		go hear(port, nil, nil, bye)
		return statusNotRun
	}
	copied := make(chan struct{})
	if job.TTY {
		master, slave, err := openPTY(job.Size)
		if err != nil {
			return fail(fmt.Errorf("no terminal: %w", err))
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
		defer slave.Close()
		in = master
		resize = func(s WindowSize) { setSize(master, s) }
		go func() {
			defer close(copied)
			_, _ = io.Copy(w.Stream(Stdout), master) // ends with EIO once the program is gone
		}()
	} else {
		close(copied)
		cmd.Stdout, cmd.Stderr = w.Stream(Stdout), w.Stream(Stderr)
		var err error
		if in, err = cmd.StdinPipe(); err != nil {
			return fail(err)
		}
	}
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	go hear(port, in, resize, bye)
	err := cmd.Wait()
	if job.TTY {
		_ = cmd.Stdin.(*os.File).Close()
		select {
		case <-copied:
		case <-time.After(cmd.WaitDelay):
		}
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode()
	case errors.As(err, &exit):
		_ = w.Frame(Stderr, fmt.Appendf(nil, "devxlab lab: %s\n", exit))
		if s, ok := exit.Sys().(interface{ Signal() unix.Signal }); ok {
			return 128 + int(s.Signal())
		}
		return statusNotRun
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		_ = w.Frame(Stderr, fmt.Appendf(nil, "devxlab lab: %v\n", err))
		return statusNotRun
	}
	return 0
}

// hear takes what the host sends, until it says Bye or is gone.
func hear(port io.Reader, in io.WriteCloser, resize func(WindowSize), bye chan<- struct{}) {
	for {
		kind, b, err := ReadFrame(port)
		if err != nil {
			return
		}
		switch kind {
		case Stdin:
			switch {
			case in == nil:
			case len(b) > 0:
				if _, err := in.Write(b); err != nil {
					in = nil // nobody reads it any more
				}
			case resize == nil: // a terminal has no end
				_ = in.Close()
				in = nil
			default:
				_, _ = in.Write([]byte{4}) // but ^D
			}
		case Size:
			var s WindowSize
			if json.Unmarshal(b, &s) == nil && resize != nil {
				resize(s)
			}
		case Bye:
			close(bye)
			return
		}
	}
}

func openPTY(size WindowSize) (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		_ = master.Close()
		return nil, nil, err
	}
	setSize(master, size)
	return master, slave, nil
}

func setSize(f *os.File, s WindowSize) {
	if s.Rows > 0 && s.Cols > 0 {
		_ = unix.IoctlSetWinsize(int(f.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
	}
}

// send sends the file at path, or all regular files below it.
func send(w *Writer, index int, path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return sendFile(w, FileHeader{Index: index}, path)
	}
	return filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(path, p)
		if err != nil {
			return err
		}
		return sendFile(w, FileHeader{Index: index, Path: rel}, p)
	})
}

func sendFile(w *Writer, h FileHeader, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	h.Perm = uint32(fi.Mode().Perm())
	if err := w.json(File, h); err != nil {
		return err
	}
	// Not ReadFrom: a file of /sys has no length.
	_, err = io.CopyBuffer(w.Stream(Data), struct{ io.Reader }{f}, make([]byte, MaxFrame))
	return err
}

// uptime returns the seconds since the kernel started.
func uptime() float64 {
	b, _ := os.ReadFile("/proc/uptime")
	first, _, _ := strings.Cut(string(b), " ")
	t, _ := strconv.ParseFloat(first, 64)
	return t
}

func release() string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	return unix.ByteSliceToString(u.Release[:])
}
