// SPDX-License-Identifier: BSD-2-Clause

package calibrate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"devxlab.example/emu/fw"
	"devxlab.example/internal/atomicfile"
)

// ErrExists is in the error of a profile that would replace a file.
var ErrExists = errors.New("exists already")

// WriteProfile writes a profile to a file, which it replaces only if force is
// set. Whatever happens, the file is afterwards what it was or the whole
// profile.
func WriteProfile(file string, p *fw.Profile, force bool) error {
	if err := Writable(file, force); err != nil {
		return err
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.Indent(&text, b, "", "  "); err != nil {
		return err
	}
	text.WriteByte('\n')
	write := atomicfile.Create
	if force {
		write = atomicfile.Write
	}
	err = write(file, func(w io.Writer) error {
		_, err := w.Write(text.Bytes())
		return err
	})
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("calibrate: %s %w: --force replaces it", file, ErrExists)
	case err != nil:
		return fmt.Errorf("calibrate: the profile is not written: %w", err)
	}
	return nil
}

// Writable reports now what would otherwise be lost later: that the file exists
// and force is not set, or that nothing can be made beside it.
func Writable(file string, force bool) error {
	st, err := os.Lstat(file)
	switch {
	case err == nil && st.IsDir():
		return fmt.Errorf("calibrate: %s is a directory: name a file", file)
	case err == nil && !force:
		return fmt.Errorf("calibrate: %s %w: --force replaces it", file, ErrExists)
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*")
	if err != nil {
		return fmt.Errorf("calibrate: the profile cannot be written: %w", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// WriteText writes the result for people.
func (r *Result) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s (place: %s, clock: %s), firmware %s: %d commands in %v\n", r.Device, r.Place, r.Clock, orUnknown(r.Firmware), r.Commands, r.Took.Round(time.Millisecond))
	if r.Place == "emu" {
		fmt.Fprintln(&b, "The device is emulated: all of this is what its profile was told.")
	}
	b.WriteByte('\n')
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "figure\tvalue\tlow\thigh\tcommands\tconfidence")
	for i := range r.Figures {
		f := &r.Figures[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\n", f.Name, f.text(f.Value), f.text(f.Low), f.text(f.High), f.N, f.Confidence)
	}
	fmt.Fprintln(t, "\t\t\t\t\t\nlatency\tmedian\tlow\thigh\tcommands\tconfidence\tP90\tP99\tP99.9")
	for i := range r.Ops {
		l := &r.Ops[i]
		tail := func(v int64) string {
			if v == 0 {
				return "-"
			}
			return l.text(v)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", l.Name, l.text(l.Value), l.text(l.Low), l.text(l.High), l.N, l.Confidence, tail(l.P90), tail(l.P99), tail(l.P999))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, f := range r.Figures {
		if f.Note != "" {
			fmt.Fprintf(&b, "\n%s: %s.", f.Name, f.Note)
		}
	}
	b.WriteString("\nLatencies are without submit. Low and high: 95 % bootstrap interval of the median. A dash: too few samples, or nothing.\n")
	for _, n := range r.Notes {
		fmt.Fprintln(&b, n)
	}
	_, err := w.Write(b.Bytes())
	return err
}
