// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"devxlab.example/internal/require"
)

// One round of devxlab patches compare: every kernel boots and is measured, what is
// compared is there, and one round decides nothing.
func TestLabPatchesCompare(t *testing.T) {
	require.Long(t, "compare", `DEVXLAB_COMPARE="--kernel FILE --modules DIR [--built DIR] LINUX" DEVXLAB_REQUIRE=lab,compare go test ./lab -run TestLabPatchesCompare -timeout 1h -v`)
	words := strings.Fields(os.Getenv("DEVXLAB_COMPARE"))
	var err error
	if len(words) == 0 {
		err = errors.New("DEVXLAB_COMPARE has no arguments for devxlab patches compare (patches/README.md)")
	}
	require.Have(t, "compare", err)
	o := realLab(t)
	dir := t.TempDir()
	args := append([]string{"-o", "json", "patches", "compare", "--rounds", "1", "--out", dir, "--built", filepath.Join(dir, "built"), "--write", filepath.Join(dir, "doc.md")}, words...)
	cmd := exec.CommandContext(t.Context(), o.Devxlab, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, tail(string(out)))
	}
	var r struct {
		Verdicts []struct{ Claim, Answer, Why string }
		Series   []struct {
			Name    string
			Samples []float64 `json:"samples_ns"`
		}
		Comparisons []struct {
			A, B  string
			Ratio struct{ Pairs int }
		}
		Patches struct {
			Variants []struct{ Name string }
			Boots    []struct{ Variant, Error string }
			Failures []struct {
				Variant, How string
				Outbox       bool
			}
			Storms []struct {
				Variant, How string
				Retries      float64
			}
		}
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Patches.Boots) != len(r.Patches.Variants) || len(r.Patches.Boots) < 5 {
		t.Errorf("%d boots of %d kernels", len(r.Patches.Boots), len(r.Patches.Variants))
	}
	for _, v := range r.Verdicts {
		if v.Answer != "not decidable here" {
			t.Errorf("one round decides: %+v", v)
		}
	}
	if len(r.Verdicts) != 3 {
		t.Errorf("%d verdicts: C2, C3, C6", len(r.Verdicts))
	}
	series := map[string]bool{}
	for _, s := range r.Series {
		series[s.Name] = len(s.Samples) == 1 && s.Samples[0] > 0
	}
	for _, want := range []string{"stock/c2/off/call", "stock/c3/plain/max", "0002/c3/off/max", "stock/c6/serial", "0001/c2/on-1000us/seen", "0002/c3/on/max", "0003/c6/kernel",
		"all/c2/on-0us/call", "all/c3/on/innocent", "all/c6/kernel", "all/cost/c2/on-1000us/call/firmware", "stock/cost/c6/serial/command"} {
		if !series[want] {
			t.Errorf("no series %s of one boot", want)
		}
	}
	for _, s := range r.Patches.Storms {
		if limited := s.How == "on"; limited && s.Retries < 1 || !limited && s.Retries != 0 {
			t.Errorf("storm: %+v", s)
		}
	}
	for _, f := range r.Patches.Failures {
		if f.How == "on" && !f.Outbox {
			t.Errorf("refused command: %+v", f)
		}
	}
	for _, c := range r.Comparisons {
		if c.A == "with-0001/c2/on-1000us/call" && c.Ratio.Pairs != 1 {
			t.Errorf("%+v", c)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "doc.md")); err != nil || !strings.Contains(string(b), "\n## Linux ") || strings.Contains(string(b), dir) {
		t.Errorf("the document: %v\n%s", err, b)
	}
}
