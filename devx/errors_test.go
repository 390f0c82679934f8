// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/abi"
	"devxlab.example/emu/fw"
	"devxlab.example/emu/uverbs"
	"devxlab.example/internal/testdev"
	"devxlab.example/mlx5"
)

func TestOpenErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		is    error
		parts []string
	}{
		{"mlx5_99", devx.ErrNoDevice, []string{"devx: open mlx5_99: no RDMA device"}},
		{"", devx.ErrNoDevice, []string{"no RDMA device"}},
		{"qemu:0", nil, []string{`devx: open qemu:0: no driver for "qemu:"; registered: [emu: `, `import _ "devxlab.example/emu/uverbs"`}},
		{":", nil, []string{`no driver for ":"`}},
		{"emu:threads=0", nil, []string{"devx: open emu:threads=0: option threads=0: a number from 1 to 64"}},
		{"emu:devx=off", devx.ErrNoDevX, []string{"devx: emu:devx=off: no DevX: a context opens without it, but not with it (invalid argument)", "log_max_uctx"}},
	} {
		d, err := devx.Open(c.name)
		if d != nil {
			t.Fatalf("%s opened", c.name)
		}
		contains(t, err, c.parts...)
		if c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v is no %v", c.name, err, c.is)
		}
		if _, ok := uverbs.Lookup(c.name); ok {
			t.Errorf("%s: the emulated device stays", c.name)
		}
	}
}

func TestRegisterTwice(t *testing.T) {
	defer func() {
		if r := recover(); r != "devx: scheme emu is registered twice" {
			t.Errorf("%v", r)
		}
	}()
	devx.Register("emu", nil)
}

// A user context is a limited resource: the driver's own and 2^8 − 1 more.
func TestOutOfContexts(t *testing.T) {
	n := name(t)
	for range 255 {
		open(t, n)
	}
	_, err := devx.Open(n)
	contains(t, err, "user context", "cannot allocate memory")
	if !errors.Is(err, unix.ENOMEM) {
		t.Error(err)
	}
}

// refused returns the error of a transition that firmware refuses.
func refused(t *testing.T, kernel string) error {
	t.Helper()
	d := open(t, name(t, "kernel="+kernel))
	err := devx.Modify(newQP(t, d, mlx5.STRC), rcRTS)
	if err == nil {
		t.Fatal("RESET to RTS succeeded")
	}
	return err
}

func TestErrorWithoutOutbox(t *testing.T) {
	for _, kernel := range []string{"5.10", "5.15", "5.17"} {
		err := refused(t, kernel)
		var c *devx.CommandError
		if !errors.As(err, &c) || !errors.Is(err, unix.EINVAL) || c.HasOutbox || c.Status != 0 || c.Syndrome != 0 || devx.Unknown(err) {
			t.Errorf("%s: %+v", kernel, c)
		}
		contains(t, err, "RTR2RTS_QP(0x504)", "invalid argument (errno 22)", "older than Linux 5.18", "echo 'module mlx5_core +p' >/sys/kernel/debug/dynamic_debug/control")
	}
}

func TestErrorWithOutbox(t *testing.T) {
	for _, kernel := range []string{"5.18", "6.1", "7.3"} {
		err := refused(t, kernel)
		var c *devx.CommandError
		if !errors.As(err, &c) || !errors.Is(err, unix.EREMOTEIO) || !c.HasOutbox || c.Status != mlx5.StatusBadQPState || fw.CheckOf(c.Syndrome) == nil {
			t.Errorf("%s: %+v", kernel, c)
		}
	}
}

// The kernel that runs here says what its version says.
func TestErrorOfThisKernel(t *testing.T) {
	d := open(t, name(t))
	err := devx.Modify(newQP(t, d, mlx5.STRC), rcRTS)
	var c *devx.CommandError
	if !errors.As(err, &c) || devx.Unknown(err) {
		t.Fatal(err)
	}
	if !firmwareAnswers(t) {
		if !errors.Is(err, unix.EINVAL) || c.HasOutbox || c.Status != 0 {
			t.Errorf("%+v", c)
		}
		return
	}
	if !errors.Is(err, unix.EREMOTEIO) || !c.HasOutbox || c.Status != mlx5.StatusBadQPState || fw.CheckOf(c.Syndrome) == nil {
		t.Errorf("%+v", c)
	}
}

// firmwareAnswers reports whether this kernel passes firmware's answer on, which
// Linux does from 5.18.
func firmwareAnswers(t testing.TB) bool {
	t.Helper()
	if testdev.Kernel() == "" {
		return true // what an emulated one does by default
	}
	major, minor := kernelVersion(t)
	return major > 5 || major == 5 && minor >= 18
}

