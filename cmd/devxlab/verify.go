// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/verify"
)

type verifyCmd struct {
	Device  string `arg:"" help:"Device name."`
	Against string `placeholder:"DEVICE" help:"Device to compare with; default: the emulated one, behind a kernel of this machine's version."`
}

const verifyHelp = `Ask a device some 3,800 questions, right and wrong ones, and compare its answers with another's: each transition in each
state, fields out of range, objects that are in use, which commands and events get through, a random walk. On a kernel's
device this shows whether the emulated one tells the truth about it.

It makes one to six queue pairs at a time, and destroys them; it posts no work request and sends no packet. Most commands
are meant to be refused. Exit code 1 if an answer differs.`

// Help is what the command's --help adds.
func (verifyCmd) Help() string { return verifyHelp }

// verifyReport is what verify prints as JSON.
type verifyReport struct {
	Device    string              `json:"device"`
	Against   string              `json:"against"`
	Questions int                 `json:"questions"`
	Different []verify.Difference `json:"different"` // a is Against, b is Device
}

// errDiffers is no failure of the program.
var errDiffers = errors.New("the devices differ")

func (c verifyCmd) Run(e *env) error {
	if c.Against == "" {
		c.Against = "emu:kernel=" + kernelVersion()
	}
	expected, err := ask(c.Against)
	if err != nil {
		return err
	}
	got, err := ask(c.Device)
	if err != nil {
		return err
	}
	r := verifyReport{c.Device, c.Against, len(got), verify.Compare(expected, got)}
	if r.Different == nil {
		r.Different = []verify.Difference{}
	}
	if e.asJSON {
		err = e.json(r)
	} else {
		err = r.print(e)
	}
	if err == nil && len(r.Different) > 0 {
		err = errDiffers
	}
	return err
}

func (r verifyReport) print(e *env) error {
	if len(r.Different) > 0 {
		rows := [][]string{{"question", r.Against, r.Device}}
		for _, d := range r.Different {
			rows = append(rows, []string{d.Question, d.A, d.B})
		}
		if err := e.table(rows); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(e.out, "%d questions: %d answered differently by %s and %s\n", r.Questions, len(r.Different), r.Device, r.Against)
	return err
}

func ask(name string) ([]verify.Answer, error) {
	d, err := open(name)
	if err != nil {
		return nil, err
	}
	answers, err := verify.Ask(d)
	if cerr := d.Close(); !errors.Is(cerr, devx.ErrDeviceGone) {
		err = errors.Join(err, cerr)
	}
	return answers, err
}

// kernelVersion is major.minor of this machine's kernel.
func kernelVersion() string {
	var u unix.Utsname
	var major, minor int
	if err := unix.Uname(&u); err == nil {
		_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	}
	return fmt.Sprintf("%d.%d", major, minor)
}
