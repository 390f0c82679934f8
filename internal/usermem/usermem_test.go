// SPDX-License-Identifier: BSD-2-Clause

package usermem

import (
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if n := Live(); n != 0 && code == 0 {
		fmt.Fprintf(os.Stderr, "%d regions were not freed\n", n)
		code = 1
	}
	os.Exit(code)
}

func alloc(t testing.TB, n int) *Region {
	t.Helper()
	r, err := Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Free(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestAlloc(t *testing.T) {
	page := unix.Getpagesize()
	for n, want := range map[int]int{1: page, page - 1: page, page: page, page + 1: 2 * page, 10 * page: 10 * page} {
		before := Live()
		r := alloc(t, n)
		b := r.Bytes()
		if len(b) != want || r.Addr()%uint64(page) != 0 || r.Addr() == 0 {
			t.Errorf("Alloc(%d): %d bytes at %#x", n, len(b), r.Addr())
		}
		if slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) {
			t.Errorf("Alloc(%d) is not zero", n)
		}
		if Live() != before+1 {
			t.Errorf("%d regions live, want %d", Live(), before+1)
		}
		b[0], b[len(b)-1] = 1, 2 // is mapped, whole
	}
	for _, n := range []int{0, -1, math.MinInt, math.MaxInt, math.MaxInt - page} {
		if r, err := Alloc(n); err == nil {
			t.Errorf("Alloc(%d) gives %d bytes", n, len(r.Bytes()))
		}
	}
}

func TestResolve(t *testing.T) {
	r := alloc(t, 3*unix.Getpagesize())
	base, size := r.Addr(), len(r.Bytes())
	for i := range r.Bytes() {
		r.Bytes()[i] = byte(i * 7)
	}
	end := base + uint64(size)
	for _, c := range []struct {
		addr uint64
		n    int
		ok   bool
	}{
		{base, 0, true}, {base, 1, true}, {base, size, true}, {base + 5, 100, true}, {end - 1, 1, true}, {end, 0, true}, {base + 1, size - 1, true},
		{base, size + 1, false}, {base + 1, size, false}, {end - 1, 2, false}, {end, 1, false}, {base - 1, 1, false}, {base - 1, 2, false},
		{base, -1, false}, {base, math.MinInt, false}, {base, math.MaxInt, false}, {base + 1, math.MaxInt, false}, {end - 1, math.MaxInt, false},
		{0, 0, false}, {0, 1, false}, {0, math.MaxInt, false}, {math.MaxUint64, 0, false}, {math.MaxUint64, 1, false}, {math.MaxUint64 - 7, 8, false},
		{base + 1<<63, 1, false},
	} {
		b, ok := Resolve(c.addr, c.n)
		if ok != c.ok {
			t.Errorf("Resolve(base%+d, %d) = %v, want %v", int64(c.addr-base), c.n, ok, c.ok)
			continue
		}
		if !ok {
			if b != nil {
				t.Errorf("Resolve(base%+d, %d) gives bytes and false", int64(c.addr-base), c.n)
			}
			continue
		}
		if len(b) != c.n || cap(b) != c.n {
			t.Errorf("Resolve(base%+d, %d) has %d bytes and room for %d", int64(c.addr-base), c.n, len(b), cap(b))
		}
		if c.n > 0 && &b[0] != &r.Bytes()[c.addr-base] {
			t.Errorf("Resolve(base%+d, %d) gives other memory", int64(c.addr-base), c.n)
		}
	}
}

// Two regions side by side are two: what overlaps both is no one's.
func TestNeighbours(t *testing.T) {
	page := unix.Getpagesize()
	var a, b *Region
	for i := 0; a == nil; i++ {
		if i == 200 {
			t.Fatal("the kernel places no two mappings side by side")
		}
		next := alloc(t, page)
		mu.Lock()
		rs := regions()
		at := slices.Index(rs, next)
		switch {
		case at > 0 && rs[at-1].addr+uint64(len(rs[at-1].b)) == next.addr:
			a, b = rs[at-1], next
		case at+1 < len(rs) && next.addr+uint64(page) == rs[at+1].addr:
			a, b = next, rs[at+1]
		}
		mu.Unlock()
	}
	a.Bytes()[page-1], b.Bytes()[0] = 0xaa, 0xbb
	if _, ok := Resolve(b.Addr()-1, 2); ok {
		t.Error("a range over two regions was resolved")
	}
	if got, ok := Resolve(b.Addr()-1, 1); !ok || got[0] != 0xaa {
		t.Errorf("the last byte of the first: %x, %v", got, ok)
	}
	if got, ok := Resolve(b.Addr(), 1); !ok || got[0] != 0xbb {
		t.Errorf("the first byte of the second: %x, %v", got, ok)
	}
}

func TestFree(t *testing.T) {
	before := Live()
	a, b, c := alloc(t, 1), alloc(t, 1), alloc(t, 1)
	addr := b.Addr()
	for range 2 { // a second call does nothing
		if err := b.Free(); err != nil {
			t.Error(err)
		}
		if _, ok := Resolve(addr, 1); ok {
			t.Error("a freed region was resolved")
		}
		if Live() != before+2 {
			t.Errorf("%d regions live, want %d", Live(), before+2)
		}
	}
	for _, r := range []*Region{a, c} {
		if _, ok := Resolve(r.Addr(), len(r.Bytes())); !ok {
			t.Error("a live region was lost")
		}
	}
}

// A freed region must not take away another one that the kernel placed at its
// address.
func TestFreeAfterTheAddressWasReused(t *testing.T) {
	for range 200 {
		old, err := Alloc(1)
		if err != nil {
			t.Fatal(err)
		}
		if err := old.Free(); err != nil {
			t.Fatal(err)
		}
		next, err := Alloc(1)
		if err != nil {
			t.Fatal(err)
		}
		reused := next.Addr() == old.Addr()
		if err := old.Free(); err != nil {
			t.Error(err)
		}
		if _, ok := Resolve(next.Addr(), 1); !ok {
			t.Error("the second Free of one region took another")
		}
		if err := next.Free(); err != nil {
			t.Error(err)
		}
		if reused {
			return
		}
	}
	t.Fatal("the kernel never placed a mapping where one had been")
}

// Against a model: any order of Alloc, Free and Resolve.
func TestProperties(t *testing.T) {
	page := unix.Getpagesize()
	rapid.Check(t, func(t *rapid.T) {
		var live, dead []*Region
		defer func() {
			for _, r := range live {
				if err := r.Free(); err != nil {
					t.Error(err)
				}
			}
		}()
		covered := func(addr uint64, n int) bool {
			for _, r := range live {
				if addr >= r.addr && addr-r.addr <= uint64(len(r.b)) && uint64(n) <= uint64(len(r.b))-(addr-r.addr) {
					return true
				}
			}
			return false
		}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				r, err := Alloc(rapid.IntRange(1, 3*page).Draw(t, "size"))
				if err != nil {
					t.Fatal(err)
				}
				live = append(live, r)
			},
			"free": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("none")
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				if err := live[i].Free(); err != nil {
					t.Fatal(err)
				}
				dead = append(dead, live[i])
				live = slices.Delete(live, i, i+1)
			},
			"resolve": func(t *rapid.T) {
				all := append(slices.Clone(live), dead...)
				if len(all) == 0 {
					t.Skip("none")
				}
				r := rapid.SampledFrom(all).Draw(t, "near")
				addr := r.addr + uint64(rapid.IntRange(-2, 2).Draw(t, "offset")+rapid.SampledFrom([]int{0, page, len(r.b)}).Draw(t, "from"))
				n := rapid.IntRange(0, 2*page).Draw(t, "bytes")
				b, ok := Resolve(addr, n)
				if want := covered(addr, n); ok != want || ok && len(b) != n {
					t.Fatalf("Resolve(%#x, %d) = %d bytes, %v; want %v", addr, n, len(b), ok, want)
				}
			},
		})
	})
}

