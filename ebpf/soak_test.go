// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"context"
	"flag"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

var traced = flag.Duration("traced", 2*time.Second, "how long TestTracedForLong traces")

// holds is what a process has, of what could leak.
type holds struct {
	descriptors, goroutines int
	heap, resident          uint64 // bytes
}

func held(t *testing.T) (h holds) {
	t.Helper()
	runtime.GC()
	runtime.GC() // what finalizers of the first one let go
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	statm, err := os.ReadFile("/proc/self/statm") // proc_pid_statm(5): size, resident, in pages
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseUint(strings.Fields(string(statm))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return holds{len(fds), runtime.NumGoroutine(), m.HeapAlloc, pages * uint64(os.Getpagesize())}
}

// What a long trace has at its end it had at its beginning: with eight threads that
// send commands all the time, a record of each, and a snapshot every second. In the
// kernel nothing is left of calls that have ended.
func TestTracedForLong(t *testing.T) {
	const threads = 8
	d := onKernel(t)
	tr := trace(t, Options{Filter: Filter{Processes: []int{os.Getpid()}}, Records: 4 << 20})
	reading, stop := context.WithCancel(t.Context())
	var reader, senders sync.WaitGroup
	var read, sent atomic.Uint64
	reader.Go(func() {
		for _, err := range tr.Records(reading) {
			if err != nil {
				t.Error(err)
				return
			}
			read.Add(1)
		}
	})
	before := snapshot(t, tr).Count(Awake, mlx5.OpRST2INIT)
	var over atomic.Bool
	for range threads {
		q, err := d.NewQP(devx.QPConfig{})
		if err != nil {
			t.Fatal(err)
		}
		senders.Go(func() {
			for !over.Load() && !t.Failed() {
				toggles(t, q, 1)
				sent.Add(1)
			}
		})
	}
	look := func(d time.Duration) {
		tick := time.NewTicker(min(time.Second, d))
		defer tick.Stop()
		for end := time.Now().Add(d); time.Now().Before(end) && !t.Failed(); <-tick.C {
			snapshot(t, tr)
		}
	}
	began := time.Now()
	look(*traced / 10)
	first := held(t)
	look(*traced * 9 / 10)
	last := held(t)
	over.Store(true)
	senders.Wait()
	took := time.Since(began)
	s := snapshot(t, tr)
	stop()
	reader.Wait()
	t.Logf("%v, %.0f commands a second; at first %+v, in the end %+v", took.Round(time.Millisecond), float64(2*sent.Load())/took.Seconds(), first, last)
	if last.descriptors != first.descriptors || last.goroutines != first.goroutines || last.heap > first.heap+1<<20 || last.resident > first.resident+8<<20 {
		t.Errorf("at first %+v, in the end %+v", first, last)
	}
	if n := s.Count(Awake, mlx5.OpRST2INIT) - before; n != sent.Load() || s.Lost != (Lost{Async: s.Lost.Async, Records: s.Lost.Records}) {
		t.Errorf("%d of %d commands, lost %+v", n, sent.Load(), s.Lost)
	}
	all := uint64(0)
	for _, c := range s.Counts {
		if c.Stage == Awake {
			all += c.N
		}
	}
	if read.Load()+s.Lost.Records != all {
		t.Errorf("%d records read and %d lost, of %d commands", read.Load(), s.Lost.Records, all)
	}
	for name, want := range map[string]int{"calls": 0, "entries": 0, "works": 0, "tasks": 1} {
		n := 0
		var key, value []byte
		for i := tr.objects.Maps[name].Iterate(); i.Next(&key, &value); {
			n++
		}
		if n != want {
			t.Errorf("map %s has %d entries, want %d", name, n, want)
		}
	}
}
