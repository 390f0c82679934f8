// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"devxlab.example/mlx5"
	"golang.org/x/sys/unix"
)

// Kind is what an Answer is about.
type Kind string

// Values of Kind.
const (
	KindCommand    Kind = "command"    // a firmware command: request, reply or log line
	KindErrno      Kind = "errno"      // what a system call returned
	KindCompletion Kind = "completion" // a work completion
	KindEvent      Kind = "event"      // an asynchronous event or a health report in the log
	KindAttribute  Kind = "attribute"  // a value of ibv_qp_attr, rdma_conn_param or the QP context
	KindTransition Kind = "transition" // a change of a queue pair's state
	KindName       Kind = "name"       // a file, function or phrase that is elsewhere or does not exist
)

// Answer is what is known about one observation.
type Answer struct {
	Kind    Kind
	Input   string // the text that Line was given; "" from the other functions
	Summary string // one line

	// What was recognised, each valid only with its Has field.
	Op           mlx5.Op
	HasOp        bool
	OpMod        uint16 // valid with HasOp; 0 where the text has none
	Status       mlx5.Status
	HasStatus    bool
	Syndrome     uint32
	HasSyndrome  bool
	Errno        unix.Errno // 0 if there is none
	WCStatus     uint8      // enum ibv_wc_status
	HasWCStatus  bool
	VendorErr    uint32 // vendor_err of struct ibv_wc
	HasVendorErr bool

	Meaning []string // what is known
	Check   []string // what to look at next, in this order
	Reports []Report // public reports of the syndrome or the completion
}

// Report is one public report: what somebody saw, not what firmware means.
type Report struct {
	Command      string `json:"command,omitempty"` // as the driver prints it; "" for a completion
	Status       string `json:"status,omitempty"`  // "" where the report does not tell
	Syndrome     uint32 `json:"syndrome"`          // of a completion its vendor_err
	Circumstance string `json:"circumstance"`
	Card         string `json:"card,omitempty"` // card, firmware or kernel
	Source       string `json:"source"`
	// Same is false where the command or the status is known to be another one.
	Same bool `json:"same"`
}

const emulatedMark = 0xde

// Emulated reports whether the syndrome comes from devxlab's emulated HCA,
// which marks its own with 0xDE in bits 31 to 24. Known syndromes of real
// firmware have 24 bits.
func (a Answer) Emulated() bool { return a.HasSyndrome && a.Syndrome>>24 == emulatedMark }

// MarshalJSON leaves out what was not recognised and adds the names of the
// numbers.
func (a Answer) MarshalJSON() ([]byte, error) {
	w := struct {
		Kind       Kind         `json:"kind"`
		Input      string       `json:"input,omitempty"`
		Summary    string       `json:"summary"`
		Op         string       `json:"op,omitempty"`
		Opcode     *mlx5.Op     `json:"opcode,omitempty"`
		OpMod      *uint16      `json:"op_mod,omitempty"`
		Status     *mlx5.Status `json:"status,omitempty"`
		StatusText string       `json:"status_text,omitempty"`
		Syndrome   *uint32      `json:"syndrome,omitempty"`
		Emulated   bool         `json:"emulated,omitempty"`
		Errno      int          `json:"errno,omitempty"`
		ErrnoName  string       `json:"errno_name,omitempty"`
		WCStatus   *uint8       `json:"wc_status,omitempty"`
		WCName     string       `json:"wc_status_name,omitempty"`
		VendorErr  *uint32      `json:"vendor_err,omitempty"`
		Meaning    []string     `json:"meaning"`
		Check      []string     `json:"check"`
		Reports    []Report     `json:"reports"`
	}{
		Kind: a.Kind, Input: a.Input, Summary: a.Summary, Emulated: a.Emulated(),
		Errno: int(a.Errno), ErrnoName: errnoName(a.Errno),
		Meaning: append([]string{}, a.Meaning...), Check: append([]string{}, a.Check...), Reports: append([]Report{}, a.Reports...),
	}
	if a.HasOp {
		w.Op, w.Opcode, w.OpMod = a.Op.String(), &a.Op, &a.OpMod
	}
	if a.HasStatus {
		w.Status, w.StatusText = &a.Status, statusWords(a.Status)
	}
	if a.HasSyndrome {
		w.Syndrome = &a.Syndrome
	}
	if a.HasWCStatus {
		w.WCStatus, w.WCName = &a.WCStatus, wcName(a.WCStatus)
	}
	if a.HasVendorErr {
		w.VendorErr = &a.VendorErr
	}
	return json.Marshal(w)
}

// WriteText writes the answer for a terminal of 80 columns. Control
// characters of the input do not reach it.
func (a Answer) WriteText(w io.Writer) error {
	var b strings.Builder
	wrap(&b, "", "", a.Summary)
	list := func(head string, items []string, numbered bool) {
		if len(items) > 0 {
			fmt.Fprintf(&b, "\n%s\n", head)
		}
		for i, s := range items {
			mark := "  - "
			if numbered {
				mark = fmt.Sprintf("%3d. ", i+1)
			}
			wrap(&b, mark, strings.Repeat(" ", len(mark)), s)
		}
	}
	list("What is known", a.Meaning, false)
	seen := make([]string, len(a.Reports))
	for i, r := range a.Reports {
		seen[i] = r.String()
	}
	list("Publicly reported", seen, false)
	list("Check next", a.Check, true)
	_, err := io.WriteString(w, b.String())
	return err
}

// String returns the report as one sentence.
func (r Report) String() string {
	var b strings.Builder
	for _, s := range []string{r.Command, r.Status} {
		if s != "" {
			b.WriteString(s + ", ")
		}
	}
	fmt.Fprintf(&b, "%#x: %s", r.Syndrome, r.Circumstance)
	if r.Card != "" {
		fmt.Fprintf(&b, " [%s]", r.Card)
	}
	fmt.Fprintf(&b, " (%s)", r.Source)
	if !r.Same {
		b.WriteString("; another command or status than yours")
	}
	return b.String()
}

func (a *Answer) mean(format string, args ...any) {
	a.Meaning = append(a.Meaning, fmt.Sprintf(format, args...))
}

func (a *Answer) check(items ...string) {
	for _, s := range items {
		if !slices.Contains(a.Check, s) {
			a.Check = append(a.Check, s)
		}
	}
}

// wrap breaks s at spaces, 80 columns wide.
func wrap(b *strings.Builder, first, rest, s string) {
	const width = 80
	b.WriteString(first)
	col := len(first)
	for i, word := range strings.Fields(printable(s)) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case col+1+n > width:
			b.WriteString("\n" + rest)
			col = len(rest)
		default:
			b.WriteByte(' ')
			col++
		}
		b.WriteString(word)
		col += n
	}
	b.WriteByte('\n')
}
