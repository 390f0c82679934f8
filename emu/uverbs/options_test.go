// SPDX-License-Identifier: BSD-2-Clause

package uverbs

import (
	"errors"
	"strings"
	"testing"
	"time"

	"devxlab.example/devx"
	"devxlab.example/emu/fw"
	"devxlab.example/mlx5"
)

func TestBadOptions(t *testing.T) {
	for rest, part := range map[string]string{
		"nonsense":             `no option "nonsense": profile, latency, submit, per_1000_qps, cache, miss, threads, slots, clock, addr, log_max_qp, kernel, devx, seed, name`,
		",":                    `no option ""`,
		"seed=1,":              `no option ""`,
		"=1":                   `no option ""`,
		"name=a,name=b":        "option name is given twice",
		"profile=none":         "none",
		"profile=/no/such":     "/no/such",
		"latency=1":            "option latency=1: a duration such as 200us",
		"latency=-1us":         "option latency=-1us: 0 to",
		"latency=1000h":        "option latency=1000h: 0 to",
		"submit=x":             "option submit=x: a duration",
		"per_1000_qps=1":       "option per_1000_qps=1: a duration such as 200us",
		"per_1000_qps=66s":     "option per_1000_qps=66s: 0 to",
		"cache=0,miss=1us":     "option cache=0: a number from 1 to 4194304",
		"cache=4194305":        "option cache=4194305: a number from 1 to 4194304",
		"cache=1":              "options cache=N and miss=DURATION belong together: give both",
		"miss=0s":              "options cache=N and miss=DURATION belong together: give both",
		"cache=1,miss=-1us":    "option miss=-1us: 0 to",
		"threads=0":            "option threads=0: a number from 1 to 64",
		"threads=65":           "option threads=65: a number from 1 to 64",
		"threads=two":          "option threads=two: a number from 1 to 64",
		"slots=32":             "option slots=32: a number from 1 to 31",
		"slots=":               "option slots=: a number from 1 to 31",
		"clock=sundial":        "option clock=sundial: real, virtual, or virtual:NAME",
		"log_max_qp=23":        "option log_max_qp=23: a number from 1 to 22",
		"kernel=6":             "option kernel=6: a version such as 5.15",
		"kernel=6.1-rc1":       "option kernel=6.1-rc1: a version",
		"kernel=-1.2":          "option kernel=-1.2: a version",
		"kernel=six.1":         "option kernel=six.1: a version",
		"devx=maybe":           "option devx=maybe: on or off",
		"seed=-1":              "option seed=-1: a number",
		"seed=0x1ffffffffffff": "", // a good one
	} {
		d, err := devx.Open("emu:" + rest)
		if err == nil {
			err = errors.Join(errors.New("opened"), d.Close())
			if part == "" {
				continue
			}
		}
		if !strings.HasPrefix(err.Error(), "devx: open emu:"+rest+": ") || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v\nwant %q", rest, err, part)
		}
		if _, ok := Lookup("emu:" + rest); ok {
			t.Errorf("%s: a device stays", rest)
		}
	}
}

func TestOptions(t *testing.T) {
	d, err := devx.Open("emu:profile=published,latency=3ms,submit=1us,threads=2,slots=4,clock=virtual,log_max_qp=10,kernel=5.15,devx=on,seed=7,name=x")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	e, ok := Lookup(d.Name())
	if !ok {
		t.Fatal("not found")
	}
	p := e.HCA().Profile()
	if p.Threads != 2 || p.Slots != 4 || p.Latency(mlx5.OpNOP, 0.5) != 3*time.Millisecond || p.Submit.At(0.5) != time.Microsecond {
		t.Errorf("%+v", p)
	}
	if p.Name != "published+latency=3ms+submit=1µs+threads=2+slots=4" {
		t.Errorf("a report would call it %q", p.Name)
	}
	if _, ok := e.HCA().Clock().(*fw.VirtualClock); !ok {
		t.Errorf("%T", e.HCA().Clock())
	}
	caps, err := d.Caps()
	if err != nil || caps.LogMaxQP() != 10 {
		t.Errorf("log_max_qp %d, %v", caps.LogMaxQP(), err)
	}
	if e.outbox || e.since(5, 16) || !e.since(5, 15) || !e.since(4, 20) {
		t.Errorf("kernel %v", e.kernel)
	}
	if i := d.Info(); !i.Emulated || i.Name != d.Name() || len(i.Ports) != 1 || i.Stack.Kind != devx.StackUnknown {
		t.Errorf("%+v", i)
	}
}

// The terms that depend on the queue pairs are in the profile and in its name,
// and what commands take.
func TestContextOptions(t *testing.T) {
	d, err := devx.Open("emu:cache=2,miss=5us,per_1000_qps=1ms,latency=10us,clock=virtual")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	e, _ := Lookup(d.Name())
	p, clock := e.HCA().Profile(), e.HCA().Clock()
	if p.Name != "zero+latency=10µs+per_1000_qps=1ms+cache=2+miss=5µs" {
		t.Errorf("a report would call it %q", p.Name)
	}
	var qps [3]*devx.QP
	for i := range qps {
		if qps[i], err = d.NewQP(devx.QPConfig{}); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []time.Duration{18, 18, 18, 13, 13, 18} { // 3 live ones add 3 µs
		start := clock.Now()
		if _, err := qps[[]int{0, 1, 2, 2, 1, 0}[i]].Query(); err != nil {
			t.Fatal(err)
		}
		if took := clock.Now() - start; took != want*time.Microsecond {
			t.Errorf("query %d took %v, want %d µs", i, took, want)
		}
	}
}

// A name with every option is not too long.
func TestLongestName(t *testing.T) {
	d, err := devx.Open("emu:profile=published,latency=65s,submit=64.999999999s,threads=64,slots=31,per_1000_qps=64.999999999s,cache=4194304,miss=64.999999999s,clock=virtual")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}
