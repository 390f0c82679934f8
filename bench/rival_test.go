// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// program writes a shell script.
func program(t *testing.T, body string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "rival")
	if err := os.WriteFile(p, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRival(t *testing.T) {
	// Takes a second for each command of a thread, by its own account.
	p := program(t, "echo ready\nwhile read threads n; do echo $((n * 1000000000)); done\n")
	r, err := Do(t.Context(), rival, Options{Quick: true, asHardware: true, Rival: []string{p}})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"1", "8", "31", "62"} {
		theirs := r.SeriesOf("rival/threads=" + n)
		c := r.ComparisonOf("go/threads="+n, "rival/threads="+n)
		if theirs == nil || Median(theirs.Samples) != 1e9 || len(theirs.Samples) != MinPairs || c == nil || c.Ratio.Answer != Better {
			t.Errorf("%s threads: %+v, %+v", n, theirs, c)
		}
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "Go / C [95 %]") {
		t.Errorf("%v, %s", err, text.String())
	}
}

func TestRivalFails(t *testing.T) {
	if _, err := Do(t.Context(), rival, Options{}); !errors.Is(err, ErrNoRival) || !strings.Contains(err.Error(), "bench/rival/modify.c") {
		t.Error(err)
	}
	if _, err := Do(t.Context(), rival, Options{Rival: []string{"cat"}}); !errors.Is(err, ErrNoRival) || !strings.Contains(err.Error(), "inside this process") {
		t.Error(err)
	}
	for body, want := range map[string]string{
		"exit 3\n":                             "it has ended",
		"echo hello\n":                         `"hello", not ready`,
		"echo ready\nread x; echo much\n":      `it answers "much", not nanoseconds`,
		"echo ready\nread x; echo -5\n":        `it answers "-5"`,
		"echo ready\nread x; echo 7\nexit 1\n": "rival",
	} {
		r, err := Do(t.Context(), rival, Options{Quick: true, asHardware: true, Rival: []string{program(t, body)}})
		if err == nil || !strings.Contains(err.Error(), want) || r.Error == "" {
			t.Errorf("%q: %v, want %q", body, err, want)
		}
	}
	if _, err := Do(t.Context(), rival, Options{asHardware: true, Rival: []string{"/not/there"}}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
