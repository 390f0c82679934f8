// SPDX-License-Identifier: BSD-2-Clause

// Package qpparams reads the [qp_params] section of an INI file: how many queue
// pairs there may be, and the time-out and retries that an RC queue pair gets
// in RTR2RTS.
//
//	[qp_params]
//	max_qp = 65535
//	qp_timeout = 14
//	retry_cnt = 7
//	rnr_retry = 7
//
// It is strict, because a value that is silently replaced or masked would be
// measured under a wrong name: Linux 5.15's mlx5_ib makes retry_cnt 15 a 7 and
// timeout 32 a 0, which is no time-out at all. It does not ask a device what it
// can do.
package qpparams

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"devxlab.example/mlx5"
)

// Section is the name of the section.
const Section = "qp_params"

// KernelMaxQP is the most queue pairs that Linux lets a function have, whatever
// its firmware offers: mlx5_core caps log_max_qp at 18 (main.c).
const KernelMaxQP = 1 << 18

// Params are the values of the section. The zero Params is not valid: use
// Default.
type Params struct {
	MaxQP     int `json:"max_qp"`     // queue pairs at once, 1 to 2^24-1
	QPTimeout int `json:"qp_timeout"` // local ACK time-out, 4.096 µs · 2^n, 0 to 31; 0: none
	RetryCnt  int `json:"retry_cnt"`  // tries after the first that got no answer, 0 to 7
	RNRRetry  int `json:"rnr_retry"`  // tries after a receiver that was not ready, 0 to 7; 7: for ever
}

// Default returns 65535, 14 (67.1 ms), 7 and 7 (for ever): the set-up of the
// article whose claims devxlab tests.
func Default() Params {
	return Params{MaxQP: 65535, QPTimeout: 14, RetryCnt: 7, RNRRetry: mlx5.RNRRetryForever}
}

// key is one key of the section.
type key struct {
	name     string
	flag     string
	min, max int
	means    string // in an error, behind the range
	comment  string // in a file
	field    func(*Params) *int
	meaning  func(Params) string
	// encode puts the value into the command that carries it; nil: none does.
	encode func(*mlx5.RTR2RTS, mlx5.Attr)
}

var keys = []*key{
	{
		name: "max_qp", flag: "--max-qp", min: 1, max: 1<<24 - 1,
		means: "queue pairs at once; a queue pair number has 24 bits, Linux allows 2^18 = 262144 at most, and `devxlab info DEVICE` says what the device allows",
		comment: `Queue pairs at once, 1 to 16777215: a queue pair number has 24 bits.
Linux allows 2^18 = 262144 at most; what a device allows: devxlab info DEVICE`,
		field: func(p *Params) *int { return &p.MaxQP },
		meaning: func(p Params) string {
			return fmt.Sprintf("at most %d queue pairs at once; Linux allows 2^18 = %d, the device what log_max_qp of `devxlab info DEVICE` says", p.MaxQP, KernelMaxQP)
		},
	},
	{
		name: "qp_timeout", flag: "--qp-timeout", min: 0, max: attrMax(mlx5.AttrAckTimeout),
		means: "the exponent n of the local ACK time-out 4.096 µs · 2^n, 5 bits; 14 is 67.1 ms, 0 is no time-out at all",
		comment: `Local ACK time-out, 0 to 31: 4.096 µs · 2^n. 14 is 67.1 ms, not 14 of anything.
0 is no time-out at all: a lost packet or a dead peer is never noticed.`,
		field:   func(p *Params) *int { return &p.QPTimeout },
		meaning: timeoutMeaning,
		encode:  func(r *mlx5.RTR2RTS, a mlx5.Attr) { r.AckTimeout = a },
	},
	{
		name: "retry_cnt", flag: "--retry-cnt", min: 0, max: attrMax(mlx5.AttrRetryCount),
		means: "tries after the first that got no answer, 3 bits",
		comment: `Tries after the first that got no answer, 0 to 7. By the formula a dead peer is
noticed after time-out × (retry_cnt + 1); cards were measured to take longer.`,
		field:   func(p *Params) *int { return &p.RetryCnt },
		meaning: retryMeaning,
		encode:  func(r *mlx5.RTR2RTS, a mlx5.Attr) { r.RetryCount = a },
	},
	{
		name: "rnr_retry", flag: "--rnr-retry", min: 0, max: attrMax(mlx5.AttrRNRRetry),
		means: "tries after a receiver that was not ready, 3 bits; 7 is for ever",
		comment: `Tries after a receiver that was not ready (RNR NAK), 0 to 7. 7 is for ever.
How long each waits is the receiver's min_rnr_timer.`,
		field:   func(p *Params) *int { return &p.RNRRetry },
		meaning: rnrMeaning,
		encode:  func(r *mlx5.RTR2RTS, a mlx5.Attr) { r.RNRRetry = a },
	},
}

func attrMax(id mlx5.AttrID) int {
	_, most := id.Range()
	return int(most)
}

func keyOf(name string) *key {
	for _, k := range keys {
		if k.name == name {
			return k
		}
	}
	return nil
}

func names() string {
	var n []string
	for _, k := range keys {
		n = append(n, k.name)
	}
	return strings.Join(n, ", ")
}

