// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"devxlab.example/internal/qpparams"
	"devxlab.example/mlx5"
)

// A file that the user's environment names is none of the tests'.
func init() {
	if err := os.Unsetenv("DEVXLAB_CONFIG"); err != nil {
		panic(err)
	}
}

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
		r, code, errOut := trace(t, "emu:", "--transport", transport, "--qp-timeout", "17", "--retry-cnt", "5", "--rnr-retry", "3", "--psn", "0xabcdef", "--mtu", "2048", "--gid", "3")
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

// inFile writes a file with this below [qp_params].
func inFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lab.ini")
	if err := os.WriteFile(path, []byte("[qp_params]\n"+text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// What the firmware gets is the flag, or else the file, or else the default.
func TestRTSParams(t *testing.T) {
	path := inFile(t, "max_qp = 5\nqp_timeout = 17\nretry_cnt = 5\n")
	type values struct{ timeout, retry, rnr uint8 }
	for _, c := range []struct {
		env  string
		args []string
		want values
	}{
		{"", nil, values{14, 7, 7}},
		{"", []string{"--config", path}, values{17, 5, 7}},
		{path, nil, values{17, 5, 7}},
		{path, []string{"--retry-cnt", "0", "--rnr-retry", "1"}, values{17, 0, 1}},
		{"/nonexistent", []string{"--config", path, "--qp-timeout", "14"}, values{14, 5, 7}},
		{"", []string{"--timeout", "31"}, values{31, 7, 7}},
	} {
		t.Setenv("DEVXLAB_CONFIG", c.env)
		r, code, errOut := trace(t, append([]string{"emu:"}, c.args...)...)
		i := slices.IndexFunc(r.Commands, func(c tracedCommand) bool { return c.Op == "RTR2RTS_QP" })
		if code != 0 || errOut != "" || i < 0 {
			t.Fatalf("%v: exit code %d, %s", c.args, code, errOut)
		}
		q := mlx5.RTR2RTSQPIn(unhex(t, r.Commands[i].In)).QPC()
		if got := (values{q.PrimaryAddressPath().AckTimeout(), q.RetryCount(), q.RNRRetry()}); got != c.want {
			t.Errorf("%q %v: %+v, want %+v", c.env, c.args, got, c.want)
		}
	}
}

// What is allowed and seldom meant is said, where it counts.
func TestRTSWarns(t *testing.T) {
	for transport, want := range map[string]string{"rc": "devxlab: warning: qp_timeout = 0 is no time-out at all", "uc": "", "ud": ""} {
		_, code, errOut := trace(t, "emu:", "--transport", transport, "--qp-timeout", "0")
		if code != 0 || !strings.HasPrefix(errOut, want) || want == "" && errOut != "" {
			t.Errorf("%s: exit code %d, %q", transport, code, errOut)
		}
	}
}

func TestParamsText(t *testing.T) {
	path := inFile(t, "\nqp_timeout = 16\n")
	code, out, errOut := devxlab("", "qp", "params", "--config", path, "--max-qp", "300000")
	words := strings.Join(strings.Fields(out), " ")
	for _, w := range []string{
		"max_qp = 300000 (flag --max-qp) at most 300000 queue pairs at once;", "qp_timeout = 16 (file " + path + ":3) local ACK time-out 4.096 µs · 2^16 = 268.4 ms",
		"retry_cnt = 7 (default) 7 tries after the first; a dead peer is noticed after 2.1 s by the formula", "ConnectX-6", "rnr_retry = 7 (default) for ever",
	} {
		if !strings.Contains(words, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
	if want := "devxlab: warning: max_qp = 300000 is more than Linux lets any device have"; code != 0 || !strings.HasPrefix(errOut, want) {
		t.Errorf("exit code %d, %q", code, errOut)
	}
}

func paramsJSON(t *testing.T, args ...string) (r paramsReport) {
	t.Helper()
	code, out, errOut := devxlab("", append([]string{"qp", "params", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || errOut != "" || r.Warnings == nil {
		t.Fatalf("%v, exit code %d:\n%s%s", err, code, out, errOut)
	}
	return r
}

func TestParamsJSON(t *testing.T) {
	path := inFile(t, "qp_timeout = 0\n")
	r := paramsJSON(t, "--config", path, "--rnr-retry", "3")
	want := []param{
		{qpparams.Value{Key: "max_qp", Value: 65535}, qpparams.Source{Kind: qpparams.FromDefault}},
		{qpparams.Value{Key: "qp_timeout", Value: 0}, qpparams.Source{Kind: qpparams.FromFile, At: path + ":2"}},
		{qpparams.Value{Key: "retry_cnt", Value: 7}, qpparams.Source{Kind: qpparams.FromDefault}},
		{qpparams.Value{Key: "rnr_retry", Value: 3}, qpparams.Source{Kind: qpparams.FromFlag, At: "--rnr-retry"}},
	}
	for i := range r.Params {
		if r.Params[i].Meaning == "" {
			t.Errorf("%s means nothing", r.Params[i].Key)
		}
		r.Params[i].Meaning = ""
	}
	if !slices.Equal(r.Params, want) || len(r.Warnings) != 1 || !strings.HasPrefix(r.Warnings[0], "qp_timeout = 0") || r.Written != "" {
		t.Errorf("%+v", r)
	}
	if r := paramsJSON(t); len(r.Params) != 4 || len(r.Warnings) != 0 {
		t.Errorf("%+v", r)
	}
}

// A file that is written has the values, can be read, and replaces none.
func TestParamsWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lab.ini")
	code, out, errOut := devxlab("", "qp", "params", "--write", path, "--retry-cnt", "3")
	if code != 0 || errOut != "" || !strings.HasPrefix(out, "written: "+path+"; to use it: --config "+path) {
		t.Errorf("exit code %d, %q, %q", code, out, errOut)
	}
	want := qpparams.Default()
	want.RetryCnt = 3
	if got, err := qpparams.Load(path); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	code, out, errOut = devxlab("", "qp", "params", "--write", path)
	if code != exitUsage || out != "" || !strings.Contains(errOut, "--write "+path+": it exists and is not overwritten; name another file, or remove it first") {
		t.Errorf("exit code %d, %q, %q", code, out, errOut)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("overwritten: %q, %v", after, err)
	}
	other := filepath.Join(t.TempDir(), "other.ini")
	if r := paramsJSON(t, "--config", path, "--write", other); r.Written != other {
		t.Errorf("%+v", r)
	}
	if got, err := qpparams.Load(other); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	// Nothing is written that cannot be right.
	bad := filepath.Join(t.TempDir(), "bad.ini")
	if code, _, _ := devxlab("", "qp", "params", "--write", bad, "--retry-cnt", "8"); code != exitUsage {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Stat(bad); err == nil {
		t.Error("bad values were written")
	}
	code, _, errOut = devxlab("", "qp", "params", "--write", filepath.Join(path, "x"))
	if code != exitFailed || !strings.Contains(errOut, "--write") || !strings.Contains(errOut, "not a directory") {
		t.Errorf("exit code %d, %q", code, errOut)
	}
}

// A disk that is full leaves no file behind that could be taken for one.
func TestParamsWriteFull(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lab.ini")
	if err := writeParams(name, qpparams.Params{}); err == nil || !strings.Contains(err.Error(), "max_qp = 0 is out of range") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(name); err == nil {
		t.Error("half a file is left")
	}
}

func TestParamsWrong(t *testing.T) {
	bad := inFile(t, "max_qp = 16777216\nqp_timeout = 32\n")
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--config", bad, "--retry-cnt", "8"}, []string{bad + ":2: max_qp = 16777216 is out of range", bad + ":3: qp_timeout = 32 is out of range", "--retry-cnt 8 is out of range (0 to 7"}},
		{[]string{"--config", bad + ".not"}, []string{"no such file", "devxlab qp params --write"}},
		{[]string{"--config="}, []string{"--config \"\" names no file"}},
		{[]string{"--rnr-retry=-1"}, []string{"--rnr-retry -1 is negative (0 to 7"}},
		{[]string{"--rnr-retry", "-1"}, []string{"--rnr-retry=\"-1\""}},
		{[]string{"--qp-timeout", "016"}, []string{"--qp-timeout 016 begins with 0"}},
		{[]string{"--qp-timeout", "67ms"}, []string{"the least that reaches it is 14"}},
		{[]string{"--max-qp", "0"}, []string{"--max-qp 0 is out of range (1 to 16777215"}},
		{[]string{"--max-qp="}, []string{"--max-qp \"\" has no value"}},
	} {
		for _, cmd := range [][]string{{"qp", "params"}, {"qp", "params", "-o", "json"}, {"qp", "rts", "emu:"}} {
			code, out, errOut := devxlab("", append(cmd, c.args...)...)
			if code != exitUsage || out != "" {
				t.Errorf("%v %v: exit code %d, %q", cmd, c.args, code, out)
			}
			for _, w := range c.want {
				if !strings.Contains(errOut, w) {
					t.Errorf("%v %v: no %q in %q", cmd, c.args, w, errOut)
				}
			}
		}
	}
}
