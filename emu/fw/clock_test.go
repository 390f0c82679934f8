// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/mlx5"
)

const us = time.Microsecond

// The real clock never returns early. How late it is depends on the machine; the
// least timer slack makes lateness hide as little as it can.
func TestRealClock(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // the default again
	c := NewRealClock()
	c.Busy(-1) // counts nothing, so refuses nothing
	for i := range 50 {
		d := []time.Duration{-time.Hour, 0, 1, 50 * us, 200 * us}[i%5]
		wall := time.Now()
		until := c.Now() + d
		c.SleepUntil(until)
		if now := c.Now(); now < until {
			t.Errorf("asleep until %v, awake at %v", until, now)
		}
		if slept := time.Since(wall); slept < d {
			t.Errorf("a sleep of %v took %v", d, slept)
		}
	}
}

// Sleepers wake in the order of their instants, and of falling asleep where
// those are the same; each runs alone.
func TestVirtualClockOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c VirtualClock
		var woken []int
		at := []time.Duration{30, 10, 20, 10, 30, 10}
		c.Busy(len(at) + 1)
		for i, d := range at {
			go func() {
				c.SleepUntil(d)
				if c.Now() != d {
					t.Errorf("sleeper %d: due at %v, woken at %v", i, d, c.Now())
				}
				woken = append(woken, i) // the race detector sees whether two run at once
				c.Busy(-1)
			}()
			synctest.Wait()
		}
		if c.Now() != 0 || len(woken) > 0 {
			t.Fatalf("somebody who was announced is awake, and the clock is at %v", c.Now())
		}
		c.Busy(-1)
		synctest.Wait()
		if want := []int{1, 3, 5, 2, 0, 4}; !slices.Equal(woken, want) {
			t.Errorf("woken in the order %v, want %v", woken, want)
		}
		if c.Now() != 30 {
			t.Errorf("the clock is at %v", c.Now())
		}
	})
}

// A goroutine that is announced and does not sleep holds the clock until
// somebody takes it back.
func TestVirtualClockHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c VirtualClock
		c.Busy(3) // one never comes, one stays awake
		awake := false
		go func() {
			c.SleepUntil(10)
			awake = true
			c.Busy(-1)
		}()
		time.Sleep(time.Hour) // the bubble's, not the clock's
		if awake || c.Now() != 0 {
			t.Fatal("the clock went on")
		}
		c.Busy(-1)
		synctest.Wait()
		if awake || c.Now() != 0 {
			t.Fatal("the clock went on")
		}
		c.Busy(-1)
		synctest.Wait()
		if !awake || c.Now() != 10 {
			t.Errorf("the clock stands at %v", c.Now())
		}
	})
}

// Wrong counts: too few panic, too many hold the clock, and sleepers that were
// taken back while asleep all wake.
func TestVirtualClockMisuse(t *testing.T) {
	t.Run("taken back too often", func(t *testing.T) {
		var c VirtualClock
		c.Busy(2)
		c.Busy(-2)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			c.Busy(-1)
		}()
		c.Busy(1) // neither locked nor miscounted
		c.Busy(-1)
		c.SleepUntil(5)
		if c.Now() != 5 {
			t.Errorf("the clock is at %v", c.Now())
		}
	})
	t.Run("taken back asleep", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var c VirtualClock
			c.Busy(5)
			woken := make(chan time.Duration, 4)
			for i := range 4 {
				go func() {
					c.SleepUntil(time.Duration(i + 1))
					woken <- c.Now()
				}()
			}
			synctest.Wait()
			c.Busy(-3) // whose they are is not known: no more than 1 of 4 may stay asleep
			synctest.Wait()
			if len(woken) != 3 {
				t.Errorf("%d of 4 woke", len(woken))
			}
			c.Busy(-2)
			synctest.Wait()
			if len(woken) != 4 {
				t.Errorf("%d of 4 woke", len(woken))
			}
		})
	})
	t.Run("never announced", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var c VirtualClock
			for i := range 4 {
				go c.SleepUntil(time.Duration(i))
			}
			synctest.Wait() // the bubble fails if one is still asleep when it ends
			if c.Now() != 3 {
				t.Errorf("the clock is at %v", c.Now())
			}
		})
	})
}

