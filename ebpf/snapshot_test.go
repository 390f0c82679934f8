// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"bytes"
	"encoding/binary"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"devxlab.example/mlx5"
)

// Buckets leave no gap, do not overlap, and are at most 1/64 of their values wide.
func TestBuckets(t *testing.T) {
	next := uint64(0)
	for i := uint16(0); ; i++ {
		from, to := bucketSpan(i)
		if from != next || to < from || from > 0 && float64(to-from) > float64(from)/64 || bucketOf(from) != i || bucketOf(to) != i {
			t.Fatalf("bucket %d: %d to %d, begins at %d, of %d and %d", i, from, to, next, bucketOf(from), bucketOf(to))
		}
		if i == bucketCount-1 {
			if i >= bucketSum || to != 1<<37-1 || bucketOf(math.MaxUint64) != i || len(commandPartTimes{}.Parts[0].Buckets) != bucketCount {
				t.Errorf("%d buckets, up to %d", i+1, to)
			}
			return
		}
		next = to + 1
	}
}

func histogramOf(values []uint64) (h Histogram) {
	for _, v := range values {
		h.add(Histogram{n: 1, sum: v, buckets: []bucket{{bucketOf(v), 1}}})
	}
	return h
}

func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Uint64Range(0, 1<<37-1), 1, 50).Draw(t, "values")
		h := histogramOf(values)
		sum := uint64(0)
		for _, v := range values {
			sum += v
		}
		if h.Count() != uint64(len(values)) || h.Mean() != time.Duration(sum/uint64(len(values))) {
			t.Fatalf("%d values with mean %v", h.Count(), h.Mean())
		}
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		at := float64(h.Quantile(q))
		below, up := 0, 0 // values that are certainly below, and above
		for _, v := range values {
			if float64(v) < at*(1-1./64)-1 {
				below++
			}
			if float64(v) > at*(1+1./64)+1 {
				up++
			}
		}
		if n := float64(len(values)); float64(below) > q*n+0.5 || float64(up) > (1-q)*n+0.5 {
			t.Fatalf("quantile %v is %v: %d of %d values are below, %d above", q, at, below, len(values), up)
		}
	})
	if h := (Histogram{}); h.Mean() != 0 || h.Quantile(0.5) != 0 {
		t.Errorf("nothing has mean %v and median %v", h.Mean(), h.Quantile(0.5))
	}
}

// What was counted between two snapshots is the later one without the earlier.
func TestSince(t *testing.T) {
	times := func(op mlx5.Op, values ...uint64) Times {
		return Times{Part: Firmware, Op: op, Histogram: histogramOf(values)}
	}
	old := &Snapshot{
		Counts:   []Count{{Command, mlx5.Op2RST, 3}, {DevXModify, 0, 5}},
		Times:    []Times{times(mlx5.Op2RST, 10, 20, 20)},
		Failures: []Failure{{mlx5.Op2RST, 3, 7, 0, 2}, {mlx5.Op2RST, 3, 8, 0, 1}},
		Lost:     Lost{Records: 1, Async: 2},
	}
	now := &Snapshot{
		Counts:   []Count{{Command, mlx5.Op2RST, 4}, {DevXModify, 0, 5}, {Command, mlx5.Op2ERR, 9}},
		Times:    []Times{times(mlx5.Op2RST, 10, 20, 20, 20, 5000), times(mlx5.Op2ERR, 1)},
		Failures: []Failure{{mlx5.Op2RST, 3, 7, 0, 6}, {mlx5.Op2RST, 3, 8, 0, 1}, {mlx5.Op2ERR, 0, 0, unix.ETIMEDOUT, 1}},
		Lost:     Lost{Records: 4, Counts: 1, Calls: 2, Returns: 3, Stamps: 4, Completions: 5, Async: 2},
	}
	want := &Snapshot{
		Counts:   []Count{{Command, mlx5.Op2RST, 1}, {Command, mlx5.Op2ERR, 9}},
		Times:    []Times{times(mlx5.Op2RST, 20, 5000), times(mlx5.Op2ERR, 1)},
		Failures: []Failure{{mlx5.Op2RST, 3, 7, 0, 4}, {mlx5.Op2ERR, 0, 0, unix.ETIMEDOUT, 1}},
		Lost:     Lost{Records: 3, Counts: 1, Calls: 2, Returns: 3, Stamps: 4, Completions: 5},
	}
	got := now.Since(old)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if n := got.Count(DevXModify, mlx5.Op2RST); n != 0 {
		t.Errorf("%d calls", n)
	}
	if n := now.Count(DevXModify, mlx5.Op2RST); n != 5 {
		t.Errorf("%d calls, of whichever opcode", n)
	}
	if !reflect.DeepEqual(now.Since(&Snapshot{}), now) {
		t.Error("since the beginning there is not all")
	}
	if h := now.Time(Firmware, mlx5.Op2RST); h.Count() != 5 || h.Mean() != 1014 {
		t.Errorf("%d values with mean %d", h.Count(), h.Mean())
	}
}

func TestParseRecord(t *testing.T) {
	raw := commandRecord{Began: 5, Tgid: 1, Tid: 2, Qpn: 3, Syndrome: 4, Op: 0x50a, OpMod: 6, Uid: 7, Status: 8, Comm: [16]int8{'g', 'o'}}
	for i := range raw.Parts {
		raw.Parts[i] = uint64(i)
	}
	raw.Parts[Call] = math.MaxUint64
	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, raw); err != nil {
		t.Fatal(err)
	}
	want := Record{Began: 5, Process: 1, Thread: 2, Name: "go", Op: mlx5.Op2RST, OpMod: 6, UID: 7, QPN: 3, Status: 8, Syndrome: 4,
		Parts: [partCount]time.Duration{0, 1, 2, 3, 4, 5, 6, NotSeen}}
	if got, err := parseRecord(b.Bytes()); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	raw.Returned, raw.Status = -110, 0
	b.Reset()
	if err := binary.Write(&b, binary.NativeEndian, raw); err != nil {
		t.Fatal(err)
	}
	if got, err := parseRecord(b.Bytes()); err != nil || got.Errno != unix.ETIMEDOUT {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parseRecord(b.Bytes()[:40]); err == nil || !strings.Contains(err.Error(), "record of 40 bytes") {
		t.Error(err)
	}
}
