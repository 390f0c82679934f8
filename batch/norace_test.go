// SPDX-License-Identifier: BSD-2-Clause

//go:build !race

package batch_test

const raceEnabled = false
