// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"devxlab.example/ebpf"
	"devxlab.example/internal/require"
	"devxlab.example/mlx5"
)

// checkTimeline reports what is wrong with a file in the trace event format, as far as
// Perfetto's importer cares: which members each kind of event has, that slices of a
// thread follow or contain each other, that what begins without a thread ends, inner ones
// first, and that each thread and process has a name.
func checkTimeline(b []byte) error {
	var file struct {
		TraceEvents []map[string]json.RawMessage `json:"traceEvents"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return err
	}
	c := timelineCheck{slices: map[string][]span{}, open: map[string][]string{}, named: map[string]bool{}, used: map[string]bool{}}
	for i, e := range file.TraceEvents {
		if err := c.event(e); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	return c.end()
}

type span struct{ from, to int64 }

type timelineCheck struct {
	slices      map[string][]span
	open        map[string][]string
	last        map[string]int64
	named, used map[string]bool
}

// ns reads a number of µs with up to three further digits.
func ns(raw json.RawMessage) (int64, error) {
	whole, frac, _ := strings.Cut(string(raw), ".")
	n, err := strconv.ParseInt(whole+(frac + "000")[:3], 10, 64)
	if err != nil || len(frac) > 3 || n < 0 {
		return 0, fmt.Errorf("%s is no time in µs", raw)
	}
	return n, nil
}

func (c *timelineCheck) event(e map[string]json.RawMessage) error {
	kind := string(e["ph"])
	want, known := map[string][]string{`"X"`: {"name", "ph", "ts", "dur", "pid", "tid"}, `"M"`: {"name", "ph", "pid", "tid", "args"},
		`"b"`: {"name", "ph", "ts", "pid", "tid", "cat", "id"}, `"n"`: {"name", "ph", "ts", "pid", "tid", "cat", "id"}, `"e"`: {"name", "ph", "ts", "pid", "tid", "cat", "id"}}[kind]
	if !known {
		return fmt.Errorf("phase %s", kind)
	}
	for _, member := range want {
		if len(e[member]) == 0 || string(e[member]) == `""` {
			return fmt.Errorf("%s has no %s", kind, member)
		}
	}
	process, thread := string(e["pid"]), string(e["pid"])+"/"+string(e["tid"])
	if kind == `"M"` {
		var args struct{ Name string }
		if err := json.Unmarshal(e["args"], &args); err != nil || args.Name == "" {
			return fmt.Errorf("no name: %s", e["args"])
		}
		c.named[map[string]string{`"process_name"`: process, `"thread_name"`: thread}[string(e["name"])]] = true
		return nil
	}
	c.used[process], c.used[thread] = true, true
	at, err := ns(e["ts"])
	if err != nil {
		return err
	}
	id := process + string(e["cat"]) + string(e["id"])
	stack := c.open[id]
	switch kind {
	case `"X"`:
		dur, err := ns(e["dur"])
		if err != nil {
			return err
		}
		c.slices[thread] = append(c.slices[thread], span{at, at + dur})
	case `"b"`:
		c.open[id] = append(stack, string(e["name"]))
	case `"e"`:
		if len(stack) == 0 || stack[len(stack)-1] != string(e["name"]) {
			return fmt.Errorf("%s ends, and %v are open", e["name"], stack)
		}
		c.open[id] = stack[:len(stack)-1]
	}
	if kind != `"X"` {
		if c.last == nil {
			c.last = map[string]int64{}
		}
		if at < c.last[id] {
			return fmt.Errorf("%s at %d, after %d", e["name"], at, c.last[id])
		}
		c.last[id] = at
	}
	return nil
}

func (c *timelineCheck) end() error {
	for id, stack := range c.open {
		if len(stack) > 0 {
			return fmt.Errorf("%s: %v do not end", id, stack)
		}
	}
	for who := range c.used {
		if !c.named[who] {
			return fmt.Errorf("%s has no name", who)
		}
	}
	for thread, all := range c.slices {
		slices.SortStableFunc(all, func(a, b span) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to)) })
		var around []span
		for _, s := range all {
			for len(around) > 0 && around[len(around)-1].to <= s.from {
				around = around[:len(around)-1]
			}
			if len(around) > 0 && around[len(around)-1].to < s.to {
				return fmt.Errorf("thread %s: %v and %v overlap", thread, around[len(around)-1], s)
			}
			around = append(around, s)
		}
	}
	return nil
}

// The parts of a command follow each other below it; behind one that was not seen
// there is none.
func TestTraceChrome(t *testing.T) {
	rec := ebpf.Record{Began: 10 * time.Microsecond, Process: 1, Thread: 2, Name: "go", Op: mlx5.Op2RST, QPN: 5, Status: 3, Syndrome: 7}
	for p := range rec.Parts {
		rec.Parts[p] = time.Duration(p+1) * time.Microsecond
	}
	var l timeline
	l.command(&rec)
	b, err := json.Marshal(l.all())
	const want = `[{"name":"process_name","ph":"M","ts":0.000,"pid":1,"tid":2,"args":{"name":"go"}},{"name":"thread_name","ph":"M","ts":0.000,"pid":1,"tid":2,"args":{"name":"go"}},` +
		`{"name":"entry","ph":"X","ts":9.000,"dur":1.000,"pid":1,"tid":2},` +
		`{"name":"2RST_QP","ph":"X","ts":10.000,"dur":7.000,"pid":1,"tid":2,"args":{"outcome":"bad parameter","qpn":5,"syndrome":7,"uid":0}},` +
		`{"name":"prepare","ph":"X","ts":10.000,"dur":2.000,"pid":1,"tid":2},{"name":"queue","ph":"X","ts":12.000,"dur":3.000,"pid":1,"tid":2},` +
		`{"name":"slot","ph":"X","ts":15.000,"dur":4.000,"pid":1,"tid":2},{"name":"firmware","ph":"X","ts":19.000,"dur":5.000,"pid":1,"tid":2},` +
		`{"name":"wake","ph":"X","ts":24.000,"dur":6.000,"pid":1,"tid":2}]`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v\nwant %s", b, err, want)
	}
	rec.Parts[ebpf.Slot], rec.Parts[ebpf.Entry] = ebpf.NotSeen, ebpf.NotSeen
	l = timeline{}
	l.command(&rec)
	if got := l.events; len(got) != 3 || got[2].Name != "queue" {
		t.Errorf("%+v", got)
	}
}

// Whatever commands threads send at once, and whatever connections they have, the
// file is one that Perfetto takes.
func TestTraceTimeline(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		var l timeline
		for thread := range rapid.IntRange(0, 4).Draw(t, "threads") {
			at := time.Duration(rapid.Int64Range(1, 1<<50).Draw(t, "at"))
			for range rapid.IntRange(1, 4).Draw(t, "commands") {
				at = drawCommand(t, &l, uint32(thread), at)
			}
		}
		for range rapid.IntRange(0, 4).Draw(t, "connections") {
			drawConnection(t, &l)
		}
		n++
		file := filepath.Join(dir, strconv.Itoa(n))
		if err := l.write(file); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkTimeline(b); err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
	})
}

// drawCommand adds a command that begins at a time or later, and returns its end.
func drawCommand(t *rapid.T, l *timeline, thread uint32, at time.Duration) time.Duration {
	d := rapid.Map(rapid.Int64Range(0, 1e10), func(n int64) time.Duration { return time.Duration(n) })
	r := ebpf.Record{Process: 7, Thread: 7 + thread, Name: "go", Op: mlx5.Op2RST}
	seen := rapid.IntRange(0, 5).Draw(t, "parts seen")
	for i, p := range []ebpf.Part{ebpf.Prepare, ebpf.Queue, ebpf.Slot, ebpf.Firmware, ebpf.Wake} {
		x := d.Draw(t, p.String())
		r.Parts[ebpf.Whole] += x
		if r.Parts[p] = x; i >= seen {
			r.Parts[p] = ebpf.NotSeen
		}
	}
	entry := d.Draw(t, "entry")
	r.Began = at + entry
	if r.Parts[ebpf.Entry] = entry; rapid.Bool().Draw(t, "called by itself") {
		r.Parts[ebpf.Entry] = ebpf.NotSeen
	}
	l.command(&r)
	return r.Began + r.Parts[ebpf.Whole]
}

// drawConnection adds one of which some messages were seen, in an order that the wire
// allows.
func drawConnection(t *rapid.T, l *timeline) {
	c := ebpf.Connection{Passive: rapid.Bool().Draw(t, "passive"), Local: rapid.Uint32().Draw(t, "local"), Process: rapid.Uint32Range(0, 2).Draw(t, "process"), Name: "go"}
	at := time.Duration(rapid.Int64Range(1, 1<<50).Draw(t, "at"))
	step := func() time.Duration {
		at += time.Duration(rapid.Int64Range(0, 1e10).Draw(t, "step"))
		return at
	}
	one, other := &c.Sent, &c.Received
	if c.Passive {
		one, other = other, one
	}
	one[ebpf.REQ] = step()
	steps := rapid.IntRange(0, 5).Draw(t, "steps")
	for i, set := range []func(){func() { other[ebpf.REP] = step() }, func() { one[ebpf.RTU] = step() }, func() { one[ebpf.DREQ] = step() },
		func() { other[ebpf.DREP] = step() }, func() { c.Timewait = step() }} {
		if i < steps {
			set()
		}
	}
	if rapid.Bool().Draw(t, "rejected") {
		other[ebpf.REJ] = step()
	}
	if rapid.Bool().Draw(t, "ended") {
		c.Ended = step()
	}
	l.connection(&c)
}

// So it is of what a kernel says: of many threads' commands, and of connections that are
// open at the same time.
func TestOnTimeline(t *testing.T) {
	if kernelDevice == "" {
		require.Have(t, "kernel-device", errors.New("there is nothing to trace without a driver"))
	}
	file := filepath.Join(t.TempDir(), "timeline")
	const load = `devxlab cm server --count 21 & until devxlab cm client $0; do sleep 1; done; devxlab cm bench -n 19 -w 8 $0 & devxlab qp batch $1 --qps 100 & devxlab qp batch $1 --qps 100 & wait`
	address, err := exec.CommandContext(t.Context(), "sh", "-c", "ip -4 -o addr show dev $(ls /sys/class/infiniband/"+kernelDevice+"/device/net) | sed 's/.*inet //; s,/.*,,'").Output()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "devxlab", "trace", "--chrome", file, "--", "sh", "-c", load, strings.TrimSpace(string(address)), kernelDevice)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkTimeline(b); err != nil {
		t.Error(err)
	}
	commands, connections := bytes.Count(b, []byte(`"name":"RTR2RTS_QP"`)), bytes.Count(b, []byte(`connection","ph":"e"`))
	if commands < 200 || connections != 2*21 {
		t.Errorf("%d commands, %d ends of connections", commands, connections)
	}
}

// The check finds what it is there for.
func TestTraceTimelineCheck(t *testing.T) {
	const names = `{"name":"process_name","ph":"M","pid":1,"tid":1,"args":{"name":"x"}},{"name":"thread_name","ph":"M","pid":1,"tid":1,"args":{"name":"x"}},`
	slice := func(ts, dur string) string {
		return `{"name":"a","ph":"X","ts":` + ts + `,"dur":` + dur + `,"pid":1,"tid":1}`
	}
	async := func(ph, name, ts string) string {
		return `{"name":"` + name + `","ph":"` + ph + `","ts":` + ts + `,"pid":1,"tid":1,"cat":"c","id":"1"}`
	}
	for events, want := range map[string]string{
		names + slice("1.000", "2.000") + "," + slice("3.000", "1.000"):                                                     "",
		names + slice("1.000", "2.000") + "," + slice("2.999", "1.000"):                                                     "overlap",
		names + slice("1.000", "2.000") + "," + slice("1.000", "1.5"):                                                       "",
		names + slice("1.0001", "2.000"):                                                                                    "no time",
		names + slice("-1.000", "2.000"):                                                                                    "no time",
		slice("1.000", "2.000"):                                                                                             "has no name",
		names + `{"name":"a","ph":"X","ts":1,"pid":1,"tid":1}`:                                                              "no dur",
		names + `{"name":"a","ph":"Q","ts":1,"pid":1,"tid":1}`:                                                              "phase",
		names + async("b", "a", "1") + "," + async("b", "c", "1") + "," + async("e", "a", "2"):                              "are open",
		names + async("b", "a", "1"):                                                                                        "do not end",
		names + async("b", "a", "2") + "," + async("e", "a", "1"):                                                           "after",
		names + async("b", "a", "1") + "," + async("b", "c", "1") + "," + async("e", "c", "2") + "," + async("e", "a", "2"): "",
	} {
		err := checkTimeline(fmt.Appendf(nil, `{"traceEvents":[%s]}`, events))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", events, err, want)
		}
	}
	if err := checkTimeline(bytes.Repeat([]byte("{"), 3)); err == nil {
		t.Error("not JSON, and nothing is wrong")
	}
}