// check returns why k cannot be v, or nil. For a value that goes into a
// command, the encoder is asked, so that the two never differ.
func (k *key) check(v int) *Error {
	if k.encode != nil {
		r := mlx5.RTR2RTS{AckTimeout: mlx5.Set(0), RetryCount: mlx5.Set(0), RNRRetry: mlx5.Set(0), NextSendPSN: mlx5.Set(0), LogSRAMax: mlx5.Set(0)}
		k.encode(&r, mlx5.Set(v))
		var buf [mlx5.TransitionSize]byte
		if _, err := r.Encode(buf[:], 0, mlx5.STRC); err != nil {
			return &Error{Key: k.name, Value: fmt.Sprint(v), Reason: "is out of range", Err: err}
		}
	}
	if v < k.min || v > k.max {
		return &Error{Key: k.name, Value: fmt.Sprint(v), Reason: "is out of range"}
	}
	return nil
}

// Validate returns an *Error for each value that is out of range, joined, or
// nil.
func (p Params) Validate() error {
	var errs []error
	for _, k := range keys {
		if e := k.check(*k.field(&p)); e != nil {
			errs = append(errs, e)
		}
	}
	return errors.Join(errs...)
}

// Warnings returns what is allowed but is seldom meant.
func (p Params) Warnings() []string {
	var w []string
	if p.MaxQP > KernelMaxQP {
		w = append(w, fmt.Sprintf("max_qp = %d is more than Linux lets any device have, 2^18 = %d; `devxlab info DEVICE` says what the device allows", p.MaxQP, KernelMaxQP))
	}
	if p.QPTimeout == 0 {
		w = append(w, "qp_timeout = 0 is no time-out at all: a lost packet or a dead peer is never noticed; 14 is 67.1 ms")
	}
	return w
}

// Value is one of the values.
type Value struct {
	Key     string `json:"key"`
	Value   int    `json:"value"`
	Meaning string `json:"meaning"` // a sentence without a full stop
}

// Values returns the values in the order of the file, with what each means. A
// value that is out of range means the error.
func (p Params) Values() []Value {
	var out []Value
	for _, k := range keys {
		v := Value{Key: k.name, Value: *k.field(&p)}
		if e := k.check(v.Value); e != nil {
			v.Meaning = e.why()
		} else {
			v.Meaning = k.meaning(p)
		}
		out = append(out, v)
	}
	return out
}

// Describe returns a line for each value that says what it really means.
func (p Params) Describe() []string {
	var lines []string
	for _, v := range p.Values() {
		lines = append(lines, fmt.Sprintf("%s = %d: %s", v.Key, v.Value, v.Meaning))
	}
	return lines
}

func timeoutMeaning(p Params) string {
	if p.QPTimeout == 0 {
		return "no time-out at all: a lost packet or a dead peer is never noticed"
	}
	return fmt.Sprintf("local ACK time-out 4.096 µs · 2^%d = %s", p.QPTimeout, short(mlx5.AckTimeout(uint8(p.QPTimeout))))
}

// measured is from a published study of a ConnectX-6.
const measured = "cards differ: a ConnectX-6 with retry_cnt 7 was measured to need 3.5 to 3.8 s for every qp_timeout from 10 to 16, and 58 s at 20"

func retryMeaning(p Params) string {
	tries := fmt.Sprintf("%d tries after the first", p.RetryCnt)
	switch p.RetryCnt {
	case 0:
		tries = "no second try: one lost packet ends the queue pair"
	case 1:
		tries = "1 try after the first"
	}
	if p.QPTimeout == 0 || p.QPTimeout > attrMax(mlx5.AttrAckTimeout) || p.QPTimeout < 0 {
		return tries + "; without a time-out a dead peer is never noticed"
	}
	each := mlx5.AckTimeout(uint8(p.QPTimeout))
	return fmt.Sprintf("%s; a dead peer is noticed after %s by the formula, time-out × (retry_cnt + 1); %s", tries, short(each*time.Duration(p.RetryCnt+1)), measured)
}

func rnrMeaning(p Params) string {
	const then = "; then the work request fails with IBV_WC_RNR_RETRY_EXC_ERR (13); how long each waits is the receiver's min_rnr_timer"
	switch p.RNRRetry {
	case mlx5.RNRRetryForever:
		return "for ever: a receiver that posts no buffer holds the queue pair without an error"
	case 0:
		return "no second try after a receiver that was not ready: the work request fails with IBV_WC_RNR_RETRY_EXC_ERR (13)"
	case 1:
		return "1 more try after a receiver that was not ready" + then
	}
	return fmt.Sprintf("%d more tries after a receiver that was not ready%s", p.RNRRetry, then)
}

// short writes a time with one decimal and its unit, from a minute on as
// 1h2m3s.
func short(d time.Duration) string {
	for _, u := range []struct {
		below, unit time.Duration
		name        string
	}{{time.Millisecond, time.Microsecond, "µs"}, {time.Second, time.Millisecond, "ms"}, {time.Minute, time.Second, "s"}} {
		if d < u.below {
			return fmt.Sprintf("%.1f %s", float64(d)/float64(u.unit), u.name)
		}
	}
	return d.Round(time.Second).String()
}