// kernelVersion is that of this machine.
func kernelVersion(t testing.TB) (major, minor int) {
	t.Helper()
	var u unix.Utsname
	must(t, unix.Uname(&u))
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major, minor
}

func TestRefusedBeforeFirmware(t *testing.T) {
	d := open(t, name(t))
	a, b := rts(t, d), rts(t, d)
	s, err := d.NewSubmitter()
	must(t, err)
	defer s.Close()
	c := count(d)
	cmd := make([]byte, mlx5.TransitionSize)
	send := func(what string) {
		err := s.Send(a, cmd)
		var c *devx.CommandError
		if !errors.Is(err, unix.EINVAL) || !errors.As(err, &c) || c.HasOutbox {
			t.Errorf("%s: %v", what, err)
		}
	}
	mlx5.PutHeader(cmd, mlx5.OpRTS2RTS, 0)
	mlx5.RTS2RTSQPIn(cmd).SetQPN(b.Number())
	send("another queue pair's number")
	mlx5.RTS2RTSQPIn(cmd).SetQPN(a.Number())
	mlx5.PutHeader(cmd, mlx5.OpSQDRTS, 0)
	send("SQD2RTS, which is no modify to the driver")
	mlx5.PutHeader(cmd, mlx5.OpQueryQP, 0)
	send("a query")
	mlx5.PutHeader(cmd, mlx5.OpRTS2RTS, 0)
	cmd[5] = 1
	send("a vhca_tunnel_id")
	cmd[5] = 0
	if err := s.Send(a, cmd[:8]); err == nil || errors.Is(err, unix.EINVAL) {
		t.Errorf("8 bytes: %v", err)
	}
	contains(t, s.Send(a, make([]byte, 1<<16)), "65536", "too long")
	c.commands(t, 0, 0)
	must(t, s.Send(a, cmd))
	c.commands(t, 1, 1)
}

func TestExecErrors(t *testing.T) {
	d := open(t, name(t))
	in, out := make([]byte, 16), make([]byte, 16)
	contains(t, d.Exec(in[:15], out), "at least 16 bytes of input and of output, not 15 and 16")
	contains(t, d.Exec(in, out[:15]), "not 16 and 15")
	mlx5.PutHeader(in, mlx5.OpAccessReg, 0) // not among those that DevX lets through
	if err := d.Exec(in, out); !errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
	mlx5.PutHeader(in, mlx5.OpNOP, 0)
	must(t, d.Exec(in, out))
	if _, err := d.EQN(5); !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	} else {
		contains(t, err, "completion vector 5 (it has 1)")
	}
	if psid, err := d.PSID(); err != nil || psid != "MT_0000000359" {
		t.Errorf("PSID %q, %v", psid, err)
	}
	for _, i := range []int{-1, 1 << 16} {
		_, err := d.RoCEAddress(i)
		contains(t, err, "out of range")
	}
	contains(t, func() error { _, err := d.OwnPath(200); return err }(), "no GID at index 200")
}

// A command that the kernel would write beyond never reaches it.
func TestShortCommandsStayHere(t *testing.T) {
	d := open(t, name(t))
	q := newQP(t, d, mlx5.STRC)
	s, err := d.NewSubmitter()
	must(t, err)
	defer s.Close()
	c := count(d)
	for op, least := range map[mlx5.Op]int{
		mlx5.OpCreateMKey: 272, mlx5.OpCreateCQ: 272, mlx5.OpModifyCQ: 272, mlx5.OpCreateQP: 272, mlx5.OpCreateSQ: 272,
		mlx5.OpCreateRQ: 272, mlx5.OpCreateRMP: 272, mlx5.OpCreateXRCSRQ: 272, mlx5.OpCreateXRQ: 184,
	} {
		for _, n := range []int{16, least - 1} {
			in := make([]byte, n)
			mlx5.PutHeader(in, op, 0)
			_, err := d.Create(in, make([]byte, 16))
			contains(t, err, op.String(), fmt.Sprintf("of %d bytes: at least %d", n, least))
			contains(t, s.Send(q, in), "beyond its copy")
		}
	}
	c.commands(t, 0, 0)
}

