// SPDX-License-Identifier: BSD-2-Clause

//go:build race

package timerfix

const raceEnabled = true
