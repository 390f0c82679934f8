// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"devxlab.example/ebpf"
)

// What is said of a connection: in a line, and as JSON, in which there is nothing of
// what did not happen.
func TestTraceConnection(t *testing.T) {
	c := ebpf.Connection{Passive: true, Outcome: ebpf.Rejected, Local: 0x11, Remote: 0x22, LocalQPN: 0x33, RemoteQPN: 0x44, Service: 0x1061d2f, Device: "mlx5_0",
		Process: 7, Thread: 8, Name: "go", Ended: 9 * time.Second, Reason: 28, Refused: ebpf.REQ, Repeated: 2}
	c.Received[ebpf.REQ], c.Waited[ebpf.REQ], c.Sent[ebpf.REJ] = time.Second, 5*time.Microsecond, 2*time.Second
	const text = "1.000000 passive go[8] mlx5_0 id 0x11 to 0x22 QP 0x33 to 0x44 service 0x1061d2f: rejected: 28, refused by the program REQ waited 5µs received again 2"
	if got := connectionText(&c); got != text {
		t.Errorf("%s\nwant %s", got, text)
	}
	const line = `{"type":"connection","outcome":"rejected","passive":true,"local_id":17,"remote_id":34,"local_qpn":51,"remote_qpn":68,"service_id":17177903,"device":"mlx5_0",` +
		`"pid":7,"tid":8,"name":"go","sent_ns":{"REJ":2000000000},"received_ns":{"REQ":1000000000},"waited_ns":{"REQ":5000},"ended_ns":9000000000,"reason":28,"refused":"REQ","retried":0,"repeated":2}`
	if b, err := json.Marshal(newConnectionLine(&c)); err != nil || string(b) != line {
		t.Errorf("%s, %v\nwant %s", b, err, line)
	}
	c = ebpf.Connection{Outcome: ebpf.Unanswered, Failed: ebpf.REQ, Status: 20, Device: "mlx5_0", Retried: 15}
	c.Sent[ebpf.REQ], c.Received[ebpf.REP], c.Sent[ebpf.RTU] = time.Second, 1100*time.Millisecond, 1101*time.Millisecond
	for _, want := range []string{"1.000000 active mlx5_0 id", "unanswered, no answer to REQ: status 20", "reply 100ms", "confirm 1ms", "sent again 15"} {
		if got := connectionText(&c); !strings.Contains(got, want) {
			t.Errorf("no %q: %s", want, got)
		}
	}
	if l := newConnectionLine(&c); l.Failed != "REQ" || l.Refused != "" {
		t.Errorf("%+v", l)
	}
}
