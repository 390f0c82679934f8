// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/internal/require"
	"devxlab.example/mlx5"
)

// These tests need a kernel's device, with its port up:
//
//	DEV=mlx5_0 go test -exec "devxlab lab exec" -run OnDevice ./devx

// kernelDevice opens the device that DEV names.
func kernelDevice(t testing.TB, opts ...devx.Option) *devx.Device {
	t.Helper()
	dev := os.Getenv("DEV")
	if dev == "" || strings.Contains(dev, ":") {
		require.Have(t, "device", errors.New("no kernel's device is named: DEV=mlx5_0"))
	}
	return open(t, dev, opts...)
}

// onEitherPath runs a test by INVOKE_WRITE and by write(2).
func onEitherPath(t *testing.T, f func(t *testing.T, d *devx.Device)) {
	for _, p := range []devx.VerbsPath{devx.InvokeWrite, devx.PlainWrite} {
		t.Run(p.String(), func(t *testing.T) { f(t, kernelDevice(t, devx.WithVerbsPath(p))) })
	}
}

func newVerbsQP(t testing.TB, d *devx.Device, st mlx5.ServiceType) *devx.VerbsQP {
	t.Helper()
	v, err := d.NewVerbsQP(devx.QPConfig{Transport: st, SendWQEBBs: 4, RecvWQEs: 8})
	must(t, err)
	return v
}

// inState compares what the driver and what the firmware say.
func inState(t *testing.T, v *devx.VerbsQP, after string, want mlx5.State) devx.QPAttr {
	t.Helper()
	fw, err := v.DevX().State()
	must(t, err)
	a, err := v.Query(devx.MaskState)
	must(t, err)
	if a.State != want || a.CurState != want || fw != want {
		t.Fatalf("after %s: verbs say %v (%v), firmware %v, want %v", after, a.State, a.CurState, fw, want)
	}
	return a
}