// Alloc, Free and Resolve from many goroutines: each finds its own region,
// whatever the others do.
func TestConcurrent(t *testing.T) {
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				r, err := Alloc(1 + i%3*unix.Getpagesize())
				if err != nil {
					t.Error(err)
					return
				}
				mark := byte(g<<4 | i&15)
				r.Bytes()[7] = mark
				if b, ok := Resolve(r.Addr()+7, 1); !ok || b[0] != mark {
					t.Errorf("goroutine %d: %x, %v; want %x", g, b, ok, mark)
				}
				Live()
				if err := r.Free(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestResolveAllocatesNothing(t *testing.T) {
	for range 20 {
		alloc(t, 1)
	}
	r := alloc(t, 100)
	ok := true
	if n := testing.AllocsPerRun(100, func() {
		_, found := Resolve(r.Addr()+10, 50)
		_, missing := Resolve(r.Addr()-1, 1<<30)
		ok = ok && found && !missing
	}); n != 0 || !ok {
		t.Errorf("%v allocations; right answers: %v", n, ok)
	}
}

// A pinned region stays mapped when it is freed, and is no one's to find.
func TestPin(t *testing.T) {
	before := Live()
	r, err := Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	addr, size := r.Addr(), len(r.Bytes())
	for range 2 {
		if p, ok := Pin(addr+1, size-1); !ok || p != r {
			t.Fatalf("Pin: %v, %v", p, ok)
		}
	}
	for _, n := range []int{-1, size, size + 1} {
		if _, ok := Pin(addr+1, n); ok {
			t.Errorf("%d bytes were pinned", n)
		}
	}
	for range 2 {
		if err := r.Free(); err != nil {
			t.Error(err)
		}
	}
	if _, ok := Resolve(addr, 1); ok {
		t.Error("a freed region was resolved")
	}
	if _, ok := Pin(addr, 1); ok {
		t.Error("a freed region was pinned")
	}
	r.Bytes()[0] = 1 // still mapped
	if err := r.Unpin(); err != nil || Live() != before+1 {
		t.Errorf("%v; %d regions mapped, want %d", err, Live(), before+1)
	}
	r.Bytes()[0] = 2
	if err := r.Unpin(); err != nil || Live() != before {
		t.Errorf("%v; %d regions mapped, want %d", err, Live(), before)
	}
}

func TestPinBeforeFree(t *testing.T) {
	r := alloc(t, 1)
	if _, ok := Pin(r.Addr(), 1); !ok {
		t.Fatal("not pinned")
	}
	if err := r.Unpin(); err != nil {
		t.Error(err)
	}
	if b, ok := Resolve(r.Addr(), 1); !ok || b[0] != 0 {
		t.Error("it is gone, and nobody freed it")
	}
}
