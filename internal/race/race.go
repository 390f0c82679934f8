// SPDX-License-Identifier: BSD-2-Clause

//go:build race

// Package race says whether the race detector is on: then tests take longer and
// allocate more. It is for tests only.
package race

// Enabled is true in a build with -race.
const Enabled = true