func TestUnplugWhileCommandIsUnderWay(t *testing.T) {
	for _, c := range []struct {
		kernel string
		errno  unix.Errno
	}{{"5.15", unix.EIO}, {"6.1", unix.ENXIO}} {
		n := name(t, "clock=virtual", "latency=1ms", "kernel="+c.kernel)
		d := open(t, n)
		q := newQP(t, d, mlx5.STRC)
		e := emulated(t, d)
		d.Busy(2) // the command sleeps, and time stands still until the other is taken back
		got := make(chan error)
		go func() { got <- devx.Modify(q, rcInit) }()
		wait(t, "a command in flight", func() bool { return e.HCA().Stats().InFlight == 1 })
		e.Unplug()
		d.Busy(-1)
		err := <-got
		d.Busy(-1)
		if !errors.Is(err, devx.ErrDeviceGone) || !devx.Unknown(err) || !errors.Is(err, c.errno) {
			t.Errorf("%s: %v", c.kernel, err)
		}
		contains(t, err, "device gone", "RST2INIT", "unplugged", "dmesg")
		var cmd *devx.CommandError
		if !errors.As(err, &cmd) || cmd.QPN != q.Number() || cmd.HasOutbox {
			t.Errorf("%+v", cmd)
		}
		for what, err := range map[string]error{
			"Modify": devx.Modify(q, rcInit), "Close of a QP": q.Close(), "EQN": func() error { _, err := d.EQN(0); return err }(),
		} {
			if !errors.Is(err, devx.ErrDeviceGone) || !errors.Is(err, unix.EIO) {
				t.Errorf("%s later: %v", what, err)
			}
		}
		again := open(t, n) // a new device of the same name
		if qps := emulated(t, again).HCA().Stats().QPs; qps != 0 {
			t.Errorf("it has %d queue pairs", qps)
		}
		must(t, d.Close())
		must(t, again.Close())
	}
}

func TestClosed(t *testing.T) {
	d := open(t, name(t))
	q := newQP(t, d, mlx5.STRC)
	closedQP := newQP(t, d, mlx5.STRC)
	must(t, closedQP.Close())
	must(t, closedQP.Close())
	cq, err := d.CQ(16)
	must(t, err)
	umem, err := d.Umem(4096, 0)
	must(t, err)
	uar, err := d.UAR()
	must(t, err)
	s, err := d.NewSubmitter()
	must(t, err)
	ev, err := d.EventChannel()
	must(t, err)
	must(t, uar.Ring(0x800, 1))
	cmd := make([]byte, mlx5.ToRSTQPInSize)
	mlx5.PutHeader(cmd, mlx5.Op2RST, 0)
	closed := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, devx.ErrClosed) || devx.Unknown(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	other, err := d.NewSubmitter()
	must(t, err)
	must(t, other.Close())
	must(t, other.Close())
	closed("Send of a closed submitter", other.Send(q, cmd))
	closed("Modify of a closed QP", devx.Modify(closedQP, rcInit))
	closed("Send of a closed QP", s.Send(closedQP, cmd))
	closed("Subscribe about a closed QP", ev.Subscribe(1, closedQP, mlx5.EventCommEst))
	_, err = closedQP.Query()
	closed("Query of a closed QP", err)

	must(t, d.Close())
	closed("a second Close", d.Close())
	closed("a third Close", d.Close())
	closed("Modify", devx.Modify(q, rcInit))
	closed("Send", s.Send(q, cmd))
	_, err = q.Query()
	closed("Query", err)
	_, err = d.NewQP(devx.QPConfig{})
	closed("NewQP", err)
	_, err = d.CQ(16)
	closed("CQ", err)
	_, err = d.Umem(4096, 0)
	closed("Umem", err)
	_, err = d.UAR()
	closed("UAR", err)
	_, err = d.PD()
	closed("PD", err)
	_, err = d.EventChannel()
	closed("EventChannel", err)
	closed("Subscribe", ev.Subscribe(1, nil, mlx5.EventPortChange))
	closed("Ring", uar.Ring(0x800, 1))
	closed("Exec", d.Exec(cmd, make([]byte, 16)))
	// What went with the device is closed without complaint, and mapped memory
	// is given back.
	for what, err := range map[string]error{"QP": q.Close(), "CQ": cq.Close(), "Umem": umem.Close(), "UAR": uar.Close(), "Submitter": s.Close(), "EventChannel": ev.Close()} {
		if err != nil {
			t.Errorf("Close of a %s: %v", what, err)
		}
	}
	must(t, s.Close())
}

func qpsOf(s fw.Stats) int64 { return int64(s.QPs) }

// A second Close must not close what others have opened since.
func TestCloseTwiceLeavesOthersAlone(t *testing.T) {
	n := name(t)
	a, b := open(t, n), open(t, n)
	must(t, a.Close())
	for range 3 {
		if err := a.Close(); !errors.Is(err, devx.ErrClosed) {
			t.Error(err)
		}
	}
	q := newQP(t, b, mlx5.STRC)
	must(t, devx.Modify(q, rcInit))
	count(b).stats(t, "queue pairs", qpsOf, 1)
}

