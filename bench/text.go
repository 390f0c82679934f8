// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// WriteText writes the result for people, 110 columns wide: where it was
// measured, what, and what that says.
func (r *Result) WriteText(w io.Writer) error {
	p := new(page)
	p.para(r.Question, strings.ToUpper(r.Experiment)+"  ")
	r.Provenance.text(p, r.Took)
	if e := experiment(r.Experiment); e.text != nil && len(r.Series) > 0 {
		e.text(r, p)
	}
	if r.KernelCost != nil {
		r.KernelCost.text(p)
	}
	if len(r.Findings)+len(r.Verdicts) > 0 {
		p.b.WriteByte('\n')
	}
	for _, f := range r.Findings {
		p.para(f, "- ")
	}
	for _, v := range r.Verdicts {
		why := v.Why
		if v.Where != "" {
			why += " → " + v.Where
		}
		p.para(why, fmt.Sprintf("%s: %s. ", v.Claim, v.Answer))
	}
	if r.Interrupted {
		p.para("what was measured until then is kept; there is no verdict", "\nINTERRUPTED: ")
	}
	if r.Error != "" {
		p.para(r.Error, "\nERROR: ")
	}
	_, err := io.WriteString(w, p.b.String())
	return err
}

// page is text under construction.
type page struct{ b strings.Builder }

const (
	pageWidth = 110
	indent    = "    "
)

// para writes a paragraph whose first line begins with mark. The others are
// indented, by as much as the mark if that is shorter.
func (p *page) para(text, mark string) {
	indent := indent[:min(len(indent), len(mark))]
	p.b.WriteString(mark)
	col := utf8.RuneCountInString(strings.TrimLeft(mark, "\n"))
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case col+1+n > pageWidth:
			p.b.WriteString("\n" + indent)
			col = len(indent)
		default:
			p.b.WriteByte(' ')
			col++
		}
		p.b.WriteString(word)
		col += n
	}
	p.b.WriteByte('\n')
}

// section begins a part of the text: a title that names the place, and a
// paragraph that says what stands below it.
func (p *page) section(title, about string) {
	fmt.Fprintf(&p.b, "\n%s\n", title)
	if about != "" {
		p.para(about, indent)
	}
}

// table writes rows below a head. A column is aligned to the right, or to the
// left where align has an l for it.
func (p *page) table(align string, head []string, rows ...[]string) {
	width := make([]int, len(head))
	all := append([][]string{head}, rows...)
	for _, row := range all {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range all {
		var line strings.Builder
		line.WriteString(indent)
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				line.WriteString("  ")
			}
			if align[i] == 'l' {
				line.WriteString(cell + pad)
			} else {
				line.WriteString(pad + cell)
			}
		}
		p.b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

// text says where the figures come from.
func (v Provenance) text(p *page, took time.Duration) {
	if v.Place == PlaceLab {
		p.para(fmt.Sprintf("place: lab (%s, firmware %s, driver %s). The kernel is real, in a virtual machine; the NIC is emulated: what a command takes is what its profile was told, and what the virtual machine adds, never a result about a card.", v.Device, v.Firmware, v.Stack), indent)
	} else if v.Place == PlaceEmu {
		p.para(fmt.Sprintf("place: emu (%s, profile %s). Kernel and NIC are emulated in this process: what a command takes is what a profile was told, never a result.", v.Device, v.Profile), indent)
	} else {
		p.para(fmt.Sprintf("place: hw (%s, firmware %s, driver %s)", v.Device, v.Firmware, v.Stack), indent)
	}
	steal := "steal unknown"
	if v.Steal.finite() {
		steal = fmt.Sprintf("steal %.1f %%", 100*float64(v.Steal))
	}
	load := ""
	if v.Load.finite() {
		load = fmt.Sprintf(", load %.3g", v.Load)
	}
	p.para(fmt.Sprintf("%s, %d CPUs%s, GOMAXPROCS %d unless another is given; Linux %s; %s; commit %s; took %.1f s; %s",
		v.CPU, v.CPUs, load, v.GOMAXPROCS, v.Kernel, v.Go, v.Commit, took.Seconds(), steal), indent)
}

// interval formats a ratio and its confidence interval.
func (r Ratio) interval() string {
	if !r.Median.finite() {
		return "no pairs"
	}
	return fmt.Sprintf("%s [%s, %s]", times(r.Median), times(r.Low), times(r.High))
}

// times formats a ratio.
func times(x Float) string {
	if x >= 999.5 && x < 1e15 {
		return count(int(x + 0.5))
	}
	if x < 0.1 || x >= 10 {
		return strconv.FormatFloat(float64(x), 'g', 3, 64)
	}
	return strconv.FormatFloat(float64(x), 'f', 3, 64)
}

// ratioCells are the ratio of two series, its answer and its pairs, for a table.
func (r *Result) ratioCells(a, b string) (ratio, answer, pairs string) {
	c := r.ComparisonOf(a, b)
	if c == nil {
		return "-", "-", "-"
	}
	answer = string(c.Ratio.Answer)
	if c.Void != "" {
		answer = "void: " + c.Void
	}
	return c.Ratio.interval(), answer, strconv.Itoa(c.Ratio.Pairs)
}

// nanos formats nanoseconds for people.
func nanos(ns float64) string {
	switch {
	case !Float(ns).finite():
		return "-"
	case ns < 999.5:
		return strconv.FormatFloat(ns, 'f', 0, 64) + " ns"
	case ns < 999.5e3:
		return fmt.Sprintf("%.3g µs", ns/1e3)
	case ns < 999.5e6:
		return fmt.Sprintf("%.3g ms", ns/1e6)
	}
	return fmt.Sprintf("%.3g s", ns/1e9)
}

// count formats a whole number with commas.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
