// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/cm"
	"devxlab.example/devx"
	"devxlab.example/emu/fw"
	"devxlab.example/internal/leaktest"
	"devxlab.example/mlx5"
)

// TestMain fails the run if a command leaves a device open.
func TestMain(m *testing.M) {
	if err := os.Unsetenv("DEV"); err != nil {
		panic(err)
	}
	// The first Notify starts a goroutine of package signal that stays.
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt)
	signal.Stop(c)
	leaktest.Main(m)
}

// devxlab runs a command line.
func devxlab(in string, args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = run(args, strings.NewReader(in), &o, &e)
	return code, o.String(), e.String()
}

const (
	dmesg = "mlx5_core 0000:81:00.0: mlx5_cmd_check:812:(pid 123): CREATE_QP(0x500) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x19c6d6)"
	cut   = "mlx5_core 0000:81:00.0: mlx5_cmd_check:812:(pid 123): CREATE_QP(0x500) op_mod(0x0) failed, status lim"
)

// Exit code, and what stands on standard output and on standard error.
func TestCommands(t *testing.T) {
	notThere := filepath.Join(t.TempDir(), "profile.json")
	badProfile := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(badProfile, []byte(`{"name": "x"`), 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		in   string
		code int
		out  []string // words of standard output; none: it is empty
		err  []string // the same of standard error
	}{
		{args: []string{"--help"}, code: 0, out: []string{"Exit codes: 0 done", "130 interrupted", "list [flags]", "bench [<experiments> ...]"}},
		{args: []string{"bench", "--help"}, code: 0, out: []string{"--device=\"emu:\"", "$DEV", "--quick", "default: all but"}},
		{args: nil, code: 2, err: []string{"expected one of", "see devxlab --help"}},
		{args: []string{"nonsense"}, code: 2, err: []string{"nonsense"}},
		{args: []string{"info"}, code: 2, err: []string{"expected \"<device>\""}},
		{args: []string{"info", "emu:", "--no-such-flag"}, code: 2, err: []string{"--no-such-flag"}},
		{args: []string{"list", "-o", "xml"}, code: 2, err: []string{"must be one of \"text\",\"json\""}},

		{args: []string{"info", "emu:"}, code: 0, out: []string{"emu: (emulated inside the process)", "15b3:101d", "log_max_qp", "at most 131072 queue pairs", "RoCE v2"}},
		{args: []string{"info", "emu:log_max_qp=10"}, code: 0, out: []string{"at most 1024 queue pairs"}},
		{args: []string{"info", "mlx5_not_there"}, code: 3, err: []string{`no RDMA device "mlx5_not_there"`}},
		{args: []string{"info", "emu:devx=off"}, code: 3, err: []string{"no DevX"}},
		{args: []string{"info", "emu:profile=" + notThere}, code: 2, err: []string{notThere, "no such file"}},
		{args: []string{"info", "emu:profile=" + badProfile}, code: 2, err: []string{badProfile}},
		{args: []string{"info", "emu:colour=blue"}, code: 2, err: []string{`no option "colour"`, "profile"}},
		{args: []string{"info", "nix:"}, code: 1, err: []string{`no driver for "nix:"`, "emu:"}},

		{args: []string{"qp", "rules"}, code: 0, out: []string{"RTR2RTS_QP  RTR → RTS", "ack_timeout", "2RST_QP  any → RST", "no attributes"}},
		{args: []string{"qp", "rts", "emu:"}, code: 0, out: []string{"QP 0x40 of emu: is in RTS", "the kernel's own commands are shown", "and away again:", "DESTROY_QP(0x501)"}},
		{args: []string{"qp", "rts", "emu:", "--retry-cnt", "15"}, code: 2, err: []string{"RTR2RTS_QP (RC): retry_count 15 is out of range: 0 to 7"}},
		{args: []string{"qp", "rts", "emu:", "--rnr-retry", "8"}, code: 2, err: []string{"rnr_retry 8"}},
		{args: []string{"qp", "rts", "emu:", "--timeout", "32"}, code: 2, err: []string{"ack_timeout 32"}},
		{args: []string{"qp", "rts", "emu:", "--psn", "16777216"}, code: 2, err: []string{"next_send_psn 16777216"}},
		{args: []string{"qp", "rts", "emu:", "--transport", "uc", "--psn=-1"}, code: 2, err: []string{"next_send_psn -1"}},
		{args: []string{"qp", "rts", "emu:", "--mtu", "1000"}, code: 2, err: []string{"--mtu", "no path MTU of 1000 bytes", "256, 512, 1024, 2048 or 4096"}},
		{args: []string{"qp", "rts", "emu:", "--gid=-2"}, code: 2, err: []string{"--gid -2"}},
		{args: []string{"qp", "rts", "emu:", "--gid", "200"}, code: 1, err: []string{"no GID at index 200"}, out: []string{"QUERY_ROCE_ADDRESS"}},
		{args: []string{"qp", "rts", "emu:", "--gid", "300"}, code: 4, err: []string{"QUERY_ROCE_ADDRESS", "syndrome 0xde"}, out: []string{"QUERY_ROCE_ADDRESS"}},
		{args: []string{"qp", "rts", "emu:", "--transport", "rd"}, code: 2, err: []string{"--transport"}},
		{args: []string{"qp", "rts", "mlx5_not_there"}, code: 3, err: []string{"no RDMA device"}},

		{args: []string{"explain", dmesg}, code: 0, out: []string{"CREATE_QP(0x500) failed: limits exceeded(0x8), syndrome 0x19c6d6", "Check next"}},
		{args: []string{"explain", "mlx5_core", "0000:81:00.0:", "CREATE_QP(0x500)", "op_mod(0x0)", "failed,", "status", "limits", "exceeded(0x8),", "syndrome", "(0x19c6d6)"}, code: 0, out: []string{"limits exceeded(0x8)"}},
		{args: []string{"explain", "retry_cnt=15"}, code: 0, out: []string{"retry_cnt = 15 does not fit: the field has 3 bits, 0 to 7"}},
		{args: []string{"explain", "RESET->RESET"}, code: 0, out: []string{"RESET→RESET"}},
		{args: []string{"explain", "12/0x81"}, code: 0, out: []string{"IBV_WC_RETRY_EXC_ERR (12)", "vendor error 0x81"}},
		{args: []string{"explain", "EREMOTEIO"}, code: 0, out: []string{"121"}},
		{args: []string{"explain", cut}, code: 2, err: []string{"recognised command CREATE_QP(0x500)", "missing: the status with its number, the syndrome"}},
		{args: []string{"explain", "the weather"}, code: 2, err: []string{`nothing recognised in "the weather"`}},
		{args: []string{"explain", "--op", "CREATE_QP", "--status", "0x8", "--syndrome", "0x19c6d6"}, code: 0, out: []string{"CREATE_QP(0x500) failed: limits exceeded(0x8), syndrome 0x19c6d6"}},
		{args: []string{"explain", "--op", "0x500", "--status", "8", "--syndrome", "0"}, code: 0, out: []string{"CREATE_QP(0x500) failed: limits exceeded(0x8)"}},
		{args: []string{"explain", "--status", "8", "--syndrome", "0"}, code: 0, out: []string{"a firmware command failed: limits exceeded(0x8)"}},
		{args: []string{"explain", "--status", "8"}, code: 2, err: []string{"--status and --syndrome belong together"}},
		{args: []string{"explain", "--op", "CREATE_QP"}, code: 2, err: []string{"belong together"}},
		{args: []string{"explain", "--op", "MAKE_TEA", "--status", "8", "--syndrome", "0"}, code: 2, err: []string{`--op "MAKE_TEA"`}},
		{args: []string{"explain", "--status", "0x100", "--syndrome", "0"}, code: 2, err: []string{`--status "0x100"`}},
		{args: []string{"explain", "--status", "8", "--syndrome", "0x100000000"}, code: 2, err: []string{"32 bits"}},
		{args: []string{"explain", "--status", "8", "--syndrome", "0", "and", "more"}, code: 2, err: []string{"or a text"}},

		{args: []string{"explain"}, in: dmesg + "\n", code: 0, out: []string{"limits exceeded(0x8), syndrome 0x19c6d6"}},
		{args: []string{"explain"}, in: "12/0x81\n\nretry_cnt=15", code: 0, out: []string{"IBV_WC_RETRY_EXC_ERR", "\n\nretry_cnt = 15"}},
		{args: []string{"explain"}, in: "", code: 2, err: []string{"nothing to explain", "dmesg | grep mlx5_core"}},
		{args: []string{"explain"}, in: "\n \n", code: 2, err: []string{"nothing to explain"}},
		{args: []string{"explain"}, in: "good morning\nto you", code: 2, err: []string{`line 1: explain: nothing recognised in "good morning"`}},
		{args: []string{"explain"}, in: "mlx5_core 0000:81:00.0: firmware version: 22.36.1010\n" + dmesg + "\nbye\n", code: 0,
			out: []string{"limits exceeded(0x8)"}, err: []string{"nothing recognised in 2 other lines"}},
		{args: []string{"explain"}, in: cut + "\n", code: 2, err: []string{"line 1:", "missing: the status with its number, the syndrome"}},
		// One in the middle does not keep the others from being explained.
		{args: []string{"explain"}, in: "12/0x81\n" + cut + "\n" + dmesg + "\n", code: 2, out: []string{"IBV_WC_RETRY_EXC_ERR", "limits exceeded(0x8), syndrome 0x19c6d6"}, err: []string{"line 2:"}},
		// Wrapped as a mail program does.
		{args: []string{"explain"}, in: "> mlx5_core 0000:81:00.0: mlx5_cmd_check:812:(pid 123):\n> CREATE_QP(0x500) op_mod(0x0) failed, status\n> limits exceeded(0x8), syndrome\n> (0x19c6d6)\n12/0x81\n", code: 0,
			out: []string{"CREATE_QP(0x500) failed: limits exceeded(0x8), syndrome 0x19c6d6", "IBV_WC_RETRY_EXC_ERR"}, err: []string{"nothing recognised in 1 other lines"}},
		// What is cut short does not take the next message's status.
		{args: []string{"explain"}, in: cut + "\nmlx5_core 0000:81:00.0: mlx5_cmd_check:812:(pid 9): CREATE_CQ(0x400) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x1)\n", code: 2,
			out: []string{"CREATE_CQ(0x400) failed: bad parameter(0x3)"}, err: []string{"line 1: explain: recognised command CREATE_QP(0x500)"}},
		{args: []string{"explain"}, in: cut + "\n" + strings.Replace(dmesg, ", syndrome", ", syn\n", 1), code: 2, err: []string{"line 1: explain: recognised command CREATE_QP(0x500), op_mod 0x0; missing", "line 2: explain: recognised command CREATE_QP(0x500), op_mod 0x0, status limits exceeded(0x8); missing: the syndrome"}},
		{args: []string{"explain"}, in: strings.Repeat("x", 2<<20), code: 1, err: []string{"standard input, after line 0", "too long"}},

		{args: []string{"bench", "--list"}, code: 0, out: []string{"micro  What do the parts", "c6     Is modifying", "scale  Does a modify", "(only if named)"}},
		{args: []string{"bench", "c7"}, code: 2, err: []string{`no experiment "c7": micro, `}},
		{args: []string{"bench", "scale", "--device", "mlx5_0"}, code: 2, err: []string{"scale is about the emulated device and runs on no other"}},
		{args: []string{"bench", "micro", "--device", "mlx5_not_there", "--dir="}, code: 3, out: []string{"place: hw, mlx5_not_there"}, err: []string{"no RDMA device"}},
		{args: []string{"bench", "micro", "--device", "emu:profile=" + notThere, "--dir="}, code: 2, out: []string{"place: emu"}, err: []string{notThere}},
		{args: []string{"bench", "micro", "--dir", filepath.Join(file, "results")}, code: 1, err: []string{"--dir", file}},
	} {
		code, out, errOut := devxlab(c.in, c.args...)
		if code != c.code {
			t.Errorf("%q: exit code %d, want %d; standard error %q", c.args, code, c.code, errOut)
		}
		for what, x := range map[string]struct {
			got  string
			want []string
		}{"output": {out, c.out}, "error": {errOut, c.err}} {
			if len(x.want) == 0 && x.got != "" {
				t.Errorf("%q: standard %s is %q", c.args, what, x.got)
			}
			for _, w := range x.want {
				if !strings.Contains(strings.Join(strings.Fields(x.got), " "), strings.Join(strings.Fields(w), " ")) {
					t.Errorf("%q: standard %s has no %q:\n%s", c.args, what, w, x.got)
				}
			}
		}
	}
}

