// SPDX-License-Identifier: BSD-2-Clause

package wire_test

import (
	"fmt"
	"log"

	"devxlab.example/emu/wire"
)

// Two ports, a cable that loses exactly one frame, and one that arrives.
func Example() {
	p, err := wire.Parse("rate=100G,delay=5us")
	if err != nil {
		log.Fatal(err)
	}
	link, err := wire.NewLink(wire.NewRealClock(), p, p, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer link.Close()

	arrived := make(chan []byte)
	link.B.Connect(func(frame []byte) { arrived <- frame })
	link.A.SetFilter(wire.Out, wire.DropNth(1, nil))
	for i := range byte(2) {
		frame := make([]byte, 60)
		frame[14] = i
		link.A.Send(frame) // it is the wire's now
	}
	fmt.Println("frame", (<-arrived)[14])
	fmt.Println("lost", link.A.Stats(wire.Out).Dropped[wire.Filtered])
	// Output:
	// frame 1
	// lost 1
}

func ExampleParams_String() {
	p := wire.Params{Rate: 25e9, Loss: 0.001, ECN: wire.ECN{Min: 100_000, Max: 400_000, P: 0.1}}
	p.PFC.Priorities = 1 << 3
	fmt.Println(p)
	// Output: rate=25G,loss=0.1%,ecn=100K:400K:10%,pfc=3
}
