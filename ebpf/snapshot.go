// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/mlx5"
)

// Snapshot is what has been counted since Attach.
type Snapshot struct {
	Counts   []Count   `json:"counts"`
	Times    []Times   `json:"times"`
	Failures []Failure `json:"failures"`
	Lost     Lost      `json:"lost"`

	// Of connections; empty if CMEnd is not visible (Tracer.Coverage).
	ConnectionTimes []ConnectionTimes `json:"connection_times"`
	Endings         []Ending          `json:"endings"`
}

// Count is how often a stage was passed, by opcode; outside of Command to Awake there
// is none, and Op is 0.
type Count struct {
	Stage Stage   `json:"stage"`
	Op    mlx5.Op `json:"op"`
	N     uint64  `json:"n"`
}

// Times is how long a part took in commands with one opcode and one outcome. Of a
// Call the opcode is that of its first command, and the outcome is not known.
type Times struct {
	Part   Part        `json:"part"`
	Op     mlx5.Op     `json:"op"`
	Status mlx5.Status `json:"status"` // of the firmware
	Errno  unix.Errno  `json:"errno"`  // with which the driver gave up; then there is no status
	Histogram
}

// Failure is how often commands failed in one way.
type Failure struct {
	Op       mlx5.Op     `json:"op"`
	Status   mlx5.Status `json:"status"`
	Syndrome uint32      `json:"syndrome"`
	Errno    unix.Errno  `json:"errno"`
	N        uint64      `json:"n"`
}

// Lost says what was not seen, in numbers.
type Lost struct {
	Records     uint64 `json:"records"`     // the buffer was full
	Counts      uint64 `json:"counts"`      // no room for a further outcome of a command, way to fail, or bucket of connections; or an opcode above 4095
	Calls       uint64 `json:"calls"`       // too many in flight
	Returns     uint64 `json:"returns"`     // the kernel did not report a return
	Stamps      uint64 `json:"stamps"`      // completed, with time stamps that cannot be: no Slot, no Firmware
	Completions uint64 `json:"completions"` // answered, and the interrupt was not seen: no Slot, Firmware, Wake
	Async       uint64 `json:"async"`       // commands without a caller that waits: counted at Command only
	Connections uint64 `json:"connections"` // no room for another, or two peers that used one id at once
	Arrivals    uint64 `json:"arrivals"`    // a message of a connection manager was handled that was not seen to arrive
}

// The kernel programs' numbering of losses and buckets.
const (
	losses    = 9
	bucketSum = 0xffff

	bucketCount = 2048 // up to 2^37 ns
)

// Histogram is a distribution of durations in buckets of which none is wider than
// 1/64 of its values; up to 127 ns each nanosecond has its own.
type Histogram struct {
	n       uint64
	sum     uint64
	buckets []bucket // sorted
}

type bucket struct {
	index uint16
	n     uint64
}

// bucketSpan returns the smallest and the largest value of a bucket, in ns.
func bucketSpan(index uint16) (from, to uint64) {
	if index < 128 {
		return uint64(index), uint64(index)
	}
	e := uint(index)/64 - 1
	from = uint64(index-uint16(e)*64) << e
	return from, from + 1<<e - 1
}

// bucketOf is what the programs do: the last has all that is longer, too.
func bucketOf(v uint64) uint16 {
	e := uint(max(bits.Len64(v), 7) - 7)
	return min(uint16(e)<<6+uint16(v>>e), bucketCount-1)
}

// Count returns the number of values.
func (h Histogram) Count() uint64 { return h.n }

// Mean returns their mean, which is exact.
func (h Histogram) Mean() time.Duration {
	if h.n == 0 {
		return 0
	}
	return time.Duration(h.sum / h.n)
}

// Quantile returns the value below or at which a part q of the values is, 0 to 1. It
// is the middle of its bucket.
func (h Histogram) Quantile(q float64) time.Duration {
	rank, seen := max(uint64(q*float64(h.n)+0.5), 1), uint64(0)
	for _, b := range h.buckets {
		if seen += b.n; seen >= rank {
			from, to := bucketSpan(b.index)
			return time.Duration(from + (to-from)/2)
		}
	}
	return 0
}

// put takes a bucket as the programs have it, or the sum. Then sort is due.
func (h *Histogram) put(index uint16, n uint64) {
	if index == bucketSum {
		h.sum = n
		return
	}
	h.n += n
	h.buckets = append(h.buckets, bucket{index, n})
}

func (h *Histogram) sort() {
	slices.SortFunc(h.buckets, func(a, b bucket) int { return cmp.Compare(a.index, b.index) })
}

// add merges another.
func (h *Histogram) add(o Histogram) {
	h.n += o.n
	h.sum += o.sum
	all := slices.Concat(h.buckets, o.buckets)
	slices.SortFunc(all, func(a, b bucket) int { return cmp.Compare(a.index, b.index) })
	h.buckets = all[:0]
	for _, b := range all {
		if last := len(h.buckets) - 1; last >= 0 && h.buckets[last].index == b.index {
			h.buckets[last].n += b.n
			continue
		}
		h.buckets = append(h.buckets, b)
	}
}

// minus removes what was in an earlier state of the same histogram.
func (h *Histogram) minus(old Histogram) {
	h.n -= old.n
	h.sum -= old.sum
	buckets, i := h.buckets[:0:0], 0
	for _, b := range h.buckets {
		for i < len(old.buckets) && old.buckets[i].index < b.index {
			i++
		}
		if i < len(old.buckets) && old.buckets[i].index == b.index {
			b.n -= old.buckets[i].n
		}
		if b.n > 0 {
			buckets = append(buckets, b)
		}
	}
	h.buckets = buckets
}

