// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// docHead begins the document of all kernels.
const docHead = `# The kernel patches, compared

Stock kernels against [the patches](../patches/README.md), each alone and all together. Each section is written by one run:
its command stands in it. ` + patchesAbout + `
`

// Marks around a kernel's section.
const (
	docBegin = "<!-- kernel %s -->\n"
	docEnd   = "<!-- end of kernel %s -->\n"
)

// PatchesDoc puts a comparison into a document with a section for each kernel series,
// "5.15": in the place of the section that is there, or in the order of the
// versions. An empty document gets its head, too.
func PatchesDoc(old []byte, r *Result) ([]byte, error) {
	if r.Patches == nil || r.Provenance.Kernel == "" {
		return nil, fmt.Errorf("bench: nothing was measured, so there is nothing to write")
	}
	series := kernelSeries(r.Provenance.Kernel)
	sections := map[string]string{}
	text := string(old)
	for {
		_, rest, found := strings.Cut(text, "<!-- kernel ")
		if !found {
			break
		}
		name, _, _ := strings.Cut(rest, " -->\n")
		end := fmt.Sprintf(docEnd, name)
		body, after, closed := strings.Cut(rest, end)
		if !closed {
			return nil, fmt.Errorf("bench: the section of kernel %s has no end %q", name, strings.TrimSpace(end))
		}
		sections[name], text = strings.TrimPrefix(body, name+" -->\n"), after
	}
	sections[series] = patchesMarkdown(r, series)
	var names []string
	for name := range sections {
		names = append(names, name)
	}
	slices.SortFunc(names, compareVersions)
	var b bytes.Buffer
	b.WriteString(docHead)
	for _, name := range names {
		fmt.Fprintf(&b, "\n"+docBegin+"%s"+docEnd, name, sections[name], name)
	}
	return b.Bytes(), nil
}

// kernelSeries is "5.15" of "5.15.178-devxlab".
func kernelSeries(release string) string {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return release
	}
	return parts[0] + "." + parts[1]
}

func compareVersions(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		m, errM := strconv.Atoi(x[i])
		n, errN := strconv.Atoi(y[i])
		if errM != nil || errN != nil {
			break
		}
		if m != n {
			return cmp.Compare(m, n)
		}
	}
	return cmp.Compare(a, b)
}

// patchesMarkdown is a kernel's section.
func patchesMarkdown(r *Result, series string) string {
	var b strings.Builder
	how, p := r.Patches, r.Provenance
	fmt.Fprintf(&b, "\n## Linux %s\n\n", series)
	fmt.Fprintf(&b, "Place: %s. Linux %s, patches applied to %s; QEMU %s, %s, %d CPU; %v for each command of the emulated device (firmware %s); %d rounds; %s, load %.3g; commit %s; %s, %s.\n\n",
		p.Place, p.Kernel, how.Tree, how.QEMU, accelerator(how.KVM), how.SMP, how.Latency, p.Firmware, how.Rounds, p.CPU, float64(p.Load), p.Commit, r.Started.UTC().Format(time.DateOnly), r.Took.Round(time.Second))
	fmt.Fprintf(&b, "```\n%s\n```\n\n", how.makeLine())
	fmt.Fprintf(&b, "%s\n", r.Method)
	if r.Interrupted {
		fmt.Fprintf(&b, "\n**Interrupted:** there is no verdict.\n")
	}
	for _, v := range r.Verdicts {
		fmt.Fprintf(&b, "\n**%s: %s.** %s", v.Claim, v.Answer, v.Why)
		if v.Where != "" {
			fmt.Fprintf(&b, " What is left can be decided by: %s.", v.Where)
		}
		b.WriteByte('\n')
	}
	if len(r.Findings) > 0 {
		b.WriteByte('\n')
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "- %s\n", f)
	}
	for _, t := range patchTables(r) {
		t.markdown(&b, p.Place)
	}
	b.WriteByte('\n')
	return b.String()
}

// makeLine makes the comparison again, on a machine whose directories have other places.
func (p *PatchRounds) makeLine() string {
	flags := fmt.Sprintf("--latency %v --smp %d", p.Latency, p.SMP)
	if parts := p.Variants[0].Parts; len(parts) < len(PatchedParts()) {
		flags += " --only " + strings.Join(parts, ",")
	}
	if p.NoKernelCost {
		flags += " --no-kernel-cost"
	}
	kbuild := ""
	if p.Kbuild != "" {
		kbuild = " KBUILD=" + p.Kbuild
	}
	return fmt.Sprintf("make patches-compare LINUX=linux-%s%s KERNEL=FILE MODULES=DIR ROUNDS=%d COMPAREFLAGS=%q", p.Tree, kbuild, p.Rounds, flags)
}

func (t *patchTable) markdown(b *strings.Builder, place string) {
	fmt.Fprintf(b, "\n### %s (%s)\n\n", t.title, place)
	if t.about != "" {
		fmt.Fprintf(b, "%s\n\n", t.about)
	}
	line := func(cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.head)
	var rule []string
	for i := range t.head {
		if t.align[i] == 'r' {
			rule = append(rule, "---:")
		} else {
			rule = append(rule, "---")
		}
	}
	line(rule)
	for _, row := range t.rows {
		cells := slices.Clone(row)
		for i := range cells {
			cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
		}
		line(cells)
	}
}
