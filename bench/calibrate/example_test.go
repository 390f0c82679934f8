// SPDX-License-Identifier: BSD-2-Clause

package calibrate_test

import (
	"context"
	"fmt"
	"log"

	"devxlab.example/bench/calibrate"
)

// A device that is told what it costs, and what is found from outside.
func Example() {
	r, err := calibrate.Run(context.Background(), calibrate.Options{
		Device:  "emu:profile=published,threads=4,slots=7,clock=virtual",
		Samples: calibrate.MinSamples,
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"threads", "slots"} {
		f := r.Figure(name)
		fmt.Println(name, f.Value, f.Confidence)
	}
	fmt.Println("submit", r.Profile.Submit.Fixed)
	// Output:
	// threads 4 exact
	// slots 7 exact
	// submit 37µs
}