// The whole life of a queue pair, by transitions that DevX takes as well.
func TestOnDeviceLifeByTransitions(t *testing.T) {
	onEitherPath(t, func(t *testing.T, d *devx.Device) {
		v := newVerbsQP(t, d, mlx5.STRC)
		path, err := d.OwnPath(-1)
		must(t, err)
		inState(t, v, "creation", mlx5.StateRST)

		must(t, devx.ModifyVerbs(v, mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(mlx5.RemoteWrite | mlx5.RemoteRead)}))
		a := inState(t, v, "RST2INIT", mlx5.StateInit)
		// The driver lets remote reads in once it knows how many at once.
		if a.Port != 1 || a.Access != mlx5.RemoteWrite || a.Cap.MaxRecvWR != 8 {
			t.Errorf("after RST2INIT: %+v", a)
		}

		rtr := mlx5.INIT2RTR{
			MTU: mlx5.Set(mlx5.MTU2048), RemoteQPN: mlx5.Set(v.Number()), NextRcvPSN: mlx5.Set(0xabcdef), LogRRAMax: mlx5.Set(2), MinRNRNak: mlx5.Set(12), Path: path,
		}
		rtr.Path.RMAC = [6]byte{2, 2, 2, 2, 2, 2} // the kernel finds the right one
		rtr.Path.TClass, rtr.Path.FlowLabel = mlx5.Set(0x28), mlx5.Set(0x12345)
		must(t, devx.ModifyVerbs(v, rtr))
		a = inState(t, v, "INIT2RTR", mlx5.StateRTR)
		wantAV := devx.AHAttr{DGID: path.RGID, SGIDIndex: a.AV.SGIDIndex, HopLimit: 64, TrafficClass: 0x28, FlowLabel: a.AV.FlowLabel, Port: 1}
		if a.PathMTU != mlx5.MTU2048 || a.DestQPN != v.Number() || a.RQPSN != 0xabcdef || a.MaxDestRdAtomic != 4 || a.MinRNRTimer != 12 || a.AV != wantAV ||
			a.Access != mlx5.RemoteWrite|mlx5.RemoteRead {
			t.Errorf("after INIT2RTR: %+v", a)
		}
		if i, _ := path.SrcAddrIndex.Get(); int64(a.AV.SGIDIndex) != i {
			t.Errorf("own GID %d, want %d", a.AV.SGIDIndex, i)
		}
		qpc, err := v.DevX().Query()
		must(t, err)
		ads := qpc.PrimaryAddressPath()
		if mac := uint64(ads.RMAC4732())<<32 | uint64(ads.RMAC310()); mac != macOf(path.RMAC) {
			t.Errorf("the kernel resolved %012x, the port has %012x", mac, macOf(path.RMAC))
		}

		must(t, devx.ModifyVerbs(v, mlx5.RTR2RTS{AckTimeout: mlx5.Set(14), RetryCount: mlx5.Set(6), RNRRetry: mlx5.Set(5), NextSendPSN: mlx5.Set(0x123456), LogSRAMax: mlx5.Set(1)}))
		a = inState(t, v, "RTR2RTS", mlx5.StateRTS)
		if a.Timeout != 14 || a.RetryCnt != 6 || a.RNRRetry != 5 || a.SQPSN != 0x123456 || a.MaxRdAtomic != 2 {
			t.Errorf("after RTR2RTS: %+v", a)
		}
		must(t, devx.ModifyVerbs(v, mlx5.RTS2RTS{MinRNRNak: mlx5.Set(7), Access: mlx5.Set(mlx5.RemoteWrite)}))
		if a = inState(t, v, "RTS2RTS", mlx5.StateRTS); a.MinRNRTimer != 7 || a.Access != mlx5.RemoteWrite {
			t.Errorf("after RTS2RTS: %+v", a)
		}
		must(t, devx.ModifyVerbs(v, mlx5.ToERR{}))
		inState(t, v, "2ERR", mlx5.StateErr)
		must(t, devx.ModifyVerbs(v, mlx5.ToRST{}))
		inState(t, v, "2RST", mlx5.StateRST)
		must(t, devx.ModifyVerbs(v, mlx5.ToRST{})) // mlx5 does nothing, and says so
		must(t, v.Close())
		must(t, v.Close())
		if _, err := v.Query(0); !errors.Is(err, devx.ErrClosed) {
			t.Errorf("query of a closed queue pair: %v", err)
		}
	})
}

func macOf(b [6]byte) (m uint64) {
	for _, x := range b {
		m = m<<8 | uint64(x)
	}
	return m
}

// rcWay is the way to RTS, in ibv_modify_qp's terms.
func rcWay(t testing.TB, d *devx.Device, qpn uint32) (init, rtr, rts verbsStep) {
	t.Helper()
	p, err := d.OwnPath(-1)
	must(t, err)
	index, _ := p.SrcAddrIndex.Get()
	init = verbsStep{devx.QPAttr{State: mlx5.StateInit, Port: 1, Access: mlx5.RemoteRead}, devx.MaskState | devx.MaskPkeyIndex | devx.MaskPort | devx.MaskAccessFlags}
	rtr = verbsStep{
		devx.QPAttr{
			State: mlx5.StateRTR, PathMTU: mlx5.MTU1024, DestQPN: qpn, RQPSN: 5, MaxDestRdAtomic: 1, MinRNRTimer: 12,
			AV: devx.AHAttr{DGID: p.RGID, SGIDIndex: uint8(index), HopLimit: 64, Port: 1},
		},
		devx.MaskState | devx.MaskAV | devx.MaskPathMTU | devx.MaskDestQPN | devx.MaskRQPSN | devx.MaskMaxDestRdAtomic | devx.MaskMinRNRTimer,
	}
	rts = verbsStep{
		devx.QPAttr{State: mlx5.StateRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, SQPSN: 9, MaxRdAtomic: 1},
		devx.MaskState | devx.MaskTimeout | devx.MaskRetryCnt | devx.MaskRNRRetry | devx.MaskSQPSN | devx.MaskMaxQPRdAtomic,
	}
	return init, rtr, rts
}

