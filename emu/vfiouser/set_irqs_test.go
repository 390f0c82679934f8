// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func irqs(flags, start, count uint32, bools ...byte) []byte {
	return pack(irqSet{irqSetSize + uint32(len(bools)), flags, irqMSIX, start, count}, bools)
}

const setFDs = irqDataEventFD | irqTrigger

func TestSetIRQs(t *testing.T) {
	c := connect(t)
	c.host.Interrupt(3) // not set: nothing
	c.ok(cmdSetIRQs, irqs(setFDs, 0, 1))
	a, b := eventFD(t), eventFD(t)
	if reply := c.ok(cmdSetIRQs, irqs(setFDs, 3, 2), a, b); len(reply) != 0 {
		t.Errorf("reply %x", reply)
	}
	for range 3 {
		c.host.Interrupt(3)
	}
	for _, n := range []int{-1 << 63, -1, 2, 5, deviceVectors, 1 << 40} {
		c.host.Interrupt(n)
	}
	if n, m := signals(t, a), signals(t, b); n != 3 || m != 0 {
		t.Errorf("signalled %d and %d times, want 3 and 0", n, m)
	}

	// The same vector again, with another eventfd, as QEMU does when the guest
	// masks a vector: the old one is closed. That is seen by a poll of the other
	// end of nothing, so count descriptors.
	before := eventFDs(t)
	second := eventFD(t)
	c.ok(cmdSetIRQs, irqs(setFDs, 3, 1), second)
	if n := eventFDs(t); n != before+1 {
		t.Errorf("%d eventfds are open, %d before a vector's was replaced by a new one", n, before)
	}
	c.host.Interrupt(3)
	if n, m := signals(t, a), signals(t, second); n != 0 || m != 1 {
		t.Errorf("old and new were signalled %d and %d times, want 0 and 1", n, m)
	}

	// Without descriptors: taken away.
	c.ok(cmdSetIRQs, irqs(setFDs, 3, 1))
	c.host.Interrupt(3)
	c.host.Interrupt(4)
	if n, m := signals(t, second), signals(t, b); n != 0 || m != 1 {
		t.Errorf("signalled %d and %d times, want 0 and 1", n, m)
	}

	// Disabled.
	c.ok(cmdSetIRQs, irqs(irqDataNone|irqTrigger, 0, 0))
	c.host.Interrupt(4)
	if n := signals(t, b); n != 0 {
		t.Errorf("signalled %d times after all were disabled", n)
	}
	if n := eventFDs(t); n != 3 {
		t.Errorf("%d eventfds are open; 3 are ours", n)
	}
}

// eventFDs returns how many eventfds this process has open, without the
// runtime's.
func eventFDs(t *testing.T) (n int) {
	t.Helper()
	for fd := range 1024 {
		if checkName(fd) {
			n++
		}
	}
	return n - runtimeEventFDs
}

// QEMU sends at most 16 descriptors at once, and more in several messages.
func TestSetIRQsAll(t *testing.T) {
	c := connect(t)
	fds := make([]int, deviceVectors)
	for i := range fds {
		fds[i] = eventFD(t)
	}
	c.ok(cmdSetIRQs, irqs(setFDs, 0, 16), fds[:16]...)
	c.ok(cmdSetIRQs, irqs(setFDs, 16, 4), fds[16:]...)
	for i := range fds {
		for range i + 1 {
			c.host.Interrupt(i)
		}
	}
	for i, fd := range fds {
		if n := signals(t, fd); n != uint64(i+1) {
			t.Errorf("vector %d was signalled %d times, want %d", i, n, i+1)
		}
	}
}

func TestSetIRQsMask(t *testing.T) {
	c := connect(t)
	fds := []int{eventFD(t), eventFD(t), eventFD(t)}
	c.ok(cmdSetIRQs, irqs(setFDs, 0, 3), fds...)
	got := func() (n []uint64) {
		for _, fd := range fds {
			n = append(n, signals(t, fd))
		}
		return n
	}
	all := func() {
		for i := range fds {
			c.host.Interrupt(i)
			c.host.Interrupt(i)
		}
	}
	for _, step := range []struct {
		what string
		do   func()
		want []uint64
	}{
		{"all mask", func() { c.ok(cmdSetIRQs, irqs(irqDataNone|irqMask, 0, 3)); all() }, []uint64{0, 0, 0}},
		{"unmask one", func() { c.ok(cmdSetIRQs, irqs(irqDataBool|irqUnmask, 0, 3, 0, 1, 0)) }, []uint64{0, 1, 0}},
		{"again", func() { c.ok(cmdSetIRQs, irqs(irqDataBool|irqUnmask, 1, 1, 255)) }, []uint64{0, 0, 0}},
		{"it works", all, []uint64{0, 2, 0}},
		{"unmask all", func() { c.ok(cmdSetIRQs, irqs(irqDataNone|irqUnmask, 0, 3)) }, []uint64{1, 0, 1}},
		{"client's trigger", func() { c.ok(cmdSetIRQs, irqs(irqDataNone|irqTrigger, 1, 2)) }, []uint64{0, 1, 1}},
		{"of some", func() { c.ok(cmdSetIRQs, irqs(irqDataBool|irqTrigger, 0, 3, 1, 0, 1)) }, []uint64{1, 0, 1}},
		{"disabling unmasks, and forgets", func() {
			c.ok(cmdSetIRQs, irqs(irqDataNone|irqMask, 0, 3))
			all()
			c.ok(cmdSetIRQs, irqs(irqDataNone|irqTrigger, 0, 0))
			c.ok(cmdSetIRQs, irqs(setFDs, 0, 3), fds...)
			c.host.Interrupt(2)
		}, []uint64{0, 0, 1}},
	} {
		step.do()
		if n := got(); !slices.Equal(n, step.want) {
			t.Errorf("%s: signalled %v times, want %v", step.what, n, step.want)
		}
	}
}

