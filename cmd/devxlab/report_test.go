// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"devxlab.example/bench"
)

// quickRun makes a run of micro and returns its directory.
func quickRun(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if code, _, errOut := devxlab("", "bench", "micro", "--quick", "--dir", dir); code != 0 {
		t.Fatalf("exit code %d, %s", code, errOut)
	}
	runs, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(runs) != 1 {
		t.Fatalf("%v, %v", runs, err)
	}
	return runs[0]
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// One run, as text, as JSON and as HTML; its directory, or one of its files.
func TestReport(t *testing.T) {
	run := quickRun(t)
	html := filepath.Join(t.TempDir(), "x.html")
	for _, what := range []string{run, filepath.Join(run, "micro.json")} {
		code, out, errOut := devxlab("", "report", what, "--html", html)
		if code != 0 || errOut != "" {
			t.Fatalf("%s: exit code %d, %s", what, code, errOut)
		}
		for _, w := range []string{"Verdicts: none\n", "MICRO  What do the parts", "The parts (emu)", "again: devxlab bench micro --device emu: --quick\n"} {
			if !strings.Contains(out, w) {
				t.Errorf("no %q in\n%s", w, out)
			}
		}
		// The same report as the run left.
		if read(t, html) != read(t, filepath.Join(run, "report.html")) {
			t.Errorf("%s: not the report that bench made", what)
		}
	}
	code, out, errOut := devxlab("", "report", run, "-o", "json")
	var r reportOutput
	if err := json.Unmarshal([]byte(out), &r); code != 0 || err != nil || errOut != "" || len(r.Results) != 1 || r.Verdicts == nil || r.Broken == nil {
		t.Errorf("exit code %d, %v, %s, %+v", code, err, errOut, r)
	}
	// The command in the result is one that bench takes.
	if code, _, errOut := devxlab("", append(strings.Fields(r.Results[0].Command)[1:], "--dir=")...); code != 0 {
		t.Errorf("%s: exit code %d, %s", r.Results[0].Command, code, errOut)
	}
}

func TestReportCompares(t *testing.T) {
	a, b := quickRun(t), quickRun(t)
	code, out, errOut := devxlab("", "report", a, b)
	words := strings.Join(strings.Fields(out), " ")
	if code != 0 || errOut != "" {
		t.Fatalf("exit code %d, %s", code, errOut)
	}
	for _, w := range []string{"A: " + a + " B: " + b, "were not interleaved", "MICRO (emu:, zero)", "series A B B / A [95 %] n B is getpid "} {
		if !strings.Contains(words, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
	code, out, errOut = devxlab("", "report", a, b, "-o", "json")
	var c compareOutput
	if err := json.Unmarshal([]byte(out), &c); code != 0 || err != nil || errOut != "" || c.A != a || len(c.Series) != 4 || c.Series[0].Ratio <= 0 || c.OnlyA == nil {
		t.Errorf("exit code %d, %v, %s, %+v", code, err, errOut, c)
	}
}

// Wrong arguments are 2; what cannot be read is 1, and keeps nothing else from
// being shown.
func TestReportFails(t *testing.T) {
	run := quickRun(t)
	broken := filepath.Join(run, "c6.json")
	if err := os.WriteFile(broken, []byte(read(t, filepath.Join(run, "micro.json"))[:100]), 0o644); err != nil {
		t.Fatal(err)
	}
	html := filepath.Join(t.TempDir(), "x.html")
	for _, c := range []struct {
		args     []string
		code     int
		out, err string
	}{
		{[]string{"report"}, exitUsage, "", `expected "<run>`},
		{[]string{"report", run, run, run}, exitUsage, "", "unexpected argument"},
		{[]string{"report", run, run, "--html", html}, exitUsage, "", "--html makes the report of one run"},
		{[]string{"report", "/not/there"}, exitFailed, "", "/not/there: no such file"},
		{[]string{"report", broken}, exitFailed, "", "c6.json: ends in the middle, after 100 bytes: copy it again"},
		{[]string{"report", filepath.Dir(run)}, exitFailed, "", "give a run below it, such as " + run},
		{[]string{"report", run, "/not/there"}, exitFailed, "", "/not/there"},
		{[]string{"report", run, "--html", html}, exitFailed, "MICRO  What", "c6.json: ends in the middle"},
		{[]string{"report", run, run}, exitFailed, "MICRO (emu:, zero)", "c6.json: ends in the middle"},
		{[]string{"report", filepath.Join(run, "micro.json"), "--html", "/dev/full"}, exitFailed, "MICRO  What", "the report is not written to /dev/full: write /dev/full: no space left on device"},
	} {
		code, out, errOut := devxlab("", c.args...)
		if code != c.code || !strings.Contains(out, c.out) || c.out == "" != (out == "") || !strings.Contains(errOut, c.err) {
			t.Errorf("%q: exit code %d, want %d: %q, %s", c.args, code, c.code, out, errOut)
		}
	}
	if !strings.Contains(read(t, html), "Could not be read:") {
		t.Error("the report does not say what is missing")
	}
	code, out, _ := devxlab("", "report", run, "-o", "json")
	var r reportOutput
	if err := json.Unmarshal([]byte(out), &r); code != exitFailed || err != nil || len(r.Results) != 1 || len(r.Broken) != 1 {
		t.Errorf("exit code %d, %v, %+v", code, err, r)
	}
}

// What a result file says cannot command the terminal.
func TestReportTerminal(t *testing.T) {
	run := quickRun(t)
	file := filepath.Join(run, "micro.json")
	evil := strings.Replace(read(t, file), `"question": "`, `"question": "\u001b]0;x\u0007\u009b31m`, 1)
	if err := os.WriteFile(file, []byte(evil), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"report", run}, {"report", run, run}} {
		if code, out, errOut := devxlab("", args...); code != 0 || strings.ContainsAny(out, "\x1b\x07\u009b\r") {
			t.Errorf("exit code %d, %q, %s", code, out, errOut)
		}
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{"emu:": "emu:", "mlx5_0": "mlx5_0", "emu:profile=/a/b.json,clock=virtual": "emu:profile=/a/b.json,clock=virtual", "": "''", "a b": "'a b'", "it's $x": `'it'\''s $x'`, "~": "'~'", "ü": "'ü'"} {
		if got := quote(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
	c := benchCmd{Device: "emu:profile=my profile.json", Quick: true}
	if got := c.command("c6"); got != "devxlab bench c6 --device 'emu:profile=my profile.json' --quick" {
		t.Error(got)
	}
}

// Where there is no room for the report, the run is kept and the way out is
// told.
func TestBenchReportFails(t *testing.T) {
	run := quickRun(t)
	results, _ := bench.LoadDir(run)
	file := filepath.Join(run, "report.html")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := benchReport(run, results); err == nil || !strings.Contains(err.Error(), "once there is room: devxlab report "+run+" --html FILE") {
		t.Error(err)
	}
	var b bytes.Buffer
	if n, err := (&plain{&b}).Write([]byte("a\x1bb\n")); n != 4 || err != nil || b.String() != "ab\n" {
		t.Errorf("%d, %v, %q", n, err, b.String())
	}
}
