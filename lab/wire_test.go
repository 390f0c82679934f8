// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"devxlab.example/cm/roce"
	"devxlab.example/internal/require"
	"devxlab.example/internal/wireshark"
)

// twoGuests boots two machines whose cards are on one wire, and runs a program
// in each; the second has the card with the address 192.168.7.2. It returns what
// the first said, and the file of the tap.
func twoGuests(t *testing.T, o Options, wire, first, second string) (out, tap string) {
	t.Helper()
	dir := t.TempDir()
	a, b, tap := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "tap.pcapng")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	emu := exec.CommandContext(ctx, o.Devxlab, "emu", "--socket", a, "--socket", b, "--wire", wire, "--tap", tap)
	emu.Cancel = func() error { return emu.Process.Signal(os.Interrupt) } // so that the tap is whole
	var said bytes.Buffer
	emu.Stdout, emu.Stderr = &said, &said
	if err := emu.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		cancel()
		_ = emu.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	defer end()
	for until := time.Now().Add(20 * time.Second); !exists(a) || !exists(b); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("no sockets: %s", said.String())
		}
	}
	type ended struct {
		out string
		err error
	}
	start := func(socket, script string) chan ended {
		c := make(chan ended, 1)
		go func() {
			o := o
			var out bytes.Buffer
			o.Sockets, o.Args, o.Stdout, o.Stderr = []string{socket}, []string{"sh", "-c", script}, &out, &out
			_, err := Run(ctx, o)
			c <- ended{out.String(), err}
		}()
		return c
	}
	server := start(b, second)
	client := <-start(a, first)
	if client.err != nil {
		cancel()
	}
	s := <-server
	if client.err != nil || s.err != nil {
		t.Fatalf("%v\n%s\nthe other guest: %v\n%s", client.err, client.out, s.err, s.out)
	}
	end()
	return client.out, tap
}

// programs are those of testdata/guest/traffic.sh, in their order.
var programs = []string{"ping", "ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong", "rping", "ucmatose", "udaddy", "cmtime",
	"ib_send_lat", "ib_write_bw", "ib_read_lat", "ib_atomic_lat"}

// guestScripts is where the guest has testdata/guest.
const guestScripts = "/tmp/guest/"

// connections is how many cmtime makes. It asks for all at once, and the other side
// has 6.1 s for each before its request is repeated: 1000 take it a minute.
func connections() string {
	if require.Named("long-wire") {
		return "1000"
	}
	return "100"
}

func trafficOptions(t *testing.T) Options {
	t.Helper()
	o := realLabOf(t, "lab-full", ImageFull)
	o.Put = []Copy{{From: "testdata/guest", To: guestScripts}}
	o.Timeout = 15 * time.Minute
	o.Env = []string{"CONNECTIONS=" + connections(), "LIMIT=240"}
	return o
}

// checkPrograms looks whether all went well, and nothing else was said.
func checkPrograms(t *testing.T, out string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "#") {
			got = append(got, strings.TrimPrefix(strings.TrimSpace(line), "ok "))
		}
	}
	if t.Log(out); !slices.Equal(got, programs) {
		t.Errorf("not all went well: %q", got)
	}
}

