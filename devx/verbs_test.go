// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/abi"
	"devxlab.example/devx/devxtest"
	"devxlab.example/internal/cheader"
	"devxlab.example/internal/headergen"
	"devxlab.example/internal/leaktest"
	"devxlab.example/internal/require"
	"devxlab.example/mlx5"
)

// recorder keeps the verbs commands that a stub got.
type recorder struct {
	mu     sync.Mutex
	got    []devxtest.Command
	answer func(c devxtest.Command) unix.Errno
}

func (r *recorder) verbs(c devxtest.Command) unix.Errno {
	r.mu.Lock()
	k := c
	k.Core, k.Driver, k.Resp = bytes.Clone(c.Core), bytes.Clone(c.Driver), nil
	r.got = append(r.got, k)
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		return answer(c)
	}
	return 0
}

func (r *recorder) fail(answer func(c devxtest.Command) unix.Errno) {
	r.mu.Lock()
	r.answer = answer
	r.mu.Unlock()
}

func stub(t testing.TB, r *recorder, opts ...devx.Option) *devx.Device {
	t.Helper()
	d, err := devxtest.Stub{Verbs: r.verbs}.Open(opts...)
	must(t, err)
	done := leaktest.Track("stub")
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !errors.Is(err, devx.ErrClosed) {
			t.Error(err)
		}
		done()
	})
	return d
}

// The bits of the mask are those of the kernel.
func TestAttrMaskNumbers(t *testing.T) {
	dir, err := headergen.KernelHeaders()
	if errors.Is(err, headergen.ErrNoHeaders) {
		require.Have(t, "headers", err)
	}
	must(t, err)
	text, err := os.ReadFile(filepath.Join(dir, "../../rdma/ib_verbs.h"))
	must(t, err)
	start := strings.Index(string(text), "enum ib_qp_attr_mask {")
	end := strings.Index(string(text)[start:], "IB_QP_ATTR_STANDARD_BITS")
	h, err := cheader.Parse(string(text)[start:start+end] + "};")
	must(t, err)
	for bit := range 32 {
		m := devx.AttrMask(1) << bit
		v, ok := h.Value("IB_QP_" + m.String())
		if named := !strings.HasPrefix(m.String(), "0x"); named != ok || named && v != uint64(m) {
			t.Errorf("bit %d is %s; in the header %#x, %v", bit, m, v, ok)
		}
	}
	if devx.MaskDestQPN.String() != "DEST_QPN" || devx.MaskRateLimit.String() != "RATE_LIMIT" || devx.AttrMask(0).String() != "0" {
		t.Error("constants and names are out of step")
	}
}

// rcTransitions are a queue pair's from RESET to RTS, with each attribute that
// verbs have.
func rcTransitions() (mlx5.RST2INIT, mlx5.INIT2RTR, mlx5.RTR2RTS) {
	return mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(2), Access: mlx5.Set(mlx5.RemoteWrite | mlx5.RemoteAtomic)},
		mlx5.INIT2RTR{
			MTU: mlx5.Set(mlx5.MTU4096), RemoteQPN: mlx5.Set(0x123456), NextRcvPSN: mlx5.Set(0xabcdef), LogRRAMax: mlx5.Set(4), MinRNRNak: mlx5.Set(12),
			Access: mlx5.Set(mlx5.RemoteRead),
			Path: mlx5.Path{
				RGID: [16]byte{0: 0xfe, 1: 0x80, 15: 0x11}, RMAC: [6]byte{2, 3, 4, 5, 6, 7}, SrcAddrIndex: mlx5.Set(3), HopLimit: mlx5.Set(64),
				TClass: mlx5.Set(0x68), FlowLabel: mlx5.Set(0x54321), UDPSport: mlx5.Set(0xc123), SL: mlx5.Set(5),
			},
		},
		mlx5.RTR2RTS{
			AckTimeout: mlx5.Set(14), RetryCount: mlx5.Set(6), RNRRetry: mlx5.Set(5), NextSendPSN: mlx5.Set(0x13579b), LogSRAMax: mlx5.Set(3),
			MinRNRNak: mlx5.Set(9), PMState: mlx5.Set(1),
		}
}

// golden are the requests that the transitions become, but for the handle: struct
// ib_uverbs_modify_qp, written out by hand.
var golden = []string{
	zeros(31) + "01" + zeros(32) + // the port is in the address vector as well
		"00000000" + "39000000" + zeros(4*4) + "0b000000" + // handle, mask, qkey, PSNs and destination, access
		"0200" + "0000" + "01" + "00" + "00" + "00" + "00" + "01" + "01" + "00" + "01" + zeros(5+2), // pkeys, states, MTU, migrated, SQD, reads, RNR timer, port
	"fe800000000000000000000000000011" + "21430500" + "00000000" + "03" + "40" + "68" + "05" + "0000" + "01" + "01" + zeros(32) +
		"00000000" + "89911200" + "00000000" + "efcdab00" + "00000000" + "56341200" + "05000000" +
		"0000" + "0000" + "02" + "00" + "05" + "02" + "00" + "01" + "10" + "0c" + "01" + zeros(5+2),
	zeros(64) +
		"00000000" + "01ae0500" + "00000000" + "00000000" + "9b571300" + "00000000" + "01000000" +
		"0000" + "0000" + "03" + "00" + "00" + "01" + "00" + "08" + "01" + "09" + "00" + "0e" + "06" + "05" + zeros(2+2),
	zeros(64) +
		"00000000" + "01000000" + zeros(4*4) + "01000000" +
		"0000" + "0000" + "06" + zeros(13+2),
}

