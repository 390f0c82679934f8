// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"devxlab.example/cm/capture"
	"devxlab.example/emu/wire"
	"devxlab.example/internal/labcapture"
)

// frames are those of a capture with every kind of RoCE.
func frames(t *testing.T) (all [][]byte) {
	t.Helper()
	r, err := capture.NewReader(bytes.NewReader(labcapture.Mixed(t)))
	if err != nil {
		t.Fatal(err)
	}
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, bytes.Clone(p.Data))
	}
}

// A message is lost as often as was asked for, and nothing else is.
func TestLose(t *testing.T) {
	all := frames(t)
	count := func(text string) (n int) {
		l, err := newLoser(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if l.judge(wire.Frame{Data: f}).Drop {
				n++
			}
			_ = l.judge(wire.Frame{Data: f[:len(f)/2]}) // what is cut off is no message
		}
		return n
	}
	requests := count("REQ all")
	if requests < 3 || count("rep all") < 3 || count("REQ") != 1 || count("REQ 2") != 2 || count("APR all") != 0 {
		t.Errorf("%d REQ, %d REP of all; %d of one; %d of two; %d APR", requests, count("rep all"), count("REQ"), count("REQ 2"), count("APR all"))
	}
	for _, bad := range []string{"", "SYN", "REQ 0", "REQ -1", "REQ many", "REQ 1 2"} {
		if _, err := newLoser(bad); err == nil || !strings.Contains(err.Error(), "lose") {
			t.Errorf("lose %q: %v", bad, err)
		}
	}
}