// checkTap looks whether Wireshark finds everything in a tap's file well formed:
// it must have found RoCEv2 in it, nothing malformed and no error, and in each field
// what cm/roce finds there. It comes last, since without Wireshark it skips the test.
// Protocols whose sequence may look odd are "TCP", whose resets and repeats are the
// kernel's own affair, and those named.
func checkTap(t *testing.T, file string, odd ...string) {
	t.Helper()
	r := wireshark.Compare(t, file)
	t.Logf("tshark and cm/roce agree about %d values of %d packets", r.Values, r.RoCE)
	args := append(wireshark.Arguments(file), "-q", "-z", "expert,warn", "-z", "io,phs")
	// RoCEv2 has no UDP checksum, also over IPv6 (InfiniBand Architecture Specification, annex A17).
	for _, o := range []string{"ip.check_checksum", "tcp.check_checksum", "udp.check_checksum", "udp.ignore_ipv6_zero_checksum"} {
		args = append(args, "-o", o+":TRUE")
	}
	out, err := exec.Command(wireshark.Path(t), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := string(out)
	t.Log(text)
	if regexp.MustCompile(`(?m)^Errors \(|Malformed`).MatchString(text) || !strings.Contains(text, "infiniband") {
		t.Error("tshark finds errors, or no RoCEv2")
	}
	for _, m := range warnLine.FindAllStringSubmatch(text, -1) {
		if m[1] != "Sequence" || m[2] != "TCP" && !slices.Contains(odd, m[2]) {
			t.Errorf("tshark warns: %s", m[0])
		}
	}
}

// warnLine is a line of tshark's table: how often, group, protocol and what.
var warnLine = regexp.MustCompile(`(?m)^ +\d+ +(\S+) +(\S+)  .*$`)

// Two guests talk over a link: the kernel's own traffic, RDMA that each kernel's
// connection manager set up, and RDMA without that.
func TestLabTwoGuests(t *testing.T) {
	o := trafficOptions(t)
	client, tap := twoGuests(t, o, "delay=100us", "sh "+guestScripts+"traffic.sh guest 192.168.7.2", "sh "+guestScripts+"traffic.sh serve")
	checkPrograms(t, client)
	checkTap(t, tap)
}

// Two cards of one guest do the same, once the second is in a network namespace
// of its own.
func TestLabTwoCards(t *testing.T) {
	o := trafficOptions(t)
	var out bytes.Buffer
	o.SMP, o.Append = 2, "tsc=reliable" // programs that poll would take turns of 4 ms on one
	o.Devices, o.Tap, o.Stdout, o.Stderr = 2, filepath.Join(t.TempDir(), "tap.pcapng"), &out, &out
	o.HCA, o.Args = []string{o.Devxlab, "emu"}, []string{"sh", guestScripts + "traffic.sh", "netns"}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	checkPrograms(t, out.String())
	checkTap(t, o.Tap)
}

// Everything that RoCE has, and a kernel under which it is sent: tshark and cm/roce
// agree about each field of each packet of a run.
func TestLabMixed(t *testing.T) {
	o := trafficOptions(t)
	var out, said bytes.Buffer
	o.SMP, o.Append = 2, "tsc=reliable"
	o.Devices, o.Tap, o.Stdout, o.Stderr = 2, filepath.Join(t.TempDir(), "tap.pcapng"), &out, &said
	o.HCA = []string{o.Devxlab, "emu", "--wire", "rate=1G,delay=10us,ecn=1:2:100%"}
	o.Env, o.Args = []string{"CONNECTIONS=50"}, []string{"sh", guestScripts + "mixed.sh"}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), said.String())
	}
	var want []string
	for gid := range 4 {
		for _, what := range []string{"RC", "UC", "UD", "NAKs"} {
			want = append(want, fmt.Sprintf("%s of GID %d", what, gid))
		}
	}
	for _, over := range []string{"IPv4", "IPv6", "RoCEv1"} {
		if over == "RoCEv1" {
			want = append(want, "XRC: SEND", "XRC: WRITE")
		}
		for _, what := range []string{"rping", "cmtime", "ucmatose", "udaddy", "nobody listens"} {
			want = append(want, what+" over "+over)
		}
	}
	want = append(want, "a slow server refuses")
	if got := strings.Split(strings.TrimSpace(out.String()), "\n"); !slices.Equal(got, want) {
		t.Errorf("%s%s", out.String(), said.String())
	}
	r := wireshark.Compare(t, o.Tap)
	t.Logf("%d values of %d packets", r.Values, r.RoCE)
	const enough = 10_000
	if missing := r.Missing(); r.RoCE < enough || len(missing) > 0 {
		t.Errorf("%d packets of RoCE; none has %q", r.RoCE, missing)
	}
	for _, l := range []gopacket.LayerType{roce.LayerTypeGRH, layers.LayerTypeIPv4, layers.LayerTypeIPv6, roce.LayerTypeXRCETH, roce.LayerTypeCNP, roce.LayerTypeMRA, roce.LayerTypeSIDRReq, roce.LayerTypeSIDRRep} {
		if r.Layers[l] == 0 {
			t.Errorf("no %v: %v", l, r.Layers)
		}
	}
	for o := roce.RC; o <= roce.UD|roce.SendOnlyImm; o++ {
		reliable := o.Transport() == roce.RC && o != roce.RC|roce.SendLastInv // which none of the messages is long enough for
		if has := strings.HasPrefix(o.String(), "opcode"); !has && r.Opcodes[o] == 0 && (reliable || o.Transport() == roce.UC || o.Transport() == roce.UD) {
			t.Errorf("no %v: %v", o, r.Opcodes)
		}
	}
}

