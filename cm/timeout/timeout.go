// SPDX-License-Identifier: BSD-2-Clause

// Package timeout says how long connections take to fail: queue pairs without an
// acknowledgement or without a receive entry, and the connection manager without
// an answer; by the formulas of the InfiniBand Architecture specification and of
// the kernel, and by what cards were measured to do. It also has the causes of
// what comes then. It does no I/O.
//
//	w, err := timeout.QP{AckTimeout: 14, RetryCount: 7}.NoAck()
//	// w.Least is 536.870912 ms
package timeout

import (
	"fmt"
	"time"
)

// Unit is what the exponents of the specification multiply: a time-out of n is
// 4.096 µs · 2^n (specification, volume 1, 9.7.6.1.3 and 12.7.32).
const Unit = 4096 * time.Nanosecond

const (
	// MaxExponent is the greatest local ACK time-out, packet life time and CM time-out:
	// 5 bits.
	MaxExponent = 31
	// MaxRetry is the greatest retry_cnt and rnr_retry: 3 bits.
	MaxRetry = 7
	// RNRForever is the rnr_retry that never gives up.
	RNRForever = 7
	// MaxCMRetries is the greatest number of repetitions of a CM message: 4 bits.
	MaxCMRetries = 15
	// slowest is how many times longer than T_tr a requester may wait (9.7.6.1.3: the
	// time-out interval is T_tr at least and four times that at most).
	slowest = 4
)

// Exp is 4.096 µs · 2^n, n from 0 to 31.
func Exp(n int) time.Duration { return Unit << n }

