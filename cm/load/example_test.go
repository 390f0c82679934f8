// SPDX-License-Identifier: BSD-2-Clause

package load_test

import (
	"context"
	"log"
	"net/netip"
	"os"

	"devxlab.example/cm"
	"devxlab.example/cm/load"
)

// 1000 connections, 200 of them begun a second, in a table.
func ExampleRun() {
	ch, err := cm.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer ch.Close()
	var dev cm.Devices
	defer dev.Close()

	r, err := load.Run(context.Background(), load.Config{
		Dialer:      &cm.Dialer{Channel: ch, Make: dev.Make, Param: cm.Param{Retry: 7, RNRRetry: 7}},
		To:          netip.MustParseAddrPort("192.0.2.2:7471"),
		Connections: 1000, Workers: 16, Rate: 200,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := r.WriteText(os.Stdout); err != nil {
		log.Fatal(err)
	}
}
