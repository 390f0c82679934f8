// SPDX-License-Identifier: BSD-2-Clause

package bench

// Nanos formats nanoseconds for people: "1.23 µs"; "-" if it is not a number.
func Nanos(ns float64) string { return nanos(ns) }

// Interval formats the ratio with its confidence interval: "0.871 [0.856,
// 0.902]"; "no pairs" if there is none.
func (r Ratio) Interval() string { return r.interval() }
