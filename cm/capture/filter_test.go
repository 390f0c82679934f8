// SPDX-License-Identifier: BSD-2-Clause

package capture

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/net/bpf"

	"devxlab.example/cm/roce"
	"devxlab.example/internal/labcapture"
)

// The filter passes what a Follower takes for RoCE, and nothing else.
func TestFilter(t *testing.T) {
	raw, err := Filter()
	must(t, err)
	program, all := bpf.Disassemble(raw)
	if !all {
		t.Fatalf("%v", program)
	}
	vm, err := bpf.NewVM(program)
	must(t, err)
	passes := func(frame []byte) bool {
		n, err := vm.Run(frame)
		must(t, err)
		return n >= len(frame)
	}
	r, err := NewReader(bytes.NewReader(labcapture.Mixed(t)))
	must(t, err)
	f := NewFollower()
	passed := 0
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		before := f.Counts.RoCE
		f.Add(p)
		if pass := passes(p.Data); pass != (f.Counts.RoCE > before) {
			t.Fatalf("frame %d passes: %v", f.Counts.Frames, pass)
		} else if pass {
			passed++
		}
	}
	if passed != f.Counts.RoCE || passed == 0 {
		t.Errorf("%d of %d", passed, f.Counts.RoCE)
	}
	w := &wire{t: t, now: time.Unix(1, 0), v1: true}
	w.send(client, server, 1, roce.AttrREQ, &roce.REQ{})
	if !passes(w.out[0].Data) {
		t.Error("no RoCEv1")
	}
	w.v1 = false
	w.send(client, server, 1, roce.AttrREQ, &roce.REQ{})
	v4 := w.out[1].Data
	for name, change := range map[string]func([]byte){
		"another port": func(b []byte) { b[37]++ }, "TCP": func(b []byte) { b[23] = 6 }, "a later fragment": func(b []byte) { b[21] = 1 },
		"ARP": func(b []byte) { b[12], b[13] = 8, 6 },
	} {
		b := bytes.Clone(v4)
		if change(b); passes(b) {
			t.Errorf("%s passes", name)
		}
	}
	for n := range 38 { // the port ends there
		if kept, err := vm.Run(v4[:n]); err != nil || kept != 0 {
			t.Errorf("%d bytes: %d kept, %v", n, kept, err)
		}
	}
}
