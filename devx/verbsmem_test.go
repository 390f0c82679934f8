// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/devx/abi"
	"devxlab.example/devx/devxtest"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

// places are the buffers and doorbell records of the queue pairs that were made.
func places(r *recorder) (bufs, records []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.got {
		if c.Method.Name == "CREATE_QP" {
			m := devx.ViewOf[abi.MLX5CreateQP](c.Driver)
			bufs, records = append(bufs, m.BufAddr), append(records, m.DBAddr)
		}
	}
	return bufs, records
}

// Doorbell records share pages, queues do not, and both are used again.
func TestVerbsMemory(t *testing.T) {
	r := &recorder{}
	d := stub(t, r)
	var qps []*devx.VerbsQP
	for range 65 {
		v, err := d.NewVerbsQP(devx.QPConfig{})
		must(t, err)
		qps = append(qps, v)
	}
	bufs, records := places(r)
	used := map[uint64]bool{}
	pages := map[uint64]int{}
	for i := range bufs {
		if bufs[i]%4096 != 0 || records[i]%64 != 0 || used[bufs[i]] || used[records[i]] {
			t.Errorf("queue pair %d: buffer %#x, doorbell record %#x", i, bufs[i], records[i])
		}
		used[bufs[i]], used[records[i]] = true, true
		pages[records[i]&^4095]++
	}
	for _, b := range bufs {
		if pages[b] != 0 {
			t.Errorf("buffer %#x is in a page of doorbell records", b)
		}
	}
	if len(pages) != 2 { // with the CQ's that is 66 records
		t.Errorf("doorbell records are in pages %v", pages)
	}
	for _, v := range qps {
		must(t, v.Close())
	}
	for range 65 {
		_, err := d.NewVerbsQP(devx.QPConfig{})
		must(t, err)
	}
	bufs, records = places(r)
	for i := 65; i < 130; i++ {
		if !used[bufs[i]] || !used[records[i]] {
			t.Errorf("new memory though there was some: %#x, %#x", bufs[i], records[i])
		}
	}
}

// Memory stays with a queue pair that may exist.
func TestVerbsMemoryOfTheUnknown(t *testing.T) {
	r := &recorder{}
	d := stub(t, r)
	_, err := d.NewVerbsQP(devx.QPConfig{})
	must(t, err)
	for _, c := range []struct {
		errno unix.Errno
		again bool // the next one gets the same memory
	}{{unix.ENOMEM, true}, {unix.ETIMEDOUT, false}} {
		r.fail(func(devxtest.Command) unix.Errno { return c.errno })
		if _, err := d.NewVerbsQP(devx.QPConfig{}); !errors.Is(err, c.errno) {
			t.Fatal(err)
		}
		r.fail(nil)
		_, err := d.NewVerbsQP(devx.QPConfig{})
		must(t, err)
		bufs, _ := places(r)
		if again := bufs[len(bufs)-1] == bufs[len(bufs)-2]; again != c.again {
			t.Errorf("%v: the same memory again: %v", c.errno, again)
		}
	}
}

// Queue pairs are made, moved and destroyed by many goroutines while the device
// is closed.
func TestVerbsConcurrency(t *testing.T) {
	d, err := devxtest.Stub{Verbs: func(devxtest.Command) unix.Errno { return 0 }}.Open()
	must(t, err)
	var all sync.WaitGroup
	var begun sync.WaitGroup
	init, _, _ := rcTransitions()
	for range 8 {
		begun.Add(1)
		all.Go(func() {
			for i := 0; ; i++ {
				v, err := d.NewVerbsQP(devx.QPConfig{})
				if err == nil {
					err = errors.Join(devx.ModifyVerbs(v, init), devx.Modify(v.DevX(), mlx5.ToRST{}), v.Close())
				}
				if i == 0 {
					begun.Done()
				}
				if err != nil {
					if !errors.Is(err, devx.ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	begun.Wait()
	must(t, d.Close())
	all.Wait()
}

// A second Close while the first one's DEREG_MR is under way leaves the memory
// alone.
func TestMRClosedTwiceAtOnce(t *testing.T) {
	r := &recorder{}
	d := stub(t, r)
	pd, err := d.VerbsPD()
	must(t, err)
	mr, err := d.MR(pd, 1, 0)
	must(t, err)
	mapped := false
	r.fail(func(c devxtest.Command) unix.Errno {
		if c.Method.Name == "DEREG_MR" {
			must(t, mr.Close())
			_, mapped = usermem.Resolve(mr.Addr(), 1)
		}
		return 0
	})
	must(t, mr.Close())
	if !mapped {
		t.Error("the memory was unmapped while it was registered")
	}
	if _, mapped := usermem.Resolve(mr.Addr(), 1); mapped {
		t.Error("it is still mapped")
	}
}