type verbsStep struct {
	a    devx.QPAttr
	mask devx.AttrMask
}

// The same by ibv_modify_qp's own attributes, for each transport, and by the
// extended command.
func TestOnDeviceLifeByAttributes(t *testing.T) {
	onEitherPath(t, func(t *testing.T, d *devx.Device) {
		for _, how := range []struct {
			name   string
			modify func(v *devx.VerbsQP, a devx.QPAttr, mask devx.AttrMask) error
		}{{"MODIFY_QP", (*devx.VerbsQP).Modify}, {"EX_MODIFY_QP", (*devx.VerbsQP).ModifyExtended}} {
			for _, st := range []mlx5.ServiceType{mlx5.STRC, mlx5.STUC, mlx5.STUD} {
				v := newVerbsQP(t, d, st)
				init, rtr, rts := rcWay(t, d, v.Number())
				switch st {
				case mlx5.STUC:
					init.a.Access = mlx5.RemoteWrite
					rtr.mask &^= devx.MaskMaxDestRdAtomic | devx.MaskMinRNRTimer
					rts.mask = devx.MaskState | devx.MaskSQPSN
				case mlx5.STUD:
					init.mask = init.mask&^devx.MaskAccessFlags | devx.MaskQKey
					rtr.mask = devx.MaskState
					rts.mask = devx.MaskState | devx.MaskSQPSN
				}
				for _, s := range []verbsStep{init, rtr, rts, {devx.QPAttr{State: mlx5.StateErr}, devx.MaskState}, {devx.QPAttr{State: mlx5.StateRST}, devx.MaskState}} {
					if err := how.modify(v, s.a, s.mask); err != nil {
						t.Fatalf("%s, %s: %v", how.name, st, err)
					}
					inState(t, v, how.name+" "+st.String(), s.a.State)
				}
				must(t, v.Close())
			}
		}
	})
}

// DevX changes a verbs queue pair behind the driver's back.
func TestOnDeviceStaleState(t *testing.T) {
	d := kernelDevice(t)
	v := newVerbsQP(t, d, mlx5.STRC)
	init, rtr, rts := rcWay(t, d, v.Number())
	must(t, v.Modify(init.a, init.mask))
	must(t, devx.Modify(v.DevX(), mlx5.ToRST{}))
	if s, err := v.DevX().State(); err != nil || s != mlx5.StateRST {
		t.Fatalf("the firmware says %v, %v", s, err)
	}
	// The driver still has INIT, takes INIT to INIT for what is asked, and the
	// firmware has a queue pair in RESET.
	err := v.Modify(init.a, init.mask)
	var ve *devx.VerbsError
	if !errors.As(err, &ve) || ve.Errno != unix.EINVAL || ve.From != mlx5.StateInit {
		t.Fatalf("from a state that is stale: %v", err)
	}
	inState(t, v, "a query", mlx5.StateRST) // and it is up to date
	must(t, v.Modify(init.a, init.mask))

	// Up to RTS through DevX, as far as the driver knows still in INIT; CUR_STATE
	// tells it better.
	path, err := d.OwnPath(-1)
	must(t, err)
	must(t, devx.Modify(v.DevX(), mlx5.INIT2RTR{
		MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(v.Number()), NextRcvPSN: mlx5.Set(0), LogRRAMax: mlx5.Set(0), MinRNRNak: mlx5.Set(12), Path: path,
	}))
	if err := v.Modify(rts.a, rts.mask); !errors.Is(err, unix.EINVAL) {
		t.Fatalf("RTS from INIT: %v", err)
	}
	rts.a.CurState = mlx5.StateRTR
	must(t, v.Modify(rts.a, rts.mask|devx.MaskCurState))
	inState(t, v, "CUR_STATE", mlx5.StateRTS)
	must(t, devx.Modify(v.DevX(), mlx5.ToERR{}))
	inState(t, v, "2ERR through DevX", mlx5.StateErr)
	must(t, v.Modify(devx.QPAttr{State: mlx5.StateRST}, devx.MaskState))
	must(t, v.Modify(init.a, init.mask))
	must(t, v.Modify(rtr.a, rtr.mask))
	must(t, v.Close())
}

