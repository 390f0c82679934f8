// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/cm/abi"
	"devxlab.example/devx"
	"devxlab.example/internal/usermem"
)

// A socket address reads back as what was written, and is what the kernel's headers
// say it is.
func TestSockaddr(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]struct {
		size  uint16
		bytes string // family, port, ...
		back  string // "": the same
	}{
		"192.0.2.1:7471":          {16, "\x02\x00\x1d\x2f\xc0\x00\x02\x01", ""},
		"0.0.0.0:0":               {16, "\x02\x00\x00\x00\x00\x00\x00\x00", ""},
		"[::ffff:192.0.2.1]:4660": {16, "\x02\x00\x12\x34\xc0\x00\x02\x01", "192.0.2.1:4660"},
		"[2001:db8::1]:65535":     {28, "\x0a\x00\xff\xff\x00\x00\x00\x00\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00", ""},
		"[fe80::1%lo]:1":          {28, "\x0a\x00\x00\x01\x00\x00\x00\x00\xfe\x80" + strings.Repeat("\x00", 13) + "\x01" + string([]byte{byte(lo.Index), 0, 0, 0}), ""},
		"[fe80::1%77777]:1":       {28, "\x0a\x00\x00\x01\x00\x00\x00\x00\xfe\x80" + strings.Repeat("\x00", 13) + "\x01\xd1\x2f\x01\x00", ""},
		"[fe80::1%1no]:1":         {28, "\x0a\x00\x00\x01\x00\x00\x00\x00\xfe\x80" + strings.Repeat("\x00", 13) + "\x01\x00\x00\x00\x00", "[fe80::1]:1"}, // no interface: the kernel refuses it
	} {
		var s abi.Sockaddr
		if n := sockaddr(&s, netip.MustParseAddrPort(text)); n != want.size || string(s[:len(want.bytes)]) != want.bytes {
			t.Errorf("%s: %d bytes, %x", text, n, s[:32])
		}
		for _, b := range s[want.size:] {
			if b != 0 {
				t.Errorf("%s: bytes behind the address", text)
			}
		}
		if want.back == "" {
			want.back = text
		}
		if got := addrOf(&s); got != netip.MustParseAddrPort(want.back) {
			t.Errorf("%s comes back as %s", text, got)
		}
	}
	if got := addrOf(&abi.Sockaddr{unix.AF_IB}); got.IsValid() {
		t.Errorf("an address of another family is %s", got)
	}
}

// A node GUID that says nothing, or too little, about the device gives an error that
// says what to do.
func TestNameOf(t *testing.T) {
	all := []devx.Info{{Name: "mlx5_0", NodeGUID: "b83f:d203:00d5:2a9e"}, {Name: "mlx5_1", NodeGUID: "0000:0000:0000:0007"}, {Name: "mlx5_2", NodeGUID: "0000:0000:0000:0007"},
		{Name: "mlx5_3", NodeGUID: "0000:0000:0000:0000"}, {Name: "mlx5_4"}}
	if name, err := nameOf(all, 0xb83fd20300d52a9e); name != "mlx5_0" || err != nil {
		t.Errorf("%s, %v", name, err)
	}
	for guid, says := range map[uint64]string{0: "node_guid", 7: "mlx5_1 and mlx5_2 have the same node GUID", 8: "another vendor"} {
		if name, err := nameOf(all, guid); name != "" || err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%#x: %s, %v, want %q", guid, name, err, says)
		}
	}
}

// A device that is gone is opened anew, and the new one stays.
func TestForget(t *testing.T) {
	old, next := &devx.Device{}, &devx.Device{}
	d := &Devices{open: map[uint64]*devx.Device{7: old}}
	d.forget(7, old)
	if d.open[7] != nil || len(d.gone) != 1 {
		t.Errorf("%v, %v", d.open, d.gone)
	}
	d.open[7] = next
	d.forget(7, old) // by another goroutine that was late
	if d.open[7] != next || len(d.gone) != 1 || d.gone[0] != old {
		t.Errorf("%v, %v", d.open, d.gone)
	}
}

// fls(n - 1), as __mlx5_ib_modify_qp computes log_rra_max and log_sra_max.
func TestCeilLog(t *testing.T) {
	for n, want := range map[uint8]int{0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 8: 3, 9: 4, 16: 4, 17: 5, 128: 7, 129: 8, 255: 8} {
		if got := ceilLog(n); got != want {
			t.Errorf("ceilLog(%d) = %d, want %d", n, got, want)
		}
	}
}

