// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"devxlab.example/cm/timeout"
)

func TestCMTimeout(t *testing.T) {
	code, out, errOut := devxlab("", "cm", "timeout")
	if code != exitOK || errOut != "" {
		t.Fatalf("exit code %d\n%s", code, errOut)
	}
	for _, want := range []string{"537ms or more", "8 · 67.1ms (time-out 14)", "2.15s", "by a ConnectX-6 as it comes", "3.66s", "571ms to 616ms", "1m38.3s", "16 · 6.14s", "17m0s", "time-out 19",
		"67.108864ms, not 2^14 ms, which would be 16.384s", "rnr_retry 7 goes on for ever"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	_, out, _ = devxlab("", "cm", "timeout", "--timeout", "0", "--rnr-retry", "6", "--min-rnr-timer", "0", "--lifetime", "16")
	for _, want := range []string{"there is no time-out", "never", "3.93s or more", "1m13.7s", "random() % 15", "is the longest wait"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	code, out, _ = devxlab("", "cm", "timeout", "--retry", "1", "--timeout", "20", "-o", "json")
	var j cmTimeouts
	if err := json.Unmarshal([]byte(out), &j); err != nil || code != exitOK {
		t.Fatalf("%d, %v", code, err)
	}
	if j.NoAck.Least != 2*timeout.Exp(20) || !j.NotReady.Forever || len(j.Phases) != 7 || j.Phases[0].Total != 16*6144*time.Millisecond || len(j.Cards) != len(timeout.Cards) || j.CMTimeout != 19 {
		t.Errorf("%+v", j)
	}
}

func TestCMTimeoutRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--timeout 32":             "32 becomes 0, which is no time-out at all",
		"--retry 15":               "retry_cnt 15: it is 0 to 7",
		"--rnr-retry 8":            "7 is for ever",
		"--min-rnr-timer 640":      "12 is 0.64 ms, and 0 is the longest",
		"--cm-response-timeout 40": "CM response time-out 40: it is 0 to 31",
		"--cm-retries 16":          "4 bits",
		"--lifetime=-1":            "packet life time -1",
		"--timeout x":              "--timeout",
	} {
		code, out, errOut := devxlab("", append([]string{"cm", "timeout"}, strings.Fields(args)...)...)
		if code != exitUsage || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit code %d, %q, want %q", args, code, errOut, want)
		}
	}
}

func TestCMCauses(t *testing.T) {
	code, out, errOut := devxlab("", "cm", "causes", "rejected,", "error", "10")
	if code != exitOK || errOut != "" || !strings.HasPrefix(out, "REJECTED 10: ") || !strings.Contains(out, "  1. the old connection, at the peer\n       rdma res show cm_id") {
		t.Errorf("exit code %d\n%s%s", code, out, errOut)
	}
	if _, out, _ := devxlab("", "cm", "causes"); strings.Count(out, "\n") != len(timeout.Causes) {
		t.Error(out)
	}
	if code, _, errOut := devxlab("", "cm", "causes", "blue"); code != exitUsage || !strings.Contains(errOut, `nothing is known of "blue"`) {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	var found []timeout.Cause
	if _, out, _ := devxlab("", "cm", "causes", "-o", "json", "--", "-110"); json.Unmarshal([]byte(out), &found) != nil || len(found) < 4 {
		t.Errorf("%d causes of -110", len(found))
	}
}