func TestSetIRQsRefused(t *testing.T) {
	c := connect(t)
	e := eventFD(t)
	c.ok(cmdSetIRQs, irqs(setFDs, 0, 1), e)
	other := memfd(t, pageSize)
	of := func(index uint32, payload []byte) []byte {
		m := decode[irqSet](payload)
		m.Index = index
		return pack(m, payload[irqSetSize:])
	}
	for _, x := range []struct {
		what    string
		errno   unix.Errno
		payload []byte
		fds     []int
	}{
		{"no flags", unix.EINVAL, irqs(0, 0, 1), nil},
		{"no action", unix.EINVAL, irqs(irqDataNone, 0, 1), nil},
		{"no data", unix.EINVAL, irqs(irqTrigger, 0, 1), nil},
		{"two kinds of data", unix.EINVAL, irqs(irqDataNone|irqDataEventFD|irqTrigger, 0, 1), nil},
		{"two actions", unix.EINVAL, irqs(irqDataNone|irqMask|irqTrigger, 0, 1), nil},
		{"unknown flag", unix.EINVAL, irqs(0x40|setFDs, 0, 1), []int{e}},
		{"index", unix.EINVAL, of(5, irqs(setFDs, 0, 1)), []int{e}},
		{"INTx", unix.EINVAL, of(0, irqs(setFDs, 0, 1)), []int{e}},
		{"start", unix.EINVAL, irqs(setFDs, deviceVectors, 1), []int{e}},
		{"count", unix.EINVAL, irqs(setFDs, 0, deviceVectors+1), nil},
		{"start + count", unix.EINVAL, irqs(setFDs, deviceVectors-1, 2), []int{e, e}},
		{"start + count wraps", unix.EINVAL, irqs(setFDs, 1, ^uint32(0)), []int{e}},
		{"start wraps", unix.EINVAL, irqs(setFDs, ^uint32(0), 1), []int{e}},
		{"none, with a start", unix.EINVAL, irqs(irqDataNone|irqTrigger, 1, 0), nil},
		{"none, of eventfds", unix.EINVAL, irqs(setFDs, 0, 0), nil},
		{"none to mask", unix.EINVAL, irqs(irqDataNone|irqMask, 0, 0), nil},
		{"fewer descriptors", unix.EINVAL, irqs(setFDs, 0, 2), []int{e}},
		{"more descriptors", unix.EINVAL, irqs(setFDs, 0, 1), []int{e, e}},
		{"descriptors without eventfd", unix.EINVAL, irqs(irqDataNone|irqTrigger, 0, 1), []int{e}},
		{"descriptors to disable", unix.EINVAL, irqs(irqDataNone|irqTrigger, 0, 0), []int{e}},
		{"not an eventfd", unix.EINVAL, irqs(setFDs, 0, 2), []int{e, other}},
		{"mask eventfd", unix.EOPNOTSUPP, irqs(irqDataEventFD|irqMask, 0, 1), []int{e}},
		{"unmask eventfd", unix.EOPNOTSUPP, irqs(irqDataEventFD|irqUnmask, 0, 1), []int{e}},
		{"fewer booleans", unix.EINVAL, irqs(irqDataBool|irqMask, 0, 2, 1), nil},
		{"more booleans", unix.EINVAL, irqs(irqDataBool|irqMask, 0, 1, 1, 1), nil},
		{"data of none", unix.EINVAL, irqs(irqDataNone|irqMask, 0, 1, 1), nil},
		{"argsz", unix.EINVAL, pack(irqSet{irqSetSize - 1, setFDs, irqMSIX, 0, 1}), []int{e}},
	} {
		t.Run(x.what, func(t *testing.T) { c.fails(x.errno, cmdSetIRQs, x.payload, x.fds...) })
	}
	for index := range uint32(numIRQs) { // disabling what is not there is nothing
		if index != irqMSIX {
			c.ok(cmdSetIRQs, of(index, irqs(irqDataNone|irqTrigger, 0, 0)))
		}
	}
	c.host.Interrupt(0)
	if n := signals(t, e); n != 1 {
		t.Errorf("the vector that was set was signalled %d times", n)
	}
	if n := eventFDs(t); n != 2 {
		t.Errorf("%d eventfds are open, want ours and the server's", n)
	}
	if n := holders(t, other); n != 1 {
		t.Errorf("%d descriptors of the wrong file", n)
	}
}

// An eventfd that nobody reads does not hold up the device, though the client
// made it to block.
func TestSetIRQsFull(t *testing.T) {
	c := connect(t)
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, fd)
	if _, err := unix.Write(fd, pack(^uint64(0)-1)); err != nil {
		t.Fatal(err)
	}
	c.ok(cmdSetIRQs, irqs(setFDs, 0, 1), fd)
	c.host.Interrupt(0)
	if n := signals(t, fd); n != ^uint64(0)-1 {
		t.Errorf("%#x", n)
	}
}
