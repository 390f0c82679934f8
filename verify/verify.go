// SPDX-License-Identifier: BSD-2-Clause

// Package verify asks a device the same questions in the same order, right and
// wrong ones, so that the answers of two devices can be laid side by side: those
// of a kernel with its driver, and those of the emulated device inside the
// process that claims to answer the same.
//
// It posts no work request and moves no packet, and every object that it makes
// is gone when it returns.
//
//	a, err := verify.Ask(emulated)
//	b, err := verify.Ask(kernel)
//	for _, d := range verify.Compare(a, b) {
//		fmt.Println(d.Question, d.A, d.B)
//	}
package verify

import (
	"cmp"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// Answer is what a device said to one question.
type Answer struct {
	Question string `json:"question"`
	Said     string `json:"said"`
}

// Ask puts every question to a device and returns its answers, in an order that
// is always the same. An error means that the device could not be asked on: it
// is gone, or an object that all questions need cannot be made.
func Ask(d *devx.Device) ([]Answer, error) {
	a := &asker{d: d}
	for _, ask := range []func() error{a.transitions, a.attributes, a.walk, a.objects, a.opcodes, a.events} {
		if err := ask(); err != nil {
			return a.answers, err
		}
	}
	return a.answers, nil
}

type asker struct {
	d       *devx.Device
	answers []Answer
}

func (a *asker) note(said string, question string, args ...any) {
	a.answers = append(a.answers, Answer{fmt.Sprintf(question, args...), said})
}

// words is what an error says about who refused what, without what differs from
// one device to another: numbers of objects, and syndromes, which are private to
// the emulated device.
func words(err error) string {
	var cmd *devx.CommandError
	var attr *mlx5.AttrError
	var errno unix.Errno
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &attr):
		return "refused by the encoder"
	case errors.As(err, &cmd) && cmd.HasOutbox:
		return fmt.Sprintf("status %#x %v", uint8(cmd.Status), cmd.Status)
	case errors.As(err, &errno):
		return "errno " + cmp.Or(unix.ErrnoName(errno), errno.Error())
	}
	return "refused by the library"
}

// gone reports whether nothing more can be asked. An error may look as if the
// device were gone (before Linux 5.18 a wrong length does), so it is asked.
func (a *asker) gone(err error) bool {
	if !errors.Is(err, devx.ErrDeviceGone) && !errors.Is(err, devx.ErrClosed) {
		return false
	}
	_, err = a.d.EQN(0)
	return err != nil
}

// A Difference is a question that two devices answered differently.
type Difference struct {
	Question string `json:"question"`
	A        string `json:"a"` // "" if it was not asked there
	B        string `json:"b"`
}

// Compare returns where two devices' answers differ, in the order of b's.
func Compare(a, b []Answer) []Difference {
	said := make(map[string]string, len(a))
	for _, x := range a {
		said[x.Question] = x.Said
	}
	var all []Difference
	for _, y := range b {
		x, asked := said[y.Question]
		delete(said, y.Question)
		if !asked || x != y.Said {
			all = append(all, Difference{y.Question, x, y.Said})
		}
	}
	for _, x := range a {
		if _, left := said[x.Question]; left {
			all = append(all, Difference{x.Question, x.Said, ""})
		}
	}
	return all
}
