// SPDX-License-Identifier: BSD-2-Clause

package verify_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	_ "devxlab.example/emu/uverbs"
	"devxlab.example/internal/leaktest"
	"devxlab.example/internal/testdev"
	"devxlab.example/verify"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func ask(t *testing.T, name string) []verify.Answer {
	t.Helper()
	d, err := devx.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	a, err := verify.Ask(d)
	if err != nil {
		t.Fatal(name, err)
	}
	return a
}

// twin is an emulated device behind a kernel of this machine's version.
func twin(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("emu:kernel=%d.%d", major, minor)
}

// A kernel's device answers as the emulated one does behind a kernel of that
// version. Without one, the emulated device is held against itself.
func TestSameAnswers(t *testing.T) {
	emulated, kernel := ask(t, twin(t)), ask(t, testdev.Name(twin(t)))
	for _, d := range verify.Compare(emulated, kernel) {
		t.Errorf("%s\n\temulated: %s\n\tkernel:   %s", d.Question, d.A, d.B)
	}
	t.Logf("%d questions", len(kernel))
}

// Differences are found, whichever side has them.
func TestCompare(t *testing.T) {
	a := []verify.Answer{{"1", "yes"}, {"2", "no"}, {"3", "yes"}}
	b := []verify.Answer{{"1", "yes"}, {"2", "yes"}, {"4", "no"}}
	want := []verify.Difference{{"2", "no", "yes"}, {"4", "", "no"}, {"3", "yes", ""}}
	if got := verify.Compare(a, b); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	if got := verify.Compare(a, a); got != nil {
		t.Errorf("%+v", got)
	}
}

// A kernel that passes no firmware answer on differs from one that does.
func TestOldKernelDiffers(t *testing.T) {
	old, recent := ask(t, "emu:kernel=5.10"), ask(t, "emu:kernel=6.1")
	all := verify.Compare(old, recent)
	found := slices.ContainsFunc(all, func(d verify.Difference) bool {
		return d == verify.Difference{Question: "RC in RST: RTR2RTS_QP", A: "errno EINVAL, in RST", B: "status 0x10 BAD_QP_STATE, in RST"}
	})
	if !found {
		t.Errorf("%d differences; the expected one is not among them: %+v", len(all), all[:min(3, len(all))])
	}
}

// Questions are asked once, so that no answer hides another.
func TestQuestionsAreDistinct(t *testing.T) {
	a := ask(t, "emu:")
	slices.SortFunc(a, func(x, y verify.Answer) int { return strings.Compare(x.Question, y.Question) })
	for i := range a[1:] {
		if a[i].Question == a[i+1].Question {
			t.Errorf("twice: %s", a[i].Question)
		}
	}
	if len(a) < 3700 {
		t.Errorf("%d questions", len(a))
	}
}

// The order of the questions is always the same, since an answer may depend on
// what was asked before.
func TestOrder(t *testing.T) {
	questions := func() (all []string) {
		for _, a := range ask(t, "emu:") {
			all = append(all, a.Question)
		}
		return all
	}
	first, second := questions(), questions()
	for i, q := range first {
		if i >= len(second) || second[i] != q {
			t.Fatalf("question %d of %d: %s, and the second time another", i, len(first), q)
		}
	}
}
