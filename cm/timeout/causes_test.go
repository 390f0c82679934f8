// SPDX-License-Identifier: BSD-2-Clause

package timeout

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the matrix into the document")

// What users paste finds what it is about.
func TestFind(t *testing.T) {
	for seen, want := range map[string][]string{
		"RDMA_CM_EVENT_ADDR_ERROR, error -110":           {"ADDR_ERROR -110"},
		"cma event RDMA_CM_EVENT_ROUTE_ERROR, error -22": nil, // "cma" is no word of it
		"RDMA_CM_EVENT_ROUTE_ERROR, error -22":           {"ROUTE_ERROR"},
		"ADDR_ERROR ENODEV":                              {"ADDR_ERROR -19"},
		"RDMA_CM_EVENT_UNREACHABLE, error: 2":            {"UNREACHABLE 1 to 5"},
		"UNREACHABLE -110":                               {"UNREACHABLE -110 of a client", "UNREACHABLE -110 of a server"},
		"RDMA_CM_EVENT_REJECTED, error 8":                {"REJECTED 8"},
		"REJECTED: reason 28":                            {"REJECTED 28"},
		"rejected 10":                                    {"REJECTED 10"},
		"rejected 4":                                     {"REJECTED 4"},
		"rejected 26":                                    {"REJECTED of another reason"},
		"stale connection":                               {"REJECTED 10"},
		"12/0x81":                                        {"completion 12/0x81"},
		"IBV_WC_RETRY_EXC_ERR":                           {"completion 12/0x81", "completion 13/0x87"}, // whose name is longer
		"completion 13/0x87":                             {"completion 13/0x87"},
		"5/0xf5":                                         {"completion 5/0xf9"},
		"modify ETIMEDOUT":                               {"errno 110 of RTR"},
		"errno 110 of RTR":                               {"errno 110 of RTR"},
		"DISCONNECTED":                                   {"DISCONNECTED"},
		"RDMA_CM_EVENT_DEVICE_REMOVAL":                   {"DEVICE_REMOVAL"},
		"TIMEWAIT_EXIT":                                  {"TIMEWAIT_EXIT"},
		"CONNECT_ERROR -22":                              {"CONNECT_ERROR"},
		"ENETUNREACH":                                    {"errno 101 of rdma_resolve_addr"},
		"blue":                                           nil,
		"RDMA_CM_EVENT_ADDR_ERROR REJECTED 12/0x81 which is none of either": nil,
	} {
		var got []string
		for _, c := range Find(seen) {
			got = append(got, c.Symptom)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", seen, got, want)
		}
	}
	if len(Find("")) != len(Causes) {
		t.Errorf("%d of %d", len(Find("")), len(Causes))
	}
}

// Each symptom finds itself, means something and has something to look at.
func TestCauses(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Causes {
		if seen[c.Symptom] || c.Means == "" || len(c.Look) == 0 || strings.HasSuffix(c.Means, ".") {
			t.Errorf("%+v", c)
		}
		seen[c.Symptom] = true
		if !slices.ContainsFunc(Find(c.Symptom), func(f Cause) bool { return f.Symptom == c.Symptom }) {
			t.Errorf("%s does not find itself", c.Symptom)
		}
		for _, l := range c.Look {
			if l.At == "" || l.Command == "" || l.Where != "" && l.Where != atPeer {
				t.Errorf("%s: %+v", c.Symptom, l)
			}
		}
	}
}

const (
	document = "../../docs/cm.md"
	begin    = "<!-- causes: go test ./cm/timeout -run TestDocument -update -->\n"
	end      = "<!-- end of causes -->\n"
)

// The matrix in the document is the one in the program.
func TestDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString("\n| seen | means | when | look at, in this order |\n|---|---|---|---|\n")
	for _, c := range Causes {
		var looks []string
		for i, l := range c.Look {
			where := ""
			if l.Where != "" {
				where = " (at the " + l.Where + ")"
			}
			looks = append(looks, fmt.Sprintf("%d. %s%s: `%s`", i+1, l.At, where, strings.ReplaceAll(l.Command, "|", `\|`)))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.Symptom, c.Means, c.When, strings.Join(looks, "<br>"))
	}
	b.WriteString("\n")
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	old, tail, also := strings.Cut(rest, end)
	if !ok || !also {
		t.Fatalf("%s has no place for the matrix", document)
	}
	if old == b.String() {
		return
	}
	if !*update {
		t.Fatalf("%s has another matrix: go test ./cm/timeout -run TestDocument -update", document)
	}
	if err := os.WriteFile(document, []byte(head+begin+b.String()+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}
