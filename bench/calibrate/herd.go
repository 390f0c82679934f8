// SPDX-License-Identifier: BSD-2-Clause

package calibrate

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"devxlab.example/devx"
)

const (
	herdPoints = 9   // numbers of live queue pairs at which a command is timed
	probes     = 101 // commands that say whether contexts are at hand
)

// herd grows to many queue pairs, and measures what a command on one of them
// takes longer for that, and how many contexts the device keeps at hand. Both
// are looked at with one command at a time.
func (r *run) herd() error {
	if r.o.QPs == 0 {
		return nil
	}
	r.team.d.Busy(1)
	defer r.team.d.Busy(-1)
	var qps []*devx.QP
	type point struct {
		live int
		took time.Duration
	}
	var line []point
	n := 0
	for i := range herdPoints {
		for len(qps) < r.o.QPs*i/(herdPoints-1) {
			if err := r.progress("%d of %d queue pairs", len(qps), r.o.QPs); err != nil {
				return err
			}
			q, err := r.team.d.NewQP(devx.QPConfig{})
			if err != nil {
				return fmt.Errorf("queue pair %d: %w", len(qps)+flight, err)
			}
			qps = append(qps, q)
		}
		all, err := r.queries(r.team.kits[0].q, max(probes, r.o.Samples/herdPoints))
		if err != nil {
			return err
		}
		n += len(all)
		line = append(line, point{len(qps), median(all)})
	}
	var slopes []time.Duration // per 1000; Theil and Sen's, who take the median
	for i, a := range line {
		for _, b := range line[i+1:] {
			slopes = append(slopes, (b.took-a.took)*1000/time.Duration(b.live-a.live))
		}
	}
	slices.Sort(slopes)
	f := Figure{
		Name: "per_1000_qps", Unit: "ns", Value: int64(max(median(slopes), 0)), N: n, Confidence: Estimated,
		Low: int64(quantile(slopes, 0.05)), High: int64(quantile(slopes, 0.95)),
		Note: fmt.Sprintf("QUERY_QP on one queue pair at %d numbers of live ones, up to %d: the median of the slopes between any two, and the middle 90 %% of them", herdPoints, r.o.QPs+flight),
	}
	if f.Low <= 0 {
		f.Value, f.Confidence = 0, NotIdentifiable
		f.Note = "not identifiable: no growth that stands out. " + f.Note
	} else if f.Low == f.High {
		f.Confidence = Exact
	}
	r.Figures = append(r.Figures, f)
	return r.contexts(qps)
}

// queries times QUERY_QP on one queue pair; the first is not recorded.
func (r *run) queries(q *devx.QP, n int) ([]time.Duration, error) {
	all := make([]time.Duration, 0, n+1)
	for range n + 1 {
		took, err := r.timed(func(*kit) error {
			_, err := q.Query()
			return err
		})
		if err != nil {
			return nil, err
		}
		all = append(all, took)
	}
	return all[1:], nil
}

// contexts looks for the number of contexts that fit: whoever goes round over
// more misses every time, if what was used longest ago goes first.
func (r *run) contexts(qps []*devx.QP) error {
	hits, err := r.queries(qps[0], probes)
	if err != nil {
		return err
	}
	slices.Sort(hits)
	n := len(hits)
	// around goes round over k queue pairs, and times the beginning of the
	// second round.
	around := func(k int) ([]time.Duration, error) {
		if err := r.progress("going round over %d queue pairs", k); err != nil {
			return nil, err
		}
		var all []time.Duration
		for i := range k + min(k, probes) {
			took, err := r.timed(func(*kit) error {
				_, err := qps[i%k].Query()
				return err
			})
			if err != nil {
				return nil, err
			}
			if i%1024 == 0 && r.ctx.Err() != nil {
				return nil, r.ctx.Err()
			}
			if i >= k {
				all = append(all, took)
			}
		}
		slices.Sort(all)
		n += len(all)
		return all, nil
	}
	whole, err := around(len(qps))
	if err != nil {
		return err
	}
	_, hit := medianInterval(hits)
	least, most := medianInterval(whole)
	size := Figure{Name: "cache", N: n, Low: int64(len(qps)), High: 1 << 22, Value: int64(len(qps))}
	usual, missed := quantile(hits, 0.5), quantile(whole, 0.5)
	if least <= hit || missed-usual < usual/1000 {
		size.Confidence, size.N = NotIdentifiable, n
		size.Note = fmt.Sprintf("not identifiable: going round over %d queue pairs is not slower than staying at one; at least so many contexts fit, or a miss costs nothing. The profile has none", len(qps))
		r.Figures = append(r.Figures, size)
		return nil
	}
	limit := (usual + missed) / 2
	k := sort.Search(len(qps)-2, func(i int) bool { // i+2 is the least number that may miss
		if err != nil {
			return true
		}
		var all []time.Duration
		if all, err = around(i + 2); err != nil {
			return true
		}
		return quantile(all, 0.5) > limit
	})
	if err != nil {
		return err
	}
	fits := int64(k + 1)
	size = Figure{Name: "cache", Value: fits, Low: fits, High: fits, N: n, Confidence: r.certain(), Note: "contexts of queue pairs; as if what was used longest ago goes first"}
	low, high := medianInterval(hits)
	miss := Figure{
		Name: "miss", Unit: "ns", Value: int64(missed - usual), Low: int64(max(least-high, 0)), High: int64(most - low), N: len(whole), Confidence: Estimated,
		Note: fmt.Sprintf("QUERY_QP in turn over %d queue pairs, less QUERY_QP on one", len(qps)),
	}
	if miss.Low == miss.High {
		miss.Confidence = Exact
	}
	r.Figures = append(r.Figures, size, miss)
	return nil
}
