// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"devxlab.example/emu/uverbs"
	"devxlab.example/internal/qpparams"
	"devxlab.example/mlx5"
)

// A campaign in virtual time: a minute's changes at their instants, and nothing
// violated.
func TestC8(t *testing.T) {
	r, text := run(t, context.Background(), c8, Options{Device: "emu:clock=virtual,latency=200us,name=c8", Duration: time.Minute})
	c := r.Campaign
	// The last one is meant to begin when a minute is nearly over.
	if c.Changes != 30_000 || c.Checks != 2*c.Changes || c.Violations != 0 || c.Runs != 1 || c.Elapsed < time.Minute || c.Elapsed > time.Minute+10*time.Millisecond {
		t.Errorf("%+v", c)
	}
	for _, name := range []string{c8Meant, c8Service} {
		s := r.SeriesOf(name)
		if s == nil || s.Summary.N != c.Changes || s.Summary.P999 == 0 || s.Histogram == nil {
			t.Fatalf("%s: %+v", name, s)
		}
		// Three commands a change, one after the other, are less than 2 ms: each
		// begins when it is meant to, and takes what the profile says.
		if s.Summary.Min < 199_000 || s.Summary.Max > 201_000 {
			t.Errorf("%s: %+v", name, s.Summary)
		}
	}
	if len(r.Verdicts) != 1 || r.Verdicts[0].Answer != NotDecidable || !strings.Contains(r.Verdicts[0].Where, "--duration 8h") {
		t.Errorf("%+v", r.Verdicts)
	}
	if !strings.Contains(text, "30,000") || !strings.Contains(text, "500 a second for 1m0s") {
		t.Error(text)
	}
}

// Load that the device cannot take: latency counts from when a change was meant
// to begin, and the rate that was achieved is told.
func TestC8Overloaded(t *testing.T) {
	r, _ := run(t, context.Background(), c8, Options{Device: "emu:clock=virtual,latency=1ms,name=c8-slow", Duration: 10 * time.Second})
	c := r.Campaign
	if rate := float64(c.Changes) / c.Elapsed.Seconds(); rate < 332 || rate > 334 { // three commands a change
		t.Errorf("%.1f changes a second", rate)
	}
	meant, call := r.SeriesOf(c8Meant).Summary, r.SeriesOf(c8Service).Summary
	if call.Max > 1_001_000 || meant.Max < int64(3*time.Second) {
		t.Errorf("from the call %+v, from when it was meant %+v", call, meant)
	}
}

// Ctrl-C, and on: together they are one campaign.
func TestC8Resume(t *testing.T) {
	const device = "emu:clock=virtual,latency=200us,name=c8-resume"
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	o := Options{Device: device, Dir: dir, Duration: 20 * time.Second}
	o.step = func(label string) {
		if strings.Contains(label, "7s of 20s") {
			cancel()
		}
	}
	r, err := Do(ctx, c8, o)
	if err != nil || !r.Interrupted || len(r.Verdicts) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	first := r.Campaign.Changes
	if first < 3000 || first > 4000 {
		t.Fatalf("%d changes in 7 s", first)
	}
	// What it was asked for, it remembers.
	r, err = Do(context.Background(), c8, Options{Device: device, Dir: dir, Resume: true})
	if err != nil || r.Interrupted || len(r.Verdicts) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if c := r.Campaign; c.Changes < 9_990 || c.Changes > 10_010 || c.Runs != 2 || c.Violations != 0 || c.Elapsed < 20*time.Second {
		t.Errorf("%+v", c)
	}
	if n := r.SeriesOf(c8Service).Histogram.TotalCount(); n != r.Campaign.Changes {
		t.Errorf("%d in the histogram", n)
	}
	back, err := Load(filepath.Join(dir, "c8.json"))
	if err != nil || back.Campaign.Changes != r.Campaign.Changes || back.Interrupted {
		t.Errorf("%+v, %v", back, err)
	}
	// A finished one has nothing left to do; a longer one has.
	if r, err = Do(context.Background(), c8, Options{Device: device, Dir: dir, Resume: true, Duration: 30 * time.Second}); err != nil || r.Campaign.Changes < 14_990 {
		t.Errorf("%+v, %v", r.Campaign, err)
	}
}