func zeros(n int) string { return strings.Repeat("00", n) }

func TestVerbsGolden(t *testing.T) {
	for _, p := range []devx.VerbsPath{devx.InvokeWrite, devx.PlainWrite} {
		r := &recorder{}
		d := stub(t, r, devx.WithVerbsPath(p))
		v, err := d.NewVerbsQP(devx.QPConfig{})
		must(t, err)
		r.got = nil
		init, rtr, rts := rcTransitions()
		must(t, devx.ModifyVerbs(v, init))
		must(t, devx.ModifyVerbs(v, rtr))
		must(t, devx.ModifyVerbs(v, rts))
		must(t, devx.ModifyVerbs(v, mlx5.ToERR{}))
		if len(r.got) != len(golden) {
			t.Fatalf("%s: %d commands", p, len(r.got))
		}
		for i, c := range r.got {
			want, err := hex.DecodeString(golden[i])
			must(t, err)
			copy(want[64:68], c.Core[64:])
			if c.Method.Name != "MODIFY_QP" || c.Path != p || !bytes.Equal(c.Core, want) || len(c.Driver) != 0 {
				t.Errorf("%s, command %d: %s by %s\n%x, want\n%x", p, i, c.Method.Name, c.Path, c.Core, want)
			}
		}
	}
}

// Each command has the same bytes by either path; write(2) has the address of the
// answer besides.
func TestVerbsPathsAgree(t *testing.T) {
	var got [2][]devxtest.Command
	for i, p := range []devx.VerbsPath{devx.InvokeWrite, devx.PlainWrite} {
		r := &recorder{}
		d := stub(t, r, devx.WithVerbsPath(p))
		pd, err := d.VerbsPD()
		must(t, err)
		cq, err := d.VerbsCQ(10)
		must(t, err)
		mr, err := d.MR(pd, 4096, mlx5.RemoteRead)
		must(t, err)
		v, err := d.NewVerbsQP(devx.QPConfig{PD: pd, SendCQ: cq, SendWQEBBs: 3, RecvWQEs: 5, RecvSGEs: 2})
		must(t, err)
		a := devx.QPAttr{State: mlx5.StateInit, RateLimit: 0x1234567}
		must(t, v.Modify(a, devx.MaskState))
		must(t, v.Modify(a, devx.MaskState|devx.MaskRateLimit))
		_, err = v.Query(devx.MaskState | devx.MaskCap)
		must(t, err)
		for _, c := range []interface{ Close() error }{v, mr, cq, pd} {
			must(t, c.Close())
		}
		got[i] = r.got
	}
	var names []string
	for i, c := range got[0] {
		w := got[1][i]
		names = append(names, c.Method.Name)
		if c.Path != devx.InvokeWrite || w.Path != devx.PlainWrite {
			t.Errorf("%s: by %s and %s", c.Method.Name, c.Path, w.Path)
		}
		if c.Method.Resp > 0 && !c.Method.Cmd.Extended() {
			if bytes.Equal(w.Core[:8], make([]byte, 8)) || !bytes.Equal(c.Core[:8], make([]byte, 8)) {
				t.Errorf("%s: address of the answer %x and %x", c.Method.Name, c.Core[:8], w.Core[:8])
			}
			clear(w.Core[:8])
		}
		switch c.Method.Name { // their addresses differ
		case "REG_MR":
			clear(c.Core[8:32])
			clear(w.Core[8:32])
		case "CREATE_CQ", "CREATE_QP":
			clear(c.Driver[:16])
			clear(w.Driver[:16])
		}
		if w.Method != c.Method || !bytes.Equal(w.Core, c.Core) || !bytes.Equal(w.Driver, c.Driver) {
			t.Errorf("%s:\n%x %x, by write\n%x %x", c.Method.Name, c.Core, c.Driver, w.Core, w.Driver)
		}
	}
	const all = "ALLOC_PD CREATE_CQ REG_MR CREATE_QP MODIFY_QP EX_MODIFY_QP QUERY_QP DESTROY_QP DEREG_MR DESTROY_CQ DEALLOC_PD"
	if s := strings.Join(names, " "); s != all || len(got[1]) != len(got[0]) {
		t.Errorf("commands %s, want %s", s, all)
	}
	qp := *devx.ViewOf[abi.CreateQP](got[0][3].Core)
	driver := *devx.ViewOf[abi.MLX5CreateQP](got[0][3].Driver)
	if qp.QPType != abi.IB_UVERBS_QPT_RC || qp.MaxSendWR != 4 || qp.MaxRecvWR != 8 || qp.MaxRecvSGE != 2 || qp.PDHandle == 0 || qp.SendCQHandle == qp.PDHandle {
		t.Errorf("%+v", qp)
	}
	if driver.SQWQECount != 4 || driver.RQWQECount != 8 || driver.RQWQEShift != 5 || driver.Flags != abi.MLX5_QP_FLAG_UAR_PAGE_INDEX {
		t.Errorf("%+v", driver)
	}
	if rate := devx.ViewOf[abi.ExModifyQP](got[0][5].Core).RateLimit; rate != 0x1234567 {
		t.Errorf("rate %#x", rate)
	}
}