// Since returns what was counted after an earlier snapshot of the same tracer.
func (s *Snapshot) Since(old *Snapshot) *Snapshot {
	d := &Snapshot{Lost: Lost{
		Records: s.Lost.Records - old.Lost.Records, Counts: s.Lost.Counts - old.Lost.Counts, Calls: s.Lost.Calls - old.Lost.Calls,
		Returns: s.Lost.Returns - old.Lost.Returns, Stamps: s.Lost.Stamps - old.Lost.Stamps, Completions: s.Lost.Completions - old.Lost.Completions,
		Async: s.Lost.Async - old.Lost.Async, Connections: s.Lost.Connections - old.Lost.Connections, Arrivals: s.Lost.Arrivals - old.Lost.Arrivals}}
	for _, c := range s.Counts {
		if c.N -= old.Count(c.Stage, c.Op); c.N > 0 {
			d.Counts = append(d.Counts, c)
		}
	}
	for _, t := range s.Times {
		for _, o := range old.Times {
			if o.Part == t.Part && o.Op == t.Op && o.Status == t.Status && o.Errno == t.Errno {
				t.minus(o.Histogram)
			}
		}
		if t.n > 0 {
			d.Times = append(d.Times, t)
		}
	}
	s.connectionsSince(old, d)
	for _, f := range s.Failures {
		for _, o := range old.Failures {
			if o.Op == f.Op && o.Status == f.Status && o.Syndrome == f.Syndrome && o.Errno == f.Errno {
				f.N -= o.N
			}
		}
		if f.N > 0 {
			d.Failures = append(d.Failures, f)
		}
	}
	return d
}

// Count returns how often a stage was passed by commands with an opcode; outside of
// Command to Awake the opcode does not matter.
func (s *Snapshot) Count(stage Stage, op mlx5.Op) uint64 {
	if stage < Command || stage > Awake {
		op = 0
	}
	for _, c := range s.Counts {
		if c.Stage == stage && c.Op == op {
			return c.N
		}
	}
	return 0
}

// Time returns the distribution of a part of commands with an opcode, whatever
// became of them.
func (s *Snapshot) Time(part Part, op mlx5.Op) (h Histogram) {
	for _, t := range s.Times {
		if t.Part == part && t.Op == op {
			h.add(t.Histogram)
		}
	}
	return h
}

// Snapshot reads what has been counted. Counting goes on meanwhile: a command that
// is under way may be in one number and not yet in another.
func (t *Tracer) Snapshot() (*Snapshot, error) {
	s := &Snapshot{}
	err := errors.Join(
		t.readCounts(s),
		readMap(t.objects.Maps["failures"], func(k commandFailureKey, n uint64) {
			s.Failures = append(s.Failures, Failure{mlx5.Op(k.Op), mlx5.Status(k.Status), k.Syndrome, unix.Errno(k.Error), n})
		}),
		t.readTimes(s))
	if err != nil {
		return nil, err
	}
	if err := t.readConnections(s); err != nil {
		return nil, err
	}
	lost := []*uint64{&s.Lost.Records, &s.Lost.Counts, &s.Lost.Calls, &s.Lost.Returns, &s.Lost.Stamps, &s.Lost.Completions, &s.Lost.Async,
		&s.Lost.Connections, &s.Lost.Arrivals}
	for i := range uint32(losses) {
		if err := t.objects.Maps["losses"].Lookup(i, lost[i]); err != nil {
			return nil, fmt.Errorf("losses: %w", err)
		}
	}
	s.sort()
	return s, nil
}

// readCounts reads the counts that are not 0.
func (t *Tracer) readCounts(s *Snapshot) error {
	c := new(commandStageCounts)
	if err := t.objects.Maps["counts"].Lookup(uint32(0), c); err != nil {
		return fmt.Errorf("counts: %w", err)
	}
	for stage := range specs {
		if n := c.Stages[stage]; n > 0 {
			s.Counts = append(s.Counts, Count{Stage: Stage(stage), N: n})
		}
	}
	for i := range c.Ops {
		for op, n := range c.Ops[i] {
			if n > 0 {
				s.Counts = append(s.Counts, Count{Command + Stage(i), mlx5.Op(op), n})
			}
		}
	}
	return nil
}

// readTimes reads the histograms of each outcome.
func (t *Tracer) readTimes(s *Snapshot) error {
	var k commandPartTimesKey
	all := new(commandPartTimes)
	i := t.objects.Maps["times"].Iterate()
	for i.Next(&k, all) {
		for part := range all.Parts {
			var h Histogram
			for index, n := range all.Parts[part].Buckets {
				if n > 0 {
					h.put(uint16(index), uint64(n))
				}
			}
			if h.sum = all.Parts[part].Sum; h.n > 0 {
				s.Times = append(s.Times, Times{Part(part), mlx5.Op(k.Op), mlx5.Status(k.Status), unix.Errno(k.Error), h})
			}
		}
	}
	if err := i.Err(); err != nil {
		return fmt.Errorf("histograms: %w", err)
	}
	return nil
}

func (s *Snapshot) sort() {
	s.sortConnections()
	slices.SortFunc(s.Counts, func(a, b Count) int { return cmp.Or(cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Op, b.Op)) })
	slices.SortFunc(s.Failures, func(a, b Failure) int {
		return cmp.Or(-cmp.Compare(a.N, b.N), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Syndrome, b.Syndrome), cmp.Compare(a.Errno, b.Errno), cmp.Compare(a.Status, b.Status))
	})
	slices.SortFunc(s.Times, func(a, b Times) int {
		return cmp.Or(cmp.Compare(a.Op, b.Op), cmp.Compare(a.Part, b.Part), cmp.Compare(a.Status, b.Status), cmp.Compare(a.Errno, b.Errno))
	})
}
