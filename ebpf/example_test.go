// SPDX-License-Identifier: BSD-2-Clause

package ebpf_test

import (
	"fmt"
	"log"
	"os"
	"time"

	"devxlab.example/ebpf"
	"devxlab.example/mlx5"
)

// How much of a modification's time is the firmware's, for a second of whatever
// this process does meanwhile.
func Example() {
	t, err := ebpf.Attach(ebpf.Options{Filter: ebpf.Filter{Processes: []int{os.Getpid()}}})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	for _, c := range t.Coverage() {
		if c.Why != "" {
			fmt.Printf("%v cannot be seen: %s\n", c.Stage, c.Why)
		}
	}
	time.Sleep(time.Second)
	s, err := t.Snapshot()
	if err != nil {
		log.Fatal(err)
	}
	whole, firmware := s.Time(ebpf.Whole, mlx5.OpRTR2RTS), s.Time(ebpf.Firmware, mlx5.OpRTR2RTS)
	fmt.Printf("%d commands: P99 %v, of the firmware alone %v\n", s.Count(ebpf.Awake, mlx5.OpRTR2RTS), whole.Quantile(0.99), firmware.Quantile(0.99))
}
