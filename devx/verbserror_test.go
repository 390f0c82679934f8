// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/abi"
	"devxlab.example/devx/devxtest"
	"devxlab.example/internal/testdev"
	"devxlab.example/mlx5"
)

// In process there are no verbs, and the error says where there are.
func TestNoVerbsInProcess(t *testing.T) {
	testdev.Emulated(t)
	d := open(t, name(t))
	pd, err := d.PD()
	must(t, err)
	for what, f := range map[string]func() error{
		"PD": func() error { _, err := d.VerbsPD(); return err },
		"CQ": func() error { _, err := d.VerbsCQ(1); return err },
		"QP": func() error { _, err := d.NewVerbsQP(devx.QPConfig{}); return err },
	} {
		err := f()
		if !errors.Is(err, devx.ErrNoVerbs) || !strings.Contains(err.Error(), "devxlab lab") || devx.Unknown(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := d.MR(pd, 1, 0); err == nil || !strings.Contains(err.Error(), "VerbsPD") {
		t.Errorf("MR: %v", err)
	}
	q := newQP(t, d, mlx5.STRC)
	s, err := d.NewSubmitter()
	must(t, err)
	if err := s.SendVerbs(q, make([]byte, 16)); err == nil || !strings.Contains(err.Error(), "NewVerbsQP") {
		t.Errorf("SendVerbs: %v", err)
	}
	must(t, s.Close())
	if d.HasVerbs() || q.Verbs() != nil {
		t.Error("it seems to have verbs")
	}
}

func TestVerbsErrors(t *testing.T) {
	r := &recorder{}
	d := stub(t, r)
	v, err := d.NewVerbsQP(devx.QPConfig{})
	must(t, err)
	init, rtr, rts := rcTransitions()
	errno := unix.Errno(0)
	r.fail(func(devxtest.Command) unix.Errno { return errno })
	for _, c := range []struct {
		errno   unix.Errno
		modify  func() error
		unknown bool
		gone    bool
		parts   []string
	}{
		{unix.EINVAL, func() error { return devx.ModifyVerbs(v, rts) }, false, false, []string{"MODIFY_QP on QP 0x", "(RC, RST to RTS, STATE|TIMEOUT|", "errno 22", "no transition from RST to RTS"}},
		{unix.EINVAL, func() error { return devx.ModifyVerbs(v, init) }, false, false, []string{"the mask is right", "the port", "pkey index", "dynamic_debug"}},
		{unix.EINVAL, func() error { return v.Modify(devx.QPAttr{State: mlx5.StateInit}, devx.MaskState) }, false, false, []string{"ACCESS_FLAGS|PKEY_INDEX|PORT is missing"}},
		{unix.ETIMEDOUT, func() error { return devx.ModifyVerbs(v, rtr) }, true, false, []string{"MAC address", "ip neigh", "dmesg"}},
		{unix.ETIMEDOUT, func() error { return devx.ModifyVerbs(v, init) }, true, false, []string{"whether the command was carried out is unknown"}},
		{unix.EHOSTUNREACH, func() error { return devx.ModifyVerbs(v, rtr) }, false, false, []string{"ip route get"}},
		{unix.ENODEV, func() error { return devx.ModifyVerbs(v, rtr) }, false, false, []string{"ip route get"}},
		{unix.ENODEV, func() error { return devx.ModifyVerbs(v, init) }, true, true, []string{"unplugged"}},
		{unix.EIO, func() error { return devx.ModifyVerbs(v, mlx5.ToERR{}) }, true, true, []string{"dmesg"}},
		{unix.EOPNOTSUPP, func() error { return v.Modify(devx.QPAttr{}, 1<<30) }, false, false, []string{"0x40000000", "does not know"}},
		{unix.EPERM, func() error { return devx.ModifyVerbs(v, init) }, false, false, []string{"CAP_NET_RAW"}},
		{unix.EACCES, func() error { _, err := v.Query(0); return err }, false, false, []string{"QUERY_QP", "INVOKE_WRITE"}},
		{unix.EBUSY, func() error { return v.Close() }, false, false, []string{"DESTROY_QP", "still uses it"}},
		{unix.ENOMEM, func() error { _, err := d.VerbsCQ(9); return err }, false, false, []string{"CREATE_CQ", "ulimit -l"}},
		{unix.EPROTONOSUPPORT, func() error { _, err := d.VerbsPD(); return err }, false, false, []string{"ALLOC_PD", "does not have this command"}},
		{unix.EINVAL, func() error { _, err := d.NewVerbsQP(devx.QPConfig{}); return err }, false, false, []string{"CREATE_QP", "refused a value"}},
	} {
		errno = c.errno
		err := c.modify()
		var ve *devx.VerbsError
		if !errors.As(err, &ve) || !errors.Is(err, c.errno) || errors.Is(err, devx.ErrDeviceGone) != c.gone || devx.Unknown(err) != c.unknown {
			t.Errorf("%v: %v, unknown %v", c.errno, err, devx.Unknown(err))
			continue
		}
		for _, p := range c.parts {
			if !strings.Contains(err.Error(), p) {
				t.Errorf("%v: %q has no %q", c.errno, err, p)
			}
		}
	}
	errno = 0
	must(t, v.Close()) // the EBUSY left it as it was
	if err := devx.ModifyVerbs(v, init); !errors.Is(err, devx.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// From is the state of the last verbs call that succeeded.
func TestVerbsErrorKnowsTheState(t *testing.T) {
	r := &recorder{}
	d := stub(t, r)
	v, err := d.NewVerbsQP(devx.QPConfig{})
	must(t, err)
	init, rtr, _ := rcTransitions()
	must(t, devx.ModifyVerbs(v, init))
	must(t, devx.ModifyVerbs(v, rtr))
	must(t, devx.Modify(v.DevX(), mlx5.ToERR{})) // the driver does not see it
	r.fail(func(c devxtest.Command) unix.Errno { return unix.EINVAL })
	from := func(want mlx5.State, a devx.QPAttr, mask devx.AttrMask) {
		t.Helper()
		var ve *devx.VerbsError
		if err := v.Modify(a, mask); !errors.As(err, &ve) || ve.From != want {
			t.Errorf("%v, want from %v", err, want)
		}
	}
	from(mlx5.StateRTR, devx.QPAttr{State: mlx5.StateRTS}, devx.MaskState)
	from(mlx5.StateSQER, devx.QPAttr{State: mlx5.StateRTS, CurState: mlx5.StateSQER}, devx.MaskState|devx.MaskCurState)
	r.fail(func(c devxtest.Command) unix.Errno {
		devx.ViewOf[abi.QueryQPResp](c.Resp).QPState = 6 // ERR
		return 0
	})
	a, err := v.Query(0)
	must(t, err)
	if a.State != mlx5.StateErr {
		t.Errorf("in state %v", a.State)
	}
	r.fail(func(c devxtest.Command) unix.Errno { return unix.EINVAL })
	from(mlx5.StateErr, devx.QPAttr{State: mlx5.StateRTS}, devx.MaskState)
	r.fail(nil)
}

// SQE and SQD are 5 and 4 in verbs, 4 and 5 in the QP context.
func TestVerbsStates(t *testing.T) {
	r := &recorder{}
	d := stub(t, r)
	v, err := d.NewVerbsQP(devx.QPConfig{})
	must(t, err)
	for verbs, s := range []mlx5.State{mlx5.StateRST, mlx5.StateInit, mlx5.StateRTR, mlx5.StateRTS, mlx5.StateSQD, mlx5.StateSQER, mlx5.StateErr} {
		r.fail(func(c devxtest.Command) unix.Errno {
			switch c.Method.Name {
			case "MODIFY_QP":
				if m := devx.ViewOf[abi.ModifyQP](c.Core); int(m.QPState) != verbs || int(m.CurQPState) != verbs {
					t.Errorf("%v is sent as %d", s, m.QPState)
				}
			case "QUERY_QP":
				devx.ViewOf[abi.QueryQPResp](c.Resp).QPState = uint8(verbs)
			}
			return 0
		})
		must(t, v.Modify(devx.QPAttr{State: s, CurState: s}, devx.MaskState))
		if a, err := v.Query(0); err != nil || a.State != s {
			t.Errorf("%d is read as %v, %v", verbs, a.State, err)
		}
	}
}

// Parts that verbs do not know, or of another context, are refused before
// anything is sent.
func TestVerbsForeignParts(t *testing.T) {
	r := &recorder{}
	d, other := stub(t, r), stub(t, &recorder{})
	pd, err := d.PD()
	must(t, err)
	cq, err := d.CQ(1)
	must(t, err)
	otherPD, err := other.VerbsPD()
	must(t, err)
	otherUAR, err := other.UAR()
	must(t, err)
	r.got = nil
	for what, c := range map[string]struct {
		c    devx.QPConfig
		is   error
		part string
	}{
		"DevX PD":     {devx.QPConfig{PD: pd}, nil, "VerbsPD"},
		"DevX CQ":     {devx.QPConfig{RecvCQ: cq}, nil, "VerbsCQ"},
		"foreign PD":  {devx.QPConfig{PD: otherPD}, devx.ErrForeign, "protection domain"},
		"foreign UAR": {devx.QPConfig{UAR: otherUAR}, devx.ErrForeign, "UAR"},
		"too much":    {devx.QPConfig{SendWQEBBs: 1 << 20}, nil, "SendWQEBBs"},
	} {
		if _, err := d.NewVerbsQP(c.c); err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.part) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := d.MR(otherPD, 1, 0); !errors.Is(err, devx.ErrForeign) {
		t.Errorf("MR: %v", err)
	}
	for _, c := range r.got {
		if c.Method.Name != "ALLOC_PD" && c.Method.Name != "CREATE_CQ" { // shared parts
			t.Errorf("%s was sent", c.Method.Name)
		}
	}
	for _, n := range []int{0, -1, 1<<22 + 1} {
		if _, err := d.VerbsCQ(n); err == nil {
			t.Errorf("a CQ of %d entries", n)
		}
	}
}
