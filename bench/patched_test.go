// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/cm"
	"devxlab.example/devx/abi"
	"devxlab.example/devx/devxtest"
	"devxlab.example/internal/ucmfake"
)

// verbsBed is a kernel that takes every verbs command, and answers a query with a
// state.
func verbsBed(t *testing.T, state *byte) *bed {
	t.Helper()
	field, _ := reflect.TypeFor[abi.QueryQPResp]().FieldByName("QPState")
	d, err := devxtest.Stub{Verbs: func(c devxtest.Command) unix.Errno {
		if c.Method.Name == "QUERY_QP" {
			c.Resp[field.Offset] = *state
		}
		return 0
	}}.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	b := &bed{d: d, c: anyCycle(), verbs: true}
	if err := b.grow(t.Context(), 2, nil); err != nil {
		t.Fatal(err)
	}
	return b
}

// States of a queue pair in verbs (enum ib_qp_state).
const verbsRTR, verbsRTS = 2, 3

// A query that does not answer RTS ends the boot: a reader must never see a state
// that is not there.
func TestPatchedRTSState(t *testing.T) {
	state := byte(verbsRTS)
	b := verbsBed(t, &state)
	set := 0
	c := rtsContender(b, howOnMS, func() error { set++; return nil })
	s, err := c.sample(t.Context())
	if err != nil || s.ns <= 0 || len(s.more) != len(c.parts) || s.more[0] < s.ns || set != 1 {
		t.Fatalf("%+v, %v, set %d times", s, err, set)
	}
	if c.Name != "c2/on-1000us/call" || c.parts[0].Name != "c2/on-1000us/seen" || c.parts[1].Name != "c2/on-1000us/way" {
		t.Errorf("%s, %+v", c.Name, c.parts)
	}
	state = verbsRTR
	if _, err := c.sample(t.Context()); err == nil || !strings.Contains(err.Error(), "after RTR→RTS, way on-1000us: a reader sees a state that is not there") {
		t.Errorf("%v", err)
	}
	failing := errors.New("no such parameter")
	if _, err := rtsContender(b, howOff, func() error { return failing }).sample(t.Context()); !errors.Is(err, failing) {
		t.Errorf("%v", err)
	}
}

