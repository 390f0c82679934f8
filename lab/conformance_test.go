// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"devxlab.example/internal/require"
)

const conformanceLines = `{"rdma_core": "44.0", "kernel": "6.1.0-fake"}
{"file": "test_a", "tests": 3}
{"file": "test_a", "test": "A.test_1", "outcome": "passed", "reason": ""}
{"file": "test_a", "test": "A.test_2", "outcome": "skipped", "reason": "no | such <thing>"}
{"file": "test_a", "test": "A.test_3", "outcome": "skipped", "reason": "no | such <thing>"}
{"file": "test_b", "tests": 1}
{"file": "test_b", "test": "B.test_1", "outcome": "failed", "reason": "no end within 9 s"}
{"done": true}
`

// What the script says becomes a report, in whatever pieces it comes.
func TestConformanceReader(t *testing.T) {
	var progress bytes.Buffer
	c := conformanceReader{progress: &progress}
	for _, b := range []byte(conformanceLines) {
		if n, err := c.Write([]byte{b}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if c.err != nil || !c.done || c.complete([]string{"test_a"}) != nil {
		t.Fatalf("%v, %v, %v", c.err, c.done, c.complete(nil))
	}
	if err := c.complete([]string{"test_c"}); !errors.Is(err, ErrConformance) {
		t.Errorf("a file that does not exist: %v", err)
	}
	r := c.report
	if r.RDMACore != "44.0" || r.Kernel != "6.1.0-fake" || r.Count(TestPassed) != 1 || r.Count(TestSkipped) != 2 || r.Count(TestFailed) != 1 {
		t.Errorf("%+v", r)
	}
	doc := ConformanceMarkdown(&r, &Conformance{RDMACore: "99.0", Kernel: "7.0-fake"})
	for _, want := range []string{"| 44.0 | 6.1.0-fake | 4 | 1 | 2 | 1 |", "| 99.0 | 7.0-fake | 0 | 0 | 0 | 0 |", "## rdma-core 99.0 on Linux 7.0-fake", "| test_a | 1 | 2 | 0 |", "| test_b | B.test_1 | no end within 9 s |", `| test_a | A.test_2, A.test_3 | no \| such &lt;thing> |`} {
		if !strings.Contains(doc, want) {
			t.Errorf("no %q in\n%s", want, doc)
		}
	}
	if !strings.Contains(progress.String(), "test_b                       0 passed,   0 skipped,   1 failed") {
		t.Errorf("%q", progress.String())
	}
}

func TestConformanceReaderRefuses(t *testing.T) {
	for _, text := range []string{
		"no JSON\n",
		`{"file": "test_a", "test": "A.test_1", "outcome": "passed"}` + "\n", // of no file
		`{"file": "test_a", "tests": 1}` + "\n" + `{"file": "test_b", "test": "B.test_1", "outcome": "passed"}` + "\n",
		`{"file": "test_a", "tests": 1}` + "\n" + `{"file": "test_a", "test": "A.test_1", "outcome": "perhaps"}` + "\n",
	} {
		c := conformanceReader{progress: &bytes.Buffer{}}
		if _, err := c.Write([]byte(text)); err != nil || !errors.Is(c.err, ErrConformance) {
			t.Errorf("%q: %v, %v", text, err, c.err)
		}
	}
	c := conformanceReader{progress: &bytes.Buffer{}}
	_, _ = c.Write([]byte(`{"file": "test_a", "tests": 2}` + "\n" + `{"file": "test_a", "test": "A.test_1", "outcome": "passed"}` + "\n"))
	if err := c.complete(nil); !errors.Is(err, ErrConformance) || !strings.Contains(err.Error(), "1 of 2 in test_a") {
		t.Error(err)
	}
}

// The script itself, where there is a Python: a file whose tests pass, skip,
// fail, hang and die.
func TestConformanceScript(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		err = fmt.Errorf("%w (apt-get install python3)", err)
	}
	require.Have(t, "python3", err)
	dir := t.TempDir()
	writeFiles(t, dir, map[string][]byte{
		"args_parser.py": []byte("class P:\n    def parse_args(self): pass\nparser = P()\n"),
		"__init__.py":    []byte("import importlib\nfrom args_parser import parser\nimportlib.import_module('.test_x', __name__)\n"),
		"test_x.py": []byte(`import os, signal, time, unittest
class X(unittest.TestCase):
    def test_1(self): print('noise')
    def test_2(self): self.skipTest('not here')
    def test_3(self): self.assertEqual(1, 2)
    def test_4(self): time.sleep(3600)
    def test_5(self): os.kill(os.getpid(), signal.SIGSEGV)
    def test_6(self):
        with self.subTest(1): raise OSError('in a subtest')
    def test_7(self): pass
`),
	})
	script := strings.Replace(string(conformanceScript), "'/usr/share/rdma-core/tests'", "'"+dir+"'", 1)
	cmd := exec.CommandContext(t.Context(), python, "-c", script, "5")
	cmd.WaitDelay = time.Second
	var out, noise bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &noise
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, noise.String())
	}
	c := conformanceReader{progress: &bytes.Buffer{}}
	_, _ = c.Write(out.Bytes())
	if c.err != nil || !c.done || c.complete([]string{"test_x"}) != nil {
		t.Fatalf("%v, %v, %v\n%s", c.err, c.done, c.complete(nil), out.String())
	}
	want := []TestOutcome{
		{"X.test_1", TestPassed, ""},
		{"X.test_2", TestSkipped, "not here"},
		{"X.test_3", TestFailed, "AssertionError: 1 != 2"},
		{"X.test_4", TestFailed, "no end within 5 s"},
		{"X.test_5", TestFailed, "took its process down: signal 11"},
		{"X.test_6", TestFailed, "OSError: in a subtest"},
		{"X.test_7", TestPassed, ""},
	}
	for i, got := range c.report.Files[0].Tests {
		if got != want[i] {
			t.Errorf("%+v, want %+v", got, want[i])
		}
	}
}

func TestKernelRow(t *testing.T) {
	whole := &DriverCheck{Probe: 1.234, Limits: map[string]uint64{"log_max_qp": 17, "log_max_cq": 24, "log_max_mkey": 24}}
	for _, n := range DriverSteps {
		whole.Steps = append(whole.Steps, DriverStep{Name: n})
	}
	r := &Result{Release: "6.1.0-fake", Init: time.Second, Ready: 2 * time.Second, Total: 3 * time.Second}
	broken := &DriverCheck{Steps: []DriverStep{{Name: "uverbs"}, {Name: "devx", Error: "EINVAL"}, {Name: "dmesg"}}}
	for want, k := range map[string]KernelTry{
		"6.1 6.1.0-fake 1s 1.23s 2s ok ok ok ok 2^17, 2^24, 2^24 3s ok":          {Kernel: "6.1", Result: r, Check: whole},
		"6.1 6.1.0-fake 1s 0s 2s ok failed not tried ok 2^0, 2^0, 2^0 3s FAILED": {Kernel: "6.1", Result: r, Check: broken, Err: ErrTimeout},
		"6.1 - - - - - - - - - - FAILED":                                         {Kernel: "6.1", Err: ErrMissing},
	} {
		if got := strings.Join(k.Row(), " "); got != want || len(k.Row()) != len(MatrixHeader) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
