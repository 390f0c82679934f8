// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"devxlab.example/internal/require"
)

var update = flag.Bool("update", false, "rewrite docs/fidelity.md and what the guest says, and docs/ebpf-stages.md")

const (
	reference   = "testdata/reference"
	guestFile   = reference + "/guest.txt"
	fidelityDoc = "../docs/fidelity.md"
	lspciGolden = "../emu/pci/testdata/lspci.txt" // of the function itself, which a test of that package keeps
)

// fidelityScript makes guestFile, part by part.
const fidelityScript = `uname -r
echo ==devinfo; ibv_devinfo -v
echo ==counters; rdma statistic show | tr ' ' '\n' | grep _
echo ==dmesg; dmesg | grep mlx5_core | sed 's/^\[ *[0-9.]*\] //'
echo ==devlink; devlink dev info
`

// difference is a fact in which card and emulated device may differ.
type difference struct{ part, fact, card, emulated string }

func (d difference) same() bool { return strings.EqualFold(d.card, d.emulated) }

const absent = "absent"

// TestFidelity holds what the emulated device says of itself against the
// reference card: a difference without a reason fails, and so does a reason
// without a difference.
func TestFidelity(t *testing.T) {
	parts := guestParts(t)
	all := slices.Concat(compareDevinfo(t, parts["devinfo"]), compareLspci(t), compareOrder(t, "dmesg", parts["dmesg"]), compareOrder(t, "counters", parts["counters"]))
	reasons := map[string]string{}
	for _, r := range table(t, "reasons.tsv", 3) {
		reasons[r[0]+" "+r[1]] = r[2]
	}
	used := map[string]bool{}
	for _, d := range all {
		key := d.part + " " + d.fact
		switch {
		case d.same():
		case reasons[key] == "":
			t.Errorf("%s: the card has %q, the emulated device %q, and reasons.tsv has no reason", key, d.card, d.emulated)
		default:
			used[key] = true
		}
	}
	for key := range reasons {
		if !used[key] {
			t.Errorf("%s: reasons.tsv has a reason, and there is no difference", key)
		}
	}
	if t.Failed() {
		return
	}
	doc := fidelityMarkdown(parts["kernel"], all, reasons)
	if *update {
		if err := os.WriteFile(fidelityDoc, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(fidelityDoc); err != nil || string(got) != doc {
		t.Errorf("%s is not what the test makes (%v): go test ./lab -run TestFidelity -update", fidelityDoc, err)
	}
}

// TestLabFidelity looks whether a guest still says what guestFile has.
func TestLabFidelity(t *testing.T) {
	o := realLab(t)
	o.Image, o.Kernel, o.Devices = ImageFull, DefaultKernel, 1
	if _, _, err := Fetch(t.Context(), o); err != nil {
		require.Have(t, "lab-full", err)
	}
	var out bytes.Buffer
	o.HCA, o.Stdout, o.Args = []string{o.Devxlab, "emu"}, &out, []string{"sh", "-c", fidelityScript}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(guestFile, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(guestFile)
	if err != nil {
		t.Fatal(err)
	}
	_, now, _ := strings.Cut(out.String(), "\n") // the kernel's own release may move on
	_, then, _ := strings.Cut(string(want), "\n")
	if now != then {
		t.Errorf("%s differs (go test ./lab -run TestLabFidelity -update writes it):\n%s", guestFile, out.String())
	}
}

// table reads a file of the reference: tab-separated columns.
func table(t *testing.T, name string, columns int) (rows [][]string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(reference, name))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		r := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(r) != columns {
			t.Fatalf("%s: %q has %d columns, not %d", name, line, len(r), columns)
		}
		rows = append(rows, r)
	}
	return rows
}

// guestParts splits guestFile.
func guestParts(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile(guestFile)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	name := "kernel"
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "=="); ok {
			name = strings.TrimSpace(n)
			continue
		}
		parts[name] += line
	}
	return parts
}

var (
	devinfoLine = regexp.MustCompile(`^\s*([a-z][a-z0-9 _]*?):\s*(.*)$`)
	devinfoGID  = regexp.MustCompile(`^\s*GID\[\s*(\d+)\]:\s*(\S+), (RoCE v\d)$`)
)

