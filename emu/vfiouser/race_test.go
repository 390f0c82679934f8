// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/internal/race"
)

func rounds(n int) int {
	if race.Enabled {
		return n / 5
	}
	return n
}

// during runs change n times while workers use the device: each does some
// accesses for each change. They are bounded, so that the server, which waits
// for the network poller, is not starved.
func during(n, workers int, access func(worker int), change func(n int)) {
	var wg sync.WaitGroup
	turns := make([]chan struct{}, workers)
	for i := range turns {
		turns[i] = make(chan struct{}, n)
		wg.Go(func() {
			for range turns[i] {
				for range 50 {
					access(i)
				}
			}
		})
	}
	for i := range n {
		for _, turn := range turns {
			turn <- struct{}{}
		}
		change(i)
	}
	for _, turn := range turns {
		close(turn)
	}
	wg.Wait()
}

// Memory and vectors go while they are used: an access works, or says that
// nothing is there. Without the lock, it would be a fault, or another's memory.
func TestUnmapDuringDMA(t *testing.T) {
	c := connect(t)
	fd, e := memfd(t, 16*pageSize), eventFD(t)
	buffers := [][]byte{make([]byte, 8), make([]byte, 64), make([]byte, pageSize), make([]byte, 4*pageSize)}
	var worked, failed atomic.Int64
	during(rounds(200), len(buffers), func(i int) {
		do := c.host.WriteDMA
		if i%2 == 0 {
			do = c.host.ReadDMA
		}
		switch err := do(uint64(i)*pageSize, buffers[i]); {
		case err == nil:
			worked.Add(1)
		case errors.Is(err, ErrUnmapped):
			failed.Add(1)
		default:
			t.Error(err)
		}
		c.host.Interrupt(i)
	}, func(n int) {
		c.ok(cmdDMAMap, mapping(0, 8*pageSize, 0, readWrite), fd)
		c.ok(cmdDMAMap, mapping(8*pageSize, 8*pageSize, 8*pageSize, readWrite), fd)
		c.ok(cmdSetIRQs, irqs(setFDs, 0, 4), e, e, e, e)
		if n%2 == 0 {
			c.ok(cmdDMAUnmap, unmapping(0, 0, dmaUnmapAll))
			c.ok(cmdSetIRQs, irqs(irqDataNone|irqTrigger, 0, 0))
		} else {
			c.ok(cmdDMAUnmap, unmapping(0, 8*pageSize, 0))
			c.ok(cmdDMAUnmap, unmapping(8*pageSize, 8*pageSize, 0))
			c.ok(cmdSetIRQs, irqs(setFDs, 0, 4))
		}
	})
	t.Logf("%d accesses worked, %d found nothing", worked.Load(), failed.Load())
}

// The file goes and comes back: an access works, or is ErrFault.
func TestTruncateDuringDMA(t *testing.T) {
	c := connect(t)
	fd := memfd(t, 4*pageSize)
	c.ok(cmdDMAMap, mapping(0, 4*pageSize, 0, readWrite), fd)
	buffers := [][]byte{make([]byte, 4*pageSize), make([]byte, 4*pageSize)}
	var worked, failed atomic.Int64
	during(rounds(200), len(buffers), func(i int) {
		do := c.host.WriteDMA
		if i == 0 {
			do = c.host.ReadDMA
		}
		switch err := do(0, buffers[i]); {
		case err == nil:
			worked.Add(1)
		case errors.Is(err, ErrFault):
			failed.Add(1)
		default:
			t.Error(err)
		}
	}, func(int) {
		for _, size := range []int64{pageSize, 4 * pageSize} {
			if err := unix.Ftruncate(fd, size); err != nil {
				t.Error(err)
			}
			runtime.Gosched()
		}
	})
	t.Logf("%d accesses worked, %d failed", worked.Load(), failed.Load())
}

// A client leaves while the device works: the function is told, and what it does
// until Detach returns is harmless.
func TestDetachDuringDMA(t *testing.T) {
	r := newRig(t)
	fd, e := memfd(t, pageSize), eventFD(t)
	for range rounds(50) {
		c := r.connect()
		c.ok(cmdDMAMap, mapping(0, pageSize, 0, readWrite), fd)
		c.ok(cmdSetIRQs, irqs(setFDs, 0, 1), e)
		b := make([]byte, 64)
		during(1, 1, func(int) {
			if err := c.host.WriteDMA(0, b); err != nil && !errors.Is(err, ErrUnmapped) {
				t.Error(err)
			}
			c.host.Interrupt(0)
		}, func(int) { c.close() })
	}
}

// 8 bytes are one access, also while the other side writes them.
func TestDMAWhole(t *testing.T) {
	c := connect(t)
	fd := memfd(t, pageSize)
	c.ok(cmdDMAMap, mapping(0, pageSize, 0, readWrite), fd)
	for _, n := range []int{4, 8} {
		values := [][]byte{bytes.Repeat([]byte{0}, n), bytes.Repeat([]byte{0xff}, n)}
		_ = c.host.WriteDMA(64, values[0])
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
					_ = c.host.WriteDMA(64, values[i%2])
				}
			}
		})
		b := make([]byte, n)
		for range rounds(20000) {
			if err := c.host.ReadDMA(64, b); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b, values[0]) && !bytes.Equal(b, values[1]) {
				t.Fatalf("%d bytes: read %x", n, b)
			}
		}
		close(stop)
		wg.Wait()
	}
}
