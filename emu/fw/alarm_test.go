// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// An alarm's owner and two sleepers: everything at its instant, in the order of
// time, whoever sets the alarm and when.
func TestAlarm(t *testing.T) {
	c := &VirtualClock{}
	a := c.NewAlarm()
	var log []string
	note := func(what string) { log = append(log, what+" "+c.Now().String()) }
	var wg sync.WaitGroup
	c.Busy(1)
	wg.Go(func() { // sets it while the owner waits
		defer c.Busy(-1)
		c.SleepUntil(10)
		note("set")
		a.Set(30)
		c.SleepUntil(20)
		note("earlier")
		a.Set(25)
		c.SleepUntil(40)
		note("past")
		a.Set(5)
		c.SleepUntil(50)
		note("for later")
		a.Set(70)
		c.SleepUntil(60)
		note("unset")
		a.Unset()
		c.SleepUntil(80)
		note("set at last")
		a.Set(90)
	})
	wg.Go(func() {
		defer a.Close()
		for range 3 {
			a.Wait()
			note("rung")
		}
	})
	wg.Wait()
	want := []string{"set 10ns", "earlier 20ns", "rung 25ns", "past 40ns", "rung 40ns", "for later 50ns", "unset 60ns", "set at last 80ns", "rung 90ns"}
	if len(log) != len(want) {
		t.Fatalf("%q", log)
	}
	for i := range want {
		if log[i] != want[i] {
			t.Errorf("%q, not %q", log[i], want[i])
		}
	}
}

// An alarm that is set before anybody waits rings then.
func TestAlarmSetBefore(t *testing.T) {
	c := &VirtualClock{}
	a := c.NewAlarm()
	a.Set(10)
	a.Wait() // alone, and announced: the clock jumps
	if now := c.Now(); now != 10 {
		t.Error(now)
	}
	a.Set(7)
	a.Wait() // past
	if a.set {
		t.Error("it has rung, and is set still")
	}
	if now := c.Now(); now != 10 {
		t.Error(now)
	}
	done := make(chan time.Duration)
	go func() { // a sleeper that nobody announced: the clock goes on without the owner once that waits unset
		c.SleepUntil(20)
		done <- c.Now()
	}()
	go a.Wait()
	if now := <-done; now != 20 {
		t.Error(now)
	}
	a.Set(0)
	for { // the owner is awake and announced again
		c.mu.Lock()
		busy, waiting := c.busy, a.waiting
		c.mu.Unlock()
		if busy == 1 && !waiting {
			break
		}
	}
	a.Close()
}

// What is set in the background makes no time pass, and rings at its instant on
// the way to something else; on a real clock it rings by itself. It is set again,
// taken back, and silent once the device is gone.
func TestBackground(t *testing.T) {
	c := &VirtualClock{}
	c.Busy(1)
	defer c.Busy(-1)
	tm := timers{clock: c}
	var rang []time.Duration
	b := background{timer: timer{ring: func() { rang = append(rang, c.Now()) }}}
	tm.setBackground(&b, time.Minute)
	tm.setBackground(&b, time.Second)
	if c.Now() != 0 {
		t.Errorf("time passed: %v", c.Now())
	}
	c.SleepUntil(2 * time.Second)
	tm.setBackground(&b, 3*time.Second)
	tm.stopBackground(&b)
	c.SleepUntil(time.Hour)
	if !slices.Equal(rang, []time.Duration{time.Second}) {
		t.Errorf("rang at %v", rang)
	}

	tm = timers{clock: NewRealClock()}
	ring := make(chan struct{}, 1)
	b = background{timer: timer{ring: func() { ring <- struct{}{} }}}
	for range 2 {
		tm.setBackground(&b, 0)
		<-ring
	}
	tm.close()
	tm.setBackground(&b, tm.clock.Now()+time.Hour)
	if b.real.Stop() {
		t.Error("set on a device that is gone")
	}
}
