// SPDX-License-Identifier: BSD-2-Clause

package wire

import "time"

// Reason is why a frame was dropped.
type Reason uint8

// Reasons.
const (
	QueueFull    Reason = iota // as many bytes of its priority wait as may
	FlightFull                 // as many bytes are held in the direction as may
	Lost                       // Params.Loss
	BurstLost                  // Params.Burst
	Filtered                   // a Filter said so
	NoHeadroom                 // the switch's headroom is used up: PFC came too late, or was not obeyed
	NotForwarded               // the switch forwards no such frame: to where it came from, or to a link-local group address
	NoReceiver                 // nothing is connected to the port
	Malformed                  // shorter than an Ethernet header, or longer than MaxFrame
	WireClosed
	numReasons
)

var reasons = [numReasons]string{"queue full", "flight full", "lost", "lost in a burst", "filtered", "no headroom", "not forwarded",
	"no receiver", "malformed", "closed"}

func (r Reason) String() string { return reasons[r] }

// Drops counts dropped frames by Reason.
type Drops [numReasons]uint64

// Total returns how many frames were dropped.
func (d Drops) Total() (n uint64) {
	for _, c := range d {
		n += c
	}
	return n
}

// Stats are the counters of one direction. Bytes are those of frames as they
// were sent. At each moment
//
//	Sent + Duplicated = Delivered + Control + Dropped.Total() + Queued + Flying
type Stats struct {
	Sent, SentBytes           uint64
	Delivered, DeliveredBytes uint64
	Duplicated                uint64 // copies that were made
	Control                   uint64 // MAC control frames (PAUSE) that arrived; they end there
	Dropped                   Drops

	Queued, Flying int // frames that wait for the wire; that are on it, or wait for the receiver

	Reordered, Corrupted uint64
	Marked               uint64 // with ECN, in this direction's queue
	MaxQueuedBytes       int    // that ever waited, all priorities together

	Paused      [Priorities]time.Duration // for how long each priority was not allowed to send
	PausesSent  uint64                    // PFC frames that the receiving switch sent for this direction
	MaxHeadroom int                       // bytes above XOFF that a switch had to take, of the worst priority
}
