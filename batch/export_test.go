// SPDX-License-Identifier: BSD-2-Clause

package batch

// Shut reports whether the batch lets nothing more through.
func (b *Batch) Shut() bool { return b.group.gate.why() != 0 }

// UnderWay returns how many calls are under way.
func (b *Batch) UnderWay() int { return int(b.group.gate.v.Load() & gateCount) }
