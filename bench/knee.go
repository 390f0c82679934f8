// SPDX-License-Identifier: BSD-2-Clause

package bench

// Knee is what a fit with and without a knee says about a sweep.
type Knee struct {
	Found    bool   `json:"found"`
	At       Float  `json:"at"`       // the knee's X, null if none was found
	Low      Float  `json:"low"`      // the interval that covers it with 95 % confidence
	High     Float  `json:"high"`     //
	Model    string `json:"model"`    // of the best fit with a knee, in words
	Plain    string `json:"plain"`    // of the best fit without one
	Evidence Float  `json:"evidence"` // BIC of the plain fit less that of the knee: above 10 is strong
	Rise     Float  `json:"rise"`     // what is behind the knee against what is before it: 1.5 is half as much again
	Why      string `json:"why"`      // in words
}
