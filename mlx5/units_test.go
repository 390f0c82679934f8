// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestAckTimeout(t *testing.T) {
	for n, want := range map[uint8]time.Duration{
		0: 0, 1: 8192, 2: 16384, 14: 67_108_864, 16: 268_435_456, 18: 1_073_741_824, 20: 4_294_967_296, 31: 8_796_093_022_208,
		32: 0, 33: 8192, 255: 8_796_093_022_208, // modulo 32
	} {
		if got := AckTimeout(n); got != want {
			t.Errorf("AckTimeout(%d) = %v, want %v", n, got, want)
		}
	}
}

// smallest finds the first code of those given whose time is at least d.
func smallest(codes []uint8, time func(uint8) time.Duration, d time.Duration) (uint8, bool) {
	for _, n := range codes {
		if time(n) >= d {
			return n, true
		}
	}
	return 0, false
}

func TestAckTimeoutFor(t *testing.T) {
	for n := uint8(1); n < 32; n++ {
		exact := AckTimeout(n)
		for d, want := range map[time.Duration]uint8{exact: n, exact - 1: n, exact + 1: n + 1} {
			got, err := AckTimeoutFor(d)
			if want == 32 {
				if text := "mlx5: no ack_timeout reaches 2h26m36.093022209s: the longest is 31, 2h26m36.093022208s"; err == nil || err.Error() != text {
					t.Errorf("AckTimeoutFor(%v): %v, want %s", d, err, text)
				}
			} else if err != nil || got != want {
				t.Errorf("AckTimeoutFor(%v) = %d, %v; want %d", d, got, err, want)
			}
		}
	}
	for _, d := range []time.Duration{0, -1, math.MinInt64} {
		if got, err := AckTimeoutFor(d); err != nil || got != 1 { // 0 would be no time-out
			t.Errorf("AckTimeoutFor(%v) = %d, %v", d, got, err)
		}
	}
}

// rnrMilliseconds is the table of the IBTA specification as people print it.
var rnrMilliseconds = [32]string{
	"655.36ms", "0.01ms", "0.02ms", "0.03ms", "0.04ms", "0.06ms", "0.08ms", "0.12ms", "0.16ms", "0.24ms", "0.32ms", "0.48ms", "0.64ms", "0.96ms", "1.28ms", "1.92ms",
	"2.56ms", "3.84ms", "5.12ms", "7.68ms", "10.24ms", "15.36ms", "20.48ms", "30.72ms", "40.96ms", "61.44ms", "81.92ms", "122.88ms", "163.84ms", "245.76ms", "327.68ms", "491.52ms",
}

func TestMinRNRTimer(t *testing.T) {
	for n, text := range rnrMilliseconds {
		want, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, code := range []uint8{uint8(n), uint8(n) + 32, uint8(n) + 224} {
			if got := MinRNRTimer(code); got != want {
				t.Errorf("MinRNRTimer(%d) = %v, want %v", code, got, want)
			}
		}
		if got, err := MinRNRTimerFor(want); err != nil || got != uint8(n) {
			t.Errorf("MinRNRTimerFor(%v) = %d, %v; want %d", want, got, err, n)
		}
	}
	for d, want := range map[time.Duration]uint8{
		math.MinInt64: 1, 0: 1, 1: 1, 10_001: 2, 491_520_000: 31, 491_520_001: 0, 655_360_000: 0,
	} {
		if got, err := MinRNRTimerFor(d); err != nil || got != want {
			t.Errorf("MinRNRTimerFor(%v) = %d, %v; want %d", d, got, err, want)
		}
	}
	if _, err := MinRNRTimerFor(655_360_001); err == nil || err.Error() != "mlx5: no min_rnr_nak reaches 655.360001ms: the longest is 0, 655.36ms" {
		t.Errorf("655.360001 ms: %v", err)
	}
}

// The For functions find the shortest time that is long enough.
func TestForFunctions(t *testing.T) {
	rnr := []uint8{} // from the shortest to the longest
	ack := []uint8{}
	for n := uint8(1); n < 32; n++ {
		rnr, ack = append(rnr, n), append(ack, n)
	}
	rnr = append(rnr, 0)
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64().Draw(t, "ns"))
		if rapid.Bool().Draw(t, "within reach") {
			d %= 10_000 * time.Second
		}
		for name, c := range map[string]struct {
			codes []uint8
			time  func(uint8) time.Duration
			find  func(time.Duration) (uint8, error)
		}{"ack": {ack, AckTimeout, AckTimeoutFor}, "rnr": {rnr, MinRNRTimer, MinRNRTimerFor}} {
			want, ok := smallest(c.codes, c.time, d)
			if got, err := c.find(d); got != want || (err == nil) != ok {
				t.Fatalf("%s for %v = %d, %v; want %d, %v", name, d, got, err, want, ok)
			}
		}
	})
}

