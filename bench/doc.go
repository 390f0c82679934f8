// SPDX-License-Identifier: BSD-2-Clause

// Package bench runs the experiments: each asks one question about queue pair
// management, measures, and says what the figures allow to be said.
//
// Every result names the place it was measured in. In emu the kernel and the
// NIC are modelled, so a figure there is about this module's own code, and
// whatever depends on firmware is answered by a break-even: from which property
// of the device on the answer changes. On hw everything may be judged.
package bench
