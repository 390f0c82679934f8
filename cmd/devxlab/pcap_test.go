// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"devxlab.example/cm/capture"
	"devxlab.example/internal/labcapture"
)

func TestPcap(t *testing.T) {
	b := string(labcapture.Mixed(t))
	code, out, errOut := devxlab(b, "pcap", "-")
	if code != exitOK || errOut != "" {
		t.Fatalf("exit code %d\n%s", code, errOut)
	}
	for _, want := range []string{"2002 packets, 1966 of RoCE, 121 messages of the CM; 28 connections", "21           disconnected", "tcp/9 ",
		"rejected by the server: 8, invalid service id: nobody listens on that port", "udp/7174", "REQ→RTU    21"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if lines := strings.Count(out, "\n"); lines < 28 {
		t.Errorf("%d lines", lines)
	}
	if _, out, _ := devxlab(b, "pcap", "--totals", "-"); strings.Contains(out, "tcp/9 ") || !strings.Contains(out, "disconnected") {
		t.Error(out)
	}
	var j struct {
		Counts      capture.Counts
		Percentiles map[string]map[string]float64
		Connections []pcapConnection
	}
	code, out, _ = devxlab(b, "pcap", "-", "-o", "json")
	if err := json.Unmarshal([]byte(out), &j); err != nil || code != exitOK {
		t.Fatalf("%d, %v", code, err)
	}
	if j.Counts.CM != 121 || len(j.Connections) != 28 || j.Percentiles["req_to_rtu"]["count"] != 21 {
		t.Errorf("%+v", j.Counts)
	}
	if _, few := j.Percentiles["req_to_rtu"]["P99"]; few {
		t.Error("a P99 of 21 values")
	}
	if c := j.Connections[0]; c.Accept == nil || c.Ready == nil || c.SetUp == nil || *c.SetUp <= 0 || *c.Accept+*c.Ready-*c.SetUp > 1e-9 || c.State != "disconnected" {
		t.Errorf("%+v", c)
	}
	if c := j.Connections[27]; c.RejectReason != 28 || c.Accept != nil {
		t.Errorf("%+v", c)
	}
}

// After Ctrl-C a pipe is read to its end: whoever writes it is told to end as well,
// and flushes then. A file is not.
func TestPcapInterrupted(t *testing.T) {
	b := labcapture.Mixed(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, want := range map[string]string{"-": "2002 packets", file: "0 packets"} {
		var out bytes.Buffer
		if err := (&pcapCmd{File: name}).Run(&env{ctx: ctx, in: bytes.NewReader(b), out: &out}); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
}

// What was read before the damage is shown, and the exit code says so.
func TestPcapDamaged(t *testing.T) {
	b := string(labcapture.Mixed(t))
	code, out, errOut := devxlab(b[:len(b)*9/10+1], "pcap", "--totals", "-")
	if code != exitFailed || !strings.Contains(out, "disconnected") || !strings.Contains(errOut, "cut off or damaged there; what was read before is shown") {
		t.Errorf("exit code %d\n%s%s", code, out, errOut)
	}
	var odd bytes.Buffer // its packet is longer than its header says
	w := pcapgo.NewWriter(&odd)
	if err := errors.Join(w.WriteFileHeader(16, layers.LinkTypeEthernet), w.WritePacket(gopacket.CaptureInfo{CaptureLength: 60, Length: 60}, make([]byte, 60))); err != nil {
		t.Fatal(err)
	}
	if code, out, _ := devxlab(odd.String(), "pcap", "-"); code != exitOK || !strings.Contains(out, "16 bytes of a packet at most (snap length), but packet 1 has 60") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	for in, want := range map[string]string{"": "neither pcap nor pcapng", "#!/bin/sh": "it begins with 23 21"} {
		if code, _, errOut := devxlab(in, "pcap", "-"); code != exitFailed || !strings.Contains(errOut, want) {
			t.Errorf("exit code %d, %s", code, errOut)
		}
	}
	if code, _, errOut := devxlab("", "pcap", filepath.Join(t.TempDir(), "none")); code != exitFailed || !strings.Contains(errOut, "no such file") {
		t.Errorf("exit code %d, %s", code, errOut)
	}
}
