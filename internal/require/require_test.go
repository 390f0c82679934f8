// SPDX-License-Identifier: BSD-2-Clause

package require

import (
	"errors"
	"fmt"
	"testing"
)

// recorder is a test that notes how it ended.
type recorder struct {
	testing.TB
	ended, text string
}

func (r *recorder) Helper() {}
func (r *recorder) Skipf(format string, args ...any) {
	r.ended, r.text = "skip", fmt.Sprintf(format, args...)
}

// Fatalf panics, because what follows it must not run.
func (r *recorder) Fatalf(format string, args ...any) {
	r.ended, r.text = "fail", fmt.Sprintf(format, args...)
	panic(r)
}

func end(feature string, err error) (r *recorder) {
	r = &recorder{}
	defer func() {
		if p := recover(); p != nil && p != any(r) {
			panic(p)
		}
	}()
	Have(r, feature, err)
	return r
}

func TestHave(t *testing.T) {
	missing := errors.New("not installed")
	for _, c := range []struct {
		env  string
		err  error
		want string
	}{
		{"", nil, ""},
		{"headers", nil, ""},
		{"", missing, "skip"},
		{"qemu", missing, "skip"},
		{"headersX,Xheaders", missing, "skip"},
		{"headers", missing, "fail"},
		{"qemu, headers ,kvm", missing, "fail"},
	} {
		t.Setenv("DEVXLAB_REQUIRE", c.env)
		if got := end("headers", c.err).ended; got != c.want {
			t.Errorf("DEVXLAB_REQUIRE=%q, error %v: %q, want %q", c.env, c.err, got, c.want)
		}
	}
	t.Setenv("DEVXLAB_REQUIRE", "headers")
	const want = "headers: required here (DEVXLAB_REQUIRE), but missing: not installed"
	if got := end("headers", missing).text; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}

// A long test runs where its kind is named.
func TestLong(t *testing.T) {
	for env, want := range map[string]string{"": "skip", "faultsX": "skip", "lab, faults": ""} {
		t.Setenv("DEVXLAB_REQUIRE", env)
		r := &recorder{}
		if Long(r, "faults", "make lab-faults"); r.ended != want || want != "" && r.text != "faults: takes minutes: make lab-faults" {
			t.Errorf("DEVXLAB_REQUIRE=%q: %q, %q", env, r.ended, r.text)
		}
	}
}
