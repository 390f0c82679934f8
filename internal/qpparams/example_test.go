// SPDX-License-Identifier: BSD-2-Clause

package qpparams_test

import (
	"fmt"

	"devxlab.example/internal/qpparams"
)

func ExampleParse() {
	p, err := qpparams.Parse("lab.ini", []byte("[qp_params]\nqp_timeout = 16\nrnr_retry = 3 # not for ever\n"))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, line := range p.Describe() {
		fmt.Println(line)
	}
	// Output:
	// max_qp = 65535: at most 65535 queue pairs at once; Linux allows 2^18 = 262144, the device what log_max_qp of `devxlab info DEVICE` says
	// qp_timeout = 16: local ACK time-out 4.096 µs · 2^16 = 268.4 ms
	// retry_cnt = 7: 7 tries after the first; a dead peer is noticed after 2.1 s by the formula, time-out × (retry_cnt + 1); cards differ: a ConnectX-6 with retry_cnt 7 was measured to need 3.5 to 3.8 s for every qp_timeout from 10 to 16, and 58 s at 20
	// rnr_retry = 3: 3 more tries after a receiver that was not ready; then the work request fails with IBV_WC_RNR_RETRY_EXC_ERR (13); how long each waits is the receiver's min_rnr_timer
}

// All mistakes are told at once.
func ExampleParse_mistakes() {
	_, err := qpparams.Parse("lab.ini", []byte("[qp_params]\nqp_timeout = 500ms\nretry_cnt = 15\n"))
	fmt.Println(err)
	// Output:
	// lab.ini:2: qp_timeout = 500ms is a time, and qp_timeout is an exponent: the least that reaches it is 17, 536.9 ms (0 to 31: the exponent n of the local ACK time-out 4.096 µs · 2^n, 5 bits; 14 is 67.1 ms, 0 is no time-out at all)
	// lab.ini:3: retry_cnt = 15 is out of range (0 to 7: tries after the first that got no answer, 3 bits): mlx5: RTR2RTS_QP (RC): retry_count 15 is out of range: 0 to 7
}
