// SPDX-License-Identifier: BSD-2-Clause

// Package explain turns what a user saw (a dmesg line, an errno, a command's
// output bytes, an error completion, a queue pair attribute or transition)
// into what is known about it and what to look at next.
//
// A firmware syndrome has no public meaning. The package says in which
// circumstance a number was publicly reported, and by whom, and otherwise that
// it is firmware-internal; it never guesses. Its data are syndromes.tsv and
// completions.tsv.
//
// It reads no device, no log and no file: see cmd/devxlab for that.
package explain
