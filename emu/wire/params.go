// SPDX-License-Identifier: BSD-2-Clause

package wire

import (
	"fmt"
	"time"
)

// Defaults of what is 0 in Params, in bytes.
const (
	DefaultQueue  = 1_000_000
	DefaultFlight = 64_000_000
	DefaultXOFF   = 500_000
	DefaultXON    = 400_000
)

// Bounds of parameters.
const (
	MinRate  = 1_000              // bit/s
	MaxRate  = 10_000_000_000_000 // bit/s
	MaxDelay = time.Minute
	MaxBytes = 1_000_000_000_000

	MinProbability = 1e-12 // that is not 0
)

// Priorities of a wire (IEEE 802.1Q).
const Priorities = 8

// Params say what one direction of a wire does to frames. The zero value is an
// ideal wire: nothing takes time and nothing is lost. Probabilities are between
// 0 and 1, for each frame.
type Params struct {
	Rate   uint64        // bit/s; 0: a frame takes no time
	Delay  time.Duration // from the end of a frame at one end to that at the other
	Jitter Jitter

	Loss    float64
	Burst   Burst
	Corrupt float64 // one bit behind the Ethernet header is inverted, as a bad buffer does: the FCS is right, the ICRC is not

	Duplicate    float64
	Reorder      float64       // the frame is late by ReorderDelay, and others overtake it
	ReorderDelay time.Duration // more than the time between two frames, or it changes nothing

	Queue  int // bytes that wait for the wire, per priority; more are dropped. 0: DefaultQueue
	Flight int // bytes held in all, as they are on the wire; more are dropped, to bound memory. 0: DefaultFlight
	ECN    ECN
	PFC    PFC
}

// Jitter adds to the delay of each frame. Frames never overtake each other for
// it: one that would arrive before its predecessor arrives with it.
type Jitter struct {
	Scale time.Duration
	Dist  Distribution
}

// Distribution is that of a jitter.
type Distribution uint8

// Distributions. None has a tail without end.
const (
	Uniform Distribution = iota // between 0 and Scale
	Normal                      // around 0 with a standard deviation of Scale, at most 4 Scale; the delay is never negative
	Exp                         // exponential with a mean of Scale, at most 8 Scale
)

var distributions = [...]string{"uniform", "normal", "exp"}

func (d Distribution) String() string {
	if int(d) < len(distributions) {
		return distributions[d]
	}
	return fmt.Sprintf("Distribution(%d)", uint8(d))
}

// Burst is loss as Gilbert and Elliott model it: a wire that is good or bad.
// It begins good.
type Burst struct {
	Begin float64 // a good wire is bad from this frame on
	End   float64 // a bad wire is good from this frame on
	Loss  float64 // while it is bad
}

// ECN marks frames whose IP header says that their transport is able to (ECT),
// by the number of bytes of their priority that wait when they arrive: none up
// to Min, with a probability that rises to P at Max, all above (Zhu et al.,
// Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015, figure 5).
// Frames that are not able to are neither marked nor dropped for it.
type ECN struct {
	Min, Max int     // bytes; Max 0: nothing is marked
	P        float64 // at Max
}

// PFC is priority flow control (IEEE 802.1Q, clause 36; 802.1Qbb). The sender of
// the direction obeys PAUSE frames for these priorities. If the receiver is a
// switch it sends them: it counts the bytes that came in by this direction and
// wait in it, per priority, tells the sender to stop when they reach XOFF, and
// to go on when they are down to XON. What still comes in after XOFF is headroom.
// A switch drops no frame of these priorities for a full queue.
type PFC struct {
	Priorities uint8 // a bit for each; 0: no PFC
	XOFF, XON  int   // bytes; 0: DefaultXOFF, DefaultXON
	Headroom   int   // bytes above XOFF; frames beyond are dropped. 0: as many as it takes
}

func (p *Params) queue() int  { return or(p.Queue, DefaultQueue) }
func (p *Params) flight() int { return or(p.Flight, DefaultFlight) }
func (p *PFC) xoff() int      { return or(p.XOFF, DefaultXOFF) }
func (p *PFC) xon() int       { return or(p.XON, DefaultXON) }

func or(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// Validate says what is wrong with parameters, in the words of their text form.
func (p Params) Validate() error {
	if p.Rate != 0 && (p.Rate < MinRate || p.Rate > MaxRate) {
		return fmt.Errorf("rate: %s is not between %s and %s bit/s", formatSize(p.Rate), formatSize(MinRate), formatSize(MaxRate))
	}
	for _, c := range []struct {
		key string
		d   time.Duration
	}{{"delay", p.Delay}, {"jitter", p.Jitter.Scale}, {"reorder", p.ReorderDelay}} {
		if c.d < 0 || c.d > MaxDelay {
			return fmt.Errorf("%s: %v is not between 0 and %v", c.key, c.d, MaxDelay)
		}
	}
	for _, c := range []struct {
		key string
		p   float64
	}{{"loss", p.Loss}, {"burst", p.Burst.Begin}, {"burst", p.Burst.End}, {"burst", p.Burst.Loss}, {"corrupt", p.Corrupt},
		{"dup", p.Duplicate}, {"reorder", p.Reorder}, {"ecn", p.ECN.P}} {
		if c.p != 0 && !(c.p >= MinProbability && c.p <= 1) { // also not NaN
			return fmt.Errorf("%s: %v is neither 0 nor a probability between %v and 1 (100%%)", c.key, c.p, MinProbability)
		}
	}
	for _, c := range []struct {
		key string
		n   int
	}{{"queue", p.Queue}, {"flight", p.Flight}, {"ecn", p.ECN.Min}, {"ecn", p.ECN.Max}, {"xoff", p.PFC.XOFF}, {"xon", p.PFC.XON}, {"headroom", p.PFC.Headroom}} {
		if c.n < 0 || c.n > MaxBytes {
			return fmt.Errorf("%s: %d is not between 0 and %d bytes", c.key, c.n, int64(MaxBytes))
		}
	}
	return p.consistent()
}

// consistent finds parts that say nothing without others.
func (p *Params) consistent() error {
	switch {
	case int(p.Jitter.Dist) >= len(distributions):
		return fmt.Errorf("jitter: no distribution %v", p.Jitter.Dist)
	case p.Jitter.Scale == 0 && p.Jitter.Dist != 0:
		return fmt.Errorf("jitter: a distribution of 0")
	case (p.Reorder == 0) != (p.ReorderDelay == 0):
		return fmt.Errorf("reorder: needs a probability and a delay that are not 0")
	case p.Burst != Burst{} && (p.Burst.Begin == 0 || p.Burst.Loss == 0):
		return fmt.Errorf("burst: needs a probability to begin and a loss that are not 0")
	case p.ECN != ECN{} && p.ECN.Max == 0:
		return fmt.Errorf("ecn: a threshold of 0")
	case p.ECN.Min > p.ECN.Max:
		return fmt.Errorf("ecn: marking begins at %d bytes, above its upper threshold %d", p.ECN.Min, p.ECN.Max)
	case p.PFC.Priorities == 0 && p.PFC != PFC{}:
		return fmt.Errorf("xoff, xon, headroom: say nothing without pfc")
	case p.PFC.xon() > p.PFC.xoff():
		return fmt.Errorf("pfc: xon (%d) is above xoff (%d)", p.PFC.xon(), p.PFC.xoff())
	}
	return nil
}
