// SPDX-License-Identifier: BSD-2-Clause

package timerfix

import "time"

// The practice article's rule: above 30,000 queue pairs, finish RTR to RTS a
// millisecond later. Nothing about a device makes these figures right; they are
// what its claim is tested with (experiment C2 of devxlab bench).
const (
	ArticleQPs   = 30_000
	ArticleDelay = time.Millisecond
)

// Policy says which transitions to defer, and for how long. Its zero value
// defers every one to now.
type Policy struct {
	QPs   int           // defer while more queue pairs than that are alive
	Delay time.Duration // for so long; below 0 counts as 0
}

// Article is the article's policy.
func Article() Policy { return Policy{QPs: ArticleQPs, Delay: ArticleDelay} }

// Due returns when a transition that is wanted now is due while live queue
// pairs are alive, and whether it is to be deferred at all: if not, Due is now,
// and the caller may as well use devx.Modify. The count is of queue pairs, not
// the number of one: numbers are reused and begin anywhere.
func (p Policy) Due(live int, now Instant) (due Instant, deferred bool) {
	if live <= p.QPs {
		return now, false
	}
	return now.Add(max(p.Delay, 0)), true
}
