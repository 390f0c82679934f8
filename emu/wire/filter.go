// SPDX-License-Identifier: BSD-2-Clause

package wire

import "time"

// Frame is what a Filter sees.
type Frame struct {
	Data     []byte // not to be changed or kept
	At       time.Duration
	Priority int
}

// Verdict is what a Filter wants done to a frame. The zero value lets it pass.
type Verdict struct {
	Drop    bool
	Copies  int           // that many more arrive behind it
	Corrupt bool          // a random bit is inverted, as with Params.Corrupt
	Delay   time.Duration // it is late by this, and others overtake it
}

// Filter judges each frame of a direction when it begins to leave, in that
// order, before anything is left to chance: so that a test loses exactly one
// frame. It also sees PAUSE frames. It is called with locks held and must not
// call this package's wires.
type Filter func(Frame) Verdict

// maxCopies bounds Verdict.Copies.
const maxCopies = 16

// DropNth returns a filter that drops the n-th frame that matches, from 1 on,
// and no other. A nil match is every frame.
func DropNth(n int, match func(frame []byte) bool) Filter {
	seen := 0
	return func(f Frame) Verdict {
		if match != nil && !match(f.Data) {
			return Verdict{}
		}
		seen++
		return Verdict{Drop: seen == n}
	}
}
