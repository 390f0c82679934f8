// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"devxlab.example/cm"
)

// What is wrong on the command line is said before anything is opened.
func TestCMUsage(t *testing.T) {
	for args, says := range map[string]string{
		"client":                                 "expected",
		"client example.org":                     "an IP address, with or without a port",
		"client 192.0.2.1:99999":                 "port 99999: 0 to 65535",
		"client 192.0.2.1:":                      "0 to 65535",
		"client 192.0.2.1:0":                     "1 to 65535",
		"client :7471":                           "an IP address",
		"client [2001:db8::1":                    "an IP address",
		"client 192.0.2.1 --source here":         "--source here: an IP address",
		"client 192.0.2.1 --retry 8":             "0 to 7",
		"client 192.0.2.1 --rnr-retry 8":         "0 to 7",
		"client 192.0.2.1 --retry 256":           "--retry",
		"client 192.0.2.1 --tos 256":             "--tos",
		"client 192.0.2.1 --ack-timeout 32":      "--ack-timeout 32: 0 to 31",
		"client 192.0.2.1 --timeout 0s":          "more than 0",
		"client 192.0.2.1 --timeout=-1s":         "more than 0",
		"client 192.0.2.1 --private " + long(57): "57 bytes: a request has room for 56",
		"bench 192.0.2.1 -n 0":                   "0 connections: 1 or more",
		"bench 192.0.2.1 -w 0":                   "0 workers: 1 or more",
		"bench 192.0.2.1 --rate=-1":              "0 or more",
		"bench 192.0.2.1 --rate NaN":             "0 or more",
		"bench 192.0.2.1 --for=-1s":              "0 or more",
		"server somewhere":                       "an IP address",
		"server :70000":                          "port 70000",
		"server --workers 0":                     "1 or more",
		"server --backlog 0":                     "1 or more",
		"server --count=-1":                      "--count is 0 or more",
	} {
		code, out, errOut := devxlab("", append([]string{"cm"}, strings.Fields(args)...)...)
		if code != exitUsage || out != "" || !strings.Contains(errOut, says) {
			t.Errorf("%s: exit code %d, %q, %q; want %q", args, code, out, errOut, says)
		}
	}
}

func long(n int) string { return strings.Repeat("x", n) }

// Without the kernel's connection manager every command says so, and how to get it.
func TestCMWithoutANode(t *testing.T) {
	if _, err := os.Stat(cm.File); err == nil {
		t.Logf("%s is here: what is said without it is tested where it is not", cm.File)
		return
	}
	for _, args := range []string{"server", "server 192.0.2.1 -o json", "client 192.0.2.1:1 --private " + long(56), "bench [2001:db8::1]:7471 -n 1"} {
		code, out, errOut := devxlab("", append([]string{"cm"}, strings.Fields(args)...)...)
		if code != exitNoDevice || out != "" || !strings.Contains(errOut, "modprobe rdma_ucm") || !strings.Contains(errOut, cm.File) {
			t.Errorf("%s: exit code %d, %q, %q", args, code, out, errOut)
		}
	}
}

func TestCMAddress(t *testing.T) {
	for s, want := range map[string]string{
		"192.0.2.1": "192.0.2.1:7471", "192.0.2.1:80": "192.0.2.1:80", "2001:db8::1": "[2001:db8::1]:7471", "[2001:db8::1]": "[2001:db8::1]:7471",
		"[2001:db8::1]:1": "[2001:db8::1]:1", "fe80::1%lo": "[fe80::1%lo]:7471", "[fe80::1%lo]:65535": "[fe80::1%lo]:65535",
	} {
		for _, listener := range []bool{false, true} {
			if got, err := address(s, listener); err != nil || got != netip.MustParseAddrPort(want) {
				t.Errorf("%s: %s, %v; want %s", s, got, err, want)
			}
		}
	}
	for s, want := range map[string]string{"": "[::]:7471", ":80": "[::]:80", ":0": "[::]:0", "0.0.0.0:0": "0.0.0.0:0"} {
		if got, err := address(s, true); err != nil || got != netip.MustParseAddrPort(want) {
			t.Errorf("listener %s: %s, %v; want %s", s, got, err, want)
		}
		if got, err := address(s, false); err == nil {
			t.Errorf("client %s: %s", s, got)
		}
	}
}