// The exit codes that --help tells are those of every error.
func TestExitCode(t *testing.T) {
	done := context.Background()
	ended, cancel := context.WithCancel(done)
	cancel()
	refused := &mlx5.CommandError{Op: mlx5.OpCreateQP, Status: mlx5.StatusLIM, HasOutbox: true, Errno: unix.EREMOTEIO}
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{done, nil, 0},
		{done, errors.New("x"), 1},
		{done, usageError{errors.New("x")}, 2},
		{done, fmt.Errorf("x: %w", usageError{devx.ErrNoDevice}), 2},
		{done, &mlx5.AttrError{}, 2},
		{done, fmt.Errorf("x: %w", devx.ErrNoDevice), 3},
		{done, devx.ErrNoUverbs, 3},
		{done, devx.ErrNoPermission, 3},
		{done, devx.ErrNoDevX, 3},
		{done, fmt.Errorf("x: %w", cm.ErrNoCM), 3},
		{done, cm.ErrNoPermission, 3},
		{done, &cm.StepError{Err: &cm.CallError{Errno: unix.ENODEV}}, 3},
		{done, &cm.StepError{Err: &cm.EventError{Event: cm.DeviceRemoval}}, 3},
		{done, &cm.CallError{Errno: unix.EADDRINUSE}, 4},
		{done, &cm.StepError{Err: &cm.EventError{Event: cm.Unreachable, Errno: unix.ETIMEDOUT}}, 1},
		{done, &cm.RejectError{Reason: 8}, 1},
		{done, fmt.Errorf("%w: %w", devx.ErrDeviceGone, refused), 3},
		{done, fmt.Errorf("x: %w", refused), 4},
		{done, errors.Join(refused, errors.New("close")), 4},
		{ended, nil, 130},
		{ended, refused, 130},
	} {
		if got := exitCode(c.ctx, c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
	_, help, _ := devxlab("", "--help")
	words := strings.Join(strings.Fields(help), " ")
	for _, w := range []string{"0 done;", "1 failed;", "2 wrong command line", "3 no device", "4 firmware or kernel refused", "130 interrupted"} {
		if !strings.Contains(words, w) {
			t.Errorf("--help does not tell %q:\n%s", w, help)
		}
	}
}

// list is a JSON array, also where there is nothing.
func TestList(t *testing.T) {
	code, out, errOut := devxlab("", "list", "-o", "json")
	var found []devx.Info
	if err := json.Unmarshal([]byte(out), &found); code != 0 || err != nil || found == nil || errOut != "" {
		t.Errorf("exit code %d, %v, %q, %q", code, err, out, errOut)
	}
	code, out, _ = devxlab("", "list")
	if code != 0 || len(found) == 0 && out != "no mlx5 device here; \"emu:\" is the emulated one: devxlab info emu:\n" {
		t.Errorf("exit code %d, %q", code, out)
	}
	rows := devicesTable([]devx.Info{{Name: "mlx5_0", Firmware: "22.36.1010", BoardID: "MT_1", PCI: "0000:81:00.0", NUMANode: 1,
		Ports: []devx.Port{{Number: 1, State: "ACTIVE", LinkLayer: "Ethernet", Netdev: "eth0"}, {Number: 2, State: "DOWN"}}}})
	var b bytes.Buffer
	if err := (&env{out: &b}).table(rows); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`^device  firmware    board  PCI           NUMA  driver +ports
mlx5_0  22.36.1010  MT_1   0000:81:00.0  1 .+ 1 ACTIVE Ethernet eth0, 2 DOWN
$`)
	if !want.MatchString(b.String()) {
		t.Errorf("%q", b.String())
	}
}

