// SPDX-License-Identifier: BSD-2-Clause

// Package wireshark holds what cm/capture and cm/roce read in a capture against
// what tshark reads there. For tests only.
package wireshark

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/gopacket"

	"devxlab.example/cm/capture"
	"devxlab.example/cm/roce"
	"devxlab.example/internal/require"
)

// Result is what was compared.
type Result struct {
	Frames, RoCE int
	Values       int                        // of fields, in all
	Fields       map[string]int             // how often each was compared
	Layers       map[gopacket.LayerType]int // of the packets
	Opcodes      map[roce.Opcode]int
}

// Missing returns which fields no packet had.
func (r Result) Missing() (names []string) {
	for _, f := range fields {
		if r.Fields[f.name] == 0 {
			names = append(names, f.name)
		}
	}
	return names
}

// guesses are dissectors that take a payload for a protocol by its first bytes.
var guesses = []string{"rpcrdma_infiniband", "smb_direct_infiniband", "nvme_rdma", "iser_infiniband", "lnet_ib", "sdp_infiniband", "mellanox_eoib", "eth_over_ib"}

// Arguments are those with which tshark reads a capture of RoCE.
func Arguments(file string) []string {
	args := []string{"-r", file, "--disable-protocol", "tftp"} // a card may send from that port, 69, and the lower one decides
	for _, h := range guesses {
		args = append(args, "--disable-heuristic", h)
	}
	return args
}

// Path finds tshark; without it the test is skipped.
func Path(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		require.Have(t, "tshark", fmt.Errorf("%w: apt-get install tshark", err))
	}
	return path
}

// Fields returns, of each packet of a capture that passes a display filter, fields.
func Fields(t testing.TB, file, filter string, names ...string) (all [][]string) {
	t.Helper()
	args := append(Arguments(file), "-Y", filter, "-T", "fields", "-E", "separator="+separator)
	for _, n := range names {
		args = append(args, "-e", n)
	}
	for _, line := range run(t, args...) {
		all = append(all, strings.Split(line, separator))
	}
	return all
}

// Count returns how many packets of a capture pass a display filter.
func Count(t testing.TB, file, filter string) int {
	t.Helper()
	return len(Fields(t, file, filter, "frame.number"))
}

func run(t testing.TB, args ...string) []string {
	t.Helper()
	out, err := exec.Command(Path(t), args...).Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	if len(out) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

const separator = "|"

// Compare compares every field of every packet of a file, and when and how long
// each packet is.
func Compare(t testing.TB, file string) Result {
	t.Helper()
	args := append(Arguments(file), "-T", "fields", "-E", "separator="+separator, "-E", "occurrence=l", "-e", "frame.time_epoch", "-e", "frame.len", "-e", "infiniband.bth")
	column := map[string]int{}
	for _, f := range fields {
		if _, twice := column[f.name]; !twice {
			column[f.name] = 3 + len(column)
			args = append(args, "-e", f.name)
		}
	}
	lines := run(t, args...)
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	r, err := capture.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	c := comparison{stack: roce.NewStack(), column: column, result: Result{Fields: map[string]int{}, Layers: map[gopacket.LayerType]int{}, Opcodes: map[roce.Opcode]int{}}}
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n := c.result.Frames
		if n >= len(lines) {
			t.Fatalf("tshark has %d packets, we more", len(lines))
		}
		if err := c.packet(p, strings.Split(lines[n], separator)); err != nil {
			t.Fatalf("packet %d, %v: %v", n+1, c.stack.BTH.Opcode, err)
		}
	}
	if c.result.Frames != len(lines) {
		t.Fatalf("tshark has %d packets, we %d", len(lines), c.result.Frames)
	}
	return c.result
}

type comparison struct {
	stack   *roce.Stack
	decoded []gopacket.LayerType
	column  map[string]int
	result  Result
}

// packet compares one of ours with a line of tshark's.
func (c *comparison) packet(p capture.Frame, columns []string) error {
	c.result.Frames++
	if at := fmt.Sprintf("%d.%09d", p.Time.Unix(), p.Time.Nanosecond()); at != columns[0] || strconv.Itoa(p.Wire) != columns[1] {
		return fmt.Errorf("at %s with %d bytes; tshark has %s and %s", at, p.Wire, columns[0], columns[1])
	}
	err := c.stack.Parser(p.First).DecodeLayers(p.Data, &c.decoded)
	has := map[gopacket.LayerType]bool{}
	for _, l := range c.decoded {
		has[l] = true
	}
	if theirs := columns[2] != ""; theirs != has[roce.LayerTypeBTH] {
		return fmt.Errorf("RoCE: tshark says %v, we %v (%v)", theirs, !theirs, err)
	} else if !theirs {
		return nil // not ours
	}
	if err != nil {
		return err
	}
	c.result.RoCE++
	c.result.Opcodes[c.stack.BTH.Opcode]++
	for l := range has {
		c.result.Layers[l]++
	}
	for _, f := range fields {
		if !has[f.in] || f.in != roce.LayerTypeBTH && !known(c.stack.BTH.Opcode) {
			continue
		}
		v, want := columns[c.column[f.name]], f.ours(c.stack)
		if v == "" && (want == nil || twins[f.name] != "" && columns[c.column[twins[f.name]]] != "") {
			continue
		}
		if a, b := number(v), number(plain(want)); a != b && !knownFault(f.name, v, want) {
			return fmt.Errorf("tshark has %s %q, we %v", f.name, v, want)
		}
		c.result.Fields[f.name]++
		c.result.Values++
	}
	return nil
}

// knownFault is what tshark itself reads wrongly: of the word with flow label and
// packet rate Wireshark 4.0 takes three bytes of four, and shows 12 bits of the
// label's 20.
func knownFault(name, theirs string, ours any) bool {
	label, is := ours.(uint32)
	return name == "infiniband.cm.req.prim_flowlabel" && is && number(theirs) == number(plain(label>>8))
}

// number brings a value of tshark's and one of ours into one form.
func number(v string) string {
	if a, err := netip.ParseAddr(v); err == nil {
		return a.String()
	}
	switch v {
	case "true", "True":
		return "1"
	case "false", "False":
		return "0"
	}
	if n, err := strconv.ParseUint(v, 0, 64); err == nil {
		return strconv.FormatUint(n, 10)
	}
	return v
}

// plain prints a value as tshark does, without the words of its type.
func plain(v any) string {
	switch v := v.(type) {
	case roce.Opcode:
		return strconv.Itoa(int(v))
	case roce.Syndrome:
		return strconv.Itoa(int(v))
	case roce.Attribute:
		return strconv.Itoa(int(v))
	case []byte:
		return hex.EncodeToString(v)
	}
	return fmt.Sprint(v)
}
