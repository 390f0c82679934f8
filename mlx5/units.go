// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"fmt"
	"time"
)

// AckTimeout returns the local ACK time-out that a 5-bit ack_timeout stands
// for: 4.096 µs · 2^n, and 0 for 0, which means no time-out at all (IBTA
// specification volume 1, 9.9.2.1.1). 14 is 67.1 ms. n is taken modulo 32.
func AckTimeout(n uint8) time.Duration {
	if n &= 31; n == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << n
}

// AckTimeoutFor returns the smallest ack_timeout whose time is at least d.
// It is never 0, which would mean no time-out.
func AckTimeoutFor(d time.Duration) (uint8, error) {
	for n := uint8(1); n < 32; n++ {
		if AckTimeout(n) >= d {
			return n, nil
		}
	}
	return 0, fmt.Errorf("mlx5: no ack_timeout reaches %v: the longest is 31, %v", d, AckTimeout(31))
}

// rnrTimer is the table of the 5-bit RNR NAK timer in units of 10 µs (IBTA
// specification volume 1, table 45).
var rnrTimer = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// MinRNRTimer returns the time that a 5-bit min_rnr_nak stands for. 0 is the
// longest, 655.36 ms, and 1 the shortest, 10 µs. n is taken modulo 32.
func MinRNRTimer(n uint8) time.Duration {
	return time.Duration(rnrTimer[n&31]) * 10 * time.Microsecond
}

// MinRNRTimerFor returns the min_rnr_nak with the shortest time that is at
// least d.
func MinRNRTimerFor(d time.Duration) (uint8, error) {
	for n := uint8(1); n < 32; n++ {
		if MinRNRTimer(n) >= d {
			return n, nil
		}
	}
	if d <= MinRNRTimer(0) {
		return 0, nil
	}
	return 0, fmt.Errorf("mlx5: no min_rnr_nak reaches %v: the longest is 0, %v", d, MinRNRTimer(0))
}

// RNRRetryForever is the rnr_retry that never gives up.
const RNRRetryForever = 7

// MTU is a path MTU as the device encodes it, 1 to 5.
type MTU uint8

// Values of MTU, named for their bytes.
const (
	MTU256 MTU = iota + 1
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes returns the payload size, or 0 for an encoding that does not exist.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// MTUOf returns the encoding of a payload size in bytes.
func MTUOf(bytes int) (MTU, error) {
	for m := MTU256; m <= MTU4096; m++ {
		if m.Bytes() == bytes {
			return m, nil
		}
	}
	return 0, fmt.Errorf("mlx5: no path MTU of %d bytes: use 256, 512, 1024, 2048 or 4096", bytes)
}

// PSN is a packet sequence number: 24 bits, with arithmetic modulo 2^24.
type PSN uint32

const psnMask = 1<<24 - 1

// Add returns p + n modulo 2^24.
func (p PSN) Add(n int) PSN { return PSN(uint32(int64(p)+int64(n)) & psnMask) }

// Diff returns p - q as a signed distance, -2^23 to 2^23-1.
func (p PSN) Diff(q PSN) int { return int(int32(uint32(p-q)<<8) >> 8) }

// Before reports whether p comes before q, within half of the circle.
func (p PSN) Before(q PSN) bool { return p.Diff(q) < 0 }
