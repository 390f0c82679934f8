// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"devxlab.example/internal/require"
)

// rxePairs is how many pairs of runs there are: enough for an interval around a
// median that covers 95 %.
const rxePairs = 20

// TestLabRXE holds the emulated HCA beside the kernel's software RoCE in the same
// guest, and logs the table of docs/wire.md. It asserts only that each run gave a
// figure: what a figure is depends on the machine.
func TestLabRXE(t *testing.T) {
	require.Long(t, "rxe", "DEVXLAB_REQUIRE=lab-full,rxe go test ./lab -run TestLabRXE -v")
	o := trafficOptions(t)
	var out bytes.Buffer
	o.ExtraModules, o.Timeout, o.Devices, o.Stdout, o.Stderr = []string{"rdma_rxe", "crc32_generic"}, time.Hour, 1, &out, &out
	o.SMP, o.Append = 2, "tsc=reliable"
	o.HCA, o.Args = []string{o.Devxlab, "emu"}, []string{"sh", guestScripts + "rxe.sh", strconv.Itoa(rxePairs)}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Logf("%d pairs\n%s", rxePairs, pairTable(t, r.Release, out.String(), "mlx5_0", "rxe0", rxePairs))
}

// pairTable makes a table of lines "pair|what|whose|figure".
func pairTable(t *testing.T, release, text, first, second string, pairs int) string {
	t.Helper()
	type key struct{ what, whose string }
	figures := map[key][]float64{}
	var order []string
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 4 {
			t.Fatalf("%q in\n%s", line, text)
		}
		v, err := strconv.ParseFloat(f[3], 64)
		if err != nil || v <= 0 {
			t.Fatalf("%q: %v\n%s", line, err, text)
		}
		k := key{f[1], f[2]}
		figures[k] = append(figures[k], v)
		if !slices.Contains(order, f[1]) {
			order = append(order, f[1])
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| place: lab (TCG), Linux %s | %s | %s | %[2]s / %[3]s, median of pairs (95 %%) |\n|---|---|---|---|\n", release, first, second)
	for _, what := range order {
		x, y := figures[key{what, first}], figures[key{what, second}]
		if len(x) != pairs || len(y) != pairs {
			t.Fatalf("%s: %d and %d figures", what, len(x), len(y))
		}
		ratios := make([]float64, pairs)
		for i := range ratios {
			ratios[i] = x[i] / y[i]
		}
		m, low, high := medianInterval(ratios)
		a, _, _ := medianInterval(x)
		c, _, _ := medianInterval(y)
		fmt.Fprintf(&b, "| %s | %.4g | %.4g | %.3g (%.3g to %.3g) |\n", what, a, c, m, low, high)
	}
	return b.String()
}

// medianInterval returns the median and the narrowest pair of order statistics,
// as far from both ends, that covers it with 95 %, whatever the distribution.
func medianInterval(x []float64) (median, low, high float64) {
	x = slices.SortedFunc(slices.Values(x), cmp.Compare[float64])
	n := len(x)
	median = (x[(n-1)/2] + x[n/2]) / 2
	p, outside := math.Pow(0.5, float64(n)), 0.0 // that k of n are below the median; that it is outside
	k := 0
	for ; k < (n-1)/2; k++ {
		if outside += 2 * p; outside > 0.05 {
			break
		}
		p *= float64(n-k) / float64(k+1)
	}
	k = max(k-1, 0)
	return median, x[k], x[n-1-k]
}

func TestMedianInterval(t *testing.T) {
	x := make([]float64, 20)
	for i := range x {
		x[i] = float64(20 - i)
	}
	// A table of the sign test has the 6th and the 15th of 20.
	if m, low, high := medianInterval(x); m != 10.5 || low != 6 || high != 15 {
		t.Errorf("%v, %v to %v", m, low, high)
	}
	if m, low, high := medianInterval([]float64{3, 1, 2}); m != 2 || low != 1 || high != 3 {
		t.Errorf("of three: %v, %v to %v", m, low, high)
	}
}
