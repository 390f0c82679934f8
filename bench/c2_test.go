// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bytes"
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"devxlab.example/timerfix"
)

// A whole run: what is deferred is usable later by the delay at least, and the
// verdict is a condition.
func TestC2(t *testing.T) {
	r, text := run(t, context.Background(), c2, Options{})
	for _, how := range []string{howNow, howTogether, howDeferred} {
		for _, what := range []string{"usable", "returns"} {
			s := r.SeriesOf(c2Name(how, what))
			if s == nil || len(s.Samples) != MinPairs {
				t.Fatalf("%s %s: %+v", how, what, s)
			}
			for _, ns := range s.Samples {
				if early := ns < float64(timerfix.ArticleDelay.Nanoseconds()); how == howDeferred && what == "usable" && early {
					t.Errorf("usable after %v ns", ns)
				}
			}
		}
	}
	if c := r.ComparisonOf(c2Name(howDeferred, "usable"), c2Name(howNow, "usable")); c == nil || c.Ratio.Answer != Worse {
		t.Errorf("%+v", c)
	}
	if len(r.Sweeps) != 3 || len(r.Verdicts) != 1 || r.Verdicts[0].Answer != OnlyBreakEven || r.Verdicts[0].Where == "" || !strings.Contains(r.Verdicts[0].Why, "the same batches without the delay are sooner at every load") {
		t.Errorf("%d sweeps, verdicts %+v", len(r.Sweeps), r.Verdicts)
	}
	// Where a line ends depends on the figures.
	words := strings.Join(strings.Fields(text), " ")
	for _, w := range []string{"1. A burst of queue pairs (emu", "2. Under load (emu, virtual clock)", "→ make bench DEV=mlx5_0; the kernel"} {
		if !strings.Contains(words, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

// Under load everything is exact: the same again and again, and with hardly any
// load a command's time, with the delay or without.
func TestC2Load(t *testing.T) {
	at := func(how string, rho float64) []float64 {
		t.Helper()
		took, err := c2LoadAt(context.Background(), how, timerfix.Article(), rho, 1)
		if err != nil {
			t.Fatal(err)
		}
		return took
	}
	for _, c := range []struct {
		how  string
		wait time.Duration
	}{{howNow, 0}, {howTogether, 0}, {howDeferred, time.Millisecond}} {
		for _, rho := range []float64{0.001, 0.5, 6} {
			took := at(c.how, rho)
			if again := at(c.how, rho); !reflect.DeepEqual(took, again) {
				t.Errorf("%s at %g: two runs differ", c.how, rho)
			}
			least := float64(c.wait + c2Command)
			for i, ns := range took {
				if ns < least {
					t.Errorf("%s at %g: queue pair %d usable after %v ns", c.how, rho, i, ns)
				}
			}
			if rho == 0.001 && Median(took) != least {
				t.Errorf("%s: alone it takes %v, not %v", c.how, Median(took), least)
			}
		}
	}
	// One by one is a queue that is never empty: the last one waits for the rest.
	if took := at(howNow, 1000); took[c2Arrivals-1] < float64(c2Command)*(c2Arrivals-10) {
		t.Errorf("the last of %d at once after %v ns", c2Arrivals, took[c2Arrivals-1])
	}
	// A scheduler sends eight at once.
	if took := at(howTogether, 1000); took[c2Arrivals-1] > float64(c2Command)*c2Arrivals/c2Threads*1.2 {
		t.Errorf("the last of %d at once after %v ns", c2Arrivals, took[c2Arrivals-1])
	}
}

func TestC2Verdict(t *testing.T) {
	for _, c := range []struct {
		place   string
		usable  float64 // deferred against now
		delay   float64 // against the same without delay
		answer  string
		contain string
	}{
		{PlaceHW, 0.5, 0.9, Supported, "the delay itself helps"}, {PlaceHW, 0.4, 1.4, NotDecidable, "the batch helps and the delay does not"},
		{PlaceHW, 2, 4, NotDecidable, "the delay does not help"}, {PlaceHW, 1, 1, NotDecidable, "do not tell"},
		{PlaceEmu, 2, 4, OnlyBreakEven, "with our own code alone"},
	} {
		r := &Run{seed: 1, Result: Result{Provenance: Provenance{Place: c.place, Profile: "zero"}}}
		add := func(how, what string, ns float64) *contender {
			return &contender{Series: Series{Name: c2Name(how, what), Samples: repeat(ns, MinPairs)}}
		}
		r.compare(add(howDeferred, "usable", c.usable*100), add(howNow, "usable", 100))
		r.compare(add(howDeferred, "usable", c.delay*100), add(howTogether, "usable", 100))
		r.compare(add(howDeferred, "returns", 50), add(howNow, "returns", 100))
		if v := c2Verdict(&r.Result); v.Claim != "C2" || v.Answer != c.answer || !strings.Contains(v.Why, c.contain) {
			t.Errorf("%s, %g: %+v", c.place, c.usable, v)
		}
	}
	if v := c2Verdict(&Result{}); v.Answer != NotDecidable {
		t.Errorf("%+v", v)
	}
}

// On hardware without room for as many queue pairs it says what is needed.
func TestC2NoRoom(t *testing.T) {
	var out bytes.Buffer
	_, err := Do(context.Background(), c2, Options{Device: "emu:log_max_qp=15,name=c2-small", asHardware: true, Quick: true, Announce: &out})
	if err == nil || !strings.Contains(err.Error(), "log_max_qp of 16 or more") {
		t.Error(err)
	}
}