// By hand, from rdma_calc_flow_label and rdma_flow_label_to_udp_sport.
func TestUDPSourcePort(t *testing.T) {
	for _, c := range []struct {
		label, qpn, remote uint32
		want               uint16
	}{
		{0x00001, 9, 9, 0xc001},         // low bits as they are
		{0x03fff, 9, 9, 0xffff},         // all 14
		{0x04000, 9, 9, 0xc001},         // bit 14 folds to bit 0
		{0xfc000, 9, 9, 0xc03f},         // all six high bits
		{0xfffff, 9, 9, 0xffc0},         // 3fff ^ 3f
		{0x100001, 9, 9, 0xc001},        // the label has 20 bits
		{0, 1, 1, 0xc001},               // v = 1
		{0, 0x123, 0x456, 0xedd1},       // 4edc2: 2dc2 ^ 13
		{0, 0x456, 0x123, 0xedd1},       // the same in both directions
		{0, 0xabc, 0xdef, 0xd19b},       // 959184 ^ 9 = 95918d, label 5918d: 118d ^ 16
		{0, 0x1234, 0x10, 0xe344},       // 12340: 2340 ^ 4
		{0, 0xffffff, 0xffffff, 0xff21}, // fffffe000001 ^ fffffe0 = fffff1ffffe1; ^ ff = fffff1ffff1e, label fff1e: 3f1e ^ 3f
		{0, 0x400, 0x400, 0xc001},       // 100000 ^ 1: label 00001
		{0, 0x100000, 0x100000, 0xc001}, // 2^40 ^ 2^20 ^ 1: label 00001
		{0, 0, 0x1234, 0xc000},
	} {
		if got := UDPSourcePort(c.label, c.qpn, c.remote); got != c.want {
			t.Errorf("label %#x, queue pairs %#x and %#x: %#x, want %#x", c.label, c.qpn, c.remote, got, c.want)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "rdma_cm")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]struct {
		is   error
		says string
	}{
		filepath.Join(dir, "nothing"): {ErrNoCM, "modprobe rdma_ucm"},
		file:                          {ErrNoCM, "no node of rdma_ucm"}, // cannot be polled
	} {
		n, err := openNode(path)
		if n != nil || !errors.Is(err, want.is) || !strings.Contains(err.Error(), want.says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := openError("x", unix.EACCES); !errors.Is(err, ErrNoPermission) || !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "udev") {
		t.Error(err)
	}
	if err := openError("x", unix.EMFILE); !errors.Is(err, unix.EMFILE) || errors.Is(err, ErrNoCM) || errors.Is(err, ErrNoPermission) {
		t.Error(err)
	}
}

// The kernel's node, with a pipe in its place: a waiter is woken by Close, what was
// written arrived, and a closed node says so.
func TestKernelNode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := openNode(path)
	if err != nil {
		t.Fatal(err)
	}
	var fd int
	if err := n.raw.Control(func(f uintptr) { fd = int(f) }); err != nil {
		t.Fatal(err)
	}
	asked, woken := make(chan struct{}, 100), make(chan error)
	var got []byte
	go func() {
		for {
			err := n.Await(func() bool {
				asked <- struct{}{}
				b := make([]byte, 8)
				n, err := unix.Read(fd, b)
				if n > 0 {
					got = append(got, b[:n]...)
				}
				return err == nil
			})
			if err != nil || len(got) == 3 {
				woken <- err
			}
			if err != nil {
				return
			}
		}
	}()
	<-asked // there is nothing yet
	if err := n.Write([]byte("abc")); err != nil {
		t.Error(err)
	}
	if err := <-woken; err != nil || string(got) != "abc" {
		t.Errorf("%q, %v", got, err)
	}
	for range 2 { // woken by what was written; nothing again
		<-asked
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if err := <-woken; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := n.Write([]byte("abc")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := n.Await(func() bool { return true }); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// Whatever the kernel answers with, reading it ends in an event whose error and text
// can be made, of private data that are no longer than an event has room for.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []struct {
		event  EventType
		status int32
	}{{ConnectRequest, 0}, {ConnectResponse, 0}, {Rejected, 28}, {Rejected, math.MinInt32}, {Unreachable, -int32(unix.ETIMEDOUT)}, {Unreachable, math.MinInt32},
		{Unreachable, 2}, {Established, 7}, {99, -1}, {math.MaxUint32, math.MaxInt32}} {
		b := make([]byte, sizeOf[abi.EventResp]())
		for i := range b {
			b[i] = byte(i * 37)
		}
		put := func(at int, v uint32) {
			b[at], b[at+1], b[at+2], b[at+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
		}
		put(12, uint32(seed.event))
		put(16, uint32(seed.status))
		f.Add(b, false)
		f.Add(b, true)
	}
	f.Add([]byte{}, true)
	f.Add(append([]byte{unix.AF_INET6, 0, 1, 2}, make([]byte, 124)...), false)
	mem, err := usermem.Alloc(slabSize)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = mem.Free() })
	f.Fuzz(func(t *testing.T, b []byte, datagram bool) {
		s := &slab{mem}
		clear(mem.Bytes())
		copy(mem.Bytes()[slabAnswer:], b)
		e := eventOf(answer[abi.EventResp](s), datagram, time.Time{})
		if len(e.Param.Private) > math.MaxUint8 || e.Type.String() == "" {
			t.Errorf("%+v", e)
		}
		if err := e.failure(); err != nil && err.Error() == "" {
			t.Error("an error without a text")
		}
		a := addrOf(answer[abi.Sockaddr](s))
		if back := new(abi.Sockaddr); a.IsValid() && sockaddr(back, a) == 0 {
			t.Errorf("%s has no socket address", a)
		}
	})
}