func TestForeign(t *testing.T) {
	n := name(t)
	a, b := open(t, n), open(t, n) // two contexts of one device
	q := newQP(t, a, mlx5.STRC)
	s, err := b.NewSubmitter()
	must(t, err)
	defer s.Close()
	pd, err := a.PD()
	must(t, err)
	cq, err := a.CQ(1)
	must(t, err)
	uar, err := a.UAR()
	must(t, err)
	umem, err := b.Umem(4096, 0)
	must(t, err)
	defer umem.Close()
	ev, err := b.EventChannel()
	must(t, err)
	qc, err := b.QueryChannel()
	must(t, err)
	c := count(a)
	for what, f := range map[string]func() error{
		"Send":      func() error { return s.Send(q, make([]byte, 16)) },
		"PD":        func() error { _, err := b.NewQP(devx.QPConfig{PD: pd}); return err },
		"SendCQ":    func() error { _, err := b.NewQP(devx.QPConfig{SendCQ: cq}); return err },
		"UAR":       func() error { _, err := b.NewQP(devx.QPConfig{UAR: uar}); return err },
		"MKey":      func() error { _, err := b.MKey(pd, umem, 0); return err },
		"Subscribe": func() error { return ev.Subscribe(0, q, mlx5.EventCommEst) },
		"Query":     func() error { return qc.Query(0, q, make([]byte, 16), 16) },
	} {
		err := f()
		contains(t, err, "belongs to another context than "+n)
		if !errors.Is(err, devx.ErrForeign) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// NewQP has made the parts that it was not given: a PD, a UAR and a CQ of b.
	c.commands(t, 0, 8)
	c.stats(t, "queue pairs", qpsOf, 1)
}

func TestInUse(t *testing.T) {
	d := open(t, name(t))
	cq, err := d.CQ(4)
	must(t, err)
	q, err := d.NewQP(devx.QPConfig{SendCQ: cq})
	must(t, err)
	if err := cq.Close(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("CQ in use: %v", err)
	} else {
		contains(t, err, "destroy the object", "CREATE_CQ")
	}
	must(t, q.Close())
	must(t, cq.Close())
}

// An object that a call uses stays, so that no call goes out with a handle that
// another object has got.
func TestCloseOfObjectInUse(t *testing.T) {
	d := open(t, name(t, "clock=virtual", "latency=1ms"))
	q := newQP(t, d, mlx5.STRC)
	hca := emulated(t, d).HCA()
	d.Busy(2)
	modified := make(chan error, 1)
	go func() { modified <- devx.Modify(q, rcInit) }()
	wait(t, "a command in flight", func() bool { return hca.Stats().InFlight == 1 })
	err := q.Close()
	if !errors.Is(err, unix.EBUSY) {
		t.Error(err)
	}
	contains(t, err, "in use by 1 calls", "CREATE_QP")
	d.Busy(-2)
	must(t, <-modified)
	must(t, devx.Modify(q, mlx5.ToRST{}))
	must(t, q.Close())
}

// lossy is a file that answers CREATE_QP with an error of its own.
type lossy struct {
	devx.File
	errno unix.Errno
}

func (l *lossy) Ioctl(hdr []byte) unix.Errno {
	if h := abi.Header(hdr); l.errno != 0 && h.ObjectID() == abi.MLX5_IB_OBJECT_DEVX_OBJ && h.MethodID() == abi.MLX5_IB_METHOD_DEVX_OBJ_CREATE {
		return l.errno
	}
	return l.File.Ioctl(hdr)
}

var losing lossy

func (l *lossy) Open(rest string) (devx.File, devx.Info, error) {
	f, info, err := devx.OpenFile("emu:" + rest)
	l.File = f
	return l, info, err
}

func init() { devx.Register("lossy", &losing) }

// A queue pair that may exist on the device keeps its memory; one that does not
// gives it back.
func TestMemoryOfLostQP(t *testing.T) {
	d, err := devx.Open("lossy:")
	must(t, err)
	defer d.Close()
	at := func() int {
		qpc, err := newQP(t, d, mlx5.STUD).Query()
		must(t, err)
		return int(qpc.DBRAddr())
	}
	for range 30 { // until the umem at hand has room for all that follow
		at()
	}
	first := at()
	size := at() - first
	for _, c := range []struct {
		errno   unix.Errno
		unknown bool
	}{{unix.EINVAL, false}, {unix.ETIMEDOUT, true}, {unix.EIO, true}, {unix.ENOLINK, true}, {unix.EBADR, false}, {unix.ENOMEM, false}} {
		before := at()
		losing.errno = c.errno
		if _, err := d.NewQP(devx.QPConfig{Transport: mlx5.STUD}); !errors.Is(err, c.errno) || devx.Unknown(err) != c.unknown {
			t.Errorf("%v: %v", c.errno, err)
		}
		losing.errno = 0
		if lost := at()-before == 2*size; lost != c.unknown {
			t.Errorf("%v: the memory stays away: %v", c.errno, lost)
		}
	}
}