// The ways of 0001 are those that the kernel's parameters allow.
func TestPatchedParameters(t *testing.T) {
	p := &patched{Run: &Run{}, root: t.TempDir()}
	if ways, set := p.rtsWays(); len(ways) != 1 || ways[0] != howOff || set(howOff) != nil {
		t.Errorf("without the patch: %v", ways)
	}
	dir := filepath.Join(p.root, "mlx5_ib/parameters")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{deferQPs, deferUS} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("9"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	ways, set := p.rtsWays()
	if len(ways) != 3 || !p.has("mlx5_ib", deferQPs) || p.has("ib_cm", limitStale) {
		t.Errorf("%v", ways)
	}
	for how, want := range map[string]string{howOff: "0 1000", howOnMS: "1 1000", howOnNow: "1 0"} {
		if err := set(how); err != nil {
			t.Fatal(err)
		}
		qps, _ := os.ReadFile(filepath.Join(dir, deferQPs))
		us, _ := os.ReadFile(filepath.Join(dir, deferUS))
		if got := string(qps) + " " + string(us); got != want {
			t.Errorf("%s: %s, want %s", how, got, want)
		}
	}
	if err := p.set("ib_cm", limitStale, "Y"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// What a refused command shows is noted, and one that is not refused is a mistake.
func TestPatchedOutbox(t *testing.T) {
	answer := unix.EINVAL
	b := answeringBed(t, func([]byte) unix.Errno { return answer }, nil)
	p := &patched{Run: &Run{}}
	p.PatchedBoot = &PatchedBoot{}
	if err := p.refusedModify(b, howOff); err != nil {
		t.Fatal(err)
	}
	if f := p.PatchedBoot.Failures; len(f) != 1 || f[0] != (FailedModif{How: howOff, Errno: "22"}) {
		t.Errorf("%+v", f)
	}
	answer = 0
	if err := p.refusedModify(b, howOff); err == nil || !strings.Contains(err.Error(), "was not refused") {
		t.Errorf("%v", err)
	}
}

// Connections are made and ended, and a conflict that is let in is no refusal.
func TestStormBed(t *testing.T) {
	k := ucmfake.New()
	ch := cm.NewChannel(k.Open())
	s, err := newStormBed(ch, netip.MustParseAddrPort("192.0.2.2:7471"))
	if err != nil {
		t.Fatal(err)
	}
	ready := func() *cm.ID {
		t.Helper()
		id, err := s.ready(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	number := s.number()
	if err := s.connect(t.Context(), ready(), number); err != nil {
		t.Error(err)
	}
	// This kernel does not look for conflicts.
	if err := s.refused(t.Context(), ready(), number); err == nil || !strings.Contains(err.Error(), "a second connection for QP 0x100001 was let in") {
		t.Errorf("%v", err)
	}
	if a, b := s.number(), s.number(); a == b {
		t.Error("a number twice")
	}
	if err := errors.Join(s.close(), ch.Close()); err != nil {
		t.Error(err)
	}
	if ids := k.IDs(); len(ids) != 0 {
		t.Errorf("IDs left in the kernel: %v", ids)
	}
}

// Storms become series: the middle and the last of the conflicts, and the innocent.
func TestStormSeries(t *testing.T) {
	p := &patched{Run: &Run{}}
	p.PatchedBoot = &PatchedBoot{Storms: []StaleStorm{{How: howOff, Innocent: 7}, {How: howOn, Innocent: 8}, {How: howOff, Innocent: 9}}}
	for i := range p.PatchedBoot.Storms {
		p.PatchedBoot.Storms[i].Refused = []time.Duration{1, 2, 3}
	}
	p.stormSeries(howOff)
	for name, want := range map[string]Samples{"c3/off/p50": {2, 2}, "c3/off/max": {3, 3}, "c3/off/innocent": {7, 9}} {
		if s := p.SeriesOf(name); s == nil || !reflect.DeepEqual(s.Samples, want) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// Storms with the limit on and off are as many, in turn, beginning as asked; those that
// are compared with other kernels come before, and the limit is off in the end.
func TestStormOrder(t *testing.T) {
	for _, c := range []struct {
		limit, onFirst bool
		want           string
	}{
		{false, true, "plain= plain= plain= plain= plain="},
		{true, false, "plain=N plain=N plain=N plain=N plain=N off=N on=Y off=N on=Y"},
		{true, true, "plain=N plain=N plain=N plain=N plain=N on=Y off=N on=Y off=N"},
	} {
		p := &patched{Run: &Run{}, root: t.TempDir(), onFirst: c.onFirst}
		p.PatchedBoot = &PatchedBoot{}
		if c.limit {
			if err := os.MkdirAll(filepath.Join(p.root, "ib_cm/parameters"), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p.param("ib_cm", limitStale), []byte("N"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		limit := func() string { b, _ := os.ReadFile(p.param("ib_cm", limitStale)); return string(b) }
		var got []string
		if err := p.storms(func(how string) error {
			got = append(got, how+"="+limit())
			p.PatchedBoot.Storms = append(p.PatchedBoot.Storms, StaleStorm{How: how, Refused: []time.Duration{1, 2, 3}})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if s := strings.Join(got, " "); s != c.want || c.limit && limit() != "N" {
			t.Errorf("limit %v, on first %v: %s, and then %q", c.limit, c.onFirst, s, limit())
		}
		for how, n := range map[string]int{howPlain: stormsPlain, howOff: stormPairs, howOn: stormPairs} {
			s := p.SeriesOf(stormName(how, "max"))
			if there := how == howPlain || c.limit; (s != nil) != there || there && len(s.Samples) != n {
				t.Errorf("limit %v: series %s: %+v", c.limit, how, s)
			}
		}
		failing := errors.New("let in")
		if err := p.storms(func(how string) error {
			if how == howOn {
				return failing
			}
			return nil
		}); c.limit && (!errors.Is(err, failing) || limit() != "N") {
			t.Errorf("%v, and then %q", err, limit())
		}
	}
}

func TestPatchedParts(t *testing.T) {
	if _, err := Patched([]string{"c2", "c7"}, false); err == nil || !strings.Contains(err.Error(), `no part "c7": c2, c6, outbox, c3`) {
		t.Errorf("%v", err)
	}
	x, err := Patched(nil, true)
	if err != nil || x.Name != PatchedName || !strings.Contains(x.plan(nil), "No work request") {
		t.Errorf("%+v, %v", x, err)
	}
	if r, err := Do(t.Context(), x, Options{}); err == nil || r == nil || len(r.Series) != 0 || !strings.Contains(err.Error(), "kernel's driver") {
		t.Errorf("on the emulated device: %v", err)
	}
}
