// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"devxlab.example/mlx5"
)

// trace returns what qp rts prints as JSON.
func trace(t *testing.T, args ...string) (rtsReport, int, string) {
	t.Helper()
	code, out, errOut := devxlab("", append([]string{"qp", "rts", "-o", "json"}, args...)...)
	var r rtsReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v, exit code %d:\n%s%s", err, code, out, errOut)
	}
	return r, code, errOut
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// way are the commands of the queue pair itself, in their order.
var wayOps = []string{"CREATE_UCTX", "CREATE_QP", "RST2INIT_QP", "INIT2RTR_QP", "RTR2RTS_QP", "QUERY_QP"}

// All commands are there, whole, with the values of the command line in them.
func TestRTSJSON(t *testing.T) {
	for transport, st := range map[string]mlx5.ServiceType{"rc": mlx5.STRC, "uc": mlx5.STUC, "ud": mlx5.STUD} {
		r, code, errOut := trace(t, "emu:", "--transport", transport, "--timeout", "17", "--retry-cnt", "5", "--rnr-retry", "3", "--psn", "0xabcdef", "--mtu", "2048", "--gid", "3")
		if code != 0 || !r.Emulated || r.QPN != 0x40 || r.State != "RTS" || r.Error != "" {
			t.Fatalf("%s: exit code %d, %+v, %s", transport, code, r, errOut)
		}
		var ops []string
		for _, c := range r.Commands {
			if slices.Contains(wayOps, c.Op) {
				ops = append(ops, c.Op)
			}
			in, out := unhex(t, c.In), unhex(t, c.Out)
			if mlx5.OpOf(in) != mlx5.Op(c.Opcode) || mlx5.Op(c.Opcode).String() != c.Op || c.Status != 0 || c.Syndrome != 0 {
				t.Errorf("%s: %+v", transport, c)
			}
			switch c.Op {
			case "RST2INIT_QP", "INIT2RTR_QP", "RTR2RTS_QP":
				if len(in) != 272 || len(out) != 16 {
					t.Errorf("%s: %s has %d bytes and an answer of %d, want 272 and 16", transport, c.Op, len(in), len(out))
				}
				if qpn := mlx5.RTR2RTSQPIn(in).QPN(); qpn != r.QPN {
					t.Errorf("%s: %s of QP %#x, not %#x", transport, c.Op, qpn, r.QPN)
				}
			case "CREATE_QP":
				if got := mlx5.ServiceType(mlx5.CreateQPIn(in).QPC().St()); got != st {
					t.Errorf("%s: made a %v queue pair", transport, got)
				}
			}
			if c.Op != "QUERY_QP" {
				continue
			}
			// What the firmware has in the end is what the command line asked for.
			q := mlx5.QueryQPOut(out).QPC()
			path := q.PrimaryAddressPath()
			type values struct{ state, timeout, retry, rnr, mtu, gid uint8 }
			got := values{q.State(), path.AckTimeout(), q.RetryCount(), q.RNRRetry(), q.MTU(), path.SrcAddrIndex()}
			want := map[string]values{
				"rc": {uint8(mlx5.StateRTS), 17, 5, 3, uint8(mlx5.MTU2048), 3},
				"uc": {uint8(mlx5.StateRTS), 0, 0, 0, uint8(mlx5.MTU2048), 3},
				"ud": {state: uint8(mlx5.StateRTS), mtu: got.mtu},
			}[transport]
			if got != want || q.NextSendPSN() != 0xabcdef || transport != "ud" && (q.NextRcvPSN() != 0xabcdef || q.RemoteQPN() != r.QPN) {
				t.Errorf("%s: the firmware has %+v, next_send_psn %#x; want %+v", transport, got, q.NextSendPSN(), want)
			}
		}
		if !slices.Equal(ops, wayOps) {
			t.Errorf("%s: commands %v, want %v", transport, ops, wayOps)
		}
	}
}

var dumpLine = regexp.MustCompile(`^  (in |out) 0x([0-9a-f]+)  ([0-9a-f ]+)$`)

// dumped is a command whose bytes were read back from the text.
type dumped struct {
	op  string
	in  map[int]byte
	out map[int]byte
}

