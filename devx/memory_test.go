// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/emu/fw"
	"devxlab.example/internal/usermem"
	"devxlab.example/mlx5"
)

func TestUmemAndMKey(t *testing.T) {
	d := open(t, name(t))
	for _, n := range []int{0, -1} {
		if _, err := d.Umem(n, 0); err == nil {
			t.Errorf("a umem of %d bytes", n)
		}
	}
	live := usermem.Live()
	u, err := d.Umem(5000, mlx5.RemoteWrite|mlx5.RemoteRead|mlx5.RemoteAtomic)
	must(t, err)
	if len(u.Bytes()) != 8192 || u.Addr()%4096 != 0 {
		t.Errorf("%d bytes at %#x", len(u.Bytes()), u.Addr())
	}
	u.Bytes()[8191] = 1
	pd, err := d.PD()
	must(t, err)
	k, err := d.MKey(pd, u, mlx5.RemoteRead)
	must(t, err)
	if k.Key()&0xff != 0 || k.Key() == 0 {
		t.Errorf("key %#x", k.Key())
	}
	// What is in use stays, and so does its memory.
	if err := u.Close(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("umem in use: %v", err)
	}
	u.Bytes()[0] = 1
	if err := pd.Close(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("PD in use: %v", err)
	}
	for range 2 {
		must(t, k.Close())
		must(t, u.Close())
		must(t, pd.Close())
	}
	if n := usermem.Live() - live; n > 1 { // a submitter, perhaps
		t.Errorf("%d regions left", n)
	}
	if _, err := d.MKey(pd, u, 0); err == nil {
		t.Error("a key for what is closed")
	}
}

func TestUAR(t *testing.T) {
	d := open(t, name(t))
	c := count(d)
	u, err := d.UAR()
	must(t, err)
	for _, at := range []int{-8, 1, 4, 4096, 4092, 1 << 40} {
		contains(t, u.Ring(at, 1), "a multiple of 8 below 4096")
	}
	must(t, u.Ring(0, 1)) // nothing is there
	must(t, u.Ring(4088, 1))
	must(t, u.Ring(0x20, 1))
	must(t, u.Ring(0x800, 1))
	c.stats(t, "doorbells", func(s fw.Stats) int64 { return int64(s.Doorbells) }, 2)
	q, err := d.NewQP(devx.QPConfig{UAR: u})
	must(t, err)
	c = count(d)
	for range 2 { // the kernel is not even asked
		if err := u.Close(); !errors.Is(err, unix.EBUSY) {
			t.Error(err)
		}
	}
	must(t, u.Ring(0, 1))
	c.commands(t, 0, 0)
	must(t, q.Close())
	must(t, u.Close())
	must(t, u.Close())
	if err := u.Ring(0, 1); !errors.Is(err, devx.ErrClosed) {
		t.Error(err)
	}
	if _, err := d.NewQP(devx.QPConfig{UAR: u}); !errors.Is(err, devx.ErrClosed) {
		t.Error(err)
	}
}

// maps wraps a file and counts its doorbell pages.
type maps struct {
	devx.File
	t      *testing.T
	fail   bool
	mapped map[*mappedPage]bool
	closed int
}

type mappedPage struct {
	devx.DoorbellPage
	m *maps
}

func (m *maps) MapUAR(offset int64, length int) (devx.DoorbellPage, error) {
	if m.fail {
		return nil, unix.ENOMEM
	}
	p, err := m.File.MapUAR(offset, length)
	page := &mappedPage{p, m}
	m.mapped[page] = true
	return page, err
}

func (m *maps) Close() error {
	if m.closed++; m.closed > 1 || len(m.mapped) > 0 {
		m.t.Errorf("closed %d times, with %d pages mapped", m.closed, len(m.mapped))
	}
	return m.File.Close()
}

func (p *mappedPage) Unmap() error {
	if !p.m.mapped[p] {
		p.m.t.Error("unmapped twice")
	}
	delete(p.m.mapped, p)
	return p.DoorbellPage.Unmap()
}

type mapsDriver struct{ last *maps }

func (m *mapsDriver) Open(rest string) (devx.File, devx.Info, error) {
	f, info, err := devx.OpenFile("emu:" + rest)
	m.last.File = f
	return m.last, info, err
}

var mapping mapsDriver

func init() { devx.Register("maps", &mapping) }

// A mapped page keeps the kernel's file, and with it every object, so Close
// unmaps all of them first.
func TestCloseUnmapsFirst(t *testing.T) {
	m := &maps{t: t, mapped: map[*mappedPage]bool{}}
	mapping.last = m
	d, err := devx.Open("maps:")
	must(t, err)
	newQP(t, d, mlx5.STRC) // the shared page
	a, err := d.UAR()
	must(t, err)
	_, err = d.UAR()
	must(t, err)
	must(t, a.Close())
	m.fail = true
	before := emulated(t, d).HCA().Stats().Commands
	_, err = d.UAR()
	contains(t, err, "devx: emu:: cannot allocate memory")
	if n := emulated(t, d).HCA().Stats().Commands - before; n != 2 {
		t.Errorf("%d commands: the page was not freed", n)
	}
	must(t, d.Close())
	if err := d.Close(); !errors.Is(err, devx.ErrClosed) || m.closed != 1 {
		t.Errorf("%v, closed %d times", err, m.closed)
	}
	must(t, a.Close())
}