func TestOnDeviceErrors(t *testing.T) {
	onEitherPath(t, func(t *testing.T, d *devx.Device) {
		v := newVerbsQP(t, d, mlx5.STRC)
		init, rtr, rts := rcWay(t, d, v.Number())
		fails := func(what string, s verbsStep, errno unix.Errno, parts ...string) {
			t.Helper()
			err := v.Modify(s.a, s.mask)
			var ve *devx.VerbsError
			if !errors.As(err, &ve) || ve.Errno != errno || ve.Mask != s.mask || ve.QPN != v.Number() {
				t.Errorf("%s: %v, want %v", what, err, errno)
				return
			}
			for _, p := range parts {
				if !strings.Contains(err.Error(), p) {
					t.Errorf("%s: %q has no %q", what, err, p)
				}
			}
			if devx.Unknown(err) {
				t.Errorf("%s: that nothing was done is known", what)
			}
		}
		with := func(s verbsStep, change func(s *verbsStep)) verbsStep { change(&s); return s }

		fails("RTS from RESET", rts, unix.EINVAL, "no transition from RST to RTS", "Query")
		fails("ERR from RESET", verbsStep{devx.QPAttr{State: mlx5.StateErr}, devx.MaskState}, unix.EINVAL, "no transition from RST to ERR")
		fails("no port", with(init, func(s *verbsStep) { s.mask &^= devx.MaskPort }), unix.EINVAL, "PORT is missing")
		fails("too much", with(init, func(s *verbsStep) { s.mask |= devx.MaskTimeout }), unix.EINVAL, "TIMEOUT does not apply")
		fails("unknown bit", with(init, func(s *verbsStep) { s.mask |= 1 << 26 }), unix.EOPNOTSUPP, "does not know")
		fails("port 9", with(init, func(s *verbsStep) { s.a.Port = 9 }), unix.EINVAL, "the port")
		fails("pkey 9999", with(init, func(s *verbsStep) { s.a.PkeyIndex = 9999 }), unix.EINVAL, "pkey")
		inState(t, v, "refusals", mlx5.StateRST)
		must(t, v.Modify(init.a, init.mask))
		fails("no own GID", with(rtr, func(s *verbsStep) { s.a.AV.SGIDIndex = 255 }), unix.EINVAL, "SGIDIndex")
		fails("no destination", with(rtr, func(s *verbsStep) { s.a.AV.DGID = [16]byte{} }), unix.EINVAL, "destination GID")
		fails("reads", with(rtr, func(s *verbsStep) { s.a.MaxDestRdAtomic = 255 }), unix.EINVAL, "reads")
		fails("alternate path", with(rtr, func(s *verbsStep) { s.mask |= devx.MaskAltPath }), unix.EINVAL, "ALT_PATH does not apply")
		// Old drivers have no rates for RC at all, newer ones only where the device has.
		rated := with(rtr, func(s *verbsStep) { s.mask |= devx.MaskRateLimit })
		if err := v.Modify(rated.a, rated.mask); !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "EX_MODIFY_QP") {
			t.Errorf("rate of an RC queue pair: %v", err)
		}
		inState(t, v, "refusals", mlx5.StateInit)
		must(t, v.Modify(rtr.a, rtr.mask))
		fails("CUR_STATE is ERR", with(rts, func(s *verbsStep) { s.a.CurState = mlx5.StateErr; s.mask |= devx.MaskCurState }), unix.EINVAL, "no transition from ERR to RTS")
		must(t, v.Modify(rts.a, rts.mask))
		fails("address in RTS", verbsStep{rtr.a, devx.MaskAV}, unix.EINVAL)
		must(t, v.Modify(devx.QPAttr{State: mlx5.StateErr}, devx.MaskState))

		pd, err := d.VerbsPD()
		must(t, err)
		q, err := d.NewVerbsQP(devx.QPConfig{PD: pd})
		must(t, err)
		if err := pd.Close(); !errors.Is(err, unix.EBUSY) {
			t.Errorf("a PD in use: %v", err)
		}
		must(t, q.Close())
		must(t, pd.Close())
		must(t, v.Close())
	})
}