// Of connections over a wire that loses and doubles, devxlab pcap says the same as
// tshark's filters: how often each message was sent again, how often it came twice,
// and how many there are.
func TestLabLossyManagers(t *testing.T) {
	require.Long(t, "long-wire", "make lab-wire")
	o := trafficOptions(t)
	var out, said bytes.Buffer
	o.Devices, o.Tap, o.Stdout, o.Stderr = 2, filepath.Join(t.TempDir(), "tap.pcapng"), &out, &said
	o.HCA = []string{o.Devxlab, "emu", "--wire", "loss=10%,dup=10%"}
	o.Env, o.Args = []string{"CONNECTIONS=50"}, []string{"sh", guestScripts + "lossycm.sh"}
	if _, err := Run(t.Context(), o); err != nil || out.String() != "cmtime\n" {
		t.Fatalf("%v\n%s%s", err, out.String(), said.String())
	}
	pcap, err := exec.Command(o.Devxlab, "pcap", o.Tap, "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	type tally struct{ Messages, Connections, Established, Again, Twice int }
	var got struct {
		Counts      struct{ CM, Unmatched, Damaged, BadICRC int }
		Connections []struct {
			State                       string
			Retransmissions, Duplicates int
		}
	}
	if err := json.Unmarshal(pcap, &got); err != nil {
		t.Fatal(err)
	}
	ours := tally{Messages: got.Counts.CM, Connections: len(got.Connections)}
	for _, c := range got.Connections {
		ours.Again, ours.Twice = ours.Again+c.Retransmissions, ours.Twice+c.Duplicates
		if c.State == "disconnected" {
			ours.Established++
		}
	}
	theirs := tally{Messages: wireshark.Count(t, o.Tap, "infiniband.mad.mgmtclass==7")}
	last := map[string]string{}
	for _, line := range wireshark.Fields(t, o.Tap, "infiniband.mad.mgmtclass==7", "infiniband.mad.attributeid", "ip.src", "infiniband.mad.transactionid", "infiniband.bth.psn", "infiniband.invariant.crc") {
		message, packet := strings.Join(line[:3], " "), strings.Join(line[3:], " ")
		switch before, again := last[message]; {
		case before == packet:
			theirs.Twice++
		case again:
			theirs.Again++
		case line[0] == "0x0010":
			theirs.Connections++
		case line[0] == "0x0014":
			theirs.Established++
		}
		last[message] = packet
	}
	if t.Logf("%+v", theirs); ours != theirs || ours.Established != ours.Connections || ours.Again == 0 || ours.Twice == 0 || got.Counts.Unmatched+got.Counts.Damaged+got.Counts.BadICRC > 0 {
		t.Errorf("%+v, tshark %+v; %+v", ours, theirs, got.Counts)
	}
}

// wireFaults is what testdata/guest/faults.py has to say, without the times.
const wireFaults = `
sound: 16*ok; peer 10*ok; RTS RTS
sound counters: none; peer rx_write_requests+2 rx_read_requests+2 rx_atomic_requests+2
dead wire: 12/0x81 3*5/0xf9; peer nothing; ERR RTS
dead wire counters: local_ack_timeout_err+8 req_cqe_error+3 req_cqe_flush_error+2 resp_cqe_error+1 resp_cqe_flush_error+1; peer none
peer in ERR: 12/0x81 2*5/0xf9; peer 2*5/0xf9; ERR ERR
peer in ERR counters: local_ack_timeout_err+8 req_cqe_error+3 req_cqe_flush_error+2; peer resp_cqe_error+2 resp_cqe_flush_error+2
receive entries posted in ERR, late: nothing; peer 3*5/0xf9; RTS ERR
receive entries posted in ERR, late counters: none; peer resp_cqe_error+3 resp_cqe_flush_error+3
RNR retry 0: 13/0x87; peer nothing; ERR RTS
RNR retry 0 counters: rnr_nak_retry_err+1 req_cqe_error+1; peer out_of_buffer+1
RNR retry 1: 13/0x87; peer nothing; ERR RTS
RNR retry 1 counters: rnr_nak_retry_err+2 req_cqe_error+1; peer out_of_buffer+2
RNR for ever: ok; peer ok; RTS RTS
RNR for ever counters: rnr_nak_retry_err; peer out_of_buffer
wrong rkey: 10/0x88 5/0xf9; peer nothing; ERR ERR
wrong rkey counters: req_cqe_error+2 req_cqe_flush_error+1 req_remote_access_errors+1; peer resp_remote_access_errors+1
RTR without ARP: errno 110
RTR with ARP: RTS
bad wire: 120*ok; peer 40*ok; RTS RTS
bad wire counters: local_ack_timeout_err packet_seq_err implied_nak_seq_err; peer out_of_sequence duplicate_request rx_write_requests rx_read_requests rx_atomic_requests
bad wire: added 40 of 40, 20 of 20 READs whole
`

// Faults of the wire and of the peer, as a program of an unmodified rdma-core sees
// them: completions with the vendor's syndromes, states, and counters of sysfs.
func TestLabWireFaults(t *testing.T) {
	onePair(t, "sh "+guestScripts+"apart.sh && exec python3 "+guestScripts+"faults.py", wireFaults)
}

// Programs that know nothing of it get through a wire that loses and is far longer
// than their time-out.
func TestLabLossyWire(t *testing.T) {
	require.Long(t, "long-wire", "make lab-wire")
	onePair(t, "sh "+guestScripts+"lossy.sh", `
ibv_rc_pingpong 0
ibv_rc_pingpong server 0
rping 0
rping server 0
mlx5_0 local_ack_timeout_err
mlx5_0 duplicate_request
mlx5_1 local_ack_timeout_err
mlx5_1 duplicate_request
`)
}

// onePair runs a script in a guest of two cards, which can change the wire.
// What it says but for requests and lines that begin with # has to be want.
func onePair(t *testing.T, script, want string) {
	t.Helper()
	o := trafficOptions(t)
	in, answer := io.Pipe()
	defer answer.Close()
	dir := t.TempDir()
	c := &controller{t: t, path: filepath.Join(dir, "control"), answer: answer}
	o.Devices, o.Tap, o.Stdin, o.Stdout, o.Stderr = 2, filepath.Join(dir, "tap.pcapng"), in, c, c
	o.HCA, o.Args = []string{o.Devxlab, "emu", "--control", c.path}, []string{"sh", "-c", script}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatalf("%v\n%s", err, c.all.String())
	}
	var got []string
	for line := range strings.Lines(c.all.String()) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "@") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	if !slices.Equal(got, strings.Split(strings.TrimSpace(want), "\n")) {
		t.Errorf("%s", c.all.String())
	}
	t.Log(c.all.String())
	checkTap(t, o.Tap)
}