func TestInfoJSON(t *testing.T) {
	code, out, _ := devxlab("", "info", "emu:log_max_qp=12", "-o", "json")
	var r deviceReport
	if err := json.Unmarshal([]byte(out), &r); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v:\n%s", code, err, out)
	}
	if !r.Emulated || r.Capabilities["log_max_qp"] != 12 || len(r.GIDs) != 4 || r.GIDs[3] != (gid{3, "::ffff:192.0.2.1", "02:00:00:00:00:01", "RoCE v2"}) || len(r.RoCE) == 0 || r.PSID == "" {
		t.Errorf("%+v", r)
	}
	_, main, _ := devxlab("", "info", "emu:")
	_, all, _ := devxlab("", "info", "emu:", "--all")
	for _, x := range []struct {
		name string
		main bool
	}{{"log_max_uctx", true}, {"log_max_qp", true}, {"num_ports", false}, {"roce", false}} {
		has := regexp.MustCompile(`(?m)^` + x.name + ` `)
		if !has.MatchString(all) || has.MatchString(main) != x.main {
			t.Errorf("%s: with --all %v, without %v", x.name, has.MatchString(all), has.MatchString(main))
		}
	}
}

func TestRulesJSON(t *testing.T) {
	code, out, _ := devxlab("", "qp", "rules", "-o", "json")
	var rs []rule
	if err := json.Unmarshal([]byte(out), &rs); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v", code, err)
	}
	if len(rs) != 24 {
		t.Errorf("%d rules: want 8 transitions of 3 transports", len(rs))
	}
	for _, r := range rs {
		if r.Op == "RTR2RTS_QP" && r.Transport == "RC" {
			if got := fmt.Sprint(r.From, r.To, r.Required); got != "[RTR]RTS[ack_timeout log_sra_max retry_count rnr_retry next_send_psn]" {
				t.Error(got)
			}
		}
	}
	_, text, _ := devxlab("", "qp", "rules")
	for i, l := range strings.Split(text, "\n") {
		if len([]rune(l)) > 110 {
			t.Errorf("line %d has %d columns", i+1, len([]rune(l)))
		}
	}
	for _, r := range rs {
		for _, a := range append(r.Required, r.Optional...) {
			if !strings.Contains(text, a) {
				t.Errorf("the text has no %s", a)
			}
		}
	}
}