func TestMTU(t *testing.T) {
	for m, bytes := range map[MTU]int{0: 0, MTU256: 256, MTU512: 512, MTU1024: 1024, MTU2048: 2048, MTU4096: 4096, 6: 0, 255: 0} {
		if got := m.Bytes(); got != bytes {
			t.Errorf("MTU %d has %d bytes, want %d", m, got, bytes)
		}
	}
	for bytes, want := range map[int]MTU{256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5} {
		if got, err := MTUOf(bytes); err != nil || got != want {
			t.Errorf("MTUOf(%d) = %d, %v", bytes, got, err)
		}
	}
	for _, bytes := range []int{-256, 0, 1, 128, 255, 1500, 8192, math.MaxInt} {
		if m, err := MTUOf(bytes); err == nil || m != 0 {
			t.Errorf("MTUOf(%d) = %d, %v", bytes, m, err)
		}
	}
	if _, err := MTUOf(1500); err.Error() != "mlx5: no path MTU of 1500 bytes: use 256, 512, 1024, 2048 or 4096" {
		t.Error(err)
	}
}

func TestPSN(t *testing.T) {
	for _, c := range []struct {
		p    PSN
		n    int
		want PSN
	}{
		{0, 0, 0}, {0xffffff, 1, 0}, {0, -1, 0xffffff}, {0x800000, 0x800000, 0}, {5, 1 << 24, 5}, {5, -(1 << 30), 5},
	} {
		if got := c.p.Add(c.n); got != c.want {
			t.Errorf("%#x + %d = %#x, want %#x", c.p, c.n, got, c.want)
		}
	}
	for _, c := range []struct {
		p, q PSN
		want int
	}{
		{0, 0, 0}, {0, 0xffffff, 1}, {0xffffff, 0, -1}, {0x7fffff, 0, 0x7fffff}, {0x800000, 0, -0x800000}, {0, 0x800000, -0x800000}, {0x1000003, 1, 2},
	} {
		if got := c.p.Diff(c.q); got != c.want || c.p.Before(c.q) != (c.want < 0) {
			t.Errorf("%#x - %#x = %d, before: %v; want %d", c.p, c.q, got, c.p.Before(c.q), c.want)
		}
	}
}

func TestPSNProperties(t *testing.T) {
	psn := rapid.Custom(func(t *rapid.T) PSN { return PSN(rapid.Uint32Range(0, 1<<24-1).Draw(t, "psn")) })
	rapid.Check(t, func(t *rapid.T) {
		p, q := psn.Draw(t, "p"), psn.Draw(t, "q")
		n, m := rapid.Int().Draw(t, "n"), rapid.Int().Draw(t, "m")
		if r := p.Add(n); r > 1<<24-1 || r.Add(-n) != p {
			t.Fatalf("%#x + %d = %#x, and back %#x", p, n, r, r.Add(-n))
		}
		if a, b := p.Add(n).Add(m), p.Add(m).Add(n); a != b {
			t.Fatalf("%#x + %d + %d depends on the order: %#x, %#x", p, n, m, a, b)
		}
		d := p.Diff(q)
		if d < -(1<<23) || d > 1<<23-1 || q.Add(d) != p {
			t.Fatalf("%#x - %#x = %d, and %#x + %d = %#x", p, q, d, q, d, q.Add(d))
		}
		if d != -(1<<23) && q.Diff(p) != -d { // the opposite point of the circle lies before from either side
			t.Fatalf("%#x - %#x = %d, the other way round %d", p, q, d, q.Diff(p))
		}
		if p != q && d != -(1<<23) && p.Before(q) == q.Before(p) {
			t.Fatalf("%#x and %#x are not in order", p, q)
		}
		if step := rapid.IntRange(1, 1<<23-1).Draw(t, "step"); !p.Before(p.Add(step)) {
			t.Fatalf("%#x does not come before %#x", p, p.Add(step))
		}
	})
}
