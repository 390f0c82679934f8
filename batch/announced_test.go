// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// Whether who calls Run is announced to the clock or not, and whoever is last:
// afterwards as many are announced as before.
func TestAnnounced(t *testing.T) {
	const most = 40
	for _, announced := range []bool{false, true} {
		for _, s := range []batch.Strategy{batch.Serial(), batch.Parallel(1), batch.Parallel(2), batch.Parallel(8), batch.Parallel(31)} {
			t.Run(fmt.Sprint(s.Name(), announced), func(t *testing.T) {
				d, _ := emulate(t, virtual)
				b := newBatch(t, d, batch.Options{Strategy: s, Announced: announced})
				qps := newQPs(t, d, most)
				for n := range most {
					b.Reset()
					addToERR(t, b, qps[:n])
					if announced {
						d.Busy(1)
					}
					if err := b.Run(context.Background()); err != nil {
						t.Fatal(err)
					}
					if announced {
						d.Busy(-1)
					}
				}
				defer func() {
					if recover() == nil {
						t.Error("somebody is announced still")
					}
				}()
				d.Busy(-1)
			})
		}
	}
}

// OnSend is called once for each entry that is sent, before its call.
func TestOnSend(t *testing.T) {
	var mu sync.Mutex
	told := map[uint64]int{}
	sent := 0
	d := openStub(t, func(mlx5.Op, uint32) unix.Errno {
		mu.Lock()
		defer mu.Unlock()
		if sent++; sent > len(told) {
			t.Error("a call before OnSend")
		}
		return 0
	})
	b := newBatch(t, d, batch.Options{Depth: 4, OnSend: func(tag uint64) {
		mu.Lock()
		defer mu.Unlock()
		told[tag]++
	}})
	addToERR(t, b, newQPs(t, d, 50))
	if err := b.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	for tag := range uint64(50) {
		if told[tag] != 1 {
			t.Errorf("%d: %d times", tag, told[tag])
		}
	}
}

// Close says how many commands it waits for.
func TestCloseTells(t *testing.T) {
	told := 0
	d, e := emulate(t, virtual)
	b := newBatch(t, d, batch.Options{Depth: 3, OnWait: func(n int) { told = n }})
	qps := newQPs(t, d, 10)
	addToERR(t, b, qps)
	h := hold(context.Background(), t, b, e, 3)
	closing := make(chan error)
	go func() { closing <- b.Close() }()
	until(t, "Close", func() bool { return errors.Is(batch.Add(b, qps[0], mlx5.ToERR{}, 0), devx.ErrClosed) })
	if n, err := h.end(); n != 3 || err == nil {
		t.Errorf("%d were sent, %v", n, err)
	}
	if err := <-closing; err != nil || told != 3 {
		t.Errorf("Close: %v, told %d", err, told)
	}
}