// parseDevinfo reads ibv_devinfo -v. What stands on lines of its own below an
// attribute becomes its value, in the recording's shorter words.
func parseDevinfo(text string) map[string]string {
	m := map[string]string{}
	prefix, last := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		word := strings.TrimSpace(line)
		gid := devinfoGID.FindStringSubmatch(line)
		attr := devinfoLine.FindStringSubmatch(line)
		switch {
		case word == "":
		case word == "tag matching not supported":
			m["tag matching"], last = "not supported", ""
		case gid != nil:
			kind := gid[2]
			if strings.HasPrefix(kind, "fe80:") {
				kind = "fe80"
			} else if strings.Contains(kind, "ffff:") {
				kind = "v4-mapped"
			}
			m["port.GID["+gid[1]+"]"] = kind + " " + gid[3]
		case attr != nil && attr[1] == "port":
			prefix, last = "port.", ""
		case attr != nil:
			if last = prefix + attr[1]; m[last] == "" {
				m[last] = attr[2]
			}
		case strings.HasSuffix(last, "_odp_caps"):
			m[last] = strings.TrimSpace(m[last] + " " + strings.TrimPrefix(word, "SUPPORT_"))
		case last == "raw packet caps":
			if m[last] != "" {
				m[last] += "; "
			}
			m[last] += strings.TrimSuffix(word, " offload")
		}
	}
	return m
}

func compareDevinfo(t *testing.T, text string) (all []difference) {
	t.Helper()
	m := parseDevinfo(text)
	for _, r := range table(t, "devinfo.tsv", 2) {
		v, ok := m[r[0]]
		if !ok || v == "" && strings.HasSuffix(r[0], "_odp_caps") {
			v = absent
		}
		all = append(all, difference{"devinfo", r[0], r[1], v})
	}
	return all
}

var capabilityAt = regexp.MustCompile(`Capabilities: \[([0-9a-f]+)( v\d+)?\]`)

func compareLspci(t *testing.T) (all []difference) {
	t.Helper()
	b, err := os.ReadFile(lspciGolden)
	if err != nil {
		t.Fatal(err)
	}
	var plain, extended []string
	for _, c := range capabilityAt.FindAllStringSubmatch(string(b), -1) {
		if c[2] == "" {
			plain = append(plain, c[1])
		} else {
			extended = append(extended, c[1])
		}
	}
	for _, r := range table(t, "lspci.tsv", 3) {
		v := absent
		switch r[0] {
		case "order of capabilities":
			v = strings.Join(plain, " ")
		case "order of extended capabilities":
			v = strings.Join(extended, " ")
		default:
			if g := regexp.MustCompile("(?m)" + r[1]).FindStringSubmatch(string(b)); g != nil {
				v = strings.Join(g[1:], " ")
			}
		}
		all = append(all, difference{"lspci", r[0], r[2], v})
	}
	return all
}

// compareOrder looks which lines are there, and whether in the card's order.
func compareOrder(t *testing.T, part, text string) (all []difference) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(text), "\n")
	columns := map[string]int{"dmesg": 2, "counters": 1}[part]
	last, place := -1, 0
	for _, r := range table(t, part+".tsv", columns) {
		e := regexp.MustCompile("^" + r[0] + "$")
		if columns > 1 {
			e = regexp.MustCompile(r[1])
		}
		d := difference{part, r[0], "there", absent}
		if at := slices.IndexFunc(lines, e.MatchString); at >= 0 {
			place++
			if d.emulated = "there"; at < last {
				d.emulated = "earlier"
			}
			last = max(last, at)
		}
		all = append(all, d)
	}
	if place == 0 {
		t.Errorf("%s: nothing of what the card says", part)
	}
	return all
}

const fidelityHead = `# Fidelity: the emulated device beside the card

What the emulated HCA says of itself, beside a ConnectX-6 Dx MCX623106AN-CDA with firmware 22.36.1010 (lab/testdata/reference has the
card's values, and where they were published). Of %d facts %d agree; each of the others has its reason here, and a difference
without one fails the test.

To make this again: ` + "`go test ./lab -run TestFidelity -update`" + `; what the guest says (Linux %s, rdma-core of Debian 12):
` + "`go test ./lab -run TestLabFidelity -update`" + `; configuration space: ` + "`go test ./emu/pci -update`" + `.
`

func fidelityMarkdown(kernel string, all []difference, reasons map[string]string) string {
	same := 0
	for _, d := range all {
		if d.same() {
			same++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, fidelityHead, len(all), same, strings.TrimSpace(kernel))
	for _, p := range []struct{ part, title, head string }{
		{"devinfo", "`ibv_devinfo -v`", "attribute"},
		{"lspci", "`lspci -vvv`", "fact"},
		{"dmesg", "The driver's lines at probe, in their order", "line"},
		{"counters", "`rdma statistic show`, in its order", "counter"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| %s | card | emulated | why it differs |\n|---|---|---|---|\n", p.title, p.head)
		for _, d := range all {
			if d.part != p.part {
				continue
			}
			why := ""
			if !d.same() {
				why = reasons[d.part+" "+d.fact]
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", d.fact, cell(d.card), cell(d.emulated), why)
		}
	}
	return b.String()
}