func readDump(t *testing.T, text string) (commands []dumped) {
	t.Helper()
	name := regexp.MustCompile(`^([A-Z0-9_]+)\(0x[0-9a-f]+\)$`)
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		if m := name.FindStringSubmatch(l); m != nil {
			commands = append(commands, dumped{m[1], map[int]byte{}, map[int]byte{}})
			continue
		}
		m := dumpLine.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		at, err := strconv.ParseInt(m[2], 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		to := commands[len(commands)-1].in
		if m[1] == "out" {
			to = commands[len(commands)-1].out
		}
		for i, b := range unhex(t, strings.ReplaceAll(m[3], " ", "")) {
			to[int(at)+i] = b
		}
	}
	return commands
}

// The text shows every byte that is not zero, at its place.
func TestRTSText(t *testing.T) {
	for _, transport := range []string{"rc", "uc", "ud"} {
		args := []string{"emu:", "--transport", transport, "--psn", "0x123456"}
		r, _, _ := trace(t, args...)
		code, text, errOut := devxlab("", append([]string{"qp", "rts"}, args...)...)
		if code != 0 || errOut != "" {
			t.Fatalf("%s: exit code %d, %s", transport, code, errOut)
		}
		shown := readDump(t, text)
		for _, op := range wayOps {
			i := slices.IndexFunc(r.Commands, func(c tracedCommand) bool { return c.Op == op })
			j := slices.IndexFunc(shown, func(c dumped) bool { return c.op == op })
			if i < 0 || j < 0 {
				t.Errorf("%s: %s is command %d in JSON and %d in the text", transport, op, i, j)
				continue
			}
			same := func(what string, want []byte, got map[int]byte) {
				for at, b := range want {
					if b != got[at] { // what is not shown is zero
						t.Errorf("%s: %s: byte %#x of %s is %#x, the text has %#x", transport, op, at, what, b, got[at])
					}
				}
				if got[0] = want[0]; len(got) > len(want) {
					t.Errorf("%s: %s: the text has %d bytes of %s, there are %d", transport, op, len(got), what, len(want))
				}
			}
			same("its input", unhex(t, r.Commands[i].In), shown[j].in)
			same("its answer", unhex(t, r.Commands[i].Out), shown[j].out)
		}
	}
}

// Nothing is sent that cannot be right: not even the context is made.
func TestRTSChecksFirst(t *testing.T) {
	for _, args := range [][]string{{"--retry-cnt", "15"}, {"--mtu", "1000"}, {"--transport", "ud", "--psn", "16777216"}} {
		code, out, errOut := devxlab("", append([]string{"qp", "rts", "emu:"}, args...)...)
		if code != exitUsage || out != "" || errOut == "" {
			t.Errorf("%v: exit code %d, %q, %q", args, code, out, errOut)
		}
	}
}

// What happened until a failure is shown, in both formats.
func TestRTSFails(t *testing.T) {
	r, code, errOut := trace(t, "emu:", "--gid", "300")
	if code != exitRefused || r.State != "" || r.Error == "" || !strings.Contains(errOut, r.Error) {
		t.Errorf("exit code %d, %+v, %s", code, r, errOut)
	}
	var refused []string
	for _, c := range r.Commands {
		if c.Status != 0 {
			refused = append(refused, c.Op)
			if c.Syndrome>>24 != 0xde {
				t.Errorf("%s: syndrome %#x", c.Op, c.Syndrome)
			}
		}
	}
	if !slices.Equal(refused, []string{"QUERY_ROCE_ADDRESS"}) {
		t.Errorf("refused: %v", refused)
	}
	r, code, _ = trace(t, "mlx5_not_there")
	if code != exitNoDevice || r.Error == "" || r.Commands == nil || len(r.Commands) != 0 {
		t.Errorf("exit code %d, %+v", code, r)
	}
}

// broken fails at one write, the n-th.
type broken struct{ n int }

func (b *broken) Write(p []byte) (int, error) {
	if b.n--; b.n == 0 {
		return 0, errBroken
	}
	return len(p), nil
}

var errBroken = &brokenError{}

type brokenError struct{}

func (*brokenError) Error() string { return "the pipe is broken" }

// An output that breaks is an error, also if it works again.
func TestRTSBrokenOutput(t *testing.T) {
	var errOut bytes.Buffer
	code := run([]string{"qp", "rts", "emu:"}, strings.NewReader(""), &broken{2}, &errOut)
	if code != exitFailed || strings.Count(errOut.String(), "the pipe is broken") != 1 {
		t.Errorf("exit code %d, %q", code, errOut.String())
	}
}
