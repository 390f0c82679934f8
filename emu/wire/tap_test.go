// SPDX-License-Identifier: BSD-2-Clause

package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"

	"devxlab.example/emu/fw"
	"devxlab.example/emu/wire"
	"devxlab.example/internal/require"
)

// capture runs a link with drops of each kind, tapped at both ends.
func capture(t *testing.T, o wire.TapOptions) []byte {
	r := newRig(t)
	var file bytes.Buffer
	tap := wire.NewTap(&file, o)
	l := r.link("rate=10G,delay=1us,queue=2000", "", 1)
	if err := errors.Join(l.A.Tap(tap, "hca0"), l.B.Tap(tap, "hca1")); err != nil {
		t.Fatal(err)
	}
	l.A.SetFilter(wire.Out, wire.DropNth(2, nil))
	for i := range uint32(4) { // the second is lost on the wire, the fourth finds the queue full
		l.A.Send(roce{src: 1, dst: 2, vlan: -1, tos: 26<<2 | ecn0, psn: 100 + i, payload: 800}.frame())
	}
	r.to(3 * time.Microsecond)
	l.B.Send(roce{src: 2, dst: 1, vlan: -1, v6: true, tos: 26 << 2, psn: 100, opcode: rcACK}.frame())
	r.to(time.Millisecond)
	r.end(l.Close)
	if err := tap.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// An independent reader understands the file: interfaces, times in nanoseconds,
// contents.
func TestTapIsPcapng(t *testing.T) {
	file := capture(t, wire.TapOptions{Epoch: time.Unix(1_000_000_000, 0)})
	r, err := pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		data, ci, err := r.ReadPacketData()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		i, err := r.Interface(ci.InterfaceIndex)
		if err != nil || i.LinkType != 1 {
			t.Fatalf("interface %d: %+v, %v", ci.InterfaceIndex, i, err)
		}
		if ci.Length != len(data) {
			t.Errorf("length %d of %d", ci.Length, len(data))
		}
		got = append(got, fmt.Sprintf("%s %d %d", i.Name, ci.Timestamp.UnixNano()-1_000_000_000*int64(time.Second), len(data)))
	}
	// 858 + 24 bytes take 705.6 ns.
	want := []string{"hca0 0 858", "hca0 706 858", "hca0 1412 858", "hca1 1706 858", "hca1 3001 82", "hca0 3001 82", "hca1 3117 858"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
	for i, n := range []uint64{4, 3} {
		if s, err := r.Interface(i); err != nil || s.Statistics.PacketsReceived != n || s.Statistics.PacketsDropped != 0 {
			t.Errorf("interface %d: %+v, %v", i, s.Statistics, err)
		}
	}
	if again := capture(t, wire.TapOptions{Epoch: time.Unix(1_000_000_000, 0)}); !bytes.Equal(file, again) {
		t.Error("the same run gave another file")
	}
}

// Wireshark reads the file as RoCEv2, with directions and comments, finds each
// IPv4 checksum right (status 1), and nothing malformed.
func TestTapInWireshark(t *testing.T) {
	path, err := exec.LookPath("tshark")
	if err != nil {
		err = fmt.Errorf("%w: apt-get install tshark", err)
	}
	require.Have(t, "tshark", err)
	name := filepath.Join(t.TempDir(), "tap.pcapng")
	if err := os.WriteFile(name, capture(t, wire.TapOptions{Drops: true}), 0o600); err != nil {
		t.Fatal(err)
	}
	fields := []string{"frame.interface_name", "frame.packet_flags_direction", "frame.time_epoch", "_ws.col.Protocol", "infiniband.bth.opcode",
		"infiniband.bth.psn", "ip.checksum.status", "frame.comment", "_ws.malformed"}
	args := []string{"-r", name, "-o", "ip.check_checksum:TRUE", "-T", "fields", "-E", "separator=|"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	out, err := exec.Command(path, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	const in, outward = "0x00000001", "0x00000002"
	want := []string{
		"hca0|" + outward + "|0.000000000|RRoCE|4|100|1||",
		"hca0|" + outward + "|0.000000000|RRoCE|4|103|1|dropped: queue full|",
		"hca0|" + outward + "|0.000000706|RRoCE|4|101|1|dropped: filtered|",
		"hca0|" + outward + "|0.000001412|RRoCE|4|102|1||",
		"hca1|" + in + "|0.000001706|RRoCE|4|100|1||",
		"hca1|" + outward + "|0.000003001|RRoCE|17|100|||",
		"hca0|" + in + "|0.000003001|RRoCE|17|100|||",
		"hca1|" + in + "|0.000003117|RRoCE|4|102|1||",
	}
	if got := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n"); !slices.Equal(got, want) {
		t.Errorf("tshark says\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// An interface of its own has what passes no port: times of its clock, and a
// comment that is cut where it is too long.
func TestTapInterface(t *testing.T) {
	var file bytes.Buffer
	tap := wire.NewTap(&file, wire.TapOptions{})
	clock := &fw.VirtualClock{}
	i, err := tap.Interface("loopback", virtualClock{clock})
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 60)
	clock.SleepUntil(5 * time.Microsecond)
	i.Write(frame, "")
	clock.SleepUntil(7 * time.Microsecond)
	i.Write(frame, strings.Repeat("long ", 100))
	if err := tap.Close(); err != nil {
		t.Fatal(err)
	}
	i.Write(frame, "after the end")
	r, err := pcapgo.NewNgReader(&file, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	var at []time.Duration
	for {
		_, ci, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, time.Duration(ci.Timestamp.UnixNano()))
	}
	if want := []time.Duration{5 * time.Microsecond, 7 * time.Microsecond}; !slices.Equal(at, want) {
		t.Errorf("times %v, not %v", at, want)
	}
	if _, err := tap.Interface("late", virtualClock{clock}); err == nil {
		t.Error("a closed tap took an interface")
	}
}

// stuck is a writer that does not return until it is let go.
type stuck struct {
	begun, free chan struct{}
	written     chan struct{}
	once        sync.Once
	bytes.Buffer
}

func (s *stuck) Write(b []byte) (int, error) {
	s.once.Do(func() { close(s.begun) })
	<-s.free
	defer func() { s.written <- struct{}{} }()
	return s.Buffer.Write(b)
}

// A writer that is stuck holds no traffic; what it misses is counted in the file.
func TestTapSlowWriter(t *testing.T) {
	r := newRig(t)
	w := &stuck{begun: make(chan struct{}), free: make(chan struct{}), written: make(chan struct{}, 10)}
	tap := wire.NewTap(w, wire.TapOptions{Buffer: 3000})
	<-w.begun // it has the section header
	l := r.link("", "", 1)
	if err := l.A.Tap(tap, "hca0"); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		l.A.Send(sized(1, 2, 1000))
	}
	r.to(1)
	if len(r.got) != 10 || tap.Missed() != 8 {
		t.Errorf("%d arrived, %d are not in the file", len(r.got), tap.Missed())
	}
	close(w.free)
	<-w.written // the section header
	<-w.written // what the buffer held
	l.A.Send(sized(1, 2, 1000))
	r.end(l.Close)
	if err := tap.Close(); err != nil {
		t.Fatal(err)
	}
	if told := []byte{4, 0, 8, 0, 8, 0, 0, 0, 0, 0, 0, 0}; !bytes.Contains(w.Bytes(), told) { // epb_dropcount, little endian
		t.Error("the next record does not tell that 8 are missing")
	}
	ng, err := pcapgo.NewNgReader(&w.Buffer, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, _, err := ng.ReadPacketData(); err != nil {
			t.Errorf("record %d: %v", i, err)
		}
	}
	if _, _, err := ng.ReadPacketData(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	if i, _ := ng.Interface(0); i.Statistics.PacketsReceived != 11 || i.Statistics.PacketsDropped != 8 {
		t.Errorf("%+v", i.Statistics)
	}
}

type broken struct{ writes int }

func (b *broken) Write([]byte) (int, error) {
	b.writes++
	return 0, errors.New("no space")
}

// A writer that fails ends the tap, says so once, and holds nothing else.
func TestTapBrokenWriter(t *testing.T) {
	r := newRig(t)
	l := r.link("", "", 1)
	w := &broken{}
	told := make(chan error, 10)
	tap := wire.NewTap(w, wire.TapOptions{Error: func(err error) { told <- err }})
	if err := <-told; err.Error() != "wire: the tap has ended: no space" {
		t.Error(err)
	}
	if err := l.A.Tap(tap, "hca0"); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("a port joins a tap that has ended: %v", err)
	}
	l.A.Send(sized(1, 2, 100))
	r.to(1)
	if len(r.got) != 1 {
		t.Errorf("%d arrived", len(r.got))
	}
	if err := tap.Close(); err == nil {
		t.Error("Close reports nothing")
	}
	if len(told) != 0 || w.writes != 1 {
		t.Errorf("%d more reports, %d writes", len(told), w.writes)
	}
	if err := l.A.Tap(nil, ""); err != nil {
		t.Error(err)
	}
	r.end(l.Close)
}

// What a switch drops and pauses is there, each at the port that it is about.
func TestTapOfSwitch(t *testing.T) {
	r := newRig(t)
	var file bytes.Buffer
	tap := wire.NewTap(&file, wire.TapOptions{Drops: true})
	s := r.sw(2, "rate=10G,pfc,xoff=2000,xon=1000,headroom=1", 1)
	for i := range 2 {
		if err := s.Port(i).Tap(tap, fmt.Sprint("port", i)); err != nil {
			t.Fatal(err)
		}
	}
	set(t, s.Port(1), wire.In, "rate=1G")
	for range 5 {
		s.Port(0).Send(sized(0, 1, 1000))
	}
	r.to(time.Millisecond)
	missing := s.Port(0).Stats(wire.Out).Dropped[wire.NoHeadroom]
	r.end(s.Close)
	if err := tap.Close(); err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(file.Bytes(), []byte("dropped: no headroom")); n == 0 || uint64(n) != missing {
		t.Errorf("%d comments for %d drops", n, missing)
	}
	if n := bytes.Count(file.Bytes(), []byte{0x01, 0x80, 0xc2, 0, 0, 1, 2, 'w', 'i', 'r', 'e', 0, 0x88, 0x08, 1, 1, 0, 0xff}); n < 2 {
		t.Errorf("%d PAUSE frames", n)
	}
}
