// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"context"
	"fmt"
	"testing"

	"devxlab.example/batch"
	"devxlab.example/mlx5"
)

// The benchmarks tell what this code and the emulated device behind it cost for
// each transition, with commands that take no time themselves.

func BenchmarkSerial(b *testing.B) { transitions(b, batch.Serial()) }

func BenchmarkParallel(b *testing.B) {
	for _, depth := range []int{1, 4, 16, 31} {
		b.Run(fmt.Sprint(depth), func(b *testing.B) { transitions(b, batch.Parallel(depth)) })
	}
}

// transitions makes b.N of them in groups of 32, of a queue pair each.
func transitions(b *testing.B, s batch.Strategy) {
	d := open(b)
	const group = batch.DefaultGroup
	eps := mixed(b, d, group)
	bt := newBatch(b, d, batch.Options{Strategy: s})
	if _, err := bt.ToRTS(context.Background(), eps); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for left := b.N; left > 0; left -= group {
		bt.Reset()
		for i := range min(left, group) {
			if err := batch.Add(bt, eps[i].QP, mlx5.RTS2RTS{}, 0); err != nil {
				b.Fatal(err)
			}
		}
		if err := bt.Run(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	mean, _ := bt.InFlight()
	b.ReportMetric(mean, "in-flight")
}
