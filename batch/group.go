// SPDX-License-Identifier: BSD-2-Clause

package batch

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
)

// Group is what a Carrier has to carry: chains of transitions. Those of one
// chain are of one queue pair and go one after the other.
type Group struct {
	b     *Batch
	ctx   context.Context
	heads []int32
	gate  gate
	lost  atomic.Bool // an entry of it ended unknown
}

// fill makes chains of the entries from to to: who goes first, and what follows
// it on the same queue pair.
func (g *Group) fill(from, to int) {
	b := g.b
	clear(b.last)
	g.heads = g.heads[:0]
	for i := from; i < to; i++ {
		e := &b.entries[i]
		if _, lost := b.lost[e.QP]; lost {
			continue
		}
		e.next = -1
		if before, ok := b.last[e.QP]; ok {
			b.entries[before].next = int32(i)
		} else {
			g.heads = append(g.heads, int32(i))
		}
		b.last[e.QP] = int32(i)
	}
}

// open reports whether more may be sent.
func (g *Group) open() bool {
	if g.ctx.Err() != nil {
		g.gate.shut(byContext)
	}
	return g.gate.why() == 0
}

// announced reports whether who calls Carry is announced to the device's clock.
func (g *Group) announced() bool { return g.b.o.Announced }

// Chains returns the number of chains.
func (g *Group) Chains() int { return len(g.heads) }

// Send sends the entries of a chain with s, one after the other, and records
// their outcomes. It may be called for different chains at the same time.
func (g *Group) Send(chain int, s *devx.Submitter) { g.send(chain, s, (*devx.Submitter).Send) }

// SendVerbs is Send through verbs (devx.Submitter.SendVerbs).
func (g *Group) SendVerbs(chain int, s *devx.Submitter) {
	g.send(chain, s, (*devx.Submitter).SendVerbs)
}

func (g *Group) send(chain int, s *devx.Submitter, send func(*devx.Submitter, *devx.QP, []byte) error) {
	for i := g.heads[chain]; i >= 0 && g.open(); i = g.b.entries[i].next {
		e := &g.b.entries[i]
		n := g.gate.enter()
		if n == 0 {
			return // the rest is not sent: Run marks it
		}
		if f := g.b.o.OnSend; f != nil {
			f(e.Tag)
		}
		e.InFlight, e.Sent = n, time.Now()
		err := send(s, e.QP, e.cmd[:e.n])
		e.Took = time.Since(e.Sent)
		e.settle(err)
		if err != nil && g.b.o.StopOnError {
			g.gate.shut(byFailure)
		}
		g.gate.leave()
		if e.Outcome == Unknown {
			g.lost.Store(true)
			return
		}
	}
}

// sendTogether sends one entry of each of several chains by one call of a patched
// kernel. chains gets what follows, -1 at the end of a chain and where the answer
// was lost. It reports whether more may be sent.
func (g *Group) sendTogether(chains []int32, s *devx.Submitter, m []devx.Modification) bool {
	n := 0
	for ; n < len(chains) && g.open(); n++ {
		inFlight := g.gate.enter()
		if inFlight == 0 {
			break
		}
		e := &g.b.entries[chains[n]]
		if f := g.b.o.OnSend; f != nil {
			f(e.Tag)
		}
		e.InFlight, m[n] = inFlight, devx.Modification{QP: e.QP, Cmd: e.cmd[:e.n]}
	}
	if n == 0 {
		return false
	}
	sent := time.Now()
	all := s.SendBatch(m[:n])
	took := time.Since(sent)
	for i, at := range chains[:n] {
		e := &g.b.entries[at]
		e.Sent, e.Took = sent, took
		err := cmp.Or(all, m[i].Err)
		e.settle(err)
		if err != nil && g.b.o.StopOnError {
			g.gate.shut(byFailure)
		}
		g.gate.leave()
		if errors.Is(err, unix.ECANCELED) {
			g.gate.shut(byKernel)
		}
		if chains[i] = e.next; e.Outcome == Unknown {
			g.lost.Store(true)
			chains[i] = -1
		}
	}
	clear(m[:n]) // keep no queue pair alive
	return n == len(chains)
}
