// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText writes the result for people: where, what was measured, what it
// says.
func (r *Result) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s\n", strings.ToUpper(r.Experiment), r.Question)
	fmt.Fprintf(&b, "measured in: %s\n", r.Provenance.Where())
	if r.Provenance.Place == PlaceEmu {
		b.WriteString("             emulated: what a command takes is what the profile was told, never a result\n")
	}
	b.WriteByte('\n')
	r.seriesTable(&b)
	r.ratioTable(&b)
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "- %s\n", f)
	}
	for _, v := range r.Verdicts {
		fmt.Fprintf(&b, "%s: %s. %s\n", v.Claim, v.Answer, v.Why)
	}
	if r.Interrupted {
		b.WriteString("INTERRUPTED: no verdict; what was measured until then is kept\n")
	}
	if r.Error != "" {
		fmt.Fprintf(&b, "ERROR: %s\n", r.Error)
	}
	fmt.Fprintf(&b, "(%s, steal %.1f %%)\n", r.Took.Round(100*time.Millisecond), 100*r.Provenance.Steal)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Result) seriesTable(w io.Writer) {
	if len(r.Series) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "series\tmedian\tP90\tmin\tmax\tn\tin flight\t")
	for _, s := range r.Series {
		flight := ""
		if s.InFlight > 0 {
			flight = fmt.Sprintf("%.1f", s.InFlight)
		}
		if s.Void != "" {
			flight += " void"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t\n", s.Name, nanos(float64(s.Summary.P50)), nanos(float64(s.Summary.P90)),
			nanos(float64(s.Summary.Min)), nanos(float64(s.Summary.Max)), s.Summary.N, flight)
	}
	_ = t.Flush() // into a strings.Builder, which cannot fail
	legend := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	last := ""
	for _, s := range r.Series {
		if s.What != last {
			fmt.Fprintf(legend, "  %s\t= %s\n", s.Name, s.What)
			last = s.What
		}
	}
	_ = legend.Flush()
	fmt.Fprintln(w)
}

func (r *Result) ratioTable(w io.Writer) {
	if len(r.Comparisons) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fmt.Fprintln(t, "A\tagainst B\tA/B, median [95 %]\tA is\tpairs")
	for _, c := range r.Comparisons {
		fmt.Fprintf(t, "%s\t%s\t%.3f [%.3f, %.3f]\t%s\t%d\n", c.A, c.B, c.Ratio.Median, c.Ratio.Low, c.Ratio.High, c.Ratio.Answer, c.Ratio.Pairs)
	}
	_ = t.Flush()
	fmt.Fprintln(w)
}
