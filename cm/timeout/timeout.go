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
func (q QP) NoAck() (Wait, error) {
	if err := q.Check(); err != nil {
		return Wait{}, err
	}
	if q.AckTimeout == 0 {
		return Wait{Forever: true}, nil
	}
	least := time.Duration(q.RetryCount+1) * Exp(q.AckTimeout)
	return Wait{Least: least, Most: least * slowest}, nil
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

// Card is how a device gives up, as it was measured.
type Card struct {
	Name     string
	Measured string // what was measured, and where that is published
	Why      string // why it is not the formula
	after    func(n, retries int) Wait
}

// study is where the figures of ConnectX-6 come from: a requester (fw 20.43.4100)
// whose peer goes to ERR, a single WRITE, N of 2 to 12 for each of some 40 cells.
const study = "github.com/unionxic/rdma-fault-characterization, 2026"

// Cards are those of which something was published.
var Cards = []Card{
	{
		Name: "ConnectX-6 as it comes", after: withFloor,
		Measured: "with 7 retries 3.66 s for time-outs 8 to 16, then 7.15, 14.7, 29.7 and 59.8 s for 17 to 20; with 1 retry 0.44 s (" + study + ")",
		Why: "first it repeats adaptively: 4 to 11 times, after some 20 ms at first and ever more, counted in roce_adp_retrans, which uses up one retry; " +
			"then come retry_cnt − 1 regular time-outs, counted in local_ack_timeout_err, each twice as long as said, and no time-out below 16 is taken for less than that. " +
			"With retry_cnt 0 it repeated 7 times as well. The first failure of a process is off by up to 0.1 s, for time-outs above 17 by up to 1.3 s. Above 20 nothing was measured",
	},
	{
		Name: "ConnectX-6 without its floor", after: withoutFloor,
		Measured: "with 7 retries 9.5 ms for 8, 147 ms for 12, 575 ms for 14, 38 s for 20 (" + study + ")",
		Why: "with min_ack_timeout_limit_disabled=1 (mlxreg --reg_name ROCE_ACCL; of all queue pairs of the function) it repeats nothing adaptively, " +
			"and each time-out is as long as said. Before the first there is one more, of half to one time-out, that repeats nothing",
	},
}

const (
	floor = 16 // no smaller time-out is taken for less
	// likeNone is how many retries retry_cnt 0 is like, with the floor.
	likeNone = 4
	// early is how much less than retry_cnt intervals it takes with the floor, for the
	// time-outs up to it and above.
	earlyLow, earlyHigh = 96200 * time.Microsecond, 364000 * time.Microsecond
)

// withFloor fits what was measured to a millisecond, but for the first failure of a
// process.
func withFloor(n, retries int) Wait {
	if retries == 0 {
		retries = likeNone
	}
	early := earlyLow
	if n > floor {
		early = earlyHigh
	}
	took := time.Duration(retries)*2*Exp(max(n, floor)) - early
	return Wait{Least: took, Most: took}
}

// withoutFloor has all that was measured within it: what comes before the first
// repetition took 0.51 to 1.16 time-outs, to 1.2 ms.
func withoutFloor(n, retries int) Wait {
	const slack = 1200 * time.Microsecond
	all := time.Duration(retries+1) * Exp(n)
	return Wait{Least: all + Exp(n)*51/100, Most: all + Exp(n)*116/100 + slack}
}

// NoAckOf is NoAck as a card was measured to do it.
func (q QP) NoAckOf(c Card) (Wait, error) {
	if w, err := q.NoAck(); err != nil || w.Forever {
		return w, err
	}
	return c.after(q.AckTimeout, q.RetryCount), nil
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