// rnrDelays are the values of min_rnr_timer in units of 10 µs (specification, table
// 45, "Encoding for RNR NAK timer field").
var rnrDelays = [MaxExponent + 1]time.Duration{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRDelay is what a requester waits at least after an RNR NAK with that code, 0 to
// 31: 0 is the longest, 655.36 ms.
func RNRDelay(code int) time.Duration { return rnrDelays[code] * 10 * time.Microsecond }

// RangeError is of a value that its field has no room for.
type RangeError struct {
	Name       string // as ibv_qp_attr or the CM has it
	Value, Max int
	Else       string // what would become of it
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("%s %d: it is 0 to %d; %s", e.Name, e.Value, e.Max, e.Else)
}

func inRange(name string, v, most int, otherwise string) error {
	if v < 0 || v > most {
		return &RangeError{name, v, most, otherwise}
	}
	return nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Wait is how long something takes.
type Wait struct {
	Least   time.Duration `json:"least_ns"`
	Most    time.Duration `json:"most_ns"`
	Forever bool          `json:"forever,omitempty"` // it does not end by itself
}

// QP are the attributes of a queue pair that decide when it gives up.
type QP struct {
	AckTimeout  int // ibv_qp_attr.timeout: the local ACK time-out, 0 to 31; 0: none
	RetryCount  int // retry_cnt, 0 to 7
	RNRRetry    int // rnr_retry, 0 to 7; 7: for ever
	MinRNRTimer int // min_rnr_timer of the peer: it is the responder that sends the code, 0 to 31
}

// Check finds values that do not fit.
func (q QP) Check() error {
	return firstOf(
		inRange("timeout", q.AckTimeout, MaxExponent, "of a greater value the mlx5 driver takes the low 5 bits: 32 becomes 0, which is no time-out at all"),
		inRange("retry_cnt", q.RetryCount, MaxRetry, "of a greater value the mlx5 driver takes the low 3 bits: 8 becomes 0"),
		inRange("rnr_retry", q.RNRRetry, MaxRetry, "of a greater value the mlx5 driver takes the low 3 bits; 7 is for ever"),
		inRange("min_rnr_timer", q.MinRNRTimer, MaxExponent, "it is a code of a table, not a time: 12 is 0.64 ms, and 0 is the longest, 655.36 ms"))
}

// NoAck is how long a requester waits for an acknowledgement until it completes
// with IBV_WC_RETRY_EXC_ERR, 12 (on mlx5 vendor error 0x81): the first packet and
// each of retry_cnt repetitions have the time-out, which the specification lets last
// four times as long. A time-out of 0 is none: nothing is repeated, for ever.
func (q QP) NoAck() (Wait, error) { return q.noAck(Exp(q.AckTimeout), slowest) }

func (q QP) noAck(each time.Duration, atMost int) (Wait, error) {
	if err := q.Check(); err != nil {
		return Wait{}, err
	}
	if q.AckTimeout == 0 {
		return Wait{Forever: true}, nil
	}
	least := time.Duration(q.RetryCount+1) * each
	return Wait{Least: least, Most: least * time.Duration(atMost)}, nil
}

// NotReady is how long a requester goes on whose peer has no receive entry, until
// it completes with IBV_WC_RNR_RETRY_EXC_ERR, 13 (on mlx5 vendor error 0x87),
// without the round trips: rnr_retry times the delay that the peer's NAKs ask for. It
// is a least time: a requester may wait longer, and no limit is specified.
func (q QP) NotReady() (Wait, error) {
	if err := q.Check(); err != nil {
		return Wait{}, err
	}
	if q.RNRRetry == RNRForever {
		return Wait{Forever: true}, nil
	}
	return Wait{Least: time.Duration(q.RNRRetry) * RNRDelay(q.MinRNRTimer)}, nil
}

// Card is how a device takes the local ACK time-out.
type Card struct {
	Name    string
	Floor   int // a smaller time-out that is not 0 counts as this
	Percent int // of 4.096 µs · 2^n
	// Measured is what was measured, and Why why it differs from the formula.
	Measured, Why string
}

// Cards are those of which something was published.
var Cards = []Card{{
	Name: "ConnectX-6", Floor: 16, Percent: 169,
	Measured: "a published study: with retry_cnt 7 a dead peer is noticed after 3.5 to 3.8 s for each time-out from 10 to 16, and after 58 s for 20",
	Why: "the firmware takes no time-out below 16 for what it says (268 ms), and waits about 1.7 times as long, as the specification allows (up to 4). " +
		"It also retransmits adaptively by default (hw_counters roce_adp_retrans, roce_adp_retrans_to), so that single repetitions come at other times. " +
		"That all of them are equally far apart is a model: only the sum was measured, and only with 7 retries",
}}

// NoAckOf is NoAck as a card does it, a single figure, by the model that Measured
// fits.
func (q QP) NoAckOf(c Card) (Wait, error) {
	each := Exp(min(max(q.AckTimeout, c.Floor), MaxExponent)) * time.Duration(c.Percent) / 100
	return q.noAck(each, 1)
}

// Notes says what is easily taken for something else in these values.
func (q QP) Notes() (notes []string) {
	switch {
	case q.AckTimeout == 0:
		notes = append(notes, "A time-out of 0 is none: a lost acknowledgement is waited for until somebody moves the queue pair. Who draws it at random from 0 on (random() % 15) gets that in one case of 15")
	default:
		notes = append(notes, fmt.Sprintf("Time-out %d is %v, not 2^%d ms, which would be %v", q.AckTimeout, Exp(q.AckTimeout), q.AckTimeout, time.Millisecond<<q.AckTimeout))
	}
	if q.MinRNRTimer == 0 {
		notes = append(notes, "min_rnr_timer 0 is the longest wait, 655.36 ms, not the shortest; that is 1, 10 µs")
	}
	if q.RNRRetry == RNRForever {
		notes = append(notes, "rnr_retry 7 goes on for ever: completion 13 never comes; 6 is the most that ends")
	}
	if q.RetryCount == 0 && q.AckTimeout > 0 {
		notes = append(notes, "retry_cnt 0 repeats nothing: one lost packet ends the queue pair")
	}
	return notes
}
