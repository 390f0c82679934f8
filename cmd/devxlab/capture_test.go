// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"devxlab.example/cm/capture"
	"devxlab.example/cm/roce"
	"devxlab.example/internal/require"
)

// sendREQ sends the payload of a REQ over the loopback until stop.
func sendREQ(t *testing.T, stop <-chan struct{}) {
	t.Helper()
	c, err := net.Dial("udp4", "127.0.0.1:4791")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true},
		&roce.BTH{Opcode: roce.UD | roce.SendOnly, DestQP: roce.GSI, PKey: 0xffff}, &roce.DETH{SrcQP: roce.GSI},
		&roce.MAD{BaseVersion: 1, MgmtClass: roce.ClassCM, ClassVersion: roce.CMVersion, Method: roce.MethodSend, AttributeID: roce.AttrREQ, TransactionID: 1},
		&roce.REQ{LocalCommID: 5, ServiceID: roce.ServiceID(roce.PortSpaceTCP, 4711), LocalQPN: 6}); err != nil {
		t.Fatal(err)
	}
	other, err := net.Dial("udp4", "127.0.0.1:4790")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		select {
		case <-stop:
			tick.Stop()
			return
		case <-tick.C:
			_, _ = c.Write(buf.Bytes()) // refused: nobody listens; it was on the wire
			_, _ = other.Write(buf.Bytes())
		}
	}
}

// A capture of the loopback sees RoCE, follows it, and writes what pcap reads.
func TestCapture(t *testing.T) {
	l, err := capture.NewLive("lo")
	if err != nil {
		require.Have(t, "packet", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		sendREQ(t, stop)
	}()
	defer func() { close(stop); <-stopped }()
	code, out, errOut := devxlab("", "capture", "lo", "--count", "3")
	if code != exitOK || errOut != "" || !strings.Contains(out, "tcp/4711") || !strings.Contains(out, "no answer") {
		t.Errorf("exit code %d\n%s%s", code, out, errOut)
	}
	file := filepath.Join(t.TempDir(), "out.pcap")
	code, out, errOut = devxlab("", "capture", "lo", "--count", "3", "--write", file)
	if code != exitOK || errOut != "" || out != "" {
		t.Errorf("exit code %d\n%s%s", code, out, errOut)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := capture.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; ; n++ {
		p, err := r.Next()
		if err != nil {
			break
		}
		if p.Cut || gopacket.NewPacket(p.Data, layers.LayerTypeEthernet, gopacket.Default).Layer(roce.LayerTypeREQ) == nil {
			t.Errorf("%x", p.Data)
		}
	}
	if n != 3 {
		t.Errorf("%d packets", n)
	}
	if code, out, _ := devxlab("", "pcap", file); code != exitOK || !strings.Contains(out, "tcp/4711") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

func TestCaptureRefused(t *testing.T) {
	if code, _, errOut := devxlab("", "capture", "none0"); code != exitFailed || !strings.Contains(errOut, "none0") {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	l, err := capture.NewLive("lo")
	if errors.Is(err, os.ErrPermission) {
		if code, _, errOut := devxlab("", "capture", "lo"); code != exitFailed || !strings.Contains(errOut, "CAP_NET_RAW") {
			t.Errorf("exit code %d, %s", code, errOut)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if code, _, errOut := devxlab("", "capture", "lo", "--write", filepath.Join(t.TempDir(), "no", "file")); code != exitFailed || !strings.Contains(errOut, "no such file") {
		t.Errorf("exit code %d, %s", code, errOut)
	}
}
