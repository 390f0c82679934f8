// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/bench"
)

// files returns the names below dir, without the run's own directory.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		names = append(names, filepath.Base(f))
	}
	return names
}

func TestBench(t *testing.T) {
	dir := t.TempDir()
	code, out, errOut := devxlab("", "bench", "micro", "MICRO", "--quick", "--dir", dir)
	if code != 0 || errOut != "" {
		t.Fatalf("exit code %d, %s", code, errOut)
	}
	for _, w := range []string{
		"place: emu. Kernel and NIC are emulated inside this process (emu:); no hardware is touched.\n",
		"MICRO  What do the parts of one transition cost",
		"raw samples (JSON) and Go benchmark lines (for benchstat): " + dir,
		"\nVerdicts: none\n",
		"report, for a browser: " + dir,
	} {
		if strings.Count(out, w) != 1 {
			t.Errorf("not once %q in\n%s", w, out)
		}
	}
	if got := strings.Join(files(t, dir), " "); got != "micro.json micro.txt report.html" {
		t.Errorf("files: %s", got)
	}
}

func TestBenchJSON(t *testing.T) {
	code, out, errOut := devxlab("", "bench", "micro", "--quick", "--dir=", "-o", "json")
	var rs []bench.Result
	if err := json.Unmarshal([]byte(out), &rs); code != 0 || err != nil || errOut != "" {
		t.Fatalf("exit code %d, %v, %s", code, err, errOut)
	}
	if len(rs) != 1 || rs[0].Experiment != "micro" || rs[0].Provenance.Place != bench.PlaceEmu || len(rs[0].Series[0].Samples) != bench.MinPairs {
		t.Errorf("%+v", rs)
	}
	code, out, _ = devxlab("", "bench", "--list", "-o", "json")
	var es []bench.Experiment
	if err := json.Unmarshal([]byte(out), &es); code != 0 || err != nil || len(es) != len(bench.Experiments()) || es[0].Name != "micro" || !es[0].Default || es[0].EmuOnly {
		t.Errorf("exit code %d, %v, %+v", code, err, es)
	}
	// What cannot be opened is no result, and still JSON.
	code, out, errOut = devxlab("", "bench", "micro", "--device", "mlx5_not_there", "--dir=", "-o", "json")
	if code != exitNoDevice || strings.TrimSpace(out) != "[]" || !strings.Contains(errOut, "no RDMA device") {
		t.Errorf("exit code %d, %q, %q", code, out, errOut)
	}
}

// $DEV names a device as --device does; empty it names none, and --device goes
// before it.
func TestBenchDEV(t *testing.T) {
	for _, c := range []struct {
		dev, flag string
		code      int
		out       string
	}{
		{"mlx5_not_there", "", exitNoDevice, "place: hw, mlx5_not_there."},
		{"", "", exitOK, "place: emu. Kernel and NIC are emulated inside this process (emu:)"},
		{"", "--device=", exitOK, "place: emu. Kernel and NIC are emulated inside this process (emu:)"},
		{"mlx5_not_there", "--device=emu:name=x", exitOK, "place: emu. Kernel and NIC are emulated inside this process (emu:name=x)"},
	} {
		t.Setenv("DEV", c.dev)
		args := []string{"bench", "micro", "--quick", "--dir="}
		if c.flag != "" {
			args = append(args, c.flag)
		}
		code, out, errOut := devxlab("", args...)
		if code != c.code || !strings.HasPrefix(out, c.out) {
			t.Errorf("DEV=%s %s: exit code %d, %q, %s", c.dev, c.flag, code, out, errOut)
		}
	}
}

// A directory without a result does not stay.
func TestBenchLeavesNoEmptyDirectory(t *testing.T) {
	dir := t.TempDir()
	if code, _, _ := devxlab("", "bench", "--device", "mlx5_not_there", "--dir", dir); code != exitNoDevice {
		t.Errorf("exit code %d", code)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// Two runs in one second do not write into each other's files.
func TestRunDir(t *testing.T) {
	base := filepath.Join(t.TempDir(), "a", "b")
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, want := range []string{"20260102-030405", "20260102-030405-2", "20260102-030405-3"} {
		if dir, err := runDir(base, now); err != nil || dir != filepath.Join(base, want) {
			t.Errorf("%s, %v, want %s", dir, err, want)
		}
	}
}

// interrupter sends the process SIGINT at the first write that has a word.
type interrupter struct {
	bytes.Buffer
	at   string
	once sync.Once
}

func (w *interrupter) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if strings.Contains(w.String(), w.at) {
		w.once.Do(func() { _ = unix.Kill(os.Getpid(), unix.SIGINT) })
	}
	return n, err
}

// Ctrl-C ends the run with 130, and what was measured is in its file. The
// signal comes before the first experiment, or between two.
func TestBenchInterrupted(t *testing.T) {
	for _, c := range []struct {
		at    string
		files string
	}{
		{"no hardware is touched", "micro.json micro.txt report.html"},
		{"The parts (emu)", "c6.json c6.txt micro.json micro.txt report.html"},
	} {
		dir := t.TempDir()
		out := &interrupter{at: c.at}
		var errOut bytes.Buffer
		code := run([]string{"bench", "micro", "c6", "--quick", "--dir", dir}, strings.NewReader(""), out, &errOut)
		if code != exitInterrupted {
			t.Errorf("%q: exit code %d, %s", c.at, code, errOut.String())
		}
		// The signal arrives when it arrives: the experiment that it hits may
		// have begun, or be left out.
		if !strings.Contains(out.String(), "INTERRUPTED: ") && !strings.Contains(errOut.String(), "not run: ") {
			t.Errorf("%q: nothing says so:\n%s%s", c.at, out, errOut.String())
		}
		for _, f := range files(t, dir) {
			if !strings.Contains(c.files, f) {
				t.Errorf("%q: file %s", c.at, f)
			}
		}
		if wrote, reported := files(t, dir) != nil, strings.Contains(out.String(), "report, for a browser: "); wrote != reported {
			t.Errorf("%q: files %v, and a report: %v", c.at, files(t, dir), reported)
		}
		results, err := filepath.Glob(filepath.Join(dir, "*", "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range results {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			var r bench.Result
			if err := json.Unmarshal(b, &r); err != nil || r.Interrupted && len(r.Verdicts) > 0 {
				t.Errorf("%s: %v, verdicts %v", f, err, r.Verdicts)
			}
		}
	}
}

// Progress is for a terminal: into a file it does not go.
func TestNoProgressIntoFiles(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if code := run([]string{"bench", "micro", "--quick", "--dir="}, strings.NewReader(""), new(bytes.Buffer), f); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if b, err := os.ReadFile(f.Name()); err != nil || len(b) > 0 {
		t.Errorf("%q, %v", b, err)
	}
	if isTerminal(f) || isTerminal(new(bytes.Buffer)) {
		t.Error("a file is taken for a terminal")
	}
}