// A destination that nobody answers for ends in an error of the kernel, and
// nothing reaches the firmware.
func TestOnDeviceNoNeighbour(t *testing.T) {
	d := kernelDevice(t)
	v := newVerbsQP(t, d, mlx5.STRC)
	init, rtr, _ := rcWay(t, d, v.Number())
	must(t, v.Modify(init.a, init.mask))
	rtr.a.AV.DGID[15] ^= 0x55
	err := v.Modify(rtr.a, rtr.mask)
	var ve *devx.VerbsError
	if !errors.As(err, &ve) || ve.Errno == unix.EINVAL {
		t.Errorf("an address that is nobody's: %v", err)
	}
	t.Log(err)
	inState(t, v, "it", mlx5.StateInit)
	must(t, v.Close())
}

func TestOnDeviceMemoryAndQueues(t *testing.T) {
	onEitherPath(t, func(t *testing.T, d *devx.Device) {
		pd, err := d.VerbsPD()
		must(t, err)
		mr, err := d.MR(pd, 3*4096+1, mlx5.RemoteWrite|mlx5.RemoteRead)
		must(t, err)
		if mr.LKey() == 0 || mr.RKey() == 0 || len(mr.Bytes()) != 4*4096 || mr.Addr()%4096 != 0 {
			t.Errorf("lkey %#x, rkey %#x, %d bytes at %#x", mr.LKey(), mr.RKey(), len(mr.Bytes()), mr.Addr())
		}
		other, err := d.MR(pd, 1, 0)
		must(t, err)
		if other.LKey() == mr.LKey() {
			t.Errorf("two regions have lkey %#x", mr.LKey())
		}
		if err := pd.Close(); !errors.Is(err, unix.EBUSY) {
			t.Errorf("a PD with memory: %v", err)
		}
		devxPD, err := d.PD()
		must(t, err)
		if _, err := d.MR(devxPD, 4096, 0); err == nil || !strings.Contains(err.Error(), "VerbsPD") {
			t.Errorf("memory in a PD that verbs do not know: %v", err)
		}
		cq, err := d.VerbsCQ(100)
		must(t, err)
		// What verbs made serves queue pairs of both kinds.
		q, err := d.NewQP(devx.QPConfig{PD: pd, SendCQ: cq})
		must(t, err)
		v, err := d.NewVerbsQP(devx.QPConfig{PD: pd, SendCQ: cq, NoRecvQueue: true})
		must(t, err)
		for _, x := range []*devx.QP{q, v.DevX()} {
			qpc, err := x.Query()
			must(t, err)
			if qpc.PD() != pd.Number() || qpc.CQNSnd() != cq.Number() {
				t.Errorf("QP %#x is in PD %#x with CQ %#x, want %#x and %#x", x.Number(), qpc.PD(), qpc.CQNSnd(), pd.Number(), cq.Number())
			}
			must(t, x.Close())
		}
		for _, c := range []interface{ Close() error }{cq, mr, other, pd, devxPD} {
			must(t, c.Close())
			must(t, c.Close())
		}
	})
}

// What is still there goes with the context.
func TestOnDeviceCloseWithObjects(t *testing.T) {
	d := kernelDevice(t)
	for range 70 { // more doorbell records than a page has
		newVerbsQP(t, d, mlx5.STRC)
	}
	pd, err := d.VerbsPD()
	must(t, err)
	mr, err := d.MR(pd, 4096, 0)
	must(t, err)
	must(t, d.Close())
	must(t, mr.Close()) // unmaps it
}