// A sleeper that nobody announced, among announced ones: the clock runs ahead,
// but nobody is left asleep.
func TestVirtualClockStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c VirtualClock
		c.Busy(2)
		go func() {
			c.SleepUntil(100)
			c.Busy(-1)
		}()
		synctest.Wait()
		c.SleepUntil(50) // the stranger; the other announced one is still awake
		if c.Now() != 50 {
			t.Errorf("the clock is at %v", c.Now())
		}
		c.SleepUntil(70) // that one
		c.Busy(-1)
		synctest.Wait()
		if c.Now() != 100 {
			t.Errorf("the clock is at %v", c.Now())
		}
	})
}

// fixedProfile costs the same for each command.
func fixedProfile(t testing.TB, slots, threads int, submit, latency time.Duration) *Profile {
	t.Helper()
	p := &Profile{Name: "test", Source: "test", Slots: slots, Threads: threads, Submit: Dist{Fixed: submit}, Default: Dist{Fixed: latency}}
	if err := p.Compile(); err != nil {
		t.Fatal(err)
	}
	return p
}

// together runs n NOPs, announced and issued at once, each by a goroutine of
// its own or, with pool, by as many as there are slots, and returns how long
// they took.
func together(t testing.TB, p *Profile, n int, pool bool) time.Duration {
	t.Helper()
	clock := &VirtualClock{}
	h, err := New(Config{Profile: p, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	goroutines := n
	if pool {
		goroutines = min(n, p.Slots)
	}
	queue := make(chan struct{}, n)
	for range n {
		queue <- struct{}{}
	}
	close(queue)
	nop := build(mlx5.OpNOP, 0)
	done := make(chan struct{})
	clock.Busy(goroutines)
	for range goroutines {
		go func() {
			defer func() { done <- struct{}{} }()
			defer clock.Busy(-1)
			var out [mlx5.CmdOutSize]byte
			for range queue {
				h.Exec(nop, out[:])
				if !pool {
					return
				}
			}
		}()
	}
	for range goroutines {
		<-done
	}
	if s := h.Stats(); s.Commands != uint64(n) || s.InFlight != 0 || s.MostInFlight != int64(goroutines) {
		t.Errorf("%d commands: %+v", n, s)
	}
	return clock.Now()
}

// A group of n commands of 200 µs on p firmware threads behind 31 slots takes
// exactly ceil(n/min(p,31)) · 200 µs.
func TestGroupTime(t *testing.T) {
	for _, pool := range []bool{false, true} {
		for p := 1; p <= 64; p++ {
			profile := fixedProfile(t, 31, p, 0, 200*us)
			for n := 1; n <= 64; n++ {
				k := min(p, 31)
				want := time.Duration((n+k-1)/k) * 200 * us
				if got := together(t, profile, n, pool); got != want {
					t.Errorf("n %d, p %d, pool %v: got %v, want %v", n, p, pool, got, want)
				}
			}
		}
	}
}

// What else limits a group. The worker submits one after the other, and only
// into a free slot; a slot is taken until its command is done.
func TestEngineLimits(t *testing.T) {
	for _, tt := range []struct {
		what            string
		slots, threads  int
		submit, latency time.Duration
		n               int
		want            time.Duration
		wantOneByOne    time.Duration
	}{
		{"submission hides nothing from one thread", 31, 1, 10 * us, 200 * us, 4, (10 + 4*200) * us, 4 * 210 * us},
		{"submission is the limit", 31, 31, 10 * us, 5 * us, 20, (20*10 + 5) * us, 20 * 15 * us},
		{"submission alone", 31, 31, 10 * us, 0, 20, 200 * us, 200 * us},
		{"one slot", 1, 8, 10 * us, 200 * us, 5, 5 * 210 * us, 5 * 210 * us},
		{"fewer slots than threads", 3, 8, 0, 200 * us, 7, 3 * 200 * us, 7 * 200 * us},
		// Slots 0, 1: submitted at 10 and 20, done at 110 and 120. The third waits
		// for slot 0: 110 + 10 + 100; the fourth for slot 1: at 130, done at 230.
		{"two slots and submission", 2, 8, 10 * us, 100 * us, 4, 230 * us, 4 * 110 * us},
	} {
		t.Run(tt.what, func(t *testing.T) {
			p := fixedProfile(t, tt.slots, tt.threads, tt.submit, tt.latency)
			if got := together(t, p, tt.n, false); got != tt.want {
				t.Errorf("at once: got %v, want %v", got, tt.want)
			}
			if got := together(t, p, tt.n, true); got != tt.want {
				t.Errorf("from a queue: got %v, want %v", got, tt.want)
			}
			p.Slots = 1
			if got := together(t, p, tt.n, true); got != tt.wantOneByOne {
				t.Errorf("one by one: got %v, want %v", got, tt.wantOneByOne)
			}
		})
	}
}

// A device that is idle for a while starts anew: time that was not used is lost.
func TestEngineIdle(t *testing.T) {
	e := newEngine(fixedProfile(t, 2, 1, 10*us, 100*us), 0)
	for i, tt := range []struct{ at, want time.Duration }{
		{0, 110 * us}, {0, 210 * us}, {0, 310 * us}, // the third waits for the first's slot
		{1000 * us, 1110 * us}, {1050 * us, 1210 * us}, {1305 * us, 1415 * us},
	} {
		if got := e.reserve(tt.at, mlx5.OpNOP, 0, false); got != tt.want {
			t.Errorf("command %d at %v: done at %v, want %v", i, tt.at, got, tt.want)
		}
	}
}

// schedule returns when each of n commands of several opcodes ends on 4 threads,
// issued by 8 goroutines that started one after the other.
func schedule(t *testing.T, seed uint64, n int) (ends []time.Duration) {
	p, err := ProfileByName("published")
	if err != nil {
		t.Fatal(err)
	}
	q := *p
	q.Threads = 4
	synctest.Test(t, func(t *testing.T) {
		clock := &VirtualClock{}
		h, err := New(Config{Profile: &q, Clock: clock, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		ops := []mlx5.Op{mlx5.OpCreateQP, mlx5.OpNOP, mlx5.OpCreateQP, mlx5.OpDestroyQP, mlx5.OpCreateQP}
		next := 0
		clock.Busy(8)
		for range 8 {
			go func() {
				defer clock.Busy(-1)
				for next < n { // only one of them runs at a time
					op := ops[next%len(ops)]
					next++
					h.Exec(about(op, 0, 0), make([]byte, 16))
					ends = append(ends, clock.Now())
				}
			}()
			synctest.Wait()
		}
		synctest.Wait()
	})
	return ends
}

// The same seed gives the same schedule to the nanosecond, another seed another.
func TestScheduleRepeats(t *testing.T) {
	a := schedule(t, 1, 200)
	if len(a) != 200 || !slices.IsSorted(a) {
		t.Fatalf("%d commands ended, in the order %v", len(a), a)
	}
	for range 5 {
		if b := schedule(t, 1, 200); !slices.Equal(a, b) {
			t.Fatalf("the same seed gave\n%v and\n%v", a, b)
		}
	}
	if b := schedule(t, 2, 200); slices.Equal(a, b) {
		t.Error("another seed gave the same schedule")
	}
}

// New takes no profile that would not load.
func TestNewRefuses(t *testing.T) {
	for what, c := range map[string]Config{
		"no slots":           {Profile: &Profile{Name: "x", Source: "x", Threads: 1}},
		"no threads":         {Profile: &Profile{Name: "x", Source: "x", Slots: 1}},
		"too many QPs":       {LogMaxQP: 23},
		"negative QPs":       {LogMaxQP: -1},
		"too many contexts":  {LogMaxUC: 16},
		"fewer than no uctx": {LogMaxUC: -2},
		"vectors for nobody": {Memory: newMemory(1 << 20), Vectors: 1},
		"nothing to boot":    {Interrupt: func(int) {}, Vectors: 1},
	} {
		if h, err := New(c); err == nil || h != nil {
			t.Errorf("%s: got a device and %v", what, err)
		}
	}
	h := newHCA(t, Config{LogMaxUC: -1})
	out := make([]byte, 16)
	h.Exec(build(mlx5.OpCreateUCTX, 0), out)
	if status, _ := mlx5.StatusOf(out); status != mlx5.StatusLIM {
		t.Errorf("a device without contexts made one: %v", status)
	}
}