func TestC8ResumeRefuses(t *testing.T) {
	const device = "emu:clock=virtual,name=c8-other"
	dir := t.TempDir()
	if _, err := Do(context.Background(), c8, Options{Device: device, Dir: dir, Duration: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"another device", Options{Device: "emu:clock=virtual,name=c8-another", Dir: dir}, "resume it there"},
		{"another profile", Options{Device: "emu:clock=virtual,profile=published,name=c8-other", Dir: dir}, "resume it there"},
		{"another rate", Options{Device: device, Dir: dir, Rate: 100}, "begin another one"},
		{"nothing", Options{Device: device, Dir: t.TempDir()}, "nothing to resume"},
	} {
		c.o.Resume = true
		if _, err := Do(context.Background(), c8, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// Refusing leaves what was there alone.
	path := filepath.Join(dir, "c8.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Load(path); err != nil || r.Campaign.Changes == 0 {
		t.Fatalf("after being refused the file has %v, %v", r, err)
	}
	if err := os.WriteFile(path, b[:len(b)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Do(context.Background(), c8, Options{Device: device, Dir: dir, Resume: true}); err == nil || !strings.Contains(err.Error(), "cannot be resumed") {
		t.Errorf("cut short: %v", err)
	}
}

// A queue pair that leaves its state behind the campaign's back is noticed, and
// on the emulated device that is a fault.
func TestC8Notices(t *testing.T) {
	const device = "emu:clock=virtual,name=c8-fault"
	n, faults := 0, int64(0)
	r, err := Do(context.Background(), c8, Options{Device: device, Duration: 10 * time.Second, step: func(string) {
		if n++; n == 1000 {
			emu, _ := uverbs.Lookup(device)
			for qpn := range uint32(1 << 10) {
				if emu.HCA().Fault(qpn, mlx5.StateErr) {
					faults++
				}
			}
		}
	}})
	if err == nil || !strings.Contains(err.Error(), "a fault of this module") {
		t.Fatal(err)
	}
	// One that is reset before anybody looks is not seen; a change that is refused
	// and the state that is then found are two.
	if c := r.Campaign; faults < 5 || c.Violations < faults/4 || c.Violations > 2*faults || !strings.Contains(strings.Join(c.First, "\n"), "is in ERR and must be in RTS") {
		t.Errorf("%d faults, %d violations: %q", faults, c.Violations, c.First)
	}
}

func TestC8Verdict(t *testing.T) {
	for _, c := range []struct {
		name   string
		c      Campaign
		answer string
	}{
		{"hours", Campaign{Rate: 500, Elapsed: 5 * time.Hour, Changes: 9_000_000}, Supported},
		{"too short", Campaign{Rate: 500, Elapsed: time.Minute, Changes: 30_000}, NotDecidable},
		{"too slow", Campaign{Rate: 500, Elapsed: 5 * time.Hour, Changes: 8_000_000}, NotDecidable},
		{"at another rate", Campaign{Rate: 1, Elapsed: 5 * time.Hour, Changes: 18_000}, NotDecidable},
		{"violated", Campaign{Rate: 500, Elapsed: time.Second, Changes: 500, Violations: 1, First: []string{"x"}}, Refuted},
	} {
		v := c8Verdict(&Result{Campaign: &c.c, Provenance: Provenance{Place: PlaceHW, Device: "mlx5_7"}})
		if v.Answer != c.answer || (v.Answer == NotDecidable) != strings.Contains(v.Where, "mlx5_7") {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
	if got := fmt.Sprint(percentiles(Summary{P50: 1000, Max: 5000})); got != "[1 µs - - - 5 µs]" {
		t.Error(got)
	}
}

// The counts of a campaign outlive its distributions, which are written beside
// them: a full disk may have taken the one and not the other.
func TestC8ResumeWithoutDistributions(t *testing.T) {
	const device = "emu:clock=virtual,name=c8-lost"
	for _, spoil := range []func(hlog string) error{
		os.Remove,
		func(hlog string) error { return os.Truncate(hlog, 30) },
	} {
		dir := t.TempDir()
		if _, err := Do(context.Background(), c8, Options{Device: device, Dir: dir, Duration: 10 * time.Second, Rate: 1000}); err != nil {
			t.Fatal(err)
		}
		if err := spoil(filepath.Join(dir, "c8.hlog")); err != nil {
			t.Fatal(err)
		}
		r, err := Do(context.Background(), c8, Options{Device: device, Dir: dir, Resume: true, Duration: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if c := r.Campaign; c.Changes < 19_990 || c.Runs != 2 || !c.Partial || r.SeriesOf(c8Service).Summary.N >= c.Changes {
			t.Errorf("%+v", c)
		}
	}
}

// A resumed campaign announces, does and notes what it was begun with.
func TestC8ResumeIsTheSame(t *testing.T) {
	const device = "emu:clock=virtual,name=c8-same"
	dir := t.TempDir()
	q := qpparams.Default()
	q.RNRRetry = 3
	o := Options{Device: device, Dir: dir, Duration: 4 * time.Second, Rate: 1000, QP: &q, Command: "devxlab bench c8 --rate 1000"}
	ctx, cancel := context.WithCancel(context.Background())
	o.step = func(label string) {
		if strings.HasPrefix(label, "2s of") {
			cancel()
		}
	}
	if _, err := Do(ctx, c8, o); err != nil {
		t.Fatal(err)
	}
	other := q
	other.RNRRetry = 2
	if _, err := Do(context.Background(), c8, Options{Device: device, Dir: dir, Resume: true, QP: &other}); err == nil || !strings.Contains(err.Error(), "begin another one") {
		t.Errorf("with other parameters: %v", err)
	}
	r, err := Do(context.Background(), c8, Options{Device: device, Dir: dir, Resume: true, Command: "devxlab bench c8"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(r.Method, "1000 changes of state a second") || r.Command != o.Command || r.Params["rnr_retry"] != 3 || r.Campaign.Wanted != o.Duration || r.Campaign.Violations > 0 {
		t.Errorf("%q, %q, %v, %+v", r.Method, r.Command, r.Params, r.Campaign)
	}
}

func TestC8ResumeNowhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "typo")
	if _, err := Do(context.Background(), c8, Options{Dir: dir, Resume: true}); err == nil || !strings.Contains(err.Error(), "nothing to resume") {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory was made")
	}
	if _, err := Do(context.Background(), micro, Options{Dir: t.TempDir(), Resume: true}); err == nil || !strings.Contains(err.Error(), "cannot be resumed") {
		t.Error(err)
	}
}

// What was written by hand is checked.
func TestC8Edited(t *testing.T) {
	dir := t.TempDir()
	if _, err := Do(context.Background(), c8, Options{Device: "emu:clock=virtual,name=c8-edited", Dir: dir, Duration: time.Second}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "c8.json")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, edit := range []struct{ from, to string }{
		{`"violations": 0`, `"violations": 1`}, {`"rate": 500`, `"rate": 1e12`}, {`"rate": 500`, `"rate": -5`}, {`"changes": 500`, `"changes": -7`}, {`"runs": 1`, `"runs": -1`},
	} {
		bad := strings.Replace(string(good), edit.from, edit.to, 1)
		if bad == string(good) {
			t.Fatalf("there is no %s in %s", edit.from, good)
		}
		if err := os.WriteFile(path, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "campaign") {
			t.Errorf("%s: %v", edit.to, err)
		}
	}
}

// Nobody makes more queue pairs than max_qp allows.
func TestMaxQP(t *testing.T) {
	q := qpparams.Default()
	q.MaxQP = 10
	for _, e := range []Experiment{c2, c6, c8} {
		if _, err := Do(context.Background(), e, Options{QP: &q}); err == nil || !strings.Contains(err.Error(), "max_qp is 10") {
			t.Errorf("%s: %v", e.Name, err)
		}
	}
}
