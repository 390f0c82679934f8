// SPDX-License-Identifier: BSD-2-Clause

package cm_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"time"

	"devxlab.example/cm"
)

// A client: the connection, and how long each step to it took.
func ExampleDialer() {
	ch, err := cm.Open()
	if err != nil {
		log.Fatal(err) // says what to load, or whom to ask
	}
	defer ch.Close()
	var dev cm.Devices // makes verbs queue pairs on the device that the address is on
	defer dev.Close()

	d := cm.Dialer{Channel: ch, Make: dev.Make, Param: cm.Param{Responder: 1, Initiator: 1, Retry: 7, RNRRetry: 7}}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := d.Dial(ctx, netip.MustParseAddrPort("192.0.2.2:7471"))
	var step *cm.StepError
	if errors.As(err, &step) {
		log.Fatalf("%s failed: %v", step.Step, step.Err)
	} else if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	for _, s := range cm.ClientSteps() {
		fmt.Println(s, conn.Steps[s])
	}
}

// A server: each connection stays until its peer ends it.
func ExampleListener() {
	ch, err := cm.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer ch.Close()
	var dev cm.Devices
	defer dev.Close()

	l, err := ch.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), 7471), 128, dev.Make)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	ctx := context.Background()
	for {
		conn, err := l.Accept(ctx)
		var step *cm.StepError
		if errors.As(err, &step) { // this connection; the listener goes on
			log.Print(err)
			continue
		} else if err != nil {
			log.Fatal(err)
		}
		go func() {
			for e, err := range conn.ID.Events(ctx) {
				if err != nil || e.Type == cm.Disconnected || e.Type == cm.DeviceRemoval {
					break
				}
			}
			if err := conn.Close(ctx); err != nil {
				log.Print(err)
			}
		}()
	}
}
