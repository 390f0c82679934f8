// SPDX-License-Identifier: BSD-2-Clause

package uverbs_test

import (
	"context"
	"fmt"

	"devxlab.example/devx"
	"devxlab.example/emu/fw"
	"devxlab.example/emu/uverbs"
	"devxlab.example/mlx5"
)

// A device on which each command takes 5 ms of virtual time. The test looks at
// it from the inside, and makes it report an event.
func Example() {
	d, err := devx.Open("emu:clock=virtual,latency=5ms")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	q, err := d.NewQP(devx.QPConfig{Transport: mlx5.STRC})
	if err != nil {
		fmt.Println(err)
		return
	}
	e, _ := uverbs.Lookup(d.Name())
	before, start := e.HCA().Stats().Commands, e.HCA().Clock().Now()
	if err := devx.Modify(q, mlx5.ToERR{}); err != nil {
		fmt.Println(err)
	}
	fmt.Println(e.HCA().Stats().Commands-before, "command,", e.HCA().Clock().Now()-start)

	c, err := d.EventChannel()
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := c.Subscribe(42, q, mlx5.EventWQCatasError); err != nil {
		fmt.Println(err)
		return
	}
	e.HCA().Raise(fw.Event{Type: mlx5.EventWQCatasError, Object: q.Number()})
	for event, err := range c.Events(context.Background()) {
		fmt.Println("event", event.Cookie, event.Type == mlx5.EventWQCatasError, err)
		break
	}
	// Output:
	// 1 command, 5ms
	// event 42 true <nil>
}
