// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"errors"
	"strings"
	"testing"
	"time"

	"devxlab.example/ebpf"
)

// There is no kernel in the way to the emulated device.
func TestKernelCostNeedsAKernel(t *testing.T) {
	if _, err := Do(t.Context(), micro, Options{KernelCost: true}); !errors.Is(err, ErrNoKernel) || !strings.Contains(err.Error(), "--device mlx5_0") {
		t.Errorf("%v", err)
	}
}

// The table has each opcode's parts, what is not visible with its reason, and what was
// lost; P99 only where there are enough.
func TestKernelCostText(t *testing.T) {
	r := &Result{Experiment: micro.Name, KernelCost: &KernelCost{
		Commands: []CommandCost{{Op: "RTR2RTS_QP", N: 1234, Parts: map[string]PartCost{
			ebpf.Queue.String(): {N: 1234, P50: 16 * time.Microsecond, P99: 129 * time.Microsecond}, ebpf.Firmware.String(): {N: 20, P50: time.Millisecond},
		}}},
		Connections: []ConnectionCost{{"REQ to REP", false, PartCost{N: 2345, P50: 3 * time.Millisecond, P99: 40 * time.Millisecond}}},
		NotVisible:  map[string]string{ebpf.Completion.String(): "no fentry"},
		Lost:        ebpf.Lost{Stamps: 3},
	}}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"RTR2RTS_QP  1,234", "16 µs / 129 µs", "1 ms", "REQ to REP  active  2,345  3 ms / 40 ms", "not visible: completion: no fentry", "Stamps:3"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "1 ms /") {
		t.Error("a P99 of 20 commands")
	}
	if k := kernelCost(&ebpf.Snapshot{Times: []ebpf.Times{{}}}, []ebpf.Coverage{{Stage: ebpf.Worker, Why: "x"}}); len(k.Commands) != 0 || k.NotVisible[ebpf.Worker.String()] != "x" {
		t.Errorf("%+v", k)
	}
}
