// SPDX-License-Identifier: BSD-2-Clause

// Package require makes a skip that cannot rot.
//
// A test that needs something the machine may lack (kernel headers, QEMU, a
// device) skips itself where it is missing. Such a skip goes unnoticed for
// years. So the places that are meant to have it say so: where the environment
// variable DEVXLAB_REQUIRE lists the feature, the test fails instead.
//
//	_, err := headergen.KernelHeaders()
//	require.Have(t, "headers", err)
//
// The package is for tests only.
package require

import (
	"os"
	"strings"
	"testing"
)

// Have returns if err is nil. Otherwise the feature is missing, err says why and
// how to get it, and Have ends the test: it skips, or fails where
// DEVXLAB_REQUIRE, a list separated by commas, contains the feature. An error
// that does not mean "not installed" is for the caller to report.
func Have(t testing.TB, feature string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if Named(feature) {
		t.Fatalf("%s: required here (DEVXLAB_REQUIRE), but missing: %v", feature, err)
	}
	t.Skipf("%s: %v", feature, err)
}

// Named reports whether DEVXLAB_REQUIRE contains the feature.
func Named(feature string) bool {
	for f := range strings.SplitSeq(os.Getenv("DEVXLAB_REQUIRE"), ",") {
		if strings.TrimSpace(f) == feature {
			return true
		}
	}
	return false
}

// Long skips a test that takes minutes, unless DEVXLAB_REQUIRE contains the name
// of its kind. how is what to run for it.
func Long(t testing.TB, kind, how string) {
	t.Helper()
	if !Named(kind) {
		t.Skipf("%s: takes minutes: %s", kind, how)
	}
}