func TestExplainJSON(t *testing.T) {
	code, out, _ := devxlab(dmesg+"\n12/0x81\n", "explain", "-o", "json")
	d := json.NewDecoder(strings.NewReader(out))
	var kinds []string
	for {
		var a struct {
			Kind, Summary string
			Syndrome      uint32
		}
		if err := d.Decode(&a); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, out)
		}
		kinds = append(kinds, a.Kind)
		if a.Kind == "command" && a.Syndrome != 0x19c6d6 {
			t.Errorf("syndrome %#x", a.Syndrome)
		}
	}
	if code != 0 || fmt.Sprint(kinds) != "[command completion]" {
		t.Errorf("exit code %d, %v", code, kinds)
	}
}

// A syndrome of the emulated HCA names its check, from all three ways in.
func TestExplainEmulated(t *testing.T) {
	for _, check := range fw.Checks() {
		syndrome := fmt.Sprintf("%#x", check.Syndrome())
		line := fmt.Sprintf("CREATE_QP(0x500) op_mod(0x0) failed, status %s(%#x), syndrome (%s)", check.Status.Text(), uint8(check.Status), syndrome)
		for _, c := range []struct {
			in   string
			args []string
		}{
			{"", []string{"explain", "--op", "CREATE_QP", "--status", fmt.Sprint(uint8(check.Status)), "--syndrome", syndrome}},
			{"", []string{"explain", line}},
			{line, []string{"explain"}},
		} {
			code, out, errOut := devxlab(c.in, c.args...)
			words := strings.Join(strings.Fields(out), " ")
			if code != 0 || !strings.Contains(words, "The emulated HCA refuses "+check.Refuses) {
				t.Errorf("%q: exit code %d, %s%s", c.args, code, out, errOut)
			}
		}
	}
	if code, out, _ := devxlab("", "explain", "--status", "8", "--syndrome", "0xdeffffff"); code != 0 || strings.Contains(out, "The emulated HCA refuses") {
		t.Errorf("a syndrome that no check has: exit code %d, %s", code, out)
	}
}

// A failure of the emulated device, given to explain.
func TestFailureExplained(t *testing.T) {
	code, _, errOut := devxlab("", "qp", "rts", "emu:", "--gid", "300")
	if code != 4 {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	code, out, errOut := devxlab(errOut, "explain")
	if code != 0 || !strings.Contains(out, "QUERY_ROCE_ADDRESS") || !strings.Contains(out, "The emulated HCA refuses") {
		t.Errorf("exit code %d:\n%s%s", code, out, errOut)
	}
}
